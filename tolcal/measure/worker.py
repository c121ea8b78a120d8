"""The child process in which kernels run: ``python -m tolcal.measure.worker IN OUT DEVICE``.

It reads Units from descriptor IN and writes Messages to OUT. Whatever a kernel does to it (raise,
exit, fault, hang) is the parent's to notice, since only the parent survives it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

# Before any import of Triton: interpretation is decided when a kernel is decorated.
if __name__ == "__main__" and sys.argv[3] == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch.overrides import TorchFunctionMode

from tolcal import cases, stats
from tolcal.measure import environment
from tolcal.measure.wire import (
    Finished,
    Hello,
    Measured,
    Message,
    Refused,
    Started,
    Unit,
    decode_unit,
    read_frame,
    write_frame,
)
from tolcal.model import DTYPES, Case, Kernel, Op, Status, TolcalError, one_line

#: Interpreted Triton does not round these: its casts truncate, its arithmetic is on the bits.
INTERPRETER_LACKS = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
REASON_LIMIT = 240
#: Names of the modules that corpus files become.
PREFIX = "tolcal_corpus_"
HERE = Path.cwd()


class Poison(TorchFunctionMode):
    """Fills fresh uninitialised tensors with NaN, so that an element left unwritten shows."""

    allocators = frozenset(
        {
            torch.empty,
            torch.empty_like,
            torch.empty_strided,
            torch.Tensor.new_empty,
            torch.Tensor.new_empty_strided,
        }
    )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in self.allocators and result.is_floating_point():
            result.fill_(torch.nan)
        return result


def load(path: str, attribute: str) -> Callable[..., torch.Tensor]:
    """``run`` of a kernel file, ``reference`` of a reference: executes that file."""
    path = str(HERE / path)  # a kernel may have changed the working directory
    folder = str(Path(path).parent)
    sys.path.insert(0, folder)  # a kernel may import the modules beside it
    known = set(sys.modules)
    try:
        spec = importlib.util.spec_from_file_location(f"{PREFIX}{abs(hash(path)):x}", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no Python file")
        module: ModuleType = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # Triton looks its source up through the module
        spec.loader.exec_module(module)
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
        # Two ops may each have a helper of the same name: the next must import its own.
        for name in set(sys.modules) - known:
            source = getattr(sys.modules[name], "__file__", None) or ""
            if source.startswith(folder) and not name.startswith(PREFIX):
                del sys.modules[name]
    function = getattr(module, attribute, None)
    if not callable(function):
        raise TypeError(f"{Path(path).name} has no function {attribute}()")
    return function  # type: ignore[no-any-return]


def describe_error(error: BaseException) -> str:
    """One printable line."""
    if isinstance(error, SystemExit):
        text = f"SystemExit: {error.code}"
    else:
        text = f"{type(error).__name__}: {error}"
    return one_line(text, REASON_LIMIT)


class CaseContext:
    """Inputs, reference and sigma of one case, shared by the kernels that run on it."""

    def __init__(
        self, op: Op, case: Case, device: torch.device, reference: Callable[..., torch.Tensor]
    ) -> None:
        self.op, self.case, self.device = op, case, device
        self.inputs = cases.inputs_torch(op, case, device)
        self.input_hash = cases.input_hash_torch(self.inputs)
        wide = {name: x.to(torch.float64, copy=True) for name, x in self.inputs.items()}
        self.ref = reference(**wide)
        for name, x in self.inputs.items():
            if not torch.equal(wide[name], x.to(torch.float64)):
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
        signs = cases.sign_words(op, case, device)
        self.sigma = stats.sensitivity(reference, wide, self.ref, signs)
        self.outputs: dict[str, torch.Tensor] = {}

    def run(self, kernel: Kernel, function: Callable[..., torch.Tensor]) -> torch.Tensor:
        """The kernel's output, checked against the contract. Raises what the kernel raises."""
        # Its own copies: a kernel that writes to its inputs must not change another's.
        inputs = {name: x.clone() for name, x in self.inputs.items()}
        with Poison():
            out = function(**inputs)
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"run() returned {type(out).__name__}, a tensor expected")
        expected = cases.shape_of(self.op.output, self.case)
        if tuple(out.shape) != expected:
            raise ValueError(
                f"run() returned shape {list(out.shape)}, {list(expected)} expected by op.toml"
            )
        if str(out.dtype) != f"torch.{self.case.dtype}":
            raise ValueError(f"run() returned {out.dtype}, torch.{self.case.dtype} expected")
        if out.device.type != self.device.type:
            raise ValueError(f"run() returned a tensor on {out.device}, {self.device} expected")
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # a fault surfaces here, while its kernel is known
        self.outputs[kernel.name] = out
        return out


