"""Device classes: one number for all where one will do, a tighter one of their own where not.

A cell's values hold on every device class, unknown ones too: they are the wider of what its
controls need on each that was measured. A device class that needs much less gets an override.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np
import pandas as pd

from tolcal import bounds
from tolcal.calibrate import fit, stability, summarised
from tolcal.calibrate.evaluate import Alarms, held_out_of
from tolcal.calibrate.margins import Fitted
from tolcal.calibrate.rows import Control, judged_rows, texts
from tolcal.model import DeviceNeed, Evidence, HeldOut, Tolerance, Values

#: A device class gets values of its own where the cell's allow more than this times what it needs,
OWN = 2.0
#: and keeps approved ones down to this factor, so that no cell goes back and forth.
KEPT = 1.5

V = TypeVar("V", bound=Values)
#: See `with_plain`. Without inputs of other magnitudes the fitted atol is up to 21 times the bound.
CANCELS, SPREAD = 64.0, 8.0


class Element(msgspec.Struct, frozen=True):
    """The median element of a cell: where what two tolerances allow is compared."""

    dtype: str
    roundoff: float
    scale: float
    ref: float

    def allowed(self, values: Values) -> float:
        """Of |out - ref|, half an output gap included."""
        return bounds.allowed(values, self.dtype, self.roundoff, self.scale, self.ref)


def element_of(rows: pd.DataFrame, dtype: str) -> Element:
    """Medians over records of the median scale and of the median |ref|."""
    scale, ref = summarised.median(rows, "scale"), summarised.median(rows, "scale_abs")
    return Element(
        dtype,
        float(rows["roundoff"].iloc[0]),
        0.0 if np.isnan(scale) else float(scale),
        0.0 if np.isnan(ref) else float(ref),
    )


def with_plain(tolerance: Tolerance, element: Element) -> Tolerance:
    """The same; where its pair for plain tests covers every row by allowing anything, another pair.

    Sums that cancel have no bound by |ref| alone, and among inputs of many magnitudes no atol that
    is one for the usual ones. Where the fitted atol is CANCELS times what the bound allows at the
    median element, the pair is the bound at an element of SPREAD times that one's scale: rows of
    larger scales may fail it, which the bound itself lets pass.
    """
    u = element.roundoff

    def fixed(values: V) -> V:
        slope = values.scaled_tol * u * element.scale
        if values.allclose.atol <= CANCELS * (values.atol + slope):
            return values
        pair = fit.allclose(values.atol + SPREAD * slope, values.scaled_tol, u, element.dtype)
        return msgspec.structs.replace(values, allclose=pair)

    on = {device: fixed(values) for device, values in tolerance.on.items()}
    return msgspec.structs.replace(fixed(tolerance), on=on)


def complete(members: Sequence[Control], devices: Mapping[str, list[str]]) -> frozenset[str]:
    """Device classes on which every control of a cell has been fitted.

    On any other, what the fitted ones need says too little to be all that is allowed there.
    """
    known = [frozenset(devices[m.kernel]) for m in members]
    return frozenset.intersection(*known) if known else frozenset()


def combined(
    fitted: Fitted,
    whole: frozenset[str],
    element: Element,
    approved: Tolerance | None = None,
    kept: bool = False,
) -> Tolerance:
    """The wider of the fits of each device class, with an override for those that need far less.

    Args:
        fitted: by device class.
        whole: the `complete` ones, which may have an override.
        element: where they are compared.
        approved: what is in force: its overrides for device classes that were not fitted stay.
        kept: it rests on devices that were not fitted (`absent`), so the cell's own values do not
            tighten.
    """
    fits, base = fitted.fits, fitted.tolerance
    if kept and approved is not None:
        base = fit.wider(base, approved)
    before = approved.on if approved is not None else {}
    own: dict[str, Values] = {d: values for d, values in before.items() if d not in fits}
    for device, values in fits.items():
        factor = KEPT if device in before else OWN
        needed = element.allowed(values)
        if device in whole and element.allowed(base) > factor * needed:
            own[device] = plain(values)
    return msgspec.structs.replace(base, on=dict(sorted(own.items())))


def absent(approved: Tolerance | None, names: Sequence[str]) -> list[str]:
    """Devices that an approved cell rests on by its evidence, and the rows of a fit do not.

    ``names``: of the devices that the fit rests on.
    """
    evidence = None if approved is None else approved.evidence
    return sorted(set(evidence.devices) - set(names)) if evidence is not None else []


def raised(tolerance: Tolerance, fits: Mapping[str, Tolerance]) -> Tolerance:
    """The same, nowhere below these fits by device class: overrides are as they were."""
    base = fit.wider(tolerance, functools.reduce(fit.wider, fits.values()))
    on = {
        device: plain(fit.wider(values, fits[device])) if device in fits else values
        for device, values in tolerance.on.items()
    }
    numbers = plain(base)
    if (numbers, on) == (plain(tolerance), {d: plain(v) for d, v in tolerance.on.items()}):
        return tolerance
    return msgspec.structs.replace(base, on=on)


def plain(values: Values) -> Values:
    """The five numbers alone."""
    return Values(values.atol, values.scaled_tol, values.allclose, values.bias_tol)


def needs(
    fits: Mapping[str, Tolerance],
    proposed: Tolerance,
    approved: Tolerance | None,
    element: Element,
    used: pd.DataFrame,
) -> tuple[DeviceNeed, ...]:
    """One line a device class that was fitted or has an override; none where one is all there is.

    ``used``: the rows that the fits rest on.
    """
    overrides = {*proposed.on, *(approved.on if approved else ())}
    names = sorted({*fits, *overrides})
    if len(names) < 2 and not overrides:
        return ()
    where, runs = texts(used["device_class"]), texts(used["run_id"])
    found = []
    for device in names:
        here = where == device
        holds = proposed.for_device(device)
        found.append(
            DeviceNeed(
                device_class=device,
                rows=summarised.number(used[here]),
                runs=len(set(runs[here].tolist())),
                allowed_needed=element.allowed(fits.get(device, holds)),
                allowed_proposed=element.allowed(holds),
                allowed_now=None if approved is None
                else element.allowed(approved.for_device(device)),
                own=device in proposed.on,
            )
        )  # fmt: skip
    return tuple(found)


def proven(
    tolerance: Tolerance,
    evidence: Evidence,
    used: pd.DataFrame,
    alarms: Alarms,
    faults: pd.DataFrame,
) -> Tolerance:
    """With its evidence, and with that of each override that was fitted: of its own rows alone."""
    where = texts(used["device_class"])
    on: dict[str, Values] = {}
    for device, values in tolerance.on.items():
        rows = used[where == device]
        if values.evidence is not None or not len(rows):  # an approved one, not fitted here
            on[device] = values
            continue
        runs = {str(run) for run in rows["run_id"].unique()}
        held = held_out_of({run: alarm for run, alarm in alarms.items() if run in runs})
        buggy = faults[(faults["device_class"] == device) & summarised.detectable(faults)]
        caught = bounds.exceeds(judged_rows(buggy), tolerance)
        on[device] = msgspec.structs.replace(
            values,
            evidence=msgspec.structs.replace(
                evidence,
                rows=summarised.number(rows),
                runs=len(runs),
                devices=tuple(sorted(str(name) for name in rows["device"].unique())),
                held_out=HeldOut(held.runs, held.runs_with_false_alarms),
                detectable_recall=rounded(float(caught.mean()) if len(buggy) else None),
            ),
        )
    return msgspec.structs.replace(tolerance, evidence=tolerance.evidence or evidence, on=on)


def rounded(share: float | None) -> float | None:
    """Down to four digits: a share is never printed better than it is."""
    return None if share is None else int(share * 10_000) / 10_000


def allowed(
    element: Element, approved: Tolerance | None, proposed: Sequence[Tolerance]
) -> tuple[list[float] | None, list[list[float]]]:
    """What is approved allows, and what each of ``proposed`` does, on the same device classes.

    First on those without an override, then on each that has one in any of them.
    """
    known = proposed if approved is None else (approved, *proposed)
    names = sorted({device for tolerance in known for device in tolerance.on})

    def of(tolerance: Tolerance) -> list[float]:
        return [element.allowed(v) for v in (tolerance, *map(tolerance.for_device, names))]

    return None if approved is None else of(approved), [of(tolerance) for tolerance in proposed]


def settled(proposed: Tolerance, approved: Tolerance, element: Element) -> Tolerance:
    """Of a cell that tightens, what does not tighten stays as it is approved.

    So that it is not looser by what is too little to ask for.
    """

    def worth(now: Values, then: Values) -> bool:
        return element.allowed(now) / element.allowed(then) >= stability.WORTH

    base = proposed if worth(approved, proposed) else approved
    on: dict[str, Values] = {}
    for device in sorted({*proposed.on, *approved.on}):
        now, then = approved.for_device(device), proposed.for_device(device)
        if device in approved.on and not worth(now, then):
            on[device] = approved.on[device]
        elif device in proposed.on and (base is proposed or worth(now, then)):
            on[device] = proposed.on[device]
    return msgspec.structs.replace(base, approved=None, on=on)
