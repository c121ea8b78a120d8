import torch


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)
