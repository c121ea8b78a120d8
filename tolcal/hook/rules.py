"""What a tolerance file must not say, beyond what its types say."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import msgspec

from tolcal import tomlfile
from tolcal.model import DTYPES, Cell, Tolerance, Values, round_up
from tolcal.project import Outline
from tolcal.tolerances import Problem
from tolcal.tolerances.loosening import loosened, unit

#: An override within this factor of its cell, in every number, is not worth its upkeep.
OVERRIDE_FACTOR = 1.5
REMEDY = "take the calibrated value (`tolcal calibrate`, `tolcal approve`)"


class Context(msgspec.Struct, frozen=True):
    """What a file is judged against."""

    ops: Mapping[str, Outline] | None = None  # None: there is no corpus
    test_ops: tuple[str, ...] = ()
    #: Cells of the merge base, those left out that are the same in the file
    base: Mapping[Cell, Tolerance] = {}


class Range(msgspec.Struct, frozen=True):
    """Smallest and largest sensible value: the smallest is allowed, the largest is not."""

    low: float
    high: float


@functools.cache
def ranges(dtype: str) -> dict[tuple[str, ...], Range]:
    """What each number of a cell may be in that dtype.

    Below: an atol of 0 claims exactness, and calibration never gives less than the smallest
    normal fp32 number; outputs that differ do so by a share of at least u, and by at least the
    smallest subnormal, so anything tighter asks for equal bits. Above: it could never fail, since
    an output of zeros, or the largest finite error, would pass.
    """
    form = DTYPES[dtype]
    return {
        ("atol",): Range(2.0**-126, form.max),
        ("scaled_tol",): _scaled(unit(dtype)),
        ("bias_tol",): Range(0.01, 1.0),
        ("allclose", "atol"): Range(form.tiny, form.max),
        ("allclose", "rtol"): Range(form.roundoff, 1.0),
    }


@functools.cache
def _scaled(roundoff: float) -> Range:
    return Range(0.0, 1 / roundoff)


def judge(cells: Mapping[Cell, Tolerance], context: Context) -> Iterator[Problem]:
    """All findings on the sound cells of a file, in the file's order; missing cells last."""
    for cell, tolerance in cells.items():
        useless = gone(cell, context)
        if useless:
            yield Problem(cell, useless)
            continue
        legacy = None
        if context.ops and cell[0] in context.ops:
            legacy = context.ops[cell[0]].legacy_atol.get(cell[1])
        old = context.base.get(cell)
        yield from _values(cell, cell[1], tolerance, legacy, old)
        for device, values in tolerance.on.items():
            at = (*cell, "on", device)
            before = old.on.get(device) if old else None
            yield from _values(at, cell[1], values, legacy, before)
            why = loosened(cell[1], tolerance, values) if values.approved is None else ""
            if why:
                yield Problem(
                    at,
                    f"looser than its cell ({why}) and not approved; calibration gives overrides "
                    "to device classes that need less: drop it, or measure there and widen the "
                    "cell (`tolcal calibrate`, `tolcal approve --widen REASON`)",
                )
            elif before is None and old:
                yield from _override(at, cell[1], old, values)
            if not _differ(tolerance, values):
                yield Problem(
                    at,
                    f"within {OVERRIDE_FACTOR:g}x of its cell in every number; an override that "
                    "small is not worth its upkeep, drop it",
                    "error" if values.approved is None else "warning",
                )
        for device, values in (old.on if old else {}).items():
            why = "" if device in tolerance.on else loosened(cell[1], values, tolerance)
            mark = tolerance.approved
            if why and not (mark and mark.reason and _mark(tolerance) != _mark(old or tolerance)):
                yield Problem(
                    (*cell, "on"),
                    f"the override for {device} is gone and the cell is looser there ({why}); "
                    "restore it, or approve a proposal with `tolcal approve --widen REASON`",
                )
    yield from _missing(cells, context)


def _override(at: tuple[str, ...], dtype: str, old: Values, values: Values) -> Iterator[Problem]:
    """A new override against the cell that held on its device before."""
    why = loosened(dtype, old, values)
    if why and not (values.approved and values.approved.reason):
        yield Problem(
            at,
            f"looser than the cell that held there before ({why}) without a reason in its "
            "approval; drop it",
        )


def gone(cell: Cell, context: Context, written: bool = True) -> str:
    """Why the corpus has no use for a cell, and what to do; "" if it has.

    ``written``: the file has it already, so it could be dropped.
    """
    op, dtype = cell
    if context.ops is None or op in context.test_ops:
        return ""
    known = context.ops.get(op)
    if known is None:
        hint = tomlfile.did_you_mean(op, {*context.ops, *context.test_ops})
        # What may be misspelt `--fix` leaves alone.
        drop = (
            f"rename or drop {op}'s tables, or "
            if hint
            else "drop the cell (`tolcal check --fix`), or "
        )
        return (
            f"no op {op!r} in the corpus{hint}; {drop if written else ''}list an op that only "
            "tests know under `test_ops` in [tool.tolcal]"
        )
    if not known.has_control:
        drop = "drop the cell, or " if written else ""
        return f"op {op!r} has no kernel left in kernels/; {drop}restore the kernel"
    if dtype not in known.dtypes:
        return f"op {op!r} has no dtype {dtype}, only {', '.join(known.dtypes)}" + (
            "; drop the cell" if written else "; add it to op.toml"
        )
    return ""


