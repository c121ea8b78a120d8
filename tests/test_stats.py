"""stats: every field by hand, and against a second implementation that shares no bit trick."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tolcal import stats
from tolcal.model import DTYPES, ENVELOPE_GRID, AllClose, ErrorStats, Tolerance

U = 2.0**-24
SATURATED = 2**64 - 1
NAMES = ("float16", "bfloat16", "float32", "float64")
names = st.sampled_from(NAMES)
seeds = st.integers(0, 2**32 - 1)


# --- a second implementation, by counting the numbers of a format -----------------------------


class Numbers:
    """The magnitudes of a format, counted from 0: number p is the p-th one, exactly."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.infinity = {
            "float16": 0x7C00,
            "bfloat16": 0x7F80,
            "float32": 0x7F800000,
            "float64": 0x7FF0000000000000,
        }[name]
        self.bits = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}[name]
        self.sign = 1 << (self.bits - 1)

    def value(self, p: int) -> Fraction:
        """Number p; the one after the largest is the one that a larger format would have."""
        if p == self.infinity:
            return (
                2 * self.value(p - self._to_half()) if self.name != "float64" else Fraction(2**1024)
            )
        return Fraction(self._float(p))

    def _to_half(self) -> int:
        return {"float16": 1 << 10, "bfloat16": 1 << 7, "float32": 1 << 23}[self.name]

    def _float(self, p: int) -> float:
        if self.name == "bfloat16":
            return float(np.array(p << 16, np.uint32).view(np.float32))
        kind = {"float16": np.float16, "float32": np.float32, "float64": np.float64}[self.name]
        return float(np.array(p, f"u{self.bits // 8}").view(kind))

    def below(self, magnitude: float) -> int:
        """The largest finite number that is at most ``magnitude``."""
        if self.name == "bfloat16":
            return min(NUMBERS["float32"].below(magnitude) >> 16, self.infinity - 1)
        kind = {"float16": np.float16, "float32": np.float32, "float64": np.float64}[self.name]
        with np.errstate(over="ignore", under="ignore"):
            p = int(np.array(magnitude, kind).view(f"u{self.bits // 8}"))
        return p - 1 if p == self.infinity or self._float(p) > magnitude else p

    def gap(self, x: float) -> float:
        """Distance of the brackets of x; past the largest number the last distance."""
        p = min(self.below(abs(x)), self.infinity - 2)
        return float(self.value(p + 1) - self.value(p))

    def nearest(self, x: float) -> int:
        """The number nearest to finite x, by exact arithmetic; signed count, ties to even."""
        p = self.below(abs(x))
        low, high = Fraction(abs(x)) - self.value(p), self.value(p + 1) - Fraction(abs(x))
        p += high < low or (high == low and p % 2 == 1)
        return -p if x < 0 else p

    def real(self, p: int) -> float:
        """Signed number p as fp64, infinities included."""
        magnitude = math.inf if abs(p) == self.infinity else self._float(abs(p))
        return math.copysign(magnitude, p)

    def tensor(self, patterns: list[int]) -> torch.Tensor:
        """A tensor of that dtype from signed counts; -sign-bit patterns come as given."""
        raw = [(-p | self.sign) if p < 0 else p for p in patterns]
        array = np.array(raw, f"u{self.bits // 8}").view(f"i{self.bits // 8}")
        return torch.from_numpy(array).view(getattr(torch, self.name))


NUMBERS = {name: Numbers(name) for name in NAMES}


