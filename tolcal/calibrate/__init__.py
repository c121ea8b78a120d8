"""History into a Proposal: tolerances with the evidence for each.

Controls alone are fitted, each by itself and by device class; a cell takes the wider of its
controls. Rows of pull requests can raise an envelope, never count as evidence. False alarms are
counted leaving one run out, on explore cases only (gate cases repeat from run to run).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd

from tolcal import bounds, history
from tolcal.calibrate import fit
from tolcal.history.columns import TUPLES
from tolcal.model import (
    DTYPES,
    BuggyRecall,
    Cell,
    CellProposal,
    CellState,
    Evidence,
    HeldOut,
    HeldOutRows,
    Proposal,
    Recall,
    RunSummary,
    TolcalError,
    Tolerance,
    Tolerances,
    digest,
)

#: Rows a control needs: below that one history in a hundred holds no ill-conditioned case.
MIN_ROWS = 720
#: A tightening below this factor, or seen in fewer runs, is not worth a maintainer's time.
WORTH = 1.25
WORTH_RUNS = 3

Rule = Literal["residual", "paper"]
By = Literal["op", "kernel"]


class _Control:
    """Rows of one control in one dtype: trusted ones are evidence, the others only raise."""

    def __init__(self, op: str, kernel: str, dtype: str, rows: pd.DataFrame) -> None:
        self.op, self.kernel, self.dtype = op, kernel, dtype
        self.rows = rows
        self.trusted = rows["origin"].to_numpy() != "pull_request"
        self.runs = rows["run_id"].astype(str).to_numpy()
        self.explore = rows["case_set"].to_numpy() == "explore"
        self.device = rows["device_class"].astype(str).to_numpy()
        self.arrays = _fit_rows(rows)
        self.judged = judged_rows(rows)

    def calibrated_devices(self, min_rows: int) -> list[str]:
        names, counts = np.unique(self.device[self.trusted], return_counts=True)
        return [str(n) for n, k in zip(names, counts, strict=True) if k >= min_rows]

    def best_count(self) -> int:
        """Rows of the device class that has most."""
        counts = np.unique(self.device[self.trusted], return_counts=True)[1]
        return int(counts.max()) if counts.size else 0

    def subset(self, mask: bounds.Bools) -> fit.Rows:
        a = self.arrays
        return fit.Rows(
            envelope=a.envelope[mask],
            z=a.z[mask],
            envelope_abs=a.envelope_abs[mask],
            z_abs=a.z_abs[mask],
            scales=a.scales[mask],
            scales_abs=a.scales_abs[mask],
            rms=a.rms[mask],
            bias=a.bias[mask],
            bias_count=a.bias_count[mask],
            roundoff=a.roundoff,
        )


def calibrate(
    frame: pd.DataFrame,
    *,
    rule: Rule = "residual",
    by: By = "op",
    margin: float = fit.MARGIN,
    min_rows: int = MIN_ROWS,
    approved: Tolerances | None = None,
    legacy: Mapping[Cell, float] | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Proposal:
    """Fits every cell of a history.

    Args:
        frame: records, as ``history.read`` gives them.
        rule: ``residual`` (the default rule) or ``paper`` (p95 x 1.5, for comparison only).
        by: one cell per op and dtype, or one per control and dtype.
        margin: both parts of the residual rule's bound are multiplied by it.
        min_rows: trusted rows that a control needs on one device class.
        approved: the tolerances in force.
        legacy: hand-picked atol by cell, the "before" where nothing is approved.

    Raises:
        TolcalError: if the history holds no record of a control that ran.
    """
    approved, legacy = approved or {}, legacy or {}
    good = frame[(frame["status"] == "ok") & (frame["roundoff"] > 0)]
    controls = _controls(good[good["role"] == "control"])
    if not controls:
        raise TolcalError(
            "the history holds no record of a control that ran; measure some first "
            "(`tolcal run --repeat N`) or check --history"
        )
    buggy = good[good["role"] == "buggy"]
    papers = {(c.kernel, c.dtype): _paper(c) for c in controls}
    whole_digest = history.content_digest(frame)
    groups: dict[tuple[str, str], list[_Control]] = {}
    for control in controls:
        name = control.op if by == "op" else control.kernel
        groups.setdefault((name, control.dtype), []).append(control)
    wide = {c.kernel: c for c in controls if c.dtype == "float32"}
    results = []
    for number, (_, members) in enumerate(sorted(groups.items())):
        cell = (members[0].op, members[0].dtype)
        progress(number, len(groups), "/".join(cell))
        names = {m.kernel for m in members}
        faults = buggy[(buggy["dtype"] == cell[1]) & buggy["corrupts"].isin(names)]
        results.append(
            _cell(
                members, wide, faults, papers, rule, by, margin, min_rows, whole_digest,
                approved.get(cell), legacy.get(cell),
            )
        )  # fmt: skip
    progress(len(groups), len(groups), "")
    cells = tuple(r[0] for r in results)
    recalls = tuple(b for r in results for b in r[1])
    alarms: dict[str, tuple[int, int]] = {}
    for result in results:
        for run, (rows, wrong) in result[2].items():
            had = alarms.get(run, (0, 0))
            alarms[run] = (had[0] + rows, had[1] + wrong)
    whole = _total(b.proposed for b in recalls)
    values = [
        (c.op, c.dtype, c.kernel, c.proposed_tol, c.tolerance and c.tolerance.value_digest)
        for c in cells
    ]
    return Proposal(
        rule=rule,
        by=by,
        margin=margin,
        history=whole_digest,
        digest=digest("proposal", rule, values, whole_digest, sorted(
            (op, dtype, t.value_digest) for (op, dtype), t in approved.items()
        )),
        recall=whole.recall,
        detectable_recall=whole.detectable_recall,
        held_out=_held_out(alarms),
        cells=cells,
        buggy=recalls,
        runs=_run_summaries(frame, alarms),
        notes=_notes(good, controls, rule),
    )  # fmt: skip


def judged_rows(rows: pd.DataFrame) -> bounds.Rows:
    """The columns that judging needs; a row without envelopes (imported) never exceeds."""
    return bounds.Rows(
        envelope=rows[list(TUPLES["envelope"])].to_numpy(np.float64),
        z=rows["scaled_max"].to_numpy(np.float64),
        bias=rows["bias"].fillna(0.0).to_numpy(np.float64),
        bias_count=rows["bias_count"].fillna(0).to_numpy(np.int64),
        mismatch=rows["nonfinite_mismatch"].fillna(0).to_numpy(np.int64),
    )


def _fit_rows(rows: pd.DataFrame) -> fit.Rows:
    def column(name: str) -> Any:
        return rows[name].to_numpy(np.float64)

    def table(name: str) -> Any:
        return rows[list(TUPLES[name])].to_numpy(np.float64)

    return fit.Rows(
        envelope=table("envelope"),
        z=column("scaled_max"),
        envelope_abs=table("envelope_abs"),
        z_abs=column("scaled_max_abs"),
        scales=table("scale_quantiles"),
        scales_abs=table("scale_abs_quantiles"),
        rms=column("ref_rms"),
        bias=column("bias"),
        bias_count=column("bias_count"),
        roundoff=float(rows["roundoff"].iloc[0]),
    )


def _controls(rows: pd.DataFrame) -> list[_Control]:
    grouped = rows.groupby(["op", "kernel", "dtype"], observed=True, sort=True)
    return [
        _Control(str(op), str(kernel), str(dtype), group) for (op, kernel, dtype), group in grouped
    ]


def _paper(control: _Control) -> float | None:
    """The published rule, on trusted rows that passed the limit in force when measured."""
    passed = control.rows["num_exceeding"].fillna(0).to_numpy(np.int64) == 0
    values = control.rows["max_abs"].to_numpy(np.float64)[passed & control.trusted]
    return fit.paper(values) if values.size else None


def _fit_cell(
    members: list[_Control],
    wide: Mapping[str, _Control],
    devices: Mapping[str, list[str]],
    margin: float,
    without: str | None = None,
) -> Tolerance | None:
    """The wider of the members' fits on each of their devices, leaving the run ``without`` out."""
    result: Tolerance | None = None
    for control in members:
        for device in devices[control.kernel]:
            mask = (control.device == device) & (control.runs != without)
            if not mask.any():
                continue
            borrowed = None
            lender = wide.get(control.kernel)
            if DTYPES[control.dtype].bits <= 16 and lender is not None:
                lent = (lender.device == device) & (lender.runs != without)
                borrowed = lender.subset(lent) if lent.any() else None
            one = fit.residual(control.subset(mask), borrowed, control.dtype, margin)
            result = one if result is None else fit.wider(result, one)
    return result


