"""bounds: a record's envelope judges as its elements would, and never understates them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tolcal import bounds
from tolcal.model import ENVELOPE_GRID, AllClose, Tolerance, round_up

U = 2.0**-24
GRID = np.array(ENVELOPE_GRID)
Elements = list[tuple[float, float]]  # residual, scale

residuals = st.just(0.0) | st.floats(1e-9, 1e-3)
scales = st.sampled_from([0.0, 1e-30]) | st.floats(1e-4, 1e4)
rows = st.lists(st.tuples(residuals, scales), min_size=1, max_size=8)
honest = st.lists(st.tuples(st.floats(1e-9, 1e-3), st.floats(1e-4, 1e4)), min_size=1, max_size=8)


def true_at(elements: Elements, c: float) -> float:
    """max(residual - c*u*scale, 0) over the elements."""
    return max(0.0, *(r - c * U * s for r, s in elements))


def record(*many: Elements) -> tuple[Any, Any]:
    """Envelopes and z of these rows, as records hold them but in fp64."""
    envelope = np.array([[true_at(elements, c) for c in ENVELOPE_GRID] for elements in many])
    z = [
        max((r / (U * s) if s else math.inf) if r else 0.0 for r, s in elements)
        for elements in many
    ]
    return envelope, np.array(z)


def one_at(elements: Elements, c: float) -> float:
    return float(bounds.at(*record(elements), c)[0])


def judged(elements: Elements, **changes: Any) -> bounds.Rows:
    """One row, for exceeds."""
    envelope, z = record(elements)
    fields: dict[str, Any] = {
        "envelope": envelope,
        "z": z,
        "bias": np.zeros(1),
        "bias_count": np.zeros(1, np.int64),
        "mismatch": np.zeros(1, np.int64),
    }
    return bounds.Rows(**fields | {name: np.array([v]) for name, v in changes.items()})


def tolerance(atol: float, c: float, bias: float | None = None) -> Tolerance:
    return Tolerance(atol, c, AllClose(0.0, 0.0), bias)


# --- at ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.lists(rows, min_size=1, max_size=5))
def test_at_is_exact_on_the_grid(many: list[Elements]) -> None:
    """At a grid point a(c) is the stored value, of each row its own."""
    envelope, z = record(*many)
    for j, c in enumerate(ENVELOPE_GRID):
        if c not in z:  # there the envelope is 0 but for fp64 rounding
            assert bounds.at(envelope, z, c).tolist() == envelope[:, j].tolist()


@settings(deadline=None, max_examples=300, derandomize=True)
@given(rows, st.floats(0, 600) | st.floats(0, 3))
def test_at_never_understates(elements: Elements, c: float) -> None:
    """Between grid points a(c) is at least the true envelope, and at most the last grid value."""
    largest = max(r for r, _ in elements)
    true = true_at(elements, c)
    got = one_at(elements, c)
    assert got >= true - 1e-12 * largest
    before = max(g for g in ENVELOPE_GRID if g <= c)
    assert got <= true_at(elements, before) + 1e-12 * largest


@settings(deadline=None, max_examples=300, derandomize=True)
@given(honest, st.floats(0, 520))
def test_at_interpolates_linearly(elements: Elements, c: float) -> None:
    """a(c) lies on the chord of the knots around c, z included; so one element is exact."""
    envelope, z = record(elements)
    xs = sorted({*ENVELOPE_GRID, float(z[0])})
    low = max((x for x in xs if x <= c), default=0.0)
    high = min((x for x in xs if x > c), default=None)
    y0 = true_at(elements, low) if low != z[0] else 0.0
    if high is None:
        want = 0.0
    else:
        y1 = true_at(elements, high) if high != z[0] else 0.0
        want = y0 + (y1 - y0) * (c - low) / (high - low)
    assert one_at(elements, c) == pytest.approx(want, rel=1e-9, abs=1e-12 * envelope[0, 0])
    single = elements[:1]
    assert one_at(single, c) == pytest.approx(
        true_at(single, c), rel=1e-9, abs=1e-12 * single[0][0]
    )


def test_at_by_hand() -> None:
    """One element with residual 3u at scale 1 leaves 3, 2.5, 2, 1.25, 0.25 and then nothing."""
    elements = [(3 * U, 1.0)]
    got = [one_at(elements, c) / U for c in (0.0, 0.5, 1.0, 1.75, 2.75, 3.0, 3.5, 4.0, 512.0, 1e9)]
    assert got == [3.0, 2.5, 2.0, 1.25, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_at_beyond_the_grid() -> None:
    """Past 512 a row falls to 0 at z; one that has no z (a zero scale) stays where it is."""
    far = [(1024 * U, 1.0)]
    assert one_at(far, 768.0) == 256 * U
    assert one_at(far, 1024.0) == 0.0
    never = [(5e-4, 0.0), (1e-3, 1.0)]
    assert one_at(never, 600.0) == true_at(never, 512.0)
    assert one_at(never, 1e30) == true_at(never, 512.0) > 5e-4 - 1e-12


def test_at_of_a_mismatch_is_infinite_everywhere() -> None:
    """A row with an infinite residual is infinite at any c, without touching its neighbours."""
    envelope, z = record([(math.inf, 0.0)], [(3 * U, 1.0)])
    for c in (0.0, 0.7, 512.0, 1e9):
        got = bounds.at(envelope, z, c)
        assert got[0] == math.inf
        assert got[1] == true_at([(3 * U, 1.0)], c)


# --- utilisation ------------------------------------------------------------------------------

atols = st.floats(1e-10, 1e-2)
factors = st.sampled_from(ENVELOPE_GRID[1:]) | st.floats(0.01, 2000)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(rows, atols, factors)
def test_utilisation_solves_its_equation(elements: Elements, atol: float, c: float) -> None:
    """At the t returned, a(t*c) = t*atol; a smaller t does not do for the elements' bound."""
    envelope, z = record(elements)
    t = float(bounds.utilisation(envelope, z, atol, c)[0])
    if envelope[0, 0] == 0:
        assert t == 0.0
        return
    assert 0 < t < math.inf
    # a is continuous, save where it ends at z beyond the grid and rounding decides.
    low = float(bounds.at(envelope, z, t * c * (1 + 1e-9))[0])
    high = float(bounds.at(envelope, z, t * c * (1 - 1e-9))[0])
    slack = 1e-6 * t * atol + 1e-12 * envelope[0, 0]
    assert low - slack <= t * atol <= high + slack
    # Never less than what the elements themselves use.
    for r, s in elements:
        assert r <= t * (1 + 1e-9) * (atol + c * U * s) + 1e-12 * envelope[0, 0]


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.lists(rows, min_size=1, max_size=4), atols, st.sampled_from(ENVELOPE_GRID))
def test_a_row_exceeds_if_it_uses_more_than_all(
    many: list[Elements], atol: float, c: float
) -> None:
    """At a grid point t > 1 says the same as exceeds, and as the elements themselves."""
    for elements in many:
        row = judged(elements)
        t = float(bounds.utilisation(row.envelope, row.z, atol, c)[0])
        exceeds = bool(bounds.exceeds(row, tolerance(atol, c))[0])
        true = true_at(elements, c)
        if abs(true - atol) > 1e-9 * atol:
            assert exceeds == (true > atol)
            assert exceeds == (t > 1)


