"""GitHub's own description of its API, cut down to the operations that tolcal uses.

``python tests/github_server/prune.py`` fetches the npm package @octokit/openapi (MIT, GitHub's
description, 28 MB) and writes ``tests/data/github-api.json``, which is committed: the tests then
need neither npm nor the network, and a change of the description is a change of a file. The
bodies of requests get ``additionalProperties: false``, so that a misspelt field is refused.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "@octokit/openapi"
VERSION = "23.0.2"
FILE = "package/generated/api.github.com.json"
PRUNED = Path(__file__).parent.parent / "data" / "github-api.json"
#: Below /repos/{owner}/{repo}/
OPERATIONS = (
    "GET actions/artifacts",
    "GET actions/artifacts/{artifact_id}",
    "GET actions/artifacts/{artifact_id}/{archive_format}",
    "GET actions/runs",
    "GET actions/runs/{run_id}",
    "GET actions/runs/{run_id}/artifacts",
    "GET actions/runs/{run_id}/attempts/{attempt_number}",
    "POST actions/runs/{run_id}/rerun",
    "GET actions/workflows/{workflow_id}",
    "GET actions/workflows/{workflow_id}/runs",
    "GET branches/{branch}",
    "GET check-runs/{check_run_id}",
    "GET check-runs/{check_run_id}/annotations",
    "POST check-runs",
    "PATCH check-runs/{check_run_id}",
    "GET collaborators/{username}/permission",
    "GET commits",
    "GET commits/{ref}",
    "GET commits/{ref}/check-runs",
    "GET commits/{commit_sha}/pulls",
    "GET compare/{basehead}",
    "GET contents/{path}",
    "PUT contents/{path}",
    "GET git/blobs/{file_sha}",
    "POST git/blobs",
    "GET git/commits/{commit_sha}",
    "POST git/commits",
    "GET git/ref/{ref}",
    "POST git/refs",
    "PATCH git/refs/{ref}",
    "DELETE git/refs/{ref}",
    "GET git/trees/{tree_sha}",
    "POST git/trees",
    "GET issues/{issue_number}",
    "GET issues/{issue_number}/comments",
    "POST issues/{issue_number}/comments",
    "GET issues/comments/{comment_id}",
    "PATCH issues/comments/{comment_id}",
    "DELETE issues/comments/{comment_id}",
    "GET issues/comments/{comment_id}/reactions",
    "POST issues/comments/{comment_id}/reactions",
    "GET pulls",
    "POST pulls",
    "GET pulls/{pull_number}",
    "GET pulls/{pull_number}/commits",
    "GET pulls/{pull_number}/files",
)
ROOT = "/repos/{owner}/{repo}"
#: The repository itself, without a path below.
WHOLE = ("GET",)
#: Words for people, which no check needs, and discriminators of lists, which OpenAPI has not.
_LEFT_OUT = (
    "description", "summary", "example", "examples", "externalDocs", "tags", "title", "callbacks",
    "discriminator",
)  # fmt: skip


_NULL = {"enum": [None], "nullable": True}


def prune(full: dict[str, Any]) -> dict[str, Any]:
    """Those operations and what they refer to; pruning again changes nothing."""
    paths: dict[str, Any] = {}
    wanted = [(method, ROOT) for method in WHOLE]
    wanted += [
        (method, f"{ROOT}/{path}") for method, path in (one.split(" ") for one in OPERATIONS)
    ]
    for method, path in wanted:
        operation = _strip(full["paths"][path][method.lower()])
        content = operation.get("requestBody", {}).get("content", {})
        for media in content.values():
            media["schema"] = _closed(media["schema"])
        paths.setdefault(path, {})[method.lower()] = operation
    pruned: dict[str, Any] = {
        "openapi": full["openapi"],
        "info": {
            "title": "GitHub REST API, pruned by tests/github_server/prune.py",
            "version": full["info"]["version"],
            "x-source": f"npm {PACKAGE} {VERSION}",
            "license": {"name": "MIT"},
        },
        "servers": full["servers"],
        "paths": paths,
        "components": {},
    }
    waiting, seen = _references(paths), set[str]()
    while waiting:
        reference = waiting.pop()
        if reference in seen:
            continue
        seen.add(reference)
        _, _, kind, name = reference.split("/")
        part = _strip(full["components"][kind][name])
        pruned["components"].setdefault(kind, {})[name] = part
        waiting |= _references(part)
    found = pruned["components"]
    pruned["components"] = {kind: dict(sorted(found[kind].items())) for kind in sorted(found)}
    return pruned


def _strip(node: Any, names: bool = False) -> Any:
    """Without words and extensions; `names`: the keys are names of properties, all kept."""
    if isinstance(node, list):
        return [_strip(one) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    kept = {}
    for key, value in node.items():
        if not names and key in ("enum", "required", "default"):
            kept[key] = value
        elif names or not (key in _LEFT_OUT or key.startswith("x-")):
            kept[key] = _strip(value, names=key in ("properties", "schemas") and not names)
    # What may be null is so meant by GitHub; OpenAPI 3.0 wants the null among the values, too.
    if node.get("nullable") is True and None not in node.get("enum", [None]):
        kept["enum"] = [*node["enum"], None]
    for word in ("oneOf", "anyOf"):
        if node.get("nullable") is True and word in node and _NULL not in node[word]:
            kept[word] = [*kept[word], _NULL]
    # The description of an answer is required by OpenAPI.
    if not names and "description" in node and ("content" in node or "headers" in node):
        kept["description"] = ""
    return kept


def _closed(schema: Any) -> Any:
    """The schema of a request's body, which now refuses fields that it doesn't name."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "properties" not in schema:
        return {key: _closed(value) for key, value in schema.items()}
    # Its alternatives only say more of the same fields: closing them would refuse all others.
    fields = {name: _closed(one) for name, one in schema["properties"].items()}
    return {**schema, "properties": fields, "additionalProperties": False}


def _references(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*(_references(one) for one in node))
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(_references(one) for one in node.values()))
    return set()


def fetch() -> dict[str, Any]:
    """The whole description, by npm. RuntimeError that says what is missing."""
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is not installed: it fetches GitHub's description")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [npm, "pack", "--silent", f"{PACKAGE}@{VERSION}"],
            cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"npm pack {PACKAGE}@{VERSION} failed: {done.stderr[-400:]}")
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            member = archive.extractfile(FILE)
            assert member is not None
            found: dict[str, Any] = json.load(member)
            return found


def render(pruned: dict[str, Any]) -> str:
    """One operation or component a line, so that a difference can be read."""
    head = {key: pruned[key] for key in ("openapi", "info", "servers")}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    groups = {"paths": pruned["paths"], **pruned["components"]}
    blocks = {
        name: "{\n"
        + ",\n".join(f"{json.dumps(key)}: {json.dumps(one)}" for key, one in group.items())
        + "\n}"
        for name, group in groups.items()
    }
    paths = blocks.pop("paths")
    components = ",\n".join(f"{json.dumps(name)}: {block}" for name, block in blocks.items())
    lines += [f'"paths": {paths}', f'"components": {{\n{components}\n}}']
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    PRUNED.write_text(render(prune(fetch())))
