"""In which way a record fails, if it does: what a smaller case must have in common with it."""

from __future__ import annotations

import math

import msgspec

from tolcal import bounds, compare
from tolcal.compare import exact
from tolcal.model import (
    DTYPES,
    Case,
    ErrorStats,
    Op,
    Record,
    TolcalError,
    Tolerance,
    Values,
    one_line,
    plural,
)


class Failure(msgspec.Struct, frozen=True):
    """A way to fail, and what was observed and what is allowed, in words.

    ``way`` is ``crashed NAME`` (of the exception or signal), ``timeout``, ``kinds`` (finite, inf,
    nan), ``elements`` (by the elementwise bound), ``envelope`` (by it, between two points of the
    grid alone), ``bias``, ``check NAME``, or ``outside`` (of a known-wrong kernel: outside the
    domain, by kinds that are not its control's).
    """

    way: str
    text: str
    over: float = float("inf")  # how many times the elementwise bound, where that fails


def of(record: Record, tolerance: Tolerance | float | None) -> Failure | None:
    """How ``record`` fails, judged as a verdict judges it; None if it doesn't.

    Args:
        record: of any status.
        tolerance: approved for its cell, in units of its own roundoff; or a hand-picked atol on
            |out - rounded reference|, which is what its ``num_exceeding`` counts against then.
    """
    if record.status == "crashed":
        name = record.reason.removeprefix("at import: ").partition(":")[0]
        return Failure(f"crashed {name}", f"raised or died: {one_line(record.reason, 240)}")
    if record.status == "timeout":
        return Failure("timeout", f"hung: {one_line(record.reason, 240)}")
    if record.status != "ok" or record.stats is None:
        return None
    stats = record.stats
    if isinstance(tolerance, float):
        if failed := _by_hand(stats, tolerance):
            return failed
    elif tolerance is not None:
        rows = compare.judged([record])
        if bounds.exceeds(rows, tolerance)[0]:
            values = tolerance.for_device(record.run.environment.device_class)
            if stats.nonfinite_mismatch:
                return _kinds(stats)
            used = bounds.elementwise(rows, tolerance)[0]
            if used > 1.0:
                over = f"{used:.3g}x the bound" if used < float("inf") else "nothing is allowed"
                exceeding = stats.num_exceeding
                counted = "" if exceeding is None else f", {exceeding} of {stats.count} elements"
                return Failure(
                    "elements" if exceeding != 0 else "envelope",
                    f"largest residual {stats.residual_max:.3g}, {allowed(record, values):.3g} of "
                    f"it allowed at the median element ({over}{counted})",
                    float(used),
                )
            return Failure("bias", f"bias {stats.bias:+.3f}, {values.bias_tol} allowed")
    if record.checks is not None and record.checks.failed:
        name = record.checks.failed[0]
        count = getattr(record.checks, name)
        far = f" ({exact.relations_of(record.checks)})" if name == "broken" else ""
        return Failure(f"check {name}", f"{plural(count, 'element')} {name}{far}, 0 allowed")
    if record.outside is not None and record.outside.differing:
        return Failure(
            "outside",
            f"{record.outside.differing} of {plural(record.outside.count, 'element')} outside the "
            "domain are finite where its control's are not, or the other way round; 0 allowed",
        )
    return None


def _kinds(stats: ErrorStats) -> Failure:
    return Failure(
        "kinds",
        f"{stats.nonfinite_mismatch} of {stats.count} values are not finite where the reference "
        "is, or the other way round; 0 allowed",
    )


def _by_hand(stats: ErrorStats, atol: float) -> Failure | None:
    """By a hand-picked atol."""
    if stats.nonfinite_mismatch:
        return _kinds(stats)
    if not stats.num_exceeding:
        return None
    used = stats.max_abs / atol if atol else math.inf
    over = f"{used:.3g}x, " if atol else ""
    return Failure(
        "elements",
        f"largest error {stats.max_abs:.3g}, {atol:.3g} allowed by the hand-picked atol "
        f"({over}{stats.num_exceeding} of {stats.count} elements)",
        used,
    )


def holding(
    tolerance: Tolerance | float | None, op: Op, device_class: str
) -> Tolerance | float | None:
    """What holds on one device class, as if it did on all, in units of the op's roundoff."""
    if tolerance is None or isinstance(tolerance, float):
        return tolerance
    scaled = compare.in_units_of(tolerance, DTYPES[op.compute_dtype].roundoff)
    assert scaled is not None
    values = scaled.for_device(device_class)
    fields = {name: getattr(values, name) for name in Values.__struct_fields__}
    return Tolerance(**fields)


def allowed(record: Record, values: Values) -> float:
    """What is allowed of the residual (half an output gap left out) at the median element."""
    stats = record.stats
    assert stats is not None
    scale = stats.scale_quantiles[1] if stats.scale_quantiles else 0.0
    return values.atol + values.scaled_tol * record.roundoff * scale


def need_tolerance(op: Op, case: Case) -> TolcalError:
    """There is nothing to judge by, and nothing crashed."""
    return TolcalError(
        f"{op.name}/{case.dtype} has no approved tolerance to judge {case.dims_text} by; approve "
        "one (`tolcal calibrate`, `tolcal approve`), name a file with --tolerances, or write a "
        "hand-picked one under [legacy_atol] in op.toml"
    )
