"""One cell of a proposal: its fit, what it says of the cell's own rows, and its evidence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec
import pandas as pd

from tolcal import bounds
from tolcal.calibrate import devices as classes
from tolcal.calibrate import forecast, margins, plots, stability, summarised
from tolcal.calibrate.evaluate import (
    Alarms,
    Apart,
    held_out_of,
    in_sample,
    leave_one_out,
    plain_of,
    recalls_of,
)
from tolcal.calibrate.rows import By, Control, Lack, trusted_rows
from tolcal.model import (
    BuggyRecall,
    CellProposal,
    CellState,
    Evidence,
    HeldOut,
    Tolerance,
    round_up,
)

Rule = Literal["residual", "paper"]


class Common(msgspec.Struct, frozen=True):
    """What all cells of a proposal share."""

    rule: Rule
    by: By
    wide: Mapping[str, Control]  # fp32 controls, by kernel
    papers: Mapping[tuple[str, str], float | None]  # the published rule, by control and dtype
    choice: margins.Choice
    least: tuple[int, int]  # rows and runs that a control needs on one device class
    history: str  # digest
    keep: plots.Plan
    subtle: Collection[str]


class Result(msgspec.Struct, frozen=True):
    """One cell, and its part of what is said of all together."""

    cell: CellProposal
    recalls: list[BuggyRecall]
    alarms: Alarms
    in_sample: tuple[Alarms, Alarms]
    tails: list[forecast.Judged]
    shares: plots.Judged | None
    raised: bool  # by rows of pull requests


class _Fit(msgspec.Struct, frozen=True):
    """What a rule makes of a cell's controls; of one without a fit, nothing."""

    state: CellState = "uncalibrated"
    tolerance: Tolerance | None = None
    margin: float = 0.0
    #: by device class, before any of it is put together
    fits: Mapping[str, Tolerance] = {}
    alarms: Alarms = {}
    in_sample: tuple[Alarms, Alarms] = ({}, {})
    tails: list[forecast.Judged] = []
    raised: bool = False  # by rows of pull requests
    absent: list[str] = []  # devices that are approved too and were not fitted here
    note: str = ""


def cell_of(
    members: list[Control],
    faults: pd.DataFrame,
    approved: Tolerance | None,
    legacy: float | None,
    common: Common,
    by_run: Apart,
) -> Result:
    """Fits one cell.

    Args:
        members: its controls, of one op and dtype.
        faults: rows of the buggy kernels that corrupt them.
        approved: the tolerance in force.
        legacy: the hand-picked atol.
        common: what all cells share.
        by_run: what the proposal flags of ``faults`` is added to it.
    """
    op, dtype = members[0].op, members[0].dtype
    controls = [m for m in members if common.rule == "paper" or not m.imported]
    devices = {m.kernel: m.enough(*common.least) for m in controls}
    lack = _most([m.lacks(*common.least) for m in controls if not devices[m.kernel]])
    fitted = common.rule == "residual" and bool(controls) and lack is None
    paper_values = [p for m in members if (p := common.papers[m.kernel, dtype]) is not None]
    paper_tol = max(paper_values, default=None)
    # Evidence is what the fit rests on; without a fit, whatever there is.
    used = trusted_rows(members, devices if fitted else None)
    runs = int(used["run_id"].nunique())
    names = sorted(str(name) for name in used["device"].unique())
    element = classes.element_of(used, dtype)
    if fitted:
        found = _fitted(controls, devices, element, names, runs, approved, paper_tol, common)
    elif common.rule == "paper":
        found = _published(controls, approved, paper_tol)
    else:
        found = _Fit(note=_why_not(lack, approved))
    recalls = recalls_of(
        faults, dtype, op, found.tolerance, approved, common.papers, legacy, common.rule,
        common.subtle, by_run,
    )  # fmt: skip
    plain = faults[~faults["kernel"].isin(common.subtle)]
    total = plain_of(recalls)
    held = held_out_of(found.alarms)
    tolerance = found.tolerance
    if tolerance is not None:
        evidence = Evidence(
            rule=common.rule,
            margin=found.margin,
            rows=summarised.number(used),
            runs=runs,
            devices=tuple(sorted({*names, *found.absent})),
            held_out=HeldOut(held.runs, held.runs_with_false_alarms),
            history=common.history,
            detectable_recall=classes.rounded(total.detectable_recall),
            roundoff=members[0].arrays.roundoff,
            scale=round_up(element.scale),
        )
        tolerance = classes.proven(tolerance, evidence, used, found.alarms, plain)
    half = bounds.half_gap(dtype, element.ref)
    now = None if approved is None else element.allowed(approved)
    if now is None and legacy is not None:
        now = legacy + half
    paper_allowed = None if paper_tol is None else paper_tol + half
    allowed = None if tolerance is None else element.allowed(tolerance)
    proposed = paper_allowed if common.rule == "paper" else allowed
    cell = CellProposal(
        op=op,
        dtype=dtype,
        kernel=None if common.by == "op" else members[0].kernel,
        state=found.state,
        rows=summarised.number(used),
        runs=runs,
        devices=tuple(names),
        needs_rows=lack.needs_rows if lack else 0,
        needs_runs=lack.needs_runs if lack else 0,
        tolerance=tolerance,
        base=None if approved is None else approved.whole_digest,
        proposed_tol=paper_tol if common.rule == "paper" else None,
        allowed_now=now,
        allowed_source="approved" if approved else "none" if legacy is None else "legacy",
        allowed_proposed=proposed,
        allowed_paper=paper_allowed,
        paper_atol=paper_tol,
        tightening=now / proposed if now is not None and proposed else None,
        recall=total.recall,
        detectable_recall=total.detectable_recall,
        held_out=held,
        note=found.note,
        plots=plots.cell_plots(
            members, faults, tolerance, approved, legacy, paper_tol, element.scale, common.keep,
            common.subtle,
        ),
        by_device=classes.needs(found.fits, tolerance, approved, element, used)
        if tolerance
        else (),
    )  # fmt: skip
    return Result(
        cell,
        recalls,
        found.alarms,
        found.in_sample,
        found.tails,
        plots.buggy_shares(plain, tolerance, paper_tol),
        found.raised,
    )