def single(x: float) -> float:
    """float32 to nearest."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(x))


def single_up(x: float) -> float:
    """The smallest float32 that is at least x."""
    with np.errstate(over="ignore", under="ignore"):
        near = np.float32(x)
        return float(np.nextafter(near, np.float32(np.inf)) if float(near) < x else near)


def kind(x: float) -> str:
    return "nan" if math.isnan(x) else str(x) if math.isinf(x) else "finite"


def average(values: list[Any], count: int) -> float:
    if any(v == math.inf for v in values):
        return math.inf
    mean = sum((Fraction(v) for v in values), Fraction(0)) / max(count, 1)
    return float(mean) if mean < Fraction(2**1023) else math.inf


def percentile(values: list[float], q: float) -> float:
    """By linear interpolation."""
    ordered, place = sorted(values), q * (len(values) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low if low == high else low + (high - low) * (place - math.floor(place))


def expected(
    numbers: Numbers, out: list[float], ref: list[float], sigma: list[float], u: float, limit: Any
) -> dict[str, Any]:
    """The fields of ErrorStats from the docstrings, an element at a time."""
    rounded = [numbers.real(numbers.nearest(r)) if math.isfinite(r) else r for r in ref]
    both = [math.isfinite(o) and math.isfinite(r) for o, r in zip(out, rounded, strict=True)]
    differ = [kind(o) != kind(r) for o, r in zip(out, rounded, strict=True)]
    n = len(out)

    def where(i: int, value: float) -> float:
        return math.inf if differ[i] else value if both[i] else 0.0

    error = [where(i, abs(out[i] - rounded[i]) if both[i] else 0.0) for i in range(n)]
    related = [i for i in range(n) if math.isfinite(rounded[i]) and rounded[i] != 0]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore", under="ignore"):
        relative = [float(np.float64(error[i]) / abs(rounded[i])) for i in related]
    ulps = [
        abs(numbers.nearest(out[i]) - numbers.nearest(ref[i])) if both[i] else None
        for i in range(n)
    ]
    size = [abs(ref[i]) if both[i] else 0.0 for i in range(n)]
    scale = [size[i] + (sigma[i] if both[i] else 0.0) for i in range(n)]
    residual = [
        where(i, max(abs(out[i] - ref[i]) - numbers.gap(ref[i]) / 2, 0.0) if both[i] else 0.0)
        for i in range(n)
    ]
    signed = [(out[i] - ref[i]) * math.copysign(1, ref[i]) for i in range(n) if both[i] and ref[i]]
    signed = [s for s in signed if s != 0]
    total = sum(abs(Fraction(s)) for s in signed)
    square = average([Fraction(s) ** 2 for s in size], n)

    def envelope(scales: list[float]) -> tuple[float, ...]:
        return tuple(
            single_up(max(0.0, *(r - c * u * s for r, s in zip(residual, scales, strict=True))))
            for c in ENVELOPE_GRID
        )

    def reach(scales: list[float]) -> float:
        with np.errstate(over="ignore", divide="ignore", under="ignore"):
            ratios = [
                float(np.float64(r) / np.float64(u * s))
                for r, s in zip(residual, scales, strict=True)
                if r > 0
            ]
        return single_up(max(ratios, default=0.0))

    if isinstance(limit, Tolerance):
        bound = [limit.atol + limit.scaled_tol * u * s for s in scale]
        exceeding: int | None = sum(r > b for r, b in zip(residual, bound, strict=True))
    else:
        exceeding = None if limit is None else sum(e > limit for e in error)
    return {
        "count": n,
        "num_exceeding": exceeding,
        "max_abs": single_up(max(error)),
        "mean_abs": average(error, n),
        "p50_abs": percentile(error, 0.5),
        "p90_abs": percentile(error, 0.9),
        "p99_abs": percentile(error, 0.99),
        "max_rel": single_up(max(relative, default=0.0)),
        "mean_rel": average(relative, len(related)),
        "max_ulp": max(SATURATED if k is None else k for k in ulps),
        "mean_ulp": average([2**64 if k is None else k for k in ulps], n),
        "residual_max": single_up(max(residual)),
        "envelope": envelope(scale),
        "envelope_abs": envelope(size),
        "scaled_max": reach(scale),
        "scaled_max_abs": reach(size),
        "scale_quantiles": tuple(single(q) for q in np.sort(scale)[_places(n)]),
        "scale_abs_quantiles": tuple(single(q) for q in np.sort(size)[_places(n)]),
        "bias": float(sum(map(Fraction, signed)) / total) if total else 0.0,
        "bias_count": len(signed),
        "nonfinite_mismatch": sum(differ),
        "ref_rms": math.sqrt(square) if square > 1e-200 else 0.0,
        "ref_max": single_up(max(size)),
    }


def _places(n: int) -> list[int]:
    return [round(q * (n - 1)) for q in (0.1, 0.5, 0.9)]


MEANS = {"mean_abs", "mean_rel", "mean_ulp", "p50_abs", "p90_abs", "p99_abs", "bias", "ref_rms"}


def agree(got: ErrorStats, want: dict[str, Any]) -> None:
    """Integers, maxima and order statistics exactly; means within one float32 rounding."""
    assert set(want) == set(got.__struct_fields__)
    for name, value in want.items():
        real = getattr(got, name)
        if name not in MEANS:
            assert real == value, name
        elif value is not None:
            assert real == single(real), f"{name} is not a float32 number"
            near = single(value)
            slack = 1e-7 if name == "bias" else 1.5e-7 * abs(near) + 2.0**-149
            assert real == near or abs(real - near) <= slack, (name, real, value)


def special(numbers: Numbers) -> list[int]:
    """0, the smallest, around the smallest normal, 1, the largest numbers."""
    top = numbers.infinity - 1 if numbers.name != "float64" else numbers.below(2.0**400)
    normal = numbers.below(math.ldexp(1.0, DTYPES[numbers.name].emin))
    one = numbers.below(1.0)
    return [0, 1, 2, normal - 1, normal, normal + 1, one - 1, one, one + 1, top - 1, top]


def draw(
    numbers: Numbers, seed: int, n: int, spread: int, weird: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs near a reference, with a share ``weird`` of special values and wild errors."""
    rng = np.random.default_rng(seed)
    widest = {"float16": 14, "bfloat16": 126, "float32": 126, "float64": 400}[numbers.name]
    exponent = rng.integers(-min(spread, widest), min(spread, widest), n, endpoint=True)
    ref = np.ldexp(rng.uniform(1, 2, n), exponent) * rng.choice([-1, 1], n)
    counts = [numbers.nearest(float(r)) for r in ref]
    top = special(numbers)[-1]
    step = rng.integers(-3, 4, n)
    patterns = [max(-top, min(top, p + int(k))) for p, k in zip(counts, step, strict=True)]
    for i in range(n):
        if rng.random() < weird:
            pick = int(rng.choice(special(numbers))) * int(rng.choice([-1, 1]))
            half = numbers.gap(numbers.real(pick)) / 2  # a tie, or the number itself
            ref[i] = numbers.real(pick) + half * int(rng.integers(-1, 2))
        if rng.random() < weird:
            patterns[i] = int(rng.choice(special(numbers))) * int(rng.choice([-1, 1]))
        if rng.random() < weird / 3:
            ref[i] = rng.choice([0.0, -0.0, math.inf, -math.inf, math.nan])
    out = numbers.tensor(patterns)
    for i in range(n):
        if rng.random() < weird / 3:
            out[i] = float(rng.choice([-0.0, math.inf, -math.inf, math.nan]))
        if rng.random() < weird / 3:
            out[i] = ref[i]  # so that kinds often match
    sigma = np.abs(np.where(np.isfinite(ref), ref, 0.0)) * rng.choice([0, 0.5, 1, 64], n)
    return out, torch.from_numpy(ref), torch.from_numpy(sigma)


