"""Metamorphic relations: what an op's outputs on related inputs must have to do with each other.

No reference is needed to state them, and no tolerance that was fitted: each side is a launch of
the kernel itself. Their difference is measured in u*(|ref| + sigma), the unit of tolerances, beyond
the rounding of the outputs (half a gap of the output's dtype for each side).

Inputs are transformed exactly in their own dtype. Left out are elements that depend on inputs
outside the op's domain, before or after, those of which one side may lie beyond the output's range
and the other within, and those where the fp64 reference itself does not keep the relation: an
epsilon may matter there. How many are left is part of the result: of 0 nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from tolcal import stats
from tolcal.measure import domain
from tolcal.measure.context import Context
from tolcal.measure.watch import alike, bits
from tolcal.model import DTYPES, RELATION_MAX, Relation

#: Scaling by 2^2: upwards it is exact for subnormals, too.
POWER = 2
#: What a CPU's vector loops may make of an element in another place: so many units of the compute
#: dtype, or roundings of the case's, of the largest element; cancellation may be on its way.
LOOP_UNITS, LOOP_ROUNDINGS = 64.0, 8.0
Inputs = Mapping[str, torch.Tensor]
Launch = Callable[[Inputs], torch.Tensor]


class Distance(NamedTuple):
    """Of two sides; each is a tensor [] on the device."""

    largest: torch.Tensor  # fp64, in units of u*(|ref| + sigma)
    beyond: torch.Tensor  # int64: elements beyond what is allowed
    judged: torch.Tensor  # int64: elements that were not left out


def distance(
    ours: torch.Tensor,
    theirs: torch.Tensor,
    *,
    slack: torch.Tensor,
    unit: torch.Tensor,
    allowed: float,
    left_out: torch.Tensor,
) -> Distance:
    """How far two sides are apart.

    Args:
        ours, theirs: fp64, of one shape.
        slack: what the rounding of the outputs explains, not counted unless ``allowed`` is 0.
        unit: that differences beyond it are measured in.
        allowed: how many units; 0: bit for bit, where both zeros are equal and nan is like nan.
        left_out: bool; elements that are not judged.

    Where one side is not finite and the other is not the same, they are RELATION_MAX apart.
    """
    same = (ours == theirs) | (ours.isnan() & theirs.isnan()) | left_out
    finite = torch.isfinite(ours) & torch.isfinite(theirs)
    apart = (ours - theirs).abs()
    if allowed:
        apart = (apart - slack).clamp(min=0.0)
    units = torch.where(apart == 0, 0.0, apart / unit)
    units = torch.where(finite, units, torch.inf)
    units = torch.where(same, 0.0, units).nan_to_num(RELATION_MAX, RELATION_MAX)
    units = units.clamp(max=RELATION_MAX)
    beyond = units > allowed if allowed else ~same
    largest = units.max() if units.numel() else units.new_zeros(())
    return Distance(largest, beyond.sum(), (~left_out).sum())


def measure(
    context: Context,
    relation: Relation,
    first: torch.Tensor,
    launch: Launch,
    vectorised: bool = False,
) -> Distance:
    """How far the kernel of ``launch`` is from keeping ``relation`` on the case of ``context``.

    Args:
        context: the case.
        relation: one that its op declares, not ``configs``.
        first: the kernel's output on the case itself.
        launch: runs the kernel on other inputs of the same shapes.
        vectorised: whether a permutation may cost what `of_loops` says.
    """
    if relation.kind == "sums":
        return _sums(context, relation, first)
    if relation.kind == "shift":
        return _shift(context, relation, launch)
    if relation.kind == "linear":
        return _linear(context, relation, first, launch)
    slack, units = context.gap, relation.units
    if vectorised and relation.kind == "permutation":
        slack, units = slack + of_loops(context), max(units, 1.0)
    return _mapped(context, relation, first, launch, slack, units)


def _mapped(
    context: Context,
    relation: Relation,
    first: torch.Tensor,
    launch: Launch,
    slack: torch.Tensor,
    units: float,
) -> Distance:
    """f(T x) = S f(x), held as S^-1 f(T x) = f(x), within ``units`` beyond ``slack``."""
    power = 2.0**POWER if relation.kind.startswith("scale") else 1.0
    factor = -1.0 if relation.kind == "odd" else power
    orders = _orders(context, relation.dims)
    if relation.kind == "permutation" and not orders:  # where nothing moves nothing shows
        none = torch.zeros((), dtype=torch.int64, device=context.device)
        return Distance(none.double(), none, none)
    moved = dict(context.inputs)
    for name, x in context.inputs.items():
        values = x
        if name in relation.inputs:
            values = (x.double() * factor).to(x.dtype)
        for axis, entry in enumerate(context.op.inputs[name].shape):
            if entry in orders:
                values = bits(values).index_select(axis, orders[entry]).view(x.dtype)
        if values is not x:
            moved[name] = alike(x, values)

    def back(y: torch.Tensor) -> torch.Tensor:
        """S^-1, in fp64."""
        for axis, entry in enumerate(context.op.output):
            if entry in orders:
                y = y.index_select(axis, orders[entry].argsort())
        if relation.kind == "odd":
            return -y
        return y / power if relation.kind == "scale_equivariant" else y

    wide = context.wide_of(moved)
    found = context.reference(**wide)
    left_out = _left_out(context, back(found), context.ref, context.scale, units)
    if domain.may_leave(context.op, context.case, factor):
        left_out |= back(_outside(context, wide, found).double()) != 0
    if relation.kind == "scale_equivariant":
        left_out |= _rescales_badly(context, context.ref, power)
    return distance(
        back(_copied(launch(moved))), first.double(), slack=slack,
        unit=context.roundoff * context.scale, allowed=units, left_out=left_out,
    )  # fmt: skip


def of_loops(context: Context) -> torch.Tensor:
    """[] fp64: by how much an output element may differ where it lies elsewhere in a CPU's loops.

    They compute what is no full vector in another way. A kernel of several such steps rounds what
    it has in between, which may be as large as the largest output.
    """
    unit = max(LOOP_UNITS * context.roundoff, LOOP_ROUNDINGS * DTYPES[context.case.dtype].roundoff)
    largest = context.scale.max() if context.scale.numel() else context.scale.new_zeros(())
    return unit * largest


def far_in_loops(
    context: Context, ours: torch.Tensor, theirs: torch.Tensor, axis: int, start: int
) -> torch.Tensor:
    """[] int64: of some rows of the output, from ``start`` along ``axis``, elements that differ by
    more than `of_loops` and a gap."""
    left_out = _left_out(context, context.ref, context.ref, context.scale, LOOP_UNITS)
    gap, left_out = (x.narrow(axis, start, ours.shape[axis]) for x in (context.gap, left_out))
    unit = of_loops(context)
    return distance(
        ours.double(), theirs.double(), slack=gap, unit=unit, allowed=1.0, left_out=left_out
    ).beyond


def _copied(out: torch.Tensor) -> torch.Tensor:
    """As fp64, and never the memory itself: a kernel may use that again for its next output."""
    return out.to(torch.float64, copy=True)


def _outside(context: Context, wide: Mapping[str, torch.Tensor], ref: torch.Tensor) -> torch.Tensor:
    """bool: elements that depend on what of other inputs lies outside the domain."""
    return domain.depends(context.op, context.reference, wide, ref)


def _shift(context: Context, relation: Relation, launch: Launch) -> Distance:
    """f(b + c) = f(b): b is x without the bits that b + c has no room for."""
    lower, upper = dict(context.inputs), dict(context.inputs)
    pairs = shifted([context.inputs[name] for name in relation.inputs])
    for name, (low, high) in zip(relation.inputs, pairs, strict=True):
        lower[name] = alike(context.inputs[name], low)
        upper[name] = alike(context.inputs[name], high)
    sides = [(one, *context.evaluated(one)) for one in (lower, upper)]
    (_, ref, sigma), (_, moved, moved_sigma) = sides
    scale = (ref.abs() + sigma + moved.abs() + moved_sigma) / 2
    left_out = _left_out(context, moved, ref, scale, relation.units)
    bounded = any(context.op.inputs[name].domain is not None for name in relation.inputs)
    if bounded or domain.may_leave(context.op, context.case):
        for side, of_side, _ in sides:
            left_out |= _outside(context, context.wide_of(side), of_side)
    return distance(
        _copied(launch(upper)), _copied(launch(lower)), slack=context.gap_at(ref),
        unit=context.roundoff * scale, allowed=relation.units, left_out=left_out,
    )  # fmt: skip


def shifted(inputs: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of each x: b near it, and b + c, exactly, in its dtype.

    c is one power of two for all, as large as the largest of their values. Values that are not
    finite, or too large for a sum in the narrowest of their dtypes, stay as they are, in both.
    """
    dtypes = [stats.dtype_of(x) for x in inputs]
    most = min(dtype.max for dtype in dtypes) / 8
    wides = [x.double() for x in inputs]
    usable = [torch.isfinite(wide) & (wide.abs() < most) for wide in wides]
    sizes = [torch.where(ok, x.abs(), 0.0) for ok, x in zip(usable, wides, strict=True)]
    largest = torch.cat([size.reshape(-1) for size in sizes]).amax()
    largest = torch.where(largest > 0, largest, 1.0)
    fine = DTYPES["float64"]
    c = stats.gap(largest, fine) * 2.0 ** (fine.precision - 1)  # its binade, exactly
    c = c.clamp(min=2.0 ** (max(dtype.emin for dtype in dtypes) + 8))
    pairs = []
    for x, dtype, wide, ok, size in zip(inputs, dtypes, wides, usable, sizes, strict=True):
        # Multiples of this up to twice the sum of both are numbers of the dtype, c among them.
        step = stats.gap((size + c) * 2, dtype)
        low = torch.where(ok, torch.round(wide / step) * step, wide)
        pairs.append((low.to(x.dtype), torch.where(ok, low + c, wide).to(x.dtype)))
    return pairs


