"""Runs kernels in isolated worker processes and yields their records, in the order of the plan.

This process never imports torch, so nothing that a kernel does can reach it. A worker that dies
or hangs costs the case it was on: its successor takes up the rest of the unit.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from tolcal import __version__
from tolcal.measure import wire
from tolcal.measure.pool import Pool
from tolcal.measure.units import Planned, Request, find_case, plan, run_seeds
from tolcal.model import DTYPES, Case, CaseSet, Record, Run, TolcalError, digest

__all__ = ["Progress", "Request", "find_case", "measure", "replay"]

#: More than a sitting measures, and what a records file is still read with.
MAX_RECORDS = 5_000_000
#: Called after each record with (records done, records planned, what it was).
Progress = Callable[[int, int, str], None]


def git_state(folder: Path) -> tuple[str, bool]:
    """Commit of the work tree that holds ``folder`` ("" outside git), and whether it is dirty."""

    def git(*args: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=60
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit:
        # A runner that got the sources without their history may still know the commit.
        named = os.environ.get("GITHUB_SHA", "")
        return (named if re.fullmatch("[0-9a-f]{40}", named) else ""), False
    return commit, bool(git("status", "--porcelain", "--untracked-files=no"))


def measure(
    request: Request, corpus: Path, progress: Progress = lambda *_: None
) -> Iterator[Run | Record]:
    """Runs ``request``; yields each Run, then its Records.

    The order is that of the plan whatever the number of workers: run, op, dtype, case, kernel.
    A kernel's failure is a record. TolcalError if the device, the contract or a reference fails.
    """
    kernels = sum(len(op.kernels) * len(op.dtypes) for op in request.ops)
    records = kernels * (request.gate + request.explore) * request.repeat
    if records > MAX_RECORDS:
        raise TolcalError(
            f"{records} records are asked for, at most {MAX_RECORDS} in one go; give fewer --cases "
            "or --repeat, and add runs with --history"
        )
    seeds = run_seeds(request)
    planned = plan(request, seeds)
    if not planned:
        raise TolcalError(
            "nothing to measure: no kernel, dtype and case is left by the selection; "
            "check OP, --dtype and --cases"
        )
    yield from _execute(request, seeds, planned, corpus, progress)


def replay(request: Request, case: Case, corpus: Path) -> Iterator[Run | Record]:
    """Runs the kernels of ``request`` on one case."""
    (op,) = request.ops
    limit = request.limits.get((op.name, case.dtype))
    unit = wire.Unit(op, case.dtype, op.kernels, (case,), limit)
    yield from _execute(request, [0], [Planned(0, 0, unit)], corpus, lambda *_: None)


def _execute(
    request: Request,
    seeds: list[int],
    planned: list[Planned],
    corpus: Path,
    progress: Progress,
) -> Iterator[Run | Record]:
    commit, dirty = git_state(corpus)
    session = secrets.token_hex(8)
    total = sum(p.size for p in planned)
    done = 0
    current: Run | None = None
    with Pool(request, planned) as pool:
        pool.start()
        for index, outcomes in pool.results():
            p = planned[index]
            run_id = digest("run", session, p.run)
            if current is None or current.id != run_id:
                current = Run(
                    id=run_id,
                    seed=seeds[p.run],
                    started=datetime.now(UTC).isoformat(timespec="seconds"),
                    session=session,
                    origin=request.origin,
                    commit=commit,
                    dirty=dirty,
                    tolcal=__version__,
                    device_uuid=pool.device_uuid,
                    environment=pool.environment,
                )
                yield current
            for outcome in outcomes:
                done += 1
                progress(done, total, f"{p.unit.op.name} {p.unit.dtype}")
                yield _record(current, p, outcome)


def _record(run: Run, planned: Planned, outcome: wire.Measured) -> Record:
    op, unit = planned.unit.op, planned.unit
    kernel = next(k for k in unit.kernels if k.name == outcome.kernel)
    case_set: CaseSet = "gate" if outcome.case < planned.gate else "explore"
    return Record(
        run=run,
        kernel=kernel.name,
        role=kernel.role,
        corrupts=kernel.corrupts,
        case=unit.cases[outcome.case],
        case_set=case_set,
        status=outcome.status,
        reason=outcome.reason,
        input_hash=outcome.input_hash,
        kernel_hash=kernel.source_hash,
        reference_hash=op.reference_hash,
        op_hash=op.op_hash,
        roundoff=DTYPES[op.compute_dtype].roundoff,
        stats=outcome.stats,
        same_as_control=outcome.same_as_control,
    )
