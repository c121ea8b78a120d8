"""The stand-in for GitHub as tests use it: ``from github_support import hub`` gives the fixture.

The server validates every request and answer against GitHub's own description
(`github_server.description`); a violation fails the test when its hub closes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from github_server.hub import Hub, zipped

from tolcal.github.client import Client

__all__ = ["Clock", "Hub", "client", "hub", "zipped"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub with no repository yet."""
    made = Hub(tmp_path / "hub")
    try:
        yield made
    finally:
        made.close()


class Clock:
    """A clock that goes on when someone sleeps: `slept` holds the seconds."""

    def __init__(self, now: float = 1_777_636_800.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def time(self) -> float:
        """Seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Takes no time."""
        self.slept.append(seconds)
        self.now += seconds


def client(hub: Hub, clock: Clock | None = None, token: str | None = None) -> Client:
    """A client of the first repository, which never really sleeps."""
    clock = clock or Clock()
    return Client(hub.job(), token or hub.token, sleep=clock.sleep, clock=clock.time)
