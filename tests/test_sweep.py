"""The sensitivity sweep: its rows are what `calibrate` itself says, in every file it writes."""

from __future__ import annotations

import functools
import itertools
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from report_support import check_golden
from tests_support import CORPUS, DATA, ROOT, make_record, make_run, make_stats

from tolcal import binomial, calibrate, corpus, history
from tolcal.calibrate import sweep as sweeping
from tolcal.calibrate import variants
from tolcal.cli import main
from tolcal.cli.sweeping import places
from tolcal.history import columns, folder, jsonlines
from tolcal.model import HeldOutRows, Proposal, Record, Setting, SweepPoint, round_up
from tolcal.report.sweeping import ATOL_ALONE, BY_REF, FULL, ours, render

PARTS = (FULL, BY_REF, ATOL_ALONE)
SUBTLE = corpus.subtle(corpus.load(CORPUS))
PUBLISHED = Setting("paper", percentile=95, factor=1.5)


@functools.cache
def frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The committed history, and the runs kept apart."""
    return history.read([DATA / "h200-history.parquet"]), history.read(
        [DATA / "h200-heldout.parquet"]
    )


@functools.cache
def points() -> dict[tuple[str | None, str | None, Setting], SweepPoint]:
    """Its sweep."""
    frame, locked = frames()
    found = sweeping.sweep(frame, locked=locked, subtle=SUBTLE)
    by = {(p.op, p.dtype, p.setting): p for p in found}
    assert len(by) == len(found)
    return by


@functools.cache
def proposal(rule: calibrate.Rule, margin: float | None = None) -> Proposal:
    """What calibrate says of it."""
    reductions = corpus.reductions(corpus.load(CORPUS))
    made = calibrate.calibrate(frames()[0], rule=rule, margin=margin, reductions=reductions,
                               subtle=SUBTLE)  # fmt: skip
    apart = calibrate.locked(frames()[1], made, {}, subtle=SUBTLE)
    return msgspec.structs.replace(made, locked=apart)


@pytest.mark.parametrize(
    ("rule", "margin", "setting"),
    [("residual", None, ours(None)), ("residual", 2.0, ours(2.0)), ("residual", 1.25, ours(1.25)),
     ("paper", None, PUBLISHED)],
)  # fmt: skip
def test_calibrate_says_the_same(
    rule: calibrate.Rule, margin: float | None, setting: Setting
) -> None:
    """Held-out rows and runs, both recalls and locked runs, of the whole and of every cell."""
    made = proposal(rule, margin)
    whole = points()[None, None, setting]
    assert whole.held_out == made.held_out
    assert whole.cells == len(made.cells) == 42
    assert (whole.recall.recall, whole.recall.detectable_recall) == (
        made.recall, made.detectable_recall,
    )  # fmt: skip
    for cell in made.cells:
        point = points()[cell.op, cell.dtype, setting]
        assert point.held_out == cell.held_out
        assert (point.recall.recall, point.recall.detectable_recall) == (
            cell.recall, cell.detectable_recall,
        )  # fmt: skip
    assert made.locked is not None
    assert whole.locked == (made.locked.held_out if rule == "residual" else made.locked.paper)
    if rule == "residual":
        assert whole.locked_recall is not None
        flagged = sum(b.proposed.detectable_flagged for b in made.locked.buggy
                      if b.proposed and not b.subtle)  # fmt: skip
        assert whole.locked_recall.detectable_flagged == flagged > 0


def test_tightness_is_that_of_the_tolerance() -> None:
    """log2 of a cell's bound at its median element."""
    (cell,) = (
        c for c in proposal("residual", 2.0).cells if (c.op, c.dtype) == ("softmax", "float32")
    )
    assert cell.tolerance is not None
    assert cell.plots is not None
    evidence = cell.tolerance.evidence
    assert evidence is not None
    assert evidence.scale is not None
    bits = points()["softmax", "float32", ours(2.0)].bits
    assert bits is not None
    # The scale of the evidence is rounded up to three digits.
    assert 2**bits == pytest.approx((cell.plots.proposed or 0) / (2.0**-24 * evidence.scale), 5e-3)


def test_wider_never_flags_more() -> None:
    """Along every margin and factor, in every scope: fewer alarms, less recall, more bits."""
    lines: dict[tuple[Any, ...], list[SweepPoint]] = {}
    for (op, dtype, s), point in points().items():
        if s == ours(None):
            continue
        line = (op, dtype, s.rule, s.borrowing, s.sigma, s.scaled_tol, s.percentile)
        lines.setdefault(line, []).append(point)
    steps = 0
    for some in lines.values():
        some.sort(key=lambda p: p.setting.margin or p.setting.factor or 0)
        for narrow, wide in itertools.pairwise(some):
            for name in ("held_out", "in_sample", "locked"):
                assert getattr(wide, name).false_alarms <= getattr(narrow, name).false_alarms
            assert wide.recall.detectable_flagged <= narrow.recall.detectable_flagged
            assert wide.recall.rows == narrow.recall.rows
            if wide.cells == 1:
                assert (wide.bits or 0) >= (narrow.bits or 0)
            steps += 1
    assert steps > 5000