def _linear(context: Context, relation: Relation, first: torch.Tensor, launch: Launch) -> Distance:
    """f(x) = f(a) + f(x - a): a is x at about half of its elements, and 0 at the others."""
    one, other = dict(context.inputs), dict(context.inputs)
    for name in relation.inputs:
        x = context.inputs[name]
        ordinal = torch.arange(x.numel(), device=x.device).reshape(x.shape)
        chosen = (((ordinal + 1) * 0x9E3779B1) >> 15) & 1 == 1
        one[name] = alike(x, torch.where(chosen, bits(x), 0).view(x.dtype))
        # By what was laid out: where elements share memory one decides for all.
        taken = one[name].double() == x.double()
        other[name] = alike(x, torch.where(taken, 0, bits(x)).view(x.dtype))
    (a, a_sigma), (b, b_sigma) = context.evaluated(one), context.evaluated(other)
    scale = context.scale + a.abs() + a_sigma + b.abs() + b_sigma
    left_out = _left_out(context, a + b, context.ref, scale, relation.units)
    for part in (a, b):
        left_out |= _overflows(context, part, scale, relation.units)
    if domain.may_leave(context.op, context.case, 0.0):
        for side, of_side in ((one, a), (other, b)):
            left_out |= _outside(context, context.wide_of(side), of_side)
    slack = (context.gap + context.gap_at(a) + context.gap_at(b)) / 2
    return distance(
        _copied(launch(one)) + _copied(launch(other)), first.double(), slack=slack,
        unit=context.roundoff * scale, allowed=relation.units, left_out=left_out,
    )  # fmt: skip


