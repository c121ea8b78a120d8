"""The subtle known-wrong kernels against their controls: what shows each fault, and what can't."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from tests_support import CORPUS

from tolcal import cases, corpus
from tolcal.measure.worker import load
from tolcal.model import Kernel, Op

CPU = torch.device("cpu")
DTYPES = ("float32", "float16")  # the interpreter has no bfloat16
OPS = corpus.load(CORPUS)
FOUND = {k.name: (op, k) for op in OPS for k in op.kernels if k.subtle}
#: Where six fresh cases show a fault. The rest can show in one case or another, but need not.
SHOWN: dict[str, tuple[str, ...]] = {
    "attention_bfloat16_scores_buggy": DTYPES,
    "causal_attention_finite_mask_buggy": (),  # test_quantized has what shows it
    "cross_entropy_backward_bfloat16_term_buggy": DTYPES,
    "flash_attention_last_tile_buggy": DTYPES,
    "fp8_quantize_zero_block_buggy": (),  # likewise
    "geglu_tanh_buggy": DTYPES,
    "gelu_erf_buggy": DTYPES,
    "l2norm_odd_width_buggy": DTYPES,
    "layernorm_affine_padding_buggy": DTYPES,
    "layernorm_one_pass_buggy": ("float32",),
    "leaky_relu_bfloat16_slope_buggy": DTYPES,
    "matmul_bfloat16_accumulator_buggy": DTYPES,
    "rmsnorm_eps_buggy": ("float32",),
    "rmsnorm_input_grad_contiguous_buggy": (),  # test_norms.py gives it other layouts
    "rmsnorm_weight_grad_bfloat16_products_buggy": DTYPES,
    "sigmoid_log2e_buggy": ("float32",),
    "silu_truncating_store_buggy": ("float16",),
    "softmax_float16_sum_buggy": DTYPES,
    "swiglu_truncating_store_buggy": DTYPES,
    "tanh_cancelling_buggy": ("float32",),
}


def both(op: Op, kernel: Kernel, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """What the control and the kernel make of the same inputs."""
    assert kernel.corrupts is not None
    paths = op.kernel(kernel.corrupts).path, kernel.path
    return [load(path, "run")(**{n: x.clone() for n, x in inputs.items()}) for path in paths]


def innocent(name: str, dtype: str) -> dict[str, torch.Tensor]:
    """Inputs of each kernel that cannot show its fault."""
    made = torch.Generator().manual_seed(7)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=made) * 20 - 10

    # Keys whose later half scores 0 against 4: the maximum never moves.
    falling = torch.cat([torch.ones(16, 16), torch.zeros(16, 16)])
    pair, ones = drawn(1, 16), torch.ones(2, 16)
    unlikely = torch.tensor([[-200.0, 3.0, 4.0], [2.0, 1.0, -200.0]])
    inputs = {
        "attention_bfloat16_scores_buggy": {"q": drawn(2, 16), "k": pair, "v": pair},
        "cross_entropy_backward_bfloat16_term_buggy": {
            "logits": unlikely, "labels": torch.tensor([0, 2]), "grad": torch.tensor([0.3, -7.0])
        },
        "flash_attention_last_tile_buggy": {"q": ones, "k": falling, "v": drawn(32, 16)},
        "geglu_tanh_buggy": {"a": torch.tensor([[0.0, 8.0, 9.5]]), "b": drawn(1, 3)},
        "causal_attention_finite_mask_buggy": {n: drawn(17, 16) for n in ("q", "k", "v")},
        "fp8_quantize_zero_block_buggy": {"x": drawn(2, 300)},
        "gelu_erf_buggy": {"x": torch.tensor([[[0.0, 8.0, 9.5]]])},
        "l2norm_odd_width_buggy": {"x": drawn(2, 3, 256)},
        "layernorm_affine_padding_buggy": {"x": drawn(2, 16), "w": drawn(16), "b": drawn(16)},
        "layernorm_one_pass_buggy": {"x": torch.tensor([[[-3.0, 3.0, -1.0, 1.0]]])},
        "leaky_relu_bfloat16_slope_buggy": {"x": drawn(2, 3, 256).abs()},
        "matmul_bfloat16_accumulator_buggy": {"a": drawn(7, 16), "b": drawn(16, 15)},
        "rmsnorm_eps_buggy": {"x": torch.tensor([[[300.0, 400.0]]])},
        "rmsnorm_input_grad_contiguous_buggy": {
            "dy": drawn(2, 33), "x": drawn(2, 33), "w": drawn(33)
        },
        # Each x / rms is 1, the products are whole numbers.
        "rmsnorm_weight_grad_bfloat16_products_buggy": {
            "dy": drawn(40, 3).round(), "x": torch.full((40, 3), 64.0)
        },
        "sigmoid_log2e_buggy": {"x": torch.tensor([[[0.0, -0.0]]])},
        "silu_truncating_store_buggy": {"x": torch.tensor([[[0.0, -0.0]]])},
        "softmax_float16_sum_buggy": {"x": torch.full((1, 2, 256), 3.0)},
        "swiglu_truncating_store_buggy": {"a": torch.zeros(2, 8), "b": drawn(2, 8)},
        "tanh_cancelling_buggy": {"x": torch.tensor([[[0.0, 9.5, 10.0, -9.5]]])},
    }[name]  # fmt: skip
    return {
        key: value.to(getattr(torch, dtype)) if value.is_floating_point() else value
        for key, value in inputs.items()
    }


def test_no_two_of_one_op() -> None:
    """All are tested here, and each op has one at most."""
    assert set(SHOWN) == set(FOUND)
    assert len({op.name for op, _ in FOUND.values()}) == len(FOUND)


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_cases_show_the_fault(name: str) -> None:
    """In some of a few cases of such a dtype the output is not the control's."""
    op, kernel = FOUND[name]
    for dtype in SHOWN[name]:
        differ = 0
        for case in cases.draw_cases(op, kernel.dims, dtype, 11, 6):
            right, wrong = both(op, kernel, cases.inputs_torch(op, case, CPU))
            assert wrong.dtype == right.dtype
            assert wrong.shape == right.shape
            assert wrong.isfinite().all()
            differ += not torch.equal(right, wrong)
        assert differ, dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_the_fault_is_the_only_difference(name: str, dtype: str) -> None:
    """Where the fault can't show, the output is the control's, bit for bit."""
    op, kernel = FOUND[name]
    right, wrong = both(op, kernel, innocent(name, dtype))
    assert torch.equal(right, wrong)


def test_the_truncating_store_truncates() -> None:
    """float16 is cut toward zero, by one step at most; float32 is left alone."""
    op, kernel = FOUND["silu_truncating_store_buggy"]
    for case in cases.draw_cases(op, kernel.dims, "float16", 11, 4):
        half = cases.inputs_torch(op, case, CPU)
        right, wrong = both(op, kernel, half)
        steps = right.view(torch.int16).int() - wrong.view(torch.int16).int()
        assert ((steps == 0) | (steps == 1)).all()
        right, wrong = both(op, kernel, {"x": half["x"].float()})
        assert torch.equal(right, wrong)
