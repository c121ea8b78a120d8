"""Input values as bit patterns: what each is worth, and the simpler ones near it.

Arrays are those of ``cases.inputs_numpy``: floats as numpy's own dtypes, bfloat16 as uint16 and
8-bit floats as uint8 patterns, integers as they are. Kept as patterns, an element that nobody
touches keeps every bit (a nan its payload).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from tolcal import cases
from tolcal.model import DTYPES, INTEGERS, Case, InputSpec

Array = npt.NDArray[np.generic]
Values = Mapping[str, Array]


def decode(array: Array, dtype: str) -> npt.NDArray[np.float64]:
    """The numbers that patterns of ``dtype`` are. Integers beyond 2^53 are rounded."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if dtype.startswith("float8"):
        return _EIGHT[dtype][array.astype(np.intp)]
    return array.astype(np.float64)


def encode(value: float, dtype: str) -> np.generic:
    """The pattern of a number that ``dtype`` has. ValueError if it has not."""
    made: np.generic
    if dtype in INTEGERS:
        made = np.dtype(dtype).type(int(value))
    elif dtype == "bfloat16":
        made = np.uint16(int(np.float32(value).view(np.uint32)) >> 16)
    elif dtype.startswith("float8"):
        table = _EIGHT[dtype]
        same = (table == value) & (np.signbit(table) == (math.copysign(1.0, value) < 0))
        if not same.any():
            raise ValueError(f"{value!r} is no {dtype}")
        made = np.uint8(int(np.argmax(same)))
    else:
        with np.errstate(over="ignore"):
            made = np.dtype(dtype).type(value)
    if decode(np.array([made]), dtype)[0] != value:
        raise ValueError(f"{value!r} is no {dtype}")
    return made


def _table(dtype: str) -> npt.NDArray[np.float64]:
    """All 256 numbers of an 8-bit format, by pattern."""
    form = DTYPES[dtype]
    stored = form.precision - 1
    top = (1 << (7 - stored)) - 1  # the largest exponent field
    table = []
    for pattern in range(256):
        field, mantissa = (pattern & 0x7F) >> stored, pattern & ((1 << stored) - 1)
        significand = mantissa + (field > 0) * (1 << stored)
        value = math.ldexp(significand, max(field, 1) - 1 + form.emin - stored)
        if form.has_infinity and field == top:
            value = math.nan if mantissa else math.inf
        elif not form.has_infinity and (pattern & 0x7F) == 0x7F:
            value = math.nan
        table.append(-value if pattern & 0x80 else value)
    return np.array(table)


_EIGHT = {name: _table(name) for name in DTYPES if name.startswith("float8")}


# --- simpler --------------------------------------------------------------------------------


def simplest(spec: InputSpec, case: Case) -> float:
    """The simplest value that an input may hold: 0 if it may, else 1, else its least."""
    low, high = span(spec, case)
    return next((v for v in (0.0, 1.0) if low <= v <= high), low)


def span(spec: InputSpec, case: Case) -> tuple[float, float]:
    """Least and largest value that an input may be given.

    What its domain allows, if it has one; every finite number, if it is drawn from numbers of both
    signs. Others may mean something that must not be 0 (a scale), so they keep their range.
    """
    if spec.is_integer:
        top = dict(case.dims)[spec.below] if spec.below is not None else spec.high
        return (0.0 if spec.below is not None else spec.low), top - 1
    most = DTYPES[cases.dtype_of(spec, case)].max
    if spec.domain is not None:
        return max(spec.domain[0], -most), min(spec.domain[1], most)
    if spec.low <= 0.0 <= spec.high:
        return -most, most
    return max(-most, min(spec.low, most)), max(-most, min(spec.high, most))


def significant_bits(value: float) -> int:
    """From the first to the last one of a finite number: 1 for a power of two, 0 for 0."""
    number = int(math.ldexp(math.frexp(value)[0], 53))
    return number.bit_length() - (number & -number).bit_length() + 1 if number else 0


def complexity(value: float) -> tuple[int, int, bool]:
    """What makes one number simpler than another: its bits, how far from 1 it is, its sign."""
    if value == 0:
        return (0, 0, math.copysign(1.0, value) < 0)
    if not math.isfinite(value):
        return (99, 0, value < 0)
    return (significant_bits(value), abs(math.frexp(value)[1] - 1), value < 0)


def rounded(value: float, bits: int) -> float:
    """To ``bits`` significant bits, half away from zero."""
    mantissa, exponent = math.frexp(value)
    scaled = math.floor(abs(math.ldexp(mantissa, bits)) + 0.5)
    return math.copysign(math.ldexp(scaled, exponent - bits), value)


def simpler(value: float, precision: int, low: float, high: float) -> Iterator[float]:
    """Finite numbers near ``value`` that are simpler than it, the simplest first."""
    if not math.isfinite(value) or value == 0:
        return
    sign = math.copysign(1.0, value)
    tried = {1.0, sign, 2 * sign}
    tried |= {rounded(value, bits) for bits in range(1, precision)}
    if abs(value) < 2.0**52:
        whole = math.floor(abs(value) + 0.5)
        tried |= {sign * float(number) for number in (whole, whole + 1, whole - 1) if number > 0}
    tried |= {abs(number) for number in tried}
    for number in sorted(tried, key=lambda v: (complexity(v), abs(v - value))):
        if complexity(number) < complexity(value) and low <= number <= high:
            yield number
