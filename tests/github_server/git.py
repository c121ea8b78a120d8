"""A real bare git repository, through git itself."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

#: What git may see of the machine: no configuration of anyone's.
_ENVIRONMENT = {
    "PATH": os.environ.get("PATH", ""),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


#: Commands on full shas and nothing else, whose answers never change.
_LASTING = re.compile(
    r"(cat-file|diff-tree|merge-base|rev-list|ls-tree)( (-\S+|commit|blob|[0-9a-f]{40}"
    r"(\.\.[0-9a-f]{40})?))+"
)
#: mode, type, sha, size of a blob
Entry = tuple[str, str, str, int | None]


class GitError(Exception):
    """git refused; the text is its own."""


class Person(NamedTuple):
    """Author or committer, with the time that git writes ("1767225600 +0000")."""

    name: str
    email: str
    when: str

    @property
    def line(self) -> str:
        """As in a commit."""
        return f"{self.name} <{self.email}> {self.when}"


class Commit(NamedTuple):
    """One commit, parsed."""

    sha: str
    tree: str
    parents: tuple[str, ...]
    author: Person
    committer: Person
    message: str


class Change(NamedTuple):
    """One file of a difference."""

    status: str  # added, modified, removed, renamed
    path: str
    before: str | None  # the old name of a renamed file
    sha: str  # of the new blob; of the old one if removed
    additions: int
    deletions: int


class Git:
    """One bare repository at `path`."""

    def __init__(self, path: Path, default: str = "main") -> None:
        self.path = path
        self._known: dict[tuple[str, ...], bytes] = {}
        if not path.exists():
            path.mkdir(parents=True)
            self.run("init", "--quiet", "--bare", "--template=", f"--initial-branch={default}", ".")

    def raw(self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] = {}) -> bytes:
        """What git prints. GitError. What hangs on objects alone is asked once."""
        lasting = not stdin and _LASTING.fullmatch(" ".join(arguments))
        if lasting and arguments in self._known:
            return self._known[arguments]
        done = subprocess.run(
            ["git", *arguments], cwd=self.path, input=stdin, capture_output=True, check=False,
            env={**_ENVIRONMENT, **env},
        )  # fmt: skip
        if done.returncode:
            raise GitError(done.stderr.decode("utf-8", "replace").strip() or arguments[0])
        if lasting:
            self._known[arguments] = done.stdout
        return done.stdout

    def run(self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] = {}) -> str:
        """The same as text without the last line break."""
        return self.raw(*arguments, stdin=stdin, env=env).decode().rstrip("\n")

    def resolve(self, name: str) -> str | None:
        """The commit of a branch, tag or sha."""
        if not name or name.startswith("-"):
            return None
        for candidate in (f"refs/heads/{name}", name):
            try:
                return self.run("rev-parse", "--verify", "--quiet", f"{candidate}^{{commit}}")
            except GitError:
                continue
        return None

    def ref(self, name: str) -> str | None:
        """The object of a full ref."""
        try:
            return self.run("rev-parse", "--verify", "--quiet", name)
        except GitError:
            return None

    def refs(self, prefix: str) -> dict[str, str]:
        """Full names that start so, with their objects."""
        lines = self.run("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        pairs = (line.split(" ") for line in lines)
        return {name: sha for name, sha in pairs if name.startswith(prefix)}

    def kind(self, sha: str) -> str | None:
        """blob, tree, commit or tag; None if it isn't there."""
        try:
            return self.run("cat-file", "-t", sha)
        except GitError:
            return None

    def update(self, ref: str, new: str, old: str | None = None) -> None:
        """Compare and swap of a full ref; `old` of 40 zeros: it must not exist."""
        self.run("update-ref", ref, new, *([old] if old else []))

    def ancestor(self, old: str, new: str) -> bool:
        """Whether `new` holds `old`: a fast-forward."""
        try:
            self.run("merge-base", "--is-ancestor", old, new)
        except GitError:
            return False
        return True

    def entry(self, commit: str, path: str) -> Entry | None:
        """(mode, type, sha, size) of what lies at a path."""
        if not path:
            return ("040000", "tree", self.run("rev-parse", f"{commit}^{{tree}}"), None)
        lines = self.run("ls-tree", "-l", "-z", commit, "--", path).split("\0")
        return _entry(lines[0])[1] if lines[0] else None

    def tree(
        self, sha: str, recursive: bool = False
    ) -> dict[str, tuple[str, str, str, int | None]]:
        """path -> (mode, type, sha, size)."""
        options = ["-r", "-t"] if recursive else []
        lines = self.run("ls-tree", "-l", "-z", *options, sha).split("\0")
        return dict(_entry(line) for line in lines if line)

    def blob(self, sha: str) -> bytes:
        """Its bytes."""
        return self.raw("cat-file", "blob", sha)

    def write(self, content: bytes) -> str:
        """A new blob."""
        return self.run("hash-object", "-w", "--stdin", stdin=content)

    def make_tree(self, base: str | None, entries: list[tuple[str, str, str | None]]) -> str:
        """A tree of (mode, path, sha; None deletes) over another tree."""
        index = {"GIT_INDEX_FILE": str(self.path / "index.tmp")}
        self.run("read-tree", base or "--empty", env=index)
        zero = "0" * 40
        lines = [f"{mode if sha else '0'} {sha or zero}\t{path}" for mode, path, sha in entries]
        self.run("update-index", "-z", "--index-info", stdin="\0".join(lines).encode(), env=index)
        return self.run("write-tree", env=index)

    def commit(
        self, tree: str, parents: list[str], message: str, author: Person, committer: Person
    ) -> str:
        """A new commit, on no branch."""
        lines = [f"tree {tree}", *(f"parent {one}" for one in parents)]
        lines += [f"author {author.line}", f"committer {committer.line}", "", message]
        body = "\n".join(lines)
        return self.run("hash-object", "-t", "commit", "-w", "--stdin", stdin=body.encode())

    def read(self, sha: str) -> Commit:
        """A commit by its sha."""
        return self._parse(sha, self.raw("cat-file", "commit", sha).decode())

    def log(self, *arguments: str) -> list[str]:
        """Shas, newest first."""
        return self.run("rev-list", *arguments).splitlines()

    def changes(self, old: str, new: str) -> list[Change]:
        """What differs, renames found as GitHub does."""
        raw = self.run("diff-tree", "-r", "-M", "--raw", "-z", "--no-abbrev", old, new).split("\0")
        counts = self.run("diff-tree", "-r", "-M", "--numstat", "-z", old, new).split("\0")
        numbers: dict[str, tuple[int, int]] = {}
        cursor = iter(counts)
        for line in cursor:
            if not line:
                continue
            plus, minus, path = line.split("\t")
            if not path:
                next(cursor)
                path = next(cursor)
            numbers[path] = (int(plus) if plus != "-" else 0, int(minus) if minus != "-" else 0)
        found = []
        cursor = iter(raw)
        for line in cursor:
            if not line.startswith(":"):
                continue
            _, _, before, after, letter = line[1:].split(" ")
            path = next(cursor)
            old_name = None
            if letter[0] in "RC":
                old_name, path = path, next(cursor)
            status = {"A": "added", "D": "removed", "R": "renamed", "C": "copied"}.get(
                letter[0], "modified"
            )
            sha = before if letter[0] == "D" else after
            found.append(Change(status, path, old_name, sha, *numbers.get(path, (0, 0))))
        return found

    def _parse(self, sha: str, text: str) -> Commit:
        head, _, message = text.partition("\n\n")
        fields: dict[str, list[str]] = {}
        for line in head.splitlines():
            key, _, value = line.partition(" ")
            fields.setdefault(key, []).append(value)
        return Commit(
            sha, fields["tree"][0], tuple(fields.get("parent", ())), _person(fields["author"][0]),
            _person(fields["committer"][0]), message,
        )  # fmt: skip


def _person(line: str) -> Person:
    name, _, rest = line.partition(" <")
    email, _, when = rest.partition("> ")
    return Person(name, email, when)


def _entry(line: str) -> tuple[str, Entry]:
    meta, _, path = line.partition("\t")
    mode, kind, sha, size = meta.split()
    return path, (mode, kind, sha, None if size == "-" else int(size))
