"""Every format on real data: a locked H200 run judged against the H200 history."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import xmlschema
from tests_support import CORPUS, DATA, ROOT

from tolcal import calibrate, compare, corpus, history, tolerances
from tolcal.history import columns
from tolcal.model import Record, Tolerances
from tolcal.report import FORMATS
from tolcal.report.document import Document, read, to_json
from tolcal.report.schema import json_schema

OPS = ("rmsnorm", "softmax")


def of_ops(name: str) -> pa.Table:
    """Records of OPS alone, for the sake of time."""
    table = history.read_table([DATA / name])
    return table.filter(pc.is_in(pc.cast(table["op"], "string"), value_set=pa.array(OPS)))


@pytest.fixture(scope="module")
def past() -> pa.Table:
    """The history."""
    return of_ops("h200-history.parquet")


@pytest.fixture(scope="module")
def run() -> list[Record]:
    """The first locked run."""
    table = of_ops("h200-heldout.parquet")
    ids = pc.cast(table["run_id"], "string")
    return list(columns.to_records(table.filter(pc.equal(ids, min(ids.to_pylist())))))


def judge(past: pa.Table, records: list[Record], approved: Tolerances) -> Document:
    """What `tolcal ci` does with these records."""
    frame = history.to_frame(past)
    proposal = calibrate.calibrate(frame, approved=approved)
    baseline = calibrate.baseline(frame, tolerances.read(ROOT / "tolerances.toml"))
    kernels = corpus.by_name(corpus.load(CORPUS), ROOT)
    verdict = compare.compare(records, approved, proposal, baseline, {}, kernels)
    return Document(proposal, verdict)


def validated(made: Document) -> dict[str, str]:
    """All formats, those for machines checked by their schemas."""
    rendered = {kind: render(made) for kind, render in FORMATS.items()}
    schema = json.loads((DATA / "schemas/sarif-2.1.0.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(rendered["sarif"]))
    jsonschema.Draft202012Validator(json_schema()).validate(json.loads(rendered["json"]))
    xmlschema.XMLSchema(str(DATA / "schemas/junit-10.xsd")).validate(
        ET.fromstring(rendered["junit"])
    )
    return rendered


def test_a_locked_run_is_one_line(past: pa.Table, run: list[Record], tmp_path: Path) -> None:
    """By the history's own tolerances nothing is amiss, and no format says otherwise.

    The shipped ones rest on more profiles than this history has.
    """
    made = judge(past, run, calibrate.calibrate(history.to_frame(past)).tolerances())
    rendered = validated(made)
    lines = rendered["comment"].splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(
        "**tolcal: no regressions, nothing to decide.** 8 kernels, 1440 records of 360 cases on "
        "NVIDIA H200 (sm_90, driver 580.159.04, "
    )
    assert lines[1].endswith(
        "6 cells unchanged; 0 of 18 held-out runs red (at most 15.4 % of runs, 95 % confidence)."
    )
    assert rendered["annotations"] == ""
    assert 'failures="0" errors="0"' in rendered["junit"].splitlines()[1]
    assert "of 18" in rendered["summary"]
    path = tmp_path / "P.json"
    path.write_text(to_json(made))
    assert read(path) == made


def test_a_changed_kernel_that_is_worse(past: pa.Table, run: list[Record]) -> None:
    """Tolerances a hundredth of the shipped: a regression where changed, else false positives."""
    hundredth = {
        cell: msgspec.structs.replace(t, atol=t.atol / 100, scaled_tol=t.scaled_tol / 100)
        for cell, t in tolerances.read(ROOT / "tolerances.toml").items()
    }
    changed = [
        msgspec.structs.replace(r, kernel_hash="0" * 16, case_set="gate")
        if r.kernel == "softmax_triton"
        else r
        for r in run
    ]
    made = judge(past, changed, hundredth)
    assert made.verdict is not None
    kinds = {(f.kernel, f.kind) for f in made.verdict.findings if f.kind != "caught"}
    assert ("softmax_triton", "regression") in kinds
    assert ("rmsnorm_triton", "false_positive") in kinds
    rendered = validated(made)
    path = "corpus/softmax/kernels/softmax_triton.py"
    line = (ROOT / path).read_text().splitlines().index("def run(x: torch.Tensor) -> torch.Tensor:")
    assert (
        f"::error file={path},line={line + 1},title=Regression%3A softmax_triton "
        in (rendered["annotations"])
    )
    results = json.loads(rendered["sarif"])["runs"][0]["results"]
    assert results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == path
    worst = max((f for f in made.verdict.findings if f.kind == "regression"),
                key=lambda f: f.over or 0.0)  # fmt: skip
    section = rendered["comment"].split("**Regression**")[1]
    assert section.split("- `")[1].startswith(f"softmax_triton`, `softmax/{worst.dtype}`: ")
    assert f"`tolcal replay {worst.worst}`" in section
