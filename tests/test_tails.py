"""The tail model: what it says of simulated controls whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tolcal.calibrate import tails

SHARES = arrays.arrays(np.float64, st.integers(1, 80), elements=st.floats(0, 1, width=32))


def control(shares: object, runs: int) -> tails.Shares:
    """So many records dealt to so many runs in turn."""
    values = np.asarray(shares, np.float64)
    return tails.Shares(values, np.arange(len(values)) % runs)


def beyond(shares: object, margin: float) -> float:
    """`tails.beyond` of one run's records."""
    return tails.beyond(control(shares, 1), margin)


@given(SHARES, st.floats(1, 100), st.floats(1, 100))
def test_a_wider_margin_never_raises_the_rate(values: np.ndarray, a: float, b: float) -> None:
    """And a probability is one."""
    narrow, wide = (beyond(values, m) for m in sorted((a, b)))
    assert 0.0 <= wide <= narrow <= 1.0


@given(SHARES, st.floats(1.1, 100), st.floats(0.01, 100))
def test_only_ratios_matter(values: np.ndarray, margin: float, unit: float) -> None:
    """The unit of the bound says nothing of the tail's shape."""
    values = np.where(values < 1e-30, 0, values)
    assert beyond(values * unit, margin * unit) == pytest.approx(
        beyond(values, margin), rel=1e-6, abs=1e-12
    )


def test_by_hand() -> None:
    """k = 2 of three shares can't be: five are the least; then k is all but the smallest."""
    assert beyond(np.zeros(900), 2.0) == 0.0
    assert beyond(np.array([1, 0.5, 0.2, 0.1]), 4.0) == 1.0
    flat = 20 * tails.LEAST_SPREAD
    assert beyond(np.ones(50), 2.0) == pytest.approx((1 + math.log(2) / flat) ** -20)
    five = np.array([1, 0.5, 0.25, 0.25, 0.125])
    spread = math.log(8) + math.log(4) + 2 * math.log(2)
    assert beyond(five, 4.0) == pytest.approx((1 + math.log(4) / spread) ** -4)
    assert beyond(five / 2, 2.0) == beyond(five, 4.0)  # further from the margin
    assert beyond(np.array([math.inf, *five]), 4.0) == 1.0


@pytest.mark.parametrize(("alpha", "margin"), [(3.0, 2.0), (4.0, 4.0), (8.0, 2.0)])
def test_pareto_histories_are_not_understated(alpha: float, margin: float) -> None:
    """The mean over histories is no less than the truth, m^-alpha r / (N + 1), nor far above."""
    generator = np.random.default_rng(7)
    said = []
    for _ in range(1000):
        errors = generator.pareto(alpha, 720) + 1
        said.append(tails.red_rate([control(errors / errors.max(), 12)], margin))
    truth = 60 * margin**-alpha / 721
    assert 0.97 * truth < np.mean(said) < 3 * truth


def test_bounded_errors_are_overstated_rather_than_understated() -> None:
    """A uniform error never exceeds its largest value times 2; the model need not know."""
    errors = np.random.default_rng(3).uniform(0, 1, 720)
    assert tails.red_rate([control(errors / errors.max(), 12)], 2.0) < 1e-2


@given(st.integers(0, 2**32))
def test_the_limit_is_no_lower_than_most_resamples_and_repeats(seed: int) -> None:
    errors = np.random.default_rng(seed).pareto(4, 240) + 1
    controls = [control(errors / errors.max(), 12), control(np.zeros(240), 12)]
    limit = tails.upper_limit(controls, 2.0, resamples=20, seed=seed)
    assert limit == tails.upper_limit(controls, 2.0, resamples=20, seed=seed)
    assert 0.0 < limit <= 1.0


def test_runs_are_drawn_whole() -> None:
    """The same records say less where the large ones are of one run than where all have some.

    Where they are of so few runs that chance would not have it, the runs are the records.
    """
    values = np.random.default_rng(5).pareto(4, 400) + 1
    values = np.sort(values / values.max())
    together = tails.Shares(values, np.repeat(np.arange(20), 20))
    apart = tails.Shares(values, np.tile(np.arange(20), 20))
    rate = tails.red_rate([together], 4.0)
    assert together.clustered
    assert not apart.clustered
    assert rate == tails.red_rate([together.largest()], 4.0) > 2 * tails.red_rate([apart], 4.0)


@pytest.mark.parametrize(("runs", "each"), [(3, 240), (4, 180), (18, 40)])
def test_runs_with_a_level_of_their_own_are_not_understated(runs: int, each: int) -> None:
    """Many records of few runs, alike within a run: the runs are what there is to learn from."""
    draw = np.random.default_rng(29)
    margin, budget, truths, claimed = 2.0, 1e-3, [], 0
    for _ in range(60):
        levels = np.exp(draw.normal(0, 1.0, runs))
        errors = levels[:, None] * np.exp(draw.normal(0, 0.05, (runs, each)))
        bound = float(errors.max()) * margin
        fresh = np.exp(draw.normal(0, 1.0, 4000)) * np.exp(0.05 * 2.5)
        truths.append(float((fresh > bound).mean()))
        one = tails.Shares((errors / bound).ravel(), np.repeat(np.arange(runs), each))
        claimed += tails.upper_limit([one], resamples=100) <= budget
    assert np.mean(truths) > 5 * budget
    assert claimed == 0


def test_a_flat_top_is_no_proof() -> None:
    """Equal shares may be rounded ones: the next may be some per cent above, never surely not."""
    flat = tails.Shares(np.full(720, 0.9), np.arange(720) % 12)
    assert 0 < tails.red_rate([flat]) < 1e-1
    assert tails.red_rate([flat]) > tails.red_rate([tails.Shares(flat.shares / 2, flat.runs)]) > 0


