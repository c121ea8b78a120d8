"""What transfers between device classes: what each needs, and whether one number holds for all."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tolcal.model import CellProposal, DeviceNeed, Proposal
from tolcal.report import text


class Line(msgspec.Struct, frozen=True):
    """One cell on one device class."""

    cell: CellProposal
    need: DeviceNeed
    share: float  # of what the device class needs that needs most

    @property
    def name(self) -> str:
        """``softmax/float16 on sm_90``."""
        return f"{self.cell.kernel or self.cell.op}/{self.cell.dtype} on {self.need.device_class}"

    @property
    def relation(self) -> str:
        """``most``, ``same`` as that, or a share of it: ``1/3.2``."""
        if self.share >= 1:
            return "most"
        inverse = text.factor(1 / self.share) if self.share > 0 else "0"
        return inverse if inverse in ("same", "0") else f"1/{inverse.removesuffix('x')}"

    @property
    def holds(self) -> str:
        """Whether the cell's one number holds there."""
        return "has its own" if self.need.own else "yes"


def lines(proposal: Proposal) -> list[Line]:
    """Cells in their order, each with its device classes; none where there is but one."""
    found = []
    for cell in proposal.cells:
        if len(cell.by_device) > 1:
            most = max(need.allowed_needed for need in cell.by_device)
            found += [
                Line(cell, need, need.allowed_needed / most if most else 1.0)
                for need in cell.by_device
            ]
    return found


def claim(proposal: Proposal) -> str:
    """``One number holds for 30 of 32 cells measured on several device classes``; "" if none is."""
    cells = {(line.cell.op, line.cell.dtype, line.cell.kernel) for line in lines(proposal)}
    own = {
        (line.cell.op, line.cell.dtype, line.cell.kernel)
        for line in lines(proposal)
        if line.need.own
    }
    if not cells:
        return ""
    return (
        f"One number holds for {len(cells) - len(own)} of {len(cells)} cells on all the device "
        "classes that they were measured on"
    )


def overrides(cell: CellProposal) -> Iterator[Line]:
    """The device classes on which something else holds, or held, than the cell's own values."""
    for need in cell.by_device:
        if need.own or need.allowed_now not in (None, cell.allowed_now):
            yield Line(cell, need, 1.0)
