"""An approval is of one state: pushes, races, repetitions, failures at each step, forks."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest
from github_desk import (
    APPROVE,
    APPROVED,
    KERNEL,
    PATH,
    RELU,
    SOFTMAX,
    Desk,
    desk,
    push,
    scrubbed,
    untouched,
)
from github_site import CHANGED, approved_cell, claims, rows, trusted
from github_support import hub
from tests_support import make_run

from tolcal import history, tolerances
from tolcal.github import command
from tolcal.github.client import ApiError
from tolcal.github.settings import Job
from tolcal.model import Approved

__all__ = ["desk", "hub", "trusted"]  # fixtures

# --- bound to a state -----------------------------------------------------------------------


def test_the_same_command_twice_is_harmless(desk: Desk) -> None:
    """The second reply says that it was done, by whom, and where."""
    digest = desk.digest
    line = f"/tolcal approve {digest}"
    first = desk.say("write", line)
    assert scrubbed(desk, desk.handle(first)) == APPROVED
    head, replies = desk.pull.head_sha, len(desk.comments)
    said = desk.ask("maintain", line)
    mark = desk.cells[SOFTMAX].approved
    assert mark
    assert scrubbed(desk, said) == (
        f"Done already: `DIGEST` was approved by `write` at `{mark.at}` in "
        "[`SHA`](https://github.example/octo/kernels/commit/SHA)."
    )
    assert head[:7] in said
    assert desk.handle(first) == desk.reply(first)  # the job runs again
    assert desk.pull.head_sha == head
    assert len(desk.comments) == replies + 1
    assert scrubbed(desk, desk.reply(first)) == APPROVED
    # And once more when the head has moved on: the check of that one is what is refreshed.
    push(desk)
    desk.measure(desk.pull, claims(1))
    assert scrubbed(desk, desk.handle(first)) == APPROVED
    assert desk.said(desk.pull)[0] == "completed"


def retarget(desk: Desk) -> None:
    """The pull request gets another base, with another file."""
    main = desk.hub.main
    old = desk.git("rev-parse", "main~1").strip()
    main.git.update("refs/heads/release", old)
    desk.pull.base_branch = "release"
    desk.hub.state.sync(desk.pull)


def close(desk: Desk) -> None:
    """Somebody closes it."""
    desk.pull.state = "closed"


@pytest.mark.parametrize(
    ("call", "action", "why"),
    [
        ("GET pulls/41", push, "the head was pushed to meanwhile, "),
        ("GET pulls/41", retarget, "the base changed meanwhile, main "),
        ("GET pulls/41", close, "it was closed meanwhile; nothing was written"),
        ("GET contents/tolerances.toml", push, "the head was pushed to meanwhile, "),
        ("POST git/trees", push, "the head was pushed to meanwhile, "),
        ("PATCH git/refs/heads/feature", push, "the head was pushed to meanwhile, "),
    ],
)
def test_approve_then_push(desk: Desk, call: str, action: Callable[[Desk], None], why: str) -> None:
    """Attack 7: between the judging and the write, at whatever moment: nothing is written."""
    comment = desk.say("write", APPROVE)
    desk.hub.on(call, lambda: action(desk), after=0 if call.startswith(("P", "GET c")) else 1)
    said = desk.handle(comment)
    assert said.startswith(f"Not done: {why}"), said
    assert desk.git("log", "--format=%an", "feature").split("\n")[0] != "github-actions[bot]"
    assert desk.cells[SOFTMAX] == tolerances.of_text(desk.before, PATH)[SOFTMAX]


def stale(desk: Desk, digest: str) -> str:
    """The reason in the reply to an approval of that digest."""
    said = desk.ask("write", f"/tolcal approve {digest}")
    found = re.match(
        rf"Not done: `{digest}` is not the present proposal, which is `[0-9a-f]{{16}}`: (.*)\.\n",
        said,
    )
    assert found, said
    assert f"/tolcal approve {desk.digest}\n" in said  # the line to copy now
    return found[1]


def test_a_stale_digest_names_what_changed(desk: Desk) -> None:
    """Attack 7: the head, the history, the base's tolerances; or it is of no proposal here."""
    old = desk.digest
    desk.report(desk.run)
    run = make_run(id="00000000000000bb", started="2026-04-30T00:00:00+00:00", origin="ingest")
    history.add(desk.folder / "history", rows(run, range(50_000, 50_040)))
    assert stale(desk, old) == "the history has other records by now"
    desk.report(desk.run)
    newer = desk.digest
    push(desk)
    again = desk.measure(desk.pull, claims(1, relu_triton=claims()[1].stats))
    reason = stale(desk, newer)
    assert reason == (
        f"the head changed, from {desk.measured[:7]} that it was made for to "
        f"{desk.pull.head_sha[:7]}"
    ) or reason.startswith("the head changed, from "), reason
    desk.report(again)
    moved = tolerances.edited(desk.before, {RELU: approved_cell(2.0**-23)}, PATH)
    main = desk.hub.main
    main.commit("main", {PATH: moved})
    third = desk.digest
    tip = desk.git("rev-parse", "main").strip()
    desk.git("update-ref", "refs/heads/feature", desk.git(
        "commit-tree", "-p", desk.pull.head_sha, "-p", tip, "-m", "merge",
        desk.git("merge-tree", "--write-tree", desk.pull.head_sha, tip).strip(),
    ).strip())  # fmt: skip
    desk.hub.state.sync(desk.pull)
    desk.measure(desk.pull, claims(1))
    assert "the base changed: its branch, its tolerances" in stale(desk, third)
    nowhere = "it is of no proposal of this pull request's commits: mistyped, another pull"
    assert stale(desk, "0123456789abcdef").startswith(nowhere)


