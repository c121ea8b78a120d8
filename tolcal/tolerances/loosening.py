"""Whether one cell is looser than another: for the hook, and for what a comment may approve."""

from __future__ import annotations

import math

from tolcal.model import DTYPES, Tolerance, Values

#: Growth below this is rounding.
SLACK = 1.01


def unit(dtype: str, values: Values | None = None) -> float:
    """u of the compute dtype: as the evidence says, else that of fp32 (fp64 for fp64)."""
    if values is not None and values.evidence and values.evidence.roundoff:
        return values.evidence.roundoff
    return DTYPES["float64" if dtype == "float64" else "float32"].roundoff


def loosened(dtype: str, old: Values, new: Values) -> str:
    """How ``new`` is looser than ``old``, "" if it isn't.

    atol and scaled_tol are fitted together, so one may grow while the tolerance tightens: they
    are weighed at the median element of the evidence, as proposals are, or, where it is not
    known, by the geometric mean over all scales. The others count if those two stay.
    """
    was_slope, slope = (v.scaled_tol * unit(dtype, v) for v in (old, new))
    if (new.atol, slope) != (old.atol, was_slope):
        scale = next((v.evidence.scale for v in (new, old) if v.evidence), None)
        if scale is not None:
            before, after = old.atol + was_slope * scale, new.atol + slope * scale
        elif min(new.atol - old.atol, slope - was_slope) >= 0:
            before, after = 1.0, math.inf
        else:
            before, after = old.atol * was_slope, new.atol * slope
        if after > SLACK * before:
            if scale is None or before == 0:
                return f"atol {old.atol:g} -> {new.atol:g}, " + (
                    f"scaled_tol {old.scaled_tol:g} -> {new.scaled_tol:g}"
                    + (
                        f" of {unit(dtype, new):.3g}"
                        if unit(dtype, new) != unit(dtype, old)
                        else ""
                    )
                )
            return f"{after / before:.3g}x at the median element"
        return ""
    for keys, now in new.numbers.items():
        was = old.numbers[keys]
        if (math.inf if now is None else now) > (math.inf if was is None else was):
            now_text = "not judged" if now is None else f"{now:g}"
            return f"{'.'.join(keys)} {was:g} -> {now_text}"
    return ""


def loosened_anywhere(dtype: str, old: Tolerance | None, new: Tolerance) -> str:
    """How ``new`` is looser than ``old`` in general or on a single device class, "" if it isn't."""
    if old is None:
        return ""
    found = loosened(dtype, old, new)
    for device in sorted({*old.on, *new.on}):
        if not found and (why := loosened(dtype, old.for_device(device), new.for_device(device))):
            found = f"on {device}: {why}"
    return found
