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
#: A co-author's line with GitHub's private address, which names the user's id.
_COAUTHOR = re.compile(r"(?im)^co-authored-by:.*<(\d{1,19})\+[^<>@\s]*@users\.noreply\.[^<>@\s]+>")


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
    return _role(str(answer.get("permission", "")), str(answer.get("role_name", "")))


def _role(permission: str, name: str) -> Role:
    """The ladder's step: ``permission`` has four of them, the role's name can only refine it.

    GitHub gives maintain as write and triage as read there; a custom role is its ``permission``.
    """
    if permission == "write":
        return "maintain" if name == "maintain" else "write"
    if permission == "read":
        return "triage" if name == "triage" else "read"
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


def own_work(who: Person, author_id: int, commits: Iterable[Mapping[str, Any]]) -> str:
    """Why a pull request is that user's own work, or may be; "" if it is another's.

    Args:
        who: whoever wants to widen.
        author_id: of the pull request.
        commits: of the pull request, as ``pulls/N/commits`` has them.
    """
    if who.id == author_id:
        return "they opened this pull request"
    for commit in commits:
        sha = str(commit.get("sha", ""))
        for part in ("author", "committer"):
            user = commit.get(part)
            if not isinstance(user, dict) or not user.get("id"):
                return (
                    f"commit {sha[:7]} has an {part} whom GitHub knows no account of, so it can't "
                    "be told from theirs; link the e-mail address to an account"
                )
            if user["id"] == who.id:
                return f"commit {sha[:7]} is theirs"
        details = commit.get("commit")
        message = str(details.get("message", "")) if isinstance(details, dict) else ""
        if str(who.id) in _COAUTHOR.findall(message):
            return f"commit {sha[:7]} is theirs too, as its co-author"
    return ""
