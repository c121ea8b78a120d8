"""The history on a branch: compare-and-swap pushes, rewinds noticed, any records kept."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from github_support import Hub, client, hub
from ingest_support import Flow

from tolcal import history
from tolcal.github import branches
from tolcal.github.branches import Rewound
from tolcal.github.client import Forbidden, Unavailable
from tolcal.model import TolcalError

__all__ = ["hub"]  # the fixture

BRANCH = "tolcal-history"
MARK = f"refs/tolcal/{BRANCH}"


@pytest.fixture
def flow(hub: Hub, tmp_path: Path) -> Flow:
    """A repository that keeps its history on a branch, of which there is none yet."""
    hub.repository()
    return Flow(hub, tmp_path, "branch")


def tip(flow: Flow, ref: str = f"refs/heads/{BRANCH}") -> str:
    found = flow.hub.main.git.ref(ref)
    assert found
    return found


def files(flow: Flow) -> list[str]:
    return sorted(flow.hub.main.git.tree(tip(flow)))


def shards(flow: Flow) -> list[str]:
    return [name for name in files(flow) if name.endswith(".parquet")]


def run_of(flow: Flow, *seeds: int) -> Any:
    """A run that has measured and not ingested."""
    run = flow.run()
    flow.measure(run, seeds)
    return run


def why(flow: Flow, kind: type[TolcalError] = TolcalError) -> str:
    with pytest.raises(kind) as caught:
        flow.read()
    return str(caught.value)


# --- one ingest after the other -------------------------------------------------------------


def test_a_branch_of_its_own(flow: Flow) -> None:
    """The first ingest makes an orphan branch; later ones are commits on top of it."""
    assert flow.read().notes == (f"no history yet: branch {BRANCH}",)
    flow.push(1, 2)
    git = flow.hub.main.git
    assert git.read(tip(flow)).parents == ()
    first = tip(flow)
    flow.push(3)
    assert git.read(tip(flow)).parents == (first,)
    run = sorted(flow.hub.main.runs)[-1]
    sha = git.ref("refs/heads/main")
    assert git.read(tip(flow)).message == f"Records of run {run}\n\nMeasured at {sha}.\n"
    assert flow.seeds() == [1, 2, 3]
    assert flow.outputs == {}
    assert tip(flow, MARK) == tip(flow)


def test_a_checkout_is_a_history_folder(flow: Flow, tmp_path: Path) -> None:
    """What git checks out of the branch is what every command takes for a history."""
    for seeds in ((1, 2, 3), (4,), (5,)):
        flow.push(*seeds)
    folder = tmp_path / "checkout"
    clone = [
        "git",
        "clone",
        "--quiet",
        "--branch",
        BRANCH,
        str(flow.hub.main.git.path),
        str(folder),
    ]
    subprocess.run(clone, check=True, capture_output=True)
    assert history.verify([folder])[0].startswith(f"{folder}: 5 records of 3 runs in ")
    assert sorted(history.read_table([folder])["seed"].to_pylist()) == flow.seeds()


def test_small_files_are_put_together(flow: Flow) -> None:
    """Complaint 7: few files, whole ones are never pushed again, and none lost its line."""
    for number in range(4):
        flow.push(number)
    assert flow.seeds() == [0, 1, 2, 3]
    assert len(shards(flow)) <= 2
    flow.push(*range(10, 30))
    (large,) = shards(flow)
    flow.push(50)
    flow.push(51)
    assert large in shards(flow)
    assert len(shards(flow)) == 2
    assert flow.seeds() == [0, 1, 2, 3, *range(10, 30), 50, 51]


def test_many_records_become_files_of_a_size(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is no larger than the API takes, however many records a run has."""
    monkeypatch.setattr(branches, "SLICE", 4)
    monkeypatch.setattr(branches, "MAX_ROWS", 8)
    flow.push(*range(10))
    assert len(shards(flow)) == 3
    flow.push(*range(10, 20))
    assert len(shards(flow)) == 6
    assert flow.seeds() == list(range(20))
    monkeypatch.setattr(branches, "MAX_FILE", 1000)
    with pytest.raises(TolcalError, match=r"would be of \d+ bytes, 1000 are allowed"):
        flow.push(20)


