"""Edits ``tolerances.toml`` in place with tomlkit, which keeps its comments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
import tomlkit.items

from tolcal import tolerances, tomlfile
from tolcal.model import DTYPES, Cell, TolcalError, Tolerance, Values

HEADER = """\
# Tolerances of this repository's kernels, measured by tolcal.
# An element passes if its residual (the error beyond unavoidable output rounding) is at most
# atol + scaled_tol * u * (|ref| + sigma). Change values by approving a proposal, not by hand.
"""


def edited(text: str | None, cells: Mapping[Cell, Tolerance], name: str | Path) -> str:
    """What ``tolerances.edited`` says, for a text and cells that it has checked."""
    document = tomlkit.parse(f"{HEADER}schema = {tolerances.SCHEMA}\n" if text is None else text)
    for (op, dtype), tolerance in sorted(cells.items(), key=lambda item: _order(item[0])):
        if op not in document:
            document.add(tomlkit.nl())
            document.append(op, tomlkit.table(is_super_table=True))
        parent: Any = document[op]  # a proxy if the op's cells stand apart in the file
        if dtype not in parent:
            parent[dtype] = _table(tolerance)
            continue
        if not _editable(parent[dtype]):
            line = tomlfile.line_of(text or "", (op, dtype))
            raise TolcalError(
                f"{name}:{line}: {op}.{dtype}: written inline or in parts that stand apart, which "
                f"can't be edited in place; write it as one table [{op}.{dtype}]"
            )
        _replace(parent[dtype], _table(tolerance))
    return tomlkit.dumps(document)


def _replace(old: Any, new: Any) -> None:
    """Makes the table ``old`` hold what ``new`` does, in place.

    Comments and blank lines before the next header belong to the next cell, but tomlkit keeps
    them at the end of the table above: they are taken off first and put back last.
    """
    body, trail = _last_body(old), list[Any]()
    while body and body[-1][0] is None:
        trail.insert(0, body.pop())
    _update(old, new)
    _last_body(old).extend(trail)


def _editable(cell: Any) -> bool:
    """Whether a cell and its sub-tables are plain ``[a.b]`` tables in one place."""
    return isinstance(cell, tomlkit.items.Table) and all(
        not isinstance(cell.get(name), dict) or isinstance(cell.get(name), tomlkit.items.Table)
        for name in ("evidence", "approved", "on")
    )


def _last_body(table: Any) -> list[Any]:
    body: list[Any] = table.value.body
    for key, item in reversed(body):
        if key is not None:
            return _last_body(item) if isinstance(item, tomlkit.items.Table) else body
    return body


def _update(old: Any, new: Any) -> None:
    for key in [key for key in old if key not in new]:
        del old[key]
    for key, value in new.items():
        if key in old and isinstance(value, tomlkit.items.Table):
            _update(old[key], value)
        else:
            old[key] = value


def _order(cell: Cell) -> tuple[str, int]:
    """Ops by name, dtypes from wide to narrow."""
    return cell[0], list(DTYPES).index(cell[1])


def _table(tolerance: Values) -> tomlkit.items.Table:
    table = tomlkit.table()
    table["atol"] = _number(tolerance.atol)
    table["scaled_tol"] = _number(tolerance.scaled_tol)
    if tolerance.bias_tol is not None:
        table["bias_tol"] = _number(tolerance.bias_tol)
    pair = tomlkit.inline_table()
    pair["atol"] = _number(tolerance.allclose.atol)
    pair["rtol"] = _number(tolerance.allclose.rtol)
    table["allclose"] = pair
    for name in ("evidence", "approved"):
        part = getattr(tolerance, name)
        if part is None:
            continue
        sub = tomlkit.table()
        for key, value in msgspec.to_builtins(part).items():
            if isinstance(value, dict):
                inline = tomlkit.inline_table()
                inline.update(value)
                sub[key] = inline
            elif value is not None:
                sub[key] = value
        table[name] = sub
    if isinstance(tolerance, Tolerance) and tolerance.on:
        overrides = tomlkit.table(is_super_table=True)
        for device, values in sorted(tolerance.on.items()):
            overrides[device] = _table(values)
        table["on"] = overrides
    return table


def _number(value: float) -> tomlkit.items.Float:
    """A float as Python writes it, which reads back to the same bits."""
    return tomlkit.float_(repr(float(value)))
