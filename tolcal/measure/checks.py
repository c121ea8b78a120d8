"""Checks without a tolerance: what further, watched launches of a kernel on a case show.

| check | launches | what is counted |
|---|---|---|
| `unwritten`, `stray`, `inputs_changed` | one, in guarded memory | elements that nothing was \
written to; writes outside of tensors; writes to inputs |
| `unrepeatable` | that one, and a plain one on a GPU | output elements with other bits |
| `batch` | the first row alone, and all but it | output elements with other bits |
| relations | one or two each | elements beyond the relation's `units` |
| `configs` | one for each configuration of an autotuner | the same, against the plain output |

Nothing waits for the device: results are tensors until `found`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import torch

from tolcal import cases
from tolcal.measure import configs, relations
from tolcal.measure.configs import Launches
from tolcal.measure.context import Context, Poison
from tolcal.measure.relations import Distance, Inputs
from tolcal.measure.watch import Input, Watch, alike, bits, untouched, unwritten
from tolcal.model import RELATION_MAX, RELATIONS, Case, Checks

Function = Callable[..., torch.Tensor]
_COUNTS = ("unwritten", "stray", "inputs_changed", "unrepeatable")


class FailedCheckError(Exception):
    """A kernel raised in a check though it had run on the case."""

    def __init__(self, check: str, error: BaseException) -> None:
        super().__init__(check)
        self.check, self.error = check, error


class Pending(NamedTuple):
    """Results that are still on the device."""

    names: tuple[str, ...]  # of fields of Checks
    values: torch.Tensor  # [names] int64; of relations the bits of an fp64 number


def found(names: tuple[str, ...], values: list[int]) -> Checks:
    """What came back from the device."""
    fields: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        is_float = name in RELATIONS
        fields[name] = torch.tensor(value).view(torch.float64).item() if is_float else value
    judged = {kind: fields[f"{kind}_judged"] for kind in RELATIONS if kind in fields}
    # A relation that was looked at nowhere has not been kept.
    fields |= {kind: None for kind, count in judged.items() if not count}
    if judged and not any(judged.values()):
        fields["broken"] = None
    return Checks(**fields)


def run(
    context: Context,
    function: Function,
    first: torch.Tensor,
    launched: Launches,
    interpreted: bool,
    vectorised: bool = False,
    batch: bool = True,
) -> Pending:
    """Launches of a kernel on the case of ``context``, watched.

    Args:
        context: the case.
        function: the kernel's ``run``.
        first: its output on the case, which later launches must not be able to change.
        launched: the autotuners that it launched for it. They go on with the same configurations,
            but where all are looked at.
        interpreted: whether Triton is, which is slow and repeats itself by its nature.
        vectorised: whether the kernel is made of a CPU's vector loops, which round the elements
            that they have no full vector for in another way: then an element's bits depend on its
            place, and batches and permutations may differ by what `relations.of_loops` says.
        batch: whether batches are, if the op declares them.

    Raises:
        FailedCheckError: what the kernel raises on inputs of its own domain.
    """
    distances: list[tuple[str, Distance]] = []
    counts = _watched(context, function, first, launched, again=not interpreted)
    rows = None
    if batch and context.op.batch is not None:
        rows = _batch(context, function, first, launched, vectorised)

    def launch(inputs: Inputs) -> torch.Tensor:
        # A kernel that writes to its inputs must not change the case's own.
        own = {n: cases.copy(x) if x is context.inputs[n] else x for n, x in inputs.items()}
        with Launches(launched), Poison():
            return context.launch(function, own)

    for relation in context.op.relations:
        if relation.kind != "configs":
            with _named(relation.kind):
                found = relations.measure(context, relation, first, launch, vectorised)
            distances.append((relation.kind, found))
    if launched.made:
        distance, stray, changed = _configs(context, function, first, launched, interpreted)
        counts[1], counts[2] = counts[1] + stray, counts[2] + changed
        distances.append(("configs", distance))
    names = list(_COUNTS)
    if rows is not None:
        names.append("batch")
        counts.append(rows)
    for name, distance in distances:
        names += [name, f"{name}_judged"]
        counts += [_float32_up(distance.largest).view(torch.int64), distance.judged]
    if distances:
        names.append("broken")
        counts.append(torch.stack([d.beyond for _, d in distances]).sum())
    return Pending(tuple(names), torch.stack(counts))


@contextmanager
def _named(check: str) -> Iterator[None]:
    """Says in which check a kernel raises."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise FailedCheckError(check, error) from error


def _guarded(
    context: Context, function: Function, launches: Launches
) -> tuple[torch.Tensor, Watch, dict[str, Input]] | None:
    """A launch in guarded memory; None if the kernel can't do with such.

    That is no fault of the kernel's: one that raises in it, and not in a plain launch, may have
    made a tensor larger. One that ends the process does so for no such reason.
    """
    inputs = {name: Input(x) for name, x in context.inputs.items()}
    watch = Watch()
    try:
        with launches, watch:
            out = context.launch(function, {name: x.tensor for name, x in inputs.items()})
    except SystemExit as error:
        raise FailedCheckError("a launch in guarded memory", error) from error
    except Exception:
        return None
    return out, watch, inputs


def _plain(context: Context, function: Function, launches: Launches) -> torch.Tensor:
    with launches, Poison():
        return context.launch(function, {n: cases.copy(x) for n, x in context.inputs.items()})


