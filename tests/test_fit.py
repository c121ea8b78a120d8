"""calibrate.fit: what the rules let through, and that they let through no more than they must."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tolcal import bounds
from tolcal.calibrate import fit
from tolcal.model import DTYPES, ENVELOPE_GRID, AllClose, TolcalError, Tolerance, round_up

U = 2.0**-24
GRID = np.array(ENVELOPE_GRID)
seeds = st.integers(0, 2**32 - 1)


def envelopes(residual: Any, scale: Any) -> tuple[Any, Any]:
    """a(c) and z of rows whose elements are the columns of these arrays."""
    residual, scale = np.asarray(residual, float), np.asarray(scale, float)
    a = np.stack([(residual - c * U * scale).max(1).clip(0) for c in ENVELOPE_GRID], 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(residual > 0, residual / (U * scale), 0.0)
    return a, ratio.max(1)


def make_rows(residual: Any, scale: Any, plain: Any = None, **changes: Any) -> fit.Rows:
    """Control rows from elements [rows, elements]; ``plain`` is |ref| where it isn't the scale."""
    scale = np.asarray(scale, float)
    plain = scale if plain is None else np.asarray(plain, float)
    count = len(scale)
    (a, z), (a_abs, z_abs) = envelopes(residual, scale), envelopes(residual, plain)
    fields: dict[str, Any] = {
        "envelope": a,
        "z": z,
        "envelope_abs": a_abs,
        "z_abs": z_abs,
        "scales": np.quantile(scale, [0.1, 0.5, 0.9], axis=1).T,
        "scales_abs": np.quantile(plain, [0.1, 0.5, 0.9], axis=1).T,
        "rms": np.sqrt(np.square(plain).mean(1)),
        "bias": np.zeros(count),
        "bias_count": np.zeros(count, np.int64),
        "roundoff": U,
    }
    return fit.Rows(**fields | changes)


def random_rows(seed: int, count: int, quiet: float = 0.3) -> fit.Rows:
    """Rows of a few elements over decades of scale; a share ``quiet`` of residuals is 0."""
    rng = np.random.default_rng(seed)
    plain = 10 ** rng.uniform(-5, 2, (count, 6))
    scale = plain * (1 + 10 ** rng.uniform(-3, 2, (count, 6)))
    residual = U * scale * 10 ** rng.uniform(-1, 2.5, (count, 6)) * (rng.random((count, 6)) > quiet)
    bias = rng.uniform(-1, 1, count)
    return make_rows(
        residual, scale, plain, bias=bias, bias_count=rng.choice([10, 1023, 1024, 5000], count)
    )


def judged(rows: fit.Rows) -> bounds.Rows:
    """The same rows as judging takes them."""
    count = len(rows)
    return bounds.Rows(rows.envelope, rows.z, rows.bias, rows.bias_count, np.zeros(count, np.int64))


# --- residual ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150, derandomize=True)
@given(seeds, st.integers(1, 40), st.sampled_from([1.0, 1.5, 2.0, 8.0]), st.booleans())
def test_residual_lets_every_fitted_row_pass(
    seed: int, count: int, margin: float, borrowing: bool
) -> None:
    """No row that a tolerance was fitted on exceeds it, by bound or by bias."""
    rows = random_rows(seed, count)
    wide = random_rows(seed + 1, count) if borrowing else None
    got = fit.residual(rows, wide, "float16" if borrowing else "float32").times(margin)
    assert not bounds.exceeds(judged(rows), got).any()
    used = bounds.utilisation(rows.envelope, rows.z, got.atol, got.scaled_tol)
    assert (used <= 1 / margin * (1 + 1e-9)).all()


@settings(deadline=None, max_examples=100, derandomize=True)
@given(seeds, st.integers(1, 40))
def test_margin_multiplies_both_parts(seed: int, count: int) -> None:
    """Twice the margin is twice the atol and twice scaled_tol, but for printing 3 digits."""
    rows = random_rows(seed, count)
    one, two = (fit.residual(rows, None, "float32").times(m) for m in (1.0, 2.0))
    assert two.atol == pytest.approx(2 * one.atol, rel=0.0101)
    assert two.scaled_tol == pytest.approx(2 * one.scaled_tol, rel=0.0101)


def test_allclose_comes_from_the_plain_scale() -> None:
    """The allclose pair is fitted on |ref|, so it is wider where sigma excuses much."""
    rows = make_rows([[1e-5, 1e-8]] * 4, [[100.0, 0.1]] * 4, [[1.0, 0.1]] * 4)
    got = fit.residual(rows, None, "float32").times(1.0)
    assert 1e-5 <= got.atol + got.scaled_tol * U * 100 < 2e-5
    assert got.atol + got.scaled_tol * U < 1e-6
    assert 1e-5 <= got.allclose.atol + got.allclose.rtol < 2e-5


