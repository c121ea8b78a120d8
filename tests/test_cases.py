"""cases: the same bytes from numpy and torch, forever; and which cases are drawn."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tolcal import cases
from tolcal.model import Case, InputSpec, Op, TolcalError

DTYPES = ("float64", "float32", "float16", "bfloat16")
dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**63 - 1)
#: The outputs of SplitMix64 seeded with 0, as published with its reference implementation.
SPLITMIX64 = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC)
DIMS = {"B": (1, 2, 8), "H": (1, 3, 256, 1025)}


def make_op(low: float = -10.0, high: float = 10.0, name: str = "golden") -> Op:
    """An op with two inputs; x is drawn from [low, high)."""
    return Op(
        name=name,
        summary="",
        dtypes=DTYPES,
        compute_dtype="float32",
        inputs={"x": InputSpec(("B", "H"), low, high), "w": InputSpec(("H",), 0.5, 2.0)},
        output=("B", "H"),
        legacy_atol={},
        reduction=None,
        path="",
        reference_path="",
        op_hash="",
        reference_hash="",
        kernels=(),
    )


def make_case(dtype: str = "float32", seed: int = 1, b: int = 3, h: int = 5) -> Case:
    """One case of that op."""
    return Case("golden", dtype, (("B", b), ("H", h)), "default", "contiguous", seed)


def as_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The tensor's bytes as numpy has them: bf16 as uint16."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def as_torch(array: npt.NDArray[Any]) -> torch.Tensor:
    """The array's bytes as torch has them."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


# --- the generator ----------------------------------------------------------------------------


