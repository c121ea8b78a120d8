"""Commands as they stand in comments now, which events and commits only name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tolcal.github.client import Client, NotFound
from tolcal.github.commands import parse, people
from tolcal.github.settings import Inputs
from tolcal.model import Approved


class Comment(msgspec.Struct, frozen=True):
    """A comment that holds a command now."""

    command: parse.Command
    who: people.Person
    at: str  # ISO 8601, by GitHub's clock

    def mark(self, pull: int, digest: str) -> Approved:
        """What an approved cell says of it; ``value`` is yet to be filled in."""
        reason = self.command.reason if isinstance(self.command, parse.Widen) else None
        return Approved(self.who.login, self.at, digest, "", pull, reason)


class Rejection(msgspec.Struct, frozen=True):
    """A comment that rejects a proposal."""

    comment: int
    by: str
    reason: str


def read(client: Client, number: int, comment_id: int) -> Comment | str:
    """The command of a comment on that issue as it stands now; or what the comment is instead."""
    try:
        found = client.get(f"issues/comments/{comment_id}")
    except NotFound:
        return "deleted"
    if not str(found.get("issue_url", "")).endswith(f"/issues/{number}"):
        return "of another issue"
    if was_edited(client, found):
        return "edited"
    command = parse.parse(str(found.get("body") or ""))
    user = found.get("user")
    who = people.person(user) if isinstance(user, dict) else None
    if command is None or who is None or who.bot:
        return "no command of a user's"
    return Comment(command, who, str(found["created_at"]))


def rejection(client: Client, inputs: Inputs, number: int, digest: str) -> Rejection | None:
    """Who rejected that proposal, by a comment that stands as it was written."""
    roles: dict[int, bool] = {}
    for found in client.pages(f"issues/{number}/comments"):
        command = parse.parse(str(found.get("body") or ""))
        if not isinstance(command, parse.Reject) or command.digest != digest:
            continue
        user = found.get("user")
        if not isinstance(user, dict) or was_edited(client, found):
            continue
        who = people.person(user)
        if who.bot:
            continue
        if who.id not in roles:
            roles[who.id] = people.at_least(
                people.role(client, who), people.needed("reject", inputs)
            )
        if roles[who.id]:
            return Rejection(int(found["id"]), who.login, command.reason)
    return None


def was_edited(client: Client, comment: Mapping[str, Any]) -> bool:
    """Whether the text of a comment, as the REST API has it, may not be what was posted.

    Asked after the text was read. ``updated_at`` won't do: it is a second late at times, and has
    no finer steps, so that an edit in the first second is not seen (palantir/policy-bot#459).
    """
    query = "query($id: ID!) { node(id: $id) { ... on IssueComment { lastEditedAt } } }"
    node = client.graphql(query, id=str(comment.get("node_id"))).get("node")
    return not isinstance(node, dict) or node.get("lastEditedAt", "") is not None
