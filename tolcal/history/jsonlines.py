"""Records as JSON lines in gzip: the only form that crosses from an untrusted job.

A line is ``{"run": ...}``, then ``{"record": ...}`` lines that belong to it; the last line is
``{"end": number of records}``, without which a file is cut. Strict: unknown keys, wrong types,
impossible values, names off the allow-list and over-long input are refused with file and line.
Not-a-number and infinities are the strings "nan", "inf", "-inf", in statistics alone.
"""

from __future__ import annotations

import gzip
import itertools
import math
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import msgspec

from tolcal.model import (
    DIM,
    DTYPES,
    ENVELOPE_GRID,
    NAME,
    Case,
    CaseSet,
    ErrorStats,
    Record,
    Role,
    Run,
    Status,
    TolcalError,
)

#: Records a gzip member: a cut file loses at most so many.
MEMBER = 256
MAX_LINE = 64 * 1024
MAX_LINES = 20_000_000

_HEX = re.compile("[0-9a-f]{1,64}")
_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: Run | None = None
    record: _Body | None = None
    end: int | None = None


class Writer:
    """Writes runs and records to ``path``; what a finished member holds survives a kill."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.file: IO[bytes] = path.open("wb")
        self.pending: list[bytes] = []
        self.records = 0

    def write(self, value: Run | Record) -> None:
        """A run before its records."""
        self.pending.append(encode(value))
        self.records += isinstance(value, Record)
        if len(self.pending) >= MEMBER:
            self.flush()

    def flush(self) -> None:
        """Ends the current gzip member."""
        if self.pending:
            self.file.write(gzip.compress(b"".join(self.pending), 6, mtime=0))
            self.file.flush()
            self.pending = []

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.pending.append(msgspec.json.encode({"end": self.records}) + b"\n")
        self.flush()
        self.file.close()


def encode(value: Run | Record) -> bytes:
    """One line."""
    if isinstance(value, Run):
        return msgspec.json.encode({"run": value}) + b"\n"
    body = msgspec.to_builtins(value)
    del body["run"]
    if body["stats"] is not None:
        body["stats"] = {name: _plain(v) for name, v in body["stats"].items() if v is not None}
    return msgspec.json.encode({"record": body}) + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return [_number(v) for v in value]
    return _NONFINITE.get(value, value) if isinstance(value, str) else value


def read(path: Path) -> Iterator[Record]:
    """Records of a file, each with its run. TolcalError names file and line."""
    run: Run | None = None
    records = number = 0
    end: int | None = None
    for number, line in _lines(path):
        parsed = _parse(path, number, line)
        if end is not None:
            raise TolcalError(f"{path}:{number}: a line after the end; measure again")
        run = parsed.run or run
        end = parsed.end
        if parsed.record is not None:
            if run is None:
                raise TolcalError(f"{path}:{number}: a record before any run; measure again")
            records += 1
            body = parsed.record
            fields = {name: getattr(body, name) for name in body.__struct_fields__}
            yield Record(run=run, **fields)
    if end != records:
        raise TolcalError(
            f"{path}: cut or damaged after line {number}; nothing of it was used, measure again"
        )


def _parse(path: Path, number: int, line: bytes) -> _Line:
    try:
        raw = msgspec.json.decode(line)
        record = raw.get("record") if isinstance(raw, dict) else None
        if isinstance(record, dict) and isinstance(record.get("stats"), dict):
            record["stats"] = {name: _number(v) for name, v in record["stats"].items()}
        parsed = msgspec.convert(raw, _Line)
        if sum(part is not None for part in (parsed.run, parsed.record, parsed.end)) != 1:
            raise msgspec.ValidationError("expected either `run` or `record`")
        if parsed.run is not None:
            _check_run(parsed.run)
        if parsed.record is not None:
            _check_body(parsed.record)
    except (msgspec.DecodeError, RecursionError) as error:
        # ValidationError is a DecodeError
        raise TolcalError(
            f"{path}:{number}: not a line of a tolcal records file: {error}; nothing of the file "
            "was used, measure again or drop that line"
        ) from None
    return parsed


def _require(sound: bool, what: str) -> None:
    if not sound:
        raise msgspec.ValidationError(what)


def _check_run(run: Run) -> None:
    _require(bool(_HEX.fullmatch(run.id)), "the run's id is no hex")
    session = bool(_HEX.fullmatch(run.session))
    _require(not run.session or session, "the run's session is no hex")
    _require(not run.commit or bool(_HEX.fullmatch(run.commit)), "the run's commit is no hex")
    _require(0 <= run.seed < 2**63, "the run's seed is not in 0 to 2^63 - 1")
    texts = (run.started, run.tolcal, run.device_uuid, *msgspec.structs.astuple(run.environment))
    for text in texts:
        for part in text if isinstance(text, tuple) else (text,):
            _require(len(part) <= 200 and (part.isprintable()), "a text of the run is too odd")


def _check_body(body: _Body) -> None:
    case, stats = body.case, body.stats
    names = (body.kernel, case.op, case.profile, case.layout, body.corrupts or "none")
    for name in names:
        _require(bool(NAME.fullmatch(name)), f"a name is not of the form {NAME.pattern}")
    _require(case.dtype in DTYPES, f"a dtype is none of {', '.join(DTYPES)}")
    _require(0 <= case.seed < 2**63, "a seed is not in 0 to 2^63 - 1")
    for dim, size in case.dims:
        _require(bool(DIM.fullmatch(dim)), f"a dim is not of the form {DIM.pattern}")
        _require(1 <= size < 2**40, "a size is not in 1 to 2^40 - 1")
    for value in (body.input_hash, body.kernel_hash, body.reference_hash, body.op_hash):
        _require(not value or bool(_HEX.fullmatch(value)), "a hash is no hex")
    _require(len(body.reason) <= 1000, "a reason is longer than 1000 characters")
    units = {d.roundoff for d in DTYPES.values()}
    _require(body.roundoff in units, "roundoff is that of no dtype")
    _require((body.status == "ok") == (stats is not None), "statistics belong to status ok")
    if stats is not None:
        _check_stats(stats)


def _check_stats(stats: ErrorStats) -> None:
    for name in ("envelope", "envelope_abs"):
        points = cast("tuple[float, ...] | None", getattr(stats, name))
        if points is not None and len(points) != len(ENVELOPE_GRID):
            raise msgspec.ValidationError(
                f"{name} has {len(points)} points, {len(ENVELOPE_GRID)} expected"
            )
    _require(stats.bias is None or abs(stats.bias) <= 1.0, "bias is not in -1 to 1")
    for name in ("envelope", "envelope_abs"):
        points = cast("tuple[float, ...]", getattr(stats, name) or (0.0,))
        falling = all(a >= b >= 0 for a, b in itertools.pairwise((*points, 0.0)))
        _require(falling, f"{name} does not fall to 0")
    for name in stats.__struct_fields__:
        value = getattr(stats, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, float):
                _require(_is_float32(part), f"{name} is no float32 number")
            elif part is not None:
                limit = 2**64 if name == "max_ulp" else 2**63
                _require(0 <= part < limit, f"{name} is not in 0 to {limit - 1}")


def _is_float32(value: float) -> bool:
    try:
        return math.isnan(value) or struct.unpack("f", struct.pack("f", value))[0] == value
    except OverflowError:
        return False


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE or number > MAX_LINES:
                    raise TolcalError(
                        f"{path}:{number}: over the limit of {MAX_LINE} bytes a line and "
                        f"{MAX_LINES} lines: no records file of tolcal's"
                    )
                if line.strip():
                    yield number, line
    except OSError as error:
        reason = error.strerror or str(error)
        raise TolcalError(f"{path}: cannot read it: {reason}") from None
    except (EOFError, zlib.error):
        raise TolcalError(
            f"{path}: cut or damaged after line {number}; nothing of it was used, measure again"
        ) from None
