"""A history folder: immutable Parquet shards, named by content, and MANIFEST, which lists them.

A shard is written under a temporary name and renamed, then listed by ``<name> <records>``. A
compaction writes one shard with the records of many, lists it, and only then strikes those off by
``-<name> <into>`` and removes them. Writers lock the folder, readers need not: MANIFEST only grows,
by single writes, and at whatever moment a process dies, the folder holds every record.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from tolcal.history import columns, parquet, tables
from tolcal.model import Record, TolcalError

MANIFEST = "MANIFEST"
#: A compaction takes shards from under a reader; so many in a row are something else.
_TRIES = 20


def read(folder: Path) -> list[pa.Table]:
    """All shards. TolcalError names the one that is lost, damaged or unreadable."""
    for _ in range(_TRIES):
        try:
            return [_read_shard(shard) for shard in shards(folder)]
        except FileNotFoundError:
            continue  # its records are in another shard now
    raise TolcalError(f"{folder}: shards vanish while they are read; is something deleting them?")


def shards(folder: Path) -> list[Path]:
    """All shards of a history folder; TolcalError if a listed one is gone."""
    while True:
        listed = _listed(folder)
        found = sorted(folder.glob("*.parquet"))
        lost = listed.keys() - {shard.stem for shard in found}
        if not lost:
            return found
        if lost & _listed(folder).keys():  # not compacted away in between
            name = min(lost, key=listed.__getitem__)
            raise TolcalError(
                f"{folder / name}.parquet: missing, but {folder / MANIFEST}:{listed[name]} lists "
                "it; restore the file, or remove that line if its records are to be given up"
            )


def listed(folder: Path) -> dict[str, list[str]]:
    """Shards that MANIFEST lists, the oldest first, and what it says of each."""
    lines = _manifest(folder)
    return {name: lines[number - 1].split(" ")[1:] for name, number in _listed(folder).items()}


def _manifest(folder: Path) -> list[str]:
    try:
        return (folder / MANIFEST).read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []


def _listed(folder: Path) -> dict[str, int]:
    """Shards that MANIFEST lists, and in which line."""
    listed: dict[str, int] = {}
    for number, line in enumerate(_manifest(folder), 1):
        name = line.split(" ")[0]
        if name.startswith("-"):
            listed.pop(name[1:], None)
        elif name:
            listed[name] = number
    return listed


def _read_shard(path: Path) -> pa.Table:
    return parquet.parse(path, content(path))


def content(path: Path) -> bytes:
    """A shard's bytes. TolcalError if they are not those that it is named by."""
    data = path.read_bytes()
    must_be_named(path, hashlib.sha256(data).hexdigest()[:16])
    return data


def must_be_named(path: Path, content: str) -> None:
    """TolcalError if a shard's content does not hash to its name."""
    if content != path.stem:
        raise TolcalError(
            f"{path}: damaged: its content hashes to {content}, not to its name; restore it from "
            "a backup or artifact (nothing was changed)"
        )


def add(folder: Path, records: Iterable[Record] | pa.Table) -> Path | None:
    """Adds records as one shard; returns its path, None if there were none to add.

    Adding the same records again gives the same shard: it is a no-op.
    """
    table = records if isinstance(records, pa.Table) else columns.from_records(records)
    if not table.num_rows:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with _written(folder, table) as (temporary, shard), _locked(folder):
        _place(temporary, shard, str(table.num_rows))
    return shard


def place(folder: Path, data: bytes, told: str) -> Path:
    """Adds a file of these bytes, named by them, and ``told`` in its line of MANIFEST."""
    folder.mkdir(parents=True, exist_ok=True)
    shard = folder / f"{hashlib.sha256(data).hexdigest()[:16]}.parquet"
    with _temporary(folder) as temporary:
        temporary.write_bytes(data)
        with _locked(folder):
            _place(temporary, shard, told)
    return shard


def replace(path: Path, data: bytes) -> None:
    """Writes a file in one step: who reads it reads the old bytes or the new ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(path.parent) as temporary:
        temporary.write_bytes(data)
        temporary.replace(path)


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    path = folder / f".{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def compact(folder: Path, names: Collection[str] | None = None) -> Path | None:
    """Puts the records of all shards (or of those named) into one; None if there are not two.

    TolcalError, and nothing is removed, if a shard is lost or damaged or if the new one would
    hold fewer records than the old ones.
    """
    with _locked(folder):
        old = [shard for shard in shards(folder) if names is None or shard.stem in names]
        if len(old) < 2:
            return None
        whole = tables.union(*map(_read_shard, old))
        if lost := tables.differing(whole):
            raise TolcalError(
                f"{folder}: {lost} of its records say something else than others of the same run, "
                "kernel and case, and one shard could not hold both; find the run whose id was "
                "used twice (`tolcal history ls`), and remove the wrong shard"
            )
        with _written(folder, whole) as (temporary, into):
            _place(temporary, into, str(whole.num_rows))
        if len(tables.new(_read_shard(into), whole)):
            raise TolcalError(f"{into}: does not hold what it was made of; nothing was removed")
        gone = [shard for shard in old if shard != into]
        _sync(folder)  # before the only other copy goes
        _append(folder, [f"-{shard.stem} {into.stem}" for shard in gone])
        for shard in gone:
            shard.unlink()
    return into


@contextlib.contextmanager
def _written(folder: Path, table: pa.Table) -> Iterator[tuple[Path, Path]]:
    """A file of the records under a temporary name, and the name that its content gives it."""
    with _temporary(folder) as temporary:
        parquet.write(temporary, table.replace_schema_metadata(None))
        name = hashlib.sha256(temporary.read_bytes()).hexdigest()[:16]
        yield temporary, folder / f"{name}.parquet"


def _place(temporary: Path, shard: Path, told: str) -> None:
    if not shard.exists():
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(shard)
    # A kill may have come between the two, so what exists may still have to be listed.
    if shard.stem not in _listed(shard.parent):
        _append(shard.parent, [f"{shard.stem} {told}"])


def _append(folder: Path, lines: list[str]) -> None:
    # One write to a file opened for appending: a reader sees all of the lines or none.
    with (folder / MANIFEST).open("ab", buffering=0) as manifest:
        manifest.write("".join(f"{line}\n" for line in lines).encode())
        os.fsync(manifest.fileno())


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The only one that changes the folder; an end of the process, of any kind, ends it."""
    try:
        import fcntl
    except ImportError:  # Windows, where nothing measures
        yield
        return
    # The file that is never replaced; a folder could not be locked on NFS.
    with (folder / MANIFEST).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(folder: Path) -> None:
    """Names and renames of the folder onto the disk."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
