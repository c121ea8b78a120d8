"""Bars of block characters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tolcal.report import glyphs


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (0.0, ""), (-1.0, ""), (math.nan, ""), (1e-9, "▏"), (0.5, "▌"), (1.0, "█"), (2.46, "██▌"),
        (3.99, "████"), (7.0, "████"), (math.inf, "████"),
    ],
)  # fmt: skip
def test_bar(length: float, shown: str) -> None:
    """To an eighth of a block; never longer than it may be, never nothing for something."""
    assert glyphs.bar(length, 4) == shown


@given(st.floats(0, 20), st.floats(0, 20))
def test_the_longer_bar_is_longer(one: float, two: float) -> None:
    """Bars order as their lengths do, and are within a sixteenth of a block of them."""
    drawn = [
        sum(1.0 if c == "█" else "▏▎▍▌▋▊▉".index(c) / 8 + 0.125 for c in glyphs.bar(v, 30))
        for v in (one, two)
    ]
    assert (drawn[0] - drawn[1]) * (one - two) >= 0
    assert abs(drawn[0] - one) <= 1 / 8


@pytest.mark.parametrize(
    ("factor", "shown"),
    [
        (None, ""), (0.5, ""), (1.0, ""), (1.04, ""), (1.06, "▏"), (10.0, "█"), (289.2, "██▌"),
        (664994.0, "█████▉"), (math.inf, "████████"), (math.nan, ""),
    ],
)  # fmt: skip
def test_factor_bar(factor: float | None, shown: str) -> None:
    """A block is a factor of ten, as the comment says."""
    assert glyphs.factor_bar(factor) == shown
