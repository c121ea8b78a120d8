"""Runs kernels in isolated worker processes and yields their records, in the order of the plan.

This process never imports torch, so nothing that a kernel does can reach it. A worker that dies
or hangs costs the case it was on: its successor takes up the rest of the unit.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections import Counter
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from tolcal import __version__, cases
from tolcal.measure import engine, resume, wire
from tolcal.measure.ledger import Outcomes
from tolcal.measure.resume import Recorded
from tolcal.measure.units import (
    Planned,
    Request,
    counts,
    find_case,
    passed_over,
    plan,
    run_id,
    run_seeds,
)
from tolcal.model import DTYPES, Case, CaseSet, Environment, Record, Run, TolcalError

__all__ = ["Planned", "Progress", "Recorded", "Request", "Step", "find_case", "measure",
           "passed_over", "replay", "survey"]  # fmt: skip

#: More than a sitting measures, and what a records file is still read with.
MAX_RECORDS = 5_000_000


class Step(NamedTuple):
    """How far a run is: how many of all records are measured, and of those of the op at hand."""

    done: int
    total: int
    op: str
    op_done: int
    op_total: int


Progress = Callable[[Step], None]


def git_state(folder: Path) -> tuple[str, bool]:
    """Commit of the work tree that holds ``folder`` ("" outside git), and whether it is dirty."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        # A runner that got the sources without their history may still know the commit.
        named = os.environ.get("GITHUB_SHA", "")
        return (named if re.fullmatch("[0-9a-f]{40}", named) else ""), False
    return commit, bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))


