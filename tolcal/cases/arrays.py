"""The few array operations that inputs are drawn with, in numpy and in torch.

What they are applied to, and how, is written once (in `profiles`), with operators that numpy and
torch share. All of them are exact, or correctly rounded in fp64, so the bits are the same on
every device: + - * / and comparisons of fp64, operations on int64 that wrap, `where`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from tolcal.cases.words import words_numpy, words_torch

#: A numpy array or a torch tensor, flat.
Array = Any


class Arrays(Protocol):
    """What both forms have."""

    def words(self, start: int, count: int, first: int) -> Array:
        """Words of a stream as int64."""

    def arange(self, count: int) -> Array:
        """0 to count - 1 as int64."""

    def real(self, array: Array) -> Array:
        """int64 to fp64, to nearest."""

    def where(self, condition: Array, one: Array, other: Array) -> Array:
        """Elementwise choice between arrays or numbers."""


class Numpy:
    """On the host."""

    def words(self, start: int, count: int, first: int) -> Array:
        return words_numpy(start, count, first).view(np.int64)

    def arange(self, count: int) -> Array:
        return np.arange(count, dtype=np.int64)

    def real(self, array: Array) -> Array:
        return array.astype(np.float64)

    def where(self, condition: Array, one: Array, other: Array) -> Array:
        return np.where(condition, one, other)


class Torch:
    """On a device."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def words(self, start: int, count: int, first: int) -> Array:
        return words_torch(start, count, self.device, first)

    def arange(self, count: int) -> Array:
        import torch

        return torch.arange(count, dtype=torch.int64, device=self.device)

    def real(self, array: Array) -> Array:
        import torch

        return array.to(torch.float64)

    def where(self, condition: Array, one: Array, other: Array) -> Array:
        import torch

        return torch.where(condition, one, other)
