"""What each input profile draws: fp64 values (and kinds that are no number) from words.

docs/inputs.md has the table. Each profile is one function, for numpy and torch alike.
"""

from __future__ import annotations

from typing import NamedTuple

from tolcal.cases.arrays import Array, Arrays
from tolcal.cases.words import key
from tolcal.model import Case, InputSpec


class Source(NamedTuple):
    """An input of a case, and where its words come from."""

    xp: Arrays
    name: str
    spec: InputSpec
    case: Case
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Elements."""
        return numel(self.shape)

    def words(self, part: str = "", count: int | None = None, first: int = 0) -> Array:
        """The input's words, or those of a ``part`` of its own."""
        start = stream(self.case, self.name, part)
        return self.xp.words(start, self.size if count is None else count, first)


class Drawn(NamedTuple):
    """Flat fp64 values, finite before they are rounded, and kinds as of `formats` or None."""

    value: Array
    kinds: Array | None = None


def stream(case: Case, name: str, part: str = "") -> int:
    """The key of an input's words."""
    return key("input", case.profile, case.seed, name, *([part] if part else []))


def numel(shape: tuple[int, ...]) -> int:
    """Elements of a shape, as a Python integer of any size."""
    count = 1
    for size in shape:
        count *= size
    return count


def unit(xp: Arrays, words: Array) -> Array:
    """Uniform in [0, 1), on a grid of 2^-53."""
    return xp.real((words >> 11) & (2**53 - 1)) * 2.0**-53


def integers(source: Source, words: Array) -> Array:
    """Of an integer input, in every profile: uniform from low up to high, or to a dim's size."""
    spec = source.spec
    low, high = int(spec.low), int(spec.high)
    if spec.below is not None:
        low, high = max(low, 0), dict(source.case.dims)[spec.below]
    span = high - low
    if span <= 2**31:
        return low + ((((words >> 32) & 0xFFFFFFFF) * span) >> 32)
    return low + ((words >> 1) & (2**63 - 1)) % min(span, 2**63 - 1)


def default(source: Source, words: Array) -> Drawn:
    """Uniform in [low, high)."""
    spec = source.spec
    return Drawn(spec.low + (spec.high - spec.low) * unit(source.xp, words))


def draw(source: Source) -> Drawn:
    """The values of an input by the profile of its case."""
    return default(source, source.words())
