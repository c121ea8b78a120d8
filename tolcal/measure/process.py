"""One worker process as its parent sees it: pipes that never block, its last words, its end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tolcal.measure import wire
from tolcal.model import one_line

#: The program of the child.
WORKER = "tolcal.measure.worker"
#: What is kept of a worker's own output, for the reason of its end.
TAIL_BYTES = 4096
#: What one look reads of a pipe at most, so that a flood in one leaves time for the others.
READ_BYTES = 2**18
#: A worker whose pipe has closed is given so long to be gone.
ENDING_SECONDS = 2.0


class Process:
    """A child in a session of its own, and the three pipes to it, of which none ever blocks us."""

    def __init__(
        self, device: str, variables: Mapping[str, str], folder: str | None = None
    ) -> None:
        self.messages, child_write = os.pipe()
        child_read, self.units = os.pipe()
        # Not a file: what a kernel prints without end must cost neither memory nor disk.
        self.output, child_output = os.pipe()
        try:
            self.child = subprocess.Popen(
                [sys.executable, "-m", WORKER, str(child_read), str(child_write),
                 device],
                pass_fds=(child_read, child_write),
                stdin=subprocess.DEVNULL,
                stdout=child_output,
                stderr=child_output,
                env=os.environ | variables,
                cwd=folder,
                # Its own group, so that its children end with it, and no terminal to write to.
                start_new_session=True,
            )  # fmt: skip
        finally:
            for fd in (child_read, child_write, child_output):
                os.close(fd)
        for fd in (self.messages, self.units, self.output):
            os.set_blocking(fd, False)
        self.frames = wire.Frames()
        self.unsent = memoryview(b"")
        self.tail = b""
        self.oom_kills = oom_kills()

    def send(self, unit: wire.Unit) -> None:
        """Queues a unit; ``push`` moves it as the pipe has room."""
        self.unsent = memoryview(bytes(self.unsent) + wire.frame(unit))
        self.push()

    def push(self) -> None:
        """Writes what there is room for; a worker that has gone is found out by reading."""
        try:
            while self.unsent:
                self.unsent = self.unsent[os.write(self.units, self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.unsent = memoryview(b"")

    def receive(self) -> Iterator[bytes]:
        """Values that have come whole. EOFError at the end, ValueError for what is no frame."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.messages, READ_BYTES)
            yield from self.frames.feed(data)
            if not data:
                raise EOFError

    def drain(self) -> bool:
        """Takes what it printed and keeps the end of it; False once nothing more can come."""
        try:
            data = os.read(self.output, READ_BYTES)
        except BlockingIOError:
            return True
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        return bool(data)

    def gone(self) -> bool:
        """Whether it has ended, whoever may still hold its pipes."""
        # Left unreaped: until its group has been killed, its number must not be given anew.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.child.pid, flags) is not None
        except ChildProcessError:  # whoever ignores SIGCHLD has no children to wait for
            return True

    def end(self, kill: bool = True) -> str:
        """How it ended, with its last words. It and its group are killed if they still are."""
        if self.child.returncode is not None:
            return ""
        until = time.monotonic() + (0.0 if kill else ENDING_SECONDS)
        while not self.gone() and time.monotonic() < until:
            time.sleep(0.005)
        by_itself = self.gone()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, signal.SIGKILL)
        code = self.child.wait()
        self.drain()
        for fd in (self.messages, self.units, self.output):
            os.close(fd)
        how = describe_exit(code, by_itself, oom_kills() > self.oom_kills)
        words = self.last_words()
        return f"{how}: {words}" if words else how

    def last_words(self) -> str:
        """The last line it printed, for a message."""
        lines = self.tail.decode("utf-8", "replace").split("\n")
        return one_line(next((line for line in reversed(lines) if line.strip()), ""), 160)


def describe_exit(code: int, by_itself: bool, oom: bool) -> str:
    """An exit status in words. ``oom``: the system has since killed something for its memory."""
    if code == 0:  # no success: nobody has told it to end
        return "exit status 0, before its work was done"
    if code > 0:
        return f"exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL" and by_itself:
        # Nobody but the system's out-of-memory killer is likely to have sent it.
        return "SIGKILL, out of memory" if oom else "SIGKILL, perhaps out of memory"
    return name


def oom_kills() -> int:
    """How many processes the system has killed for want of memory, as far as it tells."""
    total = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", Path(path).read_text(), re.MULTILINE)
            total += int(found.group(1)) if found else 0
    return total
