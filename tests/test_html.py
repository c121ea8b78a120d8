"""report.html without a browser: what is in it, how large it is, and what foreign names do."""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from html_support import hostile, many, real, small
from tests_support import DATA, ROOT

from tolcal.cli import main
from tolcal.model import DTYPES
from tolcal.report import FORMATS
from tolcal.report.document import Document, to_json

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from tolcal.report import html
from tolcal.report.html import cell, data, overview

GOLDEN = DATA / "golden"


class Page(HTMLParser):
    """Tags, attributes and scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: dict[str, set[str]] = {}
        self.scripts: list[tuple[str | None, str]] = []
        self.policy = ""
        self.inside: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        values = dict(attrs)
        for key, value in values.items():
            self.attributes.setdefault(key, set()).add(value or "")
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""
        if tag == "script":
            self.scripts.append((values.get("type"), ""))
        if tag not in ("meta", "link", "input"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.inside and self.inside[-1] == "script":
            kind, had = self.scripts[-1]
            self.scripts[-1] = (kind, had + text)
        elif self.inside and self.inside[-1] != "style":
            self.words.append(text)

    @property
    def data(self) -> dict[str, Any]:
        ((_, text),) = [s for s in self.scripts if s[0] == "application/json"]
        content: dict[str, Any] = json.loads(text)
        return content


@functools.cache
def page_of(name: str) -> str:
    documents = {"real": real, "small": small, "hostile": hostile}
    return html.render(documents[name]())


def rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


# --- the whole page -------------------------------------------------------------------------


def test_the_whole_page() -> None:
    """Every byte but the scripts and the style: the markup, and the data in a readable form."""
    page = Page(page_of("small"))
    text = re.sub(r"(?s)<style>.*?</style>", "<style></style>", page_of("small"))
    text = re.sub(r"(?s)(<script[^>]*>).*?</script>", r"\1</script>", text)
    text = re.sub(r"sha256-[\w+/=]+", "sha256-", text)
    shown = page.data
    for chart in shown["charts"].values():
        del chart["spec"]
    del shown["specs"]
    lines = json.dumps(shown, indent=1)
    text += re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", lines) + "\n"
    path = GOLDEN / "report.html"
    if os.environ.get("TOLCAL_UPDATE_GOLDEN"):
        path.write_text(text, "utf-8")
    want = path.read_text("utf-8").splitlines()
    diff = list(difflib.unified_diff(want, text.splitlines(), lineterm=""))
    assert not diff, "\n".join(diff)


def test_only_its_own_scripts_may_run_and_nothing_be_loaded() -> None:
    """The policy names just the page's scripts; no attribute names anything to load."""
    page = Page(page_of("real"))
    scripts = [text for kind, text in page.scripts if kind is None]
    assert len(scripts) == 2
    hashes = [b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert page.policy == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}'; "
        "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert "src" not in page.attributes
    assert all(link.startswith(("#", "data:,")) for link in page.attributes["href"])
    assert not any(name.startswith("on") for name in page.attributes)


def test_the_real_page_has_every_cell_with_its_charts() -> None:
    """42 cells, each with three charts, its worst case and a line that replays it."""
    shown = Page(page_of("real")).data
    assert len(page_of("real").encode()) < 1_600_000
    assert set(shown["charts"]) == {"tightening", "recall", "over_time", "heat"}
    cells = rows(shown["cells"])
    assert len(cells) == len(shown["details"]) == 42
    by_link = {cell["link"]: cell for cell in cells}
    known = {f"{c.op}/{c.dtype}": c for c in real().proposal.cells}
    assert set(by_link) == set(known) == set(shown["details"])
    for link, cell in by_link.items():
        assert set(shown["details"][link]["charts"]) == {"spreads", "shares", "shapes"}
        plots = known[link].plots
        assert plots is not None
        worst = max(
            shape.share
            for kernel in plots.kernels
            if kernel.role == "control"
            for shape in kernel.shapes
        )
        assert cell["share"] == worst < 1
        assert re.fullmatch(r"tolcal replay [a-z0-9_]+:[0-9a-f]{16}", cell["replay"])
    lines = [r for r in rows(shown["details"]["softmax/float16"]["charts"]["spreads"]) if r["line"]]
    plots = known["softmax/float16"].plots
    assert plots is not None
    assert {r["line"]: r["value"] for r in lines} == {
        "hand-picked": plots.legacy, "published rule": plots.paper, "proposed": plots.proposed,
    }  # fmt: skip


