import math

import torch


def reference(x: torch.Tensor) -> torch.Tensor:
    u = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + torch.tanh(u))