# --- borrow -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150, derandomize=True)
@given(seeds, st.integers(1, 10))
def test_borrow_is_never_below_the_shifted_envelope(seed: int, count: int) -> None:
    """A16(c) >= A32(c - 1) from c = 1 on, no knot below 1, and z16 >= z32 + 1."""
    own_rows, wide_rows = random_rows(seed, count, quiet=0.9), random_rows(seed + 1, count)
    own = fit.upper(own_rows.envelope, own_rows.z)
    wide = fit.upper(wide_rows.envelope, wide_rows.z)
    got = fit.borrow(own, wide)
    assert got.z == max(own.z, wide.z + 1)
    for a, before, c in zip(got.a, own.a, ENVELOPE_GRID, strict=True):
        assert a >= before
        if c < 1:
            assert a == math.inf
        else:
            lent = bounds.at(wide.a[None], np.array([wide.z]), c - 1)[0]
            assert a == max(before, lent)


def test_borrow_by_hand() -> None:
    """One fp32 residual of 3u at scale 1 borrows 3u at c = 1, 2u at 2 and nothing from 4 on."""
    own = fit.Envelope(np.zeros(GRID.size), 0.0)
    a, z = envelopes([[3 * U]], [[1.0]])
    got = fit.borrow(own, fit.upper(a, z))
    assert (got.a / U).tolist() == [math.inf, math.inf, 3.0, 2.0, *[0.0] * 8]
    assert got.z == 4.0


@settings(deadline=None, max_examples=100, derandomize=True)
@given(seeds, st.integers(1, 20))
def test_a_16_bit_fit_is_never_tighter_than_its_fp32_rows(seed: int, count: int) -> None:
    """Silent 16-bit rows with fp32 rows get at least what those rows need, and c >= 1."""
    wide = random_rows(seed, count, quiet=0.0)
    silent = make_rows(np.zeros((3, 2)), np.ones((3, 2)))
    got = fit.residual(silent, wide, "bfloat16").times(1.0)
    assert got.scaled_tol >= 1.0
    shifted = bounds.at(wide.envelope, wide.z, got.scaled_tol - 1.0)
    assert (shifted <= got.atol * (1 + 1e-12)).all()


# --- joint ------------------------------------------------------------------------------------


def test_rows_without_any_residual_get_the_floor() -> None:
    """An exact control (relu) gets the smallest normal number and one roundoff of scale."""
    rows = make_rows(np.zeros((5, 3)), np.ones((5, 3)))
    assert fit.joint(fit.upper(rows.envelope, rows.z), rows.scales, rows.rms, U) == (
        fit.ATOL_FLOOR,
        1.0,
    )
    got = fit.residual(rows, None, "float32").times(2.0)
    assert (got.atol, got.scaled_tol) == (round_up(2.0**-125), 2.0)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(seeds, st.integers(1, 20))
def test_joint_takes_the_least_atol_of_the_good_knots(seed: int, count: int) -> None:
    """No knot allows less than half, in the mean of logarithms over floored scales; and none of
    those that allow as little has a smaller atol.
    """
    rows = random_rows(seed, count)
    rng = np.random.default_rng(seed)
    scales = rows.scales * np.where(rng.random(rows.scales.shape) < 0.3, 1e-25, 1.0)
    envelope = fit.upper(rows.envelope, rows.z)
    if envelope.z == 0:
        return
    atol, c = fit.joint(envelope, scales, rows.rms, U)
    floor = 2.0**-126
    typical = np.maximum(scales, rows.rms[:, None] * 2.0**-12)

    def cost(atol: float, c: float) -> float:
        return float(np.log(atol + c * U * typical).mean())

    knots = [(max(float(a), floor), g) for a, g in zip(envelope.a, ENVELOPE_GRID, strict=True)]
    knots.append((floor, envelope.z))
    assert (atol, c) in knots
    most = min(cost(*knot) for knot in knots) + math.log(fit.SLACK)
    assert cost(atol, c) <= most + 1e-12
    assert all(knot[0] >= atol for knot in knots if cost(*knot) <= most - 1e-12)
    assert atol >= floor


def test_joint_without_a_finite_z_stays_on_the_grid() -> None:
    """A residual at scale 0 has no z; the fit still covers it, by atol."""
    rows = make_rows([[1e-6, 1e-7]] * 3, [[1.0, 0.0]] * 3)
    got = fit.residual(rows, None, "float32").times(1.0)
    assert math.isfinite(got.scaled_tol)
    assert got.atol >= 1e-7
    assert not bounds.exceeds(judged(rows), got).any()


