"""Calls on people, pull requests, comments and reactions."""

from __future__ import annotations

from github_server import forms
from github_server.routing import Answer, Call, Listing, Refused, route
from github_server.shapes import fill
from github_server.state import ROLES, Comment, Pull

TALK = "issues={0}; pull_requests={0}"
READ, WRITE = TALK.format("read"), TALK.format("write")


@route("GET", "", "metadata=read")
def repository(call: Call) -> Answer:
    """The repository itself."""
    return Answer(forms.repository(call.repository, "full-repository"))


@route("GET", "collaborators/{username}/permission", "metadata=read")
def permission(call: Call) -> Answer:
    """`permission` knows no maintain and no triage; `role_name` does."""
    user = call.state.users.get(call.values["username"])
    if user is None:
        raise Refused(404, f"{call.values['username']} is not a user")
    # "releaser over maintain" is a custom role, which inherits that one.
    name, _, inherited = call.repository.role(user).partition(" over ")
    role = inherited or name
    steps = list(ROLES)[1:]
    allowed = {
        "push" if step == "write" else "pull" if step == "read" else step:
            role in steps and steps.index(role) >= steps.index(step)
        for step in steps
    }  # fmt: skip
    who = forms.user(user) | {"permissions": allowed, "role_name": name}
    return Answer(
        fill(
            "repository-collaborator-permission",
            {"permission": ROLES[role], "role_name": name, "user": who},
        )
    )


def find_pull(call: Call, name: str = "pull_number") -> Pull:
    """404 if there is none."""
    found = call.repository.pulls.get(call.number(name))
    if found is None:
        raise Refused(404, "Not Found")
    return found


@route("GET", "pulls", "pull_requests=read")
def pulls(call: Call) -> Listing:
    """Newest first; `head` is owner:branch, and others are ignored, as GitHub does."""
    state, head, base = (call.query.get(name, "") for name in ("state", "head", "base"))
    owner, colon, branch = head.partition(":")
    found = [
        one
        for one in reversed(call.repository.pulls.values())
        if state == "all" or one.state == (state or "open")
        if not base or one.base_branch == base
        if not colon
        or (
            one.head_branch == branch
            and one.head_repository is not None
            and one.head_repository.owner.login.lower() == owner.lower()
        )
    ]
    return Listing(found, lambda one: forms.pull(call, one))


@route("POST", "pulls", "pull_requests=write")
def create_pull(call: Call) -> Answer:
    """Of two branches of this repository."""
    body, git = call.body, call.repository.git
    _, _, branch = str(body["head"]).rpartition(":")
    head, base = (git.ref(f"refs/heads/{name}") for name in (branch, body["base"]))
    if head is None or base is None:
        wrong = {"resource": "PullRequest", "field": "head" if base else "base", "code": "invalid"}
        raise Refused(422, "Validation Failed", [wrong])
    if any(
        (one.head_branch, one.base_branch, one.state) == (branch, body["base"], "open")
        for one in call.repository.pulls.values()
    ):
        message = f"A pull request already exists for {call.repository.owner.login}:{branch}."
        raise Refused(422, "Validation Failed", [{"message": message, "code": "custom"}])
    if not git.log(f"{base}..{head}"):
        message = f"No commits between {body['base']} and {branch}"
        raise Refused(422, "Validation Failed", [{"message": message, "code": "custom"}])
    made = call.state.add_pull(
        call.repository, call.repository, branch, body["base"], call.actor,
        body.get("title", ""), body.get("body"), bool(body.get("draft")),
    )  # fmt: skip
    return Answer(forms.pull(call, made, "pull-request"), 201)


@route("GET", "pulls/{pull_number}", "pull_requests=read")
def pull(call: Call) -> Answer:
    """One, whole."""
    return Answer(forms.pull(call, find_pull(call), "pull-request"))


@route("GET", "pulls/{pull_number}/commits", "pull_requests=read")
def pull_commits(call: Call) -> Listing:
    """Oldest first; never more than 250."""
    one = find_pull(call)
    git = call.repository.git
    shas = git.log("--reverse", f"{one.base_sha}..{one.head_sha}")[:250]
    return Listing(shas, lambda sha: forms.commit(call, git.read(sha)))


@route("GET", "pulls/{pull_number}/files", "pull_requests=read")
def pull_files(call: Call) -> Listing:
    """Never more than 3000."""
    one = find_pull(call)
    git = call.repository.git
    base = git.run("merge-base", one.base_sha, one.head_sha)
    return Listing(git.changes(base, one.head_sha)[:3000], forms.change)


@route("GET", "issues/{issue_number}", READ)
def issue(call: Call) -> Answer:
    """A pull request is an issue, too."""
    one = find_pull(call, "issue_number")
    return Answer(
        fill(
            "issue",
            {
                "id": one.id, "number": one.number, "title": one.title, "state": one.state,
                "user": forms.user(one.author), "body": one.body, "locked": False,
                "pull_request": {"url": call.url(f"pulls/{one.number}")},
            },
        )
    )  # fmt: skip


@route("GET", "issues/{issue_number}/comments", READ)
def comments(call: Call) -> Listing:
    """Oldest first."""
    number = call.number("issue_number")
    own = [one for one in call.repository.comments.values() if one.issue == number]
    return Listing(own, lambda one: forms.comment(call, one))


@route("POST", "issues/{issue_number}/comments", WRITE)
def create_comment(call: Call) -> Answer:
    """Bodies end at 65,536 characters."""
    one = find_pull(call, "issue_number")
    made = call.state.add_comment(call.repository, one.number, call.actor, body_of(call))
    return Answer(forms.comment(call, made), 201)


def body_of(call: Call) -> str:
    """422 if it is too long or empty."""
    body = str(call.body.get("body", ""))
    if not body.strip():
        raise Refused(422, "Validation Failed", [{"field": "body", "code": "missing_field"}])
    if len(body) > 65536:
        message = "body is too long (maximum is 65536 characters)"
        raise Refused(422, "Validation Failed", [{"message": message, "code": "unprocessable"}])
    return body


def find_comment(call: Call) -> Comment:
    """404 if there is none."""
    found = call.repository.comments.get(call.number("comment_id"))
    if found is None:
        raise Refused(404, "Not Found")
    return found


@route("GET", "issues/comments/{comment_id}", READ)
def comment(call: Call) -> Answer:
    """One."""
    return Answer(forms.comment(call, find_comment(call)))


@route("PATCH", "issues/comments/{comment_id}", WRITE)
def edit_comment(call: Call) -> Answer:
    """With write permission anyone's may be edited: complaint 20 is that tools do."""
    one = find_comment(call)
    one.body = body_of(call)
    one.updated = call.state.tick()
    return Answer(forms.comment(call, one))


@route("DELETE", "issues/comments/{comment_id}", WRITE)
def delete_comment(call: Call) -> Answer:
    """Gone."""
    del call.repository.comments[find_comment(call).id]
    return Answer(None, 204)


@route("GET", "issues/comments/{comment_id}/reactions", READ)
def reactions(call: Call) -> Listing:
    """Of one comment."""
    return Listing(find_comment(call).reactions, forms.reaction)


@route("POST", "issues/comments/{comment_id}/reactions", WRITE)
def react(call: Call) -> Answer:
    """200 if it was there."""
    one = find_comment(call)
    for known in one.reactions:
        if known[1:3] == (call.actor, call.body["content"]):
            return Answer(forms.reaction(known), 200)
    made = (call.state.id(), call.actor, call.body["content"], call.state.tick())
    one.reactions.append(made)
    return Answer(forms.reaction(made), 201)
