"""What a report costs after its downloads, with 100,000 records of history: the split in seconds.

    python tests/bench/report.py [ROWS]

The history is the H200's under new run ids, as often as it takes; the pull request's records are
a locked run's, of which a kernel counts as changed. One process from its start, as in the job.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tests" / "data"
ROWS = 100_000


def prepare(folder: Path, rows: int) -> None:
    """`folder/history` and `folder/records.jsonl.gz`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tolcal import history
    from tolcal.history import columns, jsonlines

    past = history.read_table([DATA / "h200-history.parquet"])
    column = past.schema.get_field_index("run_id")
    ids = pc.cast(past["run_id"], pa.string())
    for copy in range(-(-rows // past.num_rows)):
        named = pc.replace_substring_regex(ids, "^..", f"{copy:02x}")
        part = past.set_column(
            column, past.schema.field("run_id"), pc.cast(named, past.schema.field("run_id").type)
        )
        history.add(folder / "history", part.slice(0, rows - copy * past.num_rows))
    apart = history.read_table([DATA / "h200-heldout.parquet"])
    runs = pc.cast(apart["run_id"], pa.string())
    one = min(runs.to_pylist())
    with jsonlines.Writer(folder / "records.jsonl.gz") as writer:
        records = list(columns.to_records(apart.filter(pc.equal(runs, one))))
        writer.write(records[0].run)
        for record in records:
            writer.write(record)


def report(folder: Path) -> None:
    """The steps of `tolcal github report` that need no network; prints what each took."""
    split: dict[str, tuple[float, float]] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        start, used = time.perf_counter(), time.process_time()
        yield
        split[name] = time.perf_counter() - start, time.process_time() - used

    with timed("imports"):
        from tolcal import corpus, history, tolerances
        from tolcal.github import artifacts
        from tolcal.report import FORMATS, html
        from tolcal.report.document import Document, to_json
        from tolcal.review import review

        html.begin()  # as the report does
    with timed("records"):
        content = (folder / "records.jsonl.gz").read_bytes()
        records = artifacts.stamp(artifacts.decode("records", content), "pull_request")
    with timed("history"):
        past = history.read_table([folder / "history"])
    with timed("corpus"):
        ops = corpus.load(ROOT / "corpus")
        approved = tolerances.read(ROOT / "tolerances.toml")
    with timed("review"):
        found = review(
            past, records, approved=approved,
            legacy={(op.name, d): atol for op in ops for d, atol in op.legacy_atol.items()},
            kernels=corpus.by_name(ops, ROOT), changed=("softmax_triton",),
        )  # fmt: skip
    document = Document(found.proposal, found.verdict)
    for name in ("comment", "summary"):
        with timed(name):
            FORMATS[name](document)
    with timed("proposal.json"):
        to_json(document)
    with timed("report.html"):
        FORMATS["html"](document)
    split["together"] = (sum(w for w, _ in split.values()), sum(c for _, c in split.values()))
    for name, (wall, processor) in split.items():
        print(f"  {name:14} {wall:6.2f} s, of processors {processor:6.2f} s")
    print(f"  {past.num_rows} records of history, {len(records)} of the run; torch imported: "
          f"{'torch' in sys.modules}")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        report(Path(sys.argv[2]))
        sys.exit()
    with tempfile.TemporaryDirectory() as made:
        prepare(Path(made), int(sys.argv[1]) if sys.argv[1:] else ROWS)
        begun = time.perf_counter()
        subprocess.run([sys.executable, __file__, "--child", made], check=True)
        print(f"  {'process':14} {time.perf_counter() - begun:6.2f} s")
