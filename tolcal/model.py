"""The frozen values that cross stages, and the one error that a user can mend.

Nothing here computes; every stage takes and returns these. Floats of a record are exactly
representable in float32, because that is what the history stores (see ``history``).
"""

import decimal
import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self, get_args

import msgspec

Status = Literal["ok", "crashed", "timeout", "skipped"]
Role = Literal["control", "buggy"]
CaseSet = Literal["gate", "explore"]
Origin = Literal["local", "ingest", "pull_request", "import"]
STATUSES: tuple[Status, ...] = ("ok", "crashed", "timeout", "skipped")

#: Grid of c (in unit roundoffs of the compute dtype) on which a record keeps its envelope.
ENVELOPE_GRID: tuple[float, ...] = (0.0, *(2.0**k for k in range(-1, 10)))


#: Names reach Markdown, file names and command lines, so they are allow-listed where they enter.
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
#: Device classes that tolerances can be told apart by: what a measured record may be of.
DEVICE_CLASS = re.compile(r"sm_[0-9]{2,3}[a-z]?|gfx[0-9a-f]{3,5}|cpu")
DIM = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,15}")


def one_line(text: str, limit: int) -> str:
    """Foreign text (an exception, a worker's output) as one printable line for a terminal or log.

    A GitHub runner takes ``::`` at the start of a line and ``##[`` anywhere for its commands.
    """
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return cut(words.replace("##[", "##(").lstrip(": "), limit)


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters, of which an ellipsis is one where anything was cut.

    At a blank if there is one in the second half: half a number would read as another.
    """
    if len(text) <= limit:
        return text
    at = text.rfind(" ", limit // 2, limit)
    return text[: limit - 1 if at < 0 else at].rstrip() + "…"


class TolcalError(Exception):
    """Something the user can mend: shown as one line, exit status 2, never a traceback."""

    def __init__(self, message: str) -> None:
        # Messages quote files of others, whose keys and names may hold anything.
        super().__init__(one_line(message, 2000))


class DType(msgspec.Struct, frozen=True):
    """A floating-point format: ``precision`` significand bits, the hidden one included."""

    name: str
    bits: int
    precision: int
    emin: int  # exponent of the smallest normal number
    max: float

    @property
    def roundoff(self) -> float:
        """Unit roundoff u = 2^-precision: half the distance from 1 to the next number."""
        return math.ldexp(1.0, -self.precision)

    @property
    def tiny(self) -> float:
        """The smallest subnormal number, which is the spacing near zero."""
        return math.ldexp(1.0, self.emin - self.precision + 1)

    @property
    def has_infinity(self) -> bool:
        """Whether overflow has a value of its own; without one it is nan, or saturates."""
        return self.name != "float8_e4m3fn"

    def gap(self, value: float) -> float:
        """Distance of the two numbers of this format that bracket ``value`` (finite)."""
        exponent = math.frexp(value)[1] - 1 if value else self.emin
        return math.ldexp(1.0, max(exponent, self.emin) - self.precision + 1)


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("float64", 64, 53, -1022, 1.7976931348623157e308),
        DType("float32", 32, 24, -126, 3.4028234663852886e38),
        DType("float16", 16, 11, -14, 65504.0),
        DType("bfloat16", 16, 8, -126, 3.3895313892515355e38),
        DType("float8_e4m3fn", 8, 4, -6, 448.0),
        DType("float8_e5m2", 8, 3, -14, 57344.0),
    )
}
#: Formats that inputs can have beside these.
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
#: How inputs can be drawn; `cases` says what each is. The published ones come first.
PROFILES = (
    "default", "boundary", "regular", "nan_injected", "adversarial",
    "normal", "shifted", "tiny", "huge", "sparse", "constant_rows", "sorted", "one_hot",
    "integers", "subnormal", "edges", "large",
)  # fmt: skip
#: How inputs can lie in memory; `cases` says what each is.
LAYOUTS = ("contiguous", "transposed", "sliced", "strided", "expanded", "offset")
#: Rows a control needs for a fit: below that one history in a hundred holds no ill-conditioned
#: case.
MIN_ROWS = 720
#: Runs a control needs for a fit: what a single sitting had by chance shows in none of fewer.
MIN_RUNS = 3
#: Red runs that a repository puts up with, as a share of all: 1 in 1,000.
BUDGET = 1e-3


def digest(*parts: object) -> str:
    """16 hex digits over ``parts``: the name of a value in ids, file names and comments."""
    raw = msgspec.json.encode(parts, order="sorted")
    return hashlib.sha256(raw).hexdigest()[:16]


def round_up(value: float, digits: int = 3) -> float:
    """To ``digits`` significant digits, never down: a printed limit is never tighter."""
    if value <= 0 or not math.isfinite(value):
        return value
    nearest = float(f"{value:.{digits - 1}e}")
    if nearest >= value:
        return nearest if math.isfinite(nearest) else value
    above = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    rounded = float(above.create_decimal_from_float(value))
    return rounded if math.isfinite(rounded) else value


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 regression``, ``2 regressions``."""
    return f"{count} {one if count == 1 else many or one + 's'}"


