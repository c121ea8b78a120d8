"""Tables and progress for a terminal; plain text in a pipe."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.cells import cell_len
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

from tolcal.model import CellProposal, Proposal, Verdict, one_line, plural
from tolcal.report import findings, text, transfer
from tolcal.report.document import Document

#: Where there is no terminal, a line at most this often.
PLAIN_SECONDS = 10.0
#: On one, bars are drawn at most so often, and so many of them.
DRAW_SECONDS = 0.1
MAX_BARS = 8
#: Rows of a table, which nobody reads to the end; laying out 10,000 takes half a minute.
MAX_ROWS = 1_000
#: Of a pipe, which takes any.
WIDE = 10_000
#: What the note of a cell takes at least: it is wrapped, and a table without it is narrower.
NOTE_WIDTH = 24
#: Below this nothing can be laid out; a narrower terminal breaks the lines itself.
LEAST_WIDTH = 24


def render(document: Document) -> str:
    """The headline, every cell, and the findings, in the width of the terminal or COLUMNS.

    A pipe has no width: there tables take what they need and a sentence is a line.
    """
    tty = sys.stdout.isatty()
    width = shutil.get_terminal_size((160, 24)).columns if tty else _columns()
    console = Console(
        file=io.StringIO(),
        width=max(width or WIDE, LEAST_WIDTH),
        force_terminal=tty or None,
        highlight=False,
        markup=False,
    )
    p, verdict = document.proposal, document.verdict
    _cells(console, p)
    console.print()
    _transfer(console, p)
    if verdict:
        _findings(console, verdict)
    console.print(f"tolcal: {text.headline(p, verdict, document.pull)}")
    if verdict and (skipped := verdict.statuses.get("skipped", 0)):
        reasons = "; ".join(f"{n}: {one_line(why, 200)}" for why, n in text.skips(verdict)[:5])
        console.print(f"{plural(skipped, 'record')} skipped{f' ({reasons})' if reasons else ''}.")
    console.print(f"{text.recall_claim(p)}. {text.held_out_claims(p)}.")
    if p.forecast is not None:
        console.print(one_line(f"{text.forecast_claim(p)}.", 600))
    if p.locked is not None:
        console.print(one_line(text.locked_claim(p.locked), 600))
    for note in p.notes[:MAX_ROWS]:
        console.print(one_line(f"{note}.", 400))
    _more(console, len(p.notes))
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def _more(console: Console, rows: int) -> None:
    if rows > MAX_ROWS:
        console.print(f" ... and {rows - MAX_ROWS} more (`--format summary` or `json`)")


def _columns() -> int | None:
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _findings(console: Console, verdict: Verdict) -> None:
    """What is worth a look, and how to see it again; nothing if there is nothing."""
    worth = [f for f in verdict.findings if f.kind != "caught" or f.newly]
    if not worth:
        return
    shown = worth[:MAX_ROWS]
    rows = [
        (
            f.kind + (" (blocks)" if f.blocks else ""), one_line(f.kernel, 80),
            one_line(f.dtype, 20), f"{f.exceeding} of {f.cases}", text.over(f),
        )
        for f in shown
    ]  # fmt: skip
    heads = ("finding", "kernel", "dtype", "cases", "exceeds")
    if _width(heads, rows) <= console.width:
        table = Table(*heads, box=None)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    else:
        for kind, kernel, dtype, cases, over in rows:
            said = {"-": "", "not finite": ", not finite"}.get(over, f", {over} the bound")
            console.print(f"{kind}: {kernel} {dtype}, {cases} cases{said}")
    _more(console, len(worth))
    for f in shown:  # whole, to be copied: no table may cut an id
        for command in findings.commands(f):
            console.print(f"  {command}", soft_wrap=True)
    console.print()


def _cells(console: Console, proposal: Proposal) -> None:
    """One row a cell: what is allowed at the median element, before and after.

    Columns are left out where the width asks for it, and then a cell is a line of words: no
    number is ever cut.
    """
    last = "proposed_tol" if proposal.rule == "paper" else "paper"
    numbers = ("now", "proposed", "tighter", "red held out")
    most = (*numbers[:3], "rows", "runs", numbers[3], "recall", last)
    least = (*numbers, last) if proposal.rule == "paper" else numbers
    first = "kernel" if proposal.by == "kernel" else "op"
    cells = proposal.cells[:MAX_ROWS]
    found, notes = [], []
    for c in cells:
        found.append(_cell(c))
        notes.append(one_line(f"{c.state}: {c.note}" if c.note else c.state, 200))
        for line in transfer.overrides(c):
            found.append(_override(found[-1], line))
            notes.append("its own" if line.need.own else "no longer its own")
    for names, noted in ((most, True), (least, False)):
        heads = (first, "dtype", *names)
        rows = [(row["name"], row["dtype"], *(row[n] for n in names)) for row in found]
        if _width(heads, rows) + (NOTE_WIDTH if noted else 0) > console.width:
            continue
        table = Table(box=None)
        for head in heads:
            right = head not in heads[:2]
            table.add_column(head, justify="right" if right else "left", no_wrap=True)
        if noted:
            table.add_column("")
        for row, note in zip(rows, notes, strict=True):
            table.add_row(*row, *([note] if noted else []))
        console.print(table)
        break
    else:
        for values, note in zip(found, notes, strict=True):
            console.print(f"{values['name']}/{values['dtype']}: {note}")
            known = [f"{values[n]} {n}" for n in least if values[n][:1].isdigit()]
            console.print(f"  {', '.join(known)}".replace("looser tighter", "looser"))
    _more(console, len(proposal.cells))


def _override(cell: dict[str, str], line: transfer.Line) -> dict[str, str]:
    """The row of a device class below that of its cell."""
    need = line.need
    return dict.fromkeys(cell, "") | {
        "name": one_line(f"  on {need.device_class}", 80),
        "dtype": cell["dtype"],
        "now": text.scientific(need.allowed_now),
        "proposed": text.scientific(need.allowed_proposed),
        "tighter": text.factor(need.tightening),
        "rows": str(need.rows),
        "runs": str(need.runs),
    }


def _transfer(console: Console, proposal: Proposal) -> None:
    """What each device class needs, where there are several."""
    lines = transfer.lines(proposal)
    if not lines:
        return
    rows = [
        (one_line(line.name, 120), text.scientific(line.need.allowed_needed), line.relation,
         line.holds)
        for line in lines[:MAX_ROWS]
    ]  # fmt: skip
    heads = ("cell on a device class", "needs", "of the most", "one number holds")
    if _width(heads, rows) <= console.width:
        table = Table(*heads, box=None)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        _more(console, len(lines))
    console.print(f"{transfer.claim(proposal)}.")


def _cell(c: CellProposal) -> dict[str, str]:
    return {
        "name": one_line(c.kernel or c.op, 80),
        "dtype": one_line(c.dtype, 20),
        "now": text.scientific(c.allowed_now),
        "proposed": text.scientific(c.allowed_proposed) if c.allowed_proposed else c.state,
        "tighter": text.factor(c.tightening),
        "rows": str(c.rows),
        "runs": str(c.runs),
        "red held out": f"{c.held_out.runs_with_false_alarms} of {c.held_out.runs}",
        "recall": text.percent(c.detectable_recall),
        "proposed_tol": f"{c.proposed_tol:.2e}" if c.proposed_tol is not None else "-",
        "paper": text.scientific(c.allowed_paper),
    }


def _width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """What a table without lines takes if nothing of it is cut."""
    return sum(2 + max(map(cell_len, column)) for column in zip(heads, *rows, strict=True))


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
    console = Console(file=io.StringIO(), width=WIDE, highlight=False, markup=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())
