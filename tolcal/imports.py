"""What a kernel file imports of its own repository, read and never executed."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tolcal.model import TolcalError

#: Folders of a repository that its modules are imported from, beside a kernel's own.
ROOTS = ("", "src")
#: Files that are followed: a kernel needs a few, and a repository may hold a framework.
MAX_FILES = 500


class Imports(msgspec.Struct, frozen=True):
    """A file and the local modules that it imports, and they import. All paths are absolute."""

    files: dict[Path, bytes]
    names: frozenset[str]  # top-level ones, local or not
    places: frozenset[Path]  # where a module of an imported name was looked for, found or not


def _absolute(path: Path) -> Path:
    """Without ``..``, and with links as they are: a linked module is imported by its own name."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def repository(path: Path) -> Path | None:
    """The folder of the git repository that holds ``path``, as far as can be told."""
    for folder in _absolute(path).parents:
        if (folder / ".git").exists():
            return folder
    return None


def of(path: Path, root: Path | None = None) -> Imports:
    """The imports of ``path``, followed through its own folder and those of ``root``.

    What is loaded in another way (by name, from a path, from where a package is installed) can't
    be told. TolcalError, with the line, for a file of its own folder that can't be parsed; of
    another the bytes alone count.

    Args:
        root: folder of the repository; None: only the file's own folder is local.
    """
    folders = [path.parent, *(root / name for name in ROOTS)] if root else [path.parent]
    found: dict[Path, bytes] = {}
    names: set[str] = set()
    places: set[Path] = set()
    queue = [path]
    while queue and len(found) < MAX_FILES:
        current = queue.pop(0)
        whole = _absolute(current)
        if whole in found:
            continue
        tree, found[whole] = _parsed(current, strict=current.is_relative_to(path.parent))
        for name in _imported(tree, whole) if tree else ():
            if isinstance(name, str):
                names.add(name.partition(".")[0])
            for module in _modules(name, folders):
                for file in (module.with_suffix(".py"), module / "__init__.py"):
                    places.add(_absolute(file))
                    if file.is_file():
                        queue.append(file)
    return Imports(found, frozenset(names), frozenset(places))


def _parsed(path: Path, *, strict: bool) -> tuple[ast.Module | None, bytes]:
    raw = b""
    try:
        raw = path.read_bytes()
        return ast.parse(raw, str(path)), raw
    except OSError as error:
        wrong = f"{path}: cannot read it: {error.strerror}"
    except (RecursionError, MemoryError):
        wrong = f"{path}: nested too deeply to be parsed; mend the file"
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        wrong = f"{path}:{line}: not Python: {error}; mend the file"
    if strict:
        raise TolcalError(wrong)
    return None, raw


def _imported(tree: ast.Module, path: Path) -> Iterator[str | Path]:
    """Names of modules, or of what may be one; a relative import as the module's path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = [alias.name for alias in node.names if alias.name != "*"]
            if node.level:
                above = path.parents[min(node.level, len(path.parents)) - 1]
                base = above.joinpath(*(node.module or "").split("."))
                yield from (base, *(base / name for name in inner))
            if node.module:
                yield node.module
                yield from (f"{node.module}.{name}" for name in inner)
            yield from inner if node.level else ()


def _modules(name: str | Path, folders: list[Path]) -> Iterator[Path]:
    """Where a module of that name would be, and the packages that it is in."""
    if isinstance(name, Path):
        yield name
        return
    parts = name.split(".")
    for folder in folders:
        yield from (folder.joinpath(*parts[:end]) for end in range(1, len(parts) + 1))
