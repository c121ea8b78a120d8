"""Records into lines (see ``lines``): maxima, counts, and order statistics at known ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tolcal.history import lines
from tolcal.history.columns import TUPLES
from tolcal.history.grouping import codes_of, first_of_each, has_repeats, row_hashes

#: Elements with an error that a record needs for its bias to count (``bounds`` judges by it).
BIAS_MIN_COUNT = 1024
#: Below this share of a record's rms a scale has no say in a fit (``fit.SCALE_FLOOR``).
SCALE_FLOOR = np.float32(2.0**-12)
_CASE = ("run_id", "kernel", "dtype", "case_set", "op", "dims", "profile", "layout")
_ENVELOPE, _ENVELOPE_ABS = TUPLES["envelope"], TUPLES["envelope_abs"]
#: The columns of records that a summary is made from.
NEEDED = (
    *lines.IDENTITY, "seed", "dims", "profile", "layout", "count", "num_exceeding", "max_abs",
    "scaled_max", "scaled_max_abs", "bias", "bias_count", "nonfinite_mismatch", "ref_rms",
    "same_as_control", *_ENVELOPE, *_ENVELOPE_ABS, *TUPLES["scale_quantiles"],
    *TUPLES["scale_abs_quantiles"],
)  # fmt: skip
#: All of IDENTITY: in a sound history the rest follows from the first four.
_FIRST = ("run_id", "kernel", "dtype", "case_set")
_MOSTLY_TELLING = (*_FIRST, *(name for name in lines.IDENTITY if name not in _FIRST))
_SHAPES = ("finite", "nonfinite", "none")

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def of_table(table: pa.Table, *, cutoffs: Mapping[tuple[str, str], int] | None = None) -> pa.Table:
    """Lines of records, each of which counts once; not in order, which ``lines.merge`` makes.

    All records of a run that there are should be in one table: those of a second one become a
    part of their own.

    Args:
        table: with the columns ``NEEDED`` of ``columns.SCHEMA`` at least.
        cutoffs: (kernel, dtype) -> highest ``pick`` of the records to sample; all by default.
    """
    table = _without_empty(table.select(list(NEEDED))).unify_dictionaries().combine_chunks()
    hashes = row_hashes(table, _CASE, "seed")
    if has_repeats(hashes):
        first = first_of_each(np.unique(hashes, return_inverse=True)[1])
        table, hashes = table.take(pa.array(first)).combine_chunks(), hashes[first]
    if not table.num_rows:
        return lines.empty()
    return _Reduction(table, hashes).lines(cutoffs or {})


def _without_empty(table: pa.Table) -> pa.Table:
    """Records that judged no element (all lay outside the domain) as skipped ones.

    They still count as records of their run, and no row of a fit comes of them.
    """
    empty = pc.and_(pc.equal(table["count"], 0), lines.equals(table, "status", "ok"))
    if not pc.any(empty).as_py():
        return table
    place = table.schema.get_field_index("status")
    status = pc.if_else(empty, "skipped", pc.cast(table["status"], pa.string()))
    field = table.schema.field(place)
    return table.set_column(place, field, pc.dictionary_encode(status).cast(field.type))


class _Reduction:
    """Records in the order of their groups, one line a group."""

    def __init__(self, table: pa.Table, hashes: npt.NDArray[np.uint64]) -> None:
        self.table, self.hashes = table, hashes
        self.control = lines.equals(table, "role", "control")
        envelope, envelope_abs = self._of(_ENVELOPE[0]), self._of(_ENVELOPE_ABS[0])
        # An envelope falls, so it is finite if it begins so.
        finite = np.isfinite(envelope) & np.isfinite(envelope_abs)
        self.shape = np.where(finite, 0, np.where(np.isnan(envelope), 2, 1))
        # Buggy kernels are judged by no limit of their time.
        self.passed = (self._of("num_exceeding", np.int64) == 0) | ~self.control
        more = [self.shape, self.passed.astype(np.int64)]
        codes, self.count = codes_of(table, _MOSTLY_TELLING, more)
        kind: Any = np.uint16 if self.count < 2**16 else np.int64
        self.order = np.argsort(codes.astype(kind), kind="stable")  # a radix sort where 16 bits do
        self.sizes = np.bincount(codes, minlength=self.count)
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        self.heads = self.order[self.starts]

    def _of(self, name: str, kind: Any = np.float32) -> Any:
        column = self.table[name].combine_chunks()
        missing: Any = np.nan if kind == np.float32 else 0
        column = column.fill_null(missing) if column.null_count else column
        return column.to_numpy(zero_copy_only=False).astype(kind, copy=False)

    def _max(self, values: Any) -> Any:
        return np.maximum.reduceat(values[self.order], self.starts)

    def _sum(self, values: Any) -> Ints:
        return np.add.reduceat(values[self.order].astype(np.int64), self.starts)

    def lines(self, cutoffs: Mapping[tuple[str, str], int]) -> pa.Table:
        """One for each group, and the sampled records."""
        ran = lines.equals(self.table, "status", "ok")[self.heads]
        control = self.control[self.heads] & ran
        finite = (self.shape[self.heads] == 0) & ran
        part = self._parts()
        limit = self._limits(cutoffs)
        limit[self.control[self.heads]] = lines.ALL
        bias, told, counts = self._bias()
        same = self.table["same_as_control"].combine_chunks().fill_null(True)
        differs = ~same.to_numpy(zero_copy_only=False).astype(bool)
        found: dict[str, Any] = {
            "part": part[self.heads],
            "kind": "line",
            "shape": self.shape[self.heads],
            "passed": self.passed[self.heads],
            "pick": np.zeros(self.count, np.int64),
            "cutoff": limit,
            "rows": self.sizes,
            "detectable": self._sum(differs),
            "mismatch": self._sum(self._of("nonfinite_mismatch", np.int64)),
            "bias_count": self._max(counts),
            "bias": _where(ran, self._max(bias)),
            "bias_told": _where(ran, self._max(told)),
        }
        for name in (*_ENVELOPE, "scaled_max"):
            found[name] = _where(ran, self._max(self._of(name)))
        for name in (*_ENVELOPE_ABS, "scaled_max_abs"):
            found[name] = _where(control, self._max(self._of(name)))
        fits = control & finite
        found |= self._typical("scale", lines.TYPICALS, "typical_count", fits)
        found |= self._typical("scale_abs", lines.TYPICALS_ABS, "typical_abs_count", fits)
        found |= self._middle("scale", lines.MIDDLES, fits)
        found |= self._middle("scale_abs", lines.MIDDLES_ABS, fits)
        found |= self._largest(control)
        whole = _assembled(self.table, self.heads, found)
        sample = self._sample(part, limit, counts, bias, told)
        return lines.concat([whole, sample])

    def _limits(self, cutoffs: Mapping[tuple[str, str], int]) -> Ints:
        """By line: the highest pick of the records to sample."""
        heads = self.table.select(["kernel", "dtype"]).take(pa.array(self.heads))
        codes, _ = codes_of(heads.combine_chunks(), ("kernel", "dtype"))
        first = np.unique(codes, return_index=True)[1]
        pairs = heads.take(pa.array(first)).to_pydict()
        known = [cutoffs.get(pair, lines.ALL) for pair in zip(*pairs.values(), strict=True)]
        return np.array(known, np.int64)[codes]

    def _parts(self) -> Any:
        """By row: the digest of its run's records, as numbers."""
        runs, count = codes_of(self.table, ("run_id",))
        order = np.argsort(runs, kind="stable")
        starts = np.searchsorted(runs[order], np.arange(count))
        return np.add.reduceat(self.hashes[order], starts)[runs]

    def _bias(self) -> tuple[Floats, Floats, Ints]:
        """|bias| where it counts, else 0; the same where it is judged; and the count, cut where it
        begins to. A record without a residual is not judged by it."""
        counts = np.minimum(self._of("bias_count", np.int64), BIAS_MIN_COUNT)
        bias = np.abs(np.nan_to_num(self._of("bias")))
        bias = np.where(counts == BIAS_MIN_COUNT, bias, np.float32(0))
        return bias, np.where(self._of(_ENVELOPE[0]) <= 0, np.float32(0), bias), counts

    def _grouped(self, groups: Any, of: Callable[[Ints], Floats]) -> Iterable[tuple[Any, Floats]]:
        """(groups of one size, their values sorted along the rows), for each size there is.

        ``of`` gives the values of records at places (groups x size): as many more columns.
        """
        for size in np.unique(self.sizes[groups]):
            some = np.flatnonzero(groups & (self.sizes == size))
            values = of(self.order[self.starts[some][:, None] + np.arange(size)])
            values.sort(axis=1)
            yield some, values

    def _typical(
        self, scale: str, names: tuple[str, ...], counted: str, groups: Any
    ) -> dict[str, Any]:
        """Order statistics at mid-ranks of the scales that a fit takes for typical."""
        quantiles = [self._of(f"{scale}_{q}") for q in ("q10", "q50", "q90")]
        rms = self._of("ref_rms")

        def typical(places: Ints) -> Floats:
            floor = SCALE_FLOOR * rms[places]
            found = [np.maximum(one[places], floor) for one in quantiles]
            filled: Floats = np.fmax(np.concatenate(found, axis=1), np.float32(0))  # 0 for nan
            return filled

        points = np.full((self.count, len(names)), np.nan, np.float32)
        numbers = np.zeros(self.count, np.int64)
        for some, ordered in self._grouped(groups, typical):
            width = ordered.shape[1]
            above = (ordered > 0).sum(axis=1)
            at = (width - above)[:, None] + mid_ranks(above, len(names))
            points[some] = np.take_along_axis(ordered, np.minimum(at, width - 1), 1)
            points[some[above == 0]] = np.nan
            numbers[some] = above
        return dict(zip(names, points.T, strict=True)) | {counted: numbers}

    def _middle(self, scale: str, names: tuple[str, ...], groups: Any) -> dict[str, Any]:
        """Mid-ranks of the records' median scales."""
        points = np.full((self.count, len(names)), np.nan, np.float32)
        for some, ordered in self._grouped(groups, self._of(f"{scale}_q50").__getitem__):
            size = ordered.shape[1]
            points[some] = ordered[:, mid_ranks(np.array([size]), len(names))[0]]
        return dict(zip(names, points.T, strict=True))

    def _largest(self, groups: Any) -> dict[str, Any]:
        """The largest ``max_abs``, greatest first, and mid-ranks of the rest."""
        top = np.full((self.count, lines.TOP), np.nan, np.float32)
        rest = np.full((self.count, lines.REST), np.nan, np.float32)
        values = self._of("max_abs") + np.float32(0)  # no -0
        for some, ordered in self._grouped(groups, values.__getitem__):
            size = ordered.shape[1]
            most = min(size, lines.TOP)
            top[np.ix_(some, np.arange(most))] = ordered[:, ::-1][:, :most]
            if size > most:
                at = mid_ranks(np.array([size - most]), lines.REST)[0]
                rest[some] = ordered[:, at]
        return dict(zip(lines.TOPS, top.T, strict=True)) | dict(
            zip(lines.RESTS, rest.T, strict=True)
        )

    def _sample(self, part: Any, limit: Ints, counts: Ints, bias: Floats, told: Floats) -> pa.Table:
        """The records of buggy kernels up to the cutoff."""
        pick = self.hashes >> np.uint64(32)
        line = np.empty(len(pick), np.int64)
        line[self.order] = np.repeat(np.arange(self.count), self.sizes)
        # Few are left of a long history, and all the rest is done for these alone.
        ran = lines.equals(self.table, "status", "ok")
        kept = np.flatnonzero(pick <= max(limit.max(), 0))
        kept = kept[
            ~self.control[kept] & ran[kept] & (pick[kept].astype(np.int64) <= limit[line[kept]])
        ]
        most = limit[line[kept]]
        same = self.table["same_as_control"].combine_chunks().fill_null(True)
        found: dict[str, Any] = {
            "part": part[kept],
            "kind": "row",
            "shape": self.shape[kept],
            # an imported row has its own verdict by hand
            "passed": self._of("num_exceeding", np.int64)[kept] == 0,
            "pick": pick[kept].astype(np.int64),
            "cutoff": most,
            "rows": np.ones(len(kept), np.int64),
            "detectable": (~same.to_numpy(zero_copy_only=False).astype(bool))[kept],
            "mismatch": self._of("nonfinite_mismatch", np.int64)[kept],
            "bias_count": counts[kept],
            "bias": bias[kept],
            "bias_told": told[kept],
            lines.TOPS[0]: self._of("max_abs")[kept],
        }
        for name in (*_ENVELOPE, "scaled_max"):
            found[name] = self._of(name)[kept]
        return _assembled(self.table, kept, found)


