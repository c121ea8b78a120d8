"""Attention softmax(q k^T / sqrt(D)) v: one program per 16 queries, all keys in one tile."""

import math

import torch
import triton
import triton.language as tl

BLOCK_M = 16


@triton.jit
def _attention_kernel(
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
    keys = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    q_offsets = rows[:, None] * D + dims[None, :]
    q_mask = (rows < M)[:, None] & (dims < D)[None, :]
    kv_offsets = keys[:, None] * D + dims[None, :]
    kv_mask = (keys < N)[:, None] & (dims < D)[None, :]

    # float32 operands with "ieee": a half product is exact in float32, and TF32, the default,
    # would be a deliberate loss of precision.
    q = tl.load(q_ptr + q_offsets, mask=q_mask, other=0.0).to(tl.float32)
    k = tl.load(k_ptr + kv_offsets, mask=kv_mask, other=0.0).to(tl.float32)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where((keys < N)[None, :], scores, -float("inf"))
    p = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    total = tl.sum(p, axis=1)
    v = tl.load(v_ptr + kv_offsets, mask=kv_mask, other=0.0).to(tl.float32)
    y = tl.dot(p, v, input_precision="ieee") / total[:, None]
    tl.store(y_ptr + q_offsets, y.to(y_ptr.dtype.element_ty), mask=q_mask)


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    M, D = q.shape
    N = k.shape[0]
    y = torch.empty_like(q)
    scale = 1.0 / math.sqrt(D)
    _attention_kernel[(triton.cdiv(M, BLOCK_M),)](
        q,
        k,
        v,
        y,
        M,
        N,
        D,
        scale,
        BLOCK_M=BLOCK_M,
        BLOCK_N=max(16, triton.next_power_of_2(N)),  # tl.dot wants at least 16 along each axis
        BLOCK_D=max(16, triton.next_power_of_2(D)),
    )
    return y
