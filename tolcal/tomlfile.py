"""TOML files into checked values; every refusal names file, line, what is wrong and the remedy."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli

from tolcal.model import TolcalError

T = TypeVar("T")
#: Larger than any honest file of ours; a parser must not be fed without bound.
MAX_BYTES = 16 * 2**20


class NotTomlError(TolcalError):
    """A file that is there and says nothing: for the hook a finding like any other."""


def read(path: Path) -> tuple[dict[str, Any], str]:
    """Parsed content and text of ``path``; TolcalError if it can't be read or is no TOML."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and path.name == "tolerances.toml":
            raise TolcalError(
                f"{path}: there is none yet; `tolcal calibrate --json P.json` and `tolcal approve "
                "P.json` write it, or give the path of another"
            ) from None
        raise TolcalError(
            f"{path}: cannot read it: {error.strerror}; give the path of a file that is there"
        ) from None
    if len(raw) > MAX_BYTES:
        raise NotTomlError(f"{path}: {len(raw)} bytes, at most {MAX_BYTES} allowed")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise NotTomlError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None
    return loads(text, path), text


def loads(text: str, name: str | Path) -> dict[str, Any]:
    """The content of a TOML text; the NotTomlError calls the file that it is of ``name``."""
    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        # tomli's message is "reason (at line L, column C)" or "... (at end of document)"
        reason, _, _ = str(error).partition(" (at ")
        twice = " twice" in reason or "overwrite" in reason
        remedy = "keep one of the two" if twice else "mend the syntax there"
        raise NotTomlError(
            f"{name}:{error.lineno}:{error.colno}: not TOML: {reason}; {remedy}"
        ) from None
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        raise NotTomlError(
            f"{name}: nested too deeply, or a number too long, to be one of tolcal's files"
        ) from None


def convert(data: Any, into: type[T], path: Path, text: str, at: tuple[str, ...] = ()) -> T:
    """``data`` (found under the keys ``at`` of the file) as ``into``, else a TolcalError."""
    try:
        return msgspec.convert(data, into)
    except msgspec.ValidationError as error:
        keys, reason = blame(data, into, error)
        if "unknown field" in reason and (known := _fields(into, keys[:-1])):
            reason += f"; known: {', '.join(known)}{did_you_mean(keys[-1], known)}"
        name = ".".join((*at, *keys)) or "the file"
        raise TolcalError(f"{path}:{line_of(text, (*at, *keys))}: {name}: {reason}") from None


def blame(data: Any, into: Any, error: msgspec.ValidationError) -> tuple[tuple[str, ...], str]:
    """Which keys of ``data`` made msgspec refuse it, and its reason."""
    reason, _, where = str(error).partition(" - at `")
    keys = _failing_keys(data, into, str(error), where)
    unknown = re.search(r"unknown field `([^`]*)`", reason)
    return ((*keys, unknown.group(1)) if unknown else keys), reason


def _fields(into: Any, keys: tuple[str, ...]) -> list[str]:
    """The names that the table at ``keys`` may hold; none if that is no struct."""
    import msgspec.inspect as types  # for messages alone

    here = types.type_info(into)
    for key in keys:
        if isinstance(here, types.StructType):
            by_name = {field.encode_name: field.type for field in here.fields}
            here = by_name.get(key, types.AnyType())
        elif isinstance(here, types.DictType):
            here = here.value_type
        if isinstance(here, types.UnionType):
            structs = [t for t in here.types if isinstance(t, (types.StructType, types.DictType))]
            here = structs[0] if structs else types.AnyType()
    return (
        [field.encode_name for field in here.fields] if isinstance(here, types.StructType) else []
    )


