"""Tanh from exp, elementwise, known to be wrong: it cancels near 0."""

import torch
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def _tanh_kernel(x_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    # 64-bit: a flat index passes 2^31 in tensors that fit a current GPU.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    # Built from exp because the interpreter has no libdevice.
    e = tl.exp(2.0 * x)
    # Fault: near 0, e - 1 cancels, and small values lose their digits.
    y = (e - 1.0) / (e + 1.0)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


def run(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    n_elements = x.numel()
    _tanh_kernel[(triton.cdiv(n_elements, BLOCK),)](x, y, n_elements, BLOCK=BLOCK, num_warps=8)
    return y
