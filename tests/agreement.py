"""How far the fused statistics may be from their definition, as `tolcal.stats.batch` states."""

from __future__ import annotations

import math
from typing import Any

from tolcal.model import ErrorStats

#: Fields that are the same number in both.
EQUAL = (
    "count", "num_exceeding", "max_ulp", "ref_max", "scale_quantiles", "scale_abs_quantiles",
    "bias_count", "nonfinite_mismatch",
)  # fmt: skip
#: Within so many float32 spacings of each other.
SPACINGS = {"max_abs": 1, "p50_abs": 1, "p90_abs": 1, "p99_abs": 1, "mean_abs": 1, "mean_ulp": 1,
            "ref_rms": 1}  # fmt: skip


def disagreements(want: ErrorStats, got: ErrorStats) -> list[str]:
    """One line for each field of ``got`` that is not what it may be beside ``want``."""
    assert want.residual_max is not None
    found = []
    for name in want.__struct_fields__:
        a, b = getattr(want, name), getattr(got, name)
        pairs = zip(a, b, strict=True) if isinstance(a, tuple) else [(a, b)]
        if not all(_agree(name, x, y, want.residual_max) for x, y in pairs):
            found.append(f"{name}: {a} by definition, {b} fused")
    return found


def _agree(name: str, a: Any, b: Any, residual: float) -> bool:
    if a == b or (a is not None and math.isnan(a) and math.isnan(b)):
        return True
    if name in EQUAL or a is None or b is None or math.isinf(a):
        return False
    if name in SPACINGS:
        spacing = max(2.0**-149, math.ldexp(1.0, math.frexp(a)[1] - 24))
        return abs(a - b) <= SPACINGS[name] * spacing
    if math.isinf(b):  # rounded up past the largest float32
        return bool(a > 3.4028e38) and name not in ("bias", "mean_rel")
    if name == "bias":  # a quotient of sums that may cancel
        return abs(a - b) <= 2.0**-23 * max(abs(a), 2.0**-20)
    if name == "mean_rel":
        return abs(a - b) <= 2.0**-20 * a + 2.0**-149
    if name == "residual_max":
        return a <= b <= a * (1 + 2.0**-21) + 2.0**-148
    if name in ("max_rel", "scaled_max", "scaled_max_abs"):
        # Of subnormals a scale in fp32 keeps few bits.
        return a <= b and (b <= a * (1 + 2.0**-18) or b > 1e30)
    assert name in ("envelope", "envelope_abs")
    return a <= b <= a + 2.0**-20 * residual + 2.0**-139
