"""The client of GitHub's API against the stand-in: real HTTP, every fault that we know of."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from github_support import Clock, Hub, client, hub
from hypothesis import given, settings
from hypothesis import strategies as st

from tolcal.github import errors, transport
from tolcal.github.client import (
    ApiError,
    Client,
    Conflict,
    Forbidden,
    NotFound,
    Unavailable,
    quote,
)
from tolcal.github.transport import Reply, Request, Transport
from tolcal.model import TolcalError

__all__ = ["hub"]

NOW = 1_777_636_800.0  # of a new Clock
COMMENT = {"body": "measured"}
LOST: list[dict[str, Any]] = [
    {"status": 502},
    {"status": "drop"},
    {"status": "short"},
    {"status": "timeout"},
    {"status": 201, "body": b"<html>a proxy</html>"},
]


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def pull(hub: Hub) -> int:
    """Number of an open pull request."""
    hub.repository(files={"a.txt": "1\n"})
    return hub.pull(files={"a.txt": "2\n"}).number


def comments(hub: Hub) -> list[str]:
    return [one.body for one in hub.main.comments.values()]


def finder(hub: Hub, number: int, calls: Client) -> Callable[[], dict[str, Any] | None]:
    """Looks our comment up."""

    def done() -> dict[str, Any] | None:
        found = calls.pages(f"issues/{number}/comments")
        return next((one for one in found if one["body"] == COMMENT["body"]), None)

    return done


# Pages


@pytest.mark.parametrize("count", [0, 1, 100, 101, 200, 201])
def test_every_page_is_read(hub: Hub, pull: int, count: int) -> None:
    """Complaint 3: page 1 only."""
    for number in range(count):
        hub.comment(pull, "alice", f"comment {number}")
    found = [one["body"] for one in client(hub).pages(f"issues/{pull}/comments")]
    assert found == [f"comment {number}" for number in range(count)]
    assert len(hub.calls) == max(1, -(-count // 100))


def test_pages_of_a_list_in_an_object(hub: Hub, pull: int) -> None:
    """Complaint 3: 101 artifacts."""
    run = hub.workflow_run()
    for number in range(101):
        hub.artifact(run, f"a{number}", b"")
    found = client(hub).pages(f"actions/runs/{run.id}/artifacts", "artifacts")
    assert {one["name"] for one in found} == {f"a{number}" for number in range(101)}
    assert [one.query.get("page") for one in hub.requests] == [None, "2"]


def test_a_foreign_next_page_is_refused(hub: Hub, pull: int) -> None:
    link = f'<{hub.store.url}/steal>; rel="next"'
    hub.fail(status=200, headers={"Link": link}, body=b"[]")
    with pytest.raises(ApiError, match="the next page is elsewhere"):
        list(client(hub).pages("pulls"))
    assert hub.calls == [("GET", "pulls", 200)]


def test_a_circle_of_pages_ends(hub: Hub, pull: int) -> None:
    link = f'<{hub.url}/repos/octo/kernels/pulls?page=2>; rel="next"'
    hub.fail(status=200, times=9, headers={"Link": link}, body=b'[{"id": 1}]')
    with pytest.raises(ApiError, match="one that was read"):
        list(client(hub).pages("pulls"))
    assert len(hub.calls) == 2


def test_pages_have_an_end(hub: Hub, pull: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tolcal.github.client.MAX_PAGES", 2)
    for number in range(201):
        hub.comment(pull, "alice", str(number))
    with pytest.raises(ApiError, match="over 2 pages, the most that are read"):
        list(client(hub).pages(f"issues/{pull}/comments"))


# Repetitions


@pytest.mark.parametrize("status", [500, 502, 503, 504, "drop", "short"])
def test_faults_are_repeated(hub: Hub, pull: int, clock: Clock, status: Any) -> None:
    hub.fail(status=status, times=2)
    assert client(hub, clock).get(f"pulls/{pull}")["number"] == pull
    assert len(hub.calls) == 3
    first, second = clock.slept
    assert 0.5 <= first <= 1
    assert 1 <= second <= 2


def test_five_repetitions_and_then_the_truth(hub: Hub, pull: int, clock: Clock) -> None:
    """Complaint 15: a 500 blamed on permissions."""
    hub.fail(status=500, times=99)
    with pytest.raises(Unavailable) as caught:
        client(hub, clock).get(f"pulls/{pull}")
    assert re.fullmatch(
        f"GET pulls/{pull} of octo/kernels at {hub.url}: GitHub answered 500 \\(Server Error\\): a "
        r"fault of GitHub's, not of this job; start the job again later \(repeated 5 times in "
        r"\d+ s\)",
        str(caught.value),
    )
    assert (len(hub.calls), caught.value.status) == (6, 500)


def test_timeouts_are_repeated(
    hub: Hub, pull: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "TIMEOUT_S", (5, 0.05))
    hub.fail(status="timeout", times=6)
    with pytest.raises(Unavailable, match=r"no answer within 0.05 s \(repeated 5 times") as caught:
        client(hub, clock).get(f"pulls/{pull}")
    assert (len(hub.calls), caught.value.status) == (6, None)


def test_nobody_listens(hub: Hub, pull: int, clock: Clock) -> None:
    job = msgspec.structs.replace(hub.job(), api_url="http://127.0.0.1:1")
    calls = Client(job, "ghs_none", sleep=clock.sleep, clock=clock.time)
    with pytest.raises(Unavailable, match=r"the connection failed \(.*refused"):
        calls.get("pulls")
    assert len(clock.slept) == 5


@pytest.mark.parametrize(
    ("status", "headers", "message", "slept"),
    [
        (429, {"Retry-After": "7"}, "", [7]),
        (403, {"Retry-After": "0"}, "", [1]),
        (403, {"Retry-After": "Fri, 01 May 2026 12:00:09 GMT"}, "", [9]),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": f"{NOW + 30:.0f}"}, "", [31]),
        (429, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "12"}, "", [1]),
        (429, {"X-RateLimit-Remaining": "0"}, "", [60]),
        (429, {}, "", [60]),
        (403, {}, "You have exceeded a secondary rate limit.", [60]),
        (503, {"Retry-After": "40"}, "", [40]),
    ],
)
def test_limits_are_waited_for(
    hub: Hub, pull: int, clock: Clock, status: int, headers: dict[str, str], message: str,
    slept: list[float],
) -> None:  # fmt: skip
    hub.fail(status=status, headers=headers, message=message)
    assert client(hub, clock).get(f"pulls/{pull}")["number"] == pull
    assert clock.slept == slept


def test_a_limit_that_names_no_time_doubles(hub: Hub, pull: int, clock: Clock) -> None:
    """60 + 120 + 240 + 480 s are the whole quarter of an hour."""
    hub.fail(status=429, times=99, message="You have exceeded a secondary rate limit")
    with pytest.raises(Unavailable, match="a rate limit, 960 s more to wait"):
        client(hub, clock).get(f"pulls/{pull}")
    assert clock.slept == [60, 120, 240, 480]


def test_nothing_remains_and_no_time_is_named(hub: Hub, pull: int, clock: Clock) -> None:
    hub.fail(status=429, times=2, headers={"X-RateLimit-Remaining": "0"})
    client(hub, clock).get(f"pulls/{pull}")
    assert clock.slept == [60, 120]


def test_a_limit_beyond_the_job_is_said_at_once(hub: Hub, pull: int, clock: Clock) -> None:
    reset = f"{NOW + 3000:.0f}"
    hub.fail(status=403, headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset})
    with pytest.raises(Unavailable, match="a rate limit, 3001 s more to wait; start the job again"):
        client(hub, clock).get(f"pulls/{pull}")
    assert (clock.slept, len(hub.calls)) == ([], 1)


# POST: looked up before it is repeated


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: str(fault["status"]))
def test_a_post_whose_answer_was_lost_happens_once(
    hub: Hub, pull: int, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any]
) -> None:
    monkeypatch.setattr(transport, "TIMEOUT_S", (5, 0.5))
    hub.fail("POST issues/*/comments", effect=True, **fault)
    calls = client(hub)
    made = calls.post(f"issues/{pull}/comments", COMMENT, done=finder(hub, pull, calls))
    assert [one["id"] for one in calls.pages(f"issues/{pull}/comments")] == [made["id"]]
    assert [(method, path) for method, path, _ in hub.calls] == [
        ("POST", f"issues/{pull}/comments"),
        *[("GET", f"issues/{pull}/comments")] * 2,
    ]


@pytest.mark.parametrize("fault", LOST[:3], ids=lambda fault: str(fault["status"]))
def test_a_post_that_never_happened_is_repeated(hub: Hub, pull: int, fault: dict[str, Any]) -> None:
    hub.fail("POST issues/*/comments", **fault)
    calls = client(hub)
    calls.post(f"issues/{pull}/comments", COMMENT, done=finder(hub, pull, calls))
    assert comments(hub) == ["measured"]
    assert [method for method, _, _ in hub.calls] == ["POST", "GET", "POST"]


def test_the_last_post_is_looked_up_as_well(hub: Hub, pull: int) -> None:
    hub.fail("POST *", times=5)
    hub.fail("POST *", effect=True)
    calls = client(hub)
    made = calls.post(f"issues/{pull}/comments", COMMENT, done=finder(hub, pull, calls))
    assert list(hub.main.comments) == [made["id"]]


def test_a_refusal_after_a_lost_answer_is_looked_up(hub: Hub, pull: int) -> None:
    """The first try made the branch, its look-up came too early, the second try was refused."""
    sha = hub.main.git.ref("refs/heads/main")
    body = {"ref": "refs/heads/new", "sha": sha}
    looked: list[int] = []

    def done() -> dict[str, Any] | None:
        looked.append(1)
        return {"found": True} if len(looked) == 2 else None

    hub.fail("POST git/refs", status="drop", effect=True)
    assert client(hub).post("git/refs", body, done=done) == {"found": True}


@pytest.mark.parametrize("fault", LOST[:3], ids=lambda fault: str(fault["status"]))
def test_a_post_without_look_up_is_not_repeated(hub: Hub, pull: int, fault: dict[str, Any]) -> None:
    hub.fail("POST *", effect=True, **fault)
    with pytest.raises(Unavailable, match=r"; whether it took effect is not known$"):
        client(hub).post(f"issues/{pull}/comments", COMMENT, done=None)
    assert comments(hub) == ["measured"]


def test_a_look_up_that_fails_is_said_beside_its_cause(hub: Hub, pull: int) -> None:
    hub.fail("POST *", status=500)
    hub.fail("GET *", status=500, times=6)
    calls = client(hub)
    with pytest.raises(Unavailable) as caught:
        calls.post(f"issues/{pull}/comments", COMMENT, done=finder(hub, pull, calls))
    assert re.fullmatch(
        rf"POST issues/{pull}/comments of .* answered 500 .*; looking it up failed, too: "
        rf"GET issues/{pull}/comments of .* answered 500 .* \(repeated 5 times in \d+ s\)",
        str(caught.value),
    )


def test_a_limited_post_waits_and_looks(hub: Hub, pull: int, clock: Clock) -> None:
    hub.fail("POST *", status=403, headers={"Retry-After": "5"})
    calls = client(hub, clock)
    calls.post(f"issues/{pull}/comments", COMMENT, done=finder(hub, pull, calls))
    assert [method for method, _, _ in hub.calls] == ["POST", "GET", "POST"]
    hub.fail("POST *", status=403, headers={"Retry-After": "5"})
    calls.post(f"issues/{pull}/comments", COMMENT, done=None)  # refused for sure: repeated
    assert (comments(hub), clock.slept) == (["measured"] * 2, [5, 5])


def test_a_refused_post_is_not_looked_up(hub: Hub, pull: int) -> None:
    hub.grants = {}
    with pytest.raises(Forbidden):
        client(hub).post(f"issues/{pull}/comments", COMMENT, done=lambda: pytest.fail("looked"))
    assert len(hub.calls) == 1


def test_edits_are_repeated(hub: Hub, pull: int) -> None:
    one = hub.comment(pull, hub.state.bot, "old")
    hub.fail("PATCH *", status="drop", effect=True)
    client(hub).patch(f"issues/comments/{one.id}", COMMENT)
    assert comments(hub) == ["measured"]


def test_a_deletion_that_is_repeated_may_find_nothing(hub: Hub, pull: int) -> None:
    one = hub.comment(pull, hub.state.bot, "old")
    hub.fail("DELETE *", status="drop", effect=True)
    client(hub).delete(f"issues/comments/{one.id}")
    assert (comments(hub), len(hub.calls)) == ([], 2)
    with pytest.raises(NotFound):
        client(hub).delete(f"issues/comments/{one.id}")


# What is said


@pytest.mark.parametrize(
    ("status", "kind", "said", "headers", "text"),
    [
        (400, ApiError, "Problems parsing JSON", {},
         "the request was refused as wrong, which is a bug of tolcal's"),
        (401, ApiError, "Bad credentials", {},
         "the token is wrong or has expired; see the action's `token` input"),
        (403, Forbidden, "Resource not accessible by integration", {},
         "give the job's token the permission `pull-requests: read`"),
        (403, Forbidden, "Resource not accessible by integration",
         {"X-Accepted-GitHub-Permissions": "issues=read; contents=read,pull_requests=read"},
         "give the job's token the permission `issues: read` or `contents: read` and "
         "`pull-requests: read`"),
        (404, NotFound, "Not Found", {}, "it is not there, or the token may not see it"),
        (409, Conflict, "a.txt does not match", {},
         "it changed since it was read; run the job again"),
        (410, NotFound, "Artifact has expired", {},
         "it was there and has expired or was deleted"),
        (422, Conflict, "Update is not a fast forward", {},
         "it changed since it was read; run the job again"),
        (422, ApiError, "Validation Failed", {},
         "the request was refused as wrong, which is a bug of tolcal's"),
        (304, ApiError, "", {}, "a redirect that was not expected"),
    ],
)  # fmt: skip
def test_errors_are_truthful(
    hub: Hub, pull: int, status: int, kind: type[ApiError], said: str, headers: dict[str, str],
    text: str,
) -> None:  # fmt: skip
    """Complaint 15: each status is said as what it is, and only a 403 as a permission."""
    body = json.dumps({"message": said}).encode()
    hub.fail(status=status, headers=headers, body=b"" if status == 304 else body)
    with pytest.raises(ApiError) as caught:
        client(hub).get(f"pulls/{pull}")
    words = f" ({said})" if said else ""
    assert str(caught.value) == (
        f"GET pulls/{pull} of octo/kernels at {hub.url}: GitHub answered {status}{words}: {text}"
    )
    found = caught.value
    assert (type(found), found.status, found.call) == (kind, status, f"GET pulls/{pull}")
    assert len(hub.calls) == 1


def test_the_fields_of_a_422_are_named(hub: Hub, pull: int) -> None:
    hub.fail(status=422, body=json.dumps({
        "message": "Validation Failed",
        "errors": [{"field": "body", "code": "missing"}, {"message": "too long"}, "odd"],
    }).encode())  # fmt: skip
    with pytest.raises(ApiError, match=r"\(Validation Failed; body: missing; too long; odd\)"):
        client(hub).get(f"pulls/{pull}")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("GET check-runs/1", "give the job's token the permission `checks: read`"),
        ("POST check-runs", "give the job's token the permission `checks: write`"),
        ("GET collaborators/a/permission", "give the job's token the permission `metadata: read`"),
        ("GET repository", "the token may not do this"),
    ],
)
def test_a_permission_by_the_path_alone(call: str, text: str) -> None:
    found = errors.of_reply(call, "o/r", 403, {}, b"[" * 60_000, NOW, 0).error
    assert str(found) == f"{call} of o/r: GitHub answered 403: {text}"


@pytest.mark.parametrize(
    ("make", "grants", "text"),
    [
        (lambda calls: list(calls.pages("pulls")), {}, "`pull-requests: read`"),
        (
            lambda calls: calls.post("check-runs", {"name": "n", "head_sha": "0"}, done=None),
            {"checks": "read"},
            "`checks: write`",
        ),
        (
            lambda calls: calls.post("issues/41/comments", COMMENT, done=None),
            {"contents": "write"},
            "`issues: write` or `pull-requests: write`",
        ),
    ],
)
def test_a_missing_permission_is_named(
    hub: Hub, pull: int, make: Callable[[Client], Any], grants: dict[str, str], text: str
) -> None:
    hub.grants = grants
    with pytest.raises(Forbidden, match=f"give the job's token the permission {text}"):
        make(client(hub))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"<html><body>a proxy", "what is no JSON, but starts '<html><body>a proxy'"),
        (b"[]", "no JSON object"),
        (b"[" * 100_000, "what is no JSON"),
        (b"\xff\xfe", "what is no JSON"),
    ],
)
def test_an_answer_that_is_none(hub: Hub, pull: int, body: bytes, text: str) -> None:
    hub.fail(status=200, body=body)
    with pytest.raises(ApiError, match=re.escape(f"GitHub answered 200 with {text}")):
        client(hub).get(f"pulls/{pull}")


def test_a_page_that_is_none(hub: Hub, pull: int) -> None:
    for body in (b"{}", b"[1]", b'{"artifacts": {}}', b'{"artifacts": [[]]}', b"null"):
        hub.fail(status=200, body=body)
        with pytest.raises(ApiError, match="with no list of objects"):
            list(client(hub).pages("actions/artifacts", "artifacts"))


def test_an_endless_answer_is_cut(hub: Hub, pull: int) -> None:
    """Who read to its end would find a wrong checksum."""
    bomb = gzip.compress(b" " * (transport.MAX_BODY + 2**20))
    hub.fail(status=200, headers={"Content-Encoding": "gzip"}, body=bomb[:-8] + b"8 bytes.")
    with pytest.raises(ApiError, match="over 67108864 bytes, the most that is read"):
        client(hub).get(f"pulls/{pull}")


@settings(max_examples=150, deadline=None)
@given(
    st.integers(300, 599),
    st.dictionaries(
        st.sampled_from(["retry-after", "x-ratelimit-remaining", "x-ratelimit-reset",
                         "x-accepted-github-permissions"]),
        st.one_of(st.text(max_size=30), st.just("0"), st.integers().map(str)),
    ),
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.text(max_size=5) | st.integers(),
            lambda inner: st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["message", "errors", "field"]), inner),
            max_leaves=8,
        ).map(lambda found: json.dumps(found).encode()),
    ),
)  # fmt: skip
def test_no_answer_makes_a_traceback(status: int, headers: dict[str, str], body: bytes) -> None:
    found = errors.of_reply("GET pulls", "o/r at x", status, headers, body, NOW, 3)
    assert str(found.error).startswith(f"GET pulls of o/r at x: GitHub answered {status}")
    assert found.again or found.wait is None
    assert found.wait is None or found.wait >= 1


@pytest.fixture(scope="module")
def any_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub for many examples."""
    made = Hub(tmp_path_factory.mktemp("any") / "hub")
    made.repository()
    yield made
    made.close()