def test_utilisation_by_hand() -> None:
    """One element uses residual/(atol + c*u*scale), on the grid and between its points."""
    for c in (0.3, 1.0, 7.0, 100.0):
        for residual in (1e-8, 3e-7, 1e-4):
            envelope, z = record([(residual, 2.0)])
            want = residual / (1e-7 + c * U * 2.0)
            assert bounds.utilisation(envelope, z, 1e-7, c)[0] == pytest.approx(want, rel=1e-9)


def test_utilisation_of_many_rows_is_each_ones() -> None:
    """Rows are judged apart: zero, finite, without z, and infinite ones side by side."""
    many: list[Elements] = [[(0.0, 1.0)], [(1e-6, 1.0)], [(1e-6, 0.0)], [(math.inf, 1.0)]]
    envelope, z = record(*many)
    got = bounds.utilisation(envelope, z, 1e-7, 2.0)
    want = [0.0, 1e-6 / (1e-7 + 2 * U), 10.0, math.inf]
    assert got.tolist() == pytest.approx(want, rel=1e-9)
    together = [bounds.utilisation(*record(e), 1e-7, 2.0)[0] for e in many]
    assert got.tolist() == together


def test_utilisation_without_a_scaled_part() -> None:
    """With c = 0 it is the largest residual over atol."""
    envelope, z = record([(1e-6, 1.0)], [(0.0, 1.0)], [(math.inf, 1.0)])
    got = bounds.utilisation(envelope, z, 1e-7, 0.0)
    assert got.tolist() == pytest.approx([10.0, 0.0, math.inf])


