"""The append-only set of records: a folder of immutable Parquet shards, or a single file.

A reader takes the union of all shards, each record once; a lost or unreadable one is an error
that names it (``folder``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tolcal.history import clocks, columns, folder, jsonlines, lines, parquet, summaries, tables
from tolcal.history.folder import MANIFEST, add, compact
from tolcal.history.parquet import write as write_parquet
from tolcal.history.tables import merge, to_frame
from tolcal.model import TolcalError, digest, plural

__all__ = [
    "MANIFEST", "add", "compact", "content_digest", "jsonlines", "ls", "merge", "read",
    "read_table", "to_frame", "verify", "write_parquet",
]  # fmt: skip


def read(paths: Sequence[Path]) -> pd.DataFrame:
    """Union of histories and records files as a frame (columns: ``columns.SCHEMA``).

    Raises TolcalError that names the file (and line) for what is missing, cut or malformed.
    """
    return to_frame(read_table(paths))


def read_table(paths: Sequence[Path]) -> pa.Table:
    """The same as an Arrow table. A path that is a missing *folder* of the union is empty."""
    found = [columns.empty()]
    for path in paths:
        if path.is_dir():
            found += folder.read(path)
        elif path.suffix == ".parquet":
            found.append(parquet.read(path))
        elif path.name.endswith((".jsonl", ".jsonl.gz")):
            found.append(columns.from_records(jsonlines.read(path)))
        elif not path.exists() and path.suffix == "":
            continue  # a history folder that no run has made yet
        else:
            raise TolcalError(
                f"{path}: neither a history folder nor a .parquet, .jsonl or .jsonl.gz file; "
                "give one with --history"
            )
    return tables.union(*found)


# --- questions ------------------------------------------------------------------------------


def content_digest(frame: pd.DataFrame) -> str:
    """16 hex digits over the set of records, whatever their order and shards."""
    if frame.empty:
        return digest("history", 0, 0)
    names = ["run_id", "kernel", "case_id", "case_set", "status", "max_abs", "residual_max"]
    # Categories hash as their strings do, each once.
    other = [n for n in names[:5] if not isinstance(frame[n].dtype, pd.CategoricalDtype)]
    plain = frame[names].astype(dict.fromkeys(other, str))
    rows = pd.util.hash_pandas_object(plain, index=False).to_numpy()
    return digest("history", len(frame), int(rows.sum(dtype=np.uint64)))


def ls(paths: Sequence[Path]) -> pd.DataFrame:
    """One row a run: id, started, device, origin, rows, kernels, failed."""
    frame = read([path for path in paths if not summaries.is_summary(path)])
    frame["failed"] = frame["status"].isin(["crashed", "timeout"]).astype(int)
    frame["number"] = 1
    names = ["run_id", "started", "device", "origin", "kernel", "failed", "number"]
    parts = [frame[names].astype(dict.fromkeys(names[:5], str))]
    for path in paths:
        if summaries.is_summary(path):
            known = set().union(*(set(part["run_id"]) for part in parts))
            table = lines.merge(summaries.read(path))
            table = table.filter(pa.array(lines.is_kind(table, "line")))
            here = table.select([*names[:5], "status", "rows"]).to_pandas()
            here["number"] = here["rows"]
            here["failed"] = here["rows"] * here["status"].isin(["crashed", "timeout"])
            parts.append(
                here[~here["run_id"].isin(known)][names].astype(dict.fromkeys(names[:5], str))
            )
    grouped = pd.concat(parts).groupby("run_id", observed=True, sort=False)
    table = grouped.agg(
        started=("started", "first"),
        device=("device", "first"),
        origin=("origin", "first"),
        rows=("number", "sum"),
        kernels=("kernel", "nunique"),
        failed=("failed", "sum"),
    )
    when = clocks.instants(table["started"])
    table = table.reset_index().sort_values(["started", "run_id"], ignore_index=True)
    return table.sort_values(
        "started", key=lambda s: s.map(lambda one: when[str(one)]), kind="stable", ignore_index=True
    )


def verify(paths: Sequence[Path]) -> list[str]:
    """Checks every shard and record; returns one line a path. TolcalError at the first damage."""
    said = []
    for path in paths:
        if summaries.is_summary(path):
            said.append(_verified(path))
            continue
        table = read_table([path])
        if lost := tables.differing(table):
            raise TolcalError(
                f"{path}: {lost} of its records say something else than others of the same run, "
                "kernel and case: the id of a run was used twice, or a record was changed; remove "
                "the wrong shard"
            )
        problems = columns.inconsistent(table)
        if problems:
            raise TolcalError(f"{path}: {problems[0]} ({len(problems)} such records); restore it")
        shards = len(folder.shards(path)) if path.is_dir() else 1
        runs = len(pc.unique(pc.cast(table["run_id"], pa.string())))
        said.append(f"{path}: {table.num_rows} records of {runs} runs in {shards} shard(s): good")
    return said


def _verified(path: Path) -> str:
    table, passed = lines.merged(summaries.read(path))
    runs = lines.runs_of(table)
    files = len(folder.shards(path)) if path.is_dir() else 1
    overlap = ""
    if passed:
        overlap = (
            f"; {plural(sum(passed.values()), 'more record')} of {plural(len(passed), 'run')} "
            f"({min(passed)} first) do not count: they may be those of another part of their run"
        )
    return (
        f"{path}: a summary of {sum(runs.values())} records of {len(runs)} runs in {files} "
        f"file(s): good{overlap}"
    )
