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
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

# Before any import of Triton: interpretation is decided when a kernel is decorated.
if __name__ == "__main__" and sys.argv[3] == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

import torch

from tolcal import cases, stats
from tolcal.measure import checks, configs, domain, environment
from tolcal.measure.context import Context
from tolcal.measure.given import GivenContext
from tolcal.measure.large import LargeContext
from tolcal.measure.room import TooLargeError
from tolcal.measure.settings import Settings
from tolcal.measure.wire import (
    FAILED_CHECK,
    Finished,
    Hello,
    Measured,
    Message,
    Preparing,
    Refused,
    Started,
    Unit,
    decode_unit,
    read_frame,
    write_frame,
)
from tolcal.model import DTYPES, Case, Kernel, Op, Outside, Status, TolcalError, one_line

#: Interpreted Triton does not round these: its casts truncate, its arithmetic is on the bits.
INTERPRETER_LACKS = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
REASON_LIMIT = 240
#: Outputs of the first batch, and how long waiting for one may take before it is made smaller.
FIRST_BATCH = 4
QUICK_SECONDS = 1.0
#: Names of the modules that corpus files become.
PREFIX = "tolcal_corpus_"
HERE = Path.cwd()


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


def describe_error(error: BaseException, path: str = "") -> str:
    """One printable line; of code in the folder of ``path`` with the line that it was at."""
    if isinstance(error, checks.FailedCheckError):
        text = f"{FAILED_CHECK}{error.check}: {describe_error(error.error)}"
    elif isinstance(error, SystemExit):
        text = f"SystemExit: {0 if error.code is None else error.code}"  # `exit()` is `exit(0)`
    elif isinstance(error, TooLargeError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    place = _place(error, path) if path else ""
    return one_line(text, REASON_LIMIT - len(place)) + place


def _place(error: BaseException, path: str) -> str:
    """`` (softmax.py:12)``: the innermost line of a file in the folder of ``path``; "" if none."""
    if isinstance(error, checks.FailedCheckError):
        error = error.error
    folder = str((HERE / path).parent)
    lines = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if str(Path(frame.filename).parent) == folder
    ]
    if not lines:
        return ""
    name, line = lines[-1]
    return f" ({one_line(Path(name).name, 80)}:{line})"


class Open(NamedTuple):
    """An output whose statistics are still to be waited for."""

    case: int
    kernel: str
    hash_sums: torch.Tensor  # of the inputs; not the case itself, whose tensors may be large
    differs: torch.Tensor | None
    outside: int = 0  # output elements outside the domain
    kinds: torch.Tensor | None = None  # of these, as `domain.kinds_outside` gives them
    checked: checks.Pending | None = None

    def marks(self) -> list[torch.Tensor]:
        """What has to come from the device, as int64."""
        checked = None if self.checked is None else self.checked.values
        known = (self.hash_sums, self.differs, self.kinds, checked)
        return [mark.to(torch.int64) for mark in known if mark is not None]


