"""What theory allows of a sum's rounding errors, beside what controls were measured to make.

Deterministic: ``fl(a.b)`` of K products, summed in any order, with or without fused multiply-add,
errs by at most ``gamma_K * sum |a_i b_i|``, ``gamma_K = K u/(1 - K u)`` (Higham, Accuracy and
Stability of Numerical Algorithms, 2nd ed., section 3.1). Probabilistic: if rounding errors are
independent and of mean zero, ``exp(L sqrt(K) u + K u^2/(1 - u)) - 1`` ~ ``L sqrt(K) u`` takes the
place of gamma_K, except with probability ``2 K exp(-L^2 (1 - u)^2/2)`` (Higham & Mary 2019, SIAM
J. Sci. Comput. 41(5), theorems 2.4 and 3.1).

In a record's unit, z = residual/(u*scale), scale = |ref| + sigma: a residual is at most the error.
sigma is the rms over sign vectors of the first-order change when every input moves by r_i, so for
a.b, where both factors move, its expected square is ``2 S2^2``, ``S2^2 = sum (a_i b_i)^2``. The
bounds have ``S1 = sum |a_i b_i| <= sqrt(K) S2`` (Cauchy-Schwarz; equal if all products are equally
large, 0.75 of it for uniform inputs). Hence ``S1/scale <= sqrt(K/2)``, at K = 1 exactly 1, and
``z <= gamma_K/u * max(1, sqrt(K/2))``, the other form alike. Errors are typically far smaller.

What this leaves out: sigma is estimated from 32 vectors and seldom, but at times, half as large;
accumulators that truncate (tensor cores) have a u twice as large; an output of 16 bits can add half
of an error beyond its own spacing. An op that does more than one sum (softmax, norms, attention)
adds exponentials, divisions and square roots: AROUND roundings stand for them, and the figure is
an order of magnitude. Intermediate cancellation (layer norm of two nearly equal numbers, scores of
attention that are themselves sums) is in neither form, nor in sigma, and may well exceed it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from tolcal.calibrate.rows import Control, texts
from tolcal.model import CellProposal, SumError, Theory

#: Roundings beside the sum's: scale, subtract, exponential (two units in the last place are four
#: u), divide, square root. For a plain sum it only makes the bound wider.
AROUND = 8
#: The probabilistic form fails for at most this share of records, all elements together.
FAILURE = 1e-3
_USED = ("scaled_max", "roundoff", "dims", "kernel", "count", "case_id")


def gamma(terms: int, roundoff: float) -> float:
    """gamma_K: the relative error of K roundings; infinite where K u reaches 1."""
    product = terms * roundoff
    return product / (1 - product) if product < 1 else math.inf


def confidence(terms: int, elements: int, failure: float = FAILURE) -> float:
    """lambda for that probability of failure, over all ``elements`` sums of ``terms`` products."""
    return math.sqrt(2 * math.log(2 * max(1, terms) * max(1, elements) / failure))


def probable_gamma(terms: int, roundoff: float, strength: float) -> float:
    """The probabilistic counterpart of gamma_K, ~ lambda sqrt(K) u; lambda is ``strength``."""
    exponent = strength * math.sqrt(terms) * roundoff + terms * roundoff**2 / (1 - roundoff)
    return math.expm1(exponent) if exponent < 700 else math.inf


def bound(terms: int, roundoff: float) -> float:
    """The largest z that a sum of K products and AROUND more roundings can make."""
    return gamma(terms + AROUND, roundoff) / roundoff * _spread(terms)


def probable(terms: int, roundoff: float, elements: int) -> float:
    """The same, but for FAILURE of the records of that many elements; never above ``bound``."""
    count = terms + AROUND
    strength = confidence(count, elements)
    likely = probable_gamma(count, roundoff, strength) / roundoff * _spread(terms)
    return min(likely, bound(terms, roundoff))


def _spread(terms: int) -> float:
    """The most that S1/(|ref| + sigma) comes to, with sigma at its expectation."""
    return max(1.0, math.sqrt(terms / 2))


def terms_of(dims: str, reduction: str) -> int | None:
    """K of a record's dims (``M=8 K=16``): that of the reduction; None if they don't have it."""
    # No length has more digits than fit 64 bits.
    found = re.search(rf"(?:^|\s){re.escape(reduction)}=(\d{{1,18}})(?:\s|$)", dims)
    return int(found[1]) if found else None


def of_rows(rows: pd.DataFrame, reduction: str) -> Theory | None:
    """Control rows of one cell against both forms; None if none has z and that dim.

    Rows where K u reaches 1, of which theory says nothing, play no part.
    """
    z = rows["scaled_max"].to_numpy(np.float64)
    roundoffs = rows["roundoff"].to_numpy(np.float64)
    dims = texts(rows["dims"])
    lengths = {d: terms_of(d, reduction) or 0 for d in {str(one) for one in dims}}
    terms = np.array([lengths[str(d)] for d in dims], np.int64)
    limits = np.full(len(z), np.inf)
    for length, roundoff in set(zip(terms.tolist(), roundoffs.tolist(), strict=True)):
        if length > 0 and roundoff > 0:
            limits[(terms == length) & (roundoffs == roundoff)] = bound(length, roundoff)
    kept = np.flatnonzero(np.isfinite(z) & np.isfinite(limits))
    if not kept.size:
        return None
    z, terms, limits = z[kept], terms[kept], limits[kept]
    # Among equals the longest sum says most.
    nearest, longest = np.lexsort((terms, z / limits))[-1], np.lexsort((z, terms))[-1]
    return Theory(
        reduction=reduction,
        nearest=_sum_error(rows.iloc[kept[nearest]], int(terms[nearest])),
        longest=_sum_error(rows.iloc[kept[longest]], int(terms[longest])),
        largest=float(z.max()),
        most=float(np.quantile(z, 0.999, method="higher")),
    )


def _sum_error(row: pd.Series[Any], terms: int) -> SumError:
    roundoff = float(row["roundoff"])
    return SumError(
        kernel=str(row["kernel"]),
        dims=str(row["dims"]),
        case=str(row["case_id"]),
        terms=terms,
        measured=float(row["scaled_max"]),
        bound=bound(terms, roundoff),
        probable=probable(terms, roundoff, int(row["count"])),
    )


def beside(
    cell: CellProposal, members: Sequence[Control], reductions: Mapping[str, str]
) -> CellProposal:
    """The cell with its controls' trusted rows held against theory, if its op has a reduction."""
    reduction = reductions.get(cell.op)
    if reduction is None:
        return cell
    rows = pd.concat([m.rows.loc[m.trusted, list(_USED)] for m in members])
    return msgspec.structs.replace(cell, theory=of_rows(rows, reduction))


def notes(cells: Iterable[CellProposal]) -> list[str]:
    """One for each cell with a control that errs by more than theory explains."""
    return [
        f"{c.op}/{c.dtype}: {e.kernel} errs by {e.measured:.3g} u of the scale at {e.dims}, above "
        f"the {e.bound:.3g} that a sum of {e.terms} terms ({c.theory.reduction}) explains: the "
        "rest comes of what else the op does, or is a fault"
        for c in cells
        if c.theory is not None
        for e in (c.theory.nearest,)
        if e.measured > e.bound
    ]
