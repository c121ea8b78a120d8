"""Records as JSON lines in gzip: the only form that crosses from an untrusted job.

A line is ``{"run": ...}``, then ``{"record": ...}`` lines that belong to it; the last line is
``{"end": number of records}``, without which a file is cut. Strict: unknown and repeated keys,
wrong types, impossible values, names off the allow-list and over-long input are refused with file
and line.
Not-a-number and infinities are the strings "nan", "inf", "-inf", in statistics alone.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgspec

from tolcal.model import Record, Run, TolcalError
from tolcal.sound import Body, check_body, check_run

#: Records a gzip member: a cut file loses at most so many.
MEMBER = 256
MAX_LINE = 64 * 1024
MAX_LINES = 20_000_000
#: Lines without a record that a file from elsewhere may have.
RUNS = 10_000

_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: Run | None = None
    record: Body | None = None
    end: int | None = None


class Partial(msgspec.Struct, frozen=True):
    """What a cut file still holds: whole members, in the order they were written."""

    runs: tuple[Run, ...]
    records: tuple[Record, ...]
    size: int  # bytes of those members; what follows them is cut
    ended: bool  # not cut at all


class Writer:
    """Writes runs and records to ``path``; what a finished member holds survives a kill.

    With ``after`` it goes on where a cut file ends: the rest of that is dropped with the first
    write, not before.
    """

    def __init__(self, path: Path, after: Partial | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.after = path, after
        self.file: IO[bytes] = path.open("r+b" if after else "wb")
        self.pending: list[bytes] = []
        self.records = len(after.records) if after else 0

    def write(self, value: Run | Record) -> None:
        """A run before its records."""
        self.pending.append(encode(value))
        self.records += isinstance(value, Record)
        if len(self.pending) >= MEMBER:
            self.flush()

    def flush(self) -> None:
        """Ends the current gzip member."""
        if not self.pending:
            return
        self._drop_rest()
        self.file.write(gzip.compress(b"".join(self.pending), 6, mtime=0))
        self.file.flush()
        self.pending = []

    def _drop_rest(self) -> None:
        if self.after is not None:
            self.file.truncate(self.after.size)
            self.file.seek(self.after.size)
            self.after = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self.after is not None and self.after.ended:
            self._drop_rest()
        elif kind is None:
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
    for name in ("outside", "checks"):
        part = body.pop(name)
        if part is not None:
            body[name] = {key: v for key, v in part.items() if v is not None}
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
    packed = path.suffix == ".gz"
    return _records(path, _lines(path, lambda: gzip.open(path) if packed else path.open("rb")))


def read_bytes(name: str, data: bytes, records: int, size: int) -> Iterator[Record]:
    """The same of a gzip file in memory, of ``records`` and ``size`` bytes unpacked at most."""
    lines = _lines(name, lambda: gzip.GzipFile(fileobj=io.BytesIO(data)), records + RUNS, size)
    return _records(name, lines, records)


def _records(
    name: Path | str, lines: Iterator[tuple[int, bytes]], limit: int = MAX_LINES
) -> Iterator[Record]:
    records = number = 0
    end: int | None = None
    for at, value in _values(name, lines):
        number = at
        if isinstance(value, Record):
            records += 1
            if records > limit:
                raise TolcalError(f"{name}:{number}: over the limit of {limit} records")
            yield value
        elif isinstance(value, int):
            end = value
    if end != records:
        raise TolcalError(
            f"{name}: cut or damaged after line {number}; nothing of it was used, measure again"
        )


def read_partial(path: Path) -> Partial:
    """What is whole in a file that may be cut anywhere.

    Only for going on with it: a cut file is no history. TolcalError for a line that is none of
    ours.
    """
    runs: list[Run] = []
    records: list[Record] = []
    size, ended = 0, False

    def lines() -> Iterator[tuple[int, bytes]]:
        nonlocal size
        number = 0
        for size, content in _members(path):  # noqa: B007
            for line in content.splitlines():
                number += 1
                yield number, line

    for _, value in _values(path, lines()):
        if isinstance(value, Run):
            runs.append(value)
        elif isinstance(value, Record):
            records.append(value)
        else:
            ended = value == len(records)
    return Partial(tuple(runs), tuple(records), size, ended)


def _members(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each whole gzip member and where it ends: up to the first that is cut or damaged."""
    end, ahead = 0, b""
    with path.open("rb") as file:
        while True:
            member, content = zlib.decompressobj(wbits=31), b""
            while not member.eof:
                data = ahead or file.read(2**16)
                ahead = b""
                if not data:
                    return
                end += len(data)
                try:
                    content += member.decompress(data)
                except zlib.error:
                    return
                if len(content) > (MEMBER + 1) * MAX_LINE:
                    raise TolcalError(f"{path}: a part of it is too long: no file of tolcal's")
            ahead = member.unused_data
            end -= len(ahead)
            yield end, content


