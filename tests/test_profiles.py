"""Input profiles and layouts: the same bits from numpy and torch, and what each promises."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_inputs import make_op, same_bytes

from tolcal import cases
from tolcal.cases import formats, layouts
from tolcal.cases.profiles import BLOCK, DRAWS, TURNS
from tolcal.model import DTYPES, LAYOUTS, PROFILES, Case, InputSpec

NONFINITE = ("nan_injected", "adversarial")
FINITE = tuple(p for p in PROFILES if p not in NONFINITE)
seeds = st.integers(0, 2**63 - 1)
ranges = st.sampled_from([(-10.0, 10.0), (0.0, 1.0), (0.5, 2.0), (-3.0, -1.0), (-500.0, 2000.0)])
ALL = [(p, d) for p in PROFILES for d in DTYPES]


def make_case(
    profile: str, dtype: str = "float32", seed: int = 1, layout: str = "contiguous", **dims: int
) -> Case:
    sizes = {"B": 3, "S": 2, "H": 5} | dims
    return Case("mixed", dtype, tuple(sizes.items()), profile, layout, seed)


def x_of(profile: str, dtype: str = "float32", seed: int = 1, low: float = -10.0,
         high: float = 10.0, **dims: int) -> torch.Tensor:  # fmt: skip
    """An input [B, S, H] of a case as fp64."""
    op = make_op(x=InputSpec(("B", "S", "H"), low, high))
    return cases.inputs_torch(op, make_case(profile, dtype, seed, **dims), "cpu")["x"].double()


# --- every profile, dtype and layout ----------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
@settings(deadline=None, max_examples=25)
@given(
    seeds, st.sampled_from(sorted(DTYPES)), st.sampled_from(LAYOUTS), ranges,
    st.integers(1, 4), st.integers(1, 3), st.sampled_from([1, 2, 3, 7, 128, 300]),
)  # fmt: skip
def test_numpy_and_torch_draw_the_same_bytes(
    profile: str, seed: int, dtype: str, layout: str, between: tuple[float, float],
    b: int, s: int, h: int,
) -> None:  # fmt: skip
    """Of every profile, dtype and layout, for tensors of no dim to three."""
    op = make_op(
        x=InputSpec(("B", "S", "H"), *between), w=InputSpec(("H",), *between),
        scales=InputSpec(("H/32", "B"), 0.5, 2.0, steady=True), scalar=InputSpec((), *between),
        labels=InputSpec(("B",), dtype="int32", below="H"),
        q=InputSpec(("B", "H"), dtype="float8_e4m3fn"),
    )  # fmt: skip
    same_bytes(op, make_case(profile, dtype, seed, layout, B=b, S=s, H=h))


@pytest.mark.parametrize(("profile", "dtype"), [(p, d) for p, d in ALL if p in FINITE])
def test_values_are_finite(profile: str, dtype: str) -> None:
    """Of all profiles but those that are there for what is not: huge ones in 8 bits, too."""
    for seed, (low, high) in enumerate([(-10.0, 10.0), (0.0, 1.0), (-1000.0, 60000.0)]):
        if dtype in ("float8_e4m3fn", "float8_e5m2", "float16") or high < 1e4:
            x = x_of(profile, dtype, seed, low, high, B=8, H=100)
            assert x.isfinite().all()


@pytest.mark.parametrize("profile", [p for p in FINITE if p not in DRAWS])
@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_a_range_beyond_the_dtype_ends_at_its_largest_number(profile: str, dtype: str) -> None:
    """Also of a steady input, and where a large input is drawn a part at a time."""
    op = make_op(
        x=InputSpec(("B", "H"), -1e6, 1e5), s=InputSpec(("H",), 0.0, 1e9, steady=True),
    )  # fmt: skip
    case = make_case(profile, dtype, H=200)
    drawn, most = same_bytes(op, case), DTYPES[dtype].max
    x, s = drawn["x"].double(), drawn["s"].double()
    assert (x.min(), x.max(), s.max()) == (-most, most, most)
    part = cases.part_torch(op, "x", case, "cpu", 100, 300).double()
    assert torch.equal(part, x.reshape(-1)[100:400])


def test_a_steady_input_is_uniform_in_every_profile() -> None:
    """Gains, scales and positions keep their range whatever becomes of the others."""
    op = make_op(g=InputSpec(("B", "H"), 0.5, 2.0, steady=True), x=InputSpec(("H",), 0.5, 2.0))
    for profile in DRAWS:
        drawn = cases.inputs_torch(op, make_case(profile, H=500), "cpu")
        g = drawn["g"]
        assert (g >= 0.5).all()
        assert (g <= 2.0).all()
        assert len(g.unique()) > 1400
        assert 1.2 < g.mean() < 1.3


def test_integers_are_the_same_kind_of_integers_in_every_profile() -> None:
    """Labels stay in range: a profile says what becomes of floats."""
    op = make_op(i=InputSpec(("B", "H"), dtype="int64", below="H"))
    for profile in PROFILES:
        i = cases.inputs_torch(op, make_case(profile, H=50), "cpu")["i"]
        assert i.min() >= 0
        assert 40 <= i.max() < 50


def test_profiles_draw_from_streams_of_their_own() -> None:
    """Cases that differ in their profile alone have other values, of profiles like default too."""
    seen = [x_of(profile).flatten().tolist() for profile in PROFILES]
    assert all(one != other for i, one in enumerate(seen) for other in seen[:i])


# --- what each profile promises ---------------------------------------------------------------


def test_normal() -> None:
    """N(0, 1) of the usual range: mean, variance, kurtosis and tails."""
    x = x_of("normal", "float64", B=100, S=10, H=100)
    assert x.mean().abs() < 0.01
    assert abs(x.std() - 1) < 0.01
    assert abs((x**4).mean() - 2.9) < 0.1  # 3 - 6/(5*12) of the sum of twelve uniforms
    assert 0.002 < (x.abs() > 3).double().mean() < 0.0035
    assert x.abs().max() < 6
    gain = x_of("normal", "float64", low=0.5, high=2.0, B=100, H=100)
    assert gain.min() >= 0.5
    assert gain.max() <= 2.0
    assert abs(gain.mean() - 1.25) < 0.01


def test_shifted() -> None:
    """The mean is far from 0 for the spread."""
    x = x_of("shifted", "float64", B=50, H=50)
    assert abs(x.mean() - 100) < 0.1
    assert x.min() >= 99
    assert x.max() <= 101
    assert x.std() > 0.5


@settings(deadline=None)
@given(
    low=st.floats(-1e4, 1e4, width=32), width=st.floats(0.125, 1e4, width=32), seed=seeds,
)  # fmt: skip
def test_shifted_keeps_the_sign_of_the_range(low: float, width: float, seed: int) -> None:
    """Ten times its largest magnitude: negative where the range has no positive number."""
    high = low + width
    x = x_of("shifted", "float64", low=low, high=high, seed=seed, B=9, H=9)
    center = 10 * max(abs(low), abs(high)) * (-1 if high <= 0 else 1)
    assert (x - center).abs().max() <= 0.05 * width * (1 + 1e-9)
    assert (x.sign() == (-1 if high <= 0 else 1)).all()


@pytest.mark.parametrize(("profile", "factor"), [("tiny", 2.0**-20), ("huge", 2.0**10)])
def test_scales(profile: str, factor: float) -> None:
    """The range of default, scaled by a power of two."""
    x = x_of(profile, "float32", low=-3.0, high=7.0, B=50, H=50) / factor
    assert -3.0 <= x.min() < -2.9
    assert 6.9 < x.max() <= 7.0


def test_sparse() -> None:
    """One element of eight is left, and whole rows and blocks are 0."""
    x = x_of("sparse", B=32, S=4, H=3 * BLOCK + 5).reshape(128, -1)
    rows = (x != 0).any(1)
    assert 90 <= rows.sum() <= 124  # 7 of 8
    blocks = torch.stack([(b != 0).any(1) for b in x[rows].split(BLOCK, 1)[:3]])
    assert 0.8 < blocks.double().mean() < 0.95
    left = torch.cat([b[(b != 0).any(1)] for b in x.split(BLOCK, 1)[:3]])
    assert abs((left != 0).double().mean() - 1 / 8) < 0.01


def test_constant_rows() -> None:
    """One value a row, and another in the next."""
    x = x_of("constant_rows", B=20, H=9)
    assert (x == x[..., :1]).all()
    assert len(x.unique()) == 40


def test_sorted() -> None:
    """Ascending along the last axis, over the whole range in every row."""
    x = x_of("sorted", "float64", B=20, H=200)
    assert (x.diff(dim=-1) > 0).all()
    assert (x[..., 0] < -9.89).all()
    assert (x[..., -1] > 9.89).all()


def test_one_hot() -> None:
    """One element a row is not 0, at places that differ."""
    x = x_of("one_hot", B=50, H=40)
    assert ((x != 0).sum(-1) == 1).all()
    assert len((x != 0).double().argmax(-1).unique()) > 30


@pytest.mark.parametrize(
    ("low", "high", "least", "most"),
    [(-10, 10, -8, 8), (0.0, 1.0, 0, 1), (0.5, 2.0, 1, 2), (0.2, 0.7, 0, 0), (3.5, 99, 4, 8)],
)
def test_integers(low: float, high: float, least: int, most: int) -> None:
    """Every whole number from -8 to 8 within the range, in the case's dtype."""
    x = x_of("integers", "bfloat16", low=low, high=high, B=50, H=50)
    assert x.unique().tolist() == list(range(least, most + 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormal(dtype: str) -> None:
    """Zeros and subnormals, of sizes from the smallest to the largest."""
    kind = DTYPES[dtype]
    x = x_of("subnormal", dtype, B=50, H=50)
    # In units of the smallest: what torch computes with subnormals may be flushed to 0.
    units = np.abs(x.numpy()) / kind.tiny
    assert (units == np.rint(units)).all()
    assert units.max() < 2 ** (kind.precision - 1)
    assert units.max() >= 2 ** (kind.precision - 2)
    assert {0.0, 1.0} <= set(units.flat)
    assert 0.4 < (x[x != 0] > 0).double().mean() < 0.6
    positive = x_of("subnormal", dtype, low=0.0, high=1.0, B=50, H=50)
    assert (positive >= 0).all()


def test_nan_injected() -> None:
    """One element of twenty is nan, an infinity or 0, each as often; the others are default's."""
    x = x_of("nan_injected", B=100, S=10, H=100)
    for hit in (x.isnan(), x.isposinf(), x.isneginf(), x == 0):
        assert abs(hit.double().mean() - 0.0125) < 0.002
    assert x[x.isfinite()].abs().max() <= 10


def class_of(x: torch.Tensor, dtype: str) -> str:
    """Which published class all of x's values are of, by their sizes alone."""
    kind, size = DTYPES[dtype], x.abs()
    if not x.isfinite().any():
        return "nonfinite"
    if not x.isfinite().all():
        return "mixed"
    if (x == 0).all():
        return "zero"
    if size.max() <= 2.0 ** (kind.emin + 4):
        return "small"
    if size.max() <= 1000:
        return "wide" if size.median() > 100 else "mixed"
    return "large" if size.median() > kind.max / 100 else "mixed"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_eight_adversarial_cases_meet_every_class(dtype: str) -> None:
    """Alone, the same for every input, and mixed; the next eight have one each for every input.

    They begin anywhere in these sixteen, by the seed.
    """
    op = make_op(a=InputSpec(("B", "H")), b=InputSpec(("H", "B")))
    drawn = cases.draw_cases(op, {"B": (40,), "S": (1,), "H": (50,)}, dtype, 7, 4 * TURNS,
                             "adversarial")  # fmt: skip
    start = next(i for i, case in enumerate(drawn) if case.seed % (2 * TURNS) == 0)
    assert [case.seed % (2 * TURNS) for case in drawn] == [
        (i - start) % (2 * TURNS) for i in range(len(drawn))
    ]
    drawn = drawn[start:] + drawn[:start]
    seen = []
    for case in drawn:
        tensors = cases.inputs_torch(op, case, "cpu")
        seen.append([class_of(x.double(), dtype) for x in tensors.values()])
    alone = ["zero", "small", "large", "wide", "nonfinite"]
    assert [one for one, _ in seen[:TURNS]] == [*alone, "mixed", "mixed", "mixed"]
    assert all(one == other for one, other in seen[:TURNS])
    turned = [one for one, _ in seen[TURNS : 2 * TURNS]]
    assert turned == [one for one, _ in seen[:TURNS]]
    assert [two for _, two in seen[TURNS : 2 * TURNS]] == turned[1:] + turned[:1]
    assert seen[2 * TURNS :] == seen[: 2 * TURNS]
    finite = cases.inputs_torch(op, drawn[6], "cpu")["a"]
    assert finite.isfinite().all()
    assert len({case.seed for case in drawn}) == len(drawn)
    others = [
        cases.draw_cases(op, {"B": (2,), "S": (1,), "H": (2,)}, dtype, seed, 1, "adversarial")[0]
        for seed in range(40)
    ]
    assert len({case.seed % (2 * TURNS) for case in others}) > 8
    mixed = cases.inputs_torch(op, drawn[5], "cpu")["a"]
    assert 0.15 < (mixed == 0).double().mean() < 0.26
    assert 0.15 < (~mixed.isfinite()).double().mean() < 0.25


def test_wide_values_of_one_format_stay_within_it() -> None:
    """U[-1e3, 1e3] of a format that ends at 448 ends there, too."""
    for turn in range(2 * TURNS):
        x = x_of("adversarial", "float8_e4m3fn", turn, B=20, H=20)
        assert x[x.isfinite()].abs().max() <= 448 if x.isfinite().any() else True


# --- layouts ----------------------------------------------------------------------------------

STRIDES = {
    "contiguous": (12, 4, 1), "transposed": (12, 1, 3), "sliced": (60, 20, 1),
    "strided": (24, 8, 2), "expanded": (0, 4, 1), "offset": (12, 4, 1),
}  # fmt: skip
VECTORS = {
    "contiguous": (5,), "transposed": (1,), "sliced": (1,), "strided": (2,), "expanded": (0,),
    "offset": (1,),
}  # fmt: skip
OF_ALL = [*DTYPES, "int8", "uint8", "int32", "int64"]


def tensor(dtype: str, *shape: int) -> torch.Tensor:
    """Whole numbers from 0 on."""
    count = int(np.prod(shape))
    return torch.arange(count).remainder(16).to(getattr(torch, dtype)).reshape(shape)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(*(formats.bits_of(x.contiguous()) for x in (a, b)))


@pytest.mark.parametrize("dtype", OF_ALL)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_are_real(layout: str, dtype: str) -> None:
    """Each layout has its strides and its offset, and the elements it was given."""
    x = tensor(dtype, 2, 3, 4)
    found = layouts.lay_out(x, layout)
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    assert found.stride() == STRIDES[layout]
    assert found.storage_offset() == (layout == "offset")
    assert (found.data_ptr() % 16 != 0) == (layout == "offset")
    assert same(found, x[:1].expand(x.shape) if layout == "expanded" else x)
    vector = layouts.lay_out(x.reshape(-1)[:5].contiguous(), layout)
    assert vector.stride() == VECTORS[layout] or layout == "contiguous"
    assert vector.is_contiguous() == (layout in ("contiguous", "transposed", "sliced", "offset"))
    assert same(layouts.lay_out(tensor(dtype), layout), tensor(dtype))


def strangers(x: torch.Tensor) -> torch.Tensor:
    """What lies in a tensor's storage beside its elements."""
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    index = torch.arange(whole.numel()).as_strided(x.shape, x.stride(), x.storage_offset())
    own = torch.zeros(whole.numel(), dtype=torch.bool)
    own[index.reshape(-1)] = True
    return whole[~own]


@pytest.mark.parametrize("dtype", OF_ALL)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_around_the_elements_lies_what_must_not_be_read(layout: str, dtype: str) -> None:
    """nan, or the largest integer; where a contiguous tensor would lie nothing else is."""
    for x in (tensor(dtype, 2, 3, 4), tensor(dtype, 7)):
        found = layouts.lay_out(x, layout)
        beside = strangers(found)
        assert (beside.numel() > 0) == (layout not in ("contiguous", "transposed"))
        if x.is_floating_point():
            assert beside.double().isnan().all()
        else:
            assert (beside == torch.iinfo(x.dtype).max).all()
        storage = found.untyped_storage().nbytes() // x.element_size()
        assert storage - found.storage_offset() >= x.numel()


@pytest.mark.parametrize("dtype", OF_ALL)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_copy_has_the_layout_and_memory_of_its_own(layout: str, dtype: str) -> None:
    """Strides, offset, elements and what lies around them are as they were; writes don't reach."""
    for x in (tensor(dtype, 2, 3, 4), tensor(dtype, 7), tensor(dtype, 1, 1)):
        one = layouts.lay_out(x, layout)
        two = layouts.copy(one)
        assert (one.stride(), one.storage_offset()) == (two.stride(), two.storage_offset())
        assert same(one, two)
        assert same(strangers(one), strangers(two))
        before = one.clone()
        two.untyped_storage().fill_(0)
        assert same(one, before)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_the_hash_only_where_it_changes_elements(layout: str) -> None:
    """All have the logical elements of the contiguous case but expanded, which repeats a row."""
    op = make_op(x=InputSpec(("B", "H")), w=InputSpec(("H",)))
    plain, other = (make_case("normal", "float16", 4, name) for name in ("contiguous", layout))
    one, two = (cases.inputs_torch(op, case, "cpu") for case in (plain, other))
    assert (cases.input_hash_torch(one) == cases.input_hash_torch(two)) == (layout != "expanded")
    assert two["x"].stride() == layouts.lay_out(one["x"], layout).stride()
    if layout == "expanded":
        assert (two["x"] == one["x"][:1]).all()
        assert (two["w"] == one["w"][0]).all()


# --- which cases ------------------------------------------------------------------------------

DIMS = {"B": (1, 2, 8), "H": (1, 3, 256, 1025)}


@settings(deadline=None, max_examples=40)
@given(seeds, st.sampled_from(PROFILES[:-1]), st.integers(1, 20),
       st.lists(st.sampled_from(LAYOUTS), min_size=1, unique=True))  # fmt: skip
def test_layouts_are_a_column_of_the_hypercube(
    seed: int, profile: str, count: int, names: list[str]
) -> None:
    """Each as often as the others, the first contiguous; dims and seeds are as without them."""
    op = msgspec.structs.replace(make_op(x=InputSpec(("B", "H"))), layouts=tuple(names))
    drawn = cases.draw_cases(op, DIMS, "float32", seed, count, profile)
    often = [sum(c.layout == name for c in drawn) for name in names]
    assert max(often) - min(often) <= 1
    if "contiguous" in names:
        assert drawn[0].layout == "contiguous"
    plain = cases.draw_cases(msgspec.structs.replace(op, layouts=("contiguous",)), DIMS, "float32",
                             seed, count, profile)  # fmt: skip
    assert [msgspec.structs.replace(c, layout="contiguous") for c in drawn] == list(plain)
    assert cases.draw_cases(op, DIMS, "float32", seed, count + 5, profile)[:count] == drawn


def test_sizes_of_profiles() -> None:
    """The published sizes are the reduced dim's, or the last of the first input; tables win."""
    op = make_op(x=InputSpec(("B", "H/2")))
    assert cases.sizes_of(op, DIMS, "default") == DIMS
    assert cases.sizes_of(op, DIMS, "boundary") == {"B": (1, 2, 8), "H": (1, 3, 7)}
    assert cases.sizes_of(op, DIMS, "regular") == {"B": (1, 2, 8), "H": (128, 256, 512)}
    reduced = msgspec.structs.replace(op, reduction="B")
    assert cases.sizes_of(reduced, DIMS, "boundary") == {"B": (1, 3, 7), "H": DIMS["H"]}
    own = msgspec.structs.replace(op, sizes={"boundary": {"B": (5,)}, "huge": {"H": (6,)},
                                             "edges": {"H": (4, 8)}})  # fmt: skip
    assert cases.sizes_of(own, DIMS, "boundary") == {"B": (5,), "H": DIMS["H"]}
    assert cases.sizes_of(own, DIMS, "huge") == {"B": DIMS["B"], "H": (6,)}
    assert cases.sizes_of(own, DIMS, "edges") == {"B": (1, 2, 3, 4, 5, 7, 8), "H": (4, 8)}
    assert cases.sizes_of(make_op(x=InputSpec(())), DIMS, "boundary") == DIMS
    blocks = make_op(x=InputSpec(("B", "H/24")), y=InputSpec(("B/4",)))
    assert cases.sizes_of(blocks, {"B": (9,), "H": (50,)}, "edges") == {
        "B": (1, 2, 3, 4, 5, 7, 8, 9),
        "H": (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49),
    }
    large = cases.sizes_of(op, DIMS, "edges")["H"]
    assert large[:9] == (1, 2, 3, 4, 5, 7, 8, 9, 15)
    assert large[-4:] == (513, 1023, 1024, 1025)


def test_excluded_profiles_are_of_no_run() -> None:
    """Whether it asks for all or names one; `large` needs sizes."""
    op = msgspec.structs.replace(
        make_op(x=InputSpec(("B", "H"))), excluded_profiles=("sparse", "one_hot")
    )
    assert cases.profiles_of(op, ["all"]) == tuple(
        p for p in PROFILES if p not in ("sparse", "one_hot", "large")
    )
    assert cases.profiles_of(op, ["one_hot", "huge", "default"]) == ("huge", "default")
    sized = msgspec.structs.replace(op, sizes={"large": {"B": (2**20,)}})
    assert cases.profiles_of(sized, ["large", "sparse"]) == ("large",)


def test_large_cases_are_as_many_as_sizes() -> None:
    """No more than the longest list, since each is dear; none without a table."""
    op = make_op(x=InputSpec(("B", "H")))
    assert cases.draw_cases(op, DIMS, "float32", 1, 9, "large") == ()
    sized = msgspec.structs.replace(op, sizes={"large": {"B": (2**20, 2**21), "H": (4096,)}})
    drawn = cases.draw_cases(sized, DIMS, "float32", 1, 9, "large")
    assert {c.dims for c in drawn} == {(("B", 2**20), ("H", 4096)), (("B", 2**21), ("H", 4096))}
    assert len(cases.draw_cases(sized, DIMS, "float32", 1, 1, "large")) == 1


def test_cases_of_profiles_have_dims_of_their_own() -> None:
    """Profiles meet other combinations of sizes, and no case of one is one of another."""
    op = make_op(x=InputSpec(("B", "H")))
    drawn = {p: cases.draw_cases(op, DIMS, "float32", 1, 12, p) for p in ("default", *DRAWS)}
    assert len({c.id for found in drawn.values() for c in found}) == 12 * len(drawn)
    assert len({c.seed for found in drawn.values() for c in found}) == 12 * len(drawn)
    assert len({tuple(c.dims for c in found) for found in drawn.values()}) == len(drawn)
