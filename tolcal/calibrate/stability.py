"""When a cell's new tolerance is worth a decision: never back and forth.

Calibrating the same history again, or with one more run like the others, must change nothing. So
tighter and looser are told apart by a band around the approved values, and margins by one around
their share of the budget: a cell tightens only to what half the red runs would give, and would be
looser only if twice as many still asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tolcal.model import CellState

#: A tightening below this factor, or seen in fewer runs, is not worth a maintainer's time.
WORTH = 1.25
WORTH_RUNS = 3
#: What margins are chosen by, in shares of the budget: as asked, half of it, twice as much.
FACTORS = (1.0, 0.5, 2.0)


def settle(now: float | None, proposed: Sequence[float], runs: int) -> tuple[CellState, int]:
    """The state of a fitted cell, and the place in FACTORS of the fit to propose.

    Args:
        now: allowed by the approved tolerance; None without one.
        proposed: allowed by the fits of FACTORS.
        runs: that they rest on.
    """
    if now is None:
        return "new", 0
    asked, strict, lenient = (now / one for one in proposed)
    if strict >= WORTH and runs >= WORTH_RUNS:
        return "tighten", 1
    if lenient <= 1 / WORTH:
        return "looser", 0
    # Of what changes nothing, the one that says so.
    inside = [i for i, ratio in enumerate((asked, strict, lenient)) if 1 / WORTH < ratio < WORTH]
    return "unchanged", inside[0] if inside else 0
