"""The fused statistics against their definition, by Triton's interpreter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from agreement import disagreements
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tolcal.model import DTYPES, AllClose, Tolerance
from tolcal.stats import Batch, batch, definition, order

CPU = torch.device("cpu")
#: numpy, which interprets, speaks up where hardware gives nan in silence.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
U = 2.0**-24
LIMIT = Tolerance(atol=1e-4, scaled_tol=3.0, allclose=AllClose(0.0, 0.0))
#: Every case below draws its tensors from a seed: hypothesis shrinks the seed's neighbours.
PROFILE = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # shrinking an interpreted kernel takes too long
)


def draw(
    name: str, n: int, seed: int, spread: int, noise: float, odd: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output, reference and sigma: magnitudes over 2^+-spread, some values not finite."""
    dtype = DTYPES[name]
    random = np.random.default_rng(seed)
    low, high = max(-spread, dtype.emin - dtype.precision - 1), spread
    exponents = random.integers(low, high + 1, n)
    ref = random.standard_normal(n) * np.exp2(exponents.astype(float))
    ref[random.random(n) < 0.05] = 0.0
    out = ref * (1 + noise * random.standard_normal(n))
    special = [math.inf, -math.inf, math.nan, 0.0, dtype.max, -dtype.max, dtype.tiny, 2 * dtype.max]
    for values in (ref, out):
        where = random.random(n) < odd
        values[where] = random.choice(special, where.sum())
    both = random.random(n) < odd / 2
    ref[both] = out[both] = random.choice(special[:3], both.sum())
    sigma = np.where(np.isfinite(ref), np.abs(ref) * random.random(n), 0.0)
    wide = torch.from_numpy(out)
    # Torch's own cast saturates or not as the version pleases: take the definition's rounding.
    rounded = definition.round_to(wide, dtype)
    if not dtype.has_infinity:
        rounded = torch.where(torch.isinf(rounded), torch.nan, rounded)
    return rounded.to(getattr(torch, name)), torch.from_numpy(ref), torch.from_numpy(sigma)


def fused(*args: Any) -> Any:
    """The statistics of one output by the fused form."""
    collected = Batch(CPU, fused=True)
    collected.add(*args)
    return collected.results()[0]


@pytest.mark.parametrize("name", list(DTYPES))
def test_fused_agrees_with_the_definition(name: str) -> None:
    """Every field, over sizes, magnitudes down to subnormals, zeros, infinities and nan."""

    @PROFILE
    @given(
        st.integers(1, 3000), st.integers(0, 2**32), st.sampled_from((0, 5, 20, 60)),
        st.sampled_from((0.0, 2.0**-25, 2.0**-9, 0.5)), st.sampled_from((0.0, 0.02, 0.5)),
        st.sampled_from((None, LIMIT, 1e-3)), st.booleans(),
    )  # fmt: skip
    def check(
        n: int, seed: int, spread: int, noise: float, odd: float, limit: Any, with_sigma: bool
    ) -> None:
        out, ref, sigma = draw(name, n, seed, spread, noise, odd)
        want = definition.error_stats(
            out, ref, sigma if with_sigma else torch.zeros_like(ref), U, limit
        )
        got = fused(out, ref, sigma if with_sigma else None, U, limit)
        assert disagreements(want, got) == []

    check()


@pytest.mark.parametrize("name", ["float16", "float32"])
@pytest.mark.parametrize("n", [batch.ROW, batch.ROW + 1, 9_000])
def test_sorted_alone_or_together(name: str, n: int) -> None:
    """Above one row of the batch an output is sorted on its own."""
    out, ref, sigma = draw(name, n, n, 5, 2.0**-9, 0.01)
    assert disagreements(
        definition.error_stats(out, ref, sigma, U, LIMIT), fused(out, ref, sigma, U, LIMIT)
    ) == []  # fmt: skip


