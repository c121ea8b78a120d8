"""``approve``, ``widen`` and ``reject``: this person, this proposal, this state, or why not."""

from __future__ import annotations

import functools

from tolcal.github import judging, pulls, report
from tolcal.github.client import Conflict
from tolcal.github.commands import comments, parse, placing, replies, stale
from tolcal.github.commands.asked import Answer, Asked
from tolcal.github.judging import Judged
from tolcal.github.pulls import Pull
from tolcal.model import Cell, CellProposal, TolcalError
from tolcal.report import text
from tolcal.tolerances import approving


def open_pull(asked: Asked) -> Pull:
    """The pull request; TolcalError unless it is open."""
    pull = pulls.read(asked.client, asked.number)
    if pull.state != "open":
        raise TolcalError(f"pull request {pull.number} is {pull.state}; reopen it first")
    return pull


def approve(asked: Asked, command: parse.Approve | parse.Widen) -> Answer:
    """Writes the cells into the pull request, or for a fork into one of their own."""
    pull = open_pull(asked)
    judged = judging.judge(asked.client, asked.inputs, asked.job, pull)
    proposal = judged.document.proposal
    bound = stale.present(judged)
    if command.digest != bound.digest:
        found = stale.answer(asked, command, judged)
        if isinstance(found, Answer):
            return found
        bound = found
    approving.must_be_approvable(proposal, f"proposal {proposal.digest}")
    cells, left = _chosen(command, judged)
    no = comments.rejection(asked.client, asked.inputs, asked.number, bound.digest)
    if no is not None:
        said = replies.rejected(asked.job, asked.number, bound.digest, no)
        return Answer(said, "confused")
    own = stale.own_work(asked, command, pull)
    if own is not None and not asked.inputs.self_approval:
        raise TolcalError(f"{asked.said.who.login} may not widen tolerances here: {own.text}")
    notes = replies.notes(own, left)
    if not pull.same_repository:
        return placing.for_fork(asked, judged, bound, cells, notes)
    try:
        return placing.on_branch(asked, judged, bound, cells, notes)
    except Conflict as error:
        return stale.moved(asked, command, judged, error)


def reject(asked: Asked, command: parse.Reject) -> Answer:
    """Says that nobody is to approve it, which `approve` looks up.

    What was approved of it before counts no more: `judge` has seen to that already.
    """
    judged = judging.judge(asked.client, asked.inputs, asked.job, open_pull(asked))
    if command.digest != judged.document.proposal.digest:
        return stale.void(asked, command.digest, judged)
    said = replies.rejecting(command.digest, asked.said.who, command.reason)
    again = functools.partial(report.publish, asked.client, asked.inputs, asked.job, judged)
    return Answer(said, then=again)


def _chosen(
    command: parse.Approve | parse.Widen, judged: Judged
) -> tuple[list[CellProposal], list[Cell]]:
    """The cells to write, and those left out because the corpus has no use for them."""
    proposal = judged.document.proposal
    how = f"`/tolcal widen {proposal.digest} OP/DTYPE because REASON`"
    fresh = text.to_approve(proposal)
    if isinstance(command, parse.Widen):
        tighter = {(c.op, c.dtype) for c in fresh} & set(command.cells)
        if tighter:
            raise TolcalError(
                f"{', '.join(approving.by_name(tighter))}: new or tighter, so `/tolcal approve "
                f"{proposal.digest}` takes it"
            )
        names = ["/".join(cell) for cell in command.cells]
        cells = approving.chosen(approving.to_widen(proposal), names, proposal.cells, how)
    elif command.cells:
        cells = approving.chosen(fresh, command.cells, proposal.cells, how)
    else:
        cells = fresh
    if not cells:
        raise TolcalError(f"{proposal.digest} has no cell that is new or tighter")
    known = {(op.name, dtype) for op in judged.ops for dtype in op.dtypes}
    left = [(c.op, c.dtype) for c in cells if (c.op, c.dtype) not in known]
    if len(left) == len(cells):
        names = approving.by_name(left)
        raise TolcalError(f"{', '.join(names)}: not in the corpus of this pull request")
    return [c for c in cells if (c.op, c.dtype) in known], left
