"""Which of a control's sources a fit rests on: after a change on purpose, the new one alone.

Records of an older source say what the control erred once. They stay as long as the new one has
too few records of its own, so that a cell is never left without a fit, and go once it has enough.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pandas as pd

from tolcal.calibrate import summarised
from tolcal.calibrate.rows import texts
from tolcal.history import clocks
from tolcal.model import plural


class Aged(msgspec.Struct, frozen=True):
    """Records of older sources of one control and dtype on one device class."""

    kernel: str
    dtype: str
    device_class: str
    rows: int  # of older sources
    fresh: int  # trusted ones of the newest source
    fresh_runs: int
    left: bool  # they are no part of the fit
    source: str  # kernel hash of the newest
    date: str  # of its newest run; "" if no clock of its runs is believed
    claimed: int = 0  # rows of pull requests that left with the older ones
    dirty: str = ""  # a newer source that only changed working trees have


def current(
    controls: pd.DataFrame, min_rows: int, min_runs: int
) -> tuple[pd.DataFrame, tuple[Aged, ...]]:
    """Controls' records without those of sources that newer ones replace, and what was old.

    A source is (kernel hash, reference hash). The newest is that of the newest trusted run that
    has the kernel in that dtype; local runs of uncommitted changes don't count where others do.
    Older ones leave, device class by device class, once the newest has ``min_rows`` trusted records
    of ``min_runs`` runs there. Hashes are of content, so another repository with the same source
    changes nothing. Records without hashes (imported ones) are of no known source; those of pull
    requests can only raise an envelope, and stay unless they are of a source that leaves.
    """
    origin = (controls["origin"] != "pull_request").to_numpy()
    trusted = controls[origin & (controls["kernel_hash"] != "").to_numpy()]
    names = ["kernel", "dtype", "kernel_hash", "reference_hash"]
    sources = trusted[names].drop_duplicates()
    if not sources.duplicated(["kernel", "dtype"]).any():
        return controls, ()  # as nearly always, and much faster
    keep = np.ones(len(controls), bool)
    found: list[Aged] = []
    frame = pd.DataFrame(
        {
            "source": texts(controls["kernel_hash"]) + " " + texts(controls["reference_hash"]),
            "device": texts(controls["device_class"]),
            "run": texts(controls["run_id"]),
            "when": _instants(controls),
            "known": origin & (texts(controls["kernel_hash"]) != ""),
            # a non-finite mismatch is no row to fit
            "fits": np.isfinite(controls["envelope_00"].to_numpy(np.float64))
            & np.isfinite(controls["envelope_abs_00"].to_numpy(np.float64)),
            "at": np.arange(len(controls)),
            "records": summarised.weights(controls),
            # a line of a summary doesn't say
            "dirty": ((controls["origin"] == "local") & controls["dirty"].fillna(False)).to_numpy(
                bool
            ),
            "trusted": origin,
            "kernel": texts(controls["kernel"]),
            "dtype": texts(controls["dtype"]),
        }
    )
    known, claims = frame[frame["known"]], frame[~frame["trusted"]]
    several = known.groupby(["kernel", "dtype"], sort=True)["source"].transform("nunique") > 1
    for (kernel, dtype), rows in known[several].groupby(["kernel", "dtype"], sort=True):
        latest = rows.sort_values(["when", "run"])
        clean = latest[~latest["dirty"]]
        last = (clean if len(clean) else latest).iloc[-1]
        newest, when = str(last["source"]), last["when"]
        source, date = newest.partition(" ")[0], f"{when:%Y-%m-%d}" if when.year > 1 else ""
        older = set(rows["source"]) - {newest}
        other = str(latest["source"].iloc[-1])
        passed = "" if other == newest else other.partition(" ")[0]
        for device, here in rows.groupby("device", sort=True):
            fresh = here[(here["source"] == newest) & here["fits"]]
            old = here[here["source"] != newest]
            if not len(old):
                continue
            runs = int(fresh["run"].nunique())
            aged, count = int(old["records"].sum()), int(fresh["records"].sum())
            leave = count >= min_rows and runs >= min_runs
            claimed = claims[
                (claims["kernel"] == kernel) & (claims["dtype"] == dtype)
                & (claims["device"] == device) & claims["source"].isin(older)
            ]  # fmt: skip
            if leave:
                keep[old["at"].to_numpy()] = False
                keep[claimed["at"].to_numpy()] = False
            found.append(Aged(str(kernel), str(dtype), str(device), aged, count, runs, leave,
                              source, date, len(claimed), passed))  # fmt: skip
    return (controls[keep] if not keep.all() else controls), tuple(found)


def notes(aged: tuple[Aged, ...], min_rows: int, min_runs: int) -> list[str]:
    """What left a fit, and what stays in one for now; one line for each of the two."""
    said = []
    left = [a for a in aged if a.left]
    claimed = sum(a.claimed for a in left)
    if left:
        said.append(
            f"{plural(sum(a.rows for a in left), 'row')} of older sources"
            f"{f' and {claimed} of pull requests' if claimed else ''} left the fit, which rests on "
            f"the newest alone: {_names(left)}"
        )
    stay = [a for a in aged if not a.left]
    if stay:
        least = min(stay, key=lambda a: (a.fresh, a.fresh_runs))
        said.append(
            f"{plural(sum(a.rows for a in stay), 'row')} of older sources stay in the fit until "
            f"the newest has {min_rows} rows of {plural(min_runs, 'run')} there (it has "
            f"{plural(least.fresh, 'row')} of {plural(least.fresh_runs, 'run')}): {_names(stay)}"
        )
    return said


def _instants(controls: pd.DataFrame) -> pd.Series[Any]:
    """When each row's run began."""
    starts = texts(controls["started"])
    when = clocks.instants(starts)
    return pd.Series([when[one] for one in starts], dtype=object)


def clock_notes(frame: pd.DataFrame) -> list[str]:
    """Runs whose clock says a time that can't be; one line, three of them by name."""
    odd = clocks.odd(frame)
    if not odd:
        return []
    named = ", ".join(f"{run} ({started})" for run, started in odd[:3])
    more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
    return [
        f"{plural(len(odd), 'run')} with a clock in the future, or of no time: taken for the "
        f"oldest: {named}{more}"
    ]


def _names(aged: list[Aged]) -> str:
    """``softmax_triton float16 on sm_90 (now 00c0 of 2026-12-01), ...``, three at most."""
    shown = [
        f"{a.kernel} {a.dtype} on {a.device_class} (newest: {a.source}"
        + (f" of {a.date}" if a.date else "")
        + (
            f"; {a.dirty} is of uncommitted changes alone: commit, measure again)"
            if a.dirty
            else ")"
        )
        for a in aged[:3]
    ]
    more = len(aged) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
