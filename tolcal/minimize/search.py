"""Smaller things that still fail: dims, elements, values. Knows nothing of kernels.

Every function takes an ``accept`` that tries one candidate and says whether it fails as the
original does; it keeps what it accepted, and may raise to end the search at any point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")
Dims = tuple[tuple[str, int], ...]
#: Sizes that are tried one by one before powers of two and their neighbours.
SMALL = 8


def smallest_dims(
    dims: Dims, accept: Callable[[Dims], bool], own: Mapping[str, Sequence[int]] | None = None
) -> Dims:
    """Dims of which none can be made smaller by one, or be a small size or one about a power of 2.
    Of a dim in ``own`` only these sizes are tried.

    All together first, then one by one, the largest first, until nothing changes: a fault need not
    be monotone in a size (a tail shows at odd ones), so what bisection finds is not the least of
    all.
    """
    for most in range(1, SMALL // 2 + 1):
        together = tuple((name, min(size, most)) for name, size in dims)
        if together != dims and accept(together):
            dims = together
            break
    changed = True
    while changed:
        changed = False
        for name, size in sorted(dims, key=lambda dim: -dim[1]):
            found = smallest_size(
                size,
                lambda n, name=name, dims=dims: accept(_with(dims, name, n)),  # type: ignore[misc]
                (own or {}).get(name),
            )
            changed |= found < size
            dims = _with(dims, name, found)
    return dims


def smallest_size(
    size: int, accept: Callable[[int], bool], among: Sequence[int] | None = None
) -> int:
    """The first of `sizes_below` that is accepted, or between it and the last that was not.

    With ``among`` the least of these that is accepted.
    """
    if among is not None:
        return next((n for n in sorted(among) if n < size and accept(n)), size)
    refused = 0
    for smaller in sizes_below(size):
        if accept(smaller):
            size = smaller
            break
        refused = smaller
    while size - refused > 1:
        middle = (size + refused) // 2
        if accept(middle):
            size = middle
        else:
            refused = middle
    return size


def sizes_below(size: int) -> Iterator[int]:
    """Ascending: all up to SMALL, then each power of two and its neighbours."""
    yield from range(1, min(size, SMALL + 1))
    power = 2 * SMALL
    while power - 1 < size:
        yield from (n for n in (power - 1, power, power + 1) if n < size)
        power *= 2


def _with(dims: Dims, name: str, size: int) -> Dims:
    return tuple((n, size if n == name else s) for n, s in dims)


def fewest(items: Sequence[T], accept: Callable[[Sequence[T]], bool]) -> list[T]:
    """Items of which none can be removed: ``accept`` tries without some of those left.

    Delta debugging (Zeller & Hildebrandt 2002) by complements: halves first, then quarters, and
    at last one by one until nothing goes.
    """
    left = list(items)
    size = len(left)
    while size:
        at, before = 0, len(left)
        while at < len(left):
            if accept(left[at : at + size]):
                del left[at : at + size]
            else:
                at += size
        if size > 1 or len(left) == before:
            size //= 2
    return left
