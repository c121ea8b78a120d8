"""Calls on workflow runs, artifacts and check runs."""

from __future__ import annotations

import re
from typing import Any

from github_server import forms
from github_server.routing import Answer, Call, Listing, Refused, route
from github_server.shapes import fill
from github_server.state import Artifact, CheckRun, Run

READ = "actions=read"


def newest(found: list[Any]) -> list[Any]:
    """Newest first."""
    return sorted(found, key=lambda one: (-one.created, -one.id))


def find_run(call: Call) -> Run:
    """404 if there is none."""
    found = call.repository.runs.get(call.number("run_id"))
    if found is None:
        raise Refused(404, "Not Found")
    return found


def chosen(call: Call, path: str | None = None) -> Listing:
    """The runs that a query asks for; never more than 1000, as GitHub has it with a filter."""
    query = call.query
    found = [
        one
        for one in newest(list(call.repository.runs.values()))
        if path is None or one.path == path
        if "head_sha" not in query or one.head_sha == query["head_sha"]
        if "event" not in query or one.event == query["event"]
        if "branch" not in query or one.head_branch == query["branch"]
        if "status" not in query or query["status"] in (one.status, one.conclusion)
    ]
    return Listing(found[:1000], lambda one: forms.run(call, one), "workflow_runs")


@route("GET", "actions/runs", READ)
def runs(call: Call) -> Listing:
    """Of all workflows."""
    return chosen(call)


def workflow_path(call: Call) -> str:
    """A workflow by its file's name or its id."""
    wanted = call.values["workflow_id"]
    for path, number in call.repository.workflows.items():
        if wanted in (path.rpartition("/")[2], str(number)):
            return path
    raise Refused(404, "Not Found")


@route("GET", "actions/workflows/{workflow_id}", READ)
def workflow(call: Call) -> Answer:
    """One file."""
    path = workflow_path(call)
    number = call.repository.workflow(path)
    return Answer(fill("workflow", {"id": number, "path": path, "state": "active"}))


@route("GET", "actions/workflows/{workflow_id}/runs", READ)
def workflow_runs(call: Call) -> Listing:
    """Of one file."""
    return chosen(call, workflow_path(call))


@route("GET", "actions/runs/{run_id}", READ)
def run(call: Call) -> Answer:
    """The latest attempt."""
    return Answer(forms.run(call, find_run(call)))


@route("GET", "actions/runs/{run_id}/attempts/{attempt_number}", READ)
def attempt(call: Call) -> Answer:
    """An attempt, of which only the number is kept."""
    one = find_run(call)
    number = call.number("attempt_number")
    if not 1 <= number <= one.attempt:
        raise Refused(404, "Not Found")
    return Answer(forms.run(call, one) | {"run_attempt": number})


@route("POST", "actions/runs/{run_id}/rerun", "actions=write")
def rerun(call: Call) -> Answer:
    """A new attempt, in progress: refused while one is."""
    one = find_run(call)
    if one.status != "completed":
        raise Refused(403, "The workflow run is already running")
    one.attempt += 1
    one.status, one.conclusion = "queued", None
    return Answer({}, 201)


def artifacts_of(call: Call, found: list[Artifact]) -> Listing:
    """Newest first, by name if asked for."""
    name = call.query.get("name")
    own = [one for one in newest(found) if name is None or one.name == name]
    return Listing(own, lambda one: forms.artifact(call, one), "artifacts")


@route("GET", "actions/artifacts", READ)
def artifacts(call: Call) -> Listing:
    """Of the repository."""
    return artifacts_of(call, list(call.repository.artifacts.values()))


@route("GET", "actions/runs/{run_id}/artifacts", READ)
def run_artifacts(call: Call) -> Listing:
    """Of one run, all attempts."""
    one = find_run(call)
    return artifacts_of(call, [a for a in call.repository.artifacts.values() if a.run is one])


