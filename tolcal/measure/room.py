"""Memory: what a case needs, and what there is."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from tolcal import cases
from tolcal.model import DTYPES, Case, Op

GIB = 2**30


class TooLargeError(Exception):
    """The machine has no room for a case, or no time: a reason to skip it."""


def check_whole(op: Op, case: Case, device: torch.device) -> None:
    """TooLargeError, with what is needed and what is free, if memory can't hold the case.

    What is needed is counted low: no case that could be run shall be skipped. Without this, who
    takes more than there is may be ended by the system, which says nothing of why.
    """
    # A tensor itself; of an input the reference's copy and a swayed one; reference and sigma.
    shapes = [(op.output, op.output_dtype or case.dtype)]
    shapes += [(spec.shape, cases.dtype_of(spec, case)) for spec in op.inputs.values()]
    need = sum(
        count_of(cases.shape_of(symbols, case)) * (item_size(dtype) + 16)
        for symbols, dtype in shapes
    )
    if need < GIB:  # to ask a GPU takes time
        return
    free = free_bytes(device)
    if need > free:
        raise TooLargeError(
            f"{case.dims_text} needs {need / GIB:.1f} GiB at least, {free / GIB:.1f} GiB are free"
        )


def free_bytes(device: torch.device) -> int:
    """Memory that a process could still have."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable:")) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def item_size(dtype: str) -> int:
    """Bytes an element."""
    return (DTYPES[dtype].bits if dtype in DTYPES else int(dtype.lstrip("uint"))) // 8


def count_of(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
