"""GitHub's REST API for one repository: retries, pages, limits and truthful errors.

Rules (docs.github.com, "Best practices for using the REST API"): rate limits are waited for as
GitHub asks; server errors and faults of the connection are repeated where repeating is safe; a
POST whose answer was lost is looked up before it is repeated, or it would happen twice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote as percent
from urllib.parse import urlsplit

import msgspec
import requests

from tolcal.github.errors import (
    LIMIT_S,
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    Trouble,
    Unavailable,
)
from tolcal.github.settings import Job
from tolcal.github.transport import Reply, Request, Transport
from tolcal.model import TolcalError

__all__ = ["ApiError", "Client", "Conflict", "Forbidden", "NotFound", "Unavailable", "quote"]

#: Repetitions of one call, and seconds that one call may wait for all of them together.
RETRIES = 5
MAX_WAIT_S = 15 * 60.0
MAX_PAGES = 1000

#: A look-up: what the call should have made, or None if it isn't there.
Done = Callable[[], dict[str, Any] | None]


def quote(segment: str) -> str:
    """One segment of a path, whatever it holds: a slash becomes %2F. TolcalError if it would
    climb out of the path.
    """
    if segment in ("", ".", ".."):
        raise TolcalError(f"{segment!r} names no file, branch or user")
    return percent(segment, safe="")


class Client:
    """Calls for one repository: paths are relative to ``/repos/OWNER/NAME/``, and "" is that.

    `sleep` and `clock` (seconds) are for tests, and so is `session`.
    """

    def __init__(
        self,
        job: Job,
        token: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
        session: requests.Session | None = None,
    ) -> None:
        if urlsplit(job.api_url).scheme not in ("http", "https"):
            raise TolcalError(f"GITHUB_API_URL is {job.api_url[:200]!r}, no http address")
        self._transport = Transport(job, token, session or requests.Session())
        self._base = f"{job.api_url}/repos/{job.repository}"
        self._graphql = job.graphql_url
        self._sleep = sleep
        self._clock = clock

    def __repr__(self) -> str:
        return f"Client({self._transport.where})"

    def get(self, path: str, /, **query: str | int) -> dict[str, Any]:
        """One object. ApiError and its kinds, as of every call here."""
        return self._object(self._request("GET", path, query=query))

    def pages(
        self, path: str, /, key: str | None = None, **query: str | int
    ) -> Iterator[dict[str, Any]]:
        """All elements of all pages; `key` names the list where a page is an object."""
        request = self._request("GET", path, query={"per_page": 100, **query})
        call, seen = request.call, set[str]()
        for _ in range(MAX_PAGES):
            seen.add(request.url)
            found, link = self._send(request, lambda reply: self._elements(call, reply, key))
            yield from found
            if link is None:
                return
            url, own = self._transport.join(call, request.url, link)
            if not own or url in seen:
                text = "the next page is elsewhere, or one that was read"
                raise self._transport.error(call, text)
            request = msgspec.structs.replace(request, url=url, query={})
        raise self._transport.error(call, f"over {MAX_PAGES} pages, the most that are read")

    def post(self, path: str, body: Mapping[str, Any], *, done: Done | None) -> dict[str, Any]:
        """Makes something. `done` looks it up when an answer was lost, before it is made again;
        with None a call whose effect is not known isn't repeated.
        """
        return self._object(self._request("POST", path, body=body), done, safe=False)

    def patch(
        self, path: str, body: Mapping[str, Any], *, done: Done | None = None
    ) -> dict[str, Any]:
        """Sets values: repeating it changes nothing more."""
        return self._object(self._request("PATCH", path, body=body), done)

    def delete(self, path: str) -> None:
        """Deletes it; that it is gone when a deletion is repeated is good."""
        self._send(self._request("DELETE", path), lambda reply: None)

    def download(self, path: str, limit: int) -> bytes:
        """A file of at most `limit` bytes, from wherever the API sends to; only the API's own
        host sees the token. ApiError if it is longer.
        """
        request = self._request("GET", path, limit=limit, away=True)
        content: bytes = self._send(request, lambda reply: reply.body)
        return content

    def graphql(self, query: str, /, **variables: Any) -> dict[str, Any]:
        """The data of a query that changes nothing."""
        body = {"query": query, "variables": variables}
        request = Request("POST graphql", self._graphql, body=body)
        data: dict[str, Any] = self._send(request, lambda reply: self._data(request.call, reply))
        return data

    # Below: how a call is made.

    def _request(self, method: str, path: str, **options: Any) -> Request:
        if path and (
            any(part in ("", ".", "..") for part in path.split("/")) or set(path) & set("?#\\")
        ):
            raise TolcalError(f"{path!r} is no path of the API")
        return Request(
            f"{method} {path or 'repository'}", f"{self._base}/{path}".rstrip("/"), **options
        )

    def _object(
        self, request: Request, done: Done | None = None, safe: bool = True
    ) -> dict[str, Any]:
        def read(reply: Reply) -> Any:
            found = self._decode(request.call, reply) if reply.body.strip() else {}
            if isinstance(found, dict | Trouble):
                return found
            return self._unread(request.call, reply, "no JSON object")

        made: dict[str, Any] = self._send(request, read, done, safe)
        return made

    def _send(
        self, request: Request, read: Callable[[Reply], Any], done: Done | None = None,
        safe: bool = True,
    ) -> Any:  # fmt: skip
        """One call with its repetitions, as `read` takes its answer (a Trouble is none).

        `safe`: repeating it does no harm.
        """
        waited, tried, unclear = 0.0, 0, False
        while True:
            result = self._transport.attempt(request, self._clock(), tried)
            if isinstance(result, Reply):
                value = read(result)
                if not isinstance(value, Trouble):
                    return value
                result = value
            if request.method == "DELETE" and unclear and isinstance(result.error, NotFound):
                return None
            unclear = unclear or result.unclear
            wait = result.wait
            if wait is None:
                wait = min(30.0, 2.0**tried) * (0.5 + random.random() / 2)  # noqa: S311
            may = result.again and (safe or done is not None or not unclear)
            last = not may or tried == RETRIES or waited + wait > MAX_WAIT_S
            if not last:
                self._sleep(wait)
                waited, tried = waited + wait, tried + 1
            final = _final(result.error, tried, waited)
            if done is not None and (unclear or not last):
                try:
                    found = done()
                except ApiError as error:
                    raise _also(final, f"; looking it up failed, too: {error}") from None
                if found is not None:
                    return found
            elif unclear and not safe:
                final = _also(final, "; whether it took effect is not known")
            if last:
                raise final from None

    def _decode(self, call: str, reply: Reply) -> Any:
        try:
            return msgspec.json.decode(reply.body)
        except (msgspec.DecodeError, RecursionError):
            start = self._transport.mask(reply.body)[:40].decode("utf-8", "replace")
            return self._unread(call, reply, f"what is no JSON, but starts {start!r}")

    def _unread(self, call: str, reply: Reply, text: str) -> Trouble:
        """A success whose answer is of no use: what it did is not known."""
        text = f"GitHub answered {reply.status} with {text}"
        return Trouble(self._transport.error(call, text, reply.status), unclear=True)

    def _elements(
        self, call: str, reply: Reply, key: str | None
    ) -> tuple[list[dict[str, Any]], str | None] | Trouble:
        """The elements of a page, and the link to the next one."""
        found = self._decode(call, reply)
        if isinstance(found, Trouble):
            return found
        if key is not None:
            found = found.get(key) if isinstance(found, dict) else None
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            return self._unread(call, reply, "no list of objects")
        links = requests.utils.parse_header_links(reply.headers.get("link", ""))
        after = [str(link.get("url", "")) for link in links if link.get("rel") == "next"]
        return found, after[0] if after else None

    def _data(self, call: str, reply: Reply) -> dict[str, Any] | Trouble:
        """What a query gives; its errors arrive with status 200."""
        document = self._decode(call, reply)
        if isinstance(document, Trouble):
            return document
        data = document.get("data") if isinstance(document, dict) else None
        found = document.get("errors") if isinstance(document, dict) else None
        if isinstance(data, dict) and not found:
            return data
        first = found[0] if isinstance(found, list) and found else None
        one = first if isinstance(first, dict) else {}
        said = str(one.get("message") or "it gave no data")
        text = str(self._transport.error(call, f"the query failed: {said}"))
        if one.get("type") == "RATE_LIMITED":
            error = Unavailable(text, call=call, status=reply.status)
            return Trouble(error, again=True, wait=LIMIT_S)
        kinds = {"FORBIDDEN": Forbidden, "NOT_FOUND": NotFound}
        kind = kinds.get(str(one.get("type")), ApiError)
        return Trouble(kind(text, call=call, status=reply.status))


def _final(error: ApiError, tried: int, waited: float) -> ApiError:
    """The error with what was tried."""
    return _also(error, f" (repeated {tried} times in {waited:.0f} s)" if tried else "")


def _also(error: ApiError, text: str) -> ApiError:
    """The same error with more words."""
    return type(error)(f"{error}{text}", call=error.call, status=error.status)
