"""The default rule with parts of it switched off, for the sensitivity sweep: fits and judging.

A variant of a cell is fitted once for each run left out and once on all, before the margin; a
margin then multiplies. With every part on, the numbers are those of ``calibrate``, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tolcal import bounds
from tolcal.bounds import Bools
from tolcal.calibrate import fit
from tolcal.calibrate.leaving import Part, Pool
from tolcal.model import AllClose, Setting, Tolerance, round_up

#: The tolerance of all runs together, beside those with a run left out.
ALL = None


class Variant(msgspec.Struct, frozen=True):
    """Which parts of the rule are on."""

    borrowing: bool
    sigma: bool | None  # None without a scaled part: a residual alone knows no scale
    scaled_tol: bool

    def with_margin(self, margin: float | None) -> Setting:
        """The setting of this variant at that margin; None: one for each control."""
        return Setting("residual", margin, self.borrowing, self.sigma, self.scaled_tol)


DEFAULT = Variant(borrowing=True, sigma=True, scaled_tol=True)
#: The full product; sigma plays no part where there is no scaled part.
VARIANTS = tuple(
    Variant(borrowing, sigma, scaled)
    for borrowing in (True, False)
    for scaled, sigma in ((True, True), (True, False), (False, None))
)


class Fitted(msgspec.Struct, frozen=True):
    """One control's fit on one device before the margin, and its largest |bias| (None: none)."""

    atol: float
    c: float
    bias: float | None


#: By the run left out, ALL for none; no entry where nothing is left.
Fits = dict[str | None, list[Fitted]]


def fits(parts: Sequence[Part], runs: Iterable[str], variant: Variant) -> Fits:
    """The fits of a cell's controls, without each of the runs and with all."""
    found: Fits = {}
    for run in (ALL, *runs):
        some = [_fitted(part.own, part.lent, run, variant) for part in parts]
        kept = [one for one in some if one is not None]
        if kept:
            found[run] = kept
    return found


def _fitted(pool: Pool, wide: Pool | None, run: str | None, variant: Variant) -> Fitted | None:
    out = None if run is None else pool.index.get(run)
    if out is not None and len(pool.index) == 1:
        return None
    lent: fit.Envelope | None = None
    by_sigma = variant.sigma is not False
    if wide is not None and variant.borrowing:
        there = None if run is None else wide.index.get(run)
        if there is None or len(wide.index) > 1:
            lent = (wide.own if by_sigma else wide.own_abs).without(there)
    own = (pool.own if by_sigma else pool.own_abs).without(out)
    if variant.scaled_tol:
        costs = pool.costs if by_sigma else pool.costs_abs
        atol, c = costs.joint(own, lent, out)
    else:
        # Without a scaled part there is nothing to shift: the larger of both largest residuals.
        largest = max(float(own.a[0]), float(lent.a[0]) if lent else 0.0)
        atol, c = max(largest, fit.ATOL_FLOOR), 0.0
    return Fitted(atol, c, pool.biases.without(out))


def tolerance(fitted: Sequence[Fitted], margin: float) -> Tolerance:
    """The wider of the fits, each times the margin; its pair for plain tests is not filled in."""
    biases = [fit.bias_bound(f.bias, margin) for f in fitted]
    return Tolerance(
        atol=max(round_up(margin * f.atol) for f in fitted),
        scaled_tol=max(round_up(margin * f.c) for f in fitted),
        allclose=AllClose(0.0, 0.0),
        bias_tol=None if None in biases else max(b for b in biases if b is not None),
    )


def held_out(
    judged: bounds.Rows, runs: Any, without: Mapping[str | None, Tolerance]
) -> tuple[Bools, Bools]:
    """Which rows were judged, by a tolerance without their run, and which of them fail.

    Few runs change a fit, so rows are judged together for all runs of the same tolerance.
    """
    groups: dict[tuple[float, float, float | None], tuple[Tolerance, list[str]]] = {}
    for run in map(str, np.unique(runs)):
        if run in without:
            t = without[run]
            groups.setdefault((t.atol, t.scaled_tol, t.bias_tol), (t, []))[1].append(run)
    counted, flagged = np.zeros(len(runs), bool), np.zeros(len(runs), bool)
    for t, names in groups.values():
        here = np.isin(runs, names)
        counted |= here
        flagged[here] = bounds.exceeds(judged.of(here), t)
    return counted, flagged
