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


def raised(state: CellState, now: Sequence[float] | None, proposed: Sequence[float]) -> CellState:
    """The state of a cell that a pull request's rows have raised since it was settled."""
    if now is None:
        return state
    ratios = [old / new for old, new in zip(now, proposed, strict=True)]
    if min(ratios) <= 1 / WORTH:
        return "looser"
    return "unchanged" if max(ratios) < WORTH else state


def settle(
    now: Sequence[float] | None, proposed: Sequence[Sequence[float]], runs: int
) -> tuple[CellState, int]:
    """The state of a fitted cell, and the place in FACTORS of the fit to propose.

    It tightens if it does so on any device class and is looser on none.

    Args:
        now: allowed by the approved tolerance, by device class; None without one.
        proposed: allowed by the fits of FACTORS, likewise.
        runs: that they rest on.
    """
    if now is None:
        return "new", 0
    ratios = [[old / new for old, new in zip(now, one, strict=True)] for one in proposed]
    _, strict, lenient = ratios
    if min(lenient) <= 1 / WORTH:
        return "looser", 0
    if max(strict) >= WORTH and min(strict) > 1 / WORTH and runs >= WORTH_RUNS:
        return "tighten", 1
    # Of what changes nothing, the one that says so.
    inside = [i for i, one in enumerate(ratios) if all(1 / WORTH < r < WORTH for r in one)]
    return "unchanged", inside[0] if inside else 0
