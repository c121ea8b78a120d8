"""Summaries: per-run *lines* that merge, from which a history is calibrated without its records.

A line stands for the records of one run that agree in ``IDENTITY``, in whether they passed the
limit of their time and in what their envelopes are (finite, not finite, none). Of a control it
holds the pointwise maximum of the envelopes, which is an envelope like any other: a maximum of
convex functions is one, so whatever takes a record takes it, and it understates none of them.
Beside that it holds points of the typical scales and of ``max_abs``, whose weights follow from
the number of records.

A buggy kernel's line holds the maxima, and a *sample* of its records is kept: those whose
``pick``, a hash of run, kernel and case, is least. A line's ``cutoff`` says up to which pick
records were kept; in a merged summary it is that of all lines of the kernel and dtype, so the
sample is an even one however the parts were cut.

Merging is a union by ``KEY``: associative, commutative and idempotent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tolcal.history.columns import TUPLES
from tolcal.history.grouping import codes_of, first_of_each

#: Of this form; one of the first, which had no `bias_told`, is read too.
VERSION = 2
#: Sampled records a buggy kernel and dtype, over the whole summary.
SAMPLE = 1000
#: A cutoff that leaves nothing out.
ALL = 2**32 - 1
#: Points of the typical scales (each for an equal share of them), largest ``max_abs`` kept
#: exactly, and points of the rest of them.
TYPICAL, TOP, REST = 8, 6, 10
#: Points of the records' median scales. An even number: where half of a run's shapes have another
#: scale than the other half, the median of medians would be neither.
MIDDLE = 8

#: The type of texts, which repeat.
TEXT = pa.dictionary(pa.int32(), pa.string())
ENVIRONMENT = (
    "device", "device_class", "vendor", "driver", "runtime", "torch", "triton", "switches",
    "environment",
)  # fmt: skip
#: What the records of a line share.
IDENTITY = (
    "run_id", "started", "session", "origin", "device_uuid", *ENVIRONMENT, "op", "dtype",
    "kernel", "role", "corrupts", "case_set", "status", "kernel_hash", "reference_hash", "op_hash",
    "roundoff",
)  # fmt: skip
#: What tells lines apart; ``part`` is a digest of all records of the run that were summarised
#: together, ``kind`` is ``line`` or ``row`` (of the sample), ``shape`` what its envelope is.
KEY = (*IDENTITY, "part", "kind", "shape", "passed", "pick")
#: Lines that agree in these, but are of different parts, may be of the same records.
_GROUP = ("run_id", "session", "kernel", "dtype", "case_set")
TYPICALS = tuple(f"typical_{i}" for i in range(TYPICAL))
TYPICALS_ABS = tuple(f"typical_abs_{i}" for i in range(TYPICAL))
MIDDLES = tuple(f"middle_{i}" for i in range(MIDDLE))
MIDDLES_ABS = tuple(f"middle_abs_{i}" for i in range(MIDDLE))
TOPS = tuple(f"top_{i}" for i in range(TOP))
RESTS = tuple(f"rest_{i}" for i in range(REST))
#: Upper bounds on what records say: never rounded down. ``bias`` is of the records with enough
#: elements, ``bias_told`` of those among them that are judged by it (``bounds.tells_bias``).
BOUNDS = (
    *TUPLES["envelope"], *TUPLES["envelope_abs"], "scaled_max", "scaled_max_abs", "bias",
    "bias_told",
)  # fmt: skip
#: Numbers that stand for typical records.
POINTS = (*TYPICALS, *TYPICALS_ABS, *MIDDLES, *MIDDLES_ABS, *TOPS, *RESTS)

SCHEMA = pa.schema(
    [
        *((name, pa.float32() if name == "roundoff" else TEXT) for name in IDENTITY),
        ("part", TEXT),
        #: parts of the same run, by commas, whose records this one holds as well
        ("replaces", TEXT),
        ("kind", TEXT),
        ("shape", TEXT),
        ("passed", pa.bool_()),
        ("pick", pa.uint32()),
        ("cutoff", pa.uint32()),
        #: bits of a significand that are kept; 24 are all
        ("bits", pa.int8()),
        ("rows", pa.int32()),
        ("detectable", pa.int32()),
        ("mismatch", pa.int64()),
        #: largest of the records' bias_count, cut at what makes a bias count
        ("bias_count", pa.int32()),
        #: typical scales above 0, which the points stand for in equal shares
        ("typical_count", pa.int32()),
        ("typical_abs_count", pa.int32()),
        *((name, pa.float32()) for name in (*BOUNDS, *POINTS)),
    ]
)


def empty() -> pa.Table:
    """No lines."""
    return SCHEMA.empty_table()


def merge(*summaries: pa.Table, sample: int = SAMPLE) -> pa.Table:
    """Lines of all, each once, in the order of their keys; the sample is cut to ``sample``.

    Where a key comes with several precisions the finest is kept, and of equal ones that with the
    least ``bias_told``. Parts that may hold the same records are not added up: see ``overlapping``.
    """
    return merged(*summaries, sample=sample)[0]


def merged(*summaries: pa.Table, sample: int = SAMPLE) -> tuple[pa.Table, dict[str, int]]:
    """``merge``, and by run the records of its lines that were passed over."""
    table = summaries[0] if len(summaries) == 1 else concat(summaries)
    if not table.num_rows:
        return canonical(table), {}
    table = sampled(table, ALL)  # most of a sample that goes, goes before anything is compared
    codes, count = codes_of(table, KEY)
    if count < table.num_rows:
        # Of the first form a line may say more of its bias than it knows.
        told = table["bias_told"].to_numpy(zero_copy_only=False)
        order = np.lexsort((told, -_numbers(table, "bits")))
        table = table.take(pa.array(order[first_of_each(codes[order])])).combine_chunks()
    table = _current(table).combine_chunks()
    twice = overlapping(table)
    passed = runs_of(table.filter(pa.array(twice))) if twice.any() else {}
    table = table.filter(pa.array(~twice)).combine_chunks() if twice.any() else table
    return sorted_by_key(sampled(table, sample).combine_chunks()), passed


def overlapping(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows to pass over, since another part of the run has at least as many such records.

    Two parts of a run may have been made of the same records, and none may count twice: of each
    kernel, dtype and case set the part with most records is kept (of equal ones the last by name).
    """
    runs = codes_of(table, ("run_id",))[1]
    parts, count = codes_of(table, ("run_id", "part"))
    if runs == count:
        return np.zeros(table.num_rows, bool)
    groups, number = codes_of(table, _GROUP)
    both, place, pair = np.unique(groups * count + parts, return_index=True, return_inverse=True)
    rows = np.where(is_kind(table, "line"), _numbers(table, "rows"), 0)
    size = np.bincount(pair, rows, len(both))
    names = np.array(pc.cast(table["part"], pa.string()).to_pylist(), object)[place].astype(str)
    order = np.lexsort([names, size, groups[place]])
    best = np.zeros(number, np.int64)
    best[groups[place][order]] = order  # the last of each group stays
    passed: npt.NDArray[np.bool_] = best[groups] != pair
    return passed


