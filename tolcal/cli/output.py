"""What commands write: never over what isn't theirs to write over, and UTF-8 to programs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from tolcal.model import TolcalError

#: How proposals and reports begin, those of earlier versions included.
_PROPOSAL = re.compile(rb'\s*\{\s*"schema"\s*:')
_REPORT = re.compile(
    rb'<!-- tolcal:|### tolcal: |<!doctype html>.{,4000}tolcal|\s*\{\s*"\$schema".{,2000}tolcal'
    rb'|<\?xml[^>]*>\s*<testsuites name="tolcal"|::(error|warning|notice) | (op|kernel) +dtype ',
    re.DOTALL | re.IGNORECASE,
)
_PICTURE = re.compile(rb"<svg |\x89PNG\r\n")
_SCRIPT = re.compile(rb"# A failing case of a GPU kernel, by tolcal\n")
_KINDS = {"proposal": _PROPOSAL, "report": _REPORT, "picture": _PICTURE, "script": _SCRIPT}


def must_be_free(path: Path, kind: str, option: str, inputs: Iterable[Path]) -> None:
    """Refuses to write ``path`` where that would lose something: it is read, or not of its kind.

    Args:
        path: what is to be written.
        kind: ``proposal``, ``report``, ``picture`` or ``script``; an older one is written over.
        option: that names ``path``, for the message.
        inputs: what the command reads: none of it is written over, whatever it holds.

    Raises:
        TolcalError: with the reason. An empty file, or what is no file, is free.
    """
    must_not_be_read(path, option, inputs)
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(8192)
    if start and not _KINDS[kind].match(start):
        raise TolcalError(
            f"{option} {path}: exists and is no {kind} of tolcal; give another name, or remove it "
            "first"
        )


def must_not_be_read(path: Path, option: str, inputs: Iterable[Path]) -> None:
    """TolcalError if ``path`` is one of the files that the command reads."""
    if any(path.resolve() == source.resolve() for source in inputs):
        raise TolcalError(f"{option} {path}: is what this command reads; give another name")


def must_be_writable(path: Path, option: str) -> None:
    """TolcalError if a file can't come to be there: known before the work is done that fills it."""
    if path.is_dir():
        raise TolcalError(f"{option} {path}: is a folder; name a file")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise TolcalError(f"{option} {path}: {folder} is no folder; give another name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TolcalError(
            f"{option} {path}: no right to write in {folder}; give another name, or that right"
        )


def emit(rendered: str) -> None:
    """To standard output as UTF-8 bytes, whatever the locale: a program reads it, or a file."""
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(rendered)
    else:
        sys.stdout.flush()
        buffer.write(rendered.encode("utf-8"))
    sys.stdout.flush()
