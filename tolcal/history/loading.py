"""A history for calibration: records as long as they are few, lines of whatever is summarised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tolcal.history import columns, folder, lines, reduce, summaries
from tolcal.model import plural

#: More records than these are summarised while they are read.
MOST_RECORDS = 1_000_000


class Loaded(msgspec.Struct, frozen=True):
    """Records, and the lines of other runs: none is in both."""

    records: pa.Table
    lines: pa.Table
    #: what to know of records that were passed over, since others of their run are more
    notes: tuple[str, ...] = ()


def load(
    paths: Sequence[Path],
    *,
    most: int = MOST_RECORDS,
    sample: int = lines.SAMPLE,
    engine: reduce.Engine = reduce.local,
    progress: reduce.Progress = lambda *_: None,
) -> Loaded:
    """Histories, records files and summaries together.

    Of a run that is in both, whichever holds more of it counts (the records, if they are as
    many): what both have cannot be told apart, and nothing may count twice.

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

    rest = recorded(paths)
    apart = [path for path in paths if path not in rest]
    if count(rest) <= most:
        records = read_table(rest)
        made = []
    else:
        records = columns.empty()
        made = [reduce.summarise(rest, sample=sample, engine=engine, progress=progress).table]
    fresh = lines.parts_of(made[0]) if made else {}
    for path in apart:
        lined = summaries.read(path)
        # Whose sample may be smaller than that of the records themselves.
        made.append(lines.without_parts(lined, fresh) if fresh else lined)
    table, overlap = lines.merged(*made, sample=sample) if made else (lines.empty(), {})
    counts = pc.value_counts(pc.cast(records["run_id"], pa.string())).to_pylist()
    own = {str(one["values"]): int(one["counts"]) for one in counts}
    told = lines.runs_of(table)
    by_lines = {run for run in own.keys() & told.keys() if told[run] > own[run]}
    by_records = {run: told[run] for run in own.keys() & told.keys() - by_lines}
    if by_records:
        # The sample was cut before these went, so it may be the smaller for them.
        table = lines.merge(lines.of_runs(table, told.keys() - by_records.keys()), sample=sample)
    if by_lines:
        records = records.unify_dictionaries().combine_chunks()
        records = lines.of_runs(records, own.keys() - by_lines)
    passed = (
        (overlap, "other parts of the same runs, in a summary, hold as many or more"),
        ({run: own[run] for run in by_lines}, "summaries hold more of the same runs"),
        (by_records, "the same runs are here record by record"),
    )
    return Loaded(records, table, tuple(_note(which, why) for which, why in passed if which))


def _note(passed: Mapping[str, int], why: str) -> str:
    return (
        f"{plural(sum(passed.values()), 'record')} of {plural(len(passed), 'run')} passed over "
        f"({min(passed)} first): {why}"
    )


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
