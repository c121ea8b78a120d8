"""What a proposal on a pull request is bound to: one digest that any change of it voids.

Pure, so that an approval can be checked years later from the trailers of its commit alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from tolcal.model import Proposal, Tolerances, digest

#: (op, dtype, whole digest) of a calibrated cell: its values on every device class.
BoundCell = tuple[str, str, str]


def base_digest(branch: str, approved: Tolerances) -> str:
    """16 hex digits over the base branch and the values in force, overrides included."""
    return digest(
        "base",
        branch,
        sorted(
            (op, dtype, cell.value_digest, sorted((d, v.value_digest) for d, v in cell.on.items()))
            for (op, dtype), cell in approved.items()
        ),
    )


def bound_cells(proposal: Proposal) -> tuple[BoundCell, ...]:
    """The cells of a proposal that have a value to approve, sorted."""
    return tuple(
        sorted(
            (cell.op, cell.dtype, cell.tolerance.whole_digest)
            for cell in proposal.cells
            if cell.tolerance is not None
        )
    )


def proposal_digest(head: str, base: str, history: str, cells: Iterable[BoundCell]) -> str:
    """16 hex digits that name one proposal.

    Args:
        head: 40 hex digits of the commit that was measured and judged.
        base: `base_digest` of the base branch and the values in force.
        history: `Proposal.history`.
        cells: `bound_cells`, in any order.
    """
    return digest("pull", head, base, history, sorted(cells))