def _cell(
    members: list[_Control],
    wide: Mapping[str, _Control],
    faults: pd.DataFrame,
    papers: Mapping[tuple[str, str], float | None],
    rule: Rule,
    by: By,
    margin: float,
    min_rows: int,
    history_digest: str,
    approved: Tolerance | None,
    legacy: float | None,
) -> tuple[CellProposal, list[BuggyRecall], dict[str, tuple[int, int]]]:
    op, dtype = members[0].op, members[0].dtype
    members_all = members
    imported = [m for m in members if np.isnan(m.arrays.z).all()]
    if rule == "residual":
        members = [m for m in members if m not in imported]
    devices = {m.kernel: m.calibrated_devices(min_rows) for m in members}
    lacking = max((min_rows - m.best_count() for m in members if not devices[m.kernel]), default=0)
    paper_values = [p for m in members_all if (p := papers[m.kernel, dtype]) is not None]
    paper_tol = max(paper_values) if paper_values else None
    tolerance: Tolerance | None = None
    note = ""
    if rule == "residual":
        if imported and not members:
            note = "imported rows have no envelopes; only `--rule paper` can use them"
        elif lacking > 0:
            note = f"needs {lacking} more rows of a control (has {min_rows - lacking})"
        else:
            tolerance = _fit_cell(members, wide, devices, margin)
    alarms = _alarms(members_all, wide, devices, rule, margin, tolerance is not None)
    recalls = _recalls(faults, dtype, op, tolerance, approved, papers, legacy, rule)
    total = _total(b.proposed for b in recalls)
    trusted = [m.rows[m.trusted] for m in members_all]
    used = pd.concat(trusted)
    runs = int(used["run_id"].nunique())
    names = sorted(str(name) for name in used["device"].unique())
    held = _held_out(alarms)
    if tolerance is not None:
        tolerance = Tolerance(
            atol=tolerance.atol,
            scaled_tol=tolerance.scaled_tol,
            allclose=tolerance.allclose,
            bias_tol=tolerance.bias_tol,
            evidence=Evidence(
                rule=rule,
                margin=margin,
                rows=len(used),
                runs=runs,
                devices=tuple(names),
                held_out=HeldOut(held.runs, held.runs_with_false_alarms),
                history=history_digest,
                detectable_recall=_rounded(total.detectable_recall),
            ),
        )
    scale, ref = _median_element(used)
    roundoff = float(used["roundoff"].iloc[0])
    half = bounds.half_gap(dtype, ref)

    def allowed_by(tol: Tolerance | None) -> float | None:
        return None if tol is None else bounds.allowed(tol, dtype, roundoff, scale, ref)

    now = allowed_by(approved)
    if now is None and legacy is not None:
        now = legacy + half
    paper_allowed = None if paper_tol is None else paper_tol + half
    proposed = paper_allowed if rule == "paper" else allowed_by(tolerance)
    tightening = now / proposed if now is not None and proposed else None
    cell = CellProposal(
        op=op,
        dtype=dtype,
        kernel=None if by == "op" else members_all[0].kernel,
        state=_state(tolerance, approved, tightening, runs, rule),
        rows=len(used),
        runs=runs,
        devices=tuple(names),
        needs_rows=max(0, lacking),
        tolerance=tolerance,
        proposed_tol=paper_tol if rule == "paper" else None,
        allowed_now=now,
        allowed_source="approved" if approved else "none" if legacy is None else "legacy",
        allowed_proposed=proposed,
        allowed_paper=paper_allowed,
        tightening=tightening,
        recall=total.recall,
        detectable_recall=total.detectable_recall,
        held_out=held,
        note=note,
    )
    return cell, recalls, alarms


