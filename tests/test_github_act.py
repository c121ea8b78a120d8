"""The workflows from end to end, as users copy them: act, and the REST API on loopback.

act enforces neither ``permissions:`` nor ``concurrency:`` (tests/test_github_workflows.py reads
them), checks out by copying, and knows no fork rules; nothing here has run on github.com.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from act_support import Act, copy_workflows
from test_precommit import git, start
from tests_support import DATA

from tolcal import history

SETTINGS = """\
[tool.tolcal]
device = "cpu"
cases = { gate = 2, explore = 2 }
"""


@pytest.fixture(scope="module")
def act(tmp_path_factory: pytest.TempPathFactory) -> Act:
    """One action, one wheelhouse; no package index anywhere."""
    return Act(tmp_path_factory.mktemp("act"))


@pytest.fixture
def repository(tmp_path: Path, act: Act) -> Path:
    """A user's repository: one op in plain torch, and the four workflow files."""
    folder = tmp_path / "repository"
    shutil.copytree(DATA / "sample_repo", folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pyproject.toml").write_text(SETTINGS)
    copy_workflows(folder, act.wheels)
    start(folder)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    return folder


def pull_request(head: int = 1) -> dict[str, Any]:
    """What the measuring workflow reads of the event; act needs the number at the top too."""
    return {
        "number": 7,
        "pull_request": {
            "number": 7,
            "head": {"ref": "topic", "repo": {"id": head}},
            "base": {"ref": "main", "repo": {"id": 1}},
        },
        "repository": {"id": 1, "default_branch": "main"},
    }


def test_measuring_in_two_shards(act: Act, repository: Path, tmp_path: Path) -> None:
    """Installed without an index, measured in two parts, uploaded under names of their own."""
    workflow = repository / ".github" / "workflows" / "tolcal.yml"
    workflow.write_text(workflow.read_text().replace('["1/1"]', '["1/2", "2/2"]'))
    contract = repository / "corpus" / "row_softmax" / "op.toml"
    contract.write_text(contract.read_text().replace('["float32"]', '["float32", "float16"]'))
    assert act(repository, "tolcal.yml", "pull_request", pull_request()) == 0, act.log
    artifacts = act.taken()
    assert {name: list(files) for name, files in artifacts.items()} == {
        f"tolcal-records-1-1-{i}of2": ["records.jsonl.gz"] for i in (1, 2)
    }
    paths = []
    for name, files in artifacts.items():
        paths.append(tmp_path / f"{name}.jsonl.gz")
        paths[-1].write_bytes(files["records.jsonl.gz"])
    records = history.read(paths)
    assert len(records) == 16
    assert len(set(records["run_id"])) == 1
    assert set(records["run_seed"]) == {1}
    assert set(records["dtype"]) == {"float32", "float16"}
