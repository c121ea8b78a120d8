"""How sure recall is: runs drawn again and again (Efron 1979, the bootstrap), or exact limits."""

from __future__ import annotations

from typing import Any

import numpy as np

from tolcal import binomial
from tolcal.bounds import Bools
from tolcal.model import Interval

RESAMPLES = 1000


class ByRun:
    """Rows of buggy kernels by run: all, flagged, detectable, and detectable ones flagged."""

    def __init__(self) -> None:
        self.counts: dict[str, np.ndarray[Any, np.dtype[np.int64]]] = {}

    def add(self, runs: Any, flagged: Bools, detectable: Bools) -> None:
        """Rows of one kernel in one dtype."""
        names, codes = np.unique(runs, return_inverse=True)
        each = [
            np.bincount(codes, weights, len(names)).astype(np.int64)
            for weights in (None, flagged, detectable, flagged & detectable)
        ]
        for name, counts in zip(names, np.array(each).T, strict=True):
            self.counts[str(name)] = self.counts.get(str(name), 0) + counts

    def intervals(self, seed: int = 0) -> tuple[Interval | None, Interval | None]:
        """95 % intervals of recall over all rows and over detectable ones; None without any.

        Whole runs are drawn, since rows of a run are alike; but resamples of runs that all caught
        everything would claim to be certain, so an interval is never narrower than the exact
        binomial one of its rows.
        """
        if not self.counts:
            return None, None
        table = np.array([self.counts[run] for run in sorted(self.counts)], float)
        drawn = np.random.default_rng(seed).integers(len(table), size=(RESAMPLES, len(table)))
        times = np.stack([np.bincount(row, minlength=len(table)) for row in drawn])
        samples = times @ table
        rows, flagged, detectable, both = (int(n) for n in table.sum(axis=0))
        return (
            _interval(samples[:, 1], samples[:, 0], flagged, rows),
            _interval(samples[:, 3], samples[:, 2], both, detectable),
        )


def _interval(hits: Any, of: Any, hit: int, rows: int) -> Interval | None:
    if not rows:
        return None
    low, high = binomial.interval(hit, rows)
    known = of > 0
    rates = hits[known] / of[known]
    if rates.size:
        low = min(low, float(np.quantile(rates, 0.025, method="lower")))
        high = max(high, float(np.quantile(rates, 0.975, method="higher")))
    return low, high