def test_a_rerun_pushes_nothing(flow: Flow) -> None:
    """Idempotent: the same run, measured again, has no record that is not there."""
    run = run_of(flow, 1, 2)
    assert flow.ingest(run) == 0
    before = tip(flow)
    run.attempt = 2
    flow.measure(run, [1, 2])
    assert flow.ingest(run) == 0
    assert tip(flow) == before
    flow.push(event="schedule")
    assert tip(flow) == before


def test_another_name(flow: Flow) -> None:
    """The branch's name is an input, slashes and all."""
    flow.inputs = msgspec.structs.replace(flow.inputs, history_branch="bench/tolcal+history")
    flow.push(1)
    flow.push(2)
    assert flow.seeds() == [1, 2]
    assert flow.hub.main.git.ref("refs/tolcal/bench/tolcal+history")


def test_on_an_enterprise_server(tmp_path: Path) -> None:
    """Complaint 16: below /api/v3, where there is no upload-artifact, all is the same."""
    hub = Hub(tmp_path / "hub", base_path="/api/v3")
    try:
        hub.repository()
        flow = Flow(hub, tmp_path, "branch")
        flow.push(1)
        flow.push(2)
        assert flow.seeds() == [1, 2]
    finally:
        hub.close()


def test_other_files_on_it(flow: Flow) -> None:
    """What people put beside the shards does no harm, and is no history."""
    flow.push(1)
    flow.hub.main.commit(BRANCH, {"notes.txt": "hello", "sub/0123456789abcdef.parquet": b"x"})
    assert flow.seeds() == [1]
    flow.push(2)
    assert flow.seeds() == [1, 2]


# --- races ----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["POST git/refs", "POST git/commits", "POST git/blobs"])
def test_two_begin_at_once(flow: Flow, call: str) -> None:
    """Complaint 5: both find no branch; the slower one reads again and adds to the faster's."""
    other = run_of(flow, 2)
    flow.hub.on(call, lambda: flow.ingest(other))
    assert flow.ingest(run_of(flow, 1)) == 0
    assert flow.seeds() == [1, 2]
    assert tip(flow, MARK) == tip(flow)


@pytest.mark.parametrize(
    ("call", "after"),
    [
        ("GET git/ref/*", 0), ("GET git/ref/*", 1), ("GET git/trees/*", 0), ("POST git/trees", 0),
        ("PATCH git/refs/heads*", 0), ("PATCH git/refs/tolcal*", 0),
    ],
)  # fmt: skip
def test_two_push_at_once(flow: Flow, call: str, after: int) -> None:
    """Complaint 5: whichever moment another push comes at, both stand in the end."""
    flow.push(1, 2, 3)
    other = run_of(flow, 20)
    flow.hub.on(call, lambda: flow.ingest(other), after=after)
    assert flow.ingest(run_of(flow, 10)) == 0
    assert flow.seeds() == [1, 2, 3, 10, 20]
    flow.push(30)
    assert tip(flow, MARK) == tip(flow)


