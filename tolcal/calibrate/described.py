"""A history in words and by run: what stands beside the numbers of a proposal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pandas as pd

from tolcal.calibrate import summarised
from tolcal.calibrate.evaluate import Alarms
from tolcal.history import clocks
from tolcal.model import SHARE_MAX, CellProposal, Environment, RunSummary, plural

_ENVIRONMENT = ("device", "device_class", "vendor", "driver", "runtime", "torch", "triton")


def runs(frame: pd.DataFrame) -> list[RunSummary]:
    """Every run of the history, the oldest first."""
    codes, names = pd.factorize(frame["run_id"])
    weight = summarised.weights(frame)
    rows = np.bincount(codes, weight, len(names)).astype(np.int64)
    controls = np.bincount(codes, weight * (frame["role"] == "control"), len(names))
    first = frame.iloc[np.unique(codes, return_index=True)[1]]
    summaries = []
    for place, one in enumerate(first.to_dict("records")):
        environment = Environment(
            **{name: str(one[name]) for name in _ENVIRONMENT},
            switches=msgspec.json.decode(str(one["switches"]), type=tuple[str, ...]),
        )
        summaries.append(
            RunSummary(
                id=str(one["run_id"]),
                started=str(one["started"]),
                device=str(one["device"]),
                device_uuid=str(one["device_uuid"]),
                environment=str(one["environment"]),
                origin=one["origin"],
                rows=int(rows[place]),
                control_rows=int(controls[place]),
                held_out_false_alarms=0,
                described=environment.text,
            )
        )
    when = clocks.instants(s.started for s in summaries)
    return sorted(summaries, key=lambda s: (when[s.started], s.started, s.id))


def with_alarms(seen: list[RunSummary], alarms: Alarms) -> tuple[RunSummary, ...]:
    """The same, with what each did when it was left out of the fits."""
    return tuple(
        msgspec.structs.replace(
            run,
            held_out_false_alarms=alarms[run.id].wrong,
            held_out_share=min(alarms[run.id].share, SHARE_MAX),
        )
        if run.id in alarms
        else run
        for run in seen
    )


def differing(frame: pd.DataFrame) -> tuple[str, ...]:
    """That a record stands twice, and not the same both times."""
    lost = frame.attrs.get("differing", 0)
    return (
        (
            f"{plural(lost, 'record')} left out for others of the same run, kernel and case that "
            "say something else: `tolcal history verify` names the history",
        )
        if lost
        else ()
    )


def raised(cells: Sequence[CellProposal]) -> tuple[str, ...]:
    """That pull requests' rows alone set the bounds of these; three of them by name."""
    if not cells:
        return ()
    named = ", ".join(f"{c.kernel or c.op}/{c.dtype} ({c.note})" for c in cells[:3])
    more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
    return (f"{plural(len(cells), 'bound')} set wider than trusted rows ask for: {named}{more}",)


def notes(
    good: pd.DataFrame, fitted: Mapping[tuple[str, str], list[str]], rule: str
) -> tuple[str, ...]:
    """What a reader must know of the records that ran: foreign ones, broken ones, devices."""
    told = []
    if known := summarised.note(good):
        told.append(known)
    lacking = summarised.number(good[good["residual_max"].isna()])
    if lacking and rule == "residual":
        whole = summarised.number(good)
        told.append(f"{lacking} of {whole} rows come from another tool, without what the fit needs")
    control = good["role"] == "control"
    broken = summarised.number(good[control & (good["nonfinite_mismatch"] > 0)])
    if broken:
        told.append(
            f"{broken} control rows have non-finite values where the reference has none, or the "
            "other way round: no tolerance covers them, and they are left out of the fit"
        )
    trusted = good[good["origin"] != "pull_request"]
    for device, rows in trusted.groupby("device", observed=True, sort=True):
        classes = set(rows["device_class"].astype(str))
        used = any(classes & set(devices) for devices in fitted.values())
        dates = sorted({str(s)[:10] for s in rows["started"].unique() if s})
        # A run may be of several GPUs, whose names it joins with commas.
        uuids = {one for u in rows["device_uuid"].unique() for one in str(u).split(",") if one}
        what = plural(int(rows["run_id"].nunique()), "run")
        when = f" of {' to '.join(sorted({dates[0], dates[-1]}))}" if dates else ""
        where = f" on {plural(len(uuids), 'GPU')}" if uuids else ""
        told.append(f"{device}: {what}{when}{where}{'' if used else ', too few to fit'}")
    return tuple(told)
