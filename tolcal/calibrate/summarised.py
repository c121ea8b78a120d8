"""Figures of rows of which some are lines of summaries (`history.frames`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tolcal import bounds
from tolcal.history import lines
from tolcal.history.frames import LINE, RECORD, SAMPLED
from tolcal.model import Recall, Tolerance, plural


def kinds(rows: pd.DataFrame) -> Any:
    """Of each row."""
    if "line_kind" not in rows:
        return np.full(len(rows), RECORD, np.int8)
    return rows["line_kind"].to_numpy()


def weights(rows: pd.DataFrame) -> Any:
    """Records that each row stands for; a sampled one stands in its line already."""
    if "stands_for" not in rows:
        return np.ones(len(rows), np.int64)
    return rows["stands_for"].to_numpy(np.int64)


def number(rows: pd.DataFrame) -> int:
    """Records that these rows stand for."""
    return int(weights(rows).sum())


def detectable(rows: pd.DataFrame) -> bounds.Bools:
    """Rows of buggy kernels whose output is known to differ from the control's: never a line."""
    same = rows["same_as_control"]
    found: bounds.Bools = (same == False).to_numpy(bool)  # noqa: E712  (null is neither)
    return found


def differing(rows: pd.DataFrame) -> int:
    """Records of a buggy kernel whose output differs from its control's."""
    kind = kinds(rows)
    unlike = detectable(rows)
    line = kind == LINE
    known = int(rows["detectable"].to_numpy(np.int64)[line].sum()) if line.any() else 0
    return known + int(unlike[kind == RECORD].sum())


