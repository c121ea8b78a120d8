"""Rows of the charts of the whole: bounded, whatever a proposal holds."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence

from tolcal.model import Proposal
from tolcal.report import text
from tolcal.report.html import charts
from tolcal.report.html.data import Row, Table, brief, name, share_text, table, title

#: Cells that a chart draws, the most important first; the table has all of them.
MAX_CELLS = 60
#: Kernels of the heat map.
MAX_KERNELS = 60
#: Runs over time, the newest.
MAX_RUNS = 300
#: Rows of any chart.
MAX_ROWS = 5000
#: Ends of the axis of shares: what lies beyond stands at its edge, with its number.
LEAST_SHARE, MOST_SHARE = 1e-3, 100.0


def whole(proposal: Proposal) -> dict[str, Table]:
    """Rows by the names of ``charts.WHOLE``."""
    makers = (tightening, recall, over_time, heat, devices)
    return {make.__name__: make(proposal) for make in makers}


def tightening(proposal: Proposal) -> Table:
    """The paper's first figure on this history: what each tolerance allows, before and after.

    A log axis has no 0: it is drawn at the lower edge and says so.
    """
    cells = [c for c in proposal.cells if c.allowed_proposed or c.allowed_now]
    cells = sorted(cells, key=lambda c: (-(c.tightening or 0.0), c.op, c.dtype))[:MAX_CELLS]
    sorts = ("now", "published rule", "proposed")
    values = [(c.allowed_now, c.allowed_paper, c.allowed_proposed) for c in cells]
    floor = min((v for each in values for v in each if v), default=1.0) / 4
    return table(
        [
            {"cell": title(cell), "rank": rank, "what": what, "value": value or floor,
             "said": text.scientific(value), "zero": value == 0}
            for rank, (cell, each) in enumerate(zip(cells, values, strict=True))
            for what, value in zip(sorts, each, strict=True)
            if value is not None
        ]
    )  # fmt: skip


def recall(proposal: Proposal) -> Table:
    """The curve of both rules."""
    curve = proposal.curve
    if curve is None or not curve.runs or not curve.detectable:
        return table([])
    points = curve.points[: MAX_ROWS // 2]
    rows: list[Row] = []
    for rule, counts in (
        ("tolcal", [(p.factor, p.red, p.flagged) for p in points]),
        ("published rule", [(p.factor, p.paper_red, p.paper_flagged) for p in points]),
    ):
        before = None
        for factor, red, flagged in counts:
            now = factor == 1.0
            if now or (red, flagged) != before:  # a plateau is one point of the curve
                rows.append(
                    {"rule": rule, "factor": factor, "red": red / curve.runs,
                     "recall": flagged / curve.detectable, "now": now}
                )  # fmt: skip
            before = (red, flagged)
    return table(rows)


def over_time(proposal: Proposal) -> Table:
    """Runs with a held-out share; ``changed`` where the environment is not the one before.

    ``edge`` is the number of a share beyond the axis; where such runs crowd, the largest alone
    has it. ``word`` is the side on which the words of a changed environment have room.
    """
    held = [
        (number, run, run.held_out_share)
        for number, run in enumerate(proposal.runs, 1)
        if run.held_out_share is not None
    ][-MAX_RUNS:]
    span = max(1, held[-1][0] - held[0][0]) if held else 1
    rows: list[Row] = []
    before = None
    for number, run, share in held:
        rows.append(
            {
                "number": number,
                "started": name(run.started),
                "share": min(max(share, LEAST_SHARE), MOST_SHARE),
                "said": share_text(share),
                "device": name(run.device),
                "environment": name(run.described),
                "changed": before not in (None, run.environment),
            }
        )
        before = run.environment
    at = [(number - held[0][0]) / span for number, _, _ in held]
    order = sorted(range(len(held)), key=lambda i: -held[i][2])
    above = [i for i in order if held[i][2] > MOST_SHARE]
    below = [i for i in order if held[i][2] < LEAST_SHARE]
    for sign, beyond in (("▲", above), ("▼", below)):
        for i in _apart(beyond, at):
            rows[i]["edge"] = f"{sign} {rows[i]['said'].replace('over ', '>')}"
    taken = -1.0
    for place, row in zip(at, rows, strict=True):
        low, high = (place, place + 0.4) if place < 0.6 else (place - 0.4, place)
        if row["changed"] and low >= taken:
            row["word"] = "right" if place < 0.6 else "left"
            taken = high
    return table(rows)


def _apart(candidates: Sequence[int], at: Sequence[float]) -> list[int]:
    """Those of the candidates, first come first served, that leave room for each other's words."""
    chosen: list[int] = []
    for i in candidates:
        if all(abs(at[i] - at[j]) > 1 / 4 for j in chosen):
            chosen.append(i)
    return chosen


@functools.lru_cache(4096)
def size_of(dims: str) -> int:
    """The product of the dims, up to the next power of 8: ``B=2 S=7 H=1025`` is 32768."""
    product = math.prod(int(n) for n in re.findall(r"=(\d{1,9})(?!\d)", dims)[:8])
    size = 1
    while size < min(product, 8**12):
        size *= 8
    return size


def heat(proposal: Proposal) -> Table:
    """The largest share of controls, by kernel, dtype and size of shape."""
    worst: dict[tuple[str, str, int], tuple[float, str]] = {}
    kernels: dict[str, None] = {}
    for cell in proposal.cells:
        for kernel in cell.plots.kernels if cell.plots else ():
            if kernel.role != "control" or (
                kernel.kernel not in kernels and len(kernels) == MAX_KERNELS
            ):
                continue
            kernels[kernel.kernel] = None
            for shape in kernel.shapes:
                key = (kernel.kernel, cell.dtype, size_of(shape.dims))
                worst[key] = max(worst.get(key, (-1.0, "")), (shape.share, shape.dims))
    return table(
        [
            {"kernel": name(kernel), "dtype": name(dtype), "size": size, "share": share,
             "dims": name(dims), "step": charts.step(share), "text": brief(share)}
            for (kernel, dtype, size), (share, dims) in sorted(worst.items())[:MAX_ROWS]
        ]
    )  # fmt: skip


def devices(proposal: Proposal) -> Table:
    """Median residuals of the controls by device, of cells seen on two or more."""
    rows: list[Row] = []
    cells = 0
    for cell in proposal.cells:
        found: dict[str, list[float]] = {}
        for kernel in cell.plots.kernels if cell.plots else ():
            if kernel.role == "control":
                for spread in kernel.spreads:
                    if 0 <= spread.run < len(proposal.runs):
                        device = proposal.runs[spread.run].device
                        found.setdefault(device, []).append(spread.quantiles[2])
        medians = {device: sorted(v)[len(v) // 2] for device, v in found.items()}
        if len(medians) < 2 or not all(medians.values()) or cells == MAX_CELLS:
            continue
        cells += 1
        rows += [
            {"cell": title(cell), "device": name(device), "median": median}
            for device, median in sorted(medians.items())
        ]
    return table(rows[:MAX_ROWS])
