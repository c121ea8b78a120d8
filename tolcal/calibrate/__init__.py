"""History into a Proposal: tolerances with the evidence for each.

Controls alone are fitted, each by itself and by device class; a cell takes the wider of its
controls. Rows of pull requests can raise an envelope, never count as evidence. False alarms are
counted leaving one run out, on explore cases only (gate cases repeat from run to run).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import pandas as pd

from tolcal import history
from tolcal.calibrate import described, fit, forecast, lifecycle, margins, plots, theory
from tolcal.calibrate.cells import Common, Rule, cell_of
from tolcal.calibrate.evaluate import (
    Apart,
    held_out_of,
    locked,
    merged,
    paper_of,
    plain_of,
    subtle_of,
)
from tolcal.calibrate.intervals import ByRun
from tolcal.calibrate.known import baseline
from tolcal.calibrate.rows import By, controls_of, grouped, judged_rows, judged_some
from tolcal.model import BUDGET, MIN_ROWS, MIN_RUNS, Cell, InSample, Proposal, Tolerances

__all__ = ["By", "Rule", "baseline", "calibrate", "judged_rows", "locked"]


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
    checked: Collection[str] = (),
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
        checked: names of the buggy kernels that only checks without a tolerance find: they have no
            recall.
        known: what to know of how the history was read (``loading.Loaded.notes``).

    Without a record of a control that ran, the proposal has no cells.
    """
    approved, legacy = approved or {}, legacy or {}
    # In an order of their own: what is drawn by their numbers must not depend on how they came.
    runs = frame["run_id"].astype("category").cat
    frame = frame.assign(run_id=runs.reorder_categories(sorted(runs.categories)))
    good = frame[judged_some(frame) & (frame["roundoff"] > 0)]
    fresh, aged = lifecycle.current(good[good["role"] == "control"], min_rows, min_runs)
    controls = controls_of(fresh)
    # A pull request's word is no evidence of recall either.
    buggy = good[(good["role"] == "buggy") & (good["origin"] != "pull_request")]
    buggy = buggy[~buggy["kernel"].isin(checked)]
    if rule == "paper":
        fitted = {(c.kernel, c.dtype): sorted(set(c.device)) for c in controls}
    else:
        fitted = {(c.kernel, c.dtype): c.enough(min_rows, min_runs) for c in controls}
    papers = {(c.kernel, c.dtype): paper_of(c, fitted[c.kernel, c.dtype]) for c in controls}
    whole_digest = history.content_digest(frame)
    groups = grouped(controls, by)
    seen = described.runs(frame)
    keep = plots.plan([r.id for r in seen], len(good[["kernel", "dtype"]].drop_duplicates()))
    # Each control may take an equal share of the budget.
    equal = budget / max(1, sum(bool(devices) for devices in fitted.values()))
    common = Common(
        rule=rule,
        by=by,
        wide={c.kernel: c for c in controls if c.dtype == "float32"},
        papers=papers,
        choice=margins.Choice(equal, margin),
        least=(min_rows, min_runs),
        history=whole_digest,
        keep=keep,
        subtle=subtle,
    )
    by_run: Apart = {False: ByRun(), True: ByRun()}
    results = []
    for number, members in enumerate(groups.values()):
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
            cell_of(members, faults, approved.get(cell), legacy.get(cell), common, by_run)
        )
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
