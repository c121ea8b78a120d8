"""``mode: report``: the measuring workflow started or ended, so say so on its pull request.

Runs with the default branch's code. What it writes is a function of the state of GitHub alone, so
it may be cut anywhere and run again: there is one comment, one check and no duplicate.
"""

from __future__ import annotations

import contextlib
import functools
import re
from typing import Any, Literal

import msgspec

from tolcal import files
from tolcal.github import approvals, artifacts, checks, judging, outputs, pulls, sticky
from tolcal.github.checks import Conclusion, Outcome
from tolcal.github.client import ApiError, Client, NotFound
from tolcal.github.judging import Judged, Measuring
from tolcal.github.pulls import Pull
from tolcal.github.settings import Inputs, Job
from tolcal.model import TolcalError, one_line
from tolcal.report import FORMATS, text
from tolcal.report.document import Document, to_json

#: How often a report begins again because a newer run ended while it was at work.
ROUNDS = 3
#: What a run without records makes of the check. Nothing of it may look like a pass, and branch
#: protection takes `neutral` and `skipped` for one: the pull request's own workflow can skip.
WITHOUT_RECORDS: dict[str, Conclusion] = {
    "cancelled": "cancelled",
    "action_required": "action_required",
    "skipped": "action_required",
}


class Event(msgspec.Struct, frozen=True):
    """What happened: a run of the measuring workflow for the head of a pull request."""

    step: Literal["start", "judge"]
    run: Measuring
    owner: str  # of the repository that the head is in
    branch: str


def main(inputs: Inputs, job: Job, token: str) -> int:
    """``tolcal github report``: 0 good, 1 what blocks."""
    return report(Client(job, token), inputs, job)


def decide(inputs: Inputs, job: Job) -> Event | str:
    """What to do about the event of this job, or why nothing is to be done."""
    if job.event != "workflow_run":
        raise TolcalError(
            f"tolcal github report answers workflow_run, this is a {one_line(job.event, 40)}: see "
            "tolcal-report.yml"
        )
    action, run = job.payload.get("action"), job.payload.get("workflow_run")
    if not isinstance(run, dict) or not pulls.SHA.fullmatch(str(run.get("head_sha"))):
        raise TolcalError(
            "the event has no workflow_run with a head_sha, so it is none of GitHub's"
        )
    if not judging.is_measuring(run, inputs):
        return (
            f"run {run.get('id')} is of {one_line(str(run.get('path')), 100)} for a "
            f"{one_line(str(run.get('event')), 40)}, not of {inputs.run_workflow} for a pull "
            "request"
        )
    repository = run.get("head_repository")
    owner = str((repository.get("owner") or {}).get("login") or "") if repository else ""
    if not owner:
        return f"the repository of the head of run {run.get('id')} was deleted"
    step: Literal["start", "judge"] = "judge" if action == "completed" else "start"
    return Event(step, judging.measuring(run), owner, str(run.get("head_branch") or ""))


def report(client: Client, inputs: Inputs, job: Job) -> int:
    """Does what the event asks for."""
    event = decide(inputs, job)
    if isinstance(event, str):
        outputs.say(f"nothing to do: {event}")
        return 0
    sha = event.run.head_sha
    called = checks.name(inputs)
    pulls_of = _measured_by(client, inputs, event)
    if len(pulls_of) > 1:
        numbers = sorted(pull.number for pull in pulls_of)
        why = (
            f"the pull requests {', '.join(map(str, numbers))} have the same head, so it can't be "
            "said which one was measured; close all but one and re-run the workflow"
        )
        outputs.say(why)
        # A check is of a commit, so anything milder would let both of them pass.
        for head in dict.fromkeys(pull.head_sha for pull in pulls_of):
            checks.finish(client, job, head, _without(event.run, "failure", why), called)
        return 1
    if not pulls_of:
        why = f"no open pull request has the head {sha}: it was pushed to, closed or merged"
        outputs.say(f"nothing to do: {why}")
        checks.settle(client, job, sha, _without(event.run, "cancelled", why), called)
        return 0
    (pull,) = pulls_of
    if event.step == "start":
        checks.start(client, job, pull.head_sha, event.run.id, event.run.attempt, called)
        outputs.say(f"run {event.run.id} measures pull request {pull.number}")
        return 0
    # The event's attempt may have been run again since: the API knows.
    run = judging.measuring(client.get(f"actions/runs/{event.run.id}"))
    for _ in range(ROUNDS):
        status, judged = _judge_and_publish(client, inputs, job, pull, run)
        if judged is None:
            break
        # A newer run may have ended, and its report been overtaken by this one.
        latest = judging.newest(client, inputs, judged.heads, judged.run)
        if latest.order <= judged.run.order:
            break
        run = latest
    return status


