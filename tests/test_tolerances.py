"""tolerances.toml: what ships, what is refused and where, and edits that lose nothing."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomlkit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests_support import ROOT

from tolcal import tolerances, tomlfile
from tolcal.model import (
    DTYPES,
    AllClose,
    Approved,
    Cell,
    Evidence,
    HeldOut,
    TolcalError,
    Tolerance,
)
from tolcal.tolerances import writing

HAND = """\
# Our tolerances.
schema = 1

# softmax: ask Ada before touching
[softmax.float16]
scaled_tol = 8.0   # in unit roundoffs
atol = 2.4e-8      # measured twice
allclose = { rtol = 1.1e-3, atol = 3.1e-8 }

[rmsnorm.float32]
atol       = 1e-7
scaled_tol = 2

  [rmsnorm.float32.allclose]
  atol = 1e-7
  rtol = 1_000.0e-6

[attention.bfloat16]
atol = 5e-4
scaled_tol = 64.0
allclose = { atol = 5e-4, rtol = 8e-3 }
"""


def make(atol: float = 1.5e-7, **changes: Any) -> Tolerance:
    """A cell with everything in it."""
    fields: dict[str, Any] = {
        "scaled_tol": 3.0,
        "allclose": AllClose(2.5e-7, 1.3e-6),
        "bias_tol": 0.25,
        "evidence": Evidence(
            "residual", 2.0, 720, 18, ("NVIDIA H200",), HeldOut(18, 0), "0" * 16, 0.99
        ),
        "approved": Approved("ada", "2026-12-01T10:12:00Z", "9c1e7a40d2b86f13", "5be0c77a91d4e302"),
    }
    return Tolerance(atol, **fields | changes)


def write_text(folder: Path, text: str | bytes) -> Path:
    """A tolerance file of that text."""
    path = folder / "tolerances.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def section(text: str, header: str) -> str:
    """The lines from ``[header...]`` up to the next header that is not below it."""
    lines = text.splitlines(keepends=True)
    inside, kept = False, []
    for line in lines:
        if line.lstrip().startswith("["):
            inside = line.lstrip().startswith(f"[{header}")
        if inside:
            kept.append(line)
    return "".join(kept)


# --- what ships -----------------------------------------------------------------------------


def test_the_shipped_file_holds_90_cells_with_evidence_and_approval() -> None:
    """Every cell says what it rests on and who let it in."""
    cells = tolerances.read(ROOT / "tolerances.toml")
    assert len(cells) == 90
    for cell, value in cells.items():
        assert value.evidence is not None, cell
        assert value.approved is not None, cell
        assert value.evidence.devices, cell
        assert value.evidence.runs >= 2, cell
        assert value.evidence.held_out.runs >= value.evidence.held_out.red >= 0, cell


def test_the_shipped_values_are_the_approved_ones() -> None:
    """The digest written at approval is that of the numbers in the file."""
    for cell, value in tolerances.read(ROOT / "tolerances.toml").items():
        assert value.approved is not None
        assert value.approved.value == value.value_digest, cell


def test_the_value_digest_sees_all_that_judging_uses_and_nothing_else() -> None:
    """Any of the five numbers and both units change it; other evidence and approval do not."""
    cell = make()
    evidence = cell.evidence
    assert evidence is not None
    numbers = [
        make(atol=1.6e-7),
        make(scaled_tol=3.5),
        make(bias_tol=None),
        make(bias_tol=0.26),
        make(allclose=AllClose(2.6e-7, 1.3e-6)),
        make(allclose=AllClose(2.5e-7, 1.4e-6)),
        make(evidence=msgspec.structs.replace(evidence, roundoff=0.0003)),
        make(evidence=msgspec.structs.replace(evidence, scale=0.0003)),
    ]
    digests = {cell.value_digest, *(n.value_digest for n in numbers)}
    assert len(digests) == len(numbers) + 1
    assert make(evidence=None, approved=None).value_digest == cell.value_digest


def test_writing_the_shipped_cells_again_changes_no_byte(tmp_path: Path) -> None:
    """The shipped file is what write() makes of its values."""
    shipped = ROOT / "tolerances.toml"
    path = tmp_path / "tolerances.toml"
    tolerances.write(path, tolerances.read(shipped))
    assert path.read_text() == shipped.read_text()


# --- write, then read -----------------------------------------------------------------------

FLOATS = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True).filter(lambda n: n != "schema")
COUNTS = st.integers(0, 2**40)
EVIDENCE = st.builds(
    Evidence,
    rule=st.sampled_from(["residual", "paper"]),
    margin=st.floats(0, 1e9, exclude_min=True),
    rows=COUNTS,
    runs=COUNTS,
    devices=st.lists(TEXT, max_size=3).map(tuple),
    held_out=st.builds(HeldOut, runs=COUNTS, red=COUNTS),
    history=TEXT,
    detectable_recall=st.none() | st.floats(0, 1),
    roundoff=st.none() | st.floats(0, 1, exclude_min=True, exclude_max=True),
    scale=st.none() | FLOATS,
)
APPROVAL = st.builds(
    Approved,
    by=TEXT,
    at=TEXT,
    digest=TEXT,
    value=TEXT,
    pr=st.none() | COUNTS,
    reason=st.none() | TEXT,
)
CELLS = st.builds(
    Tolerance,
    atol=FLOATS,
    scaled_tol=FLOATS,
    allclose=st.builds(AllClose, atol=FLOATS, rtol=FLOATS),
    bias_tol=st.none() | FLOATS,
    evidence=st.none() | EVIDENCE,
    approved=st.none() | APPROVAL,
)
FILES = st.dictionaries(st.tuples(NAMES, st.sampled_from(list(DTYPES))), CELLS, max_size=5)
FEW = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FEW
@given(cells=FILES)
def test_what_is_written_is_read(tmp_path: Path, cells: dict[Cell, Tolerance]) -> None:
    """Any finite numbers and any text come back equal, to the last bit."""
    path = tmp_path / "tolerances.toml"
    path.unlink(missing_ok=True)
    tolerances.write(path, cells)
    assert tolerances.read(path) == cells
    assert path.read_text("utf-8").startswith(writing.HEADER)


@FEW
@given(first=FILES, second=FILES)
def test_a_second_write_adds_and_replaces(
    tmp_path: Path, first: dict[Cell, Tolerance], second: dict[Cell, Tolerance]
) -> None:
    """Cells of the first write that the second does not name stay as they were."""
    path = tmp_path / "tolerances.toml"
    path.unlink(missing_ok=True)
    tolerances.write(path, first)
    tolerances.write(path, second)
    assert tolerances.read(path) == first | second


def test_a_missing_file_is_empty(tmp_path: Path) -> None:
    """A new repository has approved nothing yet."""
    assert tolerances.read(tmp_path / "tolerances.toml") == {}


def test_a_date_is_read_as_text(tmp_path: Path) -> None:
    """TOML dates and quoted dates both do."""
    text = HAND + (
        "[attention.bfloat16.approved]\nby = 'ada'\nat = 2026-12-01T10:12:00Z\n"
        "digest = '00'\nvalue = '00'\n"
    )
    approved = tolerances.read(write_text(tmp_path, text))["attention", "bfloat16"].approved
    assert approved is not None
    assert approved.at == "2026-12-01T10:12:00+00:00"


# --- edits in place -------------------------------------------------------------------------


def test_only_the_changed_cell_changes(tmp_path: Path) -> None:
    """Order, spacing, comments and spellings of the other cells stay byte for byte."""
    path = write_text(tmp_path, HAND)
    tolerances.write(path, {("rmsnorm", "float32"): make()})
    after = path.read_text()
    for other in ("softmax.float16", "attention.bfloat16"):
        assert section(after, other).rstrip() == section(HAND, other).rstrip()
    assert after.startswith(HAND[: HAND.index("[softmax.float16]")])
    assert tolerances.read(path) == tolerances.read(write_text(tmp_path, HAND)) | {
        ("rmsnorm", "float32"): make()
    }


def test_a_new_cell_leaves_every_old_line(tmp_path: Path) -> None:
    """Adding a dtype or an op only adds lines."""
    path = write_text(tmp_path, HAND)
    tolerances.write(path, {("softmax", "float32"): make(), ("newop", "float32"): make(2e-7)})
    diff = difflib.ndiff(HAND.splitlines(), path.read_text().splitlines())
    removed = [line for line in diff if line.startswith("- ")]
    assert removed == []
    assert tolerances.read(path)["newop", "float32"] == make(2e-7)


@pytest.mark.parametrize("cell", [("softmax", "float16"), ("last", "float32")])
def test_a_missing_final_newline_loses_nothing(tmp_path: Path, cell: Cell) -> None:
    """The last line of a file that an editor cut short survives."""
    path = write_text(tmp_path, HAND.rstrip("\n"))
    before = tolerances.read(path)
    tolerances.write(path, {cell: make()})
    assert tolerances.read(path) == before | {cell: make()}
    assert "allclose = { atol = 5e-4, rtol = 8e-3 }\n" in path.read_text() + "\n"


def test_crlf_loses_no_value(tmp_path: Path) -> None:
    """A file from Windows keeps every cell and comment."""
    path = write_text(tmp_path, HAND.replace("\n", "\r\n"))
    before = tolerances.read(path)
    tolerances.write(path, {("rmsnorm", "float32"): make()})
    assert tolerances.read(path) == before | {("rmsnorm", "float32"): make()}
    assert "# measured twice" in path.read_text()


def test_crlf_stays(tmp_path: Path) -> None:
    """Lines of other cells keep their carriage return, byte for byte."""
    path = write_text(tmp_path, HAND.replace("\n", "\r\n"))
    tolerances.write(path, {("rmsnorm", "float32"): make()})
    assert b"# softmax: ask Ada before touching\r\n" in path.read_bytes()


COMMENTS = st.from_regex(r"[a-z =\[\]'\"#.]{0,30}", fullmatch=True)


def spelled(cell: Cell, number: str, note: str, sub: bool) -> str:
    """A cell as hands write one: notes, odd spacing, a pair inline or as a table."""
    name, pair = ".".join(cell), f"{{ rtol = {number},atol={number} }}"
    table = f"  [{name}.allclose]   # {note}\n  rtol = {number}\n  atol={number}\n"
    return (
        f"#{note}\n[{name}]  # {note}\nscaled_tol = 8.0\n# {note}\natol  =  {number}   # {note}\n"
        + (table if sub else f"allclose = {pair} # {note}\n")
        + "\n"
    )


@FEW
@given(data=st.data(), newline=st.sampled_from(["\n", "\r\n"]))
def test_an_edit_keeps_the_rest_byte_for_byte(data: st.DataObject, newline: str) -> None:
    """Order, comments, spacing, line ends and every cell that is not named, whatever is."""
    cells = data.draw(
        st.lists(st.tuples(NAMES, st.sampled_from(list(DTYPES))), min_size=1, max_size=5,
                 unique=True)
    )  # fmt: skip
    parts = {
        cell: spelled(
            cell,
            data.draw(st.sampled_from(["1e-7", "0.000_1", "2.50E-3", "1"])),
            data.draw(COMMENTS),
            data.draw(st.booleans()),
        ).replace("\n", newline)
        for cell in cells
    }
    start = f"# ours{newline}schema = 1{newline}{newline}"
    text = start + "".join(parts.values())
    changed = set(data.draw(st.lists(st.sampled_from(cells), unique=True)))
    after = tolerances.edited(text, dict.fromkeys(changed, make()), "t.toml")
    rest = after
    for piece in [start, *(part for cell, part in parts.items() if cell not in changed)]:
        before, found, rest = rest.partition(piece)
        assert found, (piece, after)
        # Between what stays there is nothing but the cells that were changed.
        assert {header.split("]")[0] for header in before.split("\n[")[1:]} <= {
            f"{'.'.join(cell)}{end}" for cell in changed for end in ("", ".evidence", ".approved")
        }
    assert tolerances.of_text(after, "t.toml") == tolerances.of_text(text, "t.toml") | (
        dict.fromkeys(changed, make())
    )


def test_the_comment_and_blank_line_before_the_next_cell_stay(tmp_path: Path) -> None:
    """What stands between a replaced cell and the next header belongs to the next."""
    text = HAND.replace("[attention.bfloat16]", "# attention: see #41\n[attention.bfloat16]")
    path = write_text(tmp_path, text)
    tolerances.write(path, {("rmsnorm", "float32"): make()})
    assert "\n\n# attention: see #41\n[attention.bfloat16]" in path.read_text()


def test_the_comment_at_the_end_stays(tmp_path: Path) -> None:
    """Replacing the last cell keeps what is written below it."""
    path = write_text(tmp_path, HAND + "\n# end of file: see CONTRIBUTING.md\n")
    tolerances.write(path, {("attention", "bfloat16"): make()})
    assert "# end of file" in path.read_text()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_cells_of_one_op_may_stand_apart(tmp_path: Path, dtype: str) -> None:
    """[softmax.float16], another op, then [softmax.float32]: valid TOML, editable."""
    text = HAND + "\n[softmax.float32]\natol = 1.0\nscaled_tol = 1.0\nallclose = {atol=1,rtol=1}\n"
    path = write_text(tmp_path, text)
    before = tolerances.read(path)
    tolerances.write(path, {("softmax", dtype): make()})
    assert tolerances.read(path) == before | {("softmax", dtype): make()}


NUMBERS = "atol = 1.0, scaled_tol = 1.0, allclose = {atol = 1.0, rtol = 1.0}"


@pytest.mark.parametrize(
    "text",
    [
        f"softmax.float32 = {{{NUMBERS}}}\n",
        f"[softmax]\nfloat32 = {{{NUMBERS}}}\n",
        f"softmax = {{float32 = {{{NUMBERS}}}}}\n",
        (
            "[softmax.float32]\natol = 1.0\nscaled_tol = 1.0\nallclose = {atol = 1, rtol = 1}\n"
            "[x.float32]\natol = 1.0\nscaled_tol = 1.0\nallclose = {atol = 1, rtol = 1}\n"
            "[softmax.float32.approved]\nby = 'a'\nat = 'b'\ndigest = 'c'\nvalue = 'd'\n"
        ),
    ],
)
def test_other_spellings_are_edited_or_refused(tmp_path: Path, text: str) -> None:
    """Inline tables and parts that stand apart: right values, or a TolcalError and no change."""
    path = write_text(tmp_path, f"schema = 1\n{text}")
    before = tolerances.read(path)
    try:
        tolerances.write(path, {("softmax", "float32"): make()})
    except TolcalError:
        assert tolerances.read(path) == before
    else:
        assert tolerances.read(path) == before | {("softmax", "float32"): make()}


def test_a_write_that_fails_leaves_the_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No half file and no temporary one when the text can't be made."""
    path = write_text(tmp_path, HAND)

    def fail(document: object) -> str:
        raise RuntimeError("no text")

    monkeypatch.setattr(tomlkit, "dumps", fail)
    with pytest.raises(RuntimeError, match="no text"):
        tolerances.write(path, {("softmax", "float32"): make()})
    assert path.read_text() == HAND
    assert [p.name for p in tmp_path.iterdir()] == ["tolerances.toml"]