def test_a_digest_of_another_pull_request(desk: Desk) -> None:
    """It approves nothing here, though both propose the same."""
    other = desk.hub.pull("other", files={KERNEL: CHANGED + "# other\n"}, author="bob")
    desk.measure(other, claims(1))
    foreign = desk.digest
    comment = desk.hub.comment(other, "write", f"/tolcal approve {foreign}")
    said = desk.handle(comment)
    assert "another pull request's" in said
    assert "Not done" in said
    assert untouched(desk)


def test_part_of_a_proposal(desk: Desk) -> None:
    """Named cells alone; what was approved makes another state, which has its own digest."""
    digest = desk.digest
    assert desk.ask("write", f"/tolcal approve {digest} relu") == (
        "Not done: relu: it would be looser, which needs &#96;/tolcal widen "
        f"{digest} OP/DTYPE because REASON&#96;."
    )
    assert desk.ask("maintain", f"/tolcal widen {digest} softmax/float32 because x") == (
        f"Not done: softmax/float32: new or tighter, so &#96;/tolcal approve {digest}&#96; takes "
        "it."
    )
    assert desk.ask("maintain", f"/tolcal widen {digest} gelu/float32 because x") == (
        "Not done: gelu/float32: no cell of that name in the proposal; did you mean 'relu/float32'?"
    )
    assert untouched(desk)
    desk.ask("write", f"/tolcal approve {digest} softmax/float32")
    # What stands beside it in the comment has the same digest, and goes as well.
    said = desk.ask("maintain", f"/tolcal widen {digest} relu/float32 because x")
    assert said.startswith("Widened for `maintain` because x: 1 cell (`relu/float32`) in ")
    assert {t.approved and t.approved.digest for t in desk.cells.values()} == {digest}
    here = {cell for cell, t in desk.cells.items() if t.approved and t.approved.pr == 41}
    assert here == {SOFTMAX, RELU}
    assert desk.said(desk.pull) == ("completed", "success")


def test_the_other_part_of_a_proposal_is_of_the_same_state(desk: Desk) -> None:
    """Approving a part of it leaves the rest of its digest good, and nothing else does."""
    digest = desk.digest
    desk.ask("write", f"/tolcal approve {digest} softmax")
    sha = desk.pull.head_sha[:7]
    run = make_run(id="00000000000000bb", started="2026-04-30T00:00:00+00:00", origin="ingest")
    history.add(desk.folder / "history", rows(run, range(50_000, 50_040)))
    said = desk.ask("maintain", f"/tolcal widen {digest} relu/float32 because x")
    assert said.startswith(
        f"Not done: `{digest}` is not the present proposal, which is `{desk.digest}`: write "
        f"approved cells of it in {sha}, which made another state of it; "
    ), said
    assert desk.cells[RELU] == tolerances.of_text(desk.before, PATH)[RELU]


