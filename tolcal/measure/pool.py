"""Worker processes, the units they share, and what becomes of a worker that is lost."""

from __future__ import annotations

import os
import re
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import msgspec

from tolcal.measure import wire
from tolcal.measure.ledger import REASON_LIMIT, Key, Ledger, Outcomes
from tolcal.measure.process import Process
from tolcal.measure.units import Planned, Request
from tolcal.model import Environment, Status, TolcalError, one_line
from tolcal.sound import check_parts, check_stats

#: So many workers lost in a row without a culprit end the run.
IDLE_LOSSES = 3
#: Importing torch on a busy machine takes its time.
STARTUP_SECONDS = 300.0
#: A worker that has ended is noticed by then, even if its children hold its pipes open.
LOOK_SECONDS = 0.5

#: Python launches kernels no faster than one core allows; beyond this, workers wait for the GPU.
WORKERS_PER_GPU = 8
#: A worker says what it can't know, or what is no message: a kernel has got hold of its pipe.
TAMPERED = "the worker's reports were tampered with"


class Worker:
    """A process, the unit it works on, and what it has reported of it."""

    def __init__(self, device: str, variables: Mapping[str, str], folder: str | None) -> None:
        self.device = device
        self.process = Process(device, variables, folder)
        self.ready = False  # has said hello
        self.touched = False  # by a kernel's code, which may say anything in its name
        self.index: int | None = None
        self.careful = True
        self.todo: set[Key] = set()  # of the unit, not yet started
        self.started: set[Key] = set()  # and not yet measured
        self.measured: set[Key] = set()
        self.preparing: int | None = None  # the case whose inputs and reference it makes
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
        self.ledger = Ledger([p.unit for p in planned], request.kernel_limit)
        self.careful: set[int] = set()  # units that lost a worker without a culprit
        self.checks: set[int] = set()  # units whose reference was refused, maybe by a kernel
        self.idle_losses = 0
        #: Told of each outcome, with its unit's index, before `results` has the whole unit.
        self.noted: Callable[[int], None] = lambda _: None
        self.workers: list[Worker] = []
        self.selector = selectors.DefaultSelector()
        for index, outcomes in (known or {}).items():
            self.ledger.restore(index, outcomes)

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
            while upcoming not in self.ledger.complete:
                self._step()
            yield upcoming, self.ledger.complete.pop(upcoming)

    def start(self) -> None:
        """Starts workers and waits until one on each device is up. TolcalError if none can be."""
        # All at once, since importing torch is what takes long; the first to be up says how many
        # devices there are, and so how many more are worth their start.
        units = len(self.planned) or 1
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        each = min(WORKERS_PER_GPU, cores)
        count = min(self.request.workers or each, units)
        for number in range(count):
            self._spawn(self._place(number))
        while self.hello is None:
            self._step()
        spread = self.hello.devices if self.request.device in ("auto", "cuda") else 1
        suits = each * spread if self.hello.devices else cores
        # None for a plan without units: then one a device, which says what it is.
        wanted = min(self.request.workers or suits, len(self.planned) or spread)
        for number in range(count, wanted):
            self._spawn(self._place(number))
        devices = max(1, min(spread, wanted))
        while len(self.uuids) < devices:
            self._step()
        self.devices = sorted(self.uuids, key=lambda name: (len(name), name))

    def _place(self, number: int) -> str:
        """What a worker is told of its device: of several it takes its number's."""
        shared = self.request.device in ("auto", "cuda")
        return f"{self.request.device}+{number}" if shared else self.request.device

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
        if isinstance(message, wire.Refused):
            return self._refused(worker, message)
        if isinstance(message, wire.Hello) != (not worker.ready):
            return self._tampered(worker)
        worker.deadline = time.monotonic() + self.request.timeout
        match message:
            case wire.Hello():
                self._welcome(worker, message)
            case wire.Preparing():
                if not any(case == message.case for case, _ in worker.todo):
                    return self._tampered(worker)
                worker.preparing = message.case
            case wire.Started():
                worker.preparing = None
                key = (message.case, message.kernel)
                if key not in worker.todo:
                    return self._tampered(worker)
                worker.todo.remove(key)
                worker.started.add(key)
                worker.last = worker.latest = key
                worker.touched = True
                worker.since = time.monotonic()
                worker.deadline = min(worker.deadline, worker.since + self._allowance(worker))
            case wire.Measured():
                return self._measured(worker, message)
            case wire.Finished():
                if worker.index is None or worker.todo or worker.started:
                    return self._tampered(worker)
                self.ledger.finish(worker.index)
                self._assign(worker)
        return True

    def _refused(self, worker: Worker, message: wire.Refused) -> bool:
        """No kernel may end the run: only a process that has run none is believed."""
        if not worker.touched:
            raise TolcalError(message.message)
        index = worker.index
        if index is None or worker.started:
            return self._tampered(worker)
        reason = f"left the process unfit for the reference: {message.message}"
        if index in self.checks and worker.latest is not None:
            # The reference is known to be sound, so it is what a kernel has done to the process.
            kernel = worker.latest[1]
            rest = sorted(key for key in worker.todo if key[1] == kernel)
            worker.last = rest[0] if rest else None
            return self._lost(worker, "crashed", reason if rest else "")
        self.checks.add(index)
        worker.last = None
        return self._lost(worker, "crashed", "")

    def _welcome(self, worker: Worker, hello: wire.Hello) -> None:
        first = self.hello = self.hello or hello
        worker.device = hello.device
        if hello.environment != first.environment:
            one, other = sorted((first, hello), key=lambda h: h.device)
            raise TolcalError(
                f"the GPUs here differ: {one.device} is {one.environment.text}, and {other.device} "
                f"is {other.environment.text}; one run is of one kind: choose with --device cuda:N"
            )
        self.uuids[worker.device] = hello.device_uuid
        worker.ready = True
        self._assign(worker)

    def _measured(self, worker: Worker, message: wire.Measured) -> bool:
        key = (message.case, message.kernel)
        if worker.index is None or key not in worker.started or not is_sound(message):
            return self._tampered(worker)
        worker.started.remove(key)
        worker.measured.add(key)
        self.idle_losses = 0
        self.ledger.note(worker.index, message)
        self.noted(worker.index)
        if worker.last != key:
            return True
        worker.last = None
        if not worker.careful:
            return True
        spent = time.monotonic() - worker.since
        if not self.ledger.spend(worker.index, message.kernel, spent):
            return True
        # The worker has its list and would go on.
        return self._lost(worker, "timeout", "")

    def _allowance(self, worker: Worker) -> float:
        """Seconds that the kernel just started may yet take in this unit."""
        if not worker.careful or worker.index is None or worker.last is None:
            return float("inf")
        return self.ledger.allowance(worker.index, worker.last[1])

    def _late(self, worker: Worker) -> None:
        if not worker.ready:
            self._lost(worker, "timeout", f"not up within {STARTUP_SECONDS:g} s")
            return
        over = time.monotonic() >= worker.since + self._allowance(worker)
        if worker.index is None or worker.last is None or not over:
            self._lost(worker, "timeout", f"no result within {self.request.timeout:g} s")
            return
        self.ledger.exhaust(worker.index, worker.last)
        worker.last = None
        self._lost(worker, "timeout", "")

    def _assign(self, worker: Worker) -> None:
        worker.todo, worker.started, worker.measured = set(), set(), set()
        worker.preparing = worker.last = worker.latest = None
        # A unit whose reference is in doubt needs a process that no kernel has been in.
        fit = (i for i in self.waiting if not (worker.touched and i in self.checks))
        worker.index = next(fit, None)
        if worker.index is not None:
            self.waiting.remove(worker.index)
        if worker.index is None:
            worker.deadline = float("inf")
            return
        assert self.hello is not None
        unit = self.planned[worker.index].unit
        worker.careful = self.hello.devices == 0 or worker.index in self.careful | self.checks
        done, worker.todo = self.ledger.state(worker.index)
        worker.process.send(
            msgspec.structs.replace(
                unit,
                done=done,
                lost=self.ledger.lost(worker.index),
                careful=worker.careful,
                check=worker.index in self.checks,
            )
        )
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
            if self.idle_losses > IDLE_LOSSES:
                raise TolcalError(f"the worker for --device {worker.device} died: {reason}")
            if self.waiting or not self.workers or not worker.ready:
                self._spawn(worker.device)
            return False
        if not worker.careful:
            # Launched in bulk, so any of many may have done it: the next worker finds out which.
            self.careful.add(index)
        elif worker.last is not None:
            self.ledger.blame(index, worker.last, status, reason)
        elif (
            reason
            and (case := worker.preparing) is not None
            and (self.planned[index].unit.pinned(case))
        ):
            self._blame_pin(index, case, worker, status, reason)
        elif reason:
            # Between kernels, so nobody's fault in particular; but never spin.
            self.idle_losses += 1
            if self.idle_losses > IDLE_LOSSES:
                op = self.planned[index].unit.op
                raise TolcalError(
                    f"{op.reference_path}: workers die before any kernel runs ({reason}); "
                    "check the reference, memory and driver"
                )
        self.waiting.appendleft(index)
        idle = next((w for w in self.workers if w.index is None and w.ready), None)
        if idle is not None and index not in self.checks:
            self._assign(idle)
        else:
            self._spawn(worker.device)
        return False

    def _blame_pin(self, index: int, case: int, worker: Worker, status: Status, why: str) -> None:
        """A worker was lost before any kernel ran on a pinned case: what else there is goes on."""
        if worker.touched:
            # It may have been the kernel that was in the process before: a fresh one will tell.
            self.checks.add(index)
            return
        name = self.planned[index].unit.pinned(case)
        text = one_line(f"{name}: before any kernel ran: {why}", REASON_LIMIT)
        for key in sorted(key for key in worker.todo if key[0] == case):
            self.ledger.note(index, wire.Measured(*key, status, text, "", None, None))

    def _tampered(self, worker: Worker) -> bool:
        # Also when that kernel has its outcome: it may have written it itself. And of many
        # kernels together any may have written them all.
        worker.last = worker.last or worker.latest
        if worker.index is not None and not worker.careful:
            self.ledger.forget(worker.index, worker.measured)
        return self._lost(worker, "crashed", TAMPERED)


def is_sound(message: wire.Measured) -> bool:
    """Whether it is what a worker says: what a kernel may put there must fit into a record."""
    try:
        if message.stats is not None:
            check_stats(message.stats)
        check_parts(message.outside, message.checks)
    except msgspec.ValidationError:
        return False
    printable = message.reason.isprintable() and len(message.reason) <= REASON_LIMIT
    known = re.fullmatch("[0-9a-f]{0,64}", message.input_hash) is not None
    return printable and known and (message.status == "ok") == (message.stats is not None)
