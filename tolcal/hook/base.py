"""The file as it was at the merge base, from git alone: nothing is fetched."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Generator
from pathlib import Path

from tolcal.model import TolcalError

#: Where a default branch may be, best first.
BRANCHES = (
    "refs/remotes/origin/HEAD",
    "refs/remotes/origin/main",
    "refs/remotes/origin/master",
    "refs/heads/main",
    "refs/heads/master",
)
#: Of a text cut at every "\\n[": the cell that a table is of.
_HEADER = re.compile(r"([a-z][a-z0-9_]*\.[a-z0-9_]+)(?:\.[A-Za-z0-9_.]+)?\]")
_INDENTED = re.compile(r"\n[ \t]+\[")


class Lookup:
    """``path`` as of the merge base of HEAD and ``ref``, asked for in steps.

    git runs while the caller is at something else: waiting for it would be a tenth of the hook's
    time, and a thread doesn't get at its answers while tomli parses.

    Without ``ref``: the branch that a pull request goes to, as pre-commit or GitHub Actions say,
    else the default branch, else HEAD.
    """

    def __init__(self, path: Path, ref: str | None = None) -> None:
        self._steps = _steps(path, ref)
        self._text: str | None = None
        self._done = False
        self.go_on()

    def go_on(self) -> None:
        """Takes the answer of one step and starts the next."""
        try:
            next(self._steps)
        except StopIteration as end:
            self._text, self._done = end.value, True

    def text(self) -> str | None:
        """The file; None where git has no such file. TolcalError if ``ref`` is unknown."""
        while not self._done:
            self.go_on()
        return self._text

    def __enter__(self) -> Lookup:
        return self

    def __exit__(self, *_: object) -> None:
        self._steps.close()


def _steps(path: Path, ref: str | None) -> Generator[None, None, str | None]:
    wanted = ref or os.environ.get("PRE_COMMIT_FROM_REF") or _pull_request()
    folder = path.resolve().parent
    if not wanted:
        there = yield from _git(folder, "for-each-ref", "--format=%(refname)", *BRANCHES)
        if there is None:
            return None  # no git, or not in a repository
        names = set(there.split())
        wanted = next((branch for branch in BRANCHES if branch in names), "HEAD")
    # --end-of-options: a ref is never an option.
    merge_base = yield from _git(folder, "merge-base", "--end-of-options", "HEAD", wanted)
    if merge_base is None and ref:
        commit = f"{ref}^{{commit}}"
        # In a shallow clone no common ancestor is known.
        merge_base = yield from _git(folder, "rev-parse", "--verify", "--end-of-options", commit)
        if merge_base is None:
            raise TolcalError(f"--base {ref}: git knows no such commit in {folder}; fetch it first")
    commit = (merge_base or "HEAD").strip()
    return (yield from _git(folder, "show", "--end-of-options", f"{commit}:./{path.name}"))


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


def _pull_request() -> str | None:
    branch = os.environ.get("GITHUB_BASE_REF")
    return f"refs/remotes/origin/{branch}" if branch else None


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
