"""Tests that use the calibrated tolerances: ``assert_close``, ``tolerance``, a pytest plugin.

Arrays are numpy's or torch's; torch is used only where tensors are its own. The plugin
(``tolcal.testing.plugin``) is found by pytest by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tolcal.model import DTYPES, NAME, TolcalError
from tolcal.testing import arrays, cells
from tolcal.testing.cells import UncalibratedError
from tolcal.testing.judging import judge
from tolcal.testing.message import failure
from tolcal.testing.observing import observers

__all__ = [
    "UncalibratedError",
    "UncalibratedWarning",
    "assert_close",
    "tolerance",
    "tolerance_override",
]

Fallback = Literal["torch"]
#: ``torch.testing.assert_close``'s defaults, (rtol, atol); the fp8 formats have none there.
TORCH_DEFAULTS = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
}


class UncalibratedWarning(UserWarning):
    """torch's default tolerance was used: nobody has measured this op and dtype."""


def assert_close(
    actual: Any,
    reference: Callable[..., Any] | Any,
    *,
    op: str,
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    dtype: Any = None,
    kernel: str | None = None,
    compute_dtype: str | None = None,
    tolerances: str | Path | None = None,
    fallback: Fallback | None = None,
) -> None:
    """Asserts that a kernel's output is within the calibrated tolerance of its op and dtype.

    An element passes if ``residual <= atol + scaled_tol*u*(|ref| + sigma)``: ``residual`` is
    ``|out - ref|`` beyond half the gap of the two output numbers around ``ref``, ``sigma`` is how
    far relative input errors move ``ref``. Non-finite values must match by position and kind; the
    bias is judged over at least 1,024 elements with an error.

    Args:
        actual: what the kernel returned: a torch tensor, CPU or GPU, or a numpy array. On a GPU
            all is computed there and a handful of numbers comes back.
        reference: best, the op's reference function, in fp64; it is applied to ``inputs``
            widened to float64. Or its value as a float64 array: then sigma is unknown, and the
            cell's ``allclose`` pair is judged, less the rounding that it contains. A value that
            is already in the kernel's dtype was itself rounded and gets one more half gap; for
            the bias each error's size is taken to be a quarter of a gap off. What lies between
            (float32 for a float16 kernel) counts as exact.
        op: the op's name, as in ``tolerances.toml``.
        inputs: what the kernel was given: a mapping of the reference function's parameters, or a
            sequence in their order. Floating-point arrays are widened and perturbed, anything else
            goes in as it is.
        dtype: the kernel's output dtype (default: that of ``actual``). numpy arrays of float32
            or float64 may hold values of a narrower one.
        kernel: the control's name in records (default: the op's).
        compute_dtype: what u belongs to (default: as the cell's evidence says, else float32, or
            float64 for float64 outputs). It must be what the evidence says; without evidence it
            may only be finer than the default; without a cell, for records, it may be any.
        tolerances: the file (default: the nearest ``tolerances.toml`` above the calling file).
        fallback: ``"torch"``: if the cell is uncalibrated, warn and use torch's defaults.

    Raises:
        AssertionError: if the output is outside: how much, the worst, the bound, its evidence.
        UncalibratedError: if there is no cell, unless ``fallback`` or ``--tolcal-record`` is given.
        TolcalError: for a call or a file that can't be judged by.
    """
    __tracebackhide__ = True
    for name in (op, kernel or op):
        if not NAME.fullmatch(name):
            raise TolcalError(f"{name!r} is no name of an op or kernel: it matches {NAME.pattern}")
    if fallback not in (None, "torch"):
        raise TolcalError(f"fallback={fallback!r}: only None and 'torch' are known")
    compared = arrays.compare(actual, reference, inputs, dtype)
    form, device = compared.dtype, arrays.device_class(compared.out)
    found: cells.Found | None = None
    missing: UncalibratedError | None = None
    try:
        found = cells.find(op, form.name, device, Path(tolerances) if tolerances else None)
    except UncalibratedError as error:
        missing = error
    u = _unit(form.name, compute_dtype, found)
    for observer in observers:
        observer.compared(op, kernel or op, compared, u, found)
    if found is None:
        if fallback == "torch":
            try:
                _torch_defaults(compared, str(missing))
            except AssertionError:
                _failed()
                raise
        elif not any(observer.records for observer in observers):
            assert missing is not None
            raise missing
        return
    judgement = judge(compared, found.values, u)
    for observer in observers:
        observer.judged(op, form.name, judgement)
    if not judgement.passes:
        _failed()
        raise AssertionError(failure(op, compared, found, judgement, u))


