"""The sensitivity sweep as Markdown: how much each knob of both rules matters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tolcal import binomial
from tolcal.model import CellProposal, HeldOutRows, Proposal, Recall, Setting, SweepPoint
from tolcal.report import text

#: Rows of a table of ops or cells; the Parquet file has them all.
MAX_ROWS = 40
#: Of the published rule's factors, so many columns make a page's width.
SHOWN_FACTORS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
#: The full rule, and what is left of it part by part.
FULL, BY_REF, ATOL_ALONE = (True, True), (True, False), (False, None)

Points = dict[tuple[str | None, Setting], SweepPoint]


def render(points: Sequence[SweepPoint], proposal: Proposal, margin: float) -> str:
    """The page.

    Args:
        points: as ``calibrate.sweep`` gives them.
        proposal: of the same history.
        margin: at which parts of our rule are compared; one of those swept.
    """
    by = {(p.op, p.setting): p for p in points if p.dtype is None}
    ops = list(dict.fromkeys(p.op for p in points if p.op is not None))
    settings = list(dict.fromkeys(p.setting for p in points))
    lines = ["<!-- tolcal:sweep -->", "# Sensitivity", "", *_introduction(points, proposal), ""]
    lines += _ours(by, settings, margin) + _published(by, settings)
    lines += _parts(by, ops, margin) + _quiet(by, ops, settings) + _theory(proposal.cells)
    return "\n".join(lines).rstrip() + "\n"


def ours(
    margin: float | None, borrowing: bool = True, parts: tuple[bool, bool | None] = FULL
) -> Setting:
    """A setting of our rule; without a margin each control has its own, from its tail."""
    return Setting("residual", margin, borrowing, parts[1], parts[0])


def _introduction(points: Sequence[SweepPoint], proposal: Proposal) -> Iterable[str]:
    yield (
        "`tolcal calibrate --sweep` writes this page, and every setting into a Parquet file beside "
        "it: a row for all cells (`op` and `dtype` null), for each op, and for each cell."
    )
    yield ""
    apart = next((p.locked for p in points if p.locked is not None and p.op is None), None)
    yield (
        f"History `{text.ident(proposal.history)}`. As proposed, rule "
        f"{text.plain(proposal.rule)}: {_lower(text.held_out_claims(proposal))}. "
        f"{text.recall_claim(proposal)}."
    )
    yield ""
    yield (
        "*Held out*: each run judged by fits on the others. *In sample*: by the fit on all. A run "
        "is red if any of its control rows is flagged; `at most` is the exact 95 % bound on the "
        "share of such runs, not corrected for looking at many settings. *Bits*: log2 of what is "
        "allowed at the median element, in u (|ref| + sigma), the median over cells (of the "
        "published rule its atol, which is against the rounded reference). A setting "
        "chosen here by its held-out figures is in sample for that choice"
        + (f"; the {apart.runs} locked runs are in no fit." if apart else ".")
    )


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _ours(by: Points, settings: Sequence[Setting], margin: float) -> list[str]:
    margins = sorted({s.margin for s in settings if s.margin is not None and s.borrowing is False})
    rows = [
        ("a margin for each control", ours(None)),
        *((f"margin {m:g}", ours(m)) for m in margins),
    ]
    names = {FULL: "", BY_REF: "scale = |ref| alone", ATOL_ALONE: "atol alone"}
    for borrowing in (True, False):
        for parts, name in names.items():
            words = ", ".join(w for w in (name, "" if borrowing else "no borrowing") if w)
            if words:
                rows.append((f"margin {margin:g}, {words}", ours(margin, borrowing, parts)))
    table = [_row(name, by[None, s]) for name, s in rows if (None, s) in by]
    if not table:
        return ["No cell can be fitted by our rule: only the published one is shown.", ""]
    apart = any(p.locked is not None for p in by.values())
    head = ["setting", "red runs, held out", "at most", "rows flagged", "in sample",
            "detectable recall", "recall", "bits"]  # fmt: skip
    if apart:
        head += ["red runs, locked", "rows", "detectable recall"]
    return ["## Our rule", "", *_table(head, table, 1), ""]


def _row(name: str, point: SweepPoint) -> list[str]:
    held = point.held_out
    row = [
        name.replace("|", "\\|"), _red(held), _at_most(held), _flagged(held),
        _flagged(point.in_sample), _share(point.recall, True), _share(point.recall, False),
        _bits(point),
    ]  # fmt: skip
    if point.locked is not None and point.locked_recall is not None:
        row += [_red(point.locked), _flagged(point.locked), _share(point.locked_recall, True)]
    return row


def _published(by: Points, settings: Sequence[Setting]) -> list[str]:
    percentiles = sorted({s.percentile for s in settings if s.percentile is not None})
    rows = []
    for percentile in percentiles:
        row = [f"p{percentile}"]
        for factor in SHOWN_FACTORS:
            point = by[None, Setting("paper", percentile=percentile, factor=factor)]
            held = point.held_out
            row.append(f"{_red(held)}, {_flagged(held)}; {_recall_cell(point)}")
        rows.append(row)
    if not rows:
        return []
    head = ["percentile", *(f"x {f:g}" for f in SHOWN_FACTORS)]
    return [
        "## The published rule", "",
        "Percentile of max_abs times a factor: red held-out runs, rows flagged; detectable "
        f"recall. {_as_published(by)}", "",
        *_table(head, rows, 1), "",
    ]  # fmt: skip


def _as_published(by: Points) -> str:
    """Of p95 x 1.5: every way of counting its false alarms."""
    point = by[None, Setting("paper", percentile=95, factor=1.5)]
    ways = {"held out": point.held_out, "in sample": point.in_sample, "locked": point.locked}
    said = [
        f"{name} {held.false_alarms} of {held.rows} rows and {_red(held)} runs"
        for name, held in ways.items()
        if held is not None and held.rows
    ]
    return f"As published, p95 x 1.5 flags {', '.join(said)}." if said else ""


def _parts(by: Points, ops: Sequence[str | None], margin: float) -> list[str]:
    columns = (ATOL_ALONE, BY_REF, FULL)
    rows = []
    for op in (*ops[:MAX_ROWS], None):
        found = [by.get((op, ours(margin, True, parts))) for parts in columns]
        if all(found):
            row = ["all" if op is None else text.code(op)]
            for value in (_recall_cell, _bits, _red_cell):
                row += [value(p) for p in found if p is not None]
            rows.append(row)
    if not rows:
        return []
    head = ["op"]
    for what in ("recall", "bits", "red"):
        head += [f"{what}: atol", "+ scaled_tol", "+ sigma"]
    return [
        "## What the scaled part and sigma buy", "",
        f"At margin {margin:g}, borrowing: atol alone, with scaled_tol on |ref|, with sigma in the "
        "scale. Recall is of detectable rows; fewer bits are tighter; red runs are held out.", "",
        *_table(head, rows, 1), *_left_out(len(ops)), "",
    ]  # fmt: skip


def _quiet(by: Points, ops: Sequence[str | None], settings: Sequence[Setting]) -> list[str]:
    lines = {
        "ours": [s for s in settings if s == ours(s.margin or 0)],
        "paper": [s for s in settings if s.percentile == 95],
    }
    rows = []
    for op in (*ops[:MAX_ROWS], None):
        row = ["all" if op is None else text.code(op)]
        for line in lines.values():
            knobs = sorted((s.margin or s.factor or 0.0, s) for s in line if (op, s) in by)
            quiet = next(
                (
                    (knob, by[op, s])
                    for knob, s in knobs
                    if by[op, s].held_out.runs and not by[op, s].held_out.runs_with_false_alarms
                ),
                None,
            )
            if quiet is None:
                row += [f"none up to {knobs[-1][0]:.3g}" if knobs else "-", "-", "-"]
            else:
                row += [f"{quiet[0]:.3g}", _recall_cell(quiet[1]), _bits(quiet[1])]
        rows.append(row)
    head = ["op", "our margin", "recall", "bits", "factor of p95", "recall", "bits"]
    return [
        "## Recall where no held-out run is red", "",
        "The smallest swept margin, and factor of the published p95, at which none is, and what is "
        "left of detectable recall. No factor changes a p95 of 0. The curve of every op is in the "
        "Parquet file.", "",
        *_table(head, rows, 1), *_left_out(len(ops)), "",
    ]  # fmt: skip


def _theory(cells: Iterable[CellProposal]) -> list[str]:
    known = [(c, c.theory) for c in cells if c.theory is not None]
    rows = []
    for cell, theory in known[:MAX_ROWS]:
        near, far = theory.nearest, theory.longest
        above = " **above**" if near.measured > near.bound else ""
        rows.append([
            text.code(f"{cell.op}/{cell.dtype}"),
            f"{text.code(near.kernel)} {text.code(near.dims)}{above}",
            *map(text.number, (near.measured, near.probable, near.bound)), str(far.terms),
            *map(text.number, (far.measured, far.probable, far.bound, theory.most,
                               theory.largest)),
        ])  # fmt: skip
    if not rows:
        return []
    head = ["cell", "nearest to its bound", "measured", "sqrt(K)", "gamma_K", "largest K",
            "measured", "sqrt(K)", "gamma_K", "99.9 %", "largest"]  # fmt: skip
    return [
        "## Measured against theory", "",
        "Controls of ops with a `reduction`, in u (|ref| + sigma): the record nearest to the "
        "bound on a sum of its own K terms (gamma_K: Higham 2002, section 3.1; sqrt(K), which "
        "fails for 1 record in 1,000: Higham & Mary 2019), the worst of the longest sums, and all "
        "records. It is a bound for a plain sum, as matmul's; for the others, which do more than "
        "one sum, an order of magnitude.", "",
        *_table(head, rows, 2), *_left_out(len(known)), "",
    ]  # fmt: skip


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int) -> list[str]:
    """Markdown; the first ``words`` columns to the left, the others, numbers, to the right."""
    marks = ["---" if i < words else "---:" for i in range(len(head))]
    cells = [head, marks, *rows]
    return [f"| {' | '.join(row)} |" for row in cells]


def _left_out(count: int) -> list[str]:
    return ["", f"{count - MAX_ROWS} more are in the Parquet file."] if count > MAX_ROWS else []


def _red(held: HeldOutRows) -> str:
    return f"{held.runs_with_false_alarms}/{held.runs}" if held.runs else "-"


def _red_cell(point: SweepPoint) -> str:
    return _red(point.held_out)


def _flagged(held: HeldOutRows) -> str:
    return str(held.false_alarms) if held.rows else "-"


def _at_most(held: HeldOutRows) -> str:
    if not held.runs:
        return "-"
    bound = binomial.upper(held.runs_with_false_alarms, held.runs)
    return f"{math.ceil(bound * 1000) / 10:.1f} %"


def _share(recall: Recall, detectable: bool) -> str:
    """Rounded down to two places: settings differ in the second."""
    value = recall.detectable_recall if detectable else recall.recall
    return "-" if value is None else f"{math.floor(value * 10_000) / 100:.2f} %"


def _recall_cell(point: SweepPoint) -> str:
    return _share(point.recall, True)


def _bits(point: SweepPoint) -> str:
    return "-" if point.bits is None else f"{point.bits:.1f}"
