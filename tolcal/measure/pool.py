"""Worker processes, the units they share, and what becomes of a worker that is lost."""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from collections.abc import Iterator, Mapping

import msgspec

from tolcal.measure import wire
from tolcal.measure.process import Process
from tolcal.measure.units import Planned, Request
from tolcal.model import Environment, Status, TolcalError, one_line

#: After this many lost workers a kernel's remaining cases of the unit are not tried.
LOSSES_PER_KERNEL = 3
#: Importing torch on a busy machine takes its time.
STARTUP_SECONDS = 300.0
#: A worker that has ended is noticed by then, even if its children hold its pipes open.
LOOK_SECONDS = 0.5

#: A worker says what it can't know, or what is no message: a kernel has got hold of its pipe.
TAMPERED = "the worker's reports were tampered with"

#: How the reason of a case begins that was not tried.
NOT_RUN = "not run, after"

Key = tuple[int, str]  # (case index, kernel)
Outcomes = dict[Key, wire.Measured]


class Worker:
    """A process, the unit it works on, and what it has reported of it."""

    def __init__(self, device: str, variables: Mapping[str, str], folder: str | None) -> None:
        self.device = device
        self.process = Process(device, variables, folder)
        self.ready = False  # has said hello
        self.index: int | None = None
        self.careful = True
        self.todo: set[Key] = set()  # of the unit, not yet started
        self.started: set[Key] = set()  # and not yet measured
        self.measured: set[Key] = set()
        self.last: Key | None = None  # the last started, if not yet measured
        self.latest: Key | None = None  # the last started
        self.since = 0.0  # when that was
        self.deadline = time.monotonic() + STARTUP_SECONDS


