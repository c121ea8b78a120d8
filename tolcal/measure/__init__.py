"""Runs kernels in isolated worker processes and yields their records, in the order of the plan.

This process never imports torch, so nothing that a kernel does can reach it. A worker that dies
or hangs costs the case it was on: its successor takes up the rest of the unit.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO

import msgspec

from tolcal import __version__, cases
from tolcal.measure import wire
from tolcal.model import (
    DTYPES,
    Case,
    CaseSet,
    Cell,
    Kernel,
    Op,
    Origin,
    Record,
    Run,
    Status,
    TolcalError,
    Tolerance,
    digest,
)

#: After this many lost workers a kernel's remaining cases of the unit are not tried.
LOSSES_PER_KERNEL = 3
#: Importing torch on a busy machine takes its time.
STARTUP_SECONDS = 300.0
#: What is kept of a worker's own output, for the reason of its end.
TAIL_BYTES = 4096

#: Called after each record with (records done, records planned, what it was).
Progress = Callable[[int, int, str], None]


class Request(msgspec.Struct, frozen=True):
    """What to measure."""

    ops: tuple[Op, ...]
    dtypes: tuple[str, ...]  # empty: each op's own
    device: str  # auto, cuda, cuda:1, cpu
    gate: int  # cases a kernel and dtype, the same in every run
    explore: int  # cases a kernel and dtype, fresh in every run
    repeat: int = 1
    seed: int | None = None  # of the explore cases; None draws one
    profile: str = "default"
    timeout: float = 120.0  # seconds a case
    workers: int = 0  # 0: as many as suit the machine
    origin: Origin = "local"
    limits: Mapping[Cell, Tolerance | float] = {}


class Planned(msgspec.Struct, frozen=True):
    """A unit of work, the run it belongs to, and how many of its cases are gate cases."""

    run: int
    gate: int
    unit: wire.Unit

    @property
    def size(self) -> int:
        """Records that it gives."""
        return len(self.unit.cases) * len(self.unit.kernels)


def run_seeds(request: Request) -> list[int]:
    """The master seed of each run's explore cases."""
    base = secrets.randbits(62) if request.seed is None else request.seed
    if request.repeat == 1:
        return [base]
    return [cases.key("run", base, i) >> 1 for i in range(request.repeat)]


def plan(request: Request, seeds: list[int]) -> list[Planned]:
    """Every unit of every run: kernels of one op and dtype that share their dims."""
    planned = []
    for index, seed in enumerate(seeds):
        for op in request.ops:
            for dtype in op.dtypes:
                if request.dtypes and dtype not in request.dtypes:
                    continue
                for kernels in _by_dims(op):
                    dims, args = kernels[0].dims, (dtype,)
                    gate = cases.draw_cases(
                        op, dims, *args, cases.GATE_SEED, request.gate, request.profile
                    )
                    fresh = cases.draw_cases(
                        op, dims, *args, seed, request.explore, request.profile
                    )
                    limit = request.limits.get((op.name, dtype))
                    unit = wire.Unit(op, dtype, kernels, gate + fresh, limit)
                    planned.append(Planned(index, len(gate), unit))
    return [p for p in planned if p.size]


def _by_dims(op: Op) -> list[tuple[Kernel, ...]]:
    groups: dict[str, list[Kernel]] = {}
    for kernel in op.kernels:
        groups.setdefault(repr(sorted(kernel.dims.items())), []).append(kernel)
    return [tuple(group) for group in groups.values()]


def find_case(ops: tuple[Op, ...], case_id: str, gate: int) -> Case | None:
    """The gate case with that id, if there is one: ids are hashes, but the gate set is known."""
    for op in ops:
        for dtype in op.dtypes:
            for kernels in _by_dims(op):
                for case in cases.draw_cases(op, kernels[0].dims, dtype, cases.GATE_SEED, gate):
                    if case.id == case_id:
                        return case
    return None


