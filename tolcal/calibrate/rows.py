"""Columns of a history as the arrays that fitting and judging take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tolcal import bounds
from tolcal.calibrate import fit
from tolcal.history.columns import TUPLES


class Control:
    """Rows of one control in one dtype: trusted ones are evidence, the others only raise."""

    def __init__(self, op: str, kernel: str, dtype: str, rows: pd.DataFrame) -> None:
        self.op, self.kernel, self.dtype = op, kernel, dtype
        self.rows = rows
        self.trusted = rows["origin"].to_numpy() != "pull_request"
        self.runs = texts(rows["run_id"])
        self.explore = rows["case_set"].to_numpy() == "explore"
        self.device = texts(rows["device_class"])
        self.max_abs = rows["max_abs"].to_numpy(np.float64)
        #: within the limit that was in force when it was measured
        self.passed = rows["num_exceeding"].fillna(0).to_numpy(np.int64) == 0
        self.arrays = _fit_rows(rows)
        self.judged = judged_rows(rows, self.device)
        #: Rows that can be fitted: imported ones have no envelope, and no tolerance covers a
        #: non-finite value where the reference is finite.
        self.fits = np.isfinite(self.arrays.envelope).all(1)
        self.fits &= np.isfinite(self.arrays.envelope_abs).all(1)
        # After a change of compute_dtype the envelopes of older rows are in another unit.
        self.fits &= rows["roundoff"].to_numpy(np.float64) == self.arrays.roundoff

    def calibrated_devices(self, min_rows: int) -> list[str]:
        """Device classes with at least that many trusted rows to fit."""
        names, counts = np.unique(self.device[self.trusted & self.fits], return_counts=True)
        return [str(n) for n, k in zip(names, counts, strict=True) if k >= min_rows]

    def best_count(self) -> int:
        """Rows of the device class that has most."""
        counts = np.unique(self.device[self.trusted & self.fits], return_counts=True)[1]
        return int(counts.max()) if counts.size else 0

    def subset(self, mask: bounds.Bools) -> fit.Rows:
        """The rows where ``mask`` holds, as fitting takes them."""
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


def texts(column: pd.Series[Any]) -> Any:
    """A column of strings as an array; one of categories is looked up, which is much faster."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return column.astype(str).to_numpy(object)
    used, places = np.unique(column.cat.codes.to_numpy(), return_inverse=True)
    return column.cat.categories.take(used).astype(str).to_numpy(object)[places]


def judged_rows(rows: pd.DataFrame, device: Any = None) -> bounds.Rows:
    """The columns that judging needs; a row without envelopes (imported) never exceeds.

    ``device``: the rows' device classes, if they have been looked up already.
    """
    return bounds.Rows(
        device=texts(rows["device_class"]) if device is None else device,
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
        roundoff=float(rows["roundoff"].mode().iloc[0]),
    )


def controls_of(rows: pd.DataFrame) -> list[Control]:
    grouped = rows.groupby(["op", "kernel", "dtype"], observed=True, sort=True)
    return [
        Control(str(op), str(kernel), str(dtype), group) for (op, kernel, dtype), group in grouped
    ]
