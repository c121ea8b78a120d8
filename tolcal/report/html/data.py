"""Document into the rows of every chart and table, small enough for one page.

Foreign text becomes printable words of one line here; a replay line is given only for ids that
are nothing but an id, since people paste it into a shell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from tolcal.model import SHARE_EDGES, CellPlots, CellProposal, Proposal, Verdict, one_line
from tolcal.report import text
from tolcal.report.document import Document
from tolcal.report.html import charts

#: Cells that the overview charts draw, the most important first; the table has all of them.
MAX_CELLS = 60
#: Kernels of the heat map.
MAX_KERNELS = 60
_ID = re.compile(r"[a-z][a-z0-9_]{0,63}:[0-9a-f]{16}")
_SOURCES = {"approved": "approved", "legacy": "hand-picked", "none": "nothing approved"}
_STATES = ("tighten", "new", "looser", "uncalibrated", "unchanged")
Row = dict[str, Any]


class Table(msgspec.Struct, frozen=True):
    """Rows as lists: keys are not repeated in the page."""

    columns: tuple[str, ...]
    rows: list[list[Any]]

    def dicts(self) -> list[Row]:
        """As Vega takes them."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def _table(rows: Sequence[Row]) -> Table:
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    return Table(columns, [[row.get(c) for c in columns] for row in rows])


def name(words: str) -> str:
    """A name of the corpus or the environment, whatever a file may say it is."""
    return one_line(words, 120)


def replay(identity: str) -> str:
    """``tolcal replay ID``, or nothing if a shell could read more than an id in it."""
    return f"tolcal replay {identity}" if _ID.fullmatch(identity) else ""


def important(cells: Sequence[CellProposal]) -> list[CellProposal]:
    """What needs a decision first, the largest change first."""
    return sorted(
        cells,
        key=lambda c: (
            _STATES.index(c.state), -abs(math.log(c.tightening or 1.0)), c.op, c.dtype,
            c.kernel or "",
        ),
    )  # fmt: skip


def title(cell: CellProposal) -> str:
    """``softmax/float16``, and the kernel of a proposal by kernel: the link of the cell too."""
    parts = (cell.op, cell.dtype, *([cell.kernel] if cell.kernel else []))
    return "/".join(name(part) for part in parts)


# --- the whole ------------------------------------------------------------------------------


def tightening(proposal: Proposal) -> Table:
    """The paper's first figure on this history: what each tolerance allows, before and after."""
    cells = [c for c in proposal.cells if c.allowed_proposed or c.allowed_now]
    cells = sorted(cells, key=lambda c: (-(c.tightening or 0.0), c.op, c.dtype))[:MAX_CELLS]
    rows = []
    for rank, cell in enumerate(cells):
        values = (
            ("now", cell.allowed_now),
            ("published rule", cell.allowed_paper),
            ("proposed", cell.allowed_proposed),
        )
        rows += [
            {"cell": title(cell), "rank": rank, "what": what, "value": value}
            for what, value in values
            if value
        ]
    return _table(rows)


