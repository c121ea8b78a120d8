"""What the action's scripts print: other programs' output can't be a command to the runner."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Iterator, Mapping


class ActionError(Exception):
    """One line for the user: what, observed, next step."""


def needed(environment: Mapping[str, str], name: str) -> str:
    """A variable that every runner sets. ActionError where it is missing."""
    if not environment.get(name):
        raise ActionError(f"{name} is not set: this script runs as a step of the action")
    return environment[name]


@contextlib.contextmanager
def stopped() -> Iterator[None]:
    """In here the runner takes no line for a workflow command (``::error::``, ``::add-mask::``).

    The token is in no argument and no variable: what runs in here can't end it.
    """
    token = secrets.token_hex(16)
    print(f"::stop-commands::{token}", flush=True)
    try:
        yield
    finally:
        # The output may end within a line, where the runner would not look for a command.
        print(f"\n::{token}::", flush=True)


def escape(text: str) -> str:
    """A message of a workflow command, as the runner unescapes it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def fail(problem: ActionError) -> int:
    """Says it in the log and as an annotation of the run; the exit status of users' mistakes."""
    print(f"::error title=tolcal::{escape(str(problem))}", flush=True)
    print(f"tolcal: {problem}", file=sys.stderr, flush=True)
    return 2