def test_a_reader_sees_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the replacement the old file is whole, and the new one is whole beside it."""
    path = write_text(tmp_path, HAND)
    seen = []
    replace = Path.replace

    def spy(self: Path, target: Path) -> Path:
        seen.append((target.read_text(), set(tolerances.read(self))))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", spy)
    tolerances.write(path, {("softmax", "float32"): make()})
    assert [old for old, _ in seen] == [HAND]
    assert seen[0][1] == set(tolerances.read(path))
    assert [p.name for p in tmp_path.iterdir()] == ["tolerances.toml"]


def test_a_file_that_cannot_be_read_is_not_edited(tmp_path: Path) -> None:
    """A typo by hand is not papered over by an approval."""
    broken = HAND.replace("scaled_tol = 64.0", "scale_tol = 64.0")
    path = write_text(tmp_path, broken)
    with pytest.raises(TolcalError, match="scale_tol"):
        tolerances.write(path, {("softmax", "float32"): make()})
    assert path.read_text() == broken


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("[rmsnorm.float32]", "[rmsnorm.float32", "10:17", "not TOML"),
        ("atol       = 1e-7", "atol       = ", "11:14", "not TOML"),
        ("atol       = 1e-7", "atol = 1e-7\natol = 1e-7", "12:12", "not TOML"),
        ("schema = 1\n", "", "1", "there is no line `schema = 1`"),
        ("schema = 1\n", "schema = 2\n", "2", "schema is 2"),
        ("schema = 1\n", "schema = '1'\n", "2", "schema is '1'"),
        ("atol       = 1e-7", "atoll = 1e-7", "11", "rmsnorm.float32.atoll"),
        ("scaled_tol = 2\n", "scaled_tol = 2\nwide = true\n", "13", "rmsnorm.float32.wide"),
        ("rtol = 1_000.0e-6", "rtol = 1e-3\nutol = 1.0", "17", "rmsnorm.float32.allclose.utol"),
        ("[attention.bfloat16]", "[attention.bf16]", "18", "unknown dtype; known: float64"),
        ("atol = 5e-4\n", "atol = '5e-4'\n", "19", "Expected `float`, got `str`"),
        ("atol = 5e-4\n", "atol = [5e-4]\n", "19", "Expected `float`, got `array`"),
        ("atol = 5e-4\n", "", "18", "attention.bfloat16: Object missing required field `atol`"),
        ("atol = 2.4e-8 ", "atol = nan", "7", "softmax.float16.atol = nan: a finite number"),
        ("atol = 2.4e-8 ", "atol = -1e-9", "7", "softmax.float16.atol = -1e-09"),
        ("scaled_tol = 8.0", "scaled_tol = inf", "6", "softmax.float16.scaled_tol = inf"),
        ("rtol = 1.1e-3", "rtol = -inf", "8", "softmax.float16.allclose.rtol = -inf"),
        ("scaled_tol = 64.0", "scaled_tol = 64.0\nbias_tol = -0.1", "21", "bias_tol = -0.1"),
        ("schema = 1\n", "schema = 1\nlayernorm = 3\n", "3", "layernorm: expected tables"),
        ("schema = 1\n", "schema = 1\nlayernorm.float32 = 3\n", "3", "layernorm.float32"),
        ("schema = 1\n", "schema = 1\n[[layernorm]]\nx = 1\n", "3", "layernorm: expected tables"),
        ("atol = 5e-4\n", f"atol = {'[' * 5000}{']' * 5000}\n", None, "nested too deeply"),
        ("atol = 5e-4\n", f"a{'.a' * 50_000} = 1\n", None, "nested too deeply"),
    ],
)
def test_a_refusal_names_file_and_line(
    tmp_path: Path, old: str, new: str, where: str | None, what: str
) -> None:
    """One line: the file, the line (and column if it is no TOML), and what is wrong."""
    assert old in HAND
    path = write_text(tmp_path, HAND.replace(old, new, 1))
    with pytest.raises(TolcalError) as caught:
        tolerances.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{where}: " if where else f"{path}: ")
    assert what in message
    assert "\n" not in message
    assert len(message) < 400


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path: Path) -> None:
    """Latin-1 from an old editor."""
    path = write_text(tmp_path, HAND.encode() + b"# caf\xe9\n")
    with pytest.raises(TolcalError) as caught:
        tolerances.read(path)
    assert str(caught.value).startswith(f"{path}:22: not UTF-8")


def test_a_folder_or_a_huge_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is read into memory by a parser."""
    with pytest.raises(TolcalError, match="cannot read it"):
        tolerances.read(tmp_path)
    path = write_text(tmp_path, HAND)
    monkeypatch.setattr(tomlfile, "MAX_BYTES", len(HAND) - 1)
    with pytest.raises(TolcalError, match=f"{len(HAND)} bytes, at most"):
        tolerances.read(path)


