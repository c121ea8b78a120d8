"""Tables as sets of records: each record once, whichever shards hold it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

#: What makes a record itself: two rows that agree in these are one record.
KEYS = ["run_id", "kernel", "case_id", "case_set"]


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
    return table.take(pa.array(np.sort(first.to_numpy())))


def union(*tables: pa.Table) -> pa.Table:
    """Records of all, each once."""
    return unique(pa.concat_tables(tables))


def new(past: pa.Table, fresh: pa.Table) -> pa.Table:
    """Records of ``fresh`` that ``past`` lacks; ``past`` holds each of its own once."""
    return union(past, fresh).slice(past.num_rows)


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Arrow to pandas, strings as categories: they repeat."""
    frame: pd.DataFrame = table.to_pandas(
        strings_to_categorical=True, self_destruct=False, integer_object_nulls=False
    )
    return frame


def merge(past: pa.Table, fresh: pa.Table) -> pd.DataFrame:
    """Two tables as one frame, each record once."""
    return to_frame(union(past, fresh))
