"""fp64 values into an input's dtype, and its bits that are no finite number.

Bits must not depend on who converts: frameworks and devices differ in the nan that a conversion
gives, and in what becomes of an overflow in 8 bits. So only finite values are converted, 8-bit
ones within their range, and the others are put in as bit patterns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tolcal.model import DTYPES, DType

if TYPE_CHECKING:
    import torch

#: Kinds of values beside the finite ones.
PLUS_INF, MINUS_INF, NAN = 1, 2, 3
_EIGHT = frozenset({"float8_e4m3fn", "float8_e5m2"})


def patterns(dtype: DType) -> dict[int, int]:
    """Bit patterns of the kinds, as signed integers of the format's width.

    A format without infinities has nan in their place.
    """
    inf = (1 << (dtype.bits - 1)) - (1 << (dtype.precision - 1))
    nan = inf | 1 << (dtype.precision - 2)
    sign = 1 << (dtype.bits - 1)
    if not dtype.has_infinity:
        inf = nan = sign - 1
    return {PLUS_INF: inf, MINUS_INF: inf - sign, NAN: nan}


def to_numpy(
    value: npt.NDArray[np.float64], name: str, kinds: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[Any]:
    """Finite fp64 values as dtype ``name``, those of a kind as that.

    Formats that numpy lacks come as bit patterns: bfloat16 as uint16, 8-bit floats as uint8.
    """
    found = _narrow_numpy(value, name)
    if kinds is not None:
        bits = found.view(f"i{found.itemsize}")
        for kind, pattern in patterns(DTYPES[name]).items():
            bits = np.where(kinds == kind, bits.dtype.type(pattern), bits)
        found = bits.view(found.dtype)
    return found


def _narrow_numpy(value: npt.NDArray[np.float64], name: str) -> npt.NDArray[Any]:
    # fp64 -> fp32 -> fewer bits rounds twice, as torch does; one rule for both forms.
    if name == "float64":
        return value
    if name in _EIGHT:
        limit = DTYPES[name].max
        return _eight_bits(value.clip(-limit, limit).astype(np.float32), DTYPES[name])
    with np.errstate(over="ignore"):
        single = value.astype(np.float32)
        if name == "float32":
            return single
        if name == "float16":
            return single.astype(np.float16)
    bits = single.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)


def _eight_bits(value: npt.NDArray[np.float32], dtype: DType) -> npt.NDArray[np.uint8]:
    """Half to even. ``value`` is within the format's range."""
    size = np.abs(value.astype(np.float64))
    exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, dtype.emin), dtype.emin)
    # Counted in the spacing there; a carry into the next exponent comes out right by itself.
    count = np.rint(np.ldexp(size, dtype.precision - 1 - exponent)).astype(np.int64)
    code: npt.NDArray[np.int64] = (
        (exponent - dtype.emin).astype(np.int64) << (dtype.precision - 1)
    ) + count
    code += 128 * np.signbit(value)
    return code.astype(np.uint8)


def to_torch(value: torch.Tensor, name: str, kinds: torch.Tensor | None = None) -> torch.Tensor:
    """`to_numpy` of tensors, on their device."""
    import torch

    if name in _EIGHT:
        value = value.clamp(-DTYPES[name].max, DTYPES[name].max)
    if name != "float64":
        value = value.to(torch.float32)
    found: torch.Tensor = value.to(getattr(torch, name))
    if kinds is not None:
        bits = bits_of(found)
        for kind, pattern in patterns(DTYPES[name]).items():
            bits = torch.where(kinds == kind, torch.full_like(bits, pattern), bits)
        found = bits.view(found.dtype)
    return found


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's elements as signed integers of their width."""
    import torch

    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integer[tensor.element_size()])
