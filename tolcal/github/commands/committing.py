"""Approved cells into a commit, and that onto a branch: all of it, or nothing.

The commit is made beside the branch (blob, tree, commit: nobody sees them) with one parent, the
head that was judged, and then the branch is moved to it, fast-forward only. That one call is the
whole effect, and a compare-and-swap on the head: a push in between, of whatever file, refuses it.
No author is given: only so does GitHub sign the commit as the token's bot.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tolcal.github.client import Client, NotFound, quote


class Branch(msgspec.Struct, frozen=True):
    """Where to commit."""

    name: str
    tip: str  # SHA that the commit is made on
    exists: bool = True


class Made(msgspec.Struct, frozen=True):
    """A commit, and the name of the bot whose it is."""

    sha: str
    bot: str


def tip(client: Client, branch: str) -> str | None:
    """The commit that a branch of the repository is at; None if there is no such branch."""
    try:
        found = client.get(_path("ref", branch))
    except NotFound:
        return None
    return str(found["object"]["sha"])


def commit(client: Client, branch: Branch, path: str, text: str, message: str) -> Made:
    """Commits the file's new text onto the branch.

    Raises:
        Conflict: the branch is not at its tip any more. Nothing has changed then.
    """
    # Nothing points to the objects before the last step, so making one twice does no harm.
    below = client.get(f"git/commits/{branch.tip}")
    entry = {"path": path, "mode": "100644", "type": "blob", "content": text}
    tree = client.post(
        "git/trees", {"base_tree": below["tree"]["sha"], "tree": [entry]}, done=_nothing
    )
    body = {"message": message, "tree": tree["sha"], "parents": [branch.tip]}
    made = client.post("git/commits", body, done=_nothing)
    sha = str(made["sha"])
    if branch.exists:
        client.patch(_path("refs", branch.name), {"sha": sha, "force": False})
    else:
        client.post(
            "git/refs",
            {"ref": f"refs/heads/{branch.name}", "sha": sha},
            done=lambda: {"sha": sha} if tip(client, branch.name) == sha else None,
        )
    return Made(sha, str(made["author"]["name"]))


def open_pull(client: Client, owner: str, branch: str, base: str, title: str, body: str) -> int:
    """The open pull request from that branch of the repository; opened if there is none."""

    def known() -> dict[str, Any] | None:
        found = client.pages("pulls", state="open", head=f"{owner}:{branch}", base=base)
        return next(iter(found), None)

    values = {"title": title, "head": branch, "base": base, "body": body}
    found = known() or client.post("pulls", values, done=known)
    return int(found["number"])


def _nothing() -> None:
    return None


def _path(kind: str, branch: str) -> str:
    return f"git/{kind}/heads/" + "/".join(map(quote, branch.split("/")))
