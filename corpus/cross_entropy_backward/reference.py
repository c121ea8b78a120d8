import torch


def reference(logits: torch.Tensor, labels: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    p = torch.softmax(logits, dim=-1)
    labelled = torch.arange(logits.shape[-1], device=logits.device) == labels.unsqueeze(-1)
    # 1 - p of the label is the sum of the others': exact to the last bits where p is close to 1.
    others = (p * ~labelled).sum(dim=-1, keepdim=True)
    return torch.where(labelled, -others, p) * grad.unsqueeze(-1)
