"""Which function answers which call, and what it gets and gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from github_server.state import Repository, State, User

#: Parameters that may hold slashes.
_LONG = ("path", "ref", "basehead")


class Refused(Exception):
    """An answer of 4xx."""

    def __init__(self, status: int, message: str, errors: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {
            "message": message,
            "documentation_url": "https://docs.github.com/rest",
            "status": str(status),
        }
        if errors:
            self.body["errors"] = list(errors)


@dataclass
class Call:
    """What a route sees of one request."""

    state: State
    repository: Repository
    actor: User
    values: dict[str, str]
    query: dict[str, str]
    body: dict[str, Any]
    api: str  # address of the API
    store: str  # address of the host of files
    accept: str = ""

    def number(self, name: str) -> int:
        """A captured number; 404 if it is none."""
        text = self.values[name]
        if not text.isdecimal():
            raise Refused(404, "Not Found")
        return int(text)

    def url(self, path: str) -> str:
        """An address below this repository."""
        return f"{self.api}/repos/{self.repository.full_name}/{path}"


@dataclass
class Answer:
    """Status, JSON (or bytes), headers."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Listing:
    """A list that is cut into pages: `form` makes the JSON of one element; with a `key` the page
    is an object with `total_count`; `around` is the object that holds it.
    """

    elements: Sequence[Any]
    form: Callable[[Any], Any]
    key: str | None = None
    around: dict[str, Any] | None = None


Function = Callable[[Call], "Answer | Listing"]


@dataclass
class Route:
    """One operation of the description."""

    method: str
    template: str
    needs: str  # as the header X-Accepted-GitHub-Permissions: "issues=write; pull_requests=write"
    function: Function
    pattern: re.Pattern[str]

    def described(self, repository: str, values: dict[str, str]) -> str:
        """The path for the description: one segment a parameter."""
        path = self.template.format_map({key: quote(one, safe="") for key, one in values.items()})
        return f"/repos/{repository}/{path}".rstrip("/")


ROUTES: list[Route] = []


def route(method: str, template: str, needs: str) -> Callable[[Function], Function]:
    """Registers a function for an operation."""
    pattern = re.sub(
        r"\\{(\w+)\\}",
        lambda found: f"(?P<{found[1]}>{'.+' if found[1] in _LONG else '[^/]+'})",
        re.escape(template),
    )

    def register(function: Function) -> Function:
        ROUTES.append(Route(method, template, needs, function, re.compile(pattern)))
        # Literal segments before parameters: issues/comments/{id} before issues/{n}/comments.
        ROUTES.sort(key=lambda one: [part.startswith("{") for part in one.template.split("/")])
        ROUTES.sort(key=lambda one: -one.template.count("/"))
        return function

    return register


def find(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route of a path below the repository (still percent-encoded)."""
    best = None
    for one in ROUTES:
        found = one.pattern.fullmatch(path) if one.method == method else None
        if found:
            values = {key: unquote(value) for key, value in found.groupdict().items()}
            # The fewest slashes inside parameters is the most specific.
            rank = sum(value.count("/") for value in found.groupdict().values())
            if best is None or rank < best[0]:
                best = (rank, one, values)
    return None if best is None else (best[1], best[2])
