"""What the sensitivity sweep judges, cell by cell: the rows that ``calibrate`` judges."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pandas as pd

from tolcal import bounds
from tolcal.bounds import Bools
from tolcal.calibrate import fit, lifecycle, margins, summarised
from tolcal.calibrate.rows import (
    By,
    Control,
    controls_of,
    grouped,
    judged_rows,
    judged_some,
    texts,
    trusted_rows,
)
from tolcal.history.columns import TUPLES


class Judged:
    """Records to be judged, by both scales; ``codes`` are places in the history's list of runs."""

    def __init__(self, rows: pd.DataFrame, runs: dict[str, int]) -> None:
        self.runs = texts(rows["run_id"])
        self.names, self.places = np.unique(self.runs.astype(str), return_inverse=True)
        self.codes = np.array([runs[str(name)] for name in self.names], np.int64)[self.places]
        self.max_abs = rows["max_abs"].to_numpy(np.float64)
        self._scaled = judged_rows(rows)
        self._plain = msgspec.structs.replace(
            self._scaled,
            envelope=rows[list(TUPLES["envelope_abs"])].to_numpy(np.float64),
            z=rows["scaled_max_abs"].to_numpy(np.float64),
        )

    def __len__(self) -> int:
        return len(self.max_abs)

    def rows(self, plain: bool) -> bounds.Rows:
        """With scale |ref| (``plain``), or |ref| + sigma."""
        return self._plain if plain else self._scaled


class Faults(Judged):
    """Records of buggy kernels."""

    def __init__(self, rows: pd.DataFrame, runs: dict[str, int]) -> None:
        super().__init__(rows, runs)
        self.detectable = summarised.detectable(rows)
        self.corrupts = texts(rows["corrupts"])


class Subject(msgspec.Struct, frozen=True):
    """One cell: its controls and buggy kernels as each rule takes them, and its locked rows."""

    op: str
    dtype: str
    members: list[Control]
    ladders: list[margins.Ladder]  # of our rule; empty if it can't be fitted
    calibrated: int  # controls that have enough rows, whatever the others lack
    fitted: Judged  # controls on devices that our fit rests on
    judged: Judged  # controls on all devices
    faults: Faults
    paper_faults: Faults
    locked: Judged
    locked_faults: Faults
    roundoff: float
    scale: float  # of the median element: |ref| + sigma, and |ref|
    ref: float

    def bits(self, allowed: float) -> list[float]:
        """log2 of that residual in u*scale of the median element; none where it is 0."""
        unit = self.roundoff * self.scale
        return [math.log2(allowed / unit)] if allowed > 0 and unit > 0 else []

    def paper(self, percentile: int) -> tuple[dict[str, float], float | None, dict[str, float]]:
        """The published percentile: by run left out, on all, and by control."""
        without: dict[str, float] = {}
        own: dict[str, float] = {}
        for control in self.members:
            mask = control.passed & control.trusted
            values, runs = control.max_abs[mask], control.runs[mask]
            if not values.size:
                continue
            order = np.argsort(values, kind="stable")
            values, runs = values[order], runs[order]
            own[control.kernel] = fit.nearest_rank(values, percentile)
            for run in self.judged.names:
                left = values[runs != run]
                if left.size:
                    limit = fit.nearest_rank(left, percentile)
                    without[str(run)] = max(limit, without.get(str(run), 0.0))
        return without, max(own.values(), default=None), own


def subjects_of(
    frame: pd.DataFrame,
    apart: pd.DataFrame | None,
    by: By,
    least: tuple[int, int],
) -> tuple[list[Subject], int, int]:
    """The cells of a history, its number of runs, and that of the locked runs.

    ``least``: trusted rows and runs that a control needs on one device class.
    """
    good = _good(frame)
    controls = controls_of(lifecycle.current(good[good["role"] == "control"], *least)[0])
    buggy = good[(good["role"] == "buggy") & (good["origin"] != "pull_request")]
    runs = _places(good)
    kept = good[:0] if apart is None else _good(apart)
    kept = kept[kept["case_set"] == "explore"]
    theirs = _places(kept)
    wide = {c.kernel: c for c in controls if c.dtype == "float32"}
    found = []
    for (_, dtype), members in grouped(controls, by).items():
        members = [m for m in members if m.trusted.any()]
        if not members:
            continue
        names = {m.kernel for m in members}
        here = kept[(kept["op"] == members[0].op) & (kept["dtype"] == dtype)]
        ours = names if by == "kernel" else set(here["kernel"]) | names
        found.append(
            _subject(
                members, wide, buggy[(buggy["dtype"] == dtype) & buggy["corrupts"].isin(names)],
                here[(here["role"] == "control") & here["kernel"].isin(ours)],
                here[(here["role"] == "buggy") & here["corrupts"].isin(ours)],
                runs, theirs, least,
            )
        )  # fmt: skip
    return found, len(runs), len(theirs)


def _subject(
    members: list[Control],
    wide: dict[str, Control],
    faults: pd.DataFrame,
    locked: pd.DataFrame,
    locked_faults: pd.DataFrame,
    runs: dict[str, int],
    apart: dict[str, int],
    least: tuple[int, int],
) -> Subject:
    devices = {m.kernel: m.enough(*least) for m in members}
    usable = [m for m in members if not m.imported]
    calibrated = bool(usable) and all(devices[m.kernel] for m in usable)
    fitted = {d for names in devices.values() for d in names}
    everywhere = {str(d) for m in members for d in set(m.device)}
    used = trusted_rows(members, devices if calibrated else None)
    masks = [m.trusted & m.explore for m in members]
    on = [mask & np.isin(m.device, devices[m.kernel]) for m, mask in zip(members, masks,
                                                                         strict=True)]  # fmt: skip
    return Subject(
        op=members[0].op,
        dtype=members[0].dtype,
        members=members,
        ladders=[margins.Ladder(m, wide, devices[m.kernel]) for m in usable] if calibrated else [],
        calibrated=sum(bool(names) for names in devices.values()),
        fitted=Judged(_rows(members, on), runs),
        judged=Judged(_rows(members, masks), runs),
        faults=Faults(faults[faults["device_class"].isin(fitted or everywhere)], runs),
        paper_faults=Faults(faults[faults["device_class"].isin(everywhere)], runs),
        locked=Judged(locked, apart),
        locked_faults=Faults(locked_faults, apart),
        roundoff=float(used["roundoff"].iloc[0]),
        scale=_known(summarised.median(used, "scale")),
        ref=_known(summarised.median(used, "scale_abs")),
    )


def _rows(members: Sequence[Control], masks: Sequence[Bools]) -> pd.DataFrame:
    return pd.concat([m.rows[mask] for m, mask in zip(members, masks, strict=True)])


def _good(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[judged_some(frame) & (frame["roundoff"] > 0)]


def _places(frame: pd.DataFrame) -> dict[str, int]:
    return {str(run): n for n, run in enumerate(sorted(map(str, frame["run_id"].unique())))}


def _known(middle: float) -> float:
    return 0.0 if np.isnan(middle) else middle
