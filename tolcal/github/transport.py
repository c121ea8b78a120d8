"""One request to GitHub and its answer: where the token may go, how much is read, what failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
import requests

from tolcal import __version__
from tolcal.github import errors
from tolcal.github.errors import ApiError, NotFound, Trouble, Unavailable
from tolcal.github.settings import Job
from tolcal.model import TolcalError

#: Seconds to connect, and between two pieces of an answer.
TIMEOUT_S = (10.0, 60.0)
MAX_REDIRECTS = 3
#: An answer that is not a file, in bytes after decompression.
MAX_BODY = 64 * 2**20
MAX_ERROR = 2**16


class Request(msgspec.Struct, frozen=True):
    """One call."""

    call: str  # for people: "GET pulls/41"
    url: str
    query: Mapping[str, str | int] = {}
    body: Mapping[str, Any] | None = None
    limit: int = MAX_BODY  # bytes that are read of the answer
    away: bool = False  # whether another host may serve it

    @property
    def method(self) -> str:
        """GET, POST, …"""
        return self.call.partition(" ")[0]


class Reply(msgspec.Struct, frozen=True):
    """One answer, read whole."""

    status: int
    headers: Mapping[str, str]  # of any case
    body: bytes
    own: bool  # from the API's own host


class Transport:
    """Requests with the token in one header, and only to the API's own host."""

    def __init__(self, job: Job, token: str, session: requests.Session) -> None:
        token = token.strip()
        # Anything else would be refused by requests in a message that quotes the header.
        if not token or not all("!" <= letter <= "~" for letter in token):
            raise TolcalError("the token is empty or holds characters that no token has")
        self._token = token
        self._session = session
        self._origins = {_origin(job.api_url), _origin(job.graphql_url)}
        self.where = f"{job.repository} at {job.api_url}"

    def attempt(self, request: Request, now: float, tried: int) -> Reply | Trouble:
        """One attempt, redirects followed. ApiError for what no repetition mends."""
        for _ in range(MAX_REDIRECTS + 1):
            try:
                reply = self._exchange(request)
            except requests.exceptions.SSLError as error:
                text = f"the TLS connection failed ({_cause(error)}); see REQUESTS_CA_BUNDLE"
                return Trouble(self.unavailable(request.call, text))
            except requests.exceptions.Timeout:
                text = f"no answer within {TIMEOUT_S[1]:g} s"
                return Trouble(self.unavailable(request.call, text), again=True, unclear=True)
            except (
                requests.exceptions.ConnectionError,
                requests.exceptions.ChunkedEncodingError,
                requests.exceptions.ContentDecodingError,
            ) as error:
                text = f"the connection failed ({_cause(error)})"
                return Trouble(self.unavailable(request.call, text), again=True, unclear=True)
            except (requests.RequestException, ValueError) as error:
                # ValueError: requests itself parses a redirect that nobody follows.
                text = f"the call or its answer is malformed ({_cause(error)})"
                return Trouble(self.error(request.call, text))
            if reply.status not in (301, 302, 307, 308):
                break
            request = self._redirected(request, reply)
        if 200 <= reply.status < 300:
            return reply
        if reply.own:
            body = self.mask(reply.body)
            return errors.of_reply(
                request.call, self.where, reply.status, reply.headers, body, now, tried
            )
        # A store's words are no use; its 404 and 410 are, and a 403 is an address that expired.
        text = f"the store of the file answered {reply.status}"
        if reply.status in (404, 410):
            found = NotFound(self._said(request.call, text), call=request.call, status=reply.status)
            return Trouble(found)
        return Trouble(self.unavailable(request.call, text, reply.status), again=True)

    def join(self, call: str, url: str, target: str) -> tuple[str, bool]:
        """A link of an answer, and whether it stays on the API's own host."""
        try:
            joined = urljoin(url, target)
            return joined, _origin(joined) in self._origins
        except ValueError:
            raise self.error(call, "answered with a link that is no address") from None

    def error(self, call: str, text: str, status: int | None = None) -> ApiError:
        """An error that says which call."""
        return ApiError(self._said(call, text), call=call, status=status)

    def unavailable(self, call: str, text: str, status: int | None = None) -> Unavailable:
        """The same for what may work later."""
        return Unavailable(self._said(call, text), call=call, status=status)

    def _exchange(self, request: Request) -> Reply:
        own = _origin(request.url) in self._origins
        headers = {"User-Agent": f"tolcal/{__version__}"}
        if own:
            headers |= {
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {self._token}",
                "X-GitHub-Api-Version": "2022-11-28",
            }
        data = None
        if request.body is not None:
            headers["Content-Type"] = "application/json"
            data = msgspec.json.encode(request.body)
        # The `auth` that does nothing keeps ~/.netrc from replacing the token.
        with self._session.request(
            request.method, request.url, params=dict(request.query), data=data, headers=headers,
            timeout=TIMEOUT_S, stream=True, allow_redirects=False, auth=lambda prepared: prepared,
        ) as response:  # fmt: skip
            body = self._read(request, response)
            return Reply(response.status_code, response.headers, body, own)

    def _read(self, request: Request, response: requests.Response) -> bytes:
        """At most `limit` bytes, whatever the answer says of itself; the start of an error."""
        if not 200 <= response.status_code < 300:
            return next(iter(response.iter_content(MAX_ERROR)), b"")
        declared = response.headers.get("content-length", "")
        pieces: list[bytes] = []
        room = request.limit
        if declared.isascii() and declared.isdecimal() and int(declared[:15]) > room:
            room = -1
        else:
            for piece in response.iter_content(2**16):
                pieces.append(piece)
                room -= len(piece)
                if room < 0:
                    break
        if room < 0:
            text = f"the answer has over {request.limit} bytes, the most that is read"
            raise self.error(request.call, text, response.status_code)
        return b"".join(pieces)

    def _redirected(self, request: Request, reply: Reply) -> Request:
        """The same call elsewhere: on another host only files, and never from https to http."""
        url, own = self.join(request.call, request.url, reply.headers.get("location", ""))
        target = urlsplit(url)
        safe = target.scheme == "https" or urlsplit(request.url).scheme == "http"
        if not own and not (request.away and safe and target.scheme in ("http", "https")):
            text = f"a redirect to {target.scheme}://{target.netloc}, which is not the API"
            raise self.error(request.call, text, reply.status)
        return msgspec.structs.replace(request, url=url, query={})

    def _said(self, call: str, text: str) -> str:
        return self.mask(f"{call} of {self.where}: {text}".encode()).decode()

    def mask(self, text: bytes) -> bytes:
        """Without the token, should anything have echoed it."""
        return text.replace(self._token.encode(), b"***")


def _origin(url: str) -> tuple[str, str]:
    """Scheme, and host with port. ValueError."""
    found = urlsplit(url)
    return found.scheme, found.netloc.lower()


def _cause(error: BaseException) -> str:
    """The innermost reason of an error of requests, without the address (it may be signed)."""
    inner: BaseException | None = error
    while inner is not None:
        error = inner
        reason = getattr(inner, "reason", None)
        arguments = [one for one in inner.args if isinstance(one, BaseException)]
        inner = reason if isinstance(reason, BaseException) else next(iter(arguments), None)
    return f"{type(error).__name__}: {error}"[:200]
