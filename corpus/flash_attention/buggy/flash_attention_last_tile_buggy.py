"""Attention softmax(q k^T / sqrt(D)) v in tiles, known to be wrong: acc in the last one."""

import math

import torch
import triton
import triton.language as tl

BLOCK_M = 16
# Small on purpose: from N = 17 the running maximum can move between tiles.
BLOCK_N = 16


@triton.jit
def _flash_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    y_ptr,
    M,
    N,
    D,
    scale,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    q_offsets = rows[:, None] * D + dims[None, :]
    q_mask = (rows < M)[:, None] & (dims < D)[None, :]

    # float32 operands with "ieee": a half product is exact in float32, and TF32, the default,
    # would be a deliberate loss of precision.
    q = tl.load(q_ptr + q_offsets, mask=q_mask, other=0.0).to(tl.float32)
    running_max = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start in range(0, N, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        kv_offsets = keys.to(tl.int64)[:, None] * D + dims[None, :]
        kv_mask = (keys < N)[:, None] & (dims < D)[None, :]
        k = tl.load(k_ptr + kv_offsets, mask=kv_mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + kv_offsets, mask=kv_mask, other=0.0).to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where((keys < N)[None, :], scores, -float("inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        # While every score so far is -inf, shift by 0: -inf - -inf would be NaN for good.
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)
        rescale = tl.exp(running_max - shift)
        p = tl.exp(scores - shift[:, None])
        total = total * rescale + tl.sum(p, axis=1)
        # Fault: in the last tile acc keeps the old maximum's scale; the denominator doesn't.
        kept = tl.where(start + BLOCK_N >= N, 1.0, rescale)
        acc = acc * kept[:, None] + tl.dot(p, v, input_precision="ieee")
        running_max = new_max
    y = acc / total[:, None]
    tl.store(y_ptr + q_offsets, y.to(y_ptr.dtype.element_ty), mask=q_mask)


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    M, D = q.shape
    N = k.shape[0]
    y = torch.empty_like(q)
    scale = 1.0 / math.sqrt(D)
    _flash_attention_kernel[(triton.cdiv(M, BLOCK_M),)](
        q,
        k,
        v,
        y,
        M,
        N,
        D,
        scale,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        BLOCK_D=max(16, triton.next_power_of_2(D)),  # tl.dot wants at least 16 along each axis
    )
    return y