@given(SHARES, st.integers(1, 6), st.integers(0, 2**32), st.floats(1, 8))
def test_a_resample_is_the_records_of_its_runs(
    values: np.ndarray, runs: int, seed: int, margin: float
) -> None:
    """The limit is a quantile of the rate over histories made of whole runs, drawn by hand here."""
    one = control(values, runs)
    assume(not one.clustered)  # then it would be of its runs' largest
    present = np.unique(one.runs)
    drawn = np.random.default_rng(seed).integers(len(present), size=(20, len(present)))
    rates = []
    for draw in drawn:
        parts = [values[one.runs == present[r]] for r in draw]
        largest = max(part.max() for part in parts)
        if largest:  # its own bound is as far from the margin as that of all
            parts = [part * (values.max() / largest) for part in parts]
        together = np.concatenate(parts)
        q = tails.beyond(control(together, 1), margin)
        rates.append(len(together) / len(draw) * q / (len(together) + 1))
    expected = float(np.quantile(rates, 0.95, method="higher"))
    found = tails.upper_limit([one], margin, resamples=20, seed=seed)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("name", ["exponential", "lognormal", "pareto", "uniform"])
@pytest.mark.parametrize("maxima", [False, True])
def test_simulated_truths_are_not_understated(name: str, maxima: bool) -> None:
    """Rows or per-run maxima of many histories against the law that they were drawn from.

    The bound is the largest of a history times the margin, so the truth is that history's own. A
    mean of estimates below the mean of truths would understate.
    """
    draw = np.random.default_rng(11)
    runs, each, margin = 24, 60, 1.5
    laws = {
        "exponential": (lambda n: draw.exponential(size=n), lambda x: np.exp(-x)),
        "lognormal": (
            lambda n: draw.lognormal(0, 1, n),
            lambda x: math.erfc(math.log(x) / math.sqrt(2)) / 2,
        ),
        "pareto": (lambda n: draw.pareto(3, n) + 1, lambda x: x**-3.0),
        "uniform": (lambda n: draw.uniform(size=n), lambda x: max(0.0, 1 - x)),
    }
    sample, beyond_ = laws[name]
    said, truth = [], []
    for _ in range(200):
        errors = sample(runs * each)
        bound = float(errors.max()) * margin
        truth.append(1 - (1 - float(beyond_(bound))) ** each)
        shares = tails.Shares(errors / bound, np.repeat(np.arange(runs), each))
        if maxima:
            largest = shares.shares.reshape(runs, each).max(axis=1)
            shares = tails.Shares(largest, np.arange(runs))
        said.append(tails.red_rate([shares]))
    assert np.mean(said) > np.mean(truth)
    assert np.mean(said) < 0.2  # and it says something


def test_a_plug_in_of_hill_would_understate() -> None:
    """What the sum over histories is for: the estimate that ignores its own spread is too low."""
    draw = np.random.default_rng(2)
    ours, plugged = [], []
    for _ in range(2000):
        errors = np.sort(draw.pareto(4, 240) + 1)[::-1]
        k = tails.TAIL_COUNT
        hill = np.log(errors[:k] / errors[k]).mean()
        plugged.append(4.0 ** (-1 / hill))
        ours.append(beyond(errors / errors[0], 4.0))
    truth = 4.0**-4
    assert np.mean(ours) >= truth
    assert np.median(plugged) < np.median(ours)


@given(SHARES, st.integers(1, 6), st.randoms(use_true_random=False))
def test_order_and_names_of_runs_do_not_matter(
    values: np.ndarray, runs: int, random: object
) -> None:
    """Records are exchangeable within a history, and a run's number is only a name."""
    one = control(values, runs)
    order = np.array(random.sample(range(len(values)), len(values)))  # type: ignore[attr-defined]
    other = tails.Shares(one.shares[order], 1000 - one.runs[order])
    assert tails.red_rate([other], 2.0) == pytest.approx(tails.red_rate([one], 2.0), rel=1e-9)


@given(SHARES, st.integers(2, 6))
def test_leaving_a_run_out_is_leaving_its_records_out(values: np.ndarray, runs: int) -> None:
    """By the same bound; a run of no record changes nothing. All runs tell whether records cluster,
    so only those are compared whose rest tells the same.
    """
    one = control(values, runs)
    names = [*np.unique(one.runs), 99, None]
    for name in np.unique(one.runs):
        rest = tails.Shares(values[one.runs != name], one.runs[one.runs != name])
        assume(rest.clustered == one.clustered)
    expected = [
        tails.red_rate([tails.Shares(values[one.runs != n], one.runs[one.runs != n])], 2.0)
        if n is not None else tails.red_rate([one], 2.0)
        for n in names
    ]  # fmt: skip
    assert tails.rates_without(one, names, 2.0) == pytest.approx(expected, rel=1e-9)


def test_an_infinite_share_counts_only_where_its_run_does() -> None:
    """A residual at a scale of 0 uses all of any bound; without that run the rest tells as ever."""
    rng = np.random.default_rng(3)
    shares = rng.exponential(0.05, 200)
    runs = np.repeat(np.arange(20), 10)
    rest = tails.Shares(shares[10:], runs[10:])
    shares[3] = np.inf
    whole = tails.Shares(shares, runs)
    without, other, none = tails.rates_without(whole, [0, 1, None])
    assert without == pytest.approx(tails.rates_without(rest, [None])[0])
    assert (other, none) == pytest.approx((10 / 191, 10 / 201))
