"""Tables and progress for a terminal; plain text in a pipe."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tolcal.model import Proposal, one_line
from tolcal.report import text
from tolcal.report.document import Document

#: Where there is no terminal, a line at most this often.
PLAIN_SECONDS = 10.0
#: Below this width the table of cells leaves columns out.
NARROW = 120


def render(document: Document) -> str:
    """The headline, every cell, and the findings, in the width of the terminal or COLUMNS."""
    tty = sys.stdout.isatty()
    # COLUMNS rules; then the terminal's width; a pipe gets what the widest table needs.
    width = shutil.get_terminal_size((160, 24)).columns if tty else _columns(160)
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=tty or None,
        highlight=False,
        markup=False,
    )
    narrow = width < NARROW
    console.print(cells(document.proposal, narrow))
    verdict = document.verdict
    console.print()
    if verdict and verdict.findings:
        table = Table("finding", "kernel", "dtype", "cases", "exceeds", box=None)
        shown = [f for f in verdict.findings if f.kind != "caught" or f.newly]
        for f in shown:
            over = "-" if f.over is None else text.number(f.over) + "x"
            table.add_row(
                f.kind + (" (blocks)" if f.blocks else ""), one_line(f.kernel, 80),
                one_line(f.dtype, 20), f"{f.exceeding} of {f.cases}", over,
            )  # fmt: skip
        console.print(table)
        for f in shown:  # whole, to be copied: no table may cut an id
            if f.exceeding:
                console.print(f"  tolcal replay {one_line(f.worst, 100)}", soft_wrap=True)
        console.print()
    p = document.proposal
    console.print(f"tolcal: {text.headline(p, verdict)}")
    console.print(
        f"Recall {text.percent(p.detectable_recall)} of detectable rows, "
        f"{text.percent(p.recall)} of all rows of buggy kernels. "
        f"{text.held_out_claim(p.held_out.runs_with_false_alarms, p.held_out.runs)}; "
        f"{p.held_out.false_alarms} of {p.held_out.rows} held-out control rows flagged."
    )
    if p.locked is not None:
        console.print(one_line(text.locked_claim(p.locked), 600))
    for note in p.notes:
        console.print(one_line(f"{note}.", 400))
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def _columns(default: int) -> int:
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdecimal() and int(text) > 0 else default


def cells(proposal: Proposal, narrow: bool = False) -> Table:
    """One row a cell: what is allowed at the median element, before and after.

    ``narrow`` leaves columns out; no number is ever cut.
    """
    first = "kernel" if proposal.by == "kernel" else "op"
    table = Table(box=None)
    table.add_column(first, no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    last = "proposed_tol" if proposal.rule == "paper" else "paper"
    names = ["now", "proposed", "tighter", "red held out"]
    if not narrow:
        names[3:3] = ["rows", "runs"]
        names += ["recall"]
    if not narrow or proposal.rule == "paper":
        names += [last]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    if not narrow:
        table.add_column("")
    for c in proposal.cells:
        value = f"{c.proposed_tol:.2e}" if c.proposed_tol is not None else "-"
        row = {
            "now": text.scientific(c.allowed_now),
            "proposed": text.scientific(c.allowed_proposed) if c.allowed_proposed else c.state,
            "tighter": text.factor(c.tightening),
            "rows": str(c.rows),
            "runs": str(c.runs),
            "red held out": f"{c.held_out.runs_with_false_alarms} of {c.held_out.runs}",
            "recall": text.percent(c.detectable_recall),
            "proposed_tol": value,
            "paper": text.scientific(c.allowed_paper),
        }
        state = one_line(f"{c.state}: {c.note}" if c.note else c.state, 200)
        table.add_row(
            one_line(c.kernel or c.op, 80),
            one_line(c.dtype, 20),
            *(row[name] for name in names),
            *([] if narrow else [state]),
        )
    return table


@contextmanager
def progress(title: str, unit: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on a terminal's standard error, a plain line now and then elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain(title, unit)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn(unit), TimeRemainingColumn(), TextColumn("{task.fields[what]}"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, what="")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, what=what)


def _plain(title: str, unit: str) -> Callable[[int, int, str], None]:
    began = last = time.monotonic()

    def report(done: int, total: int, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PLAIN_SECONDS or (done == total and total):
            last = now
            rate = done / max(now - began, 1e-9)
            print(f"{title}: {done} of {total} {unit}, {rate:.0f}/s {what}".rstrip(),
                  file=sys.stderr, flush=True)  # fmt: skip

    return report
