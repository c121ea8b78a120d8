"""Records of a workflow run: all its shards, as data that an attacker may have written."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from github_server.state import Run as WorkflowRun
from github_support import Hub, client, hub
from hypothesis import given, settings
from hypothesis import strategies as st
from records_support import packed
from tests_support import make_environment, make_record, make_run
from zip_support import Member, raw_zip

from tolcal.github import artifacts
from tolcal.github.artifacts import Missing, Rejected, Unmeasured
from tolcal.github.client import Unavailable
from tolcal.history import jsonlines
from tolcal.model import Record, TolcalError

__all__ = ["hub"]  # the fixture


@pytest.fixture
def run(hub: Hub) -> WorkflowRun:
    """A measuring run of a pull request."""
    hub.repository()
    return hub.workflow_run(pull=hub.pull(files={"a": "b"}))


def records(*seeds: int, **run: Any) -> list[Record]:
    return [make_record(run=make_run(**run), seed=seed) for seed in seeds]


def upload(
    hub: Hub, run: WorkflowRun, part: int, parts: int, content: bytes | list[Record],
    attempt: int = 1, **how: Any,
) -> None:  # fmt: skip
    """As the measuring job does."""
    data = content if isinstance(content, bytes) else packed(content)
    name = f"tolcal-records-{run.id}-{attempt}-{part}of{parts}"
    hub.artifact(run, name, {artifacts.RECORDS: data}, **how)


def read(hub: Hub, run: WorkflowRun, attempt: int = 1) -> list[int]:
    """Seeds of the run's records."""
    found = artifacts.records(client(hub), run.id, attempt)
    return [record.case.seed for record in found]


def why(hub: Hub, run: WorkflowRun, kind: type[TolcalError], attempt: int = 1) -> str:
    """The refusal, in which the run's number is N."""
    with pytest.raises(kind) as caught:
        artifacts.records(client(hub), run.id, attempt)
    return str(caught.value).replace(str(run.id), "N")


# --- shards ---------------------------------------------------------------------------------


def test_all_shards_are_one_run(hub: Hub, run: WorkflowRun) -> None:
    """Shards come together in their order, whatever else the run uploaded."""
    upload(hub, run, 2, 2, records(3, 4))
    upload(hub, run, 1, 2, records(1, 2))
    hub.artifact(run, "report", {"report.html": b"<html>"})
    hub.artifact(run, f"tolcal-records-{run.id}9-1-1of1", {"x": b""})
    assert read(hub, run) == [1, 2, 3, 4]


def test_a_record_comes_as_it_was_written(hub: Hub, run: WorkflowRun) -> None:
    """Every field survives the way through GitHub."""
    written = [
        make_record(), make_record(seed=2, status="crashed", stats=None, reason='{"a": "b:c"}'),
    ]  # fmt: skip
    upload(hub, run, 1, 1, written)
    assert list(artifacts.records(client(hub), run.id, 1)) == written


def test_of_each_shard_the_newest_attempt(hub: Hub, run: WorkflowRun) -> None:
    """A re-run of failed jobs replaces their shards alone; a later attempt is not looked at."""
    upload(hub, run, 1, 2, records(1))
    upload(hub, run, 2, 2, records(2))
    upload(hub, run, 2, 2, records(20), attempt=2)
    upload(hub, run, 1, 2, records(100), attempt=3)
    assert read(hub, run, attempt=1) == [1, 2]
    assert read(hub, run, attempt=2) == [1, 20]
    assert read(hub, run, attempt=10) == [100, 20]


def test_a_hundred_and_one_artifacts(hub: Hub, run: WorkflowRun) -> None:
    """Complaint 3: what stands on the second page is found."""
    upload(hub, run, 1, 1, records(1))
    for number in range(101):
        hub.artifact(run, f"other-{number}", {"x": b""})
    assert read(hub, run) == [1]


def test_attempts_have_names_of_their_own(hub: Hub, run: WorkflowRun) -> None:
    """Complaint 24: run, attempt and shard are in the name, so a re-run never meets a 409."""
    upload(hub, run, 1, 1, records(1))
    upload(hub, run, 1, 1, records(2), attempt=2)
    names = {one.name for one in artifacts.of_run(client(hub), run.id)}
    assert names == {f"tolcal-records-{run.id}-{n}-1of1" for n in (1, 2)}


def test_nothing_measured(hub: Hub, run: WorkflowRun) -> None:
    """A run without records says so, and differs from one that lacks a shard."""
    assert why(hub, run, Unmeasured) == (
        "run N has no artifact tolcal-records-N-...: its measuring job failed before it had "
        "records, or they have expired; run it again"
    )


