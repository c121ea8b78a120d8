"""The file as it was at the merge base, from git alone: nothing is fetched."""

from __future__ import annotations

import os
import re
import subprocess
import threading
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


def text(path: Path, ref: str | None = None) -> str | None:
    """``path`` as of the merge base of HEAD and ``ref``; None where git has no such file.

    Without ``ref``: the branch that a pull request goes to, as pre-commit or GitHub Actions say,
    else the default branch, else HEAD. Raises TolcalError for a ``ref`` that git doesn't know.
    """
    wanted = ref or os.environ.get("PRE_COMMIT_FROM_REF") or _pull_request()
    folder = path.resolve().parent
    if not wanted:
        there = _git(folder, "for-each-ref", "--format=%(refname)", *BRANCHES)
        if there is None:
            return None  # no git, or not in a repository
        names = set(there.split())
        wanted = next((branch for branch in BRANCHES if branch in names), "HEAD")
    merge_base = _git(folder, "merge-base", "HEAD", wanted)
    if merge_base is None and ref and _git(folder, "rev-parse", "--verify", f"{ref}^{{commit}}"):
        merge_base = ref  # a shallow clone: no common ancestor is known
    if merge_base is None and ref:
        raise TolcalError(f"--base {ref}: git knows no such commit in {folder}; fetch it first")
    return _git(folder, "show", f"{(merge_base or 'HEAD').strip()}:./{path.name}")


class Later(threading.Thread):
    """``text``, while something else is parsed: git takes a tenth of the hook's time."""

    def __init__(self, path: Path, ref: str | None) -> None:
        super().__init__(daemon=True)
        self.path, self.ref = path, ref
        self.text: str | None = None
        self.error: TolcalError | None = None
        self.start()

    def run(self) -> None:
        """In the thread."""
        try:
            self.text = text(self.path, self.ref)
        except TolcalError as error:
            self.error = error

    def result(self) -> str | None:
        """What ``text`` returned; raises what it raised."""
        self.join()
        if self.error is not None:
            raise self.error
        return self.text


def _pull_request() -> str | None:
    branch = os.environ.get("GITHUB_BASE_REF")
    return f"refs/remotes/origin/{branch}" if branch else None


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, None if it fails. ``--end-of-options``: a ref is never an option."""
    command, *rest = arguments
    separator = () if command == "for-each-ref" else ("--end-of-options",)
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), command, *separator, *rest],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
    except OSError:
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def changed(old: str, new: str) -> str:
    """A shorter ``old``: at least the cells that are not the same, byte for byte, in ``new``.

    Parsing both whole would double the hook's time. Where anything but plain tables of cells
    differs, or a string may hold what looks like a table, ``old`` is given back whole.
    """
    if '"""' in old + new or "'''" in old + new:
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
    kept = [p for p in before if (header := _HEADER.match(p)) and header.group(1) in cells]
    return "\n[".join(["schema = 1", *kept])
