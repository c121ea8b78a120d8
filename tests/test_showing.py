"""`tolcal show` and `tolcal report` on real terminals and in pipes, on the H200 history."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow.compute as pc
import pytest
from report_support import busy, check_golden, make_cell
from tests_support import DATA, ROOT, make_record, make_stats

from tolcal import calibrate, corpus, history, tolerances
from tolcal.report import FORMATS, catalogue, terminal, text
from tolcal.report.document import to_json
from tolcal.tolerances import writing

SHOW = ("show", "softmax", "--history", str(DATA / "h200-history.parquet"))
COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-9]|4[0-9]|9[0-7])[0-9;]*m")


def environment(**changes: str) -> dict[str, str]:
    """This one without what says how a terminal looks."""
    names = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TERM")
    kept = {k: v for k, v in os.environ.items() if k not in names}
    return kept | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)} | changes


def piped(*argv: str, **changes: str) -> str:
    """What `tolcal` writes into a pipe."""
    done = subprocess.run(
        [sys.executable, "-m", "tolcal", *argv],
        cwd=ROOT, env=environment(**changes), capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def on_terminal(*argv: str, **changes: str) -> str:
    """What `tolcal` writes to a terminal, a real one of the kernel's."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tolcal", *argv],
        cwd=ROOT, env=environment(**changes), stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    assert process.wait() == 0
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_golden_of_show() -> None:
    """Limits, evidence and histograms of the shipped tolerances and history."""
    check_golden("show-softmax.txt", piped(*SHOW, COLUMNS="80"))


APPROVALS = """\
schema = 1

[softmax.float16]
atol = 1e-5
scaled_tol = 0.0
allclose = {atol = 1e-3, rtol = 1e-3}

[softmax.float16.approved]
by = "ada"
at = 2026-12-01T10:12:00Z
digest = "9c1e7a40d2b86f13"
value = "SOFTMAX"
pr = 41

[softmax.float16.on.sm_90]
atol = 1e-4
scaled_tol = 0.0
allclose = {atol = 1e-3, rtol = 1e-3}

[gelu.float32]
atol = 2e-5
scaled_tol = 0.0
allclose = {atol = 1e-3, rtol = 1e-3}

[gelu.float32.approved]
by = "ada"
at = "2026-12-01T10:12:00Z"
digest = "9c1e7a40d2b86f13"
value = "0000000000000000"
pr = 41

[relu.float32]
atol = 3e-5
scaled_tol = 0.0
allclose = {atol = 1e-3, rtol = 1e-3}

[relu.float32.approved]
by = "eve \\u001b[31m\\n::error::x"
at = "2026-12-02T08:00:00Z"
digest = "0123456789abcdef"
value = "RELU"
reason = "it sums\\nin another order"
"""


def test_golden_of_approvals(tmp_path: Path) -> None:
    """Each approval once, the latest first, with what was changed since or never approved."""
    path = tmp_path / "t.toml"
    path.write_text(APPROVALS)
    text = APPROVALS
    for name, cell in (("SOFTMAX", ("softmax", "float16")), ("RELU", ("relu", "float32"))):
        text = text.replace(name, tolerances.read(path)[cell].value_digest)
    path.write_text(text)
    given = ("show", "--approvals", "--tolerances", str(path), "--corpus", str(tmp_path / "none"))
    assert piped(*given) == (
        "2026-12-02T08:00:00Z  eve [31m ::error::x, proposal 0123456789abcdef\n"
        "  because it sums in another order\n"
        "  relu/float32\n"
        "2026-12-01T10:12:00Z  ada in #41, proposal 9c1e7a40d2b86f13\n"
        "  softmax/float16, gelu/float32 (CHANGED BY HAND since)\n"
        "nobody approved  softmax/float16 on sm_90\n"
    )
    assert piped(*given, "softmax") == (
        "2026-12-01T10:12:00Z  ada in #41, proposal 9c1e7a40d2b86f13\n"
        "  softmax/float16\n"
        "nobody approved  softmax/float16 on sm_90\n"
    )


