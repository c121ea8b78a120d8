import torch


def reference(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    return (dy * (centred / torch.sqrt(variance + 1e-5))).sum(dim=-2)
