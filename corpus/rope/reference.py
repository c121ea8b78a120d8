import torch


def reference(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    exponent = torch.arange(half, dtype=x.dtype, device=x.device) / half
    angle = positions.to(x.dtype).unsqueeze(-1) * 10000.0**-exponent
    cos, sin = torch.cos(angle).unsqueeze(-2), torch.sin(angle).unsqueeze(-2)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
