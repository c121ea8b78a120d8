"""Ingest, the only writer of the trusted history: what may join it, and what a failure costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from github_support import Hub, client, hub
from ingest_support import Flow
from tests_support import ROOT, make_record, make_run, make_stats

from tolcal import history, tolerances
from tolcal.github import artifacts, ingest
from tolcal.github.carried import Lost
from tolcal.github.client import Forbidden, Unavailable
from tolcal.model import AllClose, Approved, TolcalError, Tolerance

__all__ = ["hub"]  # the fixture


@pytest.fixture
def flow(hub: Hub, tmp_path: Path) -> Flow:
    """A repository that has ingested nothing yet."""
    hub.repository()
    return Flow(hub, tmp_path)


def test_what_ingest_says(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    """Summary, log and outputs of a run that uploads, and of one that needs not."""
    flow.push(1, 2, 3)
    flow.push(4)
    folder = str(flow.folder / "out" / "history-upload")
    assert flow.outputs == {"history-artifact": "tolcal-history", "history-path": folder}
    run = sorted(flow.hub.main.runs)[-1]
    assert flow.said == [
        "- for upload: 1 record, 0 of them older; the rest is in 1 earlier artifact",
        f"- 1 record of run {run} read, 1 of them new to the history, which has 4",
    ]
    log = capsys.readouterr().err.splitlines()
    assert log[-2:] == [line.replace("- ", "tolcal: ", 1) for line in flow.said]
    assert flow.push(event="schedule") is None
    assert flow.outputs == {}
    assert flow.said == ["- no records in this run; the history has 4"]


def test_a_rerun_changes_nothing(flow: Flow) -> None:
    """Complaint 24: a second attempt uploads no second artifact, though it measured again."""
    run = flow.run()
    flow.measure(run, [1, 2])
    assert flow.ingest(run) == 0
    flow.upload(run)
    before = len(flow.hub.main.artifacts)
    run.attempt = 2
    flow.measure(run, [1, 2, 3])
    assert flow.ingest(run) == 0
    assert flow.outputs == {}
    assert flow.said[0] == (
        f"- run {run.id} uploaded its part in an earlier attempt, which stays as it is"
    )
    assert len(flow.hub.main.artifacts) == before + 1  # the records of the second attempt
    assert flow.seeds() == [1, 2]


def test_a_rerun_of_a_cut_run_goes_on(flow: Flow) -> None:
    """An attempt that ended before its upload has added nothing; the next one does."""
    run = flow.run()
    flow.measure(run, [1, 2])
    flow.ingest(run)
    run.attempt = 2
    assert flow.ingest(run) == 0
    flow.upload(run)
    assert flow.seeds() == [1, 2]


def test_accepting_a_loss_needs_a_hand(flow: Flow) -> None:
    """Only workflow_dispatch can say accept-loss, whatever another event's payload holds."""
    flow.push(1)
    flow.later(91)
    run = flow.run()
    flow.measure(run, [2])
    job = msgspec.structs.replace(flow.job(run), payload={"inputs": {"accept-loss": "true"}})
    with pytest.raises(Lost):
        ingest.run(client(flow.hub, flow.clock), flow.inputs, job, now=flow.now)


@pytest.mark.parametrize(
    ("event", "ref"),
    [
        ("pull_request", "refs/pull/41/merge"), ("pull_request_target", "refs/heads/main"),
        ("workflow_run", "refs/heads/main"), ("issue_comment", "refs/heads/main"),
        ("push", "refs/heads/feature"), ("push", "refs/tags/main"), ("push", "main"),
        ("workflow_dispatch", "refs/heads/feature"), ("push", ""),
    ],
)  # fmt: skip
def test_ingest_only_on_the_default_branch(flow: Flow, event: str, ref: str) -> None:
    """Attacks 4 and 5: no event of a pull request, no other branch, no tag may write."""
    run = flow.run()
    flow.measure(run, [1])
    job = msgspec.structs.replace(flow.job(run), event=event, ref=ref)
    with pytest.raises(TolcalError, match="it only runs on push, schedule, workflow_dispatch of "):
        ingest.run(client(flow.hub, flow.clock), flow.inputs, job, now=flow.now)
    assert not (flow.folder / "out").exists()


