"""Product of two e4m3 matrices: a's scales are of 1 x 128 blocks, b's of 128 x 128 ones."""

import torch
import triton
import triton.language as tl

BLOCK = 128  # of k, and of b's columns, that share a scale; also the tile along k
BLOCK_M = 16
BLOCK_N = 32


@triton.jit
def _half(bits):
    """e4m3 numbers, given by their bits, as the same numbers in float16, which holds them all."""
    bits = bits.to(tl.int16)
    # The fields have the same order in both, and the exponents' biases are 7 and 15.
    shifted = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    half = shifted.to(tl.float16, bitcast=True) * 256.0
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), half).to(tl.float16)


@triton.jit
def _fp8_gemm_kernel(
    a_ptr,
    a_scale_ptr,
    b_ptr,
    b_scale_ptr,
    y_ptr,
    M,
    N,
    K,
    BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # 64-bit: row * K passes 2^31 in matrices that fit a current GPU.
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = rows < M
    col_mask = cols < N
    k_blocks = tl.cdiv(K, BLOCK)
    n_blocks = tl.cdiv(N, BLOCK)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block in range(k_blocks):
        ks = block * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
        k_mask = ks < K
        a = tl.load(
            a_ptr + rows[:, None] * K + ks[None, :],
            mask=row_mask[:, None] & k_mask[None, :],
            other=0,
        )
        b = tl.load(
            b_ptr + ks[:, None] * N + cols[None, :],
            mask=k_mask[:, None] & col_mask[None, :],
            other=0,
        )
        a_scale = tl.load(a_scale_ptr + rows * k_blocks + block, mask=row_mask, other=0.0)
        b_scale = tl.load(b_scale_ptr + block * n_blocks + cols // BLOCK, mask=col_mask, other=0.0)
        # Not a product of the e4m3 numbers themselves: sm_90's instruction for those keeps some
        # 14 bits of its sums, and `max_num_imprecise_acc` can only say after how many of k they
        # move to a float32 sum, 32 at the fewest. A product of halves is exact in float32, and
        # the instruction for halves sums in that.
        partial = tl.dot(_half(a), _half(b))
        acc += partial * (a_scale.to(tl.float32)[:, None] * b_scale.to(tl.float32)[None, :])
    y_ptrs = y_ptr + rows[:, None] * N + cols[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=row_mask[:, None] & col_mask[None, :])


def run(
    a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor
) -> torch.Tensor:
    # Bytes, since not every GPU (nor Triton's interpreter) computes with e4m3 numbers.
    a, b = a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
    a_scale, b_scale = a_scale.contiguous(), b_scale.contiguous()
    M, K = a.shape
    N = b.shape[1]
    y = torch.empty((M, N), dtype=a_scale.dtype, device=a.device)
    grid = (triton.cdiv(M, BLOCK_M), triton.cdiv(N, BLOCK_N))
    _fp8_gemm_kernel[grid](
        a, a_scale, b, b_scale, y, M, N, K, BLOCK=BLOCK, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N
    )
    return y
