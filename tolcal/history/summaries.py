"""Summaries as files: strictly checked where they are read, and added to without a rewrite.

A summary is one Parquet file, or a folder of them: immutable, named by content, listed in
MANIFEST by ``<name> <lines> <run>:<records>,... <shards>,...``, so that what it holds is known
without reading it. ``-`` stands for none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tolcal.history import columns, folder, lines, parquet
from tolcal.history.columns import TUPLES
from tolcal.history.grouping import codes_of
from tolcal.model import DTYPES, STATUSES, TolcalError

_NOTE = b"tolcal_summary"
#: Lines that a file may say it has: Parquet packs equal rows into almost nothing, and a line takes
#: half a kilobyte of memory, several times over while it is read. A run has a few thousand at most.
MAX_LINES = 2_000_000
_ROUNDOFFS = [0.0, *sorted({float(np.float32(d.roundoff)) for d in DTYPES.values()})]


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands beside the lines of a file."""

    version: int
    #: history shards (names by content) that were summarised whole
    shards: tuple[str, ...] = ()
    #: of each buggy kernel and dtype, as ``kernel dtype``: records so far
    seen: Mapping[str, int] = {}


class Known(msgspec.Struct, frozen=True):
    """What a summary holds: records of each run, and the history shards it was made from."""

    runs: Mapping[str, int]
    shards: frozenset[str]
    seen: Mapping[str, int]


def is_summary(path: Path) -> bool:
    """Whether a file or folder holds a summary, by its first file's header alone."""
    if path.is_dir():
        names = list(folder.listed(path))
        path = path / f"{names[-1]}.parquet" if names else next(iter(path.glob("*.parquet")), path)
    if path.suffix != ".parquet" or not path.is_file():
        return False
    try:
        return _NOTE in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False  # whoever reads it says what is wrong


def read(path: Path) -> pa.Table:
    """All lines of a summary, those of a folder not yet merged. TolcalError names what is bad."""
    if path.is_dir():
        return lines.concat([parse(p, folder.content(p))[0] for p in folder.shards(path)])
    try:
        return parse(path, path.read_bytes())[0]
    except OSError as error:
        raise TolcalError(f"{path}: cannot read it: {error.strerror or error}") from None


