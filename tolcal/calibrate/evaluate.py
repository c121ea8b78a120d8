"""How good a tolerance is: false alarms on runs it was not fitted to, and recall."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from tolcal import bounds
from tolcal.calibrate import fit, summarised
from tolcal.calibrate.intervals import ByRun
from tolcal.calibrate.rows import Control, controls_of, judged_rows, judged_some, texts
from tolcal.history.frames import LINE
from tolcal.model import (
    BuggyRecall,
    Cell,
    HeldOutRows,
    Locked,
    Proposal,
    Recall,
    Tolerance,
    Totals,
)


class Alarm(msgspec.Struct, frozen=True):
    """Control rows of one run: how many were judged, how many flagged, and the largest shares."""

    rows: int = 0
    wrong: int = 0
    share: float = 0.0
    #: both rules in the cells where the published atol is not 0, which no factor would change
    compared: bool = False
    compared_share: float = 0.0
    paper_share: float = 0.0
    #: as many as may be flagged: a flagged line of a summary with all the rows it stands for
    most: int = 0

    def with_(self, other: Alarm) -> Alarm:
        """Both together."""
        return Alarm(
            self.rows + other.rows,
            self.wrong + other.wrong,
            max(self.share, other.share),
            self.compared or other.compared,
            max(self.compared_share, other.compared_share),
            max(self.paper_share, other.paper_share),
            self.most + other.most,
        )


#: By run id.
Alarms = dict[str, Alarm]
#: Rows of the buggy kernels that are not subtle, and of those that are.
Apart = Mapping[bool, ByRun]


def merged(many: Iterable[Alarms]) -> Alarms:
    """Alarms of several cells as those of their runs."""
    result: Alarms = {}
    for alarms in many:
        for run, alarm in alarms.items():
            result[run] = result.get(run, Alarm()).with_(alarm)
    return result


def paper_of(control: Control, devices: list[str]) -> float | None:
    """The published rule, on trusted rows that passed the limit in force when measured.

    Of those ``devices``, or of all if the list is empty.
    """
    used = control.passed & control.trusted
    if devices:
        used &= np.isin(control.device, devices)
    values, weights, _ = control.published(used)
    return fit.paper(values, weights) if values.size else None


def leave_one_out(
    members: list[Control],
    devices: Mapping[str, list[str]],
    without: Callable[[list[str]], list[Tolerance | None]] | None,
) -> Alarms:
    """Per run: trusted explore rows of the controls, and how many a fit without it flags.

    Args:
        members: the controls of one cell.
        devices: what the residual rule fits each of them on.
        without: the residual rule's tolerances with each of some runs left out; its runs are
            judged by the published rule too, for comparison. None: by the published rule alone.
    """
    masks = {}
    for control in members:
        mask = control.trusted & control.explore
        if without is not None:
            mask = mask & np.isin(control.device, devices[control.kernel])
        masks[control.kernel] = mask
    runs = sorted({run for c in members for run in c.names(masks[c.kernel])})
    if len(runs) < 2:
        return {}
    atols = _papers_without(members, runs)
    tolerances: dict[str, Tolerance | None] = dict.fromkeys(runs)
    if without is not None:
        tolerances = dict(zip(runs, without(runs), strict=True))
    result: Alarms = {}
    for control in members:
        judged = _judged_without(control, masks[control.kernel], tolerances, atols)
        for run, (theirs, flagged, used, weight) in judged.items():
            atol = atols[run]
            by_paper = float(theirs.max() / atol) if atol else 0.0
            wrong = int(flagged.sum())
            most = wrong if without is None else int((weight * flagged).sum())
            if without is None:
                if atol is None:
                    continue
                share = by_paper
            elif tolerances[run] is None:
                continue
            else:
                share = float(used.max())
            counted = Alarm(int(weight.sum()), wrong, share, most=most)
            if atol:
                counted = msgspec.structs.replace(
                    counted, compared=True, compared_share=share, paper_share=by_paper
                )
            result[run] = result.get(run, Alarm()).with_(counted)
    return {run: result[run] for run in runs if run in result}


def in_sample(
    members: list[Control],
    devices: Mapping[str, list[str]],
    tolerance: Tolerance | None,
    atol: float | None,
) -> tuple[Alarms, Alarms]:
    """Rows that a tolerance, and the published atol, were fitted to, judged by them."""
    ours: Alarms = {}
    paper: Alarms = {}
    for control in members:
        mask = control.trusted & control.explore & np.isin(control.device, devices[control.kernel])
        runs, weight = control.runs[mask], control.weight[mask]
        if tolerance is not None:
            flagged = bounds.exceeds(control.judged.of(mask), tolerance)
            _count(ours, runs, weight, flagged, weight * flagged)
        if atol is not None:
            over = summarised.above(control.rows[mask], atol)
            _count(paper, runs, weight, over, over)
    return ours, paper


def _judged_without(
    control: Control,
    mask: bounds.Bools,
    tolerances: Mapping[str, Tolerance | None],
    atols: Mapping[str, float | None],
) -> dict[str, tuple[bounds.Floats, Any, bounds.Floats, Any]]:
    """By run, judged without it: max_abs of its rows, how many of each fail, and their shares.

    And the records that each stands for: a line that fails is at least one of them, at most all.

    Few runs change a fit, so rows are judged together for all runs of the same tolerance.
    """
    max_abs, weight = control.max_abs[mask], control.weight[mask]
    rows = control.judged.of(mask)
    flagged, used = np.zeros(len(weight), np.int64), np.zeros(len(weight))
    present = control.names(mask)
    codes = np.unique(control.codes[mask], return_inverse=True)[1]
    if not any(tolerances.values()):  # the published rule alone, which knows how many of a line
        limits = [np.inf if (atol := atols[run]) is None else atol for run in present]
        flagged = summarised.above(control.rows[mask], np.array(limits)[codes])
    groups: dict[str, list[int]] = {}
    for place, run in enumerate(present):
        if (t := tolerances[run]) is not None:
            groups.setdefault(t.whole_digest, []).append(place)
    for places in groups.values():
        here = np.isin(codes, places)
        tolerance = tolerances[present[places[0]]]
        assert tolerance is not None
        some = rows.of(here)
        flagged[here] = bounds.exceeds(some, tolerance)
        used[here] = bounds.share(some, tolerance)
    order = np.argsort(codes, kind="stable")
    each = np.split(order, np.searchsorted(codes[order], np.arange(1, len(present))))
    return {
        run: (max_abs[here], flagged[here], used[here], weight[here])
        for run, here in zip(present, each, strict=False)
    }


def _papers_without(members: list[Control], runs: list[str]) -> dict[str, float | None]:
    """The published rule by run left out: the wider of the members', None where none has rows."""
    found: dict[str, float | None] = dict.fromkeys(runs)
    for control in members:
        values, weights, codes = control.published(control.passed & control.trusted)
        left = fit.papers_without(values, weights, codes, [control.code_of(run) for run in runs])
        for run, one in zip(runs, left, strict=True):
            if one is not None:
                found[run] = max(one, found[run] or 0.0)
    return found