def recall(proposal: Proposal) -> Table:
    """The curve of both rules."""
    curve = proposal.curve
    if curve is None or not curve.runs or not curve.detectable:
        return _table([])
    rows: list[Row] = []
    for rule, counts in (
        ("tolcal", [(p.factor, p.red, p.flagged) for p in curve.points]),
        ("published rule", [(p.factor, p.paper_red, p.paper_flagged) for p in curve.points]),
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
    return _table(rows)


def over_time(proposal: Proposal) -> Table:
    """Runs with a held-out share; ``changed`` where the environment is not the one before."""
    rows: list[Row] = []
    before = None
    for number, run in enumerate(proposal.runs, 1):
        if not run.held_out_share:
            continue
        rows.append(
            {
                "number": number,
                "started": name(run.started),
                "share": run.held_out_share,
                "device": name(run.device),
                "environment": name(run.described),
                "changed": before not in (None, run.environment),
            }
        )
        before = run.environment
    return _table(rows)


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
                key = (name(kernel.kernel), name(cell.dtype), size_of(shape.dims))
                worst[key] = max(worst.get(key, (-1.0, "")), (shape.share, name(shape.dims)))
    return _table(
        [
            {"kernel": kernel, "dtype": dtype, "size": size, "share": share, "dims": dims,
             "step": charts.step(share), "text": _brief(share)}
            for (kernel, dtype, size), (share, dims) in sorted(worst.items())
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
                        device = name(proposal.runs[spread.run].device)
                        found.setdefault(device, []).append(spread.quantiles[2])
        medians = {device: sorted(v)[len(v) // 2] for device, v in found.items()}
        if len(medians) < 2 or not all(medians.values()) or cells == MAX_CELLS:
            continue
        cells += 1
        rows += [
            {"cell": title(cell), "device": device, "median": median}
            for device, median in sorted(medians.items())
        ]
    return _table(rows)


# --- one cell -------------------------------------------------------------------------------


def spreads(plots: CellPlots, proposal: Proposal) -> Table:
    """Residuals by run, and the tolerances as lines. 0 is drawn at the lower edge."""
    lines = {
        "hand-picked": plots.legacy,
        "published rule": plots.paper,
        "approved": plots.approved,
        "proposed": plots.proposed,
    }
    if (
        plots.approved
        and plots.proposed
        and math.isclose(plots.approved, plots.proposed, rel_tol=0.1)
    ):  # their names would lie upon each other
        del lines["proposed"]
        lines["approved and proposed"] = lines.pop("approved")
    kernels = [k for k in plots.kernels if k.spreads]
    seen = [q for k in kernels for s in k.spreads for q in s.quantiles if q > 0]
    floor = min([*seen, *(v for v in lines.values() if v)], default=1.0) / 2
    rows: list[Row] = []
    for kernel in kernels:
        for spread in kernel.spreads:
            low, q1, middle, q3, high = (max(q, floor) for q in spread.quantiles)
            known = 0 <= spread.run < len(proposal.runs)
            rows.append(
                {"kernel": name(kernel.kernel), "role": kernel.role, "number": spread.run + 1,
                 "device": name(proposal.runs[spread.run].device) if known else "",
                 "low": low, "q1": q1, "middle": middle, "q3": q3, "high": high}
            )  # fmt: skip
    if rows:
        rows += [{"line": line, "value": value} for line, value in lines.items() if value]
    return _table(rows)


def shares(plots: CellPlots) -> Table:
    """Histograms as parts of each kernel's records; the open ends get a bin of the same width."""
    width = SHARE_EDGES[1] / SHARE_EDGES[0]
    edges = (SHARE_EDGES[0] / width, *SHARE_EDGES, SHARE_EDGES[-1] * width)
    rows: list[Row] = []
    for kernel in plots.kernels:
        total = sum(kernel.shares)
        if not total or len(kernel.shares) != len(SHARE_EDGES) + 1:
            continue
        counts = (*kernel.shares, kernel.shares[-1])  # a step needs its right end
        rows += [
            {"kernel": name(kernel.kernel), "role": kernel.role, "low": float(f"{low:.3g}"),
             "high": float(f"{low * width:.3g}"), "part": round(count / total, 4)}
            for low, count in zip(edges, counts, strict=True)
        ]  # fmt: skip
    return _table(rows)


def shapes(plots: CellPlots) -> Table:
    """The largest share of each kernel and shape."""
    return _table(
        [
            {"kernel": name(kernel.kernel), "dims": name(shape.dims), "share": shape.share,
             "step": charts.step(shape.share), "text": _brief(shape.share)}
            for kernel in plots.kernels
            for shape in kernel.shapes
        ]
    )  # fmt: skip


def kernels(plots: CellPlots) -> list[Row]:
    """Each kernel with its worst case and the line that replays it."""
    rows = []
    one = SHARE_EDGES.index(1.0) + 1
    for kernel in plots.kernels:
        worst = kernel.shapes[0] if kernel.shapes else None
        rows.append(
            {
                "kernel": name(kernel.kernel),
                "role": kernel.role,
                "records": sum(kernel.shares) or sum(s.rows for s in kernel.spreads),
                "beyond": sum(kernel.shares[one:]) if kernel.shares else None,
                "worst": None if worst is None else text.number(worst.share),
                "dims": "" if worst is None else name(worst.dims),
                "replay": "" if worst is None else replay(f"{kernel.kernel}:{worst.case}"),
            }
        )
    return rows


def findings(verdict: Verdict | None) -> list[Row]:
    """The verdict's findings in its order, without what is only caught as before."""
    return [
        {
            "kind": f.kind.replace("_", " "),
            "blocks": f.blocks,
            "kernel": name(f.kernel),
            "cell": f"{name(f.op)}/{name(f.dtype)}",
            "cases": f"{f.exceeding} of {f.cases}",
            "dims": name(f.worst_dims),
            "observed": text.number(f.observed),
            "allowed": text.number(f.allowed),
            "detail": one_line(f.detail, 300),
            "replay": replay(f.worst),
        }
        for f in (verdict.findings if verdict else ())
        if f.kind != "caught" or f.newly
    ]


def cell_row(cell: CellProposal) -> Row:
    """The cell in the table of all cells: what is shown, and what it is sorted by."""
    controls = [k for k in cell.plots.kernels if k.role == "control"] if cell.plots else []
    worst = max(
        ((k.shapes[0].share, k) for k in controls if k.shapes), key=lambda w: w[0], default=None
    )
    return {
        "link": title(cell),
        "state": cell.state,
        "now": cell.allowed_now,
        "proposed": cell.allowed_proposed,
        "tightening": cell.tightening,
        "recall": cell.detectable_recall,
        "rows": cell.rows,
        "runs": cell.runs,
        "red": cell.held_out.runs_with_false_alarms if cell.held_out.runs else None,
        "share": None if worst is None else worst[0],
        "dims": "" if worst is None else name(worst[1].shapes[0].dims),
        "replay": "" if worst is None else replay(f"{worst[1].kernel}:{worst[1].shapes[0].case}"),
    }


def cells(ordered: Sequence[CellProposal]) -> Table:
    """The table of all cells."""
    return _table([cell_row(cell) for cell in ordered])


def cell_facts(cell: CellProposal) -> list[tuple[str, str]]:
    """What stands beside a cell's charts, in words."""
    facts = [("State", cell.state + (f": {one_line(cell.note, 300)}" if cell.note else ""))]
    tolerance = cell.tolerance
    if tolerance is not None:
        facts += [
            ("Proposed bound", f"residual <= {tolerance.atol:.3g} + {tolerance.scaled_tol:.3g} "
             "u (|ref| + sigma)"),
            ("allclose", f"atol={tolerance.allclose.atol:.3g}, "
             f"rtol={tolerance.allclose.rtol:.3g}"),
            ("Bias", "not judged" if tolerance.bias_tol is None
             else f"at most {tolerance.bias_tol:g}"),
        ]  # fmt: skip
    facts += [
        ("Allowed at the median element",
         f"now {text.scientific(cell.allowed_now)} ({_SOURCES[cell.allowed_source]}), proposed "
         f"{text.scientific(cell.allowed_proposed)}, published rule "
         f"{text.scientific(cell.allowed_paper)}; tightening {text.factor(cell.tightening)}"),
        ("Evidence", f"{cell.rows} records of {cell.runs} runs on "
         f"{', '.join(name(d) for d in cell.devices) or 'no device'}; "
         + text.held_out_claim(cell.held_out.runs_with_false_alarms, cell.held_out.runs)),
        ("Detectable recall", text.percent(cell.detectable_recall)),
    ]  # fmt: skip
    return facts


def whole(document: Document) -> dict[str, Table]:
    """Rows of the overview charts by their names."""
    makers = (tightening, recall, over_time, heat, devices)
    return {make.__name__: make(document.proposal) for make in makers}


def _brief(share: float) -> str:
    """At most four characters, for a small square."""
    if share >= 99.5:
        return ">99"
    if share >= 0.95:
        return f"{share:.0f}" if share >= 9.95 else f"{share:.1f}"
    if share >= 0.005:
        return f"{share:.2f}".removeprefix("0")
    return "<.01" if share else "0"