def tolerance(
    op: str, dtype: Any, *, device: str = "cpu", tolerances: str | Path | None = None
) -> dict[str, float]:
    """``{"atol": ..., "rtol": ...}`` for ``torch.testing.assert_close(out, ref, **...)``.

    The pair includes the rounding of output and reference: ``ref`` may be in the kernel's dtype.
    ``device`` is a device class (``sm_90``) whose override holds, if there is one. Raises
    UncalibratedError if there is no cell.
    """
    name = str(dtype).removeprefix("torch.")
    path = Path(tolerances) if tolerances else None
    pair = cells.find(op, name, device, path).values.allclose
    return {"atol": pair.atol, "rtol": pair.rtol}


def tolerance_override(
    op: str, *, device: str = "cpu", tolerances: str | Path | None = None
) -> dict[Any, Any]:
    """``{torch.float16: tol(atol=..., rtol=...), ...}``, what OpInfo's ``toleranceOverride`` takes.

    Of all dtypes that the op has cells for. Raises UncalibratedError if it has none, TolcalError if
    torch's test helpers can't be imported: they need ``expecttest``.
    """
    try:
        import torch
        from torch.testing._internal.common_device_type import tol
    except ImportError as error:
        lacks = (error.name or "").split(".")[0]
        remedy = f"pip install {lacks}" if lacks in ("torch", "expecttest") else "mend that first"
        raise TolcalError(f"torch's OpInfo helpers can't be imported ({error}): {remedy}") from None
    result = {}
    missing: UncalibratedError | None = None
    for name in DTYPES:
        try:
            pair = tolerance(op, name, device=device, tolerances=tolerances)
        except UncalibratedError as error:
            missing = error
            continue
        result[getattr(torch, name)] = tol(**pair)
    if not result and missing is not None:
        raise missing
    return result


def _failed() -> None:
    for observer in observers:
        observer.failed()


def _unit(dtype: str, compute_dtype: str | None, found: cells.Found | None) -> float:
    """u: what the cell was fitted in, else as asked for, else that of fp32 (fp64 for fp64).

    Raises TolcalError for a ``compute_dtype`` that would stretch the bound of a cell.
    """
    __tracebackhide__ = True
    usual = "float64" if dtype == "float64" else "float32"
    if compute_dtype is not None and compute_dtype not in DTYPES:
        raise TolcalError(f"compute_dtype {compute_dtype!r}: known are {', '.join(DTYPES)}")
    asked = DTYPES[compute_dtype or usual].roundoff
    if found is None:
        return asked  # nothing is judged by it: the record says in which unit it is
    evidence = found.values.evidence
    fitted = evidence.roundoff if evidence else None
    if fitted and compute_dtype and asked != fitted:
        raise TolcalError(
            f"compute_dtype {compute_dtype!r}: {found.where} was fitted with u = {fitted:g}, not "
            f"{asked:g}; leave it out, or, if the kernel now computes in {compute_dtype}, measure "
            "and approve again (tolerances= may name a file without the cell meanwhile)"
        )
    if not fitted and asked > DTYPES[usual].roundoff:
        raise TolcalError(
            f"compute_dtype {compute_dtype!r}: {found.where} rests on no evidence, so u may not be "
            f"coarser than that of {usual}; leave it out, or measure and approve the cell"
        )
    return fitted or asked


def _torch_defaults(compared: arrays.Compared, missing: str) -> None:
    """Judged as torch.testing would, in float64, with a warning."""
    __tracebackhide__ = True
    import numpy as np

    dtype = compared.dtype.name
    if dtype not in TORCH_DEFAULTS:
        raise TolcalError(f"torch has no default tolerance for {dtype}; {missing}")
    rtol, atol = TORCH_DEFAULTS[dtype]
    message = f"judged by torch's defaults (rtol={rtol:g}, atol={atol:g}): {missing}"
    warnings.warn(message, UncalibratedWarning, stacklevel=3)
    if compared.torch:
        import torch

        ref = compared.ref.to(compared.out.dtype)
        torch.testing.assert_close(compared.out, ref, rtol=rtol, atol=atol)
    else:
        out, ref = arrays.wide(compared.out), arrays.round_to(compared.ref, compared.dtype)
        np.testing.assert_allclose(out, ref, rtol=rtol, atol=atol)
