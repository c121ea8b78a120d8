"""From a proposal to the cells that are written: the same by command line and by comment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tolcal import tomlfile
from tolcal.model import (
    Approved,
    Cell,
    CellProposal,
    Proposal,
    TolcalError,
    Tolerance,
    Tolerances,
    Values,
    one_line,
    plural,
)


def must_be_approvable(proposal: Proposal, name: str) -> None:
    """TolcalError for a proposal that was made for comparison alone."""
    if proposal.rule != "residual" or proposal.by != "op":
        raise TolcalError(
            f"{name}: rule {proposal.rule!r} by {proposal.by} is for comparison; approve a "
            "proposal of `tolcal calibrate --rule residual --by op`"
        )


def must_be_unedited(proposal: Proposal, name: str) -> None:
    """TolcalError unless its numbers and their evidence are those that a fit gave."""
    found = proposal.content_digest
    if proposal.seal != found:
        raise TolcalError(
            f"{name}: its cells have the digest {found}, its seal is "
            f"{one_line(proposal.seal, 40) or 'missing'}: it was edited, or made by another "
            "version of tolcal; make it again (`tolcal calibrate --json`), and change numbers in "
            "the tolerance file alone"
        )


def is_no_reason(text: str) -> bool:
    """Whether it says nothing: no letter, or the ``REASON`` of a line that was copied."""
    return text.strip(" .,:;!<>[]\"'`") == "REASON" or not any(c.isalpha() for c in text)


def to_widen(proposal: Proposal) -> list[CellProposal]:
    """Cells that only a widening lets in: those that would be looser."""
    return [c for c in proposal.cells if c.state == "looser" and c.tolerance]


def chosen(
    cells: Sequence[CellProposal], wanted: Iterable[str], proposed: Sequence[CellProposal], how: str
) -> list[CellProposal]:
    """Of ``cells``, those of a wanted ``op`` or ``op/dtype``.

    Raises TolcalError with the reason if a name has none among them; ``how`` is what widens.
    """
    found: dict[str, CellProposal] = {}
    for name in wanted:
        hits = {k: c for k, c in _named(cells).items() if k == name or k.startswith(f"{name}/")}
        if not hits:
            raise TolcalError(f"{name}: {_why_not(name, proposed, how)}")
        found |= hits
    return list(found.values())


def _named(cells: Iterable[CellProposal]) -> dict[str, CellProposal]:
    return {f"{c.op}/{c.dtype}": c for c in cells}


def _why_not(name: str, proposed: Sequence[CellProposal], how: str) -> str:
    """Why no cell of that name can be approved, and what to do."""
    of_name = {k: c for k, c in _named(proposed).items() if k == name or c.op == name}
    states = {c.state for c in of_name.values()}
    if "looser" in states:
        return f"it would be looser, which needs {how}"
    if states == {"unchanged"}:
        return "unchanged within rounding, so there is nothing to approve or to widen"
    if "uncalibrated" in states:
        runs = max(c.needs_runs for c in of_name.values())
        rows = max(c.needs_rows for c in of_name.values())
        more = plural(runs, "more run") if runs else plural(rows, "more row")
        return f"not calibrated, {more} needed; measure and calibrate again"
    hint = tomlfile.did_you_mean(name, [*_named(proposed), *(c.op for c in proposed)])
    return f"no cell of that name in the proposal{hint or '; `tolcal report` lists them'}"


def values(
    cells: Iterable[CellProposal], present: Tolerances, mark: Approved, name: str, remedy: str
) -> dict[Cell, Tolerance]:
    """What is to be written: the cells whose numbers are not the approved ones already.

    Args:
        cells: chosen ones of a proposal.
        present: the tolerances in force.
        mark: who approves; the digest of its ``value`` is filled in, and its reason is kept for
            cells that become looser alone.
        name: the tolerance file's.
        remedy: what to do about a cell that has changed since the proposal was made.

    Raises:
        TolcalError: for such a cell.
    """
    written: dict[Cell, Tolerance] = {}
    for cell in cells:
        assert cell.tolerance is not None
        now = present.get((cell.op, cell.dtype))
        base = None if now is None else now.whole_digest
        if base == cell.tolerance.whole_digest:
            continue  # approved already
        if base != cell.base:
            raise TolcalError(
                f"{name}: {cell.op}/{cell.dtype} is not what the proposal was compared with; "
                f"{remedy}"
            )
        written[cell.op, cell.dtype] = _marked(cell.tolerance, now, mark, cell)
    return written


def _marked(
    tolerance: Tolerance, now: Tolerance | None, mark: Approved, cell: CellProposal
) -> Tolerance:
    """With the mark on the cell, and on each override that is not in force there already."""
    why = {need.device_class: need for need in cell.by_device}
    on: dict[str, Values] = {}
    for device, values in tolerance.on.items():
        before = now.on.get(device) if now else None
        if before is not None and before.value_digest == values.value_digest:
            on[device] = before
        else:
            reason = _reason(mark, why[device].tightening if device in why else None)
            signed = msgspec.structs.replace(mark, value=values.value_digest, reason=reason)
            on[device] = msgspec.structs.replace(values, approved=signed)
    reason = _reason(mark, cell.tightening)
    gone = [d for d in (now.on if now else {}) if d not in on]
    if any(_reason(mark, why[d].tightening) for d in gone if d in why):
        reason = mark.reason  # where an override leaves, the cell holds, which is looser there
    elif now is not None and now.approved and now.value_digest == tolerance.value_digest:
        reason = now.approved.reason  # of the same numbers
    signed = msgspec.structs.replace(mark, value=tolerance.value_digest, reason=reason)
    return msgspec.structs.replace(tolerance, approved=signed, on=on)


def _reason(mark: Approved, tightening: float | None) -> str | None:
    """A widening's, where it widens."""
    return mark.reason if (tightening or 1.0) < 1.0 else None


def by_name(cells: Iterable[Cell]) -> list[str]:
    """``softmax/float16`` of each, sorted."""
    return sorted("/".join(cell) for cell in cells)
