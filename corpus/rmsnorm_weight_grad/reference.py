import torch


def reference(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    normed = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6)
    return (dy * normed).sum(dim=-2)
