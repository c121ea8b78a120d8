"""Calls on files and on git's own objects."""

from __future__ import annotations

import base64
import binascii
import posixpath
from typing import Any

from github_server import forms
from github_server.commits import READ, resolve
from github_server.git import Entry, GitError, Person
from github_server.routing import Answer, Call, Refused, route
from github_server.shapes import fill

WRITE = "contents=write"
ZERO = "0" * 40


@route("GET", "contents/{path}", READ)
def contents(call: Call) -> Answer:
    """A file, base64 up to 1 MiB and without content above; a folder as a list."""
    path = posixpath.normpath(call.values["path"])
    git, commit_sha = call.repository.git, resolve(call, call.query.get("ref"))
    found = git.entry(commit_sha, path)
    if found is None:
        raise Refused(404, "Not Found")
    mode, kind, sha, size = found
    if kind == "tree":
        below = git.tree(sha)
        return Answer([_listed(f"{path}/{name}", one) for name, one in below.items()])
    if kind == "commit":
        return Answer(_listed(path, found) | {"submodule_git_url": ""})
    data = git.blob(sha)
    if mode == "120000":
        return Answer(fill("content-symlink", _entry(path, found) | {"target": data.decode()}))
    small = len(data) <= 2**20
    return Answer(
        fill(
            "content-file",
            _entry(path, found)
            | {
                "size": size,
                "content": base64.encodebytes(data).decode() if small else "",
                "encoding": "base64" if small else "none",
            },
        )
    )


def _entry(path: str, entry: Entry) -> dict[str, Any]:
    mode, kind, sha, size = entry
    names = {"tree": "dir", "commit": "submodule"}
    return {
        "name": posixpath.basename(path), "path": path, "sha": sha, "size": size or 0,
        "type": "symlink" if mode == "120000" else names.get(kind, "file"),
    }  # fmt: skip


def _listed(path: str, entry: Entry) -> dict[str, Any]:
    links = {"git": None, "html": None, "self": "https://filled.invalid/"}
    filled = dict.fromkeys(("git_url", "html_url", "download_url"))
    return {**_entry(path, entry), **filled, "url": "https://filled.invalid/", "_links": links}


@route("PUT", "contents/{path}", WRITE)
def put_contents(call: Call) -> Answer:
    """A commit on a branch; the blob's sha is compared, and a file that is there needs one."""
    body, git, path = call.body, call.repository.git, call.values["path"]
    branch = body.get("branch", call.repository.default_branch)
    tip = git.ref(f"refs/heads/{branch}")
    if tip is None:
        raise Refused(404, f"Branch {branch} not found")
    try:
        data = base64.b64decode(body["content"], validate=True)
    except binascii.Error:
        raise Refused(422, "content is not valid Base64") from None
    known = git.entry(tip, path)
    if known is not None and "sha" not in body:
        raise Refused(422, 'Invalid request.\n\n"sha" wasn\'t supplied.')
    if "sha" in body and (known is None or known[2] != body["sha"]):
        raise Refused(409, f"{path} does not match {body['sha']}")
    tree = git.make_tree(tip, [(known[0] if known else "100644", path, git.write(data))])
    made = _commit(call, tree, [tip], str(body["message"]))
    git.update(f"refs/heads/{branch}", made, tip)
    call.state.moved(call.repository, branch)
    entry = git.entry(made, path)
    assert entry is not None
    url = call.url(f"contents/{path}")
    links = {"self": url, "git": url, "html": url}
    answer = {
        "content": {
            **_entry(path, entry), "url": url, "html_url": url, "git_url": url,
            "download_url": url, "_links": links,
        },
        "commit": forms.git_commit(call, git.read(made)),
    }  # fmt: skip
    return Answer(answer, 200 if known else 201)


def _commit(call: Call, tree: str, parents: list[str], message: str) -> str:
    """GitHub signs what a bot commits through the API and says no other author of."""
    given = [_given(call, name) for name in ("author", "committer")]
    author = given[0] or call.state.person(call.actor)
    committer = given[1] or given[0] or call.state.person(call.state.web_flow)
    made = call.repository.git.commit(tree, parents, message, author, committer)
    if given == [None, None] and call.actor.kind == "Bot":
        call.repository.verified.add(made)
    return made


def _given(call: Call, name: str) -> Person | None:
    one = call.body.get(name)
    if one is None:
        return None
    return Person(one["name"], one["email"], f"{int(call.state.tick())} +0000")


@route("GET", "git/ref/{ref}", READ)
def ref(call: Call) -> Answer:
    """One, by its whole name."""
    name = f"refs/{call.values['ref']}"
    sha = call.repository.git.ref(name)
    if sha is None or call.repository.git.refs(name).get(name) is None:
        raise Refused(404, "Not Found")
    return Answer(_ref(call, name, sha))


def _ref(call: Call, name: str, sha: str) -> dict[str, Any]:
    kind = call.repository.git.kind(sha)
    return fill("git-ref", {"ref": name, "object": {"sha": sha, "type": kind}})