def test_a_missing_shard_is_named(hub: Hub, run: WorkflowRun) -> None:
    """Part of a run is no run: which shard lacks, and what to do."""
    upload(hub, run, 1, 3, records(1))
    upload(hub, run, 3, 3, records(3))
    assert why(hub, run, Missing) == (
        "shard 2 of 3 of run N has no artifact: its job failed or is still running; re-run the "
        "failed jobs of that run"
    )


@pytest.mark.parametrize("when", ["listed", "downloaded", "deleted"])
def test_an_expired_shard_is_named(hub: Hub, run: WorkflowRun, when: str) -> None:
    """Complaint 2: expired in the list, or only when it is asked for (410), or gone (404)."""
    upload(hub, run, 1, 1, records(1), expired=when == "listed")
    if when != "listed":
        hub.fail("GET actions/artifacts/*/zip", status=410 if when == "downloaded" else 404)
    text = why(hub, run, Missing)
    assert text.startswith(
        "shard 1 of 1 of run N has expired"
        if when == "listed"
        else "artifact tolcal-records-N-1-1of1 of run N has expired or was deleted: GET actions/"
    )


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"environment": make_environment(device="NVIDIA B200")},
         "environment differs, NVIDIA H200 (sm_90, driver 580.1, cuda 13.0, torch 2.11.0, triton "
         "3.6.0) and NVIDIA B200 (sm_90, driver 580.1, cuda 13.0, torch 2.11.0, triton 3.6.0); "
         "shards of one run need the same kind of runner; re-run all jobs of it"),
        ({"commit": "d" * 40},
         f"commit differs, {'c' * 40} and {'d' * 40}; shards of one run need the same kind of "
         "runner; re-run all jobs of it"),
        ({"seed": 8},
         "seed differs, 7 and 8; shards of one run need the same kind of runner; re-run all jobs "
         "of it"),
        ({"id": "0" * 16},
         "they are of 1 run and of 1 others, where shards are of the same; re-run all jobs of "
         "that run"),
    ],
)  # fmt: skip
def test_shards_of_different_runs(
    hub: Hub, run: WorkflowRun, other: dict[str, Any], says: str
) -> None:
    """Two measurements are not put together as one: what differs is said."""
    upload(hub, run, 1, 2, records(1))
    upload(hub, run, 2, 2, records(2, **other))
    assert why(hub, run, Rejected) == (
        f"artifacts tolcal-records-N-1-1of2 and tolcal-records-N-1-2of2 are refused: {says}"
    )


def test_shards_of_different_matrices(hub: Hub, run: WorkflowRun) -> None:
    """A workflow that was edited between attempts: its parts are no parts of one whole."""
    upload(hub, run, 1, 3, records(1))
    upload(hub, run, 2, 2, records(2), attempt=2)
    assert why(hub, run, Rejected, attempt=2) == (
        "artifact tolcal-records-N-1-1of3 is refused: other shards of the run are of 2; re-run "
        "all jobs of it"
    )


@pytest.mark.parametrize("name", ["2of1", "257of257", "999of999"])
def test_impossible_shards(hub: Hub, run: WorkflowRun, name: str) -> None:
    """More shards than a matrix has, or one beyond the last, are refused before any download."""
    hub.artifact(run, f"tolcal-records-{run.id}-1-{name}", b"")
    assert why(hub, run, Rejected).endswith("is refused: no part of 256 or fewer")


@pytest.mark.parametrize(
    "name", ["1of01", "01of1", "0of1", "1of1000", "1of1x", "1-of-1", "\uff11of1"]
)
def test_names_that_are_none(hub: Hub, run: WorkflowRun, name: str) -> None:
    """Only plain numbers make the name of a shard."""
    hub.artifact(run, f"tolcal-records-{run.id}-1-{name}", b"")
    why(hub, run, Unmeasured)


# --- hostile content ------------------------------------------------------------------------

RUN, RECORD = jsonlines.encode(make_run()), jsonlines.encode(make_record())


def lines(*parts: bytes, count: int = 1) -> bytes:
    return gzip.compress(b"".join(parts) + b'{"end":%d}\n' % count, 1)


def renamed(field: bytes, value: bytes) -> bytes:
    """A record with another text in a field."""
    old = b'"%s":"' % field
    start = RECORD.index(old) + len(old)
    return RECORD[:start] + value + RECORD[RECORD.index(b'"', start) :]


