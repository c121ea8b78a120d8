"""The history as artifacts: each ingest uploads a part, whose manifest names the other parts.

Artifacts are immutable (complaint 4) and expire, so the parts are found through the newest one,
checked against what it says of them, and uploaded again before they expire. GitHub finds artifacts
by their exact name only, hence the one name; within a run it is uploaded once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
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
#: Ids that a manifest keeps, of years of ingests.
MAX_IDS = 20_000


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
    covers: frozenset[int]  # ids of all artifacts that need no longer be looked at
    nothing: bool  # no part was found
    given_up: bool  # there were losses, which were accepted


_REMEDY = (
    "start the ingest workflow by hand with `accept-loss` to go on with {left}, and keep the "
    "history on a branch (`history: branch`), which never expires"
)


def read(client: Client, inputs: Inputs, home: Home, accept_loss: bool = False) -> Carried:
    """The history. Lost if a part of it can't be read, unless ``accept_loss``.

    A repository in which no ingest has ever succeeded has an empty one.
    """
    reader = _Reader(client, inputs, home)
    reader.find_heads(everything=accept_loss)
    lost = reader.read_parts() if reader.loaded else reader.beginning()
    found = reader.carried(lost if accept_loss else "")
    if lost and not accept_loss:
        rows = len(found.table)
        left = f"the {plural(rows, 'record')} left" if rows else "an empty one"
        raise Lost(f"{lost}; {_REMEDY.format(left=left)}")
    return found


class _Reader:
    """Finds the parts: those that no later one covers, and then those that these name."""

    def __init__(self, client: Client, inputs: Inputs, home: Home) -> None:
        self.client, self.inputs, self.home = client, inputs, home
        self.loaded: dict[int, Loaded] = {}
        self.seen: dict[int, Artifact] = {}  # of the default branch
        self.covered: set[int] = set()
        self.gone: list[Artifact] = []  # expired, and of which no later part knows
        self.passed: Counter[str] = Counter()
        self.elsewhere: list[Artifact] = []  # of other branches of this repository
        self.reasons: dict[int, str] = {}  # by run

    def find_heads(self, everything: bool) -> None:
        """Loads what no newer part covers. Parts that ran side by side are near in time, so a
        hundred in a row without one are the end, unless ``everything`` is asked for.
        """
        for some in artifacts.named(self.client, NAME):
            known, before = 0, (len(self.loaded), len(self.gone))
            for artifact in some:
                if not trust.listed_as_ours(artifact, self.home):
                    self.passed["elsewhere"] += 1
                    if artifact.repository_id == artifact.head_repository_id == self.home.id:
                        self.elsewhere.append(artifact)
                    continue
                self.seen[artifact.id] = artifact
                if artifact.id in self.covered:
                    known += 1
                else:
                    self._load_head(artifact)
            if known and before == (len(self.loaded), len(self.gone)) and not everything:
                return

    def _load_head(self, artifact: Artifact) -> None:
        reason = self._why_not(artifact)
        if reason:
            self.passed[reason] += 1
            return
        try:
            found = load(self.client, artifact)
        except Missing:
            self.gone.append(artifact)
            return
        if not trust.on_default_branch(self.client, artifact.head_sha, self.home):
            branch = self.home.default_branch
            raise Rejected(
                f"artifact {NAME} of run {artifact.run_id} is refused: commit "
                f"{artifact.head_sha[:12]} is not on {branch}: the branch was rewritten, or a tag "
                "has its name; delete the artifact, or bring the commit back"
            )
        self.loaded[artifact.id] = found
        self.covered.update(found.manifest.covers)

    def _why_not(self, artifact: Artifact) -> str:
        run = artifact.run_id
        if run not in self.reasons:
            source = trust.source(self.client, run)
            self.reasons[run] = trust.why_not(source, self.home, self.inputs.ingest_workflow)
        return self.reasons[run]

    def beginning(self) -> str:
        """Of no part at all: what was lost; "" if there never was one."""
        if self.gone:
            run, what = self.gone[0].run_id, "every artifact of it has expired"
        elif before := trust.ingested_before(self.client, self.home, self.inputs.ingest_workflow):
            run, what = before, "no artifact of it is left"
        elif moved := self._of_another_branch():
            run, what = moved.run_id, "the default branch had another name then"
        else:
            return ""
        return f"the history is lost: run {run} ingested records, and {what}"

    def _of_another_branch(self) -> Artifact | None:
        """The newest one that ingest uploaded when another branch was the default."""
        for artifact in self.elsewhere[:5]:
            if self._why_not(artifact) == trust.OTHER_BRANCH:
                return artifact
        return None

    def read_parts(self) -> str:
        """Loads what the heads name; returns what of it was lost."""
        lost: list[Part] = []
        named = {part.id: part for one in self.loaded.values() for part in one.manifest.parts}
        for number in named.keys() - self.loaded.keys():
            part = named[number]
            try:
                artifact = self.seen.get(number) or artifacts.one(self.client, number)
                found = load(self.client, artifact)
            except Missing:
                lost.append(part)
                continue
            if found.sha256 != part.sha256:
                raise Rejected(
                    f"artifact {NAME} of run {part.run} is refused: its content is not what a "
                    "later one says of it"
                )
            self.loaded[number] = found
        # A part that ran side by side may have taken it in.
        absorbed = self._absorbed()
        lost = [part for part in lost if part.id not in absorbed]
        if not lost:
            return ""
        return (
            f"the history lost {plural(sum(part.rows for part in lost), 'record')}: artifact "
            f"{NAME} of run {', '.join(str(part.run) for part in lost[:5])} has expired or was "
            "deleted"
        )

    def _absorbed(self) -> set[int]:
        return {number for one in self.loaded.values() for number in one.manifest.absorbed}

    def carried(self, accepted: str) -> Carried:
        """What was read; ``accepted`` is a loss that shall be no error from now on."""
        absorbed = self._absorbed()
        parts = [one for number, one in self.loaded.items() if number not in absorbed]
        given_up = self.seen if accepted else ()
        return Carried(
            table=tables.union(columns.empty(), *(one.table for one in parts)),
            notes=tuple(self._notes(accepted)),
            parts=tuple(parts),
            covers=frozenset({*self.covered, *self.loaded, *given_up}),
            nothing=not self.loaded,
            given_up=bool(accepted),
        )

    def _notes(self, accepted: str) -> Iterator[str]:
        if self.passed:
            counts = ", ".join(f"{n} {why}" for why, n in sorted(self.passed.items()))
            yield (
                f"{plural(self.passed.total(), 'artifact')} named {NAME} passed over, since not "
                f"uploaded by ingest on the default branch: {counts}"
            )
        if self.gone and self.loaded:
            runs = ", ".join(str(artifact.run_id) for artifact in self.gone[:5])
            yield (
                f"{plural(len(self.gone), 'artifact')} of the history skipped, since expired or "
                f"deleted (run {runs})"
            )
        if accepted:
            yield f"{accepted}; that was accepted"
        elif not self.loaded:
            yield "no history yet: no ingest has succeeded in this repository"


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
    if not (taken or len(fresh) or past.nothing or past.given_up):
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
        absorbed=_newest(n for one in taken for n in (one.artifact.id, *one.manifest.absorbed)),
        covers=_newest(past.covers),
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


def _newest(ids: Iterable[int]) -> tuple[int, ...]:
    """Ids grow with time, and artifacts older than these have expired long since."""
    return tuple(sorted({*ids})[-MAX_IDS:])
