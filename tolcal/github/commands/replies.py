"""The words of replies, as Markdown; whatever comes from people or files is inert in them.

Every reply begins with a marker that names the comment it answers, so that a job that runs again
finds its reply and does not write a second one.
"""

from __future__ import annotations

from collections.abc import Iterable

from tolcal.github.commands import parse, people
from tolcal.github.commands.comments import Comment, Rejection
from tolcal.github.pulls import Pull
from tolcal.github.settings import Job
from tolcal.model import Cell, Proposal, plural
from tolcal.report import text
from tolcal.tolerances import approving

#: GitHub refuses more than 65,536 bytes; a reply is short, whatever is quoted in it.
MAX_BYTES = 60_000
HELP = """\
As the first line of a new comment:

| command | does | needs |
|---|---|---|
| `/tolcal approve DIGEST [OP[/DTYPE] ...]` | lets in what is new or tighter | {approve} |
| `/tolcal widen DIGEST OP/DTYPE ... because REASON` | loosens cells | {widen}, no author |
| `/tolcal reject DIGEST [because REASON]` | nobody may approve that proposal | {approve} |
| `/tolcal status` | what can be approved, and what is | read |
| `/tolcal explain OP/DTYPE` | why a tolerance is what it is | read |
| `/tolcal rerun` | measures again | {approve} |
| `/tolcal help` | this | |

DIGEST is in tolcal's comment above, in the lines to copy."""


def marker(comment: int) -> str:
    """The first line of the reply to that comment."""
    return f"<!-- tolcal:reply {comment} -->"


def body(comment: int, said: str) -> str:
    """A whole reply."""
    whole = f"{marker(comment)}\n{said.strip()}\n"
    raw = whole.encode()
    return whole if len(raw) <= MAX_BYTES else raw[:MAX_BYTES].decode("utf-8", "ignore") + "…\n"


def cells(names: Iterable[Cell]) -> str:
    """``softmax/float16`` and the others as code, at most 50 of them."""
    known = sorted(names)
    shown = ", ".join(text.code("/".join(cell)) for cell in known[:50])
    return shown + (f" and {len(known) - 50} more" if len(known) > 50 else "")


def commit_link(job: Job, sha: str) -> str:
    """A commit, linked."""
    return f"[{text.code(sha[:7])}]({job.server_url}/{job.repository}/commit/{text.ident(sha)})"


def comment_link(job: Job, number: int, comment: int) -> str:
    """Where a comment is shown."""
    return f"{job.server_url}/{job.repository}/pull/{number}#issuecomment-{comment}"


def help_(approve: people.Role, widen: people.Role) -> str:
    """All commands."""
    return HELP.format(approve=approve, widen=widen)


def unknown(why: str, approve: people.Role, widen: people.Role) -> str:
    """An answer to what is no command."""
    return f"Not understood: {text.plain(why)}.\n\n{help_(approve, widen)}"


def may_not(verb: str, who: people.Person, has: people.Role, least: people.Role) -> str:
    """A role that is not enough."""
    return (
        f"Not done: {verb} needs the role {least} on this repository, and {text.code(who.login)} "
        f"has {has}."
    )


def refused(why: str) -> str:
    """What could not be done, with the reason in the words of an error."""
    return f"Not done: {_sentence(why)}"


def _sentence(words: str) -> str:
    inert = text.plain(words)
    return inert if inert.endswith(("?", "!", ".")) else f"{inert}."


def failed(why: str) -> str:
    """The API failed on the way; whether before or after the values were written, all is whole."""
    return (
        f"This stopped on the way: {_sentence(why)} Nothing is half done: re-run "
        "this comment's job, or comment again, and it goes on from there."
    )


def stale(digest: str, why: str, now: Proposal) -> str:
    """A digest that is not the present proposal's."""
    return (
        f"Not done: {text.code(digest)} is not the present proposal, which is "
        f"{text.code(now.digest)}: {text.plain(why)}.\n\n{to_copy(now)}"
    )


