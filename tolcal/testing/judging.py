"""An output against its tolerance: what fails, the worst of it, and how near the limit it came."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from tolcal.bounds import BIAS_MIN_COUNT
from tolcal.model import DType, Values
from tolcal.testing import arrays
from tolcal.testing.arrays import Compared, Kind

#: Elements judged at a time: a dozen fp64 temporaries of them are alive at once.
CHUNK = 2**24


class Worst(msgspec.Struct, frozen=True):
    """One element."""

    index: tuple[int, ...]
    out: float
    ref: float
    residual: float
    allowed: float
    scaled: float  # residual / (u * scale)


class Judgement(msgspec.Struct, frozen=True):
    """What was found. ``used`` is the share of the limit: it fails above 1."""

    count: int
    exceeding: int  # elements over the elementwise bound, mismatches included
    mismatches: int  # non-finite here or there, and not both in the same way
    first_mismatch: Worst | None
    worst: Worst | None  # by residual
    worst_scaled: Worst | None
    bias: float
    bias_count: int
    bias_tol: float | None
    bias_told: bool  # whether there is enough to judge it by
    used: float

    @property
    def bias_fails(self) -> bool:
        """Whether the coherent part of the error is over its bound."""
        return self.bias_tol is not None and self.bias_told and abs(self.bias) > self.bias_tol

    @property
    def passes(self) -> bool:
        """Whether nothing is over its bound."""
        return self.exceeding == 0 and not self.bias_fails


class Bound(msgspec.Struct, frozen=True):
    """residual <= atol + slope * scale, after ``gaps`` half gaps of the output's dtype."""

    atol: float
    slope: float
    gaps: int
    roundoff: float


def bound_of(values: Values, dtype: DType, kind: Kind, roundoff: float) -> Bound:
    """The elementwise bound that a cell gives for that kind of reference.

    With the op's function it is (atol, scaled_tol) on |ref| + sigma. A value alone has no sigma:
    then it is the ``allclose`` pair on |ref|, less the output's and the reference's rounding that
    the pair contains, since the residual leaves those out exactly (the inverse of
    ``calibrate.fit.allclose``). A reference in the output's dtype was itself rounded, which may
    have moved it by half a gap, and has lost up to u of |ref|.
    """
    if kind == "function":
        return Bound(values.atol, values.scaled_tol * roundoff, 1, roundoff)
    u = dtype.roundoff
    pair = values.allclose
    slope = max(0.0, pair.rtol / (1 + u) - 2 * u)
    atol = max(0.0, pair.atol - dtype.tiny)
    if kind == "wide":
        return Bound(atol, slope, 1, roundoff)
    return Bound(atol, slope * (1 + u), 2, roundoff)


def judge(compared: Compared, values: Values, roundoff: float) -> Judgement:
    """Every element against the bound, and the bias. Tensors stay where they are.

    Args:
        compared: output, reference, and sigma if there is one.
        values: the cell's numbers that hold on this device.
        roundoff: u of the compute dtype.
    """
    bound = bound_of(values, compared.dtype, compared.kind, roundoff)
    count = math.prod(compared.out.shape)
    parts = [_part(*chunk, compared.dtype, bound) for chunk in _chunks(compared)]
    totals = [sum(part[i] for _, part in parts) for i in range(5)]
    exceeding, mismatches, toward, away, bias_count = totals

    def pick(which: int, value: int) -> Worst | None:
        """The element that leads by the ``value``-th figure, over all chunks."""
        best: tuple[float, Worst] | None = None
        for start, part in parts:
            index, out, ref, residual, allowed, scaled = part[6 + 6 * which : 12 + 6 * which]
            figures = (residual, scaled, float(residual == math.inf))
            if figures[value] > (best[0] if best else 0.0):
                where = np.unravel_index(start + int(index), tuple(compared.out.shape))
                place = tuple(int(i) for i in where)
                best = (figures[value], Worst(place, out, ref, residual, allowed, scaled))
        return best[1] if best else None

    known = 0 < away < math.inf
    bias = toward / away if known else 0.0
    worst = pick(0, 0)
    # As `bounds.tells_bias`: without a residual every element is the nearest number. What is not
    # the rounded reference is none.
    told = bias_count >= BIAS_MIN_COUNT and (worst is not None or compared.kind == "rounded")
    used = max((part[5] for _, part in parts), default=0.0)
    if told and values.bias_tol is not None:
        share = abs(bias) / values.bias_tol if values.bias_tol else math.inf * (bias != 0)
        used = max(used, share)
    return Judgement(
        count=count,
        exceeding=int(exceeding),
        mismatches=int(mismatches),
        first_mismatch=pick(2, 2) if mismatches else None,
        worst=worst,
        worst_scaled=pick(1, 1),
        bias=bias,
        bias_count=int(bias_count),
        bias_tol=values.bias_tol,
        bias_told=told,
        used=used,
    )


