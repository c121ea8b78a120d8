"""Kernels given as text, checked on one small case without a worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from measure_support import run as measured
from measure_support import write_op

from tolcal import cases
from tolcal.measure import checks, configs
from tolcal.measure.context import Context, Poison
from tolcal.measure.watch import alike
from tolcal.model import Case, Checks, InputSpec, Op, Relation

CASE = Case("double", "float32", (("B", 4), ("H", 5)), "default", "contiguous", 7)


def op_of(
    low: float = -10.0,
    domain: tuple[float, float] | None = None,
    relations: tuple[Relation, ...] = (),
    **fields: Any,
) -> Op:
    """twice x, of the dims of CASE."""
    given: dict[str, Any] = {"batch": "B", "compute_dtype": "float32"} | fields
    return Op(
        name="double", summary="", dtypes=("float32",), inputs={
            "x": InputSpec(("B", "H"), low=low, domain=domain)
        }, output=("B", "H"), legacy_atol={}, reduction=None, path="", reference_path="",
        op_hash="", reference_hash="", kernels=(), relations=relations, **given,
    )  # fmt: skip


def function(source: str, name: str) -> Callable[..., torch.Tensor]:
    names: dict[str, Any] = {"torch": torch}
    exec(source, names)
    found: Callable[..., torch.Tensor] = names[name]
    return found


def context(op: Op, reference: str, dtype: str = "float32", profile: str = "default") -> Context:
    case = msgspec.structs.replace(CASE, dtype=dtype, profile=profile)
    return Context(op, case, torch.device("cpu"), function(reference, "reference"))


def laid(x: torch.Tensor, stride: tuple[int, ...], offset: int) -> torch.Tensor:
    """``x`` in memory of other strides, with nan around it."""
    size = offset + 1 + sum((n - 1) * s for n, s in zip(x.shape, stride, strict=True)) + 3
    memory = torch.full((size,), torch.nan, dtype=x.dtype)
    return alike(torch.as_strided(memory, x.shape, stride, offset), x)


def checked(
    folder: Path,
    source: str,
    *,
    dtype: str = "float32",
    reference: str = "def reference(x):\n    return 2 * x\n",
    stride: tuple[int, ...] | None = None,
    offset: int = 0,
    **fields: Any,
) -> Checks:
    """The checks of a kernel whose file has this text."""
    with torch.no_grad():
        made = context(op_of(**fields), reference, dtype)
        if stride is not None:
            made.inputs["x"] = laid(made.inputs["x"], stride, offset)
        run = function(source, "run")
        with configs.Launches() as launched, Poison():
            first = made.launch(run, {"x": cases.copy(made.inputs["x"])}).clone()
        pending = checks.run(made, run, first, launched, interpreted=True)
    return checks.found(pending.names, pending.values.tolist())


TRITON = """\
import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({{"PART": 0}}), triton.Config({{"PART": 1}})], key=["n"])
@triton.jit
def double(x_ptr, y_ptr, n, PART: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    most = n if PART == 0 else {second}
    mask = at < most
    x = tl.load(x_ptr + at, mask=mask)
    tl.store(y_ptr + at, x + x, mask=mask)


def run(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    double[(1,)](x, y, x.numel(), BLOCK=1024)
    return y
"""


def write_triton(folder: Path, second: str) -> Checks:
    """The checks of an autotuned kernel whose second config writes ``second`` of n elements."""
    write_op(folder, kernels={"double_good": TRITON.format(second=second)})
    found = {dict(r.case.dims)["B"]: r for r in measured(folder, gate=4)}[4]
    assert (found.status, found.reason) == ("ok", "")
    assert found.checks is not None
    return found.checks
