"""What goes wrong, and what happens in between: planned by a test for calls that it names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal


@dataclass
class Planned:
    """For the next `times` calls that match, after `after` others."""

    call: str
    after: int
    times: int

    def due(self, label: str) -> bool:
        """Whether this call is one of them; counts it."""
        if not self.times or not fnmatchcase(label, self.call):
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


@dataclass
class Fault(Planned):
    """What `Plan.fail` plans."""

    status: int | Literal["timeout", "drop", "short"]
    effect: bool
    headers: dict[str, str]
    message: str
    body: bytes | None


@dataclass
class Hook(Planned):
    """What `Plan.on` plans."""

    action: Callable[[], Any]


@dataclass(kw_only=True)
class Plan:
    """Faults and hooks, in the order in which they were planned."""

    faults: list[Fault] = field(default_factory=list)
    hooks: list[Hook] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def fail(
        self, call: str = "*", *, status: int | Literal["timeout", "drop", "short"] = 500,
        after: int = 0, times: int = 1, effect: bool = False, message: str = "Server Error",
        headers: Mapping[str, str] | None = None, body: bytes | None = None,
    ) -> Fault:  # fmt: skip
        """The next `times` calls that match fail, after `after` that don't.

        `call` is a pattern: "POST issues/*/comments", "GET files/*" (the host of files), "*".
        `status`: what is answered, or "timeout" (never an answer), "drop" (the connection ends),
        "short" (an answer that is cut). `effect`: the call does what it does, and its answer is
        lost. The headers are lower- or upper-case; `body` replaces GitHub's JSON of an error.
        """
        made = Fault(call, after, times, status, effect, dict(headers or {}), message, body)
        self.faults.append(made)
        return made

    def on(self, call: str, action: Callable[[], Any], times: int = 1, after: int = 0) -> None:
        """Runs `action` before the next `times` calls that match: a push between two calls."""
        self.hooks.append(Hook(call, after, times, action))

    def fault(self, label: str) -> Fault | None:
        """The first fault that hits this call."""
        with self.lock:
            return next((one for one in self.faults if one.due(label)), None)

    def run_hooks(self, label: str) -> None:
        """Those of this call; they may themselves make calls."""
        with self.lock:
            due = [one for one in self.hooks if one.due(label)]
        for one in due:
            one.action()
