"""How often a whole run would be red, beyond what the runs seen can show.

The shares t that a control's records use of a bound are continued by a Pareto tail (OST: a
conformal order statistic times a Pareto tail). The next record exceeds the largest of N
exchangeable ones with probability 1/(N + 1) (Vovk, Gammerman, Shafer 2005, conformal prediction).
Beyond it the log-excesses over the (k+1)-th largest are taken for exponential with the mean that
Hill (1975) estimates. A fresh exponential exceeds y times S, the sum of the k largest
log-excesses, with probability ``(1 + y)^-k`` (Renyi 1953: spacings of exponential order statistics
are independent), so ``q(m) = (1 + ln(m/t_1)/S)^-k``, t_1 the largest share and m the share that
fails (1: the bound itself). Unlike a plug-in of Hill's estimate this allows for its own
uncertainty, on the safe side.

Records are exchangeable only if runs are alike. A run may have a level of its own, which its
records share: then the largest come of fewer runs than chance would have it, and say less than
their number does. In that case the largest share of each run is the record, and N the number of
runs.

A model figure: it assumes that ops, shapes, inputs, GPU and
software stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tolcal.bounds import Floats

#: Records that a tail rests on: so many, or this share of them if that is more.
TAIL_COUNT = 20
TAIL_SHARE = 0.05
#: With fewer shares above 0 there is no tail to speak of: the order statistic alone counts.
LEAST_POSITIVE = 5
#: The k largest are taken to spread by at least this much each, in logarithms: a top that looks
#: flat may be rounded (tolerances to three digits, a summary's numbers, 16-bit outputs).
LEAST_SPREAD = 0.05


class Shares(msgspec.Struct, frozen=True):
    """One control's records in one dtype, or the largest of each run: shares of a bound, and runs.

    How many a run has is counted: with per-run maxima one, and then a run is the unit of all.
    """

    shares: Floats  # [records], 1 is the bound
    runs: np.ndarray[tuple[int], np.dtype[Any]]  # [records], ids of their runs

    @property
    def positive(self) -> int:
        """How many are above 0."""
        return int((self.shares > 0).sum())

    @property
    def clustered(self) -> bool:
        """Whether the records of the tail come of fewer runs than chance would have it.

        So many draws of R equal runs meet R (1 - (1 - 1/R)^k) of them, give or take the standard
        deviation of that count (Feller 1968, An introduction to probability theory I, IV.2);
        three of these make a cluster.
        """
        count = len(np.unique(self.runs))
        k = min(max(TAIL_COUNT, int(TAIL_SHARE * len(self.shares))), self.positive)
        if count == len(self.shares) or k < LEAST_POSITIVE:
            return False
        # With all that equal the last of them: which of equals come first means nothing.
        top = self.shares >= np.partition(self.shares, -k)[-k]
        k = int(top.sum())
        missed = (1 - 1 / count) ** k
        both = max(0.0, 1 - 2 / count) ** k
        spread = math.sqrt(max(0.0, count * missed + count * (count - 1) * both
                               - (count * missed) ** 2))  # fmt: skip
        return len(np.unique(self.runs[top])) < count * (1 - missed) - 3 * spread - 1e-9

    def largest(self) -> Shares:
        """Of each run the largest."""
        names, codes = np.unique(self.runs, return_inverse=True)
        shares = np.zeros(len(names))
        np.maximum.at(shares, codes, self.shares)
        return Shares(shares, names)


class _Draws(msgspec.Struct, frozen=True):
    """Samples of the runs, each run so many times."""

    times: Floats  # [samples, runs]
    names: Any  # [runs]
    #: whether each sample has a bound of its own, as far from its largest as all runs' is
    fitted: bool = True


def beyond(control: Shares, margin: float = 1.0) -> float:
    """P(a record uses more than ``margin``, given that it uses more than the largest so far).

    1.0 where fewer than LEAST_POSITIVE shares are above 0, 0.0 where none is: such a control has
    shown no error at all, and its floor governs.
    """
    return float(_beyond(control, margin, _once([control]))[0][0])


def red_rate(controls: Sequence[Shares], margin: float = 1.0) -> float:
    """Estimated share of whole runs in which any control's record exceeds its bound.

    The sum over controls of r * q(margin) / (N + 1), r = records a run (1 where runs have levels
    of their own): an upper bound if the controls' records go over together, at most 1.
    """
    return float(_red(controls, margin, _once(controls))[0])


def rates_without(control: Shares, runs: Sequence[object], margin: float = 1.0) -> Floats:
    """`red_rate` of one control by the same bound, leaving out each of ``runs`` in turn.

    Whether its records cluster by runs is told by all of them.
    """
    names = np.unique(control.runs)
    times = np.ones((len(runs), len(names)))
    for sample, run in enumerate(runs):
        times[sample, names == run] = 0.0
    return _red([control], margin, _Draws(times, names, fitted=False))


def upper_limit(
    controls: Sequence[Shares], margin: float = 1.0, resamples: int = 400, seed: int = 0
) -> float:
    """95 % quantile of `red_rate` over resamples of whole runs (Efron 1979, the bootstrap).

    Runs, not records, are drawn: what makes records of a run alike (inputs, clocks, a bad day)
    stays together. Each sample has a bound of its own, as far from the margin as the one fitted
    to all runs. Deterministic in ``seed``.
    """
    names = _once(controls).names
    if not len(names):
        return 1.0
    drawn = np.random.default_rng(seed).integers(len(names), size=(resamples, len(names)))
    times = np.stack([np.bincount(row, minlength=len(names)) for row in drawn]).astype(float)
    return float(np.quantile(_red(controls, margin, _Draws(times, names)), 0.95, method="higher"))


def _once(controls: Sequence[Shares]) -> _Draws:
    """Every run once."""
    names = np.unique(np.concatenate([c.runs for c in controls])) if controls else np.array([])
    return _Draws(np.ones((1, len(names))), names)


def _red(controls: Sequence[Shares], margin: float, draws: _Draws) -> Floats:
    """`red_rate` of each sample."""
    total = np.zeros(len(draws.times))
    for control in controls:
        if len(control.shares):
            units = control.largest() if control.clustered else control
            q, rows, runs = _beyond(units, margin, draws)
            total += np.where(runs > 0, rows / np.maximum(runs, 1) * q / (rows + 1), 0.0)
    return np.minimum(total, 1.0)


def _beyond(control: Shares, margin: float, draws: _Draws) -> tuple[Floats, Floats, Floats]:
    """`beyond` of each sample, and how many records and runs it has of this control."""
    run = np.searchsorted(draws.names, control.runs)
    here = np.bincount(run, minlength=len(draws.names))
    rows, runs = draws.times @ here, draws.times @ (here > 0)
    order = np.argsort(control.shares, kind="stable")[::-1]
    order = order[control.shares[order] > 0]
    positive = draws.times @ np.bincount(run[order], minlength=len(draws.names))
    if not order.size:
        return np.zeros(len(rows)), rows, runs
    k = np.maximum(TAIL_COUNT, np.floor(TAIL_SHARE * rows))
    k = np.minimum(k, positive - 1)
    top = order[: 2 * int(k.max()) + 100]  # a sample may lack some of the largest
    times = draws.times[:, run[top]]
    if (times.sum(axis=1) <= k).any():
        top, times = order, draws.times[:, run[order]]
    above = times.cumsum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(control.shares[top])
        pivot = logs[np.argmax(above > k[:, None], axis=1)]
        # Of each record, as often as it is among the k largest.
        among = np.clip(k[:, None] - (above - times), 0, times)
        # 0 * inf: an infinite share that is not among a sample's (one that is makes q 1 below).
        spread = among @ np.where(np.isinf(logs), 0.0, logs) - k * pivot
        largest = logs[0] if draws.fitted else logs[np.argmax(above > 0, axis=1)]
        room = math.log(margin) - largest
        spread = np.maximum(spread, LEAST_SPREAD * np.maximum(k, 1))
        tail = (1.0 + np.maximum(room, 0.0) / spread) ** -k
        q = np.where(positive < LEAST_POSITIVE, 1.0, tail)
    q = np.where((room <= 0) | np.isnan(q), 1.0, q)  # the largest is at the bound, or infinite
    return np.where(positive > 0, q, 0.0), rows, runs
