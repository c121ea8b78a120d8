"""``tolerances.toml``: read with tomli, checked with msgspec; ``writing`` edits it in place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from tolcal import files, tomlfile
from tolcal.model import (
    DEVICE_CLASS,
    DTYPES,
    NAME,
    AllClose,
    Approved,
    Cell,
    Evidence,
    HeldOut,
    TolcalError,
    Tolerance,
    Values,
)

SCHEMA = 1
#: Every key that a cell may hold, at any depth, and the part of the cell that it belongs to.
FIELDS = {
    field: part
    for part, struct in (("approved", Approved), ("evidence.held_out", HeldOut),
                         ("evidence", Evidence), ("allclose", AllClose), ("", Tolerance))
    for field in struct.__struct_fields__
}  # fmt: skip
#: Device classes, as `Environment.device_class` has them.


class Problem(msgspec.Struct, frozen=True):
    """What is wrong, and under which keys of the file."""

    keys: tuple[str, ...]
    what: str
    level: Literal["error", "warning"] = "error"
    absent: bool = False  # the file has no such keys: it has no line

    @property
    def text(self) -> str:
        """``softmax.float16.atol: what is wrong``, or that alone where it is the whole file."""
        name = ".".join(self.keys)
        if self.what.startswith("= "):
            return f"{name} {self.what}"
        return f"{name}: {self.what}" if name else self.what


def read(path: Path) -> dict[Cell, Tolerance]:
    """The approved tolerances; a missing file holds none.

    Raises TolcalError with file and line for what is not a tolerance file.
    """
    return of_text(tomlfile.read(path)[1], path) if path.exists() else {}


def of_text(text: str, name: str | Path) -> dict[Cell, Tolerance]:
    """The tolerances that a text holds; TolcalError calls the file that it is of ``name``."""
    cells, problems = parse(tomlfile.loads(text, name))
    if problems:
        line = tomlfile.line_of(text, problems[0].keys)
        raise TolcalError(f"{name}:{line}: {problems[0].text}")
    return cells


def parse(data: Mapping[str, Any]) -> tuple[dict[Cell, Tolerance], list[Problem]]:
    """Content of a file into its sound cells and what is wrong with the others."""
    cells: dict[Cell, Tolerance] = {}
    problems: list[Problem] = []
    schema = data.get("schema")
    if type(schema) is not int or schema != SCHEMA:  # True == 1
        what = f"schema is {schema!r}, this tolcal reads {SCHEMA}; upgrade tolcal, or mend it"
        if "schema" not in data:
            what = f"there is no line `schema = {SCHEMA}`; add it at the top"
        problems.append(Problem(("schema",) if "schema" in data else (), what))
    for op, by_dtype in data.items():
        if op == "schema":
            continue
        if not NAME.fullmatch(op):
            problems.append(Problem((op,), f"no name of an op; rename it to match {NAME.pattern}"))
        elif not isinstance(by_dtype, dict):
            problems.append(Problem((op,), f"expected tables [{op}.<dtype>]"))
        else:
            for dtype, table in by_dtype.items():
                _cell((op, dtype), table, cells, problems)
    return cells, problems


def _cell(at: Cell, table: Any, cells: dict[Cell, Tolerance], problems: list[Problem]) -> None:
    if at[1] not in DTYPES:
        formats = [name for name in DTYPES if name.startswith(f"{at[1]}_")]
        hint = tomlfile.did_you_mean(at[1], DTYPES)
        if formats:
            hint = f"; say which: {' or '.join(formats)}"
        problems.append(Problem(at, f"unknown dtype; known: {', '.join(DTYPES)}{hint}"))
        return
    plain = _date_as_text(table)
    try:
        tolerance = msgspec.convert(plain, Tolerance)
    except msgspec.ValidationError as error:
        keys, reason = tomlfile.blame(plain, Tolerance, error)
        if "unknown field" in reason:
            key = keys[-1]
            remedy = f"drop it{tomlfile.did_you_mean(key, FIELDS)}"
            if key in FIELDS:
                table = ".".join(part for part in (*at, FIELDS[key]) if part)
                remedy = f"it belongs in [{table}]"
        elif "missing required field" in reason:
            remedy = "add it, or take the calibrated cell (`tolcal calibrate`, `tolcal approve`)"
        else:
            remedy = "write it as `tolcal approve` does"
        problems.append(Problem((*at, *keys), f"{reason}; {remedy}"))
        return
    wrong = [Problem((*at, *keys), what) for keys, what in _wrong_numbers(tolerance)]
    for device, values in tolerance.on.items():
        if not DEVICE_CLASS.fullmatch(device):
            what = "no device class; expected sm_<digits>, gfx<digits> or cpu"
            wrong.append(Problem((*at, "on", device), what))
        wrong += [Problem((*at, "on", device, *k), what) for k, what in _wrong_numbers(values)]
    problems += wrong
    if not wrong:
        cells[at] = tolerance


def _wrong_numbers(values: Values) -> list[tuple[tuple[str, ...], str]]:
    return [
        (
            keys,
            f"= {value}: a finite number >= 0 is needed; take the calibrated value "
            "(`tolcal calibrate`)",
        )
        for keys, value in values.numbers.items()
        if value is not None and not (math.isfinite(value) and value >= 0)
    ]


def changed_by_hand(cells: Mapping[Cell, Tolerance]) -> list[Cell]:
    """Cells whose numbers, or those of an override, are not those that were approved."""
    return [
        cell
        for cell, tolerance in cells.items()
        if any(
            values.approved and values.approved.value != values.value_digest
            for values in (tolerance, *tolerance.on.values())
        )
    ]


def _date_as_text(table: Any) -> Any:
    """A cell whose approvals' TOML dates are ISO text, which is how the model keeps them."""
    if not isinstance(table, dict):
        return table
    approved, overrides = table.get("approved"), table.get("on")
    if isinstance(approved, dict) and hasattr(approved.get("at"), "isoformat"):
        table = table | {"approved": approved | {"at": approved["at"].isoformat()}}
    if isinstance(overrides, dict):
        table = table | {"on": {name: _date_as_text(part) for name, part in overrides.items()}}
    return table


def edited(text: str | None, cells: Mapping[Cell, Tolerance], name: str | Path) -> str:
    """The text of a tolerance file with ``cells`` put into it; None is a file yet to come.

    Other cells and all comments stay as they are, byte for byte; of the cells' own overrides those
    that are given are there afterwards. Raises TolcalError, which calls the file ``name``, for a
    text that is no tolerance file and for cells that none may hold.
    """
    for at, tolerance in cells.items():
        _, wrong = parse({"schema": SCHEMA, at[0]: {at[1]: msgspec.to_builtins(tolerance)}})
        if wrong:
            raise TolcalError(f"{name}: {wrong[0].text}; nothing was written")
    if text is not None:
        of_text(text, name)  # never edit what could not be read
    # Only here: importing tomlkit takes longer than the hook may for a whole file.
    from tolcal.tolerances import writing

    return writing.edited(text, cells, name)


def write(path: Path, cells: Mapping[Cell, Tolerance]) -> None:
    """Puts ``cells`` into the file as `edited` does; it is created if need be.

    The file is replaced in one step, so a reader never sees half of it.
    """
    text = tomlfile.read(path)[1] if path.exists() else None
    files.replace(path, edited(text, cells, path))