@pytest.mark.parametrize(
    "line",
    [
        r'"a\n::error::b" = 1',
        r'"a\n::error::b".float32 = 1',
        r'[x."a\n::error::b"]',
        '[x.float32]\n"a\\n::error::b" = 1',
    ],
)
def test_a_refusal_is_one_line_whatever_the_key(tmp_path: Path, line: str) -> None:
    """A quoted key may hold a newline; the message may not (it starts a workflow command)."""
    with pytest.raises(TolcalError) as caught:
        tolerances.read(write_text(tmp_path, f"schema = 1\n{line}\n"))
    assert "\n" not in str(caught.value)


# --- lines ----------------------------------------------------------------------------------


def many() -> str:
    """100 cells of 13 lines each, as write() makes them."""
    cells = []
    for n in range(100):
        cells.append(
            f"[op{n}.float32]\natol = 1e-7\nscaled_tol = 2.0\n"
            f"allclose = {{atol = 1e-7, rtol = 1e-6}}\n\n"
            f"[op{n}.float32.evidence]\nrule = 'residual'\nmargin = 2.0\nrows = 720\nruns = 18\n"
            "devices = ['NVIDIA H200']\nheld_out = {runs = 18, red = 0}\nhistory = '00'\n"
        )
    return "schema = 1\n" + "".join(cells)


