"""The canonical form of ``tolerances.toml``: order and rounding, comments kept.

Works on text, since tomlkit takes a second for 1,000 cells and can't move tables. Nothing is
trusted to go right: the result is parsed and compared with what it should say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
import tomli

from tolcal.model import DTYPES, Cell, Tolerance, Values, round_up
from tolcal.tolerances import parse

_NAME = r"(?:[A-Za-z0-9_-]+|\"[A-Za-z0-9_-]+\"|'[A-Za-z0-9_-]+')"
_HEADER = re.compile(rf"\s*\[(\s*{_NAME}\s*(?:\.\s*{_NAME}\s*)*)\]\s*(#.*)?")
_KEY = re.compile(rf"\s*({_NAME})\s*=(.*)", re.DOTALL)
_PAIR = re.compile(r"\s*\{[^#{}\"']*\}\s*(#.*)?", re.DOTALL)
_PLAIN = re.compile(r"\s*[^#\"'\[{]*?\s*(#.*)?", re.DOTALL)
NUMBERS = ("atol", "scaled_tol", "bias_tol")
#: Longest value, in lines.
MAX_LINES = 1000


class OrderError(Exception):
    """A line that the canonical form has no place for."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


class _Statement(msgspec.Struct):
    key: str
    value: str  # all after "=", stripped: with the comment, if there is one
    lead: list[str]  # comment and blank lines above


class _Block(msgspec.Struct):
    path: tuple[str, ...]
    comment: str
    lead: list[str]
    body: list[_Statement] = []


def canonical(text: str, drop: Iterable[Cell] = ()) -> str:
    """``text`` in order, its numbers rounded up to 3 digits, without the cells in ``drop``.

    Numbers that are those that were approved stay so: their digest is renewed. Raises OrderError
    for text that can't be put in order without changing what it says; ``text`` must be TOML.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    data = tomli.loads(text)
    dropped = set(drop)
    head, blocks, tail = _split(text.splitlines())
    blocks = [b for b in blocks if b.path[:2] not in dropped]
    sound, _ = parse(data)
    for block in blocks:
        _round(block, sound)
    blocks.sort(key=lambda b: _rank(b.path))
    lines: list[str] = []
    for statement in head:
        lines += [*statement.lead, f"{statement.key} = {statement.value}"]
    for block in blocks:
        lines += ["", *_trim(block.lead), f"[{'.'.join(block.path)}]{block.comment}"]
        for statement in sorted(block.body, key=lambda s: _key_rank(block.path, s.key)):
            lines += [*_trim(statement.lead), f"{statement.key} = {statement.value}"]
    ending = _trim(tail)
    lines += ["", *ending] if ending else []
    result = newline.join("\n".join([*_trim(lines), ""]).split("\n"))
    if not _whole(result) or _frozen(tomli.loads(result)) != _frozen(
        _expected(data, sound, dropped)
    ):
        raise OrderError(1, "written in a way that can't be put in order unchanged")
    return result


def _split(lines: list[str]) -> tuple[list[_Statement], list[_Block], list[str]]:
    """Statements before the first table, the tables, and what stands below the last."""
    head: list[_Statement] = []
    blocks: list[_Block] = []
    lead: list[str] = []
    number = 0
    while number < len(lines):
        line, start = lines[number], number + 1
        number += 1
        if not line.strip() or line.lstrip().startswith("#"):
            lead.append(line.strip())
            continue
        header = _HEADER.fullmatch(line)
        if header:
            path = tuple(part.strip().strip("\"'") for part in header.group(1).split("."))
            if len(path) < 2:
                what = f"[{header.group(1)}]: expected tables [<op>.<dtype>] and their parts"
                raise OrderError(start, what)
            comment = f"  {header.group(2)}" if header.group(2) else ""
            blocks.append(_Block(path, comment, lead, []))
            lead = []
            continue
        statement = line
        while not _whole(statement):
            if number >= len(lines) or number - start > MAX_LINES:
                raise OrderError(start, "written in a way that can't be put in order")
            statement += "\n" + lines[number]
            number += 1
        match = _KEY.fullmatch(statement)
        if not match:
            raise OrderError(start, "a dotted or quoted key; write it as a table of its own")
        key = match.group(1).strip("\"'")
        if not blocks and key != "schema":
            raise OrderError(start, f"{key}: write cells as tables [<op>.<dtype>]")
        target = blocks[-1].body if blocks else head
        target.append(_Statement(key, match.group(2).strip(), lead))
        lead = []
    return head, blocks, lead


def _whole(statement: str) -> bool:
    try:
        tomli.loads(statement)
    except (tomli.TOMLDecodeError, RecursionError, ValueError):
        return False
    return True


def _rank(path: tuple[str, ...]) -> tuple[Any, ...]:
    """Order of tables: op, dtype from wide to narrow, the parts of a cell, its overrides."""
    op, dtype, *rest = path
    device = ""
    if rest[:1] == ["on"]:
        device, rest = "on " + "".join(rest[1:2]), rest[2:]
    part = rest[0] if rest else ""
    dtypes, parts = list(DTYPES), ("", "allclose", "evidence", "approved")
    known = dtypes.index(dtype) if dtype in dtypes else len(dtypes)
    return op, known, dtype, device, parts.index(part) if part in parts else len(parts), rest


def _key_rank(path: tuple[str, ...], key: str) -> int:
    orders = {
        "evidence": ("rule", "margin", "rows", "runs", "devices", "held_out", "history",
                     "detectable_recall", "roundoff", "scale"),
        "approved": ("by", "at", "digest", "value", "pr", "reason"),
        "allclose": ("atol", "rtol"),
    }  # fmt: skip
    order = orders.get(path[-1], (*NUMBERS, "allclose"))
    return order.index(key) if key in order else len(order)


def _values(path: tuple[str, ...], sound: dict[Cell, Tolerance]) -> Values | None:
    """The cell or override that a table belongs to, if it is sound."""
    tolerance = sound.get((path[0], path[1]))
    if tolerance is None or path[2:3] != ("on",):
        return tolerance
    return tolerance.on.get(path[3]) if len(path) > 3 else None


def _round(block: _Block, sound: dict[Cell, Tolerance]) -> None:
    """Writes the block's numbers, or the digest of its cell, in the canonical way."""
    values = _values(block.path, sound)
    if values is None:
        return
    rounded = _rounded(values)
    approval = rounded.approved
    for statement in block.body:
        if block.path[-1] == "approved":
            if statement.key == "value" and approval and approval != values.approved:
                statement.value = f'"{approval.value}"'
        elif block.path[-1] == "evidence":
            continue
        elif block.path[-1] == "allclose":
            _number(statement, rounded.numbers.get(("allclose", statement.key)))
        elif statement.key in NUMBERS:
            _number(statement, rounded.numbers[(statement.key,)])
        elif statement.key == "allclose":
            match = _PAIR.fullmatch(statement.value)
            pair = rounded.allclose
            if match:
                text = f"{{atol = {pair.atol!r}, rtol = {pair.rtol!r}}}"
                statement.value = text + (f"  {match.group(1)}" if match.group(1) else "")


