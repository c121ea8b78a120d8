"""``run --plan``: what would run where."""

from __future__ import annotations

from tolcal import measure
from tolcal.model import Kernel, plural
from tolcal.report import terminal

COLUMNS = ("op", "dtype", "dims", "kernels", "cases", "records", "shard")


def show(request: measure.Request) -> None:
    """Prints a row for each op, dtype and group of kernels that share dims, and where they run."""
    planned, environment, places = measure.survey(request)
    part, parts = request.shard or (1, 1)
    cases: dict[tuple[str, str, str, int], int] = {}
    for p in planned:
        unit = p.unit
        row = (unit.op.name, unit.dtype, _dims(unit.kernels[0]), len(unit.kernels))
        cases[row] = cases.get(row, 0) + len(unit.cases)
    rows = [(*row, n, n * row[3], f"{part}/{parts}") for row, n in cases.items()]
    print(terminal.listing(COLUMNS, rows), end="")
    runs = len({p.run for p in planned})
    print(
        f"\n{plural(sum(p.size for p in planned), 'record')} of {plural(runs, 'run')} in "
        f"{plural(len(planned), 'unit')} of work, by {places} (engine {request.engine})"
    )
    print(f"on {environment.text}")


def _dims(kernel: Kernel) -> str:
    """Smallest to largest size of each dim: ``B=1..4 H=5``."""
    spans = ((name, min(sizes), max(sizes)) for name, sizes in kernel.dims.items())
    return " ".join(f"{n}={low}" if low == high else f"{n}={low}..{high}" for n, low, high in spans)