@route("POST", "git/refs", WRITE)
def create_ref(call: Call) -> Answer:
    """A new branch or tag."""
    git, name, sha = call.repository.git, call.body["ref"], call.body["sha"]
    if not name.startswith("refs/") or name.count("/") < 2:
        raise Refused(422, "Reference name must contain at least three slashes")
    if git.kind(sha) is None:
        raise Refused(422, "Object does not exist")
    try:
        git.update(name, sha, ZERO)
    except GitError:
        raise Refused(422, "Reference already exists") from None
    _after(call, name)
    return Answer(_ref(call, name, sha), 201)


@route("PATCH", "git/refs/{ref}", WRITE)
def update_ref(call: Call) -> Answer:
    """Only forward, unless `force`."""
    git, name, sha = call.repository.git, f"refs/{call.values['ref']}", call.body["sha"]
    old = git.ref(name)
    if old is None:
        raise Refused(422, "Reference does not exist")
    if git.kind(sha) is None:
        raise Refused(422, "Object does not exist")
    if not call.body.get("force") and not git.ancestor(old, sha):
        raise Refused(422, "Update is not a fast forward")
    git.update(name, sha, old)
    _after(call, name)
    return Answer(_ref(call, name, sha))


@route("DELETE", "git/refs/{ref}", WRITE)
def delete_ref(call: Call) -> Answer:
    """Gone."""
    git, name = call.repository.git, f"refs/{call.values['ref']}"
    if git.ref(name) is None:
        raise Refused(422, "Reference does not exist")
    git.run("update-ref", "-d", name)
    _after(call, name)
    return Answer(None, 204)


def _after(call: Call, name: str) -> None:
    if name.startswith("refs/heads/"):
        call.state.moved(call.repository, name.removeprefix("refs/heads/"))


@route("GET", "git/blobs/{file_sha}", READ)
def blob(call: Call) -> Answer:
    """base64, up to 100 MB."""
    git, sha = call.repository.git, call.values["file_sha"]
    if git.kind(sha) != "blob":
        raise Refused(404, "Not Found")
    data = git.blob(sha)
    content = base64.encodebytes(data).decode()
    return Answer(
        fill("blob", {"sha": sha, "size": len(data), "content": content, "encoding": "base64"})
    )


@route("POST", "git/blobs", WRITE)
def create_blob(call: Call) -> Answer:
    """utf-8 or base64."""
    text = call.body["content"]
    data = base64.b64decode(text) if call.body.get("encoding") == "base64" else text.encode()
    return Answer(fill("short-blob", {"sha": call.repository.git.write(data)}), 201)


@route("GET", "git/trees/{tree_sha}", READ)
def tree(call: Call) -> Answer:
    """Of a tree, commit or branch; `recursive` by being there, whatever its value."""
    git, name = call.repository.git, call.values["tree_sha"]
    sha = git.resolve(name) or (name if git.kind(name) == "tree" else None)
    if sha is None:
        raise Refused(404, "Not Found")
    return Answer(_tree(call, git.run("rev-parse", f"{sha}^{{tree}}"), "recursive" in call.query))


def _tree(call: Call, sha: str, recursive: bool) -> dict[str, Any]:
    entries = [
        {"path": path, "mode": mode, "type": kind, "sha": one}
        | ({} if size is None else {"size": size})
        for path, (mode, kind, one, size) in call.repository.git.tree(sha, recursive).items()
    ]
    return fill("git-tree", {"sha": sha, "tree": entries, "truncated": False})


@route("POST", "git/trees", WRITE)
def create_tree(call: Call) -> Answer:
    """Entries over a base tree; a sha of null deletes."""
    git, entries = call.repository.git, []
    for one in call.body["tree"]:
        sha = one.get("sha", ...)
        if sha is ...:
            sha = git.write(one["content"].encode())
        elif sha is not None and git.kind(sha) is None:
            raise Refused(422, f"GitRPC::BadObjectState: {sha}")
        entries.append((one.get("mode", "100644"), one["path"], sha))
    base = call.body.get("base_tree")
    return Answer(_tree(call, git.make_tree(base, entries), False), 201)


@route("GET", "git/commits/{commit_sha}", READ)
def git_commit(call: Call) -> Answer:
    """One."""
    git, sha = call.repository.git, call.values["commit_sha"]
    if git.kind(sha) != "commit":
        raise Refused(404, "Not Found")
    return Answer(forms.git_commit(call, git.read(sha)))


@route("POST", "git/commits", WRITE)
def create_commit(call: Call) -> Answer:
    """On no branch yet."""
    body, git = call.body, call.repository.git
    if git.kind(body["tree"]) != "tree":
        raise Refused(422, "Tree SHA does not exist")
    parents = list(body.get("parents", []))
    if any(git.kind(one) != "commit" for one in parents):
        raise Refused(422, "Parent SHA does not exist or is not a commit object")
    made = _commit(call, body["tree"], parents, body["message"])
    return Answer(forms.git_commit(call, git.read(made)), 201)