def test_approvals_of_the_shipped_file() -> None:
    """All 42 cells, by the maintainers, and none changed since."""
    shown = piped("show", "--approvals")
    assert shown.count("/") == 90
    assert "BY HAND" not in shown
    assert "nobody approved" not in shown


def test_a_terminal_and_a_pipe_show_the_same() -> None:
    """`show` has no colour to lose, with or without NO_COLOR."""
    plain = piped(*SHOW, COLUMNS="80")
    assert on_terminal(*SHOW, COLUMNS="80") == plain
    assert on_terminal(*SHOW, COLUMNS="80", NO_COLOR="1") == plain
    assert "\x1b" not in plain


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_histograms_keep_to_the_width(columns: int) -> None:
    """Bars shrink and grow; the counts stay."""
    shown = piped(*SHOW, COLUMNS=str(columns))
    rows = [line for line in shown.splitlines() if re.match(r" +(up to 1/16|1/8|more) ", line)]
    assert len(rows) == 9
    assert max(map(len, rows)) <= columns
    assert all(re.search(r" \d+ .* \d+$", line) for line in rows)


def test_without_unicode_bars_are_ascii() -> None:
    """A pipe in ASCII gets bars of #, not a traceback."""
    shown = piped(*SHOW, PYTHONIOENCODING="ascii", COLUMNS="80")
    assert "#####" in shown
    assert shown.isascii()


def test_a_terminal_without_unicode_is_no_traceback(tmp_path: Path) -> None:
    """What has no code in ASCII is a question mark."""
    path = tmp_path / "P.json"
    made = busy()
    notes = msgspec.structs.replace(made.proposal, notes=("a → b",))
    path.write_text(to_json(msgspec.structs.replace(made, proposal=notes)))
    assert "a ? b" in piped("report", str(path), PYTHONIOENCODING="ascii")


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "terminal"])
def test_a_machine_format_is_utf8_in_every_locale(tmp_path: Path, kind: str) -> None:
    """A page whose scripts lost a character is dead, and JSON in latin-1 can't be read."""
    path = tmp_path / "P.json"
    made = busy()
    notes = msgspec.structs.replace(made.proposal, notes=("größer → 1\u20ac",))
    made = msgspec.structs.replace(made, proposal=notes)
    path.write_text(to_json(made), "utf-8")
    for changes in ({"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0",
                    "PYTHONCOERCECLOCALE": "0"}):  # fmt: skip
        assert piped("report", str(path), "--format", kind, **changes) == FORMATS[kind](made)


def test_show_without_a_history(tmp_path: Path) -> None:
    """No histogram, and a broken history is said in a line below what is approved."""
    none = piped("show", "softmax", "--history", str(tmp_path))
    assert "the limit" not in none
    assert "no histograms" not in none
    broken = tmp_path / "x.parquet"
    broken.write_bytes(b"PAR1 no more")
    shown = piped("show", "softmax", "--history", str(broken))
    assert shown.startswith(none)
    assert re.search(r"\nno histograms: .*x\.parquet.*\n$", shown)


def test_rows_that_are_not_finite_are_above_the_limit(tmp_path: Path) -> None:
    """Rows of the op, in the unit of its evidence, that judged an element, and no others."""
    u = 2.0**-24
    cell = tolerances.read(ROOT / "tolerances.toml")["softmax", "float32"]
    assert cell.evidence is not None
    evidence = msgspec.structs.replace(cell.evidence, roundoff=u)
    approved = msgspec.structs.replace(cell, evidence=evidence)
    tolerances.write(tmp_path / "t.toml", {("softmax", "float32"): approved})
    rows = [
        make_record(seed=1, roundoff=u, stats=make_stats(2.0**-40)),
        make_record(seed=2, roundoff=u, stats=make_stats(0.0, nonfinite_mismatch=3)),
        make_record(seed=3, roundoff=u, stats=make_stats(0.0, envelope=None, scaled_max=None)),
        make_record(seed=4, roundoff=u / 2),
        make_record(seed=5, roundoff=u, status="crashed", reason="x", stats=None),
        make_record(seed=6, roundoff=u, op="relu", kernel="relu_triton"),
        make_record(seed=7, roundoff=u, role="buggy", corrupts="softmax_triton", kernel="wrong",
                    same_as_control=False, stats=make_stats(1.0)),
        make_record(seed=8, roundoff=u, stats=make_stats(0.0, count=0)),
    ]  # fmt: skip
    history.add(tmp_path / "h", rows)
    shown = piped(
        "show", "softmax", "--history", str(tmp_path / "h"), "--tolerances",
        str(tmp_path / "t.toml"), COLUMNS="60",
    )  # fmt: skip
    section = shown.split("softmax/float32\n")[1].split("\nsoftmax/float16")[0]
    assert "controls (1 of 2 exceed)\n" in section
    assert "buggy (1 of 1 exceed)\n" in section
    assert f"needs inf of the bound: tolcal replay {rows[1].id}\n" in section
    bars = section.rstrip().splitlines()[-1].replace("█", "").split()
    assert bars == ["more", "1", "1"]
    assert "share of the bound" not in shown.split("softmax/float16\n")[1]