HOSTILE: dict[str, tuple[bytes, str]] = {
    "no gzip": (b"\x80\x04cos\nsystem\n", ": cannot read it: Not a gzipped file (b'\\x80\\x04')"),
    "a pickle in gzip": (gzip.compress(b"\x80\x04cos\nsystem\n(S'id'\ntR.\n"),
                         ":1: not a line of a tolcal records file: "),
    "cut": (lines(RUN, RECORD)[:-10], ": cut or damaged after line "),
    "cut at a member": (gzip.compress(RUN + RECORD), ": cut or damaged after line 2"),
    "unknown key": (lines(RUN, RECORD[:-3] + b',"x":1}}\n'),
                    ":2: not a line of a tolcal records file: Object contains unknown field `x`"),
    "key twice": (lines(RUN, RECORD.replace(b'"status":"ok"', b'"status":"ok","status":"ok"')),
                  ":2: not a line of a tolcal records file: Object contains the field 'status' "
                  "twice"),
    "NaN": (lines(RUN, RECORD.replace(b'"residual_max":0.0', b'"residual_max":"nan"')),
            ":2: not a line of a tolcal records file: residual_max is nan"),
    "Infinity": (lines(RUN, RECORD.replace(b'"residual_max":0.0', b'"residual_max":Infinity')),
                 ":2: not a line of a tolcal records file: JSON is malformed"),
    "mention": (lines(RUN, renamed(b"kernel", b"@everyone")),
                ":2: not a line of a tolcal records file: a name is not of the form "),
    "table": (lines(RUN, renamed(b"op", b"a|b")),
              ":2: not a line of a tolcal records file: a name is not of the form "),
    "workflow command": (lines(RUN, renamed(b"kernel", b"::error::x")),
                         ":2: not a line of a tolcal records file: a name is not of the form "),
    "long name": (lines(RUN, renamed(b"kernel", b"a" * 65)),
                  ":2: not a line of a tolcal records file: a name is not of the form "),
    "line feed in a name": (lines(RUN, renamed(b"kernel", b"a\\nb")),
                            ":2: not a line of a tolcal records file: a name is not of the form "),
    "a device of control characters": (
        lines(RUN.replace(b"NVIDIA H200", b"\\u001b[2J"), RECORD),
        ":1: not a line of a tolcal records file: a text of the run is too odd"),
    "long line": (lines(RUN, b'{"record":"' + b"x" * 70_000 + b'"}\n'),
                  ":2: over the limit of 65536 bytes a line"),
    "deep": (lines(RUN, b'{"record":' + b"[" * 60_000 + b"\n"),
             ":2: not a line of a tolcal records file: "),
    "more after the end": (lines(RUN, RECORD, b'{"end":1}\n', RECORD),
                           ":4: a line after the end"),
    "wrong count": (lines(RUN, RECORD, count=2), ": cut or damaged after line 3"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_records(hub: Hub, run: WorkflowRun, what: str) -> None:
    """Attacks 3 and 10: JSON lines alone, strict, names allow-listed; the line is named."""
    data, says = HOSTILE[what]
    upload(hub, run, 1, 1, data)
    text = why(hub, run, Rejected)
    assert text.startswith(f"refused: artifact tolcal-records-N-1-1of1{says}")
    assert text.isprintable()


def test_a_million_rows(hub: Hub, run: WorkflowRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record over the limit, in whichever shard, is refused without reading on."""
    monkeypatch.setattr(artifacts, "MAX_ROWS", 5)
    upload(hub, run, 1, 2, records(1, 2, 3))
    million = gzip.compress(RUN) + gzip.compress(RECORD * 1000) * 1000 + lines(count=1_000_000)
    member = Member(artifacts.RECORDS.encode(), million, method=0)
    hub.artifact(run, f"tolcal-records-{run.id}-1-2of2", raw_zip(member))
    assert why(hub, run, Rejected) == (
        "refused: artifact tolcal-records-N-1-2of2:4: over the limit of 2 records"
    )


@pytest.mark.parametrize("line", [b"\n", b" " * 60_000 + b"\n", RUN])
def test_a_bomb_without_a_record(
    hub: Hub, run: WorkflowRun, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """Attack 2: lines and bytes count when unpacked, be they records or not."""
    monkeypatch.setattr(artifacts, "MAX_ROWS", 5)
    monkeypatch.setattr(artifacts, "MAX_UNPACKED", 2**16)
    upload(hub, run, 1, 1, gzip.compress(RUN + line * 10_005, 1))
    limit = {
        1: "65536 bytes a line and 10005 lines: no records file of tolcal's",
        60_001: f"{2**16 + 2**24} bytes when unpacked",
    }.get(len(line), "65536 bytes a line and 10005 lines: no records file of tolcal's")
    assert why(hub, run, Rejected).endswith(f"over the limit of {limit}")


def test_size_is_capped_before_the_download(hub: Hub, run: WorkflowRun) -> None:
    """Attack 2: what GitHub says is too large is not even asked for, shards together."""
    half = artifacts.MAX_BYTES // 2 + 1
    upload(hub, run, 1, 2, records(1), size=half)
    upload(hub, run, 2, 2, records(2), size=half)
    assert why(hub, run, Rejected) == (
        f"the records of run N are refused: {2 * half} bytes, {artifacts.MAX_BYTES} are allowed"
    )
    assert not [path for _, path, _ in hub.calls if path.endswith("/zip")]


def test_download_stops_at_its_limit(
    hub: Hub, run: WorkflowRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 2: a size that GitHub understates does not help."""
    monkeypatch.setattr(artifacts, "MAX_BYTES", 1000)
    name = f"tolcal-records-{run.id}-1-1of1"
    hub.artifact(run, name, raw_zip(Member(b"x", bytes(200_000), method=0)), size=1)
    with pytest.raises(TolcalError, match="the answer has over 66536 bytes, the most that is read"):
        read(hub, run)


def test_a_slip_in_an_artifact(hub: Hub, run: WorkflowRun) -> None:
    """Attack 2: an artifact with another file than the one is refused by its name."""
    name = f"tolcal-records-{run.id}-1-1of1"
    hub.artifact(run, name, {"../../etc/passwd": b"", artifacts.RECORDS: packed(records(1))})
    assert why(hub, run, Rejected) == (
        "artifact tolcal-records-N-1-1of1 of run N is refused: its zip holds '../../etc/passwd', "
        "'records.jsonl.gz', not the one file records.jsonl.gz"
    )


def test_a_failing_store(hub: Hub, run: WorkflowRun) -> None:
    """Complaint 15: an unreachable store is that, and no missing or hostile artifact."""
    upload(hub, run, 1, 1, records(1))
    hub.fail("GET files/*", status=503, times=99)
    assert "the store of the file answered 503" in why(hub, run, Unavailable)


@settings(max_examples=150, deadline=None)
@given(
    data=st.binary(max_size=60),
    at=st.integers(0, 4000),
    where=st.sampled_from(["lines", "gzip"]),
)
def test_any_bytes_in_records(data: bytes, at: int, where: str) -> None:
    """Bytes put anywhere into a records file: records, or one refusal of one line."""
    whole = RUN + RECORD + b'{"end":1}\n'
    content = gzip.compress(whole) if where == "gzip" else whole
    place = at % len(content)
    content = content[:place] + data + content[place + len(data) // 2 :]
    try:
        found = artifacts.decode("it", content if where == "gzip" else gzip.compress(content))
    except Rejected as error:
        assert str(error).isprintable()  # noqa: PT017
    else:
        assert len(found) == 1


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["run", "record", "end", "stats", "case"]) | st.text(max_size=3),
            inner, max_size=4,
        ),
        max_leaves=12,
    )
)  # fmt: skip
def test_any_json_in_records(value: Any) -> None:
    """Any JSON for a line: never another error than the refusal."""
    try:
        line = msgspec.json.encode(value)
    except msgspec.EncodeError:  # an integer over 64 bits
        line = str(value).encode()
    with pytest.raises(Rejected):
        artifacts.decode("it", gzip.compress(RUN + line + b"\n" + RECORD))


