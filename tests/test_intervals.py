"""Intervals of recall: exact binomials by hand, and runs drawn again and again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolcal import binomial
from tolcal.calibrate.intervals import ByRun


@pytest.mark.parametrize(("hit", "of", "low", "high"), [
    (10, 10, 0.691503, 1.0), (0, 10, 0.0, 0.308497), (5, 10, 0.187086, 0.812914),
    (95, 96, 0.943325, 0.999736), (1, 1, 0.025, 1.0),
])  # fmt: skip
def test_exact(hit: int, of: int, low: float, high: float) -> None:
    """Of SciPy's ``binomtest(hit, of).proportion_ci(method="exact")``."""
    assert binomial.interval(hit, of) == pytest.approx((low, high), abs=2e-6)


@given(st.integers(0, 60), st.integers(1, 60))
def test_the_limits_are_where_the_tails_are(hit: int, of: int) -> None:
    """Each side leaves 2.5 %, and what was seen lies between."""
    hit = min(hit, of)
    low, high = binomial.interval(hit, of)
    assert low <= hit / of <= high
    if hit < of:
        assert binomial.at_most(hit, of, high) == pytest.approx(0.025, rel=1e-4)
    if hit:
        assert binomial.at_most(of - hit, of, 1 - low) == pytest.approx(0.025, rel=1e-4)


def tally(hits: list[int], rows: int, detectable: int) -> ByRun:
    """So many rows a run, of which the first are flagged, and the first are detectable."""
    found = ByRun()
    for run, hit in enumerate(hits):
        place = np.arange(rows)
        found.add(np.full(rows, f"run {run}", object), place < hit, place < detectable)
    return found


def test_runs_that_differ_widen_it() -> None:
    """As many rows flagged in all, but by some runs alone: the runs are the evidence."""
    even, uneven = tally([50] * 10, 100, 100), tally([100, 0] * 5, 100, 100)
    (low, high), (wide_low, wide_high) = even.intervals()[1], uneven.intervals()[1]  # type: ignore[misc]
    assert wide_low < low - 0.1
    assert wide_high > high + 0.1
    assert (low, high) == binomial.interval(500, 1000)
    assert uneven.intervals() == tally([100, 0] * 5, 100, 100).intervals()


def test_all_caught_is_not_certain() -> None:
    """Runs without a miss say no more than their rows; none say nothing."""
    every, detectable = tally([96] * 3, 96, 32).intervals()
    assert every == binomial.interval(288, 288)
    assert detectable == (pytest.approx(0.025 ** (1 / 96)), 1.0)
    assert ByRun().intervals() == (None, None)
    assert tally([3], 9, 0).intervals()[1] is None
