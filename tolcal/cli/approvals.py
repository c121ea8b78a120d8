"""``show --approvals``: the audit trail that the tolerance file is."""

from __future__ import annotations

from collections.abc import Iterator

from tolcal.model import Approved, Tolerances, Values, one_line


def lines(cells: Tolerances) -> Iterator[str]:
    """One paragraph an approval, the latest first: when, who, where, of which proposal, why.

    Numbers that were changed since are said to be; cells that nobody approved come last. Earlier
    approvals of a cell are in the file's history (``git log -p``).
    """
    found: dict[tuple[str, str, str, int, str], list[str]] = {}
    nobody = []
    for name, values in _all(cells):
        mark = values.approved
        if mark is None:
            nobody.append(name)
            continue
        by_hand = "" if mark.value == values.value_digest else " (CHANGED BY HAND since)"
        found.setdefault(_key(mark), []).append(name + by_hand)
    for at, by, digest, pr, reason in sorted(found, reverse=True):
        where = f" in #{pr}" if pr >= 0 else ""
        yield f"{at}  {one_line(by, 80)}{where}, proposal {one_line(digest, 32)}"
        if reason:
            yield f"  because {one_line(reason, 400)}"
        yield f"  {', '.join(found[at, by, digest, pr, reason])}"
    if nobody:
        yield f"nobody approved  {', '.join(nobody)}"
    if not found and not nobody:
        yield "no tolerance, so no approval"


def _all(cells: Tolerances) -> Iterator[tuple[str, Values]]:
    """Cells in the file's order, each with its overrides after it."""
    for (op, dtype), tolerance in cells.items():
        yield f"{op}/{dtype}", tolerance
        for device, values in tolerance.on.items():
            yield f"{op}/{dtype} on {device}", values


def _key(mark: Approved) -> tuple[str, str, str, int, str]:
    """What makes an approval one, and how they are sorted; TOML's dates end in +00:00."""
    at = one_line(mark.at, 40).replace("+00:00", "Z")
    return at, mark.by, mark.digest, -1 if mark.pr is None else mark.pr, mark.reason or ""
