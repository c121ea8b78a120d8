"""Calibration from summaries against calibration from the records they were made of."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests_support import DATA

from tolcal import binomial, bounds, calibrate, cli, history
from tolcal.calibrate import evaluate, fit, summarised
from tolcal.calibrate.intervals import ByRun
from tolcal.calibrate.rows import judged_rows
from tolcal.history import columns, frames, lines, loading, summaries, summary
from tolcal.model import AllClose, BuggyRecall, Proposal, Recall, Tolerance
from tolcal.report import FORMATS, text
from tolcal.report.document import Document

PARTS = ("softmax", "rmsnorm", "gelu")


@functools.cache
def table() -> pa.Table:
    """The committed history, but for most ops."""
    whole = history.read_table([DATA / "h200-history.parquet"]).unify_dictionaries()
    frame = whole.select(["op"]).to_pandas()
    return whole.filter(pa.array(frame["op"].isin(PARTS).to_numpy())).combine_chunks()


def frame_of(records: pa.Table, summary_of: pa.Table, sample: int = 1000) -> pd.DataFrame:
    made = lines.merge(summary.of_table(summary_of), sample=sample)
    return frames.frame_of(loading.Loaded(records, made))


@functools.cache
def by_rows() -> Proposal:
    return calibrate.calibrate(history.to_frame(table()), margin=2.0)


@functools.cache
def by_lines() -> Proposal:
    return calibrate.calibrate(frame_of(columns.empty(), table()), margin=2.0)


def halves() -> tuple[pa.Table, pa.Table]:
    runs = sorted(set(table()["run_id"].to_pylist()))
    return lines.of_runs(table(), set(runs[::2])), lines.of_runs(table(), set(runs[1::2]))


# --- the whole ------------------------------------------------------------------------------


def test_fits_are_those_of_the_records() -> None:
    """To the bit, and so is the published rule's: the points chose the same knot in every cell."""
    assert len(by_rows().cells) == 9
    for ours, theirs in zip(by_lines().cells, by_rows().cells, strict=True):
        assert ours.tolerance is not None
        assert theirs.tolerance is not None
        assert ours.tolerance.numbers == theirs.tolerance.numbers
        assert ours.paper_atol == theirs.paper_atol
        assert (ours.rows, ours.runs, ours.held_out) == (theirs.rows, theirs.runs, theirs.held_out)


def test_recall_is_that_of_the_records_where_the_sample_is_whole() -> None:
    """And nothing of the run list is lost."""
    assert by_lines().recall == by_rows().recall
    assert by_lines().detectable_recall == by_rows().detectable_recall
    told = [(r.id, r.started, r.rows, r.control_rows, r.described) for r in by_rows().runs]
    assert [(r.id, r.started, r.rows, r.control_rows, r.described)
            for r in by_lines().runs] == told  # fmt: skip


def test_a_sample_tells_of_all_rows() -> None:
    """Counts are of all rows, the share is the sample's, within what 100 rows can tell."""
    frame = frame_of(columns.empty(), table(), sample=100)
    proposal = calibrate.calibrate(frame, margin=2.0)
    for ours, theirs in zip(proposal.buggy, by_rows().buggy, strict=True):
        assert ours.proposed is not None
        assert theirs.proposed is not None
        assert ours.proposed.rows == theirs.proposed.rows
        assert ours.proposed.detectable == theirs.proposed.detectable
        assert abs(ours.proposed.flagged - theirs.proposed.flagged) < 0.2 * theirs.proposed.rows
    (note,) = (n for n in proposal.notes if "summaries" in n)
    number = 100 * len(proposal.buggy)
    assert f"at least one row and counts as one; recall is of a sample of {number} of" in note


def test_records_and_lines_together() -> None:
    """Half of the runs as lines: the same fits, and charts of the records that are there."""
    records, apart = halves()
    proposal = calibrate.calibrate(frame_of(records, apart), margin=2.0)
    for ours, theirs in zip(proposal.cells, by_rows().cells, strict=True):
        assert ours.tolerance is not None
        assert theirs.tolerance is not None
        assert ours.tolerance.numbers == theirs.tolerance.numbers
        assert (ours.rows, ours.runs) == (theirs.rows, theirs.runs)
        assert ours.plots is not None
        assert all(sum(k.shares) > 0 for k in ours.plots.kernels)


