"""Gradient of RMSNorm by its gain, known to be wrong: rows are added in the order they come in."""

import torch
import triton
import triton.language as tl

EPS = 1e-6


@triton.jit
def _weight_grad_kernel(dy_ptr, x_ptr, dw_ptr, H, eps, BLOCK: tl.constexpr):
    # 64-bit: row * H passes 2^31 in tensors that fit a current GPU.
    start = tl.program_id(0).to(tl.int64) * H
    cols = tl.arange(0, BLOCK)
    mask = cols < H
    dy = tl.load(dy_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / H + eps)
    # Fault: float32 sums are as good in any order, but have other bits in each.
    tl.atomic_add(dw_ptr + cols, dy * (x * r), mask=mask)


def run(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    dy, x = dy.contiguous(), x.contiguous()
    B, H = x.shape
    dw = torch.zeros(H, dtype=torch.float32, device=x.device)
    BLOCK = triton.next_power_of_2(H)
    _weight_grad_kernel[(B,)](dy, x, dw, H, EPS, BLOCK=BLOCK)
    return dw.to(x.dtype)
