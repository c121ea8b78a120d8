"""Which cells of a pull request's own ``tolerances.toml`` count: those that a maintainer approved.

A pull request can write anything into its file, so an approval is believed only as far as GitHub
confirms it: the comment that approved, who wrote it and what they may do, and the commit that a
bot made for it, whose trailers hash to the digest that the comment names.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from tolcal import tolerances
from tolcal.github import binding, pulls, trailers
from tolcal.github.client import Client
from tolcal.github.commands import comments, parse, people
from tolcal.github.pulls import Pull
from tolcal.github.settings import Inputs
from tolcal.github.trailers import Trailers
from tolcal.model import Approved, Cell, TolcalError, Tolerance, Tolerances
from tolcal.tolerances.loosening import loosened_anywhere

#: Approval commits on top of each other that are looked through.
MAX_DEPTH = 100
#: What GitHub lists of a pull request's commits, the oldest ones.
MAX_COMMITS = 250


class Checked(msgspec.Struct, frozen=True):
    """Cells of the head that differ from the base's: those that count, and why others don't."""

    counted: Mapping[Cell, Tolerance]
    refused: Mapping[Cell, str]  # why; may quote the file: hostile


def of_commit(commit: Mapping[str, Any]) -> Trailers | None:
    """The approval that a commit, as GitHub's API has it, is; None if it is none of a bot's.

    GitHub signs what a bot commits through the API, and no person's push has that signature. But
    any workflow with a writing token can make such a commit: it proves that an approval was not
    pushed by hand; what proves the approval itself is the comment that names its digest.
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


def below(
    client: Client, inputs: Inputs, head_sha: str, floor: str = ""
) -> tuple[tuple[str, ...], str]:
    """The commits that a run of is a run of that head, the head first; and the measured one.

    A run of what lies below approvals of ours measures the same kernels. A commit is skipped only
    if it changes the tolerance file and nothing else. The measured commit is the newest that is
    no approval; where there are only approvals above ``floor``, the merge base, the head itself.
    """
    sha, heads = head_sha, list[str]()
    for _ in range(MAX_DEPTH):
        if sha == floor:
            return tuple(heads) or (head_sha,), head_sha
        heads.append(sha)
        commit = client.get(f"commits/{sha}")
        files = commit.get("files")
        names = [file.get("filename") for file in files] if isinstance(files, list) else []
        if of_commit(commit) is None or names != [inputs.tolerances]:
            return tuple(heads), sha
        sha = str(commit["parents"][0]["sha"])
    raise TolcalError(f"over {MAX_DEPTH} approvals on top of each other; push a commit of your own")


def measured_head(client: Client, inputs: Inputs, head_sha: str, floor: str = "") -> str:
    """The newest commit of a head that is no approval of ours, as `below` has it."""
    return below(client, inputs, head_sha, floor)[1]


def commits_of(client: Client, pull: Pull) -> list[dict[str, Any]]:
    """The pull request's commits, the oldest first."""
    return list(client.pages(f"pulls/{pull.number}/commits"))


