"""action.yml and the workflows, as files.

``act`` enforces neither ``permissions:`` nor ``concurrency:``, and nothing here has run on
github.com: what they are to be is checked in this file, that GitHub enforces them is its word.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tests_support import ROOT

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {path.name: path for path in sorted(FOLDER.glob("*.yml"))}
#: Jobs with a token that writes, or whose output is trusted: on these events the default branch's
#: code runs, and nothing that a pull request wrote may.
TRUSTED = ("tolcal-report.yml", "tolcal-command.yml", "tolcal-ingest.yml")
BIN = Path(sys.executable).parent


def load(path: Path) -> dict[str, Any]:
    """YAML 1.2, as GitHub reads it: ``on`` is a string."""
    data = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
    assert isinstance(data, dict)
    return data


ACTION = load(ROOT / "action.yml")
LOADED = {name: load(path) for name, path in WORKFLOWS.items()}
JOBS = [(name, job) for name, workflow in LOADED.items() for job in workflow["jobs"]]
STEPS = [
    (name, step)
    for name, job in JOBS
    for step in LOADED[name]["jobs"][job]["steps"]
] + [("action.yml", step) for step in ACTION["runs"]["steps"]]  # fmt: skip


def used(step: dict[str, Any]) -> str:
    return str(step.get("uses", ""))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "command",
    [
        # The auditor's persona reports the most; what is accepted is marked in place.
        ("zizmor", "--offline", "--no-progress", "--strict-collection", "--persona=auditor",
         ".github", "action.yml"),
        ("actionlint", "-no-color"),
        ("jactionlint", "--no-color"),
        ("jactionlint", "--no-color", "action.yml"),
        ("check-jsonschema", "--builtin-schema", "vendor.github-workflows",
         *(str(path) for path in WORKFLOWS.values())),
        ("check-jsonschema", "--builtin-schema", "vendor.github-actions", "action.yml"),
    ],
    ids=lambda command: " ".join(command[:4]),
)  # fmt: skip
def test_linters_find_nothing(command: tuple[str, ...]) -> None:
    """Attack 12, 14: template injection, excessive permissions, unpinned uses, kept credentials."""
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr


def test_linters_would_find_something(tmp_path: Path) -> None:
    """The same commands see a planted fault, so that their silence means something."""
    text = WORKFLOWS["tolcal.yml"].read_text()
    planted = tmp_path / "bad.yml"
    planted.write_text(f"{text}      - run: echo ${{{{ github.head_ref }}}}\n")
    found = run("zizmor", "--offline", "--no-progress", "--strict-collection", str(planted))
    assert found.returncode != 0
    assert "template-injection" in found.stdout
    planted.write_text(text.replace("timeout-minutes", "timeout-minuts"))
    schema = ("check-jsonschema", "--builtin-schema", "vendor.github-workflows")
    assert run(*schema, str(planted)).returncode == 1
    assert run("actionlint", "-no-color", str(planted)).returncode == 1


def test_copies_are_as_clean(tmp_path: Path) -> None:
    """What README has users make of the four files: this repository's own rules aren't there."""
    readme = (ROOT / "README.md").read_text()
    (script,) = re.findall(r"^ *REPO=.*?^ *done$", readme, re.MULTILINE | re.DOTALL)
    script = script.replace("../kernels", str(tmp_path)).replace("$(git rev-parse HEAD)", "a1" * 20)
    subprocess.run(["bash", "-euc", script], cwd=ROOT, check=True)
    folder = tmp_path / ".github" / "workflows"
    names = {path.name for path in folder.iterdir()}
    assert names == set(WORKFLOWS) - {"ci.yml"}
    for name in names:
        uses = re.findall("uses: .*/tolcal.*$", (folder / name).read_text(), re.MULTILINE)
        assert uses == [f"uses: OWNER/tolcal@{'a1' * 20}"] * len(LOADED[name]["jobs"])
    # actionlint knows the label by this file, as README says.
    shutil.copy(ROOT / ".github" / "actionlint.yaml", tmp_path / ".github")
    git = ("git", "-C", str(tmp_path), "init", "-q")
    subprocess.run(git, check=True)
    done = subprocess.run(
        [str(BIN / "actionlint"), "-no-color"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    done = run(
        "zizmor", "--offline", "--no-progress", "--strict-collection", "--persona=auditor",
        str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_nothing_is_allowed_at_the_top() -> None:
    """Attack 14: a job gets what it names and no more."""
    assert all(workflow["permissions"] == {} for workflow in LOADED.values())


def test_permissions_are_those_of_the_table() -> None:
    """Attack 14: docs/security.md lists each job's permissions, word for word."""
    rows = re.findall(
        r"^\| `([\w-]+\.yml)` \| `(\w+)` \| [^|]+ \| ([^|]+) \|", (ROOT / "docs/security.md")
        .read_text(), re.MULTILINE
    )  # fmt: skip
    documented = {
        (workflow, job): dict(pair.split(": ") for pair in re.findall(r"`([\w-]+: \w+)`", cell))
        for workflow, job, cell in rows
    }
    assert documented == {(name, job): LOADED[name]["jobs"][job]["permissions"]
                          for name, job in JOBS}  # fmt: skip


