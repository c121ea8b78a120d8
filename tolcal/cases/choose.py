"""Ops into cases: which sizes, and the seeds of what is drawn."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tolcal.cases.words import key, words_numpy
from tolcal.model import Case, Op, TolcalError, digest

#: Every run measures the same gate cases; the name is frozen, since it fixes their inputs.
GATE_SEED = int(digest("gate cases", 1), 16) >> 1
PROFILES = ("default",)


def draw_cases(
    op: Op,
    dims: Mapping[str, tuple[int, ...]],
    dtype: str,
    master_seed: int,
    count: int,
    profile: str = "default",
) -> tuple[Case, ...]:
    """``count`` cases of ``op`` for kernels with these ``dims``.

    Dims are a Latin hypercube: each dim runs through a fresh shuffle of its sizes before any
    size comes again, so that a handful of cases already meets every boundary size.
    """
    if profile not in PROFILES:
        raise TolcalError(f"unknown input profile {profile!r}; known: {', '.join(PROFILES)}")
    columns = {}
    for name, sizes in dims.items():
        rounds = -(-count // len(sizes))
        column: list[int] = []
        for turn in range(rounds):
            words = words_numpy(key("dims", master_seed, op.name, dtype, name, turn), len(sizes))
            column += [sizes[i] for i in np.argsort(words, kind="stable")]
        columns[name] = column
    return tuple(
        Case(
            op=op.name,
            dtype=dtype,
            dims=tuple((name, columns[name][i]) for name in dims),
            profile=profile,
            layout="contiguous",
            seed=key("case", master_seed, op.name, dtype, i) >> 1,
        )
        for i in range(count)
    )


def shape_of(shape: tuple[str, ...], case: Case) -> tuple[int, ...]:
    """Symbolic dims with this case's sizes in them; ``K/32`` is ceil(K/32)."""
    sizes = dict(case.dims)
    found = []
    for entry in shape:
        dim, _, by = entry.partition("/")
        found.append(-(-sizes[dim] // int(by or 1)))
    return tuple(found)