def _state(
    tolerance: Tolerance | None,
    approved: Tolerance | None,
    tightening: float | None,
    runs: int,
    rule: Rule,
) -> CellState:
    if rule == "paper":
        return "new" if approved is None else "unchanged"
    if tolerance is None:
        return "uncalibrated"
    if approved is None:
        return "new"
    assert tightening is not None
    if tightening >= WORTH and runs >= WORTH_RUNS:
        return "tighten"
    return "looser" if tightening <= 1 / WORTH else "unchanged"


def _median_element(rows: pd.DataFrame) -> tuple[float, float]:
    """Median over records of the median scale and of the median |ref|."""
    scale, ref = rows["scale_q50"].median(), rows["scale_abs_q50"].median()
    return (0.0 if np.isnan(scale) else float(scale)), (0.0 if np.isnan(ref) else float(ref))


def _alarms(
    members: list[_Control],
    wide: Mapping[str, _Control],
    devices: Mapping[str, list[str]],
    rule: Rule,
    margin: float,
    calibrated: bool,
) -> dict[str, tuple[int, int]]:
    """Per run: trusted explore rows of the controls, and how many a fit without it flags."""
    if rule == "residual" and not calibrated:
        return {}
    result: dict[str, tuple[int, int]] = {}
    masks = {}
    for control in members:
        mask = control.trusted & control.explore
        if rule == "residual":
            mask = mask & np.isin(control.device, devices[control.kernel])
        masks[control.kernel] = mask
    runs = sorted({str(run) for c in members for run in np.unique(c.runs[masks[c.kernel]])})
    if len(runs) < 2:
        return {}
    for run in runs:
        rows = wrong = 0
        tolerance = _fit_cell(members, wide, devices, margin, run) if rule == "residual" else None
        atol = _paper_without(members, run) if rule == "paper" else None
        for control in members:
            mask = masks[control.kernel] & (control.runs == run)
            if not mask.any():
                continue
            if tolerance is not None:
                flagged = bounds.exceeds(select(control.judged, mask), tolerance)
            elif atol is not None:
                flagged = control.rows["max_abs"].to_numpy(np.float64)[mask] > atol
            else:
                continue
            rows += int(mask.sum())
            wrong += int(flagged.sum())
        if rows:
            result[run] = (rows, wrong)
    return result


