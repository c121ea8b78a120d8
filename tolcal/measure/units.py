"""What to measure, as units of work."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from tolcal import cases
from tolcal.measure import wire
from tolcal.model import Case, Cell, Kernel, Op, Origin, Tolerance, digest

#: Cases a unit: small enough to share out, to fit a pipe, and to be measured again after a loss.
CHUNK = 128
#: Variables that change a kernel's numbers: they are part of the environment, and travel with it.
SWITCHES = ("TRITON_F32_DEFAULT", "TRITON_DEFAULT_FP_FUSION", "NVIDIA_TF32_OVERRIDE")


Engine = Literal["local", "ray"]


class Request(msgspec.Struct, frozen=True):
    """What to measure."""

    ops: tuple[Op, ...]
    dtypes: tuple[str, ...]  # empty: each op's own
    device: str  # auto, cuda, cuda:1, cpu
    gate: int  # cases a kernel and dtype, the same in every run
    explore: int  # cases a kernel and dtype, fresh in every run
    repeat: int = 1
    seed: int | None = None  # of the explore cases; None draws one
    profile: str = "default"
    timeout: float = 120.0  # seconds a case
    workers: int = 0  # 0: as many as suit the machine
    origin: Origin = "local"
    limits: Mapping[Cell, Tolerance | float] = {}
    kernel_timeout: float | None = None  # seconds a kernel in a unit; None: ten cases' worth
    variables: Mapping[str, str] = {}  # of the workers' environment, beside our own
    engine: Engine = "local"
    shard: tuple[int, int] | None = None  # (i, n): only the i-th of n parts, from 1

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
                    dims, args = kernels[0].dims, (dtype,)
                    gate = cases.draw_cases(
                        op, dims, *args, cases.GATE_SEED, request.gate, request.profile
                    )
                    fresh = cases.draw_cases(
                        op, dims, *args, seed, request.explore, request.profile
                    )
                    limit = request.limits.get((op.name, dtype))
                    whole = gate + fresh
                    for at in range(0, len(whole), CHUNK):
                        unit = wire.Unit(op, dtype, kernels, whole[at : at + CHUNK], limit)
                        planned.append(Planned(index, max(0, len(gate) - at), unit))
    planned = [p for p in planned if p.size]
    if request.shard is None:
        return planned
    part, parts = request.shard
    return [planned[i] for i in share([p.size for p in planned], parts)[part - 1]]


def share(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Indices of units for each part: large ones first, each to the part that has least to do."""
    load = [0] * parts
    mine: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = load.index(min(load))
        load[least] += sizes[index]
        mine[least].append(index)
    return [sorted(part) for part in mine]


def run_id(
    request: Request, seeds: list[int], run: int, session: str, commit: str, environment: str
) -> str:
    """The name of a run. Shards of one matrix agree on it without having met."""
    if request.shard is None:
        return digest("run", session, run)
    # Sources too: outside git, or in a dirty work tree, the commit says too little.
    sources = [
        (op.op_hash, op.reference_hash, [k.source_hash for k in op.kernels]) for op in request.ops
    ]
    return digest(
        "shards", seeds[0], commit, environment, request.gate, request.explore, request.shard[1],
        request.dtypes,
        run, sources,
    )  # fmt: skip


def _by_dims(op: Op) -> list[tuple[Kernel, ...]]:
    groups: dict[str, list[Kernel]] = {}
    for kernel in op.kernels:
        groups.setdefault(repr(sorted(kernel.dims.items())), []).append(kernel)
    return [tuple(group) for group in groups.values()]


def find_case(ops: tuple[Op, ...], case_id: str, gate: int) -> Case | None:
    """The gate case with that id, if there is one: ids are hashes, but the gate set is known."""
    for op in ops:
        for dtype in op.dtypes:
            for kernels in _by_dims(op):
                for case in cases.draw_cases(op, kernels[0].dims, dtype, cases.GATE_SEED, gate):
                    if case.id == case_id:
                        return case
    return None