def _measured_by(client: Client, inputs: Inputs, event: Event) -> list[Pull]:
    """The open pull requests whose head that run measured.

    Their head is its commit, or approvals of ours lie above that: a re-run after an approval is
    of the commit below, and must not leave the approval's check as it was.
    """
    sha = event.run.head_sha
    heads = pulls.open_from(client, event.owner, event.branch)
    exact = [pulls.read(client, number) for number, head in heads.items() if head == sha]
    found = [pull for pull in exact if pull.state == "open" and pull.head_sha == sha]
    if exact:
        return found
    others = (pulls.read(client, number) for number in heads)
    return [
        pull
        for pull in others
        if pull.state == "open"
        and sha in approvals.below(client, inputs, pull.head_sha, pull.merge_base)[0]
    ]


def refresh(client: Client, inputs: Inputs, job: Job, pull: Pull) -> Judged:
    """Judges the head of ``pull`` as it is now, and publishes that: after an approval, say."""
    current = pulls.read(client, pull.number, pull.head_sha)
    _begin_page()
    judged = judging.judge(client, inputs, job, current)
    publish(client, inputs, job, judged)
    return judged


def _judge_and_publish(
    client: Client, inputs: Inputs, job: Job, pull: Pull, run: Measuring
) -> tuple[int, Judged | None]:
    """Exit status, and what was shown (None: there is nothing to show)."""
    try:
        _begin_page()
        judged = judging.judge(client, inputs, job, pull, run)
    except artifacts.Missing as error:
        return _say_missing(client, inputs, job, pull, run, str(error)), None
    except ApiError:
        raise  # GitHub can't be asked or told anything: the job is red, and can be run again
    except TolcalError as error:
        # What is wrong is said where it is looked for, and the comment stays what it was.
        said = _without(run, "failure", str(error))
        checks.finish(client, job, pull.head_sha, said, checks.name(inputs))
        outputs.outputs(job, {"verdict": "failure"})
        raise
    conclusion = publish(client, inputs, job, judged)
    return (1 if conclusion == "failure" else 0), judged


def _say_missing(
    client: Client, inputs: Inputs, job: Job, pull: Pull, run: Measuring, why: str
) -> int:
    """A run without records: nothing was judged, so the check doesn't say that it is good."""
    if run.status != "completed":
        outputs.say(f"nothing to do: run {run.id} is being run again")
        return 0
    conclusion = WITHOUT_RECORDS.get(run.conclusion, "failure")
    if inputs.fail_on == ("never",):
        conclusion = "neutral"
    outputs.say(f"{conclusion}: {why}")
    said = _without(run, conclusion, why)
    checks.finish(client, job, pull.head_sha, said, checks.name(inputs))
    outputs.outputs(job, {"verdict": conclusion})
    return 1 if conclusion == "failure" else 0


def _without(run: Measuring, conclusion: Conclusion, why: str) -> Outcome:
    """The outcome of a run that gave no proposal."""
    return Outcome(
        id=checks.waiting(run.id, run.attempt),
        conclusion=conclusion,
        title="not judged",
        summary=f"{text.plain(why)}\n",
    )


# --- what people read -----------------------------------------------------------------------


