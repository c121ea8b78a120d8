"""The append-only set of records: a folder of immutable Parquet shards, or a single file.

Shards are named by their content, written under a temporary name and renamed. ``MANIFEST`` in
the folder gains a line for each, so that a lost shard is noticed. A reader takes the union of
all shards, each record once; an unreadable one is an error that names it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tolcal.history import columns, jsonlines
from tolcal.model import Record, TolcalError, digest

__all__ = ["add", "jsonlines", "ls", "read", "read_table", "verify"]

MANIFEST = "MANIFEST"


# --- reading --------------------------------------------------------------------------------


def read(paths: Sequence[Path]) -> pd.DataFrame:
    """Union of histories and records files as a frame (columns: ``columns.SCHEMA``).

    Raises TolcalError that names the file (and line) for what is missing, cut or malformed.
    """
    return to_frame(read_table(paths))


def read_table(paths: Sequence[Path]) -> pa.Table:
    """The same as an Arrow table. A path that is a missing *folder* of the union is empty."""
    tables = [columns.empty()]
    for path in paths:
        if path.is_dir():
            tables += [_read_shard(shard) for shard in _shards(path)]
        elif path.suffix == ".parquet":
            tables.append(_read_parquet(path))
        elif path.name.endswith((".jsonl", ".jsonl.gz")):
            tables.append(columns.from_records(jsonlines.read(path)))
        elif not path.exists() and path.suffix == "":
            continue  # a history folder that no run has made yet
        else:
            raise TolcalError(
                f"{path}: neither a history folder nor a .parquet, .jsonl or .jsonl.gz file; "
                "give one with --history"
            )
    return _unique(pa.concat_tables(tables))


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Arrow to pandas, strings as categories: they repeat."""
    frame: pd.DataFrame = table.to_pandas(
        strings_to_categorical=True, self_destruct=False, integer_object_nulls=False
    )
    return frame


def merge(past: pa.Table, fresh: pa.Table) -> pd.DataFrame:
    """Two tables as one frame, each record once."""
    return to_frame(_unique(pa.concat_tables([past, fresh])))


def _unique(table: pa.Table) -> pa.Table:
    """Each record once: shards may overlap after a retry or a merge."""
    if not table.num_rows:
        return table
    keys = ["run_id", "kernel", "case_id", "case_set"]
    table = table.unify_dictionaries()
    indexed = table.select(keys).append_column("row", pa.array(np.arange(table.num_rows)))
    for i, name in enumerate(keys):
        indexed = indexed.set_column(i, name, pc.cast(indexed[name], pa.string()))
    first = indexed.group_by(keys, use_threads=False).aggregate([("row", "min")])["row_min"]
    if len(first) == table.num_rows:
        return table
    return table.take(pa.array(np.sort(first.to_numpy())))


def _shards(folder: Path) -> list[Path]:
    """All shards of a history folder; TolcalError if a listed one is gone."""
    shards = sorted(folder.glob("*.parquet"))
    names = {shard.stem for shard in shards}
    manifest = folder / MANIFEST
    if manifest.exists():
        for number, line in enumerate(manifest.read_text("utf-8", "replace").splitlines(), 1):
            name = line.split(" ")[0]
            if name and name not in names:
                raise TolcalError(
                    f"{folder / name}.parquet: missing, but {manifest}:{number} lists it; restore "
                    "the file, or remove that line if its records are to be given up"
                )
    return shards


def _read_shard(path: Path) -> pa.Table:
    content = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    if content != path.stem:
        raise TolcalError(
            f"{path}: damaged: its content hashes to {content}, not to its name; restore it from "
            "a backup or artifact (nothing was changed)"
        )
    return _read_parquet(path)


def _read_parquet(path: Path) -> pa.Table:
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise TolcalError(f"{path}: no such history; check --history") from None
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:160]
        raise TolcalError(
            f"{path}: unreadable or truncated Parquet ({reason}); restore it from a backup or "
            "artifact (nothing was changed)"
        ) from None
    return columns.conform(table, path)


# --- writing --------------------------------------------------------------------------------


def add(folder: Path, records: Iterable[Record] | pa.Table) -> Path | None:
    """Adds records as one shard; returns its path, None if there were none to add.

    Adding the same records again gives the same shard: it is a no-op.
    """
    table = records if isinstance(records, pa.Table) else columns.from_records(records)
    if not table.num_rows:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        write_parquet(temporary, table)
        name = hashlib.sha256(temporary.read_bytes()).hexdigest()[:16]
        final = folder / f"{name}.parquet"
        if final.exists():
            _list(folder, name, table.num_rows)
            return final
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    _list(folder, name, table.num_rows)
    return final


def _list(folder: Path, name: str, rows: int) -> None:
    """Puts a shard into MANIFEST, unless it stands there (a kill may have come in between)."""
    path = folder / MANIFEST
    if path.exists() and f"{name} " in path.read_text("utf-8", "replace"):
        return
    # One write to a file opened for appending: concurrent writers don't lose each other's line.
    with path.open("ab", buffering=0) as manifest:
        manifest.write(f"{name} {rows}\n".encode())


def write_parquet(path: Path, table: pa.Table) -> None:
    """Flat columns; floats byte-stream-split, which compresses what zstd alone can't."""
    floats = [f.name for f in table.schema if pa.types.is_floating(f.type)]
    others = [f.name for f in table.schema if f.name not in floats]
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=9,
        use_dictionary=others,
        use_byte_stream_split=floats,
        row_group_size=131_072,
        write_statistics=False,
    )


# --- questions ------------------------------------------------------------------------------


def content_digest(frame: pd.DataFrame) -> str:
    """16 hex digits over the set of records, whatever their order and shards."""
    if frame.empty:
        return digest("history", 0, 0)
    names = ["run_id", "kernel", "case_id", "case_set", "status", "max_abs", "residual_max"]
    plain = frame[names].astype(dict.fromkeys(names[:5], str))
    rows = pd.util.hash_pandas_object(plain, index=False).to_numpy()
    return digest("history", len(frame), int(rows.sum(dtype=np.uint64)))


def ls(paths: Sequence[Path]) -> pd.DataFrame:
    """One row a run: id, started, device, origin, rows, kernels, failed."""
    frame = read(paths)
    frame["started"] = frame["started"].astype(str)  # categories sort by first appearance
    frame["failed"] = frame["status"].isin(["crashed", "timeout"])
    grouped = frame.groupby("run_id", observed=True, sort=False)
    table = grouped.agg(
        started=("started", "first"),
        device=("device", "first"),
        origin=("origin", "first"),
        rows=("kernel", "size"),
        kernels=("kernel", "nunique"),
        failed=("failed", "sum"),
    )
    return table.reset_index().sort_values(["started", "run_id"], ignore_index=True)


def verify(paths: Sequence[Path]) -> list[str]:
    """Checks every shard and record; returns one line a path. TolcalError at the first damage."""
    lines = []
    for path in paths:
        table = read_table([path])
        problems = columns.inconsistent(table)
        if problems:
            raise TolcalError(f"{path}: {problems[0]} ({len(problems)} such records); restore it")
        shards = len(_shards(path)) if path.is_dir() else 1
        runs = len(pc.unique(pc.cast(table["run_id"], pa.string())))
        lines.append(f"{path}: {table.num_rows} records of {runs} runs in {shards} shard(s): good")
    return lines