def test_what_runs_a_pull_request_can_only_read() -> None:
    """Attack 5, 13, 14: forks' code gets ``contents: read``, no secret, and no other trigger."""
    for name, workflow in LOADED.items():
        assert "pull_request_target" not in workflow["on"], name
        if "pull_request" not in workflow["on"]:
            continue
        assert "secrets." not in WORKFLOWS[name].read_text()
        for job in workflow["jobs"].values():
            assert job["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("name", TRUSTED)
def test_trusted_jobs_never_check_out_a_pull_request(name: str) -> None:
    """Attack 5: the only checkout is that of the event's own commit, of the default branch."""
    for job in LOADED[name]["jobs"].values():
        for step in job["steps"]:
            if "checkout" in used(step):
                assert step["with"] == {"persist-credentials": False}
            assert "run" not in step
    assert "head_ref" not in WORKFLOWS[name].read_text()


def test_nothing_is_cached() -> None:
    """Attack 15, complaint 4: no cache is restored or saved; a pull request could fill it."""
    for _, step in STEPS:
        assert "cache" not in used(step)
        assert not any(key.startswith("cache") for key in step.get("with", {}))


def test_actions_are_pinned() -> None:
    """Every foreign action by a full commit, with its version in a comment, the same everywhere."""
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS.values():
        for action, rest in re.findall(r"uses: ([^@\s]+)(.*)", path.read_text()):
            if action != "./":
                assert re.fullmatch(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+", rest), f"{path}: {action}"
                pins.setdefault(action, set()).add(rest)
    assert {action: len(rest) for action, rest in pins.items()} == dict.fromkeys(pins, 1)
    assert not any("uses" in step for step in ACTION["runs"]["steps"])


def test_no_expression_in_a_script() -> None:
    """Attack 12: values reach scripts by the environment alone."""
    for name, step in STEPS:
        assert "${{" not in step.get("run", ""), name
        assert step.get("shell", "bash") == "bash"


def test_every_job_ends() -> None:
    """A hung GPU costs an hour, not the default six."""
    for name, job in JOBS:
        assert LOADED[name]["jobs"][job]["timeout-minutes"] <= 90


def test_checkouts_keep_no_credentials() -> None:
    """Attack 14: the token is not left in .git/config, where kernels could read it."""
    for _, step in STEPS:
        if "checkout" in used(step):
            assert step["with"]["persist-credentials"] is False


def test_concurrency() -> None:
    """Complaint 19, 25: one writer at a time, of which none that matters is cancelled."""
    inner = {
        name: [job["concurrency"] for job in workflow["jobs"].values() if "concurrency" in job]
        for name, workflow in LOADED.items()
    }
    of = {name: w.get("concurrency") or (*inner[name], None)[0] for name, w in LOADED.items()}
    assert of["tolcal.yml"] == {
        "group": "tolcal-${{ github.event.pull_request.number }}", "cancel-in-progress": True,
    }  # fmt: skip
    assert of["tolcal-command.yml"] == {
        "group": "tolcal-command-${{ github.event.issue.number }}",
        "cancel-in-progress": False,
        "queue": "max",
    }
    assert of["tolcal-ingest.yml"] == {
        "group": "tolcal-ingest", "cancel-in-progress": False, "queue": "max",
    }  # fmt: skip
    report = of["tolcal-report.yml"]
    assert report is not None
    assert report["cancel-in-progress"] is False
    assert "head_repository.id" in report["group"]
    assert "head_branch" in report["group"]


def test_guards() -> None:
    """Attack 8, complaint 10: comments on pull requests only, new ones, that begin as a command."""
    command = LOADED["tolcal-command.yml"]
    assert command["on"] == {"issue_comment": {"types": ["created"]}}
    assert command["jobs"]["command"]["if"] == (
        "${{ github.event.issue.pull_request && startsWith(github.event.comment.body, '/tolcal') }}"
    )
    report = LOADED["tolcal-report.yml"]
    assert report["on"] == {
        "workflow_run": {
            "workflows": [LOADED["tolcal.yml"]["name"]], "types": ["requested", "completed"],
        }
    }  # fmt: skip
    assert report["jobs"]["report"]["if"] == (
        "${{ github.event.workflow_run.event == 'pull_request' }}"
    )
    measure = LOADED["tolcal-ingest.yml"]["jobs"]["measure"]
    assert "github.ref_name == github.event.repository.default_branch" in measure["if"]


def test_workflows_name_each_other() -> None:
    """The inputs' defaults are the files that there are."""
    for name in ("run-workflow", "ingest-workflow"):
        assert (ROOT / ACTION["inputs"][name]["default"]).is_file()


def test_artifacts_are_named_by_the_action() -> None:
    """Complaint 24: a name holds run, attempt and shard, so that none is taken already."""
    names = {
        name: step["with"]["name"] for name, step in STEPS if "upload-artifact" in used(step)
        and "history" not in step["with"]["name"]
    }  # fmt: skip
    assert names == {
        "tolcal.yml": "${{ steps.tolcal.outputs.records-artifact }}",
        "tolcal-ingest.yml": "${{ steps.tolcal.outputs.records-artifact }}",
        "tolcal-report.yml": "tolcal-report-${{ github.event.workflow_run.id }}-"
        "${{ github.run_id }}-${{ github.run_attempt }}",
    }
    outputs = set(ACTION["outputs"])
    for name, _ in JOBS:
        assert set(re.findall(r"outputs\.([\w-]+)", WORKFLOWS[name].read_text())) <= outputs
