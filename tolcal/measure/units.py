"""What to measure, as units of work."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from tolcal import cases
from tolcal.measure import wire
from tolcal.measure.ledger import REASON_LIMIT, Outcomes
from tolcal.model import Case, Cell, Kernel, Op, Origin, Tolerance, digest, one_line

#: Cases a unit: small enough to share out, to fit a pipe, and to be measured again after a loss.
CHUNK = 128
#: Variables that change a kernel's numbers: they are part of the environment, and travel with it.
SWITCHES = ("TRITON_F32_DEFAULT", "TRITON_DEFAULT_FP_FUSION", "NVIDIA_TF32_OVERRIDE")


Engine = Literal["local", "ray"]
#: Which cases are checked beside being measured.
Checked = Literal["gate", "all", "none"]
CHECKED: tuple[Checked, ...] = get_args(Checked)


class Request(msgspec.Struct, frozen=True):
    """What to measure."""

    ops: tuple[Op, ...]
    dtypes: tuple[str, ...]  # empty: each op's own
    device: str  # auto, cuda, cuda:1, cpu
    gate: int  # cases a kernel and dtype, the same in every run
    explore: int  # cases a kernel and dtype, fresh in every run
    repeat: int = 1
    seed: int | None = None  # of the explore cases; None draws one
    timeout: float = 120.0  # seconds a case
    workers: int = 0  # 0: as many as suit the machine
    origin: Origin = "local"
    limits: Mapping[Cell, Tolerance | float] = {}
    kernel_timeout: float | None = None  # seconds a kernel in a unit; None: ten cases' worth
    variables: Mapping[str, str] = {}  # of the workers' environment, beside our own
    engine: Engine = "local"
    checks: Checked = "gate"
    shard: tuple[int, int] | None = None  # (i, n): only the i-th of n parts, from 1
    profiles: tuple[str, ...] = ()  # input profiles; empty: each op's own

    @property
    def kernel_limit(self) -> float:
        """Seconds that a kernel may take over all its cases of a unit."""
        return 10 * self.timeout if self.kernel_timeout is None else self.kernel_timeout


class Planned(msgspec.Struct, frozen=True):
    """A unit of work, the run it belongs to, and how many of its first cases are gate cases."""

    run: int
    gate: int
    unit: wire.Unit

    @property
    def size(self) -> int:
        """Records that it gives."""
        return len(self.unit.cases) * len(self.unit.kernels)


class Count(NamedTuple):
    """Cases of an input profile, a kernel and dtype."""

    profile: str
    gate: int
    explore: int


def counts(request: Request, op: Op) -> list[Count]:
    """How many cases of which profile: all that are asked for, of those that were asked for.

    Of the op's own list ``default`` has all, and each other one a quarter: it is there for what
    it finds at all, not for tails. TolcalError for an unknown profile.
    """
    if request.profiles:
        asked = cases.profiles_of(op, request.profiles)
        return [Count(profile, request.gate, request.explore) for profile in asked]
    found = []
    for profile in cases.profiles_of(op, op.profiles):
        part = 1 if profile == "default" else 4
        found.append(Count(profile, -(-request.gate // part), -(-request.explore // part)))
    return found


def run_seeds(request: Request) -> list[int]:
    """The master seed of each run's explore cases: consecutive, so the first tells the others."""
    base = secrets.randbits(62) if request.seed is None else request.seed
    return [base + i for i in range(request.repeat)]


def plan(request: Request, seeds: list[int]) -> list[Planned]:
    """Every unit of every run: kernels of one op and dtype that share their dims, CHUNK cases."""
    planned = []
    for index, seed in enumerate(seeds):
        for op in request.ops:
            for dtype in op.dtypes:
                if request.dtypes and dtype not in request.dtypes:
                    continue
                for kernels in _by_dims(op):
                    gate, whole = _cases(request, op, kernels[0], dtype, seed)
                    limit = request.limits.get((op.name, dtype))
                    for at in range(0, len(whole), CHUNK):
                        unit = wire.Unit(op, dtype, kernels, whole[at : at + CHUNK], limit)
                        planned.append(Planned(index, max(0, gate - at), unit))
    planned = [_checked(p, request.checks) for p in planned if p.size]
    if request.shard is None:
        return planned
    part, parts = request.shard
    return [planned[i] for i in share([p.size for p in planned], parts)[part - 1]]


