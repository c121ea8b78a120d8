"""numpy arrays and torch tensors as what judging takes: one code for both, each where it lies."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import Any, Literal

import msgspec
import numpy as np

from tolcal.model import DTYPES, DType, TolcalError
from tolcal.testing import reference as op
from tolcal.testing.kinds import is_array, judgeable, name_of, tensor
from tolcal.testing.kinds import is_torch as is_torch
from tolcal.testing.kinds import wide as wide

#: pytest shows the test's own line of what is refused here, and all of a fault of ours.
__tracebackhide__ = methodcaller("errisinstance", (TolcalError, AssertionError))

#: What a reference says of the true value: the op's function was applied, so conditioning is
#: known too; a value wider than the output; a value that has been rounded to the output's dtype.
Kind = Literal["function", "wide", "rounded"]


class Compared(msgspec.Struct, frozen=True):
    """An output beside its reference, on one device."""

    out: Any  # numpy array or torch tensor, as the kernel gave it
    ref: Any  # fp64, of the same shape and kind
    sigma: Any | None  # fp64, None where there is no reference function
    kind: Kind
    dtype: DType
    inputs: Mapping[str, Any]  # of the reference function, as given

    @property
    def torch(self) -> bool:
        """Whether these are torch tensors."""
        return is_torch(self.out)


def compare(
    actual: Any,
    reference: Any,
    inputs: Mapping[str, Any] | Sequence[Any] | None,
    dtype: Any,
) -> Compared:
    """Checks and converts what ``assert_close`` was given.

    Raises AssertionError for outputs of another shape or dtype than expected, TolcalError for a
    call that can't be judged.
    """
    given = op.inputs_of(reference, inputs)
    named = {"actual": actual, **{f"inputs= {n!r}": x for n, x in given.items()}}
    if not callable(reference):
        named["reference"] = reference
    torches = [v for v in named.values() if is_torch(v)]
    if not torches and not isinstance(actual, np.ndarray):
        raise TolcalError(
            f"actual is a {type(actual).__name__}; give a torch tensor or a numpy array"
        )
    for what, value in named.items():
        judgeable(value, what, real=what in ("actual", "reference"))
    if torches:
        device = actual.device if is_torch(actual) else torches[0].device
        actual = tensor(actual, device)
        given = {n: tensor(v, device) if is_array(v) else v for n, v in given.items()}
    form = _dtype(actual, dtype)
    with _no_grad(actual):
        if callable(reference):
            ref, sigma = op.apply(reference, given, actual)
            kind: Kind = "function"
        else:
            ref, sigma = reference, None
            ref = tensor(ref, actual.device) if is_torch(actual) else np.asarray(ref)
            narrow = name_of(ref) == form.name != "float64"
            kind = "rounded" if narrow else "wide"
        if tuple(ref.shape) != tuple(actual.shape):
            raise AssertionError(
                f"the output has shape {list(actual.shape)}, its reference {list(ref.shape)}"
            )
        out = actual.detach() if is_torch(actual) else actual
        return Compared(out, wide(ref), sigma, kind, form, given)


def _dtype(actual: Any, dtype: Any) -> DType:
    """The format that the output is judged in."""
    has = name_of(actual)
    wanted = has if dtype is None else str(dtype).removeprefix("torch.")
    if dtype is not None and not isinstance(dtype, str) and wanted not in DTYPES:
        with contextlib.suppress(TypeError):
            wanted = np.dtype(dtype).name  # np.float16 itself
    if wanted not in DTYPES:
        raise TolcalError(f"dtype {wanted}: known are {', '.join(DTYPES)}")
    # numpy lacks most of the narrow formats: float32 arrays may hold their values.
    holds = isinstance(actual, np.ndarray) and has in ("float32", "float64")
    if has != wanted and not holds:
        raise AssertionError(f"the output is {has}, {wanted} expected")
    return DTYPES[wanted]


def _no_grad(value: Any) -> contextlib.AbstractContextManager[Any]:
    if is_torch(value):
        return sys.modules["torch"].no_grad()  # type: ignore[no-any-return]
    return contextlib.nullcontext()


# --- formats --------------------------------------------------------------------------------


def gap(ref: Any, dtype: DType) -> Any:
    """``stats.gap`` for both kinds."""
    if is_torch(ref):
        from tolcal import stats

        return stats.gap(ref, dtype)
    exponent = ((np.ascontiguousarray(ref).view(np.int64) >> 52) & 0x7FF) - 1023
    return np.ldexp(1.0, np.maximum(exponent, dtype.emin) - dtype.precision + 1)


def round_to(ref: Any, dtype: DType) -> Any:
    """``stats.round_to`` for both kinds."""
    if is_torch(ref):
        from tolcal import stats

        return stats.round_to(ref, dtype)
    if dtype.name == "float64":
        return ref
    spacing = gap(ref, dtype)
    with np.errstate(invalid="ignore"):
        rounded = np.round(ref / spacing) * spacing
        return np.where(np.abs(rounded) > dtype.max, rounded * np.inf, rounded)


def device_class(value: Any) -> str:
    """``sm_90``, ``gfx942`` or ``cpu``, as `Environment.device_class` has it."""
    if not is_torch(value) or value.device.type != "cuda":
        return "cpu"
    return _gpu_class(value.device.index)


@functools.cache
def _gpu_class(index: int | None) -> str:
    torch = sys.modules["torch"]
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        return str(properties.gcnArchName.split(":")[0])
    return f"sm_{properties.major}{properties.minor}"
