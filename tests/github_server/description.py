"""Requests and answers checked against GitHub's own description, by openapi-core.

The description alone lets more pass than GitHub does; here unknown fields of a body (see
`prune.py`) and unknown names in a query are refused too.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openapi_core import Config, OpenAPI
from openapi_core.datatypes import RequestParameters
from openapi_core.exceptions import OpenAPIError
from werkzeug.datastructures import Headers, ImmutableMultiDict

from github_server.prune import PRUNED, ROOT

HOST = "https://api.github.com"


class Violation(AssertionError):
    """A request or an answer that GitHub's description doesn't allow."""


@dataclass
class Request:
    """As openapi-core wants it."""

    method: str
    path: str
    parameters: RequestParameters
    body: bytes | None
    content_type: str = "application/json"
    host_url: str = HOST


@dataclass
class Response:
    """As openapi-core wants it."""

    status_code: int
    data: bytes | None
    headers: Headers
    content_type: str = "application/json"


@functools.cache
def document() -> dict[str, Any]:
    """The pruned description."""
    loaded: dict[str, Any] = json.loads(PRUNED.read_text())
    return loaded


@functools.cache
def _openapi() -> OpenAPI:
    # The description itself is GitHub's: validating it takes a second and is no test of ours.
    return OpenAPI.from_dict(document(), config=Config(spec_validator_cls=None))


def operation(template: str, method: str) -> dict[str, Any]:
    """The description of one route: `template` is below the repository, "" itself."""
    path = f"{ROOT}/{template}".rstrip("/")
    try:
        found: dict[str, Any] = document()["paths"][path][method.lower()]
    except KeyError:
        raise Violation(f"{method} {path} is not in the pruned description") from None
    return found


def resolve(node: Any) -> Any:
    """Behind its `$ref`."""
    while "$ref" in node:
        _, _, kind, name = node["$ref"].split("/")
        node = document()["components"][kind][name]
    return node


def request(
    method: str, template: str, path: str, query: Mapping[str, str], body: bytes
) -> Request:
    """The request for `check_response`, itself checked. `path` has its slashes encoded where
    one parameter holds them. Violation.
    """
    described = operation(template, method)
    names = {
        found["name"]
        for found in map(resolve, described.get("parameters", []))
        if found["in"] == "query"
    }
    if unknown := set(query) - names:
        raise Violation(f"{method} {path}: GitHub knows no query {sorted(unknown)}")
    if body and "requestBody" not in described:
        raise Violation(f"{method} {path}: GitHub takes no body here")
    made = Request(
        method.lower(), path, RequestParameters(query=ImmutableMultiDict(query)), body or None
    )
    try:
        _openapi().validate_request(made)
    except OpenAPIError as error:
        raise Violation(f"{method} {path}: {_reasons(error)}") from None
    return made


def check_response(
    made: Request, template: str, status: int, content: bytes, headers: Mapping[str, str]
) -> None:
    """Violation if GitHub wouldn't answer so."""
    answers = operation(template, made.method)["responses"]
    if status >= 400:
        return _check_error(made, status, content)
    if str(status) not in answers:
        raise Violation(f"{made.method} {made.path}: GitHub's description has no {status} here")
    described = resolve(answers[str(status)])
    if "content" not in described:
        if content:
            raise Violation(f"{made.method} {made.path}: GitHub's {status} has no body here")
        return None
    if "application/json" not in described["content"]:
        return None
    try:
        _openapi().validate_response(made, Response(status, content, Headers(dict(headers))))
    except OpenAPIError as error:
        raise Violation(f"{made.method} {made.path} {status}: {_reasons(error)}") from None
    return None


def _check_error(made: Request, status: int, content: bytes) -> None:
    """Errors look all alike; the description has no 403 or 404 for many calls, and for others
    alternatives of which one error fits several.
    """
    found = json.loads(content)
    if not isinstance(found, dict) or not isinstance(found.get("message"), str):
        raise Violation(f"{made.method} {made.path} {status}: no error of GitHub's: {content!r}")


def _reasons(error: BaseException) -> str:
    """The innermost errors, where and what."""
    inner: BaseException | None = error
    while inner is not None:
        found = getattr(inner, "schema_errors", None)
        if found:
            return "; ".join(
                f"{'/'.join(map(str, one.absolute_path)) or 'body'}: {one.message}"[:400]
                for one in found
            )
        error, inner = inner, inner.__cause__
    return f"{type(error).__name__}: {error}"
