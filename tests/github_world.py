"""A user's repository on the stand-in for GitHub, whose events start the workflows under act.

The token of each job may do what the workflow's file says and no more: act doesn't hold it to
that, the stand-in does.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests
from act_support import Act, copy_workflows
from github_server.state import Comment, Pull, Run
from github_support import Hub
from ruamel.yaml import YAML
from tests_support import DATA

from tolcal.github.settings import Inputs

#: Seen of a check run: where it is and what it says.
Check = tuple[str, str | None]


def files_below(folder: Path) -> dict[str, bytes]:
    """Path below it -> bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


class World:
    """One repository, its hub, and what its workflows do."""

    def __init__(self, folder: Path, act: Act, files: Mapping[str, str]) -> None:
        self.folder, self.act = folder, act
        self.hub = Hub(folder / "hub")
        copied = folder / "copied"
        copied.mkdir(parents=True)
        copy_workflows(copied, act.wheels)
        sample = files_below(DATA / "sample_repo") | files_below(copied)
        self.hub.repository(files=sample | files)
        self.count = itertools.count()
        self.log = ""

    def api(self, path: str) -> dict[str, Any]:
        """What GitHub says, as an event's payload has it."""
        answer = requests.get(
            f"{self.hub.url}/repos/{self.hub.main.full_name}/{path}".rstrip("/"), timeout=60,
            headers={"Authorization": f"Bearer {self.hub.token}"},
        )  # fmt: skip
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def checkout(self, pull: Pull | None = None) -> Path:
        """The default branch, or what a pull request would make of it."""
        folder = self.folder / f"checkout-{next(self.count)}"
        git("clone", "-q", str(self.hub.main.git.path), str(folder))
        if pull is not None:
            assert pull.head_repository is not None
            git("-C", str(folder), "fetch", "-q", str(pull.head_repository.git.path), pull.head_sha)
            git("-C", str(folder), "merge", "-q", "--no-edit", "FETCH_HEAD")
        return folder

    def start(
        self, workflow: str, job: str, event: str, payload: dict[str, Any],
        run: Run | None = None, pull: Pull | None = None,
    ) -> int:  # fmt: skip
        """One workflow for one event; the exit status of act."""
        folder = self.checkout(pull)
        text = (folder / ".github" / "workflows" / workflow).read_text()
        allowed = YAML(typ="safe", pure=True).load(text)["jobs"][job]["permissions"]
        self.hub.grants = {name.replace("-", "_"): to for name, to in allowed.items()}
        names = ("RUN_ID", "RUN_ATTEMPT", "API_URL", "SERVER_URL", "GRAPHQL_URL", "REPOSITORY")
        given = self.hub.environment(event, payload, run=run)
        variables = {f"GITHUB_{name}": given[f"GITHUB_{name}"] for name in names}
        status = self.act(folder, workflow, event, payload, self.hub.token, **variables)
        self.hub.grants = None
        self.log = self.act.log
        return status

    # What happens on GitHub

    def begin(self, pull: Pull) -> Run:
        """The measuring workflow is started for the pull request's head."""
        return self.hub.workflow_run(pull=pull, status="in_progress")

    def measure(self, pull: Pull, run: Run | None = None) -> Run:
        """The pull request's head is measured, and its records are uploaded."""
        run = run or self.begin(pull)
        payload = {
            "action": "synchronize", "number": pull.number,
            "pull_request": self.api(f"pulls/{pull.number}"), "repository": self.api(""),
        }  # fmt: skip
        assert self.start("tolcal.yml", "measure", "pull_request", payload, run, pull) == 0, (
            self.log
        )
        self.collect(run)
        run.status, run.conclusion = "completed", "success"
        return run

    def collect(self, run: Run) -> None:
        """What the run has uploaded is on GitHub."""
        for name, files in self.act.taken().items():
            self.hub.artifact(run, name, files)

    def report(self, run: Run, action: str = "completed") -> None:
        """The report hears of the measuring run."""
        payload = {
            "action": action, "workflow_run": self.api(f"actions/runs/{run.id}"),
            "repository": self.api(""),
        }  # fmt: skip
        status = self.start("tolcal-report.yml", "report", "workflow_run", payload)
        assert status == 0, self.log

    def command(self, comment: Comment, pull: Pull) -> None:
        """A new comment on the pull request is carried out."""
        payload = {
            "action": "created", "issue": self.api(f"issues/{pull.number}"),
            "comment": self.api(f"issues/comments/{comment.id}"), "repository": self.api(""),
        }  # fmt: skip
        status = self.start("tolcal-command.yml", "command", "issue_comment", payload)
        assert status == 0, self.log

    def ingest(self, cases: str = "") -> Run:
        """What is on the default branch is measured, and joins the history; by hand with cases."""
        event = "workflow_dispatch" if cases else "push"
        run = self.hub.workflow_run(
            Inputs().ingest_workflow, event=event, status="in_progress", conclusion=None
        )
        # The job `ingest` looks for what the job `measure` has uploaded a moment before.
        self.hub.on("GET actions/runs/*/artifacts", lambda: self.collect(run), times=1_000)
        payload = {"ref": "refs/heads/main", "repository": self.api("")}
        if cases:
            payload["inputs"] = {"cases": cases}
        status = self.start("tolcal-ingest.yml", "ingest", event, payload, run)
        assert status == 0, self.log
        self.collect(run)
        self.hub.hooks.clear()
        run.status, run.conclusion = "completed", "success"
        return run

    # What is to be seen

    def comments(self, pull: Pull) -> list[str]:
        """Bodies of the pull request's comments by the bot, oldest first."""
        return [
            one.body for one in self.hub.main.comments.values()
            if one.issue == pull.number and one.author is self.hub.state.bot
        ]  # fmt: skip

    def check(self, sha: str) -> Check:
        """The one check run of a commit."""
        (found,) = self.hub.checks(sha)
        assert found.values["name"] == "tolcal"
        return found.values["status"], found.values.get("conclusion")


def git(*arguments: str) -> None:
    """git, with nobody's configuration."""
    env = {
        "PATH": "/usr/bin:/bin:/usr/local/bin", "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "GitHub", "GIT_AUTHOR_EMAIL": "noreply@github.com",
        "GIT_COMMITTER_NAME": "GitHub", "GIT_COMMITTER_EMAIL": "noreply@github.com",
    }  # fmt: skip
    subprocess.run(["git", *arguments], check=True, env=env, capture_output=True)
