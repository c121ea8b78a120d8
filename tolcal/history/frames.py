"""Records and lines (`lines`) as one frame, which is what calibration takes.

Such a frame has columns beside those of records: ``line_kind`` (a record, a line that stands for
many, or a record of the sample of a buggy kernel, which stands for the lines' others), how many
records a row ``stands_for``, the points of a line, and its ``bias_told``. A frame without them is
of records alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tolcal.history import columns, lines, tables
from tolcal.history.loading import Loaded

RECORD, LINE, SAMPLED = range(3)
_NUMBERS = (*lines.POINTS, "bias_told")
_COUNTS = ("stands_for", "detectable", "typical_count", "typical_abs_count")


def frame_of(loaded: Loaded) -> pd.DataFrame:
    """What ``calibrate`` takes."""
    if not loaded.lines.num_rows:
        return tables.to_frame(loaded.records)
    records, table = loaded.records, loaded.lines
    count = table.num_rows
    line = lines.is_kind(table, "line")
    own: dict[str, Any] = {name: table[name] for name in columns.SCHEMA.names
                           if name in lines.SCHEMA.names}  # fmt: skip
    own |= {
        "case_id": table["part"],
        "num_exceeding": pc.if_else(table["passed"], 0, 1),
        "max_abs": table[lines.TOPS[0]],
        "residual_max": table[columns.TUPLES["envelope"][0]],
        "nonfinite_mismatch": table["mismatch"],
        "same_as_control": pc.if_else(pa.array(line), None, pc.equal(table["detectable"], 0)),
    }
    same = {
        f.name: own[f.name].cast(f.type) if f.name in own else _nothing(f.type, count)
        for f in columns.SCHEMA
    }
    more = {
        "line_kind": pa.array(np.where(line, LINE, SAMPLED).astype(np.int8)),
        "stands_for": pa.array(np.where(line, table["rows"].to_numpy(), 0).astype(np.int64)),
        **{name: table[name].cast(pa.int64()) for name in _COUNTS[1:]},
        **{name: table[name] for name in _NUMBERS},
    }
    rows = len(records)
    plain = {
        "line_kind": pa.array(np.full(rows, RECORD, np.int8)),
        "stands_for": pa.array(np.ones(rows, np.int64)),
        **{name: pa.array(np.zeros(rows, np.int64)) for name in _COUNTS[1:]},
        **{name: pa.nulls(rows, pa.float32()) for name in _NUMBERS},
    }
    both = pa.concat_tables([
        pa.table({name: records[name] for name in columns.SCHEMA.names} | plain),
        pa.table(same | more),
    ])  # fmt: skip
    both = both.replace_schema_metadata(records.schema.metadata)
    return tables.to_frame(both.unify_dictionaries())


def _nothing(kind: pa.DataType, count: int) -> pa.Array:
    if not pa.types.is_dictionary(kind):
        return pa.nulls(count, kind)
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), [""])
