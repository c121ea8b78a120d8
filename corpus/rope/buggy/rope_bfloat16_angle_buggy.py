"""Rotary embedding of the halves of each head, known to be wrong: angles in bfloat16."""

import torch
import triton
import triton.language as tl

THETA = 10000.0


@triton.jit
def _rope_kernel(
    x_ptr, cos_ptr, sin_ptr, y_ptr, Nh, half, x_stride_s, x_stride_h, x_stride_d,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    # 64-bit: offsets pass 2^31 in tensors that fit a current GPU.
    s = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, BLOCK_H).to(tl.int64)
    pairs = tl.arange(0, BLOCK_D).to(tl.int64)
    mask = (heads < Nh)[:, None] & (pairs < half)[None, :]

    cos = tl.load(cos_ptr + s * half + pairs, mask=pairs < half, other=0.0)[None, :]
    sin = tl.load(sin_ptr + s * half + pairs, mask=pairs < half, other=0.0)[None, :]
    x_ptrs = x_ptr + s * x_stride_s + heads[:, None] * x_stride_h
    first = tl.load(x_ptrs + pairs * x_stride_d, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptrs + (half + pairs) * x_stride_d, mask=mask, other=0.0).to(tl.float32)
    y_ptrs = y_ptr + (s * Nh + heads[:, None]) * 2 * half + pairs[None, :]
    y_type = y_ptr.dtype.element_ty
    tl.store(y_ptrs, (first * cos - second * sin).to(y_type), mask=mask)
    tl.store(y_ptrs + half, (second * cos + first * sin).to(y_type), mask=mask)


def run(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    S, Nh, D = x.shape
    half = D // 2
    # Fault: positions, frequencies and their product in bfloat16. Past 256 it has no odd number,
    # near 32768 one in 128, and a turn is 6.28.
    exponent = torch.arange(half, dtype=torch.float64, device=x.device) / half
    angle = positions.to(torch.bfloat16)[:, None] * (THETA**-exponent).to(torch.bfloat16)
    angle = angle.to(torch.float64)
    cos, sin = torch.cos(angle).to(torch.float32), torch.sin(angle).to(torch.float32)
    y = torch.empty((S, Nh, D), dtype=x.dtype, device=x.device)
    _rope_kernel[(S,)](
        x, cos, sin, y, Nh, half, *x.stride(),
        BLOCK_H=triton.next_power_of_2(Nh), BLOCK_D=triton.next_power_of_2(half),
    )  # fmt: skip
    return y
