"""A margin for each control from its own tail, and with them the tolerances of a cell.

A control takes the smallest rung of `fit.LADDER` at which OST (`tails`) expects no more red runs
of it than its share of the budget, else the top one. A control without any error takes the
smallest: its floor governs. One with too few errors for a tail takes the top one. Leaving a run
out, the choice is made without it as well.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tolcal import bounds
from tolcal.bounds import Floats
from tolcal.calibrate import fit, leaving, tails
from tolcal.calibrate.rows import Control
from tolcal.model import DTYPES, Tolerance, Values

#: A control's fits, one a device class; None where no row is left.
Bounds = tuple[fit.Bound | None, ...]


class Choice(msgspec.Struct, frozen=True):
    """How margins are chosen: one for all, or the red runs that each control may cause."""

    share: float  # of runs, by a control's own tail
    fixed: float | None = None

    def times(self, factor: float) -> Choice:
        """With so many times the red runs."""
        return Choice(self.share * factor, self.fixed)


def seen(control: Control, devices: Sequence[str]) -> bounds.Bools:
    """The rows that tell of a tail: gate cases repeat, so they tell nothing new."""
    mask: bounds.Bools = control.trusted & control.fits & control.explore
    return mask & np.isin(control.device, devices)


def lender_of(control: Control, wide: Mapping[str, Control]) -> Control | None:
    """The fp32 form of a 16-bit control."""
    return wide.get(control.kernel) if DTYPES[control.dtype].bits <= 16 else None


def telling(own: tails.Shares, lent: tails.Shares | None) -> tails.Shares:
    """A 16-bit control's own shares, or those of its fp32 form where they say more.

    It shows an error only when rounding falls the wrong way, so few of its rows show any, and how
    these scatter tells of rounding. Before it, its error is that of the fp32 form, which is hence
    taken where it reaches higher, or where more of its rows show an error; then it is stretched to
    reach as high. Bias is not lent: rounding to 16 bits hides most of it, and the bound is of what
    is left.
    """
    if lent is None or not lent.positive:
        return own
    reach = float(own.shares.max(initial=0.0)) / float(lent.shares.max())
    if reach > 1 and lent.positive <= own.positive:
        return own
    return msgspec.structs.replace(lent, shares=lent.shares * max(1.0, reach))


def shares(
    control: Control, wide: Mapping[str, Control], devices: Sequence[str], tolerance: Values
) -> tails.Shares:
    """How much of a tolerance the control's rows use, as far as they are `telling`."""

    def of(one: Control, values: Values) -> tails.Shares:
        mask = seen(one, devices)
        return _unified(one, bounds.share(one.judged.of(mask), values), one.codes[mask])

    lender = lender_of(control, wide)
    without = _unbiased(tolerance)
    return telling(of(control, tolerance), None if lender is None else of(lender, without))


def _unbiased(tolerance: Values) -> Values:
    """Without any bound on bias, on whatever device class."""
    if isinstance(tolerance, Tolerance):
        on = {d: msgspec.structs.replace(v, bias_tol=None) for d, v in tolerance.on.items()}
        tolerance = msgspec.structs.replace(tolerance, on=on)
    return msgspec.structs.replace(tolerance, bias_tol=None)


class Fitted(msgspec.Struct, frozen=True):
    """Tolerances by device class, and the largest margin of the fits that they are widest of."""

    fits: Mapping[str, Tolerance]
    margin: float

    @property
    def tolerance(self) -> Tolerance:
        """The wider of all device classes."""
        return functools.reduce(fit.wider, self.fits.values())

    def wider(self, other: Fitted) -> Fitted:
        """Of both, on each device class."""
        fits = dict(self.fits)
        for device, one in other.fits.items():
            fits[device] = fit.wider(fits[device], one) if device in fits else one
        return Fitted(fits, max(self.margin, other.margin))


