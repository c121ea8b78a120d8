"""One kernel on one case after another, in a worker process that any of them may cost.

What `Pool` is for a plan, this is for a search: the next case depends on what the last one did.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from tolcal import __version__
from tolcal.measure import git_state, record_of, wire
from tolcal.measure.pool import LOOK_SECONDS, STARTUP_SECONDS, TAMPERED, is_sound
from tolcal.measure.process import Process
from tolcal.measure.units import Planned, Request
from tolcal.model import Case, Environment, Kernel, Record, Run, Status, TolcalError, Tolerance

#: Workers that are kept ready once one was lost: to start one takes seconds, most of a search.
MOST_SPARES = 2


class LostError(Exception):
    """The worker has ended, with these words."""


class Trial(NamedTuple):
    """What came of one case: the record of each kernel that got so far.

    ``refused`` says why the case has none: the reference does not take it.
    """

    records: dict[str, Record]
    refused: str = ""


class _Child:
    """A worker process and what it has said."""

    def __init__(self, device: str, variables: Mapping[str, str]) -> None:
        self.process = Process(device, variables)
        self.said = deque[wire.Message]()
        self.hello: wire.Hello | None = None
        self.speaks = True  # its output is open

    def next(self, deadline: float) -> wire.Message | None:
        """Its next message; None at the deadline. LostError if it has ended."""
        process = self.process
        while not self.said:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            readers = [process.messages, *([process.output] if self.speaks else [])]
            writers = [process.units] if process.unsent else []
            ready = select.select(readers, writers, [], min(LOOK_SECONDS, left))[0]
            if process.output in ready:
                self.speaks = process.drain()
            gone = process.gone()  # before reading: what it had sent by then is read below
            if process.messages in ready or gone:
                try:
                    self.said.extend(wire.decode_message(raw) for raw in process.receive())
                except (ValueError, msgspec.DecodeError):
                    process.end()
                    raise LostError(TAMPERED) from None
                except EOFError:
                    raise LostError(process.end(kill=False)) from None
            process.push()
            if gone and not self.said:
                raise LostError(process.end())
        return self.said.popleft()


class Trials:
    """Runs ``kernels`` of the op of ``request`` on cases that are asked for one by one."""

    def __init__(self, request: Request, kernels: tuple[Kernel, ...], corpus: Path) -> None:
        (self.op,) = request.ops
        self.request, self.kernels = request, kernels
        self.commit, self.dirty = git_state(corpus)
        self.limit: Tolerance | float | None = None  # what elements are counted against
        self.checked = True  # whether kernels are checked, too, which takes more launches
        self.count = 0
        self.slowest = 0.0  # seconds of the slowest kernel that came to an end
        self.spares = 0
        self.children = deque[_Child]()
        self.run_of: Run | None = None

    def __enter__(self) -> Trials:
        self._fill()
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.process.end()

    @property
    def environment(self) -> Environment:
        """Where the cases run. TolcalError if that is nowhere."""
        hello = self._ready().hello
        assert hello is not None
        return hello.environment

    def run(
        self,
        case: Case,
        values: Mapping[str, bytes] | None,
        seconds: float,
        until: float = float("inf"),
    ) -> Trial:
        """Runs the kernels on a case, with these bytes as its inputs or those that it draws.

        A kernel that takes longer than ``seconds`` hangs; ``until`` (of ``time.monotonic``) is
        when nothing more is waited for: what has not come by then is missing.
        """
        self.count += 1
        child = self._ready()
        unit = wire.Unit(self.op, case.dtype, self.kernels, (case,), self.limit, int(self.checked),
            values=values,
        )  # fmt: skip
        found: dict[str, Record] = {}
        running, since = "", time.monotonic()

        def note(outcome: wire.Measured) -> None:
            assert self.run_of is not None
            found[outcome.kernel] = record_of(self.run_of, Planned(0, 1, unit), outcome)

        def fail(status: Status, reason: str) -> Trial:
            self._lose(child)
            if running:
                note(wire.Measured(0, running, status, reason, "", None, None))
            return Trial(found)

        child.process.send(unit)
        while True:
            try:
                message = child.next(min(since + seconds, until))
            except LostError as lost:
                return fail("crashed", str(lost))
            match message:
                case None if time.monotonic() >= until and time.monotonic() < since + seconds:
                    self._lose(child)
                    return Trial(found)
                case None:
                    child.process.end()
                    return fail("timeout", f"no result within {seconds:g} s")
                case wire.Preparing():
                    pass  # if it ends there, the search has nobody else to blame
                case wire.Started(kernel=name) if name in {k.name for k in self.kernels}:
                    running, since = name, time.monotonic()
                case wire.Measured(kernel=name) if name == running and is_sound(message):
                    note(message)
                    if message.status == "ok":
                        self.slowest = max(self.slowest, time.monotonic() - since)
                    running = ""
                case wire.Finished() if not running:
                    return Trial(found)
                case wire.Refused(message=why):
                    self._lose(child)
                    return Trial({}, why)
                case _:
                    child.process.end()
                    return fail("crashed", TAMPERED)

    def _ready(self) -> _Child:
        """The first worker that is up. TolcalError if it does not come up."""
        child = self.children[0]
        if child.hello is not None:
            return child
        try:
            message = child.next(time.monotonic() + STARTUP_SECONDS)
        except LostError as lost:
            self._lose(child)
            raise TolcalError(
                f"the worker for --device {self.request.device} died at its start: {lost}"
            ) from None
        if isinstance(message, wire.Refused):
            raise TolcalError(message.message)
        if not isinstance(message, wire.Hello):
            raise TolcalError(
                f"the worker for --device {self.request.device} is not up within "
                f"{STARTUP_SECONDS:g} s; is the machine overloaded?"
            )
        child.hello = message
        if self.run_of is None:
            self.run_of = run_of(self.request, message, self.commit, self.dirty)
        return child

    def _lose(self, child: _Child) -> None:
        child.process.end()
        self.children.remove(child)
        if self.run_of is not None:  # else it never came up, and no other will
            self.spares = MOST_SPARES
            self._fill()

    def _fill(self) -> None:
        while len(self.children) < 1 + self.spares:
            self.children.append(_Child(self.request.device, self.request.variables))


def run_of(request: Request, hello: wire.Hello, commit: str, dirty: bool) -> Run:
    """A run of its own, for records that belong to no plan."""
    import secrets
    from datetime import UTC, datetime

    name = secrets.token_hex(8)
    return Run(
        id=name,
        seed=0,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        session=name,
        origin=request.origin,
        commit=commit,
        dirty=dirty,
        tolcal=__version__,
        device_uuid=hello.device_uuid,
        environment=hello.environment,
    )
