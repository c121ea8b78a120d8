"""The trusted history, wherever it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tolcal import history
from tolcal.github import branches, carried, trust
from tolcal.github.client import Client
from tolcal.github.settings import Inputs, Job

if TYPE_CHECKING:
    import pyarrow as pa


class Trusted(msgspec.Struct, frozen=True):
    """Records that ingest measured and kept."""

    table: pa.Table
    notes: tuple[str, ...]  # what was skipped or is missing, in plain words
    shards: int  # files that hold it


def read(client: Client, inputs: Inputs, job: Job) -> Trusted:
    """By ``inputs.history``: artifacts of the ingest workflow, a branch, or a path.

    TolcalError if records that were there can't be read any more (``carried.Lost``,
    ``branches.Rewound``) or if what is there is not sound.
    """
    if inputs.history == "artifact":
        found = carried.read(client, inputs, trust.home(client, job))
        return Trusted(found.table, found.notes, len(found.parts))
    if inputs.history == "branch":
        table, shards = branches.read(client, inputs.history_branch)
        notes = () if len(table) else (f"no history yet: branch {inputs.history_branch}",)
        return Trusted(table, notes, shards)
    path = Path(inputs.history)
    table = history.read_table([path])
    notes = () if len(table) else (f"no history yet: {path}",)
    shards = len(list(path.glob("*.parquet"))) if path.is_dir() else int(path.exists())
    return Trusted(table, notes, shards)
