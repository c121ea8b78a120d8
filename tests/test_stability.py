"""Calibrating again changes nothing: the same history, or with one more run like the others."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests_support import DATA, make_record, make_run, make_stats, single

from tolcal import calibrate, history
from tolcal.calibrate import fit, stability
from tolcal.history import columns
from tolcal.model import Proposal, Tolerance

ALLOWED = st.floats(1e-12, 1e3)
BUDGETS: list[float] = np.geomspace(1e-6, 0.5, 24).tolist()


def settle(now: float | None, fits: Sequence[float], runs: int) -> tuple[str, int]:
    """Of a cell without overrides."""
    return stability.settle(None if now is None else [now], [[one] for one in fits], runs)


@given(ALLOWED, ALLOWED, ALLOWED, st.integers(1, 20))
def test_what_was_approved_is_settled(a: float, b: float, c: float, runs: int) -> None:
    """Approving whichever fit is proposed, of any three, leaves nothing to decide."""
    lenient, asked, strict = sorted((a, b, c))  # more red runs allow a smaller margin
    fits = (asked, strict, lenient)
    assert settle(None, fits, runs) == ("new", 0)
    for place in (0, 1):
        assert settle(fits[place], fits, runs)[0] == "unchanged"


@given(ALLOWED, ALLOWED, st.integers(1, 20))
def test_only_what_is_worth_it_changes(now: float, then: float, runs: int) -> None:
    """By 1.25 at least, and tighter only on three runs."""
    state, place = settle(now, (then,) * 3, runs)
    ratio = now / then
    if ratio >= 1.25:
        assert state == ("tighten" if runs >= 3 else "unchanged")
    elif ratio <= 1 / 1.25:
        assert state == "looser"
    else:
        assert (state, place) == ("unchanged", 0)


def test_between_margins_the_approved_one_stays() -> None:
    """A fit that only the share as asked would change is the approved one, either way."""
    assert settle(3.0, (2.0, 3.0, 2.0), 9) == ("unchanged", 1)
    assert settle(2.0, (3.0, 3.0, 2.0), 9) == ("unchanged", 2)
    assert settle(4.0, (2.0, 3.0, 2.0), 9) == ("tighten", 1)
    assert settle(2.0, (4.0, 4.0, 3.0), 9) == ("looser", 0)


def test_a_cell_is_judged_on_each_device_class() -> None:
    """Tighter on one is enough if it is looser on none."""
    two = [[1.0, 2.0]] * 3
    assert stability.settle([1.0, 4.0], two, 9) == ("tighten", 1)
    assert stability.settle([0.9, 4.0], two, 9) == ("tighten", 1)
    assert stability.settle([0.5, 4.0], two, 9) == ("looser", 0)
    assert stability.settle([1.0, 2.0], two, 9) == ("unchanged", 0)


def approved(proposal: Proposal) -> dict[tuple[str, str], Tolerance]:
    """All that a maintainer can approve of it, approved."""
    return {
        (c.op, c.dtype): c.tolerance
        for c in proposal.cells
        if c.tolerance and c.state in ("new", "tighten")
    }


def states(proposal: Proposal) -> set[str]:
    """Of its cells."""
    return {c.state for c in proposal.cells}


def with_one_more(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """A run drawn among those of the history, under an id of its own."""
    ids = sorted(frame["run_id"].astype(str).unique())
    drawn = ids[np.random.default_rng(seed).integers(len(ids))]
    again = frame[frame["run_id"] == drawn].assign(run_id="f" * 16)
    both = pd.concat([frame.assign(run_id=frame["run_id"].astype(str)), again], ignore_index=True)
    return both.assign(run_id=both["run_id"].astype("category"))


def check(frame: pd.DataFrame, seeds: range) -> None:
    """Calibrate, approve, calibrate again: alone, and with one more run."""
    first = calibrate.calibrate(frame)
    assert states(first) == {"new"}
    now = approved(first)
    again = calibrate.calibrate(frame, approved=now)
    assert states(again) == {"unchanged"}
    assert again.tolerances() == first.tolerances()
    for seed in seeds:
        assert states(calibrate.calibrate(with_one_more(frame, seed), approved=now)) == {
            "unchanged"
        }


@functools.cache
def heavy(alpha: float, seed: int, runs: int = 12) -> pd.DataFrame:
    """Two controls of one cell: one with a Pareto tail, one with a lognormal."""
    draw = np.random.default_rng(seed)
    records = []
    for run in range(runs):
        info = make_run(id=f"{run:016x}")
        for row in range(60):
            sizes = {"softmax_triton": draw.pareto(alpha) + 1, "softmax": draw.lognormal(0, 0.1)}
            for kernel, size in sizes.items():
                stats = make_stats(single(float(size) * 2.0**-20))
                records.append(make_record(run=info, seed=100 * run + row, kernel=kernel,
                                           stats=stats))  # fmt: skip
    return history.to_frame(columns.from_records(records))


@pytest.mark.parametrize("alpha", [2.0, 3.0, 4.0, 6.0, 12.0])
def test_simulated_histories(alpha: float) -> None:
    """Heavy tails and light ones, so that every rung and those between two are met."""
    for seed in range(2):
        check(heavy(alpha, seed), range(3))


def test_the_tail_decides_the_margin() -> None:
    """A heavy one takes the top rung, a light one the lowest; one between them another."""
    margins = {a: calibrate.calibrate(heavy(a, 0)).margin for a in (2.0, 12.0)}
    assert margins == {2.0: 6.0, 12.0: 2.0}
    frame = heavy(3.0, 0)
    by_budget = [calibrate.calibrate(frame, budget=b).margin for b in BUDGETS]
    assert by_budget == sorted(by_budget, reverse=True)
    assert {3.0, 4.0, 6.0} <= set(by_budget) <= set(fit.LADDER)
    assert calibrate.calibrate(frame, margin=7.0).margin == 7.0


def test_whatever_the_budget_nothing_goes_back_and_forth() -> None:
    """Budgets so close that a control stands between two rungs."""
    frame = heavy(3.0, 1)
    for budget in BUDGETS[4::2]:
        now = approved(calibrate.calibrate(frame, budget=budget))
        for near in (budget / 1.9, budget, budget * 1.9):
            assert states(calibrate.calibrate(frame, budget=near, approved=now)) == {"unchanged"}


def test_the_committed_history() -> None:
    """Real runs, of the ops with the heaviest tails and one with none."""
    frame = history.read([DATA / "h200-history.parquet"])
    some = frame["op"].isin(["layernorm", "matmul", "rmsnorm", "l2norm", "relu"])
    check(frame[some & (frame["role"] == "control")], range(3))


def test_tolerances_are_only_ever_loosened_on_demand() -> None:
    """A history that asks for more makes a cell `looser`, which approving leaves out."""
    frame = heavy(3.0, 0)
    first = calibrate.calibrate(frame)
    tight = {
        cell: msgspec.structs.replace(t, atol=t.atol / 4, scaled_tol=t.scaled_tol / 4)
        for cell, t in first.tolerances().items()
    }
    again = calibrate.calibrate(frame, approved=tight)
    assert states(again) == {"looser"}
    assert approved(again) == {}
