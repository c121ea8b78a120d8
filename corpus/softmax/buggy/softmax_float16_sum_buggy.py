"""Softmax over the last axis, known to be wrong: the denominator is summed in float16."""

import torch
import triton
import triton.language as tl


@triton.jit
def _softmax_kernel(x_ptr, y_ptr, H, BLOCK: tl.constexpr):
    # 64-bit: row * H passes 2^31 in tensors that fit a current GPU.
    start = tl.program_id(0).to(tl.int64) * H
    cols = tl.arange(0, BLOCK)
    mask = cols < H
    x = tl.load(x_ptr + start + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=0))
    # Fault: tl.sum adds in the dtype it is given, so each partial sum is rounded to 11 bits.
    y = e / tl.sum(e.to(tl.float16), axis=0).to(tl.float32)
    tl.store(y_ptr + start + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def run(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    H = x.shape[-1]
    BLOCK = triton.next_power_of_2(H)
    _softmax_kernel[(x.numel() // H,)](x, y, H, BLOCK=BLOCK)
    return y
