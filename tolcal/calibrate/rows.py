"""Columns of a history as the arrays that fitting and judging take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import pandas as pd

from tolcal import bounds
from tolcal.calibrate import fit, summarised
from tolcal.history import lines
from tolcal.history.columns import TUPLES
from tolcal.history.frames import LINE
from tolcal.model import plural

By = Literal["op", "kernel"]


class Lack(msgspec.Struct, frozen=True):
    """Rows and runs that a control still needs on one device class, and those that it has."""

    needs_rows: int
    needs_runs: int  # at the rows a run so far
    rows: int
    runs: int

    @property
    def text(self) -> str:
        """As the note of a cell."""
        more = plural(self.needs_runs, "more run")
        rows = f" ({plural(self.needs_rows, 'row')} of a control)" if self.needs_rows else ""
        return f"needs {more}{rows}; has {plural(self.rows, 'row')} of {plural(self.runs, 'run')}"


class Control:
    """Rows of one control in one dtype: trusted ones are evidence, the others only raise.

    A row is a record, or a line of a summary that stands for several.
    """

    def __init__(self, op: str, kernel: str, dtype: str, rows: pd.DataFrame) -> None:
        self.op, self.kernel, self.dtype = op, kernel, dtype
        self.rows = rows
        self.weight = summarised.weights(rows)
        self.has_lines = bool(summarised.kinds(rows).any())
        self.trusted = rows["origin"].to_numpy() != "pull_request"
        self.runs = texts(rows["run_id"])
        #: the same as numbers, which all controls of a history share
        self.codes = rows["run_id"].cat.codes.to_numpy(np.int64)
        self._numbers = dict(zip(self.runs.tolist(), self.codes.tolist(), strict=True))
        self.explore = rows["case_set"].to_numpy() == "explore"
        self.device = texts(rows["device_class"])
        self.max_abs = rows["max_abs"].to_numpy(np.float64)
        #: within the limit that was in force when it was measured
        self.passed = rows["num_exceeding"].fillna(0).to_numpy(np.int64) == 0
        self.arrays = _fit_rows(rows, self.trusted)
        self.judged = judged_rows(rows, self.device)
        #: Rows that can be fitted: imported ones have no envelope, and no tolerance covers a
        #: non-finite value where the reference is finite.
        self.fits = np.isfinite(self.arrays.envelope).all(1)
        self.fits &= np.isfinite(self.arrays.envelope_abs).all(1)
        #: records of another tool have no envelopes
        self.imported = bool(np.isnan(self.arrays.z).all())
        # After a change of compute_dtype the envelopes of older rows are in another unit.
        self.fits &= rows["roundoff"].to_numpy(np.float64) == self.arrays.roundoff

    def code_of(self, run: str) -> int:
        """The number of that run in ``codes``; -1 if this control has no row of it."""
        return int(self._numbers.get(run, -1))

    def enough(self, min_rows: int, min_runs: int) -> list[str]:
        """Device classes with at least so many trusted rows to fit, of so many runs."""
        return [
            device
            for device, (rows, runs) in self._counts().items()
            if rows >= min_rows and runs >= min_runs
        ]

    def lacks(self, min_rows: int, min_runs: int) -> Lack:
        """What the device class that lacks least is short of."""
        lacks = []
        for rows, runs in self._counts().values():
            short = max(0, min_rows - rows)
            lacks.append(
                Lack(short, max(min_runs - runs, math.ceil(short * runs / rows)), rows, runs)
            )
        none = Lack(min_rows, min_runs, 0, 0)
        return min(lacks, key=lambda lack: (lack.needs_runs, lack.needs_rows), default=none)

    def _counts(self) -> dict[str, tuple[int, int]]:
        """Trusted rows to fit, and their runs, by device class."""
        mask = self.trusted & self.fits
        devices, codes, weight = self.device[mask], self.codes[mask], self.weight[mask]
        return {
            str(name): (int(weight[here].sum()), len(np.unique(codes[here])))
            for name in np.unique(devices)
            for here in (devices == name,)
        }

    def published(self, mask: bounds.Bools) -> tuple[Any, Any, Any]:
        """max_abs where ``mask`` holds, the weights (None: 1 each) and the number of each's run."""
        values, weights, places = summarised.published(self.rows[mask])
        return values, weights, self.codes[mask][places]

    def names(self, mask: bounds.Bools) -> list[str]:
        """The runs that have rows where ``mask`` holds, in the order of their numbers."""
        first = np.unique(self.codes[mask], return_index=True)[1]
        return [str(run) for run in self.runs[mask][first]]

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
            shares=None if a.shares is None else a.shares[mask],
            shares_abs=None if a.shares_abs is None else a.shares_abs[mask],
        )


