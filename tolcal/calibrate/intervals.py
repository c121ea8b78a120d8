"""How sure recall is: runs drawn again and again (Efron 1979, the bootstrap), or exact limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tolcal import binomial
from tolcal.bounds import Bools, Floats
from tolcal.model import Interval

RESAMPLES = 1000


class ByRun:
    """Rows of buggy kernels by run: all, flagged, detectable, and detectable ones flagged.

    Each counts as many as it stands for; of all and of detectable ones the sum of the squares of
    that is kept as well, which says how many even ones are worth as much.
    """

    def __init__(self) -> None:
        self.counts: dict[str, Floats] = {}
        self.unjudged = np.zeros(2)

    def add(
        self,
        runs: Any,
        flagged: Bools,
        detectable: Bools,
        weight: Floats | None = None,
        unjudged: tuple[int, int] = (0, 0),
    ) -> None:
        """Rows of one kernel in one dtype.

        ``weight``: how many each stands for (None: 1); ``unjudged``: rows, and detectable ones
        among them, that none stands for.
        """
        names, codes = np.unique(runs, return_inverse=True)
        one = np.ones(len(codes)) if weight is None else weight
        each = [
            np.bincount(codes, weights, len(names))
            for weights in (
                one, one * flagged, one * detectable, one * (flagged & detectable),
                one * one, one * one * detectable,
            )
        ]  # fmt: skip
        for name, counts in zip(names, np.array(each).T, strict=True):
            self.counts[str(name)] = self.counts.get(str(name), 0) + counts
        self.unjudged += unjudged

    def intervals(self, seed: int = 0) -> tuple[Interval | None, Interval | None]:
        """95 % intervals of recall over all rows and over detectable ones; None without any.

        Whole runs are drawn, since rows of a run are alike; but resamples of runs that all caught
        everything would claim to be certain, so an interval is never narrower than the exact
        binomial one of the rows that were judged: of as many as they are worth where some stand
        for more than others, (sum of weights)^2 / sum of squares (Kish 1965, the effective sample
        size). Rows that none stands for widen it by all that
        they may be.
        """
        if not self.counts:
            return None, None
        table = np.array([self.counts[run] for run in sorted(self.counts)])
        drawn = np.random.default_rng(seed).integers(len(table), size=(RESAMPLES, len(table)))
        times = np.stack([np.bincount(row, minlength=len(table)) for row in drawn])
        samples = times @ table
        sums = table.sum(axis=0)
        return (
            _interval(samples[:, [1, 0]], sums[[1, 0, 4]], self.unjudged[0]),
            _interval(samples[:, [3, 2]], sums[[3, 2, 5]], self.unjudged[1]),
        )


def _interval(samples: Floats, whole: Floats, unjudged: float) -> Interval | None:
    """Of resamples' hits and rows, and of all hits, rows and squares of what each stands for."""
    hit, rows, squares = whole
    if not rows + unjudged:
        return None
    # Whole where each stands for one, but for the rounding of sums.
    worth = math.floor(round(rows * rows / squares, 6)) if rows else 0
    part = round(hit * worth / rows, 6) if rows else 0.0
    low = binomial.interval(math.floor(part), worth)[0]
    high = binomial.interval(math.ceil(part), worth)[1]
    known = samples[:, 1] > 0
    rates = samples[known, 0] / samples[known, 1]
    if rates.size:
        low = min(low, float(np.quantile(rates, 0.025, method="lower")))
        high = max(high, float(np.quantile(rates, 0.975, method="higher")))
    share = float(rows / (rows + unjudged))
    return low * share, min(1.0, high * share + (1.0 - share))
