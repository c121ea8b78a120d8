"""Document into the rows of the page's tables; what `overview` and `cell` make charts of.

Foreign text becomes printable words of one line here; a replay line is given only for ids that
are nothing but an id, since people paste it into a shell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from tolcal.model import SHARE_MAX, CellProposal, Verdict, one_line
from tolcal.report import findings as amiss
from tolcal.report import text

_ID = re.compile(r"[a-z][a-z0-9_]{0,63}:[0-9a-f]{16}")
_STATES = ("tighten", "new", "looser", "uncalibrated", "unchanged")
Row = dict[str, Any]


class Table(msgspec.Struct, frozen=True):
    """Rows as lists: keys are not repeated in the page."""

    columns: tuple[str, ...]
    rows: list[list[Any]]

    def first(self, count: int) -> Table:
        """Its first rows."""
        return Table(self.columns, self.rows[:count])

    def dicts(self) -> list[Row]:
        """As Vega takes them."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def table(rows: Sequence[Row]) -> Table:
    """Columns in the order in which the rows first name them."""
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


def share_text(share: float) -> str:
    """Of a tolerance, in two digits; SHARE_MAX stands for whatever is not finite, too."""
    return text.number(share) if share < SHARE_MAX else f"over {text.number(SHARE_MAX)}"


def brief(share: float) -> str:
    """At most four characters, for a small square."""
    if share >= 99.5:
        return ">99"
    if share >= 0.95:
        return f"{share:.0f}" if share >= 9.95 else f"{share:.1f}"
    if share >= 0.005:
        return f"{share:.2f}".removeprefix("0")
    return "<.01" if share else "0"


def findings(verdict: Verdict | None) -> list[Row]:
    """What blocks first, then by kind and importance; without what is only caught as before."""
    kinds = [*amiss.KINDS, "caught", "uncalibrated"]
    ordered = sorted(
        text.by_importance(verdict.findings if verdict else ()),
        key=lambda f: (not f.blocks, kinds.index(f.kind)),
    )
    return [
        {
            "kind": f.kind.replace("_", " "),
            "blocks": f.blocks,
            "kernel": name(f.kernel),
            "cell": f"{name(f.op)}/{name(f.dtype)}",
            "cases": f"{f.exceeding} of {f.cases}",
            "dims": name(f.worst_dims),
            "observed": text.residual(f),
            "over": text.over(f),
            "detail": one_line(f.detail, 300),
            "replay": replay(f.worst),
            "minimize": replay(f.worst) and "".join(amiss.commands(f)[1:]),
        }
        for f in ordered
        if f.kind != "caught" or f.newly
    ]


def cell_row(cell: CellProposal) -> Row:
    """The cell in the table of all cells: what it is sorted by, and in ``said`` how that reads.

    Words and numbers are rounded here alone, so that the page and the other formats agree.
    """
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
        "said": [
            text.scientific(cell.allowed_now),
            text.scientific(cell.allowed_proposed),
            text.factor(cell.tightening),
            text.percent(cell.detectable_recall),
            "-" if worst is None else share_text(worst[0]),
        ],
        "dims": "" if worst is None else name(worst[1].shapes[0].dims),
        "replay": "" if worst is None else replay(f"{worst[1].kernel}:{worst[1].shapes[0].case}"),
    }


def cells(ordered: Sequence[CellProposal]) -> Table:
    """The table of all cells."""
    return table([cell_row(cell) for cell in ordered])