def test_utilisation_scales_with_the_bound() -> None:
    """A bound twice as wide in both parts is used half as much."""
    envelope, z = record([(1e-6, 1.0), (1e-8, 1e-3), (1e-9, 0.0)])
    t = bounds.utilisation(envelope, z, 1e-8, 0.7)
    half = bounds.utilisation(envelope, z, 2e-8, 1.4)
    assert half.tolist() == pytest.approx((t / 2).tolist(), rel=1e-9)


# --- exceeds ----------------------------------------------------------------------------------


def test_bias_is_judged_only_over_enough_elements() -> None:
    """|bias| above its bound fails from BIAS_MIN_COUNT elements on, and only with a bound.

    Not where all elements are the nearest numbers: their errors are the format's.
    """
    enough = bounds.BIAS_MIN_COUNT
    cases = [
        (0.5, enough, 0.4, True),
        (-0.5, enough, 0.4, True),
        (0.5, enough, 0.5, False),
        (0.5, enough - 1, 0.4, False),
        (1.0, 10**6, None, False),
    ]
    for bias, count, limit, want in cases:
        row = judged([(1e-9, 1.0)], bias=bias, bias_count=count)
        assert bounds.exceeds(row, tolerance(1.0, 0.0, limit)).tolist() == [want]
        assert (bounds.share(row, tolerance(1.0, 0.0, limit)) > 1.0).tolist() == [want]
        nearest = judged([(0.0, 1.0)], bias=bias, bias_count=count)
        assert bounds.exceeds(nearest, tolerance(1.0, 0.0, limit)).tolist() == [False]
        assert bounds.share(nearest, tolerance(1.0, 0.0, limit)).tolist() == [0.0]


def test_a_nonfinite_mismatch_always_exceeds() -> None:
    """One mismatch fails whatever the bound, even where the envelope would pass."""
    row = judged([(0.0, 1.0)], mismatch=1)
    assert bounds.exceeds(row, tolerance(1e30, 512.0)).tolist() == [True]
    infinite = judged([(math.inf, 1.0)])
    assert bounds.exceeds(infinite, tolerance(1e30, 512.0)).tolist() == [True]


def test_what_equals_the_bound_passes() -> None:
    """An element passes if its residual is at most the bound."""
    row = judged([(3 * U, 1.0)])
    assert bounds.exceeds(row, tolerance(2 * U, 1.0)).tolist() == [False]
    assert bounds.exceeds(row, tolerance(2 * U * (1 - 2**-50), 1.0)).tolist() == [True]


@pytest.mark.parametrize("c", [0.0, 0.3, 1.0, 512.0, 1e6])
def test_imported_rows_never_exceed(c: float) -> None:
    """A row without envelope (all NaN) is not judged, and its neighbour is."""
    envelope, z = record([(0.0, 1.0)], [(1e30, 0.0)])
    envelope[0], z[0] = np.nan, np.nan
    zeros = np.zeros(2, np.int64)
    rows = bounds.Rows(envelope, z, np.zeros(2), zeros, zeros)
    assert bounds.exceeds(rows, tolerance(1e-30, c, 0.1)).tolist() == [False, True]


# --- small functions --------------------------------------------------------------------------


@settings(deadline=None, max_examples=1000, derandomize=True)
@given(
    st.builds(lambda m, e: m * 10.0**e, st.floats(1, 9.9999), st.integers(-300, 299))
    | st.builds(lambda m, e: float(f"{m}e{e}"), st.integers(100, 999), st.integers(-300, 297))
    | st.builds(
        lambda m, e, up: math.nextafter(float(f"{m}e{e}"), math.inf if up else 0),
        st.integers(100, 1000),
        st.integers(-300, 297),
        st.booleans(),
    )
    | st.integers(-990, 990).map(lambda e: 2.0**e)
)
def test_round_up_never_tightens(value: float) -> None:
    """To 3 digits, at least the value, by less than 1 %, and rounding again changes nothing."""
    got = round_up(value)
    assert got >= value
    assert got <= value * (1.01 + 1e-12)
    assert round_up(got) == got
    assert float(f"{got:.2e}") == got