def _watched(
    context: Context, function: Function, first: torch.Tensor, launched: Launches, again: bool
) -> list[torch.Tensor]:
    """The counts of `_COUNTS`, [] int64 each."""
    zero = torch.zeros((), dtype=torch.int64, device=context.device)
    guarded = _guarded(context, function, Launches(launched))
    if guarded is None:
        with _named("a launch that repeats the first"):
            second = _plain(context, function, Launches(launched))
        return [zero, zero, zero, _differing(second, first).sum()]
    out, watch, inputs = guarded
    missing = unwritten(out, first)
    stray, changed = _elsewhere(context, watch, inputs)
    differing = _differing(out, first) & ~missing
    if again:
        with _named("a launch that repeats the first"):
            differing |= _differing(_plain(context, function, Launches(launched)), first)
    return [missing.sum(), stray, changed, differing.sum()]


def _elsewhere(
    context: Context, watch: Watch, inputs: dict[str, Input]
) -> tuple[torch.Tensor, torch.Tensor]:
    """[] int64 each: elements written to outside of tensors, and of inputs that must not change."""
    stray = watch.stray(context.device)
    changed = torch.zeros_like(stray)
    for name, x in inputs.items():
        own, around = x.changed()
        stray = stray + around
        if name not in context.op.mutates:
            changed = changed + own
    return stray, changed


def _differing(out: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """bool: elements with other bits; nan is like nan, whatever it carries."""
    both = out.double().isnan() & first.double().isnan()
    return (bits(out) != bits(first)) & ~both


def _batch(
    context: Context, function: Function, first: torch.Tensor, launched: Launches, vectorised: bool
) -> torch.Tensor:
    """[] int64: output elements whose bits are others where their row has fewer companions.

    With ``vectorised`` those that are too far off, as others are no fault.
    """
    op, batch = context.op, context.op.batch
    assert batch is not None
    differing = torch.zeros((), dtype=torch.int64, device=context.device)
    size = dict(context.case.dims)[batch]
    shapes = [*(spec.shape for spec in op.inputs.values()), op.output]
    divided = any(entry.startswith(f"{batch}/") for shape in shapes for entry in shape)
    if size < 2 or batch not in op.output or divided:
        return differing
    axis = op.output.index(batch)
    for start, count in ((0, 1), (1, size - 1)):
        inputs = {
            name: _rows(x, op.inputs[name].shape, batch, start, count)
            for name, x in context.inputs.items()
        }
        with _named("batch"), Launches(launched, by_place=True), Poison():
            out = context.launch(function, inputs, _resized(context.case, batch, count))
        whole = first.narrow(axis, start, count)
        if vectorised:
            differing = differing + relations.far_in_loops(context, out, whole, axis, start)
        else:
            differing = differing + _differing(out, whole).sum()
    return differing


def _rows(
    x: torch.Tensor, shape: tuple[str, ...], dim: str, start: int, count: int
) -> torch.Tensor:
    """Some rows in memory of their own: as aligned as the whole, and contiguous if that is."""
    if dim not in shape:
        return cases.copy(x)
    axis = shape.index(dim)
    moved = alike(x, bits(x).roll(-start, axis).view(x.dtype)).narrow(axis, 0, count)
    if not x.is_contiguous():
        return moved
    alone = x.untyped_storage().nbytes() == x.numel() * x.element_size()
    return moved.clone() if alone else moved.contiguous()  # no more memory than that has


def _resized(case: Case, dim: str, size: int) -> Case:
    dims = tuple((name, size if name == dim else old) for name, old in case.dims)
    return msgspec.structs.replace(case, dims=dims)


def _configs(
    context: Context, function: Function, first: torch.Tensor, launched: Launches, interpreted: bool
) -> tuple[Distance, torch.Tensor, torch.Tensor]:
    """How far each configuration is from the plain output, and, as of `_elsewhere`, what else they
    write to."""
    declared = (r.units for r in context.op.relations if r.kind == "configs")
    allowed = next(declared, configs.UNITS)
    zero = torch.zeros((), dtype=torch.int64, device=context.device)
    largest, beyond, judged, stray, changed = zero.double(), zero, zero, zero, zero
    left_out = torch.zeros_like(context.ref, dtype=torch.bool)
    if context.part is not None:
        left_out = context.part.mask
    for tuner, made in launched.made.items():
        for config in configs.distinct(made[0].configs, interpreted):
            launches = Launches(launched, instead=(tuner, config))
            guarded = _guarded(context, function, launches)
            if guarded is None:
                launches = Launches(launched, instead=(tuner, config))
                with _named(f"config {config}"):
                    out = _plain(context, function, launches)
            else:
                out, watch, inputs = guarded
                outside, own = _elsewhere(context, watch, inputs)
                stray, changed = stray + outside, changed + own
            if not any(launch.config == config for launch in launches.made.get(tuner, [])):
                continue  # too large, excluded, pruned here, or not launched at all
            found = relations.distance(
                out.double(), first.double(), slack=context.gap,
                unit=context.roundoff * context.scale, allowed=allowed, left_out=left_out,
            )  # fmt: skip
            # Also if the chosen one left it out.
            missing = (untouched(out, first) & ~left_out).sum()
            largest = torch.maximum(largest, found.largest)
            largest = torch.where(missing > 0, RELATION_MAX, largest)
            beyond = beyond + torch.maximum(found.beyond, missing)
            judged = torch.maximum(judged, found.judged)
    return Distance(largest, beyond, judged), stray, changed


def _float32_up(value: torch.Tensor) -> torch.Tensor:
    """[] fp64: the least float32 number that is not below; a record keeps no more."""
    single = value.float()
    above = torch.nextafter(single, torch.full_like(single, torch.inf))
    return torch.where(single.double() < value, above, single).double().clamp(max=RELATION_MAX)