def recalls_of(
    faults: pd.DataFrame,
    dtype: str,
    op: str,
    tolerance: Tolerance | None,
    approved: Tolerance | None,
    papers: Mapping[tuple[str, str], float | None],
    legacy: float | None,
    rule: str,
    subtle: Collection[str],
    by_run: Apart,
) -> list[BuggyRecall]:
    """Recall of each buggy kernel; what the proposal flags is added to ``by_run``."""
    result = []
    for kernel, rows in faults.groupby("kernel", observed=True, sort=True):
        control = str(rows["corrupts"].iloc[0])
        detectable = summarised.detectable(rows)
        judged = judged_rows(rows)
        max_abs = rows["max_abs"].to_numpy(np.float64)
        paper = papers.get((control, dtype))

        def count(
            flagged: bounds.Bools | None, rows: Any = rows, detectable: Any = detectable
        ) -> Recall | None:
            if flagged is None:
                return None
            return summarised.recall_of(rows, flagged, detectable)

        paper_flags = None if paper is None else max_abs > paper
        by_paper = count(paper_flags)
        flags = paper_flags
        if rule != "paper":
            flags = None if tolerance is None else bounds.exceeds(judged, tolerance)
        proposed = count(flags)
        if flags is not None and proposed is not None:
            there = summarised.kinds(rows) != LINE
            weight, unjudged = summarised.standing(rows, flags, detectable, proposed)
            by_run[kernel in subtle].add(
                texts(rows["run_id"])[there], flags[there], detectable[there], weight[there],
                unjudged,
            )  # fmt: skip
        # An imported row carries its own hand-picked verdict.
        over = rows["num_exceeding"].fillna(-1).to_numpy(np.int64)
        imported = (rows["origin"] == "import").to_numpy(dtype=bool)
        by_hand = np.where(imported, over > 0, max_abs > (np.inf if legacy is None else legacy))
        result.append(
            BuggyRecall(
                kernel=str(kernel),
                control=control,
                op=op,
                dtype=dtype,
                proposed=proposed,
                approved=count(None if approved is None else bounds.exceeds(judged, approved)),
                paper=by_paper,
                legacy=count(by_hand if legacy is not None or imported.any() else None),
                subtle=kernel in subtle,
            )
        )
    return result


