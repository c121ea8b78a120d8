"""`Hub`: what tests hold of the stand-in for GitHub."""

from __future__ import annotations

import io
import json
import re
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from github_server import commits, objects, running, social
from github_server.faults import Plan
from github_server.state import (
    Artifact,
    CheckRun,
    Comment,
    Pull,
    Repository,
    Run,
    State,
    User,
)
from github_server.web import Api, Server, Store
from tolcal.github.settings import Job, job

ROUTES = (commits, objects, running, social)  # imported for the routes that they register
DAY = 86400.0


class Logged(NamedTuple):
    """One request that came in; `status` is what went out, or the word of a fault."""

    method: str
    path: str
    status: int | str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass
class Hub(Plan):
    """The server on loopback and what it knows. `close` ends it and raises AssertionError if a
    request or an answer broke GitHub's description.
    """

    folder: Path
    base_path: str = ""  # "/api/v3": as GitHub Enterprise Server has it
    token: str = "ghs_" + "T0lcal" * 6  # GITHUB_TOKEN, which acts as github-actions[bot]
    #: permissions of GITHUB_TOKEN, underscored ("pull_requests": "write"); None: all
    grants: dict[str, str] | None = None
    violations: list[str] = field(default_factory=list)
    calls: list[tuple[str, str, int | str]] = field(default_factory=list)
    requests: list[Logged] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.state = State(self.folder)
        self.api = Server(self, Api)
        self.store = Server(self, Store)

    # The machine

    @property
    def url(self) -> str:
        """GITHUB_API_URL."""
        return self.api.url + self.base_path

    @property
    def graphql_path(self) -> str:
        """Beside the REST API's version on GHES."""
        return f"{self.base_path.removesuffix('/v3')}/graphql"

    def close(self) -> None:
        """Ends the servers; AssertionError for what GitHub wouldn't have allowed."""
        self.closed.set()
        for server in (self.api, self.store):
            server.shutdown()
            server.server_close()
        assert not self.violations, "\n".join(self.violations)

    def log(
        self, method: str, path: str, status: int | str, query: dict[str, str], content: bytes,
        headers: dict[str, str],
    ) -> None:  # fmt: skip
        """One call."""
        try:
            body = json.loads(content) if content else None
        except ValueError:
            body = content
        with self.lock:
            self.calls.append((method, path, status))
            self.requests.append(Logged(method, path, status, query, body, headers))

    def relative(self, path: str) -> str:
        """Below the repository: "pulls/41"."""
        if path == self.graphql_path:
            return "graphql"
        found = re.fullmatch(re.escape(self.base_path) + r"/repos/[^/]+/[^/]+/?(.*)", path)
        return found[1] if found else path

    def repository_of(self, path: str) -> Repository | None:
        """The repository of a path."""
        found = re.match(re.escape(self.base_path) + r"/repos/([^/]+/[^/]+)(/|$)", path)
        return self.state.repositories.get(found[1]) if found else None

    def actor(self, authorization: str) -> User | None:
        """Who a token is."""
        token = re.sub("^(Bearer|token) ", "", authorization)
        if token == self.token:
            return self.state.bot
        return next((one for one in self.state.users.values() if one.token == token), None)

    @property
    def files(self) -> dict[int, bytes]:
        """What the host of files has."""
        return {
            one.id: one.content
            for repository in self.state.repositories.values()
            for one in repository.artifacts.values()
        }

    # What is on GitHub

    @property
    def main(self) -> Repository:
        """The first repository."""
        return next(iter(self.state.repositories.values()))

    def repository(
        self, name: str = "octo/kernels", *, default_branch: str = "main",
        files: Mapping[str, str | bytes] | None = None, private: bool = False,
    ) -> Repository:  # fmt: skip
        """A repository with one commit."""
        made = self.state.add_repository(name, default_branch)
        made.private = private
        made.commit(default_branch, dict(files or {"README.md": "kernels\n"}), "first")
        return made

    def fork(self, owner: str, parent: Repository | None = None) -> Repository:
        """A fork of that user's."""
        parent = parent or self.main
        return self.state.add_repository(f"{owner}/{parent.name}", parent.default_branch, parent)

    def user(self, login: str, permission: str | None = None, kind: str = "User") -> User:
        """A user with a role in the first repository: read, triage, write, maintain, admin."""
        made = self.state.add_user(login, kind)
        if permission:
            self.main.roles[login] = permission
        return made

    def pull(
        self, head: str = "feature", *, author: User | str = "alice",
        fork: Repository | None = None, files: Mapping[str, str | bytes | None] | None = None,
        base: str | None = None, title: str = "A change", draft: bool = False,
        repository: Repository | None = None,
    ) -> Pull:  # fmt: skip
        """An open pull request; with `files` its branch gets a commit of them first."""
        target = repository or self.main
        source = fork or target
        author = self.user(author) if isinstance(author, str) else author
        if files is not None:
            source.commit(head, dict(files), f"{title}\n", author)
        return self.state.add_pull(
            target, source, head, base or target.default_branch, author, title, None, draft
        )

    def push(
        self, pull: Pull, files: Mapping[str, str | bytes | None], message: str = "more",
        author: User | None = None,
    ) -> str:  # fmt: skip
        """Another commit on the head of a pull request."""
        assert pull.head_repository
        return pull.head_repository.commit(
            pull.head_branch, dict(files), message, author or pull.author
        )

    def comment(self, issue: Pull | int, author: User | str, body: str) -> Comment:
        """A comment by anyone."""
        number = issue if isinstance(issue, int) else issue.number
        author = self.user(author) if isinstance(author, str) else author
        return self.state.add_comment(self.main, number, author, body)

    def edit(self, comment: Comment, body: str) -> None:
        """By its author."""
        comment.body, comment.updated = body, self.state.tick()

    def workflow_run(
        self, path: str = ".github/workflows/tolcal.yml", *, event: str = "pull_request",
        pull: Pull | None = None, head_sha: str | None = None, head_branch: str | None = None,
        head_repository: Repository | None = None, attempt: int = 1,
        status: str = "completed", conclusion: str | None = "success", actor: User | None = None,
    ) -> Run:  # fmt: skip
        """A run for a pull request, or for the default branch's tip."""
        target = self.main
        branch = head_branch or (pull.head_branch if pull else target.default_branch)
        source = head_repository or (pull.head_repository if pull else target)
        sha = head_sha or (pull.head_sha if pull else target.git.ref(f"refs/heads/{branch}"))
        assert sha
        made = Run(
            self.state.id(), path, event, sha, branch, source, self.state.tick(), attempt, status,
            conclusion if status == "completed" else None, actor,
        )  # fmt: skip
        target.workflow(path)
        target.runs[made.id] = made
        return made

    def artifact(
        self, run: Run | None, name: str, content: Mapping[str, bytes] | bytes, *,
        size: int | None = None, expired: bool = False, created: float | None = None,
        days: float = 90,
    ) -> Artifact:  # fmt: skip
        """A zip of those members (or those very bytes); `size` is what GitHub claims."""
        data = content if isinstance(content, bytes) else zipped(content)
        now = self.state.tick() if created is None else created
        made = Artifact(
            self.state.id(), name, data, len(data) if size is None else size, now,
            now + days * DAY, run, expired,
        )  # fmt: skip
        self.main.artifacts[made.id] = made
        return made

    def checks(self, sha: str) -> list[CheckRun]:
        """Oldest first."""
        return [one for one in self.main.checks.values() if one.sha == sha]

    # The job that tolcal runs in

    def environment(
        self, event: str, payload: Mapping[str, Any], *, run: Run | None = None,
        repository: Repository | None = None,
    ) -> dict[str, str]:  # fmt: skip
        """Variables of a step, for a process of its own; files lie in the hub's folder."""
        target = repository or self.main
        number = run.id if run else self.state.id()
        step = self.folder / f"step-{number}-{len(list(self.folder.glob('step-*')))}"
        step.mkdir(parents=True)
        (step / "event.json").write_text(json.dumps(payload))
        default = target.default_branch
        return {
            "GITHUB_ACTIONS": "true",
            "GITHUB_EVENT_NAME": event,
            "GITHUB_EVENT_PATH": str(step / "event.json"),
            "GITHUB_REPOSITORY": target.full_name,
            "GITHUB_RUN_ID": str(number),
            "GITHUB_RUN_ATTEMPT": str(run.attempt if run else 1),
            "GITHUB_SHA": target.git.ref(f"refs/heads/{default}") or "",
            "GITHUB_REF": f"refs/heads/{default}",
            "GITHUB_API_URL": self.url,
            "GITHUB_SERVER_URL": self.api.url,
            "GITHUB_GRAPHQL_URL": self.api.url + self.graphql_path,
            "GITHUB_STEP_SUMMARY": str(step / "summary.md"),
            "GITHUB_OUTPUT": str(step / "output"),
            "TOLCAL_TOKEN": self.token,
        }

    def job(
        self, event: str = "workflow_run", payload: Mapping[str, Any] | None = None, *,
        run: Run | None = None, repository: Repository | None = None,
    ) -> Job:  # fmt: skip
        """The same as a value."""
        return job(self.environment(event, payload or {}, run=run, repository=repository))


def zipped(members: Mapping[str, bytes]) -> bytes:
    """A zip."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target.getvalue()
