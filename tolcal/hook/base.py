"""The file as it was at the merge base, from git alone: nothing is fetched."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Generator
from pathlib import Path

import msgspec

from tolcal.model import TolcalError

#: Where a default branch may be, best first.
BRANCHES = (
    "refs/remotes/origin/HEAD",
    "refs/remotes/origin/main",
    "refs/remotes/origin/master",
    "refs/heads/main",
    "refs/heads/master",
)
#: What a table of a cell looks like, to git grep.
_CELL = r"^[[:space:]]*\[[a-z][a-z0-9_]*\.(b?float[0-9]+[a-z0-9_]*)(\.|\])"
#: Of a text cut at every "\\n[": the cell that a table is of.
_HEADER = re.compile(r"([a-z][a-z0-9_]*\.[a-z0-9_]+)(?:\.[A-Za-z0-9_.]+)?\]")
_INDENTED = re.compile(r"\n[ \t]+\[")


class Earlier(msgspec.Struct, frozen=True):
    """A file of the merge base: the one asked for, or the one that stands for it."""

    text: str
    source: str = ""  # its path at the base, where that is another
    left: bool = False  # that other file is gone since, so it was moved


class Lookup:
    """``path`` as of the merge base of HEAD and ``ref``, asked for in steps.

    git runs while the caller is at something else: waiting for it would be a tenth of the hook's
    time, and a thread doesn't get at its answers while tomli parses.

    Without ``ref``: the branch that a pull request goes to, as pre-commit or GitHub Actions say,
    else the default branch, else HEAD.
    """

    def __init__(self, path: Path, ref: str | None = None) -> None:
        self._steps = _steps(path, ref)
        self._found: Earlier | None = None
        self._done = False
        self.go_on()

    def go_on(self) -> None:
        """Takes the answer of one step and starts the next."""
        try:
            next(self._steps)
        except StopIteration as end:
            self._found, self._done = end.value, True

    def found(self) -> Earlier | None:
        """The file; None where git has none. TolcalError if a base was named and is unknown."""
        while not self._done:
            self.go_on()
        return self._found

    def __enter__(self) -> Lookup:
        return self

    def __exit__(self, *_: object) -> None:
        self._steps.close()


def _steps(path: Path, ref: str | None) -> Generator[None, None, Earlier | None]:
    named, wanted = (f"--base {ref}", ref) if ref else _environment()
    # Of a link, the file that it is of; Path.resolve raises for a link to itself.
    path = Path(os.path.realpath(path))
    folder = path.parent
    if not wanted:
        there = yield from _git(folder, "for-each-ref", "--format=%(refname)", *BRANCHES)
        if there is None:
            return None  # no git, or not in a repository
        names = set(there.split())
        wanted = next((branch for branch in BRANCHES if branch in names), "HEAD")
    # --end-of-options: a ref is never an option.
    base = yield from _git(folder, "merge-base", "--end-of-options", "HEAD", wanted)
    if base is None:
        # In a shallow clone no common ancestor is known: then the branch itself.
        commit = f"{wanted}^{{commit}}"
        base = yield from _git(folder, "rev-parse", "--verify", "--end-of-options", commit)
    if base is None:
        if not named:
            return None  # a repository without a commit
        raise TolcalError(
            f"{named}: git knows no such commit in {folder}; fetch it first (`git fetch origin "
            "BRANCH`, or `fetch-depth: 0` of actions/checkout), or name another by --base REF"
        )
    text = yield from _git(folder, "show", "--end-of-options", f"{base.strip()}:./{path.name}")
    if text is not None:
        return Earlier(text)
    return (yield from _elsewhere(path, base.strip()))


def _elsewhere(path: Path, base: str) -> Generator[None, None, Earlier | None]:
    """The file at ``base`` that most likely became ``path``, which that commit lacks."""
    top = yield from _git(path.parent, "rev-parse", "--show-toplevel")
    if top is None:
        return None
    root = Path(top.rstrip("\n"))
    # -O, textconv and colour of a user's settings don't apply to what is no terminal.
    found = yield from _git(
        root, "grep", "--no-color", "-l", "-z", "-E", "-e", _CELL, base, "--", "*.toml"
    )
    names = [name.removeprefix(f"{base}:") for name in (found or "").split("\0") if name]
    if not names:
        return None

    def left(name: str) -> bool:
        return (root / name).is_symlink() or not (root / name).exists()

    # Best: gone since, and of the same name.
    names.sort(key=lambda name: (not left(name), Path(name).name != path.name, name))
    text = yield from _git(root, "show", "--end-of-options", f"{base}:{names[0]}")
    return None if text is None else Earlier(text, names[0], left(names[0]))


def _environment() -> tuple[str, str]:
    """What names the base, and the base; both empty where nothing does."""
    ref = os.environ.get("PRE_COMMIT_FROM_REF", "")
    if ref.strip("0"):  # zeros: there is nothing before
        return f"PRE_COMMIT_FROM_REF={ref}", ref
    branch = os.environ.get("GITHUB_BASE_REF")
    return (f"GITHUB_BASE_REF={branch}", f"refs/remotes/origin/{branch}") if branch else ("", "")


def _git(folder: Path, *arguments: str) -> Generator[None, None, str | None]:
    """Starts git, lets go, and gives what it printed; None if it failed or there is none."""
    try:
        process = subprocess.Popen(
            ["git", "-C", str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"GIT_NO_LAZY_FETCH": "1"},  # a partial clone fetches on demand
        )
    except OSError:
        return None
    with process:
        yield
        printed, _ = process.communicate()
    return printed.decode("utf-8", "replace") if process.returncode == 0 else None


def changed(old: str, new: str) -> str:
    """A shorter ``old``: at least the cells that are not the same, byte for byte, in ``new``.

    Parsing both whole would double the hook's time. Where anything but plain tables of cells
    differs, or a string may hold what looks like a table, ``old`` is given back whole.
    """
    if any(quote in text for quote in ('"""', "'''") for text in (old, new)):
        return old
    before, after = old.split("\n["), new.split("\n[")
    same = set(before) & set(after)
    cells = set()
    for piece in (*before, *after):
        if piece in same:
            continue
        header = _HEADER.match(piece)
        if header is None or _INDENTED.search(piece):
            return old
        cells.add(header.group(1))
    starts = tuple(f"{cell}{end}" for cell in cells for end in ".]")
    kept = [piece for piece in before if piece.startswith(starts)]
    return "\n[".join(["schema = 1", *kept])