@pytest.mark.parametrize(
    ("keys", "offset"),
    [
        (("op77", "float32"), 0),
        (("op77", "float32", "atol"), 1),
        (("op77", "float32", "scaled_tol"), 2),
        (("op77", "float32", "allclose", "rtol"), 3),
        (("op77", "float32", "evidence"), 5),
        (("op77", "float32", "evidence", "rows"), 8),
        (("op77", "float32", "evidence", "held_out", "red"), 11),
        (("op77", "float32", "evidence", "absent"), 5),
        (("op77", "float32", "absent"), 0),
    ],
)
def test_the_line_of_a_key_deep_in_a_large_file(keys: tuple[str, ...], offset: int) -> None:
    """The key's own line, or that of the nearest thing around it."""
    start = 2 + 77 * 13
    assert tomlfile.line_of(many(), keys) == start + offset


def test_a_file_that_is_wrong_everywhere_is_refused_at_once(tmp_path: Path) -> None:
    """Lines are scanned once, not once a cell: 1,000 cells once took 40 seconds."""
    text = many().replace("rows = 720", "rows = 'x'")
    data, _ = tomlfile.read(write_text(tmp_path, text))
    problems = tolerances.parse(data)[1]
    where = tomlfile.Positions(text)
    assert [where.of(p.keys)[0] for p in problems] == [10 + 13 * n for n in range(100)]
    assert where.of(problems[0].keys) == (10, 1)