def _cases(
    request: Request, op: Op, kernel: Kernel, dtype: str, seed: int
) -> tuple[int, tuple[Case, ...]]:
    """How many gate cases there are, and these before the explore cases, of a group of kernels."""
    asked = counts(request, op)

    def drawn(of: int, many: int, profile: str) -> tuple[Case, ...]:
        return cases.draw_cases(op, kernel.dims, dtype, of, many, profile, kernel.own)

    gate = {c.id: c for n in asked for c in drawn(cases.GATE_SEED, n.gate, n.profile)}
    if request.gate:
        gate |= {c.id: c for c in op.pinned if c.dtype == dtype}
    fresh = [c for n in asked for c in drawn(seed, n.explore, n.profile)]
    return len(gate), (*gate.values(), *fresh)


def _checked(planned: Planned, which: Checked) -> Planned:
    """The same, its unit told which cases to check: the first so many."""
    unit = planned.unit
    count = {"gate": min(planned.gate, len(unit.cases)), "all": len(unit.cases), "none": 0}[which]
    return msgspec.structs.replace(planned, unit=msgspec.structs.replace(unit, checked=count))


def share(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Indices of units for each part: large ones first, each to the part that has least to do."""
    load = [0] * parts
    mine: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = load.index(min(load))
        load[least] += sizes[index]
        mine[least].append(index)
    return [sorted(part) for part in mine]


def passed_over(planned: Planned) -> Outcomes:
    """Pinned cases that kernels of the unit are not to be run on, as op.toml says: skipped."""
    unit, found = planned.unit, Outcomes()
    for at, case in enumerate(unit.cases[: planned.gate]):
        name = unit.pinned(at)
        for kernel in unit.kernels if name else ():
            why = kernel.refuses(case)
            if case.layout not in unit.op.layouts:
                why = f"the layouts of op.toml lack {case.layout}"
            if why:
                reason = one_line(f"{name}: {why}", REASON_LIMIT)
                found[at, kernel.name] = wire.Measured(
                    at, kernel.name, "skipped", reason, "", None, None
                )
    return found


def run_id(
    request: Request, seeds: list[int], run: int, session: str, commit: str, environment: str
) -> str:
    """The name of a run. Shards of one matrix agree on it without having met."""
    if request.shard is None:
        return digest("run", session, run)
    # Sources too: outside git, or in a dirty work tree, the commit says too little.
    sources = [
        (op.op_hash, op.reference_hash, [k.source_hash for k in op.kernels],
         op.profiles, op.layouts, op.sizes, [case.id for case in op.pinned])
        for op in request.ops
    ]  # fmt: skip
    return digest(
        "shards", seeds[0], commit, environment, request.gate, request.explore, request.shard[1],
        request.dtypes, request.profiles, request.checks, request.repeat, run, sources,
    )  # fmt: skip


def _by_dims(op: Op) -> list[tuple[Kernel, ...]]:
    groups: dict[str, list[Kernel]] = {}
    for kernel in op.kernels:
        groups.setdefault(repr((sorted(kernel.dims.items()), kernel.own)), []).append(kernel)
    return [tuple(group) for group in groups.values()]


def find_case(ops: tuple[Op, ...], case_id: str, gate: int) -> Case | None:
    """The gate case with that id, if there is one: ids are hashes, but the gate set is known.

    Of every profile, since a run may have asked for it, and pinned ones.
    """
    return next((case for case in _gate_cases(ops, gate) if case.id == case_id), None)


def _gate_cases(ops: tuple[Op, ...], gate: int) -> Iterator[Case]:
    for op in ops:
        yield from op.pinned
    for profile in cases.PROFILES:  # default first, which most are of
        for op in ops:
            for dtype in op.dtypes:
                for kernels in _by_dims(op):
                    dims, own = kernels[0].dims, kernels[0].own
                    yield from cases.draw_cases(
                        op, dims, dtype, cases.GATE_SEED, gate, profile, own
                    )
