"""Fits of a control's rows with one run left out, for all of its runs at the price of a few.

The numbers are those of ``fit.residual`` on the rows that remain, to the last bit: envelopes are
maxima, which per-run maxima give exactly, and the joint fit's choice is taken from sums only where
they can't be wrong about it.

They are of trusted rows. A pull request's come after: the fit to trusted rows is raised to cover
them, so that they choose nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tolcal import bounds
from tolcal.bounds import Floats
from tolcal.calibrate import fit
from tolcal.calibrate.rows import Control

#: Costs are means of logarithms below 1,000; sums of a million of them err by less than this.
TIE = 1e-6


class Pool:
    """Rows of one control, dtype and device class, by run."""

    def __init__(self, control: Control, mask: bounds.Bools) -> None:
        self.rows = control.subset(mask)
        self.dtype = control.dtype
        # By number, which is much faster than by name.
        names, first, self.codes = np.unique(
            control.codes[mask], return_index=True, return_inverse=True
        )
        self.index = {str(run): i for i, run in enumerate(control.runs[mask][first])}
        rows = self.rows
        self.own = _Envelopes(rows.envelope, rows.z, self.codes, len(names))
        self.own_abs = _Envelopes(rows.envelope_abs, rows.z_abs, self.codes, len(names))
        self.biases = _Biases(rows, self.codes, len(names))
        self.costs = _Costs(rows, rows.scales, rows.shares, self.codes, len(names))
        self.costs_abs = _Costs(rows, rows.scales_abs, rows.shares_abs, self.codes, len(names))

    def without(self, run: str | None, wide: Pool | None) -> fit.Bound | None:
        """``fit.residual`` on the rows of the other runs (None: of all); None without any."""
        out = None if run is None else self.index.get(run)
        if out is not None and len(self.index) == 1:
            return None
        scaled = plain = None
        lent = None if wide is None or run is None else wide.index.get(run)
        if wide is not None and (lent is None or len(wide.index) > 1):
            scaled, plain = wide.own.without(lent), wide.own_abs.without(lent)
        return fit.Bound(
            self.costs.joint(self.own.without(out), scaled, out),
            self.costs_abs.joint(self.own_abs.without(out), plain, out),
            self.biases.without(out),
            self.rows.roundoff,
            self.dtype,
        )


class _Envelopes:
    """The upper envelope of each run."""

    def __init__(
        self, envelope: Floats, z: Floats, codes: npt.NDArray[np.int64], runs: int
    ) -> None:
        self.a = np.full((runs, envelope.shape[1]), -np.inf)
        self.z = np.full(runs, -np.inf)
        np.maximum.at(self.a, codes, envelope)
        np.maximum.at(self.z, codes, z)

        # Without one run a maximum is the largest, or the second where that was the run's own.
        self.largest = [_Largest(self.a), _Largest(self.z[:, None])]

    def without(self, run: int | None) -> fit.Envelope:
        """That of all others together."""
        a, z = (one.without(run) for one in self.largest)
        return fit.Envelope(a, float(z[0]))


class _Largest:
    """Maxima over runs, with any one of them left out."""

    def __init__(self, values: Floats) -> None:
        self.at = values.argmax(axis=0)
        self.first: Floats = values.max(axis=0)
        rest = values.copy()
        rest[self.at, np.arange(values.shape[1])] = -np.inf
        self.second = rest.max(axis=0)

    def without(self, run: int | None) -> Floats:
        """Of all others; minus infinity where there are none."""
        if run is None:
            return self.first
        others: Floats = np.where(self.at == run, self.second, self.first)
        return others


class _Biases:
    """The largest |bias| of each run's records with enough elements."""

    def __init__(self, rows: fit.Rows, codes: npt.NDArray[np.int64], runs: int) -> None:
        judged = rows.bias_count >= bounds.BIAS_MIN_COUNT
        largest = np.full((runs, 1), -np.inf)
        np.maximum.at(largest[:, 0], codes[judged], np.abs(rows.bias[judged]))
        self.largest = _Largest(largest)

    def without(self, run: int | None) -> float | None:
        """Of all others; None if they have none."""
        found = float(self.largest.without(run)[0])
        return None if found == -np.inf else found