LIMITS = (
    None,
    0.0,
    1e-3,
    Tolerance(0.0, 0.0, AllClose(0, 0)),
    Tolerance(1e-6, 4.0, AllClose(0, 0)),
)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    names,
    seeds,
    st.integers(1, 200),
    st.sampled_from([0, 1, 4, 20, 150, 400]),
    st.sampled_from([0.0, 0.02, 0.3]),
    st.sampled_from(LIMITS),
    st.sampled_from([U, 2.0**-8]),
)
def test_every_field_agrees_with_the_second_implementation(
    name: str, seed: int, n: int, spread: int, weird: float, limit: Any, u: float
) -> None:
    """All fields equal those of exact arithmetic on counted numbers, whatever the values."""
    numbers = NUMBERS[name]
    out, ref, sigma = draw(numbers, seed, n, spread, weird)
    got = stats.error_stats(out, ref, sigma, u, limit)
    agree(got, expected(numbers, out.double().tolist(), ref.tolist(), sigma.tolist(), u, limit))


@settings(deadline=None, max_examples=80, derandomize=True)
@given(names, seeds, st.integers(1, 40), st.sampled_from([0, 4, 20]))
def test_envelope_is_the_true_maximum_rounded_up(name: str, seed: int, n: int, spread: int) -> None:
    """a(c) is never below max(residual - c*u*scale, 0), and above it by a float32 rounding."""
    numbers = NUMBERS[name]
    out, ref, sigma = draw(numbers, seed, n, spread, 0.0)
    got = stats.error_stats(out, ref, sigma, U)
    triples = list(zip(out.double().tolist(), ref.tolist(), sigma.tolist(), strict=True))
    for points, z, used in (
        (got.envelope, got.scaled_max, 1),
        (got.envelope_abs, got.scaled_max_abs, 0),
    ):
        assert points is not None
        assert z is not None
        for c, a in zip(ENVELOPE_GRID, points, strict=True):
            true, rough = Fraction(0), Fraction(0)
            for o, r, s in triples:
                excess = abs(Fraction(o) - Fraction(r)) - Fraction(numbers.gap(r)) / 2
                excused = Fraction(c * U) * (abs(Fraction(r)) + used * Fraction(s))
                true = max(true, excess - excused)
                rough = max(rough, (excess + excused + Fraction(numbers.gap(r))) * 2**-51)
            assert a >= true - rough
            assert a <= single_up(float(true + rough))
            assert (a == 0) or c < z


def test_z_is_where_the_envelope_reaches_zero() -> None:
    """scaled_max is the largest residual/(u*scale): 3 and 5 roundoffs give 5, |ref| alone 10."""
    ref = torch.tensor([1.0, 1.0], dtype=torch.float64)
    half = 2.0**-24  # half a gap of float32 at 1
    out = (ref + torch.tensor([2.0**-23 * 2, 2.0**-23 * 3], dtype=torch.float64)).float()
    sigma = torch.tensor([0.0, 1.0], dtype=torch.float64)
    got = stats.error_stats(out, ref, sigma, U)
    # residuals 4u - u = 3u at scale 1, 6u - u = 5u at scale 2
    assert got.residual_max == 5 * half
    assert got.scaled_max == 3.0
    assert got.scaled_max_abs == 5.0
    at = dict(zip(ENVELOPE_GRID, got.envelope or (), strict=True))
    assert (at[0.0], at[0.5], at[1.0], at[2.0], at[4.0]) == (5 * U, 4 * U, 3 * U, U, 0.0)
    plain = dict(zip(ENVELOPE_GRID, got.envelope_abs or (), strict=True))
    assert (plain[0.0], plain[4.0], plain[8.0]) == (5 * U, U, 0.0)