class Worker:
    """Runs units on one device and reports through ``send``."""

    def __init__(self, device: torch.device, send: Callable[[Message], None]) -> None:
        self.device, self.send = device, send
        self.loaded: dict[str, Callable[..., torch.Tensor] | str] = {}
        self.pid = os.getpid()
        self.batch = stats.Batch(device)
        self.open: list[Open] = []  # what self.batch holds
        self.careful = True
        #: How many outputs are launched before their results are waited for.
        self.most = FIRST_BATCH
        self.interpreter = os.environ.get("TRITON_INTERPRET") == "1"
        self.values: Mapping[str, bytes] | None = None  # of the unit
        self.settings = Settings()
        configs.install(self.interpreter)
        self.touched = False  # by a kernel's code, which may have made it unfit
        self.unfit: dict[int, str] = {}  # pinned cases of the unit that can't be run, and why

    def function(self, kernel: Kernel) -> Callable[..., torch.Tensor] | str:
        """``run`` of a kernel, or why its file can't be loaded."""
        if kernel.path not in self.loaded:
            try:
                self.loaded[kernel.path] = self.settings.own(lambda: load(kernel.path, "run"))
            except (Exception, SystemExit) as error:
                self.loaded[kernel.path] = f"at import: {describe_error(error, kernel.path)}"
        return self.loaded[kernel.path]

    def reference(self, op: Op) -> Callable[..., torch.Tensor]:
        """The op's reference. TolcalError if it can't be loaded: no case of the op can run."""
        if op.reference_path not in self.loaded:
            try:
                self.loaded[op.reference_path] = self.settings.own(
                    lambda: load(op.reference_path, "reference")
                )
            except (Exception, SystemExit) as error:
                what = describe_error(error, op.reference_path)
                raise TolcalError(f"{op.reference_path}: {what}") from None
        function = self.loaded[op.reference_path]
        assert not isinstance(function, str)
        return function

    def unit(self, unit: Unit) -> None:
        """Measure every (case, kernel) of ``unit`` that is not done yet."""
        self.careful = unit.careful or self.device.type == "cpu"
        self.values, self.unfit = unit.values, {}
        work = [
            (index, case, todo)
            for index, case in enumerate(unit.cases)
            if (todo := [k for k in unit.kernels if (index, k.name) not in unit.done])
        ]
        if unit.check:
            for index, _, _ in work:
                self.context(unit, index)
        for turn, (index, case, todo) in enumerate(work):
            self.case(unit, index, case, todo, first=turn == 0)
        self.flush()
        self.send(Finished())

    def flush(self) -> None:
        """Report everything that has been launched, with two transfers for all of it."""
        if not self.open:
            return
        begun = time.monotonic()
        try:
            measured = self.batch.results()
            marks = torch.cat([mark for o in self.open for mark in o.marks()]).tolist()
        except RuntimeError:
            self.leave_if_poisoned()
            raise
        values = iter(marks)
        for o, found in zip(self.open, measured, strict=True):
            sums = [next(values) for _ in range(o.hash_sums.numel())]
            same = None if o.differs is None else not next(values)
            outside = checked = None
            if o.kinds is not None:
                mismatch, differing = next(values), next(values)
                outside = Outside(o.outside, mismatch, differing if differing >= 0 else None)
            if o.checked is not None:
                names = o.checked.names
                checked = checks.found(names, [next(values) for _ in names])
            whole = cases.input_hash(sums)
            self.send(Measured(o.case, o.kernel, "ok", "", whole, found, same, outside, checked))
        self.open = []
        # A batch gets the time of one case, so what takes long is waited for more often.
        quick = time.monotonic() - begun < QUICK_SECONDS
        self.most = min(2 * self.most, stats.CAPACITY) if quick else max(1, self.most // 2)

    def context(self, unit: Unit, index: int, first: bool = True) -> Context | str:
        """`prepare` for a case of a unit.

        What is pinned was chosen by hand, so that one of these can't be run is no fault of the
        reference's, and no other case's. In a process that a kernel was in it may be the kernel's.
        """
        if index not in self.unfit:
            name = unit.pinned(index)
            if unit.check or name:
                self.send(Preparing(index))
            try:
                found = self.prepare(unit.op, unit.cases[index], first)
                if isinstance(found, str) and name:
                    return one_line(f"{name}: {found}", REASON_LIMIT)
                return found
            except TolcalError as error:
                if not name or self.touched:
                    raise
                self.unfit[index] = one_line(f"{name} can't be run: {error}", REASON_LIMIT)
        return self.unfit[index]

    def prepare(self, op: Op, case: Case, first: bool = True) -> Context | str:
        """Inputs, reference and sensitivity of a case, or why memory does not hold them.

        With ``first`` the reference must also give the same values again. TolcalError if the
        reference is at fault.
        """
        reference = self.reference(op)
        try:
            context: Context
            if self.values is not None:
                context = GivenContext(op, case, self.device, reference, self.values)
            else:
                make = LargeContext if case.profile == "large" else Context
                context = make(op, case, self.device, reference, again=first)
            if self.careful:
                context.input_hash()  # while the device is known to be sound
        except TolcalError:
            raise
        except TooLargeError as error:
            return describe_error(error)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            # A CPU allocation that fails is a bare RuntimeError.
            full = isinstance(error, torch.OutOfMemoryError | MemoryError)
            if not full:
                self.leave_if_poisoned()  # by an earlier kernel
            if not full and "allocate memory" not in str(error):
                raise self.blame(op, case, error) from error
            return f"inputs and reference: {describe_error(error)}"
        except (Exception, SystemExit) as error:
            raise self.blame(op, case, error) from error
        return context

    def case(self, unit: Unit, index: int, case: Case, todo: list[Kernel], first: bool) -> None:
        """Measure ``todo`` on one case; controls come first, as op folders list them."""

        def report(kernel: Kernel, status: Status, reason: str, input_hash: str = "") -> None:
            self.send(Measured(index, kernel.name, status, reason, input_hash, None, None))

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
        context = self.context(unit, index, first)
        if isinstance(context, str):
            for kernel in runnable:
                self.send(Started(index, kernel.name))
                report(kernel, "skipped", context)
            return
        roundoff = DTYPES[unit.op.compute_dtype].roundoff
        for kernel in runnable:
            self.send(Started(index, kernel.name))
            self.touched = True
            function = self.function(kernel)
            if isinstance(function, str):
                report(kernel, "crashed", function, context.input_hash())
                continue
            try:
                with configs.Launches() as launched:
                    out = context.run(kernel, function)
                checked = None
                if unit.checks(index):
                    # Its own copy: a kernel may give the same memory again.
                    out = context.outputs[kernel.name] = out.clone()
                    vectorised = self.device.type == "cpu" and not kernel.uses_triton
                    checked = checks.run(
                        context, function, out, launched, self.interpreter, vectorised,
                        kernel.batch,
                    )  # fmt: skip
                if self.careful and self.device.type == "cuda":
                    torch.cuda.synchronize()  # a fault surfaces here, while its kernel is known
                if os.getpid() != self.pid:
                    os._exit(71)  # a child that the kernel forked: only its parent reports
            except TooLargeError as error:
                report(kernel, "skipped", describe_error(error), context.input_hash())
                continue
            except (Exception, SystemExit) as error:
                if os.getpid() != self.pid:
                    os._exit(71)
                if not self.careful:
                    self.leave_if_poisoned()  # by whichever kernel: a careful worker will know
                what = describe_error(error, kernel.path)
                report(kernel, "crashed", what, context.input_hash())
                self.leave_if_poisoned()
                continue
            differs = self.differs(unit, index, kernel, context)
            self.batch.add(*context.judged(out), roundoff, unit.limit)
            opened = Open(index, kernel.name, context.hash_sums, differs, checked=checked)
            if context.part is not None:
                control = None if differs is None else context.outputs[str(kernel.corrupts)]
                kinds = domain.kinds_outside(context.part, out, context.ref, control)
                opened = opened._replace(outside=context.part.outside.numel(), kinds=kinds)
            self.open.append(opened)
            if self.careful or len(self.open) >= self.most:
                self.flush()

    def blame(self, op: Op, case: Case, error: BaseException) -> TolcalError:
        """A failing reference leaves its op without a measure: the user must mend it."""
        what = describe_error(error, op.reference_path)
        return TolcalError(f"{op.reference_path}: reference() failed on {case.dims_text}: {what}")

    def differs(
        self, unit: Unit, index: int, kernel: Kernel, context: Context
    ) -> torch.Tensor | None:
        """[1]: whether a buggy kernel's output differs from its control's on this case."""
        if kernel.corrupts is None:
            return None
        control = next((k for k in unit.op.kernels if k.name == kernel.corrupts), None)
        # One that has taken a worker with it would take the buggy kernel's result, too.
        if control is None or (index, control.name) in unit.lost:
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
        return context.differs(kernel, control)

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
        wanted, _, number = argv[2].partition("+")
        device = environment.select_device(wanted, int(number or 0))
        if device.type == "cuda":
            torch.cuda.set_device(device)
        else:
            os.environ["TRITON_INTERPRET"] = "1"  # `auto` without a GPU; nothing imported it yet
        described, uuid = environment.describe(device)
        send(Hello(described, str(device), uuid, environment.visible(device)))
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
