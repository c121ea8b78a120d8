"""What was measured: environments, runs, records."""

from typing import Literal

import msgspec

from tolcal.model.base import digest
from tolcal.model.ops import RELATIONS, Case, Role

Status = Literal["ok", "crashed", "timeout", "skipped"]


CaseSet = Literal["gate", "explore"]


Origin = Literal["local", "ingest", "pull_request", "import"]


STATUSES: tuple[Status, ...] = ("ok", "crashed", "timeout", "skipped")


#: Grid of c (in unit roundoffs of the compute dtype) on which a record keeps its envelope.
ENVELOPE_GRID: tuple[float, ...] = (0.0, *(2.0**k for k in range(-1, 10)))


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that changes numbers without changing source."""

    device: str  # "NVIDIA H200"
    device_class: str  # "sm_90", "gfx942", "cpu"
    vendor: str  # "nvidia", "amd", "cpu"
    driver: str
    runtime: str  # "cuda 13.0", "rocm 6.4", "" on a CPU
    torch: str
    triton: str
    switches: tuple[str, ...] = ()  # sorted, e.g. ("interpreter", "tf32")

    @property
    def key(self) -> str:
        """16 hex digits: records are compared for false positives only within one key."""
        return digest("environment", msgspec.structs.astuple(self))

    @property
    def text(self) -> str:
        """For people: ``NVIDIA H200 (sm_90, driver 580.1, cuda 13.0, torch 2.11, triton 3.6)``."""
        driver = f", driver {self.driver}" if self.driver else ""
        runtime = f", {self.runtime}" if self.runtime else ""
        extra = "".join(f", {switch}" for switch in self.switches)
        return (
            f"{self.device} ({self.device_class}{driver}{runtime}, "
            f"torch {self.torch}, triton {self.triton}{extra})"
        )


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fresh seed set in one process: what its records share. The header of a records file."""

    id: str
    seed: int
    started: str  # UTC, ISO 8601
    session: str  # one per `tolcal run`, so runs of one sitting can be told apart
    origin: Origin
    commit: str  # 40 hex, or "" outside git
    dirty: bool
    tolcal: str
    device_uuid: str
    environment: Environment


class ErrorStats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one kernel did on one case; ``stats.error_stats`` is the definition of each field.

    The first eleven are the published record (arXiv 2607.16228), against the reference rounded
    to the output dtype. The others are against the fp64 reference itself; imported rows lack
    them (None).
    """

    count: int
    num_exceeding: int | None = None  # None: there was no limit to exceed
    max_abs: float
    mean_abs: float
    p50_abs: float
    p90_abs: float
    p99_abs: float
    max_rel: float
    mean_rel: float
    max_ulp: int
    mean_ulp: float
    residual_max: float | None = None
    #: max over elements of residual - c*u*scale on ENVELOPE_GRID, scale = |ref| + sigma
    envelope: tuple[float, ...] | None = None
    #: the same for scale = |ref|
    envelope_abs: tuple[float, ...] | None = None
    #: max of residual / (u*scale), for both scales: where the envelope reaches 0
    scaled_max: float | None = None
    scaled_max_abs: float | None = None
    #: 10/50/90 % quantiles of both scales
    scale_quantiles: tuple[float, float, float] | None = None
    scale_abs_quantiles: tuple[float, float, float] | None = None
    bias: float | None = None
    bias_count: int | None = None  # elements with a non-zero error, which alone inform `bias`
    nonfinite_mismatch: int | None = None
    ref_rms: float | None = None
    ref_max: float | None = None


#: A relation whose sides have nothing in common (one is not finite) is this far apart.
RELATION_MAX = 2.0**127


class Outside(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Output elements that depend on inputs outside the op's domain: counted, never failed.

    ErrorStats are over the other elements alone.
    """

    count: int
    mismatch: int  # not finite where the reference is, or the other way round
    #: of a buggy kernel: whose kind (finite, inf, nan) is not its control's; None: a control
    differing: int | None = None


#: Counts of Checks that must be 0.
CHECK_COUNTS = ("unwritten", "stray", "inputs_changed", "unrepeatable", "batch", "broken")


#: All that is checked without a tolerance: what is counted, and relations.
CHECKS = (*(name for name in CHECK_COUNTS if name != "broken"), *RELATIONS)


class Checks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What further, watched launches on a case showed. No tolerance: every count must be 0.

    The relations are the largest difference of their two sides, in u*(|ref| + sigma) beyond a
    gap of the output's dtype (whole, where op.toml allows none), finite (at most RELATION_MAX);
    ``broken`` counts elements beyond what op.toml allows. None: not declared, so not checked, or
    there was nothing to judge it by.

    ``shift_judged`` and so on count the elements that the relation was judged at (of ``sums``, the
    sums): where it is 0 the relation is None. None: not checked, or a record of an older version.
    """

    unwritten: int  # output elements that nothing was written to
    stray: int  # elements written outside the output, before or behind it
    inputs_changed: int  # input elements written to that op.toml does not declare
    unrepeatable: int  # output elements whose bits differ between launches
    batch: int | None = None  # output elements whose bits depend on how many rows there are
    shift: float | None = None
    sums: float | None = None
    scale_invariant: float | None = None
    scale_equivariant: float | None = None
    permutation: float | None = None
    odd: float | None = None
    linear: float | None = None
    configs: float | None = None  # of autotune configs, beside the one that was chosen
    broken: int | None = None
    shift_judged: int | None = None
    sums_judged: int | None = None
    scale_invariant_judged: int | None = None
    scale_equivariant_judged: int | None = None
    permutation_judged: int | None = None
    odd_judged: int | None = None
    linear_judged: int | None = None
    configs_judged: int | None = None

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the counts that are not 0."""
        return tuple(name for name in CHECK_COUNTS if getattr(self, name))


class Record(msgspec.Struct, frozen=True):
    """One kernel run on one case in one environment (that of its run)."""

    run: Run
    kernel: str
    role: Role
    corrupts: str | None  # of a buggy kernel: its control
    case: Case
    case_set: CaseSet
    status: Status
    reason: str  # "" when ok
    input_hash: str
    kernel_hash: str
    reference_hash: str
    op_hash: str
    roundoff: float  # u of the op's compute dtype, which the envelopes are in units of
    stats: ErrorStats | None
    same_as_control: bool | None = None  # a buggy kernel's output equals its control's
    outside: Outside | None = None  # None: every input was inside the domain
    checks: Checks | None = None  # None: not checked on this case

    @property
    def id(self) -> str:
        """What `tolcal replay` takes: ``rmsnorm_triton:9e1c02b7d4a8f655``."""
        return f"{self.kernel}:{self.case.id}"
