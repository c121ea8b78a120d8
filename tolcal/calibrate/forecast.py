"""Which runs a proposal would make red if the tails continue as seen: `tails` on a history."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from tolcal.calibrate import tails
from tolcal.model import Forecast


class Judged(msgspec.Struct, frozen=True):
    """A control's shares of its cell's tolerance."""

    name: str  # softmax/float16
    shares: tails.Shares


def of(controls: Sequence[Judged], budget: float) -> Forecast | None:
    """The estimate over all controls together, and the one that most of it comes from.

    More runs are those after which the upper limit would keep the budget if the tails stayed: it
    falls with the number of runs.
    """
    known = [c for c in controls if len(c.shares.shares)]
    if not known:
        return None
    shares = [c.shares for c in known]
    rate, upper = _short(tails.red_rate(shares)), _short(tails.upper_limit(shares))
    worst = max(known, key=lambda c: (tails.red_rate([c.shares]), c.name)).name
    runs = len(np.unique(np.concatenate([s.runs for s in shares])))
    over = upper > budget
    return Forecast(
        rate=rate,
        # A resample may look better than what was seen.
        upper=max(rate, upper),
        worst=worst if over else "",
        more_runs=math.ceil(runs * (upper / budget - 1)) if over else 0,
    )


def _short(rate: float) -> float:
    """Six digits: sums of the same numbers in another order differ in the last of all."""
    return float(f"{rate:.5e}")