def test_a_refusal_deep_in_a_large_file_names_its_line(tmp_path: Path) -> None:
    """Cell 77 of 100, found by its own line and not by one that looks the same."""
    text = many()
    at = text.index("rows = 720", text.index("[op77.float32.evidence]"))
    path = write_text(tmp_path, text[:at] + "rows = 'x' " + text[at + len("rows = 720") :])
    with pytest.raises(TolcalError) as caught:
        tolerances.read(path)
    assert str(caught.value).startswith(f"{path}:{2 + 77 * 13 + 8}: op77.float32.evidence.rows: ")


def test_quoted_headers_and_commented_keys_do_not_mislead() -> None:
    """Quotes are no part of a name, and a comment is no key."""
    text = '# atol = 1\n["softmax"."float16"]\n# atol = 2\n"atol" = 3\n'
    assert tomlfile.line_of(text, ("softmax", "float16")) == 2
    assert tomlfile.line_of(text, ("softmax", "float16", "atol")) == 4


def test_a_table_that_has_only_children_is_found_by_the_first_of_them() -> None:
    """[softmax.float33.evidence] alone is the line of softmax.float33."""
    text = "schema = 1\n\n[softmax.float33.evidence]\nrule = 'x'\n"
    assert tomlfile.line_of(text, ("softmax", "float33")) == 3
