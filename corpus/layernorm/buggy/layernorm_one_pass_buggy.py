"""LayerNorm over the last axis, no affine, in plain torch, known to be wrong: it cancels."""

import torch

EPS = 1e-5


def run(x: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    mean = wide.mean(dim=-1, keepdim=True)
    # Fault: E[x^2] - E[x]^2 cancels where a row's mean is large beside its spread.
    variance = (wide * wide).mean(dim=-1, keepdim=True) - mean * mean
    # Rounding alone can take it below 0.
    variance = variance.clamp(min=0.0)
    y = (wide - mean) / torch.sqrt(variance + EPS)
    return y.to(x.dtype)
