"""Worker processes, the units they share, and what becomes of a worker that is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import IO

import msgspec

from tolcal.measure import wire
from tolcal.measure.units import Planned, Request
from tolcal.model import Status, TolcalError, one_line

#: After this many lost workers a kernel's remaining cases of the unit are not tried.
LOSSES_PER_KERNEL = 3
#: Importing torch on a busy machine takes its time.
STARTUP_SECONDS = 300.0
#: What is kept of a worker's own output, for the reason of its end.
TAIL_BYTES = 4096


class Worker:
    """A child process, the unit it works on, and what it has reported of it."""

    def __init__(self, device: str) -> None:
        here_read, child_write = os.pipe()
        child_read, here_write = os.pipe()
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `end`)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tolcal.measure.worker", str(child_read), str(child_write),
             device],
            pass_fds=(child_read, child_write),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )  # fmt: skip
        os.close(child_read)
        os.close(child_write)
        self.incoming = Connection(here_read, writable=False)
        self.outgoing = Connection(here_write, readable=False)
        self.ready = False  # has said hello
        self.index: int | None = None
        self.started: wire.Started | None = None
        self.deadline = time.monotonic() + STARTUP_SECONDS

    def last_words(self) -> str:
        """The last line it printed, for a message."""
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - TAIL_BYTES))
        lines = self.log.read().decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return one_line(last, 160)

    def end(self, kill: bool = True) -> str:
        """How it ended; a worker that has not ended by itself is killed."""
        try:
            # Its pipe closes a moment before it can be waited for.
            code = self.process.wait(timeout=0.0 if kill else 5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        words = self.last_words()
        self.incoming.close()
        self.outgoing.close()
        self.log.close()
        how = f"exit status {code}"
        if code < 0:
            try:
                how = signal.Signals(-code).name
            except ValueError:
                how = f"signal {-code}"
        return f"{how}: {words}" if words else how


class Pool:
    """Workers and the units they share."""

    def __init__(self, request: Request, planned: list[Planned]) -> None:
        self.request, self.planned = request, planned
        self.hello: wire.Hello | None = None
        self.waiting = deque(range(len(planned)))
        self.partial: dict[int, dict[tuple[int, str], wire.Measured]] = {}
        self.complete: dict[int, list[wire.Measured]] = {}
        self.losses: dict[tuple[int, str], int] = {}  # (unit, kernel)
        self.idle_losses = 0
        self.workers: list[Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end()

    def results(self) -> Iterator[tuple[int, list[wire.Measured]]]:
        """(unit index, its outcomes) in the order of the plan."""
        self._start()
        upcoming = 0
        while upcoming < len(self.planned):
            if upcoming in self.complete:
                yield upcoming, self.complete.pop(upcoming)
                upcoming += 1
                continue
            self._step()

    def _start(self) -> None:
        # The first worker says what the device is, and how many more are worth their start.
        self._spawn()
        while self.hello is None:
            self._step()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        wanted = self.request.workers or min(4 if self.hello.device_uuid else cores, cores)
        for _ in range(min(wanted, len(self.planned)) - 1):
            self._spawn()

    def _spawn(self) -> None:
        self.workers.append(Worker(self.request.device))

    def _step(self) -> None:
        """Wait for the next message, end or deadline, and act on it."""
        now = time.monotonic()
        nearest = min(worker.deadline for worker in self.workers)
        ready = wait([w.incoming for w in self.workers], timeout=min(60.0, max(0.0, nearest - now)))
        for worker in list(self.workers):
            if worker.incoming in ready:
                try:
                    message = wire.decode_message(worker.incoming.recv_bytes())
                except (EOFError, OSError, msgspec.DecodeError):
                    self._lost(worker, "crashed", worker.end(kill=False))
                    continue
                self._handle(worker, message)
            elif time.monotonic() >= worker.deadline:
                worker.end()
                self._lost(worker, "timeout", f"no result within {self.request.timeout:g} s")

    def _handle(self, worker: Worker, message: wire.Message) -> None:
        worker.deadline = time.monotonic() + self.request.timeout
        match message:
            case wire.Hello():
                self.hello = self.hello or message
                worker.ready = True
                self._assign(worker)
            case wire.Refused():
                raise TolcalError(message.message)
            case wire.Started():
                worker.started = message
            case wire.Measured():
                pending = worker.started or wire.Started(message.case, message.kernel)
                if worker.index is None or (message.case, message.kernel) != (
                    pending.case,
                    pending.kernel,
                ):
                    self._disobey(worker)
                    return
                worker.started = None
                self.idle_losses = 0
                self._note(worker.index, message)
            case wire.Finished():
                if worker.index is None or not self._is_complete(worker.index):
                    self._disobey(worker)
                    return
                self._finish(worker.index)
                self._assign(worker)

    def _disobey(self, worker: Worker) -> None:
        """It says what it can't know: a kernel has got hold of its pipe."""
        worker.end()
        self._lost(worker, "crashed", "the worker's reports were tampered with")

    def _is_complete(self, index: int) -> bool:
        unit, got = self.planned[index].unit, self.partial.get(index, {})
        return all((c, k.name) in got for c in range(len(unit.cases)) for k in unit.kernels)

    def _note(self, index: int, outcome: wire.Measured) -> None:
        self.partial.setdefault(index, {})[outcome.case, outcome.kernel] = outcome

    def _finish(self, index: int) -> None:
        unit, got = self.planned[index].unit, self.partial.pop(index, {})
        self.complete[index] = [
            got[case, kernel.name] for case in range(len(unit.cases)) for kernel in unit.kernels
        ]

    def _assign(self, worker: Worker) -> None:
        worker.index = self.waiting.popleft() if self.waiting else None
        if worker.index is None:
            worker.deadline = float("inf")
            return
        unit = self.planned[worker.index].unit
        done = frozenset(self.partial.get(worker.index, {}))
        try:
            worker.outgoing.send_bytes(wire.encode(msgspec.structs.replace(unit, done=done)))
        except OSError:
            return  # it died: the next read says how
        worker.deadline = time.monotonic() + self.request.timeout

    def _lost(self, worker: Worker, status: Status, reason: str) -> None:
        """Blame the case it was on, and let a new worker take up the rest."""
        self.workers.remove(worker)
        if worker.index is None:
            # It never came up (or was idle): the work must not wait for it.
            self.idle_losses += 1
            if self.hello is None or self.idle_losses > LOSSES_PER_KERNEL:
                raise TolcalError(f"the worker for --device {self.request.device} died: {reason}")
            if self.waiting or not self.workers:
                self._spawn()
            return
        index, started = worker.index, worker.started
        if started is None:
            # Between kernels, so nobody's fault in particular; but never spin.
            self.idle_losses += 1
            if self.idle_losses > LOSSES_PER_KERNEL:
                op = self.planned[index].unit.op
                raise TolcalError(
                    f"{op.reference_path}: workers die before any kernel runs ({reason}); "
                    "check the reference, memory and driver"
                )
        else:
            self._blame(index, started, status, reason)
        self.waiting.appendleft(index)
        idle = next((w for w in self.workers if w.index is None and w.ready), None)
        if idle is not None:
            self._assign(idle)
        self._spawn()

    def _blame(self, index: int, started: wire.Started, status: Status, reason: str) -> None:
        text = one_line(reason, 240)

        def note(case: int, why: str) -> None:
            self._note(index, wire.Measured(case, started.kernel, status, why, "", None, None))

        note(started.case, text)
        lost = self.losses[index, started.kernel] = self.losses.get((index, started.kernel), 0) + 1
        if lost >= LOSSES_PER_KERNEL:
            got = self.partial[index]
            for case in range(len(self.planned[index].unit.cases)):
                if (case, started.kernel) not in got:
                    note(case, f"not run, after {lost} lost workers: {text}"[:240])