# --- by hand ----------------------------------------------------------------------------------


def run(out: list[float], ref: list[float], name: str = "float32", **options: Any) -> ErrorStats:
    """Statistics of these values with no sigma."""
    right = torch.tensor(ref, dtype=torch.float64)
    left = torch.tensor(out, dtype=torch.float64).to(getattr(torch, name))
    sigma = options.pop("sigma", torch.zeros_like(right))
    return stats.error_stats(left, right, sigma, U, **options)


STEPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


@pytest.mark.parametrize("name", NAMES)
def test_published_fields_by_hand(name: str) -> None:
    """Errors of 0, 1, 2 and 4 steps at 1, 1, 1 and 2 give these maxima, means and percentiles."""
    step = STEPS[name]
    got = run([1.0, 1 + step, 1 - step, 2 + 4 * step], [1.0, 1.0, 1.0, 2.0], name)
    assert got.count == 4
    assert got.num_exceeding is None
    assert got.max_abs == 4 * step
    assert got.mean_abs == 1.5 * step
    assert got.p50_abs == step
    assert got.p90_abs == pytest.approx(step + 3 * step * 0.7)
    assert got.p99_abs == pytest.approx(step + 3 * step * 0.97)
    assert got.max_rel == 2 * step
    assert got.mean_rel == step
    assert got.max_ulp == 2  # 1 - step lies two numbers below 1, 2 + 4 steps two above 2
    assert got.mean_ulp == 1.25
    assert got.nonfinite_mismatch == 0


@pytest.mark.parametrize("name", NAMES)
def test_our_fields_by_hand(name: str) -> None:
    """Residual, quantiles, rms, maximum and bias are against the unrounded reference."""
    step = STEPS[name]
    # The first is off by 3/4 step of which 1/2 is rounding; the second by a step, towards 0.
    ref = [1 + step / 4, -2.0] if name != "float64" else [1.0, -2.0]
    got = run([1 + step, -2 + step], ref, name)
    off = 0.75 * step if name != "float64" else step
    assert got.residual_max == off - step / 2
    assert got.bias_count == 2
    assert got.bias == pytest.approx((off - step) / (off + step), rel=1e-6)
    assert got.ref_max == single_up(2.0)
    assert got.ref_rms == pytest.approx(math.sqrt(2.5), rel=max(step, 1e-7))
    assert got.scale_abs_quantiles == (single(ref[0]), single(ref[0]), 2.0)


@pytest.mark.parametrize("name", NAMES)
def test_correct_rounding_has_no_residual(name: str) -> None:
    """An output that is the reference correctly rounded has residual 0 and no envelope."""
    ref = torch.linspace(-3, 3, 1001, dtype=torch.float64)
    numbers = NUMBERS[name]
    out = numbers.tensor([numbers.nearest(r) for r in ref.tolist()])
    got = stats.error_stats(out, ref, torch.zeros_like(ref), U)
    assert got.residual_max == got.scaled_max == got.max_abs == got.max_ulp == 0
    assert got.envelope == (0.0,) * len(ENVELOPE_GRID)


