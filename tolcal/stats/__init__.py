"""Output and fp64 reference into ErrorStats.

`error_stats` is the definition, in torch operations; `Batch` gives the same faster on a GPU.
"""

from tolcal.stats.batch import CAPACITY, Batch
from tolcal.stats.definition import (
    SIGN_VECTORS,
    STEP,
    batched,
    dtype_of,
    error_stats,
    gap,
    kinds,
    mismatches,
    ordered,
    round_to,
    sensitivity,
)

__all__ = [
    "CAPACITY", "SIGN_VECTORS", "STEP", "Batch", "batched", "dtype_of", "error_stats", "gap",
    "kinds", "mismatches", "ordered", "round_to", "sensitivity",
]  # fmt: skip
