"""A case's inputs and sensitivity in Triton against numpy and the definition."""

from __future__ import annotations

import msgspec
import pytest
import torch
from tests_support import CORPUS

from tolcal import cases, corpus, stats
from tolcal.measure import device
from tolcal.measure.worker import load
from tolcal.model import LAYOUTS, Case, InputSpec

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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("profile", ["default", "edges", "sorted", "nan_injected", "adversarial"])
def test_inputs_of_every_kind_are_those_of_the_torch_form(profile: str, layout: str) -> None:
    """Of profiles that a kernel of ours draws and of others, in each layout, of mixed dtypes."""
    op = msgspec.structs.replace(
        OPS["matmul"],
        inputs={
            "x": InputSpec(("M", "K")), "half": InputSpec(("K/4",), dtype="float16"),
            "gain": InputSpec(("K", "N"), 0.5, 2.0, steady=True),
            "label": InputSpec(("M",), dtype="int64", below="K"),
            "q": InputSpec(("M", "K"), dtype="float8_e5m2"),
            "wide": InputSpec(("M", "K"), -1e6, 1e5, dtype="float16"),  # than its dtype
        },
    )  # fmt: skip
    dims = (("M", 3), ("K", 37), ("N", 2))
    for seed in (6, 9):
        case = Case(op.name, "bfloat16", dims, profile, layout, seed)
        inputs, wide, sums = device.draw(op, case, CPU)
        expected = cases.inputs_torch(op, case, CPU)
        assert list(inputs) == list(expected)
        for name, x in expected.items():
            assert (inputs[name].dtype, inputs[name].stride()) == (x.dtype, x.stride())
            assert inputs[name].storage_offset() == x.storage_offset()
            assert wide[name].is_contiguous()
            torch.testing.assert_close(wide[name], cases.widened(x), rtol=0, atol=0, equal_nan=True)
        assert cases.input_hash(sums.tolist()) == cases.input_hash_torch(expected)
        assert cases.input_hash_torch(inputs) == cases.input_hash_torch(expected)


@pytest.mark.parametrize("limit", [2**24, 64])
@pytest.mark.parametrize("name", ["softmax", "attention", "matmul", "gelu"])
def test_sensitivity_is_that_of_the_torch_form(
    name: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the order of its sum, whether the sign vectors are taken together or in turns.

    A library's products may differ in their last bit by how many are asked for at once: that is up
    to 2^-53 of outputs whose differences are about 2^-24 of them.
    """
    monkeypatch.setattr(device, "SWAYED_ELEMENTS", limit)
    op = OPS[name]
    reference = load(op.reference_path, "reference")
    for case in cases.draw_cases(op, op.kernels[0].dims, "float32", 6, 2):
        _, wide, _ = device.draw(op, case, CPU)
        ref = reference(**wide)
        expected = stats.sensitivity(reference, wide, ref, cases.sign_words(op, case, CPU))
        products = name in ("attention", "matmul")
        torch.testing.assert_close(
            device.sensitivity(reference, wide, ref), expected,
            rtol=2.0**-26 if products else 1e-13, atol=0,
        )  # fmt: skip


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
