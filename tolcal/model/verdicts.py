"""A run against the tolerances."""

from collections.abc import Mapping
from typing import Literal

import msgspec


class Baseline(msgspec.Struct, frozen=True):
    """What the trusted history knows of a kernel: the sources and environments it was seen in."""

    #: (kernel, dtype) -> hashes (kernel, reference, op.toml) that were measured and found good
    sources: dict[tuple[str, str], frozenset[tuple[str, str, str]]]
    #: kernel -> environment keys
    environments: dict[str, frozenset[str]]
    #: (kernel, dtype) of a buggy kernel -> (device class, id) of the gate cases that caught it
    caught: dict[tuple[str, str], frozenset[tuple[str, str]]] = {}


FindingKind = Literal[
    "regression", "false_positive", "drift", "caught", "escaped", "crashed", "uncalibrated",
    "check_failed", "out_of_domain",
]  # fmt: skip


class Finding(msgspec.Struct, frozen=True):
    """One kernel in one dtype: what it did against the approved tolerance."""

    kind: FindingKind
    op: str
    kernel: str
    dtype: str
    blocks: bool
    cases: int  # judged
    exceeding: int
    gate_exceeding: int
    worst: str  # record id to replay, "" if there is none
    worst_dims: str
    observed: float | None  # largest residual of the worst case
    allowed: float | None  # at the median element of the worst case
    over: float | None  # how many times the tolerance would have to grow
    changed: bool  # source, reference or op.toml differ from the history's
    newly: bool  # caught under the proposed tolerances and not under the present ones
    detail: str
    fault: str = ""  # of a buggy kernel: what is wrong with it
    path: str = ""  # of the kernel's file, from the repository's root; "" if it is not known
    line: int = 1
    #: which checks without a tolerance fail and where, as words; "": none, or they were not made
    checks: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """The run against the approved tolerances and the proposal."""

    blocks: bool
    environment: str
    commit: str
    kernels: int
    records: int
    cases: int
    statuses: Mapping[str, int]
    skipped_reasons: Mapping[str, int]
    findings: tuple[Finding, ...]
    judged: int | None = None  # records that an approved tolerance judged; None in older files
    empty: int = 0  # records that ran and have no element inside the domain: nothing judges them

    @property
    def ran(self) -> bool:
        """Whether any kernel ran to its end: a job in which none did must not be green."""
        return self.statuses.get("ok", 0) > 0