def test_a_histogram_is_all_records_of_a_kernel() -> None:
    """Parts sum to one, a step's right end repeated; nothing of a control lies beyond 1."""
    plots = next(c.plots for c in real().proposal.cells if (c.op, c.dtype) == ("gelu", "float16"))
    assert plots is not None
    table = cell.shares(plots).dicts()
    for kernel in plots.kernels:
        parts = [r["part"] for r in table if r["kernel"] == kernel.kernel]
        assert sum(parts[:-1]) == pytest.approx(1.0, abs=2e-3)
        assert parts[-1] == parts[-2]
        beyond = sum(r["part"] for r in table if r["kernel"] == kernel.kernel and r["low"] >= 1.0)
        assert (beyond == 0) == (kernel.role == "control")


def test_the_page_is_the_same_every_time() -> None:
    """No time, no order of a set, no path in it."""
    assert html.render(small()) == page_of("small")


@pytest.mark.parametrize(
    ("dims", "size"),
    [("", 1), ("H=1", 1), ("B=2 S=7 H=1025", 32768), ("H=9", 64), ("H=8", 8), ("x", 1),
     ("H=99999999999", 1), ("A=999999999 B=999999999 C=999999999", 8**12)],
)  # fmt: skip
def test_size_of_a_shape(dims: str, size: int) -> None:
    """Up to the next power of 8; what is no size counts as 1."""
    assert overview.size_of(dims) == size


# --- foreign text ---------------------------------------------------------------------------


def test_foreign_text_adds_nothing_to_the_page_but_words() -> None:
    """The same tags and attributes as of the page with honest names, and the same scripts."""
    honest, page = Page(page_of("small")), Page(page_of("hostile"))
    assert page.tags == honest.tags - Counter(code=1)  # the regression's replay line
    assert set(page.attributes) == set(honest.attributes)
    assert [s for s in page.scripts if s[0] is None] == [s for s in honest.scripts if s[0] is None]
    assert "img" not in page.tags
    assert "{{ 7 * 7 }}" in "".join(page.words) + json.dumps(page.data)
    assert "49" not in {w.strip() for w in page.words}


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [s for k, v in value.items() for s in [k, *strings(v)]]
    if isinstance(value, list):
        return [s for v in value for s in strings(v)]
    return [value] if isinstance(value, str) else []


def test_foreign_text_is_printable_words_of_one_line() -> None:
    """No control or direction character, no line of its own; no line to paste into a shell."""
    content = Page(page_of("hostile")).data
    assert all(s.isprintable() for s in strings(content))
    assert not any("replay" in s and s != "replay" for s in strings(content["details"]))
    assert {cell["replay"] for cell in rows(content["cells"])} == {""}
    assert "::error::" not in page_of("hostile")[:200]


def test_specifications_hold_no_text_of_a_file() -> None:
    """Data reach a chart as rows only: Vega evaluates expressions of a specification."""
    honest, page = Page(page_of("small")).data, Page(page_of("hostile")).data
    assert page["specs"] == honest["specs"]
    for name, chart in page["charts"].items():
        assert chart["spec"] == honest["charts"][name]["spec"]


@pytest.mark.parametrize(
    "identity",
    ["", "softmax:0123", "softmax:0123456789abcdef; id", "$(id):0123456789abcdef",
     "softmax:0123456789abcdef\n", "Softmax:0123456789abcdef"],
)  # fmt: skip
def test_only_an_id_can_be_replayed(identity: str) -> None:
    """What else a file may call an id is not offered for the clipboard."""
    assert data.replay(identity) == ""
    assert data.replay("softmax_2:0123456789abcdef") == "tolcal replay softmax_2:0123456789abcdef"


# --- size -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [500, 5000])
def test_many_cells_fit(count: int) -> None:
    """At most 3 MB: what changes most has its charts, and the page says how many have none."""
    rendered = html.render(many(count))
    assert len(rendered.encode()) <= 3_000_000
    content = Page(rendered).data
    assert len(content["cells"]["rows"]) == count
    tight = {f"{c.op}/{c.dtype}" for c in many(count).proposal.cells if c.state == "tighten"}
    assert len(tight) == 10
    assert tight <= set(content["details"])
    without = count - len(content["details"])
    assert f"{without} of {count} cells" in rendered
    assert len(rendered.encode()) > 2_900_000


def test_an_empty_proposal_has_a_page() -> None:
    """Nothing measured, nothing calibrated: every chart says what it lacks."""
    bare = msgspec.structs.replace(
        small().proposal, cells=(), buggy=(), runs=(), curve=None, recall=None,
        detectable_recall=None,
    )  # fmt: skip
    page = Page(html.render(Document(bare)))
    assert page.data["charts"] == {}
    assert "Nothing to compare: all residuals are of no device." in " ".join(page.words)