HEADER = st.one_of(
    st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f")),
    st.sampled_from(["0", "1", "http://[", "//x", "gzip", "deflate", '<?page=2>; rel="next"', "<"]),
)


@settings(max_examples=60, deadline=None)
@given(
    status=st.one_of(st.integers(200, 599), st.sampled_from([200, 301, 302, 307])),
    headers=st.dictionaries(
        st.sampled_from(["Link", "Location", "Retry-After", "Content-Encoding", "Content-Type"]),
        HEADER,
    ),
    body=st.one_of(st.binary(max_size=40), st.sampled_from([b"[]", b"{}", b'[{"a": 1}]'])),
    how=st.sampled_from(["get", "pages", "post", "delete", "download", "graphql"]),
)
def test_whatever_answers_it_is_read_or_an_error(
    any_hub: Hub, status: int, headers: dict[str, str], body: bytes, how: str
) -> None:
    any_hub.fail(
        status=status, headers=headers, body=b"" if status in (204, 304) else body, times=7
    )
    calls = client(any_hub)
    with contextlib.suppress(ApiError):
        match how:
            case "get":
                calls.get("pulls")
            case "pages":
                list(calls.pages("pulls"))
            case "post":
                calls.post("pulls", {}, done=lambda: None)
            case "delete":
                calls.delete("pulls/1")
            case "download":
                calls.download("actions/artifacts/1/zip", 20)
            case "graphql":
                calls.graphql("query { viewer { login } }")
    any_hub.violations.clear()


