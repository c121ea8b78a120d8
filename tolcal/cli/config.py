"""``[tool.tolcal]`` of the nearest pyproject.toml; options override it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tolcal import tomlfile
from tolcal.model import BUDGET, PROFILES, Budget, TolcalError


class Cases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cases a kernel and dtype, in each run."""

    gate: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 12
    explore: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 24


Checks = Literal["gate", "all", "none"]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    corpus: str = "corpus"
    tolerances: str = "tolerances.toml"
    history: tuple[str, ...] | str = "out/history"
    device: str = "auto"
    timeout: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 120.0
    profile: tuple[str, ...] | str = ()
    triton_cache: str = ""
    checks: Checks = "gate"  # which cases are checked without a tolerance, too
    cases: Cases = Cases()
    budget: Budget = BUDGET  # share of runs that may be red for noise
    test_ops: tuple[str, ...] = ()  # ops that only tests know: see `project`


class Config(msgspec.Struct, frozen=True):
    """Settings with paths made whole: relative to pyproject.toml there, to here in options."""

    corpus: Path
    tolerances: Path
    history: tuple[Path, ...]
    device: str
    timeout: float
    profiles: tuple[str, ...]  # empty: each op's own
    triton_cache: Path | None  # None: Triton's own
    checks: Checks
    cases: Cases
    budget: float


def load(args: argparse.Namespace) -> Config:
    """The settings of a command. TolcalError with file and line for a bad table."""
    root, table = _find(Path.cwd())
    history = (table.history,) if isinstance(table.history, str) else table.history

    def path(option: str, value: str) -> Path:
        given = getattr(args, option, None)
        return Path(given) if given else _short(root / value)

    given = getattr(args, "history", None)
    paths = tuple(Path(p) for p in given) if isinstance(given, list) and given else None
    cache = getattr(args, "triton_cache", None) or table.triton_cache
    cases = Cases(
        gate=table.cases.gate if getattr(args, "gate", None) is None else args.gate,
        explore=table.cases.explore if getattr(args, "cases", None) is None else args.cases,
    )
    return Config(
        corpus=path("corpus", table.corpus),
        tolerances=path("tolerances", table.tolerances),
        history=paths or tuple(_short(root / p) for p in history),
        device=getattr(args, "device", None) or table.device,
        timeout=getattr(args, "timeout", None) or table.timeout,
        profiles=_profiles(getattr(args, "profile", None), table.profile),
        triton_cache=path("triton_cache", table.triton_cache) if cache else None,
        checks=getattr(args, "checks", None) or table.checks,
        cases=cases,
        budget=getattr(args, "budget", None) or table.budget,
    )


def _profiles(asked: Sequence[str] | None, configured: Sequence[str] | str) -> tuple[str, ...]:
    """Those of --profile, else those of pyproject.toml; none is each op's own."""
    given = configured if asked is None else asked
    where = "profile, under [tool.tolcal]" if asked is None else "--profile"
    found, known = _names(given), (*PROFILES, "all")
    if not found and given != ():
        raise TolcalError(f"{where}: no input profile is named; leave it out for each op's own, or "
                          f"name some of {', '.join(known)}")  # fmt: skip
    for name in found:
        if name not in known:
            written = name.lower().replace("-", "_").replace(" ", "_")
            hint = tomlfile.did_you_mean(written, known)
            if written.startswith("single_dtype"):  # a published one
                hint = "; --dtype measures a single dtype, in any profile"
            raise TolcalError(f"{where}: unknown input profile {name!r}{hint}; known: "
                              f"{', '.join(known)}")  # fmt: skip
    return found


def _names(given: Sequence[str] | str) -> tuple[str, ...]:
    """Names that are listed, or separated by commas, or both."""
    listed = [given] if isinstance(given, str) else given
    names = [name.strip() for text in listed for name in text.split(",")]
    return tuple(dict.fromkeys(name for name in names if name))


def must_exist(args: argparse.Namespace) -> None:
    """Records asked for by name must be there; the configured history may be yet to come."""
    for name in ("history", "locked"):
        for path in getattr(args, name, None) or ():
            if not Path(path).exists():
                raise TolcalError(f"--{name} {path}: no such file or folder")


def writable_history(paths: tuple[Path, ...]) -> Path:
    """The history folder that new records join: the last one that is a folder."""
    folders = [p for p in paths if p.is_dir() or p.suffix == ""]
    if not folders:
        raise TolcalError(
            f"--history {' '.join(map(str, paths))}: none is a folder that records can be added "
            "to; give one more --history DIR"
        )
    return folders[-1]


def _find(start: Path) -> tuple[Path, _Table]:
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if not path.is_file():
            continue
        data, text = tomlfile.read(path)
        tool = data.get("tool", {})
        if not isinstance(tool, dict):
            line, kind = tomlfile.line_of(text, ("tool",)), type(tool).__name__
            raise TolcalError(f"{path}:{line}: tool: Expected `object`, got `{kind}`")
        table = tool.get("tolcal")
        if table is not None:
            return folder, tomlfile.convert(table, _Table, path, text, ("tool", "tolcal"))
    return start, _Table()


def _short(path: Path) -> Path:
    """Relative to here where possible, as people like to read it."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path
