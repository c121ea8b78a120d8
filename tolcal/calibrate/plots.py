"""What plots need of a history, small whatever its size: spreads, shares, shapes and the curve.

A share is how much of the cell's tolerance a record uses (``bounds.share``): it fails beyond 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import pandas as pd

from tolcal import bounds
from tolcal.calibrate import summarised
from tolcal.calibrate.evaluate import Alarms
from tolcal.calibrate.rows import Control, judged_rows, texts
from tolcal.history.frames import RECORD
from tolcal.model import (
    SHARE_EDGES,
    SHARE_MAX,
    CellPlots,
    Curve,
    CurvePoint,
    KernelPlot,
    RunSpread,
    ShapeShare,
    Tolerance,
)

#: Of its newest runs and of the shapes that use most of the tolerance, a kernel keeps so many;
#: fewer if all kernels together would keep more than MAX_KEPT.
MAX_RUNS = 60
MAX_SHAPES = 40
MAX_KEPT = 20_000
#: Factors of the recall curve: half octaves.
FACTORS = tuple(2.0 ** (k / 2) for k in range(-16, 33))


class Judged(msgspec.Struct, frozen=True):
    """A cell's detectable buggy rows as shares, for the curve over all cells."""

    ours: bounds.Floats
    paper: bounds.Floats


class Plan(msgspec.Struct, frozen=True):
    """What every kernel keeps: spreads of these runs ("" for one it does not), so many shapes."""

    runs: tuple[str, ...]
    shapes: int


def plan(runs: Sequence[str], kernels: int) -> Plan:
    """For that many kernels and dtypes; ``runs`` are all of the history, the oldest first."""
    each = max(1, MAX_KEPT // max(1, kernels))
    old = max(0, len(runs) - min(MAX_RUNS, each))
    return Plan(("",) * old + tuple(runs[old:]), min(MAX_SHAPES, each))


def cell_plots(
    members: Sequence[Control],
    faults: pd.DataFrame,
    proposed: Tolerance | None,
    approved: Tolerance | None,
    legacy: float | None,
    paper: float | None,
    scale: float,
    keep: Plan,
    subtle: Collection[str] = (),
) -> CellPlots:
    """The plots of one cell.

    Args:
        members: its controls; ``faults``: the rows of its buggy kernels.
        scale: the median element's, at which tolerances become residuals.
        subtle: names of buggy kernels whose fault is small or rare.
    """
    by: Literal["proposed", "approved", "none"] = "approved" if approved else "none"
    if proposed is not None:
        by = "proposed"
    tolerance = proposed or approved
    kernels = [_kernel(m.kernel, "control", m.rows, tolerance, keep) for m in members]
    for name, rows in faults.groupby("kernel", observed=True, sort=True):
        kernels.append(_kernel(str(name), "buggy", rows, tolerance, keep, name in subtle))
    roundoff = members[0].arrays.roundoff

    def residual(values: Tolerance | None) -> float | None:
        return None if values is None else values.atol + values.scaled_tol * roundoff * scale

    return CellPlots(
        kernels=tuple(kernels),
        legacy=legacy,
        paper=paper,
        approved=residual(approved),
        proposed=residual(proposed),
        judged_by=by,
    )


def _kernel(
    name: str,
    role: Literal["control", "buggy"],
    rows: pd.DataFrame,
    tolerance: Tolerance | None,
    keep: Plan,
    subtle: bool = False,
) -> KernelPlot:
    # A line says nothing of how its records are spread: charts are of those that are there.
    rows = rows[summarised.kinds(rows) == RECORD]
    used = ((), ()) if tolerance is None or rows.empty else _used(rows, tolerance, keep.shapes)
    return KernelPlot(
        kernel=name,
        role=role,
        spreads=tuple(_spreads(rows, keep.runs)),
        shares=used[0],
        shapes=used[1],
        subtle=subtle,
    )


def _spreads(rows: pd.DataFrame, runs: Sequence[str]) -> Iterable[RunSpread]:
    residuals = rows["residual_max"].to_numpy(np.float64)
    known = np.isfinite(residuals)  # imported rows have none
    names, codes = np.unique(texts(rows["run_id"])[known], return_inverse=True)
    residuals = residuals[known]
    where = {str(name): n for n, name in enumerate(names)}
    for number, run in enumerate(runs):
        values = residuals[codes == where[run]] if run in where else residuals[:0]
        if values.size:
            low, q1, middle, q3, high = (
                _short(float(q)) for q in np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
            )
            yield RunSpread(number, int(values.size), (low, q1, middle, q3, high))


def _used(
    rows: pd.DataFrame, tolerance: Tolerance, most: int
) -> tuple[tuple[int, ...], tuple[ShapeShare, ...]]:
    share = np.minimum(bounds.share(judged_rows(rows), tolerance), SHARE_MAX)
    bins = np.searchsorted(np.array(SHARE_EDGES), share, side="left")  # 1 itself passes
    counts = np.bincount(bins, minlength=len(SHARE_EDGES) + 1)
    dims, cases = texts(rows["dims"]), texts(rows["case_id"])
    worst: dict[str, int] = {}
    sizes = Counter(dims.tolist())
    for i in np.lexsort((_ranks(cases), _ranks(dims), -share)):
        worst.setdefault(str(dims[i]), int(i))
        if len(worst) == len(sizes):
            break
    return tuple(int(n) for n in counts), tuple(
        ShapeShare(shape, sizes[shape], _short(float(share[i])), str(cases[i]))
        for shape, i in list(worst.items())[:most]
    )


def _ranks(values: Any) -> Any:
    """The place of each string in their order."""
    return np.unique(values, return_inverse=True)[1]


def buggy_shares(
    faults: pd.DataFrame, proposed: Tolerance | None, paper: float | None
) -> Judged | None:
    """The detectable rows among ``faults`` under both rules; None where they can't be compared.

    A published atol of 0 stays 0 whatever it is multiplied by.
    """
    rows = faults[summarised.detectable(faults)]
    if proposed is None or not paper:
        return None
    return Judged(
        ours=bounds.share(judged_rows(rows), proposed),
        paper=rows["max_abs"].to_numpy(np.float64) / paper,
    )


def curve(buggy: Sequence[Judged], alarms: Alarms) -> Curve | None:
    """Recall of detectable rows against red held-out runs, as every tolerance grows.

    The controls of a run are judged by tolerances fitted without it. A buggy kernel plays no part
    in a fit, so its rows are judged by the tolerance itself. None without held-out runs or
    detectable rows.
    """
    ours = np.concatenate([b.ours for b in buggy]) if buggy else np.empty(0)
    paper = np.concatenate([b.paper for b in buggy]) if buggy else np.empty(0)
    runs = [a for a in alarms.values() if a.compared]
    if not ours.size or not runs:
        return None
    return Curve(
        runs=len(runs),
        detectable=int(ours.size),
        points=tuple(
            CurvePoint(
                factor=factor,
                red=sum(a.compared_share > factor for a in runs),
                flagged=int((ours > factor).sum()),
                paper_red=sum(a.paper_share > factor for a in runs),
                paper_flagged=int((paper > factor).sum()),
            )
            for factor in FACTORS
        ),
    )


def _short(value: float) -> float:
    """Three digits will do for a picture."""
    return float(f"{value:.2e}")
