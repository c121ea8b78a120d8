"""The tolerances that a branch is judged by when its base has moved on.

A pull request chooses the commit that it begins at, so the file of that commit alone would let it
choose what it is compared with: one from before a cell was approved or tightened, say.
"""

from __future__ import annotations

import msgspec

from tolcal.model import Cell, Tolerance, Tolerances, Values
from tolcal.tolerances.loosening import unit


def of_both(left: Tolerances, tip: Tolerances) -> tuple[dict[Cell, Tolerance], frozenset[Cell]]:
    """What holds, and the cells that the base's tip has otherwise.

    Args:
        left: the file of the merge base.
        tip: that of the base branch as it is now.
    """
    held = {
        cell: _stricter(cell[1], left.get(cell), tip.get(cell))
        for cell in [*left, *(cell for cell in tip if cell not in left)]
    }
    moved = frozenset(cell for cell in held if not _same(left.get(cell), tip.get(cell)))
    return {cell: t for cell, t in held.items() if t is not None}, moved


def _same(one: Tolerance | None, other: Tolerance | None) -> bool:
    return one is not None and other is not None and one.whole_digest == other.whole_digest


def _stricter(dtype: str, left: Tolerance | None, tip: Tolerance | None) -> Tolerance | None:
    """Lets nothing pass that one of them wouldn't; one of the two as it is, if that does."""
    if left is None or tip is None or left.whole_digest == tip.whole_digest:
        return tip or left
    names = sorted({*left.on, *tip.on})
    on = {d: _stricter_values(dtype, left.for_device(d), tip.for_device(d)) for d in names}
    base = _stricter_values(dtype, left, tip)
    for one in (tip, left):
        if base is one and all(values is one.for_device(d) for d, values in on.items()):
            return one
    whole = {f: getattr(base, f) for f in Values.__struct_fields__}
    plain = {d: Values(**{f: getattr(v, f) for f in Values.__struct_fields__})
             for d, v in on.items()}  # fmt: skip
    return Tolerance(**whole, on=plain)


def _stricter_values(dtype: str, left: Values, tip: Values) -> Values:
    if left.value_digest == tip.value_digest:
        return tip
    own = unit(dtype, tip)
    slope = left.scaled_tol * unit(dtype, left) / own
    within = (left.bias_tol, tip.bias_tol)
    bias = min((b for b in within if b is not None), default=None)
    bound = (min(left.atol, tip.atol), min(slope, tip.scaled_tol), bias)
    if bound == (tip.atol, tip.scaled_tol, tip.bias_tol):
        return tip
    if bound == (left.atol, slope, left.bias_tol):
        return left
    atol, scaled_tol, bias = bound
    return msgspec.structs.replace(tip, atol=atol, scaled_tol=scaled_tol, bias_tol=bias)
