"""``history summarize``, and how commands read a history of any size."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tolcal.cli import config
from tolcal.model import TolcalError, plural

if TYPE_CHECKING:
    from tolcal.history.loading import Loaded
    from tolcal.history.reduce import Engine


@contextlib.contextmanager
def engine_of(name: str) -> Iterator[Engine]:
    """Where row groups are read; a cluster that was started for it ends with it."""
    from tolcal.history import reduce

    if name == "local":
        yield reduce.local
        return
    from tolcal.history.cluster import Cluster
    from tolcal.measure.engine import cluster

    with cluster() as ray:
        yield Cluster(ray)


def load(paths: tuple[Path, ...], args: argparse.Namespace) -> Loaded:
    """Records and lines of ``--history``, as ``--engine`` and ``--sample`` say."""
    from tolcal.history import loading
    from tolcal.report import terminal

    # With Ray whatever there is is summarised there: it was asked for.
    most = loading.MOST_RECORDS if args.engine == "local" else 0
    with engine_of(args.engine) as engine, terminal.progress("summarising", "parts") as progress:
        return loading.load(paths, most=most, sample=args.sample, engine=engine, progress=progress)


def summarize(args: argparse.Namespace) -> int:
    """``tolcal history summarize``."""
    from tolcal.history import lines, loading, reduce, summaries
    from tolcal.report import terminal

    config.must_exist(args)
    paths, out = config.load(args).history, Path(args.out)
    if any(out.resolve() == path.resolve() for path in paths):
        raise TolcalError(f"--out {out}: is the history itself; give another name")
    if out.suffix not in ("", ".parquet"):
        raise TolcalError(f"--out {out}: name a .parquet file or a folder")
    if out.exists() and not summaries.is_summary(out) and not _is_empty(out):
        raise TolcalError(f"--out {out}: exists and is no summary; give another name")
    before = summaries.known(out)
    records = loading.recorded(paths)
    with engine_of(args.engine) as engine, terminal.progress("summarising", "parts") as progress:
        found = reduce.summarise(
            records, known=before, sample=args.sample, engine=engine, progress=progress
        )
    # Of what other summaries have, all parts that count and are not there yet.
    joined = [summaries.read(path) for path in paths if path not in records]
    more, passed = lines.empty(), dict[str, int]()
    if joined:
        old = [summaries.read(out)] if out.exists() else []
        whole, passed = lines.merged(*old, found.table, *joined, sample=args.sample)
        there = lines.parts_of(lines.concat([*old, found.table]))
        more = lines.without_parts(whole, there)
    written = summaries.update(out, found.table, found.shards, before, args.sample, args.bits, more)
    runs = lines.runs_of(lines.concat([found.table, more]))
    over = ""
    if passed:
        over = (
            f"; {plural(sum(passed.values()), 'record')} of {plural(len(passed), 'run')} passed "
            "over, since another part of the run holds as many or more"
        )
    if written is None or not runs:
        print(f"{out}: has every run of the history ({plural(len(before.runs), 'run')}){over}")
        return 0
    print(
        f"{plural(sum(runs.values()), 'record')} of {plural(len(runs), 'run')} summarised in "
        f"{written}, {written.stat().st_size:,} bytes{over}"
    )
    return 0


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
