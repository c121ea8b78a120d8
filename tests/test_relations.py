"""Relations: what keeps one passes, and what breaks it by so many units is so many units off.

The outputs here are mostly float64, whose rounding is nothing in the units of float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tolcal import stats
from tolcal.measure import relations
from tolcal.measure.context import Context
from tolcal.model import DTYPES, RELATION_MAX, Case, InputSpec, Op, Relation, RelationKind

NAN, INF = float("nan"), float("inf")
U = 2.0**-24
B_H = ("B", "H")


class Trait:
    """An op that keeps a relation: its reference, its inputs, and the relation."""

    def __init__(
        self,
        kind: RelationKind,
        reference: Callable[..., torch.Tensor],
        inputs: dict[str, InputSpec],
        of: tuple[str, ...] = (),
        dims: tuple[str, ...] = (),
        to: float | None = None,
        output: tuple[str, ...] = B_H,
    ) -> None:
        self.relation = Relation(kind, of, dims, 2.0, to)
        self.reference, self.inputs, self.output = reference, inputs, output

    def context(self, case: Case, **fields: Any) -> Context:
        op = Op(
            name="trait", summary="", dtypes=(case.dtype,), compute_dtype="float32",
            inputs=self.inputs, output=self.output, legacy_atol={}, reduction=None, path="",
            reference_path="", op_hash="", reference_hash="", kernels=(),
            relations=(self.relation,), **fields,
        )  # fmt: skip
        return Context(op, case, torch.device("cpu"), self.reference)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x - y


def scaled_by_group(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x * s.repeat_interleave(3, -1)[..., : x.shape[-1]]


X = InputSpec(B_H)
TRAITS: dict[str, Trait] = {
    "shift": Trait("shift", difference, {"x": X, "y": InputSpec(B_H, -0.5, 0.25)}, ("x", "y")),
    "sums": Trait("sums", softmax, {"x": X}, to=1.0),
    "scale_invariant": Trait(
        "scale_invariant", lambda x: x / (x * x).sum(-1, keepdim=True).sqrt(), {"x": X}, ("x",)
    ),
    "scale_equivariant": Trait("scale_equivariant", lambda x: 3 * x.relu() - x, {"x": X}, ("x",)),
    "odd": Trait("odd", lambda x: x * x * x + x.tanh(), {"x": X}, ("x",)),
    "linear": Trait("linear", lambda x, w: x * w, {"x": X, "w": X}, ("x",)),
    "permutation": Trait(
        "permutation", scaled_by_group, {"x": X, "s": InputSpec(("B", "H/3"), 0.5, 2.0)},
        dims=("B", "H"),
    ),
}  # fmt: skip
#: Sigma is an estimate, and another one at other places.
NEAR = {"permutation": 0.4}
#: What of the perturbation of each launch arrives: the unit of `linear` holds both its sides and
#: the whole.
SHARE = {"linear": 0.5}
drawn = st.builds(
    lambda rows, width, seed: Case(
        "trait", "float64", (("B", rows), ("H", width)), "default", "contiguous", seed
    ),
    st.integers(2, 5), st.integers(2, 12), st.integers(0, 2**63 - 1),
)  # fmt: skip


def measured(
    trait: Trait, context: Context, off: float = 0.0, dtype: str = "float64"
) -> dict[str, float]:
    """The relation of a kernel that rounds the reference, and is ``off`` units wrong when it is
    launched again (of ``shift`` once more, of ``sums`` at once).
    """
    torch_dtype: torch.dtype = getattr(torch, dtype)
    launches = 0

    def rounded(value: torch.Tensor) -> torch.Tensor:
        return stats.round_to(value, DTYPES[dtype]).to(torch_dtype)

    def launch(inputs: relations.Inputs) -> torch.Tensor:
        nonlocal launches
        launches += 1
        ref, sigma = context.evaluated(inputs)
        scale = ref.abs() + sigma
        if trait.relation.kind == "shift":  # whose unit is the mean of both sides'
            names = trait.relation.inputs
            pairs = relations.shifted([context.inputs[name] for name in names])
            lower = {name: low for name, (low, _) in zip(names, pairs, strict=True)}
            other, other_sigma = context.evaluated(lower)
            scale = (scale + other.abs() + other_sigma) / 2 * (launches == 1)
        return rounded(ref + off * U * scale)

    first = context.ref
    if trait.relation.kind == "sums":
        first = first + off * U * context.scale
    found = relations.measure(context, trait.relation, rounded(first), launch)
    return {name: getattr(found, name).item() for name in found._fields}


@pytest.mark.parametrize("name", sorted(TRAITS))
@settings(deadline=None, max_examples=30)
@given(case=drawn, dtype=st.sampled_from(sorted(DTYPES)))
def test_what_keeps_a_relation_passes(name: str, case: Case, dtype: str) -> None:
    """Judged at each element, in each dtype: a right kernel is off by its rounding alone."""
    trait = TRAITS[name]
    context = trait.context(case, output_dtype=dtype)
    found = measured(trait, context, dtype=dtype)
    rows, width = (size for _, size in case.dims)
    judged = rows if name == "sums" else rows * width
    if name == "scale_equivariant":  # what is subnormal does not scale
        tiny = 2.0 ** (DTYPES[dtype].emin + 1)
        judged -= int(((context.ref != 0) & (context.ref.abs() < tiny)).sum())
    if dtype == "float8_e4m3fn":  # whose range the cubes and products leave
        judged = min(judged, int(found["judged"]))
    assert (found["beyond"], found["judged"]) == (0, judged)
    assert found["largest"] <= 1.0


@pytest.mark.parametrize("name", sorted(TRAITS))
@settings(deadline=None, max_examples=30)
@given(case=drawn, off=st.floats(4.5, 1e4))
def test_what_breaks_a_relation_is_so_many_units_off(name: str, case: Case, off: float) -> None:
    """As many as the kernel is off by between its launches, and at each element that is not 0."""
    trait = TRAITS[name]
    context = trait.context(case)
    found = measured(trait, context, off)
    assert found["largest"] == pytest.approx(SHARE.get(name, 1.0) * off, rel=NEAR.get(name, 1e-2))
    assert found["beyond"] == (case.dims[0][1] if name == "sums" else context.ref.numel())


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=9), st.floats(4.5, 1e4),
    st.sampled_from([0.0, 2.0]),
)  # fmt: skip
def test_configs_are_so_many_units_apart(values: list[float], off: float, allowed: float) -> None:
    """Two configurations are compared by `distance` alone, which is the end of each relation."""
    ref = torch.tensor(values, dtype=torch.float64)
    scale = ref.abs() + 1
    for by, beyond in ((0.0, 0), (off, ref.numel())):
        found = relations.distance(
            ref + by * U * scale, ref, slack=torch.zeros_like(ref), unit=U * scale,
            allowed=allowed, left_out=torch.zeros_like(ref, dtype=torch.bool),
        )  # fmt: skip
        assert found.largest.item() == pytest.approx(by, rel=1e-6)
        assert (found.beyond.item(), found.judged.item()) == (beyond, ref.numel())


# --- shift --------------------------------------------------------------------------------------

FORMATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2,
           torch.float8_e4m3fn}  # fmt: skip
tensors = st.builds(
    lambda values, dtype: torch.tensor(values, dtype=torch.float64).to(dtype),
    st.lists(
        st.floats(-1e30, 1e30) | st.floats(-10.0, 10.0) | st.sampled_from([0.0, NAN, INF, 1e-40]),
        min_size=1, max_size=6,
    ),
    st.sampled_from(sorted(FORMATS, key=str)),
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(tensors, min_size=1, max_size=3))
def test_one_power_of_two_shifts_all_inputs(inputs: list[torch.Tensor]) -> None:
    """Exactly, in each dtype; what has no room for it stays in both. c is as large as any x."""
    limit = min(stats.dtype_of(x).max for x in inputs) / 8
    found = set()
    largest = 0.0
    for x, (low, high) in zip(inputs, relations.shifted(inputs), strict=True):
        assert (low.dtype, high.dtype) == (x.dtype, x.dtype)
        usable = torch.isfinite(x.double()) & (x.double().abs() < limit)
        rest = torch.stack([x.double(), low.double(), high.double()])[:, ~usable]
        assert all(torch.equal(rest[0].nan_to_num(1.5), one.nan_to_num(1.5)) for one in rest)
        found |= set((high.double() - low.double())[usable].tolist())
        largest = max([largest, *x.double()[usable].abs().tolist()])
        c = (high.double() - low.double())[usable]
        precision = stats.dtype_of(x).precision
        near = (low.double() - x.double())[usable].abs() <= c * 2.0 ** (3 - precision)
        assert near.all()
    assert len(found) <= 1
    for c in found:
        mantissa, _ = torch.frexp(torch.tensor(c, dtype=torch.float64))
        assert mantissa == 0.5
        assert c > largest / 2


def test_a_shift_of_each_input_by_its_own_would_show_nothing() -> None:
    """x - y of a large x and a small y: a kernel that adds 1 % of y is caught by a common c."""
    trait = TRAITS["shift"]
    case = Case("trait", "float64", (("B", 4), ("H", 5)), "default", "contiguous", 3)
    context = trait.context(case)
    run = lambda inputs: inputs["x"] - 1.01 * inputs["y"]  # noqa: E731
    found = relations.measure(context, trait.relation, run(context.inputs), run)
    assert (found.beyond.item(), found.judged.item()) == (20, 20)


# --- sums ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [0.0, 2.0])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_sum_that_is_no_number_fails(value: float, units: float) -> None:
    """Where the reference's is one; where it is not, and outside the domain, nothing is asked."""
    case = Case("trait", "float64", (("B", 4), ("H", 5)), "default", "contiguous", 3)

    def halves(x: torch.Tensor) -> torch.Tensor:
        y = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0], dtype=torch.float64) + 0 * x
        y[3] = NAN
        return y

    context = Trait("sums", halves, {"x": X}, to=1.0).context(case)
    relation = Relation("sums", (), (), units, 1.0)
    first = context.ref.clone()
    first[0, 0] = first[3, 0] = value
    found = relations.measure(context, relation, first, lambda _: first)
    assert [x.item() for x in found] == [RELATION_MAX, 1, 3]


