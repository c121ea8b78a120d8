"""What machines read: SARIF, JUnit XML, annotations and P.json, against their schemas."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import jsonschema
import pytest
import xmlschema
from hypothesis import given, settings
from hypothesis import strategies as st
from report_support import (
    DOCUMENTS,
    HOSTILE,
    broken,
    busy,
    hostile,
    make_cell,
    make_finding,
    make_proposal,
    make_verdict,
)
from tests_support import DATA, ROOT

from tolcal.model import Finding
from tolcal.report import FORMATS, findings, junit, sarif
from tolcal.report.document import Document
from tolcal.report.schema import json_schema

SARIF = jsonschema.Draft202012Validator(
    json.loads((DATA / "schemas/sarif-2.1.0.json").read_text()),
    format_checker=jsonschema.FormatChecker(),
)
JUNIT = xmlschema.XMLSchema(str(DATA / "schemas/junit-10.xsd"))
P_JSON = jsonschema.Draft202012Validator(json_schema())
WORDS = st.text(max_size=60) | st.sampled_from(HOSTILE[:-3])
PATH = "corpus/softmax/kernels/softmax_triton.py"


def of(*found: Finding) -> Document:
    """A verdict of these findings alone."""
    return Document(make_proposal(), make_verdict(*found))


# --- every document by every schema ---------------------------------------------------------


def check(made: Document) -> None:
    """Raises unless each machine format is what its schema says."""
    SARIF.validate(json.loads(FORMATS["sarif"](made)))
    JUNIT.validate(ET.fromstring(FORMATS["junit"](made)))
    P_JSON.validate(json.loads(FORMATS["json"](made)))
    for line in FORMATS["annotations"](made).splitlines():
        assert re.fullmatch(r"::(error|warning|notice) [^:]*::.+", line), line
        assert line.isprintable()
        assert "##[" not in line


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_document_is_valid(name: str) -> None:
    """Quiet, busy, broken, hostile, many: by the schemas of OASIS, of JUnit, and our own."""
    check(DOCUMENTS[name]())


def test_a_calibration_without_a_run_is_valid() -> None:
    """No verdict: no results, no annotations, and the cells alone."""
    made = Document(make_proposal(make_cell()))
    check(made)
    assert json.loads(FORMATS["sarif"](made))["runs"][0]["results"] == []
    assert FORMATS["annotations"](made) == ""


@settings(deadline=None, max_examples=50)
@given(WORDS)
def test_any_words_are_valid(words: str) -> None:
    """Whatever names and reasons hold."""
    check(hostile(words))


@pytest.mark.parametrize(
    ("raw", "validator"),
    [({"version": "2.1.0"}, SARIF), ({"version": "2.0.0", "runs": []}, SARIF), ({}, P_JSON)],
)
def test_the_schemas_refuse(raw: object, validator: Any) -> None:
    """They are no formality."""
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(raw)


def test_the_schema_of_junit_refuses() -> None:
    """An attribute that is not known, a count that is missing."""
    good = FORMATS["junit"](busy())
    for bad in (good.replace("classname", "klass"), good.replace(' failures="0"', "")):
        assert not JUNIT.is_valid(ET.fromstring(bad))


# --- level, words and place -----------------------------------------------------------------


def test_levels_and_order() -> None:
    """What blocks is an error and comes first; an old escape is a note and comes last."""
    made = broken()
    assert [(f.kind, findings.level(f)) for f in findings.amiss(made.verdict)] == [
        ("regression", "error"),
        ("escaped", "error"),
        ("crashed", "error"),
        ("regression", "warning"),
        ("escaped", "note"),
    ]
    assert findings.amiss(None) == []


def test_good_news_and_missing_tolerances_are_nothing_amiss() -> None:
    """A caught kernel is what the corpus is for."""
    assert findings.amiss(make_verdict(make_finding("caught"), make_finding("uncalibrated"))) == []


def test_a_sentence_says_what_where_and_how_again() -> None:
    """By how much, the worst case, detail and the line to copy."""
    finding = make_finding("regression", detail="by its bias alone", fault="none")
    assert findings.sentence(finding) == (
        "2 of 36 cases, 7.3e3x the bound, largest residual 8.8e-3, worst at B=2 S=7 H=1025; the "
        "fault: none; by its bias alone; tolcal replay softmax_triton:9e1c02b7d4a8f655; "
        "tolcal minimize softmax_triton:9e1c02b7d4a8f655"
    )
    assert findings.sentence(make_finding("crashed", detail="hung", exceeding=0)) == (
        "0 of 36 cases; hung"
    )


@pytest.mark.parametrize(
    "path",
    [
        "", "/etc/passwd", "../up.py", "a/../../b.py", "C:/x.py", "http://e.example/x", "a\nb.py",
        "\\\\host\\x", "x" * 501, "a\tb.py",
    ],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_no_place(path: str) -> None:
    """A finding never points out of the repository; SARIF, which needs a place, has its own."""
    finding = make_finding("regression", blocks=True, path=path)
    assert findings.place(finding) is None
    check(of(finding))
    (result,) = json.loads(FORMATS["sarif"](of(finding)))["runs"][0]["results"]
    assert [place["physicalLocation"] for place in result["locations"]] == [
        {
            "artifactLocation": {"uri": "tolerances.toml", "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": 1},
        }
    ]
    assert "file=" not in FORMATS["annotations"](of(finding))


# --- SARIF ----------------------------------------------------------------------------------


def test_sarif_points_at_the_kernel() -> None:
    """File from the root, line of `run`, a rule that exists, and the numbers beside."""
    finding = make_finding("drift", path="corpus/a b/kernels/k%1.py", line=31, blocks=True)
    (run,) = json.loads(FORMATS["sarif"](of(finding)))["runs"]
    (result,) = run["results"]
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "corpus/a%20b/kernels/k%251.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 31},
    }
    assert unquote(location["physicalLocation"]["artifactLocation"]["uri"]) == finding.path
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    assert result["level"] == "error"
    assert result["properties"]["over"] == 7333.3


def test_an_alert_is_the_same_in_the_next_run() -> None:
    """Its fingerprint is of the kernel and kind, not of numbers and lines."""

    def prints(*found: Finding) -> list[str]:
        (run,) = json.loads(FORMATS["sarif"](of(*found)))["runs"]
        return [r["partialFingerprints"]["tolcal/v1"] for r in run["results"]]

    first = make_finding("regression", line=3)
    assert prints(first) == prints(make_finding("regression", line=9, over=2.0, detail="x"))
    others = [
        make_finding("drift"),
        *(make_finding("regression", **{name: "x"}) for name in ("dtype", "kernel", "op")),
    ]
    assert len(set(prints(first, *others))) == 5


def test_sarif_messages_hold_no_link_and_no_placeholder() -> None:
    """`[text](url)` and `{0}` mean something in a SARIF message."""
    made = of(make_finding("drift", detail="see [this](http://e.example) or {0}"))
    (result,) = json.loads(FORMATS["sarif"](made))["runs"][0]["results"]
    assert not set("[]{}") & set(result["message"]["text"])
    assert "see (this)" in result["message"]["text"]


def test_sarif_is_capped_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gravest are kept."""
    monkeypatch.setattr(sarif, "MAX_RESULTS", 2)
    found = [make_finding("drift", kernel=f"k{n}") for n in range(3)]
    made = of(*found, make_finding("regression", blocks=True))
    check(made)
    (run,) = json.loads(FORMATS["sarif"](made))["runs"]
    assert [r["ruleId"] for r in run["results"]] == ["regression", "drift"]
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"].startswith("2 findings of the least weight")


