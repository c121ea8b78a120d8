"""How much each knob matters: both rules over a grid of their settings, on the same rows.

Ours: the margin, borrowing, sigma and the scaled part, in full product. The paper's: percentile by
factor. Along one line of each (every part on; p95) factors go further, for a curve of recall
against false alarms. Counting is that of ``calibrate``: explore rows of trusted runs, each run
judged by fits without it. Choosing a setting by its held-out figures makes them in sample for that
choice; the locked runs tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tolcal.bounds import Bools, exceeds
from tolcal.calibrate import fit, margins
from tolcal.calibrate.rows import By
from tolcal.calibrate.subjects import Faults, Judged, Subject, subjects_of
from tolcal.calibrate.variants import ALL, DEFAULT, VARIANTS, fits, held_out, tolerance
from tolcal.model import (
    BUDGET,
    MIN_ROWS,
    MIN_RUNS,
    HeldOutRows,
    Recall,
    Setting,
    SweepPoint,
    Tolerance,
)

MARGINS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
PERCENTILES = tuple(range(90, 100))
FACTORS = tuple(1.0 + k / 4 for k in range(9))
#: Margins and factors of the curves: half octaves.
CURVE = tuple(2.0 ** (k / 2) for k in range(-4, 15))


class Tally:
    """Counts of one setting in one cell, by run; they add up over cells."""

    def __init__(self, runs: int, locked: int) -> None:
        self.cells = 0
        self.held, self.sample, self.locked = (
            np.zeros((2, n), np.int64) for n in (runs, runs, locked)
        )
        self.recall, self.locked_recall = np.zeros(4, np.int64), np.zeros(4, np.int64)
        self.bits: list[float] = []

    def add(self, other: Tally) -> None:
        """That of another cell, too."""
        self.cells += other.cells
        for name in ("held", "sample", "locked", "recall", "locked_recall"):
            getattr(self, name).__iadd__(getattr(other, name))
        self.bits += other.bits

    def point(self, setting: Setting, op: str | None, dtype: str | None, apart: bool) -> SweepPoint:
        """As a value; ``apart``: whether there are locked runs."""
        return SweepPoint(
            setting=setting,
            op=op,
            dtype=dtype,
            cells=self.cells,
            held_out=_rows_of(self.held),
            in_sample=_rows_of(self.sample),
            recall=Recall(*map(int, self.recall)),
            bits=float(np.median(self.bits)) if self.bits else None,
            locked=_rows_of(self.locked) if apart else None,
            locked_recall=Recall(*map(int, self.locked_recall)) if apart else None,
        )


def sweep(
    frame: pd.DataFrame,
    *,
    by: By = "op",
    more: Sequence[float] = (),
    locked: pd.DataFrame | None = None,
    budget: float = BUDGET,
    subtle: Collection[str] = (),
    min_rows: int = MIN_ROWS,
    min_runs: int = MIN_RUNS,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> tuple[SweepPoint, ...]:
    """Every setting over all cells, by op, and by op and dtype.

    Args:
        frame: records, as ``calibrate`` takes them.
        by: as for ``calibrate``: what shares a tolerance.
        more: margins beside MARGINS.
        locked: records of runs that play no part in any fit.
        budget: as for ``calibrate``: what each control's own margin is chosen by.
        subtle: buggy kernels to leave out.
        min_rows, min_runs: trusted rows and runs that a control needs on one device class.

    A cell that is uncalibrated has no settings of our rule.
    """
    frame = frame[~frame["kernel"].isin(subtle)]
    if locked is not None:
        locked = locked[~locked["kernel"].isin(subtle)]
    subjects, runs, apart = subjects_of(frame, locked, by, (min_rows, min_runs))
    choice = margins.Choice(budget / max(1, sum(s.calibrated for s in subjects)))
    totals: dict[tuple[str | None, str | None], dict[Setting, Tally]] = {}
    for number, subject in enumerate(subjects):
        progress(number, len(subjects), f"{subject.op}/{subject.dtype}")
        scopes = ((None, None), (subject.op, None), (subject.op, subject.dtype))
        for setting, tally in itertools.chain(
            _ours(subject, runs, apart, (*MARGINS, *more), choice), _papers(subject, runs, apart)
        ):
            for scope in scopes:
                known = totals.setdefault(scope, {})
                if setting not in known:
                    known[setting] = Tally(runs, apart)
                known[setting].add(tally)
    progress(len(subjects), len(subjects), "")
    return tuple(
        tally.point(setting, *scope, locked is not None)
        for scope in sorted(totals, key=lambda s: (s[0] or "", s[1] or ""))
        for setting, tally in totals[scope].items()
    )


def _ours(
    subject: Subject, runs: int, apart: int, swept: Iterable[float], choice: margins.Choice
) -> Iterator[tuple[Setting, Tally]]:
    if not subject.ladders:
        return
    judged = subject.fitted
    parts = [part for ladder in subject.ladders for part in ladder.parts]
    for variant in VARIANTS:
        without = fits(parts, judged.names, variant)
        for margin in sorted({*swept, *(CURVE if variant == DEFAULT else ())}):
            fitted = {run: tolerance(some, margin) for run, some in without.items()}
            plain = variant.sigma is False
            yield variant.with_margin(margin), _tally(subject, runs, apart, fitted, plain)
    left = (ALL, *judged.names)
    each = zip(left, margins.cell(subject.ladders, left, choice), strict=True)
    fitted = {run: one.tolerance for run, one in each if one is not None}
    yield DEFAULT.with_margin(None), _tally(subject, runs, apart, fitted, plain=False)


def _tally(
    subject: Subject, runs: int, apart: int, fitted: dict[str | None, Tolerance], plain: bool
) -> Tally:
    """One of our settings: its tolerances by run left out; ``plain``: on |ref| alone."""
    judged, faults, locked = subject.fitted, subject.faults, subject.locked
    rows, final = judged.rows(plain), fitted[ALL]
    tally = Tally(runs, apart)
    tally.cells = 1
    if len(judged.names) >= 2:
        tally.held += _by_run(judged, *held_out(rows, judged.runs, fitted), runs)
    tally.sample += _by_run(judged, None, exceeds(rows, final), runs)
    tally.recall += _recall(faults, exceeds(faults.rows(plain), final))
    tally.locked += _by_run(locked, None, exceeds(locked.rows(plain), final), apart)
    theirs = subject.locked_faults
    tally.locked_recall += _recall(theirs, exceeds(theirs.rows(plain), final))
    typical = subject.ref if plain else subject.scale
    tally.bits = subject.bits(final.atol + final.scaled_tol * subject.roundoff * typical)
    return tally


def _papers(subject: Subject, runs: int, apart: int) -> Iterator[tuple[Setting, Tally]]:
    judged = subject.judged
    for percentile in PERCENTILES:
        without, final, own = subject.paper(percentile)
        if final is None:
            return
        limits = np.array([without.get(str(run), np.nan) for run in judged.names])
        by_row = limits[judged.places] if len(judged.names) >= 2 else np.full(len(judged), np.nan)
        theirs = subject.paper_faults
        by_control = np.array([own.get(str(c), np.inf) for c in theirs.corrupts])
        for factor in sorted({*FACTORS, *(CURVE if percentile == fit.PAPER_PERCENTILE else ())}):
            tally = Tally(runs, apart)
            tally.cells = 1
            flagged = judged.max_abs > by_row * factor
            tally.held += _by_run(judged, ~np.isnan(by_row), flagged, runs)
            limit = final * factor
            tally.sample += _by_run(judged, None, judged.max_abs > limit, runs)
            tally.recall += _recall(theirs, theirs.max_abs > by_control * factor)
            tally.locked += _by_run(subject.locked, None, subject.locked.max_abs > limit, apart)
            tally.locked_recall += _recall(
                subject.locked_faults, subject.locked_faults.max_abs > limit
            )
            tally.bits = subject.bits(limit)
            yield Setting("paper", percentile=percentile, factor=factor), tally


def _by_run(judged: Judged, counted: Bools | None, flagged: Bools, runs: int) -> Any:
    codes = judged.codes
    rows = codes if counted is None else codes[counted]
    return np.stack(
        [np.bincount(rows, minlength=runs), np.bincount(codes[flagged], minlength=runs)]
    )


def _recall(faults: Faults, flagged: Bools) -> Any:
    there = faults.detectable
    return np.array([len(flagged), flagged.sum(), there.sum(), (flagged & there).sum()])


def _rows_of(counts: Any) -> HeldOutRows:
    rows, wrong = counts
    return HeldOutRows(
        int(rows.sum()), int(wrong.sum()), int((rows > 0).sum()), int((wrong > 0).sum())
    )