def parse(name: Path | str, data: bytes) -> tuple[pa.Table, Note]:
    """Lines and note of a file's bytes."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        note = _note(name, file.schema_arrow.metadata)
        if file.metadata.num_rows > MAX_LINES:
            raise TolcalError(
                f"{name}: over the limit of {MAX_LINES} lines: it says {file.metadata.num_rows}"
            )
        table = file.read(use_threads=False).replace_schema_metadata(None)
        return conform(table if note.version > 1 else _first_form(table), name), note
    except MemoryError:
        raise TolcalError(
            f"{name}: its {file.metadata.num_rows} lines take more memory than there is; summarise "
            "the history in parts, or read it where there is more"
        ) from None
    except (OSError, pa.ArrowException) as error:
        raise parquet.unreadable(name, error) from None


def _note(name: Path | str, metadata: Mapping[bytes, bytes] | None) -> Note:
    raw = (metadata or {}).get(_NOTE)
    if raw is None:
        raise TolcalError(f"{name}: no summary: not written by `tolcal history summarize`")
    try:
        note = msgspec.json.decode(raw, type=Note)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TolcalError(f"{name}: its note is not ours: {error}; summarise again") from None
    if not 1 <= note.version <= lines.VERSION:
        raise TolcalError(
            f"{name}: a summary of version {note.version}; this tolcal reads 1 to {lines.VERSION}: "
            "summarise the history again"
        )
    return note


def _first_form(table: pa.Table) -> pa.Table:
    """With the ``bias_told`` that lines of version 1 lack: at most it is the largest of all.

    Of which record that is they don't say; where no record has a residual, none is judged.
    """
    place = lines.SCHEMA.get_field_index("bias_told")
    if table.column_names != [name for name in lines.SCHEMA.names if name != "bias_told"]:
        return table  # `conform` says what is wrong with it
    told, residual = table["bias"], table[TUPLES["envelope"][0]]
    if told.type == residual.type == pa.float32():
        none = pc.fill_null(pc.less_equal(residual, 0), False)
        told = pc.if_else(none, pa.scalar(0, pa.float32()), told)
    return table.add_column(place, "bias_told", told)


def conform(table: pa.Table, name: Path | str) -> pa.Table:
    """``table`` with exactly the columns of a summary, none saying what no honest one does."""
    if table.column_names != lines.SCHEMA.names:
        odd = set(table.column_names) ^ set(lines.SCHEMA.names)
        column = min(odd) if odd else "in another order"
        raise TolcalError(f"{name}: not the columns of a summary ({column}); summarise again")
    try:
        # By way of plain texts: a dictionary may hold one twice, or null.
        plain = [pa.string() if f.type == lines.TEXT else f.type for f in lines.SCHEMA]
        table = table.cast(pa.schema(zip(lines.SCHEMA.names, plain, strict=True)))
        table = lines.canonical(table.cast(lines.SCHEMA).combine_chunks())
    except (pa.ArrowException, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise TolcalError(f"{name}: a column has another type than ours: {reason}") from None
    problems = unsound(table)
    if problems:
        raise TolcalError(
            f"{name}: {problems[0]}: no honest summary has that; restore it, or summarise the "
            "history again"
        )
    return table


def unsound(table: pa.Table) -> list[str]:
    """What no honest summary holds; empty if all is sound. One pass a column."""
    free = {"corrupts", *lines.BOUNDS, *lines.POINTS}
    problems = [
        f"a line without {f.name}"
        for f in lines.SCHEMA
        if f.name not in free and table[f.name].null_count
    ]
    if problems or not table.num_rows:
        return problems
    allowed: dict[str, Collection[str]] = {
        "dtype": DTYPES, "status": STATUSES, "role": ("control", "buggy"),
        "origin": ("local", "ingest", "pull_request", "import"), "case_set": ("gate", "explore"),
        "kind": ("line", "row"), "shape": ("finite", "nonfinite", "none"),
    }  # fmt: skip
    for name, values in allowed.items():
        found = set(pc.unique(pc.cast(table[name], pa.string())).to_pylist())
        problems += [f"a line with {name} {v!r}" for v in found - set(values)]

    def column(name: str) -> Any:
        return table[name].combine_chunks().to_numpy(zero_copy_only=False)

    problems += [p.replace("a record", "a line") for p in
                 (*columns.no_switches(table), *columns.unknown_classes(table))]  # fmt: skip
    rows, row = column("rows").astype(np.int64), lines.is_kind(table, "row")
    checks = {
        "rows below 1": rows < 1,
        "a sampled row that stands for more than one": row & (rows != 1),
        "a sampled row of a control": row & lines.equals(table, "role", "control"),
        "more detectable rows than rows": column("detectable") > rows,
        "more typical scales than records have": (column("typical_count") > 3 * rows)
        | (column("typical_abs_count") > 3 * rows),
        "bits that no significand has": (column("bits") < 2) | (column("bits") > 24),
        "a roundoff that is none": ~np.isin(column("roundoff"), _ROUNDOFFS),
    }
    for name in ("detectable", "mismatch", "bias_count", "typical_count", "typical_abs_count"):
        checks[f"{name} < 0"] = column(name) < 0
    finite = lines.equals(table, "shape", "finite") & lines.equals(table, "status", "ok")
    for name in (*lines.BOUNDS, *lines.POINTS):
        checks[f"{name} < 0"] = column(name) < 0
    for first, second in zip(*(TUPLES["envelope"][i:] for i in (0, 1)), strict=False):
        checks[f"{second} above {first}"] = column(second) > column(first)
    for first, second in zip(*(TUPLES["envelope_abs"][i:] for i in (0, 1)), strict=False):
        checks[f"{second} above {first}"] = column(second) > column(first)
    control = finite & lines.equals(table, "role", "control")
    for name in (*TUPLES["envelope"], "scaled_max"):
        checks[f"no {name}"] = finite & np.isnan(column(name))
    for name in (*TUPLES["envelope_abs"], "scaled_max_abs"):
        checks[f"no {name} of a control"] = control & np.isnan(column(name))
    for name in (TUPLES["envelope"][0], TUPLES["envelope_abs"][0]):
        checks[f"{name} = inf in a finite envelope"] = finite & np.isinf(column(name))
    checks["a bias above 1"] = column("bias") > 1
    checks["bias_told above bias"] = column("bias_told") > column("bias")
    for name in ("bias", "bias_told"):
        checks[f"no {name}, though it ran"] = lines.equals(table, "status", "ok") & np.isnan(
            column(name)
        )
    checks |= _unordered(column, control & ~row, rows)
    checks["another sample than its rows"] = _uneven(table, rows, column)
    return problems + [f"a line with {what}" for what, bad in checks.items() if bad.any()]


def _unordered(column: Callable[[str], Any], control: Any, rows: Any) -> dict[str, Any]:
    """Where points of a control's finite line are not there, not finite, or out of order."""
    many = rows > lines.TOP
    rest, scales = control & many, control & (column("typical_count") > 0)
    scales_abs = control & (column("typical_abs_count") > 0)
    checks = {}
    for names, where, sign in (
        (lines.TYPICALS, scales, 1), (lines.TYPICALS_ABS, scales_abs, 1),
        (lines.MIDDLES, control, 1), (lines.MIDDLES_ABS, control, 1),
        (lines.TOPS, control, -1), (lines.RESTS, rest, 1),
    ):  # fmt: skip
        before = None
        for place, name in enumerate(names):
            here = where & (rows > place) if names is lines.TOPS else where
            values = column(name)
            checks[f"{name} that is no number"] = here & ~np.isfinite(values)
            if before is not None:
                checks[f"{name} out of order"] = here & (sign * values < sign * before)
            before = values
    checks["rest_9 above top_5"] = rest & (column(lines.RESTS[-1]) > column(lines.TOPS[-1]))
    return checks


