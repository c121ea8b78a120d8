"""What plots need of a history of any size; ``calibrate.plots`` caps each of them."""

from typing import Literal

import msgspec

from tolcal.model.cells import Count, Scale
from tolcal.model.ops import Role

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