def median(rows: pd.DataFrame, scale: str) -> float:
    """Of the records' median scales (``scale`` or ``scale_abs``); nan where there are none.

    The lower one of an even number: half of the shapes may have another scale than the rest, and
    no record has one between them.
    """
    own = rows[f"{scale}_q50"]
    kind = kinds(rows)
    line = kind == LINE
    if not line.any():
        known = np.sort(own.to_numpy(np.float64)[own.notna().to_numpy()])
        return float(known[(known.size - 1) // 2]) if known.size else float("nan")
    names = lines.MIDDLES if scale == "scale" else lines.MIDDLES_ABS
    points = rows[list(names)].to_numpy(np.float64)[line]
    share = np.repeat(weights(rows)[line] / len(names), len(names))
    values = np.concatenate([own.to_numpy(np.float64)[kind == RECORD], points.ravel()])
    weight = np.concatenate([np.ones((kind == RECORD).sum()), share])
    known = ~np.isnan(values)
    if not known.any():
        return float("nan")
    order = np.argsort(values[known], kind="stable")
    upto = np.cumsum(weight[known][order])
    at = int(np.searchsorted(upto, upto[-1] / 2))
    return float(values[known][order[at]])


def above(rows: pd.DataFrame, limit: Any) -> Any:
    """Records of each row with max_abs above the limit (one for all, or one a row).

    Of a line by its points, rounded down.
    """
    values, weight, places = published(rows)
    over = values > np.broadcast_to(limit, len(rows))[places]
    if weight is None:
        return over.astype(np.int64)
    # Equal shares of whole numbers may miss one by their rounding.
    found = np.bincount(places, over * weight, len(rows)) + 1e-6
    return found.astype(np.int64)


def published(rows: pd.DataFrame) -> tuple[Any, Any, Any]:
    """``max_abs`` with weights and the places of its rows: of lines all their points."""
    values = rows["max_abs"].to_numpy(np.float64)
    places = np.arange(len(rows))
    kind = kinds(rows)
    if not (kind == LINE).any():
        return values, None, places
    at = np.flatnonzero(kind == LINE)
    count = weights(rows)[at]
    top = rows[list(lines.TOPS)].to_numpy(np.float64)[at]
    rest = rows[list(lines.RESTS)].to_numpy(np.float64)[at]
    exact = np.arange(lines.TOP) < count[:, None]
    left = np.maximum(count - lines.TOP, 0)[:, None] / lines.REST
    record = kind == RECORD
    every = np.concatenate([
        np.ones(record.sum()), exact.astype(np.float64).ravel(),
        np.broadcast_to(left, rest.shape).ravel(),
    ])  # fmt: skip
    found = np.concatenate([values[record], top.ravel(), rest.ravel()])
    whose = np.concatenate([places[record], np.repeat(at, lines.TOP), np.repeat(at, lines.REST)])
    used = every > 0
    return found[used], every[used], whose[used]


def caught(rows: pd.DataFrame, judged: bounds.Rows, tolerance: Tolerance) -> bounds.Bools:
    """Which rows the tolerance flags, of a line only what it surely has.

    A line's maxima may be of several records, so between two knots its envelope may lie above
    each of theirs; at the next knot it is one record's.
    """
    found = bounds.exceeds(judged, tolerance)
    line = kinds(rows) == LINE
    if line.any():
        at = int(np.searchsorted(bounds.GRID, tolerance.scaled_tol))
        beyond = at == bounds.GRID.size
        over = np.zeros(len(rows), bool) if beyond else judged.envelope[:, at] > tolerance.atol
        only = bounds.Rows(
            np.zeros_like(judged.envelope), np.zeros_like(judged.z), judged.bias,
            judged.bias_count, judged.mismatch,
        )  # fmt: skip
        found = np.where(line, over | bounds.exceeds(only, tolerance), found)
    return found


def recall_of(rows: pd.DataFrame, flagged: bounds.Bools, detectable: bounds.Bools) -> Recall | None:
    """Recall of a buggy kernel's rows: records are counted, the lines' judged by the sample.

    ``flagged`` of lines is of no account. None where lines have no sample. Rounded down.
    """
    kind = kinds(rows)
    record, sampled = kind == RECORD, kind == SAMPLED
    counts = _counts(flagged[record], detectable[record])
    line = kind == LINE
    if line.any():
        part = _counts(flagged[sampled], detectable[sampled])
        if not part.rows:
            return None
        whole = number(rows[line])
        differing = int(rows["detectable"].to_numpy(np.int64)[line].sum())
        caught = differing * part.detectable_flagged // max(part.detectable, 1)
        others = part.rows - part.detectable
        more = (whole - differing) * (part.flagged - part.detectable_flagged) // max(others, 1)
        counts = Recall(
            counts.rows + whole,
            counts.flagged + caught + more,
            counts.detectable + differing,
            counts.detectable_flagged + caught,
            judged=None if part.detectable == differing else counts.detectable + part.detectable,
        )
    return counts


def standing(
    rows: pd.DataFrame, flagged: bounds.Bools, detectable: bounds.Bools, found: Recall
) -> tuple[bounds.Floats, tuple[int, int]]:
    """How many each row stands for in what ``recall_of`` found; and rows that none stands for.

    The latter of all rows and of detectable ones: the sample has none of their kind. They are
    among those found, as rows that are not flagged.
    """
    kind = kinds(rows)
    record, sampled = kind == RECORD, kind == SAMPLED
    weight = record.astype(np.float64)
    missed = found.detectable - found.detectable_flagged
    others = found.flagged - found.detectable_flagged
    quiet = found.rows - found.detectable - others
    without = {True: 0, False: 0}
    for there, hit, number in (
        (True, True, found.detectable_flagged), (True, False, missed),
        (False, True, others), (False, False, quiet),
    ):  # fmt: skip
        alike = (detectable == there) & (flagged == hit)
        more, own = number - int((alike & record).sum()), alike & sampled
        if own.any():
            weight[own] = more / own.sum()
        else:
            without[there] += more
    return weight, (without[True] + without[False], without[True])


def _counts(flagged: bounds.Bools, detectable: bounds.Bools) -> Recall:
    return Recall(
        rows=len(flagged),
        flagged=int(flagged.sum()),
        detectable=int(detectable.sum()),
        detectable_flagged=int((flagged & detectable).sum()),
    )


def note(rows: pd.DataFrame) -> str | None:
    """What to know of figures that rest on lines; None where there are none."""
    line = rows[kinds(rows) == LINE]
    if line.empty:
        return None
    buggy = line[line["role"] == "buggy"]
    sampled = int((kinds(rows) == SAMPLED).sum())
    return (
        f"{number(line)} rows of {plural(int(line['run_id'].nunique()), 'run')} are known by "
        "summaries: a flagged line is at least one row and counts as one"
        + (f"; recall is of a sample of {sampled} of {number(buggy)} buggy rows" if sampled else "")
    )
