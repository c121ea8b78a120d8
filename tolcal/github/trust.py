"""Whose work an artifact is: only the ingest workflow on the default branch may write a history.

A name proves nothing: any workflow, of any branch and of any fork, may upload under it (attack 1).
"""

from __future__ import annotations

from typing import Any

import msgspec

from tolcal.github.artifacts import Artifact
from tolcal.github.client import Client, NotFound, quote
from tolcal.github.settings import Job
from tolcal.model import TolcalError

#: What starts an ingest. A pull request's run is of a workflow file that the pull request wrote.
EVENTS = ("push", "schedule", "workflow_dispatch")


OTHER_BRANCH = "of another branch"


class Home(msgspec.Struct, frozen=True):
    """The repository that the job is of."""

    id: int
    default_branch: str


class _Repository(msgspec.Struct, frozen=True):
    id: int
    default_branch: str


class _Side(msgspec.Struct, frozen=True):
    id: int = 0


class Source(msgspec.Struct, frozen=True):
    """A workflow run, in what its trust depends on."""

    id: int
    path: str = ""
    event: str = ""
    head_sha: str = ""
    head_branch: str | None = None
    head_repository: _Side | None = None  # None: deleted
    repository: _Side | None = None


def home(client: Client, job: Job) -> Home:
    """From the event where it says it (those of a schedule need not), else from the API."""
    try:
        found = msgspec.convert(job.payload.get("repository"), _Repository)
    except msgspec.ValidationError:
        try:
            found = msgspec.convert(client.get(""), _Repository)
        except msgspec.ValidationError as error:
            raise TolcalError(f"GitHub describes {job.repository} as none: {error}") from None
    return Home(found.id, found.default_branch)


def listed_as_ours(artifact: Artifact, home: Home) -> bool:
    """Whether the listing alone says that it is of this repository's default branch."""
    sides = (artifact.repository_id, artifact.head_repository_id)
    return sides == (home.id, home.id) and artifact.head_branch == home.default_branch


def source(client: Client, run_id: int) -> Source | None:
    """A workflow run; None if it is gone."""
    try:
        return parse(client.get(f"actions/runs/{run_id}"))
    except NotFound:
        return None


def parse(raw: dict[str, Any]) -> Source:
    """A run as GitHub describes it."""
    try:
        return msgspec.convert(raw, Source)
    except msgspec.ValidationError as error:
        raise TolcalError(f"GitHub describes a workflow run as none: {error}") from None


def why_not(run: Source | None, home: Home, workflow: str) -> str:
    """Why a run's artifacts are no history; "" if they are."""
    if run is None:
        return "its run is gone"
    repository, head = run.repository, run.head_repository
    if repository is None or head is None or (repository.id, head.id) != (home.id, home.id):
        return "of a fork"
    if run.path.partition("@")[0] != workflow:
        return "of another workflow"
    if run.head_branch != home.default_branch:
        return OTHER_BRANCH
    return "" if run.event in EVENTS else "of another event"


def on_default_branch(client: Client, sha: str, home: Home) -> bool:
    """Whether the branch contains the commit. A tag may have the branch's name, and a run's
    `head_branch` is then that tag.
    """
    tip = client.get(f"git/ref/heads/{quote(home.default_branch)}").get("object")
    last = str(tip.get("sha")) if isinstance(tip, dict) else ""
    if sha == last:
        return True
    try:
        found = client.get(f"compare/{quote(sha)}...{quote(last)}", per_page=1)
    except NotFound:  # no common ancestor, or no such commit
        return False
    return found.get("status") in ("ahead", "identical")


def ingested_before(client: Client, home: Home, workflow: str) -> int | None:
    """The latest run that must have left a history; None if there was none."""
    name = quote(workflow.rpartition("/")[2])
    try:
        found = client.get(
            f"actions/workflows/{name}/runs", branch=home.default_branch, status="success",
            per_page=100,
        )  # fmt: skip
    except NotFound:
        return None
    runs = found.get("workflow_runs")
    for raw in runs if isinstance(runs, list) else ():
        run = parse(raw)
        if not why_not(run, home, workflow):
            return run.id
    return None