def _number(statement: _Statement, value: float | None) -> None:
    match = _PLAIN.fullmatch(statement.value)
    if match and value is not None:
        statement.value = repr(value) + (f"  {match.group(1)}" if match.group(1) else "")


def _rounded(values: Values) -> Values:
    pair = values.allclose
    result = msgspec.structs.replace(
        values,
        atol=round_up(float(values.atol)),
        scaled_tol=round_up(float(values.scaled_tol)),
        bias_tol=None if values.bias_tol is None else round_up(float(values.bias_tol)),
        allclose=type(pair)(round_up(float(pair.atol)), round_up(float(pair.rtol))),
    )
    approved = values.approved
    if approved and approved.value == values.value_digest:
        approved = msgspec.structs.replace(approved, value=result.value_digest)
        result = msgspec.structs.replace(result, approved=approved)
    return result


def _expected(data: Any, sound: dict[Cell, Tolerance], dropped: set[Cell]) -> dict[str, Any]:
    """What the canonical text must say."""
    result: dict[str, Any] = {}
    for op, by_dtype in data.items():
        if not isinstance(by_dtype, dict):
            result[op] = by_dtype
            continue
        kept = {d: t for d, t in by_dtype.items() if (op, d) not in dropped}
        for dtype, table in kept.items():
            if (op, dtype) in sound:
                kept[dtype] = _expected_values(table, sound[op, dtype])
        if kept:
            result[op] = kept
    return result


def _expected_values(table: dict[str, Any], values: Values) -> dict[str, Any]:
    rounded = _rounded(values)
    numbers = {k: rounded.numbers[(k,)] for k in NUMBERS if k in table}
    result = table | numbers | {"allclose": msgspec.to_builtins(rounded.allclose)}
    if rounded.approved:
        result["approved"] = table["approved"] | {"value": rounded.approved.value}
    if isinstance(values, Tolerance) and "on" in table:
        result["on"] = {d: _expected_values(t, values.on[d]) for d, t in table["on"].items()}
    return result


def _frozen(value: Any) -> Any:
    """Comparable: nan equals itself, 2 equals 2.0 only as a number of a cell."""
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_frozen(item) for item in value]
    return repr(value)


def _trim(lines: list[str]) -> list[str]:
    """Without blank lines at both ends."""
    start, end = 0, len(lines)
    while start < end and not lines[start]:
        start += 1
    while end > start and not lines[end - 1]:
        end -= 1
    return lines[start:end]
