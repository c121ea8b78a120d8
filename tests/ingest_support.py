"""The ingest workflow on the stand-in for GitHub: measuring, ingesting, and the upload step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from github_server.state import Artifact, Run
from github_support import Clock, Hub, client
from records_support import packed
from tests_support import make_record, make_run

from tolcal.github import histories, ingest
from tolcal.github.artifacts import RECORDS
from tolcal.github.settings import Inputs, Job
from tolcal.model import Record

INGEST = ".github/workflows/tolcal-ingest.yml"


class Flow:
    """One repository's ingests, one after the other unless a test has it otherwise."""

    def __init__(self, hub: Hub, folder: Path, history: str = "artifact") -> None:
        self.hub = hub
        self.folder = folder
        self.inputs = Inputs(
            history=history, tolerances=str(folder / "tolerances.toml"), out=folder / "out"
        )
        self.clock = Clock(hub.state.now)
        self.said: list[str] = []

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.hub.state.now, UTC)

    def run(self, event: str = "push", **how: Any) -> Run:
        """A workflow run of ingest that has only begun."""
        return self.hub.workflow_run(INGEST, event=event, status="in_progress", **how)

    def job(self, run: Run, event: str = "push", accept_loss: bool = False) -> Job:
        payload = {"inputs": {"accept-loss": str(accept_loss).lower()}}
        return self.hub.job(event, payload if event == "workflow_dispatch" else {}, run=run)

    def measure(self, run: Run, records: Sequence[Record] | Sequence[int], seed: int = 7) -> None:
        """The measuring job's upload: records, or those of these seeds."""
        sha = self.hub.main.git.ref("refs/heads/main")
        own = make_run(id=f"{run.id:016x}", commit=sha, session=f"{run.attempt:x}", seed=seed)
        made = [make_record(run=own, seed=r) if isinstance(r, int) else r for r in records]
        name = f"tolcal-records-{run.id}-{run.attempt}-1of1"
        self.hub.artifact(run, name, {RECORDS: packed(made)})

    def ingest(self, run: Run, event: str = "push", accept_loss: bool = False) -> int:
        """The ingest job, up to the upload step."""
        job = self.job(run, event, accept_loss)
        status = ingest.run(client(self.hub, self.clock), self.inputs, job, now=self.now)
        assert job.summary is not None
        assert job.output is not None
        self.said = job.summary.read_text().splitlines()[1:]
        self.outputs = dict(
            line.split("=", 1)
            for line in (job.output.read_text().splitlines() if job.output.exists() else ())
        )
        return status

    def upload(self, run: Run, days: float = 90) -> Artifact | None:
        """The upload step, which runs if the job before it says so; then the run is over."""
        made = None
        if "history-artifact" in self.outputs:
            folder = Path(self.outputs["history-path"])
            (file,) = folder.iterdir()
            content = {file.name: file.read_bytes()}
            made = self.hub.artifact(run, self.outputs["history-artifact"], content, days=days)
        run.status, run.conclusion = "completed", "success"
        return made

    def push(self, *seeds: int, event: str = "push", days: float = 90) -> Artifact | None:
        """A whole run: seeds of its records, or none."""
        run = self.run(event)
        if seeds:
            self.measure(run, seeds)
        assert self.ingest(run, event) == 0
        return self.upload(run, days)

    def read(self) -> histories.Trusted:
        """As the report of a pull request does."""
        return histories.read(client(self.hub, self.clock), self.inputs, self.hub.job())

    def seeds(self) -> list[int]:
        """Which records there are."""
        return sorted(self.read().table["seed"].to_pylist())

    def later(self, days: float) -> None:
        """Time goes by."""
        self.hub.state.now += days * 86400


def with_run(record: Record, **changes: Any) -> Record:
    """A record of another run."""
    return msgspec.structs.replace(record, run=msgspec.structs.replace(record.run, **changes))
