"""The hook: checks ``tolerances.toml`` and puts it in order, offline and in milliseconds.

It sees what a schema can't: cells of kernels that are gone, numbers changed by hand, a loosening
against the merge base. It can't see whether numbers are true; that is what `tolcal ci` measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tolcal import files, project, tomlfile
from tolcal.hook import base as git
from tolcal.hook import rules
from tolcal.model import Cell, TolcalError, Tolerance, one_line, plural
from tolcal.tolerances import parse


class Finding(msgspec.Struct, frozen=True):
    """One thing to mend, and where."""

    path: Path
    line: int
    column: int
    level: str  # error or warning
    what: str

    @property
    def text(self) -> str:
        """``tolerances.toml:7:1: error: softmax.float16.atol = 0: what, why; remedy``."""
        where = f"{self.path}:{self.line}:{self.column}"
        return one_line(f"{where}: {self.level}: {self.what}", 1000)


def check(path: Path, *, base: str | None = None, corpus: Path | None = None) -> list[Finding]:
    """Everything wrong with a file, in the order of its lines; errors and warnings.

    Args:
        path: the file.
        base: git commit to compare with (default: the merge base with the default branch).
        corpus: folder of op folders (default: that of the project around ``path``).

    Raises:
        TolcalError: if the file, the project's pyproject.toml or an op.toml can't be read, or
            git knows no commit ``base``.
    """
    with git.Lookup(path, base) as earlier:
        data, text = tomlfile.read(path)
        earlier.go_on()
        around = _project(path, corpus)
        ops = project.outline(around.corpus)
        before = earlier.found()
    old: dict[Cell, Tolerance] = {}
    if before is not None and before.text != text:
        shorter = git.changed(before.text, text)
        old = _sound(shorter) or (_sound(before.text) if shorter != before.text else {})
        if before.source and not before.left:  # another file of the same repository
            old = {(op, d): t for (op, d), t in old.items() if d in _table(data.get(op))}
    context = rules.Context(ops=ops, test_ops=around.test_ops, base=old)
    found = findings(path, data, text, context)
    if before is not None and before.source:
        what = f"is not in the base commit; compared with {before.source} there"
        found.insert(0, Finding(path, 1, 1, "warning", what))
    return found


def findings(
    path: Path, data: Mapping[str, Any], text: str, context: rules.Context
) -> list[Finding]:
    """What is wrong with a file of that content and text, judged against ``context``."""
    cells, problems = parse(data)
    unsound = {problem.keys[:2] for problem in problems}
    problems += [p for p in rules.judge(cells, context) if p.keys[:2] not in unsound]
    positions = tomlfile.Positions(text)
    found = [
        Finding(
            path,
            *((1, 1) if problem.absent else positions.of(problem.keys)),
            problem.level,
            problem.text,
        )
        for problem in problems
    ]
    return sorted(found, key=lambda f: (f.line, f.column))


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sound(text: str) -> dict[Cell, Tolerance]:
    """The cells of a former file; what is wrong with it is past."""
    import tomli

    try:
        return parse(tomli.loads(text))[0]
    except (tomli.TOMLDecodeError, RecursionError, ValueError):
        return {}


def fix(path: Path, corpus: Path | None = None) -> tuple[bool, list[Cell]]:
    """Mends what can be mended safely: order, rounding, cells whose op is gone for good.

    Returns whether the file changed, and the cells that it lost. Numbers that somebody changed
    stay as they are, and so does a cell that may only be misspelt. Raises TolcalError if most
    cells would go: that is a wrong corpus.
    """
    around = _project(path, corpus)
    ops = project.outline(around.corpus)
    known = {*(ops or ()), *around.test_ops}
    data, _ = tomlfile.read(path)
    cells = [(op, dtype) for op in data for dtype in _table(data[op])]
    gone = [
        (op, dtype)
        for op, dtype in cells
        if ops and op not in known and not tomlfile.did_you_mean(op, known)
    ]
    if 2 * len(gone) > len(cells):
        raise TolcalError(
            f"{path}: {len(gone)} of {plural(len(cells), 'cell')} are of ops that "
            f"{around.corpus} lacks ({names(gone)}), so nothing was dropped; name the right "
            "corpus (--corpus DIR, or `corpus` in [tool.tolcal]), or delete them by hand"
        )
    return order(path, gone), gone


def names(cells: list[Cell], most: int = 20) -> str:
    """``softmax/float16, softmax/float32 and 3 more``."""
    shown = ", ".join(f"{op}/{dtype}" for op, dtype in cells[:most])
    return shown + (f" and {len(cells) - most} more" if len(cells) > most else "")


def _project(path: Path, corpus: Path | None) -> project.Project:
    """The project around a file. TolcalError if a corpus was named and isn't there."""
    around = project.around(path.parent)
    if corpus is not None:
        around = msgspec.structs.replace(around, corpus=corpus, corpus_named="--corpus")
    if around.corpus_named and not around.corpus.is_dir():
        raise TolcalError(
            f"{around.corpus_named} = {around.corpus}: no such folder; name the folder of op "
            "folders, or leave it out"
        )
    return around


def order(path: Path, drop: list[Cell] | None = None) -> bool:
    """Puts a file into its canonical form; returns whether it changed.

    Raises TolcalError for what is no TOML or can't be put in order unchanged.
    """
    from tolcal.hook import layout

    _, text = tomlfile.read(path)
    try:
        ordered = layout.canonical(text, drop or ())
    except layout.OrderError as error:
        raise tomlfile.NotTomlError(
            f"{path}:{error.line}:1: {error}; the file was left as it is"
        ) from None
    if ordered == text:
        return False
    files.replace(path, ordered)
    return True