def test_each_part_switches_what_it_says() -> None:
    """In sample nothing is flagged; borrowing is of 16-bit cells; sigma of the scaled part."""
    for borrowing in (True, False):
        for parts in PARTS:
            point = points()[None, None, ours(1.0, borrowing, parts)]
            assert point.in_sample.false_alarms == 0
            assert point.held_out.false_alarms > 0
    for op in ("matmul", "attention"):
        on, off = (points()[op, "float32", ours(1.0, borrowing)] for borrowing in (True, False))
        assert (on.held_out, on.recall, on.bits) == (off.held_out, off.recall, off.bits)
        on, off = (points()[op, "float16", ours(1.0, borrowing)] for borrowing in (True, False))
        assert (on.bits or 0) > (off.bits or 0)
    whole = [points()[None, None, ours(2.0, True, parts)] for parts in PARTS]
    with_sigma, by_ref, alone = (p.recall.detectable_flagged for p in whole)
    assert with_sigma >= by_ref >= alone
    assert with_sigma > alone


def test_a_scaled_part_costs_no_alarm_that_atol_alone_would_save() -> None:
    """atol alone is the largest residual, times the margin: by hand for one cell."""
    frame = frames()[0]
    rows = frame[(frame["kernel"] == "tanh_triton") & (frame["dtype"] == "float32")]
    rows = rows[rows["case_set"] == "explore"]
    largest = rows.groupby("run_id", observed=True)["residual_max"].max()
    every = frame[(frame["kernel"] == "tanh_triton") & (frame["dtype"] == "float32")]
    wrong = 0
    for run in largest.index:
        limit = float(every[every["run_id"] != run]["residual_max"].max())
        theirs = rows[rows["run_id"] == run]["residual_max"].to_numpy(np.float64)
        wrong += int((theirs > round_up(limit)).sum())
    assert points()["tanh", "float32", ours(1.0, True, ATOL_ALONE)].held_out.false_alarms == wrong


# --- what is written --------------------------------------------------------------------------


def small(runs: int = 4, extra: Sequence[Record] = ()) -> list[Record]:
    """Two dtypes of one control and its buggy kernel, residuals that grow with the run."""
    made = list(extra)
    for n in range(runs):
        run = make_run(id=f"{n:016x}", seed=n, started=f"2026-11-{n + 1:02d}T00:00:00+00:00")
        for row in range(240):
            z = (1 + row % 7) * (1 + n / 8)
            wide = make_stats(z * 2.0**-24, scale_abs_quantiles=(0.5, 0.5, 0.5), bias_count=0)
            half = make_stats(z * 2.0**-26 * (row % 9 == 0), bias_count=0)
            wrong = make_stats((row % 40) * 2.0**-23, bias_count=0)
            seed = 1000 * n + row
            made += [
                make_record(run=run, seed=seed, stats=wide),
                make_record(run=run, seed=seed, dtype="float16", stats=half),
                make_record(run=run, seed=seed, kernel="softmax_bad", role="buggy",
                            corrupts="softmax_triton", stats=wrong,
                            same_as_control=row % 40 == 0),
            ]  # fmt: skip
    return made


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small history as a file, in a folder without configuration."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "records.jsonl.gz"
    with jsonlines.Writer(path) as writer:
        known = set()
        for record in small():
            if record.run.id not in known:
                writer.write(record.run)
                known.add(record.run.id)
            writer.write(record)
    return path


def test_the_page_of_a_small_history() -> None:
    """Word for word, with locked runs and theory."""
    frame = history.to_frame(columns.from_records(small()))
    made = calibrate.calibrate(frame, reductions={"softmax": "H"})
    found = sweeping.sweep(frame, locked=frame)
    check_golden("sweep/small.md", render(found, made, 2.0))


def test_the_page_in_the_docs_is_of_the_committed_history() -> None:
    """`docs/sweep.md` is what `--sweep` writes of it today."""
    page = render(tuple(points().values()), proposal("residual"), 2.0)
    check_golden("../../../docs/sweep.md", page)
    assert len(page.splitlines()) < 150