def test_margins_from_the_tails_of_runs() -> None:
    """A ladder chosen from per-run maxima: another rung perhaps, on the same fit."""
    ours = calibrate.calibrate(frame_of(columns.empty(), table()))
    theirs = calibrate.calibrate(history.to_frame(table()))
    for one, other in zip(ours.cells, theirs.cells, strict=True):
        assert one.tolerance is not None
        assert other.tolerance is not None
        assert one.tolerance.evidence is not None
        assert other.tolerance.evidence is not None
        factor = one.tolerance.evidence.margin / other.tolerance.evidence.margin
        assert 0.5 <= factor <= fit.LADDER[-1] / fit.LADDER[0]
        if one.op != "softmax":  # which has several controls, each with a margin of its own
            assert one.tolerance.atol / other.tolerance.atol == pytest.approx(factor, rel=0.01)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_report_of_lines_alone(name: str) -> None:
    """No chart has rows; nothing fails for it."""
    assert isinstance(FORMATS[name](Document(by_lines())), str)


def test_the_published_rule_on_lines() -> None:
    """Its fit, and what it flags on held-out runs: a line that it flags is one row at least."""
    ours = calibrate.calibrate(frame_of(columns.empty(), table()), rule="paper")
    theirs = calibrate.calibrate(history.to_frame(table()), rule="paper")
    assert [c.proposed_tol for c in ours.cells] == [c.proposed_tol for c in theirs.cells]
    assert ours.held_out.runs_with_false_alarms == theirs.held_out.runs_with_false_alarms
    assert 0 < ours.held_out.false_alarms <= theirs.held_out.false_alarms


def named(one: BuggyRecall) -> tuple[str, str]:
    return one.kernel, one.dtype


def test_locked_runs_as_lines() -> None:
    """The same reds, the same recall, the rows beyond the published atol, no catch overstated."""
    records, apart = halves()
    proposal = calibrate.calibrate(history.to_frame(records), margin=2.0, min_rows=100)
    theirs = calibrate.locked(history.to_frame(apart), proposal, {})
    ours = calibrate.locked(frame_of(columns.empty(), apart), proposal, {})
    assert ours.held_out == theirs.held_out
    assert ours.paper.rows == theirs.paper.rows
    assert ours.paper.runs_with_false_alarms == theirs.paper.runs_with_false_alarms
    assert theirs.paper.false_alarms - 2 <= ours.paper.false_alarms <= theirs.paper.false_alarms
    assert sorted(ours.buggy, key=named) == sorted(theirs.buggy, key=named)
    # A line is believed to have caught only what one of its records surely did.
    assert {m.split(":")[0] for m in theirs.missed} <= {m.split(":")[0] for m in ours.missed}


def test_a_kernel_that_a_run_misses_is_missed_in_its_lines() -> None:
    """By a tolerance that lets most through, lines and records agree on which runs catch what."""
    records, apart = halves()
    proposal = calibrate.calibrate(history.to_frame(records), margin=1e7, min_rows=100)
    frame = frame_of(columns.empty(), apart)
    theirs = calibrate.locked(history.to_frame(apart), proposal, {})
    ours = calibrate.locked(frame, proposal, {})
    assert theirs.missed
    assert {m.split(":")[0] for m in theirs.missed} <= {m.split(":")[0] for m in ours.missed}


# --- the parts ------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float64, st.integers(1, 60), elements=st.sampled_from([0.0, 1.0, 2.5, 3.0, 9.0])),
    st.integers(1, 6), st.booleans(), st.randoms(use_true_random=False),
)  # fmt: skip
def test_the_published_rule_without_a_run(
    values: np.ndarray, runs: int, weighted: bool, random: object
) -> None:
    """All at once gives what the rule gives on the values that are left."""
    rng = np.random.default_rng(len(values) + runs)
    whose = rng.integers(0, runs, len(values))
    weights = rng.integers(1, 5, len(values)).astype(float) if weighted else None
    found = fit.papers_without(values, weights, whose, [*range(runs), -1])
    for run, one in zip([*range(runs), -1], found, strict=True):
        left = whose != run
        expected = None
        if left.any():
            expected = fit.paper(values[left], None if weights is None else weights[left])
        assert one == expected