# --- permutation --------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    size=st.integers(1, 60), divisors=st.lists(st.sampled_from([2, 3, 4, 6]), max_size=2),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_elements_that_share_one_move_together(size: int, divisors: list[int], seed: int) -> None:
    """Element k still stands at its k // d; each place is taken once; nothing whole stays."""
    shapes = {f"i{n}": InputSpec((f"K/{d}",)) for n, d in enumerate(divisors)}
    trait = Trait(
        "permutation", lambda x, **_: x, {"x": InputSpec(("K",)), **shapes}, output=("K",)
    )
    context = trait.context(Case("trait", "float64", (("K", size),), "default", "contiguous", seed))
    orders = relations._orders(context, ("K",))
    together = math.lcm(1, *divisors)
    assert sorted(orders) == (
        sorted({"K", *(f"K/{d}" for d in divisors)}) if size // together > 1 else []
    )
    for d in divisors if orders else ():
        moved = orders["K"] // d
        assert torch.equal(moved, orders[f"K/{d}"][torch.arange(size) // d])
    for order in orders.values():
        assert order.sort().values.tolist() == list(range(order.numel()))
    if orders:
        whole = size // together * together
        assert (orders["K"][:whole] != torch.arange(whole)).all()
        assert torch.equal(orders["K"][whole:], torch.arange(whole, size))


@pytest.mark.parametrize(("width", "judged"), [(12, 24), (8, 16), (5, 0)])
def test_a_kernel_that_takes_another_groups_scale(width: int, judged: int) -> None:
    """It is caught where whole groups can move; where none can, the relation was not judged."""
    trait = TRAITS["permutation"]
    dims = (("B", 2), ("H", width))
    context = trait.context(Case("trait", "float64", dims, "default", "contiguous", 3))
    relation = Relation("permutation", (), ("H",), 0.0)
    run = lambda inputs: inputs["x"] * inputs["s"][:, :1]  # noqa: E731
    found = relations.measure(context, relation, run(context.inputs), run)
    assert found.judged.item() == judged
    assert (found.beyond.item() > 0) is (judged > 0)
    right = lambda inputs: scaled_by_group(**inputs)  # noqa: E731
    found = relations.measure(context, relation, right(context.inputs), right)
    assert [x.item() for x in found] == [0.0, 0, judged]


# --- the end of the output's range ---------------------------------------------------------------


def to_448(x: torch.Tensor) -> torch.Tensor:
    return x / x.abs().amax() * 448


@pytest.mark.parametrize("kind", ["odd", "scale_invariant", "permutation"])
@pytest.mark.parametrize("units", [0.0, 16.0])
def test_all_of_a_format_is_judged(kind: RelationKind, units: float) -> None:
    """What is scaled to fill float8_e4m3fn is judged up to 448, its largest number."""
    case = Case("trait", "float32", (("B", 4), ("H", 50)), "default", "contiguous", 3)
    context = Trait(kind, to_448, {"x": X}).context(case, output_dtype="float8_e4m3fn")
    assert (context.ref.abs() > 224).double().mean() > 0.3
    of = () if kind == "permutation" else ("x",)
    relation = Relation(kind, of, B_H if kind == "permutation" else (), units)
    run = lambda inputs: to_448(inputs["x"].double()).to(torch.float8_e4m3fn)  # noqa: E731
    found = relations.measure(context, relation, run(context.inputs), run)
    assert [x.item() for x in found] == [0.0, 0, 200]


def test_what_may_overflow_on_one_side_alone_is_left_out() -> None:
    """As near to the end of float16 as the sides may be apart; whatever is beyond, too."""
    values = torch.tensor([[65504.0, 65000.0, 65519.0, 1e5, INF]], dtype=torch.float64)
    case = Case("trait", "float16", (("B", 1), ("H", 5)), "default", "contiguous", 3)
    trait = Trait("odd", lambda x: values.copysign(x), {"x": InputSpec(B_H, 1.0, 2.0)}, ("x",))
    context = trait.context(case)
    run = lambda inputs: values.copysign(inputs["x"]).half()  # noqa: E731
    for units, judged in ((2.0, 3), (1e4, 1), (0.0, 5)):
        relation = Relation("odd", ("x",), (), units)
        found = relations.measure(context, relation, run(context.inputs), run)
        assert [x.item() for x in found] == [0.0, 0, judged], units


def test_half_of_what_a_kernel_computes_in_is_left_out() -> None:
    """A float32 output beside the end of float32: a sum on the way to it may have overflowed."""
    values = torch.tensor([[1e38, 1.6e38, 1.8e38, -3e38]], dtype=torch.float64)
    case = Case("trait", "float32", (("B", 1), ("H", 4)), "default", "contiguous", 3)
    context = Trait("permutation", lambda x: values + 0 * x, {"x": X}).context(case)
    left_out = relations._left_out(context, context.ref, context.ref, context.scale, 2.0)
    assert left_out.tolist() == [[False, False, True, True]]


@pytest.mark.parametrize("kind", ["linear", "scale_equivariant"])
def test_where_intermediates_underflow_nothing_is_asked(kind: RelationKind) -> None:
    """A right kernel, whose sums of subnormal numbers are rounded to multiples of the smallest.

    Its outputs are no subnormal numbers themselves. Rows of zeros and of usual numbers are judged.
    """
    case = Case("trait", "float32", (("B", 40), ("H", 6)), "default", "contiguous", 3)
    x = InputSpec(B_H, -1e-42, 1e-42)
    trait = Trait(
        kind, lambda x: x.sum(-1) * 0.3 * 2.0**40, {"x": x}, ("x",), output=("B",)
    )  # fmt: skip
    context = trait.context(case)
    context.inputs["x"][0] = 0.0
    context.inputs["x"][1] = torch.arange(6.0) + 1
    context.ref, context.sigma = context.evaluated(context.inputs)
    run = lambda inputs: inputs["x"].sum(-1) * 0.3 * 2.0**40  # noqa: E731
    out = run(context.inputs)
    assert (out[2:].abs() >= torch.finfo(torch.float32).tiny).double().mean() > 0.9
    found = relations.measure(context, trait.relation, out, run)
    assert [x.item() for x in found] == [0.0, 0, 2]