def test_joint_of_rows_without_any_scale() -> None:
    """Where every scale is 0 the least atol that covers the rows is taken."""
    rows = make_rows([[1e-6]] * 3, [[0.0]] * 3)
    got = fit.residual(rows, None, "float32").times(1.0)
    assert got.atol == pytest.approx(1e-6, rel=0.01)
    assert not bounds.exceeds(judged(rows), got).any()


@pytest.mark.parametrize("outliers", [1, 150])
def test_an_outlier_of_accuracy_does_not_blow_up_the_bound(outliers: int) -> None:
    """Elements of scale 1e-30 with a residual of 1e-9 (GELU's tail) leave scale 1 tight."""
    tail = np.arange(200) < outliers
    # Most elements of such a row are tail: two of its three scale quantiles are 1e-30.
    residual = np.where(tail[:, None], [1e-9, 1e-9, 1e-9, 1e-9, 1e-7], 1e-7)
    scale = np.where(tail[:, None], [1e-30, 1e-30, 1e-30, 1e-30, 1.0], 1.0)
    rows = make_rows(residual, scale)
    got = fit.residual(rows, None, "float32").times(1.0)
    assert rows.z.max() > 1e27
    assert got.atol + got.scaled_tol * U <= 3e-7
    assert not bounds.exceeds(judged(rows), got).any()


def test_tiny_scales_have_no_say_in_the_objective() -> None:
    """Scales below 2^-12 of the row's rms count as that much: they can't buy a huge c.

    Without the floor two quantiles of three at 1e-30 choose the least atol and c = 16, which
    allows the elements of scale 1 ten times the residual that they have.
    """
    a, z = envelopes([[1e-7, 1e-9]], [[1.0, 1e-3]])
    scales = np.array([[1e-30, 1e-30, 1.0]])
    envelope = fit.Envelope(a[0], float(z[0]))
    loose, tight = (fit.joint(envelope, scales, np.array([r]), U) for r in (1e-30, 100.0))
    assert loose == (fit.ATOL_FLOOR, pytest.approx(1e-9 / (1e-3 * U)))
    assert tight[0] + tight[1] * U < 3e-7 < 9e-7 < loose[0] + loose[1] * U


def test_a_control_with_a_mismatch_is_refused_in_words() -> None:
    """One control row with an infinite residual doesn't end the calibration with a traceback."""
    rows = make_rows([[1e-7], [1e-7]], [[1.0], [1.0]])
    rows.envelope[1], rows.z[1] = np.inf, np.inf
    rows.envelope_abs[1], rows.z_abs[1] = np.inf, np.inf
    with pytest.raises(TolcalError, match="no tolerance covers it, leave the record out"):
        fit.residual(rows, None, "float32").times(2.0)


# --- allclose ---------------------------------------------------------------------------------


def truncated(x: float, name: str) -> float:
    """The number of a format next to x towards 0."""
    kind = np.float16 if name == "float16" else np.float32
    with np.errstate(under="ignore", over="ignore"):
        near = kind(abs(x))
        if float(near) > abs(x):
            near = np.nextafter(near, kind(0))
    if name == "bfloat16":
        near = np.array(int(near.view(np.uint32)) & 0xFFFF0000, np.uint32).view(np.float32)
    return math.copysign(float(near), x)


def spacing(x: float, name: str) -> float:
    """Distance of the format's numbers above |x|'s lower bracket."""
    low = truncated(abs(x), name)
    exponent = math.frexp(low)[1] if low else -2000
    d = DTYPES[name]
    return 2.0 ** max(exponent - d.precision, d.emin - d.precision + 1)


@settings(deadline=None, max_examples=500, derandomize=True)
@given(
    st.sampled_from(["float16", "bfloat16", "float32"]),
    st.floats(1, 2) | st.sampled_from([1.0, 1.5, 2 - 2.0**-30]),
    st.integers(-30, 13),
    st.sampled_from([-1, 1]),
    st.booleans(),
    st.just(2.0**-126) | st.floats(1e-9, 1e-2),
    st.sampled_from([0.0, 1.0, 64.0, 512.0]) | st.floats(0, 1e5),
)
def test_allclose_admits_whatever_the_residual_bound_admits(
    name: str, mantissa: float, exponent: int, sign: int, tie: bool, atol: float, c: float
) -> None:
    """The furthest output of a residual within (atol, c) is close to the rounded reference."""
    ref = sign * math.ldexp(mantissa, exponent)
    gap = spacing(ref, name)
    low = truncated(ref, name)
    if tie:
        ref = low + sign * gap / 2
    pair = fit.allclose(atol, c, U, name)
    bound = Fraction(atol) + Fraction(c) * Fraction(U) * abs(Fraction(ref)) + Fraction(gap) / 2
    for rounded in (low, low + sign * gap):  # whichever way a tie or a kernel's cast may go
        if abs(Fraction(rounded) - Fraction(ref)) > Fraction(gap) / 2:
            continue
        allowed = Fraction(pair.atol) + Fraction(pair.rtol) * abs(Fraction(rounded))
        for side in (-1, 1):
            edge = float(Fraction(ref) + side * bound)
            if abs(edge) >= DTYPES[name].max:
                continue
            for out in (truncated(edge, name), truncated(edge, name) + side * spacing(edge, name)):
                if abs(Fraction(out) - Fraction(ref)) <= bound:
                    assert abs(Fraction(out) - Fraction(rounded)) <= allowed


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_allclose_of_nothing_is_output_rounding(name: str) -> None:
    """With no residual allowed it still lets the neighbouring number pass, and no more than 3."""
    pair = fit.allclose(0.0, 0.0, U, name)
    step = 2 * DTYPES[name].roundoff
    assert step <= pair.rtol <= 1.5 * step
    assert DTYPES[name].tiny <= pair.atol <= 1.01 * DTYPES[name].tiny