# --- JUnit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_junit_counts_what_it_holds(name: str) -> None:
    """Counts of suites and of the whole; a case for each cell and finding; names told apart."""
    made = DOCUMENTS[name]()
    assert made.verdict is not None
    root = ET.fromstring(FORMATS["junit"](made))
    for element in (root, *root.findall("testsuite")):
        for tag, attribute in junit.COUNTED.items():
            expected = len(element.findall(f".//{tag}"))
            assert element.get(attribute, str(expected)) == str(expected)
    cases = root.findall(".//testcase")
    assert int(root.attrib["tests"]) == len(cases)
    assert len(cases) == len(made.proposal.cells) + len(made.verdict.findings)
    if name != "hostile":  # where all have the same name
        assert max(Counter((c.get("classname"), c.get("name")) for c in cases).values()) == 1


def test_junit_is_red_where_the_job_is() -> None:
    """Failed and errors are what blocks, and nothing else."""
    made = broken()
    assert made.verdict is not None
    root = ET.fromstring(FORMATS["junit"](made))
    red = root.findall(".//failure") + root.findall(".//error")
    assert len(red) == sum(f.blocks for f in made.verdict.findings) == 3
    assert [e.get("type") for e in root.findall(".//error")] == ["crashed"]
    assert str(root.findall(".//error")[0].text).startswith(
        "corpus/gelu/kernels/gelu_triton.py:19: "
    )


