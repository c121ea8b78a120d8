"""The stand-in for GitHub itself: it refuses what GitHub's description refuses, and knows git."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from github_server import description, forms, prune, routing, web
from github_server.git import Git, Person
from github_support import Hub, client, hub

from tolcal.github.client import ApiError, NotFound

__all__ = ["hub"]


def drained(hub: Hub) -> list[str]:
    """The violations, which then don't fail the test."""
    found = list(hub.violations)
    hub.violations.clear()
    return found


@pytest.fixture
def pull(hub: Hub) -> int:
    """Number of an open pull request."""
    hub.repository(files={"a.txt": "1\n"})
    return hub.pull(files={"a.txt": "2\n"}).number


def test_an_unknown_field_of_a_request_is_refused(hub: Hub, pull: int) -> None:
    with pytest.raises(ApiError, match="'boddy' was unexpected"):
        client(hub).post(f"issues/{pull}/comments", {"body": "b", "boddy": "x"}, done=None)
    (said,) = drained(hub)
    assert said.startswith(f"POST /repos/octo/kernels/issues/{pull}/comments: body: Additional")


@pytest.mark.parametrize(
    "output",
    [
        {"title": "t", "summary": "s", "anotations": []},
        {"title": "t"},
        {"title": "t", "summary": "s", "annotations": [{"path": "a"}]},
        {"title": "t", "summary": "s", "text": "x" * 65536},
    ],
)
def test_a_wrong_inner_field_is_refused(hub: Hub, pull: int, output: dict[str, object]) -> None:
    body = {"name": "tolcal", "head_sha": hub.main.pulls[pull].head_sha, "output": output}
    with pytest.raises(ApiError, match="GitHub answered 422"):
        client(hub).post("check-runs", body, done=None)
    assert len(drained(hub)) == 1


def test_an_unknown_query_or_call_is_refused(hub: Hub, pull: int) -> None:
    with pytest.raises(ApiError, match=r"GitHub knows no query \['stat'\]"):
        list(client(hub).pages("pulls", stat="open"))
    with pytest.raises(ApiError, match="422"):
        list(client(hub).pages("pulls", state="opened"))
    with pytest.raises(NotFound):
        client(hub).get("pulses")
    assert len(drained(hub)) == 3


def test_an_answer_that_breaks_the_description_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path / "hub")
    hub.repository(files={"a": "1"})
    number = hub.pull(files={"a": "2"}).number
    whole = forms.pull

    def wrong(*arguments: object) -> dict[str, object]:
        return whole(*arguments) | {"number": "41"}  # type: ignore[arg-type]

    monkeypatch.setattr(forms, "pull", wrong)
    assert client(hub).get(f"pulls/{number}")["number"] == "41"
    with pytest.raises(AssertionError, match=r"answer of the stand-in: .*'41' is not of type"):
        hub.close()


def test_a_broken_stand_in_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(tmp_path / "hub")
    hub.repository()
    hub.main.pulls[7] = None  # type: ignore[assignment]
    with pytest.raises(ApiError, match="GitHub answered 500"):
        list(client(hub).pages("pulls"))
    with pytest.raises(AssertionError, match="AttributeError"):
        hub.close()


def test_every_operation_has_its_call() -> None:
    """Nothing is described that isn't played, nor the other way round."""
    described = {"GET ", *prune.OPERATIONS}
    assert {f"{route.method} {route.template}" for route in routing.ROUTES} == described


def test_pruning_again_changes_nothing() -> None:
    """No operation is missing, and none is left of one that was taken out."""
    pruned = json.loads(prune.PRUNED.read_text())
    assert prune.prune(pruned)["paths"] == pruned["paths"]
    assert prune.prune(pruned)["components"] == pruned["components"]
    assert prune.render(pruned) == prune.PRUNED.read_text()


def test_the_description_is_that_of_the_package() -> None:
    """From npm itself, which takes a download of 28 MB: only where it is asked for."""
    if "TOLCAL_FETCH_DESCRIPTION" not in os.environ:
        pytest.skip("TOLCAL_FETCH_DESCRIPTION=1 compares with the npm package")
    assert prune.render(prune.prune(prune.fetch())) == prune.PRUNED.read_text()


def test_what_is_filled_in_is_of_no_use(hub: Hub, pull: int) -> None:
    """Fields that no test stated are empty or invalid, so that nothing passes by luck."""
    found = client(hub).get(f"pulls/{pull}")
    assert (found["statuses_url"], found["labels"]) == ("https://filled.invalid/", [])
    description.check_response(
        description.request("GET", "pulls/{pull_number}", "/repos/o/r/pulls/41", {}, b""),
        "pulls/{pull_number}", 200, json.dumps(found).encode(), {},
    )  # fmt: skip