# --- corpus ---------------------------------------------------------------------------------


class InputSpec(msgspec.Struct, frozen=True):
    """One input tensor: its dims by name, and the range that profile ``default`` draws from.

    A dim ``"K/32"`` is ceil(K/32). Integers are drawn from ``low`` to ``high`` (excluded), or to
    the size of dim ``below``.
    """

    shape: tuple[str, ...]
    low: float = -10.0
    high: float = 10.0
    #: within which the op promises accuracy; None: every finite number
    domain: tuple[float, float] | None = None
    dtype: str | None = None  # None: the case's
    below: str | None = None
    steady: bool = False  # drawn as in profile ``default`` in every profile

    @property
    def is_integer(self) -> bool:
        """Whether its values are integers, which have no rounding and no sensitivity."""
        return self.dtype in INTEGERS


RelationKind = Literal[
    "shift",
    "sums",
    "scale_invariant",
    "scale_equivariant",
    "permutation",
    "odd",
    "linear",
    "configs",
]
RELATIONS: tuple[RelationKind, ...] = get_args(RelationKind)


class Relation(msgspec.Struct, frozen=True):
    """A metamorphic relation that op.toml declares: what must hold between outputs.

    ``units``: how far the two sides may be apart, in u*(|ref| + sigma) beyond a gap of the
    output's dtype; 0 is bit for bit.
    """

    kind: RelationKind
    inputs: tuple[str, ...]  # that are shifted, scaled, negated or added to
    dims: tuple[str, ...]  # of permutation
    units: float
    to: float | None = None  # of sums


class Kernel(msgspec.Struct, frozen=True):
    """One implementation of an op. A buggy one names the control it corrupts and how."""

    name: str
    role: Role
    path: str  # of the file, as found
    dims: Mapping[str, tuple[int, ...]]
    source_hash: str
    uses_triton: bool
    corrupts: str | None = None
    fault: str | None = None
    line: int = 1  # of `def run`
    subtle: bool = False  # of a buggy one: op.toml says that its fault is small or rare


class Op(msgspec.Struct, frozen=True):
    """One folder of the corpus: contract, reference and kernels."""

    name: str
    summary: str
    dtypes: tuple[str, ...]
    compute_dtype: str
    inputs: Mapping[str, InputSpec]
    output: tuple[str, ...]
    legacy_atol: Mapping[str, float]
    reduction: str | None
    path: str
    reference_path: str
    op_hash: str
    reference_hash: str
    kernels: tuple[Kernel, ...]
    output_dtype: str | None = None  # None: the case's
    profiles: tuple[str, ...] = ("default",)  # what a run draws its inputs by
    layouts: tuple[str, ...] = ("contiguous",)  # of inputs that its kernels must take
    batch: str | None = None  # a dim whose rows must not depend on how many there are
    mutates: tuple[str, ...] = ()  # inputs that a kernel may write to
    nonfinite: bool = False  # whether nan and infinities among inputs are inside its domain
    #: by profile, the dims whose sizes are others there
    sizes: Mapping[str, Mapping[str, tuple[int, ...]]] = {}
    relations: tuple[Relation, ...] = ()
    pinned: "tuple[Case, ...]" = ()  # regression cases, measured with the gate cases

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name; KeyError if there is none."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise KeyError(name)