def _uneven(table: pa.Table, rows: Any, column: Callable[[str], Any]) -> Any:
    """Where a buggy kernel's sampled records are more than its line says, or too few."""
    names = [n for n in lines.KEY if n not in ("kind", "pick", "passed")]
    codes, count = codes_of(table, names)
    ran = lines.equals(table, "status", "ok") & lines.equals(table, "role", "buggy")
    row = lines.is_kind(table, "row")

    def told(where: Any, weight: Any) -> Any:
        return np.bincount(codes, weight * (where & ran), count)

    differ = column("detectable").astype(np.int64)
    short = told(~row, differ) - told(row, differ)
    left = told(~row, rows) - told(row, rows)
    whole = np.ones(count, bool)
    np.logical_and.at(whole, codes, column("cutoff") == lines.ALL)
    bad = (short < 0) | (left < short) | (whole & (left != 0))
    return bad[codes] & ran & ~row


# --- writing --------------------------------------------------------------------------------


def encoded(table: pa.Table, shards: Iterable[str], seen: Mapping[str, int]) -> bytes:
    """A file of these lines."""
    note = Note(lines.VERSION, tuple(sorted(shards)), dict(sorted(seen.items())))
    sink = pa.BufferOutputStream()
    noted = table.replace_schema_metadata({_NOTE: msgspec.json.encode(note)})
    parquet.write(sink, noted, dictionaries=_TEXTS)
    return bytes(sink.getvalue().to_pybytes())


_TEXTS = [f.name for f in lines.SCHEMA if pa.types.is_dictionary(f.type)]


def known(path: Path) -> Known:
    """What a summary holds, by MANIFEST and the newest file's note alone in a folder."""
    if not path.exists():
        return Known({}, frozenset(), {})
    if path.is_file():
        table, note = parse(path, path.read_bytes())
        return Known(lines.runs_of(table), frozenset(note.shards), note.seen)
    runs: dict[str, int] = {}
    shards: set[str] = set()
    seen: Mapping[str, int] = {}
    for name, rest in folder.listed(path).items():
        told, made = _told(rest)
        if told is None:
            told, made = _looked(path / f"{name}.parquet")
        for run, count in told.items():
            # A part may hold another one of its run: what is certain is the larger of them.
            runs[run] = max(count, runs.get(run, 0))
        shards |= made
    names = list(folder.listed(path))
    if names:
        newest = path / f"{names[-1]}.parquet"
        try:
            seen = _note(newest, pq.read_schema(newest).metadata).seen
        except (OSError, pa.ArrowException) as error:
            raise parquet.unreadable(newest, error) from None
    return Known(runs, frozenset(shards), seen)


def _told(rest: list[str]) -> tuple[dict[str, int] | None, set[str]]:
    """What a line of MANIFEST says of its file; None if it does not."""
    if len(rest) != 3:
        return None, set()
    pairs = [p.rpartition(":") for p in rest[1].split(",") if p != "-"]
    if not all(run and count.isdecimal() for run, _, count in pairs):
        return None, set()
    return {run: int(count) for run, _, count in pairs}, set(rest[2].split(",")) - {"-"}


