"""Artifacts of workflow runs: what is there, and the records in them, which are claims.

A measuring job uploads ``tolcal-records-<run>-<attempt>-<i>of<n>``, whose one file is
``records.jsonl.gz``. All of it is hostile until it is decoded: capped before the download, read as
one member of the zip, refused as a whole at the first thing that no honest run writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from tolcal.github.archive import Rejected, member
from tolcal.github.client import Client, NotFound
from tolcal.history import jsonlines
from tolcal.model import Origin, Record, Run, TolcalError, digest, plural

__all__ = [
    "Artifact",
    "Missing",
    "Rejected",
    "Unmeasured",
    "content",
    "named",
    "of_run",
    "one",
    "records",
    "stamp",
]  # fmt: skip

#: Of all shards of a run together: bytes as they are downloaded, bytes unpacked, records.
MAX_BYTES = 64 * 2**20
MAX_UNPACKED = 512 * 2**20
MAX_ROWS = 500_000
MAX_SHARDS = 256  # of a matrix, as GitHub limits it
RECORDS = "records.jsonl.gz"
PAGE = 100

_NAME = re.compile(
    r"tolcal-records-([1-9][0-9]{0,18})-([1-9][0-9]{0,5})-([1-9][0-9]{0,2})of([1-9][0-9]{0,2})"
)


class Missing(TolcalError):
    """Records that are not there: never uploaded, expired or deleted."""


class Unmeasured(Missing):
    """A run without any artifact of records."""


class Artifact(msgspec.Struct, frozen=True):
    """An artifact as GitHub lists it, with the run that uploaded it."""

    id: int
    name: str
    size: int  # bytes of the zip
    expired: bool
    created_at: datetime | None
    expires_at: datetime | None
    run_id: int  # 0: GitHub doesn't say
    head_sha: str
    head_branch: str
    repository_id: int
    head_repository_id: int


class _Source(msgspec.Struct, frozen=True):
    id: int = 0
    repository_id: int = 0
    head_repository_id: int = 0
    head_branch: str | None = None
    head_sha: str | None = None


class _Listed(msgspec.Struct, frozen=True):
    id: int
    name: str
    size_in_bytes: int
    expired: bool
    created_at: datetime | None = None
    expires_at: datetime | None = None
    workflow_run: _Source | None = None


def _artifact(raw: dict[str, Any]) -> Artifact:
    try:
        found = msgspec.convert(raw, _Listed)
    except msgspec.ValidationError as error:
        raise TolcalError(f"GitHub lists an artifact that is none: {error}") from None
    run = found.workflow_run or _Source()
    return Artifact(
        found.id, found.name, found.size_in_bytes, found.expired, found.created_at,
        found.expires_at, run.id, run.head_sha or "", run.head_branch or "", run.repository_id,
        run.head_repository_id,
    )  # fmt: skip


def of_run(client: Client, run_id: int) -> list[Artifact]:
    """Artifacts of all attempts of a run."""
    return [_artifact(raw) for raw in client.pages(f"actions/runs/{run_id}/artifacts", "artifacts")]


def named(client: Client, name: str) -> Iterator[list[Artifact]]:
    """Artifacts of that name of all runs: some at a time, the newest first, as GitHub lists them
    (complaints 2 and 3).
    """
    some: list[Artifact] = []
    for raw in client.pages("actions/artifacts", "artifacts", name=name):
        artifact = _artifact(raw)
        if artifact.name == name:
            some.append(artifact)
        if len(some) == PAGE:
            yield sorted(some, key=_age, reverse=True)
            some = []
    yield sorted(some, key=_age, reverse=True)


def one(client: Client, number: int) -> Artifact:
    """By its id. Missing if it is gone."""
    try:
        return _artifact(client.get(f"actions/artifacts/{number}"))
    except NotFound as error:
        raise Missing(f"artifact {number} has expired or was deleted: {error}") from None


def _age(artifact: Artifact) -> tuple[float, int]:
    created = artifact.created_at
    return (created.timestamp() if created else 0.0, artifact.id)


def content(client: Client, artifact: Artifact, name: str, limit: int) -> bytes:
    """The one file of an artifact, of ``limit`` bytes at most.

    Rejected for every other zip (``archive.member``); Missing if it has expired or is gone.
    """
    where = f"artifact {artifact.name} of run {artifact.run_id}"
    # A zip of what is packed already is a little longer than it.
    most = limit + 2**16
    if artifact.expired:
        raise Missing(f"{where} has expired")
    if artifact.size > most:
        raise Rejected(f"{where} is refused: {artifact.size} bytes, {most} are allowed")
    try:
        packed = client.download(f"actions/artifacts/{artifact.id}/zip", most)
    except NotFound as error:
        raise Missing(f"{where} has expired or was deleted: {error}") from None
    return member(packed, name, limit, where)


# --- records --------------------------------------------------------------------------------


def records(
    client: Client, run_id: int, attempt: int, *, fresh: bool = False
) -> tuple[Record, ...]:
    """Records of all shards of a run, each shard's newest attempt up to ``attempt``.

    A re-run of failed jobs measures some shards again and leaves the others, whose records are of
    the same commit and seeds. Missing, which names it, if a shard isn't there; Rejected for one
    that breaks a rule. The origin is what the file claims: see ``stamp``.

    Args:
        fresh: of a run that failed: one of its shards has to be of that very attempt, or what it
            measured before would stand for an attempt that measured nothing.
    """
    shards = _shards(of_run(client, run_id), run_id, attempt)
    if fresh and not any(s.name.startswith(f"tolcal-records-{run_id}-{attempt}-") for s in shards):
        raise Unmeasured(f"attempt {attempt} of run {run_id} has no artifact of records")
    size = sum(artifact.size for artifact in shards)
    if size > MAX_BYTES:
        raise Rejected(
            f"the records of run {run_id} are refused: {size} bytes, {MAX_BYTES} are allowed"
        )
    found: list[Record] = []
    runs: list[tuple[Artifact, dict[str, Run]]] = []
    for artifact in shards:
        packed = content(client, artifact, RECORDS, MAX_BYTES)
        # Shards are about even, and many bombs must not be worse than one.
        unpacked = MAX_UNPACKED // len(shards) + 2**24
        part = decode(f"artifact {artifact.name}", packed, MAX_ROWS - len(found), unpacked)
        runs.append((artifact, {r.run.id: r.run for r in part}))
        found += part
    _check_one_run(runs)
    return tuple(found)


def decode(
    where: str, packed: bytes, rows: int = MAX_ROWS, unpacked: int = MAX_UNPACKED
) -> tuple[Record, ...]:
    """Records of a file's bytes; Rejected, which names the line, if they aren't sound."""
    try:
        return tuple(jsonlines.read_bytes(where, packed, rows, unpacked))
    except TolcalError as error:
        raise Rejected(f"refused: {error}") from None


def stamp(records: Iterable[Record], origin: Origin, run_id: int = 0) -> tuple[Record, ...]:
    """The records with the origin that the reader knows, whatever they claim.

    Their runs get new ids: by one that a pull request chose, it could pass for part of a trusted
    run. With the workflow run's ``run_id`` an id follows from that, the seed and the environment,
    so that another attempt of it measures nothing new.
    """
    return tuple(_stamped(records, origin, run_id))


def _stamped(records: Iterable[Record], origin: Origin, run_id: int) -> Iterator[Record]:
    runs: dict[Run, Run] = {}
    last: Run | None = None
    for record in records:
        if record.run is not last:  # records of a run share it
            last = record.run
            if last not in runs:
                own = (run_id, last.seed, last.environment.key) if run_id else (last.id,)
                runs[last] = msgspec.structs.replace(last, origin=origin, id=digest(origin, *own))
        yield msgspec.structs.replace(record, run=runs[last])


def _shards(listed: Iterable[Artifact], run_id: int, attempt: int) -> list[Artifact]:
    """The newest attempt of each shard, in order."""
    newest: dict[int, tuple[int, int, Artifact]] = {}
    for artifact in listed:
        match = _NAME.fullmatch(artifact.name)
        if match is None:
            continue
        run, tried, part, parts = map(int, match.groups())
        if run != run_id or tried > attempt:
            continue
        if not part <= parts <= MAX_SHARDS:
            raise Rejected(f"artifact {artifact.name} is refused: no part of {MAX_SHARDS} or fewer")
        if part not in newest or newest[part][0] < tried:
            newest[part] = (tried, parts, artifact)
    if not newest:
        raise Unmeasured(
            f"run {run_id} has no artifact tolcal-records-{run_id}-...: its measuring job failed "
            "before it had records, or they have expired; run it again"
        )
    # The last attempt knows how many there are: a matrix may have been changed in between.
    parts = max((tried, parts) for tried, parts, _ in newest.values())[1]
    for part in range(1, parts + 1):
        name = f"shard {part} of {parts} of run {run_id}"
        if part not in newest:
            raise Missing(
                f"{name} has no artifact: its job failed or is still running; re-run the failed "
                "jobs of that run"
            )
        if newest[part][1] != parts:
            raise Rejected(
                f"artifact {newest[part][2].name} is refused: other shards of the run are of "
                f"{parts}; re-run all jobs of it"
            )
        if newest[part][2].expired:
            raise Missing(f"{name} has expired; re-run all jobs of that run")
    return [newest[part][2] for part in range(1, parts + 1)]


def _check_one_run(shards: list[tuple[Artifact, dict[str, Run]]]) -> None:
    """Rejected if shards are of different runs: their seeds, commits and environments agree."""
    first, expected = shards[0]
    for artifact, runs in shards[1:]:
        if not runs or not expected:
            continue
        pairs = list(zip(_sorted(expected), _sorted(runs), strict=False))
        for name in ("environment", "commit", "seed"):
            for one, other in pairs:
                if getattr(one, name) != getattr(other, name):
                    raise Rejected(
                        f"artifacts {first.name} and {artifact.name} are refused: {name} differs, "
                        f"{_said(one, name)} and {_said(other, name)}; shards of one run need "
                        "the same kind of runner; re-run all jobs of it"
                    )
        if runs.keys() != expected.keys():
            raise Rejected(
                f"artifacts {first.name} and {artifact.name} are refused: they are of "
                f"{plural(len(expected), 'run')} and of {len(runs)} others, where shards are of "
                "the same; re-run all jobs of that run"
            )


def _sorted(runs: dict[str, Run]) -> list[Run]:
    return sorted(runs.values(), key=lambda run: (run.seed, run.id))


def _said(run: Run, name: str) -> str:
    return run.environment.text if name == "environment" else str(getattr(run, name))[:40]
