"""The Triton forms of what a case needs on a GPU besides its kernels: few launches, same bits.

`draw` gives the inputs of `cases.inputs_torch` and the hash of `cases.input_hash_torch`; `sway`
and `spread` are the two halves of `stats.sensitivity`. Launched without FP fusion, so that every
product is rounded as numpy rounds it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mixed(z):
    """SplitMix64's finalizer, of uint64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _words(stream, ordinal):
    """Words of a stream; ``ordinal`` uint64 counts from 0."""
    gamma = tl.full([1], 0x9E3779B97F4A7C15, tl.uint64)
    return _mixed((ordinal + 1) * gamma + stream.to(tl.uint64, bitcast=True))


@triton.jit
def draw(
    raw_p, wide_p, hash_p, count: tl.int64, stream: tl.int64, hash_stream: tl.int64,
    low: tl.float64, span: tl.float64, FORMAT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """An input's bits, the same values as fp64, and the sum of its mixed bits added to a hash."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    ordinal = at.to(tl.uint64)
    unit = (_words(stream, ordinal) >> 11).to(tl.float64) * 1.1102230246251565e-16
    value = low + span * unit
    if FORMAT == "float64":
        bits = value.to(tl.int64, bitcast=True)
        tl.store(raw_p + at, bits, mask=inside)
        wide = value
    elif FORMAT == "float32":
        single = value.to(tl.float32)
        bits = single.to(tl.int32, bitcast=True).to(tl.int64)
        tl.store(raw_p + at, single.to(tl.int32, bitcast=True), mask=inside)
        wide = single.to(tl.float64)
    elif FORMAT == "float16":
        half = value.to(tl.float32).to(tl.float16)
        bits = half.to(tl.int16, bitcast=True).to(tl.int64)
        tl.store(raw_p + at, half.to(tl.int16, bitcast=True), mask=inside)
        wide = half.to(tl.float32).to(tl.float64)
    else:  # bfloat16, rounded as integers: half to even
        pattern = value.to(tl.float32).to(tl.uint32, bitcast=True)
        pattern = (pattern + 0x7FFF + ((pattern >> 16) & 1)) >> 16
        short = pattern.to(tl.int16)
        bits = short.to(tl.int64)
        tl.store(raw_p + at, short, mask=inside)
        wide = (pattern << 16).to(tl.float32, bitcast=True).to(tl.float64)
    tl.store(wide_p + at, wide, mask=inside)
    mixed = _mixed(_words(hash_stream, ordinal) ^ bits.to(tl.uint64, bitcast=True))
    mixed = tl.where(inside, mixed.to(tl.int64, bitcast=True), 0)
    # A sum modulo 2^64 has no order.
    tl.atomic_add(hash_p, tl.sum(mixed, 0))


@triton.jit
def sway(
    wide_p, swayed_p, count: tl.int64, stream: tl.int64, step: tl.float64, first: tl.int32,
    VECTORS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x*(1 + step*r) of sign vectors ``first`` and on into ``swayed_p`` [VECTORS, count]."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(wide_p + at, mask=inside, other=0.0)
    word = _words(stream, at.to(tl.uint64)) >> first.to(tl.uint64)
    for vector in range(VECTORS):
        sign = 1.0 - 2.0 * (word & 1).to(tl.float64)
        tl.store(swayed_p + vector * count + at, x * (1.0 + step * sign), mask=inside)
        word = word >> 1


@triton.jit
def spread(
    swayed_p, ref_p, sigma_p, count: tl.int64, per_step: tl.float64, vectors: tl.int32,
    VECTORS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums of squared difference quotients; the LAST call makes them their root mean square."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    ref = tl.load(ref_p + at, mask=inside, other=0.0)
    if FIRST:
        total = tl.zeros([BLOCK], tl.float64)
    else:
        total = tl.load(sigma_p + at, mask=inside, other=0.0)
    for vector in range(VECTORS):
        value = tl.load(swayed_p + vector * count + at, mask=inside, other=0.0)
        quotient = (value - ref) * per_step  # a power of two, so exact like the division
        total += quotient * quotient
    if LAST:
        total = tl.sqrt(total / vectors.to(tl.float64))
        # No excuse where a swayed reference is not finite.
        total = tl.where(total <= 1.7976931348623157e308, total, 0.0)
    tl.store(sigma_p + at, total, mask=inside)


@triton.jit
def differ(a_p, b_p, differing_p, count: tl.int64, BLOCK: tl.constexpr):
    """Sets ``differing_p`` if two outputs differ anywhere in value; nan is like nan."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_p + at, mask=at < count, other=0.0)
    b = tl.load(b_p + at, mask=at < count, other=0.0)
    same = (a == b) | ((a != a) & (b != b))
    tl.atomic_or(differing_p, tl.max((~same).to(tl.int32), 0))
