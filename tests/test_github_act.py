"""The workflows from end to end, as users copy them: act, and the REST API on loopback.

act enforces neither ``permissions:`` nor ``concurrency:`` (tests/test_github_workflows.py reads
them), checks out by copying, and knows no fork rules; nothing here has run on github.com.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli
from act_support import Act, copy_workflows
from github_server.state import Run
from github_world import World
from pyarrow import parquet
from test_precommit import git, start
from tests_support import DATA, ROOT

from tolcal import history

SETTINGS = """\
[tool.tolcal]
device = "cpu"
cases = { gate = 2, explore = 2 }
"""


OP = (DATA / "sample_repo/corpus/row_softmax/op.toml").read_text().replace(
    '["float32"]', '["float32", "float16"]'
)  # fmt: skip


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
    (repository / "corpus" / "row_softmax" / "op.toml").write_text(OP)
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


@pytest.fixture
def world(tmp_path: Path, act: Act) -> Iterator[World]:
    """A repository on GitHub without any history."""
    made = World(tmp_path / "world", act, {"pyproject.toml": SETTINGS})
    yield made
    made.hub.close()


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory, act: Act) -> Iterator[World]:
    """One with enough history for both dtypes, where float32 has an approved tolerance."""
    folder = tmp_path_factory.mktemp("trusted")
    made = World(
        folder / "world", act, {"pyproject.toml": SETTINGS, "corpus/row_softmax/op.toml": OP}
    )
    made.hub.user("mia", "maintain")
    for _ in range(3):  # by hand, as README says: enough for a start
        run = made.ingest(cases="240")
    made.hub.main.commit("main", {"tolerances.toml": calibrated(made, run, folder)}, "float32")
    yield made
    made.hub.close()


def calibrated(world: World, run: Run, folder: Path) -> str:
    """tolerances.toml with the float32 cell of what that run has ingested."""
    (folder / "history.parquet").write_bytes(uploaded(world, run))
    for line in (
        "calibrate --history history.parquet --tolerances none.toml --json p.json",
        "approve p.json row_softmax/float32 --by mia --tolerances tolerances.toml",
    ):
        subprocess.run(
            [sys.executable, "-m", "tolcal", *line.split()], cwd=folder, check=True,
            capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    return (folder / "tolerances.toml").read_text()


def content(world: World, commit: str, path: str) -> str:
    """A file of a commit, in the repository on GitHub."""
    entry = world.hub.main.git.entry(commit, path)
    assert entry is not None
    return world.hub.main.git.blob(entry[2]).decode()


def seeds_of(data: bytes) -> set[int]:
    """Seeds of the runs in a Parquet file."""
    return set(parquet.read_table(io.BytesIO(data), columns=["run_seed"])[0].to_pylist())


def uploaded(world: World, run: Run) -> bytes:
    """The history that an ingest has uploaded."""
    (found,) = (
        one for one in world.hub.main.artifacts.values()
        if one.run is run and one.name == "tolcal-history"
    )  # fmt: skip
    with zipfile.ZipFile(io.BytesIO(found.content)) as archive:
        return archive.read("history.parquet")


def test_the_first_pull_request_ever(world: World) -> None:
    """No history, then a second push: one comment, a check on each head, nothing is judged yet."""
    hub = world.hub
    pull = hub.pull(files={"README.md": "hello"})
    first = pull.head_sha
    run = world.begin(pull)
    world.report(run, "requested")
    assert world.check(first) == ("in_progress", None)
    assert world.comments(pull) == []
    world.report(world.measure(pull, run))
    (comment,) = world.comments(pull)
    assert comment.startswith(f"<!-- tolcal:v1 head={first} run={run.id} attempt=1 -->\n")
    assert "1 result without an approved tolerance" in comment
    assert world.check(first) == ("completed", "neutral")
    hub.push(pull, {"README.md": "more"})
    second = world.measure(pull)
    world.report(second)
    (comment,) = world.comments(pull)
    assert f" head={pull.head_sha} run={second.id} " in comment.splitlines()[0]
    assert world.check(pull.head_sha) == ("completed", "neutral")
    assert pull.head_sha != first


def test_ingest_keeps_what_there_was(world: World) -> None:
    """Two merges are measured; the second upload holds or names the records of both."""
    hub = world.hub
    first = world.ingest()
    assert "8 of them new to the history, which has 8" in world.log
    hub.main.commit("main", {"README.md": "more"}, "more")
    second = world.ingest()
    assert "8 of them new to the history, which has 16" in world.log
    assert seeds_of(uploaded(world, first)) == {first.id}
    assert seeds_of(uploaded(world, second)) == {first.id, second.id}


def test_a_fork(trusted: World) -> None:
    """Complaint 9, 11: measured with a token that reads, commented by the report."""
    hub = trusted.hub
    pull = hub.pull("topic", author="carol", fork=hub.fork("carol"), files={"README.md": "hi"})
    trusted.report(trusted.measure(pull))
    (comment,) = trusted.comments(pull)
    assert trusted.check(pull.head_sha) == ("completed", "success")
    assert comment.startswith(
        "### tolcal: no regressions.\n1 new tolerance", comment.index("\n") + 1
    )


def test_a_control_that_breaks(trusted: World) -> None:
    """The check fails and the comment says why; the report's own run stays green."""
    hub = trusted.hub
    name = "corpus/row_softmax/kernels/row_softmax_torch.py"
    text = content(trusted, "main", name)
    broken = text.replace(
        "return e / e.sum(-1, keepdim=True)", "return 1.001 * e / e.sum(-1, keepdim=True)"
    )
    assert broken != text
    pull = hub.pull("broken", author="alice", files={name: broken})
    trusted.report(trusted.measure(pull))
    (comment,) = trusted.comments(pull)
    assert trusted.check(pull.head_sha) == ("completed", "failure")
    assert comment.splitlines()[1].startswith("### tolcal: blocked by 1 regression")
    assert "`row_softmax_torch`, `row_softmax/float32`: 4 of 4 cases" in comment


def test_approving(trusted: World) -> None:
    """The line that the comment shows, as a comment: a commit, a reply, a refreshed check."""
    hub = trusted.hub
    pull = hub.pull("docs", author="alice", files={"README.md": "words"})
    trusted.report(trusted.measure(pull))
    (comment,) = trusted.comments(pull)
    (line,) = re.findall("^(/tolcal approve [0-9a-f]{16})$", comment, re.MULTILINE)
    before = pull.head_sha
    trusted.command(hub.comment(pull, "mia", line), pull)
    assert pull.head_sha != before
    text = content(trusted, pull.head_sha, "tolerances.toml")
    assert text.startswith(content(trusted, before, "tolerances.toml").rstrip())
    cell = tomli.loads(text)["row_softmax"]["float16"]
    assert (cell["approved"]["by"], cell["approved"]["pr"]) == ("mia", pull.number)
    assert line.endswith(cell["approved"]["digest"])
    refreshed, reply = trusted.comments(pull)
    assert f" head={pull.head_sha} " in refreshed.splitlines()[0]
    assert refreshed.splitlines()[1].startswith("**tolcal: no regressions, nothing to decide.**")
    assert "Approved for `mia`: 1 cell (`row_softmax/float16`)" in reply
    assert trusted.check(pull.head_sha) == ("completed", "success")
