"""Gradient of RMSNorm with a gain by its input, in float32: one program per row.

With r = 1/rms(x), n = x r and g = dy w r it is g - n mean(g n). The gradient may come in any
layout: that of a sum is an expanded scalar, which nobody should have to copy.
"""

import torch
import triton
import triton.language as tl

EPS = 1e-6


@triton.jit
def _rmsnorm_input_grad_kernel(
    dy_ptr, x_ptr, w_ptr, dx_ptr, H, dy_row_stride, dy_col_stride, eps, BLOCK: tl.constexpr
):
    # 64-bit: offsets pass 2^31 in tensors that fit a current GPU.
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK).to(tl.int64)
    mask = cols < H
    dy_offsets = row * dy_row_stride + cols * dy_col_stride
    dy = tl.load(dy_ptr + dy_offsets, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + row * H + cols, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / H + eps)
    normed = x * r
    scaled = dy * r * w
    dx = scaled - normed * (tl.sum(scaled * normed, axis=0) / H)
    tl.store(dx_ptr + row * H + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def run(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x, w = x.contiguous(), w.contiguous()
    dx = torch.empty_like(x)
    B, H = x.shape
    BLOCK = triton.next_power_of_2(H)
    _rmsnorm_input_grad_kernel[(B,)](dy, x, w, dx, H, dy.stride(0), dy.stride(1), EPS, BLOCK=BLOCK)
    return dx