def test_the_event_says_the_default_branch(flow: Flow) -> None:
    """The event's repository is taken for it, and no call is made to ask."""
    run = flow.run()
    flow.measure(run, [1])
    payload = {"repository": {"id": flow.hub.main.id, "default_branch": "main"}}
    job = msgspec.structs.replace(flow.job(run), payload=payload)
    assert ingest.run(client(flow.hub, flow.clock), flow.inputs, job, now=flow.now) == 0
    assert ("GET", "", 200) not in flow.hub.calls


def test_ingest_of_a_push_needs_records(flow: Flow) -> None:
    """A push whose measuring job left nothing is an error, not an empty success."""
    with pytest.raises(artifacts.Unmeasured):
        flow.ingest(flow.run())


def test_ingest_needs_all_shards(flow: Flow) -> None:
    """Part of a run does not join."""
    run = flow.run()
    flow.hub.artifact(run, f"tolcal-records-{run.id}-1-1of2", {artifacts.RECORDS: b""})
    for event in ("push", "schedule"):
        with pytest.raises(artifacts.Missing, match="shard 2 of 2 of run"):
            flow.ingest(run, event)


def test_records_of_another_commit(flow: Flow) -> None:
    """What was not measured on the run's own commit is refused."""
    run = flow.run()
    flow.measure(run, [make_record(run=make_run(commit="d" * 40))])
    with pytest.raises(artifacts.Rejected, match="measured at commit dddddddddddd, and the run is"):
        flow.ingest(run)


def approve(flow: Flow, value: str | None = None) -> Tolerance:
    """An approved tolerance that lets residuals of 1e-6 pass."""
    tolerance = Tolerance(1e-6, 1.0, AllClose(1e-6, 1e-6), 1.0)
    digest = value or tolerance.value_digest
    approved = Approved("alice", "2026-05-01T00:00:00Z", "0" * 16, digest)
    tolerance = msgspec.structs.replace(tolerance, approved=approved)
    tolerances.write(Path(flow.inputs.tolerances), {("softmax", "float32"): tolerance})
    return tolerance


def test_a_merged_bug_stays_out(flow: Flow) -> None:
    """Attack 4: records of a changed control that exceeds stay out, loudly; the others join."""
    approve(flow)
    flow.push(1, 2)
    run = flow.run()
    sha = flow.hub.main.git.ref("refs/heads/main")
    own = make_run(commit=sha)
    bad = make_stats(2.0**-10)
    flow.measure(run, [
        make_record(run=own, seed=3, kernel_hash="bb", stats=bad),
        make_record(run=own, seed=4, kernel_hash="bb"),
        make_record(run=own, seed=5, kernel="softmax_other"),
        make_record(run=own, seed=6, kernel="softmax_buggy", role="buggy",
                    corrupts="softmax_triton", stats=bad),
    ])  # fmt: skip
    assert flow.ingest(run) == 1
    flow.upload(run)
    assert flow.seeds() == [1, 2, 5, 6]
    assert flow.said[-2:] == [
        f"- 4 records of run {run.id} read, 2 of them new to the history, which has 4",
        "- REGRESSION on the default branch: softmax_triton float32 exceeds its approved "
        "tolerance, so its records stay out of the history: fix it, or approve a wider tolerance "
        "first",
    ]


def test_a_tolerance_changed_by_hand(flow: Flow) -> None:
    """A limit that nobody approved judges no record."""
    approve(flow, value="0" * 16)
    run = flow.run()
    flow.measure(run, [1])
    with pytest.raises(TolcalError, match=r"\[softmax.float32\] was changed by hand since"):
        flow.ingest(run)