def test_words_are_those_of_splitmix64() -> None:
    """Stream 0 is the published output of SplitMix64 seeded with 0, in both forms."""
    assert tuple(cases.words_numpy(0, 4).tolist()) == SPLITMIX64
    assert tuple(w % 2**64 for w in cases.words_torch(0, 4, "cpu").tolist()) == SPLITMIX64


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.integers(0, 2**64 - 1), st.integers(0, 50))
def test_words_agree_with_integer_arithmetic(stream: int, count: int) -> None:
    """Both forms are SplitMix64 in Python's integers, for every key."""

    def word(i: int) -> int:
        z = (stream + (i + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    want = [word(i) for i in range(count)]
    assert cases.words_numpy(stream, count).tolist() == want
    assert [w % 2**64 for w in cases.words_torch(stream, count, "cpu").tolist()] == want


# --- inputs -----------------------------------------------------------------------------------

bounds = st.sampled_from([(-10.0, 10.0), (0.0, 1.0), (-1e-3, 2.5), (-70000.0, 70000.0), (5.0, 5.0)])


@settings(deadline=None, max_examples=150, derandomize=True)
@given(seeds, st.integers(1, 9), st.integers(1, 300), dtypes, bounds)
def test_numpy_and_torch_draw_the_same_bytes(
    seed: int, b: int, h: int, dtype: str, between: tuple[float, float]
) -> None:
    """Both forms have the case's shapes and identical bytes in every dtype."""
    op, case = make_op(*between), make_case(dtype, seed, b, h)
    with np.errstate(over="ignore"):
        left = cases.inputs_numpy(op, case)
    right = cases.inputs_torch(op, case, "cpu")
    assert list(left) == list(right) == ["x", "w"]
    assert left["x"].shape == tuple(right["x"].shape) == (b, h)
    assert left["w"].shape == tuple(right["w"].shape) == (h,)
    for name, array in left.items():
        assert right[name].dtype == getattr(torch, dtype)
        assert array.dtype == (np.uint16 if dtype == "bfloat16" else np.dtype(dtype))
        assert array.tobytes() == as_numpy(right[name]).tobytes()
    assert cases.input_hash_numpy(left) == cases.input_hash_torch(right)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(seeds, dtypes, bounds)
def test_values_lie_within_their_range(seed: int, dtype: str, between: tuple[float, float]) -> None:
    """fp64 draws lie in [low, high); in a narrower dtype the last step may round up to high."""
    low, high = between
    drawn = cases.inputs_torch(make_op(low, high), make_case(dtype, seed, 8, 500), "cpu")
    x = drawn["x"].double()
    rounded = torch.tensor([low, high]).to(getattr(torch, dtype)).double()
    assert (x >= rounded[0]).all()
    assert (x <= rounded[1]).all()
    if dtype == "float64" and low < high:
        assert low <= x.min().item() < x.max().item() < high


def test_values_are_uniform() -> None:
    """Mean, variance and quartiles of many draws are those of the uniform distribution."""
    x = cases.inputs_numpy(make_op(), make_case("float64", 5, 100, 1000))["x"]
    assert np.mean(x) == pytest.approx(0, abs=0.1)
    assert np.var(x) == pytest.approx(400 / 12, rel=0.02)
    assert np.quantile(x, [0.01, 0.25, 0.75, 0.99]) == pytest.approx([-9.8, -5, 5, 9.8], abs=0.1)


def test_inputs_of_a_case_are_independent_streams() -> None:
    """Two inputs of one range differ, and so do cases that differ only in their seed."""
    op = make_op(0.5, 2.0)
    one = cases.inputs_numpy(op, make_case(seed=1, b=1))
    assert not np.array_equal(one["x"][0], one["w"])
    two = cases.inputs_numpy(op, make_case(seed=2, b=1))
    assert not np.array_equal(one["x"], two["x"])


def test_signs_do_not_depend_on_the_case() -> None:
    """Sign words have the inputs' shapes and depend on name and shape alone."""
    op = make_op()
    one = cases.sign_words(op, make_case("float32", 1), "cpu")
    two = cases.sign_words(op, make_case("float16", 2), "cpu")
    assert {n: tuple(w.shape) for n, w in one.items()} == {"x": (3, 5), "w": (5,)}
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["x"].reshape(-1)[:5], one["w"])
    bits = (one["x"].reshape(-1, 1) >> torch.arange(32)) & 1
    assert 0.4 < bits.double().mean().item() < 0.6


# --- hashes -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150, derandomize=True)
@given(seeds, dtypes, st.data())
def test_input_hash_sees_every_bit(seed: int, dtype: str, data: st.DataObject) -> None:
    """One flipped bit anywhere changes the hash, to the same value in both forms."""
    arrays = cases.inputs_numpy(make_op(), make_case(dtype, seed))
    before = cases.input_hash_numpy(arrays)
    name = data.draw(st.sampled_from(sorted(arrays)))
    raw = bytearray(arrays[name].tobytes())
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    arrays[name] = np.frombuffer(raw, arrays[name].dtype).reshape(arrays[name].shape).copy()
    after = cases.input_hash_numpy(arrays)
    assert after != before
    assert cases.input_hash_torch({n: as_torch(a) for n, a in arrays.items()}) == after


@settings(deadline=None, max_examples=100, derandomize=True)
@given(seeds, dtypes, st.integers(0, 14), st.integers(0, 14))
def test_input_hash_sees_order(seed: int, dtype: str, i: int, j: int) -> None:
    """Two different elements that swap places change the hash; nothing swapped keeps it."""
    arrays = cases.inputs_numpy(make_op(), make_case(dtype, seed))
    before = cases.input_hash_numpy(arrays)
    flat = arrays["x"].reshape(-1)
    same = flat[i] == flat[j]
    flat[[i, j]] = flat[[j, i]]
    after = cases.input_hash_numpy(arrays)
    assert (after == before) == same
    assert cases.input_hash_torch({n: as_torch(a) for n, a in arrays.items()}) == after


def test_input_hash_sees_names_and_not_layout() -> None:
    """Inputs that trade names change the hash; a strided view of the same values does not."""
    a, b = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
    one = cases.input_hash_torch({"a": a, "b": b})
    assert cases.input_hash_torch({"a": b, "b": a}) != one
    assert cases.input_hash_torch({"b": b, "a": a}) == one
    strided = a.T.contiguous().T
    assert not strided.is_contiguous()
    assert cases.input_hash_torch({"a": strided, "b": b}) == one
    assert cases.input_hash_numpy({"a": strided.numpy(), "b": b.numpy()}) == one


# --- golden -----------------------------------------------------------------------------------

GOLDEN_BYTES = {
    "float64": "91cf6e084b58dc8eff4384ba09e083eba38df77a8bf46a936976ee49d11fd5eb",
    "float32": "6144c9484d848d282be9daee2ce7cbd6ce42e709ec37cae2a803303395e76791",
    "float16": "ccedd746277dace25a316282f90f97d5a67e8bced690c3d3274af04551ba3ea2",
    "bfloat16": "8bb92036b3ed0d00033f550d56830b9e2b7edb749db7bf55db73b48c05ed6e0b",
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_gate_inputs_never_change(dtype: str) -> None:
    """The bytes of a gate case are frozen: a change would make all history incomparable."""
    case = cases.draw_cases(make_op(), DIMS, dtype, cases.GATE_SEED, 3)[2]
    arrays = cases.inputs_numpy(make_op(), case)
    raw = b"".join(arrays[name].tobytes() for name in sorted(arrays))
    assert hashlib.sha256(raw).hexdigest() == GOLDEN_BYTES[dtype]


def test_names_of_gate_cases_never_change() -> None:
    """Gate seed, ids, hash and sign words are frozen with the bytes."""
    assert cases.GATE_SEED == 0x5201B31B7587B31B
    drawn = cases.draw_cases(make_op(), DIMS, "float32", cases.GATE_SEED, 3)
    assert [c.dims_text for c in drawn] == ["B=1 H=1025", "B=2 H=1", "B=8 H=256"]
    assert [c.id for c in drawn] == ["4eaebcccf3f2fe5c", "8b908ad1f1cb5e0e", "f9b38b7b15ed987a"]
    assert cases.input_hash_numpy(cases.inputs_numpy(make_op(), make_case())) == "39b8e68c1ba41d98"
    signs = cases.sign_words(make_op(), make_case(), "cpu")
    assert signs["w"].tolist()[:2] == [-3592927686266783003, 1190037629860196722]


def test_case_id_is_stable_and_ignores_the_order_of_dims() -> None:
    """An id names the values of a case, however its op.toml orders the dims."""
    case = make_case()
    turned = Case("golden", "float32", case.dims[::-1], "default", "contiguous", 1)
    assert case.id == turned.id == "8ddc25ab54e06340"
    assert (case.dims_text, turned.dims_text) == ("B=3 H=5", "H=5 B=3")
    others = [
        make_case("float16"),
        make_case(seed=2),
        make_case(b=5, h=3),
        Case("other", "float32", case.dims, "default", "contiguous", 1),
        Case("golden", "float32", case.dims, "wide", "contiguous", 1),
        Case("golden", "float32", case.dims, "default", "strided", 1),
    ]
    assert len({c.id for c in [case, *others]}) == 7


# --- draw_cases -------------------------------------------------------------------------------

sizes = st.dictionaries(
    st.sampled_from("BSHMN"),
    st.lists(st.integers(1, 4096), min_size=1, max_size=6, unique=True).map(tuple),
    min_size=1,
)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(sizes, st.integers(0, 2**63), dtypes, st.integers(1, 25))
def test_dims_are_a_latin_hypercube(
    dims: dict[str, tuple[int, ...]], seed: int, dtype: str, count: int
) -> None:
    """Each size of each dim comes up equally often, to within one; so a few cases meet all."""
    drawn = cases.draw_cases(make_op(), dims, dtype, seed, count)
    assert len(drawn) == count
    assert len({c.seed for c in drawn}) == count
    assert all(0 <= c.seed < 2**63 for c in drawn)
    for name, allowed in dims.items():
        got = Counter(dict(c.dims)[name] for c in drawn)
        assert set(got) <= set(allowed)
        often = [got[size] for size in allowed]
        assert max(often) - min(often) <= 1
        if count >= len(allowed):
            assert min(often) >= 1
    assert all(tuple(name for name, _ in c.dims) == tuple(dims) for c in drawn)


def test_rounds_of_sizes_are_shuffled_afresh() -> None:
    """The order of sizes is not the same in every round, nor the same for every dim."""
    dims = {"B": (1, 2, 3, 4, 5, 6), "H": (1, 2, 3, 4, 5, 6)}
    drawn = cases.draw_cases(make_op(), dims, "float32", 3, 12)
    columns = {name: [dict(c.dims)[name] for c in drawn] for name in dims}
    assert columns["B"][:6] != columns["B"][6:]
    assert columns["B"] != columns["H"]
    assert columns["B"][:6] != [1, 2, 3, 4, 5, 6]


def test_draws_depend_on_seed_op_and_dtype_alone() -> None:
    """The same arguments draw the same cases; another seed, op or dtype draws others."""

    def draw(seed: int = 1, dtype: str = "float32", name: str = "golden") -> tuple[Case, ...]:
        return cases.draw_cases(make_op(name=name), DIMS, dtype, seed, 6)

    assert draw() == draw()
    for other in (draw(seed=2), draw(dtype="float16"), draw(name="other")):
        assert not {c.seed for c in other} & {c.seed for c in draw()}
        assert [c.dims for c in other] != [c.dims for c in draw()]


def test_more_cases_keep_the_first_ones() -> None:
    """Asking for more gate cases adds to them, so their ids stay in the history."""
    few = cases.draw_cases(make_op(), DIMS, "float32", cases.GATE_SEED, 3)
    assert cases.draw_cases(make_op(), DIMS, "float32", cases.GATE_SEED, 9)[:3] == few
    assert cases.draw_cases(make_op(), DIMS, "float32", cases.GATE_SEED, 0) == ()


def test_gate_cases_do_not_depend_on_the_run() -> None:
    """Every run draws the same gate cases and fresh explore cases, none of them a gate case."""
    gate = [cases.draw_cases(make_op(), DIMS, "float32", cases.GATE_SEED, 4) for _ in range(2)]
    assert gate[0] == gate[1]
    runs = [cases.draw_cases(make_op(), DIMS, "float32", seed, 4) for seed in (1, 2)]
    ids = [{c.id for c in drawn} for drawn in (gate[0], *runs)]
    assert len(set.union(*ids)) == 12


def test_shape_of_puts_sizes_into_symbols() -> None:
    """Symbolic dims are replaced in the order of the shape, repeated ones too."""
    assert cases.shape_of(("H", "B", "H"), make_case()) == (5, 3, 5)
    assert cases.shape_of((), make_case()) == ()


def test_an_unknown_profile_is_an_error_of_the_user() -> None:
    """An unknown profile is refused by name, with those that are known."""
    with pytest.raises(TolcalError, match="'wild'; known: default, boundary"):
        cases.draw_cases(make_op(), DIMS, "float32", 1, 1, "wild")