def test_weights_count_as_values_that_come_again() -> None:
    """The weighted rule on distinct values is the plain one on all of them."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        values = rng.random(rng.integers(1, 30))
        times = rng.integers(1, 9, len(values))
        assert fit.paper(values, times.astype(float)) == fit.paper(np.repeat(values, times))


def test_what_lines_surely_caught() -> None:
    """Between two knots a line's envelope may be above all of its records': it is not believed."""
    grid = bounds.GRID
    first = np.maximum(0.0, 4.0 - 4.0 * grid)  # steep
    second = np.maximum(0.0, 1.0 - 0.5 * grid)  # flat
    both = np.maximum(first, second)
    c = 0.7  # between 0.5 and 1: first has 1.2, second 0.65, the chord of both 1.4
    atol = 1.3
    each = np.array([bounds.at(e[None], np.array([2.0]), c)[0] for e in (first, second)])
    assert each.max() < atol < bounds.at(both[None], np.array([2.0]), c)[0]
    tolerance = Tolerance(atol=atol, scaled_tol=c, allclose=AllClose(1.0, 1.0))
    frame = frame_of(columns.empty(), table())
    line = frame[(frame["line_kind"] == frames.LINE) & (frame["role"] == "buggy")].head(1).copy()
    line[list(columns.TUPLES["envelope"])] = both.astype(np.float32)
    line["scaled_max"], line["bias"], line["nonfinite_mismatch"] = np.float32(2), 0.0, 0
    assert not summarised.caught(line, judged_rows(line), tolerance).any()
    lower = Tolerance(atol=0.4, scaled_tol=c, allclose=AllClose(1.0, 1.0))
    assert summarised.caught(line, judged_rows(line), lower).all()


@functools.cache
def buggy() -> pd.DataFrame:
    """A few records, lines and samples of seven kernels."""
    frame = frame_of(*halves(), sample=60)
    kept = (frame["role"] == "buggy") & (frame["dtype"] == "float32")
    kept &= (frame["line_kind"] != frames.RECORD) | (np.arange(len(frame)) % 50 == 0)
    found: pd.DataFrame = frame[kept]
    return found


@settings(max_examples=40, deadline=None)
@given(
    hnp.arrays(np.int64, 7, elements=st.integers(1, 300)),
    hnp.arrays(np.bool_, (7, 3), elements=st.integers(0, 4).map(lambda n: n > 0)),
    st.sampled_from([0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1.0]), st.integers(0, 9),
)  # fmt: skip
def test_intervals_hold_the_recall_of_unequal_kernels(
    times: np.ndarray, kept: np.ndarray, atol: float, seed: int
) -> None:
    """Of however many rows a sample tells, and whichever of their kinds it lacks."""
    frame = buggy().copy()
    kernel = np.unique(frame["kernel"].astype(str), return_inverse=True)[1]
    frame["stands_for"] *= times[kernel]
    frame["detectable"] *= times[kernel]
    sampled = frame["line_kind"].to_numpy() == frames.SAMPLED
    same = (frame["same_as_control"] == True).to_numpy(bool)  # noqa: E712  (null is neither)
    some = np.random.default_rng(seed).random(len(frame)) < times[kernel] / 300
    drop = sampled & np.where(same, ~kept[kernel, 0], ~kept[kernel, 1] | (some & kept[kernel, 2]))
    tolerance = Tolerance(atol=atol, scaled_tol=1.0, allclose=AllClose(1.0, 1.0))
    by_run = {False: ByRun(), True: ByRun()}
    recalls = evaluate.recalls_of(
        frame[~drop], "float32", "softmax", tolerance, None, {}, None, "residual", (), by_run
    )
    whole = Recall.of(r.proposed for r in recalls)
    known = [r for r in recalls if r.proposed is not None]
    for share, interval in zip(
        (whole.recall, whole.detectable_recall), by_run[False].intervals(), strict=True
    ):
        assert (share is None) == (interval is None) == (not known)
        if share is not None and interval is not None:
            assert 0.0 <= interval[0] <= share <= interval[1] <= 1.0


def test_an_interval_is_no_surer_than_the_rows_that_were_judged() -> None:
    """Weights move it, and don't narrow it; what no sampled row stands for may be anything."""
    runs, every = np.full(8, "a", object), np.ones(8, bool)
    by_run = ByRun()
    by_run.add(runs, every, every, np.full(8, 1000.0))
    assert by_run.intervals()[1] == binomial.interval(8, 8)
    by_run.add(runs, ~every, every, np.full(8, 3000.0))
    found = by_run.intervals()[1]
    worth = binomial.interval(3, 12)  # (8 * 1000 + 8 * 3000)^2 / (8 * 1000^2 + 8 * 3000^2) = 12.8
    assert found == (min(0.25, worth[0]), worth[1])
    by_run.add(runs, every, ~every, unjudged=(0, 32_000))
    assert by_run.intervals()[1] == (found[0] / 2, found[1] / 2 + 0.5)


