"""Which runs a proposal would make red if the tails continue as seen: `tails` on a history."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tolcal.calibrate import tails
from tolcal.model import Forecast


class Judged(msgspec.Struct, frozen=True):
    """A control's shares of its cell's tolerance."""

    name: str  # softmax/float16
    shares: tails.Shares


def of(controls: Sequence[Judged], budget: float) -> Forecast | None:
    """The estimate over all controls together, and the one that needs most more runs."""
    known = [c for c in controls if len(c.shares.shares)]
    if not known:
        return None
    most, name = max((tails.more_runs(c.shares, len(known), budget), c.name) for c in known)
    shares = [c.shares for c in known]
    return Forecast(
        rate=_short(tails.red_rate(shares)),
        upper=_short(tails.upper_limit(shares)),
        worst=name if most else "",
        more_runs=most,
    )


def _short(rate: float) -> float:
    """Six digits: sums of the same numbers in another order differ in the last of all."""
    return float(f"{rate:.5e}")