def test_a_rejected_proposal_cannot_be_approved(desk: Desk) -> None:
    """As long as the rejecting comment stands; whoever may not reject, has not rejected."""
    digest = desk.digest
    desk.handle(desk.say("read", f"/tolcal reject {digest}"))
    no = desk.say("maintain", f"/tolcal reject {digest} because *this* is too tight for @me")
    assert desk.handle(no) == (
        f"Rejected: `{digest}`, by `maintain` because &#42;this&#42; is too tight for "
        "&#64;\u200dme. Nobody can approve it while that comment stands as it is; the next push, "
        "or a newer history, brings another proposal."
    )
    said = desk.ask("admin", f"/tolcal approve {digest}")
    assert said.startswith("Not done: `maintain` has [rejected](")
    assert "&#42;this&#42;" in said
    assert untouched(desk)
    desk.hub.edit(no, no.body + " (no, it is not)")  # no command any more, and so none against it
    assert desk.ask("admin", f"/tolcal approve {digest}").startswith("Approved for `admin`")


def test_two_maintainers_at_once(desk: Desk) -> None:
    """One commit; the slower one's reply names the quicker one."""
    line = f"/tolcal approve {desk.digest}"
    slow, quick = desk.say("write", line), desk.say("maintain", line)
    job = desk.hub.job("issue_comment", desk.event(quick))
    desk.hub.on(
        "PATCH git/refs/heads/feature", lambda: command.run(desk.client(), desk.inputs, job)
    )
    said = desk.handle(slow)
    assert said.startswith("Done already: ")
    assert "was approved by `maintain` at " in said
    assert desk.git("log", "--format=%an", f"{desk.measured}..feature") == "github-actions[bot]\n"
    assert desk.reply(quick).startswith("Approved for `maintain`")


def test_two_maintainers_with_other_cells_at_once(desk: Desk) -> None:
    """The slower one's cells are of another state by then, and are not written."""
    digest = desk.digest
    slow = desk.say("maintain", f"/tolcal widen {digest} relu/float32 because x")
    job = desk.hub.job(
        "issue_comment", desk.event(desk.say("write", f"/tolcal approve {digest} softmax"))
    )
    desk.hub.on(
        "PATCH git/refs/heads/feature", lambda: command.run(desk.client(), desk.inputs, job)
    )
    assert desk.handle(slow).startswith("Not done: the head was pushed to meanwhile, ")
    assert desk.cells[RELU] == tolerances.of_text(desk.before, PATH)[RELU]


def test_github_may_see_its_own_commit_late(desk: Desk) -> None:
    """A pull request's head follows its branch after a moment; the check is on the new one."""
    comment = desk.say("write", APPROVE)
    # It is read to be judged, before the write, and after it.
    late = lambda: setattr(desk.pull, "head_sha", desk.measured)  # noqa: E731
    desk.hub.on("GET pulls/41", late, after=2)
    assert scrubbed(desk, desk.handle(comment)) == APPROVED
    assert desk.pull.head_sha == desk.measured
    desk.hub.state.sync(desk.pull)
    assert desk.said(desk.pull) == ("completed", "failure")


# --- failures of the API --------------------------------------------------------------------


#: What an approval changes, in its order: the reply is the first comment made.
EFFECTS = (
    "POST git/trees",
    "POST git/commits",
    "PATCH git/refs/heads/feature",
    "POST issues/41/comments",
    "PATCH check-runs/*",
)


def dies(desk: Desk, call: str, *, effect: bool, job: Job) -> None:
    """The command's job, where the API dies at that call: before its effect, or just after it."""
    desk.hub.fail(call, times=1, effect=effect, status="drop")
    dead = desk.hub.fail("nothing", times=10_000)
    desk.hub.on(call, lambda: setattr(dead, "call", "*"))
    with pytest.raises(ApiError):
        command.run(desk.client(), desk.inputs, job)
    desk.hub.faults.clear()
    desk.hub.hooks.clear()


def test_the_api_may_fail_at_each_step(desk: Desk) -> None:
    """Before or after its effect: nothing is ever half done, and a re-run goes on from there."""
    desk.report(desk.run)
    comment = desk.say("write", APPROVE)
    job = desk.hub.job("issue_comment", desk.event(comment))
    for call in EFFECTS:
        for effect in (False, True):
            dies(desk, call, effect=effect, job=job)
            written = call not in EFFECTS[:3] or (call == EFFECTS[2] and effect)
            assert (desk.pull.head_sha != desk.measured) == written, (call, effect)
            assert (desk.file != desk.before) == written
    assert command.run(desk.client(), desk.inputs, job) == 0
    assert scrubbed(desk, desk.reply(comment)) == APPROVED
    assert desk.reactions(comment) == ["rocket"]
    assert desk.git("rev-list", "--count", f"{desk.measured}..feature") == "1\n"
    assert desk.said(desk.pull) == ("completed", "failure")
    assert len(desk.comments) == 2  # the report's and the reply


