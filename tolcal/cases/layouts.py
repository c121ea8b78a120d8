"""How inputs lie in memory: the same elements, other strides, and strangers around them.

Around the elements lie nan, or the largest integer. A buffer holds at least as many elements as
the tensor, so that a kernel which takes it for contiguous reads those and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tolcal.cases import formats
from tolcal.model import DTYPES

if TYPE_CHECKING:
    import torch

#: Elements that lie between the rows of a sliced tensor, and behind one with an offset.
PAD = 16


def lay_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """A contiguous tensor's elements in a layout.

    transposed: the last two dims are swapped in memory (fewer dims: contiguous).
    sliced: each row, along the last axis, is followed by PAD elements that belong to nobody.
    strided: every second element of each row belongs to nobody.
    expanded: the first dim has stride 0; what is kept are the elements of its index 0.
    offset: the first element lies behind one that belongs to nobody, so it is not aligned.
    A tensor without dims is contiguous in all of them.
    """
    shape = x.shape
    if layout == "contiguous" or not shape:
        return x
    if layout == "transposed":
        return x.mT.contiguous().mT if x.dim() > 1 else x
    if layout == "sliced":
        found = _nobodys(x, (*shape[:-1], shape[-1] + PAD))[..., : shape[-1]]
        return found.copy_(x)
    if layout == "strided":
        return _nobodys(x, (*shape[:-1], 2 * shape[-1]))[..., ::2].copy_(x)
    if layout == "expanded":
        buffer = _nobodys(x, (x.numel(),))
        buffer.view(shape)[:1] = x[:1]
        return buffer.as_strided(shape, (0, *buffer.view(shape).stride()[1:]))
    if layout == "offset":
        buffer = _nobodys(x, (1 + x.numel() + PAD,))
        return buffer[1 : 1 + x.numel()].view(shape).copy_(x)
    raise ValueError(f"unknown layout {layout!r}")


def copy(x: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout in memory of its own, with a copy of what lies around it."""
    storage = x.untyped_storage()
    if x.is_contiguous() and storage.nbytes() == x.numel() * x.element_size():
        return x.clone()
    import torch  # not before: a kernel may have unloaded it, which is no other kernel's fault

    whole = torch.empty(0, dtype=x.dtype, device=x.device).set_(storage)
    return whole.clone().as_strided(x.shape, x.stride(), x.storage_offset())


def _nobodys(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A buffer of x's dtype that holds what must not be read."""
    import torch

    if not x.is_floating_point():
        return torch.full(shape, torch.iinfo(x.dtype).max, dtype=x.dtype, device=x.device)
    nan = formats.patterns(DTYPES[str(x.dtype).removeprefix("torch.")])[formats.NAN]
    integer = formats.bits_of(x).dtype
    return torch.full(shape, nan, dtype=integer, device=x.device).view(x.dtype)
