"""A history of any size into lines: row group by row group, of each only the columns needed.

A first look at every shard checks its content and says which runs each row group has; a run that
lies in several is put together from all of them before it is summarised. Few row groups are in
memory at a time, so what it takes does not grow with the history.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tolcal.history import columns, folder, lines, parquet, summaries, summary
from tolcal.model import TolcalError

THREADS = 2
#: Records of runs from several row groups that are summarised together.
_BATCH = 131_072

Progress = Callable[[int, int, str], None]


class Piece(msgspec.Struct, frozen=True):
    """A row group of a file and the runs in it, or records that are in memory."""

    path: str
    group: int
    runs: Mapping[str, int]  # records of each
    table: pa.Table | None = None


class Found(msgspec.Struct, frozen=True):
    """Lines (not merged), the shards they are of, and how many records they stand for."""

    table: pa.Table
    shards: frozenset[str]
    records: int


#: Reads pieces: (the piece's lines, its records of the runs in ``split``), in any order.
Engine = Callable[
    [Sequence[Piece], frozenset[str], frozenset[str], Callable[[], dict[tuple[str, str], int]]],
    Iterator[tuple[pa.Table, pa.Table | None, Piece]],
]


def local(
    pieces: Sequence[Piece],
    split: frozenset[str],
    wanted: frozenset[str],
    cutoffs: Callable[[], dict[tuple[str, str], int]],
) -> Iterator[tuple[pa.Table, pa.Table | None, Piece]]:
    """On threads of this process, two row groups at a time."""
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: list[tuple[Any, Piece]] = []
        for piece in pieces:
            waiting.append((pool.submit(reduced, piece, split, wanted, cutoffs()), piece))
            if len(waiting) > THREADS:
                task, done = waiting.pop(0)
                yield *task.result(), done
        for task, done in waiting:
            yield *task.result(), done


def reduced(
    piece: Piece,
    split: frozenset[str],
    wanted: frozenset[str],
    cutoffs: Mapping[tuple[str, str], int],
) -> tuple[pa.Table, pa.Table | None]:
    """Lines of the piece's runs that are wanted and in no other, and records of those that are."""
    table = piece.table
    if table is None:
        try:
            file = pq.ParquetFile(piece.path)
            table = file.read_row_group(piece.group, list(summary.NEEDED), use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise parquet.unreadable(piece.path, error) from None
    table = columns.conform(table, piece.path, summary.NEEDED)
    held = None
    apart = wanted & split & piece.runs.keys()
    if apart:
        held = lines.of_runs(table, apart)
    whole = (wanted - split) & piece.runs.keys()
    if len(whole) < len(piece.runs):
        table = lines.of_runs(table, whole)
    return summary.of_table(table, cutoffs=cutoffs), held


def summarise(
    paths: Sequence[Path],
    *,
    known: summaries.Known | None = None,
    sample: int = lines.SAMPLE,
    engine: Engine = local,
    progress: Progress = lambda *_: None,
) -> Found:
    """Lines of the runs in records files and history folders.

    Args:
        paths: as for ``history.read_table``; a folder that is not there yet is empty.
        known: what need not be read again. A run of which there are more records by now is
            summarised anew.
        sample: records to keep of each buggy kernel and dtype.
        engine: where row groups are read.
        progress: done, of how many, what.

    Raises:
        TolcalError: naming the file that is lost, damaged or none of ours.
    """
    known = known or summaries.Known({}, frozenset(), {})
    pieces = list(_pieces(paths, known.shards))
    counts: Counter[str] = Counter()
    for piece in pieces:
        counts.update(piece.runs)
    grown = {run for run in counts if run in known.runs}
    if grown and known.shards:  # the rest of their records are in shards that were passed over
        pieces = list(_pieces(paths, frozenset()))
        counts = Counter()
        for piece in pieces:
            counts.update(piece.runs)
    wanted = frozenset(run for run, rows in counts.items() if rows > known.runs.get(run, 0))
    fresh = frozenset(
        Path(p.path).stem for p in pieces if p.table is None and Path(p.path).parent in paths
    )
    pieces = [p for p in pieces if wanted & p.runs.keys()]
    places = Counter(run for piece in pieces for run in piece.runs)
    split = frozenset(run for run, number in places.items() if number > 1)
    reduction = _Collected(places, dict(known.seen), sample)
    progress(0, len(pieces), "")
    for number, (made, held, piece) in enumerate(
        engine(pieces, split, wanted, reduction.cutoffs), 1
    ):
        reduction.take(made, held, piece)
        progress(number, len(pieces), Path(piece.path).name)
    table = reduction.finished()
    told = lines.runs_of(table)
    same = {run for run, rows in told.items() if known.runs.get(run) == rows}
    if same:  # shards that overlap have more records than there are
        table = lines.of_runs(table, told.keys() - same)
    table = lines.sampled(table, sample).combine_chunks()
    return Found(table, fresh - known.shards, sum(n for r, n in told.items() if r not in same))


class _Collected:
    """Lines so far, and records of the runs that lie in several row groups."""

    def __init__(self, places: Counter[str], seen: dict[str, int], sample: int) -> None:
        self.left, self.seen, self.sample = Counter(places), seen, sample
        self.made: list[pa.Table] = []
        self.held: list[pa.Table] = []
        self.complete: set[str] = set()
        self.waiting = 0  # records of complete runs, at most

    def cutoffs(self) -> dict[tuple[str, str], int]:
        """What later pieces need not sample."""
        return summaries.cutoffs(self.seen, self.sample)

    def take(self, made: pa.Table, held: pa.Table | None, piece: Piece) -> None:
        self._add(made)
        if held is not None and held.num_rows:
            self.held.append(held)
        self.left.subtract(piece.runs.keys())
        ended = {run for run in piece.runs if self.left[run] <= 0}
        self.complete |= ended
        if held is not None:
            self.waiting += held.num_rows
            if self.waiting >= _BATCH:
                self._summarise()

    def _add(self, made: pa.Table) -> None:
        if made.num_rows:
            self.made.append(made)
            self.seen = summaries.total(self.seen, made)

    def _summarise(self) -> None:
        """Of the records held, those of complete runs."""
        if self.held:
            table = pa.concat_tables(self.held).unify_dictionaries().combine_chunks()
            there = set(pc.unique(table["run_id"]).to_pylist())
            rest = lines.of_runs(table, there - self.complete)
            whole = lines.of_runs(table, self.complete)
            self._add(summary.of_table(whole, cutoffs=self.cutoffs()))
            self.held = [rest] if rest.num_rows else []
        self.waiting = 0

    def finished(self) -> pa.Table:
        """All lines, in as many chunks: most of the sample goes before it would be copied."""
        self._summarise()
        return pa.concat_tables([lines.empty(), *self.made]).unify_dictionaries()


def _pieces(paths: Sequence[Path], passed: frozenset[str]) -> Iterator[Piece]:
    """Every row group of every path, but for the shards of those names."""
    files: list[tuple[Path, bool]] = []
    for path in paths:
        if path.is_dir():
            files += [(shard, True) for shard in folder.shards(path) if shard.stem not in passed]
        elif path.suffix == ".parquet":
            files.append((path, False))
        elif path.exists() or path.suffix:
            from tolcal.history import read_table

            table = read_table([path])
            yield Piece(str(path), 0, _runs_in(table), table)
    with ThreadPoolExecutor(THREADS) as pool:
        for found in pool.map(lambda one: _looked(*one), files):
            yield from found


def _looked(path: Path, named: bool) -> list[Piece]:
    """The row groups of a file. A shard's name is the hash of its content."""
    try:
        if named:
            with path.open("rb") as file:
                name = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            folder.must_be_named(path, name)
        data = pq.ParquetFile(path)
        columns.must_have_all(data.schema_arrow.names, path)
        return [
            Piece(str(path), group, _runs_in(data.read_row_group(group, ["run_id"])))
            for group in range(data.num_row_groups)
        ]
    except FileNotFoundError:
        raise TolcalError(f"{path}: no such history; check --history") from None
    except (OSError, pa.ArrowException) as error:
        raise parquet.unreadable(path, error) from None


def _runs_in(table: pa.Table) -> dict[str, int]:
    counts = pc.value_counts(table.select(["run_id"]).unify_dictionaries()["run_id"])
    return {str(one["values"]): one["counts"] for one in counts.to_pylist()}
