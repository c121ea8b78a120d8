"""History into a Proposal: tolerances with the evidence for each.

Controls alone are fitted, each by itself and by device class; a cell takes the wider of its
controls. Rows of pull requests can raise an envelope, never count as evidence. False alarms are
counted leaving one run out, on explore cases only (gate cases repeat from run to run).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
import pandas as pd

from tolcal import bounds, history
from tolcal.calibrate import (
    described,
    fit,
    forecast,
    lifecycle,
    margins,
    plots,
    stability,
    summarised,
    theory,
)
from tolcal.calibrate import devices as classes
from tolcal.calibrate.evaluate import (
    Alarms,
    Apart,
    held_out_of,
    in_sample,
    leave_one_out,
    locked,
    merged,
    paper_of,
    plain_of,
    recalls_of,
    subtle_of,
)
from tolcal.calibrate.intervals import ByRun
from tolcal.calibrate.known import baseline
from tolcal.calibrate.rows import Control, Lack, controls_of, judged_rows
from tolcal.model import (
    BUDGET,
    MIN_ROWS,
    MIN_RUNS,
    BuggyRecall,
    Cell,
    CellProposal,
    CellState,
    Evidence,
    HeldOut,
    InSample,
    Proposal,
    Tolerance,
    Tolerances,
    round_up,
)

__all__ = ["baseline", "calibrate", "judged_rows", "locked"]

Rule = Literal["residual", "paper"]
By = Literal["op", "kernel"]


def calibrate(
    frame: pd.DataFrame,
    *,
    rule: Rule = "residual",
    by: By = "op",
    margin: float | None = None,
    budget: float = BUDGET,
    min_rows: int = MIN_ROWS,
    min_runs: int = MIN_RUNS,
    approved: Tolerances | None = None,
    legacy: Mapping[Cell, float] | None = None,
    reductions: Mapping[str, str] | None = None,
    subtle: Collection[str] = (),
    known: Sequence[str] = (),
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Proposal:
    """Fits every cell of a history.

    Args:
        frame: records, as ``history.read`` gives them, or with lines of summaries among them, as
            ``history.frames`` does.
        rule: ``residual`` (the default rule) or ``paper`` (p95 x 1.5, for comparison only).
        by: one cell per op and dtype, or one per control and dtype.
        margin: both parts of the residual rule's bounds are multiplied by it; None: by one for
            each control, from its tail.
        budget: red runs that are put up with, as a share of all.
        min_rows, min_runs: trusted rows and runs that a control needs on one device class.
        approved: the tolerances in force.
        legacy: hand-picked atol by cell, the "before" where nothing is approved.
        reductions: the dim that an op sums over, for the a-priori bounds beside its cells.
        subtle: names of the buggy kernels whose recall is told apart, since their faults are small
            or rare.
        known: what to know of how the history was read (``loading.Loaded.notes``).

    Without a record of a control that ran, the proposal has no cells.
    """
    approved, legacy = approved or {}, legacy or {}
    # In an order of their own: what is drawn by their numbers must not depend on how they came.
    runs = frame["run_id"].astype("category").cat
    frame = frame.assign(run_id=runs.reorder_categories(sorted(runs.categories)))
    good = frame[(frame["status"] == "ok") & (frame["roundoff"] > 0)]
    fresh, aged = lifecycle.current(good[good["role"] == "control"], min_rows, min_runs)
    controls = controls_of(fresh)
    # A pull request's word is no evidence of recall either.
    buggy = good[(good["role"] == "buggy") & (good["origin"] != "pull_request")]
    if rule == "paper":
        fitted = {(c.kernel, c.dtype): sorted(set(c.device)) for c in controls}
    else:
        fitted = {(c.kernel, c.dtype): c.enough(min_rows, min_runs) for c in controls}
    papers = {(c.kernel, c.dtype): paper_of(c, fitted[c.kernel, c.dtype]) for c in controls}
    whole_digest = history.content_digest(frame)
    groups: dict[tuple[str, str], list[Control]] = {}
    for control in controls:
        name = control.op if by == "op" else control.kernel
        groups.setdefault((name, control.dtype), []).append(control)
    wide = {c.kernel: c for c in controls if c.dtype == "float32"}
    seen = described.runs(frame)
    keep = plots.plan([r.id for r in seen], len(good[["kernel", "dtype"]].drop_duplicates()))
    # Each control may take an equal share of the budget.
    equal = budget / max(1, sum(bool(devices) for devices in fitted.values()))
    choice = margins.Choice(equal, margin)
    by_run: Apart = {False: ByRun(), True: ByRun()}
    results = []
    for number, (_, members) in enumerate(sorted(groups.items())):
        members = [m for m in members if m.trusted.any()]
        if not members:
            continue  # pull requests alone are no evidence
        cell = (members[0].op, members[0].dtype)
        progress(number, len(groups), "/".join(cell))
        names = {m.kernel for m in members}
        faults = buggy[(buggy["dtype"] == cell[1]) & buggy["corrupts"].isin(names)]
        devices = {d for m in members for d in fitted[m.kernel, m.dtype]}
        if devices:  # a device that the tolerance does not rest on is no evidence for it either
            faults = faults[faults["device_class"].isin(devices)]
        results.append(
            _cell(
                members, wide, faults, papers, rule, by, choice, (min_rows, min_runs),
                whole_digest, approved.get(cell), legacy.get(cell), keep, subtle, by_run,
            )
        )  # fmt: skip
    progress(len(groups), len(groups), "")
    cells = tuple(
        theory.beside(r.cell, groups[r.cell.kernel or r.cell.op, r.cell.dtype], reductions or {})
        for r in results
    )
    recalls = tuple(b for r in results for b in r.recalls)
    alarms = merged(r.alarms for r in results)
    whole = plain_of(recalls)
    intervals = by_run[False].intervals()
    used = [c.tolerance.evidence.margin for c in cells if c.tolerance and c.tolerance.evidence]
    ours, paper = (merged(r.in_sample[i] for r in results) for i in (0, 1))
    residual = rule == "residual"
    return Proposal(
        rule=rule,
        by=by,
        margin=margin or max(used, default=fit.LADDER[0]),
        history=whole_digest,
        digest="",
        recall=whole.recall,
        detectable_recall=whole.detectable_recall,
        held_out=held_out_of(alarms),
        cells=cells,
        buggy=recalls,
        runs=described.with_alarms(seen, alarms),
        notes=(
            *known,
            *described.differing(frame),
            *described.notes(good, fitted, rule),
            *described.raised([r.cell for r in results if r.raised]),
            *lifecycle.notes(aged, min_rows, min_runs),
            *lifecycle.clock_notes(frame),
            *theory.notes(cells),
        ),
        curve=plots.curve([r.shares for r in results if r.shares], alarms) if residual else None,
        budget=budget,
        forecast=forecast.of([j for r in results for j in r.tails], budget) if residual else None,
        recall_interval=intervals[0],
        detectable_interval=intervals[1],
        in_sample=InSample(held_out_of(ours), held_out_of(paper)) if ours else None,
        subtle=subtle_of(recalls, by_run),
    ).sealed()


class _Result(msgspec.Struct, frozen=True):
    """One cell, and its part of what is said of all together."""

    cell: CellProposal
    recalls: list[BuggyRecall]
    alarms: Alarms
    in_sample: tuple[Alarms, Alarms]
    tails: list[forecast.Judged]
    shares: plots.Judged | None
    raised: bool  # by rows of pull requests


def _cell(
    members: list[Control],
    wide: Mapping[str, Control],
    faults: pd.DataFrame,
    papers: Mapping[tuple[str, str], float | None],
    rule: Rule,
    by: By,
    choice: margins.Choice,
    least: tuple[int, int],
    history_digest: str,
    approved: Tolerance | None,
    legacy: float | None,
    keep: plots.Plan,
    subtle: Collection[str],
    by_run: Apart,
) -> _Result:
    op, dtype = members[0].op, members[0].dtype
    members_all = members
    imported = [m for m in members if np.isnan(m.arrays.z).all()]
    if rule == "residual":
        members = [m for m in members if m not in imported]
    devices = {m.kernel: m.enough(*least) for m in members}
    lack = _most([m.lacks(*least) for m in members if not devices[m.kernel]])
    paper_values = [p for m in members_all if (p := papers[m.kernel, dtype]) is not None]
    paper_tol = max(paper_values) if paper_values else None
    note = ""
    fitted = False
    if rule == "residual":
        if imported and not members:
            note = "imported rows have no envelopes; only `--rule paper` can use them"
        elif lack is not None:
            note = lack.text
            if approved is not None:
                note = f"approved; to fit it again, {note}"
        else:
            fitted = True
    # Evidence is what the fit rests on; without a fit, whatever there is.
    used = pd.concat(
        [
            m.rows[m.trusted & (np.isin(m.device, devices[m.kernel]) if fitted else True)]
            for m in members_all
        ]
    )
    runs = int(used["run_id"].nunique())
    names = sorted(str(name) for name in used["device"].unique())
    element = classes.element_of(used, dtype)
    half = bounds.half_gap(dtype, element.ref)
    now = None if approved is None else element.allowed(approved)
    own_fits: Mapping[str, Tolerance] = {}
    tolerance: Tolerance | None = None
    state: CellState = "uncalibrated"
    alarms: Alarms = {}
    sample: tuple[Alarms, Alarms] = ({}, {})
    shares: list[forecast.Judged] = []
    margin = 0.0
    raised = False
    absent: list[str] = []
    if fitted:
        ladders = [margins.Ladder(m, wide, devices[m.kernel]) for m in members]
        fits = [_whole(ladders, choice.times(f)) for f in stability.FACTORS[: 3 if approved else 1]]
        whole = classes.complete(members, devices)
        absent = classes.absent(approved, names)
        if absent:
            note = f"approved for {', '.join(absent)} too, not fitted here: no tighter for all"

        def combined(one: margins.Fitted) -> Tolerance:
            return classes.combined(one, whole, element, approved, bool(absent))

        proposals = [combined(one) for one in fits]
        before, after = classes.allowed(element, approved, proposals)
        state, place = stability.settle(before, after, runs)
        tolerance, margin, own_fits = proposals[place], fits[place].margin, fits[place].fits
        if state == "tighten" and approved is not None:
            tolerance = classes.settled(tolerance, approved, element)
        taken = choice.times(stability.FACTORS[place])

        def without(left: list[str]) -> list[Tolerance | None]:
            return [combined(one) if one else None for one in margins.cell(ladders, left, taken)]

        alarms = leave_one_out(members, devices, without)
        sample = in_sample(members, devices, tolerance, paper_tol)
        shares = [
            forecast.Judged(f"{op}/{dtype}", margins.shares(m, wide, devices[m.kernel], tolerance))
            for m in members
        ]
        # Rows of pull requests come last: all before them is of trusted rows alone.
        trusted = tolerance
        tolerance = classes.raised(trusted, _whole(ladders, taken, raised=True).fits)
        raised = tolerance is not trusted
        if raised:
            note = (
                f"{note}; " * bool(note)
                + f"by rows of a pull request; trusted rows need {element.allowed(trusted):.3g}"
            )
            before, after = classes.allowed(element, approved, [tolerance])
            state = stability.raised(state, before, after[0])
    elif rule == "paper":
        state = "new" if approved is None else "unchanged"
        alarms = leave_one_out(members, devices, None)
        judged = {m.kernel: sorted(set(m.device)) for m in members}
        sample = (in_sample(members, judged, None, paper_tol)[1],) * 2
    recalls = recalls_of(
        faults, dtype, op, tolerance, approved, papers, legacy, rule, subtle, by_run
    )
    plain = faults[~faults["kernel"].isin(subtle)]
    total = plain_of(recalls)
    held = held_out_of(alarms)
    if tolerance is not None:
        evidence = Evidence(
            rule=rule,
            margin=margin,
            rows=summarised.number(used),
            runs=runs,
            devices=tuple(sorted({*names, *absent})),
            held_out=HeldOut(held.runs, held.runs_with_false_alarms),
            history=history_digest,
            detectable_recall=classes.rounded(total.detectable_recall),
            roundoff=members_all[0].arrays.roundoff,
            scale=round_up(element.scale),
        )
        tolerance = classes.proven(tolerance, evidence, used, alarms, plain)
    if now is None and legacy is not None:
        now = legacy + half
    paper_allowed = None if paper_tol is None else paper_tol + half
    allowed = None if tolerance is None else element.allowed(tolerance)
    proposed = paper_allowed if rule == "paper" else allowed
    tightening = now / proposed if now is not None and proposed else None
    cell = CellProposal(
        op=op,
        dtype=dtype,
        kernel=None if by == "op" else members_all[0].kernel,
        state=state,
        rows=summarised.number(used),
        runs=runs,
        devices=tuple(names),
        needs_rows=lack.needs_rows if lack else 0,
        needs_runs=lack.needs_runs if lack else 0,
        tolerance=tolerance,
        base=None if approved is None else approved.whole_digest,
        proposed_tol=paper_tol if rule == "paper" else None,
        allowed_now=now,
        allowed_source="approved" if approved else "none" if legacy is None else "legacy",
        allowed_proposed=proposed,
        allowed_paper=paper_allowed,
        paper_atol=paper_tol,
        tightening=tightening,
        recall=total.recall,
        detectable_recall=total.detectable_recall,
        held_out=held,
        note=note,
        plots=plots.cell_plots(
            members_all, faults, tolerance, approved, legacy, paper_tol, element.scale, keep, subtle
        ),
        by_device=classes.needs(own_fits, tolerance, approved, element, used) if tolerance else (),
    )
    return _Result(
        cell,
        recalls,
        alarms,
        sample,
        shares,
        plots.buggy_shares(plain, tolerance, paper_tol),
        raised,
    )


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
