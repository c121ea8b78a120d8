"""A case's inputs and sensitivity in Triton against numpy and the definition."""

from __future__ import annotations

import pytest
import torch
from tests_support import CORPUS

from tolcal import cases, corpus, stats
from tolcal.measure import device
from tolcal.measure.worker import load

CPU = torch.device("cpu")
OPS = {op.name: op for op in corpus.load(CORPUS)}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["softmax", "attention"])
def test_inputs_are_those_of_the_torch_form(name: str, dtype: str) -> None:
    """Bit for bit, with the same hash; the fp64 copies are exact."""
    op = OPS[name]
    for case in cases.draw_cases(op, op.kernels[0].dims, dtype, 5, 4):
        inputs, wide, sums = device.draw(op, case, CPU)
        expected = cases.inputs_torch(op, case, CPU)
        assert list(inputs) == list(expected)
        for key, x in expected.items():
            assert torch.equal(inputs[key], x)
            assert torch.equal(wide[key], x.double())
        assert cases.input_hash(sums.tolist()) == cases.input_hash_torch(expected)


@pytest.mark.parametrize("limit", [2**24, 64])
@pytest.mark.parametrize("name", ["softmax", "attention", "matmul", "gelu"])
def test_sensitivity_is_that_of_the_torch_form(
    name: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the order of its sum, whether the sign vectors are taken together or in turns."""
    monkeypatch.setattr(device, "SWAYED_ELEMENTS", limit)
    op = OPS[name]
    reference = load(op.reference_path, "reference")
    for case in cases.draw_cases(op, op.kernels[0].dims, "float32", 6, 2):
        _, wide, _ = device.draw(op, case, CPU)
        ref = reference(**wide)
        expected = stats.sensitivity(reference, wide, ref, cases.sign_words(op, case, CPU))
        torch.testing.assert_close(
            device.sensitivity(reference, wide, ref), expected, rtol=1e-13, atol=0
        )


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [([1.0, 2.0], [1.0, 2.0], 0), ([1.0, 2.0], [1.0, 3.0], 1), ([0.0], [-0.0], 0),
     ([float("nan")], [float("nan")], 0), ([float("nan")], [1.0], 1)],
)  # fmt: skip
def test_differ(a: list[float], b: list[float], differs: int) -> None:
    """By value: zeros are equal, nan is like nan."""
    for dtype in (torch.float32, torch.float16, torch.float8_e5m2):
        pair = [torch.tensor(x).to(dtype) for x in (a, b)]
        assert device.differ(*pair).tolist() == [differs]
