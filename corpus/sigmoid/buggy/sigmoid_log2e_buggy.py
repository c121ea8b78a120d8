"""Sigmoid, elementwise, known to be wrong: log2(e) is cut to five digits."""

import torch
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def _sigmoid_kernel(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    # 64-bit: a flat index passes 2^31 in tensors that fit a current GPU.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    # With a non-positive argument exp can't overflow, and e / (1 + e) keeps the left tail's digits.
    # Fault: log2(e) is 1.442695041, so the exponent is off by 3.4e-6 of itself.
    e = tl.exp2(-tl.abs(x) * 1.4427)
    y = tl.where(x < 0.0, e, 1.0) / (1.0 + e)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


def run(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    n_elements = x.numel()
    _sigmoid_kernel[(triton.cdiv(n_elements, BLOCK),)](x, y, n_elements, BLOCK=BLOCK, num_warps=8)
    return y
