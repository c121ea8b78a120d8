"""The repository around a file: its ``[tool.tolcal]``, its tolerances, an outline of its corpus.

Light on purpose: the hook and a user's tests read what they need of a repository in milliseconds
and never its sources. ``corpus`` and ``cli.config`` check the same files in full.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tomli

from tolcal import tomlfile
from tolcal.model import TolcalError

#: An op.toml is far shorter; what lies beyond is not read.
MAX_HEAD = 2**16
#: What [tool.tolcal] may hold; `cli.config` says of what kind.
KEYS = ("corpus", "tolerances", "history", "device", "timeout", "profile", "checks",
        "triton_cache", "cases", "budget", "test_ops")  # fmt: skip


class Project(msgspec.Struct, frozen=True):
    """Where things are. ``test_ops`` are ops that only tests know: they need no folder."""

    tolerances: Path
    corpus: Path
    test_ops: tuple[str, ...]
    corpus_named: str = ""  # where the corpus was named; "": it need not be there


class Outline(msgspec.Struct, frozen=True):
    """What an op.toml says that bears on a tolerance, and whether there is a control."""

    dtypes: tuple[str, ...]
    legacy_atol: Mapping[str, float]
    has_control: bool


def around(start: Path, tolerances: Path | None = None) -> Project:
    """The project that a file in the folder ``start`` belongs to.

    Its tolerances are the nearest, going up: ``tolerances.toml``, or the file that [tool.tolcal]
    in a pyproject.toml names. Its corpus is that of the nearest [tool.tolcal]; without one it
    stands beside the tolerances. ``tolerances``: the file in question, which may be yet to come.
    """
    start = start.resolve()
    nearest = tolerances and tolerances.absolute()
    for folder in (start, *start.parents):
        table = _table(folder / "pyproject.toml")
        here = folder / _text(table, "tolerances", "tolerances.toml")
        if nearest is None and (table is not None or here.is_file()):
            nearest = here
        if table is not None:
            file = folder / "pyproject.toml"
            return Project(
                tolerances=nearest or here,
                corpus=folder / _text(table, "corpus", "corpus"),
                test_ops=tuple(table.get("test_ops", ())),
                corpus_named=f"{file}: tool.tolcal.corpus" if "corpus" in table else "",
            )
    nearest = nearest or start / "tolerances.toml"
    return Project(nearest, nearest.parent / "corpus", ())


def _text(table: Mapping[str, Any] | None, name: str, default: str) -> str:
    value: str = (table or {}).get(name, default)
    return value


def _table(path: Path) -> Mapping[str, Any] | None:
    """[tool.tolcal], if there is one: of known keys, and those used here of the right kind."""
    if not path.is_file():
        return None
    data, text = tomlfile.read(path)
    tool = data.get("tool")
    table = tool.get("tolcal") if isinstance(tool, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise _wrong(path, text, (), "expected a table")
    for key, value in table.items():
        if key not in KEYS:
            hint = tomlfile.did_you_mean(key, KEYS)
            raise _wrong(path, text, (key,), f"unknown key; known: {', '.join(KEYS)}{hint}")
        if key in ("corpus", "tolerances") and not isinstance(value, str):
            raise _wrong(path, text, (key,), "expected the path of a folder or file, in quotes")
        names = value if isinstance(value, list) else [None]
        if key == "test_ops" and not all(isinstance(name, str) for name in names):
            raise _wrong(path, text, (key,), 'expected names of ops, as in ["softmax"]')
    return table


def _wrong(path: Path, text: str, keys: tuple[str, ...], what: str) -> TolcalError:
    at = ("tool", "tolcal", *keys)
    return TolcalError(f"{path}:{tomlfile.line_of(text, at)}: {'.'.join(at)}: {what}")


def outline(corpus: Path) -> dict[str, Outline] | None:
    """Each op of a corpus; None if there is no such folder, or no op in it."""
    ops = {}
    for name in _listed(corpus):
        folder = os.path.join(corpus, name)  # Path costs as much as the parsing
        data = _head(os.path.join(folder, "op.toml"))
        if data is None:
            continue
        dtypes, legacy = data.get("dtypes"), data.get("legacy_atol")
        files = _listed(os.path.join(folder, "kernels"))
        ops[name] = Outline(
            dtypes=tuple(map(str, dtypes)) if isinstance(dtypes, list) else (),
            legacy_atol={
                dtype: float(atol)
                for dtype, atol in (legacy.items() if isinstance(legacy, dict) else ())
                if isinstance(atol, int | float)
            },
            has_control=any(f.endswith(".py") and not f.startswith("_") for f in files),
        )
    return ops or None


def _listed(folder: Path | str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _head(path: str) -> Mapping[str, Any] | None:
    """What stands before an op.toml's tables, and its [legacy_atol]: a fifth of the whole.

    None if there is no such file to read.
    """
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            raw = os.read(file, MAX_HEAD)
        finally:
            os.close(file)
    except OSError:
        return None
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
    first, *tables = text.split("\n[")
    legacy = [table for table in tables if table.startswith("legacy_atol]")]
    try:
        return tomli.loads("\n[".join([first, *legacy]))
    except (tomli.TOMLDecodeError, RecursionError, ValueError):
        return tomlfile.read(Path(path))[0]  # whole, or with what is wrong and where