def _values(
    name: Path | str, lines: Iterator[tuple[int, bytes]]
) -> Iterator[tuple[int, Run | Record | int]]:
    """What each line says, with its number: a run, a record of it, or the end's count."""
    run: Run | None = None
    ended = False
    for number, line in lines:
        parsed = _parse(name, number, line)
        if ended:
            raise TolcalError(f"{name}:{number}: a line after the end; measure again")
        if parsed.run is not None:
            run = parsed.run
            yield number, run
        elif parsed.record is not None:
            if run is None:
                raise TolcalError(f"{name}:{number}: a record before any run; measure again")
            body = parsed.record
            fields = {field: getattr(body, field) for field in body.__struct_fields__}
            yield number, Record(run=run, **fields)
        else:
            assert parsed.end is not None
            ended = True
            yield number, parsed.end


def _parse(name: Path | str, number: int, line: bytes) -> _Line:
    try:
        raw = msgspec.json.decode(line)
        _check_keys(line, raw)
        record = raw.get("record") if isinstance(raw, dict) else None
        if isinstance(record, dict) and isinstance(record.get("stats"), dict):
            record["stats"] = {key: _number(v) for key, v in record["stats"].items()}
        parsed = msgspec.convert(raw, _Line)
        if sum(part is not None for part in (parsed.run, parsed.record, parsed.end)) != 1:
            raise msgspec.ValidationError("expected either `run` or `record`")
        if parsed.run is not None:
            check_run(parsed.run)
        if parsed.record is not None:
            check_body(parsed.record)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        # ValidationError is a DecodeError
        raise TolcalError(
            f"{name}:{number}: not a line of a tolcal records file: {error}; nothing of the file "
            "was used, measure again or drop that line"
        ) from None
    return parsed


def _check_keys(line: bytes, raw: Any) -> None:
    """ValidationError for a key that stands twice in an object, of which `raw` has the last."""
    if line.count(b":") != _keys(raw):
        json.loads(line.decode(), object_pairs_hook=_once)


def _keys(value: Any) -> int:
    """Keys of objects in objects. Each took a colon of the text, and a repeated one took two."""
    if not isinstance(value, dict):
        return 0
    return len(value) + sum(map(_keys, value.values()))


def _once(pairs: list[tuple[str, Any]]) -> None:
    """Where colons stand in texts as well, keys are counted one by one."""
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise msgspec.ValidationError(f"Object contains the field {key!r} twice")
        seen.add(key)


def _lines(
    name: Path | str,
    opened: Callable[[], io.BufferedIOBase],
    most: int = MAX_LINES,
    size: int | None = None,
) -> Iterator[tuple[int, bytes]]:
    number = unpacked = 0
    try:
        with opened() as file:
            while line := file.readline(MAX_LINE + 1):
                number += 1
                unpacked += len(line)
                if len(line) > MAX_LINE or number > most:
                    raise TolcalError(
                        f"{name}:{number}: over the limit of {MAX_LINE} bytes a line and "
                        f"{most} lines: no records file of tolcal's"
                    )
                if size is not None and unpacked > size:
                    raise TolcalError(
                        f"{name}:{number}: over the limit of {size} bytes when unpacked"
                    )
                if line.strip():
                    yield number, line
    except OSError as error:
        reason = error.strerror or str(error)
        raise TolcalError(f"{name}: cannot read it: {reason}") from None
    except (EOFError, zlib.error):
        raise TolcalError(
            f"{name}: cut or damaged after line {number}; nothing of it was used, measure again"
        ) from None
