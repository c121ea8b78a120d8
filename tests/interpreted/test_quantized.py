"""Ops of packed and of 8-bit numbers: their bits, and what only particular inputs show."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import CORPUS

from tolcal import corpus
from tolcal.measure.worker import load

#: numpy, which interprets, speaks up where hardware gives nan in silence.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
OPS = {op.name: op for op in corpus.load(CORPUS)}
E4M3 = torch.float8_e4m3fn
#: Every e4m3 number, NaN twice.
ALL_E4M3 = torch.arange(256).to(torch.uint8).view(E4M3)


def run(op: str, kernel: str, **inputs: torch.Tensor) -> torch.Tensor:
    """What a kernel of the corpus makes of inputs."""
    return load(OPS[op].kernel(kernel).path, "run")(**inputs)


def reference(op: str, **inputs: torch.Tensor) -> torch.Tensor:
    """The reference's answer to the same inputs."""
    wide = {n: x.double() if x.is_floating_point() else x.long() for n, x in inputs.items()}
    return load(OPS[op].reference_path, "reference")(**wide)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal, NaN equal to NaN."""
    return torch.equal(a.double().nan_to_num(nan=1e9), b.double().nan_to_num(nan=1e9))


# --- int4_gemm ------------------------------------------------------------------------------


def test_nibbles_and_groups() -> None:
    """Row k of the weights is half of byte k // 2, the low one first, less 8, in groups of 32."""
    packed = torch.tensor([[0x80], [0xF1]] + [[0x88]] * 14 + [[0x98]], dtype=torch.uint8)
    scales = torch.tensor([[1.0], [100.0]])
    weights = [0 - 8, 8 - 8, 1 - 8, 15 - 8] + [0] * 28 + [0, 100]
    for answer in (
        run("int4_gemm", "int4_gemm_triton", x=torch.eye(34), q=packed, scales=scales),
        reference("int4_gemm", x=torch.eye(34), q=packed, scales=scales),
    ):
        assert answer[:, 0].tolist() == weights