def mid_ranks(counts: Ints, points: int) -> Ints:
    """Places of ``points`` order statistics of so many values, each in the midst of its share."""
    places = (np.arange(points) + 0.5) * counts[:, None] / points
    return np.minimum(places.astype(np.int64), np.maximum(counts[:, None] - 1, 0))


def _where(keep: Any, values: Floats) -> Floats:
    return np.where(keep, values, np.float32(np.nan))


def _assembled(table: pa.Table, places: Any, found: Mapping[str, Any]) -> pa.Table:
    """A table of lines: who they are from the records at ``places``, what they say from the rest.

    A number that is nan there is null here, but for ``max_abs``: that of a record may be nan.
    """
    size = len(places)
    taken = table.select(list(lines.IDENTITY)).take(pa.array(places)).combine_chunks()
    columns = []
    for field in lines.SCHEMA:
        name, value = field.name, found.get(field.name)
        if name in lines.IDENTITY:
            column = taken[name].combine_chunks()
        elif name == "part":
            column = _hex(value)
        elif name == "shape":
            column = pa.DictionaryArray.from_arrays(pa.array(value, pa.int32()), list(_SHAPES))
        elif pa.types.is_dictionary(field.type):
            indices = pa.array(np.zeros(size, np.int32))
            column = pa.DictionaryArray.from_arrays(indices, [value or ""])
        elif value is None:
            filler = 24 if name == "bits" else None if pa.types.is_floating(field.type) else 0
            column = pa.array([filler], field.type).take(pa.array(np.zeros(size, np.int32)))
        elif pa.types.is_floating(field.type):
            column = pa.array(value.astype(np.float32), from_pandas=True)
        else:
            column = pa.array(value).cast(field.type)
        columns.append(column.cast(field.type))
    return pa.table(columns, schema=lines.SCHEMA)


def _hex(numbers: Any) -> pa.DictionaryArray:
    values, places = np.unique(numbers, return_inverse=True)
    names = [f"{int(v):016x}" for v in values]
    indices = pa.array(places, pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string()))
