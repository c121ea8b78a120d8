"""What a job leaves for the steps after it: outputs of the step and its summary."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tolcal.github.settings import Job
from tolcal.model import one_line

#: Words, numbers, hex and addresses: nothing that a line of the file could be ended by.
_VALUE = re.compile(r"[A-Za-z0-9_.:/#@+=,~ -]{0,1000}")
_NAME = re.compile(r"[a-z][a-z-]{0,40}")


def say(words: str) -> None:
    """A line of the job's log: no text of others in it can start a workflow command."""
    sys.stdout.write(f"tolcal: {one_line(words, 500)}\n")


def outputs(job: Job, values: Mapping[str, str | int | Path]) -> None:
    """Sets outputs of this step. What is neither name nor plain value is a bug: ValueError."""
    lines = []
    for name, value in values.items():
        plain = (
            str(value).isprintable() if isinstance(value, Path) else _VALUE.fullmatch(str(value))
        )
        if not _NAME.fullmatch(name) or not plain:
            raise ValueError(f"output {name} would be {str(value)[:80]!r}")
        lines.append(f"{name}={value}\n")
    if job.output is not None:
        _append(job.output, "".join(lines))


def summary(job: Job, text: str) -> None:
    """Adds Markdown to the summary of this job."""
    if job.summary is not None:
        _append(job.summary, text)


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
