"""Gradient of LayerNorm with a gain by its input, in float32: one program per row.

With r = 1/sqrt(var(x) + eps), n = (x - mean(x)) r and g = dy w r it is
g - mean(g) - n mean(g n).
"""

import torch
import triton
import triton.language as tl

EPS = 1e-5


@triton.jit
def _layernorm_input_grad_kernel(dy_ptr, x_ptr, w_ptr, dx_ptr, H, eps, BLOCK: tl.constexpr):
    # 64-bit: row * H passes 2^31 in tensors that fit a current GPU.
    start = tl.program_id(0).to(tl.int64) * H
    cols = tl.arange(0, BLOCK)
    mask = cols < H
    dy = tl.load(dy_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    # A lane beyond the row holds 0, which is not the mean.
    centred = tl.where(mask, x - tl.sum(x, axis=0) / H, 0.0)
    r = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / H + eps)
    normed = centred * r
    scaled = dy * r * w
    # n has mean 0, so mean(g n) is that of the centred g too, where less cancels.
    scaled = tl.where(mask, scaled - tl.sum(scaled, axis=0) / H, 0.0)
    dx = scaled - normed * (tl.sum(scaled * normed, axis=0) / H)
    tl.store(dx_ptr + start + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)


def run(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    dy, x, w = dy.contiguous(), x.contiguous(), w.contiguous()
    dx = torch.empty_like(x)
    B, H = x.shape
    BLOCK = triton.next_power_of_2(H)
    _layernorm_input_grad_kernel[(B,)](dy, x, w, dx, H, EPS, BLOCK=BLOCK)
    return dx
