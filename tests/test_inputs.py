"""Inputs that are not simply the case's dtype: integers, 8-bit floats, divided dims."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measure_support import run

from tolcal import cases
from tolcal.cases import formats
from tolcal.model import DTYPES, INTEGERS, Case, InputSpec, Op

EIGHT = ("float8_e4m3fn", "float8_e5m2")
seeds = st.integers(0, 2**63 - 1)


def make_op(**inputs: InputSpec) -> Op:
    """An op with these inputs."""
    return Op(
        name="mixed", summary="", dtypes=("float32",), compute_dtype="float32", inputs=inputs,
        output=("B",), legacy_atol={}, reduction=None, path="", reference_path="", op_hash="",
        reference_hash="", kernels=(),
    )  # fmt: skip


def make_case(seed: int = 1, dtype: str = "float32", **dims: int) -> Case:
    """A case of it."""
    sizes = tuple({"B": 3, "K": 70, "V": 5} | dims)
    values = {"B": 3, "K": 70, "V": 5} | dims
    return Case("mixed", dtype, tuple((n, values[n]) for n in sizes), "default", "contiguous", seed)


def same_bytes(op: Op, case: Case) -> dict[str, torch.Tensor]:
    """The tensors of a case, which have the bytes and the hash of its arrays."""
    arrays, tensors = cases.inputs_numpy(op, case), cases.inputs_torch(op, case, "cpu")
    assert list(arrays) == list(tensors)
    for name, x in tensors.items():
        assert arrays[name].shape == tuple(x.shape)
        bits = formats.bits_of(x.contiguous()).numpy()
        assert arrays[name].tobytes() == bits.tobytes(), name
    assert cases.input_hash_numpy(arrays) == cases.input_hash_torch(tensors)
    return tensors


# --- 8-bit floats -----------------------------------------------------------------------------


def neighbours(dtype: str) -> np.ndarray:
    """Every finite number of a format, the middles between them, and what lies beside those."""
    every = torch.arange(256).to(torch.uint8).view(getattr(torch, dtype)).double().numpy()
    every = np.unique(every[np.isfinite(every)])
    middles = (every[1:] + every[:-1]) / 2
    points = np.concatenate([every, middles]).astype(np.float32)
    beside = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
    small = np.float32([0.0, -0.0, 1e-30, -1e-30, 1e-45])
    points = np.concatenate([points, *beside, small])
    return points[np.abs(points) <= every[-1]].astype(np.float64)


@pytest.mark.parametrize("dtype", EIGHT)
def test_eight_bits_round_as_torch_rounds(dtype: str) -> None:
    """On every number of the format, every middle of two, and their neighbours in fp32."""
    value = neighbours(dtype)
    assert len(value) > 600
    ours = formats.to_numpy(value, dtype)
    theirs = torch.from_numpy(value).float().to(getattr(torch, dtype)).view(torch.uint8)
    assert ours.dtype == np.uint8
    assert (ours == theirs.numpy()).all()


@pytest.mark.parametrize("dtype", EIGHT)
def test_eight_bits_saturate(dtype: str) -> None:
    """Beyond the range lies the largest number, in both forms: what torch makes of it varies."""
    value = np.array([449.0, 1e6, -1e30, 57345.0])
    ours = torch.from_numpy(formats.to_numpy(value, dtype)).view(getattr(torch, dtype))
    theirs = formats.to_torch(torch.from_numpy(value), dtype)
    assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
    assert (ours.double()[1:3].abs() == DTYPES[dtype].max).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_kinds_are_what_they_are_called(dtype: str) -> None:
    """Patterns of kinds are infinities and nan of that sign; without infinities all are nan."""
    kinds = torch.tensor([0, formats.PLUS_INF, formats.MINUS_INF, formats.NAN])
    x = formats.to_torch(torch.ones(4, dtype=torch.float64), dtype, kinds)
    array = formats.to_numpy(np.ones(4), dtype, kinds.numpy())
    assert array.tobytes() == formats.bits_of(x).numpy().tobytes()
    inf = float("inf") if DTYPES[dtype].has_infinity else float("nan")
    want = torch.tensor([1.0, inf, -inf, float("nan")])
    torch.testing.assert_close(x.float(), want, equal_nan=True, rtol=0, atol=0)


@settings(deadline=None, max_examples=30)
@given(seeds, st.sampled_from(EIGHT), st.sampled_from([(-10.0, 10.0), (0.0, 1.0), (-600.0, 700.0)]))
def test_eight_bit_inputs(seed: int, dtype: str, between: tuple[float, float]) -> None:
    """As the case's dtype or as an input's own: finite, within the range."""
    low, high = between
    op = make_op(a=InputSpec(("B", "K"), low, high), b=InputSpec(("K",), low, high, dtype=dtype))
    drawn = same_bytes(op, make_case(seed, dtype))
    other = same_bytes(op, make_case(seed, "float16"))["b"]
    assert torch.equal(other.float(), drawn["b"].float())
    for x in drawn.values():
        assert str(x.dtype) == f"torch.{dtype}"
        least, most = formats.to_torch(torch.tensor([low, high]).double(), dtype).double()
        assert (x.double() >= least).all()
        assert (x.double() <= most).all()
        assert len(x.double().unique()) > 10


# --- integers ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(seeds, st.sampled_from(INTEGERS), st.integers(1, 300), st.data())
def test_integers_are_within_low_and_high(
    seed: int, dtype: str, count: int, data: st.DataObject
) -> None:
    """From low, up to high, which is excluded; in both forms alike."""
    info = torch.iinfo(getattr(torch, dtype))
    low = data.draw(st.integers(info.min, info.max).map(float).filter(lambda x: x <= info.max - 1))
    high = data.draw(st.integers(int(low) + 1, info.max + 1).map(float).filter(lambda x: x > low))
    op = make_op(i=InputSpec(("K",), low, high, dtype=dtype))
    x = same_bytes(op, make_case(seed, K=count))["i"]
    assert x.tolist() == [i for i in x.tolist() if low <= i < high]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_below_a_dim(dtype: str) -> None:
    """From 0 up to the dim's size, all of them, about equally often."""
    op = make_op(labels=InputSpec(("K",), dtype=dtype, below="V"))
    x = same_bytes(op, make_case(K=5000))["labels"]
    assert str(x.dtype) == f"torch.{dtype}"
    counts = torch.bincount(x.long(), minlength=5)
    assert counts.sum() == 5000
    assert len(counts) == 5
    assert counts.min() > 800


