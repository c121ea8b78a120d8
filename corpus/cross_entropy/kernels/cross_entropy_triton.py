"""Cross-entropy of each row in float32: one program per row, an online logsumexp over tiles."""

import torch
import triton
import triton.language as tl

# Small on purpose: from V = 257 the running maximum can move between tiles.
BLOCK = 256


@triton.jit
def _cross_entropy_kernel(logits_ptr, labels_ptr, loss_ptr, V, BLOCK: tl.constexpr):
    # 64-bit: row * V passes 2^31 in tensors that fit a current GPU.
    row = tl.program_id(0).to(tl.int64)
    start = row * V
    maximum = -float("inf")
    shift = 0.0
    total = 0.0
    for first in range(0, V, BLOCK):
        cols = first + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + start + cols, mask=cols < V, other=-float("inf")).to(tl.float32)
        new_max = tl.maximum(maximum, tl.max(x, axis=0))
        # While every logit so far is -inf, shift by 0: -inf - -inf would be NaN for good.
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)
        total = total * tl.exp(maximum - shift) + tl.sum(tl.exp(x - shift), axis=0)
        maximum = new_max
    chosen = tl.load(logits_ptr + start + tl.load(labels_ptr + row)).to(tl.float32)
    # Not (shift + log(total)) - chosen: where the label has the maximum, the loss is small and
    # would drown in the rounding of the sum.
    loss = tl.log(total) - (chosen - shift)
    tl.store(loss_ptr + row, loss.to(loss_ptr.dtype.element_ty))


def run(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits, labels = logits.contiguous(), labels.contiguous()
    N, V = logits.shape
    loss = torch.empty((N,), dtype=logits.dtype, device=logits.device)
    _cross_entropy_kernel[(N,)](logits, labels, loss, V, BLOCK=BLOCK)
    return loss
