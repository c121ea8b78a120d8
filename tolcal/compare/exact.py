"""What records say without a tolerance: checks that failed, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tolcal import bounds
from tolcal.model import RELATIONS, Checks, Record, plural

#: What each count of a check is of.
_COUNTED = {
    "unwritten": "{} left unwritten",
    "stray": "{} written outside of tensors",
    "inputs_changed": "{} of inputs written to",
    "unrepeatable": "{} with other bits in another launch",
    "batch": "{} whose bits depend on the batch",
    "broken": "{} that break a relation",
}


def failed(records: Sequence[Record]) -> bounds.Bools:
    """Which records fail a check that needs no tolerance."""
    return np.array([r.checks is not None and bool(r.checks.failed) for r in records], bool)


def words(records: Sequence[Record]) -> str:
    """Each check that fails, in how many cases, how often at most, and where that is.

    ``unwritten in 2 cases: 4 elements left unwritten at B=1 H=7 (my_kernel:9e1c02b7d4a8f655)``;
    "" if none does.
    """
    parts = []
    for name, counted in _COUNTED.items():
        failing = [(n, r) for r in records if r.checks and (n := getattr(r.checks, name) or 0)]
        if not failing:
            continue
        count, worst = max(failing, key=lambda found: found[0])
        far = f" ({relations_of(worst.checks)})" if name == "broken" else ""
        what = counted.format(plural(count, "element"))
        parts.append(
            f"{name} in {plural(len(failing), 'case')}: {what}{far} at {worst.case.dims_text} "
            f"({worst.id})"
        )
    return "; ".join(parts)


def relations_of(checks: Checks | None) -> str:
    """The relations by how far their sides are apart: ``shift 3.1e+04, odd 2``."""
    values = {kind: getattr(checks, kind) for kind in RELATIONS}
    far = sorted(((value, kind) for kind, value in values.items() if value), reverse=True)
    return ", ".join(f"{kind} {value:.2g}" for value, kind in far) or "bits alone"