def test_reading_may_fail_as_well(desk: Desk) -> None:
    """No call before the verdict has an effect."""
    comment = desk.say("write", APPROVE)
    job = desk.hub.job("issue_comment", desk.event(comment))
    for after in (0, 2, 5, 8):
        desk.hub.fail("*", after=after, times=10_000)
        with pytest.raises(ApiError):
            command.run(desk.client(), desk.inputs, job)
        desk.hub.faults.clear()
        assert untouched(desk)
        assert desk.reply(comment) == ""


def test_a_failure_is_said_where_it_can_be(desk: Desk) -> None:
    """Complaint 15: a fault of GitHub's is called that, in the reply as well."""
    comment = desk.say("write", APPROVE)
    job = desk.hub.job("issue_comment", desk.event(comment))
    desk.hub.fail("POST git/trees", times=100)
    with pytest.raises(ApiError, match="POST git/trees"):
        command.run(desk.client(), desk.inputs, job)
    said = desk.reply(comment)
    assert said.startswith("This stopped on the way: POST git/trees of octo/kernels at ")
    assert "a fault of GitHub's" in said
    assert said.endswith("or comment again, and it goes on from there.")
    assert desk.reactions(comment) == ["confused"]


def test_a_missing_permission_is_named(desk: Desk) -> None:
    """Complaint 15, 17: with `contents: read` the commit is refused, and the reply says why."""
    comment = desk.say("write", APPROVE)
    job = desk.hub.job("issue_comment", desk.event(comment))
    desk.hub.grants = dict.fromkeys(
        ("actions", "contents", "metadata", "pull_requests", "issues", "checks"), "read"
    ) | {"pull_requests": "write"}  # fmt: skip
    with pytest.raises(ApiError, match="403"):
        command.run(desk.client(), desk.inputs, job)
    assert "give the job's token the permission &#96;contents: write&#96;" in desk.reply(comment)
    assert untouched(desk)


def test_reactions_are_a_nicety(desk: Desk) -> None:
    """Without `issues: write` the reply has to do."""
    desk.hub.fail("POST issues/comments/*/reactions", status=403, message="Resource not accessible")
    assert desk.ask("read", "/tolcal help").startswith("As the first line")


# --- forks ----------------------------------------------------------------------------------


@pytest.fixture
def fork(desk: Desk) -> Desk:
    """The pull request is from a fork of bob's."""
    desk.pull.state = "closed"
    source = desk.hub.fork("bob")
    desk.pull = desk.hub.pull("patch", files={KERNEL: CHANGED}, author="bob", fork=source)
    desk.measured = desk.pull.head_sha
    desk.run = desk.measure(desk.pull, claims(1))
    return desk


def test_a_fork_gets_a_pull_request_of_its_own(fork: Desk) -> None:
    """A branch of the base repository, linked; a second part goes to the same one."""
    digest = fork.digest
    comment = fork.say("write", f"/tolcal approve {digest} softmax")
    said = scrubbed(fork, fork.handle(comment))
    assert said == (
        "Approved for `write`: 1 cell (`softmax/float32`) in [`SHA`](https://github.example/octo/"
        "kernels/commit/SHA): https://github.example/octo/kernels/pull/43.\n\n"
        "The head is in a fork (`bob/kernels`), to which this job can't push. Merge that pull "
        "request into `main`; once this one's author has brought it in here, the values "
        "count. A pull request opened with GITHUB_TOKEN starts no workflows until somebody closes "
        "and reopens it; with an App's token as the action's input `token` they start."
    )
    opened = fork.hub.main.pulls[43]
    branch = f"tolcal/approve-42-{digest}"
    assert (opened.head_branch, opened.base_branch, opened.title) == (
        branch, "main", "Tolerances approved in #42",
    )  # fmt: skip
    assert fork.pull.head_sha == fork.measured
    first = tolerances.of_text(fork.git("show", f"{branch}:{PATH}"), PATH)
    mark = first[SOFTMAX].approved
    assert mark
    assert (mark.by, mark.pr, mark.digest) == ("write", 42, digest)
    # Again, by somebody else
    again = fork.ask("maintain", f"/tolcal approve {digest} softmax")
    assert again.startswith(
        f"Done already: `{digest}` was approved by `write` at `{mark.at}` in http"
    )
    # And the other part
    fork.ask("maintain", f"/tolcal widen {digest} relu/float32 because x")
    assert len(fork.hub.main.pulls) == 3
    second = tolerances.of_text(fork.git("show", f"{branch}:{PATH}"), PATH)
    assert second[SOFTMAX] == first[SOFTMAX]
    assert second[RELU].approved
    assert second[RELU].approved.by == "maintain"
    assert fork.git("rev-list", "--count", f"main..{branch}") == "2\n"


