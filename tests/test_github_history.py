"""The history as artifacts: who may write it, what is read, and that nothing is ever lost."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from github_support import Hub, client, hub
from ingest_support import INGEST, Flow, with_run
from tests_support import make_record, make_run

from tolcal import history
from tolcal.github import artifacts, carried
from tolcal.github.carried import MEMBER, NAME, Lost
from tolcal.history import columns, parquet
from tolcal.model import TolcalError

__all__ = ["hub"]  # the fixture


@pytest.fixture
def flow(hub: Hub, tmp_path: Path) -> Flow:
    """A repository that has ingested nothing yet."""
    hub.repository()
    return Flow(hub, tmp_path)


def error(flow: Flow, kind: type[TolcalError] = TolcalError) -> str:
    """Why the history can't be read, less the numbers of runs."""
    with pytest.raises(kind) as caught:
        flow.read()
    text = str(caught.value)
    for number in flow.hub.main.runs:
        text = text.replace(str(number), "N")
    return text


# --- one ingest after the other -------------------------------------------------------------


def test_a_first_pull_request_has_no_history(flow: Flow) -> None:
    """No ingest workflow, or one that never succeeded: empty, and no error."""
    found = flow.read()
    assert len(found.table) == 0
    assert found.notes == ("no history yet: no ingest has succeeded in this repository",)
    flow.hub.workflow_run(INGEST, event="push", conclusion="failure")
    flow.hub.workflow_run(INGEST, event="pull_request", pull=flow.hub.pull(files={"a": "b"}))
    assert flow.read() == found


def test_ingests_add_up(flow: Flow) -> None:
    """Complaint 6: the history is the union of all that was ingested, each record once."""
    for seeds in ((1, 2), (3,), (4, 5, 6), (7,), (8,)):
        flow.push(*seeds)
    assert flow.seeds() == [1, 2, 3, 4, 5, 6, 7, 8]
    found = flow.read()
    assert set(found.table["origin"].to_pylist()) == {"ingest"}
    assert found.notes == ()
    assert history.content_digest(history.to_frame(found.table)) == (
        history.content_digest(history.to_frame(flow.read().table))
    )


def test_a_part_is_a_file_of_its_own(flow: Flow, tmp_path: Path) -> None:
    """What was uploaded can be downloaded and read with the commands for files."""
    made = flow.push(1, 2)
    assert made is not None
    (tmp_path / "h.parquet").write_bytes(
        artifacts.member(made.content, MEMBER, carried.MAX_BYTES, "it")
    )
    assert history.verify([tmp_path / "h.parquet"]) == [
        f"{tmp_path / 'h.parquet'}: 2 records of 1 runs in 1 shard(s): good"
    ]


def test_artifacts_are_immutable(flow: Flow) -> None:
    """Complaint 4: every ingest is an artifact of its own; none is a cache that stays old."""
    first = flow.push(1)
    second = flow.push(2)
    assert first is not None
    assert second is not None
    assert first.id != second.id
    assert {first.name, second.name} == {NAME}
    assert flow.seeds() == [1, 2]


def test_racing_ingests_lose_nothing(flow: Flow) -> None:
    """Complaint 5: two that read the same history each upload a part; the union has both."""
    flow.push(1, 2, 3)
    runs = [flow.run(), flow.run()]
    outputs = []
    for number, run in enumerate(runs):
        flow.measure(run, [10 + number])
        flow.inputs = msgspec.structs.replace(flow.inputs, out=flow.folder / f"out{number}")
        flow.ingest(run)
        outputs.append(flow.outputs)
    for run, made in reversed(list(zip(runs, outputs, strict=True))):
        flow.outputs = made
        flow.upload(run)
    assert flow.seeds() == [1, 2, 3, 10, 11]
    flow.push(12)
    assert flow.seeds() == [1, 2, 3, 10, 11, 12]
    flow.push(13, 14, 15, 16, 17, 18)
    assert flow.seeds() == [1, 2, 3, *range(10, 19)]
    assert flow.read().shards == 1


def test_a_report_makes_few_calls(flow: Flow) -> None:
    """GITHUB_TOKEN has 1,000 calls an hour: one listing, one run checked, one call a part."""
    for number in range(12):
        flow.push(number)
    before = len(flow.hub.calls)
    found = flow.read()
    assert len(found.table) == 12
    assert found.shards <= 4
    assert len(flow.hub.calls) - before == 4 + found.shards


