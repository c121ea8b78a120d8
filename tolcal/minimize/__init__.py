"""A failing case made small: dims, then elements, then values, while it fails in the same way.

"The same way" (`failure.Failure.way`) is judged by the tolerance that is approved, as a verdict
would, or else by the hand-picked one; the control that a buggy kernel is made from must pass, so
that what is left shows the fault and not the limits of the tolerance. Trials run in a worker
process, so a kernel may hang or take the process with it: that costs a trial, or is what is being
minimised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from tolcal import cases, measure
from tolcal.measure.trials import Trials
from tolcal.minimize import failure, search, values
from tolcal.minimize.failure import Failure
from tolcal.model import DTYPES, Case, Kernel, Op, Record, TolcalError, Tolerance

__all__ = ["Failure", "Found", "Minimized", "minimize"]

#: A trial takes no longer: what is left of a search must not wait for one kernel that hangs.
TRIAL_SECONDS = 5.0
#: ... or so many times what the slowest kernel has taken that came to an end.
PATIENCE = 20.0
#: What fails by so many times its bound shall not become a close call.
CLEARLY = 10.0
#: Inputs of more bytes are not changed element by element.
MOST_BYTES = 2**22

Progress = Callable[[str], None]
Place = tuple[str, int]  # an input's name, and which of its elements in C order


class Found(msgspec.Struct, frozen=True):
    """A case that fails, and how. ``values``: its inputs as patterns; None: as the case draws."""

    case: Case
    record: Record
    failure: Failure
    values: values.Values | None = None


class Minimized(msgspec.Struct, frozen=True):
    """What a search came to."""

    before: Found
    seeded: Found  # the smallest that its case alone describes
    after: Found
    elements: tuple[int, int]  # of the inputs of `seeded` and `after`, that are not the simplest
    trials: int
    seconds: float
    finished: bool  # False: the time was up
    tolerance: Tolerance | float | None  # that it was judged by
    notes: tuple[str, ...] = ()


class _OutOfTimeError(Exception):
    pass


def minimize(
    request: measure.Request,
    kernel: Kernel,
    case: Case,
    corpus: Path,
    tolerance: Tolerance | float | None,
    *,
    budget: float = 60.0,
    hangs: bool = False,
    progress: Progress = lambda _: None,
) -> Minimized:
    """The smallest case like ``case`` on which ``kernel`` still fails in the same way.

    Args:
        request: of the one op, with device, timeout and variables.
        tolerance: approved for the cell, or hand-picked for it (an atol); None: only what crashes,
            hangs, fails a check or differs outside the domain can be minimised.
        budget: seconds of search, after which the best so far is what is found.
        hangs: whether ``case`` is known to hang, so that this need not be waited for at length.
        progress: is told in a line how far the search is.

    Raises:
        TolcalError: if the kernel does not fail on ``case``, or nothing can tell.
    """
    (op,) = request.ops
    control = next((k for k in op.kernels if k.name == kernel.corrupts), None)
    kernels = (kernel,) if control is None else (control, kernel)
    with Trials(request, kernels, corpus) as trials:
        device = trials.environment  # the start of a worker is no part of the budget
        progress(f"on {device.text}")
        tolerance = trials.limit = failure.holding(tolerance, op, device.device_class)
        one = _Search(trials, op, kernel, control, tolerance, budget, progress)
        first = one.start(case, 2 * TRIAL_SECONDS if hangs else request.timeout)
        try:
            one.shrink_case()
            one.shrink_values()
            finished = True
        except (_OutOfTimeError, KeyboardInterrupt):  # whoever has seen enough keeps the best
            finished = False
        return Minimized(
            before=first,
            seeded=one.seeded,
            after=one.best,
            elements=(one.elements(one.seeded), one.elements(one.best)),
            trials=trials.count,
            seconds=time.monotonic() - one.begun,
            finished=finished,
            tolerance=tolerance,
            notes=tuple(one.notes),
        )


class _Search:
    """The best so far, and what to try next."""

    def __init__(
        self,
        trials: Trials,
        op: Op,
        kernel: Kernel,
        control: Kernel | None,
        tolerance: Tolerance | float | None,
        budget: float,
        progress: Progress,
    ) -> None:
        self.trials, self.op, self.kernel, self.control = trials, op, kernel, control
        self.tolerance, self.budget, self.progress = tolerance, budget, progress
        self.own = {name: kernel.dims[name] for name in kernel.own}
        self.tried: dict[Case, bool] = {}
        self.notes: list[str] = []
        self.begun = time.monotonic()

    def start(self, case: Case, seconds: float) -> Found:
        """The case as it is. TolcalError if it does not fail."""
        trial = self.trials.run(case, None, seconds)
        record = trial.records.get(self.kernel.name)
        if record is None or record.status == "skipped":
            why = trial.refused or (record.reason if record else "its control did not end")
            raise TolcalError(f"{self.kernel.name}:{case.id}: can't be run here: {why}")
        failed = failure.of(record, self.tolerance)
        if failed is None and self.tolerance is None:
            raise failure.need_tolerance(self.op, case)
        if failed is None:
            raise TolcalError(
                f"{self.kernel.name}:{case.id} does not fail on {record.run.environment.text}: "
                "it passes what it is judged by there, so there is nothing to minimise; `tolcal "
                "replay` has the numbers"
            )
        if self.control is not None and not self._passes(trial.records.get(self.control.name)):
            self.notes.append(
                f"its control {self.control.name} fails on this case, too, so what is left need "
                "not show the fault"
            )
            self.control = None
        if self.kernel.refuses(case):  # it was run on others before op.toml said so
            self.own = {}
        self.best = self.seeded = Found(case, record, failed)
        self.trials.checked = "check " in failed.way  # else it fails without these launches
        self.way, self.least = failed.way, min(CLEARLY, max(1.0, failed.over / 2))
        self.begun = time.monotonic()
        return self.best

    def _passes(self, record: Record | None) -> bool:
        fine = record is not None and record.status == "ok"
        return record is not None and fine and failure.of(record, self.tolerance) is None

    def _attempt(self, case: Case, changed: values.Values | None) -> bool:
        """Whether that fails as the original does; the best so far, if so."""
        if any(size not in self.own.get(name, (size,)) for name, size in case.dims):
            return False  # what the kernel is not made for shows nothing of the fault
        left = self.begun + self.budget - time.monotonic()
        if left <= 0:
            raise _OutOfTimeError
        limit = max(TRIAL_SECONDS, PATIENCE * self.trials.slowest)
        given = None if changed is None else {n: a.tobytes() for n, a in changed.items()}
        trial = self.trials.run(
            case, given, min(limit, self.trials.request.timeout), time.monotonic() + left
        )
        record = trial.records.get(self.kernel.name)
        failed = None if record is None else failure.of(record, self.tolerance)
        if record is None or failed is None or failed.way != self.way:
            return False
        if failed.over < self.least:
            return False
        if self.control is not None and not self._passes(trial.records.get(self.control.name)):
            return False
        self.best = Found(case, record, failed, changed)
        return True

    # --- cases ------------------------------------------------------------------------------

    def shrink_case(self) -> None:
        """The plain layout if that will do, and the smallest dims; seed and profile stay."""
        if self.best.case.layout != "contiguous":
            self._accept_case(msgspec.structs.replace(self.best.case, layout="contiguous"))
        search.smallest_dims(
            self.best.case.dims,
            lambda dims: self._accept_case(msgspec.structs.replace(self.best.case, dims=dims)),
            self.own,
        )
        self.seeded = self.best

    def _accept_case(self, case: Case) -> bool:
        if case not in self.tried:
            self.progress(f"dims {self.best.case.dims_text}; trying {case.dims_text}")
            self.tried[case] = self._attempt(case, None)
            self.seeded = self.best
        return self.tried[case]

    # --- values -----------------------------------------------------------------------------

    def elements(self, found: Found) -> int:
        """Of all inputs, the elements that are not the simplest that they may be."""
        return len(self._places(found)) if self._can_change(found.case) else _numel(self.op, found)

    def _can_change(self, case: Case) -> bool:
        size = sum(
            _size(spec.shape, case) * _width(cases.dtype_of(spec, case))
            for spec in self.op.inputs.values()
        )
        return size <= MOST_BYTES

    def _arrays(self, found: Found) -> dict[str, values.Array]:
        if found.values is not None:
            return dict(found.values)
        return dict(cases.inputs_numpy(self.op, found.case))

    def _places(self, found: Found) -> list[Place]:
        arrays, places = self._arrays(found), list[Place]()
        for name, spec in self.op.inputs.items():
            numbers = values.decode(arrays[name], cases.dtype_of(spec, found.case)).reshape(-1)
            simple = values.simplest(spec, found.case)
            places += ((name, int(at)) for at in np.flatnonzero(numbers != simple))
        return places

    def shrink_values(self) -> None:
        """The fewest elements that are not 0, then the simplest values, until nothing changes."""
        if not self._can_change(self.best.case):
            self.notes.append(
                f"its inputs are more than {MOST_BYTES // 2**20} MiB, so they stay as drawn"
            )
            return
        case, drawn = self.best.case, self._arrays(self.best)
        if not self._attempt(case, drawn):
            self.notes.append("given as values its inputs do not fail, so they stay as drawn")
            return
        while True:
            before = self.best
            self._remove_elements(case)
            self._drop_slices()
            case = self.best.case
            self._simplify(case)
            if self.best is before:
                return

    def _remove_elements(self, case: Case) -> None:
        """First whole inputs and rows along each axis, then element by element."""
        groups = [[place for place in self._places(self.best) if place[0] == name]
                  for name in self.op.inputs]  # fmt: skip
        self._without([group for group in groups if group])
        for name, spec in self.op.inputs.items():
            shape = cases.shape_of(spec.shape, case)
            for axis, size in enumerate(shape):
                if size > 1 and len(shape) > 1:
                    rows: dict[int, list[Place]] = {}
                    for place in self._places(self.best):
                        if place[0] == name:
                            row = int(np.unravel_index(place[1], shape)[axis])
                            rows.setdefault(row, []).append(place)
                    self._without(list(rows.values()))
        self._without([[place] for place in self._places(self.best)])

    def _without(self, groups: list[list[Place]]) -> None:
        def accept(some: Sequence[list[Place]]) -> bool:
            arrays = {name: array.copy() for name, array in self._arrays(self.best).items()}
            for name, at in (place for group in some for place in group):
                spec = self.op.inputs[name]
                simple = values.simplest(spec, self.best.case)
                dtype = cases.dtype_of(spec, self.best.case)
                arrays[name].reshape(-1)[at] = values.encode(simple, dtype)
            self.progress(f"elements: {len(self._places(self.best))} left")
            return self._attempt(self.best.case, arrays)

        search.fewest(groups, accept)

    def _drop_slices(self) -> None:
        """Cuts out, along each dim, what holds nothing but the simplest values in every input."""
        for dim, size in self.best.case.dims:
            axes = {
                name: [axis for axis, entry in enumerate(spec.shape) if entry == dim]
                for name, spec in self.op.inputs.items()
            }
            if size == 1 or not any(axes.values()):
                continue
            if any(e.startswith(f"{dim}/") for s in self.op.inputs.values() for e in s.shape):
                continue  # blocks of it belong together
            used = set[int]()
            for name, at in self._places(self.best):
                shape = cases.shape_of(self.op.inputs[name].shape, self.best.case)
                where = np.unravel_index(at, shape)
                used |= {int(where[axis]) for axis in axes[name]}
            empty = [index for index in range(size) if index not in used]
            if len(empty) == size:
                empty = empty[1:]
            kept = list(range(size))

            def accept(
                some: Sequence[int], dim: str = dim, axes: dict[str, list[int]] = axes,
                kept: list[int] = kept,
            ) -> bool:  # fmt: skip
                left = [index for index in kept if index not in set(some)]
                arrays = self._arrays(self.best)
                for name, along in axes.items():
                    for axis in along:
                        rows = [kept.index(index) for index in left]
                        arrays[name] = np.ascontiguousarray(arrays[name].take(rows, axis))
                dims = tuple((n, len(left) if n == dim else s) for n, s in self.best.case.dims)
                self.progress(f"dims {self.best.case.dims_text}; trying {dim}={len(left)}")
                case = msgspec.structs.replace(self.best.case, dims=dims)
                if not self._attempt(case, arrays):
                    return False
                kept[:] = left
                return True

            search.fewest(empty, accept)

    def _simplify(self, case: Case) -> None:
        """All elements alike first, since that is one trial; then each by itself."""
        places = self._places(self.best)
        deepest = max(
            (DTYPES[d].precision if (d := cases.dtype_of(s, case)) in DTYPES else 53)
            for s in self.op.inputs.values()
        )
        for bits in (0, *range(1, deepest)):  # 0: 1 or -1
            if self._set({p: self._rounded(p, bits) for p in places}):
                break
        for turn, place in enumerate(places):
            self.progress(f"values: {turn} of {len(places)} elements")
            spec = self.op.inputs[place[0]]
            low, high = values.span(spec, case)
            precision = 53 if spec.is_integer else DTYPES[cases.dtype_of(spec, case)].precision
            for number in values.simpler(self._value(place), precision, low, high):
                if self._set({place: number}):
                    break

    def _value(self, place: Place) -> float:
        name, at = place
        array = self._arrays(self.best)[name].reshape(-1)[at : at + 1]
        dtype = cases.dtype_of(self.op.inputs[name], self.best.case)
        return float(values.decode(array, dtype)[0])

    def _rounded(self, place: Place, bits: int) -> float:
        value = self._value(place)
        if not np.isfinite(value):
            return value
        near = float(np.copysign(1.0, value)) if not bits else values.rounded(value, bits)
        low, high = values.span(self.op.inputs[place[0]], self.best.case)
        return near if low <= near <= high else value

    def _set(self, numbers: dict[Place, float]) -> bool:
        """Tries these elements with these values; False at once if that changes nothing."""
        arrays = {name: array.copy() for name, array in self._arrays(self.best).items()}
        changed = False
        for (name, at), number in numbers.items():
            dtype = cases.dtype_of(self.op.inputs[name], self.best.case)
            try:
                pattern = values.encode(number, dtype)
            except (ValueError, OverflowError):
                continue  # a nan, or a number that the dtype lacks
            flat = arrays[name].reshape(-1)
            changed |= bool(flat[at] != pattern)
            flat[at] = pattern
        return changed and self._attempt(self.best.case, arrays)


def _size(shape: tuple[str, ...], case: Case) -> int:
    return int(np.prod(cases.shape_of(shape, case), dtype=np.int64))


def _numel(op: Op, found: Found) -> int:
    return sum(_size(spec.shape, found.case) for spec in op.inputs.values())


def _width(dtype: str) -> int:
    return DTYPES[dtype].bits // 8 if dtype in DTYPES else int(np.dtype(dtype).itemsize)
