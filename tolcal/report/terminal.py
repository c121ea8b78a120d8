"""Tables and progress for a terminal; plain text in a pipe."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from tolcal.model import Proposal, one_line
from tolcal.report import text
from tolcal.report.document import Document

#: Where there is no terminal, a line at most this often.
PLAIN_SECONDS = 10.0
#: On one, bars are drawn at most so often, and so many of them.
DRAW_SECONDS = 0.1
MAX_BARS = 8
#: Rows of a table, which nobody reads to the end; laying out 10,000 takes half a minute.
MAX_ROWS = 1_000
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
    _more(console, len(document.proposal.cells))
    verdict = document.verdict
    console.print()
    if verdict and verdict.findings:
        table = Table("finding", "kernel", "dtype", "cases", "exceeds", box=None)
        worth = [f for f in verdict.findings if f.kind != "caught" or f.newly]
        shown = worth[:MAX_ROWS]
        for f in shown:
            table.add_row(
                f.kind + (" (blocks)" if f.blocks else ""), one_line(f.kernel, 80),
                one_line(f.dtype, 20), f"{f.exceeding} of {f.cases}", text.times(f.over),
            )  # fmt: skip
        console.print(table)
        _more(console, len(worth))
        for f in shown:  # whole, to be copied: no table may cut an id
            if f.exceeding:
                console.print(f"  tolcal replay {one_line(f.worst, 100)}", soft_wrap=True)
        console.print()
    p = document.proposal
    console.print(f"tolcal: {text.headline(p, verdict, document.pull)}")
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


def _more(console: Console, rows: int) -> None:
    if rows > MAX_ROWS:
        console.print(f" ... and {rows - MAX_ROWS} more (`--format summary` or `json`)")


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
    for c in proposal.cells[:MAX_ROWS]:
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
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
        TimeRemainingColumn(), TextColumn("{task.fields[what]}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, what="")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, what=what)


@contextmanager
def measuring() -> Iterator[Callable[[int, int, str, int, int], None]]:
    """Bars of a run and its ops, with rate and time left; plain lines where is no terminal.

    Called with records done and planned, an op, and its records done and planned.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        plain = _plain("measuring", "records")
        yield lambda done, total, op, n, of: plain(done, total, f"{op} {n} of {of}")
        return
    with Progress(*Bars.columns(), console=console, transient=True) as bar:
        yield Bars(bar).report


class Bars:
    """One bar for all records, and one for each op that is under way."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.tasks: dict[str, TaskID] = {}  # the last touched last
        self.drawn = 0.0

    @staticmethod
    def columns() -> tuple[ProgressColumn, ...]:
        """What a bar consists of."""
        return (
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            _Rate(), TimeRemainingColumn(),
        )  # fmt: skip

    def report(self, done: int, total: int, op: str, op_done: int, op_total: int) -> None:
        """A record is done."""
        now = time.monotonic()
        if now - self.drawn < DRAW_SECONDS and op_done < op_total:
            return  # a bar costs more than a record of a fast kernel
        self.drawn = now
        self._draw("", "all", done, total)
        self._draw(op, one_line(op, 40), op_done, op_total)
        for old in list(self.tasks)[1:-MAX_BARS]:
            self.bar.remove_task(self.tasks.pop(old))

    def _draw(self, key: str, name: str, done: int, total: int) -> None:
        if key not in self.tasks:
            # What was there before has no share in the rate.
            self.tasks[key] = self.bar.add_task(name, total=total, completed=done - 1)
        if key:
            self.tasks[key] = self.tasks.pop(key)
        self.bar.update(self.tasks[key], completed=done, visible=done < total or not key)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Records a second."""
        return Text(f"{task.speed or 0:.0f}/s", style="progress.data.speed")


def _plain(title: str, unit: str) -> Callable[[int, int, str], None]:
    began = last = time.monotonic()
    before: int | None = None

    def report(done: int, total: int, what: str) -> None:
        nonlocal began, last, before
        now = time.monotonic()
        if before is None:
            # Neither the start nor what an earlier run has done has a share in the rate.
            began, before = now, done
        if now - last >= PLAIN_SECONDS or (done == total and total):
            last = now
            rate = (done - before) / (now - began) if now > began else 0.0
            pace = f", {rate:.0f}/s" if rate else ""
            left = f", {_clock((total - done) / rate)} left" if done < total and rate else ""
            line = f"{title}: {done} of {total} {unit}{pace}{left}, {what}"
            print(one_line(line, 200).rstrip(", "), file=sys.stderr, flush=True)

    return report


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
    )


def listing(columns: Sequence[str], rows: Sequence[Sequence[str | int]]) -> str:
    """A plain table; numbers to the right, text whole."""
    table = Table(box=None, pad_edge=False)
    numeric = [all(isinstance(row[i], int) for row in rows) for i in range(len(columns))]
    for name, number in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(one_line(str(cell), 200)) for cell in row))
    console = Console(file=io.StringIO(), width=10_000, highlight=False, markup=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())