def test_integers_do_not_depend_on_the_dtype_of_the_case() -> None:
    """Labels stay the same when the floats beside them are narrower."""
    op = make_op(x=InputSpec(("B",)), labels=InputSpec(("K",), dtype="int64", below="V"))
    one, two = (same_bytes(op, make_case(3, dtype)) for dtype in ("float64", "bfloat16"))
    assert torch.equal(one["labels"], two["labels"])
    assert list(cases.sign_words(op, make_case(3), "cpu")) == ["x"]


# --- shapes -----------------------------------------------------------------------------------


def test_divided_dims_are_rounded_up() -> None:
    """K/32 of 70 is 3: the last block may be a part of one."""
    assert cases.shape_of(("B", "K/32", "K"), make_case()) == (3, 3, 70)
    for size, blocks in ((1, 1), (31, 1), (32, 1), (33, 2), (64, 2)):
        assert cases.shape_of(("K/32",), make_case(K=size)) == (blocks,)
    op = make_op(scales=InputSpec(("K/32",)))
    assert same_bytes(op, make_case())["scales"].shape == (3,)


# --- in a run ---------------------------------------------------------------------------------

TOML = """\
summary = "picks x by index, scaled by block"
dtypes = ["float32"]
[dims]
B = [1, 6]
V = [70]
[inputs.x]
shape = ["V"]
[inputs.scales]
shape = ["V/32"]
dtype = "float8_e4m3fn"
[inputs.index]
shape = ["B"]
dtype = "int64"
below = "V"
[output]
shape = ["B"]
dtype = "float8_e5m2"
"""
REFERENCE = """\
import torch
def reference(x, scales, index):
    assert x.dtype == scales.dtype == torch.float64 and index.dtype == torch.int64
    return x[index] * scales[index // 32]
"""
GOOD = """\
import torch
def run(x, scales, index):
    assert (x.dtype, scales.dtype, index.dtype) == (
        torch.float32, torch.float8_e4m3fn, torch.int64)
    y = x[index] * scales.float()[index // 32]
    return y.to(torch.float8_e5m2)
"""


def test_a_run_of_an_op_of_many_dtypes(tmp_path: Path) -> None:
    """The reference gets int64 and fp64, sigma sways the floats, the output has its own dtype."""
    for name, code in (("a_good", GOOD), ("b_dtype", GOOD.replace("return y.to(torch.float8_e5m2)",
                                                                  "return y"))):  # fmt: skip
        path = tmp_path / "pick" / "kernels" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    (tmp_path / "pick" / "reference.py").write_text(REFERENCE)
    buggy = tmp_path / "pick" / "buggy"
    buggy.mkdir()
    (buggy / "same.py").write_text(GOOD)
    (tmp_path / "pick" / "op.toml").write_text(
        TOML + '[buggy.same]\ncorrupts = "a_good"\nfault = "none"\n'
    )
    records = {(r.kernel, dict(r.case.dims)["B"]): r for r in run(tmp_path, gate=2)}
    for size in (1, 6):
        good = records["a_good", size]
        assert (good.status, good.reason) == ("ok", "")
        assert good.stats is not None
        assert good.stats.scale_quantiles is not None
        assert good.stats.scale_abs_quantiles is not None
        # x and its scale are each off by one unit: sigma is about sqrt(2) |ref|.
        ratio = good.stats.scale_quantiles[1] / good.stats.scale_abs_quantiles[1]
        assert 2.0 < ratio < 3.0
        assert records["same", size].same_as_control is True
        assert records["b_dtype", size].reason == (
            "ValueError: run() returned torch.float32, torch.float8_e5m2 expected"
        )


def test_an_op_of_integers_alone_has_no_sensitivity(tmp_path: Path) -> None:
    """Nothing is swayed, so sigma is 0."""
    folder = tmp_path / "count"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "count_good.py").write_text("def run(i):\n    return i.float()\n")
    (folder / "reference.py").write_text("def reference(i):\n    return i.double()\n")
    (folder / "op.toml").write_text(
        'summary = "as a float"\ndtypes = ["float32"]\n[dims]\nB = [9]\n'
        '[inputs.i]\nshape = ["B"]\ndtype = "uint8"\nlow = 1\nhigh = 256\n'
        '[output]\nshape = ["B"]\n'
    )
    (record,) = run(tmp_path)
    assert record.stats is not None
    assert record.stats.scale_quantiles == record.stats.scale_abs_quantiles
    assert record.stats.max_abs == 0.0