def test_round_up_by_hand() -> None:
    """A value of 3 digits stays, any more round up; 0 and infinity stay."""
    for value, want in [
        (1.0, 1.0),
        (1.23, 1.23),
        (1.2301, 1.24),
        (9.991, 10.0),
        (999.1, 1000.0),
        (0.00012345, 0.000124),
        (1e-5, 1e-5),
        (math.nextafter(1e-5, 1), 1.01e-5),
        (0.0, 0.0),
        (math.inf, math.inf),
    ]:
        assert round_up(value) == want
    assert round_up(1.2345, 2) == 1.3
    assert round_up(1.21, 1) == 2.0


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.floats(2.0**-60, 60000.0), st.sampled_from([-1, 1]))
def test_half_gap_is_half_the_spacing(value: float, sign: int) -> None:
    """half_gap is half the distance of the format's numbers around the value."""
    for name, kind in (("float16", np.float16), ("float32", np.float32), ("float64", np.float64)):
        with np.errstate(under="ignore"):
            low = kind(value)
            low = low if float(low) <= value else np.nextafter(low, kind(0))
            spacing = float(np.nextafter(low, kind(np.inf))) - float(low)
        assert bounds.half_gap(name, sign * value) == spacing / 2


def test_half_gap_at_zero_and_of_bfloat16() -> None:
    """At 0 it is half the smallest number; bf16 has 8 bits of precision."""
    assert bounds.half_gap("float16", 0.0) == 2.0**-25
    assert bounds.half_gap("bfloat16", 1.0) == 2.0**-8
    assert bounds.half_gap("bfloat16", -3.0) == 2.0**-7


def test_allowed_is_the_bound_and_half_a_gap() -> None:
    """|out - ref| may be atol + c*u*scale, and half a gap of the output at the reference."""
    assert bounds.allowed(tolerance(0.5, 8.0), "float16", 2.0**-10, 16.0, 2.0) == (
        0.5 + 8 * 2.0**-10 * 16 + 2.0**-10
    )
    assert bounds.allowed(tolerance(0.0, 0.0), "float32", U, 16.0, 1.0) == 2.0**-24


# --- share ------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300, derandomize=True)
@given(
    honest,
    st.floats(1e-9, 1e-3),
    st.floats(0.5, 300.0),
    st.floats(0.01, 0.9) | st.none(),
    st.floats(-1.0, 1.0),
    st.sampled_from([1023, 1024, 9000]),
    st.sampled_from([0, 1]),
    st.floats(0.1, 10.0),
)
def test_a_share_is_the_factor_at_which_a_row_begins_to_pass(
    elements: Elements,
    atol: float,
    c: float,
    bias_tol: float | None,
    bias: float,
    count: int,
    mismatch: int,
    factor: float,
) -> None:
    """With every part of the tolerance times t, a row exceeds just if its share is above t."""
    row = judged(elements, bias=bias, bias_count=count, mismatch=mismatch)
    share = float(bounds.share(row, tolerance(atol, c, bias_tol))[0])
    if abs(share - factor) <= 1e-9 * factor:
        return  # the two ways of computing it may round apart
    grown = tolerance(atol * factor, c * factor, bias_tol and bias_tol * factor)
    assert bool(bounds.exceeds(row, grown)[0]) == (share > factor)


def test_share_by_hand() -> None:
    """Half the bound; twice the bias bound; no finite share of a mismatch or of a bound of 0."""
    half = [(2.0**-21, 0.0)]
    assert bounds.share(judged(half), tolerance(2.0**-20, 8.0))[0] == 0.5
    biased = judged(half, bias=-0.5, bias_count=1024)
    assert bounds.share(biased, tolerance(2.0**-20, 8.0, 0.25))[0] == 2.0
    assert bounds.share(biased, tolerance(2.0**-20, 8.0, 0.0))[0] == math.inf
    mismatched = judged(half, mismatch=1)
    assert bounds.share(mismatched, tolerance(2.0**-20, 8.0))[0] == math.inf
