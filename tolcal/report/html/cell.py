"""Rows of the charts of one cell, and what stands beside them."""

from __future__ import annotations

from tolcal.model import SHARE_EDGES, CellPlots, CellProposal, KernelPlot, Proposal, one_line
from tolcal.report import text
from tolcal.report.html import charts
from tolcal.report.html.data import Row, Table, brief, name, replay, share_text, table

#: Kernels that a chart can tell apart; the table beside it has all of them.
MAX_KERNELS = len(charts.SHAPES)
_SOURCES = {"approved": "approved", "legacy": "hand-picked", "none": "nothing approved"}


def drawn(plots: CellPlots) -> tuple[KernelPlot, ...]:
    """The kernels of the charts: controls come first."""
    return plots.kernels[:MAX_KERNELS]


def label(kernel: KernelPlot) -> str:
    """A kernel's name, which says whether it is known to be wrong."""
    kind = " (subtle buggy)" if kernel.subtle else " (buggy)"
    return f"{name(kernel.kernel)}{kind if kernel.role == 'buggy' else ''}"


def spreads(plots: CellPlots, proposal: Proposal) -> Table:
    """Residuals by run, and the tolerances as lines. 0 is drawn at the lower edge."""
    limits = {
        "hand-picked": plots.legacy,
        "published rule": plots.paper,
        "approved": plots.approved,
        "proposed": plots.proposed,
    }
    kernels = [k for k in drawn(plots) if k.spreads]
    seen = [q for k in kernels for s in k.spreads for q in s.quantiles if q > 0]
    floor = min([*seen, *(value for value in limits.values() if value)], default=1.0) / 2
    rows: list[Row] = []
    for kernel in kernels:
        for spread in kernel.spreads:
            low, q1, middle, q3, high = (max(q, floor) for q in spread.quantiles)
            known = 0 <= spread.run < len(proposal.runs)
            rows.append(
                {"kernel": label(kernel), "number": spread.run + 1,
                 "device": name(proposal.runs[spread.run].device) if known else "", "low": low,
                 "q1": q1, "middle": middle, "q3": q3, "high": high}
            )  # fmt: skip
    if rows:
        rows += _lines(limits, floor)
    return table(rows)


def _lines(limits: dict[str, float | None], floor: float) -> list[Row]:
    """Tolerances from below, with words: of neighbours one on the left, one on the right.

    Lines within a tenth of each other get common words, as theirs would lie upon each other.
    """
    known = sorted((value or floor, line) for line, value in limits.items() if value is not None)
    groups: list[list[tuple[float, str]]] = []
    for value, line in known:
        if groups and value <= 1.1 * groups[-1][0][0]:
            groups[-1].append((value, line))
        else:
            groups.append([(value, line)])
    rows: list[Row] = []
    for number, group in enumerate(groups):
        words = " and ".join(f"{line}{': 0' if limits[line] == 0 else ''}" for _, line in group)
        if {"approved", "proposed"} & {line for _, line in group}:
            words += ", for the median element"
        for value, line in group:
            rows.append({"line": line, "value": value})
        rows[-1] |= {"words": words, "side": ("left", "right")[number % 2]}
    return rows


def shares(plots: CellPlots) -> Table:
    """Histograms as parts of each kernel's records; the open ends get a bin of the same width."""
    width = SHARE_EDGES[1] / SHARE_EDGES[0]
    edges = (SHARE_EDGES[0] / width, *SHARE_EDGES, SHARE_EDGES[-1] * width)
    rows: list[Row] = []
    for kernel in drawn(plots):
        total = sum(kernel.shares)
        if not total or len(kernel.shares) != len(SHARE_EDGES) + 1:
            continue
        counts = (*kernel.shares, kernel.shares[-1])  # a step needs its right end
        rows += [
            {"kernel": label(kernel), "role": kernel.role, "low": float(f"{low:.3g}"),
             "high": float(f"{low * width:.3g}"), "part": round(count / total, 4)}
            for low, count in zip(edges, counts, strict=True)
        ]  # fmt: skip
    return table(rows)


def shapes(plots: CellPlots) -> Table:
    """The largest share of each kernel and shape."""
    return table(
        [
            {"kernel": label(kernel), "dims": name(shape.dims), "share": shape.share,
             "step": charts.step(shape.share), "text": brief(shape.share)}
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
                "worst": None if worst is None else share_text(worst.share),
                "dims": "" if worst is None else name(worst.dims),
                "replay": "" if worst is None else replay(f"{kernel.kernel}:{worst.case}"),
            }
        )
    return rows


def facts(cell: CellProposal) -> list[tuple[str, str]]:
    """What stands beside a cell's charts, in words."""
    said = [("State", cell.state + (f": {one_line(cell.note, 300)}" if cell.note else ""))]
    tolerance = cell.tolerance
    if tolerance is not None:
        said += [
            ("Proposed bound", f"residual <= {tolerance.atol:.3g} + {tolerance.scaled_tol:.3g} "
             "u (|ref| + sigma)"),
            ("allclose", f"atol={tolerance.allclose.atol:.3g}, "
             f"rtol={tolerance.allclose.rtol:.3g}"),
            ("Bias", "not judged" if tolerance.bias_tol is None
             else f"at most {tolerance.bias_tol:g}"),
        ]  # fmt: skip
        for device, values in tolerance.on.items():
            rests = values.evidence
            said.append(
                (f"On {name(device)}", f"residual <= {values.atol:.3g} + {values.scaled_tol:.3g} "
                 "u (|ref| + sigma)" + (f", from {rests.rows} records of {rests.runs} runs"
                                        if rests else ""))
            )  # fmt: skip
    for need in cell.by_device:
        said.append(
            (f"Needed on {name(need.device_class)}",
             f"{text.scientific(need.allowed_needed)} at the median element, "
             f"{text.scientific(need.allowed_proposed)} proposed"
             f"{' as its own' if need.own else ''}")
        )  # fmt: skip
    said += [
        ("Allowed at the median element",
         f"now {text.scientific(cell.allowed_now)} ({_SOURCES[cell.allowed_source]}), proposed "
         f"{text.scientific(cell.allowed_proposed)}, published rule "
         f"{text.scientific(cell.allowed_paper)}; tightening {text.factor(cell.tightening)}"),
        ("Evidence", f"{cell.rows} records of {cell.runs} runs on "
         f"{', '.join(name(d) for d in cell.devices) or 'no device'}; "
         + text.held_out_claim(cell.held_out.runs_with_false_alarms, cell.held_out.runs)),
        ("Detectable recall", text.percent(cell.detectable_recall)),
    ]  # fmt: skip
    if cell.theory is not None:
        said.append(("Theory", one_line(text.theory_claim(cell.theory), 400)))
    return said
