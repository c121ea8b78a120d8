"""Writes files in one step: a reader sees the old or the new one, never half of either."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tolcal.model import TolcalError


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time: who reads a file of the folder and writes it anew loses nothing.

    Waits for others. Without effect where the file system has no locks.
    """
    descriptor = None
    with contextlib.suppress(ImportError, OSError):
        import fcntl  # not on Windows

        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def replace(path: Path, content: str | bytes) -> None:
    """Writes ``path`` under a temporary name, syncs and renames it; its mode stays.

    Text is written as UTF-8. A link stays one: what it is of is written. Nothing that lies in the
    folder is written through. What is no regular file (a pipe, /dev/stdout) is written as it is:
    a rename would put a file in its place.

    Raises:
        TolcalError: where the folder or file system doesn't let it; the old file is whole then.
    """
    import secrets  # with what it needs, as dear as tomli, and only for writing

    raw = content.encode("utf-8") if isinstance(content, str) else content
    given, path = path, Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        if given.exists() and not given.is_file() and not given.is_dir():
            given.write_bytes(raw)
            return
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(raw)
                file.flush()
                if mode is not None:
                    os.fchmod(opened, mode)
                os.fsync(opened)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise TolcalError(
            f"{given}: cannot write it: {error.strerror}; check rights and space of its folder"
        ) from None