def _sums(context: Context, relation: Relation, first: torch.Tensor) -> Distance:
    """The sum over the last axis: one element a row."""
    assert relation.to is not None
    expected = context.ref.sum(-1)
    target = torch.full_like(expected, relation.to)
    scale = context.scale.sum(-1)
    left_out = ~_keeps(context, expected, target, scale, relation.units)
    if context.part is not None:
        left_out |= context.part.mask.any(-1)
    return distance(
        first.double().sum(-1), target, slack=context.gap.sum(-1) / 2,
        unit=context.roundoff * scale, allowed=relation.units, left_out=left_out,
    )  # fmt: skip


def _left_out(
    context: Context, expected: torch.Tensor, ref: torch.Tensor, scale: torch.Tensor, units: float
) -> torch.Tensor:
    """Elements whose reference does not keep the relation, or that are outside the domain."""
    left_out = ~_keeps(context, expected, ref, scale, units)
    left_out |= _overflows(context, ref, scale, units) | _underflows(context, scale)
    return left_out if context.part is None else left_out | context.part.mask


def _keeps(
    context: Context, expected: torch.Tensor, ref: torch.Tensor, scale: torch.Tensor, units: float
) -> torch.Tensor:
    """Where both sides of the reference agree, beside what is asked of the kernel."""
    fine = max(context.roundoff * 2.0 ** (-2 if units else -12), 2.0**-45)
    same = (expected == ref) | (expected.isnan() & ref.isnan())
    return same | ((expected - ref).abs() <= fine * max(units, 1.0) * scale)