def _missing(cells: Mapping[Cell, Tolerance], context: Context) -> Iterator[Problem]:
    for cell in context.base:
        if cell not in cells and not gone(cell, context):
            yield Problem(
                cell,
                "an approved cell of a kernel that is still there was removed; restore it",
                absent=True,
            )
    for op, known in sorted((context.ops or {}).items()):
        for dtype in known.dtypes:
            if dtype in DTYPES and (op, dtype) not in cells and (op, dtype) not in context.base:
                yield Problem(
                    (op, dtype),
                    "not calibrated yet; measure it on a device that runs this dtype, which "
                    "Triton's interpreter may not (`tolcal run --repeat 18` counts what it "
                    "skipped), then `tolcal calibrate` and `tolcal approve`",
                    "warning",
                    absent=True,
                )


def _values(
    at: tuple[str, ...], dtype: str, values: Values, legacy: float | None, old: Values | None
) -> Iterator[Problem]:
    yield from _absurd(at, dtype, values, legacy)
    yield from _evidence(at, values)
    approved = values.approved
    if approved is None:
        removed = old is not None and old.approved is not None
        what = "approval was removed" if removed else "nobody has approved it"
        yield Problem(at, f"{what}; {REMEDY}", "error" if removed else "warning")
    elif approved.value != values.value_digest:
        yield Problem(
            at,
            "changed by hand since it was approved: the digest of its numbers and units is "
            f"{values.value_digest}, not {approved.value}; restore them, or {REMEDY}",
        )
    if old is None or old.value_digest == values.value_digest or _is_rounding(old, values):
        return
    fresh = approved is None or old.approved is None or _mark(values) != _mark(old)
    if not fresh and approved and approved.value == values.value_digest:
        yield Problem(
            (*at, "approved"),
            f"is the approval of the numbers before these; restore them, or {REMEDY}",
        )
    why = loosened(dtype, old, values)
    if why and not (approved and approved.reason):
        yield Problem(
            at,
            f"looser than before ({why}) without a reason; restore it, or approve a proposal with "
            "`tolcal approve --widen REASON`",
        )


def _mark(values: Values) -> tuple[str, str, str] | None:
    mark = values.approved
    return (mark.by, mark.at, mark.digest) if mark else None


def _absurd(
    at: tuple[str, ...], dtype: str, values: Values, legacy: float | None
) -> Iterator[Problem]:
    numbers = values.numbers
    for keys, sensible in ranges(dtype).items():
        value = numbers[keys]
        if value is None:
            continue
        if keys == ("scaled_tol",):
            sensible = _scaled(unit(dtype, values))
        if value < sensible.low:
            yield Problem(
                (*at, *keys),
                f"= {value:g}: tighter than {dtype} can show, at least {sensible.low:g} is due; "
                f"{REMEDY}",
            )
        elif value >= sensible.high:
            yield Problem(
                (*at, *keys),
                f"= {value:g}: could never fail, below {sensible.high:g} is due; {REMEDY}",
            )
    scale = values.evidence and values.evidence.scale
    allowed = values.atol + values.scaled_tol * unit(dtype, values) * (scale or 0.0)
    reason = values.approved and values.approved.reason
    if legacy is not None and allowed > legacy and not reason:
        yield Problem(
            at,
            f"looser than the hand-picked {legacy:g} of op.toml: {allowed:.3g} at the median "
            f"element; {REMEDY}, with `--widen REASON` if that is what correct kernels need",
        )


def _evidence(at: tuple[str, ...], values: Values) -> Iterator[Problem]:
    evidence = values.evidence
    if evidence is None:
        yield Problem(at, f"rests on no evidence; {REMEDY}", "warning")
        return
    held = evidence.held_out
    if held.red > held.runs:
        what = f"{held.red} red of {held.runs} runs can't be; {REMEDY}"
        yield Problem((*at, "evidence", "held_out"), what)


def _differ(cell: Values, override: Values) -> bool:
    """Whether some number differs by more than OVERRIDE_FACTOR."""
    for keys, one in cell.numbers.items():
        other = override.numbers[keys]
        if one is None or other is None:
            if one != other:
                return True
        elif max(one, other) > OVERRIDE_FACTOR * min(one, other):
            return True
    return False


def _is_rounding(old: Values, new: Values) -> bool:
    """Whether the new numbers are the old ones as ``tolcal format`` rounds them."""
    units = [(v.evidence.roundoff, v.evidence.scale) if v.evidence else None for v in (old, new)]
    return units[0] == units[1] and all(
        new.numbers[keys] in (value, value and round_up(value))
        for keys, value in old.numbers.items()
    )