# --- cases and records ----------------------------------------------------------------------


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a kernel is run on. The same case gives the same input bytes on every machine."""

    op: str
    dtype: str
    dims: tuple[tuple[str, int], ...]  # in op.toml's order, which messages keep
    profile: str
    layout: str
    seed: int  # 0 <= seed < 2^63

    @property
    def id(self) -> str:
        """16 hex digits; with the kernel's name before it, the id of a record."""
        dims = sorted(self.dims)
        return digest("case", self.op, self.dtype, dims, self.profile, self.layout, self.seed)

    @property
    def dims_text(self) -> str:
        """As in messages and files: ``B=2 S=7 H=1025``."""
        return " ".join(f"{name}={size}" for name, size in self.dims)


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


class Checks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What further, watched launches on a case showed. No tolerance: every count must be 0.

    The relations are the largest difference of their two sides, in u*(|ref| + sigma) beyond a
    gap of the output's dtype (whole, where op.toml allows none), finite (at most RELATION_MAX);
    ``broken`` counts elements beyond what op.toml allows. None: not declared, so not checked.
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


# --- tolerances -----------------------------------------------------------------------------


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # exactly a float
Margin = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
#: a share above 0, which a budget of red runs is
Budget = Annotated[float, msgspec.Meta(gt=0, le=1)]
Roundoff = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Scale = Annotated[float, msgspec.Meta(ge=0, le=DTYPES["float64"].max)]  # finite