def _fitted(
    members: list[Control],
    devices: Mapping[str, list[str]],
    element: classes.Element,
    names: list[str],
    runs: int,
    approved: Tolerance | None,
    paper_tol: float | None,
    common: Common,
) -> _Fit:
    """The residual rule on controls that all have enough rows on ``devices``, by kernel.

    ``names`` and ``runs`` are those of the rows that it rests on, ``paper_tol`` the published atol.
    """
    cell = f"{members[0].op}/{members[0].dtype}"
    ladders = [margins.Ladder(m, common.wide, devices[m.kernel]) for m in members]
    factors = stability.FACTORS[: 3 if approved else 1]
    fits = [_whole(ladders, common.choice.times(f)) for f in factors]
    whole = classes.complete(members, devices)
    absent = classes.absent(approved, names)
    note = ""
    if absent:
        note = f"approved for {', '.join(absent)} too, not fitted here: no tighter for all"

    def combined(one: margins.Fitted) -> Tolerance:
        tolerance = classes.combined(one, whole, element, approved, bool(absent))
        return classes.with_plain(tolerance, element)

    proposals = [combined(one) for one in fits]
    before, after = classes.allowed(element, approved, proposals)
    state, place = stability.settle(before, after, runs)
    trusted = proposals[place]
    if state == "tighten" and approved is not None:
        trusted = classes.settled(trusted, approved, element)
    taken = common.choice.times(stability.FACTORS[place])

    def without(left: list[str]) -> list[Tolerance | None]:
        return [combined(one) if one else None for one in margins.cell(ladders, left, taken)]

    alarms = leave_one_out(members, devices, without)
    sample = in_sample(members, devices, trusted, paper_tol)
    shares = [
        forecast.Judged(cell, margins.shares(m, common.wide, devices[m.kernel], trusted))
        for m in members
    ]
    # Rows of pull requests come last: all before them is of trusted rows alone.
    covering = _whole(ladders, taken, raised=True).fits
    tolerance = classes.raised(
        trusted, {device: classes.with_plain(one, element) for device, one in covering.items()}
    )
    raised = tolerance is not trusted
    if raised:
        note = (
            f"{note}; " * bool(note)
            + f"by rows of a pull request; trusted rows need {element.allowed(trusted):.3g}"
        )
        before, after = classes.allowed(element, approved, [tolerance])
        state = stability.raised(state, before, after[0])
    return _Fit(
        state=state,
        tolerance=tolerance,
        margin=fits[place].margin,
        fits=fits[place].fits,
        alarms=alarms,
        in_sample=sample,
        tails=shares,
        raised=raised,
        absent=absent,
        note=note,
    )


def _published(members: list[Control], approved: Tolerance | None, paper_tol: float | None) -> _Fit:
    """The published rule, which proposes no tolerance: its atol stands beside the cell."""
    everywhere = {m.kernel: sorted(set(m.device)) for m in members}
    sample = in_sample(members, everywhere, None, paper_tol)[1]
    return _Fit(
        state="new" if approved is None else "unchanged",
        alarms=leave_one_out(members, everywhere, None),
        in_sample=(sample, sample),
    )


def _why_not(lack: Lack | None, approved: Tolerance | None) -> str:
    """The note of a cell that can't be fitted: its controls lack rows, or all are imported."""
    if lack is None:
        return "imported rows have no envelopes; only `--rule paper` can use them"
    return lack.text if approved is None else f"approved; to fit it again, {lack.text}"


def _whole(
    ladders: list[margins.Ladder], choice: margins.Choice, raised: bool = False
) -> margins.Fitted:
    """The fit to all runs, of controls that have enough rows."""
    (one,) = margins.cell(ladders, [None], choice, raised)
    assert one is not None
    return one


def _most(lacks: list[Lack]) -> Lack | None:
    """The control that lacks most speaks for its cell."""
    return max(lacks, key=lambda lack: (lack.needs_runs, lack.needs_rows), default=None)