# --- expiry and loss ------------------------------------------------------------------------

REMEDY = (
    "start the ingest workflow by hand with `accept-loss` to go on with {}, and keep the history "
    "on a branch (`history: branch`), which never expires"
)


def test_runs_without_an_artifact_do_not_hide_it(flow: Flow) -> None:
    """Complaint 1: artifacts are searched, not runs, of which many carry none."""
    flow.push(1)
    for _ in range(3):
        flow.hub.workflow_run(INGEST, event="push", conclusion="success")
    assert flow.seeds() == [1]


def test_the_schedule_carries_it_forward(flow: Flow) -> None:
    """Complaint 1: half a year of nothing but the weekly schedule loses no record."""
    flow.push(1, 2, 3, 4)
    flow.push(5)
    for _ in range(26):
        flow.later(7)
        flow.push(event="schedule")
    assert flow.seeds() == [1, 2, 3, 4, 5]
    # A part is uploaded anew only when less than 30 of its 90 days are left.
    named = [a for a in flow.hub.main.artifacts.values() if a.name == NAME]
    assert 2 < len(named) <= 2 + 2 * 182 // 60


def test_a_short_retention(flow: Flow) -> None:
    """A repository that keeps artifacts for 14 days needs no more than its weekly schedule."""
    flow.push(1, days=14)
    for _ in range(10):
        flow.later(7)
        flow.push(event="schedule", days=14)
    assert flow.seeds() == [1]


@pytest.mark.parametrize("how", ["expired", "deleted"])
def test_a_lost_history_is_an_error(flow: Flow, how: str) -> None:
    """Complaint 1: once there was one, so none is no beginning; the remedy is said, and works."""
    flow.push(1, 2)
    if how == "expired":
        flow.later(91)
    else:
        flow.hub.main.artifacts.clear()
    what = "every artifact of it has expired" if how == "expired" else "no artifact of it is left"
    assert error(flow, Lost) == (
        f"the history is lost: run N ingested records, and {what}; {REMEDY.format('an empty one')}"
    )
    run = flow.run("workflow_dispatch")
    flow.measure(run, [3])
    with pytest.raises(Lost):
        flow.ingest(run, "workflow_dispatch")
    assert flow.ingest(run, "workflow_dispatch", accept_loss=True) == 0
    flow.upload(run)
    assert flow.said[0].endswith("that was accepted")
    assert flow.seeds() == [3]
    assert flow.read().notes == ()


def test_an_empty_first_ingest_leaves_a_trace(flow: Flow) -> None:
    """A schedule before anything was measured is no lost history later on."""
    flow.push(event="schedule")
    assert flow.seeds() == []
    assert flow.read().notes == ()
    flow.push(1)
    assert flow.seeds() == [1]


@pytest.mark.parametrize("how", ["expired", "deleted", "410"])
def test_a_lost_part_is_an_error(flow: Flow, how: str) -> None:
    """Complaint 6: a part that the newest artifact names and that can't be read is missed."""
    big = flow.push(1, 2, 3)
    flow.push(4)
    assert big is not None
    assert flow.read().shards == 2
    if how == "expired":
        big.expired = True
    elif how == "deleted":
        del flow.hub.main.artifacts[big.id]
    else:
        flow.hub.fail(f"GET actions/artifacts/{big.id}/zip", status=410, times=9)
    assert error(flow, Lost) == (
        "the history lost 3 records: artifact tolcal-history of run N has expired or was deleted; "
        + REMEDY.format("the 1 record left")
    )
    run = flow.run("workflow_dispatch")
    with pytest.raises(Lost):
        flow.ingest(run, "workflow_dispatch")
    assert flow.ingest(run, "workflow_dispatch", accept_loss=True) == 0
    flow.upload(run)
    assert flow.seeds() == [4]
    assert flow.read().notes == ()


@pytest.mark.parametrize("how", ["expired", "410", "404"])
def test_the_next_is_read_when_the_newest_is_gone(flow: Flow, how: str) -> None:
    """Complaint 2: expired is skipped and reported, 410 leads to the next artifact."""
    flow.push(1)
    newest = flow.push(2)
    assert newest is not None
    if how == "expired":
        newest.expired = True
    else:
        flow.hub.fail(f"GET actions/artifacts/{newest.id}/zip", status=int(how), times=9)
    found = flow.read()
    assert found.table["seed"].to_pylist() == [1]
    (run,) = (a.run.id for a in (newest,) if a.run)
    assert found.notes == (
        f"1 artifact of the history skipped, since expired or deleted (run {run})",
    )