def test_faults_and_hooks_hit_the_call_that_is_named(hub: Hub, pull: int) -> None:
    calls = client(hub)
    seen: list[str] = []
    hub.on("GET pulls/*", lambda: seen.append("before"), after=1)
    hub.fail("GET pulls/*", status=404, after=2)
    assert calls.get(f"pulls/{pull}")["number"] == pull
    assert seen == []
    calls.get(f"pulls/{pull}")
    assert seen == ["before"]
    with pytest.raises(NotFound):
        calls.get(f"pulls/{pull}")
    calls.get("")
    assert [status for _, _, status in hub.calls] == [200, 200, 404, 200]


def test_a_hook_pushes_between_two_calls(hub: Hub, pull: int) -> None:
    one = hub.main.pulls[pull]
    before = client(hub).get(f"pulls/{pull}")["head"]["sha"]
    hub.on("GET pulls/*", lambda: hub.push(one, {"a.txt": "3\n"}))
    after = client(hub).get(f"pulls/{pull}")["head"]["sha"]
    assert before != after == hub.main.git.ref(f"refs/pull/{pull}/head")


def test_a_fork_is_seen_by_its_base(hub: Hub, pull: int) -> None:
    fork = hub.fork("mallory")
    one = hub.pull(fork=fork, author="mallory", files={"a.txt": None, "new.txt": "n\n"})
    calls = client(hub)
    hub.main.commit("main", {"b.txt": "later\n"})
    found = calls.get(f"compare/main...{one.head_sha}")
    assert [(each["filename"], each["status"]) for each in found["files"]] == [
        ("a.txt", "removed"), ("new.txt", "added"),
    ]  # fmt: skip
    assert (found["status"], found["ahead_by"], found["behind_by"]) == ("diverged", 1, 1)
    assert found["merge_base_commit"]["sha"] == one.base_sha
    listed = list(calls.pages("pulls", head="mallory:feature", state="open"))
    assert [each["number"] for each in listed] == [one.number]
    assert listed[0]["head"]["repo"]["full_name"] == "mallory/kernels"
    hub.push(one, {"c.txt": "more\n"})
    assert calls.get(f"pulls/{one.number}")["changed_files"] == 3


def test_commits_through_the_api_are_signed_and_others_are_not(hub: Hub, pull: int) -> None:
    """Attack 6 needs the difference: an author's name and e-mail are whatever one writes."""
    calls = client(hub)
    forged = hub.main.commit("feature", {"b": "1"}, author=hub.state.bot)
    found = calls.get(f"commits/{forged}")
    assert found["author"]["login"] == "github-actions[bot]"
    assert found["commit"]["verification"]["verified"] is False
    tree = calls.post(
        "git/trees",
        {"base_tree": forged, "tree": [
            {"path": "b", "mode": "100644", "type": "blob", "content": "2"},
        ]},
        done=None,
    )  # fmt: skip
    body = {"message": "ours", "tree": tree["sha"], "parents": [forged]}
    ours = calls.post("git/commits", body, done=None)
    calls.patch("git/refs/heads/feature", {"sha": ours["sha"]})
    found = calls.get(f"commits/{ours['sha']}")
    assert found["commit"]["verification"]["verified"] is True
    assert found["author"]["login"] == "github-actions[bot]"
    assert hub.main.git.run("show", "feature:b") == "2"
    assert hub.main.pulls[pull].head_sha == ours["sha"]
    named = body | {"author": {"name": "alice", "email": hub.user("alice").email}}
    other = calls.post("git/commits", named, done=None)
    assert other["verification"]["verified"] is False


def test_a_commit_may_be_of_no_account(hub: Hub, pull: int) -> None:
    """GitHub says null where the e-mail is nobody's."""
    sha = hub.main.commit("feature", {"b": "1"}, author=Person("x", "x@y.invalid", "1 +0000"))
    found = [client(hub).get(f"commits/{sha}"), *client(hub).pages(f"pulls/{pull}/commits")]
    assert [one["author"] and one["author"]["login"] for one in found] == [None, "alice", None]
    assert found[0]["commit"]["author"]["email"] == "x@y.invalid"


