"""The fused statistics on a GPU: against their definition, and where only a GPU is large enough."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from agreement import disagreements  # noqa: E402

from tolcal.model import AllClose, ErrorStats, Tolerance  # noqa: E402
from tolcal.stats import Batch, definition, order  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
U = 2.0**-24
LIMIT = Tolerance(atol=1e-4, scaled_tol=3.0, allclose=AllClose(0.0, 0.0))


def draw(name: str, n: int, noise: float, odd: bool) -> tuple[Any, Any, Any]:
    """Output, reference and sigma on the GPU; with ``odd`` some values are not finite."""
    torch.manual_seed(n)
    ref = torch.randn(n, dtype=torch.float64, device="cuda")
    ref *= torch.exp2(torch.randint(-12, 6, (n,), device="cuda").double())
    out = (ref * (1 + noise * torch.randn_like(ref))).to(getattr(torch, name))
    sigma = ref.abs() * torch.rand_like(ref)
    if odd and n > 8:
        ref[5], out[5], out[6], ref[7] = math.nan, math.nan, math.nan, math.inf
    return out, ref, sigma


def fused(*args: Any) -> ErrorStats:
    """The statistics of one output, twice: the same bits."""
    batch = Batch(torch.device("cuda"))
    batch.add(*args)
    batch.add(*args)
    first, second = batch.results()
    assert repr(first) == repr(second)
    return first


@pytest.mark.parametrize("n", [1, 4096, 4097, 70_001])
@pytest.mark.parametrize(
    "name", ["float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn"]
)
def test_agrees_with_the_definition(name: str, n: int) -> None:
    """In every format, sorted together and alone, with values that are not finite."""
    out, ref, sigma = draw(name, n, 2.0**-9, odd=True)
    want = definition.error_stats(out, ref, sigma, U, LIMIT)
    assert disagreements(want, fused(out, ref, sigma, U, LIMIT)) == []


@pytest.mark.parametrize("noise", [0.0, 2.0**-22, 2.0**-6])
@pytest.mark.parametrize("n", [2**20 + 1, 5_000_001])
@pytest.mark.parametrize("name", ["float16", "float32"])
def test_large_outputs_agree(name: str, n: int, noise: float) -> None:
    """Where order statistics come from brackets, with many ties and with none."""
    out, ref, sigma = draw(name, n, noise, odd=False)
    want = definition.error_stats(out, ref, sigma, U, LIMIT)
    assert disagreements(want, fused(out, ref, sigma, U, LIMIT)) == []


def test_brackets_that_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then all keys are sorted, and nothing else changes."""
    out, ref, sigma = draw("float16", 2**20 + 1, 2.0**-6, odd=False)
    expected = fused(out, ref, sigma, U, LIMIT)
    monkeypatch.setattr(order, "resolve", lambda *_: None)
    assert fused(out, ref, sigma, U, LIMIT) == expected


def test_more_elements_than_32_bits_count() -> None:
    """2^31 + 300 elements, of which the last ones are off."""
    n = 2**31 + 300
    ref = torch.ones(n, dtype=torch.float64, device="cuda")
    out = torch.ones(n, dtype=torch.float16, device="cuda")
    out[2**31 + 7 :] = 3.0
    out[2**31 + 299] = math.nan
    batch = Batch(torch.device("cuda"))
    batch.add(out, ref, ref, U, LIMIT)
    (got,) = batch.results()
    assert got.count == n
    assert got.num_exceeding == 293
    assert got.nonfinite_mismatch == 1
    assert got.bias_count == 292
    assert got.bias == 1.0
    assert got.residual_max == math.inf
    assert got.p99_abs == 0.0
    assert got.ref_max == 1.0


def test_a_batch_is_fetched_at_once() -> None:
    """Sixty outputs cost one transfer to the host."""
    from torch.profiler import ProfilerActivity, profile

    outputs = [draw("float16", n, 2.0**-9, odd=False) for n in range(100, 6100, 100)]
    batch = Batch(torch.device("cuda"))
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        for out, ref, sigma in outputs:
            batch.add(out, ref, sigma, U, LIMIT)
        batch.results()
        torch.cuda.synchronize()
    copies = {e.key: e.count for e in seen.key_averages() if "Memcpy DtoH" in e.key}
    assert sum(copies.values()) == 1, copies