def test_one_scale_is_wrong_from_the_second_group_on() -> None:
    """Up to 32 k the known-wrong kernel is the control, bit for bit; after them it is not."""
    made = torch.Generator().manual_seed(3)
    for k, right in ((31, True), (32, True), (33, False), (160, False)):
        inputs = {
            "x": torch.rand((3, k), generator=made) + 1,
            "q": torch.randint(0, 8, (-(-k // 2), 5), generator=made).to(torch.uint8) * 17,
            "scales": torch.arange(1.0, -(-k // 32) + 1)[:, None].repeat(1, 5),
        }
        outputs = [
            run("int4_gemm", f"int4_gemm_{kind}", **inputs)
            for kind in ("triton", "tile_scale_buggy")
        ]
        assert torch.equal(*outputs) is right


# --- fp8_gemm -------------------------------------------------------------------------------


def test_every_e4m3_number_is_read_exactly() -> None:
    """Each of the 256 patterns times 1 is that number."""
    one = torch.ones(1, 1)
    column = {"a": ALL_E4M3[:, None], "a_scale": one.expand(256, 1)}
    y = run("fp8_gemm", "fp8_gemm_triton", **column, b=one.to(E4M3), b_scale=one)
    assert same(y[:, 0], ALL_E4M3)


def test_scales_are_of_their_blocks() -> None:
    """One element of each block: the product of both scales there, and no other."""
    a, b = torch.zeros(2, 257), torch.zeros(257, 129)
    a[0, 0] = a[1, 256] = b[0, 0] = b[0, 128] = b[256, 128] = 1
    inputs = {
        "a": a.to(E4M3),
        "a_scale": torch.tensor([[2.0, 3, 5], [7, 11, 13]]),
        "b": b.to(E4M3),
        "b_scale": torch.tensor([[1.0, 16], [64, 256], [1024, 4096]]),
    }
    for y in (run("fp8_gemm", "fp8_gemm_triton", **inputs), reference("fp8_gemm", **inputs)):
        assert [y[0, 0], y[0, 128], y[1, 0], y[1, 128]] == [2, 2 * 16, 0, 13 * 4096]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("k", [1, 128, 129, 257, 600])
def test_a_split_of_k_adds_to_what_was_there(
    k: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one the known-wrong kernel is its control, bit for bit; with one, plus the memory."""
    made = torch.Generator().manual_seed(k)
    blocks = -(-k // 128)
    inputs = {
        "a": torch.randint(-8, 9, (17, k), generator=made).to(E4M3),
        "a_scale": 2.0 ** torch.randint(-1, 2, (17, blocks), generator=made).to(dtype),
        "b": torch.randint(-8, 9, (k, 33), generator=made).to(E4M3),
        "b_scale": torch.ones(blocks, 1, dtype=dtype),
    }
    right = run("fp8_gemm", "fp8_gemm_triton", **inputs)
    exact = run("fp8_gemm", "fp8_gemm_triton", **inputs | {"a_scale": inputs["a_scale"].float()})
    wrong = load(OPS["fp8_gemm"].kernel("fp8_gemm_split_k_buggy").path, "run")
    tuner = wrong.__globals__["_fp8_gemm_kernel"]
    before = torch.full(right.shape, 32.0)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: before.clone())
    both = list(tuner.configs)
    assert sorted(config.kwargs["SPLIT_K"] == 1 for config in both) == [False, True]
    for config in both:
        monkeypatch.setattr(tuner, "configs", [config])
        out = wrong(**inputs)
        expected = right if config.kwargs["SPLIT_K"] == 1 else (exact + before).to(dtype)
        assert torch.equal(out, expected), config


# --- fp8_quantize ---------------------------------------------------------------------------


def quantize(x: torch.Tensor, kernel: str = "fp8_quantize_triton") -> torch.Tensor:
    """The control's (or another kernel's) answer."""
    return run("fp8_quantize", kernel, x=x)


def test_halves_are_rounded_as_torch_does() -> None:
    """Every third half of magnitude up to 448, signs in turn, behind a 448: the scale is 1."""
    halves = torch.arange(0, 0x5F01, 3, dtype=torch.int16).view(torch.float16)
    halves = torch.cat([halves, halves.new_zeros(-len(halves) % 127)])
    halves[1::2] *= -1
    rows = halves.reshape(-1, 127)
    x = torch.cat([rows.new_full((len(rows), 1), 448), rows], 1)
    assert torch.equal(quantize(x).view(torch.uint8), x.to(E4M3).view(torch.uint8))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=130)
)
def test_what_is_quantized_is_nearest(values: list[float]) -> None:
    """Of any finite numbers: the reference's quotient rounded, and at most 448."""
    x = torch.tensor([values])
    quotient = reference("fp8_quantize", x=x)
    assert quotient.abs().max() <= 448
    assert same(quantize(x), quotient.float().to(E4M3))


def test_scale_fills_the_format() -> None:
    """The largest number of a block becomes more than 224 and at most 448; 448 stays itself."""
    x = torch.tensor([[448.0], [448.0001], [0.875], [1e-30], [3e38]])
    assert quantize(x).float().flatten().tolist()[:3] == [448, 224, 448]
    assert (quantize(x).float() >= 224).all()


def test_not_finite_is_as_the_reference_has_it() -> None:
    """NaN makes its block NaN; infinity makes itself NaN and the rest of its block 0."""
    x = torch.ones(2, 256)
    x[0, 5], x[1, 5] = -torch.nan, -torch.inf
    q = quantize(x)
    assert same(q, reference("fp8_quantize", x=x).float().to(E4M3))
    assert (q[0, :128].view(torch.uint8) == 0x7F).all()  # without a sign, as a cast gives it
    assert q[1, :128].isnan().tolist() == [i == 5 for i in range(128)]
    assert not q[:, 128:].isnan().any()


def test_a_block_of_zeros() -> None:
    """Zeros are zeros; 0 / 0 in the known-wrong kernel, which is right about the other blocks."""
    x = torch.ones(2, 300)
    x[1, 128:256] = 0
    right, wrong = quantize(x), quantize(x, "fp8_quantize_zero_block_buggy")
    assert same(right, reference("fp8_quantize", x=x).float())
    assert wrong[1, 128:256].isnan().all()
    kept = torch.ones(2, 300, dtype=torch.bool)
    kept[1, 128:256] = False
    assert torch.equal(right.float()[kept], wrong.float()[kept])


# --- causal_attention -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 15, 16, 17, 33])
def test_later_keys_are_not_seen(size: int) -> None:
    """Row i is what attention over the first i + 1 keys gives, whatever comes behind."""
    made = torch.Generator().manual_seed(size)
    q, k, v = (torch.rand((size, 8), generator=made) * 20 - 10 for _ in range(3))
    y = run("causal_attention", "causal_attention_triton", q=q, k=k, v=v)
    for i in range(size):
        p = torch.softmax(q[i].double() @ k[: i + 1].double().T / 8**0.5, -1)
        torch.testing.assert_close(y[i].double(), p @ v[: i + 1].double(), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("level", "right"), [(100.0, True), (4e4, True), (6e4, False)])
def test_a_finite_mask_shows_where_scores_are_lower(level: float, right: bool) -> None:
    """Scores about -level: above -5e4 the known-wrong kernel is the control, bit for bit."""
    made = torch.Generator().manual_seed(1)
    q = torch.full((17, 16), 100.0)
    k = torch.rand((17, 16), generator=made) - level / 400
    v = torch.rand((17, 16), generator=made)
    outputs = [
        run("causal_attention", f"causal_attention_{kind}", q=q, k=k, v=v)
        for kind in ("triton", "finite_mask_buggy")
    ]
    assert torch.equal(*outputs) is right
