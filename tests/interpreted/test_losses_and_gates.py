"""Cross-entropy, rotary embedding and gated units: what is special about these kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import CORPUS

from tolcal.measure.worker import load

INF, NAN = float("inf"), float("nan")
HALF, FULL = 512, 1024  # the tiles of SwiGLU's configs


def found(path: str, attribute: str = "run") -> Callable[..., torch.Tensor]:
    """A function of a file of the corpus."""
    return load(str(CORPUS / path), attribute)


LOSS = found("cross_entropy/kernels/cross_entropy_triton.py")
LOSS_REFERENCE = found("cross_entropy/reference.py", "reference")
GRADIENT = found("cross_entropy_backward/kernels/cross_entropy_backward_triton.py")
GRADIENT_REFERENCE = found("cross_entropy_backward/reference.py", "reference")
ROPE = found("rope/kernels/rope_triton.py")
ROPE_REFERENCE = found("rope/reference.py", "reference")
SWIGLU = found("swiglu/kernels/swiglu_triton.py")
TRUNCATED = found("swiglu/buggy/swiglu_truncating_store_buggy.py")
HALF_WRITTEN = found("swiglu/buggy/swiglu_half_written_buggy.py")
GEGLU = found("geglu/kernels/geglu_triton.py")
VECTOR_TAIL = found("geglu/buggy/geglu_vector_tail_buggy.py")


# --- cross-entropy --------------------------------------------------------------------------


@given(
    rows=st.lists(
        st.lists(st.sampled_from([-INF, -3.0, 0.0, 2.5, INF, NAN]), min_size=3, max_size=3),
        min_size=1,
        max_size=3,
    ),
    label=st.integers(0, 2),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the infinities
@settings(max_examples=40, deadline=None)
def test_rows_with_infinities(rows: list[list[float]], label: int) -> None:
    """Loss and gradient have the reference's kinds, tile by tile: a row of -inf alone is NaN."""
    # Over three tiles: the row's values are its first column, one in the middle, and the last.
    logits = torch.full((len(rows), 513), -INF)
    logits[:, [0, 256, 512]] = torch.tensor(rows)
    labels = torch.full((len(rows),), [0, 256, 512][label])
    grad = torch.linspace(-2.0, 3.0, len(rows))
    wide = logits.double()
    for ours, reference in (
        (LOSS(logits, labels), LOSS_REFERENCE(wide, labels)),
        (GRADIENT(logits, labels, grad), GRADIENT_REFERENCE(wide, labels, grad.double())),
    ):
        torch.testing.assert_close(ours.double(), reference, rtol=1e-5, atol=0, equal_nan=True)


def test_the_reference_of_the_gradient_is_the_gradient() -> None:
    """That of torch's own cross-entropy, by automatic differentiation."""
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    labels, grad = torch.tensor([0, 6, 3, 3, 1]), torch.randn(5, dtype=torch.float64)
    with torch.enable_grad():
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        loss.backward(grad)
    torch.testing.assert_close(LOSS_REFERENCE(logits, labels), loss)
    torch.testing.assert_close(GRADIENT_REFERENCE(logits.detach(), labels, grad), logits.grad)


def test_a_gradient_next_to_nothing() -> None:
    """At p = 1 - 1e-13 of the label its gradient is 1e-13, and not the 0 that 1 - p rounds to."""
    logits = torch.tensor([[30.0, 0.0]])
    ours = GRADIENT(logits, torch.tensor([0]), torch.ones(1))
    torch.testing.assert_close(ours, torch.tensor([[-9.3576e-14, 9.3576e-14]]), rtol=1e-4, atol=0)


# --- rotary embedding -----------------------------------------------------------------------


@given(start=st.integers(0, 30_000), distance=st.integers(0, 2_000), moved=st.integers(0, 768))
@settings(max_examples=20, deadline=None)
def test_a_product_of_rotated_vectors_depends_on_their_distance(
    start: int, distance: int, moved: int
) -> None:
    """What the embedding is for, of the reference and the kernel alike."""
    made = torch.Generator().manual_seed(5)
    pair = torch.randn(2, 1, 32, generator=made, dtype=torch.float64)
    here = torch.tensor([start, start + distance])
    for function, dtype, near in (
        (ROPE_REFERENCE, torch.float64, 1e-9),
        (ROPE, torch.float32, 1e-5),
    ):
        products = []
        for positions in (here, here + moved):
            rotated = function(pair.to(dtype), positions).double()
            products.append((rotated[0] * rotated[1]).sum().item())
        assert products[0] == pytest.approx(products[1], abs=near)


