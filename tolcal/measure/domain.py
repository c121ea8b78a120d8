"""Which output elements depend on inputs outside the op's domain.

Outside it are, of float inputs, values beyond `InputSpec.domain` and, unless the op says
`nonfinite`, those that are not finite. The reference is evaluated once more with all of them
replaced by nan: what turns nan depends on them, unless it is nan as they are, and also with values
in their places that the op is usually given. A reference that drops a nan (``torch.where`` that
takes the other branch, ``clamp`` of one sign, a maximum that ignores nan) thereby says that
nothing depends on it: write it so that nan comes through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from tolcal import cases, stats
from tolcal.model import DTYPES, Case, Op


class Part(NamedTuple):
    """The output elements of a case outside and inside the domain, flattened."""

    mask: torch.Tensor  # bool, of the output's shape: outside
    outside: torch.Tensor  # int64 indices
    inside: torch.Tensor


def may_leave(op: Op, case: Case, factor: float = 1.0) -> bool:
    """Whether inputs of that case, all times ``factor``, can be outside the domain."""
    if case.profile not in cases.LIKE_DEFAULT:
        return True
    for spec in op.inputs.values():
        if spec.is_integer:
            continue
        most = DTYPES[spec.dtype or case.dtype].max
        least, most = spec.domain or (-most, most)
        ends = (factor * spec.low, factor * spec.high)
        if min(ends) < least or max(ends) > most:
            return True
    return False


def depends(
    op: Op,
    reference: Callable[..., torch.Tensor],
    wide: Mapping[str, torch.Tensor],
    ref: torch.Tensor | None = None,
) -> torch.Tensor:
    """bool, of the output's shape: whether an element depends on inputs outside the domain.

    An element that is nan with them, and though all such inputs were inside, is not theirs, but
    the op's own nan.

    Args:
        op: whose domain it is.
        reference: of the op.
        wide: its inputs in fp64 (integers in int64), by name.
        ref: ``reference(**wide)``, where that is known.
    """
    spoilt, tame = {}, {}
    for name, x in wide.items():
        spec = op.inputs[name]
        spoilt[name] = tame[name] = x
        if not x.dtype.is_floating_point:
            continue
        bad = torch.zeros_like(x, dtype=torch.bool) if op.nonfinite else ~torch.isfinite(x)
        if spec.domain is not None:
            low, high = spec.domain
            finite = torch.isfinite(x)
            bad = bad | (finite & ((x < low) | (x > high)))
        spoilt[name] = torch.where(bad, torch.nan, x)
        tame[name] = torch.where(bad, cases.usual_torch(name, spec, x.shape, x.device), x)
    ref = reference(**wide) if ref is None else ref
    own = ref.isnan() & reference(**tame).isnan()
    return reference(**spoilt).isnan() & ~own


def part(mask: torch.Tensor) -> Part | None:
    """The elements by that mask; None where none is outside. Waits for the device."""
    flat = mask.reshape(-1)
    outside = flat.nonzero().reshape(-1)
    if not outside.numel():
        return None
    return Part(mask, outside, (~flat).nonzero().reshape(-1))


def kinds_outside(
    found: Part, out: torch.Tensor, ref: torch.Tensor, control: torch.Tensor | None
) -> torch.Tensor:
    """[2] int64: elements outside whose kind (finite, +inf, -inf, nan) is not the reference's,
    and not ``control``'s (of a buggy kernel; None: -1, not known).
    """
    ours = out.reshape(-1)[found.outside]
    mismatch = stats.mismatches(ours, ref.reshape(-1)[found.outside].contiguous()).sum()
    differing = torch.full_like(mismatch, -1)
    if control is not None:
        theirs = control.reshape(-1)[found.outside]
        differing = (stats.kinds(ours.double()) != stats.kinds(theirs.double())).sum()
    return torch.stack([mismatch, differing])
