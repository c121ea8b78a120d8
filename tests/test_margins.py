"""A margin for each control: from its tail, with a run left out too, and no worse for a lender."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_stability import heavy
from tests_support import DATA

from tolcal import calibrate, history
from tolcal.calibrate import fit, margins, tails
from tolcal.calibrate.rows import Control, controls_of


@functools.cache
def real() -> pd.DataFrame:
    """Controls of ops that borrow, on the committed history."""
    frame = history.read([DATA / "h200-history.parquet"])
    some = frame["op"].isin(["layernorm", "softmax", "rmsnorm"])
    return frame[some & (frame["role"] == "control")]


def ladder(control: Control, wide: dict[str, Control]) -> margins.Ladder:
    """On all of its devices."""
    return margins.Ladder(control, wide, sorted(set(control.device)))


@pytest.mark.parametrize("share", [1e-6, 1e-4, 1e-3, 1e-2, 1.0])
def test_leaving_a_run_out_chooses_without_it(share: float) -> None:
    """Margin and tolerance are those of the history without the run's rows."""
    frame = real()
    controls = controls_of(frame)
    wide = {c.kernel: c for c in controls if c.dtype == "float32"}
    choice = margins.Choice(share)
    runs = sorted(set(frame["run_id"].astype(str)))[::6]
    found: set[float] = set()
    shortened = {}
    for run in runs:
        rest = controls_of(frame[frame["run_id"] != run])
        shortened[run] = {(c.kernel, c.dtype): c for c in rest}
    for control in controls:
        without = ladder(control, wide).tolerances([*runs, None, "no such run"], choice)
        assert without[-1] == without[-2]
        for run, got in zip(runs, without, strict=False):
            left = shortened[run]
            fp32 = {kernel: c for (kernel, dtype), c in left.items() if dtype == "float32"}
            (whole,) = ladder(left[control.kernel, control.dtype], fp32).tolerances([None], choice)
            assert got is not None
            assert got == whole, (control.kernel, control.dtype, run)
            found.add(got.margin)
    assert found <= set(fit.LADDER)


def test_each_control_has_its_own() -> None:
    """The cell is the wider of its controls, each times its own margin."""
    controls = sorted(controls_of(heavy(3.0, 0)), key=lambda c: c.kernel)
    choice = margins.Choice(1e-3)
    ladders = [ladder(c, {}) for c in controls]
    each = [one.tolerances([None], choice)[0] for one in ladders]
    assert [e.margin for e in each if e] == [1.5, 6.0]  # lognormal, Pareto
    (both,) = margins.cell(ladders, [None], choice)
    assert both is not None
    assert both.margin == 6.0
    assert each[0] is not None
    assert each[1] is not None
    assert both.tolerance == fit.wider(each[0].tolerance, each[1].tolerance)
    (fixed,) = margins.cell(ladders, [None], margins.Choice(1e-3, 3.0))
    assert fixed is not None
    assert fixed.margin == 3.0


def test_no_error_takes_the_smallest_and_too_few_the_largest() -> None:
    """All-zero residuals: the floor governs. Fewer than five above zero tell of no tail."""
    frame = heavy(3.0, 0)
    columns = [c for c in frame.columns if c.startswith(("envelope", "scaled_max"))]
    zero = frame.copy()
    zero[columns] = 0.0
    few = zero.copy()
    few.loc[few.index[:8], columns] = frame.loc[few.index[:8], columns]
    assert calibrate.calibrate(zero, budget=1e-9).margin == 1.5
    assert calibrate.calibrate(few).margin == 6.0
    assert calibrate.calibrate(frame, budget=1e-9).margin == 6.0


SHARES = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40)


@given(SHARES, SHARES)
def test_what_is_told_reaches_as_high_as_either(own: list[float], lent: list[float]) -> None:
    """Taking fp32's rows never makes the largest share smaller, nor bends their tail."""
    mine, other = (tails.Shares(np.array(s), np.zeros(len(s), int)) for s in (own, lent))
    told = margins.telling(mine, other)
    assert told.shares.max() >= max(mine.shares.max(), other.shares.max()) * (1 - 1e-12)
    assert told.positive >= min(mine.positive, other.positive)
    assert margins.telling(mine, None) is mine


def test_a_spoilt_run_is_not_hidden_by_its_own_margin() -> None:
    """A run that alone would raise the rung is judged by the rung of the others."""
    frame = heavy(12.0, 3).copy()
    columns = [c for c in frame.columns if c.startswith(("envelope", "scaled_max"))]
    worst = frame["scaled_max"].idxmax()
    frame.loc[worst, columns] *= 2.5
    run = str(frame.loc[worst, "run_id"])
    (control,) = (c for c in controls_of(frame) if c.kernel == str(frame.loc[worst, "kernel"]))
    one, raised = ladder(control, {}), 0
    for share in np.geomspace(1e-8, 1e-2, 13).tolist():
        whole, left = one.tolerances([None, run], margins.Choice(share))
        assert whole is not None
        assert left is not None
        assert left.margin <= whole.margin
        raised += left.margin < whole.margin
    assert raised
