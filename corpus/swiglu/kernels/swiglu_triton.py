"""SwiGLU silu(a) * b, elementwise in float32: one program per 512 or 1024 elements, autotuned."""

import os
from collections.abc import Callable

import torch
import triton
import triton.language as tl


def _untimed(call: Callable[[], None], quantiles: tuple[float, ...]) -> tuple[float, ...]:
    """In the place of the autotuner's clock, which needs a GPU: the first config wins."""
    call()
    return (0.0,) * len(quantiles)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 1024}), triton.Config({"BLOCK": 512})],
    key=[],  # one choice for all sizes: timing takes longer than everything that is run here
    do_bench=_untimed if os.environ.get("TRITON_INTERPRET") == "1" else None,
)
@triton.jit
def _swiglu_kernel(a_ptr, b_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    # 64-bit: a flat index passes 2^31 in tensors that fit a current GPU.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    a = tl.load(a_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    silu = a * (1.0 / (1.0 + tl.exp(-a)))
    y = silu * b
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    n_elements = a.numel()
    _swiglu_kernel[lambda config: (triton.cdiv(n_elements, config["BLOCK"]),)](a, b, y, n_elements)
    return y
