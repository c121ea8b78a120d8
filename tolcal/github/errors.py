"""What GitHub's refusals and failures mean, in words that are true.

A 500 is GitHub's fault and no matter of permissions; a 403 names the permission that is missing;
a lost answer says that the effect is not known. The classes are what callers tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import msgspec

from tolcal.model import TolcalError

#: Secondary limits that name no time: at least this many seconds, doubled at each repetition.
LIMIT_S = 60.0
#: 422s that say a sha or ref is no longer what the caller read, as GitHub words them.
_MOVED = (
    "not a fast forward",
    "already exists",
    "reference does not exist",
    "reference cannot be updated",
    "wasn't supplied",
    "does not match",
)
#: First segment of a path -> the job's permission that covers it. Said when GitHub's own header
#: (X-Accepted-GitHub-Permissions) doesn't.
_PERMISSIONS = {
    "actions": "actions",
    "branches": "contents",
    "check-runs": "checks",
    "collaborators": "metadata",
    "commits": "contents",
    "compare": "contents",
    "contents": "contents",
    "git": "contents",
    "graphql": "pull-requests",
    "issues": "pull-requests",
    "pulls": "pull-requests",
}


class ApiError(TolcalError):
    """A call of GitHub's API failed; the text says which, with what, and what helps."""

    def __init__(self, message: str, *, call: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status  # None: no answer arrived
        self.call = call  # "GET pulls/41"


class NotFound(ApiError):
    """404, and 410 for what was there once (an expired artifact): see ``status``."""


class Conflict(ApiError):
    """409, and 422 of a sha or ref that moved: read again, then decide."""


class Forbidden(ApiError):
    """403 that no waiting cures: a missing permission, mostly."""


class Unavailable(ApiError):
    """Server errors, faults of the connection and rate limits, after all repetitions."""


class Trouble(msgspec.Struct, frozen=True):
    """Why one attempt brought nothing, and whether another one may."""

    error: ApiError
    again: bool = False
    wait: float | None = None  # seconds that GitHub asks for; None: the caller's own backoff
    unclear: bool = False  # the effect may have taken place


def of_reply(
    call: str, where: str, status: int, headers: Mapping[str, str], body: bytes, now: float,
    tried: int,
) -> Trouble:  # fmt: skip
    """An answer that is no success. `where`: "o/r at https://…"; `now`: seconds, as the clock."""
    said = _message(body)
    head = f"{call} of {where}: GitHub answered {status}" + (f" ({said})" if said else "")
    if status in (403, 429) and (wait := _limited(status, headers, said, now, tried)) is not None:
        text = f"{head}: a rate limit, {wait:.0f} s more to wait; start the job again after that"
        return Trouble(Unavailable(text, call=call, status=status), again=True, wait=wait)
    if status >= 500:
        text = f"{head}: a fault of GitHub's, not of this job; start the job again later"
        error = Unavailable(text, call=call, status=status)
        return Trouble(error, again=True, wait=_after(headers, now), unclear=True)
    kind: type[ApiError] = ApiError
    if status == 401:
        text = f"{head}: the token is wrong or has expired; see the action's `token` input"
    elif status == 403:
        kind, text = Forbidden, f"{head}: {_missing(call, headers)}"
    elif status == 404:
        kind, text = NotFound, f"{head}: it is not there, or the token may not see it"
    elif status == 410:
        kind, text = NotFound, f"{head}: it was there and has expired or was deleted"
    elif status == 409 or (status == 422 and any(word in said.lower() for word in _MOVED)):
        kind, text = Conflict, f"{head}: it changed since it was read; run the job again"
    elif 300 <= status < 400:
        text = f"{head}: a redirect that was not expected"
    else:
        text = f"{head}: the request was refused as wrong, which is a bug of tolcal's"
    return Trouble(kind(text, call=call, status=status))


def _message(body: bytes) -> str:
    """GitHub's own words, with the errors of a 422; "" if it sent none."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return ""
    if not isinstance(document, dict):
        return ""
    words = [str(document.get("message") or "")]
    errors = document.get("errors")
    for error in errors[:5] if isinstance(errors, list) else ():
        if isinstance(error, dict):
            said = error.get("message") or f"{error.get('field')}: {error.get('code')}"
            words.append(str(said))
        else:
            words.append(str(error))
    return "; ".join(word for word in words if word)[:400]


def _limited(
    status: int, headers: Mapping[str, str], said: str, now: float, tried: int
) -> float | None:
    """Seconds to wait for a rate limit; None if it is none.

    Source: docs.github.com, "Rate limits for the REST API": retry-after, else the reset when
    nothing remains, else at least a minute, exponentially more.
    """
    after = _after(headers, now)
    if after is not None:
        return after
    if headers.get("x-ratelimit-remaining") == "0":
        reset = headers.get("x-ratelimit-reset", "")
        if reset.isascii() and reset.isdecimal():
            return max(1.0, float(reset[:15]) - now + 1)
        return LIMIT_S * (1 << tried)
    if status == 429 or "rate limit" in said.lower():
        return LIMIT_S * (1 << tried)
    return None


def _after(headers: Mapping[str, str], now: float) -> float | None:
    """The header retry-after, seconds or a date, in seconds from now."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal():
        return max(1.0, float(value[:15]))
    try:
        return max(1.0, parsedate_to_datetime(value).timestamp() - now)
    except ValueError:
        return None


def _missing(call: str, headers: Mapping[str, str]) -> str:
    """Which permission a 403 lacks: as GitHub's header says, else by the path."""
    accepted = headers.get("x-accepted-github-permissions", "")
    groups = [group.strip() for group in accepted.split(";") if "=" in group]
    if not groups:
        method, _, path = call.partition(" ")
        name = _PERMISSIONS.get(path.partition("/")[0])
        level = "read" if method == "GET" or name == "metadata" else "write"
        groups = [f"{name}={level}"] if name else []
    if not groups:
        return "the token may not do this"
    words = [
        " and ".join(
            f"`{one.strip().replace('_', '-').replace('=', ': ')}`" for one in group.split(",")
        )
        for group in groups
    ]
    return f"give the job's token the permission {' or '.join(words)}"