# --- bias, wider, paper -----------------------------------------------------------------------


def bias_tol(rows: fit.Rows, margin: float) -> float | None:
    """The bound on |bias| that these rows give."""
    return fit.bias_bound(fit.largest_bias(rows), margin)


def bias_rows(bias: list[float], count: list[int]) -> fit.Rows:
    """Rows that have a bias and nothing else."""
    ones = np.ones((len(bias), 1))
    return make_rows(0 * ones, ones, bias=np.array(bias), bias_count=np.array(count))


def test_no_bias_tol_without_judged_rows() -> None:
    """Rows with too few elements say nothing of bias, so there is no bound on it."""
    assert bias_tol(bias_rows([0.9, -1.0], [1023, 3]), 2.0) is None
    assert bias_tol(bias_rows([0.9, -0.1], [1023, 1024]), 2.0) == pytest.approx(0.21)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    st.lists(st.floats(-1, 1) | st.sampled_from([0.0, 1.0, -1.0]), min_size=1, max_size=9),
    st.sampled_from([1.0, 2.0, 4.0]),
)
def test_bias_tol_covers_its_rows_and_is_a_share(bias: list[float], margin: float) -> None:
    """It lies in (0, 1), margin times every judged |bias| at least; None if that comes near 1."""
    got = bias_tol(bias_rows(bias, [1024] * len(bias)), margin)
    widened = margin * max(abs(b) for b in bias)
    if got is None:
        assert widened > 0.97
    else:
        assert 0 < got < 1
        assert widened <= got <= widened + 0.0201


def test_bias_tol_by_hand() -> None:
    """Margin times the largest |bias|, up to a hundredth and one more."""
    rows = bias_rows([0.1, -0.205, 0.9], [1024, 5000, 1023])
    assert bias_tol(rows, 2.0) == 0.42
    assert bias_tol(rows, 1.0) == 0.22
    assert bias_tol(rows, 5.0) is None
    assert bias_tol(bias_rows([1.0], [1024]), 1.0) is None


floats = st.floats(0, 1e6)
tolerances = st.builds(
    Tolerance,
    floats,
    floats,
    st.builds(AllClose, floats, floats),
    st.none() | st.floats(0.01, 1),
)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(tolerances, tolerances)
def test_wider_lets_through_what_either_does(first: Tolerance, second: Tolerance) -> None:
    """Every part is the larger of the two, and no bound on bias is the widest one."""
    got = fit.wider(first, second)
    assert got == fit.wider(second, first)
    assert fit.wider(first, first).atol == first.atol
    for one in (first, second):
        assert got.atol >= one.atol
        assert got.scaled_tol >= one.scaled_tol
        assert got.allclose.atol >= one.allclose.atol
        assert got.allclose.rtol >= one.allclose.rtol
        assert got.bias_tol is None or (one.bias_tol is not None and got.bias_tol >= one.bias_tol)
    assert {got.atol} <= {first.atol, second.atol}
    if None not in (first.bias_tol, second.bias_tol):
        assert got.bias_tol is not None


def test_paper_is_p95_by_nearest_rank_times_a_half_more() -> None:
    """Index round(0.95*(n-1)), halves to even, of the sorted values, times 1.5."""
    for n, index in [(1, 0), (2, 1), (5, 4), (11, 10), (20, 18), (21, 19), (31, 28), (101, 95)]:
        values = np.random.default_rng(n).permutation(np.arange(n, dtype=float))
        assert fit.paper(values) == 1.5 * index
    assert fit.paper(np.array([4e-4, 1e-4, 2e-4])) == 4e-4 * 1.5
