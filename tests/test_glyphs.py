"""Bars of block characters."""

from __future__ import annotations

import math
import re

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


# --- histograms -----------------------------------------------------------------------------

SHARES = st.lists(st.floats(0, 1e6) | st.just(math.inf), min_size=1, max_size=50)


def test_histogram() -> None:
    """Bins by their upper edge, which is in them; a rule below the limit; a title a column."""
    columns = {"controls": [0.0, 1 / 16, 0.07, 0.5, 0.51, 1.0], "buggy": [1.0001, 9.0, math.inf]}
    assert glyphs.histogram(columns, 38) == [
        "            controls",
        "            | buggy",
        "up to 1/16  ██████████ 2             0",
        "       1/8  █████      1             0",
        "       1/4             0             0",
        "       1/2  █████      1             0",
        "         1  ██████████ 2             0",
        " the limit  --------------------------",
        "         2             0  ██████████ 1",
        "         8             0             0",
        "        64             0  ██████████ 1",
        "      more             0  ██████████ 1",
    ]


@given(SHARES, SHARES, st.integers(30, 200))
def test_a_histogram_counts_everything_and_fits(
    one: list[float], two: list[float], width: int
) -> None:
    """No value is lost, what is above the limit stands below the rule, no line is too wide."""
    lines = glyphs.histogram({"a": one, "b": two}, width)
    assert max(map(len, lines)) <= width
    rule = next(i for i, line in enumerate(lines) if "---" in line)
    for column, values in enumerate((one, two)):
        above, below = (
            [int(re.findall(r" (\d+)(?=  | *$)", line[10:])[column]) for line in part]
            for part in (lines[2:rule], lines[rule + 1 :])
        )
        assert sum(above) == sum(v <= 1 for v in values)
        assert sum(below) == sum(v > 1 for v in values)


def test_bars_where_there_are_no_blocks() -> None:
    """In ASCII a bar is made of #; where blocks can be shown the line is left as it is."""
    line = "1/2  ██▌ 25"
    assert glyphs.fitting(line, "utf-8") == line
    for encoding in ("ascii", "latin-1", None):
        assert glyphs.fitting(line, encoding) == "1/2  ### 25"