def test_position_0_rotates_by_nothing() -> None:
    """There the kernel gives its input back."""
    x = torch.randn(1, 3, 6)
    assert torch.equal(ROPE(x, torch.zeros(1, dtype=torch.int64)), x)


def test_strides_of_a_packed_tensor() -> None:
    """Of a slice of a packed and transposed tensor the same bits as of its copy."""
    packed = torch.randn(9, 4, 3, 10)  # D, Nh, which, S
    x = packed[1:, :, 1].permute(2, 1, 0)
    positions = torch.arange(10) * 977
    assert torch.equal(ROPE(x, positions), ROPE(x.contiguous(), positions))


# --- gated units ----------------------------------------------------------------------------


@contextmanager
def pinned(run: Callable[..., torch.Tensor], tile: int) -> Iterator[None]:
    """Only that config of SwiGLU's autotuner."""
    tuner = run.__globals__["_swiglu_kernel"]
    every = tuner.configs
    tuner.configs = [config for config in every if config.kwargs["BLOCK"] == tile]
    assert len(tuner.configs) == 1
    try:
        yield
    finally:
        tuner.configs = every


@contextmanager
def poisoned() -> Iterator[None]:
    """New tensors hold NaN until they are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty_like", lambda x: torch.full_like(x, NAN))
        yield


@pytest.mark.parametrize("n", [1, HALF, HALF + 1, FULL, FULL + 1, 2 * FULL + HALF])
def test_each_config_of_the_control_writes_all(n: int) -> None:
    """And the same bits as the other."""
    a, b = torch.randn(1, n), torch.randn(1, n)
    outputs = []
    for tile in (HALF, FULL):
        with pinned(SWIGLU, tile), poisoned():
            outputs.append(SWIGLU(a, b))
    assert outputs[0].isfinite().all()
    assert torch.equal(*outputs)


@pytest.mark.parametrize("n", [HALF, HALF + 1, FULL, FULL + 1, 4 * FULL])
def test_one_config_writes_half(n: int) -> None:
    """The other writes all, and all is what the autotuner's trials leave behind."""
    a, b = torch.randn(1, n), torch.randn(1, n)
    with poisoned():
        assert torch.equal(HALF_WRITTEN(a, b), SWIGLU(a, b))
        with pinned(HALF_WRITTEN, FULL):
            assert torch.equal(HALF_WRITTEN(a, b), SWIGLU(a, b))
        with pinned(HALF_WRITTEN, HALF):
            written = HALF_WRITTEN(a, b).isfinite().sum().item()
    assert written == min(n, triton.cdiv(n, FULL) * HALF)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_truncating_store_truncates_every_format(dtype: str) -> None:
    """Toward zero, by one step at most, and of about every second product."""
    integer = {"float32": torch.int32, "float16": torch.int16}[dtype]
    made = torch.Generator().manual_seed(3)
    a, b = ((torch.rand(4, 999, generator=made) * 8 + 1).to(getattr(torch, dtype)) for _ in "ab")
    steps = SWIGLU(a, b).view(integer) - TRUNCATED(a, b).view(integer)
    assert ((steps == 0) | (steps == 1)).all()
    assert 0.4 < steps.double().mean().item() < 0.6


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, FULL - 1, FULL, FULL + 1])
def test_the_rest_of_the_last_vector_is_written(n: int, dtype: str) -> None:
    """Of 8 bytes, with zeros, and nothing else: the output is the control's, bit for bit."""
    a, b = (torch.randn(1, n).to(getattr(torch, dtype)) for _ in "ab")
    written = {}
    for name, run in (("right", GEGLU), ("wrong", VECTOR_TAIL)):
        memory = torch.full((n + 16,), 777.0, dtype=a.dtype)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "empty_like", lambda _, to=memory: to[:n].view(1, n))
            run(a, b)
        written[name] = memory
    rest = -n % (8 // a.element_size())
    assert torch.equal(written["right"][n:], torch.full((16,), 777.0, dtype=a.dtype))
    written["right"][n : n + rest] = 0
    assert torch.equal(written["wrong"], written["right"])
