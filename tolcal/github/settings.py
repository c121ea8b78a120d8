"""What a job is told: its inputs, and GitHub's environment variables and event."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from tolcal.model import BUDGET, TolcalError

#: What a pull request may be failed for, beside what the verdict itself blocks.
FAIL_ON = ("never", "regression", "drift", "false-positive", "check-failed")
MAX_EVENT = 32 * 2**20
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}")

Permission = Literal["write", "maintain", "admin"]


class Inputs(msgspec.Struct, frozen=True):
    """Inputs of the action, as options of ``tolcal github``."""

    corpus: str = "corpus"
    tolerances: str = "tolerances.toml"
    history: str = "artifact"  # or "branch", or a path
    history_branch: str = "tolcal-history"
    rule: Literal["residual", "paper"] = "residual"
    budget: float = BUDGET  # share of runs that may be red for noise
    #: `regression`: what the verdict blocks; the others add to it, `never` is advice only
    fail_on: tuple[str, ...] = ("regression",)
    comment: bool = True
    out: Path = Path("out")
    #: files of the workflows whose artifacts count, from the repository's root
    run_workflow: str = ".github/workflows/tolcal.yml"
    ingest_workflow: str = ".github/workflows/tolcal-ingest.yml"
    tighten_permission: Permission = "write"
    widen_permission: Permission = "maintain"  # or "admin"
    self_approval: bool = False  # for repositories of one person

    @property
    def name(self) -> str:
        """Tells several setups of one repository apart by their paths; "" for the defaults.

        Their checks and comments must not replace each other's.
        """
        parts = [] if self.corpus == "corpus" else [self.corpus]
        if self.tolerances != (PurePosixPath(self.corpus).parent / "tolerances.toml").as_posix():
            parts.append(self.tolerances)
        if self.run_workflow != ".github/workflows/tolcal.yml":
            parts.append(self.run_workflow.removeprefix(".github/workflows/"))
        return ", ".join(parts)


class Job(msgspec.Struct, frozen=True):
    """The workflow run that this process is a step of."""

    event: str  # GITHUB_EVENT_NAME
    payload: Mapping[str, Any]
    repository: str  # owner/name
    run_id: int
    run_attempt: int
    sha: str  # of the workflow's own commit: the default branch's in trusted jobs
    ref: str
    api_url: str
    server_url: str
    graphql_url: str
    summary: Path | None  # GITHUB_STEP_SUMMARY
    output: Path | None  # GITHUB_OUTPUT

    @property
    def owner(self) -> str:
        """The repository's owner."""
        return self.repository.partition("/")[0]


def job(environment: Mapping[str, str]) -> Job:
    """From GitHub's variables. TolcalError that names the one that is missing or wrong."""

    def text(name: str) -> str:
        value = environment.get(name, "")
        if not value:
            raise TolcalError(f"{name} is not set: `tolcal github` runs as a step of a workflow")
        return value

    def number(name: str) -> int:
        value = text(name)
        if not (value.isascii() and value.isdecimal() and len(value) < 20):
            raise TolcalError(f"{name} is {value[:40]!r}, not a number")
        return int(value)

    repository = text("GITHUB_REPOSITORY")
    if not _REPOSITORY.fullmatch(repository):
        raise TolcalError(f"GITHUB_REPOSITORY is {repository[:80]!r}, not owner/name")
    api = environment.get("GITHUB_API_URL", "https://api.github.com").rstrip("/")
    return Job(
        event=text("GITHUB_EVENT_NAME"),
        payload=_payload(Path(text("GITHUB_EVENT_PATH"))),
        repository=repository,
        run_id=number("GITHUB_RUN_ID"),
        run_attempt=number("GITHUB_RUN_ATTEMPT"),
        sha=environment.get("GITHUB_SHA", ""),
        ref=environment.get("GITHUB_REF", ""),
        api_url=api,
        server_url=environment.get("GITHUB_SERVER_URL", "https://github.com").rstrip("/"),
        graphql_url=environment.get("GITHUB_GRAPHQL_URL") or _graphql(api),
        summary=_optional(environment.get("GITHUB_STEP_SUMMARY")),
        output=_optional(environment.get("GITHUB_OUTPUT")),
    )


def _graphql(api: str) -> str:
    """GHES has it beside the REST API's version: ``/api/v3`` and ``/api/graphql``."""
    return f"{api.removesuffix('/v3')}/graphql"


def _optional(value: str | None) -> Path | None:
    return Path(value) if value else None


def _payload(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MAX_EVENT:
            raise TolcalError(f"{path}: over {MAX_EVENT} bytes, no event of GitHub's")
        payload = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise TolcalError(f"{path}: the event cannot be read: {error}") from None
    if not isinstance(payload, dict):
        raise TolcalError(f"{path}: the event is no JSON object")
    return payload