def test_a_newest_that_comes_back(flow: Flow) -> None:
    """Complaint 2: a 410 that passes costs nothing: no later part covers what it did not read."""
    flow.push(1)
    newest = flow.push(2)
    assert newest is not None
    flow.hub.fail(f"GET actions/artifacts/{newest.id}/zip", status=410, times=1)
    flow.push(3)
    assert flow.seeds() == [1, 2, 3]


def test_the_newest_comes_first(flow: Flow) -> None:
    """Complaint 2: by created_at, in whatever order GitHub lists those of a page."""
    made = [flow.push(number) for number in (1, 2, 3)]
    newest = made[-1]
    assert newest is not None
    (found,) = artifacts.named(client(flow.hub, flow.clock), NAME)
    assert [a.id for a in found] == sorted((a.id for a in found), reverse=True)
    newest.created -= 10**6
    (found,) = artifacts.named(client(flow.hub, flow.clock), NAME)
    assert found[-1].id == newest.id
    assert flow.seeds() == [1, 2, 3]


def test_years_of_artifacts_are_not_listed(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without a part that is news is the last that is asked for; old parts are found."""
    monkeypatch.setattr(artifacts, "PAGE", 2)
    flow.push(*range(100))
    for number in range(4):
        flow.push(200 + number)
    before = len(flow.hub.calls)
    assert flow.seeds() == [*range(100), 200, 201, 202, 203]
    listed = [path for _, path, _ in flow.hub.calls[before:]]
    by_id = [path for path in listed if path.startswith("actions/artifacts/") and path[-1] != "p"]
    assert len(by_id) == 1
    flow.push(*range(300, 310))
    flow.push(400)
    assert flow.seeds() == [*range(100), 200, 201, 202, 203, *range(300, 310), 400]


def test_a_part_that_another_took_in(flow: Flow) -> None:
    """Complaint 5: of two racing parts one took an older in, the other names it: it may go."""
    old = flow.push(1, 2, 3)
    runs = [flow.run(), flow.run()]
    outputs = []
    for number, (run, seeds) in enumerate(zip(runs, ([10], [20, 21, 22]), strict=True)):
        flow.measure(run, seeds)
        flow.inputs = msgspec.structs.replace(flow.inputs, out=flow.folder / f"out{number}")
        flow.ingest(run)
        outputs.append(flow.outputs)
    for run, made in zip(runs, outputs, strict=True):
        flow.outputs = made
        flow.upload(run)
    assert old is not None
    assert flow.seeds() == [1, 2, 3, 10, 20, 21, 22]
    del flow.hub.main.artifacts[old.id]
    assert flow.seeds() == [1, 2, 3, 10, 20, 21, 22]


def test_a_renamed_default_branch(flow: Flow) -> None:
    """What was ingested under the old name of the branch is missed, not silently begun anew."""
    flow.push(1, 2)
    git = flow.hub.main.git
    git.run("branch", "-m", "main", "trunk")
    flow.hub.main.default_branch = "trunk"
    assert error(flow, Lost).startswith(
        "the history is lost: run N ingested records, and the default branch had another name "
        "then; start the ingest workflow by hand with `accept-loss`"
    )


def test_a_hundred_and_one_artifacts(flow: Flow) -> None:
    """Complaint 3: the history stands behind 101 newer artifacts of its name, of a fork."""
    flow.push(1, 2)
    fork = flow.hub.fork("mallory")
    fork.commit("main", {"a": "b"})
    pull = flow.hub.pull("main", fork=fork, author="mallory")
    run = flow.hub.workflow_run(INGEST, event="push", pull=pull)
    for _ in range(101):
        flow.hub.artifact(run, NAME, b"no zip")
    before = len(flow.hub.calls)
    found = flow.read()
    assert found.table["seed"].to_pylist() == [1, 2]
    assert found.notes == (
        "101 artifacts named tolcal-history passed over, since not uploaded by ingest on the "
        "default branch: 101 elsewhere",
    )
    assert len(flow.hub.calls) - before == 6  # two pages, and none asks about the fork's run


# --- whose it is ----------------------------------------------------------------------------


def poisoned(flow: Flow) -> bytes:
    """A sound part with records that would widen every tolerance."""
    table = columns.from_records([make_record(seed=666, run=make_run(origin="ingest"))])
    sink = io.BytesIO()
    manifest = carried.Manifest(1, 1, "", 1, 1, (), (), tuple(flow.hub.main.artifacts))
    note = msgspec.json.encode(manifest)
    parquet.write_noted(sink, table, note)  # type: ignore[arg-type]
    return sink.getvalue()


def untrusted(flow: Flow, how: str) -> dict[str, Any]:
    """A run that must not write the history."""
    fork = flow.hub.fork("mallory")
    fork.commit("main", {"a": "b"})
    match how:
        case "fork":
            return {"head_repository": fork, "head_sha": fork.git.ref("refs/heads/main")}
        case "fork, on pull_request":
            pull = flow.hub.pull("main", fork=fork, author="mallory")
            return {"pull": pull, "event": "pull_request"}
        case "deleted fork":
            return {"head_repository": fork, "head_sha": fork.git.ref("refs/heads/main")}
        case "pull request of this repository":
            pull = flow.hub.pull("main2", files={"a": "b"}, author="mallory")
            return {"pull": pull, "event": "pull_request"}
        case "another branch":
            flow.hub.main.commit("evil", {"a": "b"})
            return {"head_branch": "evil"}
        case "another workflow":
            return {"path": ".github/workflows/tolcal.yml"}
        case "a workflow whose name ends alike":
            return {"path": ".github/workflows/x/tolcal-ingest.yml"}
        case "pull_request_target":
            return {"event": "pull_request_target"}
        case "issue_comment":
            return {"event": "issue_comment"}
    raise AssertionError(how)


@pytest.mark.parametrize(
    "how",
    [
        "fork", "fork, on pull_request", "deleted fork", "pull request of this repository",
        "another branch", "another workflow", "a workflow whose name ends alike",
        "pull_request_target", "issue_comment",
    ],
)  # fmt: skip
def test_an_artifact_of_others_is_no_history(flow: Flow, how: str) -> None:
    """Attack 1, complaint 8: by fork, branch, workflow or event, none becomes history."""
    flow.push(1, 2)
    made: dict[str, Any] = {"path": INGEST, "event": "push"} | untrusted(flow, how)
    run = flow.hub.workflow_run(**made)
    flow.hub.artifact(run, NAME, {MEMBER: poisoned(flow)})
    if how == "deleted fork":
        run.head_repository = None
    found = flow.read()
    assert sorted(found.table["seed"].to_pylist()) == [1, 2]
    assert found.notes[0].startswith("1 artifact named tolcal-history passed over, since not ")
    flow.push(3)
    assert flow.seeds() == [1, 2, 3]


def test_only_poison_is_no_history(flow: Flow) -> None:
    """Attack 1: a fork's artifact in a repository that has ingested nothing is passed over."""
    run = flow.hub.workflow_run(INGEST, **untrusted(flow, "fork"), event="push")
    flow.hub.artifact(run, NAME, {MEMBER: poisoned(flow)})
    assert len(flow.read().table) == 0


def test_a_tag_named_as_the_branch(flow: Flow) -> None:
    """Attack 1: a pushed tag `main` gives a run of "branch" main; its commit is on no main."""
    flow.push(1, 2)
    sha = flow.hub.main.commit("evil", {INGEST: "on: push"})
    run = flow.hub.workflow_run(INGEST, event="push", head_branch="main", head_sha=sha)
    flow.hub.artifact(run, NAME, {MEMBER: poisoned(flow)})
    assert error(flow) == (
        f"artifact tolcal-history of run N is refused: commit {sha[:12]} is not on main: the "
        "branch was rewritten, or a tag has its name; delete the artifact, or bring the commit "
        "back"
    )


def test_a_history_outlives_later_commits(flow: Flow) -> None:
    """The commit that was ingested needs to be on the branch, not to be its tip."""
    flow.push(1)
    flow.hub.main.commit("main", {"a": "b"})
    flow.hub.main.commit("main", {"a": "c"})
    assert flow.seeds() == [1]


def test_its_own_earlier_pushes_are_no_baseline(flow: Flow) -> None:
    """Complaint 8, attack 4: what a pull request measured never is part of the history."""
    flow.push(1)
    pull = flow.hub.pull(files={"a": "b"})
    for seed in (5, 6):
        run = flow.hub.workflow_run(pull=pull)
        flow.measure(run, [with_run(make_record(seed=seed), origin="ingest")])
        flow.hub.push(pull, {"a": str(seed)})
    assert flow.seeds() == [1]


# --- hostile parts --------------------------------------------------------------------------


def plain(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def noted(table: pa.Table, note: bytes) -> bytes:
    return plain(table.replace_schema_metadata({b"tolcal": note}))


MANIFEST = carried.Manifest(1, 1, "", 1, 1, (), (), ())
TABLE = columns.from_records([make_record()])
SOUND = msgspec.json.encode(MANIFEST)
UNREADABLE = "refused: artifact tolcal-history of run N: "
HOSTILE: dict[str, tuple[bytes, str]] = {
    "no Parquet": (b"PAR1", f"{UNREADABLE}unreadable or truncated Parquet ("),
    "a pickle": (pickle.dumps([1]), f"{UNREADABLE}unreadable or truncated Parquet ("),
    "cut": (noted(TABLE, SOUND)[:-20], f"{UNREADABLE}unreadable or truncated Parquet ("),
    "no manifest": (plain(TABLE),
                    f"{UNREADABLE}no manifest in it: not written by `tolcal github ingest`"),
    "no JSON": (noted(TABLE, b"{"), "artifact tolcal-history of run N is refused: its manifest: "
                "Input data was truncated"),
    "unknown key": (noted(TABLE, SOUND[:-1] + b',"x":1}'),
                    "artifact tolcal-history of run N is refused: its manifest: Object contains "
                    "unknown field `x`"),
    "another schema": (noted(TABLE, SOUND.replace(b'"schema":1', b'"schema":2')),
                       "artifact tolcal-history of run N is refused: its manifest: Invalid enum "
                       "value 2 - at `$.schema`"),
    "negative rows": (noted(TABLE, SOUND.replace(b'"rows":1', b'"rows":-1')),
                      "artifact tolcal-history of run N is refused: its manifest: Expected `int` "
                      ">= 0 - at `$.rows`"),
    "other rows": (noted(TABLE, SOUND.replace(b'"rows":1', b'"rows":2')),
                   "artifact tolcal-history of run N is refused: it says 2 records and has 1"),
    "a column less": (noted(TABLE.drop_columns(["kernel"]), SOUND),
                      f"{UNREADABLE}no column 'kernel' (1 of "),
    "an odd origin": (noted(TABLE.set_column(
        TABLE.schema.get_field_index("origin"), "origin", pa.array(["@everyone"])), SOUND),
        f"{UNREADABLE}a record with origin '@everyone'"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_part_that_is_not_sound(flow: Flow, what: str) -> None:
    """Attack 3: even an artifact of ingest is checked, and refused as a whole, never skipped."""
    flow.push(1)
    data, says = HOSTILE[what]
    flow.hub.artifact(flow.run(), NAME, {MEMBER: data})
    text = error(flow, artifacts.Rejected)
    assert text.startswith(says)
    assert text.isprintable()


def test_a_part_of_too_many_rows(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack 2: rows are counted by Parquet's own words before they are unpacked."""
    monkeypatch.setattr(parquet.read_noted, "__defaults__", (2,))
    flow.push(1, 2)
    assert flow.seeds() == [1, 2]
    flow.push(3, 4, 5)
    assert "over the limit of 2 records: it says 5" in error(flow, artifacts.Rejected)


def test_a_part_that_is_too_large(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack 2: the size that GitHub lists is capped before the download."""
    made = flow.push(1)
    assert made is not None
    made.size = 2**40
    text = error(flow, artifacts.Rejected)
    assert text.startswith("artifact tolcal-history of run N is refused: 1099511627776 bytes, ")


def test_a_part_that_was_exchanged(flow: Flow) -> None:
    """A part must be what the later one says it is, byte by byte."""
    big = flow.push(1, 2, 3)
    other = flow.push(4)
    assert big is not None
    assert other is not None
    big.content = flow.hub.main.artifacts[other.id].content
    assert error(flow, artifacts.Rejected) == (
        "artifact tolcal-history of run N is refused: its content is not what a later one says "
        "of it"
    )


def test_a_shrink_is_refused(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complaint 6: were a part to be forgotten by mistake, nothing is written."""
    flow.push(1, 2, 3)
    monkeypatch.setattr(carried, "_divided", lambda past, fresh, now: ([], []))
    run = flow.run()
    flow.measure(run, [4])
    with pytest.raises(TolcalError, match="would lack 3 records of those there are; nothing was"):
        flow.ingest(run)
    assert not list(flow.folder.glob("out/history-upload/*.parquet"))[1:]