def test_both_files(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has every setting in every scope, with its exact bound, and names its kind."""
    assert main(["calibrate", "--history", str(records), "--sweep", "out/s.md", "--margin",
                 "2.5"]) == 0  # fmt: skip
    assert "sensitivity: out/s.md, every setting: out/s.parquet" in capsys.readouterr().out
    page = Path("out/s.md").read_text()
    assert "| margin 2.5, atol alone | " in page
    table = pyarrow.parquet.read_table("out/s.parquet")
    assert table.schema.metadata[b"tolcal.sweep"] == b"1"
    rows = table.to_pandas()
    frame = history.read([records])
    found = sweeping.sweep(frame, more=(2.5,))
    assert len(rows) == len(found)
    assert set(rows["op"].dropna()) == {"softmax"}
    assert set(rows["dtype"].dropna()) == {"float16", "float32"}
    assert rows["locked_rows"].isna().all()
    for row, point in zip(rows.to_dict("records"), found, strict=True):
        held, recall = point.held_out, point.recall
        assert row["held_out_red"] == held.runs_with_false_alarms
        assert row["held_out_flagged"] == held.false_alarms
        assert row["red_at_most"] == binomial.upper(held.runs_with_false_alarms, held.runs)
        assert row["buggy_detectable_flagged"] == recall.detectable_flagged


def test_where_it_is_written(records: Path) -> None:
    """A folder, a name, either of its endings; an older sweep is written over."""
    Path("there").mkdir()
    for given, base in (
        ("there", "there/sweep"), ("new/", "new/sweep"), ("a", "a"), ("b.md", "b"),
        ("c.parquet", "c"), ("d.v1", "d.v1"),
    ):  # fmt: skip
        assert places(given, []) == (Path(f"{base}.parquet"), Path(f"{base}.md"))
    for given in ("new/", "new/sweep"):
        assert main(["calibrate", "--history", str(records), "--sweep", given]) == 0
        assert {p.name for p in Path("new").iterdir()} == {"sweep.parquet", "sweep.md"}


def test_nothing_else_is_written_over(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a history, nor a page of someone's, nor what the command reads; before any work."""
    folder.add(Path("shards"), columns.from_records(small(1)))
    shard = next(Path("shards").rglob("*.parquet"))
    before = shard.read_bytes()
    Path("notes.md").write_text("# Mine\n")
    cases = {
        str(shard): "exists and is no sweep of tolcal",
        "notes": "exists and is no report of tolcal",
    }
    for given, why in cases.items():
        assert main(["calibrate", "--history", str(records), "--sweep", given]) == 2
        said = capsys.readouterr().err
        assert why in said
        assert len(said.splitlines()) == 1
    assert main(["calibrate", "--history", str(shard), "--sweep", str(shard)]) == 2
    assert "is what this command reads" in capsys.readouterr().err
    assert shard.read_bytes() == before
    assert Path("notes.md").read_text() == "# Mine\n"


def test_the_published_rule_is_swept_beside_ours(records: Path) -> None:
    """`--rule` says what is proposed; the sweep has both, all the same."""
    for rule in ("residual", "paper"):
        run = ["calibrate", "--history", str(records), "--rule", rule, "--sweep", rule]
        assert main(run) == 0
    tables = [pyarrow.parquet.read_table(f"{r}.parquet") for r in ("residual", "paper")]
    assert tables[0].equals(tables[1])
    assert "rule paper" in Path("paper.md").read_text()


def test_by_kernel() -> None:
    """Controls that share nothing: each is fitted and judged by itself."""
    second = [
        msgspec.structs.replace(r, kernel="softmax_other")
        for r in small() if r.role == "control" and r.case.dtype == "float32"
    ]  # fmt: skip
    frame = history.to_frame(columns.from_records(small(extra=second)))
    for by, cells in (("op", 2), ("kernel", 3)):
        made = calibrate.calibrate(frame, by=by, margin=2.0)  # type: ignore[arg-type]
        found = sweeping.sweep(frame, by=by)  # type: ignore[arg-type]
        (point,) = (p for p in found if p.op is None and p.setting == ours(2.0))
        assert point.cells == len(made.cells) == cells
        assert point.held_out == made.held_out


def test_imported_rows_have_the_published_rule_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They carry no envelopes: no setting of ours, and the page says so."""
    monkeypatch.chdir(tmp_path)
    with tarfile.open(DATA / "gpuemu-h200.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert main(["history", "import", "gpuemu", "gpuemu", "--history", "h", "--corpus",
                 str(CORPUS)]) == 0  # fmt: skip
    assert main(["calibrate", "--history", "h", "--rule", "paper", "--sweep", "s"]) == 0
    page = Path("s.md").read_text()
    assert "No cell can be fitted by our rule" in page
    rules = pyarrow.parquet.read_table("s.parquet").column("rule").unique().to_pylist()
    assert rules == ["paper"]


def test_too_little_to_judge() -> None:
    """One run: nothing is held out, and a share of nothing is not 0. Few rows: no fit."""
    frame = history.to_frame(columns.from_records(small(1)))
    found = sweeping.sweep(frame, min_rows=100, min_runs=1)
    assert {p.setting.rule for p in found} == {"residual", "paper"}
    assert {p.held_out for p in found} == {HeldOutRows(0, 0, 0, 0)}
    made = calibrate.calibrate(frame, min_rows=100, min_runs=1, margin=2.0)
    assert "| margin 2 | - | - | - | 0 |" in render(found, made, 2.0)
    few = sweeping.sweep(frame)
    assert {p.setting.rule for p in few} == {"paper"}


def test_no_control() -> None:
    """Nothing to sweep."""
    frame = history.to_frame(columns.from_records([r for r in small(1) if r.role == "buggy"]))
    assert sweeping.sweep(frame) == ()


def test_every_variant_is_a_setting_of_its_own() -> None:
    """The full product, without the combinations that are the same."""
    settings = {v.with_margin(m) for v in variants.VARIANTS for m in sweeping.MARGINS}
    assert len(settings) == 6 * 8
    assert variants.DEFAULT.with_margin(2.0) == ours(2.0)
    assert ROOT.is_dir()
