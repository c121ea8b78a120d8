"""What a history knows of kernels: sources that were found good, and who caught whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from tolcal import bounds
from tolcal.calibrate import summarised
from tolcal.calibrate.rows import judged_rows
from tolcal.history.frames import RECORD
from tolcal.model import CHECK_COUNTS, Baseline, Tolerances

#: Rows of a kernel and dtype that make its source a known one.
KNOWN_ROWS = 100
#: Checks that compare launches: a kernel that does not repeat itself fails them by chance.
COMPARING = frozenset({"unrepeatable", "batch", "broken"})


def baseline(frame: pd.DataFrame, approved: Tolerances) -> Baseline:
    """What the trusted rows of a history know of each kernel.

    A source is known once it was found good: in some environment at least KNOWN_ROWS of its rows
    ran in that dtype, none failed to run, and none exceeds the approved tolerance. A wrong kernel
    whose records got into a history thus stays a changed one.
    """
    trusted = frame[(frame["origin"] != "pull_request") & (frame["kernel_hash"] != "")]
    trusted = trusted[trusted["status"] != "skipped"]
    some = trusted[trusted["count"] != 0]  # of the others nothing was inside the domain
    sources: dict[tuple[str, str], set[tuple[str, str, str]]] = {}
    environments: dict[str, set[str]] = {}
    keys = ["kernel", "dtype", "op", "environment", "kernel_hash", "reference_hash", "op_hash"]
    for key, rows in some.groupby(keys, observed=True, sort=False):
        kernel, dtype, op, environment, *hashes = map(str, key)
        environments.setdefault(kernel, set()).add(environment)
        if summarised.number(rows) < KNOWN_ROWS or not (rows["status"] == "ok").all():
            continue
        tolerance = approved.get((op, dtype))
        control = rows["role"].iloc[0] == "control"
        if control and _failed_checks(rows).any():
            continue
        if control and tolerance and bounds.exceeds(judged_rows(rows), tolerance).any():
            continue
        sources.setdefault((kernel, dtype), set()).add((hashes[0], hashes[1], hashes[2]))
    return Baseline(
        {key: frozenset(value) for key, value in sources.items()},
        {key: frozenset(value) for key, value in environments.items()},
        _caught(trusted, approved),
    )


def _caught(
    trusted: pd.DataFrame, approved: Tolerances
) -> dict[tuple[str, str], frozenset[tuple[str, str]]]:
    """Gate cases that caught a buggy kernel: by the approved tolerances, or without one.

    They must catch it in every run, so what only chance shows does not count.
    """
    gate = trusted[
        (trusted["role"] == "buggy") & (trusted["case_set"] == "gate") & (trusted["status"] == "ok")
        & (summarised.kinds(trusted) == RECORD)  # a line is of no case
    ]  # fmt: skip
    varying = set(gate["kernel"][_numbers(gate, "check_unrepeatable") > 0].astype(str))
    found: dict[tuple[str, str], frozenset[tuple[str, str]]] = {}
    for key, rows in gate.groupby(["kernel", "dtype", "op"], observed=True, sort=False):
        kernel, dtype, op = map(str, key)
        tolerance = approved.get((op, dtype))
        sure = set(CHECK_COUNTS) - (COMPARING if kernel in varying else set())
        caught = _failed_checks(rows, sure) | (_numbers(rows, "outside_differing") > 0)
        if tolerance is not None:
            caught |= bounds.exceeds(judged_rows(rows), tolerance)
        if caught.any():
            flagged = rows[caught]
            cases = zip(flagged["device_class"].astype(str), flagged["case_id"].astype(str),
                        strict=True)  # fmt: skip
            found[kernel, dtype] = found.get((kernel, dtype), frozenset()) | frozenset(cases)
    return found


def _failed_checks(rows: pd.DataFrame, names: Iterable[str] = CHECK_COUNTS) -> bounds.Bools:
    """Which rows failed one of these checks without a tolerance; those not checked did not."""
    failed: bounds.Bools = np.zeros(len(rows), bool)
    for name in names:
        failed |= _numbers(rows, f"check_{name}") > 0
    return failed


def _numbers(rows: pd.DataFrame, name: str) -> Any:
    return rows[name].fillna(0).to_numpy(np.float64) if name in rows else np.zeros(len(rows))
