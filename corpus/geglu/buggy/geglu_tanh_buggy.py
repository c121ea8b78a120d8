"""GEGLU gelu(a) * b, elementwise, known to be wrong: GELU in its tanh form."""

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def _geglu_kernel(a_ptr, b_ptr, y_ptr, n_elements, BLOCK: tl.constexpr):
    # 64-bit: a flat index passes 2^31 in tensors that fit a current GPU.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    a = tl.load(a_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    # Fault: the tanh form is up to 4.7e-4 away from the exact one.
    # sqrt(2 / pi) = 0.7978845608
    u = 0.7978845608028654 * (a + 0.044715 * a * a * a)
    # tanh(u) from exp, because the interpreter has no libdevice; -2|u| can't overflow.
    e = tl.exp(-2.0 * tl.abs(u))
    t = (1.0 - e) / (1.0 + e)
    t = tl.where(u < 0.0, -t, t)
    gelu = 0.5 * a * (1.0 + t)
    y = gelu * b
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    n_elements = a.numel()
    _geglu_kernel[(triton.cdiv(n_elements, BLOCK),)](a, b, y, n_elements, BLOCK=BLOCK)
    return y
