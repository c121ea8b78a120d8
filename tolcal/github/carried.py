"""The history as artifacts: each ingest uploads a part, whose manifest names the other parts.

Artifacts are immutable (complaint 4) and expire, so the parts are found through the newest one,
checked against what it says of them, and uploaded again before they expire. GitHub finds artifacts
by their exact name only, hence the one name; within a run it is uploaded once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tolcal.github import artifacts, carrying, trust
from tolcal.github.artifacts import Artifact, Missing, Rejected
from tolcal.github.carrying import Manifest, Part, Sized
from tolcal.github.client import Client
from tolcal.github.settings import Inputs, Job
from tolcal.github.trust import Home
from tolcal.history import columns, parquet, tables
from tolcal.model import TolcalError, plural

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "tolcal-history"
MEMBER = "history.parquet"
#: Bytes of one part: 10 million records are about 1 GiB.
MAX_BYTES = 2 * 2**30
#: Records of one part, unless it has to be larger to carry what expires.
MAX_ROWS = 2_500_000


class Lost(TolcalError):
    """A history that held more than can be read now."""


class Loaded(msgspec.Struct, frozen=True):
    """A part that was read."""

    artifact: Artifact
    sha256: str
    manifest: Manifest
    table: pa.Table


class Carried(msgspec.Struct, frozen=True):
    """All that could be read."""

    table: pa.Table
    notes: tuple[str, ...]
    parts: tuple[Loaded, ...]  # that together are the table
    read: tuple[Loaded, ...]  # those, and what they made needless
    #: artifacts of the default branch that GitHub still lists, by id
    listed: dict[int, Artifact]
    given_up: bool  # there were losses, which were accepted


_REMEDY = (
    "start the ingest workflow by hand with `accept-loss` to go on with {left}, and keep the "
    "history on a branch (`history: branch`), which never expires"
)


def read(client: Client, inputs: Inputs, home: Home, accept_loss: bool = False) -> Carried:
    """The history. Lost if a part of it can't be read, unless ``accept_loss``.

    A repository in which no ingest has ever succeeded has an empty one.
    """
    named = artifacts.named(client, NAME)
    ours = [artifact for artifact in named if trust.listed_as_ours(artifact, home)]
    notes = _passed_over(["elsewhere"] * (len(named) - len(ours)))
    loaded: dict[int, Loaded] = {}
    gone = _heads(client, inputs, home, ours, loaded, notes)
    if not loaded:
        _nothing(client, inputs, home, gone, accept_loss, notes)
    lost = _parts(client, {artifact.id: artifact for artifact in ours}, loaded)
    # What one part took in may be gone by now, or be here twice.
    absorbed = {number for one in loaded.values() for number in one.manifest.absorbed}
    lost = [part for part in lost if part.id not in absorbed]
    parts = tuple(one for number, one in loaded.items() if number not in absorbed)
    table = tables.union(columns.empty(), *(one.table for one in parts))
    if lost:
        text = (
            f"the history lost {plural(sum(part.rows for part in lost), 'record')}: artifact "
            f"{NAME} of run {', '.join(str(part.run) for part in lost[:5])} has expired or was "
            "deleted"
        )
        if not accept_loss:
            left = plural(len(table), "record") + " left"
            raise Lost(f"{text}; {_REMEDY.format(left='the ' + left)}")
        notes.append(f"{text}; that was accepted")
    listed = {artifact.id: artifact for artifact in ours}
    given_up = accept_loss and bool(lost or gone)
    return Carried(table, tuple(notes), parts, tuple(loaded.values()), listed, given_up)


def _heads(
    client: Client,
    inputs: Inputs,
    home: Home,
    ours: list[Artifact],
    loaded: dict[int, Loaded],
    notes: list[str],
) -> list[Artifact]:
    """Loads the newest artifact, and others that no newer one covers; returns those gone."""
    covered: set[int] = set()
    verdicts: dict[int, str] = {}
    foreign: list[str] = []
    gone: list[Artifact] = []
    for artifact in ours:
        if artifact.id in covered:
            continue
        run = artifact.run_id
        if run not in verdicts:
            source = trust.source(client, run)
            verdicts[run] = trust.why_not(source, home, inputs.ingest_workflow)
        if verdicts[run]:
            foreign.append(verdicts[run])
            continue
        try:
            found = load(client, artifact)
        except Missing:
            gone.append(artifact)
            continue
        if not trust.on_default_branch(client, artifact.head_sha, home):
            raise Rejected(
                f"artifact {NAME} of run {run} is refused: commit {artifact.head_sha[:12]} is not "
                f"on {home.default_branch}: the branch was rewritten, or a tag has its name; "
                "delete the artifact, or bring the commit back"
            )
        loaded[artifact.id] = found
        covered.update(found.manifest.covers)
    notes += _passed_over(foreign)
    if gone and loaded:
        runs = ", ".join(str(artifact.run_id) for artifact in gone[:5])
        notes.append(
            f"{plural(len(gone), 'artifact')} of the history skipped, since expired or deleted "
            f"(run {runs})"
        )
    return gone


def _passed_over(reasons: list[str]) -> list[str]:
    if not reasons:
        return []
    counts = ", ".join(f"{n} {why}" for why, n in sorted(Counter(reasons).items()))
    return [
        f"{plural(len(reasons), 'artifact')} named {NAME} passed over, since not uploaded by "
        f"ingest on the default branch: {counts}"
    ]


def _nothing(
    client: Client,
    inputs: Inputs,
    home: Home,
    gone: list[Artifact],
    accept_loss: bool,
    notes: list[str],
) -> None:
    """No part can be read: a history yet to come, or one that was lost."""
    before = gone[0].run_id if gone else None
    if before is None:
        before = trust.ingested_before(client, home, inputs.ingest_workflow)
    if before is None:
        notes.append("no history yet: no ingest has succeeded in this repository")
        return
    what = "every artifact of it has expired" if gone else "no artifact of it is left"
    text = f"the history is lost: run {before} ingested records, and {what}"
    if not accept_loss:
        raise Lost(f"{text}; {_REMEDY.format(left='an empty one')}")
    notes.append(f"{text}; that was accepted")


def _parts(client: Client, ours: dict[int, Artifact], loaded: dict[int, Loaded]) -> list[Part]:
    """Loads what the heads name; returns what can't be."""
    lost: list[Part] = []
    named = {part.id: part for one in loaded.values() for part in one.manifest.parts}
    for number, part in named.items():
        if number in loaded:
            continue
        if number not in ours:
            lost.append(part)
            continue
        try:
            found = load(client, ours[number])
        except Missing:
            lost.append(part)
            continue
        if found.sha256 != part.sha256:
            raise Rejected(
                f"artifact {NAME} of run {part.run} is refused: its content is not what a later "
                "one says of it"
            )
        loaded[number] = found
    return lost