def select(rows: bounds.Rows, mask: bounds.Bools) -> bounds.Rows:
    """The rows where ``mask`` holds."""
    return bounds.Rows(
        rows.envelope[mask], rows.z[mask], rows.bias[mask], rows.bias_count[mask],
        rows.mismatch[mask],
    )  # fmt: skip


def _paper_without(members: list[_Control], run: str) -> float | None:
    values = []
    for control in members:
        passed = control.rows["num_exceeding"].fillna(0).to_numpy(np.int64) == 0
        mask = passed & control.trusted & (control.runs != run)
        if mask.any():
            values.append(fit.paper(control.rows["max_abs"].to_numpy(np.float64)[mask]))
    return max(values) if values else None


def _recalls(
    faults: pd.DataFrame,
    dtype: str,
    op: str,
    tolerance: Tolerance | None,
    approved: Tolerance | None,
    papers: Mapping[tuple[str, str], float | None],
    legacy: float | None,
    rule: Rule,
) -> list[BuggyRecall]:
    result = []
    for kernel, rows in faults.groupby("kernel", observed=True, sort=True):
        control = str(rows["corrupts"].iloc[0])
        same = rows["same_as_control"]
        detectable = (same == False).to_numpy(dtype=bool)  # noqa: E712  (null is neither)
        judged = judged_rows(rows)
        max_abs = rows["max_abs"].to_numpy(np.float64)
        paper = papers.get((control, dtype))

        def count(flagged: bounds.Bools | None, detectable: Any = detectable) -> Recall | None:
            if flagged is None:
                return None
            return Recall(
                rows=len(flagged),
                flagged=int(flagged.sum()),
                detectable=int(detectable.sum()),
                detectable_flagged=int((flagged & detectable).sum()),
            )

        by_paper = count(None if paper is None else max_abs > paper)
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
                proposed=by_paper
                if rule == "paper"
                else count(None if tolerance is None else bounds.exceeds(judged, tolerance)),
                approved=count(None if approved is None else bounds.exceeds(judged, approved)),
                paper=by_paper,
                legacy=count(by_hand if legacy is not None or imported.any() else None),
            )
        )
    return result


