"""Exact order statistics of many keys, by sampling brackets around them (Floyd & Rivest 1975).

A sorted sample gives three brackets (low, high] that hold the wanted ranks almost surely. One pass
counts the keys up to every end and keeps the few within a bracket, unless it is a single value,
which many may share. The counts prove the result: if a bracket missed, nothing is guessed. Keys
are float32 errors >= 0; as int32 bits they are in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

#: Elements of a sample, and how many standard deviations of a rank a bracket spans each way.
SAMPLE = 2**17
DEVIATIONS = 5.0
#: So many keys are sorted rather than narrowed.
SORTED = 2**22
#: Programs that share the work: fixed, so that results do not depend on the device.
PROGRAMS = 2112


def room(keys: int) -> int:
    """Places for what a lane that sees so many keys will keep: thrice and more what is expected."""
    return 24 + keys // 12


def ranks(q: float, count: int) -> tuple[int, int]:
    """The two ranks that numpy's default percentile interpolates between."""
    low = int(q * (count - 1))
    return low, min(low + 1, count - 1)


def around(sample: torch.Tensor, wanted: Sequence[int], count: int) -> torch.Tensor:
    """Brackets [6] int32: for each pair of ``wanted`` ranks of count a (low, high] that holds it.

    ``sample`` [n] int32 are keys drawn evenly from all. Where it has a tie at the wanted rank
    that reaches an end of the bracket, the bracket is that value alone: ties may be many.
    """
    from tolcal.stats import narrowing

    size = sample.numel()
    places: list[int] = []
    for low, high in zip(wanted[::2], wanted[1::2], strict=True):
        share = (low + high) / 2 / (count - 1)
        spread = DEVIATIONS * math.sqrt(size * share * (1 - share)) + 2
        first, last = (rank / (count - 1) * (size - 1) for rank in (low, high))
        places += [math.floor(first - spread), round(first), math.ceil(last + spread)]
    places += [0] * (9 - len(places))
    brackets = torch.empty(6, dtype=torch.int32, device=sample.device)
    narrowing.lay[(1,)](sample.sort().values, brackets, size, *places, num_warps=1)
    return brackets


def resolve(
    buffer: torch.Tensor,
    wanted: Sequence[int],
    brackets: npt.NDArray[np.float64],
    counts: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64] | None:
    """The keys of the wanted ranks, in pairs, or None if a bracket missed or keys were dropped.

    ``buffer``: the float32 keys within brackets, padded with inf; ``counts`` [7]: how many keys
    are <= each end of the three brackets; then how often keys were dropped.
    """
    if counts[6]:
        return None
    values = np.zeros(len(wanted))
    kept: list[tuple[int, int]] = []  # which pair -> how many kept keys precede its lower rank
    before = 0
    for k in range(len(wanted) // 2):
        low, high = brackets[2 * k : 2 * k + 2].astype(np.int64).tolist()
        to_low, to_high = counts[2 * k : 2 * k + 2].astype(np.int64).tolist()
        lower, upper = wanted[2 * k : 2 * k + 2]
        if not to_low <= lower <= upper < to_high:
            return None
        if high - low <= 1:
            values[2 * k : 2 * k + 2] = np.int32(high).view(np.float32)
        else:
            kept.append((k, before + lower - to_low))
            before += to_high - to_low
    if kept:
        # Ranks stay in pairs, so that a bracket may be laid around each pair again.
        pairs = [(place, place + wanted[2 * k + 1] - wanted[2 * k]) for k, place in kept]
        chosen = select(buffer, [place for pair in pairs for place in pair])
        for i, (k, _) in enumerate(kept):
            values[2 * k : 2 * k + 2] = chosen[2 * i : 2 * i + 2]
    return values


def select(keys: torch.Tensor, places: Sequence[int]) -> npt.NDArray[np.float64]:
    """The float32 keys at these places of their order; neighbours come in pairs."""
    if keys.numel() > SORTED:
        found = _narrowed(keys, places)
        if found is not None:
            return found
    in_order = keys.sort().values
    chosen = in_order[torch.tensor(list(places), device=keys.device)]
    return chosen.double().cpu().numpy()


def _narrowed(keys: torch.Tensor, places: Sequence[int]) -> npt.NDArray[np.float64] | None:
    from tolcal.stats import narrowing

    size, device = keys.numel(), keys.device
    bits = keys.view(torch.int32)
    stratum = torch.arange(SAMPLE, device=device)
    mixed = (stratum * 6364136223846793005 + 1442695040888963407) >> 33
    width = size // SAMPLE
    sample = bits[stratum * width + (mixed ^ stratum).abs() % width]
    brackets = around(sample, places, size)
    tiles = -(-size // 256)
    # Fewer programs than of the whole output: less of the buffer is left empty.
    programs = PROGRAMS // 8
    capacity = room(tiles * 8 // programs + 8)
    buffer = torch.full((programs * 32 * capacity,), torch.inf, device=device)
    counts = torch.empty((programs, 8), dtype=torch.int64, device=device)
    narrowing.narrow[(programs,)](
        bits, brackets, buffer.view(torch.int32), counts, size, tiles, capacity,
        R=32, E=8, num_warps=1,
    )  # fmt: skip
    host = torch.cat([counts.sum(0).double(), brackets.double()]).cpu().numpy()
    return resolve(buffer, places, host[8:], host[:7])
