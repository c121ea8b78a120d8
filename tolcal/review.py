"""A run's records against the history and the approved tolerances: what every caller decides by.

`tolcal ci` and the report of a pull request take the same steps, in this order: what the history
knows without the run, which changed controls break, a fit that these stay out of, the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from tolcal import calibrate, compare
from tolcal.history import columns, frames, lines, tables
from tolcal.history.loading import Loaded
from tolcal.model import BUDGET, Cell, Kernel, Proposal, Record, Tolerances, Verdict

if TYPE_CHECKING:
    import pyarrow as pa


class Review(msgspec.Struct, frozen=True):
    """What a run proposes, what it is judged to be, and (kernel, dtype) of controls it broke."""

    proposal: Proposal
    verdict: Verdict
    broken: frozenset[tuple[str, str]]

    @property
    def sound(self) -> bool:
        """Nothing that changed regressed or crashed: the records may enter a history."""
        crashed = any(f.kind == "crashed" and f.changed for f in self.verdict.findings)
        return not (self.broken or self.verdict.blocks or crashed)


def review(
    past: pa.Table,
    records: Sequence[Record],
    *,
    approved: Tolerances,
    legacy: Mapping[Cell, float],
    kernels: Mapping[str, Kernel],
    rule: calibrate.Rule = "residual",
    budget: float = BUDGET,
    changed: Collection[str] | None = None,
    reductions: Mapping[str, str] | None = None,
    subtle: Collection[str] = (),
    checked: Collection[str] = (),
    summarised: pa.Table | None = None,
    known: Sequence[str] = (),
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Review:
    """Judges a run.

    Args:
        past: the history, as ``history.read_table`` gives it; it stays as it is.
        records: those of the run, of one environment.
        approved: the tolerances in force.
        legacy: hand-picked atol by cell.
        kernels: by name, for where a finding's file is and what a buggy kernel has wrong.
        rule, budget: of the fit.
        changed: names of the kernels that count as changed; None: those whose source the history
            has not seen, which takes the records' word for their sources.
        reductions: the dim that an op sums over, by its name.
        subtle: names of the buggy kernels whose recall is told apart.
        checked: names of the buggy kernels that only checks without a tolerance find: they have no
            recall.
        summarised: lines of summaries, of other runs than ``past``.
        known: what to know of how both were read.
        progress: of the fit, as for ``calibrate``.
    """
    lined = lines.empty() if summarised is None else summarised
    baseline = calibrate.baseline(frames.frame_of(Loaded(past, lined)), approved)
    # A control that broke in this change must not widen its own tolerance, nor make a first one
    # in a dtype where nothing is approved that it could break.
    broken = compare.regressed(records, approved, baseline, changed)
    kernels_broken = {kernel for kernel, _ in broken}
    sound = [r for r in records if r.kernel not in kernels_broken]
    joined = tables.union(past, columns.from_records(sound))
    frame = frames.frame_of(Loaded(joined, lined))
    proposal = calibrate.calibrate(
        frame,
        rule=rule,
        budget=budget,
        approved=approved,
        legacy=legacy,
        reductions=reductions,
        subtle=subtle,
        checked=checked,
        known=known,
        progress=progress,
    )
    verdict = compare.compare(records, approved, proposal, baseline, legacy, kernels, changed)
    return Review(proposal, verdict, broken)