def git_root(folder: Path) -> Path | None:
    """The top of the work tree that holds ``folder``; None outside git."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    return Path(top) if top else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def measure(
    request: Request,
    corpus: Path,
    progress: Progress = lambda _: None,
    recorded: Recorded | None = None,
) -> Generator[Run | Record, None, None]:
    """Runs ``request``; yields each Run, then its Records.

    The order is that of the plan whatever the number of workers: run, op, dtype, case, kernel.
    A kernel's failure is a record. TolcalError if the device, the contract or a reference fails.
    What is ``recorded`` is not measured or yielded again; TolcalError if it is not the beginning
    of this very plan.
    """
    if recorded is not None:
        request = resume.with_seed(request, recorded)
    seeds = run_seeds(request)
    yield from _execute(request, seeds, checked_plan(request, seeds), corpus, progress, recorded)


def checked_plan(request: Request, seeds: list[int]) -> list[Planned]:
    """The units of ``request``. TolcalError if there are none, or too many."""
    records = request.repeat * sum(
        len(op.kernels) * len(op.dtypes) * (count.gate + count.explore)
        for op in request.ops
        for count in counts(request, op)
    )
    if records > MAX_RECORDS:
        raise TolcalError(
            f"{records} records are asked for, at most {MAX_RECORDS} in one go; give fewer --cases "
            "or --repeat, and add runs with --history"
        )
    if request.shard is not None and request.seed is None:
        raise TolcalError(
            f"--shard {request.shard[0]}/{request.shard[1]}: give --seed N, the same for every "
            "shard, or they would not be parts of one run"
        )
    if request.ops and not any(counts(request, op) for op in request.ops):
        raise _no_profile(request)
    planned = plan(request, seeds)
    if not planned and request.shard is not None:
        units = len(plan(msgspec.structs.replace(request, shard=None), seeds))
        if units:
            raise TolcalError(
                f"--shard {request.shard[0]}/{request.shard[1]}: there are {units} units of work, "
                "so nothing is left for this part; make fewer parts"
            )
    if not planned:
        raise TolcalError(
            "nothing to measure: no kernel, dtype and case is left by the selection; "
            "check OP, --dtype and --cases"
        )
    return planned


def _no_profile(request: Request) -> TolcalError:
    """Why no op has one of the profiles that are asked for."""
    ops = ", ".join(op.name for op in request.ops)
    if request.profiles == ("large",) and not any("large" in op.sizes for op in request.ops):
        return TolcalError(
            f"--profile large: no table [sizes.large] in op.toml of {ops}, so there is none; add "
            "one with the dims of large cases, or ask for another profile"
        )
    return TolcalError(
        f"--profile {','.join(request.profiles)}: {ops} has none of these, by `excluded_profiles` "
        "and [sizes.large] of its op.toml; ask for another profile"
    )


def survey(request: Request) -> tuple[list[Planned], Environment, str]:
    """What would run, on what, and where; runs no kernel. TolcalError as ``measure``."""
    planned = checked_plan(request, run_seeds(request))
    with engine.create(request, [], {}) as pool:
        pool.start()
        return planned, pool.environment, pool.places


def replay(request: Request, case: Case, corpus: Path) -> Generator[Run | Record, None, None]:
    """Runs the kernels of ``request`` on one case, and checks them on it."""
    (op,) = request.ops
    limit = request.limits.get((op.name, case.dtype))
    unit = wire.Unit(op, case.dtype, op.kernels, (case,), limit, checked=1)
    yield from _execute(request, [0], [Planned(0, 0, unit)], corpus, lambda _: None, None)


def _execute(
    request: Request,
    seeds: list[int],
    planned: list[Planned],
    corpus: Path,
    progress: Progress,
    recorded: Recorded | None,
) -> Generator[Run | Record, None, None]:
    commit, dirty = git_state(corpus)
    total = Counter[str]()
    for p in planned:
        total[p.unit.op.name] += p.size
    done = Counter(r.case.op for r in recorded.records) if recorded else Counter[str]()
    runs: dict[int, Run] = {}
    session, skip, known = secrets.token_hex(8), 0, dict[int, Outcomes]()
    if recorded is not None:
        resume.check_plan(recorded, planned, seeds, commit, request.origin)
        runs, session = dict(enumerate(recorded.runs)), recorded.runs[0].session
        units, outcomes = resume.split(planned, recorded.records)
        planned, known = planned[units:], {0: outcomes}
        skip = len(outcomes)
    if not planned:
        return  # cut after its last record
    known = {i: passed_over(p) | known.get(i, {}) for i, p in enumerate(planned)}
    known = {i: outcomes for i, outcomes in known.items() if outcomes}
    with engine.create(request, planned, known) as pool:
        pool.start()
        ids = [
            run_id(request, seeds, index, session, commit, pool.environment.key)
            for index in range(len(seeds))
        ]
        if recorded is not None:
            resume.check_environment(recorded, ids, pool.environment, pool.device_uuid)
        ahead = Counter[int]()  # measured, in units that are not complete

        def step(index: int) -> None:
            name = planned[index].unit.op.name
            some = sum(n for i, n in ahead.items() if planned[i].unit.op.name == name)
            progress(
                Step(done.total() + ahead.total(), total.total(), name, done[name] + some,
                     total[name])
            )  # fmt: skip

        def noted(index: int) -> None:
            # One that is measured anew, after a worker that was not to be trusted, is no more.
            ahead[index] = min(ahead[index] + 1, planned[index].size)
            step(index)

        pool.noted = noted
        for index, measured in pool.results():
            p = planned[index]
            told = ahead.pop(index, 0)
            done[p.unit.op.name] += len(measured) - skip
            if told < len(measured) - skip:
                step(index)
            if p.run not in runs:
                runs[p.run] = Run(
                    id=ids[p.run],
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
                yield runs[p.run]
            for outcome in measured[skip:]:
                yield record_of(runs[p.run], p, outcome)
            skip = 0


def record_of(run: Run, planned: Planned, outcome: wire.Measured) -> Record:
    op, unit = planned.unit.op, planned.unit
    kernel = next(k for k in unit.kernels if k.name == outcome.kernel)
    case_set: CaseSet = "gate" if outcome.case < planned.gate else "explore"
    case, stats = unit.cases[outcome.case], outcome.stats
    if stats is not None and case.profile in cases.OF_FEW:
        stats = msgspec.structs.replace(stats, bias=0.0, bias_count=0)
    return Record(
        run=run,
        kernel=kernel.name,
        role=kernel.role,
        corrupts=kernel.corrupts,
        case=case,
        case_set=case_set,
        status=outcome.status,
        reason=outcome.reason,
        input_hash=outcome.input_hash,
        kernel_hash=kernel.source_hash,
        reference_hash=op.reference_hash,
        op_hash=op.op_hash,
        roundoff=DTYPES[op.compute_dtype].roundoff,
        stats=stats,
        same_as_control=outcome.same_as_control,
        outside=outcome.outside,
        checks=outcome.checks,
    )
