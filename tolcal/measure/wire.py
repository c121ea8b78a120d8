"""What parent and worker tell each other: MessagePack values in frames over a pair of pipes.

A frame is the length of a value (four bytes, the highest first), then the value.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import msgspec

from tolcal.model import (
    Case,
    Checks,
    Environment,
    ErrorStats,
    Kernel,
    Op,
    Outside,
    Status,
    Tolerance,
)  # fmt: skip


class Unit(msgspec.Struct, frozen=True):
    """Work that shares inputs: cases of one (op, dtype), and the kernels to run on each."""

    op: Op
    dtype: str
    kernels: tuple[Kernel, ...]
    cases: tuple[Case, ...]
    limit: Tolerance | float | None  # what num_exceeding counts against
    checked: int = 0  # so many of its first cases are checked, too
    done: frozenset[tuple[int, str]] = frozenset()  # (case index, kernel) not to run again
    lost: frozenset[tuple[int, str]] = frozenset()  # of these, those that no worker survived
    #: Wait for each kernel and report it at once, so that a lost worker is some kernel's fault.
    #: Otherwise the worker may launch many and report them together.
    careful: bool = True
    #: Evaluate the reference on every case before any kernel's code is loaded: what is refused
    #: then is the reference's fault and no kernel's.
    check: bool = False
    #: The bytes of each input instead of what its case draws: C order, in the input's own dtype.
    values: Mapping[str, bytes] | None = None

    def checks(self, case: int) -> bool:
        """Whether kernels are checked on that case: large ones leave no room for it."""
        return case < self.checked and self.cases[case].profile != "large"

    def pinned(self, case: int) -> str:
        """What a reason calls that case if op.toml pins it; "" if it doesn't."""
        one = self.cases[case]
        return f"pinned case {one.id} ({one.dims_text})" if one in self.op.pinned else ""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The worker is up, on this device."""

    environment: Environment
    device: str  # cuda:0, cpu
    device_uuid: str
    devices: int  # GPUs that it sees; 0 on a CPU


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The worker can't start, for a reason that the user can mend."""

    message: str


class Preparing(msgspec.Struct, frozen=True, tag=True):
    """Inputs and reference of this case are about to be made: if the worker ends here, it is to
    blame. Said of pinned cases, and of all where ``check`` is.
    """

    case: int


class Started(msgspec.Struct, frozen=True, tag=True):
    """This kernel is about to run on this case: if a careful unit ends here, it is to blame."""

    case: int
    kernel: str


class Measured(msgspec.Struct, frozen=True, tag=True):
    """One kernel's outcome on one case."""

    case: int
    kernel: str
    status: Status
    reason: str
    input_hash: str
    stats: ErrorStats | None
    same_as_control: bool | None
    outside: Outside | None = None
    checks: Checks | None = None


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The unit is complete."""


#: How the reason of a kernel begins that raised in a check.
FAILED_CHECK = "in check "
Message = Hello | Refused | Preparing | Started | Measured | Finished
encode = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(Message).decode
decode_unit = msgspec.msgpack.Decoder(Unit).decode

#: The longest value: what a kernel scribbles into the pipe must not make the reader wait for more.
MAX_FRAME = 16 * 2**20
_HEADER = 4


def frame(value: Unit | Message) -> bytes:
    """A value as it goes into the pipe."""
    body = encode(value)
    return len(body).to_bytes(_HEADER, "big") + body


class Frames:
    """Bytes as they come into whole values: reads what is there, and never waits for more."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The values that ``data`` completes. ValueError for a length over MAX_FRAME."""
        self.buffer += data
        start = 0
        try:
            while len(self.buffer) - start >= _HEADER:
                size = int.from_bytes(self.buffer[start : start + _HEADER], "big")
                if size > MAX_FRAME:
                    raise ValueError(f"a message of {size} bytes, at most {MAX_FRAME}")
                end = start + _HEADER + size
                if len(self.buffer) < end:
                    return
                yield bytes(self.buffer[start + _HEADER : end])
                start = end
        finally:
            del self.buffer[:start]


def read_frame(fd: int) -> bytes:
    """The next value, waiting for it. EOFError at the end of the pipe."""
    size = int.from_bytes(_read(fd, _HEADER), "big")
    return _read(fd, size)


def write_frame(fd: int, value: Unit | Message) -> None:
    """Writes a value, waiting for room. OSError if the other end is closed."""
    rest = memoryview(frame(value))
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read(fd: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(fd, min(count, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