class Pool:
    """Workers and the units they share.

    ``known`` holds outcomes of earlier, by unit index: those are not measured again. Paths of the
    corpus are relative to ``folder``, or to where this process works.
    """

    def __init__(
        self,
        request: Request,
        planned: list[Planned],
        known: Mapping[int, Outcomes] | None = None,
        folder: str | None = None,
    ) -> None:
        self.request, self.planned, self.folder = request, planned, folder
        self.hello: wire.Hello | None = None
        self.devices = [request.device]
        self.uuids: dict[str, str] = {}  # of the devices whose worker has said hello
        self.waiting = deque(range(len(planned)))
        self.partial: dict[int, Outcomes] = {}
        self.complete: dict[int, list[wire.Measured]] = {}
        self.losses: dict[tuple[int, str], int] = {}  # (unit, kernel)
        self.spent: dict[tuple[int, str], float] = {}  # seconds, in careful units
        self.careful: set[int] = set()  # units that lost a worker without a culprit
        self.idle_losses = 0
        self.workers: list[Worker] = []
        self.selector = selectors.DefaultSelector()
        for index, outcomes in (known or {}).items():
            self._restore(index, outcomes)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.process.end()
        self.selector.close()

    @property
    def environment(self) -> Environment:
        """That of every device; known once ``start`` is through."""
        assert self.hello is not None
        return self.hello.environment

    @property
    def device_uuid(self) -> str:
        """UUIDs of all devices, sorted; "" on a CPU."""
        return ",".join(sorted({uuid for uuid in self.uuids.values() if uuid}))

    @property
    def places(self) -> str:
        """Where units run, for people."""
        return " ".join(self.devices)

    def results(self) -> Iterator[tuple[int, list[wire.Measured]]]:
        """(unit index, its outcomes) in the order of the plan, after ``start``."""
        for upcoming in range(len(self.planned)):
            while upcoming not in self.complete:
                self._step()
            yield upcoming, self.complete.pop(upcoming)

    def start(self) -> None:
        """Starts workers and waits until one on each device is up. TolcalError if none can be."""
        # The first worker says what the device is, and how many more are worth their start.
        self._spawn(self.request.device)
        while self.hello is None:
            self._step()
        (first,) = self.workers
        devices = self.hello.devices
        if not devices:
            first.device = "cpu"
        elif self.request.device in ("auto", "cuda"):
            first.device = "cuda:0"
        self.uuids = {first.device: self.hello.device_uuid}
        self.devices = [first.device]
        if first.device == "cuda:0" and self.request.device != "cuda:0":
            self.devices = [f"cuda:{i}" for i in range(devices)]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        suits = min(4, cores) * len(self.devices) if devices else cores
        # None for a plan without units: then one a device, which says what it is.
        units = len(self.planned) or len(self.devices)
        count = min(self.request.workers or suits, units)
        self.devices = self.devices[:count]
        for number in range(1, count):
            self._spawn(self.devices[number % len(self.devices)])
        while set(self.devices) - set(self.uuids):
            self._step()

    def _spawn(self, device: str) -> None:
        worker = Worker(device, self.request.variables, self.folder)
        self.workers.append(worker)
        for fd in (worker.process.messages, worker.process.output):
            self.selector.register(fd, selectors.EVENT_READ, worker)

    def _step(self) -> None:
        """Wait for the next message, end or deadline, and act on it."""
        nearest = min(worker.deadline for worker in self.workers)
        timeout = min(LOOK_SECONDS, max(0.0, nearest - time.monotonic()))
        ready = {key.fd for key, _ in self.selector.select(timeout)}
        for worker in list(self.workers):
            self._look(worker, ready)

    def _look(self, worker: Worker, ready: set[int]) -> None:
        process = worker.process
        if process.output in ready and not process.drain():
            self.selector.unregister(process.output)
        # Asked before reading: what it had sent by then is read below.
        gone = process.gone()
        if process.messages in ready or gone:
            try:
                for raw in process.receive():
                    if not self._handle(worker, wire.decode_message(raw)):
                        return
            except (ValueError, msgspec.DecodeError):
                self._tampered(worker)
                return
            except EOFError:
                self._lost(worker, "crashed", self._end(worker, kill=False))
                return
        process.push()
        if gone:
            self._lost(worker, "crashed", self._end(worker))
        elif time.monotonic() >= worker.deadline:
            self._late(worker)

    def _handle(self, worker: Worker, message: wire.Message) -> bool:
        """Acts on a message; False if the worker was lost over it."""
        # No kernel may end the run by saying so: it is a reference's word, or that of the start.
        if isinstance(message, wire.Refused) and not worker.started:
            raise TolcalError(message.message)
        if isinstance(message, wire.Hello) != (not worker.ready):
            return self._tampered(worker)
        worker.deadline = time.monotonic() + self.request.timeout
        match message:
            case wire.Hello():
                self._welcome(worker, message)
            case wire.Started():
                key = (message.case, message.kernel)
                if key not in worker.todo:
                    return self._tampered(worker)
                worker.todo.remove(key)
                worker.started.add(key)
                worker.last = worker.latest = key
                worker.since = time.monotonic()
                worker.deadline = min(worker.deadline, worker.since + self._allowance(worker))
            case wire.Measured():
                return self._measured(worker, message)
            case wire.Finished():
                if worker.index is None or worker.todo or worker.started:
                    return self._tampered(worker)
                self._finish(worker.index)
                self._assign(worker)
            case _:
                return self._tampered(worker)
        return True

    def _welcome(self, worker: Worker, hello: wire.Hello) -> None:
        first = self.hello = self.hello or hello
        if hello.environment != first.environment:
            raise TolcalError(
                f"the GPUs here differ: {first.environment.text}, and {worker.device} is "
                f"{hello.environment.text}; one run is of one kind: choose with --device cuda:N"
            )
        self.uuids[worker.device] = hello.device_uuid
        worker.ready = True
        self._assign(worker)

    def _measured(self, worker: Worker, message: wire.Measured) -> bool:
        key = (message.case, message.kernel)
        if worker.index is None or key not in worker.started:
            return self._tampered(worker)
        worker.started.remove(key)
        worker.measured.add(key)
        self.idle_losses = 0
        self._note(worker.index, message)
        if worker.last != key:
            return True
        worker.last = None
        if not worker.careful:
            return True
        spent = self.spent.get((worker.index, message.kernel), 0.0)
        spent += time.monotonic() - worker.since
        self.spent[worker.index, message.kernel] = spent
        if spent < self.request.kernel_limit or not self._left(worker.index, message.kernel):
            return True
        # The worker has its list and would go on.
        self._exhausted(worker.index, message.kernel)
        return self._lost(worker, "timeout", "")

    def _allowance(self, worker: Worker) -> float:
        """Seconds that the kernel just started may yet take in this unit."""
        if not worker.careful or worker.index is None or worker.last is None:
            return float("inf")
        spent = self.spent.get((worker.index, worker.last[1]), 0.0)
        return max(0.0, self.request.kernel_limit - spent)

    def _late(self, worker: Worker) -> None:
        if not worker.ready:
            self._lost(worker, "timeout", f"not up within {STARTUP_SECONDS:g} s")
            return
        index, last = worker.index, worker.last
        over = time.monotonic() >= worker.since + self._allowance(worker)
        if index is None or last is None or not over:
            self._lost(worker, "timeout", f"no result within {self.request.timeout:g} s")
            return
        limit = self.request.kernel_limit
        why = f"no result within the {limit:g} s that a kernel may take in all"
        self._note(index, _failed(*last, "timeout", why))
        self._exhausted(index, last[1])
        worker.last = None
        self._lost(worker, "timeout", "")

    def _restore(self, index: int, outcomes: Outcomes) -> None:
        """Outcomes of earlier, and the losses among them: a kernel once given up stays so."""
        self.partial[index] = dict(outcomes)
        for kernel in self.planned[index].unit.kernels:
            lost = [
                m for (_, name), m in sorted(outcomes.items())
                if name == kernel.name and m.status in ("crashed", "timeout") and not m.input_hash
            ]  # fmt: skip
            given_up = next((m for m in lost if m.reason.startswith(NOT_RUN)), None)
            if given_up is not None:
                self._note_left(index, kernel.name, given_up.status, given_up.reason)
            elif len(lost) >= LOSSES_PER_KERNEL:
                self._give_up(index, kernel.name, lost[-1].status, lost[-1].reason)
            self.losses[index, kernel.name] = len(lost)

    def _left(self, index: int, kernel: str) -> list[int]:
        """Cases of the unit that the kernel has no outcome of."""
        got = self.partial.get(index, {})
        return [c for c in range(len(self.planned[index].unit.cases)) if (c, kernel) not in got]

    def _exhausted(self, index: int, kernel: str) -> None:
        why = f"{NOT_RUN} {self.request.kernel_limit:g} s spent on cases before it"
        self._note_left(index, kernel, "timeout", why)

    def _note_left(self, index: int, kernel: str, status: Status, reason: str) -> None:
        for case in self._left(index, kernel):
            self._note(index, _failed(case, kernel, status, reason))

    def _note(self, index: int, outcome: wire.Measured) -> None:
        self.partial.setdefault(index, {})[outcome.case, outcome.kernel] = outcome

    def _finish(self, index: int) -> None:
        unit, got = self.planned[index].unit, self.partial.pop(index, {})
        self.complete[index] = [
            got[case, kernel.name] for case in range(len(unit.cases)) for kernel in unit.kernels
        ]

    def _assign(self, worker: Worker) -> None:
        worker.todo, worker.started, worker.measured = set(), set(), set()
        worker.last = worker.latest = None
        worker.index = self.waiting.popleft() if self.waiting else None
        if worker.index is None:
            worker.deadline = float("inf")
            return
        assert self.hello is not None
        unit = self.planned[worker.index].unit
        worker.careful = self.hello.devices == 0 or worker.index in self.careful
        done = frozenset(self.partial.get(worker.index, {}))
        worker.todo = {(c, k.name) for c in range(len(unit.cases)) for k in unit.kernels} - done
        worker.process.send(msgspec.structs.replace(unit, done=done, careful=worker.careful))
        worker.deadline = time.monotonic() + self.request.timeout

    def _end(self, worker: Worker, kill: bool = True) -> str:
        for fd in (worker.process.messages, worker.process.output):
            if fd in self.selector.get_map():
                self.selector.unregister(fd)
        return worker.process.end(kill)

    def _lost(self, worker: Worker, status: Status, reason: str) -> bool:
        """Blame the case it was on, if that is known, and let a new worker take up the rest."""
        if worker.process.child.returncode is None:
            self._end(worker)
        self.workers.remove(worker)
        index = worker.index
        if index is None:
            # It never came up (or was idle): the work must not wait for it.
            self.idle_losses += 1
            if self.hello is None or self.idle_losses > LOSSES_PER_KERNEL:
                raise TolcalError(f"the worker for --device {worker.device} died: {reason}")
            if self.waiting or not self.workers or worker.device not in self.uuids:
                self._spawn(worker.device)
            return False
        if not worker.careful:
            # Launched in bulk, so any of many may have done it: the next worker finds out which.
            self.careful.add(index)
        elif worker.last is not None:
            self._blame(index, worker.last, status, reason)
        elif reason:
            # Between kernels, so nobody's fault in particular; but never spin.
            self.idle_losses += 1
            if self.idle_losses > LOSSES_PER_KERNEL:
                op = self.planned[index].unit.op
                raise TolcalError(
                    f"{op.reference_path}: workers die before any kernel runs ({reason}); "
                    "check the reference, memory and driver"
                )
        self.waiting.appendleft(index)
        idle = next((w for w in self.workers if w.index is None and w.ready), None)
        if idle is not None:
            self._assign(idle)
        else:
            self._spawn(worker.device)
        return False

    def _tampered(self, worker: Worker) -> bool:
        # Also when that kernel has its outcome: it may have written it itself. And of many
        # kernels together any may have written them all.
        worker.last = worker.last or worker.latest
        if worker.index is not None and not worker.careful:
            for key in worker.measured:
                del self.partial[worker.index][key]
        return self._lost(worker, "crashed", TAMPERED)

    def _blame(self, index: int, key: Key, status: Status, reason: str) -> None:
        case, kernel = key
        text = one_line(reason, 240)
        self._note(index, _failed(case, kernel, status, text))
        lost = self.losses[index, kernel] = self.losses.get((index, kernel), 0) + 1
        if lost >= LOSSES_PER_KERNEL:
            self._give_up(index, kernel, status, text)

    def _give_up(self, index: int, kernel: str, status: Status, text: str) -> None:
        why = f"{NOT_RUN} {LOSSES_PER_KERNEL} lost workers: {text}"
        self._note_left(index, kernel, status, one_line(why, 240))


def _failed(case: int, kernel: str, status: Status, reason: str) -> wire.Measured:
    return wire.Measured(case, kernel, status, reason, "", None, None)
