"""An answer to a digest that is not the present proposal's: done already, or void and why."""

from __future__ import annotations

from tolcal import tolerances
from tolcal.github import approvals, binding, pulls
from tolcal.github.client import Conflict
from tolcal.github.commands import finding, parse, placing, replies
from tolcal.github.commands.asked import Answer, Asked
from tolcal.github.judging import Judged
from tolcal.github.pulls import Pull
from tolcal.model import Approved, Cell, TolcalError, digest


def answer(
    asked: Asked, command: parse.Approve | parse.Widen | parse.Reject, judged: Judged
) -> Answer:
    """What became of it."""
    commits = approvals.commits_of(asked.client, judged.pull)
    proposal = judged.document.proposal
    earlier = finding.approval(commits, command.digest)
    if earlier is not None and not isinstance(command, parse.Reject):
        done = _done_before(asked, command, earlier, judged.pull)
        if done is not None:
            return done
    now = finding.Parts(
        judged.measured,
        binding.base_digest(judged.pull.base_ref, judged.in_force),
        proposal.history,
        digest("cells", binding.bound_cells(proposal)),
    )
    why = finding.why_stale(asked.client, command.digest, now, judged.pull.head_sha, commits)
    if earlier is not None:
        who, sha = earlier.trailers.by, earlier.sha[:7]
        why = f"{who} approved cells of it in {sha}, which made another state of it; {why}"
    said = replies.stale(command.digest, why, proposal)
    return Answer(said, "confused")


def moved(
    asked: Asked, command: parse.Approve | parse.Widen, judged: Judged, error: Conflict
) -> Answer:
    """The answer when the head was no longer the judged one at the moment of writing.

    Another approval was quicker, or somebody pushed; or our own call had its effect, and its
    answer was lost.
    """
    now = pulls.read(asked.client, asked.number)
    commits = approvals.commits_of(asked.client, now)
    earlier = finding.approval(commits, command.digest)
    done = _done_before(asked, command, earlier, now) if earlier else None
    if done is not None:
        return done
    placing.must_be_as_judged(judged.pull, now)
    raise error


def _done_before(
    asked: Asked, command: parse.Approve | parse.Widen, earlier: finding.Approval, pull: Pull
) -> Answer | None:
    """The answer to what was carried out, maybe by this very job; None if that was less."""
    marks = _marks(asked, command.digest, pull)
    before = approvals.comment_of(asked.client, asked.number, earlier.trailers.comment)
    of_before = None if isinstance(before, str) else before.command
    if not finding.covered(command, of_before, marks):
        return None
    if earlier.trailers.comment == asked.comment:  # a job that was cut, and runs again
        own = ""
        if isinstance(command, parse.Widen):
            own = approvals.own_work(asked.client, pull, asked.said.who)
        notes = replies.notes(own, ())
        return placing.written(asked, list(marks), earlier.sha, earlier.bot, notes)
    at = next((mark.at for mark in marks.values()), "")
    link = replies.commit_link(asked.job, earlier.sha)
    return Answer(replies.done_before(command.digest, earlier.trailers.by, at, link))


def _marks(asked: Asked, proposal: str, pull: Pull) -> dict[Cell, Approved]:
    """Cells of the head's file that are approved under that digest."""
    path = asked.inputs.tolerances
    raw = pulls.file(asked.client, path, pull.head_sha)
    try:
        cells = tolerances.of_text((raw or b"").decode("utf-8"), path)
    except (TolcalError, UnicodeDecodeError):
        return {}  # somebody broke the file since
    return {
        cell: t.approved
        for cell, t in cells.items()
        if t.approved is not None and t.approved.digest == proposal
    }