def test_a_forks_approvals_pass_on_their_own(fork: Desk) -> None:
    """The pull request that the bot opens is measured at its own head, and goes by the fork's."""
    digest = fork.digest
    fork.ask("write", f"/tolcal approve {digest} softmax")
    comment = fork.say("maintain", f"/tolcal widen {digest} relu/float32 because x")
    fork.handle(comment)
    opened = fork.hub.main.pulls[43]
    run = fork.measure(opened, claims(2))  # somebody closed and reopened it
    assert fork.report(run) == 0
    assert fork.said(opened) == ("completed", "success")
    # The fork's own rules hold for it.
    push(fork)
    assert fork.report(run) == 1
    fork.pull, mine = opened, fork.pull
    assert set(fork.judged.refused) == {RELU}
    assert "commits were pushed since" in fork.judged.refused[RELU]
    del fork.hub.main.comments[comment.id]
    fork.hub.push(mine, {"README.md": "x"})
    assert "deleted" in fork.judged.refused[RELU]


@pytest.mark.parametrize("cells", [False, True])
def test_the_branch_of_a_forks_approval_is_not_taken_on_trust(fork: Desk, cells: bool) -> None:
    """Its name is no secret: whoever may write could have put anything there before."""
    digest = fork.digest
    text = fork.before
    if cells:  # the very values, in somebody's name
        found = next(c for c in fork.judged.document.proposal.cells if (c.op, c.dtype) == SOFTMAX)
        assert found.tolerance
        mark = Approved("admin", "2026-01-01T00:00:00Z", digest, found.tolerance.value_digest, 42)
        final = msgspec.structs.replace(found.tolerance, approved=mark)
        text = tolerances.edited(text, {SOFTMAX: final}, PATH)
    evil = {PATH: text} if cells else {KERNEL: "evil\n"}
    fork.hub.main.commit(f"tolcal/approve-42-{digest}", evil)
    said = fork.ask("write", f"/tolcal approve {digest} softmax")
    assert said == (
        f"Not done: the branch tolcal/approve-42-{digest} holds more than approvals of this "
        "proposal; delete it, and comment again."
    )
    assert len(fork.hub.main.pulls) == 2


def test_a_fork_that_is_pushed_to_meanwhile(fork: Desk) -> None:
    """Attack 7, for forks: the head is read again just before the branch is made."""
    comment = fork.say("write", APPROVE)
    fork.hub.on("GET pulls/42", lambda: push(fork), after=1)
    assert fork.handle(comment).startswith("Not done: the head was pushed to meanwhile, ")
    assert fork.git("branch", "--list", "tolcal/*") == ""


def test_a_forks_approval_goes_on_where_it_stopped(fork: Desk) -> None:
    """The branch is made, the pull request not yet: a retry opens it, once."""
    comment = fork.say("write", APPROVE)
    job = fork.hub.job("issue_comment", fork.event(comment))
    dies(fork, "POST git/refs", effect=True, job=job)
    dies(fork, "POST pulls", effect=False, job=job)
    dies(fork, "POST pulls", effect=True, job=job)
    assert command.run(fork.client(), fork.inputs, job) == 0
    assert len(fork.hub.main.pulls) == 3
    assert fork.git("rev-list", "--count", "main..tolcal/approve-42-" + fork.digest) == "1\n"
    assert fork.reply(comment).startswith("Approved for `write`: 1 cell (`softmax/float32`) in ")


def test_a_fork_whose_base_has_moved(fork: Desk) -> None:
    """The base branch's cell is another by now: the proposal was compared with the merge base's."""
    comment = fork.say("write", APPROVE)
    text = tolerances.edited(fork.before, {SOFTMAX: approved_cell(2.0**-23)}, PATH)
    # After it was judged: before that, the digest would be another.
    fork.hub.on("GET git/ref/heads/main", lambda: fork.hub.main.commit("main", {PATH: text}))
    assert fork.handle(comment) == (
        "Not done: tolerances.toml: softmax/float32 is not what the proposal was compared with; "
        "update the branch from its base and let it be measured again."
    )
