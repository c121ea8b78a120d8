"""Which cells of a pull request's own ``tolerances.toml`` count: those that a maintainer approved.

A pull request can write anything into its file, so an approval is believed only as far as GitHub
confirms it: the comment that approved, who wrote it and what they may do, and the commit that a
bot made for it, whose trailers hash to the digest that the comment names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tolcal.github import binding, trailers
from tolcal.github.client import Client, NotFound
from tolcal.github.commands import parse, people
from tolcal.github.pulls import Pull
from tolcal.github.settings import Inputs
from tolcal.github.trailers import Trailers
from tolcal.model import Approved, Cell, TolcalError, Tolerance, Tolerances
from tolcal.tolerances.loosening import loosened

#: Approval commits on top of each other that are looked through.
MAX_DEPTH = 100
#: What GitHub lists of a pull request's commits, the oldest ones.
MAX_COMMITS = 250


class Checked(msgspec.Struct, frozen=True):
    """Cells of the head that differ from the base's: those that count, and why others don't."""

    counted: Mapping[Cell, Tolerance]
    refused: Mapping[Cell, str]  # why; may quote the file: hostile


class Comment(msgspec.Struct, frozen=True):
    """A comment that holds a command now."""

    command: parse.Command
    who: people.Person
    at: str  # ISO 8601, by GitHub's clock

    def mark(self, pull: int, digest: str) -> Approved:
        """What an approved cell says of it; ``value`` is yet to be filled in."""
        reason = self.command.reason if isinstance(self.command, parse.Widen) else None
        return Approved(self.who.login, self.at, digest, "", pull, reason)


def of_commit(commit: Mapping[str, Any]) -> Trailers | None:
    """The approval that a commit, as GitHub's API has it, is; None if it is none of a bot's.

    GitHub signs what a bot commits through the API, and nobody's push can have that signature.
    """
    details, author = commit.get("commit"), commit.get("author")
    if not isinstance(details, dict) or not isinstance(author, dict):
        return None
    signature = details.get("verification")
    if not isinstance(signature, dict) or signature.get("verified") is not True:
        return None
    if author.get("type") != "Bot" or len(commit.get("parents") or ()) != 1:
        return None
    return trailers.parse(str(details.get("message", "")))


def measured_head(client: Client, inputs: Inputs, head_sha: str) -> str:
    """The newest commit of a head that is no approval of ours: the one that was measured.

    A commit is skipped only if it changes the tolerance file and nothing else.
    """
    for _ in range(MAX_DEPTH):
        commit = client.get(f"commits/{head_sha}")
        files = commit.get("files")
        names = [file.get("filename") for file in files] if isinstance(files, list) else []
        if of_commit(commit) is None or names != [inputs.tolerances]:
            return head_sha
        head_sha = str(commit["parents"][0]["sha"])
    raise TolcalError(f"over {MAX_DEPTH} approvals on top of each other; push a commit of your own")


def commits_of(client: Client, pull: Pull) -> list[dict[str, Any]]:
    """The pull request's commits, the oldest first."""
    return list(client.pages(f"pulls/{pull.number}/commits"))


def own_work(client: Client, pull: Pull, who: people.Person) -> str:
    """Why a pull request is that user's own work, or may be; "" if it is another's."""
    commits = commits_of(client, pull)
    return people.own_work(who, pull.author_id, commits, _ours(commits))


def _ours(commits: list[dict[str, Any]]) -> set[str]:
    return {str(c["sha"]) for c in commits if of_commit(c) is not None}


def comment_of(client: Client, number: int, comment_id: int) -> Comment | str:
    """The command of a comment on that issue as it stands now; or what the comment is instead."""
    try:
        found = client.get(f"issues/comments/{comment_id}")
    except NotFound:
        return "deleted"
    if not str(found.get("issue_url", "")).endswith(f"/issues/{number}"):
        return "of another issue"
    if found.get("created_at") != found.get("updated_at"):
        return "edited"
    command = parse.parse(str(found.get("body") or ""))
    user = found.get("user")
    who = people.person(user) if isinstance(user, dict) else None
    if command is None or who is None or who.bot:
        return "no command of a user's"
    return Comment(command, who, str(found["created_at"]))


