"""RMSNorm over the last axis, no gain, known to be wrong: layer norm's epsilon."""

import torch
import triton
import triton.language as tl

EPS = 1e-5  # Fault: 1e-6 is meant.


@triton.jit
def _rmsnorm_kernel(x_ptr, y_ptr, H, eps, BLOCK: tl.constexpr):
    # 64-bit: row * H passes 2^31 in tensors that fit a current GPU.
    start = tl.program_id(0).to(tl.int64) * H
    cols = tl.arange(0, BLOCK)
    mask = cols < H
    x = tl.load(x_ptr + start + cols, mask=mask, other=0.0).to(tl.float32)
    mean_square = tl.sum(x * x, axis=0) / H
    rms = tl.sqrt(mean_square + eps)
    y = x / rms
    tl.store(y_ptr + start + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def run(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    H = x.shape[-1]
    BLOCK = triton.next_power_of_2(H)
    _rmsnorm_kernel[(x.numel() // H,)](x, y, H, EPS, BLOCK=BLOCK)
    return y