def to_copy(proposal: Proposal) -> str:
    """What can be done with a proposal, to copy."""
    fresh, wider = text.to_approve(proposal), approving.to_widen(proposal)
    digest = text.ident(proposal.digest)
    lines = [f"/tolcal approve {digest}"] if fresh else []
    names = [f"{text.ident(c.op)}/{text.ident(c.dtype)}" for c in wider[:20]]
    lines += [f"/tolcal widen {digest} {name} because REASON" for name in names]
    if not lines:
        return "There is nothing in it to approve or to widen."
    said = [f"{plural(len(fresh), 'cell')} to approve"] if fresh else []
    said += [f"{plural(len(wider), 'cell')} that would be looser"] if wider else []
    block = "\n".join(lines)
    return f"In it: {', '.join(said)}.\n\n```\n{block}\n```"


def rejected(job: Job, number: int, digest: str, by: Rejection) -> str:
    """A proposal that somebody rejected."""
    because = f" because {text.plain(by.reason)}" if by.reason else ""
    return (
        f"Not done: {text.code(by.by)} has [rejected]({comment_link(job, number, by.comment)}) "
        f"{text.code(digest)}{because}. It can be approved once that comment is deleted or edited."
    )


def rejecting(digest: str, who: people.Person, reason: str) -> str:
    """A rejection."""
    because = f" because {text.plain(reason)}" if reason else ""
    return (
        f"Rejected: {text.code(digest)}, by {text.code(who.login)}{because}. Nobody can approve it "
        "while that comment stands as it is; the next push, or a newer history, brings another "
        "proposal."
    )


def done_before(digest: str, by: str, at: str, where: str) -> str:
    """A command that was carried out before; ``where`` is Markdown."""
    when = f" at {text.code(at)}" if at else ""
    return f"Done already: {text.code(digest)} was approved by {text.code(by)}{when} in {where}."


def approved(said: Comment, names: Iterable[Cell], where: str) -> str:
    """What was written, for whom, and where (Markdown)."""
    names = list(names)
    command = said.command
    because = ""
    if isinstance(command, parse.Widen):
        because = f" because {text.plain(command.reason)}"
    verb = "Widened" if because else "Approved"
    return (
        f"{verb} for {text.code(said.who.login)}{because}: {plural(len(names), 'cell')} "
        f"({cells(names)}) in {where}."
    )


def no_workflows(bot: str) -> list[str]:
    """What a commit by the workflow's own token lacks; nothing for an App's."""
    if bot not in ("github-actions[bot]", "github-actions"):
        return []
    return [
        "This commit was made with GITHUB_TOKEN, and such commits start no workflows: tolcal's "
        "check is on the new head, other required checks are not. With an App's token as the "
        "action's input `token` they run; or close and reopen this pull request, or push to it."
    ]


def fork(pull: Pull) -> str:
    """What to do with the values of a fork."""
    return (
        f"The head is in a fork ({text.code(pull.head_repository or 'deleted')}), to which this "
        f"job can't push. Merge that pull request into {text.code(pull.base_ref)}; once this one's "
        "author has brought it in here, the values count. A pull request opened with "
        "GITHUB_TOKEN starts no workflows until somebody closes and reopens it; with an App's "
        "token as the action's input `token` they start."
    )


def body_of_pull(pull: Pull, digest: str) -> str:
    """The text of the pull request with a fork's values."""
    return (
        f"Cells of proposal {text.code(digest)}, approved by comment on #{pull.number}, whose head "
        "is in a fork. Each commit names its comment, and each cell who approved it and why.\n"
    )


def notes(own: people.Own | None, left: Iterable[Cell]) -> list[str]:
    """What else is to be said of an approval.

    Args:
        own: why it is the approver's own work, if it is.
        left: cells that were left out.
    """
    lines = []
    if own is not None:
        lines.append(
            f"**Widened by an author**: {text.plain(own.why)}, which this repository lets pass "
            "(the action's input `self-approval`)."
        )
    left = list(left)
    if left:
        lines.append(f"Left out, since the corpus has no use for them: {cells(left)}.")
    return lines


def not_refreshed(why: str) -> str:
    """The values are in, and the check or the comment could not be brought up to date."""
    return (
        "The check and the comment could not be brought up to date: "
        f"{_sentence(why)} Re-running the job of this comment does that."
    )
