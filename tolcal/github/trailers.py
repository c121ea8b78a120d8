"""What an approval is bound to, as the trailers of its commit's message.

::

    Tolcal-Head: <40 hex>                  that was measured
    Tolcal-Base: <16 hex>                  `binding.base_digest`: the branch and its values
    Tolcal-History: <16 hex>               `Proposal.history`
    Tolcal-Cell: softmax/float16 <16 hex>  value digest; one line for each cell of the proposal
    Tolcal-Comment: <id>                   of the comment that approves
    Tolcal-By: <login>                     its author, for people to read

They hash to the proposal's digest (`binding.proposal_digest`), so an approval can be checked from
its commit alone.
"""

from __future__ import annotations

import re

import msgspec

from tolcal.github import binding
from tolcal.model import DTYPES, NAME, Cell

_LINE = re.compile(r"(Tolcal-[A-Z][a-z]+): (\S.*)")
_ONCE = {
    "Tolcal-Head": re.compile(r"[0-9a-f]{40}"),
    "Tolcal-Base": re.compile(r"[0-9a-f]{16}"),
    "Tolcal-History": re.compile(r"[0-9a-f]{16}"),
    "Tolcal-Comment": re.compile(r"[1-9][0-9]{0,18}"),
    "Tolcal-By": re.compile(r"[A-Za-z0-9_.-]{1,100}"),
}
_CELL = re.compile(r"([a-z0-9_]+)/([a-z0-9_]+) ([0-9a-f]{16})")


class Trailers(msgspec.Struct, frozen=True):
    """The parts of a proposal's digest, and the comment that approved it."""

    head: str
    base: str
    history: str
    cells: tuple[binding.BoundCell, ...]
    comment: int
    by: str

    @property
    def digest(self) -> str:
        """The proposal's."""
        return binding.proposal_digest(self.head, self.base, self.history, self.cells)

    def value(self, cell: Cell) -> str | None:
        """The value digest that a cell is bound to."""
        return next((v for op, dtype, v in self.cells if (op, dtype) == cell), None)


def text(trailers: Trailers) -> str:
    """The last paragraph of a commit's message."""
    lines = [
        f"Tolcal-Head: {trailers.head}",
        f"Tolcal-Base: {trailers.base}",
        f"Tolcal-History: {trailers.history}",
        *(f"Tolcal-Cell: {op}/{dtype} {value}" for op, dtype, value in trailers.cells),
        f"Tolcal-Comment: {trailers.comment}",
        f"Tolcal-By: {trailers.by}",
    ]
    return "\n".join(lines) + "\n"


def parse(message: str) -> Trailers | None:
    """The trailers of a commit's message; None if it hasn't just the right ones."""
    once: dict[str, str] = {}
    cells: dict[Cell, str] = {}
    for line in message.rstrip().rpartition("\n\n")[2].split("\n"):
        found = _LINE.fullmatch(line)
        if found is None:
            continue  # others' trailers
        key, value = found.groups()
        if key == "Tolcal-Cell":
            parts = _CELL.fullmatch(value)
            if parts is None:
                return None
            op, dtype, bound = parts.groups()
            if not NAME.fullmatch(op) or dtype not in DTYPES or (op, dtype) in cells:
                return None
            cells[op, dtype] = bound
        elif key in once or key not in _ONCE or not _ONCE[key].fullmatch(value):
            return None
        else:
            once[key] = value
    if set(once) != set(_ONCE) or not cells:
        return None
    return Trailers(
        head=once["Tolcal-Head"],
        base=once["Tolcal-Base"],
        history=once["Tolcal-History"],
        cells=tuple(sorted((op, dtype, value) for (op, dtype), value in cells.items())),
        comment=int(once["Tolcal-Comment"]),
        by=once["Tolcal-By"],
    )
