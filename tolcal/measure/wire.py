"""What parent and worker tell each other: MessagePack values over a pair of pipes."""

from __future__ import annotations

import msgspec

from tolcal.model import Case, Environment, ErrorStats, Kernel, Op, Status, Tolerance


class Unit(msgspec.Struct, frozen=True):
    """Work that shares inputs: cases of one (op, dtype), and the kernels to run on each."""

    op: Op
    dtype: str
    kernels: tuple[Kernel, ...]
    cases: tuple[Case, ...]
    limit: Tolerance | float | None  # what num_exceeding counts against
    done: frozenset[tuple[int, str]] = frozenset()  # (case index, kernel) not to run again


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The worker is up, on this device."""

    environment: Environment
    device_uuid: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The worker can't start, for a reason that the user can mend."""

    message: str


class Started(msgspec.Struct, frozen=True, tag=True):
    """This kernel is about to run on this case: if nothing follows, it is to blame."""

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


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The unit is complete."""


Message = Hello | Refused | Started | Measured | Finished
encode = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(Message).decode
decode_unit = msgspec.msgpack.Decoder(Unit).decode