# The token


def test_the_token_is_shown_nowhere(
    hub: Hub, pull: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(transport, "TIMEOUT_S", (5, 0.05))
    calls = client(hub)
    seen = [repr(calls), str(calls), repr(vars(calls)), *sys.argv]
    echo = json.dumps({"message": f"bad token {hub.token}"}).encode()
    for fault in (
        {"status": 401, "body": echo}, {"status": 403, "body": echo},
        {"status": 500, "body": echo, "times": 6}, {"status": 200, "body": echo[2:]},
        {"status": "drop", "times": 6}, {"status": "timeout", "times": 6},
        {"status": 302, "headers": {"Location": f"https://evil.invalid/{hub.token}"}},
    ):  # fmt: skip
        hub.fail(**fault)
        with pytest.raises(ApiError) as caught:
            calls.get(f"pulls/{pull}")
        seen += [str(caught.value), repr(caught.value), repr(caught.value.__context__)]
    seen.append(caplog.text)
    assert all(hub.token[:9] not in one for one in seen)
    assert "GET /repos/octo/kernels" in caplog.text  # urllib3 did log
    headers = {request.headers.get("Authorization") for request in hub.requests}
    assert headers == {f"Bearer {hub.token}"}


@pytest.mark.parametrize("token", ["", " \n", "ghs_a\nX-Evil: 1", "ghs_ä", "ghs a"])
def test_a_token_that_is_none_is_refused_unseen(hub: Hub, pull: int, token: str) -> None:
    with pytest.raises(TolcalError) as caught:
        Client(hub.job(), token)
    assert str(caught.value) == "the token is empty or holds characters that no token has"


def test_a_token_with_a_line_break_at_its_end(hub: Hub, pull: int) -> None:
    assert client(hub, token=f"{hub.token}\n").get(f"pulls/{pull}")["number"] == pull


def test_netrc_does_not_replace_the_token(
    hub: Hub, pull: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login thief password p\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    run = hub.workflow_run()
    one = hub.artifact(run, "a", b"zip")
    assert client(hub).download(f"actions/artifacts/{one.id}/zip", 10) == b"zip"


def test_another_token_acts_for_its_user(hub: Hub, pull: int) -> None:
    alice = hub.user("alice", "write")
    made = client(hub, token=alice.token).post(f"issues/{pull}/comments", COMMENT, done=None)
    assert made["user"]["login"] == "alice"


# Files


def test_a_file_comes_from_elsewhere_without_the_token(hub: Hub, pull: int) -> None:
    """The store refuses a request with a token, and the hub counts it as a violation."""
    one = hub.artifact(hub.workflow_run(), "records", {"records.jsonl.gz": b"x" * 5000})
    found = client(hub).download(f"actions/artifacts/{one.id}/zip", len(one.content))
    assert found == one.content
    with pytest.raises(ApiError, match=f"over {len(one.content) - 1} bytes, the most that is"):
        client(hub).download(f"actions/artifacts/{one.id}/zip", len(one.content) - 1)


def test_an_expired_file_is_said_so(hub: Hub, pull: int) -> None:
    one = hub.artifact(hub.workflow_run(), "records", b"zip", expired=True)
    with pytest.raises(NotFound, match="has expired") as caught:
        client(hub).download(f"actions/artifacts/{one.id}/zip", 5)  # less than the error's text
    assert caught.value.status == 410


@pytest.mark.parametrize("status", [403, 500, "drop", "short"])
def test_a_failing_store_is_asked_again(hub: Hub, pull: int, clock: Clock, status: Any) -> None:
    """With a new address each time: they expire."""
    one = hub.artifact(hub.workflow_run(), "records", b"zip")
    hub.fail("GET files/*", status=status)
    assert client(hub, clock).download(f"actions/artifacts/{one.id}/zip", 1000) == b"zip"
    assert (len(clock.slept), len(hub.calls)) == (1, 2)


def test_a_store_that_lost_the_file(hub: Hub, pull: int) -> None:
    one = hub.artifact(hub.workflow_run(), "records", b"zip")
    hub.fail("GET files/*", status=404)
    with pytest.raises(NotFound, match="the store of the file answered 404"):
        client(hub).download(f"actions/artifacts/{one.id}/zip", 100)
    hub.fail("GET files/*", status=403, times=9)
    with pytest.raises(Unavailable, match=r"the store of the file answered 403 \(repeated 5"):
        client(hub).download(f"actions/artifacts/{one.id}/zip", 100)


@pytest.mark.parametrize(
    "location", ["ftp://files.invalid/a", "file:///etc/passwd", "http://[", "//[::1"]
)
def test_redirects_to_nowhere(hub: Hub, pull: int, location: str) -> None:
    hub.fail(status=302, headers={"Location": location})
    with pytest.raises(ApiError, match=r"redirect to|malformed \(ValueError: "):
        client(hub).download("actions/artifacts/1/zip", 100)


def test_no_redirect_from_https_to_http(hub: Hub, pull: int) -> None:
    job = msgspec.structs.replace(hub.job(), api_url="https://ghes.invalid")
    made = Transport(job, "ghs_none", None)  # type: ignore[arg-type]
    request = Request("GET a", "https://ghes.invalid/a", away=True)
    with pytest.raises(ApiError, match=r"a redirect to http://files\.invalid, which is not"):
        made._redirected(request, Reply(302, {"location": "http://files.invalid/f"}, b"", True))
    found = made._redirected(request, Reply(302, {"location": "https://f.invalid/"}, b"", True))
    assert found.url == "https://f.invalid/"


def test_a_circle_of_redirects_ends(hub: Hub, pull: int) -> None:
    address = f"{hub.url}/repos/octo/kernels/pulls"
    hub.fail(status=301, times=99, headers={"Location": address})
    with pytest.raises(ApiError, match="a redirect that was not expected"):
        client(hub).get("pulls")
    assert len(hub.calls) == 4


def test_a_repository_that_was_renamed(hub: Hub, pull: int) -> None:
    job = msgspec.structs.replace(hub.job(), repository="octo/old")
    clock = Clock()
    calls = Client(job, hub.token, sleep=clock.sleep, clock=clock.time)
    for method, path in (("GET", f"pulls/{pull}"), ("POST", f"issues/{pull}/comments")):
        hub.fail(status=307, headers={"Location": f"{hub.url}/repos/octo/kernels/{path}"})
        if method == "GET":
            assert calls.get(path)["number"] == pull
        else:
            calls.post(path, COMMENT, done=None)
    assert comments(hub) == ["measured"]


def test_a_call_never_leaves_the_api(hub: Hub, pull: int) -> None:
    hub.fail(status=307, headers={"Location": f"{hub.store.url}/steal"})
    with pytest.raises(ApiError, match=f"a redirect to {hub.store.url}, which is not the API"):
        client(hub).post(f"issues/{pull}/comments", COMMENT, done=None)


# Addresses


def test_an_enterprise_server(hub: Hub, pull: int) -> None:
    """Complaint 16: hard-coded addresses. Pages, files and GraphQL below another path."""
    hub.base_path = "/api/v3"
    for number in range(101):
        hub.comment(pull, "alice", str(number))
    calls = client(hub)
    found = list(calls.pages(f"issues/{pull}/comments"))
    one = hub.artifact(hub.workflow_run(), "a", b"zip")
    assert calls.download(f"actions/artifacts/{one.id}/zip", 10) == b"zip"
    query = "query($id: ID!) { node(id: $id) { ... on IssueComment { viewerDidAuthor } } }"
    assert calls.graphql(query, id=found[100]["node_id"]) == {"node": {"viewerDidAuthor": False}}
    assert [path for _, path, _ in hub.calls] == [
        *[f"issues/{pull}/comments"] * 2, f"actions/artifacts/{one.id}/zip", "graphql",
    ]  # fmt: skip


def test_the_repository_itself(hub: Hub, pull: int) -> None:
    assert client(hub).get("")["default_branch"] == "main"


@pytest.mark.parametrize(
    "path", ["../x", "a//b", "a/./b", "a/..", "/a", "a/", "a?b=1", "a#b", "\\"]
)
def test_a_path_stays_in_the_repository(hub: Hub, pull: int, path: str) -> None:
    with pytest.raises(TolcalError, match="is no path of the API"):
        client(hub).get(path)
    assert hub.calls == []


@given(st.text())
def test_a_quoted_segment_is_one_segment(text: str) -> None:
    if text in ("", ".", ".."):
        with pytest.raises(TolcalError):
            quote(text)
        return
    try:
        quoted = quote(text)
    except UnicodeEncodeError:
        assert any("\ud800" <= letter <= "\udfff" for letter in text)
        return
    assert re.fullmatch(r"[A-Za-z0-9_.~%-]+", quoted)
    assert unquote(quoted) == text


def test_a_file_by_its_quoted_name(hub: Hub, pull: int) -> None:
    name = "dir/a b%20#?é.txt"
    hub.main.commit("main", {name: "odd\n"})
    found = client(hub).get(f"contents/{quote(name)}", ref="main")
    assert (found["path"], base64.b64decode(found["content"])) == (name, b"odd\n")


def test_an_address_that_is_none(hub: Hub, pull: int) -> None:
    job = msgspec.structs.replace(hub.job(), api_url="ftp://x")
    with pytest.raises(TolcalError, match="GITHUB_API_URL is 'ftp://x', no http address"):
        Client(job, "ghs_none")


# GraphQL


@pytest.mark.parametrize(
    ("found", "kind", "text"),
    [
        ({"errors": [{"type": "NOT_FOUND", "message": "no such node"}], "data": {}}, NotFound,
         "the query failed: no such node"),
        ({"errors": [{"type": "FORBIDDEN", "message": "not yours"}]}, Forbidden, "not yours"),
        ({"errors": [{"message": "syntax"}]}, ApiError, "syntax"),
        ({"errors": ["odd"]}, ApiError, "it gave no data"),
        ({"data": None}, ApiError, "it gave no data"),
        ([], ApiError, "it gave no data"),
    ],
)  # fmt: skip
def test_a_query_that_failed(
    hub: Hub, pull: int, found: Any, kind: type[ApiError], text: str
) -> None:
    hub.fail("POST graphql", status=200, body=json.dumps(found).encode())
    with pytest.raises(kind, match=text) as caught:
        client(hub).graphql("query { viewer { login } }")
    assert type(caught.value) is kind


def test_a_limited_query_waits(hub: Hub, pull: int, clock: Clock) -> None:
    limited = {"errors": [{"type": "RATE_LIMITED", "message": "API rate limit exceeded"}]}
    hub.fail("POST graphql", status=200, body=json.dumps(limited).encode())
    hub.fail("POST graphql", status=502)
    query = 'query { repository(owner: "octo", name: "kernels") { id } }'
    assert client(hub, clock).graphql(query)["repository"]["id"] == f"R_{hub.main.id}"
    assert clock.slept[0] == 60


def test_without_tests_it_uses_the_real_clock(hub: Hub, pull: int) -> None:
    made = Client(hub.job(), hub.token)
    assert (made._sleep, made._clock) == (time.sleep, time.time)
    assert made.get(f"pulls/{pull}")["state"] == "open"
    assert os.environ.get("TOLCAL_TOKEN") != hub.token
