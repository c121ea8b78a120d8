import torch

BLOCK = 128


def reference(
    a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor
) -> torch.Tensor:
    k = torch.arange(b.shape[0], device=b.device) // BLOCK
    n = torch.arange(b.shape[1], device=b.device) // BLOCK
    return (a * a_scale[:, k]) @ (b * b_scale[k][:, n])
