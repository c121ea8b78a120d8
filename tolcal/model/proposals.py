"""What calibration says: new tolerances with their evidence."""

from collections.abc import Iterable
from typing import Literal, Self

import msgspec

from tolcal.model.base import BUDGET, digest
from tolcal.model.cells import Budget, Cell, Count, Interval, Scale, Share, Tolerance
from tolcal.model.plots import CellPlots, Curve
from tolcal.model.records import Origin


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
