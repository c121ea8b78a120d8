"""The history as a folder on a branch of its own, for servers and times that artifacts don't suit.

The branch holds what a history folder holds. Everything goes through git's data API: blobs, a
tree, a commit on top of the one that was read, and a fast-forward of the branch, which GitHub
refuses if another ingest was faster; then all is read again. A second ref, which only ever moves
forward, remembers the last commit, so that a branch that was rewound or deleted is noticed and
can be restored from it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tolcal import history
from tolcal.github import carrying
from tolcal.github.carrying import Sized
from tolcal.github.client import Client, Conflict, Forbidden, NotFound, quote
from tolcal.history import tables
from tolcal.model import TolcalError, plural

if TYPE_CHECKING:
    import pyarrow as pa

#: Records of a file: about 11 MB, of which base64 makes 15, well within what the API takes.
SLICE = 100_000
MAX_ROWS = 200_000  # of a file that others are merged into
MAX_FILE = 48 * 2**20  # bytes
ATTEMPTS = 10
_FILE = re.compile(r"[0-9a-f]{16}\.parquet|MANIFEST")
_README = "README.md"
_TEXT = """\
The history of tolcal: error records of every ingest, as a folder that `tolcal history` reads.
Written by the ingest workflow alone; protect this branch against pushes by anyone else.
"""


class Rewound(TolcalError):
    """The branch lacks commits that it had."""


class Tip(msgspec.Struct, frozen=True):
    """The branch as it was read. ``commit`` is "" where there is none yet."""

    commit: str
    blobs: dict[str, str]  # name -> git's sha of the file


def read(client: Client, branch: str) -> tuple[pa.Table, int]:
    """Records and number of files on the branch. TolcalError if it is damaged or was rewound."""
    with tempfile.TemporaryDirectory(prefix="tolcal-") as folder:
        _fetch(client, branch, Path(folder))
        table = history.read_table([Path(folder)])
        return table, len(list(Path(folder).glob("*.parquet")))


def update(
    client: Client,
    branch: str,
    fresh: Callable[[pa.Table], pa.Table],
    message: str,
) -> tuple[int, int]:
    """Adds the records that ``fresh`` makes of those there are; returns (added, records then).

    Nothing is pushed if there are none to add. TolcalError if the branch would then hold less
    than before, or if others kept pushing in between.
    """
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="tolcal-") as name:
            folder = Path(name)
            tip = _fetch(client, branch, folder)
            past = history.read_table([folder])
            added = tables.new(past, fresh(past))
            if not len(added):
                _mark(client, branch, tip)
                return 0, len(past)
            _add(folder, added)
            whole = history.read_table([folder])
            shrunk = len(tables.new(whole, tables.union(past, added)))
            if shrunk:
                raise TolcalError(
                    f"branch {branch} would lack {plural(shrunk, 'record')} of those there are; "
                    "nothing was pushed, which is a bug in tolcal"
                )
            try:
                pushed = _push(client, branch, folder, tip, message)
            except Conflict:
                continue
        _mark(client, branch, pushed)
        return len(added), len(whole)
    raise TolcalError(
        f"branch {branch}: others pushed to it {ATTEMPTS} times in between; run the job again"
    )


def _add(folder: Path, added: pa.Table) -> None:
    """In files of a size that the API takes, and small ones put together."""
    before = {shard.stem for shard in folder.glob("*.parquet")}
    for start in range(0, len(added), SLICE):
        history.add(folder, added.slice(start, SLICE))
    fresh = [s.stem for s in folder.glob("*.parquet") if s.stem not in before]
    rows = {name: len(history.read_table([folder / f"{name}.parquet"])) for name in before}
    parts = [Sized(name, count) for name, count in rows.items()]
    chosen = carrying.chosen(parts, len(added), datetime.now(UTC), MAX_ROWS)
    history.compact(folder, {*map(str, chosen), *fresh} if chosen else set())


# --- reading --------------------------------------------------------------------------------


def _fetch(client: Client, branch: str, folder: Path) -> Tip:
    """The branch's files into an empty folder."""
    # In this order: an ingest in between moves the branch first, and then what remembers it.
    mark = _ref(client, f"tolcal/{branch}")
    head = _ref(client, f"heads/{branch}")
    _check_mark(client, branch, head, mark)
    if not head:
        return Tip("", {})
    commit = client.get(f"git/commits/{quote(head)}")
    tree = client.get(f"git/trees/{quote(_sha(commit.get('tree')))}")
    blobs: dict[str, str] = {}
    entries = tree.get("tree")
    if tree.get("truncated") or not isinstance(entries, list):
        raise TolcalError(f"branch {branch}: GitHub does not list all of its files")
    for entry in entries:
        name = str(entry.get("path"))
        if entry.get("type") != "blob" or not (name == _README or _FILE.fullmatch(name)):
            continue
        blobs[name] = _sha(entry)
        if name != _README:
            (folder / name).write_bytes(_blob(client, branch, name, blobs[name]))
    return Tip(head, blobs)


