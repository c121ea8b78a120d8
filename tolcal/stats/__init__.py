"""Output and fp64 reference into ErrorStats.

`error_stats` is the definition, in torch operations; `Batch` gives the same faster on a GPU.
"""

from tolcal.stats.batch import Batch
from tolcal.stats.definition import (
    STEP,
    dtype_of,
    error_stats,
    gap,
    ordered,
    round_to,
    sensitivity,
)

__all__ = [
    "STEP", "Batch", "dtype_of", "error_stats", "gap", "ordered", "round_to", "sensitivity",
]  # fmt: skip
