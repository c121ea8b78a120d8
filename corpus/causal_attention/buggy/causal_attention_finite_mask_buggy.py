"""Causal attention with an online softmax, known to be wrong: a finite number masks scores."""

import math

import torch
import triton
import triton.language as tl

BLOCK = 16  # queries of a program, and keys of a tile: the last tile is the one on the diagonal


@triton.jit
def _causal_attention_kernel(
    q_ptr, k_ptr, v_ptr, y_ptr, S, D, scale, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr
):
    first = tl.program_id(0) * BLOCK
    rows = first + tl.arange(0, BLOCK)
    dims = tl.arange(0, BLOCK_D)
    # 64-bit: row * D passes 2^31 in tensors that fit a current GPU.
    q_offsets = rows.to(tl.int64)[:, None] * D + dims[None, :]
    q_mask = (rows < S)[:, None] & (dims < D)[None, :]

    # float32 operands with "ieee": a half product is exact in float32, and TF32, the default,
    # would be a deliberate loss of precision.
    q = tl.load(q_ptr + q_offsets, mask=q_mask, other=0.0).to(tl.float32)
    running_max = tl.full((BLOCK,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    acc = tl.zeros((BLOCK, BLOCK_D), dtype=tl.float32)
    for start in range(0, first + BLOCK, BLOCK):
        keys = start + tl.arange(0, BLOCK)
        kv_offsets = keys.to(tl.int64)[:, None] * D + dims[None, :]
        kv_mask = (keys < S)[:, None] & (dims < D)[None, :]
        k = tl.load(k_ptr + kv_offsets, mask=kv_mask, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + kv_offsets, mask=kv_mask, other=0.0).to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        # Keys past the end are later than every query that is stored.
        seen = keys[None, :] <= rows[:, None]
        # Fault: where all scores of a row are lower than this, what it must not see weighs most.
        scores = tl.where(seen, scores, -5e4)
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        rescale = tl.exp(running_max - new_max)
        p = tl.exp(scores - new_max[:, None])
        total = total * rescale + tl.sum(p, axis=1)
        acc = acc * rescale[:, None] + tl.dot(p, v, input_precision="ieee")
        running_max = new_max
    y = acc / total[:, None]
    tl.store(y_ptr + q_offsets, y.to(y_ptr.dtype.element_ty), mask=q_mask)


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    S, D = q.shape
    y = torch.empty_like(q)
    BLOCK_D = max(16, triton.next_power_of_2(D))  # tl.dot wants at least 16 along each axis
    _causal_attention_kernel[(triton.cdiv(S, BLOCK),)](
        q, k, v, y, S, D, 1.0 / math.sqrt(D), BLOCK=BLOCK, BLOCK_D=BLOCK_D
    )
    return y