def own_work(client: Client, pull: Pull, who: people.Person) -> people.Own | None:
    """Whether a pull request is that user's own work, or may be; None if it is another's."""
    author = people.Person(pull.author_id, pull.author, pull.author.endswith("[bot]"))
    return people.own_work(who, author, commits_of(client, pull))


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
       which bind the cell to the value that it has now, and it is in all else (evidence, who, when,
       why) as that commit wrote it;
    2. the comment that they name is of this pull request, was never edited, and its first line
       approves or widens that digest and that cell; nobody's comment rejects that digest;
    3. its author may do so today;
    4. it is not looser than the base's; or it was widened, by somebody whose own work this pull
       request is not, in the state that it has now: no commit has been pushed since and the base
       is the same. (A tightening can only make a check stricter, so it outlives a push.)

    A pull request that was opened for a fork's approval is judged by the fork's pull request.
    """
    differing = {cell: t for cell, t in head_file.items() if t != base_file.get(cell)}
    if not differing:
        return Checked({}, {})
    if not pull.same_repository:
        # A fork's own workflows can make signed commits of a bot's, with any message.
        why = "the head is in a fork; values approved for it come with its base branch"
        return Checked({}, dict.fromkeys(differing, why))
    commits = commits_of(client, pull)
    judge = _Judge(client, inputs, pull, base_file)
    counted: dict[Cell, Tolerance] = {}
    refused: dict[Cell, str] = {}
    written: dict[Cell, Tolerance] = {}
    # What a proposal may have been made over: the base, and approvals before it, in their order,
    # those included that have lost their comment since.
    forces: set[str] = set()
    for sha, approval in ((str(c["sha"]), t) for c in commits if (t := of_commit(c)) is not None):
        forces |= {
            binding.base_digest(pull.base_ref, {**base_file, **now}) for now in (counted, written)
        }
        for cell, tolerance in differing.items():
            mark = tolerance.approved
            if mark is None or mark.digest != approval.digest or cell in counted:
                continue
            written[cell] = tolerance
            why = judge.why_not(cell, tolerance, sha, approval, forces)
            if why:
                refused[cell] = why
            else:
                counted[cell] = tolerance
                refused.pop(cell, None)
    for cell, tolerance in differing.items():
        if cell not in counted and cell not in refused:
            refused[cell] = _unapproved(tolerance, base_file.get(cell), len(commits))
    return Checked(counted, {cell: refused[cell] for cell in differing if cell in refused})


def _overrides(tolerance: Tolerance | None) -> dict[str, str]:
    return {d: v.value_digest for d, v in tolerance.on.items()} if tolerance else {}


def _as_said(tolerance: Tolerance, was: Tolerance | None, said: Approved) -> bool:
    """Whether the marks of a cell and of its overrides are those of the approving comment.

    An override that has the base's numbers may be the base's, mark and all. What a widening does
    not widen has no reason; numbers that stay keep the reason that they had.
    """
    for device, values in ((None, tolerance), *tolerance.on.items()):
        before = was if device is None or was is None else was.on.get(device)
        same = before is not None and before.value_digest == values.value_digest
        if device is not None and same and values == before:
            continue
        reasons = {said.reason, None}
        if before is not None and same and before.approved:
            reasons.add(before.approved.reason)
        mark = values.approved
        if mark is None or mark.reason not in reasons:
            return False
        if mark != msgspec.structs.replace(said, value=values.value_digest, reason=mark.reason):
            return False
    return True


def _unapproved(tolerance: Tolerance, was: Tolerance | None, commits: int) -> str:
    if was is not None and was.value_digest == tolerance.value_digest:
        if _overrides(was) != _overrides(tolerance):
            return "its overrides for single devices were changed by hand"
        return "its evidence or its approval was changed by hand"
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

    def __init__(self, client: Client, inputs: Inputs, pull: Pull, base_file: Tolerances) -> None:
        self.client, self.inputs, self.pull, self.base_file = client, inputs, pull, base_file
        ask, partial = functools.cache, functools.partial
        self._comment = ask(partial(comments.read, client))
        self._rejection = ask(partial(comments.rejection, client, inputs))
        self._role = ask(partial(people.role, client))
        self._file = ask(partial(_cells, client, inputs.tolerances))
        self._read = ask(
            lambda number: pull if number == pull.number else pulls.read(client, number)
        )
        self._own = ask(lambda number, who: own_work(client, self._read(number), who))
        self._measured = ask(self._measured_of)

    def why_not(
        self, cell: Cell, tolerance: Tolerance, sha: str, approval: Trailers, forces: set[str]
    ) -> str:
        """Why a cell does not count by the approval that is that commit, "" if it does."""
        was, mark = self.base_file.get(cell), tolerance.approved
        if mark is None or mark.value != tolerance.value_digest:
            return f"its numbers are not those of proposal {approval.digest}"
        if tolerance.whole_digest != approval.value(cell):
            if _overrides(tolerance) != _overrides(was):
                return "its overrides for single devices were changed by hand"
            return f"its numbers are not those of proposal {approval.digest}"
        number = self._number(mark)
        if number is None:
            return "its approval names another pull request"
        no = self._rejection(number, approval.digest)
        if no is not None:
            return f"{no.by} has rejected proposal {approval.digest}"
        comment = self._comment(number, approval.comment)
        if isinstance(comment, str):
            return f"the comment that its commit names is {comment}"
        command = comment.command
        if not isinstance(command, parse.Approve | parse.Widen) or (
            command.digest != approval.digest or not covers(command, cell)
        ):
            return "the comment that its commit names does not approve it"
        said = comment.mark(number, approval.digest)
        # Whoever approved may be called otherwise by now.
        by = approval.by if mark.by == approval.by else said.by
        said = msgspec.structs.replace(said, by=by)
        if not _as_said(tolerance, was, said):
            return "its [approved] table is not what the approving comment says"
        if self._file(sha).get(cell) != tolerance:
            return "it was changed by hand since it was approved"
        verb = "widen" if isinstance(command, parse.Widen) else "approve"
        least, has = people.needed(verb, self.inputs), self._role(comment.who)
        if not people.at_least(has, least):
            return f"{comment.who.login} has the role {has} by now, and {verb} needs {least}"
        if verb == "approve":
            how = loosened_anywhere(cell[1], was, tolerance)
            return f"it is looser than the base's ({how}), which only widen lets in" if how else ""
        return self._why_not_widened(comment.who, number, approval, forces)

    def _why_not_widened(
        self, who: people.Person, number: int, approval: Trailers, forces: set[str]
    ) -> str:
        own = self._own(number, who)
        if own and not self.inputs.self_approval:
            return f"{who.login} may not widen it: {own.text}"
        if approval.head != self._measured(number):
            return (
                f"it was widened for {approval.head[:7]}, and commits were pushed since; it has "
                "to be widened again"
            )
        if approval.base not in forces:
            return "it was widened over another base; it has to be widened again"
        return ""

    def _number(self, mark: Approved) -> int | None:
        """The pull request whose proposal was approved: this one, or that of the fork it is for."""
        number = mark.pr
        if number in (None, self.pull.number):
            return number
        for_fork = self.pull.head_ref == fork_branch(number, mark.digest)
        return number if for_fork and self.pull.files == (self.inputs.tolerances,) else None

    def _measured_of(self, number: int) -> str:
        pull = self._read(number)
        return measured_head(self.client, self.inputs, pull.head_sha, pull.merge_base)


def _cells(client: Client, path: str, sha: str) -> dict[Cell, Tolerance]:
    """The tolerances of a commit; none if they can't be read."""
    raw = pulls.file(client, path, sha)
    try:
        return {} if raw is None else tolerances.of_text(raw.decode("utf-8"), path)
    except (TolcalError, UnicodeDecodeError):
        return {}


def fork_branch(number: int, digest: str) -> str:
    """The branch of the base repository with what was approved for a fork's pull request."""
    return f"tolcal/approve-{number}-{digest}"


def covers(command: parse.Approve | parse.Widen, cell: Cell) -> bool:
    """Whether a command is about that cell."""
    if isinstance(command, parse.Widen):
        return cell in command.cells
    return not command.cells or cell[0] in command.cells or "/".join(cell) in command.cells
