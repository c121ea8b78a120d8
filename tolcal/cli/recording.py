"""Writes a run's records as they come, so that an end at any moment leaves what was measured."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tolcal import measure
from tolcal.history import jsonlines
from tolcal.model import Record, TolcalError, one_line
from tolcal.report import terminal

#: A run that was cut before its first records has written no more than so many bytes.
FIRST_BYTES = 4096


def say(line: str) -> None:
    """One printable line on standard error."""
    print(one_line(line, 2000), file=sys.stderr)


def measure_into(
    path: Path, request: measure.Request, corpus: Path, resume: bool, overwrite: bool
) -> list[Record]:
    """All records of ``request``, each written beside ``path`` as it comes; renamed at the end.

    TolcalError if another run writes there, or if records of a run that was cut lie there and
    neither ``resume`` nor ``overwrite`` says what is to become of them.
    """
    # Beside it first: a run that fails must not cost the records of the last one.
    part = path.with_name(f"{path.name}.part")
    with _locked(part):
        found = _found(part, resume, overwrite)
        records = list(found.records) if found else []
        try:
            _measure(part, request, corpus, found, records)
        except BaseException as error:
            if records:
                say(
                    f"stopped early: the first {len(records)} records are in {part}; the same "
                    "command with --resume measures the others"
                )
            else:
                part.unlink(missing_ok=True)
                if isinstance(error, (KeyboardInterrupt, SystemExit)):
                    say("stopped early: no op and dtype was complete, so no record is kept")
            raise
        part.replace(path)
    return records


def _measure(
    part: Path,
    request: measure.Request,
    corpus: Path,
    found: jsonlines.Partial | None,
    records: list[Record],
) -> None:
    recorded = None
    if found is not None:
        recorded = measure.Recorded(str(part), found.runs, found.records, found.ended)
    with (
        _Stop() as stop,
        terminal.measuring() as progress,
        jsonlines.Writer(part, found) as writer,
        contextlib.closing(
            measure.measure(request, corpus, lambda step: progress(*step), recorded)
        ) as values,
    ):
        for value in values:
            with stop.held():
                writer.write(value)
                if isinstance(value, Record):
                    records.append(value)


def _found(part: Path, resume: bool, overwrite: bool) -> jsonlines.Partial | None:
    """Records of a run that was cut, to go on with; None to start anew."""
    if overwrite:
        return None
    found = jsonlines.read_partial(part)
    if not found.records:
        size = part.stat().st_size
        if size > FIRST_BYTES or (size and not _is_gzip(part)):
            raise TolcalError(
                f"{part}: {size} bytes in which no record can be read, so they are damaged or not "
                "ours; move the file away, or give it up with --overwrite"
            )
        if resume:
            say(f"{part}: nothing to resume; measuring from the start")
        return None
    if not resume:
        raise TolcalError(
            f"{part}: holds {len(found.records)} records of a run that was cut; go on with it "
            "(--resume) or give it up (--overwrite)"
        )
    say(f"{part}: {len(found.records)} records are there; measuring the others")
    return found


def _is_gzip(part: Path) -> bool:
    with part.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[None]:
    """The only writer of ``part``, until the process ends or this does."""
    import fcntl  # not on Windows, where there are no workers either

    part.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with part.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TolcalError(
                    f"{part}: another run is writing it; wait for it, or give another --out"
                ) from None
            # Who held it until now may have renamed it: then the lock is on a finished file.
            try:
                ours = os.path.samestat(part.stat(), os.fstat(file.fileno()))
            except FileNotFoundError:
                ours = False
            if ours:
                yield
                return


class _Stop:
    """SIGINT and SIGTERM end the run in order, once, and never in the midst of a write."""

    def __init__(self) -> None:
        self.before: dict[signal.Signals, object] = {}
        self.holding = False
        self.arrived: int | None = None

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup would have it
                    self.before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if kind is SystemExit and self.arrived is not None:
            raise SystemExit(128 + self.arrived) from None  # Ray makes a status of its own of it

    def _arrived(self, number: int, _: FrameType | None) -> None:
        for each in self.before:
            signal.signal(each, signal.SIG_IGN)  # what follows is the clean end
        self.arrived = number
        if not self.holding:
            _end(number)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Puts a signal off until what is inside is done."""
        self.holding = True
        yield
        self.holding = False
        if self.arrived is not None:
            _end(self.arrived)


def _end(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    print("tolcal: terminated", file=sys.stderr)
    raise SystemExit(128 + number)
