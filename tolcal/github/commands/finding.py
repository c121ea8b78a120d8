"""What became of a digest: approved already, rejected, or void, and by what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tolcal.github import approvals
from tolcal.github.client import Client
from tolcal.github.commands import parse
from tolcal.github.trailers import Trailers
from tolcal.model import Cell

#: Commits of a pull request, the newest first, whose check runs are looked through.
MAX_HEADS = 20
#: The id of a finished check of ours, whatever its name.
_MARK = re.compile(r"[0-9a-f]{16}( [0-9a-f]{16}){3}")


class Approval(msgspec.Struct, frozen=True):
    """A commit that approves a proposal."""

    sha: str
    trailers: Trailers
    bot: str


class Parts(msgspec.Struct, frozen=True):
    """What a proposal was made of."""

    head: str
    base: str
    history: str
    cells: str

    @staticmethod
    def of(head: str, external_id: str) -> tuple[str, Parts] | None:
        """Its digest and parts, from the check run on ``head``; None if it is no finished one."""
        if not _MARK.fullmatch(external_id):
            return None
        digest, base, history, cells = external_id.split(" ")
        return digest, Parts(head, base, history, cells)


def approval(commits: list[dict[str, Any]], digest: str) -> Approval | None:
    """The newest commit that approves cells of that proposal."""
    for commit in reversed(commits):
        known = approvals.of_commit(commit)
        if known is not None and known.digest == digest:
            return Approval(str(commit["sha"]), known, str(commit["author"].get("login") or ""))
    return None


def covered(
    wanted: parse.Approve | parse.Widen, earlier: parse.Command | None, done: Iterable[Cell]
) -> bool:
    """Whether an earlier command did all that is wanted of the same proposal.

    Args:
        wanted: the command of now.
        earlier: the one that was carried out; None if its comment is gone.
        done: cells that are approved under that proposal.
    """
    if isinstance(wanted, parse.Widen):
        return set(wanted.cells) <= set(done)
    if not wanted.cells:  # all; what all were can't be known any more but by the earlier command
        return earlier is None or (isinstance(earlier, parse.Approve) and not earlier.cells)
    names = {name for cell in done for name in (cell[0], "/".join(cell))}
    return set(wanted.cells) <= names


def why_stale(
    client: Client, digest: str, now: Parts, head_sha: str, commits: list[dict[str, Any]]
) -> str:
    """In what a proposal differs from the one of now; for people, no decision hangs on it.

    Args:
        digest: which is not the present one.
        now: of the present proposal; its head is the measured one.
        head_sha: of the pull request, which may have approvals above the measured one.
        commits: the pull request's, the oldest first.
    """
    parents = {str(c["sha"]): c for c in commits}
    heads = dict.fromkeys([head_sha, *(str(c["sha"]) for c in reversed(commits))])
    for sha in list(heads)[:MAX_HEADS]:
        for check_digest, old in _checks(client, sha):
            if check_digest == digest:
                measured = _measured(sha, parents)
                return _difference(msgspec.structs.replace(old, head=measured), now)
    return (
        "it is of no proposal of this pull request's commits: mistyped, another pull request's, "
        "or from before a force push"
    )


def _checks(client: Client, sha: str) -> Iterator[tuple[str, Parts]]:
    path = f"commits/{sha}/check-runs"
    for check in client.pages(path, "check_runs", filter="all"):
        known = Parts.of(sha, str(check.get("external_id") or ""))
        if known is not None:
            yield known


def _measured(sha: str, commits: Mapping[str, dict[str, Any]]) -> str:
    """The commit below the approvals that end at ``sha``."""
    while sha in commits and approvals.of_commit(commits[sha]) is not None:
        sha = str(commits[sha]["parents"][0]["sha"])
    return sha


def _difference(old: Parts, now: Parts) -> str:
    reasons = []
    if old.head != now.head:
        reasons.append(
            f"the head changed, from {old.head[:7]} that it was made for to {now.head[:7]}"
        )
    if old.base != now.base:
        reasons.append("the base changed: its branch, its tolerances, or by an approval")
    if old.history != now.history:
        reasons.append("the history has other records by now")
    if not reasons:
        reasons.append("the proposed values changed")
    return "; ".join(reasons)
