"""An answer to a digest that is not the present proposal's: done already, or void and why."""

from __future__ import annotations

import msgspec

from tolcal import tolerances
from tolcal.github import approvals, binding, pulls
from tolcal.github.client import Conflict
from tolcal.github.commands import comments, finding, parse, people, placing, replies
from tolcal.github.commands.asked import Answer, Asked
from tolcal.github.judging import Judged
from tolcal.github.pulls import Pull
from tolcal.github.trailers import Trailers
from tolcal.model import Approved, Cell, TolcalError, digest


def present(judged: Judged) -> Trailers:
    """What the present proposal is bound to; who approves it is yet to be filled in."""
    proposal = judged.document.proposal
    return Trailers(
        head=judged.measured,
        base=binding.base_digest(judged.pull.base_ref, judged.in_force),
        history=proposal.history,
        cells=binding.bound_cells(proposal),
        comment=0,
        by="",
    )


def answer(asked: Asked, command: parse.Approve | parse.Widen, judged: Judged) -> Answer | Trailers:
    """What became of it; or what it is bound to, if just a part of it has been approved so far."""
    commits = approvals.commits_of(asked.client, judged.pull)
    earlier = finding.approval(commits, command.digest)
    if earlier is not None:
        done = _done_before(asked, command, earlier, judged.pull)
        if done is not None:
            return done
        if _continues(earlier.trailers, judged):
            return earlier.trailers
    return void(asked, command.digest, judged)


def _continues(earlier: Trailers, judged: Judged) -> bool:
    """Whether nothing but approvals of that proposal tells its state from the present one."""
    before = {}
    for cell, tolerance in judged.in_force.items():
        mark = tolerance.approved
        of_it = mark is not None and mark.digest == earlier.digest
        was = judged.base_file.get(cell) if of_it else tolerance
        if was is not None:
            before[cell] = was
    base = binding.base_digest(judged.pull.base_ref, before)
    now = msgspec.structs.replace(
        present(judged), base=base, comment=earlier.comment, by=earlier.by
    )
    return now == earlier


def void(asked: Asked, void: str, judged: Judged) -> Answer:
    """Why a digest is not that of the present proposal."""
    commits = approvals.commits_of(asked.client, judged.pull)
    now = present(judged)
    parts = finding.Parts(now.head, now.base, now.history, digest("cells", now.cells))
    why = finding.why_stale(asked.client, void, parts, judged.pull.head_sha, commits)
    earlier = finding.approval(commits, void)
    if earlier is not None:
        who, sha = earlier.trailers.by, earlier.sha[:7]
        why = f"{who} approved cells of it in {sha}, which made another state of it; {why}"
    return Answer(replies.stale(void, why, judged.document.proposal), "confused")


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
    before = comments.read(asked.client, asked.number, earlier.trailers.comment)
    of_before = None if isinstance(before, str) else before.command
    if not marks or not finding.covered(command, of_before, marks):
        return None
    if earlier.trailers.comment == asked.comment:  # a job that was cut, and runs again
        notes = replies.notes(own_work(asked, command, pull), ())
        return placing.written(asked, list(marks), earlier.sha, earlier.bot, notes)
    # The first of the cells that are asked for says by whom; there may be several approvals.
    mark = next(mark for cell, mark in marks.items() if approvals.covers(command, cell))
    link = replies.commit_link(asked.job, earlier.sha)
    return Answer(replies.done_before(command.digest, mark.by, mark.at, link))


def own_work(asked: Asked, command: parse.Command, pull: Pull) -> people.Own | None:
    """Whether a widening is of the commenter's own pull request."""
    if not isinstance(command, parse.Widen):
        return None
    return approvals.own_work(asked.client, pull, asked.said.who)


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
