"""A case's inputs and sensitivity on a GPU: what `cases` and `stats` define, in few launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from tolcal import cases, stats
from tolcal.measure import fused
from tolcal.model import Case, InputSpec, Op

#: Elements of all swayed copies of a tensor together; beyond it they are made in turns.
SWAYED_ELEMENTS = 2**24
#: Input dtypes that a kernel of ours draws; others take the torch form.
DRAWN = frozenset({"float64", "float32", "float16", "bfloat16"})
_BLOCK = 1024
_INT = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def draw(
    op: Op, case: Case, device: torch.device
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
    """Inputs, the same as fp64 (int64), and their hash sums as of `cases.hash_sums_torch`."""
    inputs: dict[str, torch.Tensor] = {}
    wide: dict[str, torch.Tensor] = {}
    sums = torch.zeros(len(op.inputs), dtype=torch.int64, device=device)
    place = {name: i for i, name in enumerate(sorted(op.inputs))}
    for name, spec in op.inputs.items():
        at = sums[place[name] :]
        dtype = cases.dtype_of(spec, case)
        uniform = spec.steady or case.profile in cases.LIKE_DEFAULT
        ours = uniform and dtype in DRAWN and not cases.leaves(spec, dtype)
        if ours and case.layout != "expanded":
            x, wide[name] = _draw(spec, name, case, at)
            inputs[name] = cases.lay_out(x, case.layout)
            continue
        x = cases.input_torch(op, name, case, device)
        at[0] = cases.hash_sum_torch(name, x)
        inputs[name] = x
        wide[name] = cases.widened(x)
    return inputs, wide, sums


def _draw(
    spec: InputSpec, name: str, case: Case, sums: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = cases.dtype_of(spec, case)
    shape = cases.shape_of(spec.shape, case)
    x = torch.empty(shape, dtype=getattr(torch, dtype), device=sums.device)
    w = torch.empty(shape, dtype=torch.float64, device=sums.device)
    fused.draw[(-(-x.numel() // _BLOCK),)](
        x.view(_INT[x.element_size()]), w, sums, x.numel(),
        cases.signed(cases.stream(case, name)), cases.signed(cases.key("hash", name)),
        spec.low, spec.high - spec.low, FORMAT=dtype, BLOCK=_BLOCK, enable_fp_fusion=False,
    )  # fmt: skip
    return x, w


def sensitivity(
    reference: Callable[..., torch.Tensor], wide: Mapping[str, torch.Tensor], ref: torch.Tensor
) -> torch.Tensor:
    """`stats.sensitivity`, its sign words drawn where they are used."""
    if not wide:  # nothing that could be off
        return torch.zeros_like(ref)
    size = max(x.numel() for x in (ref, *wide.values()))
    chunk = stats.SIGN_VECTORS
    while chunk > 1 and chunk * size > SWAYED_ELEMENTS:
        chunk //= 2
    ref = ref.contiguous()
    sigma = torch.empty_like(ref)
    for first in range(0, stats.SIGN_VECTORS, chunk):
        swayed = {}
        for name, x in wide.items():
            x = x.contiguous()
            swayed[name] = torch.empty((chunk, *x.shape), dtype=torch.float64, device=x.device)
            fused.sway[(-(-x.numel() // _BLOCK),)](
                x, swayed[name], x.numel(), cases.signed(cases.key("sigma", 1, name)), stats.STEP,
                first, VECTORS=chunk, BLOCK=_BLOCK, enable_fp_fusion=False,
            )  # fmt: skip
        values = stats.batched(reference, swayed, chunk).contiguous()
        fused.spread[(-(-ref.numel() // _BLOCK),)](
            values, ref, sigma, ref.numel(), 1 / stats.STEP, stats.SIGN_VECTORS, VECTORS=chunk,
            FIRST=first == 0, LAST=first + chunk == stats.SIGN_VECTORS, BLOCK=_BLOCK,
            enable_fp_fusion=False,
        )  # fmt: skip
    return sigma


def differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[1] int32: whether two outputs differ in a value; nan is like nan."""
    differing = torch.zeros(1, dtype=torch.int32, device=a.device)
    if a.element_size() == 1:  # formats that not every device computes with
        a, b = a.float(), b.float()
    fused.differ[(-(-a.numel() // _BLOCK),)](
        a.contiguous(), b.contiguous(), differing, a.numel(), BLOCK=_BLOCK
    )
    return differing
