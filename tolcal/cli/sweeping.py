"""``calibrate --sweep OUT``: the sensitivity of both rules, as Parquet and Markdown."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from tolcal import files
from tolcal.cli import output
from tolcal.model import Proposal, SweepPoint, TolcalError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: Names the kind of our Parquet file, in its schema's metadata.
KIND = b"tolcal.sweep"
VERSION = b"1"
#: At which parts of our rule are compared, unless --margin says another.
PARTS_MARGIN = 2.0


def places(given: str, inputs: Iterable[Path]) -> tuple[Path, Path]:
    """The Parquet and the Markdown file of ``--sweep given``.

    In a folder (one there is, or a name that ends in a slash) ``sweep.parquet`` and ``sweep.md``;
    else ``given``, with or without one of the two endings, is the name of both.

    Raises:
        TolcalError: if one is read by the command, or holds something else.
    """
    base = Path(given)
    if given.endswith("/") or base.is_dir():
        base = base / "sweep"
    elif base.suffix in (".parquet", ".md"):
        base = base.with_suffix("")
    table, page = (base.with_name(base.name + end) for end in (".parquet", ".md"))
    inputs = list(inputs)
    output.must_not_be_read(table, "--sweep", inputs)
    output.must_be_free(page, "report", "--sweep", inputs)
    if table.exists() and not _is_ours(table):
        raise TolcalError(
            f"--sweep {table}: exists and is no sweep of tolcal; give another name, or remove it "
            "first"
        )
    return table, page


def _is_ours(path: Path) -> bool:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return KIND in (parquet.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False


def write(
    where: tuple[Path, Path],
    frame: pd.DataFrame,
    locked: pd.DataFrame | None,
    proposal: Proposal,
    by: Literal["op", "kernel"],
    margin: float | None,
    subtle: Collection[str] = (),
) -> None:
    """Sweeps, and writes both files; parts of our rule are compared at ``margin`` (None: 2).

    ``subtle`` kernels are left out: what no knob finds tells knobs apart badly.
    """
    from pyarrow import parquet

    from tolcal.calibrate.sweep import sweep
    from tolcal.report import sweeping, terminal

    margin = margin or PARTS_MARGIN
    with terminal.progress("sweeping", "cells") as progress:
        points = sweep(
            frame, by=by, more=(margin,), locked=locked, budget=proposal.budget, subtle=subtle,
            progress=progress,
        )  # fmt: skip
    table, page = where
    table.parent.mkdir(parents=True, exist_ok=True)
    written = io.BytesIO()
    parquet.write_table(as_table(points), written, compression="zstd")
    files.replace(table, written.getvalue())
    files.replace(page, sweeping.render(points, proposal, margin))


def as_table(points: Sequence[SweepPoint]) -> pa.Table:
    """One row a setting and scope: everything, an op (all dtypes), or a cell.

    ``red_at_most`` is the exact one-sided 95 % bound on the share of red held-out runs.
    """
    import pyarrow as pa

    from tolcal import binomial

    rows = []
    for point in points:
        row = msgspec.structs.asdict(point.setting)
        row |= {"op": point.op, "dtype": point.dtype, "cells": point.cells, "bits": point.bits}
        judged = {"held_out": point.held_out, "in_sample": point.in_sample, "locked": point.locked}
        for name, held in judged.items():
            row |= {
                f"{name}_rows": held and held.rows,
                f"{name}_flagged": held and held.false_alarms,
                f"{name}_runs": held and held.runs,
                f"{name}_red": held and held.runs_with_false_alarms,
            }
        held = point.held_out
        row["red_at_most"] = binomial.upper(held.runs_with_false_alarms, held.runs)
        for name, recall in (("buggy", point.recall), ("locked_buggy", point.locked_recall)):
            row |= {
                f"{name}_rows": recall and recall.rows,
                f"{name}_flagged": recall and recall.flagged,
                f"{name}_detectable": recall and recall.detectable,
                f"{name}_detectable_flagged": recall and recall.detectable_flagged,
            }
        rows.append(row)
    counts = [
        *(f"{n}_{c}" for n in ("held_out", "in_sample", "locked")
          for c in ("rows", "flagged", "runs", "red")),
        *(f"{n}_{c}" for n in ("buggy", "locked_buggy")
          for c in ("rows", "flagged", "detectable", "detectable_flagged")),
    ]  # fmt: skip
    schema = pa.schema(
        [
            ("rule", pa.string()), ("margin", pa.float64()), ("borrowing", pa.bool_()),
            ("sigma", pa.bool_()), ("scaled_tol", pa.bool_()), ("percentile", pa.int32()),
            ("factor", pa.float64()), ("op", pa.string()), ("dtype", pa.string()),
            ("cells", pa.int64()), ("bits", pa.float64()), ("red_at_most", pa.float64()),
            *((name, pa.int64()) for name in counts),
        ],
        metadata={KIND: VERSION},
    )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)
