"""A-priori bounds on sums: they hold for simulated fp32 dot products, and say when one does not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import make_record, make_run, make_stats

from tolcal import calibrate, history
from tolcal.calibrate import theory
from tolcal.history import columns
from tolcal.model import Proposal
from tolcal.report.html.cell import facts

U = 2.0**-24
Singles = npt.NDArray[np.float32]


def in_turn(products: Singles) -> np.float32:
    """One accumulator."""
    total = np.float32(0)
    for product in products:
        total = np.float32(total + product)
    return total


def in_halves(products: Singles) -> np.float32:
    """Pairwise."""
    while len(products) > 1:
        odd = products[len(products) // 2 * 2 :]
        even = products[: len(products) // 2 * 2]
        products = np.concatenate([even[::2] + even[1::2], odd]).astype(np.float32)
    return np.float32(products[0])


def in_tiles(products: Singles) -> np.float32:
    """Lanes of a warp, then their sums in turn."""
    return in_turn(np.array([in_turn(products[lane::8]) for lane in range(8)], np.float32))


ORDERS: dict[str, Callable[[Singles], np.float32]] = {
    "in turn": in_turn,
    "backwards": lambda p: in_turn(p[::-1]),
    "the largest first": lambda p: in_turn(p[np.argsort(-np.abs(p))]),
    "the smallest first": lambda p: in_turn(p[np.argsort(np.abs(p))]),
    "pairwise": in_halves,
    "tiles": in_tiles,
}


def vectors(kind: str, terms: int, seed: int) -> tuple[Singles, Singles]:
    """Factors: of one size, of many sizes, or such that the sum cancels."""
    random = np.random.default_rng(seed)
    a = random.uniform(-10, 10, terms)
    b = random.uniform(-10, 10, terms)
    if kind == "sizes":
        a *= 2.0 ** random.integers(-20, 20, terms)
    if kind == "cancels":
        half = terms // 2
        a[half : 2 * half], b[half : 2 * half] = a[:half], -b[:half]
    if kind == "positive":
        a, b = np.abs(a), np.abs(b)
    return a.astype(np.float32), b.astype(np.float32)


def exact(a: Singles, b: Singles) -> tuple[float, float]:
    """a.b and sum |a_i b_i|: products of two fp32 numbers are exact in fp64."""
    products = a.astype(np.float64) * b.astype(np.float64)
    return math.fsum(products), math.fsum(np.abs(products))


KINDS = st.sampled_from(["plain", "sizes", "cancels", "positive"])


@settings(max_examples=150, deadline=None)
@given(KINDS, st.integers(1, 300), st.integers(0, 2**32), st.sampled_from(sorted(ORDERS)))
def test_gamma_holds_in_any_order(kind: str, terms: int, seed: int, order: str) -> None:
    """|fl(a.b) - a.b| <= gamma_K |a|.|b|."""
    a, b = vectors(kind, terms, seed)
    true, total = exact(a, b)
    assert abs(float(ORDERS[order](a * b)) - true) <= theory.gamma(terms, U) * total


def trees(terms: tuple[np.float32, ...]) -> list[np.float32]:
    """The sums of all binary trees over the terms as they stand."""
    if len(terms) == 1:
        return [terms[0]]
    return [
        np.float32(left + right)
        for cut in range(1, len(terms))
        for left in trees(terms[:cut])
        for right in trees(terms[cut:])
    ]


@pytest.mark.parametrize("seed", range(6))
def test_gamma_holds_for_every_tree_of_every_order(seed: int) -> None:
    """All 120 orders of 5 products times all 14 trees; the bound is not idle: some use a third."""
    a, b = vectors(("plain", "sizes", "cancels")[seed % 3], 5, seed)
    true, total = exact(a, b)
    sums = {float(s) for order in itertools.permutations(a * b) for s in trees(order)}
    worst = max(abs(s - true) for s in sums) / total
    assert U / 50 < worst <= theory.gamma(5, U)


def test_the_probabilistic_form_holds_but_for_its_share() -> None:
    """3,000 sums: at most 1 in 1,000 errs by more; at a 25th of its lambda a third does."""
    failed = weaker = trials = 0
    for terms in (16, 128, 1024):
        strength = theory.confidence(terms, 1)
        for seed in range(1000):
            a, b = vectors("positive", terms, seed)  # all partial sums large: the hard case
            true, total = exact(a, b)
            # numpy's running sum rounds in fp32 at every step.
            error = abs(float(np.add.accumulate(a * b, dtype=np.float32)[-1]) - true)
            trials += 1
            failed += error > theory.probable_gamma(terms, U, strength) * total
            weaker += error > theory.probable_gamma(terms, U, strength / 25) * total
    assert failed <= trials // 1000
    assert weaker > trials // 3


def test_long_sums_are_likely_far_below_the_deterministic_bound() -> None:
    """sqrt(K) against K; the deterministic one caps the other at few terms."""
    assert theory.probable(4096, U, 1) < theory.bound(4096, U) / 5
    assert theory.probable(1, U, 2**20) == theory.bound(1, U)


@settings(max_examples=60, deadline=None)
@given(KINDS, st.integers(1, 200), st.integers(0, 2**32))
def test_in_units_of_the_scale(kind: str, terms: int, seed: int) -> None:
    """z of a simulated matmul element, with sigma from 32 sign vectors, is within the bound."""
    a, b = vectors(kind, terms, seed)
    true, _ = exact(a, b)
    products = a.astype(np.float64) * b.astype(np.float64)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (2, 32, terms))
    sigma = math.sqrt(np.mean((signs.sum(0) @ products) ** 2))
    worst = max(abs(float(order(a * b)) - true) for order in ORDERS.values())
    assert worst <= theory.bound(terms, U) * U * (abs(true) + sigma)


def test_sigma_is_what_the_conversion_takes_it_for() -> None:
    """Its mean square is twice the sum of squared products."""
    a, b = vectors("plain", 50, 3)
    products = a.astype(np.float64) * b.astype(np.float64)
    signs = np.random.default_rng(4).choice([-1.0, 1.0], (2, 20_000, 50))
    assert np.mean((signs.sum(0) @ products) ** 2) == pytest.approx(
        2 * float(products @ products), rel=0.05
    )


def test_where_gamma_has_no_meaning() -> None:
    """K u >= 1: half precision accumulators and long sums."""
    assert theory.gamma(2048, 2.0**-11) == math.inf
    assert theory.gamma(2047, 2.0**-11) == pytest.approx(2047)


@pytest.mark.parametrize(
    ("dims", "name", "terms"),
    [("M=8 K=16", "K", 16), ("K=3 KK=4", "K", 3), ("KK=4 K=3", "K", 3), ("M=8", "K", None),
     ("MK=9", "K", None), ("A.B=7", "A.B", 7), ("AxB=7", "A.B", None),
     ("K=" + 30 * "9", "K", None)],
)  # fmt: skip
def test_terms_of(dims: str, name: str, terms: int | None) -> None:
    """The whole name, and nothing that looks like it."""
    assert theory.terms_of(dims, name) == terms


def frame_of(errors: dict[int, float], roundoff: float = U) -> pd.DataFrame:
    """Per K one hundred rows over four runs, the last of which errs by so many u of the scale."""
    records = [
        make_record(
            run=make_run(id=f"{n % 4:016x}"), op="matmul", kernel="mm", seed=1000 * terms + n,
            dims=(("M", 2), ("K", terms)), roundoff=roundoff,
            stats=make_stats(2.0**-24 * z * (n == 99), scaled_max=float(z) * (n == 99)),
        )
        for terms, z in errors.items()
        for n in range(100)
    ]  # fmt: skip
    return history.to_frame(columns.from_records(records))


def calibrated(frame: pd.DataFrame, reductions: dict[str, str]) -> Proposal:
    """Its proposal."""
    return calibrate.calibrate(frame, min_rows=100, reductions=reductions)


def test_each_record_is_held_against_its_own_length() -> None:
    """Shown is the one nearest to its bound, and the worst of the longest sums."""
    (cell,) = calibrated(frame_of({2: 4.0, 256: 5.0}), {"matmul": "K"}).cells
    assert cell.theory is not None
    near, far = cell.theory.nearest, cell.theory.longest
    assert (near.terms, near.measured, near.dims) == (2, 4.0, "M=2 K=2")
    assert (far.terms, far.measured, far.dims) == (256, 5.0, "M=2 K=256")
    assert near.bound == theory.bound(2, U)
    assert far.bound == theory.bound(256, U)
    assert far.probable == theory.probable(256, U, 4096)
    assert (cell.theory.largest, cell.theory.most) == (5.0, 5.0)


def test_more_than_theory_explains_is_called_out() -> None:
    """With the cell, the kernel, its dims, what was measured and the bound."""
    proposal = calibrated(frame_of({2: 11.0, 256: 5.0}), {"matmul": "K"})
    assert [n for n in proposal.notes if "errs" in n] == [
        "matmul/float32: mm errs by 11 u of the scale at M=2 K=2, above the 10 that a sum of 2 "
        "terms (K) explains: the rest comes of what else the op does, or is a fault"
    ]
    below = calibrated(frame_of({2: 9.0, 256: 5.0}), {"matmul": "K"})
    assert not [n for n in below.notes if "errs" in n]


def test_nothing_to_say() -> None:
    """No reduction, one that the dims lack, or no bound at that length."""
    frame = frame_of({2: 11.0})
    for reductions in ({}, {"softmax": "K"}, {"matmul": "N"}):
        (cell,) = calibrated(frame, reductions).cells
        assert cell.theory is None
    assert theory.of_rows(frame_of({300: 11.0}, roundoff=2.0**-8), "K") is None


def test_it_is_no_part_of_what_is_approved() -> None:
    """The digest is that of a proposal made without the corpus."""
    frame = frame_of({2: 11.0})
    with_, without = calibrated(frame, {"matmul": "K"}), calibrated(frame, {})
    assert with_.digest == without.digest == with_.content_digest
    assert with_.cells[0] == msgspec.structs.replace(without.cells[0], theory=with_.cells[0].theory)


def test_it_stands_beside_the_cell() -> None:
    """On the cell's page, in words."""
    (cell,) = calibrated(frame_of({2: 11.0}), {"matmul": "K"}).cells
    said = dict(facts(cell))["Theory"]
    assert said == (
        "mm errs by 11 u of the scale at M=2 K=2; a sum of 2 terms explains at most 10 (gamma_K), "
        "likely 10 (sqrt K)"
    )
    (cell,) = calibrated(frame_of({2: 11.0}), {}).cells
    assert "Theory" not in dict(facts(cell))
