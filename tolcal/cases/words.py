"""The words that everything random is made of: SplitMix64, counted.

Values come from SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number
generators") used as a counter-based generator: element i of a stream is a bijective mix of
``key + (i + 1) * GAMMA``, so it needs no state, and 64-bit integer arithmetic is exact
everywhere. It exists here in a numpy and a torch form that give the same bits; torch's own
generators depend on device and version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tolcal.model import digest

if TYPE_CHECKING:
    import torch

GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def signed(word: int) -> int:
    """A 64-bit word as the int64 of the same bits."""
    return word - 2**64 if word >= 2**63 else word


def key(*parts: object) -> int:
    """A 64-bit stream key named by ``parts``."""
    return int(digest(*parts), 16)


def words_numpy(start: int, count: int, first: int = 0) -> npt.NDArray[np.uint64]:
    """``count`` 64-bit words of a stream, from its word number ``first`` on."""
    with np.errstate(over="ignore"):
        z = np.arange(first + 1, first + count + 1, dtype=np.uint64)
        return mix_numpy(z * np.uint64(GAMMA) + np.uint64(start))


def mix_numpy(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer."""
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
        return z ^ (z >> np.uint64(31))


def words_torch(start: int, count: int, device: Any, first: int = 0) -> torch.Tensor:
    """The same words as int64 bit patterns, on ``device``."""
    import torch

    z = torch.arange(first + 1, first + count + 1, dtype=torch.int64, device=device)
    return mix_torch(z * signed(GAMMA) + signed(start))


def mix_torch(z: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finalizer, of int64 bit patterns."""
    # >> is arithmetic on int64, so the shifted-in sign bits are masked away.
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * signed(MIX_1)
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * signed(MIX_2)
    return z ^ ((z >> 31) & 0x1FFFFFFFF)