@pytest.mark.parametrize("name", NAMES)
def test_ulps_across_zero(name: str) -> None:
    """The smallest numbers on both sides of 0 are two ulps apart, and the zeros are the same."""
    tiny = DTYPES[name].tiny
    assert tiny == float(NUMBERS[name].value(1))
    assert run([tiny], [-tiny], name).max_ulp == 2
    assert run([3 * tiny], [-2 * tiny], name).max_ulp == 5
    assert run([tiny], [0.0], name).max_ulp == 1
    assert run([tiny], [-0.0], name).max_ulp == 1
    zeros = run([-0.0, 0.0, -0.0], [0.0, -0.0, -0.0], name)
    assert (zeros.max_ulp, zeros.max_abs, zeros.nonfinite_mismatch) == (0, 0.0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_ulps_between_the_extremes(name: str) -> None:
    """From the most negative to the largest number it is twice the count of positive ones."""
    top = DTYPES[name].max
    far = run([-top], [top], name)
    assert far.max_ulp == 2 * (NUMBERS[name].infinity - 1)
    assert far.mean_ulp == single(far.max_ulp)


def test_subnormals_by_hand() -> None:
    """In fp16 below 2^-14 the spacing is 2^-24, and half of it is excused."""
    tiny = 2.0**-24
    got = run([3 * tiny, 2.0**-14 - tiny], [1.25 * tiny, 2.0**-14], "float16")
    assert got.max_abs == 2 * tiny
    assert got.max_ulp == 2
    assert got.residual_max == 1.75 * tiny - tiny / 2
    assert got.max_rel == 2.0


@pytest.mark.parametrize("name", NAMES)
def test_matching_nonfinite_values(name: str) -> None:
    """NaN and infinities of the same kind are no error, save that their ulps saturate."""
    special_values = [math.nan, math.inf, -math.inf, 1.0]
    got = run(special_values, special_values, name, limit=0.0)
    assert got.nonfinite_mismatch == got.num_exceeding == 0
    assert got.max_abs == got.mean_abs == got.max_rel == got.residual_max == 0.0
    assert got.max_ulp == SATURATED
    assert got.mean_ulp == single(0.75 * 2**64)
    assert got.ref_max == 1.0
    assert got.ref_rms == 0.5
    assert got.bias_count == 0


@pytest.mark.parametrize(
    ("out", "ref"),
    [
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.inf, -math.inf),
        (math.inf, math.nan),
        (-math.inf, 1.0),
        (math.nan, math.inf),
        (1.0, math.inf),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_mismatching_nonfinite_values(name: str, out: float, ref: float) -> None:
    """A value of another kind than the reference's is an infinite error and exceeds anything."""
    got = run([out, 1.0], [ref, 1.0], name, limit=1e30)
    assert got.nonfinite_mismatch == 1
    assert got.num_exceeding == 1
    assert got.max_abs == got.residual_max == got.scaled_max == got.scaled_max_abs == math.inf
    assert got.envelope == got.envelope_abs == (math.inf,) * len(ENVELOPE_GRID)
    assert got.max_ulp == SATURATED
    tolerance = Tolerance(1e30, 512.0, AllClose(0, 0))
    assert run([out, 1.0], [ref, 1.0], name, limit=tolerance).num_exceeding == 1


def test_overflow_of_the_reference_in_fp16() -> None:
    """Kinds are compared after rounding: 65520 is inf in fp16, and 65519.99 is 65504."""
    assert run([math.inf], [65520.0], "float16").nonfinite_mismatch == 0
    assert run([math.inf], [1e300], "float16").nonfinite_mismatch == 0
    assert run([65504.0], [65520.0], "float16").nonfinite_mismatch == 1
    assert run([-math.inf], [65520.0], "float16").nonfinite_mismatch == 1
    assert run([math.inf], [65519.99], "float16").nonfinite_mismatch == 1
    near = run([65504.0], [65519.99], "float16")
    assert (near.nonfinite_mismatch, near.max_abs, near.residual_max) == (0, 0.0, 0.0)


def test_percentile_beside_an_infinite_error() -> None:
    """The median of errors 0, 0 and inf is 0, not nan: the infinite one has the weight 0."""
    assert run([1.0, 2.0, math.inf], [1.0, 2.0, 3.0]).p50_abs == 0.0


def test_no_elements() -> None:
    """An empty output has statistics of 0, and exceeds a limit in 0 places, if there is one."""
    got = run([], [])
    assert got.count == got.max_ulp == got.bias_count == got.nonfinite_mismatch == 0
    assert got.num_exceeding is None
    assert got.envelope == got.envelope_abs == (0.0,) * len(ENVELOPE_GRID)
    assert got.scale_quantiles == got.scale_abs_quantiles == (0.0, 0.0, 0.0)
    assert run([], [], limit=1.0).num_exceeding == 0
    assert run([], [], limit=Tolerance(0.0, 0.0, AllClose(0, 0))).num_exceeding == 0
    for name in got.__struct_fields__:
        assert getattr(got, name) is not None or name == "num_exceeding", name


def test_relative_error_leaves_out_zero_references() -> None:
    """Where the rounded reference is 0 an element counts in neither the largest nor the mean."""
    got = run([1.0, 1.5, 0.5], [0.0, 1.0, 1.0])
    assert (got.max_rel, got.mean_rel) == (0.5, 0.5)
    under = run([1.0, 1.5], [1e-30, 1.0], "float16")  # 1e-30 rounds to 0 in fp16
    assert (under.max_rel, under.mean_rel) == (0.5, 0.5)
    zeros = run([1.0, 2.0], [0.0, -0.0])
    assert (zeros.max_rel, zeros.mean_rel, zeros.max_abs) == (0.0, 0.0, 2.0)


def test_what_num_exceeding_counts() -> None:
    """A float limits the error, a Tolerance the residual, both by > ; None counts nothing."""
    out, ref = [1.0, 1 + 2.0**-10, 1 + 2.0**-8], [1.0] * 3
    assert run(out, ref, "float16").num_exceeding is None
    assert run(out, ref, "float16", limit=0.0).num_exceeding == 2
    assert run(out, ref, "float16", limit=2.0**-10).num_exceeding == 1
    # Residuals: 0, 2^-10 - 2^-11 = 2^-11, 2^-8 - 2^-11 = 7 * 2^-11.
    sigma = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)

    def exceeding(atol: float, c: float) -> int | None:
        tolerance = Tolerance(atol, c, AllClose(0, 0))
        return run(out, ref, "float16", sigma=sigma, limit=tolerance).num_exceeding

    assert exceeding(0.0, 0.0) == 2
    assert exceeding(2.0**-11, 0.0) == 1
    assert exceeding(0.99 * 2.0**-11, 0.0) == 2
    assert exceeding(7 * 2.0**-11, 0.0) == 0
    assert exceeding(0.0, 2.0**13) == 1  # 2^13 * 2^-24 = 2^-11 at scale 1, 2^-10 at scale 2
    assert exceeding(5 * 2.0**-11, 2.0**13) == 0
    assert exceeding(4.99 * 2.0**-11, 2.0**13) == 1


def test_maxima_are_rounded_up_to_float32() -> None:
    """A maximum that float32 lacks becomes the next float32 above, never the one below."""
    got = run([0.0], [1 + 2.0**-40], "float64")
    above = 1 + 2.0**-23
    assert got.max_abs == got.residual_max == got.ref_max == above
    assert got.envelope is not None
    assert got.envelope[0] == above
    assert got.mean_abs == got.ref_rms == 1.0  # to nearest


def test_scale_quantiles_of_a_large_output() -> None:
    """Above 4,096 elements quantiles come from every second (third ...) element."""
    ref = torch.from_numpy(np.random.default_rng(5).uniform(1, 2, 5000))
    sigma = 3 * ref
    got = stats.error_stats(ref.float(), ref, sigma, U)
    in_order = np.sort(ref.numpy()[::2])
    places = [round(q * 2499) for q in (0.1, 0.5, 0.9)]
    assert got.scale_abs_quantiles == tuple(single(in_order[p]) for p in places)
    assert got.scale_quantiles == tuple(single(4 * in_order[p]) for p in places)


def test_layout_does_not_matter() -> None:
    """A transposed view and a shape give the same statistics as the flat contiguous values."""
    out, ref, sigma = draw(NUMBERS["float16"], 11, 60, 4, 0.1)
    flat = stats.error_stats(out, ref, sigma, U, 1e-3)
    assert stats.error_stats(*(x.reshape(3, 4, 5) for x in (out, ref, sigma)), U, 1e-3) == flat
    views = [x.reshape(6, 10).T.contiguous().T for x in (out, ref, sigma)]
    assert not views[0].is_contiguous()
    assert stats.error_stats(*views, U, 1e-3) == flat


def test_what_does_not_fit_is_refused() -> None:
    """Shapes that differ and a reference that is not fp64 are errors, not broadcasts."""
    one, two = torch.zeros(1, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    with pytest.raises(ValueError, match="shapes differ"):
        stats.error_stats(two.float(), one, one, U)
    with pytest.raises(ValueError, match="shapes differ"):
        stats.error_stats(two.float(), two, one, U)
    with pytest.raises(ValueError, match="float64 expected"):
        stats.error_stats(two.float(), two.float(), two, U)


# --- gap and rounding -------------------------------------------------------------------------

KINDS: dict[str, Any] = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
EDGES = [0.0, 1.0, -1.0, 1.5, -2.0, 0.3, 2.0**-14, 2.0**-24, 2.0**-25, 2.0**-15, 2.0**-126]
EDGES += [2.0**-149, 2.0**-1022, 2.0**-1023, 5e-324, 1 - 2.0**-53, 1 - 2.0**-12, 1 + 2.0**-52]


def wide_floats(name: str) -> st.SearchStrategy[float]:
    """Values of every binade below the largest number, edges included."""
    top = DTYPES[name]
    exponents = st.integers(top.emin - 60, math.frexp(top.max)[1] - 2)
    mantissa = st.sampled_from([1.0, 1.5, 1 + 2.0**-52, 2 - 2.0**-52]) | st.floats(1, 1.999)
    return st.sampled_from(EDGES) | st.builds(
        lambda m, e, s: s * math.ldexp(m, e), mantissa, exponents, st.sampled_from([-1, 1])
    )


@pytest.mark.parametrize("name", sorted(KINDS))
def test_gap_is_the_distance_of_the_brackets(name: str) -> None:
    """gap is exactly the distance between the two numbers that nextafter puts around a value."""

    @settings(deadline=None, max_examples=300, derandomize=True)
    @given(wide_floats(name))
    def check(x: float) -> None:
        with np.errstate(under="ignore"):
            near = KINDS[name](abs(x))
            low = np.nextafter(near, KINDS[name](0)) if float(near) > abs(x) else near
            high = np.nextafter(low, KINDS[name](np.inf))
        assert float(low) <= abs(x) < float(high)
        got = stats.gap(torch.tensor([x], dtype=torch.float64), DTYPES[name]).item()
        assert got == float(high) - float(low)

    check()


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.data(), st.sampled_from([*DTYPES]))
def test_gap_has_one_value_in_model_and_stats(data: st.DataObject, name: str) -> None:
    """The scalar gap of the model and the tensor one agree, in every format."""
    x = data.draw(wide_floats(name))
    got = stats.gap(torch.tensor([x], dtype=torch.float64), DTYPES[name]).item()
    assert got == DTYPES[name].gap(x)
    if name in NUMBERS:
        assert got == NUMBERS[name].gap(x)


@settings(deadline=None, max_examples=400, derandomize=True)
@given(st.data(), names)
def test_round_to_is_exact_half_even(data: st.DataObject, name: str) -> None:
    """round_to gives the nearest number by rational arithmetic, the even one in a tie."""
    numbers = NUMBERS[name]
    x = data.draw(wide_floats(name))
    if name != "float64":
        p = numbers.below(abs(x))
        tie = float((numbers.value(p) + numbers.value(p + 1)) / 2)  # exact in fp64
        x = data.draw(
            st.sampled_from([x, tie, -tie, math.nextafter(tie, 0), math.nextafter(tie, math.inf)])
        )
    got = stats.round_to(torch.tensor([x], dtype=torch.float64), DTYPES[name]).item()
    assert got == numbers.real(numbers.nearest(x))


def test_round_to_rounds_once() -> None:
    """Just above a tie of fp16 rounds up, where a detour by fp32 falls on the tie and down."""
    x = torch.tensor([1 + 2.0**-11 + 2.0**-40], dtype=torch.float64)
    assert stats.round_to(x, DTYPES["float16"]).item() == 1 + 2.0**-10
    assert np.float16(np.float32(x.item())) == 1.0
    y = torch.tensor([1 + 2.0**-8 + 2.0**-40], dtype=torch.float64)
    assert stats.round_to(y, DTYPES["bfloat16"]).item() == 1 + 2.0**-7


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_round_to_overflows_where_the_format_does(name: str) -> None:
    """From half a step past the largest number on it is an infinity, and below it is not."""
    top = DTYPES[name].max
    edge = top + DTYPES[name].gap(top) / 2
    x = torch.tensor([edge, -edge, math.nextafter(edge, 0), 1e308], dtype=torch.float64)
    assert stats.round_to(x, DTYPES[name]).tolist() == [math.inf, -math.inf, top, math.inf]


# --- sensitivity ------------------------------------------------------------------------------


def words(seed: int, *shape: int) -> torch.Tensor:
    """Random sign words."""
    raw = np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, shape)
    return torch.from_numpy(raw)


