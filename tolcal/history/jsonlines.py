"""Records as JSON lines in gzip: the only form that crosses from an untrusted job.

A line is ``{"run": ...}``, then ``{"record": ...}`` lines that belong to it. Strict: unknown
keys, wrong types and over-long input are refused with file and line. Not-a-number and
infinities are the strings "nan", "inf", "-inf", in statistics alone.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import msgspec

from tolcal.model import (
    ENVELOPE_GRID,
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


class Writer:
    """Writes runs and records to ``path``; what a finished member holds survives a kill."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.file: IO[bytes] = path.open("wb")
        self.pending: list[bytes] = []

    def write(self, value: Run | Record) -> None:
        """A run before its records."""
        self.pending.append(encode(value))
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
    for number, line in _lines(path):
        parsed = _parse(path, number, line)
        if parsed.run is not None:
            run = parsed.run
        if parsed.record is not None:
            if run is None:
                raise TolcalError(f"{path}:{number}: a record before any run; measure again")
            body = parsed.record
            fields = {name: getattr(body, name) for name in body.__struct_fields__}
            yield Record(run=run, **fields)


def _parse(path: Path, number: int, line: bytes) -> _Line:
    try:
        raw = msgspec.json.decode(line)
        record = raw.get("record") if isinstance(raw, dict) else None
        if isinstance(record, dict) and isinstance(record.get("stats"), dict):
            record["stats"] = {name: _number(v) for name, v in record["stats"].items()}
        parsed = msgspec.convert(raw, _Line)
        if (parsed.run is None) == (parsed.record is None):
            raise msgspec.ValidationError("expected either `run` or `record`")
        if parsed.record is not None and parsed.record.stats is not None:
            _check_lengths(parsed.record.stats)
    except msgspec.DecodeError as error:
        # ValidationError is a DecodeError
        raise TolcalError(
            f"{path}:{number}: not a line of a tolcal records file: {error}; nothing of the file "
            "was used, measure again or drop that line"
        ) from None
    return parsed


def _check_lengths(stats: ErrorStats) -> None:
    for name in ("envelope", "envelope_abs"):
        points = cast("tuple[float, ...] | None", getattr(stats, name))
        if points is not None and len(points) != len(ENVELOPE_GRID):
            raise msgspec.ValidationError(
                f"{name} has {len(points)} points, {len(ENVELOPE_GRID)} expected"
            )


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