@pytest.fixture
def small_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the path of large outputs work on small ones."""
    monkeypatch.setattr(batch, "SORTED", batch.ROW)
    monkeypatch.setattr(order, "PROGRAMS", 8)
    monkeypatch.setattr(order, "SAMPLE", 8192)


@pytest.mark.usefixtures("small_large")
@pytest.mark.parametrize("n", [10_240, 10_301])
@pytest.mark.parametrize(
    ("name", "noise"),
    [("float16", 0.0), ("float16", 2.0**-20), ("float16", 2.0**-9), ("float32", 2.0**-24),
     ("float32", 2.0**-9), ("float64", 2.0**-40)],
)  # fmt: skip
def test_large_outputs(name: str, noise: float, n: int) -> None:
    """Brackets find the order statistics, whether ties are many or none."""
    out, ref, sigma = draw(name, n, 1, 5, noise, 0.0)
    assert disagreements(
        definition.error_stats(out, ref, sigma, U, LIMIT), fused(out, ref, sigma, U, LIMIT)
    ) == []  # fmt: skip


@pytest.mark.usefixtures("small_large")
def test_a_bracket_that_misses_costs_time_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no sample gives brackets that hold, all keys are sorted."""
    monkeypatch.setattr(order, "resolve", lambda *_: None)
    out, ref, sigma = draw("float32", 10_301, 2, 5, 2.0**-9, 0.0)
    assert disagreements(
        definition.error_stats(out, ref, sigma, U, LIMIT), fused(out, ref, sigma, U, LIMIT)
    ) == []  # fmt: skip


@pytest.mark.usefixtures("small_large")
def test_kept_keys_are_narrowed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where too many keys are kept to be sorted, brackets are laid among them."""
    monkeypatch.setattr(order, "SORTED", 1000)
    out, ref, sigma = draw("float32", 30_000, 3, 3, 2.0**-9, 0.0)
    assert disagreements(
        definition.error_stats(out, ref, sigma, U, LIMIT), fused(out, ref, sigma, U, LIMIT)
    ) == []  # fmt: skip


def test_a_batch_keeps_its_outputs_apart() -> None:
    """Results come in the order of adding, whatever was in the batch before."""
    collected = Batch(CPU, fused=True)
    for turn in range(2):
        cases = [draw("float16", n, n + turn, 5, 2.0**-9, 0.1) for n in (700, 1, 5000, 30, 4096)]
        for out, ref, sigma in cases:
            collected.add(out, ref, sigma, U, LIMIT)
        empty = torch.zeros(0, dtype=torch.float64)
        collected.add(empty.half(), empty, empty, U, None)
        results = collected.results()
        assert len(results) == 6
        assert results[5].count == 0
        for (out, ref, sigma), got in zip(cases, results, strict=False):
            assert disagreements(definition.error_stats(out, ref, sigma, U, LIMIT), got) == []


def test_layout_does_not_matter() -> None:
    """Transposed and strided outputs give what their contiguous copies give."""
    out, ref, sigma = draw("float16", 600, 5, 5, 2.0**-9, 0.0)
    a, b, c = (t.reshape(20, 30).T for t in (out, ref, sigma))
    assert fused(a, b, c, U, None) == fused(a.contiguous(), b.contiguous(), c.contiguous(), U, None)


@given(st.lists(st.integers(0, 40), min_size=7, max_size=300), st.integers(0, 2**31))
@settings(PROFILE, max_examples=60)
def test_resolve_never_guesses(values: list[int], seed: int) -> None:
    """From any brackets: the keys at the wanted ranks, or None."""
    random = np.random.default_rng(seed)
    keys = np.sort(np.array(values, np.int32))
    size = len(keys)
    wanted = []
    for _ in range(3):
        low = int(random.integers(0, size))
        wanted += [low, min(low + 1, size - 1)]
    brackets = np.sort(random.integers(-1, 42, 6)).astype(float)
    counts = [float((keys <= b).sum()) for b in brackets] + [0.0]
    wide = [(a, b) for a, b in zip(brackets[::2], brackets[1::2], strict=True) if b - a > 1]
    kept = [key for key in keys if any(low < key <= high for low, high in wide)]
    bits = torch.tensor([*kept, 0x7F800000, 0x7F800000], dtype=torch.int32)
    found = order.resolve(bits.view(torch.float32), wanted, brackets, np.array(counts))
    if found is not None:
        assert found.astype(np.float32).view(np.int32).tolist() == keys[wanted].tolist()