def _chunks(compared: Compared) -> Iterator[tuple[int, Any, Any, Any]]:
    """(start, out, ref, sigma), flat; sigma None where there is none."""
    out, ref = compared.out.reshape(-1), compared.ref.reshape(-1)
    sigma = None if compared.sigma is None else compared.sigma.reshape(-1)
    for start in range(0, out.shape[0], CHUNK):
        part = slice(start, start + CHUNK)
        yield start, out[part], ref[part], None if sigma is None else sigma[part]


def _part(
    start: int, out: Any, ref: Any, sigma: Any, dtype: DType, bound: Bound
) -> tuple[int, list[float]]:
    """One chunk's figures as plain numbers: the only thing that leaves the device.

    exceeding, mismatches, sum of errors away from zero, sum of |errors| (of those from the exact
    reference), number of errors, share of the limit used; then, for the worst by residual, by
    scaled error and by mismatch: index, out, ref, residual, allowed, scaled error.
    """
    import sys

    xp: Any = sys.modules["torch"] if arrays.is_torch(out) else np
    with np.errstate(all="ignore"):
        wide = arrays.wide(out)
        rounded = arrays.round_to(ref, dtype)
        kinds, ref_kinds = _kind(wide, xp), _kind(rounded, xp)
        finite = (kinds == 0) & (ref_kinds == 0)
        mismatch = kinds != ref_kinds
        if not dtype.has_infinity:  # as in `stats.definition`: overflow is nan, or saturates
            over = (ref_kinds == 1) | (ref_kinds == 2)
            mismatch &= ~(over & ((kinds == 3) | (wide == xp.sign(ref) * dtype.max)))
        zero = xp.zeros_like(wide)
        infinite = zero + math.inf
        error = xp.where(finite, wide - ref, zero)
        magnitude = xp.where(finite, xp.abs(ref), zero)
        spacing = arrays.gap(magnitude, dtype)
        residual = xp.abs(error) - bound.gaps * spacing / 2
        residual = xp.where(mismatch, infinite, xp.where(residual > 0, residual, zero))
        scale = magnitude if sigma is None else magnitude + xp.where(finite, sigma, zero)
        allowed = bound.atol + bound.slope * scale
        over = residual > allowed
        scaled = xp.where(residual > 0, residual / (bound.roundoff * scale), zero)
        used = xp.where(residual > 0, residual / allowed, zero)
        counts = (error != 0) & (ref != 0)
        toward = xp.where(counts, xp.sign(ref) * error, zero)
        # A rounded reference hides a quarter of a gap of each error, on average: it makes errors
        # beyond half a gap larger by that, and all others 0. Their signed sum it leaves as it was.
        hidden = (bound.gaps - 1) * spacing / 4
        away = xp.where(finite & (ref != 0), xp.abs(xp.abs(error) - hidden), zero)
        figures = [over.sum(), mismatch.sum(), toward.sum(), away.sum(), counts.sum(), used.max()]
        shown = xp.where(mismatch, zero, residual)
        for leader in (shown, xp.where(mismatch, zero, scaled), mismatch * 1.0):
            index = leader.argmax()
            elements = (wide, ref, residual, allowed, scaled)
            figures += [index, *(element.take(index) for element in elements)]
    if xp is np:
        return start, [float(figure) for figure in figures]
    numbers: list[float] = xp.stack([figure.to(xp.float64) for figure in figures]).tolist()
    return start, numbers


def _kind(value: Any, xp: Any) -> Any:
    """0 finite, 1 +inf, 2 -inf, 3 nan."""
    return xp.isposinf(value) * 1 + xp.isneginf(value) * 2 + xp.isnan(value) * 3