def _current(table: pa.Table) -> pa.Table:
    """Without the lines of parts that another part of the run holds as well."""
    pairs = table.select(["run_id", "replaces"]).group_by(["run_id", "replaces"]).aggregate([])
    gone = {
        (run, part)
        for run, parts in zip(*(pairs[n].to_pylist() for n in ("run_id", "replaces")), strict=True)
        for part in parts.split(",")
        if part
    }
    return without_parts(table, gone) if gone else table


def sizes(table: pa.Table) -> dict[tuple[str, str], dict[tuple[str, ...], int]]:
    """Of each run and part: records by session, kernel, dtype and case set."""
    names = [*_GROUP, "part"]
    lined = table.filter(pa.array(is_kind(table, "line")))
    sums = lined.group_by(names).aggregate([("rows", "sum")])
    found: dict[tuple[str, str], dict[tuple[str, ...], int]] = {}
    for run, *group, part, rows in zip(
        *(sums[name].to_pylist() for name in (*names, "rows_sum")), strict=True
    ):
        found.setdefault((run, part), {})[tuple(group)] = rows
    return found


def parts_of(table: pa.Table) -> set[tuple[str, str]]:
    """Runs and the parts that there are of them."""
    pairs = table.select(["run_id", "part"]).group_by(["run_id", "part"]).aggregate([])
    return set(zip(pairs["run_id"].to_pylist(), pairs["part"].to_pylist(), strict=True))


