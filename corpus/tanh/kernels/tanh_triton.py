"""Tanh from exp, elementwise in float32: one program per 4096 consecutive elements."""

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
    # Built from exp because the interpreter has no libdevice. -2|x| can't overflow.
    magnitude = tl.abs(x)
    e = tl.exp(-2.0 * magnitude)
    far = (1.0 - e) / (1.0 + e)
    far = tl.where(x < 0.0, -far, far)
    # Near 0 the subtraction 1 - e cancels. The Taylor series to x^11 is within 1.3e-8 of tanh,
    # relatively, for |x| < 0.35: below float32's rounding.
    s = x * x
    p = -1382.0 / 155925.0
    p = p * s + 62.0 / 2835.0
    p = p * s - 17.0 / 315.0
    p = p * s + 2.0 / 15.0
    p = p * s - 1.0 / 3.0
    near = x + x * (s * p)
    y = tl.where(magnitude < 0.35, near, far)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


def run(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    n_elements = x.numel()
    _tanh_kernel[(triton.cdiv(n_elements, BLOCK),)](x, y, n_elements, BLOCK=BLOCK, num_warps=8)
    return y