def plain_of(recalls: Iterable[BuggyRecall]) -> Recall:
    """By what is proposed, of the buggy kernels that are not subtle."""
    return Recall.of(b.proposed for b in recalls if not b.subtle)


def subtle_of(recalls: Iterable[BuggyRecall], by_run: Apart) -> Totals | None:
    """By what is proposed, of the subtle ones; None without any that it judges."""
    judged = [b for b in recalls if b.subtle and b.proposed is not None]
    if not judged:
        return None
    whole = Recall.of(b.proposed for b in judged)
    return Totals(
        len({b.kernel for b in judged}),
        whole.recall,
        whole.detectable_recall,
        *by_run[True].intervals(),
    )


def held_out_of(alarms: Alarms) -> HeldOutRows:
    return HeldOutRows(
        rows=sum(a.rows for a in alarms.values()),
        false_alarms=sum(a.wrong for a in alarms.values()),
        runs=len(alarms),
        runs_with_false_alarms=sum(a.wrong > 0 for a in alarms.values()),
        unseen=sum(a.most - a.wrong for a in alarms.values()),
    )


def locked(
    frame: pd.DataFrame,
    proposal: Proposal,
    legacy: Mapping[Cell, float],
    subtle: Collection[str] = (),
    checked: Collection[str] = (),
) -> Locked:
    """Runs that played no part in the proposal, judged by its tolerances and by the paper's.

    ``frame`` holds those runs; explore rows count, as everywhere in held-out figures. ``subtle``
    names the buggy kernels whose recall is told apart, ``checked`` those that have none.
    """
    good = frame[judged_some(frame) & (frame["case_set"] == "explore")]
    tolerances = proposal.tolerances()
    papers = {(c.op, c.dtype): c.paper_atol for c in proposal.cells if c.paper_atol is not None}
    ours: Alarms = {}
    theirs: Alarms = {}
    for control in controls_of(good[good["role"] == "control"]):
        cell = (control.op, control.dtype)
        if cell in tolerances:
            flagged = bounds.exceeds(control.judged, tolerances[cell])
            _count(ours, control.runs, control.weight, flagged, control.weight * flagged)
        if cell in papers:
            over = summarised.above(control.rows, papers[cell])
            _count(theirs, control.runs, control.weight, over, over)
    recalls: list[BuggyRecall] = []
    by_run = {False: ByRun(), True: ByRun()}
    missed = []
    always = set()
    buggy = good[(good["role"] == "buggy") & ~good["kernel"].isin(checked)]
    for (op, dtype), rows in buggy.groupby(["op", "dtype"], observed=True, sort=True):
        cell = (str(op), str(dtype))
        tolerance = tolerances.get(cell)
        known = {(str(k), cell[1]): papers.get(cell) for k in rows["corrupts"].unique()}
        recalls += recalls_of(
            rows, cell[1], cell[0], tolerance, None, known, legacy.get(cell), "residual", subtle,
            by_run,
        )  # fmt: skip
        if tolerance is None:
            continue
        for kernel, group in rows.groupby("kernel", observed=True):
            if not summarised.differing(group):
                continue  # nothing that a tolerance could catch
            caught = summarised.caught(group, judged_rows(group), tolerance)
            runs = texts(group["run_id"])
            quiet = len(np.unique(runs)) - len(np.unique(runs[caught]))
            if kernel in subtle:
                if not quiet:
                    always.add(str(kernel))
            elif quiet:
                missed.append(f"{kernel} {dtype}: not caught in {quiet} of the runs")
    return Locked(
        held_out=held_out_of(ours),
        paper=held_out_of(theirs),
        buggy=tuple(recalls),
        missed=tuple(missed),
        detectable_interval=by_run[False].intervals()[1],
        subtle=subtle_of(recalls, by_run),
        subtle_caught=len(always),
    )


def _count(alarms: Alarms, runs: Any, weight: Any, flagged: Any, most: Any) -> None:
    names, codes = np.unique(runs, return_inverse=True)
    rows = np.bincount(codes, weight, len(names))
    wrong, upto = (np.bincount(codes, one, len(names)) for one in (flagged, most))
    for place, run in enumerate(names):
        counted = Alarm(int(rows[place]), int(wrong[place]), most=int(upto[place]))
        alarms[str(run)] = alarms.get(str(run), Alarm()).with_(counted)
