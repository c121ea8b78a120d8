"""One case on a device: its inputs, reference and sensitivity, and what kernels make of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tolcal import cases, stats
from tolcal.measure import domain, room
from tolcal.measure.watch import EMPTY
from tolcal.model import DTYPES, Case, Kernel, Op, TolcalError

#: How near a reference called twice must come to itself: a GPU may add in another order, but what
#: it does to sigma is magnified by 2^26.
SAME = 2.0**-36


class Poison(TorchFunctionMode):
    """Fills fresh uninitialised tensors with NaN, so that an element left unwritten shows."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in EMPTY and result.is_floating_point():
            result.fill_(torch.nan)
        return result


class Context:
    """Inputs, reference and sigma of one case, shared by the kernels that run on it."""

    def __init__(
        self,
        op: Op,
        case: Case,
        device: torch.device,
        reference: Callable[..., torch.Tensor],
        again: bool = False,
    ) -> None:
        self.op, self.case, self.device = op, case, device
        self.reference = reference
        room.check_whole(op, case, device)
        self.inputs, wide, self.hash_sums = self.drawn()
        versions = {name: x._version for name, x in wide.items()}
        self.ref = reference(**wide)
        for name, x in wide.items():
            # On a GPU a comparison would cost a round trip: there torch's own count of writes
            # has to do, which a launch of the reference's own kernel would not raise.
            changed = x._version != versions[name]
            if device.type == "cpu":
                changed |= not same(x, cases.widened(self.inputs[name]))
            if changed:
                raise TolcalError(
                    f"{op.reference_path}: reference() changes its input {name!r}, so nothing "
                    "computed from it can be trusted; make it work on a copy"
                )
        expected = cases.shape_of(op.output, case)
        if tuple(self.ref.shape) != expected or self.ref.dtype != torch.float64:
            raise TolcalError(
                f"{op.reference_path}: reference() returned {self.ref.dtype} "
                f"{list(self.ref.shape)} for {case.dims_text}, expected torch.float64 "
                f"{list(expected)} as op.toml's [output] says"
            )
        if again and not self._repeats(reference(**wide)):
            raise TolcalError(
                f"{op.reference_path}: reference() gives other values when it is called again on "
                f"{case.dims_text}, so sensitivities can't be taken from it; make it a function of "
                "its inputs alone"
            )
        self.sigma = self._sensitivity(wide, self.ref)
        #: None: every output element depends on inputs inside the domain alone
        self.part: domain.Part | None = None
        if domain.may_leave(op, case):
            self.part = domain.part(domain.depends(op, reference, wide, self.ref))
        self.outputs: dict[str, torch.Tensor] = {}
        self._input_hash = ""

    def drawn(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
        """Inputs in the case's layout, the same as the reference gets them, their hash sums."""
        if self.device.type != "cpu":
            found: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor]
            found = _device().draw(self.op, self.case, self.device)
            return found
        inputs = cases.inputs_torch(self.op, self.case, self.device)
        wide = {name: cases.widened(x) for name, x in inputs.items()}
        return inputs, wide, cases.hash_sums_torch(inputs)

    def _repeats(self, second: torch.Tensor) -> bool:
        """Whether a second evaluation agrees with the first."""
        largest = float(self.ref.nan_to_num(0.0, 0.0, 0.0).abs().max()) if self.ref.numel() else 0.0
        return second.shape == self.ref.shape and torch.allclose(
            second, self.ref, rtol=SAME, atol=SAME * largest, equal_nan=True
        )

    def _sensitivity(self, wide: Mapping[str, torch.Tensor], ref: torch.Tensor) -> torch.Tensor:
        # An integer (a label, an index) has no rounding error: it stays as it is.
        fixed = {name: wide[name] for name, spec in self.op.inputs.items() if spec.is_integer}
        moving = functools.partial(self.reference, **fixed)
        rest = {name: x for name, x in wide.items() if name not in fixed}
        if self.device.type != "cpu":
            sigma: torch.Tensor = _device().sensitivity(moving, rest, ref)
            return sigma
        signs = cases.sign_words(self.op, self.case, self.device)
        return stats.sensitivity(moving, rest, ref, signs)

    def wide_of(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Inputs as the reference gets them."""
        return {name: cases.widened(x) for name, x in inputs.items()}

    def evaluated(self, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Reference and sigma of other inputs of the same shapes."""
        wide = self.wide_of(inputs)
        ref = self.reference(**wide)
        return ref, self._sensitivity(wide, ref)

    @property
    def roundoff(self) -> float:
        """u of the op's compute dtype."""
        return DTYPES[self.op.compute_dtype].roundoff

    @cached_property
    def scale(self) -> torch.Tensor:
        """|ref| + sigma, 0 where the reference is not finite."""
        size = self.ref.abs() + self.sigma
        return torch.where(torch.isfinite(size), size, 0.0)

    @cached_property
    def gap(self) -> torch.Tensor:
        """`gap_at` the reference."""
        return self.gap_at(self.ref)

    def gap_at(self, ref: torch.Tensor) -> torch.Tensor:
        """The output dtype's gap at these values, 0 where they are not finite."""
        dtype = DTYPES[self.op.output_dtype or self.case.dtype]
        finite = torch.isfinite(ref)
        return torch.where(finite, stats.gap(torch.where(finite, ref, 0.0), dtype), 0.0)

    def input_hash(self) -> str:
        """`cases.input_hash` of the inputs; the first call waits for the device."""
        if not self._input_hash:
            self._input_hash = cases.input_hash(self.hash_sums.tolist())
        return self._input_hash

    def run(self, kernel: Kernel, function: Callable[..., torch.Tensor]) -> torch.Tensor:
        """The kernel's output, checked against the contract. Raises what the kernel raises.

        On a GPU the kernel may still be running.
        """
        # Its own copies: a kernel that writes to its inputs must not change another's.
        inputs = {name: cases.copy(x) for name, x in self.inputs.items()}
        with Poison():
            out = self.launch(function, inputs)
        self.outputs[kernel.name] = out
        return out

    def launch(
        self,
        function: Callable[..., torch.Tensor],
        inputs: Mapping[str, torch.Tensor],
        case: Case | None = None,
    ) -> torch.Tensor:
        """A kernel's output on these very tensors, checked against the contract.

        ``case`` has the dims of the inputs, if they are not this one's.
        """
        out = function(**inputs)
        case = case or self.case
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"run() returned {type(out).__name__}, a tensor expected")
        if out.layout != torch.strided:
            raise ValueError(f"run() returned a {out.layout} tensor, a dense one expected")
        expected = cases.shape_of(self.op.output, case)
        if tuple(out.shape) != expected:
            raise ValueError(
                f"run() returned shape {list(out.shape)}, {list(expected)} expected by op.toml"
            )
        dtype = self.op.output_dtype or case.dtype
        if str(out.dtype) != f"torch.{dtype}":
            raise ValueError(f"run() returned {out.dtype}, torch.{dtype} expected")
        if out.device.type != self.device.type:
            raise ValueError(f"run() returned a tensor on {out.device}, {self.device} expected")
        return out

    def judged(self, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Output, reference and sigma of the elements inside the domain."""
        if self.part is None:
            return out, self.ref, self.sigma
        inside = self.part.inside
        flat = (x.reshape(-1)[inside] for x in (out, self.ref, self.sigma))
        return tuple(flat)  # type: ignore[return-value]

    def differs(self, kernel: Kernel, other: Kernel) -> torch.Tensor:
        """[1]: whether their outputs differ in any value inside the domain; nan is like nan."""
        ours, theirs = self.outputs[kernel.name], self.outputs[other.name]
        if self.part is not None:
            ours, theirs = (x.reshape(-1)[self.part.inside] for x in (ours, theirs))
        if self.device.type != "cpu":
            differing: torch.Tensor = _device().differ(ours, theirs)
            return differing
        return torch.tensor([not same(ours, theirs)])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether all values are; nan is like nan."""
    if a.element_size() == 1 and a.is_floating_point():  # torch doesn't compare these
        a, b = a.float(), b.float()
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _device() -> ModuleType:
    from tolcal.measure import device  # needs a Triton that compiles

    return device