class Ladder:
    """One control: its fits with and without a run, and the margin that each of them takes."""

    def __init__(
        self, control: Control, wide: Mapping[str, Control], devices: Sequence[str]
    ) -> None:
        lender = lender_of(control, wide)
        self.parts = leaving.parts(control, lender, devices)
        self._own = [_Seen(control, part.device) for part in self.parts]
        self._lent = [_Seen(lender, p.device) for p in self.parts] if lender is not None else []

    def tolerances(
        self, runs: Sequence[str | None], choice: Choice, raised: bool = False
    ) -> list[Fitted | None]:
        """Without each of the runs in turn (None: with all); None where no row is left.

        ``raised``: they cover the rows of pull requests too, by the margins that trusted rows take.
        Few runs change a fit, so the margin is chosen together for all runs of the same fit.
        """
        groups: dict[Bounds, list[int]] = {}
        for place, run in enumerate(runs):
            fits = tuple(part.without(run) for part in self.parts)
            groups.setdefault(fits, []).append(place)
        result: list[Fitted | None] = [None] * len(runs)
        for fits, places in groups.items():
            if not any(fits):
                continue
            margins = self._margins(fits, [runs[p] for p in places], choice)
            made: dict[float, Fitted] = {}
            for place, margin in zip(places, margins, strict=True):
                if margin not in made:
                    each = zip(self.parts, fits, strict=True)
                    all_ = {
                        p.device: (p.raised(b) if raised else b).times(margin) for p, b in each if b
                    }
                    made[margin] = Fitted(all_, margin)
                result[place] = made[margin]
        return result

    def _margins(self, fits: Bounds, runs: Sequence[str | None], choice: Choice) -> list[float]:
        """The margin of these fits with each of the runs left out."""
        if choice.fixed is not None:
            return [choice.fixed] * len(runs)
        result = np.full(len(runs), fit.LADDER[-1])
        open_ = np.ones(len(runs), bool)
        for margin in fit.LADDER[:-1]:
            fine = open_ & (self._rates(fits, runs, margin) <= choice.share)
            result[fine], open_ = margin, open_ & ~fine
            if not open_.any():
                break
        return [float(m) for m in result]

    def _rates(self, fits: Bounds, runs: Sequence[str | None], margin: float) -> Floats:
        """Red runs by this control's own bound times ``margin``; 0 where no error was seen."""
        own = _together([s.shares(b, margin) for s, b in zip(self._own, fits, strict=True) if b])
        lent = [s.shares(b, margin, False) for s, b in zip(self._lent, fits, strict=False) if b]
        used = telling(own, _together(lent) if lent else None)
        if not len(own.shares):
            return np.ones(len(runs))  # no explore case: nothing is known
        names = self._own[0].control.code_of
        return tails.rates_without(used, [None if run is None else names(run) for run in runs])


class _Seen:
    """One control's rows on one device, and what they use of a fit before its margin."""

    def __init__(self, control: Control, device: str) -> None:
        mask = seen(control, [device])
        self.control, self.runs = control, control.codes[mask]
        self._rows = control.judged.of(mask)
        judged = bounds.tells_bias(self._rows.envelope, self._rows.bias_count)
        self._bias = np.where(judged, np.abs(self._rows.bias), 0.0)
        self._used: dict[tuple[float, float], Floats] = {}

    def shares(self, bound: fit.Bound, margin: float, biased: bool = True) -> tails.Shares:
        """Of that fit times ``margin``."""
        if bound.pair not in self._used:
            rows = self._rows
            self._used[bound.pair] = bounds.utilisation(rows.envelope, rows.z, *bound.pair)
        used = self._used[bound.pair] / margin
        limit = fit.bias_bound(bound.bias, margin) if biased else None
        if limit is not None:
            used = np.maximum(used, self._bias / limit)
        return _unified(self.control, used, self.runs)


def _unified(control: Control, used: Floats, runs: Any) -> tails.Shares:
    """Shares of one kind: where a summary knows the largest of a run alone, of every run that."""
    found = tails.Shares(used, runs)
    return found.largest() if control.has_lines else found


def _together(many: Sequence[tails.Shares]) -> tails.Shares:
    return tails.Shares(
        np.concatenate([s.shares for s in many]), np.concatenate([s.runs for s in many])
    )


def cell(
    ladders: Sequence[Ladder], runs: Sequence[str | None], choice: Choice, raised: bool = False
) -> list[Fitted | None]:
    """The wider of a cell's controls, without each of the runs in turn (None: with all).

    ``raised`` as for `Ladder.tolerances`.
    """
    result: list[Fitted | None] = [None] * len(runs)
    for ladder in ladders:
        for place, one in enumerate(ladder.tolerances(runs, choice, raised)):
            before = result[place]
            result[place] = before.wider(one) if before and one else one or before
    return result