def _looked(path: Path) -> tuple[dict[str, int], set[str]]:
    table, note = parse(path, folder.content(path))
    return lines.runs_of(table), set(note.shards)


def add(path: Path, table: pa.Table, shards: Collection[str], seen: Mapping[str, int]) -> Path:
    """Adds lines to a summary folder as a new file."""
    data = encoded(table, shards, seen)
    runs = ",".join(f"{run}:{rows}" for run, rows in sorted(lines.runs_of(table).items()))
    told = f"{table.num_rows} {runs or '-'} {','.join(sorted(shards)) or '-'}"
    return folder.place(path, data, told)


def update(
    out: Path,
    made: pa.Table,
    shards: frozenset[str],
    before: Known,
    sample: int,
    bits: int = 24,
    joined: pa.Table | None = None,
) -> Path | None:
    """Puts new lines into a summary: a folder gets one more file, a file is written anew.

    Args:
        out: a folder, or a .parquet file; made if it is not there.
        made: lines of runs that ``before`` lacks or has fewer records of.
        shards: history shards that they are of.
        before: what ``known`` said of ``out``.
        sample: records to keep of each buggy kernel and dtype.
        bits: of each significand; see ``lines.cut``.
        joined: lines of other summaries, of parts that ``out`` lacks.

    Returns the file; None if there was nothing to add.
    """
    joined = lines.empty() if joined is None else joined
    if not made.num_rows and not joined.num_rows and not shards - before.shards:
        return None
    made = lines.concat([_replacing(made, out, before), joined])
    seen = total(before.seen, made)
    made = lines.merge(made, sample=sample)
    made = made if bits == 24 else lines.cut(made, bits)
    if out.suffix != ".parquet":
        return add(out, made, shards, seen)
    merged = lines.merge(read(out), made, sample=sample) if out.exists() else made
    folder.replace(out, encoded(merged, before.shards | shards, seen))
    return out


def _replacing(made: pa.Table, out: Path, before: Known) -> pa.Table:
    """``made`` that says which parts of its runs, known before, it holds as well."""
    runs = pc.cast(made["run_id"], pa.string())
    grown = set(pc.unique(runs).to_pylist()) & before.runs.keys()
    if not grown:
        return made
    new, replaced = lines.sizes(made), dict[tuple[str, str], list[str]]()
    for (run, part), old in lines.sizes(read(out)).items():
        for (same, into), now in new.items():
            # An old part may be of records that this history has not: those stay.
            if same == run and into != part and all(now.get(g, 0) >= n for g, n in old.items()):
                replaced.setdefault((run, into), []).append(part)
    told = [
        ",".join(sorted(replaced.get(pair, [])))
        for pair in zip(runs.to_pylist(), made["part"].to_pylist(), strict=True)
    ]
    at = lines.SCHEMA.get_field_index("replaces")
    return made.set_column(at, lines.SCHEMA.field(at), pa.array(told, pa.string()).cast(lines.TEXT))


def total(seen: Mapping[str, int], table: pa.Table) -> dict[str, int]:
    """Records of each buggy kernel and dtype, with those of ``table``."""
    buggy = lines.is_kind(table, "line") & lines.equals(table, "role", "buggy")
    buggy &= lines.equals(table, "status", "ok")
    sums = table.filter(pa.array(buggy)).group_by(["kernel", "dtype"]).aggregate([("rows", "sum")])
    found = dict(seen)
    for kernel, dtype, rows in zip(*(c.to_pylist() for c in sums.columns), strict=True):
        name = f"{kernel} {dtype}"
        found[name] = found.get(name, 0) + rows
    return found


def cutoffs(seen: Mapping[str, int], sample: int) -> dict[tuple[str, str], int]:
    """(kernel, dtype) -> pick up to which records can be of a sample, so many having been seen.

    Of so many records the sample's last one lies beyond that once in 10^12 times, and the sample
    is the smaller for it, no less even.
    """
    enough = sample + 8 * math.sqrt(sample) + 20
    return {
        (kernel, dtype): min(lines.ALL, int(enough / rows * 2**32))
        for name, rows in seen.items()
        if rows
        for kernel, _, dtype in [name.partition(" ")]
    }
