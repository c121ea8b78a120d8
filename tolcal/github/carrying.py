"""What a history's parts say of each other, and which of them the next upload takes in.

Pure: no call, no clock. Each part holds records; the newest names the others that with it are the
history. Small parts are merged like the digits of a counter, so that a history of n records has
about log n parts and each record is uploaded about log n times; a part that is about to expire is
merged whatever its size, which carries it forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal

import msgspec

#: More parts than this are merged though they be large: each one is a download.
MAX_PARTS = 20
#: A part is merged with records that are at least 1/GROWTH of its own.
GROWTH = 2
SOON = timedelta(days=30)

Count = Annotated[int, msgspec.Meta(ge=0)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An artifact that holds a part of the history, as the manifest of a later one names it."""

    id: Count
    run: Count
    rows: Count
    sha256: Sha256  # of its file


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an artifact of the history says: of itself, and of the others at that time."""

    run: Count  # the workflow run that uploaded it
    attempt: Count
    commit: str
    rows: Count  # records in it
    total: Count  # records in it and its parts
    parts: tuple[Part, ...]  # what with it is the history
    absorbed: tuple[Count, ...]  # ids of artifacts whose records are in it
    covers: tuple[Count, ...]  # ids of all artifacts that it makes needless to look at
    schema: Literal[1] = 1


class Sized(msgspec.Struct, frozen=True):
    """A part by what the choice depends on."""

    id: int | str
    rows: int
    created: datetime | None = None
    expires: datetime | None = None  # None: never

    def soon(self, now: datetime) -> bool:
        """Whether it expires within 30 days, or within half of a shorter life."""
        if self.expires is None:
            return False
        life = self.expires - (self.created or now)
        return self.expires - now < min(SOON, life / 2)


def chosen(
    parts: Sequence[Sized], fresh: int, now: datetime, most_rows: int, most_parts: int = MAX_PARTS
) -> tuple[int | str, ...]:
    """Ids of the parts that a new one of ``fresh`` records takes in; none if none needs to.

    ``most_rows`` bounds the new part, as long as nothing is about to expire.
    """
    expiring = [part for part in parts if part.soon(now)]
    if not expiring and not fresh:
        return ()
    taken = [part.id for part in expiring]
    rows = fresh + sum(part.rows for part in expiring)
    others = sorted((p for p in parts if p.id not in taken), key=lambda p: (p.rows, str(p.id)))
    for part in others:
        few = len(parts) - len(taken) < most_parts
        if rows + part.rows > most_rows or (part.rows > GROWTH * rows and few):
            break
        taken.append(part.id)
        rows += part.rows
    return tuple(taken)
