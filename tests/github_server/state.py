"""What the stand-in knows: users, repositories over real git, pulls, comments, runs."""

from __future__ import annotations

import calendar
import itertools
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from github_server.git import Git, Person

#: 2026-05-01T12:00:00Z; every change takes a second.
START = calendar.timegm((2026, 5, 1, 12, 0, 0))
BOT = "github-actions[bot]"
ROLES = {"none": "none", "read": "read", "triage": "read", "write": "write",
         "maintain": "write", "admin": "admin"}  # fmt: skip


def stamp(seconds: float) -> str:
    """As GitHub writes times."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


@dataclass
class User:
    """An account; `token` acts for it."""

    id: int
    login: str
    kind: str = "User"

    @property
    def email(self) -> str:
        """By which GitHub knows whose a commit is."""
        return f"{self.id}+{self.login}@users.noreply.github.com"

    @property
    def token(self) -> str:
        """A personal token."""
        return f"ghp_{self.id:036d}"


@dataclass
class Comment:
    """Of an issue or a pull request."""

    id: int
    issue: int
    author: User
    body: str
    created: float
    updated: float
    minimized: bool = False
    reactions: list[tuple[int, User, str, float]] = field(default_factory=list)


@dataclass
class Pull:
    """A pull request; `head_sha` and `base_sha` as GitHub has them cached."""

    id: int
    number: int
    repository: Repository
    head_repository: Repository | None  # None: deleted
    head_branch: str
    head_sha: str
    base_branch: str
    base_sha: str
    author: User
    title: str
    body: str | None
    created: float
    state: str = "open"
    draft: bool = False
    merged: bool = False


@dataclass
class Run:
    """A workflow run."""

    id: int
    path: str
    event: str
    head_sha: str
    head_branch: str | None
    head_repository: Repository | None
    created: float
    attempt: int = 1
    status: str = "completed"
    conclusion: str | None = "success"
    actor: User | None = None
    #: GitHub leaves it empty for forks (complaint 11): so do we always
    pulls: list[Any] = field(default_factory=list)


@dataclass
class Artifact:
    """An uploaded zip; `size` is what GitHub says, which may differ from the truth."""

    id: int
    name: str
    content: bytes
    size: int
    created: float
    expires: float
    run: Run | None
    expired: bool = False


@dataclass
class CheckRun:
    """Of one commit."""

    id: int
    sha: str
    values: dict[str, Any]
    annotations: list[dict[str, Any]] = field(default_factory=list)
    app: str = "github-actions"


@dataclass
class Repository:
    """One repository over a bare git repository."""

    id: int
    owner: User
    name: str
    git: Git
    state: State
    default_branch: str = "main"
    parent: Repository | None = None
    private: bool = False
    roles: dict[str, str] = field(default_factory=dict)  # login -> one of ROLES
    pulls: dict[int, Pull] = field(default_factory=dict)
    comments: dict[int, Comment] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)
    artifacts: dict[int, Artifact] = field(default_factory=dict)
    checks: dict[int, CheckRun] = field(default_factory=dict)
    workflows: dict[str, int] = field(default_factory=dict)  # path -> id
    #: commits that GitHub signed, because they were made through the API by a bot
    verified: set[str] = field(default_factory=set)

    @property
    def full_name(self) -> str:
        """owner/name."""
        return f"{self.owner.login}/{self.name}"

    def role(self, user: User) -> str:
        """The role of a user: the owner administers."""
        if user is self.owner:
            return "admin"
        return self.roles.get(user.login, "none" if self.private else "read")

    def workflow(self, path: str) -> int:
        """The id of a workflow file."""
        return self.workflows.setdefault(path, self.state.id())

    def commit(
        self, branch: str, files: dict[str, str | bytes | None], message: str = "change",
        author: User | Person | None = None, committer: User | Person | None = None,
        verified: bool = False, start: str | None = None,
    ) -> str:  # fmt: skip
        """A push of one commit: `files` over the branch's tree, None deletes; `start` is where
        a new branch begins (the default branch).
        """
        tip = self.git.ref(f"refs/heads/{branch}")
        parent = tip or self.git.resolve(start or self.default_branch)
        entries = [
            (path, None)
            if content is None
            else (path, self.git.write(content.encode() if isinstance(content, str) else content))
            for path, content in files.items()
        ]
        tree = self.git.make_tree(parent, [("100644", path, sha) for path, sha in entries])
        writer = self.state.person(author or self.owner)
        made = self.git.commit(
            tree, [parent] if parent else [], message, writer,
            self.state.person(committer) if committer else writer,
        )  # fmt: skip
        if verified:
            self.verified.add(made)
        self.git.update(f"refs/heads/{branch}", made)
        self.state.moved(self, branch)
        return made


class State:
    """Everything, and the clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = float(START)
        self._ids = itertools.count(1001)
        self.users: dict[str, User] = {}
        self.repositories: dict[str, Repository] = {}
        self.bot = self.add_user(BOT, "Bot", 41898282)
        self.web_flow = self.add_user("web-flow", "User", 19864447)

    def id(self) -> int:
        """A new id, never used before, of whatever kind."""
        return next(self._ids)

    def tick(self) -> float:
        """A second later."""
        self.now += 1
        return self.now

    def add_user(self, login: str, kind: str = "User", number: int | None = None) -> User:
        """A new account, or the one of that name."""
        if login not in self.users:
            self.users[login] = User(number or self.id(), login, kind)
        return self.users[login]

    def add_repository(
        self, full_name: str, default_branch: str = "main", parent: Repository | None = None
    ) -> Repository:
        """An empty one; a fork has its parent's default branch."""
        owner, _, name = full_name.partition("/")
        git = Git(self.folder / f"{owner}-{name}.git", default_branch)
        made = Repository(self.id(), self.add_user(owner), name, git, self, default_branch, parent)
        if parent:
            branch = f"refs/heads/{default_branch}"
            git.run("fetch", "--quiet", str(parent.git.path), f"{branch}:{branch}")
        self.repositories[full_name] = made
        return made

    def person(self, who: User | Person) -> Person:
        """A user as author of a commit, now."""
        if isinstance(who, Person):
            return who
        if who is self.web_flow:
            return Person("GitHub", "noreply@github.com", f"{int(self.tick())} +0000")
        return Person(who.login, who.email, f"{int(self.tick())} +0000")

    def by_email(self, email: str) -> User | None:
        """Whose a commit is, by what it says of itself: anyone may write that."""
        if email == "noreply@github.com":
            return self.web_flow
        found = re.fullmatch(r"\d+\+(.+)@users\.noreply\.github\.com", email)
        user = self.users.get(found[1]) if found else None
        return user if user and user.email == email else None

    def by_id(self, number: int) -> User | None:
        """An account by its id."""
        return next((user for user in self.users.values() if user.id == number), None)

    def moved(self, repository: Repository, branch: str) -> None:
        """After a push: its open pull requests have a new head."""
        for base in self.repositories.values():
            for pull in base.pulls.values():
                if (
                    pull.state == "open"
                    and pull.head_repository is repository
                    and pull.head_branch == branch
                ):
                    self.sync(pull)

    def sync(self, pull: Pull) -> None:
        """The head's objects into the base repository, as refs/pull/N/head."""
        head = pull.head_repository
        assert head is not None
        sha = head.git.ref(f"refs/heads/{pull.head_branch}")
        if sha is None:  # the branch was deleted
            pull.state = "closed"
            return
        target = f"refs/pull/{pull.number}/head"
        if head is pull.repository:
            head.git.update(target, sha)
        else:
            pull.repository.git.run(
                "fetch", "--quiet", str(head.git.path), f"+refs/heads/{pull.head_branch}:{target}"
            )
        pull.head_sha = sha
        pull.base_sha = pull.repository.git.ref(f"refs/heads/{pull.base_branch}") or pull.base_sha

    def add_pull(
        self, base: Repository, head: Repository, branch: str, onto: str, author: User,
        title: str, body: str | None = None, draft: bool = False,
    ) -> Pull:  # fmt: skip
        """An open pull request of a branch that is there."""
        tips = [one.git.ref(f"refs/heads/{name}") for one, name in ((head, branch), (base, onto))]
        assert tips[0], f"{head.full_name} has no branch {branch}"
        assert tips[1], f"{base.full_name} has no branch {onto}"
        number = len(base.pulls) + 1 + 40
        made = Pull(
            self.id(), number, base, head, branch, tips[0], onto, tips[1], author, title, body,
            self.tick(), draft=draft,
        )  # fmt: skip
        base.pulls[number] = made
        self.sync(made)
        return made

    def add_comment(self, repository: Repository, issue: int, author: User, body: str) -> Comment:
        """A new comment."""
        now = self.tick()
        made = Comment(self.id(), issue, author, body, now, now)
        repository.comments[made.id] = made
        return made