def without_parts(table: pa.Table, gone: Collection[tuple[str, str]]) -> pa.Table:
    """Without these parts of these runs."""
    runs, parts = (pc.cast(table[name], pa.string()).to_pylist() for name in ("run_id", "part"))
    keep = [pair not in gone for pair in zip(runs, parts, strict=True)]
    return table.filter(pa.array(keep, pa.bool_()))


def sampled(table: pa.Table, sample: int) -> pa.Table:
    """One cutoff a buggy kernel and dtype, and the records up to it: ``sample``, or ties of it."""
    pick, cutoff = _numbers(table, "pick"), _numbers(table, "cutoff").astype(np.int64)
    row, buggy = is_kind(table, "row"), equals(table, "role", "buggy")
    codes, count = codes_of(table, ("kernel", "dtype"))
    least = np.full(count, ALL, np.int64)
    np.minimum.at(least, codes[buggy], cutoff[buggy])
    kept = row & (pick <= least[codes])
    order = np.lexsort((pick[kept], codes[kept]))
    ordered, picks = codes[kept][order], pick[kept][order]
    starts = np.searchsorted(ordered, np.arange(count))
    numbers = np.bincount(ordered, minlength=count)
    over = numbers > sample
    least[over] = picks[starts[over] + sample - 1] if sample else -1
    keep = ~row | (pick <= least[codes])
    new = np.where(buggy, np.maximum(least[codes], 0), ALL).astype(np.uint32)
    at = SCHEMA.get_field_index("cutoff")
    table = table.set_column(at, SCHEMA.field(at), pa.array(new))
    return table if keep.all() else table.filter(pa.array(keep))


def sorted_by_key(table: pa.Table) -> pa.Table:
    """By kernel and dtype first: alike numbers lie together, which packs them well."""
    first = ("kind", "role", "kernel", "dtype", "case_set", "started", "run_id")
    names = (*first, *(name for name in KEY if name not in first))
    ranks = [_ranks(table, name) for name in reversed(names)]
    order = np.lexsort([r for r in ranks if r is not None] or [np.zeros(table.num_rows)])
    return canonical(table.take(pa.array(order)).combine_chunks())


def canonical(table: pa.Table) -> pa.Table:
    """The same with equal columns where texts are equal, whatever their dictionaries were."""
    for at, field in enumerate(SCHEMA):
        if field.type == TEXT:
            table = table.set_column(at, field, _canonical(table[field.name].combine_chunks()))
    return table


