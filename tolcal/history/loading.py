"""A history for calibration: records as long as they are few, lines of whatever is summarised."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tolcal.history import columns, folder, lines, reduce, summaries

#: More records than these are summarised while they are read.
MOST_RECORDS = 1_000_000


class Loaded(msgspec.Struct, frozen=True):
    """Records, and the lines of other runs: none is in both."""

    records: pa.Table
    lines: pa.Table


def load(
    paths: Sequence[Path],
    *,
    most: int = MOST_RECORDS,
    sample: int = lines.SAMPLE,
    engine: reduce.Engine = reduce.local,
    progress: reduce.Progress = lambda *_: None,
) -> Loaded:
    """Histories, records files and summaries together; of a run in both the records count.

    Args:
        paths: as for ``history.read_table``, and summaries, as files or folders.
        most: records up to which they are kept as such.
        sample: records of a buggy kernel and dtype that stand for the others in a summary.
        engine: where row groups are read, if there are so many.
        progress: of that.

    Raises:
        TolcalError: naming the file that is missing, damaged or none of ours.
    """
    from tolcal.history import read_table

    apart = [path for path in paths if summaries.is_summary(path)]
    rest = recorded(paths)
    if count(rest) <= most:
        records = read_table(rest)
        made = []
    else:
        records = columns.empty()
        made = [reduce.summarise(rest, sample=sample, engine=engine, progress=progress).table]
    known = set(pc.unique(pc.cast(records["run_id"], pa.string())).to_pylist())
    known |= {run for table in made for run in lines.runs_of(table)}
    for path in apart:
        table = summaries.read(path)
        made.append(lines.of_runs(table, lines.runs_of(table).keys() - known))
    return Loaded(records, lines.merge(*made, sample=sample) if made else lines.empty())


def recorded(paths: Sequence[Path]) -> list[Path]:
    """Those that hold records one by one: all but summaries."""
    return [path for path in paths if not summaries.is_summary(path)]


def count(paths: Sequence[Path]) -> int:
    """Records in Parquet files and folders, by their headers; a records file has few enough."""
    total = 0
    for path in paths:
        files = folder.shards(path) if path.is_dir() else [path]
        for file in files:
            if file.suffix == ".parquet":
                try:
                    total += pq.read_metadata(file).num_rows
                except (OSError, pa.ArrowException):
                    continue  # whoever reads it says what is wrong
    return total