def texts(column: pd.Series[Any]) -> Any:
    """A column of strings as an array; one of categories is looked up, which is much faster."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return column.astype(str).to_numpy(object)
    used, places = np.unique(column.cat.codes.to_numpy(), return_inverse=True)
    return column.cat.categories.take(used).astype(str).to_numpy(object)[places]


def judged_some(frame: pd.DataFrame) -> pd.Series[bool]:
    """Which rows of a history ran, and had an element inside the domain to judge."""
    return (frame["status"] == "ok") & (frame["count"] != 0)


def judged_rows(rows: pd.DataFrame, device: Any = None) -> bounds.Rows:
    """The columns that judging needs; a row without envelopes (imported) never exceeds.

    ``device``: the rows' device classes, if they have been looked up already.
    """
    bias = rows["bias"].fillna(0.0).to_numpy(np.float64)
    line = summarised.kinds(rows) == LINE
    if line.any():  # of a record that is judged by it, which the line's envelope may not be of
        bias = np.where(line, rows["bias_told"].fillna(0.0).to_numpy(np.float64), bias)
    return bounds.Rows(
        device=texts(rows["device_class"]) if device is None else device,
        envelope=rows[list(TUPLES["envelope"])].to_numpy(np.float64),
        z=rows["scaled_max"].to_numpy(np.float64),
        bias=bias,
        bias_count=rows["bias_count"].fillna(0).to_numpy(np.int64),
        mismatch=rows["nonfinite_mismatch"].fillna(0).to_numpy(np.int64),
    )


def _fit_rows(rows: pd.DataFrame, trusted: bounds.Bools) -> fit.Rows:
    """``trusted``: the rows that say what the unit is, if there are any."""

    def column(name: str) -> Any:
        return rows[name].to_numpy(np.float64)

    def table(name: str) -> Any:
        return rows[list(TUPLES[name])].to_numpy(np.float64)

    scales, shares = _scales(rows, "scale_quantiles", lines.TYPICALS, "typical_count")
    scales_abs, shares_abs = _scales(
        rows, "scale_abs_quantiles", lines.TYPICALS_ABS, "typical_abs_count"
    )
    units, codes = np.unique(column("roundoff"), return_inverse=True)
    telling = summarised.weights(rows) * (trusted if trusted.any() else 1)
    return fit.Rows(
        envelope=table("envelope"),
        z=column("scaled_max"),
        envelope_abs=table("envelope_abs"),
        z_abs=column("scaled_max_abs"),
        scales=scales,
        scales_abs=scales_abs,
        rms=np.where(summarised.kinds(rows) == LINE, 0.0, column("ref_rms")),
        bias=column("bias"),
        bias_count=column("bias_count"),
        roundoff=float(units[np.bincount(codes, telling).argmax()]),
        shares=shares,
        shares_abs=shares_abs,
    )


def _scales(rows: pd.DataFrame, own: str, points: tuple[str, ...], counted: str) -> tuple[Any, Any]:
    """Typical scales of each row, and the share of each (None: 1): of a line it's its points."""
    scales = rows[list(TUPLES[own])].to_numpy(np.float64)
    line = summarised.kinds(rows) == LINE
    if not line.any():
        return scales, None
    values = np.nan_to_num(rows[list(points)].to_numpy(np.float64))
    shares = np.zeros_like(values)
    shares[line] = rows[counted].to_numpy(np.float64)[line, None] / len(points)
    width = scales.shape[1]
    values[~line, :width], shares[~line, :width] = scales[~line], 1.0
    return values, shares


def controls_of(rows: pd.DataFrame) -> list[Control]:
    """The controls among these rows, by op, name and dtype."""
    if not isinstance(rows["run_id"].dtype, pd.CategoricalDtype):
        rows = rows.assign(run_id=rows["run_id"].astype("category"))
    grouped = rows.groupby(["op", "kernel", "dtype"], observed=True, sort=True)
    return [
        Control(str(op), str(kernel), str(dtype), group) for (op, kernel, dtype), group in grouped
    ]


def grouped(controls: Iterable[Control], by: By) -> dict[tuple[str, str], list[Control]]:
    """The controls of each cell, by the name of its op or control and by dtype, in their order."""
    groups: dict[tuple[str, str], list[Control]] = {}
    for control in controls:
        name = control.op if by == "op" else control.kernel
        groups.setdefault((name, control.dtype), []).append(control)
    return dict(sorted(groups.items()))


def trusted_rows(
    members: Iterable[Control], devices: Mapping[str, Sequence[str]] | None
) -> pd.DataFrame:
    """Of all these controls; ``devices``: on these device classes by kernel (None: on all)."""
    found: pd.DataFrame = pd.concat(
        [
            m.rows[m.trusted & (True if devices is None else np.isin(m.device, devices[m.kernel]))]
            for m in members
        ]
    )
    return found
