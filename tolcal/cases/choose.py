"""Ops into cases: which sizes and layouts, and the seeds of what is drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from tolcal.cases.profiles import TURNS
from tolcal.cases.words import key, words_numpy
from tolcal.model import PROFILES, Case, Op, TolcalError, digest

T = TypeVar("T")
#: Every run measures the same gate cases; the name is frozen, since it fixes their inputs.
GATE_SEED = int(digest("gate cases", 1), 16) >> 1
#: The published sizes of two profiles, of an op's reduced dim.
SIZES = {"boundary": (1, 3, 7), "regular": (128, 256, 512)}


def profiles_of(op: Op, names: Sequence[str]) -> tuple[str, ...]:
    """Of the profiles called ``names``, those that the op has; ``all`` is every one.

    It has all but those that its op.toml excludes, and ``large`` if that has sizes for it.

    TolcalError for a name that is none.
    """
    for name in names:
        if name not in (*PROFILES, "all"):
            raise TolcalError(f"unknown input profile {name!r}; known: {', '.join(PROFILES)}, all")
    wanted = PROFILES if "all" in names else tuple(dict.fromkeys(names))
    lacks = {*op.excluded_profiles, *(() if "large" in op.sizes else ("large",))}
    return tuple(name for name in wanted if name not in lacks)


def sizes_of(
    op: Op, dims: Mapping[str, tuple[int, ...]], profile: str, own: Collection[str] = ()
) -> dict[str, tuple[int, ...]]:
    """The sizes of each dim of a profile: op.toml's for it, or the profile's, or ``dims``.

    Args:
        own: dims that get none but those of ``dims``: of the profile's the ones that are among
            them, else all of them.
    """
    of_profile: dict[str, tuple[int, ...]] = {}
    if profile == "edges":
        of_profile = {name: edges(max(sizes), _blocks(op, name)) for name, sizes in dims.items()}
    if profile in SIZES and profile not in op.sizes:
        reduced = op.reduction or _last_dim(op)
        of_profile = {} if reduced is None else {reduced: SIZES[profile]}
    # op.toml's own are known to be fit for it.
    of_profile = {name: _fit(op, name, sizes) for name, sizes in of_profile.items()}
    of_profile |= op.sizes.get(profile, {})
    found = dict(dims)
    for name, sizes in of_profile.items():
        allowed = tuple(size for size in sizes if size in dims[name]) if name in own else sizes
        found[name] = allowed or dims[name]
    return found


def _fit(op: Op, dim: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Those of which every integer input that is drawn below the dim has numbers."""
    spans = [spec.spans for spec in op.inputs.values() if spec.below == dim]
    return tuple(size for size in sizes if all(size in span for span in spans))


def _last_dim(op: Op) -> str | None:
    shape = next(iter(op.inputs.values())).shape
    return shape[-1].partition("/")[0] if shape else None


def _blocks(op: Op, dim: str) -> tuple[int, ...]:
    """How long the blocks are that the op's shapes divide a dim into."""
    shapes = (*(spec.shape for spec in op.inputs.values()), op.output)
    divided = [entry.partition("/") for shape in shapes for entry in shape]
    return tuple(int(by) for name, _, by in divided if by and name == dim)


def edges(most: int, blocks: Iterable[int] = ()) -> tuple[int, ...]:
    """1, and every power of two, of ``blocks`` times one, and its neighbours, up to ``most``."""
    powers = (
        2**k * block + beside
        for k in range(most.bit_length() + 1)
        for block in (1, *blocks)
        for beside in (-1, 0, 1)
    )
    return tuple(sorted({size for size in powers if 1 <= size <= most}))


def draw_cases(
    op: Op,
    dims: Mapping[str, tuple[int, ...]],
    dtype: str,
    master_seed: int,
    count: int,
    profile: str = "default",
    own: Collection[str] = (),
) -> tuple[Case, ...]:
    """``count`` cases of ``op`` for kernels with these ``dims`` (``own``: `sizes_of`), by an input
    profile.

    Dims and layouts are a Latin hypercube: each runs through a fresh shuffle of its values before
    any comes again, so that a handful of cases already meets every boundary size. The first case
    is contiguous if the op's kernels take that. Of profile ``large`` there are no more cases than
    sizes, and none without a table of its sizes; all are contiguous.
    """
    profiles_of(op, [profile])
    # Profile default names none: its cases are older than the others.
    named = () if profile == "default" else (profile,)
    dims = sizes_of(op, dims, profile, own)
    if profile == "large":
        count = min(count, max(map(len, op.sizes.get(profile, {}).values()), default=0))

    def column(what: tuple[object, ...], values: Sequence[T]) -> list[T]:
        found: list[T] = []
        for turn in range(-(-count // len(values))):
            words = words_numpy(key(*what, *named, turn), len(values))
            found += [values[i] for i in np.argsort(words, kind="stable")]
        return found

    seeds = (master_seed, op.name, dtype)
    columns = {name: column(("dims", *seeds, name), sizes) for name, sizes in dims.items()}
    layouts = column(("layouts", *seeds), ("contiguous",) if profile == "large" else op.layouts)
    if "contiguous" in layouts:
        at = layouts.index("contiguous")
        layouts[0], layouts[at] = layouts[at], layouts[0]
    # A handful of adversarial cases begins at another turn in another run.
    start = key("turn", *seeds)
    return tuple(
        Case(
            op=op.name,
            dtype=dtype,
            dims=tuple((name, columns[name][i]) for name in dims),
            profile=profile,
            layout=layouts[i],
            seed=_seed(key("case", *seeds, *named, i) >> 1, profile, start + i),
        )
        for i in range(count)
    )


def _seed(seed: int, profile: str, turn: int) -> int:
    """The lowest bits of an adversarial case's seed are its turn."""
    return seed - seed % (2 * TURNS) + turn % (2 * TURNS) if profile == "adversarial" else seed


def shape_of(shape: tuple[str, ...], case: Case) -> tuple[int, ...]:
    """Symbolic dims with this case's sizes in them; ``K/32`` is ceil(K/32)."""
    sizes = dict(case.dims)
    found = []
    for entry in shape:
        dim, _, by = entry.partition("/")
        found.append(-(-sizes[dim] // int(by or 1)))
    return tuple(found)
