"""Gradient of each row's cross-entropy by its logits, known to be wrong: one grad for all."""

import torch
import triton
import triton.language as tl

# Small on purpose: from V = 257 the running maximum can move between tiles.
BLOCK = 256


@triton.jit
def _cross_entropy_backward_kernel(
    logits_ptr, labels_ptr, grad_ptr, dlogits_ptr, V, BLOCK: tl.constexpr
):
    # 64-bit: row * V passes 2^31 in tensors that fit a current GPU.
    row = tl.program_id(0).to(tl.int64)
    start = row * V
    label = tl.load(labels_ptr + row)
    # Fault: the first row's grad for every row, as if the losses had been averaged.
    grad = tl.load(grad_ptr).to(tl.float32)

    maximum = -float("inf")
    shift = 0.0
    others = 0.0  # the sum of the exponentials without the label's
    for first in range(0, V, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + start + cols, mask=cols < V, other=-float("inf")).to(tl.float32)
        new_max = tl.maximum(maximum, tl.max(x, axis=0))
        # While every logit so far is -inf, shift by 0: -inf - -inf would be NaN for good.
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)
        e = tl.where(cols == label, 0.0, tl.exp(x - shift))
        others = others * tl.exp(maximum - shift) + tl.sum(e, axis=0)
        maximum = new_max
    own = tl.exp(tl.load(logits_ptr + start + label).to(tl.float32) - shift)
    total = others + own
    # The label's 1 - p is what the others have, and not a difference that cancels near p = 1.
    of_label = -(others / total) * grad

    for first in range(0, V, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + start + cols, mask=cols < V, other=-float("inf")).to(tl.float32)
        d = tl.exp(x - shift) / total * grad
        d = tl.where(cols == label, of_label, d)
        tl.store(dlogits_ptr + start + cols, d.to(dlogits_ptr.dtype.element_ty), mask=cols < V)


def run(logits: torch.Tensor, labels: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    logits, labels, grad = logits.contiguous(), labels.contiguous(), grad.contiguous()
    N, V = logits.shape
    dlogits = torch.empty((N, V), dtype=logits.dtype, device=logits.device)
    _cross_entropy_backward_kernel[(N,)](logits, labels, grad, dlogits, V, BLOCK=BLOCK)
    return dlogits