def _ref(client: Client, name: str) -> str:
    """The commit of a ref; "" if it isn't there."""
    try:
        return _sha(client.get(f"git/ref/{quote(name)}").get("object"))
    except NotFound:
        return ""


def _sha(value: Any) -> str:
    sha = value.get("sha") if isinstance(value, dict) else None
    if not isinstance(sha, str) or not re.fullmatch("[0-9a-f]{40,64}", sha):
        raise TolcalError("GitHub answered with an object of git that has no sha")
    return sha


def _check_mark(client: Client, branch: str, head: str, mark: str) -> None:
    """Rewound if the branch is not where it was last left, or ahead of that."""
    if not mark or mark == head:
        return
    status = "deleted"
    if head:
        try:
            status = str(client.get(f"compare/{mark}...{head}", per_page=1).get("status"))
        except NotFound:
            status = "replaced"
    if status != "ahead":
        raise Rewound(
            f"branch {branch} was {'rewound' if status == 'behind' else status}: the history that "
            f"ingest left is commit {mark}; restore it (git fetch origin {mark} && git push "
            f"--force origin {mark}:refs/heads/{branch}), or, to give those records up, delete the "
            f"ref refs/tolcal/{branch}"
        )


def _blob(client: Client, branch: str, name: str, sha: str) -> bytes:
    content = client.get(f"git/blobs/{sha}").get("content")
    try:
        data = base64.b64decode(content if isinstance(content, str) else "")
    except binascii.Error:
        data = b""
    if _git_sha(data) != sha:
        raise TolcalError(f"branch {branch}: GitHub's answer for {name} is not that file")
    return data


def _git_sha(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


# --- writing --------------------------------------------------------------------------------


def _push(client: Client, branch: str, folder: Path, tip: Tip, message: str) -> Tip:
    """A commit of the folder on top of ``tip``. Conflict if the branch has moved since."""
    files = {p.name: p.read_bytes() for p in folder.iterdir() if _FILE.fullmatch(p.name)}
    files[_README] = _TEXT.encode()
    blobs: dict[str, str] = {}
    for name, data in sorted(files.items()):
        blobs[name] = _git_sha(data)
        if len(data) > MAX_FILE:
            raise TolcalError(
                f"branch {branch}: {name} would be of {len(data)} bytes, {MAX_FILE} are allowed"
            )
        if tip.blobs.get(name) != blobs[name]:
            content = base64.b64encode(data).decode()
            _write_blob(client, content, blobs[name])
    entries = [
        {"path": name, "mode": "100644", "type": "blob", "sha": sha}
        for name, sha in sorted(blobs.items())
    ]
    # Repeating either makes the same object again, or one more that nothing points to.
    tree = client.post("git/trees", {"tree": entries}, done=lambda: None)
    commit = client.post(
        "git/commits",
        {"message": message, "tree": _sha(tree), "parents": [tip.commit] if tip.commit else []},
        done=lambda: None,
    )
    sha = _sha(commit)
    _move(client, f"heads/{branch}", sha, new=not tip.commit)
    return Tip(sha, blobs)


def _write_blob(client: Client, content: str, sha: str) -> None:
    made = client.post("git/blobs", {"content": content, "encoding": "base64"}, done=lambda: None)
    if made.get("sha") != sha:
        raise TolcalError("GitHub stored another file than the one that was sent; run it again")


def _move(client: Client, name: str, sha: str, new: bool) -> None:
    """A ref to a commit, forward only. Conflict if it can't be."""

    def there() -> dict[str, Any] | None:
        return {} if _ref(client, name) == sha else None

    if new:
        client.post("git/refs", {"ref": f"refs/{name}", "sha": sha}, done=there)
    else:
        client.patch(f"git/refs/{quote(name)}", {"sha": sha, "force": False}, done=there)


def _mark(client: Client, branch: str, tip: Tip) -> None:
    """Remembers the commit that was pushed, or found ahead of the mark."""
    if not tip.commit:
        return
    name = f"tolcal/{branch}"
    mark = _ref(client, name)
    if mark == tip.commit:
        return
    try:
        _move(client, name, tip.commit, new=not mark)
    except (Conflict, Forbidden):
        # Another ingest was faster and has moved it further; or a rule keeps such refs off, and
        # then rewinding goes unnoticed, which is no reason to lose records.
        return