def test_pushes_without_end(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is overtaken every time gives up with an error, having overwritten nobody."""
    monkeypatch.setattr(branches, "ATTEMPTS", 3)
    flow.push(0)

    def overtake() -> None:
        flow.hub.main.commit(BRANCH, {"notes.txt": str(len(flow.hub.calls))})

    flow.hub.on("PATCH git/refs/heads*", overtake, times=99)
    with pytest.raises(TolcalError) as caught:
        flow.ingest(run_of(flow, 1))
    assert str(caught.value) == (
        f"branch {BRANCH}: others pushed to it 3 times in between; run the job again"
    )
    assert flow.seeds() == [0]


def test_a_lost_answer_of_the_push(flow: Flow) -> None:
    """The branch moved, and the answer did not arrive: it is looked up, nothing is added twice."""
    for number, call in enumerate(("POST git/refs", "PATCH git/refs/heads*")):
        flow.hub.fail(call, status="drop", effect=True)
        flow.push(number)
        assert len(flow.hub.main.git.log(BRANCH)) == number + 1
    assert flow.seeds() == [0, 1]


# --- rewinds and damage ---------------------------------------------------------------------


def rewind(flow: Flow) -> None:
    git = flow.hub.main.git
    git.update(f"refs/heads/{BRANCH}", git.read(tip(flow)).parents[0])


def delete(flow: Flow) -> None:
    flow.hub.main.git.run("update-ref", "-d", f"refs/heads/{BRANCH}")


def replace(flow: Flow) -> None:
    git = flow.hub.main.git
    writer = git.read(tip(flow)).author
    made = git.commit(git.make_tree(None, []), [], "anew", writer, writer)
    git.update(f"refs/heads/{BRANCH}", made)


def amend(flow: Flow) -> None:
    rewind(flow)
    flow.hub.main.commit(BRANCH, {"notes.txt": "x"})


@pytest.mark.parametrize(
    ("how", "word"),
    [(rewind, "rewound"), (delete, "deleted"), (replace, "replaced"), (amend, "diverged")],
)
def test_a_rewind_is_noticed(flow: Flow, tmp_path: Path, how: Any, word: str) -> None:
    """Complaint 6: a force-push that drops records is an error, and its remedy works as it is."""
    flow.push(1, 2, 3)
    flow.push(4)
    last = tip(flow)
    how(flow)
    text = why(flow, Rewound)
    remedy = f"git fetch origin {last} && git push --force origin {last}:refs/heads/{BRANCH}"
    assert text == (
        f"branch {BRANCH} was {word}: the history that ingest left is commit {last}; restore it "
        f"({remedy}), or, to give those records up, delete the ref {MARK}"
    )
    with pytest.raises(Rewound):
        flow.push(5)
    clone = tmp_path / "clone"
    git = flow.hub.main.git
    git.run("config", "uploadpack.allowAnySHA1InWant", "true")  # as GitHub has it
    subprocess.run(
        f"git clone -q {git.path.as_uri()} {clone} && cd {clone} && {remedy}",
        shell=True, check=True, capture_output=True,
    )  # fmt: skip
    assert flow.seeds() == [1, 2, 3, 4]
    flow.push(5)
    assert flow.seeds() == [1, 2, 3, 4, 5]


def test_giving_records_up(flow: Flow) -> None:
    """Without the ref that remembers, the branch as it is becomes the history."""
    flow.push(1, 2, 3)
    flow.push(4)
    rewind(flow)
    flow.hub.main.git.run("update-ref", "-d", MARK)
    assert flow.seeds() == [1, 2, 3]
    flow.push(5)
    assert flow.seeds() == [1, 2, 3, 5]


def test_a_server_without_such_refs(flow: Flow) -> None:
    """Where a rule keeps other refs off, rewinds go unnoticed and records are kept all the same."""
    flow.hub.fail("POST git/refs", status=403, after=1, times=9)
    flow.hub.fail("PATCH git/refs/tolcal*", status=403, times=9)
    flow.push(1)
    flow.push(2)
    assert flow.seeds() == [1, 2]
    assert flow.hub.main.git.ref(MARK) is None


def test_a_damaged_file(flow: Flow) -> None:
    """A shard that is not what its name says is an error that names it."""
    flow.push(1, 2)
    (name,) = shards(flow)
    flow.hub.main.commit(BRANCH, {name: b"PAR1"})
    assert f"{name}: damaged: its content hashes to " in why(flow)


def test_a_file_that_was_removed(flow: Flow) -> None:
    """Complaint 6: a shard that MANIFEST lists and the branch lacks is missed."""
    flow.push(1, 2)
    (name,) = shards(flow)
    flow.hub.main.commit(BRANCH, {name: None})
    assert f"{name}: missing, but " in why(flow)
    with pytest.raises(TolcalError, match="missing, but "):
        flow.push(3)


@pytest.mark.parametrize("body", [b'{"sha":"x"}', b'{"content":"AAAA"}', b'{"content":"%"}', b"{}"])
def test_an_answer_that_is_another_file(flow: Flow, body: bytes) -> None:
    """What GitHub sends for a file is checked against git's own hash of it."""
    flow.push(1)
    flow.hub.fail("GET git/blobs/*", status=200, body=body)
    assert f"branch {BRANCH}: GitHub's answer for " in why(flow)


def test_a_shrink_is_refused(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complaint 6: were records to be dropped on the way, nothing is pushed."""
    flow.push(1, 2, 3)
    before = tip(flow)

    def forget(folder: Path, added: Any) -> None:
        for path in folder.iterdir():
            path.unlink()
        history.add(folder, added)

    monkeypatch.setattr(branches, "_add", forget)
    with pytest.raises(TolcalError, match="would lack 3 records of those there are; nothing was"):
        flow.push(4)
    assert tip(flow) == before


# --- faults of GitHub -----------------------------------------------------------------------


def test_any_call_may_fail_once(flow: Flow) -> None:
    """Complaint 15: whichever call of an ingest fails once, all records are there in the end."""
    flow.push(0)
    statuses: tuple[Any, ...] = (500, 429, "drop")
    for number in range(100):
        run = run_of(flow, 100 + number)
        how = statuses[number % 3]
        fault = flow.hub.fail(status=how, after=number, effect=number % 2 == 0)
        assert flow.ingest(run) == 0
        flow.hub.faults.clear()
        if fault.times:  # there are no more calls than that
            break
    assert number > 12
    assert flow.seeds() == [0, *range(100, 101 + number)]
    assert tip(flow, MARK) == tip(flow)


def test_any_call_may_fail_for_good(flow: Flow) -> None:
    """Complaint 15: a call that keeps failing is an error, and the branch as good as before."""
    flow.push(1)
    before = len(flow.hub.calls)
    flow.push(2)
    made = [f"{method} {path}" for method, path, _ in flow.hub.calls[before:]]
    patterns = {call.rpartition("/")[0] + "/*" if call[-40:].isalnum() else call for call in made}
    calls = sorted(call for call in patterns if "actions" not in call)
    assert len(calls) > 8
    for number, call in enumerate(calls):
        run = run_of(flow, 100 + number)
        flow.hub.fail(call, status=502, times=99)
        with pytest.raises(Unavailable, match="502"):
            flow.ingest(run)
        flow.hub.faults.clear()
    # All failed before the branch moved, but for the one that marks where it moved to.
    marked = next(n for n, call in enumerate(calls) if call.startswith("PATCH git/refs/tolcal"))
    assert flow.seeds() == [1, 2, 100 + marked]
    flow.push(3)
    assert flow.seeds() == [1, 2, 3, 100 + marked]
    assert tip(flow, MARK) == tip(flow)


def test_permissions_that_it_needs(flow: Flow) -> None:
    """Ingest needs `contents: write` and `actions: read`; a report only reads."""
    flow.hub.grants = {"actions": "read", "contents": "write", "metadata": "read"}
    flow.push(1)
    flow.hub.grants = {"actions": "read", "contents": "read"}
    assert flow.seeds() == [1]
    with pytest.raises(Forbidden, match="`contents: write`"):
        flow.push(2)


def test_the_token_stays_in_its_header(flow: Flow) -> None:
    """Nothing that is sent, stored or said holds the token; git is not started at all."""
    flow.push(1)
    assert not [one for one in flow.hub.requests if flow.hub.token in repr((one.path, one.body))]
    assert flow.hub.token not in repr(client(flow.hub))
