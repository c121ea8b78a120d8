"""TOML files into checked values; every refusal names file, line, what is wrong and the remedy."""

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli

from tolcal.model import TolcalError

T = TypeVar("T")
#: Larger than any honest file of ours; a parser must not be fed without bound.
MAX_BYTES = 16 * 2**20


def read(path: Path) -> tuple[dict[str, Any], str]:
    """Parsed content and text of ``path``; TolcalError if it can't be read or is no TOML."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TolcalError(f"{path}: cannot read it: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise TolcalError(f"{path}: {len(raw)} bytes, at most {MAX_BYTES} allowed")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise TolcalError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None
    try:
        return tomli.loads(text), text
    except tomli.TOMLDecodeError as error:
        # tomli's message is "reason (at line L, column C)" or "... (at end of document)"
        reason, _, _ = str(error).partition(" (at ")
        raise TolcalError(
            f"{path}:{error.lineno}:{error.colno}: not TOML: {reason}; mend the syntax there"
        ) from None
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        raise TolcalError(
            f"{path}: nested too deeply, or a number too long, to be one of tolcal's files"
        ) from None


def convert(data: Any, into: type[T], path: Path, text: str, at: tuple[str, ...] = ()) -> T:
    """``data`` (found under the keys ``at`` of the file) as ``into``, else a TolcalError."""
    try:
        return msgspec.convert(data, into)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `")
        keys = _failing_keys(data, into, str(error), where)
        unknown = re.search(r"unknown field `([^`]*)`", reason)
        if unknown:
            keys = (*keys, unknown.group(1))
        name = ".".join((*at, *keys)) or "the file"
        raise TolcalError(f"{path}:{line_of(text, (*at, *keys))}: {name}: {reason}") from None


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


def line_of(text: str, keys: tuple[str, ...]) -> int:
    """Best line (from 1) for a dotted key: its table header, then the key below it.

    tomli gives no positions and tomlkit takes a second for a large file, so scan the lines.
    """
    wanted = [key.strip('"') for key in keys]
    best, depth, table = 1, 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line)
        if header:
            table = [part.strip().strip("\"'") for part in header.group(1).split(".")]
            here = table
        else:
            key = re.match(r"\s*([\w\"'.-]+)\s*=", line)
            if not key:
                continue
            here = table + [part.strip("\"'") for part in key.group(1).split(".")]
        common = 0
        for got, want in zip(here, wanted, strict=False):
            if got != want:
                break
            common += 1
        if common in (len(here), len(wanted)) and common > depth:
            best, depth = number, common
    return best
