"""The rules: control records into one (atol, scaled_tol), or the published atol."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tolcal import bounds
from tolcal.bounds import GRID, Floats
from tolcal.model import DTYPES, AllClose, TolcalError, Tolerance, Values, round_up

PAPER_PERCENTILE = 95
PAPER_FACTOR = 1.5
#: Both parts of a fitted bound are multiplied by one of these: see ``margins``.
LADDER = (1.5, 2.0, 3.0, 4.0, 6.0)
#: Of the candidates that allow at most this many times the least at typical elements, the one with
#: the smallest atol is taken: it holds small outputs, for which no typical element speaks, to
#: their own scale. With 1 a tanh that cancels near 0 is found in a quarter of its float32 rows
#: and in no other, with 2 in two thirds; nothing else changes by a row in 500.
SLACK = 2.0
#: A scale below this share of the row's rms gets no say in the objective: one element whose
#: relative accuracy is lost (GELU's far tail) must not decide the fit.
SCALE_FLOOR = 2.0**-12
#: atol is at least the smallest normal fp32 number, and no share of the largest residual: with
#: inputs of many magnitudes (profile ``adversarial``) that would hide the faults of all but the
#: largest.
ATOL_FLOOR = 2.0**-126


class Rows(msgspec.Struct, frozen=True):
    """Control records of one kernel, dtype and device class, as arrays over records."""

    envelope: Floats  # [rows, grid], scale = |ref| + sigma
    z: Floats
    envelope_abs: Floats  # scale = |ref|
    z_abs: Floats
    scales: Floats  # [rows, 3] quantiles
    scales_abs: Floats
    rms: Floats
    bias: Floats
    bias_count: Floats
    roundoff: float
    #: how many scales each of ``scales`` and ``scales_abs`` stands for; None: one
    shares: Floats | None = None
    shares_abs: Floats | None = None

    def __len__(self) -> int:
        return len(self.z)


class Envelope(msgspec.Struct, frozen=True):
    """The upper envelope of many records, on GRID, and where it reaches 0."""

    a: Floats
    z: float


def upper(envelope: Floats, z: Floats) -> Envelope:
    """Pointwise maximum over records."""
    return Envelope(envelope.max(axis=0), float(z.max()))


def borrow(own: Envelope, wide: Envelope) -> Envelope:
    """A 16-bit envelope that is never below the same control's fp32 one, shifted by one.

    Both compute in fp32, and a 16-bit output shows an error only when rounding falls the wrong
    way, so few 16-bit records say little. The fp32 output has itself been rounded, which may
    have hidden up to one u of the scale: hence A16(c) >= A32(c - 1), z16 >= z32 + 1, and c >= 1.
    """
    shifted = np.full(GRID.size, np.inf)
    from_one = GRID >= 1.0
    shifted[from_one] = bounds.along(wide.a, wide.z, GRID[from_one] - 1.0)
    return Envelope(np.maximum(own.a, shifted), max(own.z, wide.z + 1.0))


def joint(
    envelope: Envelope,
    scales: Floats,
    rms: Floats,
    roundoff: float,
    shares: Floats | None = None,
) -> tuple[float, float]:
    """(atol, c) on the envelope: the smallest atol that allows little at typical elements.

    What is allowed is the mean of log(atol + c*u*max(s, SCALE_FLOOR*rms)) over the records' scale
    quantiles s; the choice is among the envelope's knots (A(c), c) and (floor, z), see SLACK. A
    cell without any residual (relu) gets the floor and one unit roundoff of scale: exact so far,
    but not exact by law.
    """
    typical = np.maximum(scales, SCALE_FLOOR * rms[:, None]).ravel()
    positive = typical > 0
    if shares is not None:
        positive &= shares.ravel() > 0
        shares = shares.ravel()[positive]
    return chosen(candidates(envelope), typical[positive], roundoff, shares)


def candidates(envelope: Envelope) -> list[tuple[float, float]]:
    """The (atol, c) on an envelope that the joint fit chooses from."""
    if envelope.z == 0.0:
        return [(ATOL_FLOOR, 1.0)]
    found = [
        (max(float(a), ATOL_FLOOR), float(c))
        for a, c in zip(envelope.a, GRID, strict=True)
        if np.isfinite(a)  # a borrowed envelope begins at c = 1
    ]
    if math.isfinite(envelope.z):
        found.append((ATOL_FLOOR, envelope.z))
    return found


def chosen(
    found: list[tuple[float, float]],
    typical: Floats,
    roundoff: float,
    shares: Floats | None = None,
) -> tuple[float, float]:
    """The candidate to take at scales ``typical``, all above 0, of these weights."""
    if len(found) == 1 or not typical.size:
        return min(found)
    logs = (np.log(atol + c * roundoff * typical) for atol, c in found)
    return pick(found, np.array([np.average(one, weights=shares) for one in logs]))


def pick(found: list[tuple[float, float]], costs: Floats) -> tuple[float, float]:
    """The smallest atol among the candidates within SLACK of the least of ``costs``."""
    return min(one for one, cost in zip(found, costs, strict=True) if cost <= limit(costs))


def limit(costs: Floats) -> float:
    """The mean log of what is allowed up to which `pick` looks."""
    return float(costs.min()) + math.log(SLACK)


class Bound(msgspec.Struct, frozen=True):
    """One control's fit on one device class, before any margin: its own records reach it."""

    pair: tuple[float, float]  # (atol, c) for scale = |ref| + sigma
    plain: tuple[float, float]  # for scale = |ref|
    bias: float | None  # the largest |bias| that is judged; None if none is
    roundoff: float
    dtype: str

    def times(self, margin: float) -> Tolerance:
        """Every part times ``margin``, rounded up."""
        return Tolerance(
            atol=round_up(margin * self.pair[0]),
            scaled_tol=round_up(margin * self.pair[1]),
            allclose=allclose(
                margin * self.plain[0], margin * self.plain[1], self.roundoff, self.dtype
            ),
            bias_tol=bias_bound(self.bias, margin),
        )