def git_state(folder: Path) -> tuple[str, bool]:
    """Commit of the work tree that holds ``folder`` ("" outside git), and whether it is dirty."""

    def git(*args: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=60
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit:
        # A runner that got the sources without their history may still know the commit.
        named = os.environ.get("GITHUB_SHA", "")
        return (named if re.fullmatch("[0-9a-f]{40}", named) else ""), False
    return commit, bool(git("status", "--porcelain", "--untracked-files=no"))


def measure(
    request: Request, corpus: Path, progress: Progress = lambda *_: None
) -> Iterator[Run | Record]:
    """Runs ``request``; yields each Run, then its Records.

    The order is that of the plan whatever the number of workers: run, op, dtype, case, kernel.
    A kernel's failure is a record. TolcalError if the device, the contract or a reference fails.
    """
    seeds = run_seeds(request)
    planned = plan(request, seeds)
    if not planned:
        raise TolcalError(
            "nothing to measure: no kernel, dtype and case is left by the selection; "
            "check OP, --dtype and --cases"
        )
    yield from _execute(request, seeds, planned, corpus, progress)


def replay(request: Request, case: Case, corpus: Path) -> Iterator[Run | Record]:
    """Runs the kernels of ``request`` on one case."""
    (op,) = request.ops
    limit = request.limits.get((op.name, case.dtype))
    unit = wire.Unit(op, case.dtype, op.kernels, (case,), limit)
    yield from _execute(request, [0], [Planned(0, 0, unit)], corpus, lambda *_: None)


def _execute(
    request: Request,
    seeds: list[int],
    planned: list[Planned],
    corpus: Path,
    progress: Progress,
) -> Iterator[Run | Record]:
    commit, dirty = git_state(corpus)
    session = secrets.token_hex(8)
    total = sum(p.size for p in planned)
    done = 0
    current: Run | None = None
    with _Pool(request, planned) as pool:
        for index, outcomes in pool.results():
            p = planned[index]
            run_id = digest("run", session, p.run)
            if current is None or current.id != run_id:
                assert pool.hello is not None
                current = Run(
                    id=run_id,
                    seed=seeds[p.run],
                    started=datetime.now(UTC).isoformat(timespec="seconds"),
                    session=session,
                    origin=request.origin,
                    commit=commit,
                    dirty=dirty,
                    tolcal=__version__,
                    device_uuid=pool.hello.device_uuid,
                    environment=pool.hello.environment,
                )
                yield current
            for outcome in outcomes:
                done += 1
                progress(done, total, f"{p.unit.op.name} {p.unit.dtype}")
                yield _record(current, p, outcome)


def _record(run: Run, planned: Planned, outcome: wire.Measured) -> Record:
    op, unit = planned.unit.op, planned.unit
    kernel = next(k for k in unit.kernels if k.name == outcome.kernel)
    case_set: CaseSet = "gate" if outcome.case < planned.gate else "explore"
    return Record(
        run=run,
        kernel=kernel.name,
        role=kernel.role,
        corrupts=kernel.corrupts,
        case=unit.cases[outcome.case],
        case_set=case_set,
        status=outcome.status,
        reason=outcome.reason,
        input_hash=outcome.input_hash,
        kernel_hash=kernel.source_hash,
        reference_hash=op.reference_hash,
        op_hash=op.op_hash,
        roundoff=DTYPES[op.compute_dtype].roundoff,
        stats=outcome.stats,
        same_as_control=outcome.same_as_control,
    )


class _Worker:
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
        self.index: int | None = None
        self.started: wire.Started | None = None
        self.deadline = time.monotonic() + STARTUP_SECONDS

    def last_words(self) -> str:
        """The last line it printed, for a message."""
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - TAIL_BYTES))
        lines = self.log.read().decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return "".join(c if c.isprintable() else "?" for c in last.strip())[:160]

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


class _Pool:
    """Workers and the units they share."""

    def __init__(self, request: Request, planned: list[Planned]) -> None:
        self.request, self.planned = request, planned
        self.hello: wire.Hello | None = None
        self.waiting = deque(range(len(planned)))
        self.partial: dict[int, dict[tuple[int, str], wire.Measured]] = {}
        self.complete: dict[int, list[wire.Measured]] = {}
        self.losses: dict[tuple[int, str], int] = {}  # (unit, kernel)
        self.idle_losses = 0
        self.workers: list[_Worker] = []

    def __enter__(self) -> _Pool:
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
        self.workers.append(_Worker(self.request.device))

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

    def _handle(self, worker: _Worker, message: wire.Message) -> None:
        worker.deadline = time.monotonic() + self.request.timeout
        match message:
            case wire.Hello():
                self.hello = self.hello or message
                self._assign(worker)
            case wire.Refused():
                raise TolcalError(message.message)
            case wire.Started():
                worker.started = message
            case wire.Measured():
                worker.started = None
                self.idle_losses = 0
                assert worker.index is not None
                self._note(worker.index, message)
            case wire.Finished():
                assert worker.index is not None
                self._finish(worker.index)
                self._assign(worker)

    def _note(self, index: int, outcome: wire.Measured) -> None:
        self.partial.setdefault(index, {})[outcome.case, outcome.kernel] = outcome

    def _finish(self, index: int) -> None:
        unit, got = self.planned[index].unit, self.partial.pop(index, {})
        self.complete[index] = [
            got[case, kernel.name] for case in range(len(unit.cases)) for kernel in unit.kernels
        ]

    def _assign(self, worker: _Worker) -> None:
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

    def _lost(self, worker: _Worker, status: Status, reason: str) -> None:
        """Blame the case it was on, and let a new worker take up the rest."""
        self.workers.remove(worker)
        if worker.index is None:
            if self.hello is None:
                raise TolcalError(f"the worker for --device {self.request.device} died: {reason}")
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
        self._spawn()

    def _blame(self, index: int, started: wire.Started, status: Status, reason: str) -> None:
        text = " ".join(reason.split())[:240]

        def note(case: int, why: str) -> None:
            self._note(index, wire.Measured(case, started.kernel, status, why, "", None, None))

        note(started.case, text)
        lost = self.losses[index, started.kernel] = self.losses.get((index, started.kernel), 0) + 1
        if lost >= LOSSES_PER_KERNEL:
            got = self.partial[index]
            for case in range(len(self.planned[index].unit.cases)):
                if (case, started.kernel) not in got:
                    note(case, f"not run, after {lost} lost workers: {text}"[:240])
