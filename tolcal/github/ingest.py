"""``tolcal github ingest``: records measured on the default branch join the trusted history.

The only writer. It takes the records of its own workflow run, and no run of a pull request can be
one: the event and the branch are checked here, and a reader checks them again. What a changed
control did beyond its tolerance stays out, as in ``tolcal ci``: a bug that was merged must not
widen the tolerance that would have caught it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tolcal import calibrate, compare, history, tolerances
from tolcal.github import artifacts, branches, carried, trust
from tolcal.github.client import Client
from tolcal.github.outputs import outputs, summary
from tolcal.github.settings import Inputs, Job
from tolcal.github.trust import Home
from tolcal.history import columns, tables
from tolcal.model import Record, TolcalError, Tolerances, one_line, plural
from tolcal.report import text

if TYPE_CHECKING:
    import pyarrow as pa

UPLOAD = "history-upload"


class Done(msgspec.Struct, frozen=True):
    """What became of the records."""

    added: int
    total: int  # records of the history then
    notes: tuple[str, ...] = ()
    upload: Path | None = None  # folder for the workflow to upload


class Sound:
    """The records that may join, judged by the history that they are about to join."""

    def __init__(self, records: Sequence[Record], approved: Tolerances) -> None:
        self.records = records
        self.approved = approved
        self.broken: frozenset[tuple[str, str]] = frozenset()

    def __call__(self, past: pa.Table) -> pa.Table:
        """All but those of changed controls that exceed, which ``broken`` then names."""
        baseline = calibrate.baseline(history.to_frame(past), self.approved)
        self.broken = compare.regressed(self.records, self.approved, baseline)
        return columns.from_records(
            r for r in self.records if (r.kernel, r.case.dtype) not in self.broken
        )


def main(inputs: Inputs, job: Job, token: str) -> int:
    """Exit status 1 if records of controls that broke stayed out, else 0."""
    return run(Client(job, token), inputs, job)


def run(client: Client, inputs: Inputs, job: Job, now: datetime | None = None) -> int:
    """The same with a client, at a time that tests choose."""
    home = trust.home(client, job)
    _check_trigger(job, home)
    sound = Sound(_records(client, job), _approved(Path(inputs.tolerances)))
    done = _store(client, inputs, job, home, sound, now or datetime.now(UTC))
    lines = _said(done, sound, job)
    for line in lines:
        sys.stderr.write(f"tolcal: {one_line(line, 2000)}\n")
    summary(job, "### tolcal ingest\n" + "".join(f"- {text.plain(line)}\n" for line in lines))
    if done.upload is not None:
        outputs(job, {"history-artifact": carried.NAME, "history-path": done.upload})
    return 1 if sound.broken else 0


def _check_trigger(job: Job, home: Home) -> None:
    if job.event not in trust.EVENTS or job.ref != f"refs/heads/{home.default_branch}":
        raise TolcalError(
            f"ingest was started by {job.event} on {job.ref or 'no ref'}: it only runs on "
            f"{', '.join(trust.EVENTS)} of the default branch ({home.default_branch}), since what "
            "it writes is trusted from then on"
        )


def _records(client: Client, job: Job) -> tuple[Record, ...]:
    """Those that this workflow run measured; none if it was only started to carry the history."""
    try:
        found = artifacts.records(client, job.run_id, job.run_attempt)
    except artifacts.Unmeasured:
        if job.event == "push":
            raise
        return ()
    commits = {record.run.commit for record in found} - {job.sha}
    if commits:
        raise artifacts.Rejected(
            f"the records of run {job.run_id} are refused: measured at commit "
            f"{min(commits)[:12] or '(none)'}, and the run is of {job.sha[:12]}"
        )
    return artifacts.stamp(found, "ingest", job.run_id)


def _approved(path: Path) -> Tolerances:
    approved = tolerances.read(path)
    for op, dtype in tolerances.changed_by_hand(approved)[:1]:
        raise TolcalError(
            f"{path}: [{op}.{dtype}] was changed by hand since it was approved, so records can't "
            "be judged by it: restore it, or approve a proposal"
        )
    return approved


def _store(
    client: Client, inputs: Inputs, job: Job, home: Home, sound: Sound, now: datetime
) -> Done:
    if inputs.history == "artifact":
        return _as_artifact(client, inputs, job, home, sound, now)
    if inputs.history == "branch":
        message = f"Records of run {job.run_id}\n\nMeasured at {job.sha}.\n"
        return Done(*branches.update(client, inputs.history_branch, sound, message))
    path = Path(inputs.history)
    if path.suffix:
        raise TolcalError(f"--history {path}: records are added to a folder, and this names a file")
    past = history.read_table([path])
    added = tables.new(past, sound(past))
    history.add(path, added)
    return Done(len(added), len(past) + len(added))


def _as_artifact(
    client: Client, inputs: Inputs, job: Job, home: Home, sound: Sound, now: datetime
) -> Done:
    given = job.payload.get("inputs")
    accepted = given.get("accept-loss") if isinstance(given, dict) else None
    accept_loss = job.event == "workflow_dispatch" and accepted in ("true", True)
    past = carried.read(client, inputs, home, accept_loss)
    fresh = tables.new(past.table, sound(past.table))
    if any(artifact.name == carried.NAME for artifact in artifacts.of_run(client, job.run_id)):
        note = f"run {job.run_id} uploaded its part in an earlier attempt, which stays as it is"
        return Done(0, len(past.table), (*past.notes, note))
    folder = inputs.out / UPLOAD
    manifest = carried.write(folder / carried.MEMBER, past, fresh, job, now)
    if manifest is None:
        return Done(0, len(past.table), past.notes)
    rest = f"; the rest is in {plural(len(manifest.parts), 'earlier artifact')}"
    note = (
        f"for upload: {plural(manifest.rows, 'record')}, {manifest.rows - len(fresh)} of them older"
        f"{rest if manifest.parts else ''}"
    )
    return Done(len(fresh), manifest.total, (*past.notes, note), folder)


def _said(done: Done, sound: Sound, job: Job) -> list[str]:
    lines = list(done.notes)
    if sound.records:
        lines.append(
            f"{plural(len(sound.records), 'record')} of run {job.run_id} read, {done.added} of "
            f"them new to the history, which has {done.total}"
        )
    else:
        lines.append(f"no records in this run; the history has {done.total}")
    for kernel, dtype in sorted(sound.broken):
        lines.append(
            f"REGRESSION on the default branch: {kernel} {dtype} exceeds its approved tolerance, "
            "so its records stay out of the history: fix it, or approve a wider tolerance first"
        )
    return lines
