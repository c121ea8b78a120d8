"""Tables as sets of records: each record once, whichever shards hold it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

#: What makes a record itself: two rows that agree in these are one record.
KEYS = ["run_id", "kernel", "case_id", "case_set"]
#: What two rows of one record agree in, or one of them is not what was measured.
_CONTENT = [
    "status", "input_hash", "kernel_hash", "reference_hash", "op_hash", "max_abs", "residual_max",
    "scaled_max", "bias",
]  # fmt: skip
_DIFFERING = b"tolcal.differing"


def unique(table: pa.Table) -> pa.Table:
    """Each record once, the first of its rows: shards may overlap after a retry or a merge."""
    if not table.num_rows:
        return table
    table = table.unify_dictionaries()
    indexed = table.select(KEYS).append_column("row", pa.array(np.arange(table.num_rows)))
    for i, name in enumerate(KEYS):
        indexed = indexed.set_column(i, name, pc.cast(indexed[name], pa.string()))
    first = indexed.group_by(KEYS, use_threads=False).aggregate([("row", "min")])["row_min"]
    if len(first) == table.num_rows:
        return table
    lost = _differing(table, indexed, first)
    table = table.take(pa.array(np.sort(first.to_numpy())))
    return _said(table, differing(table) + lost)


def union(*tables: pa.Table) -> pa.Table:
    """Records of all, each once; `differing` counts those that were not the same in all."""
    before = sum(map(differing, tables))
    plain = pa.concat_tables([table.replace_schema_metadata(None) for table in tables])
    whole = unique(plain)
    return _said(whole, before + differing(whole)) if before else whole


def differing(table: pa.Table) -> int:
    """Rows that were left out though they are not what the record that stayed says."""
    return int((table.schema.metadata or {}).get(_DIFFERING, b"0"))


def _said(table: pa.Table, lost: int) -> pa.Table:
    return table.replace_schema_metadata({_DIFFERING: str(lost).encode()} if lost else None)


def _differing(table: pa.Table, indexed: pa.Table, first: pa.ChunkedArray) -> int:
    """Rows with the key of an earlier one and another content."""
    stays = np.zeros(table.num_rows, bool)
    stays[first.to_numpy()] = True
    keys = indexed.select(KEYS).to_pandas()
    repeated = keys.duplicated(keep=False).to_numpy()
    content = table.filter(pa.array(repeated)).select(_CONTENT).to_pandas().astype(object)
    both = pd.concat(
        [keys[repeated].reset_index(drop=True), content.where(content.notna(), None)], axis=1
    )
    # The first of each key and content; of those, all but the one that stays for its key.
    kept = both[stays[repeated]]
    same = both.merge(kept, how="left", on=[*KEYS, *_CONTENT], indicator=True)
    return int((same["_merge"] == "left_only").sum())


def new(past: pa.Table, fresh: pa.Table) -> pa.Table:
    """Records of ``fresh`` that ``past`` lacks; ``past`` holds each of its own once."""
    return union(past, fresh).slice(past.num_rows)


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Arrow to pandas, strings as categories: they repeat."""
    frame: pd.DataFrame = table.to_pandas(
        strings_to_categorical=True, self_destruct=False, integer_object_nulls=False
    )
    if lost := differing(table):
        frame.attrs["differing"] = lost
    return frame


def merge(past: pa.Table, fresh: pa.Table) -> pd.DataFrame:
    """Two tables as one frame, each record once."""
    return to_frame(union(past, fresh))