class AllClose(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For plain ``torch.testing.assert_close`` against a reference in the kernel's dtype."""

    atol: float
    rtol: float


class HeldOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs judged by tolerances fitted without them, and how many had any false alarm."""

    runs: Count
    red: Count


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tolerance rests on."""

    rule: str
    margin: Margin
    rows: Count
    runs: Count
    devices: tuple[str, ...]
    held_out: HeldOut
    history: str
    detectable_recall: Share | None = None  # None: the op has no detectable buggy row
    roundoff: Roundoff | None = None  # u that scaled_tol is in units of; None: the record's own
    scale: Scale | None = None  # median |ref| + sigma, where tighter and looser are told apart


class Approved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who let these values in. ``value`` is `Values.value_digest`."""

    by: str
    at: str
    digest: str
    value: str
    pr: Count | None = None
    reason: str | None = None  # of a widening


class Values(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An element passes if residual <= atol + scaled_tol*u*(|ref| + sigma)."""

    atol: float
    scaled_tol: float
    allclose: AllClose
    bias_tol: float | None = None
    evidence: Evidence | None = None
    approved: Approved | None = None

    @property
    def value_digest(self) -> str:
        """16 hex digits over all that judging uses, so that the hook can recompute it.

        Beside the numbers: the unit that scaled_tol is in, and the scale at which the hook tells
        looser from tighter.
        """
        rest = self.evidence
        units = (rest.roundoff, rest.scale) if rest else (None, None)
        return digest("value", *self.numbers.values(), *units)

    @property
    def numbers(self) -> dict[tuple[str, ...], float | None]:
        """The five numbers by their keys in the file."""
        return {
            ("atol",): self.atol,
            ("scaled_tol",): self.scaled_tol,
            ("bias_tol",): self.bias_tol,
            ("allclose", "atol"): self.allclose.atol,
            ("allclose", "rtol"): self.allclose.rtol,
        }


class Tolerance(Values, frozen=True, forbid_unknown_fields=True):
    """One cell, and what holds instead on single device classes."""

    on: Mapping[str, Values] = {}

    def for_device(self, device_class: str) -> Values:
        """The values that hold on ``sm_90``, ``gfx942`` or ``cpu``."""
        return self.on.get(device_class, self)

    @property
    def whole_digest(self) -> str:
        """16 hex digits over the values on every device class; `value_digest` without overrides."""
        if not self.on:
            return self.value_digest
        overrides = sorted((device, values.value_digest) for device, values in self.on.items())
        return digest("cell", self.value_digest, overrides)


Cell = tuple[str, str]  # (op, dtype)
Tolerances = Mapping[Cell, Tolerance]


# --- calibration and verdict ----------------------------------------------------------------


class HeldOutRows(msgspec.Struct, frozen=True, omit_defaults=True):
    """Leave-one-run-out: control rows of each run judged by a fit on the other runs.

    ValueError for a part that is more than its whole.
    """

    rows: Count
    false_alarms: Count
    runs: Count
    runs_with_false_alarms: Count
    #: rows that lines of summaries may have flagged beside the ``false_alarms`` they surely have
    unseen: Count = 0

    def __post_init__(self) -> None:
        if self.false_alarms + self.unseen > self.rows or self.runs_with_false_alarms > self.runs:
            raise ValueError(
                f"{self.false_alarms} of {self.rows} rows and {self.runs_with_false_alarms} of "
                f"{self.runs} runs with false alarms: a part can't be more than the whole"
            )


#: Limits of a share, 95 % together.
Interval = tuple[Share, Share]


class Recall(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows of a buggy kernel: all, flagged, and those whose output differs from its control's.

    ValueError for a part that is more than its whole.
    """

    rows: Count
    flagged: Count
    detectable: Count
    detectable_flagged: Count
    #: detectable rows that were judged for it, where a sample stands for the others; None: all
    judged: Count | None = None

    def __post_init__(self) -> None:
        if max(self.flagged, self.detectable) > self.rows or self.detectable_flagged > min(
            self.flagged, self.detectable
        ):
            raise ValueError(
                f"{self.flagged} of {self.rows} rows flagged, {self.detectable_flagged} of "
                f"{self.detectable} detectable ones: a part can't be more than the whole"
            )

    @classmethod
    def of(cls, parts: Iterable[Self | None]) -> Self:
        """All together, those that are known."""
        known = [part for part in parts if part is not None]
        return cls(
            sum(part.rows for part in known),
            sum(part.flagged for part in known),
            sum(part.detectable for part in known),
            sum(part.detectable_flagged for part in known),
        )

    @property
    def recall(self) -> float | None:
        """Share of all rows flagged; None without rows."""
        return self.flagged / self.rows if self.rows else None

    @property
    def detectable_recall(self) -> float | None:
        """Share of detectable rows flagged, the ceiling of any tolerance being 1."""
        return self.detectable_flagged / self.detectable if self.detectable else None


class BuggyRecall(msgspec.Struct, frozen=True):
    """Recall of one buggy kernel in one dtype, under each tolerance there is."""

    kernel: str
    control: str
    op: str
    dtype: str
    proposed: Recall | None
    approved: Recall | None
    paper: Recall | None
    legacy: Recall | None
    subtle: bool = False  # its op.toml says that its fault is small or rare


class Totals(msgspec.Struct, frozen=True):
    """Recall of several buggy kernels together, by what is proposed; intervals over runs."""

    kernels: Count
    recall: Share | None
    detectable_recall: Share | None
    recall_interval: Interval | None
    detectable_interval: Interval | None


# What plots need of a history of any size; ``calibrate.plots`` caps each of them.

#: Edges of the histograms of shares: quarter decades, with 1, the bound itself, among them.
SHARE_EDGES: tuple[float, ...] = tuple(10.0 ** (k / 4) for k in range(-12, 13))
#: A share that has no number (a non-finite mismatch, a bound of 0) or is beyond this is this.
SHARE_MAX = 1e9


class RunSpread(msgspec.Struct, frozen=True):
    """The largest residuals of a kernel's records of one run: least, quartiles, most."""

    run: Count  # index into Proposal.runs
    rows: Count
    quantiles: tuple[Scale, Scale, Scale, Scale, Scale]


class ShapeShare(msgspec.Struct, frozen=True):
    """The record of one shape that used most of the tolerance."""

    dims: str
    rows: Count
    share: Scale
    case: str  # its case id


class KernelPlot(msgspec.Struct, frozen=True):
    """One kernel in one dtype. A share is how much of the cell's tolerance a record uses."""

    kernel: str
    role: Role
    spreads: tuple[RunSpread, ...]
    #: records by share: up to the first of SHARE_EDGES, between each two, beyond the last
    shares: tuple[Count, ...]
    shapes: tuple[ShapeShare, ...]  # the largest share first
    subtle: bool = False  # a buggy one whose fault is small or rare


class CellPlots(msgspec.Struct, frozen=True):
    """A cell's kernels, and each tolerance as the residual it allows at the median element."""

    kernels: tuple[KernelPlot, ...]
    legacy: Scale | None
    paper: Scale | None
    approved: Scale | None
    proposed: Scale | None
    judged_by: Literal["proposed", "approved", "none"]  # which tolerance the shares are of


class CurvePoint(msgspec.Struct, frozen=True):
    """Every tolerance times ``factor``: held-out runs red, detectable buggy rows flagged."""

    factor: Scale
    red: Count
    flagged: Count
    paper_red: Count
    paper_flagged: Count


class Curve(msgspec.Struct, frozen=True):
    """Recall against false alarms, of the cells with a tolerance and a published atol above 0."""

    runs: Count
    detectable: Count
    points: tuple[CurvePoint, ...]


class DeviceNeed(msgspec.Struct, frozen=True):
    """What a cell's controls need on one device class, and what holds there.

    ``allowed_*`` are of |out - ref| at the cell's median element, half an output gap included.
    """

    device_class: str
    rows: Count  # trusted ones of its controls
    runs: Count
    allowed_needed: Scale  # by a fit to this device class alone
    allowed_proposed: Scale  # by what is proposed to hold there
    allowed_now: Scale | None  # by what is approved there
    own: bool  # what is proposed there is an override

    @property
    def tightening(self) -> float | None:
        """What is allowed there now over what is proposed; None where nothing is approved."""
        return self.allowed_now / self.allowed_proposed if self.allowed_now else None


CellState = Literal["new", "tighten", "unchanged", "looser", "uncalibrated"]


class SumError(msgspec.Struct, frozen=True):
    """A control's record beside a-priori bounds on a sum, in u of the scale (``scaled_max``)."""

    kernel: str
    dims: str
    case: str  # its case id
    terms: Count  # K, the length of the dim that is summed over
    measured: Scale
    bound: Scale  # deterministic, gamma_K
    probable: Scale  # probabilistic, sqrt(K)


class Theory(msgspec.Struct, frozen=True):
    """A cell's controls beside what theory allows of a sum (``calibrate.theory``)."""

    reduction: str  # the dim that is summed over
    nearest: SumError  # the record nearest to the deterministic bound of its own K
    longest: SumError  # of the longest sums, the record that errs most
    largest: Scale  # that any record errs
    most: Scale  # 99.9 % of the records err by no more


class CellProposal(msgspec.Struct, frozen=True):
    """What calibration says of one cell (or, by kernel, of one control in one dtype)."""

    op: str
    dtype: str
    kernel: str | None  # set when calibrated by kernel
    state: CellState
    rows: Count
    runs: Count
    devices: tuple[str, ...]
    needs_rows: Count  # more rows of a control that an uncalibrated cell needs
    tolerance: Tolerance | None
    proposed_tol: Scale | None  # of rule `paper`: the atol that the published formula gives
    #: |out - ref| allowed at the median element, half an output gap included
    allowed_now: Scale | None
    allowed_source: Literal["approved", "legacy", "none"]
    allowed_proposed: Scale | None
    allowed_paper: Scale | None
    paper_atol: Scale | None  # the published rule's atol, on |out - rounded ref|
    tightening: Scale | None  # allowed_now / allowed_proposed
    recall: Share | None  # of the buggy kernels that are not subtle
    detectable_recall: Share | None
    held_out: HeldOutRows
    note: str = ""
    base: str | None = None  # whole digest of the approved tolerance that it was compared with
    #: more runs that an uncalibrated cell needs, at the rows a run so far; 0 in older files
    needs_runs: Count = 0
    plots: CellPlots | None = None
    theory: Theory | None = None  # of ops that declare a reduction
    #: each device class that was fitted, by name, where there are several or overrides
    by_device: tuple[DeviceNeed, ...] = ()


class Locked(msgspec.Struct, frozen=True):
    """Runs that were locked before any choice was made, judged by the proposal."""

    held_out: HeldOutRows
    paper: HeldOutRows  # the same rows judged by the published rule
    buggy: tuple[BuggyRecall, ...]
    #: buggy kernels with detectable rows, none of them subtle, that some run did not catch
    missed: tuple[str, ...]
    #: of the detectable recall of those that are not subtle, over runs
    detectable_interval: Interval | None = None
    subtle: Totals | None = None
    subtle_caught: Count = 0  # subtle kernels that, in some dtype, every run caught


class Setting(msgspec.Struct, frozen=True):
    """A rule and its knobs, those of the other rule None."""

    rule: Literal["residual", "paper"]
    margin: float | None = None
    #: whether a 16-bit cell's envelope is at least its control's fp32 one
    borrowing: bool | None = None
    #: whether scale is |ref| + sigma, or |ref| alone; None without a scaled part
    sigma: bool | None = None
    scaled_tol: bool | None = None  # whether there is a scaled part beside atol
    percentile: int | None = None
    factor: float | None = None


class SweepPoint(msgspec.Struct, frozen=True):
    """What one setting comes to, over all cells, an op's, or one.

    Controls are judged twice: held out, by fits without their run, and in sample, by the fit on
    all. The locked runs, if any, are judged by that fit, too.
    """

    setting: Setting
    op: str | None  # None: all
    dtype: str | None
    cells: Count  # that the setting has a tolerance for
    held_out: HeldOutRows
    in_sample: HeldOutRows
    recall: Recall
    #: log2 of what is allowed of a residual at the median element, in u*(|ref| + sigma) of it;
    #: the median over cells, those that allow nothing left out
    bits: float | None
    locked: HeldOutRows | None = None
    locked_recall: Recall | None = None


class RunSummary(msgspec.Struct, frozen=True):
    """What plots need of a run: when, where, how many rows, and how many control rows failed."""

    id: str
    started: str
    device: str
    device_uuid: str
    environment: str
    origin: Origin
    rows: Count
    control_rows: Count
    held_out_false_alarms: Count
    #: the largest share that a control row used of a tolerance fitted without this run
    held_out_share: Scale | None = None
    described: str = ""  # the environment in words


class Forecast(msgspec.Struct, frozen=True):
    """A model figure: the share of whole runs that would be red if tails continue as seen."""

    rate: Share  # central estimate
    upper: Share  # 95 % quantile over resamples of the runs
    worst: str  # the cell that most of it comes from; "" if the budget is met
    more_runs: Count  # after which the upper limit would meet it


class InSample(msgspec.Struct, frozen=True):
    """Rows that a fit rests on, judged by it: never a figure for rows to come."""

    ours: HeldOutRows
    paper: HeldOutRows  # the same rows judged by the published rule


class Proposal(msgspec.Struct, frozen=True):
    """New tolerances with the evidence for each cell.

    ``margin`` is the largest in use: each control has its own, unless one was asked for.
    ``recall`` and ``detectable_recall`` are of the buggy kernels that are not subtle; ``curve``,
    too. ``subtle`` is of those that are.
    """

    rule: str
    by: Literal["op", "kernel"]
    margin: float
    history: str
    digest: str
    recall: Share | None
    detectable_recall: Share | None
    held_out: HeldOutRows
    cells: tuple[CellProposal, ...]
    buggy: tuple[BuggyRecall, ...]
    runs: tuple[RunSummary, ...]
    notes: tuple[str, ...] = ()
    locked: Locked | None = None
    curve: Curve | None = None
    budget: Budget = BUDGET  # red runs that are put up with, as a share of all
    forecast: Forecast | None = None
    #: of `recall` and `detectable_recall`, over runs; None without such a buggy kernel
    recall_interval: Interval | None = None
    detectable_interval: Interval | None = None
    in_sample: InSample | None = None
    subtle: Totals | None = None
    #: `content_digest` of what the fit gave: edited by hand, a proposal no longer has it
    seal: str = ""

    @property
    def content_digest(self) -> str:
        """16 hex digits over all that an approval rests on: how, from what, and every cell."""
        cells = [msgspec.structs.replace(cell, plots=None, theory=None) for cell in self.cells]
        return digest("proposal", self.rule, self.by, self.margin, self.budget, self.history, cells)

    def sealed(self) -> Self:
        """The same, named by its content."""
        name = self.content_digest
        return msgspec.structs.replace(self, digest=name, seal=name)

    def tolerances(self) -> dict[Cell, Tolerance]:
        """The calibrated cells."""
        return {(c.op, c.dtype): c.tolerance for c in self.cells if c.tolerance is not None}


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

    @property
    def ran(self) -> bool:
        """Whether any kernel ran to its end: a job in which none did must not be green."""
        return self.statuses.get("ok", 0) > 0