@settings(deadline=None, max_examples=100)
@given(WORDS)
def test_junit_keeps_words(words: str) -> None:
    """What an XML parser reads back is what was said, less what cannot be printed."""
    made = of(make_finding("regression", detail=words, blocks=True))
    assert made.verdict is not None
    (failure,) = ET.fromstring(FORMATS["junit"](made)).findall(".//failure")
    assert failure.get("message") == findings.sentence(made.verdict.findings[0])


# --- annotations ----------------------------------------------------------------------------


def unescape(words: str) -> str:
    """As the runner does it."""
    for code, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        words = words.replace(code, char)
    return words


def test_an_annotation_stands_at_the_kernel() -> None:
    """File, line and title; commas and colons of a property are escaped, per cent everywhere."""
    finding = make_finding("regression", blocks=True, path="a,b/100%.py", line=7, detail="50 %0A")
    (line,) = FORMATS["annotations"](of(finding)).splitlines()
    assert line.startswith(
        "::error file=a%2Cb/100%25.py,line=7,title=Regression%3A softmax_triton float16::2 of 36 "
    )
    assert "; 50 %250A; tolcal replay" in line


@settings(deadline=None, max_examples=100)
@given(WORDS, WORDS)
def test_annotations_read_back(kernel: str, detail: str) -> None:
    """Split and unescaped as a runner does, the properties and the words are whole."""
    finding = make_finding("drift", kernel=kernel, detail=detail, path=PATH, line=31)
    (line,) = FORMATS["annotations"](of(finding)).splitlines()
    command, properties, data = line[2:].split(" ", 1)[0], *line.split(" ", 1)[1].split("::", 1)
    found = {k: unescape(v) for k, v in (p.split("=", 1) for p in properties.split(","))}
    assert command == "warning"
    assert (found["file"], found["line"]) == (PATH, "31")
    assert found["title"] == findings.title(finding).replace("##[", "##(")
    assert unescape(data) == findings.sentence(finding)


def test_the_old_form_of_a_command_is_no_command() -> None:
    """A runner takes `##[` anywhere in a line, so in a path too."""
    finding = make_finding("drift", path="a/##[error]b.py", detail="##[error]boom")
    assert "##[" not in FORMATS["annotations"](of(finding))


def test_annotations_are_as_many_as_github_shows() -> None:
    """Ten of a kind; of more, nine and how many are left."""
    ten = [make_finding("drift", kernel=f"k{n}") for n in range(10)]
    lines = FORMATS["annotations"](of(*ten)).splitlines()
    assert len(lines) == 10
    assert "k9" in lines[-1]
    red = make_finding("regression", blocks=True)
    lines = FORMATS["annotations"](of(*ten, make_finding("drift"), red)).splitlines()
    assert len(lines) == 11
    assert lines[0].startswith("::error ")
    assert lines[-1] == "::warning title=tolcal::2 more of this kind, in the summary"


# --- the schema of P.json -------------------------------------------------------------------


def test_the_shipped_schema_is_that_of_the_types(tmp_path: Path) -> None:
    """The file in the package, `tolcal report --schema` and the types say the same."""
    shipped = (ROOT / "tolcal/report/proposal.schema.json").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "tolcal", "report", "--schema", "--out", "s.json"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == ""
    assert (tmp_path / "s.json").read_text() == shipped
    assert json.loads(shipped) == json.loads(json.dumps(json_schema()))
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("schema",), 2), (("by",), "row"), (("cells", 0, "state"), "fine"),
        (("cells", 0, "held_out"), None), (("verdict", "findings", 0, "kind"), "fine"),
        (("verdict", "blocks"), "no"), (("buggy", 0, "proposed", "recall"), 1.5),
        (("cells", 0, "tightening"), -1.0), (("held_out", "runs"), -1),
    ],
)  # fmt: skip
def test_the_schema_of_p_json_refuses(where: tuple[str | int, ...], value: object) -> None:
    """A wrong version, word, type or share."""
    content = json.loads(FORMATS["json"](busy()))
    P_JSON.validate(content)
    here = content
    for key in where[:-1]:
        here = here[key]
    here[where[-1]] = value
    assert not P_JSON.is_valid(content)
