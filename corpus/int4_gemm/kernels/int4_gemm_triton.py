"""x times int4 weights, two to a byte along k, each 32 of k with a scale: tiles of 64 k."""

import torch
import triton
import triton.language as tl

GROUP = 32
BLOCK_M = 8
BLOCK_N = 16
BLOCK_K = 64  # two groups


@triton.jit
def _int4_gemm_kernel(
    x_ptr,
    q_ptr,
    scales_ptr,
    y_ptr,
    M,
    N,
    K,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # 64-bit: row * K passes 2^31 in matrices that fit a current GPU.
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = rows < M
    col_mask = cols < N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        ks = start + tl.arange(0, BLOCK_K).to(tl.int64)
        k_mask = ks < K
        w_mask = k_mask[:, None] & col_mask[None, :]
        x = tl.load(
            x_ptr + rows[:, None] * K + ks[None, :],
            mask=row_mask[:, None] & k_mask[None, :],
            other=0.0,
        ).to(tl.float32)
        # Byte k // 2 holds the weights of an even k in its low nibble, of the odd k in its high.
        packed = tl.load(q_ptr + (ks // 2)[:, None] * N + cols[None, :], mask=w_mask, other=0)
        nibbles = (packed.to(tl.int32) >> ((ks % 2) * 4).to(tl.int32)[:, None]) & 15
        groups = ks // GROUP
        scales = tl.load(scales_ptr + groups[:, None] * N + cols[None, :], mask=w_mask, other=0.0)
        # A weight of 4 bits times a scale of 24 is rounded once here, one of 11 or 8 is exact.
        w = (nibbles - 8).to(tl.float32) * scales.to(tl.float32)
        # Sums of products and not tl.dot: its TF32 would be a deliberate loss of precision, and its
        # IEEE form is no matrix instruction either. All elements are summed in the same order.
        acc += tl.sum(x[:, :, None] * w[None, :, :], axis=1)
    y_ptrs = y_ptr + rows[:, None] * N + cols[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=row_mask[:, None] & col_mask[None, :])


def run(x: torch.Tensor, q: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    x, q, scales = x.contiguous(), q.contiguous(), scales.contiguous()
    M, K = x.shape
    N = q.shape[1]
    y = torch.empty((M, N), dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(M, BLOCK_M), triton.cdiv(N, BLOCK_N))
    # Without fused multiply-adds: they round one product of a pair, and which of them is a matter
    # of where the element lies in its tile.
    _int4_gemm_kernel[grid](
        x, q, scales, y, M, N, K,
        GROUP=GROUP, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, enable_fp_fusion=False,
    )  # fmt: skip
    return y
