"""What a value is: torch's or numpy's, of which dtype, and whether it can be judged at all."""

from __future__ import annotations

import sys
from operator import methodcaller
from typing import Any

import numpy as np

from tolcal.model import DTYPES, TolcalError

#: pytest shows the test's own line of what is refused here, and all of a fault of ours.
__tracebackhide__ = methodcaller("errisinstance", (TolcalError, AssertionError))


def is_torch(value: object) -> bool:
    """Without importing torch: a tensor can't exist before somebody has."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: object) -> bool:
    """Whether this is a tensor or an array."""
    return isinstance(value, np.ndarray) or is_torch(value)


def is_float(value: object) -> bool:
    """Whether this is one whose elements have rounding errors."""
    if is_torch(value):
        return bool(value.dtype.is_floating_point)  # type: ignore[attr-defined]
    return isinstance(value, np.ndarray) and name_of(value) in DTYPES


def name_of(value: Any) -> str:
    """Its dtype, as torch calls it."""
    return str(value.dtype).removeprefix("torch.")


def wide(value: Any) -> Any:
    """In fp64."""
    if is_torch(value):
        return value.detach().to(sys.modules["torch"].float64)
    return np.asarray(value, dtype=np.float64)


def tensor(value: Any, device: Any) -> Any:
    """As a tensor on that device."""
    torch = sys.modules["torch"]
    if isinstance(value, np.ndarray) and name_of(value) == "bfloat16":  # ml_dtypes
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.as_tensor(value, device=device)


def judgeable(value: Any, what: str, *, real: bool) -> None:
    """Raises TolcalError, with what to do, for a value that holds no plain numbers.

    ``real``: it must also be of real numbers. An imaginary part would be dropped with no more than
    a warning.
    """
    if is_torch(value):
        if value.is_meta:
            raise TolcalError(f"{what} is on the meta device, where tensors hold no values")
        if value.is_quantized:
            raise TolcalError(f"{what} is quantized; give .dequantize()")
        if value.is_nested or str(value.layout) != "torch.strided":
            kind = "nested" if value.is_nested else f"sparse ({value.layout})"
            raise TolcalError(f"{what} is {kind}; give a dense tensor, as .to_dense() makes it")
        complex_ = value.dtype.is_complex
    elif real:
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise TolcalError(f"{what} is no array of numbers ({error})") from None
        if value.dtype.kind not in "biufc" and name_of(value) not in DTYPES:
            raise TolcalError(f"{what} is of dtype {value.dtype}, not of numbers")
        complex_ = value.dtype.kind == "c"
    else:
        return
    if real and complex_:
        raise TolcalError(
            f"{what} is {name_of(value)}: only real numbers can be judged; compare real and "
            "imaginary parts each (torch.view_as_real, or .real and .imag)"
        )
