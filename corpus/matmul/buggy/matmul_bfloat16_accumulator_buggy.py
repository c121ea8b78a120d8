"""Matrix product in rank-1 updates, known to be wrong: bfloat16 between the tiles of k."""

import torch
import triton
import triton.language as tl

BLOCK_M = 32
BLOCK_N = 32
# K = 64, the widest here, makes four of them; up to K = 16 there is one, and no fault.
BLOCK_K = 16


@triton.jit
def _matmul_kernel(
    a_ptr,
    b_ptr,
    y_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # 64-bit: row * K passes 2^31 in matrices that fit a current GPU.
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = rows < M
    col_mask = cols < N
    a_ptrs = a_ptr + rows * K
    b_ptrs = b_ptr + cols
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    # Every product is an IEEE float32 one: TF32 would be a deliberate loss of precision.
    for k in range(K):
        # Fault: what the tiles of k before this one add up to is carried in 8 bits.
        if k % BLOCK_K == 0:
            acc = acc.to(tl.bfloat16).to(tl.float32)
        a = tl.load(a_ptrs, mask=row_mask, other=0.0).to(tl.float32)
        b = tl.load(b_ptrs, mask=col_mask, other=0.0).to(tl.float32)
        acc += a[:, None] * b[None, :]
        a_ptrs += 1
        b_ptrs += N
    y_ptrs = y_ptr + rows[:, None] * N + cols[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=row_mask[:, None] & col_mask[None, :])


def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = a.contiguous(), b.contiguous()
    M, K = a.shape
    N = b.shape[1]
    y = torch.empty((M, N), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(M, BLOCK_M), triton.cdiv(N, BLOCK_N))
    _matmul_kernel[grid](a, b, y, M, N, K, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K)
    return y