def find_artifact(call: Call) -> Artifact:
    """404 if there is none."""
    found = call.repository.artifacts.get(call.number("artifact_id"))
    if found is None:
        raise Refused(404, "Not Found")
    return found


@route("GET", "actions/artifacts/{artifact_id}", READ)
def artifact(call: Call) -> Answer:
    """One."""
    return Answer(forms.artifact(call, find_artifact(call)))


@route("GET", "actions/artifacts/{artifact_id}/{archive_format}", READ)
def archive(call: Call) -> Answer:
    """A redirect to the other host, or 410 after it expired."""
    one = find_artifact(call)
    if one.expired or one.expires <= call.state.now:
        raise Refused(410, "Artifact has expired")
    return Answer(None, 302, {"Location": f"{call.store}/files/{one.id}?sig=s3cret"})


WRITE = "checks=write"


@route("POST", "check-runs", WRITE)
def create_check(call: Call) -> Answer:
    """On a commit that is there."""
    if call.repository.git.kind(call.body["head_sha"]) != "commit":
        raise Refused(422, f"No commit found for SHA: {call.body['head_sha']}")
    made = CheckRun(call.state.id(), call.body["head_sha"], {})
    change(call, made)
    call.repository.checks[made.id] = made
    return Answer(forms.check(call, made), 201)


def change(call: Call, one: CheckRun) -> None:
    """New values; annotations add up, at most 50 a call; a conclusion completes."""
    body = dict(call.body)
    output = dict(body.pop("output", {}))
    given = output.pop("annotations", [])
    if len(given) > 50:
        raise Refused(422, "Invalid request: no more than 50 annotations are allowed")
    for name in ("summary", "text"):
        # GitHub counts bytes here (complaint 13).
        if len(str(output.get(name, "")).encode()) > 65535:
            raise Refused(422, f"Invalid request: {name} exceeds 65535 bytes")
    if body.get("status") == "completed" and "conclusion" not in body:
        raise Refused(422, "Invalid request: conclusion is required when completed")
    if "conclusion" in body:
        body["status"] = "completed"
    one.annotations += given
    one.values |= body
    if output:
        one.values["output"] = one.values.get("output", {}) | output


def find_check(call: Call) -> CheckRun:
    """404 if there is none."""
    found = call.repository.checks.get(call.number("check_run_id"))
    if found is None:
        raise Refused(404, "Not Found")
    return found


@route("GET", "check-runs/{check_run_id}", "checks=read")
def check(call: Call) -> Answer:
    """One."""
    return Answer(forms.check(call, find_check(call)))


@route("PATCH", "check-runs/{check_run_id}", WRITE)
def edit_check(call: Call) -> Answer:
    """Only the app that made it may."""
    one = find_check(call)
    if one.app != "github-actions":
        raise Refused(403, "Invalid app_id - check run can only be modified by its own app")
    change(call, one)
    return Answer(forms.check(call, one))


@route("GET", "check-runs/{check_run_id}/annotations", "checks=read")
def check_annotations(call: Call) -> Listing:
    """All that were added."""
    return Listing(find_check(call).annotations, lambda one: fill("check-annotation", one))


@route("GET", "commits/{ref}/check-runs", "checks=read")
def commit_checks(call: Call) -> Listing:
    """Newest first; `filter=latest` (the default) gives the newest of each name."""
    sha = call.repository.git.resolve(call.values["ref"])
    name, query = call.query.get("check_name"), call.query
    found, seen = [], set[tuple[str, str]]()
    for one in sorted(call.repository.checks.values(), key=lambda one: -one.id):
        key = (one.app, one.values["name"])
        if one.sha != sha or (name is not None and one.values["name"] != name):
            continue
        if query.get("filter", "latest") == "latest" and key in seen:
            continue
        if "app_id" in query and not re.fullmatch("15368", query["app_id"]):
            continue
        seen.add(key)
        found.append(one)
    return Listing(found, lambda one: forms.check(call, one), "check_runs")