def load(client: Client, artifact: Artifact) -> Loaded:
    """One part. Missing if it is gone, Rejected if it isn't sound."""
    data = artifacts.content(client, artifact, MEMBER, MAX_BYTES)
    where = f"artifact {NAME} of run {artifact.run_id}"
    try:
        table, note = parquet.read_noted(where, data)
        manifest = msgspec.json.decode(note, type=Manifest)
    except TolcalError as error:
        raise Rejected(f"refused: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Rejected(f"{where} is refused: its manifest: {error}") from None
    if manifest.rows != len(table):
        raise Rejected(f"{where} is refused: it says {manifest.rows} records and has {len(table)}")
    return Loaded(artifact, hashlib.sha256(data).hexdigest(), manifest, table)


# --- the next part --------------------------------------------------------------------------


def write(path: Path, past: Carried, fresh: pa.Table, job: Job, now: datetime) -> Manifest | None:
    """Writes the next part for upload: ``fresh`` (which ``past`` lacks), with what it takes in.

    None, and no file, if there is nothing to add or to carry. TolcalError if the parts would then
    hold less than before.
    """
    taken, left = _divided(past, len(fresh), now)
    if not taken and not len(fresh) and past.read and not past.given_up:
        return None
    table = tables.union(fresh, *(one.table for one in taken))
    whole = tables.union(table, *(one.table for one in left))
    shrunk = len(tables.new(whole, tables.union(past.table, fresh)))
    if shrunk:
        raise TolcalError(
            f"the next part of the history would lack {plural(shrunk, 'record')} of those there "
            "are; nothing was written, which is a bug in tolcal"
        )
    manifest = Manifest(
        run=job.run_id,
        attempt=job.run_attempt,
        commit=job.sha,
        rows=len(table),
        total=len(whole),
        parts=tuple(
            Part(one.artifact.id, one.artifact.run_id, len(one.table), one.sha256) for one in left
        ),
        absorbed=_numbers(past, _absorbed(taken)),
        covers=_numbers(past, _covers(past)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_noted(path, table, msgspec.json.encode(manifest))
    return manifest


def _divided(past: Carried, fresh: int, now: datetime) -> tuple[list[Loaded], list[Loaded]]:
    """Parts that the next one takes in, and those that stay."""
    sized = [
        Sized(one.artifact.id, len(one.table), one.artifact.created_at, one.artifact.expires_at)
        for one in past.parts
    ]
    chosen = set(carrying.chosen(sized, fresh, now, MAX_ROWS))
    taken = [one for one in past.parts if one.artifact.id in chosen]
    return taken, [one for one in past.parts if one.artifact.id not in chosen]


def _absorbed(taken: Iterable[Loaded]) -> set[int]:
    return {n for one in taken for n in (one.artifact.id, *one.manifest.absorbed)}


def _covers(past: Carried) -> set[int]:
    # With a loss accepted, what could not be read must not be looked for again.
    given_up = past.listed if past.given_up else ()
    return {n for one in past.read for n in (one.artifact.id, *one.manifest.covers)} | {*given_up}


def _numbers(past: Carried, ids: set[int]) -> tuple[int, ...]:
    """Those that GitHub still lists: of others nobody will ask again."""
    return tuple(sorted(ids & past.listed.keys()))