# --- the commands ---------------------------------------------------------------------------


def tolcal(folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tolcal", *args], cwd=folder, env=os.environ | variables,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history folder of two shards that share a run."""
    made = tmp_path_factory.mktemp("summarised")
    cut = len(table()) // 2 + 100
    history.add(made / "h", table().slice(0, cut))
    history.add(made / "h", table().slice(cut))
    return made


def test_summarize_calibrate_and_say_what_is_wrong(folder: Path) -> None:
    """From the command line: a folder is added to, a file of something else is left alone."""
    count = len(set(table()["run_id"].to_pylist()))
    done = tolcal(folder, "history", "summarize", "--history", "h", "--out", "s")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{len(table())} records of {count} runs summarised in s/")
    again = tolcal(folder, "history", "summarize", "--history", "h", "--out", "s")
    assert again.stdout == f"s: has every run of the history ({count} runs)\n"
    fitted = tolcal(folder, "calibrate", "--history", "s", "--json", "p.json")
    assert fitted.returncode == 0, fitted.stderr
    assert "known by summaries" in fitted.stdout
    listed = tolcal(folder, "history", "ls", "--history", "s")
    assert listed.stdout.splitlines()[-1] == f"{count} runs, {len(table())} records"
    (folder / "x.parquet").write_bytes(b"mine")
    for out, says in {
        "x.parquet": "exists and is no summary", "h": "is the history itself",
        "s.txt": "name a .parquet file or a folder",
    }.items():  # fmt: skip
        bad = tolcal(folder, "history", "summarize", "--history", "h", "--out", out)
        assert bad.returncode == 2
        assert says in bad.stderr.splitlines()[-1]
    assert (folder / "x.parquet").read_bytes() == b"mine"


def test_a_larger_summary_is_taken_from(folder: Path) -> None:
    """Parts that a summary lacks, of runs that it has."""
    here = table()
    names = np.array(here["op"].to_pylist())
    for name, mask in (("one", names == "softmax"), ("two", names != "gelu")):
        history.add(folder / name, here.filter(pa.array(mask)))
        made = tolcal(folder, "history", "summarize", "--history", name, "--out", f"{name}.parquet")
        assert made.returncode == 0, made.stderr
    done = tolcal(folder, "history", "summarize", "--history", "two.parquet",
                  "--out", "one.parquet")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "records of" in done.stdout
    whole = sum(lines.runs_of(summaries.read(folder / "one.parquet")).values())
    assert whole == (names != "gelu").sum()
    fitted = tolcal(folder, "calibrate", "--history", "two.parquet", "--history", "one.parquet")
    assert fitted.returncode == 0, fitted.stderr


def test_ray_gives_the_same_lines(folder: Path) -> None:
    """A Ray task for each row group, merged: the bits of one machine; Ray is gone afterwards."""
    pytest.importorskip("ray")
    code = (
        "import sys, ray\n"
        "ray.init(num_cpus=2, address='local', include_dashboard=False,\n"
        "         _node_ip_address='127.0.0.1', log_to_driver=False)\n"
        "from tolcal.cli import main\n"
        "status = main(['history', 'summarize', '--history', 'h', '--out', 'ray.parquet',\n"
        "               '--sample', '70', '--engine', 'ray'])\n"
        "status += main(['calibrate', '--history', 'h', '--engine', 'ray', '--json', 'ray.json'])\n"
        "print(status, ray.is_initialized())\n"
        "ray.shutdown()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["0 True"], done.stderr[-2000:]
    local = tolcal(folder, "history", "summarize", "--history", "h", "--out", "local.parquet",
                   "--sample", "70")  # fmt: skip
    assert local.returncode == 0, local.stderr
    assert summaries.read(folder / "ray.parquet").equals(summaries.read(folder / "local.parquet"))
    tolcal(folder, "history", "summarize", "--history", "h", "--out", "all.parquet")
    tolcal(folder, "calibrate", "--history", "all.parquet", "--json", "all.json")
    assert (folder / "ray.json").read_bytes() == (folder / "all.json").read_bytes()


def test_ray_names_a_damaged_shard(folder: Path, tmp_path: Path) -> None:
    """What the user can mend is one line, as without Ray."""
    pytest.importorskip("ray")
    shard = next((folder / "h").glob("*.parquet"))
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / shard.name).write_bytes(shard.read_bytes()[:-99])
    done = tolcal(
        tmp_path, "history", "summarize", "--history", "h", "--out", "s", "--engine", "ray"
    )
    assert done.returncode == 2, done.stderr
    assert "damaged" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


# --- flagged lines --------------------------------------------------------------------------


def test_a_flagged_line_may_be_all_of_its_rows() -> None:
    """The exact bound on rows counts it whole, and the count is a least one."""
    _, second = halves()
    proposal = calibrate.calibrate(frame_of(columns.empty(), table()), margin=0.25)
    held = proposal.held_out
    records = calibrate.calibrate(history.to_frame(table()), margin=0.25).held_out
    assert held.false_alarms < records.false_alarms <= held.false_alarms + held.unseen
    assert records.unseen == 0
    claim = text.held_out_claims(proposal)
    assert f"at least {held.false_alarms} of {held.rows} held-out control rows flagged" in claim
    least = 100 * records.false_alarms / records.rows
    (said,) = re.findall(r"rows flagged \(at most ([0-9.e+-]+) %\)", claim)
    assert float(said) >= least
    kept = calibrate.locked(frame_of(columns.empty(), second), proposal, {})
    assert f"at least {kept.held_out.false_alarms} of" in text.locked_claim(kept)


def test_the_published_rule_counts_the_rows_of_a_line() -> None:
    """Leaving a run out as in sample: the points of a line say how many of it are above."""
    lined = calibrate.calibrate(frame_of(columns.empty(), table()), rule="paper").held_out
    assert lined.unseen == 0
    exact = calibrate.calibrate(history.to_frame(table()), rule="paper").held_out
    assert abs(lined.false_alarms - exact.false_alarms) <= 0.02 * exact.false_alarms


def test_locked_runs_that_the_fit_rests_on_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As records or as their summary: how many, and which first."""
    first, second = halves()
    pq.write_table(table(), tmp_path / "all.parquet")
    half = tmp_path / "half.parquet"
    made = lines.merge(summary.of_table(second))
    half.write_bytes(summaries.encoded(made, (), {}))
    runs = sorted(set(second["run_id"].to_pylist()))
    for history_, kept in (("all", "half"), ("half", "all")):
        said = [f"--history={tmp_path / history_}.parquet", f"--locked={tmp_path / kept}.parquet"]
        assert cli.main(["calibrate", *said, f"--tolerances={tmp_path / 'none.toml'}"]) == 2
        error = capsys.readouterr().err
        assert f"{len(runs)} of its" in error
        assert f"(first {runs[0]})" in error
        assert error.count("\n") == 1
    assert len(first)