def _overflows(
    context: Context, ref: torch.Tensor, scale: torch.Tensor, units: float
) -> torch.Tensor:
    """Where one of two sides that are as near as allowed may be infinite and the other not.

    Where they must be the same, both are or none is. What a kernel computes in may overflow on the
    way to its output, so no side may come nearer to the end of that than half of its range.
    """
    if not units:
        return torch.zeros_like(ref, dtype=torch.bool)
    dtype = DTYPES[context.op.output_dtype or context.case.dtype]
    rounds_to_inf = dtype.max + dtype.gap(dtype.max) / 2
    most = min(rounds_to_inf, DTYPES[context.op.compute_dtype].max / 2)
    return ref.abs() + units * context.roundoff * scale >= most


def _underflows(context: Context, scale: torch.Tensor) -> torch.Tensor:
    """Where the smallest subnormal of what a kernel computes in may be near a unit of its scale.

    Sums and products of subnormal numbers are rounded to its multiples, however small they are, so
    nothing there scales or adds up. Up to 2^precision of such roundings are no unit here. A scale
    of 0 leaves nothing to round.
    """
    dtype = DTYPES[context.op.compute_dtype]
    return (scale > 0) & (scale < 2.0 ** (dtype.emin + 2 * dtype.precision))


def _rescales_badly(context: Context, ref: torch.Tensor, power: float) -> torch.Tensor:
    """Where the output times ``power`` may be infinite, or it is subnormal; 0 is not."""
    dtype = DTYPES[context.op.output_dtype or context.case.dtype]
    size = ref.abs()
    return (size * power > dtype.max / 2) | ((size > 0) & (size < 2.0 ** (dtype.emin + 1)))


def _orders(context: Context, dims: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """How what moves along an axis moves, by the axis' entry in a shape: ``K``, ``K/32``.

    Elements that share one of a divided axis stay together: whole blocks move, of the least
    common multiple of what the dim is divided by, and what is no whole block stays at the end.
    Empty where nothing would move.
    """
    shapes = [*(spec.shape for spec in context.op.inputs.values()), context.op.output]
    orders = {}
    for dim, size in context.case.dims:
        if dim not in dims:
            continue
        entries = {e for shape in shapes for e in shape if e.partition("/")[0] == dim}
        by = {entry: int(entry.partition("/")[2] or 1) for entry in entries}
        block = math.lcm(*by.values())
        if size // block < 2:
            continue
        turn = _order(size // block, context.device)
        for entry, divisor in by.items():
            each = block // divisor
            place = torch.arange(-(-size // divisor), device=context.device)
            moved = turn.repeat_interleave(each) * each + place[: turn.numel() * each] % each
            orders[entry] = torch.cat([moved, place[turn.numel() * each :]])
    return orders


def _order(size: int, device: torch.device) -> torch.Tensor:
    """[size] int64: a turn by an odd step near the half: nothing stays in its place or tile."""
    return torch.arange(size, device=device).roll(max(1, size // 2 - 1 | 1))