def test_a_role_is_more_than_a_permission(hub: Hub, pull: int) -> None:
    calls = client(hub)
    found = []
    for role in ("read", "triage", "write", "maintain", "admin"):
        hub.user(role, role)
        one = calls.get(f"collaborators/{role}/permission")
        found.append((one["permission"], one["role_name"]))
    assert found == [
        ("read", "read"), ("read", "triage"), ("write", "write"), ("write", "maintain"),
        ("admin", "admin"),
    ]  # fmt: skip


def test_a_rerun_is_refused_while_one_runs(hub: Hub, pull: int) -> None:
    run = hub.workflow_run(pull=hub.main.pulls[pull])
    calls = client(hub)
    calls.post(f"actions/runs/{run.id}/rerun", {}, done=None)
    found = calls.get(f"actions/runs/{run.id}")
    assert (found["run_attempt"], found["status"]) == (2, "queued")
    with pytest.raises(ApiError, match="already running"):
        calls.post(f"actions/runs/{run.id}/rerun", {}, done=None)


def test_a_check_is_completed_by_its_conclusion(hub: Hub, pull: int) -> None:
    sha = hub.main.pulls[pull].head_sha
    calls = client(hub)
    made = calls.post("check-runs", {"name": "tolcal", "head_sha": sha}, done=None)
    note = {
        "path": "a.txt", "start_line": 1, "end_line": 1, "annotation_level": "failure",
        "message": "m",
    }  # fmt: skip
    for _ in range(2):
        output = {"title": "t", "summary": "s", "annotations": [note] * 50}
        calls.patch(f"check-runs/{made['id']}", {"output": output})
    calls.patch(f"check-runs/{made['id']}", {"conclusion": "failure"})
    (found,) = calls.pages(f"commits/{sha}/check-runs", "check_runs", check_name="tolcal")
    assert (found["status"], found["conclusion"]) == ("completed", "failure")
    assert found["output"]["annotations_count"] == 100
    assert len(list(calls.pages(f"check-runs/{made['id']}/annotations"))) == 100


def test_the_store_tells_of_a_token(tmp_path: Path) -> None:
    """The check behind "a file comes from elsewhere without the token"."""
    hub = Hub(tmp_path / "hub")
    hub.repository()
    one = hub.artifact(None, "a", b"zip")
    job = hub.job()
    calls = client(hub)
    calls._transport._origins.add(("http", hub.store.url.removeprefix("http://")))
    with pytest.raises(ApiError):
        calls.download(f"actions/artifacts/{one.id}/zip", 10)
    assert job.api_url == hub.url
    with pytest.raises(AssertionError, match="the token was sent to another host"):
        hub.close()


def test_lacking_permissions() -> None:
    needs = "issues=write; contents=read,pull_requests=write"
    assert not web.lacking(None, needs)
    assert not web.lacking({"issues": "write"}, needs)
    assert not web.lacking({"contents": "write", "pull_requests": "write"}, needs)
    assert web.lacking({"pull_requests": "write"}, needs)
    assert web.lacking({"issues": "read"}, needs)
    assert not web.lacking({}, "metadata=read")


def test_git_itself_reads_the_repository(hub: Hub, pull: int, tmp_path: Path) -> None:
    git = shutil.which("git")
    assert git
    command = [git, "clone", "--quiet", "--branch=feature", hub.main.git.path, tmp_path / "clone"]
    subprocess.run(command, check=True, timeout=60)
    assert (tmp_path / "clone" / "a.txt").read_text() == "2\n"
    subprocess.run([git, "fsck", "--strict"], cwd=hub.main.git.path, check=True, timeout=60)


def test_what_is_remembered_of_git_never_changes(hub: Hub, pull: int) -> None:
    """Answers on refs are always asked for anew."""
    git, one = hub.main.git, hub.main.pulls[pull]
    first = one.head_sha
    assert git.log("feature") == [first, one.base_sha]
    assert git.log(f"{one.base_sha}..{first}") == [first]
    second = hub.push(one, {"b": "1"})
    assert git.log("feature") == [second, first, one.base_sha]
    assert git.entry("feature", "b") is not None


def test_renames_and_deep_paths(tmp_path: Path) -> None:
    git = Git(tmp_path / "r.git")
    content = "".join(f"line {n}\n" for n in range(30))
    old = git.make_tree(None, [("100644", "d/e/f.txt", git.write(content.encode()))])
    new = git.make_tree(None, [("100644", "d/g.txt", git.write((content + "x\n").encode()))])
    (change,) = git.changes(old, new)
    assert (change.status, change.path, change.before) == ("renamed", "d/g.txt", "d/e/f.txt")
    assert (change.additions, change.deletions) == (1, 0)
