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
from html_support import hostile, many, patched, real, small
from report_support import broken, busy, make_cell, make_finding, make_proposal, make_verdict
from tests_support import CORPUS, DATA, ROOT

from tolcal import calibrate, corpus
from tolcal.cli import main
from tolcal.history import frames, loading
from tolcal.model import DTYPES, SHARE_MAX, Finding, HeldOutRows
from tolcal.report import FORMATS, text
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
    assert len(page_of("real").encode()) < 2_000_000
    assert set(shown["charts"]) == {"tightening", "recall", "over_time", "heat"}
    cells = rows(shown["cells"])
    assert len(cells) == len(shown["details"]) == 42
    by_link = {cell["link"]: cell for cell in cells}
    known = {f"{c.op}/{c.dtype}": c for c in real().proposal.cells}
    assert set(by_link) == set(known) == set(shown["details"])
    for link, row in by_link.items():
        assert set(shown["details"][link]["charts"]) == {"spreads", "shares", "shapes"}
        plots = known[link].plots
        assert plots is not None
        worst = max(
            shape.share
            for kernel in plots.kernels
            if kernel.role == "control"
            for shape in kernel.shapes
        )
        assert row["share"] == worst < 1
        assert re.fullmatch(r"tolcal replay [a-z0-9_]+:[0-9a-f]{16}", row["replay"])
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
        parts = [r["part"] for r in table if r["kernel"] == cell.label(kernel)]
        assert sum(parts[:-1]) == pytest.approx(1.0, abs=2e-3)
        assert parts[-1] == parts[-2]
        beyond = sum(
            r["part"] for r in table if r["kernel"] == cell.label(kernel) and r["low"] >= 1
        )
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


def test_whatever_there_is_much_of_fits() -> None:
    """Notes, runs, findings, curve, kernels, and texts of any length: 3 MB, and it says what is
    left out.
    """
    proposal = real().proposal
    bulky = msgspec.structs.replace(
        proposal,
        notes=("because " * 60,) * 20_000, digest="d" * 4_000_000, history="h" * 4_000_000,
        rule="r" * 4_000_000, runs=proposal.runs * 400,
    )  # fmt: skip
    words = "'\"<&" * 200
    rendered = html.render(
        Document(
            bulky,
            make_verdict(*(make_finding("drift", detail=words, worst_dims=words)
                           for _ in range(5000)), environment=words * 10_000),
        )
    )  # fmt: skip
    assert len(rendered.encode()) <= 3_000_000
    assert "and 19900 more notes, which the proposal's" in rendered
    assert "and 4700 more, which the proposal's JSON lists." in rendered
    assert "nor are the oldest 6900." in rendered
    cells = tuple(make_cell(f"op_{'x' * 50}_{n}") for n in range(20_000))
    huge = html.render(Document(make_proposal(*cells)))
    assert len(huge.encode()) <= 3_000_000
    assert re.search(r"\d+ of 20000 cells,[^.]+, and 10000 are not\s+in the table", huge)


