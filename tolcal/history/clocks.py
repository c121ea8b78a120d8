"""When a run began, as its machine's clock said: compared as times, and not always believed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pandas as pd

#: A clock ahead of ours by more than this says nothing.
AHEAD = timedelta(days=1)
_OLDEST = datetime.min.replace(tzinfo=UTC)


def instant(started: str, now: datetime | None = None) -> datetime:
    """The time a run began, in UTC unless it says otherwise.

    What is no ISO 8601 time, or lies in the future by more than AHEAD, is older than all that is
    known: a clock that is wrong must not make a run the newest.
    """
    try:
        when = datetime.fromisoformat(started)
        when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    except (ValueError, OverflowError):
        return _OLDEST
    return _OLDEST if when > (now or datetime.now(UTC)) + AHEAD else when


def instants(starts: Iterable[object]) -> dict[str, datetime]:
    """Of each different text, all as seen at one moment."""
    now = datetime.now(UTC)
    return {text: instant(text, now) for text in {str(one) for one in starts}}


def odd(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """(run, started) of the trusted runs whose clock is not believed; imported ones have none."""
    known = frame[(frame["started"] != "") & (frame["origin"] != "pull_request")]
    pairs = known[["run_id", "started"]].drop_duplicates()
    when = instants(pairs["started"])
    return sorted(
        (str(run), str(started))
        for run, started in zip(pairs["run_id"], pairs["started"], strict=True)
        if when[str(started)] == _OLDEST
    )