def _total(recalls: Iterable[Recall | None]) -> Recall:
    known = [r for r in recalls if r is not None]
    return Recall(
        sum(r.rows for r in known),
        sum(r.flagged for r in known),
        sum(r.detectable for r in known),
        sum(r.detectable_flagged for r in known),
    )


def _held_out(alarms: Mapping[str, tuple[int, int]]) -> HeldOutRows:
    return HeldOutRows(
        rows=sum(rows for rows, _ in alarms.values()),
        false_alarms=sum(wrong for _, wrong in alarms.values()),
        runs=len(alarms),
        runs_with_false_alarms=sum(wrong > 0 for _, wrong in alarms.values()),
    )


def _rounded(share: float | None) -> float | None:
    """Down to four digits: a share is never printed better than it is."""
    return None if share is None else int(share * 10_000) / 10_000


def _run_summaries(
    frame: pd.DataFrame, alarms: Mapping[str, tuple[int, int]]
) -> tuple[RunSummary, ...]:
    summaries = []
    for run, rows in frame.groupby("run_id", observed=True, sort=False):
        first = rows.iloc[0]
        summaries.append(
            RunSummary(
                id=str(run),
                started=str(first["started"]),
                device=str(first["device"]),
                device_uuid=str(first["device_uuid"]),
                environment=str(first["environment"]),
                origin=first["origin"],
                rows=len(rows),
                control_rows=int((rows["role"] == "control").sum()),
                held_out_false_alarms=alarms.get(str(run), (0, 0))[1],
            )
        )
    return tuple(sorted(summaries, key=lambda s: (s.started, s.id)))


def _notes(good: pd.DataFrame, controls: list[_Control], rule: Rule) -> tuple[str, ...]:
    notes = []
    lacking = int(good["residual_max"].isna().sum())
    if lacking and rule == "residual":
        notes.append(
            f"{lacking} of {len(good)} rows are imported and lack envelopes: they are left out of "
            "the residual rule"
        )
    days = {str(s)[:10] for s in good["started"].unique() if s}
    uuids = {str(u) for u in good["device_uuid"].unique() if str(u)}
    runs = int(good["run_id"].nunique())
    dates = f"dated {min(days)} to {max(days)}" if days else "of unknown date"
    notes.append(
        f"{runs} runs {dates} ({len(days)} distinct days, {len(uuids)} distinct GPUs), "
        f"{len({c.kernel for c in controls})} controls"
    )
    return tuple(notes)
