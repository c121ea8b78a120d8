"""Who asked what, and in which job: what every command takes; and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from tolcal.github.client import Client
from tolcal.github.commands import comments
from tolcal.github.settings import Inputs, Job

Reaction = Literal["+1", "-1", "confused", "rocket", "eyes"]


class Asked(msgspec.Struct, frozen=True):
    """A command on a pull request."""

    client: Client
    inputs: Inputs
    job: Job
    number: int  # of the pull request
    comment: int  # its id
    said: comments.Comment


class Answer(msgspec.Struct, frozen=True):
    """What is replied."""

    text: str  # Markdown
    reaction: Reaction = "+1"
    #: what is left to do once values are committed: the check and the comment
    then: Callable[[], object] | None = None
