"""Approved cells into the file of the right branch."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import msgspec

from tolcal import tolerances
from tolcal.github import approvals, pulls, report, trailers
from tolcal.github.client import Conflict, quote
from tolcal.github.commands import committing, parse, replies
from tolcal.github.commands.asked import Answer, Asked
from tolcal.github.judging import Judged
from tolcal.github.pulls import Pull
from tolcal.github.trailers import Trailers
from tolcal.model import Cell, CellProposal, TolcalError, Tolerance, Tolerances, plural
from tolcal.report import text, transfer
from tolcal.tolerances import approving

#: Times to commit onto a fork's branch that others move.
ATTEMPTS = 3


def on_branch(
    asked: Asked,
    judged: Judged,
    bound: Trailers,
    cells: list[CellProposal],
    notes: list[str],
) -> Answer:
    """Onto the pull request's own branch, while its head is the one that was judged.

    Raises:
        Conflict: it was no longer that at the moment of writing; nothing has changed, unless
            the answer to our own call was lost.
    """
    pull, path = judged.pull, asked.inputs.tolerances
    _must_be_reviewed(asked, pull)
    must_be_as_judged(pull, pulls.read(asked.client, pull.number))
    before = _text(pulls.file(asked.client, path, pull.head_sha), path)
    values = _values(asked, bound, cells, judged.in_force)
    if before is not None:
        _must_hold(tolerances.of_text(before, path), values, judged.in_force, path)
    after = tolerances.edited(before, values, path)
    message = _message(asked, judged, bound, values)
    branch = committing.Branch(pull.head_ref, pull.head_sha)
    made = committing.commit(asked.client, branch, path, after, message)
    return written(asked, list(values), made.sha, made.bot, notes, pull.head_sha)


def written(
    asked: Asked, cells: list[Cell], sha: str, bot: str, notes: Iterable[str], parent: str = ""
) -> Answer:
    """The answer to values that are on the pull request's branch; check and comment follow.

    Args:
        sha: the commit that holds them.
        parent: the commit below it, if it was made just now.
    """
    lead = replies.approved(asked.said, cells, replies.commit_link(asked.job, sha))
    said = "\n\n".join([lead, *notes, *replies.no_workflows(bot)])
    return Answer(said, "rocket", functools.partial(_refresh, asked, sha, parent))


def _refresh(asked: Asked, sha: str, parent: str) -> None:
    now = pulls.read(asked.client, asked.number)
    if now.head_sha == parent:  # GitHub may take a moment to see its own commit
        now = msgspec.structs.replace(now, head_sha=sha)
    report.refresh(asked.client, asked.inputs, asked.job, now)


def for_fork(
    asked: Asked,
    judged: Judged,
    bound: Trailers,
    cells: list[CellProposal],
    notes: list[str],
) -> Answer:
    """Onto a branch of the base repository, with a pull request of its own."""
    client, pull, path = asked.client, judged.pull, asked.inputs.tolerances
    proposal = bound.digest
    name = approvals.fork_branch(pull.number, proposal)
    must_be_as_judged(pull, pulls.read(client, pull.number))
    for attempt in range(ATTEMPTS):
        tip = committing.tip(client, name)
        if tip is not None:
            _must_be_approvals(asked, tip, pull.base_ref, name, proposal)
        start = tip or committing.tip(client, pull.base_ref)
        if start is None:
            raise TolcalError(f"the base branch {pull.base_ref} is gone")
        before = _text(pulls.file(client, path, start), path)
        present = {} if before is None else tolerances.of_text(before, path)
        values = _values(asked, bound, cells, present)
        if not values:
            break
        after = tolerances.edited(before, values, path)
        branch = committing.Branch(name, start, exists=tip is not None)
        try:
            made = committing.commit(
                client, branch, path, after, _message(asked, judged, bound, values)
            )
        except Conflict:  # another approval of the same proposal
            if attempt == ATTEMPTS - 1:
                raise
            continue
        tip = made.sha
        break
    if tip is None:
        raise TolcalError(f"{pull.base_ref} has these values already; update the branch from it")
    title = f"Tolerances approved in #{pull.number}"
    body = replies.body_of_pull(pull, proposal)
    opened = committing.open_pull(client, asked.job.owner, name, pull.base_ref, title, body)
    link = f"{asked.job.server_url}/{asked.job.repository}/pull/{opened}"
    at_tip = approvals.of_commit(client.get(f"commits/{tip}"))
    if not values and not (at_tip and at_tip.comment == asked.comment):
        mark = present[cells[0].op, cells[0].dtype].approved
        by, at = (mark.by, mark.at) if mark else ("", "")
        return Answer(replies.done_before(proposal, by, at, link))
    names = list(values) or [(c.op, c.dtype) for c in cells]
    where = f"{replies.commit_link(asked.job, tip)}: {link}"
    said = replies.approved(asked.said, names, where)
    return Answer("\n\n".join([said, replies.fork(pull), *notes]), "rocket")


def _must_be_approvals(asked: Asked, tip: str, base: str, name: str, proposal: str) -> None:
    """TolcalError if a branch holds anything but approvals of that proposal: its name is no secret.

    What it holds is merged in the bot's name.
    """
    found = asked.client.get(f"compare/{quote(base)}...{tip}")
    above = [approvals.of_commit(commit) for commit in found["commits"]]
    files = [file["filename"] for file in found.get("files") or ()]
    if files not in ([], [asked.inputs.tolerances]) or not all(
        one is not None and one.digest == proposal for one in above
    ):
        raise TolcalError(
            f"the branch {name} holds more than approvals of this proposal; delete it, and comment "
            "again"
        )


def _must_be_reviewed(asked: Asked, pull: Pull) -> None:
    """TolcalError for a head on which a commit is in force at once."""
    if pull.head_ref == asked.client.get("").get("default_branch"):
        raise TolcalError(
            f"the head is {pull.head_ref}, the default branch, where an approval would hold at "
            "once and unreviewed; open the pull request from a branch of its own"
        )


def must_be_as_judged(judged: Pull, now: Pull) -> None:
    """TolcalError if anything that a proposal is bound to has moved."""
    if now.state != "open":
        raise TolcalError(f"it was {now.state} meanwhile; nothing was written")
    if now.head_sha != judged.head_sha:
        raise TolcalError(
            f"the head was pushed to meanwhile, {judged.head_sha[:7]} -> {now.head_sha[:7]}; "
            "nothing was written, and the new head gets a proposal of its own"
        )
    if (now.base_ref, now.merge_base) != (judged.base_ref, judged.merge_base):
        raise TolcalError(
            f"the base changed meanwhile, {judged.base_ref} {judged.merge_base[:7]} -> "
            f"{now.base_ref} {now.merge_base[:7]}; nothing was written, and `/tolcal status` has "
            "the new proposal"
        )


def _text(raw: bytes | None, path: str) -> str | None:
    try:
        return None if raw is None else raw.decode("utf-8")
    except UnicodeDecodeError:
        raise TolcalError(f"{path}: not UTF-8; save the file as UTF-8") from None


def _values(
    asked: Asked, bound: Trailers, cells: list[CellProposal], present: Tolerances
) -> dict[Cell, Tolerance]:
    mark = asked.said.mark(asked.number, bound.digest)
    remedy = "update the branch from its base and let it be measured again"
    return approving.values(cells, present, mark, asked.inputs.tolerances, remedy)


def _must_hold(
    before: Tolerances, values: Mapping[Cell, Tolerance], force: Tolerances, path: str
) -> None:
    """TolcalError for an override by hand, which the file's edit would take out unseen."""
    for cell in values:
        known, there = (t[cell].on if cell in t else {} for t in (force, before))
        if {d: v.value_digest for d, v in there.items()} != {
            d: v.value_digest for d, v in known.items()
        }:
            raise TolcalError(
                f"{path}: {'/'.join(cell)}: its overrides for single devices were changed by hand "
                "in this pull request, and an approval would take them out; restore them first"
            )


def _message(
    asked: Asked, judged: Judged, bound: Trailers, values: Mapping[Cell, Tolerance]
) -> str:
    """The commit's message. No word of a comment is in it: GitHub acts on some (``fixes #1``)."""
    widened = isinstance(asked.said.command, parse.Widen)
    shown = {(c.op, c.dtype): c for c in judged.document.proposal.cells}
    lines = [
        f"{'/'.join(cell)}: {text.scientific(shown[cell].allowed_now)} -> "
        f"{text.scientific(shown[cell].allowed_proposed)} at the median element"
        for cell in sorted(values)
    ]
    lines += [
        f"{line.name}: {text.scientific(line.need.allowed_now)} -> "
        f"{text.scientific(line.need.allowed_proposed)}"
        for cell in sorted(values)
        for line in transfer.overrides(shown[cell])
    ]
    link = replies.comment_link(asked.job, asked.number, asked.comment)
    subject = f"{'Widen' if widened else 'Approve'} {plural(len(values), 'tolerance')}"
    bound = msgspec.structs.replace(bound, comment=asked.comment, by=asked.said.who.login)
    return "\n\n".join(
        [subject, "\n".join(lines), f"Proposal {bound.digest}: {link}", trailers.text(bound)]
    )
