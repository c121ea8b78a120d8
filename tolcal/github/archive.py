"""The one file of an artifact's zip, read within bounds and never extracted (attack 2)."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib

from tolcal.model import TolcalError

#: Files are packed before they are uploaded, so a zip has little left to gain on an honest one.
MAX_RATIO = 100
_SMALL = 64 * 1024  # bytes that may exceed it
_ENTRY = b"PK\x01\x02"
_ENCRYPTED = 0x1 | 0x40
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: What the zipfile module is known to raise for archives that are none.
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
    OSError,
)


class Rejected(TolcalError):
    """An artifact that breaks a rule; the text names the artifact and the rule."""


def member(archive: bytes, name: str, limit: int, where: str) -> bytes:
    """The file ``name`` that a zip consists of, of ``limit`` bytes at most.

    Rejected, which names ``where`` it came from, for every other zip: more files or other names
    (repeated, absolute, ``..``), links and folders, passwords, odd compression, a size that is
    too large or untrue, a wrong checksum.
    """

    def require(sound: bool, what: str) -> None:
        if not sound:
            raise Rejected(f"{where} is refused: {what}")

    # Each entry of the directory starts so: their number is bounded before any is parsed.
    require(archive.count(_ENTRY) <= 16, f"its zip holds more than the one file {name}")
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            entries = opened.infolist()
            found = ", ".join(repr(e.orig_filename[:60]) for e in entries[:3]) or "nothing"
            require(
                [e.orig_filename for e in entries] == [name],
                f"its zip holds {found}, not the one file {name}",
            )
            entry = entries[0]
            kind = stat.S_IFMT(entry.external_attr >> 16)
            require(kind in (0, stat.S_IFREG), f"{name} is no plain file")
            require(not entry.flag_bits & _ENCRYPTED, f"{name} has a password")
            require(entry.compress_type in _METHODS, f"{name} is packed in an unusual way")
            require(
                entry.file_size <= limit,
                f"{name} says it is of {entry.file_size} bytes, {limit} are allowed",
            )
            require(
                entry.file_size <= MAX_RATIO * entry.compress_size + _SMALL,
                f"{name} unpacks to {entry.file_size} bytes from {entry.compress_size}, more than "
                f"{MAX_RATIO} times as many",
            )
            with opened.open(entry) as file:
                # What the directory says may be untrue: the bound holds for what is read.
                content = file.read(limit + 1)
                require(not file.read(1), f"{name} is longer than {limit} bytes")
            require(
                len(content) == entry.file_size,
                f"{name} has {len(content)} bytes and says {entry.file_size}",
            )
            return content
    except _BROKEN as error:
        raise Rejected(f"{where} is refused: not a sound zip: {error}") from None