def test_a_proposal_of_an_older_version_has_a_page() -> None:
    """Without plots, its numbers are in the table."""
    old = msgspec.to_builtins(real().proposal)
    del old["curve"]
    for cell in old["cells"]:
        del cell["plots"]
    for run in old["runs"]:
        del run["held_out_share"], run["described"]
    content = Page(html.render(Document(msgspec.convert(old, type(real().proposal))))).data
    assert set(content["charts"]) == {"tightening"}
    assert len(content["cells"]["rows"]) == 42


# --- pictures -------------------------------------------------------------------------------


def test_pictures_are_whole_and_load_nothing() -> None:
    """Each chart there is data for, as PNG and as an SVG without links, and with its labels."""
    made = html.pictures(small())
    names = ["devices", "heat", "over-time", "recall", "tightening"]
    assert sorted(made) == sorted(f"{n}.{kind}" for n in names for kind in ("png", "svg"))
    for name, content in made.items():
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
            assert content.endswith(b"IEND\xaeB\x60\x82")
        else:
            root = ElementTree.fromstring(content)
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            for element in root.iter():
                assert not any(key.endswith(("href", "src")) for key in element.attrib)
    assert b"softmax/float32" in made["tightening.svg"]
    assert b"new environment" in made["over-time.svg"]
    assert b"AMD MI300X" in made["devices.svg"]


def test_the_picture_in_readme_is_of_the_shipped_history() -> None:
    """Every point of it, whatever fonts it was drawn with; and what README says of it."""

    def points(svg: str) -> list[str]:
        return sorted(re.findall(r'aria-label="(held-out runs[^"]+tolerance times[^"]+)"', svg))

    shown = points((ROOT / "docs" / "recall.svg").read_text("utf-8"))
    assert shown == points(html.pictures(real())["recall.svg"].decode())
    assert len(shown) > 80
    curve = real().proposal.curve
    assert curve is not None
    (now,) = [p for p in curve.points if p.factor == 1.0]
    assert (now.red, int(100 * now.flagged / curve.detectable)) == (0, 99)
    green = max(p.paper_flagged for p in curve.points if p.paper_red == 0)
    assert green / curve.detectable == pytest.approx(2 / 3, abs=0.01)


# --- the command ----------------------------------------------------------------------------


@pytest.fixture
def proposal(tmp_path: Path) -> Path:
    path = tmp_path / "p.json"
    path.write_text(to_json(small()), "utf-8")
    return path


def test_open_writes_the_page_and_starts_the_browser(proposal: Path) -> None:
    """The page lies beside P.json, and the browser gets its address."""
    seen = proposal.with_name("seen")
    browser = proposal.with_name("browser")
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}.tmp && mv {seen}.tmp {seen}\n')
    browser.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "tolcal", "report", str(proposal), "--open"],
        env=os.environ | {"BROWSER": f"{browser} %s"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    page = proposal.with_name("report.html")
    assert seen.read_text() == page.as_uri()
    assert page.read_text("utf-8") == page_of("small")


def test_without_a_browser_the_page_is_there_all_the_same(
    proposal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says where it is."""
    out = proposal.with_name("x.html")
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    assert main(["report", str(proposal), "--open", "--out", str(out)]) == 0
    assert out.exists()
    assert capsys.readouterr().err == (
        f"written: {out}; no browser could be started, open it yourself\n"
    )


def test_plots_are_written_beside_any_format(
    proposal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pictures go to their folder, the format where it always goes."""
    folder = proposal.with_name("plots")
    assert main(["report", str(proposal), "--format", "json", "--plots", str(folder)]) == 0
    assert capsys.readouterr().out == proposal.read_text("utf-8")
    assert {path.name for path in folder.iterdir()} == set(html.pictures(small()))


def test_open_shows_html_and_nothing_else(
    proposal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comment is nothing for a browser."""
    assert main(["report", str(proposal), "--open", "--format", "comment"]) == 2
    assert capsys.readouterr().err == (
        "tolcal: --open shows the HTML report, not comment; leave --format out\n"
    )


@pytest.mark.parametrize("lacking", ["altair", "vl_convert"])
def test_a_missing_library_is_one_line(proposal: Path, lacking: str) -> None:
    """What is missing, and how to get it; the other formats don't need it."""
    code = f"import sys; sys.modules[{lacking!r}] = None; from tolcal.cli import main; "
    for chosen, status in (("html", 2), ("summary", 0)):
        done = subprocess.run(
            [sys.executable, "-c",
             f"{code}sys.exit(main(['report', {str(proposal)!r}, '--format', {chosen!r}]))"],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == status
        assert done.stderr == (
            f"tolcal: `tolcal report` needs {lacking}, which is not installed: "
            "pip install 'tolcal[html]'\n" if status else ""
        )  # fmt: skip


def test_html_is_a_format() -> None:
    """By the name that the command line takes."""
    assert FORMATS["html"](small()) == page_of("small")
    assert set(DTYPES) >= {c.dtype for c in small().proposal.cells}