def _canonical(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same texts by a dictionary of just them, in order: equal texts, equal columns."""
    indices = column.indices.to_numpy(zero_copy_only=False)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    codes = np.where(valid, indices, 0).astype(np.int64)
    values = column.dictionary.to_pylist()
    used = np.zeros(max(len(values), 1), bool)
    used[codes[valid]] = True
    names = sorted({values[i] for i in np.flatnonzero(used)})
    place = {name: i for i, name in enumerate(names)}
    places = np.array([place.get(v, 0) for v in values] or [0], np.int32)
    return pa.DictionaryArray.from_arrays(
        pa.array(places[codes], mask=None if valid.all() else ~valid), pa.array(names, pa.string())
    )


def _ranks(table: pa.Table, name: str) -> Any:
    """Places of a column's values in their order; None if they are all the same."""
    column = table[name].combine_chunks()
    if pa.types.is_dictionary(column.type):
        values = pc.cast(column.dictionary, pa.string()).to_pylist()
        if len(values) == 1 and not column.null_count:
            return None
        order = {v: i for i, v in enumerate(sorted({*values}))}
        places = np.array([order[v] for v in values] or [0], np.int64)
        indices = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        ranks = places[indices]
        if column.null_count:
            ranks[column.is_null().to_numpy(zero_copy_only=False)] = -1
        return ranks
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def cut(table: pa.Table, bits: int) -> pa.Table:
    """The same with significands of ``bits`` bits, which packs to less.

    Bounds of controls are rounded up, those of buggy kernels down: no error is understated, no
    fault overstated.
    """
    if not 2 <= bits <= 24:
        raise ValueError(f"{bits} bits of a significand: from 2 to 24")
    buggy = equals(table, "role", "buggy")
    for name in (*BOUNDS, *POINTS):
        column = table[name].combine_chunks()
        values = column.to_numpy(zero_copy_only=False).astype(np.float32)
        shorter = _cut(values, bits, buggy)
        # null stays null; nan and infinities are as they were
        table = table.set_column(
            SCHEMA.get_field_index(name), SCHEMA.field(name),
            pa.array(shorter, mask=column.is_null().to_numpy(zero_copy_only=False)),
        )  # fmt: skip
    now = np.minimum(_numbers(table, "bits"), bits).astype(np.int8)
    return table.set_column(SCHEMA.get_field_index("bits"), SCHEMA.field("bits"), pa.array(now))


def _cut(
    values: npt.NDArray[np.float32], bits: int, down: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float32]:
    """Numbers from 0 upwards with shorter significands; those at the end of the range stay."""
    raw = values.view(np.uint32)
    mask = np.uint32((1 << (24 - bits)) - 1)
    up = np.where(down, np.uint32(0), mask)
    with np.errstate(over="ignore"):
        short = ((raw + up) & ~mask).view(np.float32)
    return np.where(np.isfinite(values) & np.isfinite(short) & (values >= 0), short, values)


def equals(table: pa.Table, name: str, value: str) -> Any:
    """Where a text column has that value."""
    column = table[name].combine_chunks()
    if not table.num_rows:
        return np.zeros(0, bool)
    hit = np.array([v == value for v in column.dictionary.to_pylist()] or [False])
    found = hit[column.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    return found & column.is_valid().to_numpy(zero_copy_only=False)


def is_kind(table: pa.Table, kind: str) -> Any:
    """Lines, or sampled rows."""
    return equals(table, "kind", kind)


def _numbers(table: pa.Table, name: str) -> Any:
    column = table[name].combine_chunks().fill_null(0)
    return column.to_numpy(zero_copy_only=False).astype(np.int64)


def runs_of(table: pa.Table) -> dict[str, int]:
    """Records that the lines of each run stand for."""
    table = table.filter(pa.array(is_kind(table, "line")))
    sums = table.group_by("run_id").aggregate([("rows", "sum")])
    return dict(zip(sums["run_id"].to_pylist(), sums["rows_sum"].to_pylist(), strict=True))


def of_runs(table: pa.Table, runs: Collection[str]) -> pa.Table:
    """The rows of a table of lines, or of records, that are of these runs."""
    column = table["run_id"].combine_chunks()
    hit = np.array([v in runs for v in column.dictionary.to_pylist()] or [False])
    return table.filter(pa.array(hit[column.indices.to_numpy(zero_copy_only=False)]))


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """One after another, dictionaries in common."""
    return pa.concat_tables([empty(), *tables]).unify_dictionaries().combine_chunks()
