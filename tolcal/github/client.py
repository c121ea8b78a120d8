"""GitHub's REST API for one repository: retries, pages, limits and truthful errors.

Rules (docs.github.com, "Best practices for using the REST API"): rate limits are waited for as
GitHub asks; server errors and faults of the connection are repeated where repeating is safe; a
POST whose answer was lost is looked up before it is repeated, or it would happen twice. The token
travels in one header, to the API's own host alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import quote as percent
from urllib.parse import urljoin, urlsplit

import msgspec
import requests

from tolcal import __version__
from tolcal.github import errors
from tolcal.github.errors import (
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    Trouble,
    Unavailable,
)
from tolcal.github.settings import Job
from tolcal.model import TolcalError

__all__ = ["ApiError", "Client", "Conflict", "Forbidden", "NotFound", "Unavailable", "quote"]

#: Repetitions of one call, and seconds that one call may wait for all of them together.
RETRIES = 5
MAX_WAIT_S = 15 * 60.0
#: Seconds to connect, and between two pieces of an answer.
TIMEOUT_S = (10.0, 60.0)
MAX_BODY = 64 * 2**20
MAX_PAGES = 1000
MAX_REDIRECTS = 3

#: A look-up: what the call should have made, or None if it isn't there.
Done = Callable[[], dict[str, Any] | None]


class Reply(msgspec.Struct, frozen=True):
    """One answer, read whole."""

    status: int
    headers: Mapping[str, str]  # any case
    body: bytes
    own: bool  # from the API's own host


def quote(segment: str) -> str:
    """One segment of a path, whatever it holds: a slash becomes %2F. TolcalError if it would
    climb out of the path.
    """
    if segment in ("", ".", ".."):
        raise TolcalError(f"{segment!r} names no file, branch or user")
    return percent(segment, safe="")


class Client:
    """Calls for one repository; paths are relative to ``/repos/OWNER/NAME/``.

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
        token = token.strip()
        # Anything else would be refused by requests in a message that quotes the header.
        if not token or not all("!" <= letter <= "~" for letter in token):
            raise TolcalError("the token is empty or holds characters that no token has")
        if urlsplit(job.api_url).scheme not in ("http", "https"):
            raise TolcalError(f"GITHUB_API_URL is {job.api_url[:200]!r}, no http address")
        self._token = token
        self._job = job
        self._base = f"{job.api_url}/repos/{job.repository}/"
        self._where = f"{job.repository} at {job.api_url}"
        self._sleep = sleep
        self._clock = clock
        self._session = session or requests.Session()

    def __repr__(self) -> str:
        return f"Client({self._where})"

    def get(self, path: str, /, **query: str | int) -> dict[str, Any]:
        """One object. ApiError and its kinds, as of every call here."""
        return self._object(f"GET {path}", self._request("GET", path, query=query))

    def pages(
        self, path: str, /, key: str | None = None, **query: str | int
    ) -> Iterator[dict[str, Any]]:
        """All elements of all pages; `key` names the list where a page is an object."""
        call = f"GET {path}"
        url = self._url(path)
        parameters: Mapping[str, str | int] = {"per_page": 100, **query}
        seen: set[str] = set()
        for _ in range(MAX_PAGES):
            seen.add(url)
            reply = self._send("GET", url, call, query=parameters)
            yield from self._elements(call, reply, key)
            following = requests.utils.parse_header_links(reply.headers.get("link", ""))
            after = [str(link.get("url", "")) for link in following if link.get("rel") == "next"]
            if not after:
                return
            url, parameters = urljoin(url, after[0]), {}
            if not self._own(url) or url in seen:
                self._wrong(call, "links to a next page elsewhere or to one that was read")
        self._wrong(call, f"has over {MAX_PAGES} pages")

    def post(self, path: str, body: Mapping[str, Any], *, done: Done | None) -> dict[str, Any]:
        """Makes something. `done` looks it up when an answer was lost, before it is made again;
        with None a call whose effect is not known isn't repeated.
        """
        return self._object(
            f"POST {path}", self._request("POST", path, body=body, done=done, safe=False)
        )

    def patch(
        self, path: str, body: Mapping[str, Any], *, done: Done | None = None
    ) -> dict[str, Any]:
        """Sets values: repeating it changes nothing more."""
        return self._object(f"PATCH {path}", self._request("PATCH", path, body=body, done=done))

    def put(
        self, path: str, body: Mapping[str, Any], *, done: Done | None = None
    ) -> dict[str, Any]:
        """Sets values that hold the sha they replace. After a lost answer a repetition is a
        Conflict with our own write, unless `done` finds that.
        """
        return self._object(f"PUT {path}", self._request("PUT", path, body=body, done=done))

    def delete(self, path: str) -> None:
        """Deletes it; that it is gone when a deletion is repeated is good."""
        self._request("DELETE", path)

    def download(self, path: str, limit: int) -> bytes:
        """A file of at most `limit` bytes, from wherever the API sends to; only the API's own
        host sees the token. ApiError if it is longer.
        """
        found = self._send("GET", self._url(path), f"GET {path}", limit=limit, away=True)
        return found.body

    def graphql(self, query: str, /, **variables: Any) -> dict[str, Any]:
        """The data of a query that changes nothing."""
        body = {"query": query, "variables": variables}
        call = "POST graphql"
        document = self._object(call, self._send("POST", self._job.graphql_url, call, body=body))
        data = document.get("data")
        if document.get("errors") or not isinstance(data, dict):
            raise self._graphql_error(call, document.get("errors"))
        return data

    # Below: how a call is made.

    def _url(self, path: str) -> str:
        if any(segment in ("", ".", "..") for segment in path.split("/")) or "?" in path:
            raise TolcalError(f"{path!r} is no path of the API")
        return self._base + path

    def _request(self, method: str, path: str, **options: Any) -> Reply:
        return self._send(method, self._url(path), f"{method} {path}", **options)

    def _send(
        self, method: str, url: str, call: str, *, query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None, done: Done | None = None, safe: bool = True,
        limit: int = MAX_BODY, away: bool = False,
    ) -> Reply:  # fmt: skip
        """One call with its repetitions. `safe`: repeating it does no harm; `away`: another host
        may serve it.
        """
        waited, tried, unclear = 0.0, 0, False
        while True:
            result = self._attempt(method, url, call, query, body, limit, away, tried)
            if isinstance(result, Reply):
                return result
            if method == "DELETE" and unclear and isinstance(result.error, NotFound):
                return Reply(204, {}, b"", own=True)
            unclear = unclear or result.unclear
            wait = result.wait
            if wait is None:
                wait = min(30.0, 2.0**tried) * (0.5 + random.random() / 2)  # noqa: S311
            may = result.again and (safe or done is not None or not unclear)
            last = not may or tried == RETRIES or waited + wait > MAX_WAIT_S
            if last and not (result.unclear and done):
                raise self._final(result, tried, waited, unclear and not safe) from None
            if not last:
                self._sleep(wait)
                waited, tried = waited + wait, tried + 1
            if done is not None and (found := done()) is not None:
                return Reply(200, {}, msgspec.json.encode(found), own=True)
            if last:
                raise self._final(result, tried, waited, False) from None

    def _attempt(
        self, method: str, url: str, call: str, query: Mapping[str, str | int] | None,
        body: Mapping[str, Any] | None, limit: int, away: bool, tried: int,
    ) -> Reply | Trouble:  # fmt: skip
        for _ in range(MAX_REDIRECTS + 1):
            try:
                reply = self._exchange(method, url, call, query, body, limit)
            except requests.exceptions.SSLError as error:
                text = f"the TLS connection failed ({_cause(error)}); see REQUESTS_CA_BUNDLE"
                return Trouble(Unavailable(self._said(call, text), call=call))
            except requests.exceptions.Timeout:
                text = f"no answer within {TIMEOUT_S[1]:.0f} s"
                return self._lost(call, text)
            except (
                requests.exceptions.ConnectionError,
                requests.exceptions.ChunkedEncodingError,
                requests.exceptions.ContentDecodingError,
            ) as error:
                return self._lost(call, f"the connection failed ({_cause(error)})")
            except requests.RequestException as error:
                return Trouble(ApiError(self._said(call, _cause(error)), call=call))
            if reply.status not in (301, 302, 307, 308):
                break
            target = urljoin(url, reply.headers.get("location", ""))
            if not self._own(target) and not (away and self._as_safe(target)):
                self._wrong(call, f"redirects to {urlsplit(target).netloc}, which isn't the API")
            url, query = target, None
        if 200 <= reply.status < 300:
            return reply
        if not reply.own:
            # The store's words: 404 and 410 are what they are, a 403 is an address that expired.
            text = self._said(call, f"the store of the file answered {reply.status}")
            if reply.status in (404, 410):
                return Trouble(NotFound(text, call=call, status=reply.status))
            return Trouble(Unavailable(text, call=call, status=reply.status), again=True)
        return errors.of_reply(
            call, self._where, reply.status, reply.headers, self._mask(reply.body),
            self._clock(), tried,
        )  # fmt: skip

    def _exchange(
        self, method: str, url: str, call: str, query: Mapping[str, str | int] | None,
        body: Mapping[str, Any] | None, limit: int,
    ) -> Reply:  # fmt: skip
        """One request and its answer. The `auth` keeps ~/.netrc from replacing the token."""
        own = self._own(url)
        headers = {"User-Agent": f"tolcal/{__version__}"}
        if own:
            headers |= {
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {self._token}",
                "X-GitHub-Api-Version": "2022-11-28",
            }
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = msgspec.json.encode(body)
        with self._session.request(
            method, url, params=dict(query or {}), data=data, headers=headers, timeout=TIMEOUT_S,
            stream=True, allow_redirects=False, auth=lambda request: request,
        ) as response:  # fmt: skip
            declared = response.headers.get("content-length", "")
            pieces, size = [], int(declared) if declared.isdecimal() else 0
            if size <= limit:
                size = 0
                for piece in response.iter_content(2**16):
                    size += len(piece)
                    if size > limit:
                        break
                    pieces.append(piece)
            if size > limit:
                self._wrong(call, f"has an answer of over {limit} bytes, the most that is read")
            return Reply(response.status_code, response.headers, b"".join(pieces), own)

    def _own(self, url: str) -> bool:
        """Whether the token may go there: the API's scheme, host and port."""
        found = urlsplit(url)
        return any(
            (found.scheme, found.netloc) == (known.scheme, known.netloc)
            for known in (urlsplit(self._job.api_url), urlsplit(self._job.graphql_url))
        )

    def _as_safe(self, url: str) -> bool:
        """No redirect from https to http."""
        return urlsplit(url).scheme in {"https", urlsplit(self._job.api_url).scheme}

    def _elements(self, call: str, reply: Reply, key: str | None) -> list[dict[str, Any]]:
        found = self._decode(call, reply)
        if key is not None:
            found = found.get(key) if isinstance(found, dict) else None
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            self._wrong(call, f"answered {reply.status} with no list of objects")
        return found

    def _object(self, call: str, reply: Reply) -> dict[str, Any]:
        found = self._decode(call, reply) if reply.body.strip() else {}
        if not isinstance(found, dict):
            self._wrong(call, f"answered {reply.status} with no JSON object")
        return found

    def _decode(self, call: str, reply: Reply) -> Any:
        try:
            return msgspec.json.decode(reply.body)
        except (msgspec.DecodeError, RecursionError):
            start = self._mask(reply.body[:60]).decode("utf-8", "replace")
            self._wrong(call, f"answered {reply.status} with what is no JSON, but starts {start!r}")

    def _graphql_error(self, call: str, found: Any) -> ApiError:
        first = found[0] if isinstance(found, list) and found else None
        one = first if isinstance(first, dict) else {}
        kind = {
            "FORBIDDEN": Forbidden, "NOT_FOUND": NotFound, "RATE_LIMITED": Unavailable,
        }.get(str(one.get("type")), ApiError)  # fmt: skip
        said = str(one.get("message") or "no data")
        return kind(self._said(call, f"the query failed: {said}"), call=call, status=200)

    def _lost(self, call: str, text: str) -> Trouble:
        error = Unavailable(self._said(call, text), call=call)
        return Trouble(error, again=True, unclear=True)

    def _final(self, result: Trouble, tried: int, waited: float, unclear: bool) -> ApiError:
        """The error with what was tried."""
        error = result.error
        text = str(error)
        if tried:
            text += f" (repeated {tried} times in {waited:.0f} s)"
        if unclear:
            text += "; whether it took effect is not known"
        return type(error)(text, call=error.call, status=error.status)

    def _said(self, call: str, text: str) -> str:
        return self._mask(f"{call} of {self._where}: {text}".encode()).decode()

    def _wrong(self, call: str, text: str) -> NoReturn:
        raise ApiError(self._said(call, text), call=call) from None

    def _mask(self, text: bytes) -> bytes:
        return text.replace(self._token.encode(), b"***")


def _cause(error: BaseException) -> str:
    """The innermost reason of an error of requests, without the address (it may be signed)."""
    inner: BaseException | None = error
    while inner is not None:
        error = inner
        reason = getattr(inner, "reason", None)
        arguments = [one for one in inner.args if isinstance(one, BaseException)]
        inner = reason if isinstance(reason, BaseException) else next(iter(arguments), None)
    return f"{type(error).__name__}: {error}"[:200]