def _failing_keys(data: Any, into: Any, message: str, where: str) -> tuple[str, ...]:
    """The keys of msgspec's path ``$.a[...].b``: it leaves out which entry of a table failed."""
    keys: tuple[str, ...] = ()
    here = data
    for name in re.findall(r"\.([A-Za-z_][\w-]*)|\[(?:\.\.\.|\d+)\]", where):
        if not name and not isinstance(here, dict):
            break  # an element of an array: its line is the array's
        keys = (*keys, name or _failing_entry(data, into, message, keys, here))
        here = here.get(keys[-1])
    return keys


def _failing_entry(
    data: Any, into: Any, message: str, keys: tuple[str, ...], table: dict[str, Any]
) -> str:
    """The entry of ``table`` (at ``keys``) that alone gives the same message."""

    def only(content: dict[str, Any], path: tuple[str, ...], entry: str) -> dict[str, Any]:
        if not path:
            return {entry: content[entry]}
        return content | {path[0]: only(content[path[0]], path[1:], entry)}

    for entry in table:
        try:
            msgspec.convert(only(data, keys, entry), into)
        except msgspec.ValidationError as error:
            if str(error) == message:
                return entry
    return next(iter(table), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'softmax'?`` or nothing."""
    import difflib  # as dear as all else here, and only for messages

    close = difflib.get_close_matches(name, sorted(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def line_of(text: str, keys: tuple[str, ...]) -> int:
    """Best line (from 1) for a dotted key: its table header, then the key below it."""
    return Positions(text).of(keys)[0]


class Positions:
    """Where each dotted key stands first.

    tomli gives no positions and tomlkit takes a second for a large file, so the text is scanned:
    for table headers once, when the first key is asked for, and then the tables in question.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        #: Each path of a header, and each part of one from the left: its offset.
        self.headers: dict[tuple[str, ...], int] = {}
        #: Each path of a header: from where to where its table goes.
        self.tables: dict[tuple[str, ...], tuple[int, int]] = {}

    def of(self, keys: tuple[str, ...]) -> tuple[int, int]:
        """Line and column (from 1) of the key, or of the nearest thing around it."""
        if not self.tables:
            self._scan()
        wanted = tuple(key.strip('"') for key in keys)
        offset, best = 0, 0
        for length in range(len(wanted), -1, -1):
            around = wanted[:length]
            if length > best and around in self.headers:
                offset, best = self.headers[around], length
            if around in self.tables:
                place, depth = self._key(*self.tables[around], wanted[length:])
                if length + depth > best:
                    offset, best = place, length + depth
        before = self.text.rfind("\n", 0, offset)
        return self.text.count("\n", 0, offset) + 1, offset - before

    def _scan(self) -> None:
        path: tuple[str, ...] = ()
        start = 0
        for header in re.finditer(r"(?m)^[ \t]*\[+[ \t]*([^\]\n]+?)[ \t]*\]", self.text):
            self.tables.setdefault(path, (start, header.start()))
            path, start = _parts(header.group(1)), header.end()
            # Longest first: once a path is known, what is around it is known too.
            for length in range(len(path), 0, -1):
                if path[:length] in self.headers:
                    break
                self.headers[path[:length]] = header.start(1)
        self.tables.setdefault(path, (start, len(self.text)))

    def _key(self, start: int, end: int, wanted: tuple[str, ...]) -> tuple[int, int]:
        """Offset of the key that shares most of ``wanted``, and how much that is."""
        offset, best = 0, 0
        pattern = re.compile(r"(?m)^[ \t]*([\w\"'.-]+)[ \t]*=.*")
        for key in pattern.finditer(self.text, start, end):
            here = _parts(key.group(1))
            if here[: len(wanted)] == wanted[: len(here)] and min(len(here), len(wanted)) > best:
                offset, best = key.start(1), min(len(here), len(wanted))
                inner = re.search(rf"\b{re.escape(wanted[-1])}\s*=", key.group(0))
                if len(here) == len(wanted) - 1 and inner:  # a key of an inline table
                    offset, best = key.start() + inner.start(), len(wanted)
        return offset, best


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in path.split("."))