def test_a_folder_for_a_history(flow: Flow) -> None:
    """`history: PATH`: the same records into a folder, which a second attempt leaves as it is."""
    folder = flow.folder / "h"
    flow.inputs = msgspec.structs.replace(flow.inputs, history=str(folder))
    assert flow.read().notes == (f"no history yet: {folder}",)
    run = flow.run()
    flow.measure(run, [1, 2])
    assert flow.ingest(run) == 0
    assert flow.outputs == {}
    run.attempt = 2
    flow.measure(run, [1, 2])
    assert flow.ingest(run) == 0
    assert flow.seeds() == [1, 2]
    assert flow.read().shards == 1
    flow.inputs = msgspec.structs.replace(flow.inputs, history=str(flow.folder / "h.parquet"))
    with pytest.raises(TolcalError, match="records are added to a folder, and this names a file"):
        flow.ingest(run)


def test_the_command(flow: Flow) -> None:
    """`tolcal github ingest` as the action starts it: outputs, summary, log, exit status."""
    approve(flow)
    run = flow.run()
    sha = flow.hub.main.git.ref("refs/heads/main")
    record = make_record(run=make_run(commit=sha), stats=make_stats(2.0**-10))
    flow.measure(run, [record, make_record(run=record.run, kernel="softmax_other")])
    environment = flow.hub.environment("push", {}, run=run)
    command = [
        sys.executable, "-m", "tolcal", "github", "ingest", "--history", "artifact",
        "--tolerances", flow.inputs.tolerances, "--out", str(flow.inputs.out),
    ]  # fmt: skip

    def start(**changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=flow.folder, capture_output=True, text=True, timeout=120, check=False,
            env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **environment, **changes},
        )  # fmt: skip

    done = start()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("tolcal: REGRESSION on the default branch: ")
    upload = flow.inputs.out / "history-upload"
    assert Path(environment["GITHUB_OUTPUT"]).read_text() == (
        f"history-artifact=tolcal-history\nhistory-path={upload}\n"
    )
    assert "REGRESSION" in Path(environment["GITHUB_STEP_SUMMARY"]).read_text()
    assert len(history.read_table([upload / "history.parquet"])) == 1
    for how, says in (
        ({"GITHUB_EVENT_NAME": "pull_request"}, "tolcal: ingest was started by pull_request on "),
        ({"TOLCAL_TOKEN": "wrong"}, "tolcal: GET repository of octo/kernels at http://127.0.0.1:"),
    ):
        done = start(**how)
        assert done.returncode == 2
        assert done.stderr.startswith(says)
        assert len(done.stderr.splitlines()) == 1


# --- faults of GitHub -----------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 429, "drop", "short"])
def test_any_call_may_fail_once(flow: Flow, status: Any) -> None:
    """Complaint 15: whichever call fails once is repeated, and nothing is missing from it."""
    flow.push(1, 2, 3)
    flow.push(4)
    before = len(flow.hub.calls)
    assert flow.seeds() == [1, 2, 3, 4]
    for number in range(len(flow.hub.calls) - before):
        flow.hub.fail(status=status, after=number)
        assert flow.seeds() == [1, 2, 3, 4]
        flow.hub.faults.clear()


def test_any_call_may_fail_for_good(flow: Flow) -> None:
    """Complaint 15: a call that keeps failing is an error with its cause, never less than all."""
    flow.push(1, 2, 3)
    flow.push(4)
    before = len(flow.hub.calls)
    flow.seeds()
    made = [f"{method} {path}" for method, path, _ in flow.hub.calls[before:]]
    for call in dict.fromkeys(made):
        for status, kind in ((502, Unavailable), (403, Forbidden)):
            flow.hub.fail(call, status=status, times=99)
            with pytest.raises(kind, match=str(status)):
                flow.read()
            flow.hub.faults.clear()


def test_permissions_that_it_needs(flow: Flow) -> None:
    """Reading and ingesting need `actions: read` and `contents: read`; more is asked of nobody."""
    flow.hub.grants = {"actions": "read", "contents": "read", "metadata": "read"}
    for seeds in ((1, 2), (3, 4)):
        flow.push(*seeds)
    assert flow.seeds() == [1, 2, 3, 4]
    flow.hub.grants = {"contents": "read"}
    with pytest.raises(Forbidden, match="`actions: read`"):
        flow.read()
