"""Which parts of a history the next upload takes in: pure, with dates given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tolcal.github.carrying import MAX_PARTS, Sized, chosen

NOW = datetime(2026, 5, 1, tzinfo=UTC)
MOST = 2_500_000


def part(number: int, rows: int, age: float = 0, life: float = 90) -> Sized:
    """Of ``age`` days."""
    created = NOW - timedelta(days=age)
    return Sized(number, rows, created, created + timedelta(days=life))


@pytest.mark.parametrize(
    ("parts", "fresh", "expected"),
    [
        ([], 0, ()),
        ([], 100, ()),
        ([part(1, 100)], 0, ()),  # nothing to do
        ([part(1, 100)], 100, (1,)),
        ([part(1, 200)], 100, (1,)),
        ([part(1, 201)], 100, ()),
        ([part(1, 600), part(2, 200)], 100, (2, 1)),  # 200 <= 2 * 100, 600 <= 2 * 300
        ([part(1, 601), part(2, 200)], 100, (2,)),
        ([part(1, 10**6)], 10**6, (1,)),
        ([part(1, 2 * 10**6)], 10**6, ()),  # together too large for one
        ([part(1, 10**6, age=59)], 0, ()),
        ([part(1, 10**6, age=61)], 0, (1,)),  # 29 days are left
        ([part(1, 10**6, age=61), part(2, 7)], 0, (1, 2)),
        ([part(1, 10**7, age=61)], 0, (1,)),  # larger than one may be, but it would be gone
        ([part(1, 10**6, age=6, life=14)], 0, ()),  # a life of 14 days: half of it
        ([part(1, 10**6, age=8, life=14)], 0, (1,)),
        ([part(1, 10**6, age=365, life=400)], 0, ()),
        ([part(1, 10**6, age=95)], 0, (1,)),  # expired by now, and yet read
        ([Sized("a", 10**6)], 0, ()),  # files on a branch never expire
    ],
)
def test_what_is_taken_in(parts: list[Sized], fresh: int, expected: tuple[int, ...]) -> None:
    """Complaints 1 and 7: what is small, and what is about to expire; nothing without need."""
    assert chosen(parts, fresh, NOW, MOST) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=150))
def test_parts_stay_few_and_uploads_small(sizes: list[int]) -> None:
    """Complaint 7: over any ingests, few parts to download and each record uploaded a few times."""
    parts: list[Sized] = []
    uploaded = 0
    for number, fresh in enumerate(sizes):
        taken = chosen(parts, fresh, NOW, MOST)
        rows = fresh + sum(p.rows for p in parts if p.id in taken)
        uploaded += rows
        parts = [p for p in parts if p.id not in taken] + [part(number, rows)]
        assert len(parts) <= MAX_PARTS
    total = sum(sizes)
    assert sum(p.rows for p in parts) == total
    assert uploaded <= total * (2 + 2 * max(1, total // min(sizes)).bit_length())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=30, max_size=60), st.integers(1, 10))
def test_many_parts_are_merged_whatever_their_size(rows: list[int], most: int) -> None:
    """However the parts came to be so many, the next upload leaves at most that many."""
    parts = [part(number, count) for number, count in enumerate(rows)]
    taken = chosen(parts, 1, NOW, 10**9, most)
    assert len(parts) - len(taken) + 1 <= most
