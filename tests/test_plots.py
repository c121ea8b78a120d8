"""calibrate.plots: what plots show is what the history holds, and stays small."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest
from tests_support import DATA, make_environment, make_record, make_run, make_stats

from tolcal import bounds, calibrate, history
from tolcal.calibrate import judged_rows, plots
from tolcal.history import columns
from tolcal.model import SHARE_EDGES, SHARE_MAX, CellProposal, Proposal, Record


@functools.cache
def fitted() -> pd.DataFrame:
    """The shipped H200 history."""
    return history.read([DATA / "h200-history.parquet"])


@functools.cache
def proposal() -> Proposal:
    """What it gives, with a hand-picked value for one cell."""
    return calibrate.calibrate(fitted(), legacy={("softmax", "float16"): 0.02})


def cell(op: str, dtype: str) -> CellProposal:
    (found,) = [c for c in proposal().cells if (c.op, c.dtype) == (op, dtype)]
    return found


@pytest.mark.parametrize("key", [("softmax", "float16"), ("matmul", "float32")])
def test_a_cells_plots_are_its_records(key: tuple[str, str]) -> None:
    """Spreads, histogram, worst shapes and lines of two cells, recomputed record by record."""
    shown, frame = cell(*key).plots, fitted()
    tolerance = cell(*key).tolerance
    assert shown is not None
    assert tolerance is not None
    frame = frame[(frame["op"] == key[0]) & (frame["dtype"] == key[1])]
    assert {(k.kernel, k.role) for k in shown.kernels} == {
        (str(k), str(r)) for k, r in zip(frame["kernel"], frame["role"], strict=True)
    }
    for kernel in shown.kernels:
        rows = frame[frame["kernel"] == kernel.kernel]
        share = bounds.share(judged_rows(rows), tolerance)
        assert sum(kernel.shares) == len(rows)
        one = SHARE_EDGES.index(1.0)
        assert sum(kernel.shares[one + 1 :]) == bounds.exceeds(judged_rows(rows), tolerance).sum()
        for number, run in enumerate(proposal().runs):
            residuals = rows[rows["run_id"] == run.id]["residual_max"]
            spread = kernel.spreads[number]
            assert (spread.run, spread.rows) == (number, len(residuals))
            want = [residuals.min(), residuals.median(), residuals.max()]
            assert spread.quantiles[::2] == pytest.approx(want, rel=5e-3)
        worst = kernel.shapes[0]
        assert worst.share == pytest.approx(min(share.max(), SHARE_MAX), rel=5e-3)
        at = int(np.flatnonzero((rows["case_id"] == worst.case).to_numpy())[0])
        assert share[at] == share.max()
        assert rows["dims"].iloc[at] == worst.dims
        assert sum(s.rows for s in kernel.shapes) == len(rows) or len(kernel.shapes) == 40
        assert [s.share for s in kernel.shapes] == sorted(
            (s.share for s in kernel.shapes), reverse=True
        )
    scale = frame[frame["role"] == "control"]["scale_q50"].quantile(0.5, "lower")
    u = frame["roundoff"].iloc[0]
    assert shown.proposed == pytest.approx(tolerance.atol + tolerance.scaled_tol * u * scale)
    assert shown.legacy == (0.02 if key == ("softmax", "float16") else None)
    assert shown.paper == cell(*key).paper_atol
    assert (shown.approved, shown.judged_by) == (None, "proposed")


def test_the_curve_passes_through_the_held_out_figures() -> None:
    """At factor 1 it says what the proposal says; it falls; the published rule is below."""
    curve = proposal().curve
    assert curve is not None
    (now,) = [p for p in curve.points if p.factor == 1.0]
    assert (curve.runs, now.red) == (
        proposal().held_out.runs,
        proposal().held_out.runs_with_false_alarms,
    )
    scalable = {(c.op, c.dtype) for c in proposal().cells if c.paper_atol}
    assert 25 < len(scalable) < 42  # bfloat16 has cells whose p95 is 0
    recalls = [b.proposed for b in proposal().buggy if b.proposed and (b.op, b.dtype) in scalable]
    assert curve.detectable == sum(r.detectable for r in recalls)
    assert now.flagged == sum(r.detectable_flagged for r in recalls)
    for name in ("red", "flagged", "paper_red", "paper_flagged"):
        values = [getattr(p, name) for p in curve.points]
        assert values == sorted(values, reverse=True)
    assert curve.points[0].red == curve.runs
    assert (now.paper_red, now.paper_flagged < now.flagged) == (18, True)


def test_runs_say_how_near_they_came() -> None:
    """The share of a run is above 1 just if one of its held-out rows was a false alarm."""
    for run in proposal().runs:
        assert run.held_out_share is not None
        assert (run.held_out_share > 1) == (run.held_out_false_alarms > 0)
        assert run.described.startswith("NVIDIA H200 (sm_90, driver 580.159.04, cuda 13.0, torch ")


def records(runs: int, kernels: int = 1, **stats: float | None) -> list[Record]:
    return [
        make_record(
            run=make_run(id=f"{r:016x}", started=f"2026-11-{r % 28 + 1:02}T00:00:{r // 28:02}"),
            kernel=f"k{k}",
            dims=(("H", k * 1000 + r),),
            stats=make_stats(2.0**-22, **stats),
        )
        for k in range(kernels)
        for r in range(runs)
    ]


def test_old_runs_and_small_shapes_give_way() -> None:
    """Of 100 runs and shapes the newest 60 and the worst 40 stay, under the numbers of all."""
    result = calibrate.calibrate(columns_of(records(100)), min_rows=50)
    shown = result.cells[0].plots
    assert shown is not None
    assert len(result.runs) == 100
    assert [s.run for s in shown.kernels[0].spreads] == list(range(40, 100))
    assert len(shown.kernels[0].shapes) == 40
    assert plots.plan(["a", "b", "c"], 10_000) == plots.Plan(("", "b", "c"), 2)
    assert plots.plan(["a", "b"], 10**9) == plots.Plan(("", "b"), 1)
    assert plots.plan([], 0) == plots.Plan((), 40)


def columns_of(many: list[Record]) -> pd.DataFrame:
    return history.to_frame(columns.from_records(many))


def test_what_has_no_tolerance_has_no_shares() -> None:
    """An uncalibrated cell shows its residuals, and imported records not even these."""
    bare = calibrate.calibrate(columns_of(records(3))).cells[0].plots
    assert bare is not None
    assert (bare.judged_by, bare.proposed, bare.kernels[0].shares) == ("none", None, ())
    assert len(bare.kernels[0].spreads) == 3
    imported = records(3, residual_max=None, envelope=None, scaled_max=None)
    alone = calibrate.calibrate(columns_of(imported), rule="paper")
    assert alone.cells[0].plots is not None
    assert alone.cells[0].plots.kernels[0].spreads == ()
    assert alone.curve is None


def test_environments_of_runs_are_told_in_words() -> None:
    """With their switches, since a change of those is a change of environment."""
    run = make_run(environment=make_environment(switches=("interpreter", "tf32")))
    (only,) = calibrate.calibrate(columns_of([make_record(run=run)])).runs
    assert only.described.endswith("triton 3.6.0, interpreter, tf32)")
    assert only.held_out_share is None
