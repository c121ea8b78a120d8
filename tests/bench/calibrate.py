"""What calibration costs at 1, 3 and 10 million records, beside a plain groupby-quantile.

    python tests/bench/calibrate.py [MILLIONS ...] [--keep DIR]

The records are the committed history's, as often as it takes under new run ids, in shards of
130,000; `--keep` makes them once. Every figure is of a fresh process, its imports apart:
seconds, in brackets those of processors, and the peak memory of the whole process.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tests" / "data"
SHARD = 130_000


def prepare(folder: Path, rows: int) -> None:
    """A history of so many explore rows in `folder`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tolcal import history

    past = history.read_table([DATA / "h200-history.parquet"]).unify_dictionaries()
    past = past.filter(pc.equal(pc.cast(past["case_set"], pa.string()), "explore"))
    at = past.schema.get_field_index("run_id")
    field = past.schema.field(at)
    ids = pc.cast(past["run_id"], pa.string())
    waiting = past.slice(0, 0)
    for copy in range(-(-rows // past.num_rows)):
        named = pc.replace_substring_regex(ids, "^....", f"{copy:04x}")
        part = past.set_column(at, field, pc.cast(named, field.type))
        waiting = pa.concat_tables([waiting, part.slice(0, rows - copy * past.num_rows)])
        while waiting.num_rows >= SHARD:
            history.add(folder, waiting.slice(0, SHARD))
            waiting = waiting.slice(SHARD)
    history.add(folder, waiting)


def summarise(folder: Path) -> float:
    """`tolcal history summarize` of the whole, its file included."""
    from tolcal.history import lines, reduce, summaries

    start = time.perf_counter()
    out = folder.with_name(folder.name + "-summary")
    before = summaries.known(out)
    found = reduce.summarise([folder], known=before)
    summaries.update(out, found.table, found.shards, before, lines.SAMPLE)
    return time.perf_counter() - start


def calibrate(folder: Path) -> float:
    """The whole of `tolcal calibrate --history` on the records themselves."""
    from tolcal import calibrate as stage
    from tolcal.history import frames, loading

    start = time.perf_counter()
    proposal = stage.calibrate(frames.frame_of(loading.load([folder])))
    assert proposal.cells
    return time.perf_counter() - start


def from_summary(folder: Path) -> float:
    """The same on the summary."""
    from tolcal import calibrate as stage
    from tolcal.history import frames, loading

    start = time.perf_counter()
    out = folder.with_name(folder.name + "-summary")
    proposal = stage.calibrate(frames.frame_of(loading.load([out])))
    assert proposal.cells
    return time.perf_counter() - start


def add(folder: Path) -> float:
    """One more run into the summary, from when its shard is there."""
    import pyarrow as pa

    from tolcal import history
    from tolcal.history import lines

    apart = history.read_table([DATA / "h200-history.parquet"]).unify_dictionaries()
    one = lines.of_runs(apart.combine_chunks(), {min(apart["run_id"].to_pylist())})
    at = one.schema.get_field_index("run_id")
    # A new one also in a history that is kept.
    named = pa.array([f"{time.time_ns():016x}"] * len(one)).cast(one.schema.field(at).type)
    history.add(folder, one.set_column(at, one.schema.field(at), named))
    return summarise(folder)


def pandas_quantile(folder: Path) -> float:
    """p95 of max_abs by kernel and dtype: three columns, one statistic."""
    import pandas as pd

    start = time.perf_counter()
    frame = pd.concat(
        pd.read_parquet(shard, columns=["kernel", "dtype", "max_abs"])
        for shard in sorted(folder.glob("*.parquet"))
    )
    assert len(frame.groupby(["kernel", "dtype"], observed=True)["max_abs"].quantile(0.95))
    return time.perf_counter() - start


STEPS = {
    "summarise": summarise, "calibrate": calibrate, "from the summary": from_summary,
    "add a run": add, "pandas": pandas_quantile,
}  # fmt: skip


def child(step: str, folder: Path) -> None:
    import numpy  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow.dataset  # noqa: F401

    import tolcal.calibrate
    import tolcal.history.frames  # noqa: F401

    before = time.process_time()
    took = STEPS[step](folder)
    # Of all threads: on a busy machine it says more than the clock.
    processor = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps([took, processor, peak]))


def main(millions: list[float], folder: Path) -> None:
    names = list(STEPS)
    print("| million records | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for million in millions:
        past = folder / f"{million:g}m"
        shutil.rmtree(folder / f"{million:g}m-summary", ignore_errors=True)
        if not past.is_dir():
            prepare(past, int(million * 1e6))
        cells = []
        for step in names:
            command = [sys.executable, __file__, "--child", step, str(past)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            took, processor, peak = json.loads(done.stdout)
            cells.append(f"{took:.2f} s ({processor:.2f}), {peak:.2f} GiB")
        print(f"| {million:g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[:1] == ["--child"]:
        child(given[1], Path(given[2]))
        sys.exit()
    kept = Path(given.pop(given.index("--keep") + 1)) if "--keep" in given else None
    sizes = [float(one) for one in given if one != "--keep"] or [1.0, 3.0, 10.0]
    with tempfile.TemporaryDirectory() as made:
        main(sizes, kept or Path(made))
