"""The corpus as a Markdown table: what README shows of it."""

from __future__ import annotations

from collections.abc import Iterable

from tolcal.model import Kernel, Op
from tolcal.report import text

_HEAD = ("| op | what it computes | kernel | what is wrong in it |", "|---|---|---|---|")


def markdown(ops: Iterable[Op]) -> str:
    """A row a kernel, controls first; an op and its summary stand in its first row alone."""
    rows = list(_HEAD)
    for op in ops:
        first = (text.code(op.name), text.plain(op.summary))
        for kernel in op.kernels:
            rows.append(f"| {' | '.join((*first, text.code(kernel.name), _wrong(kernel)))} |")
            first = ("", "")
    return "\n".join(rows) + "\n"


def _wrong(kernel: Kernel) -> str:
    if kernel.fault is None:
        return "nothing: a control"
    how = f" (found by `{kernel.found_by}`)" if kernel.found_by else " (subtle)" * kernel.subtle
    return text.plain(kernel.fault) + how
