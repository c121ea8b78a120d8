"""L2 normalisation over the last axis, known to be wrong: odd widths lose an element."""

import torch
import triton
import triton.language as tl

EPS = 1e-12


@triton.jit
def _l2norm_kernel(x_ptr, y_ptr, H, eps, BLOCK: tl.constexpr):
    # 64-bit: row * H passes 2^31 in tensors that fit a current GPU.
    start = tl.program_id(0).to(tl.int64) * H
    cols = tl.arange(0, BLOCK)
    mask = cols < H
    x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
    # Fault: whole pairs alone are summed, so that an odd row's last element is left out.
    paired = cols < tl.where(H > 1, H // 2 * 2, 1)
    sum_square = tl.sum(tl.where(paired, x * x, 0.0), axis=0)
    norm = tl.sqrt(sum_square + eps)
    y = x / norm
    tl.store(y_ptr + start + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def run(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    H = x.shape[-1]
    BLOCK = triton.next_power_of_2(H)
    _l2norm_kernel[(x.numel() // H,)](x, y, H, EPS, BLOCK=BLOCK)
    return y