def residual(rows: Rows, wide: Rows | None, dtype: str) -> Bound:
    """The default rule for one control: joint fit with borrowing (``wide``: its fp32 rows).

    Raises TolcalError if a row has a non-finite mismatch, which no tolerance covers.
    """
    if not np.isfinite(rows.envelope[:, 0]).all():
        raise TolcalError(
            "a control's record has non-finite values where the reference has none (or the other "
            "way round): no tolerance covers it, leave the record out"
        )
    own, own_abs = upper(rows.envelope, rows.z), upper(rows.envelope_abs, rows.z_abs)
    if wide is not None:
        own = borrow(own, upper(wide.envelope, wide.z))
        own_abs = borrow(own_abs, upper(wide.envelope_abs, wide.z_abs))
    return Bound(
        joint(own, rows.scales, rows.rms, rows.roundoff, rows.shares),
        joint(own_abs, rows.scales_abs, rows.rms, rows.roundoff, rows.shares_abs),
        largest_bias(rows),
        rows.roundoff,
        dtype,
    )


def raised(bound: Bound, rows: Rows, borrowed: bool = False) -> Bound:
    """A fit with just as much atol and |bias| as covers other rows too.

    c stays, so more rows can only raise what is allowed, at any element. ``borrowed``: they are
    fp32 rows that lend to a 16-bit fit (see `borrow`).
    """
    if not len(rows):
        return bound

    def least(pair: tuple[float, float], envelope: Floats, z: Floats) -> tuple[float, float]:
        atol, c = pair
        most = upper(envelope, z)
        at = np.array([c - 1.0 if borrowed else c])
        return max(atol, float(bounds.along(most.a, most.z, at)[0])), c

    largest = bound.bias
    if largest is not None and not borrowed:
        largest = max(largest, largest_bias(rows) or 0.0)
    return msgspec.structs.replace(
        bound,
        pair=least(bound.pair, rows.envelope, rows.z),
        plain=least(bound.plain, rows.envelope_abs, rows.z_abs),
        bias=largest,
    )


