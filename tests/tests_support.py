"""Small builders that tests share; pytest's pythonpath makes it importable."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from tolcal.model import (
    ENVELOPE_GRID,
    Case,
    Environment,
    ErrorStats,
    Record,
    Run,
)

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "corpus"
DATA = ROOT / "tests" / "data"
# What a CI says of this repository is not so of those that tests make.
for _name in ("PRE_COMMIT_FROM_REF", "GITHUB_BASE_REF"):
    os.environ.pop(_name, None)


class MovedOnWarning(UserWarning):
    """Sources have changed since the GPU tests last ran on them."""


def make_environment(**changes: Any) -> Environment:
    """An H200 as of the first history."""
    fields: dict[str, Any] = {
        "device": "NVIDIA H200",
        "device_class": "sm_90",
        "vendor": "nvidia",
        "driver": "580.1",
        "runtime": "cuda 13.0",
        "torch": "2.11.0",
        "triton": "3.6.0",
    }
    return Environment(**fields | changes)


def make_run(**changes: Any) -> Run:
    """A trusted run."""
    fields: dict[str, Any] = {
        "id": "00000000000000aa",
        "seed": 7,
        "started": "2026-11-29T18:00:00+00:00",
        "session": "5e55",
        "origin": "local",
        "commit": "c" * 40,
        "dirty": False,
        "tolcal": "0.1.0",
        "device_uuid": "GPU-1",
        "environment": make_environment(),
    }
    return Run(**fields | changes)


def single(value: float) -> float:
    """The nearest float32, which is what a record may hold."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def make_stats(residual: float = 0.0, scale: float = 1.0, **changes: Any) -> ErrorStats:
    """One element of that residual and scale, in units where u = 2^-24."""
    u = 2.0**-24
    envelope = tuple(single(max(0.0, residual - c * u * scale)) for c in ENVELOPE_GRID)
    fields: dict[str, Any] = {
        "count": 4096,
        "num_exceeding": 0,
        "max_abs": residual,
        "mean_abs": 0.0,
        "p50_abs": 0.0,
        "p90_abs": 0.0,
        "p99_abs": 0.0,
        "max_rel": 0.0,
        "mean_rel": 0.0,
        "max_ulp": 0,
        "mean_ulp": 0.0,
        "residual_max": residual,
        "envelope": envelope,
        "envelope_abs": envelope,
        "scaled_max": residual / (u * scale),
        "scaled_max_abs": residual / (u * scale),
        "scale_quantiles": (scale, scale, scale),
        "scale_abs_quantiles": (scale, scale, scale),
        "bias": 0.0,
        "bias_count": 4096,
        "nonfinite_mismatch": 0,
        "ref_rms": scale,
        "ref_max": scale,
    }
    return ErrorStats(**fields | changes)


def make_record(**changes: Any) -> Record:
    """A good record of `softmax_triton` on one explore case; `dims` and `seed` go to its case."""
    op = changes.pop("op", "softmax")
    dtype = changes.pop("dtype", "float32")
    dims = changes.pop("dims", (("B", 1), ("S", 7), ("H", 256)))
    seed = changes.pop("seed", 1)
    fields: dict[str, Any] = {
        "run": make_run(),
        "kernel": "softmax_triton",
        "role": "control",
        "corrupts": None,
        "case": Case(op, dtype, dims, "default", "contiguous", seed),
        "case_set": "explore",
        "status": "ok",
        "reason": "",
        "input_hash": "00000000000000ff",
        "kernel_hash": "00000000000000c0",
        "reference_hash": "00000000000000c1",
        "op_hash": "00000000000000c2",
        "roundoff": 2.0**-24,
        "stats": make_stats(),
        "same_as_control": None,
    }
    return Record(**fields | changes)
