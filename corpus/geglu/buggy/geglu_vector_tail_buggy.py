"""GEGLU gelu(a) * b, elementwise, known to be wrong: the last vector is stored whole.

The output is right. What lies behind it in a buffer that holds more is overwritten with zeros; in
an allocation of its own the rounding of its size hides that.
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024
VECTOR_BYTES = 8  # not more, so that a plain launch stays within what allocators round up to


@triton.jit
def _geglu_kernel(a_ptr, b_ptr, y_ptr, n_elements, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    # 64-bit: a flat index passes 2^31 in tensors that fit a current GPU.
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    a = tl.load(a_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    # sqrt(1 / 2) = 0.7071067812
    gelu = 0.5 * a * (1.0 + tl.erf(a * 0.7071067811865476))
    y = gelu * b
    # Fault: a vector is stored if its first element is one of the output.
    begun = offsets // VECTOR * VECTOR < n_elements
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=begun)


def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    n_elements = a.numel()
    vector = VECTOR_BYTES // y.element_size()
    _geglu_kernel[(triton.cdiv(n_elements, BLOCK),)](
        a, b, y, n_elements, BLOCK=BLOCK, VECTOR=vector
    )
    return y