def sigma_of(f: Callable[..., torch.Tensor], seed: int, **inputs: torch.Tensor) -> torch.Tensor:
    """sigma with signs drawn from ``seed``."""
    signs = {name: words(seed + i, *x.shape) for i, (name, x) in enumerate(inputs.items())}
    return stats.sensitivity(f, inputs, f(**inputs), signs)


def reals(seed: int, *shape: int) -> torch.Tensor:
    """fp64 inputs over some decades, of both signs."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.uniform(-1, 1, shape) * 10 ** rng.uniform(-3, 3, shape))


@pytest.mark.parametrize("c", [1.0, -3.7, 1e-12, 1e20])
def test_sigma_of_a_multiple_is_the_output(c: float) -> None:
    """f = c*x moves by a relative error as its input does: sigma = |c*x|."""
    x = reals(1, 7, 100)
    torch.testing.assert_close(sigma_of(lambda x: c * x, 2, x=x), (c * x).abs(), rtol=1e-6, atol=0)


def test_sigma_is_of_first_order() -> None:
    """f = x^2 has twice the relative sensitivity, f = 1/x the same, a constant none."""
    x = reals(3, 50)
    torch.testing.assert_close(sigma_of(lambda x: x * x, 4, x=x), 2 * x * x, rtol=1e-6, atol=0)
    torch.testing.assert_close(sigma_of(lambda x: 1 / x, 4, x=x), (1 / x).abs(), rtol=1e-6, atol=0)
    assert sigma_of(lambda x: x * 0 + 1, 4, x=x).eq(0).all()


def test_sigma_takes_its_signs_from_the_low_32_bits() -> None:
    """Of x + y with signs that agree in 24 of 32 vectors sigma is the rms of sum and difference."""
    x, y = torch.tensor([3.0], dtype=torch.float64), torch.tensor([5.0], dtype=torch.float64)

    def sigma(first: int, second: int) -> float:
        signs = {"x": torch.tensor([first]), "y": torch.tensor([second])}
        return stats.sensitivity(lambda x, y: x + y, {"x": x, "y": y}, x + y, signs).item()

    assert sigma(0, 0xFF) == pytest.approx(math.sqrt((24 * 64 + 8 * 4) / 32), rel=1e-6)
    assert sigma(0xF0F0, 0x0FF0) == pytest.approx(math.sqrt((24 * 64 + 8 * 4) / 32), rel=1e-6)
    assert sigma(0, 0xFF000000) == sigma(0, 0xFF)
    assert sigma(0, 0xFFFFFFFF) == pytest.approx(2.0, rel=1e-6)
    assert sigma(-1, -1) == pytest.approx(8.0, rel=1e-6)
    assert sigma(0, 0xFFFF << 32) == pytest.approx(8.0, rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_sigma_of_a_sum_is_statistical(seed: int) -> None:
    """A sum's sigma is about sqrt(sum x^2): 32 vectors leave it within a factor of 2."""
    x = reals(seed, 40, 30)
    got = sigma_of(lambda x: x.sum(-1), 100 * seed, x=x) / x.square().sum(-1).sqrt()
    assert 0.4 < got.min() < got.max() < 2.0
    assert got.mean().item() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("size", [5, 700, 3000, 20_000])