# --- origin ---------------------------------------------------------------------------------


def stamps(given: list[Record], how: Callable[[list[Record]], tuple[Record, ...]]) -> list[str]:
    return [record.run.id for record in how(given)]


def test_a_claimed_origin_does_not_count() -> None:
    """Attack 4: a pull request's records are a pull request's, and of no run that is known."""
    claimed = records(1, 2, origin="ingest")
    found = artifacts.stamp(claimed, "pull_request")
    assert {record.run.origin for record in found} == {"pull_request"}
    assert {record.run.id for record in found}.isdisjoint({record.run.id for record in claimed})
    assert len({record.run.id for record in found}) == 1
    same = [msgspec.structs.replace(r, run=claimed[0].run) for r in found]
    assert same == claimed  # nothing else differs


def test_ids_of_a_workflow_run() -> None:
    """With the workflow run, ids do not depend on the attempt but on run, seed, environment."""

    def name(run_id: int, **run: Any) -> str:
        (found,) = artifacts.stamp(records(1, **run), "ingest", run_id)
        return found.run.id

    assert name(5, id="aa", session="bb") == name(5, id="cc", session="dd")
    environment = make_environment(device="NVIDIA B200")
    assert len({name(5), name(6), name(5, seed=8), name(5, environment=environment)}) == 4