def conclude(document: Document, fail_on: tuple[str, ...]) -> Conclusion:
    """``neutral`` is what blocks where nothing shall fail, and a run that judged nothing.

    One in which no kernel ran fails as what blocks does: nothing of it may look like a pass.
    """
    verdict = document.verdict
    findings = verdict.findings if verdict else ()
    blocks = document.blocks or bool(verdict and not verdict.ran)
    kinds = {f.kind for f in findings}
    failing = {
        "regression": blocks,
        "drift": "drift" in kinds,
        "false-positive": "false_positive" in kinds,
        # Also of a control that exceeds its tolerance beside it.
        "check-failed": any(f.checks for f in findings if f.kind not in ("caught", "escaped")),
    }
    if any(failing.get(word) for word in fail_on):
        return "failure"
    return "neutral" if blocks or text.not_judged(verdict) else "success"


def publish(client: Client, inputs: Inputs, job: Job, judged: Judged) -> Conclusion:
    """Files, summary, comment, check and outputs, in that order: the check is what lets pass."""
    document, pull = judged.document, judged.pull
    conclusion = conclude(document, inputs.fail_on)
    comment = FORMATS["comment"](document)
    page = _write_files(inputs, document, comment)
    outputs.summary(job, FORMATS["summary"](document))
    values: dict[str, Any] = {}
    if inputs.comment:
        later = functools.partial(_is_later, client, inputs, judged)
        shown = sticky.upsert(client, job, pull.number, comment, later)
        if shown is None:
            outputs.say("the comment shows a later run or head already and stays")
        else:
            values["comment-url"] = sticky.url(job, pull.number, shown)
    headline = text.headline(document.proposal, document.verdict, document.pull)
    outcome = Outcome(
        id=judged.mark,
        conclusion=conclusion,
        title=headline,
        summary=re.sub(r"\A<!--.*?-->\n", "", comment),
        annotations=checks.annotations_of(document.verdict),
    )
    checks.finish(client, job, pull.head_sha, outcome, checks.name(inputs))
    outputs.outputs(
        job,
        {"verdict": conclusion, **_counts(document), **values, "report-path": page},
    )
    outputs.say(f"pull request {pull.number}: {conclusion}: {headline}")
    return conclusion


def _is_later(client: Client, inputs: Inputs, judged: Judged, shown: sticky.Shown) -> bool:
    """Whether a comment that is there shows something later than what is to be written.

    That is a later run of this pull request, if there is such a run; or the same run for a head
    with approvals that came since, if that is the head by now.
    """
    pull = judged.pull
    if shown.order < judged.run.order:
        return False
    if shown.order == judged.run.order:
        now = client.get(f"pulls/{pull.number}")["head"]["sha"]
        return shown.head not in judged.heads and bool(now == shown.head)
    try:
        run = client.get(f"actions/runs/{shown.run}")
    except NotFound:
        return False
    source = run.get("head_repository") or {}
    return (
        judging.is_measuring(run, inputs)
        and judging.measuring(run).attempt >= shown.attempt
        and (source.get("id"), run.get("head_branch")) == (pull.head_repository_id, pull.head_ref)
    )


def _counts(document: Document) -> dict[str, int | str]:
    findings = document.verdict.findings if document.verdict else ()
    kinds = [f.kind for f in findings]
    return {
        "tightened": sum(c.state == "tighten" for c in document.proposal.cells),
        "newly-caught": len({f.kernel for f in findings if f.kind == "caught" and f.newly}),
        "new-false-positives": kinds.count("false_positive"),
        "regressions": kinds.count("regression"),
        "proposal-digest": document.proposal.digest,
    }


def _begin_page() -> None:
    """Has report.html's scripts put together on another core while the records are judged."""
    with contextlib.suppress(ModuleNotFoundError):  # comes with tolcal[html]
        from tolcal.report import html

        html.begin()


def _write_files(inputs: Inputs, document: Document, comment: str) -> Any:
    """``comment.md``, ``proposal.json`` and ``report.html``; returns the path to look at."""
    inputs.out.mkdir(parents=True, exist_ok=True)
    page = inputs.out / "proposal.json"
    files.replace(page, to_json(document))
    files.replace(inputs.out / "comment.md", comment)
    html = inputs.out / "report.html"
    html.unlink(missing_ok=True)  # of another run
    with contextlib.suppress(ModuleNotFoundError):  # comes with tolcal[html]
        files.replace(html, FORMATS["html"](document))
        page = html
    return page
