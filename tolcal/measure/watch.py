"""Memory in which it shows what a launch leaves unwritten, and where else it writes.

A tensor in its `Place` has a guard zone before and behind it, of bit patterns that no kernel
writes. As many bytes as a whole number of allocations lie before it, so its address is as aligned
as before, and Triton compiles for it what it compiled. Its storage ends where it would otherwise:
what a kernel does through that (`as_strided`, `set_`) means what it meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tolcal import cases

#: Bytes of a guard zone: several tiles of what a program writes at once.
GUARD = 2**16
#: What untouched memory holds: nan with a payload of our own, so that what is read of it shows.
#: float8_e4m3fn has one nan beside this, the positive one, which `context.Poison` fills with.
_PATTERNS = {
    torch.float64: 0x7FFDA7A7A7A7A7A7,
    torch.float32: 0x7FE7A7A7,
    torch.float16: 0x7EA7,
    torch.bfloat16: 0x7FD7,
    torch.float8_e4m3fn: 0xFF,
    torch.float8_e5m2: 0xFE,
}
_INT = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_KNOWN = frozenset({*_PATTERNS, *_INT.values(), torch.int8})

#: What gives memory that nothing is written to yet.
EMPTY = frozenset({
    torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted,
    torch.Tensor.new_empty, torch.Tensor.new_empty_strided,
})  # fmt: skip
_FILLED = frozenset({
    torch.zeros, torch.zeros_like, torch.Tensor.new_zeros, torch.ones, torch.ones_like,
    torch.Tensor.new_ones, torch.full, torch.full_like, torch.Tensor.new_full,
})  # fmt: skip


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bit patterns of ``x``, as integers of its shape."""
    return x.contiguous().view(_INT[x.element_size()])


def pattern(dtype: torch.dtype) -> int:
    """What untouched elements of a dtype hold, as the integer that `bits` gives."""
    size = dtype.itemsize
    word = _PATTERNS.get(dtype, int.from_bytes(b"\xa7" * size, "little"))
    return word - 2 ** (8 * size) if size > 1 and word >= 2 ** (8 * size - 1) else word


def storage(x: torch.Tensor) -> torch.Tensor:
    """All memory of a tensor, what lies around its elements included, as its bit patterns [n]."""
    raw = torch.empty(0, dtype=torch.uint8, device=x.device)
    raw.set_(x.untyped_storage())
    size = x.element_size()
    return raw[: raw.numel() // size * size].view(_INT[size])


class Place:
    """Memory for ``count`` elements between two guard zones, untouched."""

    def __init__(self, dtype: torch.dtype, count: int, device: torch.device) -> None:
        self.dtype, self.count = dtype, count
        self.before = GUARD // dtype.itemsize
        self.pattern = pattern(dtype)
        self.memory = torch.full(
            (count + 2 * self.before,), self.pattern, dtype=_INT[dtype.itemsize], device=device
        )

    @property
    def inside(self) -> torch.Tensor:
        """[count]: the bit patterns between the guards."""
        return self.memory[self.before : self.before + self.count]

    def tensor(self, size: Iterable[int], stride: Iterable[int], offset: int = 0) -> torch.Tensor:
        """A tensor in the midst of it, whose storage is that: [count] elements.

        It can't grow (`resize_`): RuntimeError.
        """
        width = self.dtype.itemsize
        first, end = self.before * width, (self.before + self.count) * width
        shared = self.memory.untyped_storage()[first:end]  # the same memory
        made = torch.empty(0, dtype=self.dtype, device=self.memory.device)
        return made.set_(shared, offset, tuple(size), tuple(stride))

    def stray(self) -> torch.Tensor:
        """[] int64: elements of the guard zones that were written to."""
        front = self.memory[: self.before]
        behind = self.memory[self.before + self.count :]
        return (front != self.pattern).sum() + (behind != self.pattern).sum()


class Input:
    """A copy of an input between guard zones, laid out as it is, with what lies around it."""

    def __init__(self, original: torch.Tensor) -> None:
        self.original = original
        self.before = storage(original)
        self.place = Place(original.dtype, self.before.numel(), original.device)
        self.place.inside.copy_(self.before)
        self.tensor = self.place.tensor(
            original.size(), original.stride(), int(original.storage_offset())
        )

    def changed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[] int64 each: elements of the input that were written to, and such around it."""
        differing = self.place.inside != self.before
        x = self.original
        if x.is_contiguous() and x.numel() == self.before.numel():
            return differing.sum(), self.place.stray()
        own = torch.zeros_like(differing)
        own.as_strided(x.size(), x.stride(), x.storage_offset()).fill_(True)
        return (differing & own).sum(), (differing & ~own).sum() + self.place.stray()


def alike(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """``values``, of the shape and dtype of ``x``, in memory of their own, laid out as x is.

    What lies around the elements of x lies around these. Where elements of x share memory (an
    expanded dim), the first of ``values`` is that of all.
    """
    laid = target = cases.copy(x)
    for dim, stride in enumerate(x.stride()):
        if stride == 0 and x.shape[dim] > 1:
            target, values = target.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    bits_of(target).copy_(bits(values))
    return laid


def bits_of(x: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, whatever its strides."""
    return x.view(_INT[x.element_size()])


class Watch(TorchFunctionMode):
    """Gives what is allocated under it a `Place`; uninitialised elements stay untouched there."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Place] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if (
            (func not in EMPTY and func not in _FILLED)
            or type(result) is not torch.Tensor
            or result.layout != torch.strided
            or result.dtype not in _KNOWN
            or result.numel() == 0
            or result.device.type == "meta"
            or "out" in (kwargs or {})
        ):
            return result
        span = 1 + sum((n - 1) * s for n, s in zip(result.shape, result.stride(), strict=True))
        place = Place(result.dtype, span, result.device)
        self.places.append(place)
        placed = place.tensor(result.size(), result.stride())
        if func in _FILLED:
            bits_of(placed).copy_(bits_of(result))
        return placed.requires_grad_(result.requires_grad)

    def stray(self, device: torch.device) -> torch.Tensor:
        """[] int64: elements written to in the guard zones of all places on ``device``."""
        total = torch.zeros((), dtype=torch.int64, device=device)
        for place in self.places:
            if place.memory.device == device:
                total += place.stray()
        return total


def unwritten(out: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    """bool: the elements of a watched launch's output that nothing was written to.

    ``plain`` is the output of a launch under `context.Poison`, which fills with torch's nan: a
    kernel that happens to write our pattern does not write that one, too.
    """
    if not out.is_floating_point():
        return torch.zeros_like(out, dtype=torch.bool)  # whose memory `Poison` leaves alone
    filled = bits(torch.full((1,), torch.nan, dtype=out.dtype, device=out.device))
    return (bits(out) == pattern(out.dtype)) & (bits(plain) == filled)


def untouched(out: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    """bool: elements of a watched launch's output with our pattern that ``plain`` lacks there.

    For a launch that is not repeated: what a plain one, of another configuration, wrote, is no
    pattern of ours unless the kernel writes it.
    """
    ours = pattern(out.dtype)
    return (bits(out) == ours) & (bits(plain) != ours)