def test_the_terminal_report_respects_no_color(tmp_path: Path) -> None:
    """With NO_COLOR a terminal gets no colour, and a pipe never gets an escape."""
    path = tmp_path / "P.json"
    path.write_text(to_json(busy()))
    argv = ("report", str(path))
    assert not COLOUR.search(on_terminal(*argv, NO_COLOR="1", COLUMNS="160"))
    assert "\x1b" not in piped(*argv)
    assert "\x1b" in on_terminal(*argv, COLUMNS="160")


@pytest.mark.parametrize("columns", [20, 30, 40, 60, 80, 120, 160])
def test_the_terminal_report_keeps_to_the_width(tmp_path: Path, columns: int) -> None:
    """Tables and text fit; only lines of commands, which are to be copied, are whole."""
    path = tmp_path / "P.json"
    path.write_text(to_json(busy()))
    shown = on_terminal("report", str(path), COLUMNS=str(columns), NO_COLOR="1")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    most = max(columns, terminal.LEAST_WIDTH)
    wide = [
        line
        for line in lines
        if len(line) > most and not re.search("tolcal (replay|minimize) ", line)
    ]
    assert wide == []


@pytest.mark.parametrize("columns", [1, 20, 40, 60, 80, 120, 160, None])
@pytest.mark.parametrize("name", ["softmax", "x" * 54])
def test_no_number_is_ever_cut(
    monkeypatch: pytest.MonkeyPatch, columns: int | None, name: str
) -> None:
    """However narrow it is and however long a name: a table leaves columns out, then is a list."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    made = busy()
    cells = (make_cell(name), *made.proposal.cells[1:])
    shown = terminal.render(
        msgspec.structs.replace(made, proposal=msgspec.structs.replace(made.proposal, cells=cells))
    )
    assert "…" not in shown
    words = re.findall(r"[^\s,]+", shown)
    numbers = {"5.0e-2", "5.0e-4", "1.3e-8", "2.8e-8", "1.7e-4", "7.3e3x", "100x", "289x"}
    assert numbers <= set(words)
    assert " ".join(words).count("finite") == 1
    assert not re.search(r"\d\n\d", shown)


def test_a_pipe_has_no_width(tmp_path: Path) -> None:
    """There a sentence is one line, to be searched for."""
    path = tmp_path / "P.json"
    path.write_text(to_json(busy()))
    lines = piped("report", str(path)).splitlines()
    assert any(re.search(r"^Recall .* held-out control rows flagged .*[0-9]\.$", x) for x in lines)


def test_show_prints_a_file_of_anyone_inert(tmp_path: Path) -> None:
    """No escape sequence, no line of its own, no workflow command."""
    evil = "eve\x1b]0;pwned\x07\x1b[2J\u202e\n::error file=x::boom\n##[error]boom"
    cell = tolerances.read(ROOT / "tolerances.toml")["softmax", "float32"]
    assert cell.evidence is not None
    assert cell.approved is not None
    replace = msgspec.structs.replace
    cell = replace(
        cell,
        evidence=replace(cell.evidence, rule=evil, devices=(evil,), history=evil),
        approved=replace(cell.approved, by=evil, at=evil, digest=evil, reason=evil),
    )
    path = tmp_path / "t.toml"
    path.write_text(writing.edited(None, {("softmax", "float32"): cell}, "t.toml"), "utf-8")
    shown = piped("show", "softmax", "--tolerances", str(path), "--history", str(tmp_path))
    assert shown.count("##(error]boom") == 5
    assert all(line.isprintable() for line in shown.splitlines())
    assert "##[" not in shown
    assert not re.search(r"(?m)^\s*::", shown)
    assert {line[:15].strip() for line in shown.splitlines() if "boom" in line} == {
        "evidence", "approved",
    }  # fmt: skip


def test_show_and_the_report_name_the_same_nearest_control(tmp_path: Path) -> None:
    """Both judge with the bias bound."""
    table = history.read_table([DATA / "h200-history.parquet"])
    history.add(tmp_path / "h", table.filter(pc.equal(pc.cast(table["op"], "string"), "softmax")))
    proposal = calibrate.calibrate(history.read([tmp_path / "h"]))
    path = tmp_path / "t.toml"
    path.write_text(writing.edited(None, proposal.tolerances(), "t.toml"), "utf-8")
    at = ("--tolerances", str(path), "--history", str(tmp_path / "h"))
    shown = piped("show", "softmax", *at)
    section = shown.split("\nsoftmax/float16\n")[1].split("\nsoftmax/bfloat16")[0]
    found = re.search(r"needs (\S+) of the bound: tolcal replay (\S+)\n", section)
    assert found is not None
    (cell,) = [c for c in proposal.cells if c.dtype == "float16"]
    assert cell.plots is not None
    assert cell.plots.judged_by == "proposed"
    share, case = max(
        (shape.share, shape.case)
        for kernel in cell.plots.kernels
        if kernel.role == "control"
        for shape in kernel.shapes
    )
    assert (found[1], found[2].split(":")[1]) == (text.number(share), case)


@pytest.mark.parametrize(("margin", "why"), [
    (2.0, "margin 2: of 1.5, 2, 3, 4, 6, by the tails of its controls: enough for their share of "
     "the budget (or as --margin asked for)"),
    (6.0, "margin 6: of 1.5, 2, 3, 4, 6, by the tails of its controls: the most there is (or as "
     "--margin asked for)"),
    (2.5, "margin 2.5: as --margin asked for (by itself it is one of 1.5, 2, 3, 4, 6)"),
])  # fmt: skip
def test_show_says_why_a_cell_has_its_margin(tmp_path: Path, margin: float, why: str) -> None:
    """By its evidence."""
    cell = tolerances.read(ROOT / "tolerances.toml")["softmax", "float32"]
    assert cell.evidence is not None
    evidence = msgspec.structs.replace(cell.evidence, margin=margin)
    cell = msgspec.structs.replace(cell, evidence=evidence, approved=None)
    path = tmp_path / "t.toml"
    path.write_text(writing.edited(None, {("softmax", "float32"): cell}, "t.toml"), "utf-8")
    shown = piped("show", "softmax", "--tolerances", str(path), "--history", str(tmp_path))
    assert why in shown


def test_the_corpus_as_a_table() -> None:
    """Of one op: a row a kernel; what its op.toml says is inert, and what is subtle says so."""
    assert piped("show", "gelu", "--markdown") == (
        "| op | what it computes | kernel | what is wrong in it |\n"
        "|---|---|---|---|\n"
        "| `gelu` | GELU in its tanh form | `gelu_triton` | nothing: a control |\n"
        "|  |  | `gelu_erf_buggy` | the exact form with erf, where the tanh form is meant (subtle) "
        "|\n"
        "|  |  | `gelu_triton_buggy` | the leading 0.5 is dropped, so every value is twice as "
        "large |\n"
    )
    (op,) = corpus.select(corpus.load(ROOT / "corpus"), ["gelu"])
    hostile = msgspec.structs.replace(op, summary="a | b @team <img src=x> `c`")
    (row,) = [r for r in catalogue.markdown([hostile]).splitlines() if "team" in r]
    assert row.count("|") == 5
    assert not set("@<>") & set(row)