def verified(
    client: Client,
    inputs: Inputs,
    pull: Pull,
    head_file: Tolerances,
    base_file: Tolerances,
) -> Checked:
    """Which cells of the head's file count beside those of the merge base's.

    A cell counts if

    1. its approval's digest is that of the trailers of a bot's signed commit of this pull request,
       which bind the cell to the value that it has now;
    2. the comment that they name is of this pull request, was never edited, and its first line
       approves or widens that digest and that cell;
    3. its author may do so today;
    4. it is not looser than the base's; or it was widened, by somebody whose own work this pull
       request is not, in the state that it has now: no commit has been pushed since and the base
       is the same. (A tightening can only make a check stricter, so it outlives a push.)
    """
    differing = {
        cell: tolerance
        for cell, tolerance in head_file.items()
        if _values(tolerance) != _values(base_file.get(cell))
    }
    if not differing:
        return Checked({}, {})
    commits = commits_of(client, pull)
    judge = _Judge(client, inputs, pull, base_file, commits)
    counted: dict[Cell, Tolerance] = {}
    refused: dict[Cell, str] = {}
    # In their order, since a widening is bound to what was in force, earlier approvals included.
    for approval in (t for c in commits if (t := of_commit(c)) is not None):
        force = binding.tolerances_digest({**base_file, **counted})
        for cell, tolerance in differing.items():
            mark = tolerance.approved
            if mark is None or mark.digest != approval.digest or cell in counted:
                continue
            why = judge.why_not(cell, tolerance, mark, approval, force)
            if why:
                refused[cell] = why
            else:
                counted[cell] = tolerance
                refused.pop(cell, None)
    for cell, tolerance in differing.items():
        if cell not in counted and cell not in refused:
            refused[cell] = _unapproved(tolerance, len(commits))
    return Checked(counted, {cell: refused[cell] for cell in differing if cell in refused})


def _values(tolerance: Tolerance | None) -> tuple[str, dict[str, str]] | None:
    """All that judging uses of a cell."""
    return (tolerance.value_digest, _overrides(tolerance)) if tolerance else None


def _overrides(tolerance: Tolerance | None) -> dict[str, str]:
    return {d: v.value_digest for d, v in tolerance.on.items()} if tolerance else {}


def _unapproved(tolerance: Tolerance, commits: int) -> str:
    if tolerance.approved is None:
        return "nobody has approved it"
    if commits >= MAX_COMMITS:
        return f"its approval is not among the first {MAX_COMMITS} commits, which GitHub lists"
    return (
        f"no approval of proposal {tolerance.approved.digest} by a comment on this pull request; "
        "values that were approved elsewhere count once they are merged"
    )


class _Judge:
    """What the cells of one pull request are judged by, asked of GitHub once."""

    def __init__(
        self,
        client: Client,
        inputs: Inputs,
        pull: Pull,
        base_file: Tolerances,
        commits: list[dict[str, Any]],
    ) -> None:
        self.client, self.inputs, self.pull = client, inputs, pull
        self.base_file, self.commits = base_file, commits
        self._comments: dict[int, Comment | str] = {}
        self._roles: dict[int, people.Role] = {}
        self._measured: str | None = None

    def why_not(
        self, cell: Cell, tolerance: Tolerance, mark: Approved, approval: Trailers, force: str
    ) -> str:
        """Why a cell does not count by this approval, "" if it does."""
        was = self.base_file.get(cell)
        if mark.value != tolerance.value_digest or approval.value(cell) != tolerance.value_digest:
            return f"its numbers are not those of proposal {approval.digest}"
        if _overrides(tolerance) != _overrides(was):
            return "its overrides for single devices were changed by hand"
        comment = self._comment(approval.comment)
        if isinstance(comment, str):
            return f"the comment that its commit names is {comment}"
        command = comment.command
        if not isinstance(command, parse.Approve | parse.Widen) or (
            command.digest != approval.digest or not covers(command, cell)
        ):
            return "the comment that its commit names does not approve it"
        said = comment.mark(self.pull.number, approval.digest)
        if mark != msgspec.structs.replace(said, value=mark.value):
            return "its [approved] table is not what the approving comment says"
        verb = "widen" if isinstance(command, parse.Widen) else "approve"
        least, has = people.needed(verb, self.inputs), self._role(comment.who)
        if not people.at_least(has, least):
            return f"{comment.who.login} has the role {has} by now, and {verb} needs {least}"
        if verb == "approve":
            how = loosened(cell[1], was, tolerance) if was else ""
            return f"it is looser than the base's ({how}), which only widen lets in" if how else ""
        return self._why_not_widened(comment.who, approval, force)

    def _why_not_widened(self, who: people.Person, approval: Trailers, force: str) -> str:
        own = people.own_work(who, self.pull.author_id, self.commits, _ours(self.commits))
        if own and not self.inputs.self_approval:
            return f"{who.login} may not widen it: {own}"
        if self._measured is None:
            self._measured = measured_head(self.client, self.inputs, self.pull.head_sha)
        if approval.head != self._measured:
            return (
                f"it was widened for {approval.head[:7]}, and commits were pushed since; it has "
                "to be widened again"
            )
        if approval.base != force:
            return "it was widened over other base tolerances; it has to be widened again"
        return ""

    def _comment(self, comment_id: int) -> Comment | str:
        if comment_id not in self._comments:
            self._comments[comment_id] = comment_of(self.client, self.pull.number, comment_id)
        return self._comments[comment_id]

    def _role(self, who: people.Person) -> people.Role:
        if who.id not in self._roles:
            self._roles[who.id] = people.role(self.client, who)
        return self._roles[who.id]


def covers(command: parse.Approve | parse.Widen, cell: Cell) -> bool:
    """Whether a command is about that cell."""
    if isinstance(command, parse.Widen):
        return cell in command.cells
    return not command.cells or cell[0] in command.cells or "/".join(cell) in command.cells
