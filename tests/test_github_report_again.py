"""What was approved is measured again, or reported again: the head that counts says the latest."""

from __future__ import annotations

import pytest
from github_desk import WIDEN, Desk, desk
from github_site import BAD, claims, trusted
from github_support import hub
from tests_support import make_stats

from tolcal.github import report

__all__ = ["desk", "hub", "trusted"]

#: What the widening lets in.
NARROW = make_stats(2.0**-25)


def conclusion(desk: Desk) -> str | None:
    """Of the newest check on the pull request's head; None while it is in progress."""
    newest = max(desk.hub.checks(desk.pull.head_sha), key=lambda c: c.id)
    found: str | None = newest.values.get("conclusion")
    return found


def headline(desk: Desk) -> str:
    """That of the one comment on the pull request that shows a verdict."""
    (body,) = (c.body for c in desk.comments if c.body.startswith("<!-- tolcal:v1 "))
    return body.splitlines()[1]


@pytest.mark.parametrize(("stats", "expected"), [(NARROW, "success"), (BAD, "failure")])
def test_a_re_run_after_an_approval(desk: Desk, stats: object, expected: str) -> None:
    """The run is of the commit below the approval, and its verdict is one of the head."""
    desk.ask("maintain", WIDEN)
    assert conclusion(desk) == "success"
    assert desk.pull.head_sha != desk.measured
    desk.run.attempt, desk.run.status = 2, "in_progress"
    assert desk.report(desk.run, "requested") == 0
    assert conclusion(desk) is None  # nothing passes while it is measured again
    desk.run.status = "completed"
    desk.upload(desk.run, claims(1, relu_triton=stats))
    assert desk.report(desk.run) == (expected == "failure")
    assert conclusion(desk) == expected
    assert ("blocked by 1 regression" in headline(desk)) == (expected == "failure")


def test_a_re_run_without_records_after_an_approval(desk: Desk) -> None:
    """Its failure is on the head, too."""
    desk.ask("maintain", WIDEN)
    desk.run.attempt, desk.run.conclusion = 2, "failure"
    assert desk.report(desk.run) == 1
    assert conclusion(desk) == "failure"


@pytest.mark.parametrize(("stats", "expected"), [(NARROW, "success"), (BAD, "failure")])
def test_a_run_of_the_approval_itself(desk: Desk, stats: object, expected: str) -> None:
    """An App's token starts one, and so does reopening: it is newer than the measured commit's."""
    desk.ask("maintain", WIDEN)
    run = desk.measure(desk.pull, claims(77, relu_triton=stats))
    assert desk.report(run) == (expected == "failure")
    assert conclusion(desk) == expected
    assert desk.judged.run.id == run.id
    assert desk.judged.measured == desk.measured  # what was approved is still bound to it


def test_an_old_run_of_a_head_that_was_pushed_over(desk: Desk) -> None:
    """A commit of a person's lies between: the run is of another state."""
    desk.ask("maintain", WIDEN)
    desk.hub.push(desk.pull, {"README.md": "more\n"})
    desk.run.attempt = 2
    desk.upload(desk.run, claims(1, relu_triton=BAD))
    assert desk.report(desk.run) == 0
    assert desk.hub.checks(desk.pull.head_sha) == []


def test_an_approval_overtakes_a_report(desk: Desk) -> None:
    """Complaint 19: of one run, what is shown for the head that it has by now stays."""
    begun = desk.report(desk.run)
    assert begun == 1
    assert "blocked by 1 regression" in headline(desk)
    said = desk.say("maintain", WIDEN)
    job = desk.job(desk.run)
    desk.hub.on("POST graphql", lambda: desk.handle(said))
    report.report(desk.client(), desk.inputs, job)  # is about to write what it found before
    assert desk.pull.head_sha != desk.measured
    assert "no regressions" in headline(desk)
    assert conclusion(desk) == "success"


def test_an_approval_that_was_pushed_over(desk: Desk) -> None:
    """Back at the measured commit the comment of the approval's head is not later."""
    desk.ask("maintain", WIDEN)
    assert "no regressions" in headline(desk)
    desk.hub.main.git.update(f"refs/heads/{desk.pull.head_branch}", desk.measured)
    desk.hub.state.moved(desk.hub.main, desk.pull.head_branch)
    assert desk.report(desk.run) == 1
    assert "blocked by 1 regression" in headline(desk)
