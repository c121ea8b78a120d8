"""``tolcal github command``: one new comment on a pull request, from question to reply.

The job runs on the default branch's code and reads the pull request as data. What is not meant
for it (other comments, edits, bots) costs no call; what is gets a reply, whatever it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from tolcal.github import outputs, pulls, report, sticky
from tolcal.github.client import ApiError, Client
from tolcal.github.commands import asking, comments, deciding, parse, people, replies
from tolcal.github.commands.asked import Answer, Asked
from tolcal.github.settings import Inputs, Job
from tolcal.model import TolcalError


class New(msgspec.Struct, frozen=True):
    """A new comment by a person that begins with ``/tolcal``."""

    number: int  # of the pull request
    comment: int


class Gone(msgspec.Struct, frozen=True):
    """A decision whose comment was edited or deleted: what hung on it may not count any more."""

    number: int


def main(inputs: Inputs, job: Job, token: str) -> int:
    """Exit status 0: answered, or nothing to answer. TolcalError if the API failed."""
    return run(Client(job, token), inputs, job)


def run(client: Client, inputs: Inputs, job: Job) -> int:
    """What `main` does, with that client."""
    new = of_event(job)
    if isinstance(new, str):
        outputs.say(f"nothing to do: {new}")
        return 0
    if isinstance(new, Gone):
        return _look_again(client, inputs, job, new)
    said = comments.read(client, new.number, new.comment)
    if isinstance(said, str):  # since it was written: deleted, or edited
        outputs.say(f"the comment is {said}")
        if said == "edited":
            text = replies.refused("the comment was edited; what is asked for takes a new one")
            _reply(client, job, new, Answer(text, "confused"))
        return 0
    asked = Asked(client, inputs, job, new.number, new.comment, said)
    try:
        answer = carry_out(asked)
    except ApiError as error:
        _try_to_say(client, job, new, replies.failed(str(error)))
        raise
    except TolcalError as error:
        answer = Answer(replies.refused(str(error)), "confused")
    _reply(client, job, new, answer)
    if answer.then is not None:
        try:
            answer.then()
        except TolcalError as error:
            text = f"{answer.text}\n\n{replies.not_refreshed(str(error))}"
            _try_to_say(client, job, new, text)
            raise
    return 0


def of_event(job: Job) -> New | Gone | str:
    """The comment that the event is about, or why it is none to answer.

    The pull request is the issue's number: an event of comments has no pull request (complaint
    10). Raises TolcalError for another event, which is a workflow's mistake.
    """
    if job.event != "issue_comment":
        raise TolcalError(
            f"tolcal github command is for the event issue_comment, not {job.event}; see the "
            "workflow's `on`"
        )
    issue, comment = job.payload.get("issue"), job.payload.get("comment")
    if not isinstance(issue, Mapping) or not isinstance(comment, Mapping):
        raise TolcalError("the event has no issue or no comment")
    number, comment_id, user = issue.get("number"), comment.get("id"), comment.get("user")
    if type(number) is not int or type(comment_id) is not int or not isinstance(user, Mapping):
        raise TolcalError("the event's issue or comment lacks its number, id or user")
    if not issue.get("pull_request"):
        return f"#{number} is no pull request"
    if people.person(user).bot:
        return "a bot wrote the comment"
    action, body = job.payload.get("action"), comment.get("body")
    if action == "edited":
        changes = job.payload.get("changes")
        before = changes.get("body") if isinstance(changes, Mapping) else None
        body = before.get("from") if isinstance(before, Mapping) else ""
    command = parse.parse(str(body or ""))
    if action in ("edited", "deleted"):
        decided = isinstance(command, parse.Approve | parse.Widen | parse.Reject)
        return Gone(number) if decided else "only new comments hold commands"
    if action != "created":
        return "only new comments hold commands"
    return New(number, comment_id) if command else f"the first line is not for {parse.PREFIX}"


def _look_again(client: Client, inputs: Inputs, job: Job, gone: Gone) -> int:
    """The check and the comment by what stands now; without a measurement there are none."""
    pull = pulls.read(client, gone.number)
    if pull.state != "open":
        return 0
    try:
        report.refresh(client, inputs, job, pull)
    except ApiError:
        raise
    except TolcalError as error:
        outputs.say(f"nothing to refresh: {error}")
    return 0


def carry_out(asked: Asked) -> Answer:
    """The answer to a command; TolcalError, with the reason, if it can't be done."""
    command, who = asked.said.command, asked.said.who
    approve, widen = (people.needed(verb, asked.inputs) for verb in ("approve", "widen"))
    if isinstance(command, parse.Unknown):
        return Answer(replies.unknown(command.why, approve, widen), "confused")
    if isinstance(command, parse.Help):
        return Answer(replies.help_(approve, widen))
    verb = type(command).__name__.lower()
    least, has = people.needed(verb, asked.inputs), people.role(asked.client, who)
    if not people.at_least(has, least):
        return Answer(replies.may_not(verb, who, has, least), "confused")
    match command:
        case parse.Approve() | parse.Widen():
            return deciding.approve(asked, command)
        case parse.Reject():
            return deciding.reject(asked, command)
        case parse.Explain(cell):
            return asking.explain(asked, cell)
        case parse.Rerun():
            return asking.rerun(asked)
        case parse.Status():
            return asking.status(asked)


def _reply(client: Client, job: Job, new: New, answer: Answer) -> None:
    """One reply to one comment, also when the job runs again; and a reaction, if that can be."""
    body = replies.body(new.comment, answer.text)
    mark = replies.marker(new.comment)

    def known() -> dict[str, Any] | None:
        mine = sticky.mine(client, job, new.number)
        return next(({"id": m.id, "body": m.body} for m in mine if m.body.startswith(mark)), None)

    found = known()
    if found is None:
        client.post(f"issues/{new.number}/comments", {"body": body}, done=known)
    elif found["body"].replace("\r\n", "\n").strip() != body.strip():
        client.patch(f"issues/comments/{found['id']}", {"body": body})
    with contextlib.suppress(ApiError):  # a nicety; the reply has said it
        path = f"issues/comments/{new.comment}/reactions"
        client.post(path, {"content": answer.reaction}, done=None)


def _try_to_say(client: Client, job: Job, new: New, text: str) -> None:
    """A reply about what failed; where even that fails, the job's own error has to do."""
    with contextlib.suppress(ApiError):
        _reply(client, job, new, Answer(text, "confused"))
