"""A repository on the stand-in for GitHub, with a corpus, a history and measuring runs.

What the trusted job has checked out lies in `folder`, which is the working directory.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from github_server.state import CheckRun, Comment, Pull, Run
from github_support import Clock, Hub
from tests_support import ROOT, make_record, make_run, make_stats

from tolcal import history, tolerances
from tolcal.github import report
from tolcal.github.client import Client
from tolcal.github.settings import Inputs, Job
from tolcal.history import jsonlines
from tolcal.model import AllClose, Approved, Evidence, HeldOut, Record, Tolerance

OP = """\
summary = "an op"
dtypes = ["float32"]
[dims]
B = [1, 2]
S = [7]
H = [256, 1025]
[inputs.x]
shape = ["B", "S", "H"]
[output]
shape = ["B", "S", "H"]
"""
KERNEL = "import torch\n\n\ndef run(x: torch.Tensor) -> torch.Tensor:\n    return torch.relu(x)\n"
CORPUS = {
    "corpus/softmax/op.toml": OP
    + '[buggy.softmax_bad]\ncorrupts = "softmax_triton"\nfault = "the tail is not masked"\n',
    "corpus/softmax/reference.py": KERNEL.replace("run", "reference"),
    "corpus/softmax/kernels/softmax_triton.py": KERNEL,
    "corpus/softmax/buggy/softmax_bad.py": KERNEL,
    "corpus/relu/op.toml": OP,
    "corpus/relu/reference.py": KERNEL.replace("run", "reference"),
    "corpus/relu/kernels/relu_triton.py": KERNEL,
}
CHANGED = KERNEL.replace("relu(x)", "relu(x) * 1.0")
FINE, BAD = make_stats(2.0**-24), make_stats(2.0**-10)
TRUSTED = ".github/workflows/tolcal-report.yml"


def approved_cell(atol: float = 2.0**-22) -> Tolerance:
    """Two unit roundoffs of scale beside ``atol``, as `tolcal approve` leaves it."""
    made = Tolerance(
        atol, 2.0, AllClose(1e-5, 1e-4), 0.31,
        Evidence("residual", 2.0, 800, 20, ("NVIDIA H200",), HeldOut(20, 0), "00" * 8,
                 roundoff=2.0**-24, scale=1.0),
    )  # fmt: skip
    mark = Approved("a-maintainer", "2026-04-01T10:12:00+00:00", "9c1e7a40d2b86f13", "", 7)
    return msgspec.structs.replace(
        made, approved=msgspec.structs.replace(mark, value=made.value_digest)
    )


APPROVED = {(op, "float32"): approved_cell() for op in ("softmax", "relu")}


def tolerances_text(cells: Mapping[tuple[str, str], Tolerance]) -> str:
    """A tolerance file."""
    return tolerances.edited("schema = 1\n", cells, "tolerances.toml")


def rows(run: Any, seeds: Sequence[int], **changes: Any) -> list[Record]:
    """Records of the three kernels on cases of these seeds."""
    fields = {"run": run, **changes}
    kernels = (
        {"kernel": "softmax_triton"},
        {"kernel": "relu_triton", "op": "relu"},
        {"kernel": "softmax_bad", "role": "buggy", "corrupts": "softmax_triton",
         "same_as_control": False, "stats": BAD},
    )  # fmt: skip
    return [make_record(seed=s, **{**fields, **kernel}) for s in seeds for kernel in kernels]


def past() -> list[Record]:
    """20 runs of 40 cases, enough for a fit; the last has the six gate cases, too."""
    found = []
    for n in range(20):
        run = make_run(
            id=f"{n:016x}", started=f"2026-04-{n + 1:02}T00:00:00+00:00", origin="ingest"
        )
        for seed in range(1000 * n, 1000 * n + 40):  # runs alike, records not
            found += rows(run, [seed], stats=make_stats((seed % 7) * 2.0**-28))
    return found + rows(run, range(6), case_set="gate", stats=FINE)


def claims(number: int = 1, **stats: Any) -> list[Record]:
    """What a pull request sends: by kernel, the statistics of its six gate cases."""
    run = make_run(id=f"{number:x}".rjust(16, "f"), seed=number, origin="local", commit="d" * 40)
    made = rows(run, range(6), case_set="gate", stats=FINE)
    return [
        msgspec.structs.replace(r, stats=stats[r.kernel]) if r.kernel in stats else r for r in made
    ]


class Site:
    """`hub.main` with all of it."""

    def __init__(self, hub: Hub, folder: Path, past: Path) -> None:
        self.hub, self.folder, self.clock = hub, folder, Clock()
        files = {**CORPUS, "tolerances.toml": tolerances_text(APPROVED), "README.md": "kernels\n"}
        hub.repository(files=files)
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if past.exists():
            shutil.copytree(past, folder / "history")
        self.inputs = Inputs(history=str(folder / "history"), out=folder / "out")

    def pull(self, files: Mapping[str, str | bytes | None], **options: Any) -> Pull:
        """A pull request that changes those files."""
        return self.hub.pull(files=files, **options)

    def measure(
        self, pull: Pull, records: Sequence[Record] | bytes | None = (), **options: Any
    ) -> Run:
        """A completed run of the measuring workflow; None: without an artifact."""
        run = self.hub.workflow_run(pull=pull, **options)
        if records is not None:
            self.upload(run, records or claims(run.id))
        return run

    def upload(self, run: Run, records: Sequence[Record] | bytes, shard: str = "1of1") -> None:
        """Records as an artifact of a run."""
        content = records if isinstance(records, bytes) else packed(self.folder, records)
        name = f"tolcal-records-{run.id}-{run.attempt}-{shard}"
        self.hub.artifact(run, name, {"records.jsonl.gz": content})

    def payload(self, run: Run, action: str = "completed") -> dict[str, Any]:
        """The event of a run, whose workflow_run is what the API says of it."""
        client = Client(self.hub.job(), self.hub.token)
        return {"action": action, "workflow_run": client.get(f"actions/runs/{run.id}")}

    def job(self, run: Run, action: str = "completed") -> Job:
        """The trusted job that this event starts."""
        return self.hub.job("workflow_run", self.payload(run, action))

    def client(self) -> Client:
        """One that never sleeps."""
        job = self.hub.job()
        clock = self.clock
        return Client(job, self.hub.token, sleep=clock.sleep, clock=clock.time)

    def report(self, run: Run, action: str = "completed", **inputs: Any) -> int:
        """`tolcal github report` for that event, in this process."""
        chosen = msgspec.structs.replace(self.inputs, **inputs)
        return report.report(self.client(), chosen, self.job(run, action))

    def process(self, run: Run, *options: str, code: str = "") -> tuple[int, str, dict[str, str]]:
        """The same as a process of its own: exit status, all it printed, outputs."""
        environment = self.hub.environment("workflow_run", self.payload(run))
        command = [
            sys.executable,
            *(["-c", code] if code else ["-m", "tolcal"]),
            "github",
            "report",
        ]
        given = ["--history", self.inputs.history, "--out", str(self.inputs.out), *options]
        done = subprocess.run(
            [*command, *given], cwd=self.folder, capture_output=True, text=True,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment},
        )  # fmt: skip
        lines = Path(environment["GITHUB_OUTPUT"])
        values = lines.read_text().splitlines() if lines.exists() else []
        outputs = dict(line.split("=", 1) for line in values)
        return done.returncode, done.stdout + done.stderr, outputs

    # What is there afterwards

    @property
    def comments(self) -> list[Comment]:
        """Comments of the token's, the oldest first."""
        return [c for c in self.hub.main.comments.values() if c.author is self.hub.state.bot]

    @property
    def written(self) -> dict[str, Any]:
        """All that reports write to GitHub, without ids and times."""
        main = self.hub.main
        return {
            "comments": [(c.issue, c.author.login, c.body) for c in main.comments.values()],
            "checks": [
                (c.sha, {k: v for k, v in c.values.items() if k != "details_url"}, c.annotations)
                for c in main.checks.values()
            ],
        }

    def forget(self) -> None:
        """As if no report had ever written."""
        self.hub.main.comments.clear()
        self.hub.main.checks.clear()

    def check(self, pull: Pull | str) -> CheckRun:
        """The one check on a head."""
        (found,) = self.hub.checks(pull if isinstance(pull, str) else pull.head_sha)
        return found

    def said(self, pull: Pull | str) -> tuple[str, str | None]:
        """Status and conclusion of that check."""
        values = self.check(pull).values
        return values["status"], values.get("conclusion")


def packed(folder: Path, records: Sequence[Record]) -> bytes:
    """A records file."""
    path = folder / "upload.jsonl.gz"
    with jsonlines.Writer(path) as writer:
        seen = set()
        for record in records:
            if record.run.id not in seen:
                writer.write(record.run)
                seen.add(record.run.id)
            writer.write(record)
    return path.read_bytes()


@pytest.fixture(scope="session")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The history of every site, which nobody writes to."""
    folder = tmp_path_factory.mktemp("trusted") / "history"
    history.add(folder, past())
    return folder


@pytest.fixture
def site(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: Path) -> Site:
    """A repository with a history."""
    (folder := tmp_path / "checkout").mkdir()
    monkeypatch.chdir(folder)
    return Site(hub, folder, trusted)


@pytest.fixture
def new_site(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """One without a history."""
    (folder := tmp_path / "checkout").mkdir()
    monkeypatch.chdir(folder)
    return Site(hub, folder, folder / "history")
