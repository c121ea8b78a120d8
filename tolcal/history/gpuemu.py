"""Imports results in the format that the paper's authors publish: ``run-*/results.jsonl``.

A line is one row: kernel, dtype, iteration, input_shapes, passed, failure_kind, error_stats. Such
rows have the eleven published statistics alone: no envelopes, no hashes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tolcal.model import (
    DTYPES,
    Case,
    Environment,
    ErrorStats,
    Kernel,
    Op,
    Record,
    Run,
    Status,
    TolcalError,
    digest,
)

MAX_LINE = 64 * 1024


class _Stats(msgspec.Struct):
    count: int
    num_exceeding: int
    max_abs: float
    mean_abs: float
    p50_abs: float
    p90_abs: float
    p99_abs: float
    max_rel: float
    mean_rel: float
    max_ulp: int
    mean_ulp: float


class _Row(msgspec.Struct):
    kernel: str
    dtype: str
    iteration: int
    shape: list[int]
    passed: bool
    failure_kind: str | None
    error_stats: _Stats | None
    layout: str = "contiguous"
    input_shapes: dict[str, list[int]] = {}
    error: str = ""


def read(folder: Path, ops: tuple[Op, ...], device: str) -> Iterator[Record]:
    """Records of every run folder; the same files give the same records.

    Args:
        folder: holds ``run-*/results.jsonl``.
        ops: the corpus, which says what op a kernel belongs to and which control it corrupts.
        device: name of the device that they were measured on, which the files don't tell.

    Raises:
        TolcalError: naming file and line, if a line is malformed or its kernel unknown.
    """
    files = sorted(folder.glob("run-*/results.jsonl"))
    if not files:
        raise TolcalError(f"{folder}: no run-*/results.jsonl in it; give the folder of the runs")
    kernels = {kernel.name: (op, kernel) for op in ops for kernel in op.kernels}
    environment = Environment(device, "imported", "imported", "", "", "", "")
    for path in files:
        rows = list(_rows(path))
        content = digest("gpuemu", path.parent.name, [msgspec.to_builtins(r) for r in rows])
        run = Run(
            id=content, seed=0, started="", session=content, origin="import", commit="",
            dirty=False, tolcal="", device_uuid="", environment=environment,
        )  # fmt: skip
        for number, row in enumerate(rows, 1):
            if row.kernel not in kernels:
                raise TolcalError(
                    f"{path}:{number}: kernel {row.kernel!r} is not in the corpus, so its op and "
                    "control are unknown; add it there or remove the row"
                )
            if row.dtype not in DTYPES:
                raise TolcalError(f"{path}:{number}: unknown dtype {row.dtype!r}")
            yield _record(run, row, *kernels[row.kernel])


def _rows(path: Path) -> Iterator[_Row]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                raise TolcalError(f"{path}:{number}: over {MAX_LINE} bytes; nothing was imported")
            try:
                # Python's json wrote these files: it has bare Infinity and NaN, which JSON has not.
                yield msgspec.convert(json.loads(line), _Row)
            except (ValueError, RecursionError, msgspec.ValidationError) as error:
                raise TolcalError(
                    f"{path}:{number}: not a result row: {error}; mend or remove the line "
                    "(nothing was imported)"
                ) from None


def _record(run: Run, row: _Row, op: Op, kernel: Kernel) -> Record:
    sizes: dict[str, int] = {}
    for name, shape in row.input_shapes.items():
        if name in op.inputs:
            sizes |= dict(zip(op.inputs[name].shape, shape, strict=False))
    if not sizes:  # an exception's row tells the output's shape alone
        sizes = dict(zip(op.output, row.shape, strict=False))
    case = Case(
        op=op.name,
        dtype=row.dtype,
        dims=tuple((name, sizes[name]) for name in kernel.dims if name in sizes),
        profile="default",
        layout=row.layout,
        seed=row.iteration,
    )
    stats = row.error_stats
    status: Status = "ok" if stats is not None else "crashed"
    reason = "" if stats is not None else f"{row.failure_kind}: {' '.join(row.error.split())}"
    return Record(
        run=run,
        kernel=kernel.name,
        role=kernel.role,
        corrupts=kernel.corrupts,
        case=case,
        case_set="explore",
        status=status,
        reason=reason[:240],
        input_hash="",
        kernel_hash="",
        reference_hash="",
        op_hash="",
        roundoff=DTYPES[op.compute_dtype].roundoff,
        stats=None if stats is None else _stats(stats),
    )


def _stats(stats: _Stats) -> ErrorStats:
    return ErrorStats(
        count=stats.count,
        num_exceeding=stats.num_exceeding,
        max_abs=_float32(stats.max_abs),
        mean_abs=_float32(stats.mean_abs),
        p50_abs=_float32(stats.p50_abs),
        p90_abs=_float32(stats.p90_abs),
        p99_abs=_float32(stats.p99_abs),
        max_rel=_float32(stats.max_rel),
        mean_rel=_float32(stats.mean_rel),
        max_ulp=stats.max_ulp,
        mean_ulp=_float32(stats.mean_ulp),
    )


def _float32(value: float) -> float:
    """Nearest float32, which is what a history keeps."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
