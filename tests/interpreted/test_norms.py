"""Norms with gains and their gradients: references against torch's, layouts, tails of rows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import CORPUS
from torch.nn import functional

from tolcal import corpus
from tolcal.measure.worker import load

OPS = {op.name: op for op in corpus.load(CORPUS)}
EPS = {"rmsnorm": 1e-6, "layernorm": 1e-5}
SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**32))


def run(kernel: str, **inputs: torch.Tensor) -> torch.Tensor:
    """What a kernel of the corpus makes of inputs."""
    (path,) = {k.path for op in OPS.values() for k in op.kernels if k.name == kernel}
    return load(path, "run")(**inputs)


def reference(op: str, **inputs: torch.Tensor) -> torch.Tensor:
    """The reference's answer to the same inputs, in fp64."""
    wide = {name: x.double() for name, x in inputs.items()}
    return load(OPS[op].reference_path, "reference")(**wide)


def drawn(B: int, H: int, seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """x, residual and dy of B rows, and the gains and biases w and b."""
    made = torch.Generator().manual_seed(seed)
    shapes = {"x": (B, H), "residual": (B, H), "dy": (B, H), "w": (H,), "b": (H,)}
    return {
        name: (torch.rand(shape, generator=made, dtype=torch.float64) * 20 - 10).to(dtype)
        for name, shape in shapes.items()
    }


def some(inputs: Mapping[str, torch.Tensor], names: str) -> dict[str, torch.Tensor]:
    """Those of the inputs."""
    return {name: inputs[name] for name in names.split()}


def torchs(norm: str, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The norm by torch; RMS norm has no bias."""
    if norm == "rmsnorm":
        return functional.rms_norm(x, w.shape, w, EPS[norm])
    return functional.layer_norm(x, w.shape, w, b, EPS[norm])


def assert_near(answer: torch.Tensor, expected: torch.Tensor, part: float) -> None:
    """Apart by at most that part of the largest number that is expected."""
    assert answer.shape == expected.shape
    assert (answer - expected).abs().max() <= part * expected.abs().max().clamp(min=1.0)


@settings(max_examples=30, deadline=None)
@given(SHAPES)
def test_references_are_torchs_norms(shape: tuple[int, int, int]) -> None:
    """With gain, with bias, and of a sum."""
    given_ = drawn(*shape, torch.float64)
    x, residual, w, b = (given_[name] for name in ("x", "residual", "w", "b"))
    for op, names, expected in (
        ("rmsnorm_affine", "x w", torchs("rmsnorm", x, w, b)),
        ("layernorm_affine", "x w b", torchs("layernorm", x, w, b)),
        ("fused_add_rmsnorm", "x residual w", torchs("rmsnorm", x + residual, w, b)),
    ):
        assert_near(reference(op, **some(given_, names)), expected, 1e-11)


@pytest.mark.parametrize("norm", sorted(EPS))
@settings(max_examples=30, deadline=None)
@given(SHAPES)
def test_references_are_autograds_gradients(norm: str, shape: tuple[int, int, int]) -> None:
    """By input and by gain, of the norm that torch computes."""
    given_ = drawn(*shape, torch.float64)
    x, w = given_["x"].requires_grad_(), given_["w"].requires_grad_()
    with torch.enable_grad():
        y = torchs(norm, x, w, given_["b"])
    dx, dw = torch.autograd.grad(y, (x, w), given_["dy"])
    with torch.no_grad():
        assert_near(reference(f"{norm}_input_grad", **some(given_, "dy x w")), dx, 1e-9)
        assert_near(reference(f"{norm}_weight_grad", **some(given_, "dy x")), dw, 1e-9)


def layouts(dy: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same [B, H] numbers in other places; where that is a view of fewer, of those."""
    B, H = dy.shape
    between, around = dy.new_full((B, 2 * H), 777.0), dy.new_full((B + 1, H + 3), 777.0)
    between[:, ::2], around[1:, 1:-2] = dy, dy
    return {
        "transposed": dy.mT.contiguous().mT,
        "strided": between[:, ::2],
        "sliced": around[1:, 1:-2],
        "rows expanded": dy[:1].expand(B, H),
        "columns expanded": dy[:, :1].expand(B, H),
        "a sum's": dy[0, 0].expand(B, H),
    }


@pytest.mark.parametrize(
    "kernel", [k.name for op in OPS.values() if "norm_" in op.name
               for k in op.kernels if k.role == "control" and "dy" in op.inputs]
)  # fmt: skip
@pytest.mark.parametrize("shape", [(3, 33), (5, 8)])
def test_a_gradient_may_lie_anywhere(kernel: str, shape: tuple[int, int]) -> None:
    """Every control's answer is, bit for bit, that to a contiguous copy."""
    inputs = drawn(*shape, 5, torch.float32)
    inputs = some(inputs, "dy x w" if "input_grad" in kernel else "dy x")
    for name, dy in layouts(inputs["dy"]).items():
        assert not dy.is_contiguous()
        assert torch.equal(dy, dy.contiguous())
        expected = run(kernel, **inputs | {"dy": dy.contiguous()})
        assert torch.equal(run(kernel, **inputs | {"dy": dy}), expected), name


def test_what_is_taken_to_be_contiguous_shows_elsewhere() -> None:
    """The known-wrong kernel is its control on contiguous gradients, and in no other layout."""
    inputs = some(drawn(3, 33, 5, torch.float32), "dy x w")
    elsewhere = [dy for dy in layouts(inputs["dy"]).values() if dy.stride(1) != 0]
    for dy in (inputs["dy"], *elsewhere):  # rows of one number: it would read beyond them
        right, wrong = (
            run(f"rmsnorm_input_grad_{kind}", **inputs | {"dy": dy})
            for kind in ("triton", "contiguous_buggy")
        )
        assert torch.equal(right, wrong) is dy.is_contiguous(), dy.stride()


@pytest.mark.parametrize("norm", sorted(EPS))
@pytest.mark.parametrize("shape", [(1, 1), (15, 31), (16, 32), (33, 65), (9, 513), (3, 4099)])
def test_every_row_counts_once(norm: str, shape: tuple[int, int]) -> None:
    """Ends of tiles of rows and columns, and rows too long for 16 to be a tile."""
    inputs = some(drawn(*shape, 3, torch.float32), "dy x")
    answer = run(f"{norm}_weight_grad_triton", **inputs)
    assert_near(answer.double(), reference(f"{norm}_weight_grad", **inputs), 2e-6)


def test_a_sum_is_not_rounded_before_its_norm() -> None:
    """Of float16 numbers only the answer is rounded: by half a unit in its last place, or 2^-11."""
    inputs = some(drawn(4, 33, 5, torch.float16), "x residual w")
    expected = reference("fused_add_rmsnorm", **inputs)
    error = (run("fused_add_rmsnorm_triton", **inputs) - expected).abs()
    assert (error <= 1.01 * 2**-11 * expected.abs() + 2**-25).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_sum_takes_the_place_of_a_contiguous_residual(dtype: torch.dtype) -> None:
    """In the known-wrong kernel; what it returns is the control's answer, bit for bit."""
    inputs = some(drawn(3, 33, 5, dtype), "x residual w")
    right = run("fused_add_rmsnorm_triton", **inputs)
    total = inputs["x"] + inputs["residual"]
    for residual in (inputs["residual"].mT.contiguous().mT, inputs["residual"]):
        before = residual.clone()
        wrong = run("fused_add_rmsnorm_in_place_buggy", **inputs | {"residual": residual})
        assert torch.equal(wrong, right)
        assert torch.equal(residual, total if residual.is_contiguous() else before)


@pytest.mark.parametrize("shape", [(1, 1), (17, 33), (65, 300)])
def test_atomics_add_every_row_once(shape: tuple[int, int]) -> None:
    """In the interpreter's one order: the known-wrong kernel is near the reference, too."""
    inputs = some(drawn(*shape, 3, torch.float32), "dy x")
    answer = run("rmsnorm_weight_grad_atomic_buggy", **inputs)
    assert_near(answer.double(), reference("rmsnorm_weight_grad", **inputs), 2e-6)
    assert torch.equal(run("rmsnorm_weight_grad_atomic_buggy", **inputs), answer)
