"""GELU, elementwise, known to be wrong: the exact form where the tanh form is meant."""

import torch
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def _gelu_kernel(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    # 64-bit: a flat index passes 2^31 in tensors that fit a current GPU.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    # Fault: x times the normal distribution function; the tanh form is up to 4.7e-4 away.
    # sqrt(1 / 2) = 0.7071067812
    y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


def run(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    n_elements = x.numel()
    _gelu_kernel[(triton.cdiv(n_elements, BLOCK),)](x, y, n_elements, BLOCK=BLOCK, num_warps=8)
    return y
