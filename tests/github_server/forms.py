"""The JSON of the objects that several calls give."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from github_server.git import Change, Commit, Person
from github_server.routing import Call
from github_server.shapes import fill
from github_server.state import Artifact, CheckRun, Comment, Pull, Repository, Run, User, stamp

#: Who made a call that the path alone says nothing of.
APP = {"id": 15368, "slug": "github-actions", "name": "GitHub Actions", "node_id": "A_15368"}


def user(one: User) -> dict[str, Any]:
    """An account."""
    return fill(
        "simple-user",
        {"id": one.id, "login": one.login, "type": one.kind, "node_id": f"U_{one.id}"},
    )


def repository(one: Repository, schema: str = "minimal-repository") -> dict[str, Any]:
    """A repository."""
    return fill(
        schema,
        {
            "id": one.id, "name": one.name, "full_name": one.full_name, "owner": user(one.owner),
            "private": one.private, "fork": one.parent is not None,
            "default_branch": one.default_branch, "node_id": f"R_{one.id}",
            "visibility": "private" if one.private else "public",
        },
    )  # fmt: skip


def comment(call: Call, one: Comment) -> dict[str, Any]:
    """A comment."""
    number = one.issue
    path = f"{call.repository.full_name}/pull/{number}#issuecomment-{one.id}"
    return fill(
        "issue-comment",
        {
            "id": one.id, "node_id": f"IC_{one.id}", "body": one.body, "user": user(one.author),
            "created_at": stamp(one.created), "updated_at": stamp(one.updated),
            "url": call.url(f"issues/comments/{one.id}"),
            "html_url": f"https://github.invalid/{path}",
            "issue_url": call.url(f"issues/{number}"), "author_association": "NONE",
            "performed_via_github_app": None,
        },
    )  # fmt: skip


def reaction(one: tuple[int, User, str, float]) -> dict[str, Any]:
    """A reaction."""
    number, author, content, created = one
    return fill(
        "reaction",
        {"id": number, "user": user(author), "content": content, "created_at": stamp(created)},
    )


def pull(call: Call, one: Pull, schema: str = "pull-request-simple") -> dict[str, Any]:
    """A pull request; the whole one counts its commits and files."""
    head, base = one.head_repository, one.repository
    values: dict[str, Any] = {
        "id": one.id, "number": one.number, "state": one.state, "title": one.title,
        "body": one.body, "draft": one.draft, "user": user(one.author), "locked": False,
        "node_id": f"PR_{one.id}", "created_at": stamp(one.created),
        "updated_at": stamp(one.created), "url": call.url(f"pulls/{one.number}"),
        "html_url": f"https://github.invalid/{base.full_name}/pull/{one.number}",
        "closed_at": None if one.state == "open" else stamp(one.created),
        "merged_at": stamp(one.created) if one.merged else None,
        "author_association": "NONE",
        "head": {
            "label": f"{head.owner.login if head else 'unknown'}:{one.head_branch}",
            "ref": one.head_branch, "sha": one.head_sha,
            "user": user(head.owner) if head else None,
            "repo": repository(head, "repository") if head else None,
        },
        "base": {
            "label": f"{base.owner.login}:{one.base_branch}", "ref": one.base_branch,
            "sha": one.base_sha, "user": user(base.owner), "repo": repository(base, "repository"),
        },
    }  # fmt: skip
    if schema == "pull-request":
        merge_base = base.git.run("merge-base", one.base_sha, one.head_sha)
        changes = base.git.changes(merge_base, one.head_sha)
        values |= {
            "merged": one.merged, "mergeable": True, "mergeable_state": "clean",
            "commits": len(base.git.log(f"{merge_base}..{one.head_sha}")),
            "changed_files": len(changes), "additions": sum(c.additions for c in changes),
            "deletions": sum(c.deletions for c in changes),
            "comments": sum(c.issue == one.number for c in base.comments.values()),
        }  # fmt: skip
    return fill(schema, values)


def person(one: Person) -> dict[str, Any]:
    """Author or committer of a commit."""
    seconds = int(one.when.split()[0])
    return {
        "name": one.name, "email": one.email,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)),
    }  # fmt: skip


def verification(call: Call, sha: str) -> dict[str, Any]:
    """Whether GitHub signed it."""
    valid = sha in call.repository.verified
    return {
        "verified": valid, "reason": "valid" if valid else "unsigned",
        "signature": "-----BEGIN PGP SIGNATURE-----" if valid else None,
        "payload": "tree" if valid else None, "verified_at": None,
    }  # fmt: skip


def commit(call: Call, one: Commit) -> dict[str, Any]:
    """A commit with GitHub's accounts; files and stats are those of single commits."""
    author, committer = (call.state.by_email(who.email) for who in (one.author, one.committer))
    return fill(
        "commit",
        {
            "sha": one.sha, "node_id": f"C_{one.sha}", "url": call.url(f"commits/{one.sha}"),
            "author": user(author) if author else None,
            "committer": user(committer) if committer else None,
            "commit": {
                "message": one.message.rstrip("\n"), "author": person(one.author),
                "committer": person(one.committer), "comment_count": 0,
                "tree": {"sha": one.tree, "url": call.url(f"git/trees/{one.tree}")},
                "verification": verification(call, one.sha),
            },
            "parents": [
                {"sha": sha, "url": call.url(f"commits/{sha}"), "html_url": ""}
                for sha in one.parents
            ],
        },
    )  # fmt: skip


