"""Zips by hand, in which everything may be untrue."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple


class Member(NamedTuple):
    """A member; None: the truth."""

    name: bytes
    data: bytes
    method: int = 8  # deflated
    size: int | None = None  # what the directory says of it unpacked
    packed_size: int | None = None
    crc: int | None = None
    flags: int = 0
    mode: int = 0o100644
    local_name: bytes | None = None
    extra: bytes = b""


def raw_zip(*members: Member, count: int | None = None, tail: bytes = b"") -> bytes:
    """A zip of those members; ``count`` is what its end says of their number."""
    body, directory = b"", b""
    for one in members:
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = deflate.compress(one.data) + deflate.flush() if one.method == 8 else one.data
        crc = zlib.crc32(one.data) if one.crc is None else one.crc
        sizes = (
            len(packed) if one.packed_size is None else one.packed_size,
            len(one.data) if one.size is None else one.size,
        )
        local = one.name if one.local_name is None else one.local_name
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 20 | 3 << 8, 20, one.flags, one.method, 0, 0, crc, *sizes,
            len(one.name), len(one.extra), 0, 0, 0, one.mode << 16, len(body),
        ) + one.name + one.extra  # fmt: skip
        body += struct.pack(
            "<4s5H3L2H", b"PK\3\4", 20, one.flags, one.method, 0, 0, crc, *sizes, len(local), 0
        )
        body += local + packed
    number = len(members) if count is None else count
    end = struct.pack(
        "<4s4H2LH", b"PK\5\6", 0, 0, number, number, len(directory), len(body), len(tail)
    )
    return body + directory + end + tail
