"""Who may do what: permissions on the repository, never how a comment describes its author.

The permission is asked of the collaborators endpoint, for the login and user id of the comment:
``author_association`` shows members as contributors, and a login can change hands.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from tolcal.github.client import Client, NotFound, quote
from tolcal.github.settings import Inputs

Role = Literal["none", "read", "triage", "write", "maintain", "admin"]
LADDER: tuple[Role, ...] = ("none", "read", "triage", "write", "maintain", "admin")
#: A co-author's line with one of GitHub's private addresses: ``ID+LOGIN@...``, once ``LOGIN@...``.
_COAUTHOR = re.compile(
    r"(?im)^co-authored-by:.*<(?:(\d{1,19})\+)?([^<>@\s+]+)@users\.noreply\.[^<>@\s]+>"
)


class Own(msgspec.Struct, frozen=True):
    """Why a pull request is somebody's own work, or may be, and what helps."""

    why: str
    remedy: str = "somebody else has to"

    @property
    def text(self) -> str:
        """Both."""
        return f"{self.why}; {self.remedy}"


class Person(msgspec.Struct, frozen=True):
    """The author of a comment."""

    id: int
    login: str
    bot: bool


def person(user: Mapping[str, Any]) -> Person:
    """From the ``user`` of a comment, as GitHub's API and events have it."""
    login = str(user.get("login", ""))
    bot = user.get("type") != "User" or login.endswith("[bot]")
    number = user.get("id")
    return Person(number if type(number) is int else 0, login, bot)


def role(client: Client, who: Person) -> Role:
    """What the repository lets that user do, with teams and the organisation counted in.

    ``none`` for one whom GitHub does not know, or whose login is another user's by now.
    """
    try:
        answer = client.get(f"collaborators/{quote(who.login)}/permission")
    except NotFound:
        return "none"
    user = answer.get("user")
    if not isinstance(user, dict) or user.get("id") != who.id:
        return "none"
    allowed = user.get("permissions")
    allowed = allowed if isinstance(allowed, dict) else {}

    def has(step: str) -> bool:
        return answer.get("role_name") == step or allowed.get(step) is True

    permission = answer.get("permission")
    # It has four steps: maintain is write in it and triage is read, and so are custom roles.
    if permission == "write":
        return "maintain" if has("maintain") else "write"
    if permission == "read":
        return "triage" if has("triage") else "read"
    return "admin" if permission == "admin" else "none"


def at_least(has: Role, needed: Role) -> bool:
    """Whether a role is that step of the ladder or above it."""
    return LADDER.index(has) >= LADDER.index(needed)


def needed(verb: str, inputs: Inputs) -> Role:
    """The least role for a command; inputs raise it, and never below write or maintain."""

    def higher(given: Role, least: Role) -> Role:
        return given if at_least(given, least) else least

    tighten = higher(inputs.tighten_permission, "write")
    if verb == "widen":
        return higher(inputs.widen_permission, higher(tighten, "maintain"))
    if verb in ("approve", "reject", "rerun"):
        return tighten
    return "none" if verb == "help" else "read"


def own_work(who: Person, author: Person, commits: Iterable[Mapping[str, Any]]) -> Own | None:
    """Whether a pull request is that user's own work, or may be; None if it is another's.

    What GitHub knows of authors is what commits say of themselves: a false name is not seen.

    Args:
        who: whoever wants to widen.
        author: of the pull request.
        commits: of the pull request, as ``pulls/N/commits`` has them.
    """
    if who.id == author.id:
        return Own("they opened this pull request")
    if author.bot:
        return Own(
            "a bot opened this pull request, so whose work it is can't be told",
            "a person has to open it",
        )
    for commit in commits:
        sha = str(commit.get("sha", ""))[:7]
        for part in ("author", "committer"):
            user = commit.get(part)
            if not isinstance(user, dict) or not user.get("id"):
                return Own(
                    f"GitHub knows no account of the {part} of commit {sha}, so whose work it is "
                    "can't be told",
                    "its e-mail address has to be linked to an account",
                )
            if user["id"] == who.id:
                merge = ", a merge," if len(commit.get("parents") or ()) > 1 else ""
                return Own(f"commit {sha}{merge} is theirs")
        details = commit.get("commit")
        message = str(details.get("message", "")) if isinstance(details, dict) else ""
        for number, login in _COAUTHOR.findall(message):
            if number == str(who.id) or (not number and login.lower() == who.login.lower()):
                return Own(f"commit {sha} is theirs too, as its co-author")
    return None