class Worker:
    """Runs units on one device and reports through ``send``."""

    def __init__(self, device: torch.device, send: Callable[[Message], None]) -> None:
        self.device, self.send = device, send
        self.loaded: dict[str, Callable[..., torch.Tensor] | str] = {}
        self.pid = os.getpid()
        self.interpreter = os.environ.get("TRITON_INTERPRET") == "1"

    def function(self, kernel: Kernel) -> Callable[..., torch.Tensor] | str:
        """``run`` of a kernel, or why its file can't be loaded."""
        if kernel.path not in self.loaded:
            try:
                self.loaded[kernel.path] = load(kernel.path, "run")
            except (Exception, SystemExit) as error:
                self.loaded[kernel.path] = f"at import: {describe_error(error)}"
        return self.loaded[kernel.path]

    def reference(self, op: Op) -> Callable[..., torch.Tensor]:
        """The op's reference. TolcalError if it can't be loaded: no case of the op can run."""
        if op.reference_path not in self.loaded:
            try:
                self.loaded[op.reference_path] = load(op.reference_path, "reference")
            except (Exception, SystemExit) as error:
                raise TolcalError(f"{op.reference_path}: {describe_error(error)}") from None
        function = self.loaded[op.reference_path]
        assert not isinstance(function, str)
        return function

    def unit(self, unit: Unit) -> None:
        """Measure every (case, kernel) of ``unit`` that is not done yet."""
        for index, case in enumerate(unit.cases):
            todo = [k for k in unit.kernels if (index, k.name) not in unit.done]
            if todo:
                self.case(unit, index, case, todo)
        self.send(Finished())

    def case(self, unit: Unit, index: int, case: Case, todo: list[Kernel]) -> None:
        """Measure ``todo`` on one case; controls come first, as op folders list them."""

        def report(
            kernel: Kernel, status: Status, reason: str, input_hash: str = "", **extra: Any
        ) -> None:
            fields = {"stats": None, "same_as_control": None} | extra
            self.send(Measured(index, kernel.name, status, reason, input_hash, **fields))

        runnable = []
        for kernel in todo:
            if self.interpreter and kernel.uses_triton and case.dtype in INTERPRETER_LACKS:
                reason = f"the Triton interpreter does not round {case.dtype} as hardware does"
                self.send(Started(index, kernel.name))
                report(kernel, "skipped", reason)
            else:
                runnable.append(kernel)
        if not runnable:
            return
        reference = self.reference(unit.op)
        try:
            context = CaseContext(unit.op, case, self.device, reference)
        except TolcalError:
            raise
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            # A CPU allocation that fails is a bare RuntimeError.
            full = isinstance(error, torch.OutOfMemoryError | MemoryError)
            if not full and "allocate memory" not in str(error):
                raise self.blame(unit.op, case, error) from error
            for kernel in runnable:
                self.send(Started(index, kernel.name))
                report(kernel, "skipped", f"inputs and reference: {describe_error(error)}")
            return
        except Exception as error:
            raise self.blame(unit.op, case, error) from error
        roundoff = DTYPES[unit.op.compute_dtype].roundoff
        for kernel in runnable:
            self.send(Started(index, kernel.name))
            function = self.function(kernel)
            if isinstance(function, str):
                report(kernel, "crashed", function, context.input_hash)
                continue
            try:
                out = context.run(kernel, function)
                if os.getpid() != self.pid:
                    os._exit(71)  # a child that the kernel forked: only its parent reports
            except (Exception, SystemExit) as error:
                if os.getpid() != self.pid:
                    os._exit(71)
                report(kernel, "crashed", describe_error(error), context.input_hash)
                self.leave_if_poisoned()
                continue
            measured = stats.error_stats(out, context.ref, context.sigma, roundoff, unit.limit)
            same = self.same_as_control(unit, kernel, context)
            report(kernel, "ok", "", context.input_hash, stats=measured, same_as_control=same)

    def blame(self, op: Op, case: Case, error: Exception) -> TolcalError:
        """A failing reference leaves its op without a measure: the user must mend it."""
        return TolcalError(
            f"{op.reference_path}: reference() failed on {case.dims_text}: {describe_error(error)}"
        )

    def same_as_control(self, unit: Unit, kernel: Kernel, context: CaseContext) -> bool | None:
        """Whether a buggy kernel's output equals its control's on this case, value for value."""
        if kernel.corrupts is None:
            return None
        control = next((k for k in unit.op.kernels if k.name == kernel.corrupts), None)
        if control is None:
            return None
        if control.name not in context.outputs:
            # Resumed after a loss, or the control failed: try it once more, for comparison only.
            function = self.function(control)
            if isinstance(function, str):
                return None
            try:
                context.run(control, function)
            except (Exception, SystemExit):
                return None
        ours, theirs = context.outputs[kernel.name], context.outputs[control.name]
        return bool(torch.all((ours == theirs) | (ours.isnan() & theirs.isnan())))

    def leave_if_poisoned(self) -> None:
        """A faulted CUDA context fails every later call: exit, and let the parent start anew."""
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.synchronize()
            torch.zeros(1, device=self.device).item()
        except RuntimeError:
            os._exit(70)


def die_with_parent() -> None:
    """On Linux a worker, hanging or not, ends with the process that started it."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    # Where memory runs out, the system shall take a worker, not the parent that keeps the records.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main(argv: list[str]) -> int:
    """Serve units until the parent closes its end."""
    incoming, outgoing = int(argv[0]), int(argv[1])
    die_with_parent()
    reports_to = os.getpid()

    def send(message: Message) -> None:
        if os.getpid() == reports_to:  # not from a child that a kernel forked
            write_frame(outgoing, message)

    torch.set_num_threads(1)  # a CPU sum depends on how threads split it
    torch.set_grad_enabled(False)
    try:
        device = environment.select_device(argv[2])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        else:
            os.environ["TRITON_INTERPRET"] = "1"  # `auto` without a GPU; nothing imported it yet
        described, uuid = environment.describe(device)
        send(Hello(described, uuid, environment.visible(device)))
        worker = Worker(device, send)
        while True:
            try:
                raw = read_frame(incoming)
            except EOFError:
                return 0
            worker.unit(decode_unit(raw))
    except TolcalError as error:
        send(Refused(str(error)))
        return 2
    except BrokenPipeError:
        return 0  # the parent has gone


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
