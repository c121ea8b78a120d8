"""What a run, a record and its statistics must be: they come from files and kernels of others.

Each check raises msgspec.ValidationError, whose text says what is wrong.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from typing import cast

import msgspec

from tolcal.model import (
    DIM,
    DTYPES,
    ENVELOPE_GRID,
    NAME,
    Case,
    CaseSet,
    Checks,
    ErrorStats,
    Outside,
    Role,
    Run,
    Status,
)

_HEX = re.compile("[0-9a-f]{1,64}")


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record without its run."""

    kernel: str
    role: Role
    corrupts: str | None
    case: Case
    case_set: CaseSet
    status: Status
    reason: str
    input_hash: str
    kernel_hash: str
    reference_hash: str
    op_hash: str
    roundoff: float
    stats: ErrorStats | None
    same_as_control: bool | None = None
    outside: Outside | None = None
    checks: Checks | None = None


def require(sound: bool, what: str) -> None:
    if not sound:
        raise msgspec.ValidationError(what)


def check_run(run: Run) -> None:
    require(bool(_HEX.fullmatch(run.id)), "the run's id is no hex")
    session = bool(_HEX.fullmatch(run.session))
    require(not run.session or session, "the run's session is no hex")
    require(not run.commit or bool(_HEX.fullmatch(run.commit)), "the run's commit is no hex")
    require(0 <= run.seed < 2**63, "the run's seed is not in 0 to 2^63 - 1")
    uuids = run.device_uuid.split(",")  # of every GPU that took part
    require(len(uuids) <= 1024, "a run on more than 1024 devices")
    texts = (run.started, run.tolcal, *uuids, *msgspec.structs.astuple(run.environment))
    for text in texts:
        for part in text if isinstance(text, tuple) else (text,):
            require(len(part) <= 200 and (part.isprintable()), "a text of the run is too odd")


def check_body(body: Body) -> None:
    case, stats = body.case, body.stats
    names = (body.kernel, case.op, case.profile, case.layout, body.corrupts or "none")
    for name in names:
        require(bool(NAME.fullmatch(name)), f"a name is not of the form {NAME.pattern}")
    require(case.dtype in DTYPES, f"a dtype is none of {', '.join(DTYPES)}")
    require(0 <= case.seed < 2**63, "a seed is not in 0 to 2^63 - 1")
    for dim, size in case.dims:
        require(bool(DIM.fullmatch(dim)), f"a dim is not of the form {DIM.pattern}")
        require(1 <= size < 2**40, "a size is not in 1 to 2^40 - 1")
    for value in (body.input_hash, body.kernel_hash, body.reference_hash, body.op_hash):
        require(not value or bool(_HEX.fullmatch(value)), "a hash is no hex")
    require(len(body.reason) <= 1000, "a reason is longer than 1000 characters")
    units = {d.roundoff for d in DTYPES.values()}
    require(body.roundoff in units, "roundoff is that of no dtype")
    require((body.status == "ok") == (stats is not None), "statistics belong to status ok")
    if stats is not None:
        check_stats(stats)
    check_parts(body.outside, body.checks)


def check_parts(*parts: Outside | Checks | None) -> None:
    for part in parts:
        for name, value in msgspec.structs.asdict(part).items() if part is not None else ():
            if isinstance(value, float):
                require(value >= 0 and _is_float32(value), f"{name} is no float32 number >= 0")
            elif value is not None:
                require(0 <= value < 2**63, f"{name} is not in 0 to 2^63 - 1")


def check_stats(stats: ErrorStats) -> None:
    for name in ("envelope", "envelope_abs"):
        points = cast("tuple[float, ...] | None", getattr(stats, name))
        if points is not None and len(points) != len(ENVELOPE_GRID):
            raise msgspec.ValidationError(
                f"{name} has {len(points)} points, {len(ENVELOPE_GRID)} expected"
            )
    require(stats.bias is None or abs(stats.bias) <= 1.0, "bias is not in -1 to 1")
    for name in ("max_abs", "residual_max", "scaled_max", "scaled_max_abs"):
        most = cast("float | None", getattr(stats, name))
        require(most is None or not most < 0, f"{name} is negative")
    for name in ("envelope", "envelope_abs"):
        points = cast("tuple[float, ...]", getattr(stats, name) or (0.0,))
        falling = all(a >= b >= 0 for a, b in itertools.pairwise((*points, 0.0)))
        require(falling, f"{name} does not fall to 0")
    ours = False
    for name in stats.__struct_fields__:
        # The output itself may be nan: the kernel's fault, which the published ones tell. Ours
        # are numbers whatever it gives.
        ours |= name == "residual_max"
        value = getattr(stats, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, float):
                require(not (ours and math.isnan(part)), f"{name} is nan")
                require(_is_float32(part), f"{name} is no float32 number")
            elif part is not None:
                limit = 2**64 if name == "max_ulp" else 2**63
                require(0 <= part < limit, f"{name} is not in 0 to {limit - 1}")


def _is_float32(value: float) -> bool:
    try:
        return math.isnan(value) or struct.unpack("f", struct.pack("f", value))[0] == value
    except OverflowError:
        return False
