"""``run --plan``: what would run where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tolcal import cases, measure
from tolcal.model import plural
from tolcal.report import terminal

COLUMNS = ("op", "dtype", "profile", "dims", "kernels", "cases", "records", "shard")


def show(request: measure.Request) -> None:
    """Prints a row for each op, dtype, profile and group of kernels that share dims."""
    planned, environment, places = measure.survey(request)
    part, parts = request.shard or (1, 1)
    found = Counter[tuple[str, str, str, str, int]]()
    for p in planned:
        unit, kernel = p.unit, p.unit.kernels[0]  # the others have the same dims
        skipped = measure.passed_over(p)
        for at, case in enumerate(unit.cases):
            profile, dims = case.profile, case.dims_text
            if unit.pinned(at):
                profile += ", skipped" if (at, kernel.name) in skipped else ", pinned"
            else:
                dims = _spans(cases.sizes_of(unit.op, kernel.dims, profile, kernel.own))
            found[unit.op.name, unit.dtype, profile, dims, len(unit.kernels)] += 1
    rows = [(*row, n, n * row[4], f"{part}/{parts}") for row, n in found.items()]
    print(terminal.listing(COLUMNS, rows), end="")
    runs = len({p.run for p in planned})
    print(
        f"\n{plural(sum(p.size for p in planned), 'record')} of {plural(runs, 'run')} in "
        f"{plural(len(planned), 'unit')} of work, by {places} (engine {request.engine})"
    )
    print(f"on {environment.text}")


def _spans(dims: Mapping[str, tuple[int, ...]]) -> str:
    """Smallest to largest size of each dim: ``B=1..4 H=5``."""
    spans = ((name, min(sizes), max(sizes)) for name, sizes in dims.items())
    return " ".join(f"{n}={low}" if low == high else f"{n}={low}..{high}" for n, low, high in spans)
