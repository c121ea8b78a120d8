"""Calls on commits, branches and comparisons."""

from __future__ import annotations

from github_server import forms
from github_server.git import GitError
from github_server.routing import Answer, Call, Listing, Refused, route
from github_server.shapes import fill

READ = "contents=read"


def resolve(call: Call, name: str | None) -> str:
    """A branch, tag or sha; 404 with GitHub's words."""
    name = name or call.repository.default_branch
    found = call.repository.git.resolve(name)
    if found is None:
        raise Refused(404, f"No commit found for the ref {name}")
    return found


@route("GET", "commits", READ)
def commits(call: Call) -> Listing:
    """Newest first, of a path if asked for."""
    query, git = call.query, call.repository.git
    paths = ["--", query["path"]] if "path" in query else []
    shas = git.log(resolve(call, query.get("sha")), *paths)
    return Listing(shas, lambda sha: forms.commit(call, git.read(sha)))


@route("GET", "commits/{ref}", READ)
def commit(call: Call) -> Answer:
    """With its files, of which a page has 300."""
    git = call.repository.git
    sha = git.resolve(call.values["ref"])
    if sha is None:
        raise Refused(422, f"No commit found for SHA: {call.values['ref']}")
    found = git.read(sha)
    empty = git.make_tree(None, [])
    changes = git.changes(found.parents[0] if found.parents else empty, sha)
    plus, minus = sum(one.additions for one in changes), sum(one.deletions for one in changes)
    files = [forms.change(one) for one in changes[:300]]
    stats = {"total": plus + minus, "additions": plus, "deletions": minus}
    return Answer(forms.commit(call, found) | {"files": files, "stats": stats})


@route("GET", "commits/{commit_sha}/pulls", "pull_requests=read")
def commit_pulls(call: Call) -> Listing:
    """Pull requests whose head holds the commit and whose base does not."""
    git, sha = call.repository.git, call.values["commit_sha"]
    found = [
        one
        for one in call.repository.pulls.values()
        if sha in git.log(f"{one.base_sha}..{one.head_sha}")
    ]
    return Listing(found, lambda one: forms.pull(call, one))


@route("GET", "branches/{branch}", READ)
def branch(call: Call) -> Answer:
    """A branch."""
    name = call.values["branch"]
    sha = call.repository.git.ref(f"refs/heads/{name}")
    if sha is None:
        raise Refused(404, "Branch not found")
    made = forms.commit(call, call.repository.git.read(sha))
    return Answer(fill("branch-with-protection", {"name": name, "commit": made}))


@route("GET", "compare/{basehead}", READ)
def compare(call: Call) -> Answer | Listing:
    """Merge base to head: at most 300 files, all on page 1; the commits have pages of 250."""
    base_name, dots, head_name = call.values["basehead"].partition("...")
    if not dots:
        raise Refused(404, "Not Found")
    git = call.repository.git
    base, head = _side(call, base_name), _side(call, head_name)
    try:
        merge_base = git.run("merge-base", base, head)
    except GitError:
        raise Refused(404, f"No common ancestor between {base_name} and {head_name}") from None
    ahead = git.log("--reverse", f"{base}..{head}")
    behind = len(git.log(f"{head}..{base}"))
    status = ["identical", "ahead", "behind", "diverged"][bool(ahead) + 2 * bool(behind)]
    changes = git.changes(merge_base, head)[:300] if call.query.get("page", "1") == "1" else []
    around = fill(
        "commit-comparison",
        {
            "base_commit": forms.commit(call, git.read(base)),
            "merge_base_commit": forms.commit(call, git.read(merge_base)),
            "status": status, "ahead_by": len(ahead), "behind_by": behind,
            "total_commits": len(ahead), "files": [forms.change(one) for one in changes],
        },
    )  # fmt: skip
    call.query.setdefault("per_page", "100")
    return Listing(ahead, lambda sha: forms.commit(call, git.read(sha)), "commits", around)


def _side(call: Call, name: str) -> str:
    """One side of a comparison: a ref here, or owner:ref of a fork."""
    owner, colon, ref = name.partition(":")
    if not colon:
        return resolve(call, name)
    for one in call.state.repositories.values():
        related = one is call.repository or one.parent is call.repository
        if related and one.owner.login == owner and (sha := one.git.resolve(ref)):
            call.repository.git.run("fetch", "--quiet", str(one.git.path), sha)
            return sha
    raise Refused(404, "Not Found")
