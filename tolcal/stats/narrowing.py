"""Order statistics on the device: brackets, what falls into them, and values at ranks.

The other half of `order`, which says what brackets are.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: As in `fused`: what a thread keeps stays in it if pointers are not known to be aligned.
UNALIGNED = ["keys_p", "buffer_p"]


@triton.jit
def width(low, high):
    """How many keys of a bracket (low, high] are to be kept: all, or none if it has one value."""
    return tl.where(high - low > 1, high - low, 0).to(tl.uint32, bitcast=True)


@triton.jit
def bracketed(
    key, inside, b0, b1, b2, b3, b4, b5, w0, w1, w2, buffer_p, kept, capacity,
    l0, l1, l2, l3, l4, l5,
):  # fmt: skip
    """Counts keys up to both ends of three brackets; appends those within one to the buffer.

    A bracket (low, high] of width 1 holds a single value, which need not be kept. Keys are
    float32 errors >= 0 as bits, which are in the same order. Returns the new fill and six counts
    of every lane, which has ``capacity`` places.
    """
    u0, u1 = inside & (key <= b0), inside & (key <= b1)
    u2, u3 = inside & (key <= b2), inside & (key <= b3)
    u4, u5 = inside & (key <= b4), inside & (key <= b5)
    l0 += tl.sum(u0.to(tl.int32), 0)
    l1 += tl.sum(u1.to(tl.int32), 0)
    l2 += tl.sum(u2.to(tl.int32), 0)
    l3 += tl.sum(u3.to(tl.int32), 0)
    l4 += tl.sum(u4.to(tl.int32), 0)
    l5 += tl.sum(u5.to(tl.int32), 0)
    held = inside & (
        ((key - b0 - 1).to(tl.uint32, bitcast=True) < w0)
        | ((key - b2 - 1).to(tl.uint32, bitcast=True) < w1)
        | ((key - b4 - 1).to(tl.uint32, bitcast=True) < w2)
    )
    # Each lane appends to its own stretch of the buffer, so that lanes need not talk.
    one = held.to(tl.int32)
    place = kept[None, :] + tl.cumsum(one, 0) - one
    stretch = (tl.arange(0, key.shape[1]) * capacity)[None, :]
    # Not true, but harmless where the pointer's alignment is unknown, and it keeps the store in
    # the layout of the loads.
    at = tl.max_contiguous(stretch + place, [1, key.shape[1]])
    tl.store(buffer_p + at, key, mask=held & (place < capacity))
    kept += tl.sum(one, 0)
    return kept, l0, l1, l2, l3, l4, l5


@triton.jit(do_not_specialize_on_alignment=UNALIGNED)
def narrow(
    keys_p, brackets_p, buffer_p, counts_p, size: tl.int64, tiles: tl.int32, capacity: tl.int32,
    R: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """What `bracketed` does, of keys alone: counts into ``counts_p`` [programs, 8]."""
    program = tl.program_id(0).to(tl.int64)
    none = tl.zeros([R], tl.int32)
    kept, l0, l1, l2, l3, l4, l5 = none, none, none, none, none, none, none
    b0, b1 = tl.load(brackets_p), tl.load(brackets_p + 1)
    b2, b3 = tl.load(brackets_p + 2), tl.load(brackets_p + 3)
    b4, b5 = tl.load(brackets_p + 4), tl.load(brackets_p + 5)
    w0, w1, w2 = width(b0, b1), width(b2, b3), width(b4, b5)
    at = program * (R * E) + tl.arange(0, E)[:, None] * R + tl.arange(0, R)[None, :]
    for _ in range(tl.program_id(0), tiles, tl.num_programs(0)):
        inside = at < size
        key = tl.load(keys_p + at, mask=inside, other=0)
        kept, l0, l1, l2, l3, l4, l5 = bracketed(
            key, inside, b0, b1, b2, b3, b4, b5, w0, w1, w2,
            buffer_p + program * (R * capacity), kept, capacity, l0, l1, l2, l3, l4, l5,
        )  # fmt: skip
        at += tl.num_programs(0).to(tl.int64) * (R * E)
    row = counts_p + program * 8
    tl.store(row + 0, tl.sum(l0, 0))
    tl.store(row + 1, tl.sum(l1, 0))
    tl.store(row + 2, tl.sum(l2, 0))
    tl.store(row + 3, tl.sum(l3, 0))
    tl.store(row + 4, tl.sum(l4, 0))
    tl.store(row + 5, tl.sum(l5, 0))
    tl.store(row + 6, tl.sum((kept > capacity).to(tl.int32), 0))


@triton.jit
def pick(
    in_order_p, picks_p,
    r0: tl.int64, r1: tl.int64, r2: tl.int64, r3: tl.int64, r4: tl.int64, r5: tl.int64,
):  # fmt: skip
    """The values at six ranks."""
    tl.store(picks_p + 0, tl.load(in_order_p + r0))
    tl.store(picks_p + 1, tl.load(in_order_p + r1))
    tl.store(picks_p + 2, tl.load(in_order_p + r2))
    tl.store(picks_p + 3, tl.load(in_order_p + r3))
    tl.store(picks_p + 4, tl.load(in_order_p + r4))
    tl.store(picks_p + 5, tl.load(in_order_p + r5))


@triton.jit
def lay(
    in_order_p, brackets_p, size: tl.int32,
    p0: tl.int32, p1: tl.int32, p2: tl.int32, p3: tl.int32, p4: tl.int32, p5: tl.int32,
    p6: tl.int32, p7: tl.int32, p8: tl.int32,
):  # fmt: skip
    """Three brackets from the places of low, middle and high of each in a sorted sample."""
    _lay(in_order_p, brackets_p, size, p0, p1, p2)
    _lay(in_order_p, brackets_p + 2, size, p3, p4, p5)
    _lay(in_order_p, brackets_p + 4, size, p6, p7, p8)


@triton.jit
def _lay(in_order_p, brackets_p, size, first, centre, last):
    # Beyond the sample's ends: below every key, and above every key.
    low = tl.load(in_order_p + first, mask=first >= 0, other=-1)
    middle = tl.load(in_order_p + centre)
    high = tl.load(in_order_p + last, mask=last < size, other=0x7FFFFFFE)
    tie = (low == middle) | (middle == high)
    tl.store(brackets_p, tl.where(tie, middle - 1, low))
    tl.store(brackets_p + 1, tl.where(tie, middle, high))
