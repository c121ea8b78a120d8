"""What lies outside an op's domain is told apart, counted and not judged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks_support import CASE, op_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tolcal.measure import domain
from tolcal.model import Case, Op
from tolcal.stats import error_stats

NAN, INF = float("nan"), float("inf")


def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def row_sums(x: torch.Tensor) -> torch.Tensor:
    return x - x.sum(-1, keepdim=True)


def mask(reference: Any, values: list[list[float]], **fields: Any) -> list[list[bool]]:
    found: list[list[bool]] = domain.depends(
        op_of(**fields), reference, {"x": torch.tensor(values, dtype=torch.float64)}
    ).tolist()
    return found


def test_what_depends_on_it_is_outside() -> None:
    """An element of its own, or its whole row."""
    values = [[1.0, NAN, 3.0], [4.0, 5.0, 6.0], [INF, 7.0, -200.0]]
    assert mask(twice, values, domain=(-100.0, 100.0)) == [
        [False, True, False], [False] * 3, [True, False, True],
    ]  # fmt: skip
    assert mask(row_sums, values) == [[True] * 3, [False] * 3, [True] * 3]


def test_nonfinite_inputs_can_be_inside() -> None:
    """Of an op that says so only finite values beyond the range are outside."""
    values = [[NAN, INF, 200.0, 1.0]]
    assert mask(twice, values, nonfinite=True, domain=(-100.0, 100.0)) == [
        [False, False, True, False]
    ]


def test_a_nan_of_its_own_is_inside() -> None:
    """0/0 of inputs inside is not excused by what else is outside."""

    def reference(x: torch.Tensor) -> torch.Tensor:
        return (x / x) + 0 * x.sum(-1, keepdim=True)

    assert mask(reference, [[0.0, 1.0, NAN]]) == [[False, True, True]]


def normalized(x: torch.Tensor) -> torch.Tensor:
    """0/0 for a constant row."""
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)


def test_a_row_that_lies_outside_as_a_whole_is_outside() -> None:
    """What stands for its values has a variance, as they may have none."""
    rows = [[INF] * 4, [NAN] * 4, [-200.0] * 4, [1e30, -1e30, INF, NAN], [1.0, 2.0, 3.0, 4.0]]
    found = mask(normalized, rows, domain=(-100.0, 100.0))
    assert found == [[True] * 4] * 4 + [[False] * 4]
    # A constant row of numbers inside is the op's own 0/0.
    assert mask(normalized, [[5.0] * 4], domain=(-100.0, 100.0)) == [[False] * 4]


def test_a_nan_of_what_stands_for_it_is_not_the_ops_own() -> None:
    """An element that is a number depends on the input outside, whatever others would give."""
    values = [[1e30, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30]]
    assert mask(torch.log, values, domain=(-100.0, 100.0)) == [[True] * 8]
    assert mask(torch.log, [[-3.0, 3.0]], domain=(-100.0, 100.0)) == [[False] * 2]


@settings(deadline=None)
@given(
    rows=st.integers(1, 5), width=st.integers(2, 9), data=st.data(),
    reference=st.sampled_from([twice, row_sums, normalized]),
)  # fmt: skip
def test_outside_is_what_depends_on_it_and_nothing_else(
    rows: int, width: int, data: st.DataObject, reference: Any
) -> None:
    """Of rows with some elements outside, few or all: elements of their own, or whole rows."""
    bad = torch.tensor(
        data.draw(
            st.lists(
                st.lists(st.booleans(), min_size=width, max_size=width),
                min_size=rows,
                max_size=rows,
            )
        )
    )
    value = data.draw(st.sampled_from([INF, -INF, NAN, 1e30, -101.0]))
    x = torch.linspace(-9.0, 9.0, rows * width, dtype=torch.float64).reshape(rows, width)
    found = mask(reference, torch.where(bad, value, x).tolist(), domain=(-100.0, 100.0))
    expected = bad if reference is twice else bad.any(-1, keepdim=True).expand(rows, width)
    assert found == expected.tolist()


@pytest.mark.parametrize(
    ("profile", "factor", "expected"),
    [
        ("default", 1.0, False), ("edges", 1.0, False), ("default", 4.0, False),
        ("default", 20.0, True), ("adversarial", 1.0, True),
    ],
)  # fmt: skip
def test_only_what_can_leave_the_domain_is_looked_at(
    profile: str, factor: float, expected: bool
) -> None:
    """The default path must not wait for the device."""
    case = Case(CASE.op, CASE.dtype, CASE.dims, profile, CASE.layout, CASE.seed)
    assert domain.may_leave(op_of(domain=(-100.0, 100.0)), case, factor) is expected


def test_kinds_outside_are_counted() -> None:
    """Against the reference, and against a control's."""
    part = domain.part(torch.tensor([True, True, True, False, True]))
    assert part is not None
    ref = torch.tensor([1.0, INF, NAN, NAN, 1e39], dtype=torch.float64)
    out = torch.tensor([1.0, INF, INF, 1.0, INF])
    control = torch.tensor([1.0, -INF, INF, NAN, 2.0])
    assert domain.kinds_outside(part, out, ref, None).tolist() == [1, -1]
    assert domain.kinds_outside(part, out, ref, control).tolist() == [1, 2]


def test_nothing_outside_is_no_part() -> None:
    assert domain.part(torch.zeros(2, 3, dtype=torch.bool)) is None


def test_all_outside_leaves_empty_statistics() -> None:
    """A record of no element at all."""
    part = domain.part(torch.ones(2, 3, dtype=torch.bool))
    assert part is not None
    flat = torch.zeros(6)[part.inside]
    assert error_stats(flat, flat.double(), flat.double(), 2.0**-24).count == 0


def test_ops_have_no_domain_by_default() -> None:
    op: Op = op_of()
    assert op.inputs["x"].domain is None