def test_no_control_or_direction_character_is_in_the_page() -> None:
    """Wherever a file can put one: digest, history and rule, too."""
    content = msgspec.to_builtins(small())

    def spoilt(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: spoilt(v, k) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [spoilt(v, key) for v in value]
        free = isinstance(value, str) and key not in {"kind", "state", "role", "by", "origin",
                                                      "allowed_source", "judged_by"}  # fmt: skip
        return f"\u202e\u2066{value}\x07\x1b[31m\u200f" if free else value

    rendered = html.render(msgspec.convert(spoilt(content), Document))
    rest = re.sub(r"(?s)<script>.*?</script>", "", rendered)  # Vega's own
    assert not [c for c in rest if not (c.isprintable() or c == "\n")]


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
    for one in old["cells"]:
        del one["plots"]
    for run in old["runs"]:
        del run["held_out_share"], run["described"]
    content = Page(html.render(Document(msgspec.convert(old, type(real().proposal))))).data
    assert set(content["charts"]) == {"tightening"}
    assert len(content["cells"]["rows"]) == 42


# --- what it says -----------------------------------------------------------------------------


def words_of(document: Document) -> str:
    return " ".join(" ".join(Page(html.render(document)).words).split())


def test_the_sign_agrees_with_whether_it_blocks() -> None:
    """✗ blocks, ! is amiss and does not block, ✓ neither; the words beside it say it again."""

    def said(*found: Finding, **changes: Any) -> tuple[str, str]:
        words = words_of(Document(make_proposal(), make_verdict(*found, **changes)))
        answer = re.search(r"(Blocks|Does not block)[^.]*\.", words)
        assert answer is not None
        sign = re.search(r"Theme .*? dark ([✗!✓]) ", words)
        assert sign is not None
        return sign[1], " ".join(answer[0].split())

    assert said() == ("✓", "Does not block .")
    assert said(make_finding("caught", newly=True)) == ("✓", "Does not block .")
    assert said(make_finding("escaped")) == ("✓", "Does not block .")
    assert said(make_finding("escaped", changed=True)) == ("!", "Does not block .")
    assert said(make_finding("regression")) == ("!", "Does not block .")
    assert said(make_finding("drift")) == ("!", "Does not block .")
    assert said(statuses={"skipped": 4680}) == ("!", "Does not block .")
    assert said(make_finding("regression", blocks=True)) == ("✗", "Blocks .")
    assert said(blocks=True) == (
        "✗", "Blocks , as the verdict says, though none of its findings does."
    )  # fmt: skip


def test_red_held_out_runs_are_said_first_and_have_no_tick() -> None:
    """However many cells can tighten."""
    red = make_proposal(make_cell(), held_out=HeldOutRows(720, 40, 18, 18))
    words = words_of(Document(red))
    assert "! 1 tolerance can tighten. 18 of 18 held-out runs red (at most 100.0 %" in words
    assert "may fail a pull request that changes nothing" in words
    good = words_of(Document(make_proposal(make_cell())))
    assert "✓ 1 tolerance can tighten. Proposal" in good
    assert "changes nothing" not in good


def test_cells_to_approve_are_something_to_decide() -> None:
    """With a run and without; a proposal for comparison says that it can't be approved."""
    cells = (make_cell(), make_cell("gelu", state="new"), make_cell("tanh", state="unchanged"))
    nothing = "Nothing that needs a decision"
    for verdict in (None, make_verdict()):
        words = words_of(Document(make_proposal(*cells), verdict))
        assert "To approve: 1 tighter tolerance, 1 new tolerance, listed first" in words
        assert "/tolcal approve 9c1e7a40d2b86f13" in words
        assert nothing not in words
        assert nothing in words_of(Document(make_proposal(cells[2]), verdict))
    for changes in ({"rule": "paper"}, {"by": "kernel"}):
        words = words_of(Document(make_proposal(*cells, **changes)))
        assert "is for comparison: none of it can be approved" in words
        assert "To approve" not in words


def test_what_blocks_is_listed_first() -> None:
    """Before any number of findings that do not; where the rest is, is true."""
    found = [make_finding("regression", kernel=f"k{n}") for n in range(400)]
    crash = make_finding("crashed", kernel="last", blocks=True, observed=None, over=None)
    rendered = html.render(Document(make_proposal(), make_verdict(*found, crash)))
    assert data.findings(make_verdict(*found, crash))[0]["kernel"] == "last"
    assert rendered.count("<strong>(blocks)</strong>") == 1
    assert "and 101 more, which the proposal's JSON lists." in rendered


def test_what_is_not_finite_is_said() -> None:
    """A dash stands for what is not judged alone."""
    shown = {f["kind"]: f["observed"] for f in data.findings(broken().verdict) if f["blocks"]}
    assert shown == {"regression": "not finite", "escaped": "8.8e-3", "crashed": "-"}
    kinds = {f["kind"]: f["observed"] for f in data.findings(busy().verdict)}
    assert kinds["uncalibrated"] == "-"


@pytest.mark.parametrize(
    ("tightening", "shown"), [(12.5, "12x"), (1.25, "1.2x"), (0.5, "2.0x looser"), (1.04, "same")]
)
def test_numbers_are_rounded_once(tightening: float, shown: str) -> None:
    """The page shows the words of the other formats, ties included."""
    row = data.cell_row(make_cell(tightening=tightening, allowed_now=0.125))
    assert row["said"] == ["1.2e-1", "5.0e-4", shown, "99.7 %", "-"]
    assert shown == text.factor(tightening)
    script = (ROOT / "tolcal/report/html/page.js").read_text("utf-8")
    assert not re.search(r"toFixed|toExponential|toPrecision", script)


# --- rows of the charts -----------------------------------------------------------------------


def test_every_run_is_on_the_axis() -> None:
    """At its edge with the number, where its share is beyond; words keep clear of each other."""
    shares = {4: 50.0, 8: 3e4, 9: SHARE_MAX, 11: 0.0, 15: 1e5, 17: None}

    def change(content: Any) -> None:
        for number, share in shares.items():
            content["runs"][number]["held_out_share"] = share
        for number in (9, 10, 16):
            content["runs"][number]["environment"] = f"other {number}"

    table = {r["number"]: r for r in overview.over_time(patched(change).proposal).dicts()}
    assert list(table) == list(range(1, 18))
    assert all(1e-3 <= r["share"] <= 100 for r in table.values())
    assert {n: r["edge"] for n, r in table.items() if r["edge"]} == {
        10: "▲ >1.0e9", 12: "▼ 0", 16: "▲ 1.0e5",
    }  # fmt: skip
    assert (table[9]["share"], table[9]["said"]) == (100.0, "3.0e4")
    assert [n for n, r in table.items() if r["changed"]] == [10, 11, 12, 17]
    assert {n: r["word"] for n, r in table.items() if r["word"]} == {10: "right"}


def test_the_picture_of_runs_is_bounded() -> None:
    """As high as that of good runs, however red they are."""

    def change(content: Any) -> None:
        for run in content["runs"]:
            run["held_out_share"] = SHARE_MAX

    heights = [
        re.search(rb'viewBox="0 0 \d+ (\d+)"', html.pictures(document)["over-time.svg"])
        for document in (real(), patched(change))
    ]
    assert all(heights)
    good, red = (int(found[1]) for found in heights if found)
    assert abs(good - red) <= 10
    assert b"1.0e9" in html.pictures(patched(change))["over-time.svg"]


def test_a_published_0_is_drawn_and_said() -> None:
    """At the lower edge of the axis, in both charts that have it."""

    def change(content: Any) -> None:
        content["cells"][0]["allowed_paper"] = content["cells"][0]["plots"]["paper"] = 0.0

    document = patched(change)
    table = overview.tightening(document.proposal).dicts()
    (zero,) = [r for r in table if r["zero"]]
    assert (zero["what"], zero["said"]) == ("published rule", "0")
    assert 0 < zero["value"] < min(r["value"] for r in table if not r["zero"])
    one = document.proposal.cells[0]
    assert one.plots is not None
    lines = [r for r in cell.spreads(one.plots, document.proposal).dicts() if r["line"]]
    assert lines[0]["line"] == "published rule"
    assert lines[0]["words"].startswith("published rule: 0")


def test_a_line_says_what_it_is_of() -> None:
    """Ours of the median element; near lines share words, neighbours take turns."""
    plots = real().proposal.cells[0].plots
    assert plots is not None

    def words(**values: float | None) -> list[tuple[str, str]]:
        made = msgspec.structs.replace(plots, **values)
        table = cell.spreads(made, real().proposal).dicts()
        return [(r["words"], r["side"]) for r in table if r["words"]]

    assert words(legacy=1e-2, paper=1e-4, approved=1.05e-6, proposed=1e-6) == [
        ("proposed and approved, for the median element", "left"),
        ("published rule", "right"),
        ("hand-picked", "left"),
    ]
    assert words(legacy=None, paper=1e-4, approved=2e-6, proposed=1e-6) == [
        ("proposed, for the median element", "left"),
        ("approved, for the median element", "right"),
        ("published rule", "left"),
    ]


def test_kernels_of_one_role_differ_in_more_than_colour() -> None:
    """Each has a shape of its own, or is left out of the chart, which says so."""
    one = next(c for c in real().proposal.cells if c.op == "softmax")
    assert one.plots is not None
    kernels = tuple(
        msgspec.structs.replace(k, kernel=f"{k.kernel}_{n}")
        for n in range(4)
        for k in one.plots.kernels
    )
    plots = msgspec.structs.replace(one.plots, kernels=kernels)
    drawn = {r["kernel"] for r in cell.spreads(plots, real().proposal).dicts() if r["kernel"]}
    assert len(drawn) == 12 < len(cell.kernels(plots)) == 20
    assert drawn == {r["kernel"] for r in cell.shares(plots).dicts()}
    spec = json.dumps(html.charts.spreads())
    assert '"shape": {"field": "kernel"' in spec
    assert len(set(html.charts.SHAPES)) == 12


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


def test_the_picture_in_docs_is_of_the_shipped_history() -> None:
    """Every point of it, whatever fonts it was drawn with; and what docs/figures.md says of it."""

    def points(svg: str) -> list[str]:
        return sorted(re.findall(r'aria-label="(held-out runs[^"]+tolerance times[^"]+)"', svg))

    ops = corpus.load(CORPUS)
    names = ("choice", "history", "profiles-choice", "profiles-history")
    proposal = calibrate.calibrate(
        frames.frame_of(loading.load([DATA / f"h200-{name}.parquet" for name in names])),
        subtle=corpus.subtle(ops), checked=corpus.found_by_checks(ops),
    )  # fmt: skip
    shown = points((ROOT / "docs" / "recall.svg").read_text("utf-8"))
    assert shown == points(html.pictures(Document(proposal))["recall.svg"].decode())
    assert len(shown) > 80
    curve = proposal.curve
    assert curve is not None
    (now,) = [p for p in curve.points if p.factor == 1.0]
    assert (now.red, int(1000 * now.flagged / curve.detectable)) == (0, 998)
    assert curve.runs == 296
    least = min(curve.points, key=lambda p: p.paper_red)
    assert least.paper_red > 0
    said = " ".join((ROOT / "docs" / "figures.md").read_text().split())
    assert (
        f"the published rule makes {least.paper_red} runs red where it catches "
        f"{least.paper_flagged / curve.detectable:.0%}".replace("%", " %")
    ) in said


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


def test_scripts_put_together_apart_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where another process can't do it, rendering does."""

    def fresh() -> str:
        html.begin.cache_clear()
        html._vega.cache_clear()
        return html._vega()

    alone = fresh()
    html._vega.cache_clear()
    assert html.begin().result() is not None
    assert html._vega() == alone
    html.begin.cache_clear()
    monkeypatch.setattr(html, "_BUNDLER", "raise SystemExit(1)")
    assert html.begin().result() is None
    html._vega.cache_clear()
    assert html._vega() == alone