class _Costs:
    """What the joint fit minimises, as sums by run of each candidate that was asked for."""

    def __init__(
        self,
        rows: fit.Rows,
        scales: Floats,
        shares: Floats | None,
        codes: npt.NDArray[np.int64],
        runs: int,
    ) -> None:
        typical = np.maximum(scales, fit.SCALE_FLOOR * rows.rms[:, None])
        by_row = np.repeat(codes, typical.shape[1])
        positive = typical.ravel() > 0
        if shares is not None:
            positive &= shares.ravel() > 0
        self.shares = None if shares is None else shares.ravel()[positive]
        self.typical, self.codes = typical.ravel()[positive], by_row[positive]
        self.roundoff, self.runs = rows.roundoff, runs
        self.counts = np.bincount(self.codes, self.shares, runs)
        self.count = self.counts.sum()
        self.chosen_from: dict[bytes, tuple[list[tuple[float, float]], Floats, Floats]] = {}

    def joint(
        self, own: fit.Envelope, lent: fit.Envelope | None, run: int | None
    ) -> tuple[float, float]:
        """``fit.joint`` without the rows of that run, of ``own`` that borrowed what is ``lent``."""
        candidates, sums, total = self._of(own, lent)
        count = self.count - (0 if run is None else self.counts[run])
        if count and len(candidates) > 1:
            costs = (total - (0.0 if run is None else sums[:, run])) / count
            if (np.abs(costs - fit.limit(costs)) > TIE).all():
                return fit.pick(candidates, costs)
        keep = slice(None) if run is None else self.codes != run
        shares = None if self.shares is None else self.shares[keep]
        return fit.chosen(candidates, self.typical[keep], self.roundoff, shares)

    def _of(
        self, own: fit.Envelope, lent: fit.Envelope | None
    ) -> tuple[list[tuple[float, float]], Floats, Floats]:
        """Candidates, the sums of each by run and of all. Most runs leave envelopes as they are."""
        key = b"".join(e.a.tobytes() + np.float64(e.z).tobytes() for e in (own, lent) if e)
        if key not in self.chosen_from:
            envelope = fit.borrow(own, lent) if lent else own
            candidates = fit.candidates(envelope)
            logs = [np.log(a + c * self.roundoff * self.typical) for a, c in candidates]
            if self.shares is not None:
                logs = [one * self.shares for one in logs]
            sums = np.array([np.bincount(self.codes, one, self.runs) for one in logs])
            self.chosen_from[key] = candidates, sums, sums.sum(axis=1)
        return self.chosen_from[key]


class Part(msgspec.Struct, frozen=True):
    """A control's rows on one device class, and the fp32 rows that they may borrow from."""

    device: str
    own: Pool
    lent: Pool | None
    claimed: fit.Rows  # a pull request's
    claimed_lent: fit.Rows | None = None  # fp32 ones likewise

    def without(self, run: str | None) -> fit.Bound | None:
        """The fit to trusted rows without that run's, or to all of them."""
        return self.own.without(run, self.lent)

    def raised(self, bound: fit.Bound) -> fit.Bound:
        """That fit where it covers the rows of pull requests too: see `fit.raised`."""
        bound = fit.raised(bound, self.claimed)
        if self.claimed_lent is not None:
            bound = fit.raised(bound, self.claimed_lent, borrowed=True)
        return bound


def parts(control: Control, lender: Control | None, devices: Sequence[str]) -> list[Part]:
    """The control's rows by device class; ``lender`` is its fp32 form, if it may borrow."""
    found = []
    for device in devices:
        here = control.fits & (control.device == device)
        mask = here & control.trusted
        if not mask.any():
            continue
        lent, claimed = None, None
        if lender is not None:
            there = lender.fits & (lender.device == device)
            if (there & lender.trusted).any():
                lent = Pool(lender, there & lender.trusted)
                claimed = lender.subset(there & ~lender.trusted)
        rest = control.subset(here & ~control.trusted)
        found.append(Part(device, Pool(control, mask), lent, rest, claimed))
    return found
