"""Webhook payloads as GitHub and GHES sent them, and what the trusted jobs make of them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests_support import DATA

from tolcal.github import command, report, settings

EVENTS: list[dict[str, Any]] = json.loads((DATA / "webhooks.json").read_text())["events"]
INPUTS = settings.Inputs()
DIGEST = "9c1e7a40d2b86f13"


def of(name: str, *actions: str) -> list[Any]:
    """Payloads of that event, each with a name of its own for the test's report."""
    chosen = [
        (number, one)
        for number, one in enumerate(EVENTS)
        if one["event"] == name and one["payload"]["action"] in actions
    ]
    assert chosen
    return [
        pytest.param(one["payload"], id=f"{one['place']}-{one['payload']['action']}-{number}")
        for number, one in chosen
    ]


def job(folder: Path, event: str, payload: dict[str, Any]) -> settings.Job:
    """A job of that event, read from its variables and file as on a runner."""
    path = folder / "event.json"
    path.write_text(json.dumps(payload))
    return settings.job({
        "GITHUB_EVENT_NAME": event, "GITHUB_EVENT_PATH": str(path), "GITHUB_RUN_ID": "7",
        "GITHUB_RUN_ATTEMPT": "1", "GITHUB_REPOSITORY": payload["repository"]["full_name"],
    })  # fmt: skip


def on_a_pull_request(payload: dict[str, Any], body: str) -> dict[str, Any]:
    """The same event where the issue is a pull request and the comment says that."""
    changed = copy.deepcopy(payload)
    number, repository = changed["issue"]["number"], changed["repository"]
    changed["issue"]["pull_request"] = {
        "url": f"{repository['url']}/pulls/{number}",
        "html_url": f"{repository['html_url']}/pull/{number}",
    }
    changed["comment"]["body"] = body
    return changed


@pytest.mark.parametrize("payload", of("issue_comment", "created", "edited", "deleted"))
def test_comments_on_issues_are_not_for_us(tmp_path: Path, payload: dict[str, Any]) -> None:
    """Complaint 10: as they came, none is on a pull request."""
    number = payload["issue"]["number"]
    assert command.of_event(job(tmp_path, "issue_comment", payload)) == (
        f"#{number} is no pull request"
    )


@pytest.mark.parametrize("payload", of("issue_comment", "created"))
def test_a_command_is_read(tmp_path: Path, payload: dict[str, Any]) -> None:
    """Complaint 10: the pull request is the issue's number."""
    asked = on_a_pull_request(payload, "/tolcal status")
    assert command.of_event(job(tmp_path, "issue_comment", asked)) == command.New(
        payload["issue"]["number"], payload["comment"]["id"]
    )
    said = on_a_pull_request(payload, payload["comment"]["body"])
    found = command.of_event(job(tmp_path, "issue_comment", said))
    assert found == "the first line is not for /tolcal"


@pytest.mark.parametrize("payload", of("issue_comment", "edited", "deleted"))
def test_a_lost_approval_is_noticed(tmp_path: Path, payload: dict[str, Any]) -> None:
    """Attack 8: what a comment says after an edit is no command; that it said one before counts."""
    line = f"/tolcal approve {DIGEST}"
    gone = on_a_pull_request(payload, line)
    quiet = on_a_pull_request(payload, "thanks")
    if payload["action"] == "edited":
        assert isinstance(payload["changes"]["body"]["from"], str)
        assert command.of_event(job(tmp_path, "issue_comment", gone)) == (
            "only new comments hold commands"
        )
        gone = quiet
        gone["changes"]["body"]["from"] = line
    else:
        assert command.of_event(job(tmp_path, "issue_comment", quiet)) == (
            "only new comments hold commands"
        )
    found = command.of_event(job(tmp_path, "issue_comment", gone))
    assert found == command.Gone(payload["issue"]["number"])


@pytest.mark.parametrize("payload", of("workflow_run", "requested", "completed"))
def test_runs_of_other_workflows_are_not_for_us(tmp_path: Path, payload: dict[str, Any]) -> None:
    """As they came, none measured a pull request; a lookalike has to match event and file."""
    run = payload["workflow_run"]
    found = report.decide(INPUTS, job(tmp_path, "workflow_run", payload))
    assert isinstance(found, str)
    assert found.startswith(f"run {run['id']} is of ")
    for name, value in (("event", "pull_request"), ("path", INPUTS.run_workflow)):
        alike = copy.deepcopy(payload)
        alike["workflow_run"][name] = value
        assert isinstance(report.decide(INPUTS, job(tmp_path, "workflow_run", alike)), str)


@pytest.mark.parametrize("payload", of("workflow_run", "requested", "completed"))
def test_a_run_that_measured_is_read(tmp_path: Path, payload: dict[str, Any]) -> None:
    """Complaint 11: head and owner are the run's own; its list of pull requests is not asked."""
    ours = copy.deepcopy(payload)
    run = ours["workflow_run"]
    run.update(event="pull_request", path=INPUTS.run_workflow, pull_requests=[])
    found = report.decide(INPUTS, job(tmp_path, "workflow_run", ours))
    assert isinstance(found, report.Event)
    assert found.step == ("judge" if payload["action"] == "completed" else "start")
    assert (found.run.id, found.run.head_sha) == (run["id"], run["head_sha"])
    assert found.run.attempt == run.get("run_attempt", 1)
    assert found.run.conclusion == (run["conclusion"] or "")
    assert (found.owner, found.branch) == (
        run["head_repository"]["owner"]["login"], run["head_branch"],
    )  # fmt: skip