def allclose(atol: float, c: float, roundoff: float, dtype: str) -> AllClose:
    """(atol, c) on the residual as a pair for torch.testing, output rounding included.

    The reference there is in the kernel's dtype: the output's and the reference's rounding are
    each at most u_out*|ref| or half the smallest subnormal, and |ref| itself is the rounded one.
    """
    out = DTYPES[dtype]
    rtol = (c * roundoff + 2 * out.roundoff) * (1 + out.roundoff)
    # Near zero roundings are absolute, and so is what the bound's share of |ref| lacks for them.
    absolute = atol + out.tiny * (1 + c * roundoff)
    return AllClose(atol=round_up(absolute), rtol=round_up(rtol))


def largest_bias(rows: Rows) -> float | None:
    """The largest |bias| of the records with enough elements.

    Those of nearest numbers alone (``bounds.tells_bias``), too, though they are never over it: few
    16-bit records have others, and one element that is not makes no other bias.
    """
    judged = rows.bias_count >= bounds.BIAS_MIN_COUNT
    return float(np.abs(rows.bias[judged]).max()) if judged.any() else None


def bias_bound(largest: float | None, margin: float) -> float | None:
    """Above that |bias|; None if there is none, or correct kernels come near 1.

    A norm over two elements rounds +-1 the same way everywhere.
    """
    if largest is None:
        return None
    widened = math.ceil(margin * largest * 100) / 100 + 0.01
    return round(widened, 2) if widened < 1.0 else None


def wider(first: Values, second: Values) -> Tolerance:
    """The tolerance that lets through whatever either does."""
    biases = [t.bias_tol for t in (first, second)]
    return Tolerance(
        atol=max(first.atol, second.atol),
        scaled_tol=max(first.scaled_tol, second.scaled_tol),
        allclose=AllClose(
            max(first.allclose.atol, second.allclose.atol),
            max(first.allclose.rtol, second.allclose.rtol),
        ),
        bias_tol=None if None in biases else max(b for b in biases if b is not None),
    )


def paper(max_abs: Floats, weights: Floats | None = None) -> float:
    """The published rule: p95 by nearest rank of a control's max_abs, times 1.5.

    With ``weights`` a value stands for so many.
    """
    if weights is None:
        return nearest_rank(np.sort(max_abs), PAPER_PERCENTILE) * PAPER_FACTOR
    order = np.argsort(max_abs, kind="stable")
    upto = np.cumsum(weights[order])
    rank = round(PAPER_PERCENTILE / 100 * (upto[-1] - 1))
    # Sums of equal shares may miss a whole number by their rounding.
    at = int(np.searchsorted(upto, rank + 0.5))
    return float(max_abs[order[min(at, len(order) - 1)]]) * PAPER_FACTOR


def papers_without(
    max_abs: Floats, weights: Floats | None, runs: np.ndarray[Any, Any], left_out: Sequence[int]
) -> list[float | None]:
    """``paper`` without the values of each of these runs in turn; None where none is left.

    The rank moves by what a run has below it, so it is found for all runs at once by going up
    until nothing more is to be made up for.
    """
    order = np.argsort(max_abs, kind="stable")
    values, runs = max_abs[order], runs[order]
    each = np.ones(len(order)) if weights is None else weights[order]
    upto = np.cumsum(each)
    # By run and then by place: what a run has up to a place is a difference of two sums.
    by_run = np.argsort(runs, kind="stable")
    size = len(order) + 1
    keys = runs[by_run].astype(np.int64) * size + by_run
    sums = np.concatenate([[0.0], np.cumsum(each[by_run])])
    out = np.array(left_out, np.int64)
    before = sums[np.searchsorted(keys, out * size)]
    of_run = sums[np.searchsorted(keys, (out + 1) * size)] - before
    left = (upto[-1] if size > 1 else 0.0) - of_run
    rank = np.rint(PAPER_PERCENTILE / 100 * (left - 1))
    gone = np.zeros(len(out))
    while True:
        place = np.minimum(np.searchsorted(upto, rank + 0.5 + gone), max(size - 2, 0))
        more = sums[np.searchsorted(keys, out * size + place, side="right")] - before
        if (more == gone).all():
            break
        gone = more
    return [
        float(values[at]) * PAPER_FACTOR if count > 0.5 else None
        for at, count in zip(place, left, strict=True)
    ]


def nearest_rank(ordered: Floats, percentile: float) -> float:
    """The percentile of sorted values as the paper takes it, without interpolation."""
    return float(ordered[round(percentile / 100 * (ordered.size - 1))])
