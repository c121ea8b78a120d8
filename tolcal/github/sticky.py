"""The one comment of ours under a pull request.

A comment is ours if the API says so (``viewerDidAuthor``), not by its author's name or its
marker: anyone can copy that, and GitHub shows an edit of a foreign comment as the owner's words.
The marker orders writers; nothing else is ever read from a comment. Other workflows write with the
same token, and may write what others said: so a marker that stands for a later run is looked up.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tolcal.github.client import Client, NotFound
from tolcal.github.settings import Job
from tolcal.model import TolcalError

_MARKER = re.compile(
    r"<!-- tolcal:v1 head=([0-9a-f]{40}) run=([0-9]{1,18}) attempt=([0-9]{1,9})"
    r"(?: of=([0-9a-f]{16}))? -->"
)
_QUERY = """
query($owner: String!, $name: String!, $number: Int!, $after: String) {
  repository(owner: $owner, name: $name) {
    pullRequest(number: $number) {
      comments(first: 100, after: $after) {
        nodes { fullDatabaseId viewerDidAuthor body }
        pageInfo { hasNextPage endCursor }
      }
    }
  }
}
"""
MAX_PAGES = 1000


class Shown(msgspec.Struct, frozen=True):
    """What a comment says that it is of."""

    head: str
    run: int
    attempt: int
    of: str = ""  # digest of the setup's name, "" for the default one

    @property
    def order(self) -> tuple[int, int]:
        """Later measuring runs have higher ids."""
        return (self.run, self.attempt)


class Mine(msgspec.Struct, frozen=True):
    """A comment that this token wrote."""

    id: int
    body: str

    @property
    def shown(self) -> Shown | None:
        """None: not the sticky comment."""
        found = _MARKER.match(self.body)
        return Shown(found[1], int(found[2]), int(found[3]), found[4] or "") if found else None


def mine(client: Client, job: Job, number: int) -> Iterator[Mine]:
    """All comments of ours under a pull request, the oldest first."""
    owner, _, name = job.repository.partition("/")
    after: str | None = None
    for _ in range(MAX_PAGES):
        data = client.graphql(_QUERY, owner=owner, name=name, number=number, after=after)
        page: dict[str, Any] = ((data["repository"] or {}).get("pullRequest") or {}).get(
            "comments"
        ) or {"nodes": (), "pageInfo": {"hasNextPage": False}}
        for node in page["nodes"]:
            if node and node["viewerDidAuthor"] and node["fullDatabaseId"]:
                yield Mine(int(node["fullDatabaseId"]), str(node["body"]))
        if not page["pageInfo"]["hasNextPage"]:
            return
        after = page["pageInfo"]["endCursor"]


def upsert(
    client: Client, job: Job, number: int, body: str, is_later: Callable[[Shown], bool]
) -> int | None:
    """Makes ``body`` the comment's text; returns its id, None if it shows what is later already.

    Args:
        body: begins with a marker of its own.
        is_later: whether what another comment says that it is of is real, and later than this.
    """

    own = Mine(0, body).shown
    if own is None:
        raise AssertionError("the comment's text has no marker")

    def known() -> list[Mine]:
        ours = (m for m in mine(client, job, number) if m.shown and m.shown.of == own.of)
        return sorted(ours, key=lambda m: m.id)

    def made() -> dict[str, Any] | None:
        return next(({"id": m.id} for m in known() if _same(m.body, body)), None)

    found = known()
    if not found:
        client.post(f"issues/{number}/comments", {"body": body}, done=made)
        found = known()  # another report may have made one at the same moment
    if not found:
        raise TolcalError(
            f"the comment on pull request {number} was made, and the API doesn't call it ours: "
            "the token must be the one that wrote it"
        )
    later = [m for m in found if m.shown and not _same(m.body, body) and is_later(m.shown)]
    latest = max(later, key=lambda m: m.shown.order if m.shown else (0, 0), default=None)
    shown = latest.body if latest else body
    if not _same(found[0].body, shown):
        client.patch(f"issues/comments/{found[0].id}", {"body": shown})
    for twin in found[1:]:
        _delete(client, twin.id)
    return None if latest else found[0].id


def _same(one: str, other: str) -> bool:
    return one.replace("\r\n", "\n").strip() == other.strip()


def _delete(client: Client, number: int) -> None:
    with contextlib.suppress(NotFound):  # the other report was quicker
        client.delete(f"issues/comments/{number}")


def url(job: Job, number: int, comment: int) -> str:
    """Where a comment is shown."""
    return f"{job.server_url}/{job.repository}/pull/{number}#issuecomment-{comment}"
