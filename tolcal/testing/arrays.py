"""numpy arrays and torch tensors as what judging takes: one code for both, each where it lies."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from tolcal import cases
from tolcal.model import DTYPES, DType, TolcalError

#: What a reference says of the true value: the op's function was applied, so conditioning is
#: known too; a value wider than the output; a value that has been rounded to the output's dtype.
Kind = Literal["function", "wide", "rounded"]
#: As in `stats`, of whose sensitivity this is the numpy form.
STEP = 2.0**-26
SIGN_VECTORS = 32


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


def is_torch(value: object) -> bool:
    """Without importing torch: a tensor can't exist before somebody has."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


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
    given = _inputs(reference, inputs)
    torches = [v for v in (actual, reference, *given.values()) if is_torch(v)]
    if torches:
        device = actual.device if is_torch(actual) else torches[0].device
        actual = _tensor(actual, device)
        given = {n: _tensor(v, device) if _is_array(v) else v for n, v in given.items()}
    elif not isinstance(actual, np.ndarray):
        raise TolcalError(
            f"actual is a {type(actual).__name__}; give a torch tensor or a numpy array"
        )
    form = _dtype(actual, dtype)
    with _no_grad(actual):
        if callable(reference):
            ref, sigma = _apply(reference, given, actual)
            kind: Kind = "function"
        else:
            ref, sigma = reference, None
            ref = _tensor(ref, actual.device) if is_torch(actual) else np.asarray(ref)
            narrow = _name(ref) == form.name != "float64"
            kind = "rounded" if narrow else "wide"
        if tuple(ref.shape) != tuple(actual.shape):
            raise AssertionError(
                f"the output has shape {list(actual.shape)}, its reference {list(ref.shape)}"
            )
        out = actual.detach() if is_torch(actual) else actual
        return Compared(out, wide(ref), sigma, kind, form, given)


def wide(value: Any) -> Any:
    """In fp64."""
    if is_torch(value):
        return value.detach().to(sys.modules["torch"].float64)
    return np.asarray(value, dtype=np.float64)


def _inputs(reference: Any, inputs: Mapping[str, Any] | Sequence[Any] | None) -> dict[str, Any]:
    if not callable(reference):
        if inputs is not None:
            raise TolcalError(
                "inputs= goes with a reference function; with a reference tensor leave it out"
            )
        return {}
    if inputs is None:
        raise TolcalError(
            "a reference function needs inputs=, what the kernel was given: a mapping of its "
            "parameters, or a sequence in their order"
        )
    if isinstance(inputs, Mapping):
        return dict(inputs)
    try:
        return dict(inspect.signature(reference).bind(*inputs).arguments)
    except (TypeError, ValueError) as error:
        raise TolcalError(
            f"inputs= don't fit the reference function ({error}); give a mapping of its parameters"
        ) from None


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or is_torch(value)


def _is_float(value: object) -> bool:
    if is_torch(value):
        return bool(value.dtype.is_floating_point)  # type: ignore[attr-defined]
    return isinstance(value, np.ndarray) and _name(value) in DTYPES


def _tensor(value: Any, device: Any) -> Any:
    torch = sys.modules["torch"]
    if isinstance(value, np.ndarray) and _name(value) == "bfloat16":  # ml_dtypes
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.as_tensor(value, device=device)


def _name(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _dtype(actual: Any, dtype: Any) -> DType:
    """The format that the output is judged in."""
    has = _name(actual)
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


# --- the reference function -----------------------------------------------------------------


def _apply(reference: Callable[..., Any], given: Mapping[str, Any], actual: Any) -> tuple[Any, Any]:
    """fp64 reference and sigma. Floating-point inputs are widened; others go in as they are."""
    floats = {name: wide(x) for name, x in given.items() if _is_float(x)}
    others = {name: x for name, x in given.items() if name not in floats}
    if not floats:
        raise TolcalError("inputs= holds no floating-point tensor; give the kernel's own inputs")

    def function(**moved: Any) -> Any:
        return reference(**others, **moved)

    copies = {n: x.clone() if is_torch(x) else x.copy() for n, x in floats.items()}
    ref = function(**copies)
    changed = [n for n, x in floats.items() if not _equal(x, copies[n])]
    if changed:
        raise TolcalError(
            f"the reference function changes its input {changed[0]!r}; make it work on a copy"
        )
    if is_torch(ref) != is_torch(actual) or _name(ref) != "float64":
        has = f"{type(ref).__name__} of {getattr(ref, 'dtype', 'no dtype')}"
        raise TolcalError(
            f"the reference function returned a {has}; from float64 inputs it must compute the "
            "same kind of float64"
        )
    if is_torch(ref):
        from tolcal import stats

        signs = {
            name: cases.words_torch(_stream(name), x.numel(), x.device).reshape(x.shape)
            for name, x in floats.items()
        }
        return ref, stats.sensitivity(function, floats, ref, signs)
    return ref, _sensitivity(function, floats, ref)


def _stream(name: str) -> int:
    return cases.key("sigma", 1, name)  # as `cases.sign_words`


def _sensitivity(function: Callable[..., Any], floats: Mapping[str, Any], ref: Any) -> Any:
    """``stats.sensitivity`` for numpy: the same signs, so the same sigma."""
    signs = {n: cases.words_numpy(_stream(n), x.size).reshape(x.shape) for n, x in floats.items()}
    total = np.zeros_like(ref)
    with np.errstate(all="ignore"):
        for vector in range(SIGN_VECTORS):
            moved = {
                name: x
                * (1 + STEP * (1 - 2 * ((signs[name] >> np.uint64(vector)) & 1).astype(float)))
                for name, x in floats.items()
            }
            total += np.square((function(**moved) - ref) / STEP)
        sigma = np.sqrt(total / SIGN_VECTORS)
    return np.where(np.isfinite(sigma), sigma, 0.0)


def _equal(one: Any, other: Any) -> bool:
    same = (one == other) | ((one != one) & (other != other))
    return bool(same.all())


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
