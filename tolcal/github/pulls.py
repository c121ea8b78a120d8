"""Pull requests as the API has them: which one a head belongs to, what it changes, its files.

A run's own word (its artifact, its branch's name alone) never says which pull request to write
to: the one open pull request whose head is that commit does.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

import msgspec

from tolcal.github.client import ApiError, Client, NotFound, quote
from tolcal.model import TolcalError

#: The compare endpoint lists no more files than this.
MAX_COMPARED = 300
#: The contents endpoint gives no more bytes of a file than this.
MAX_FILE = 2**20
SHA = re.compile(r"[0-9a-f]{40}")


class Pull(msgspec.Struct, frozen=True):
    """A pull request, and what its head changes since it left the base branch."""

    number: int
    state: str  # "open" or "closed"
    head_sha: str
    head_ref: str
    head_repository: str  # owner/name; "" if it was deleted
    head_repository_id: int  # 0 if it was deleted
    base_ref: str
    base_sha: str  # of the base branch, as it is now
    base_repository_id: int
    merge_base: str
    author: str
    author_id: int
    #: paths that differ from the merge base's, old names of renamed ones too; None: too many
    files: tuple[str, ...] | None

    @property
    def same_repository(self) -> bool:
        """Its head is a branch of the repository that it is a pull request of."""
        return self.head_repository_id == self.base_repository_id


def open_from(client: Client, owner: str, branch: str) -> dict[int, str]:
    """Heads of the open pull requests from ``owner:branch``, by number."""
    if not owner or not branch:
        return {}
    found = client.pages("pulls", state="open", head=f"{owner}:{branch}")
    return {int(p["number"]): _sha(p) for p in found if p["state"] == "open"}


def _sha(pull: dict[str, Any]) -> str:
    return str(pull["head"]["sha"])


def read(client: Client, number: int, head: str | None = None) -> Pull:
    """A pull request by its number. NotFound if there is none.

    Args:
        head: a commit that its branch is known to be at: GitHub's pull lags behind a push.
    """
    found = client.get(f"pulls/{number}")
    source, base, author = found["head"], found["base"], found["user"] or {}
    repository = source["repo"] or {}
    sha = head or _sha(found)
    if not SHA.fullmatch(sha):
        raise TolcalError(f"pull request {number}: its head is {sha!r}, no commit")
    compared = client.get(f"compare/{quote(str(base['ref']))}...{sha}")
    files = [f for f in compared.get("files") or () if isinstance(f, dict)]
    names = {str(f[key]) for f in files for key in ("filename", "previous_filename") if f.get(key)}
    return Pull(
        number=int(found["number"]),
        state=str(found["state"]),
        head_sha=sha,
        head_ref=str(source["ref"]),
        head_repository=str(repository.get("full_name") or ""),
        head_repository_id=int(repository.get("id") or 0),
        base_ref=str(base["ref"]),
        base_sha=str(compared["base_commit"]["sha"]),
        base_repository_id=int(base["repo"]["id"]),
        merge_base=str(compared["merge_base_commit"]["sha"]),
        author=str(author.get("login") or ""),
        author_id=int(author.get("id") or 0),
        files=None if len(files) >= MAX_COMPARED else tuple(sorted(names)),
    )


def file(client: Client, path: str, ref: str) -> bytes | None:
    """A file of that commit; None if it has none of that name.

    Raises TolcalError for what is no plain file or over MAX_FILE bytes.
    """
    try:
        found = client.get("contents/" + "/".join(map(quote, path.split("/"))), ref=ref)
    except NotFound:
        return None
    except ApiError as error:
        if type(error) is not ApiError or error.status not in (None, 200):
            raise
        # A folder is answered with a list.
        raise TolcalError(f"{path}: no plain file at {ref[:12]}") from None
    if found.get("type") != "file":
        raise TolcalError(f"{path}: no plain file at {ref[:12]}, but {found.get('type')!r}")
    if found.get("encoding") != "base64" or int(found.get("size") or 0) > MAX_FILE:
        raise TolcalError(f"{path}: over {MAX_FILE} bytes at {ref[:12]}; make it smaller")
    try:
        return base64.b64decode(str(found["content"]))
    except (binascii.Error, ValueError):
        raise TolcalError(f"{path}: GitHub's answer for {ref[:12]} is no base64") from None
