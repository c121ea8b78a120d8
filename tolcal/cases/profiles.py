"""What each input profile draws: fp64 values, and kinds that are no number, from words.

docs/inputs.md has the table. Each profile is one function, for numpy and torch alike. Profiles
that differ from ``default`` by their sizes alone have none here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from tolcal.cases import formats
from tolcal.cases.arrays import Array, Arrays
from tolcal.cases.words import key
from tolcal.model import DTYPES, Case, DType, InputSpec

#: Profiles whose values are those of ``default``.
LIKE_DEFAULT = frozenset({"default", "boundary", "regular", "edges", "large"})
#: Profiles of few different values, or where few are large beside the others: what errors lean to
#: there is the rounding of those few.
OF_FEW = frozenset({"constant_rows", "one_hot", "integers", "adversarial"})
#: How long the blocks are that profile ``sparse`` sets to 0, along the last axis.
BLOCK = 128
#: Classes of profile ``adversarial``: the published ones, and the turns that take one alone.
ZERO, SMALL, LARGE, WIDE, NONFINITE = range(5)
MIXED = 5  # turns 5 and 7; 6 is a mixture of the finite ones
TURNS = 8


class Source(NamedTuple):
    """An input of a case, and where its words come from."""

    xp: Arrays
    name: str
    place: int  # among the op's inputs
    spec: InputSpec
    case: Case
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Elements."""
        return numel(self.shape)

    @property
    def width(self) -> int:
        """Elements of a row, which lies along the last axis."""
        return self.shape[-1] if self.shape else 1

    @property
    def format(self) -> DType:
        """Of a float input."""
        return DTYPES[self.dtype]

    def words(self, part: str = "", count: int | None = None, first: int = 0) -> Array:
        """The input's words, or those of a ``part`` of its own."""
        start = stream(self.case, self.name, part)
        return self.xp.words(start, self.size if count is None else count, first)

    def rows(self, words: Array) -> Array:
        """A word a row, for each of the row's elements."""
        return words[self.xp.arange(self.size) // self.width]


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


def draw(source: Source) -> Drawn:
    """The values of a float input by the profile of its case, in the range of its dtype."""
    profile = "default" if source.spec.steady else source.case.profile
    if profile in LIKE_DEFAULT:
        return as_default(source, source.words())
    return _within(source, DRAWS[profile](source))


def as_default(source: Source, words: Array) -> Drawn:
    """`default` in the range of the dtype: each element is made of its own word alone."""
    drawn = default(source, words)
    return _within(source, drawn) if leaves(source.spec, source.dtype) else drawn


def leaves(spec: InputSpec, dtype: str) -> bool:
    """Whether low or high is beyond the largest number of a float dtype."""
    most = DTYPES[dtype].max
    return spec.low < -most or spec.high > most


def _within(source: Source, drawn: Drawn) -> Drawn:
    """No larger than the largest number of the dtype: only non-finite profiles give infinities."""
    most = source.format.max
    value = source.xp.where(drawn.value > most, most, drawn.value)
    return drawn._replace(value=source.xp.where(value < -most, -most, value))


def integers(source: Source, words: Array) -> Array:
    """Of an integer input, in every profile: uniform from low up to high, or to a dim's size."""
    spec = source.spec
    low, high = int(spec.low), int(spec.high)
    if spec.below is not None:
        low, high = max(low, 0), dict(source.case.dims)[spec.below]
    span = high - low
    if span <= 2**31:
        return low + _under(words >> 32 & 0xFFFFFFFF, span)
    return low + ((words >> 1) & (2**63 - 1)) % min(span, 2**63 - 1)


def _under(words: Array, span: int) -> Array:
    """32-bit words to 0 .. span - 1, span at most 2^31."""
    return (words * span) >> 32


def unit(xp: Arrays, words: Array) -> Array:
    """Uniform in [0, 1), on a grid of 2^-53."""
    return xp.real((words >> 11) & (2**53 - 1)) * 2.0**-53


def uniform(xp: Arrays, spec: InputSpec, words: Array) -> Array:
    """fp64 in [low, high), of words."""
    return spec.low + (spec.high - spec.low) * unit(xp, words)


def default(source: Source, words: Array) -> Drawn:
    """Uniform in [low, high)."""
    return Drawn(uniform(source.xp, source.spec, words))


# --- values ---------------------------------------------------------------------------------


def normal(source: Source) -> Drawn:
    """Nearly normal: N(0, 1) where the range is -10 to 10, and within the range everywhere.

    The sum of twelve uniforms has variance 1 (Irwin-Hall): they are 16-bit, so it is exact.
    """
    spec, total = source.spec, source.xp.arange(source.size) * 0
    for part in range(3):
        words = source.words(f"normal {part}")
        for at in (0, 16, 32, 48):
            total = total + ((words >> at) & 0xFFFF)
    deviate = source.xp.real(2 * total + 12 - 12 * 65536) * 2.0**-17
    return Drawn((spec.low + spec.high) / 2 + (spec.high - spec.low) / 20 * deviate)


def shifted(source: Source) -> Drawn:
    """Far from 0 for their spread: a tenth of the range wide, around 10 times its largest.

    Of a range without a positive number around its negative: what has a sign keeps it.
    """
    spec = source.spec
    center = 10 * max(abs(spec.low), abs(spec.high))
    if spec.high <= 0:
        center = -center
    spread = (spec.high - spec.low) / 10
    return Drawn(center + spread * (unit(source.xp, source.words()) - 0.5))


def tiny(source: Source) -> Drawn:
    """``default`` times 2^-20."""
    return Drawn(default(source, source.words()).value * 2.0**-20)


def huge(source: Source) -> Drawn:
    """``default`` times 2^10."""
    return Drawn(default(source, source.words()).value * 2.0**10)


def sparse(source: Source) -> Drawn:
    """Seven elements of eight are 0, and so are whole blocks, and whole rows: one of each eight."""
    width = source.width
    blocks = -(-width // BLOCK)  # a row
    index = source.xp.arange(source.size)
    row = index // width
    block = row * blocks + index % width // BLOCK
    words = source.words()
    kept = (words & 7) == 0  # the value takes none of the lowest bits
    kept = kept & ((source.words("rows", source.size // width)[row] & 7) != 0)
    kept = kept & ((source.words("blocks", source.size // width * blocks)[block] & 7) != 0)
    return Drawn(source.xp.where(kept, default(source, words).value, 0.0))


def constant_rows(source: Source) -> Drawn:
    """One value a row."""
    words = source.words("rows", source.size // source.width)
    return default(source, source.rows(words))


def in_order(source: Source) -> Drawn:
    """Ascending along each row: an element from each of as many equal parts of the range."""
    spec, xp = source.spec, source.xp
    place = xp.real(xp.arange(source.size) % source.width) + unit(xp, source.words())
    width = xp.real(xp.arange(1) + source.width)  # by a number torch would multiply its inverse
    return Drawn(spec.low + (spec.high - spec.low) * (place / width))


def one_hot(source: Source) -> Drawn:
    """One element a row that is not 0."""
    words = source.words("rows", source.size // source.width)
    place = _under(source.rows(words) >> 32 & 0xFFFFFFFF, source.width)
    chosen = source.xp.arange(source.size) % source.width == place
    return Drawn(source.xp.where(chosen, default(source, source.words()).value, 0.0))


def whole(source: Source) -> Drawn:
    """Whole numbers from -8 to 8 within the range; the one nearest its middle if it holds none."""
    low, high = source.spec.low, source.spec.high
    least, most = max(-8, math.ceil(low)), min(8, math.floor(high))
    if least > most:
        least = most = round((low + high) / 2)
    return Drawn(
        source.xp.real(least + _under(source.words() >> 32 & 0xFFFFFFFF, most - least + 1))
    )


def subnormal(source: Source) -> Drawn:
    """Subnormal numbers of the dtype, of every size and of the range's signs; some are 0."""
    words = source.words()
    bits = source.format.precision - 1
    count = (words >> 8 & (2**bits - 1)) >> (words >> 1 & 127) % bits
    sign = source.xp.where((words & 1) == 0, 1, -1)
    if source.spec.low >= 0 or source.spec.high <= 0:
        sign = 1 if source.spec.low >= 0 else -1
    return Drawn(source.xp.real(count * sign) * source.format.tiny)


def nan_injected(source: Source) -> Drawn:
    """``default``, but one element of twenty is nan, +inf, -inf or 0."""
    words = source.words()
    hit = source.words("hits")
    kind = source.xp.where((hit & 0xFFFF) < 3277, 1 + (hit >> 16 & 3), 0)  # 4: zero
    value = source.xp.where(kind == 4, 0.0, default(source, words).value)
    return Drawn(value, source.xp.where(kind == 4, 0, kind))


# --- adversarial ----------------------------------------------------------------------------


def adversarial(source: Source) -> Drawn:
    """The published classes, alone and mixed, by the case's turn (`choose.draw_cases`).

    Turns 0 to 4 take one class for every input, 5 and 7 mix all of them element by element, 6
    the finite ones. From turn 8 on each further input is one turn ahead of the one before.
    """
    xp, words, other = source.xp, source.words(), source.words("classes")
    turn = source.case.seed % (2 * TURNS)
    turn = (turn + source.place) % TURNS if turn >= TURNS else turn
    if turn < MIXED:
        which = words * 0 + turn
    else:
        count = NONFINITE if turn == 6 else NONFINITE + 1
        which = _under(other >> 32 & 0xFFFFFFFF, count)
    centered = 2 * unit(xp, words) - 1
    small = xp.where((other & 1) == 0, subnormal(source).value, _smallest(source, other))
    value = xp.where(which == SMALL, small, 0.0)
    value = xp.where(which == LARGE, source.format.max / 10 * centered, value)
    value = xp.where(which == WIDE, 1e3 * centered, value)
    return Drawn(
        value, xp.where(which == NONFINITE, formats.PLUS_INF + (other >> 1 & 0xFFFF) % 3, 0)
    )


def _smallest(source: Source, words: Array) -> Array:
    """Normal numbers next to the subnormal ones: four binades."""
    power = source.xp.real(1 << (words >> 2 & 3))
    sign = source.xp.where((words & 16) == 0, 1.0, -1.0)
    fraction = 1 + source.xp.real(words >> 8 & 1023) * 2.0**-10
    return fraction * power * sign * 2.0**source.format.emin


DRAWS: dict[str, Callable[[Source], Drawn]] = {
    "nan_injected": nan_injected,
    "adversarial": adversarial,
    "normal": normal,
    "shifted": shifted,
    "tiny": tiny,
    "huge": huge,
    "sparse": sparse,
    "constant_rows": constant_rows,
    "sorted": in_order,
    "one_hot": one_hot,
    "integers": whole,
    "subnormal": subnormal,
}