def test_sigma_does_not_depend_on_batching(size: int) -> None:
    """Batches, single vectors and a reference that vmap can't batch give the same sigma."""
    x, w = reals(size, size), reals(size + 1, size)
    signs = {"x": words(1, size), "w": words(2, size)}

    def smooth(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * w + x.mean()

    def branches(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 1e300:  # vmap has no value here
            return x
        return smooth(x, w)

    inputs, ref = {"x": x, "w": w}, smooth(x, w)
    squares = torch.zeros_like(ref)
    for k in range(32):
        moved = {
            name: torch.where(signs[name] & (1 << k) != 0, v * (1 - 2**-26), v * (1 + 2**-26))
            for name, v in inputs.items()
        }
        squares += ((smooth(**moved) - ref) * 2.0**26) ** 2
    want = (squares / 32).sqrt()
    for f in (smooth, branches):
        got = stats.sensitivity(f, inputs, ref, signs)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_sigma_is_zero_where_perturbed_references_are_not_finite(bad: float) -> None:
    """An element that any perturbation pushes out of the reference's domain has no excuse."""
    x = torch.tensor([1.0, 0.5, -2.0], dtype=torch.float64)
    got = sigma_of(lambda x: torch.where(x > 1.0, bad, x), 9, x=x)
    torch.testing.assert_close(got, torch.tensor([0, 0.5, 2], dtype=torch.float64))


# --- bias -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_bias_sees_truncation_and_not_rounding(name: str) -> None:
    """Truncation toward zero has bias -1, away from it +1, rounding to nearest about 0."""
    numbers = NUMBERS[name]
    rng = np.random.default_rng(3)
    values = [float(v) for v in rng.uniform(1, 100, 4096) * rng.choice([-1, 1], 4096)]
    ref = torch.tensor(values, dtype=torch.float64)

    def bias(patterns: list[int]) -> ErrorStats:
        return stats.error_stats(numbers.tensor(patterns), ref, torch.zeros_like(ref), U)

    sign = [-1 if v < 0 else 1 for v in values]
    low = [numbers.below(abs(v)) for v in values]
    down = bias([s * p for s, p in zip(sign, low, strict=True)])
    up = bias([s * (p + 1) for s, p in zip(sign, low, strict=True)])
    near = bias([numbers.nearest(v) for v in values])
    assert (down.bias, down.bias_count) == (-1.0, 4096)
    assert up.bias == 1.0
    assert near.bias is not None
    assert abs(near.bias) < 0.08


def test_bias_counts_only_elements_that_inform_it() -> None:
    """Elements without an error, with a zero reference or not finite don't count."""
    got = run([1.5, 1.0, 0.5, math.inf, math.nan, -3.0], [1.0, 1.0, 0.0, 1.0, math.nan, -4.0])
    assert got.bias_count == 2
    assert got.bias == pytest.approx((0.5 - 1.0) / 1.5, rel=1e-6)


@pytest.mark.parametrize("value", ["nan", "saturated"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_overflow_without_infinity(value: str, sign: float) -> None:
    """float8_e4m3fn overflows to nan or to its largest number: either is right, no other is."""
    ref = torch.tensor([sign * 1e6, 1.0], dtype=torch.float64)
    right = torch.tensor([math.nan if value == "nan" else sign * 448.0, 1.0])
    zero = torch.zeros(2, dtype=torch.float64)
    good = stats.error_stats(right.to(torch.float8_e4m3fn), ref, zero, 2.0**-24)
    assert (good.nonfinite_mismatch, good.max_abs) == (0, 0.0)
    for wrong in (-sign * 448.0, sign * 416.0):
        out = torch.tensor([wrong, 1.0]).to(torch.float8_e4m3fn)
        bad = stats.error_stats(out, ref, zero, 2.0**-24)
        assert (bad.nonfinite_mismatch, bad.max_abs) == (1, math.inf)