def git_commit(call: Call, one: Commit) -> dict[str, Any]:
    """A commit as the git endpoints and PUT contents give it."""
    return fill(
        "git-commit",
        {
            "sha": one.sha, "message": one.message.rstrip("\n"), "author": person(one.author),
            "committer": person(one.committer), "url": call.url(f"git/commits/{one.sha}"),
            "tree": {"sha": one.tree, "url": call.url(f"git/trees/{one.tree}")},
            "parents": [
                {"sha": sha, "url": call.url(f"commits/{sha}"), "html_url": ""}
                for sha in one.parents
            ],
            "verification": verification(call, one.sha),
        },
    )  # fmt: skip


def change(one: Change) -> dict[str, Any]:
    """A file of a difference."""
    values: dict[str, Any] = {
        "filename": one.path, "status": one.status, "sha": one.sha,
        "additions": one.additions, "deletions": one.deletions,
        "changes": one.additions + one.deletions,
    }  # fmt: skip
    if one.before:
        values["previous_filename"] = one.before
    return fill("diff-entry", values)


def run(call: Call, one: Run) -> dict[str, Any]:
    """A workflow run."""
    head = one.head_repository
    actor = user(one.actor or call.repository.owner)
    return fill(
        "workflow-run",
        {
            "id": one.id, "name": one.path.rpartition("/")[2].removesuffix(".yml"),
            "path": one.path, "event": one.event, "head_sha": one.head_sha,
            "head_branch": one.head_branch, "status": one.status, "conclusion": one.conclusion,
            "run_attempt": one.attempt, "run_number": one.id, "created_at": stamp(one.created),
            "updated_at": stamp(one.created), "run_started_at": stamp(one.created),
            "workflow_id": call.repository.workflow(one.path), "display_title": "a change",
            "repository": repository(call.repository), "pull_requests": one.pulls,
            "head_repository": repository(head) if head else None, "actor": actor,
            "triggering_actor": actor, "url": call.url(f"actions/runs/{one.id}"),
            "html_url": f"https://github.invalid/{call.repository.full_name}/actions/runs/{one.id}",
            "head_commit": None,
        },
    )  # fmt: skip


def artifact(call: Call, one: Artifact) -> dict[str, Any]:
    """An artifact: of its run, or of none."""
    found = one.run
    expired = one.expired or one.expires <= call.state.now
    return fill(
        "artifact",
        {
            "id": one.id, "name": one.name, "size_in_bytes": one.size, "expired": expired,
            "created_at": stamp(one.created), "updated_at": stamp(one.created),
            "expires_at": stamp(one.expires), "url": call.url(f"actions/artifacts/{one.id}"),
            "archive_download_url": call.url(f"actions/artifacts/{one.id}/zip"),
            "digest": f"sha256:{hashlib.sha256(one.content).hexdigest()}",
            "workflow_run": found
            and {
                "id": found.id, "repository_id": call.repository.id,
                "head_repository_id": found.head_repository.id if found.head_repository else 0,
                "head_branch": found.head_branch, "head_sha": found.head_sha,
            },
        },
    )  # fmt: skip


def check(call: Call, one: CheckRun) -> dict[str, Any]:
    """A check run."""
    values = one.values
    output = values.get("output", {})
    return fill(
        "check-run",
        {
            "id": one.id, "name": values["name"], "head_sha": one.sha,
            "status": values.get("status", "queued"), "conclusion": values.get("conclusion"),
            "external_id": values.get("external_id", ""), "url": call.url(f"check-runs/{one.id}"),
            "details_url": values.get("details_url"), "started_at": values.get("started_at"),
            "html_url": f"https://github.invalid/{call.repository.full_name}/runs/{one.id}",
            "completed_at": values.get("completed_at"),
            "output": {
                "title": output.get("title"), "summary": output.get("summary"),
                "text": output.get("text"), "annotations_count": len(one.annotations),
                "annotations_url": call.url(f"check-runs/{one.id}/annotations"),
            },
            "app": fill("integration", {**APP, "slug": one.app, "owner": user(call.state.bot)}),
        },
    )  # fmt: skip
