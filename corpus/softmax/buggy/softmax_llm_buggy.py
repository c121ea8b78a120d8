"""Softmax over the last axis in plain torch, known to be wrong: padding enters the sum."""

import torch


def run(x: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    # Fault: "aligns" the width to 128 with zeros, each of which adds exp(0 - max) to the sum.
    wide = torch.nn.functional.pad(wide, (0, -x.shape[-1] % 128))
    e = torch.exp(wide - wide.amax(dim=-1, keepdim=True))
    y = e / e.sum(dim=-1, keepdim=True)
    return y[..., : x.shape[-1]].to(x.dtype)
