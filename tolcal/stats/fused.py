"""The Triton form of the statistics: one pass over output, reference and sigma.

Every program owns a fixed set of tiles and leaves one row of partial results, which `total`
reduces in a fixed order: the same bits on every call, and no atomics. Kernels are launched
without FP fusion, so that a sum is rounded where `definition` rounds it; where an fma is meant it
is written. Formats are read as bits, so 8- and 16-bit ones need no support by the device.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tolcal.stats.narrowing import bracketed, width

#: The compiler gives a thread neighbouring elements if it knows that pointers are aligned.
UNALIGNED = ["out_p", "ref_p", "sigma_p", "keys_p"]


@triton.jit
def _widen(raw, FORMAT: tl.constexpr):
    """A format's bits as fp64."""
    if FORMAT == "float64":
        return raw.to(tl.float64, bitcast=True)
    elif FORMAT == "float32":
        return raw.to(tl.float32, bitcast=True).to(tl.float64)
    elif FORMAT == "float16":
        return raw.to(tl.float16, bitcast=True).to(tl.float32).to(tl.float64)
    elif FORMAT == "bfloat16":
        return (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True).to(tl.float64)
    elif FORMAT == "float8_e5m2":
        return (raw.to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32).to(tl.float64)
    else:  # e4m3fn: 2^8 times the fp16 number of the same fields; all ones is nan
        bits = raw.to(tl.int16)
        half = (((bits & 0x7F) << 7) | (bits & -32768)).to(tl.float16, bitcast=True)
        wide = half.to(tl.float32) * 256.0
        return tl.where((bits & 0x7F) == 0x7F, float("nan"), wide).to(tl.float64)


@triton.jit
def _pattern(value, FORMAT: tl.constexpr):
    """Bits of fp64 numbers that the format has."""
    if FORMAT == "float64":
        return value.to(tl.int64, bitcast=True)
    elif FORMAT == "float32":
        return value.to(tl.float32).to(tl.int32, bitcast=True)
    elif FORMAT == "bfloat16":
        return value.to(tl.float32).to(tl.int32, bitcast=True) >> 16
    elif FORMAT == "float16":
        half = value.to(tl.float32).to(tl.float16)
        return half.to(tl.int16, bitcast=True).to(tl.int32)
    elif FORMAT == "float8_e5m2":
        half = value.to(tl.float32).to(tl.float16)
        return half.to(tl.int16, bitcast=True).to(tl.int32) >> 8
    else:
        half = (value.to(tl.float32) * 0.00390625).to(tl.float16)
        bits = half.to(tl.int16, bitcast=True).to(tl.int32)
        return ((bits >> 7) & 0x7F) | (bits & -32768)


@triton.jit
def _ordered(bits, PLACES: tl.constexpr):
    """Sign-extended bits to integers that count the format's numbers in order."""
    if PLACES == 63:
        magnitude = bits & 0x7FFFFFFFFFFFFFFF
    else:
        magnitude = bits & ((1 << PLACES) - 1)
    return tl.where(bits < 0, -magnitude, magnitude)


@triton.jit
def _larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def _power(field):
    """fp64 of this high word and a low word of 0."""
    return (field.to(tl.int64) << 32).to(tl.float64, bitcast=True)


@triton.jit
def _any_elements(
    raw, ref, inside, FORMAT: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr,
    EMIN: tl.constexpr, MAX: tl.constexpr, INFINITE: tl.constexpr,
):  # fmt: skip
    """What `definition.error_stats` computes of each element, whatever it holds."""
    wide = _widen(raw, FORMAT)
    high = (ref.to(tl.int64, bitcast=True) >> 32).to(tl.int32)
    exponent = ((high >> 20) & 0x7FF) - 1023
    power = tl.maximum(exponent, EMIN) - PRECISION + 1
    if FORMAT == "float64":
        rounded = ref
        shift = tl.maximum(power + 1073, 0).to(tl.int64)
        small = ((tl.zeros_like(shift) + 1) << tl.minimum(shift, 52)).to(tl.float64, bitcast=True)
        half = tl.where(power > -1022, _power((power + 1022) << 20), small)
        half = tl.where(power > -1074, half, 0.0)  # half of the least number rounds to 0
    else:
        # Adding 1.5 * 2^52 spacings rounds to a multiple of one, half to even.
        top = (tl.minimum(power, 160) + 1075) << 20
        shifter = _power(top | 0x80000)
        rounded = (ref + shifter) - shifter
        half = _power((power + 1022) << 20)
    over = tl.abs(rounded) > MAX
    kept = (wide != wide) & (ref != ref)
    sign_agrees = (wide > 0) == (ref > 0)
    if INFINITE:
        kept = kept | (over & (tl.abs(wide) == float("inf")) & sign_agrees)
    else:  # no infinity: overflow may give nan or saturate
        kept = kept | (over & ((wide != wide) | ((tl.abs(wide) == MAX) & sign_agrees)))
    ref_finite = (tl.abs(rounded) <= MAX) & inside
    finite = ref_finite & (tl.abs(wide) <= 1.7976931348623157e308)
    mismatch = inside & ~finite & ~kept
    spoilt = tl.where(mismatch, float("inf"), 0.0).to(tl.float64)
    error = tl.where(finite, tl.abs(wide - rounded), spoilt)
    signed = tl.where(finite, wide - ref, 0.0)
    magnitude = tl.where(finite, tl.abs(ref), 0.0)
    excess = tl.where(finite, tl.abs(signed) - half, spoilt)
    informs = (signed != 0.0) & (ref != 0.0)
    moved = tl.where(informs, tl.abs(signed), 0.0)
    toward = tl.where(ref < 0, -signed, signed)
    toward = tl.where(informs, toward, 0.0)
    nonzero = (rounded != 0.0) & ref_finite
    denominator = tl.where(nonzero, tl.abs(rounded), 1.0)
    if FORMAT == "float64":
        relative = tl.where(nonzero, error / denominator, 0.0)
        a, b = _ordered(raw, PLACES), _ordered(_pattern(rounded, FORMAT), PLACES)
    else:
        relative = tl.where(nonzero, error.to(tl.float32) / denominator.to(tl.float32), 0.0)
        rounded = tl.where(ref_finite, rounded, 0.0)
        a = _ordered(raw.to(tl.int32), PLACES).to(tl.int64)
        b = _ordered(_pattern(rounded, FORMAT), PLACES).to(tl.int64)
    distance = tl.where(finite, tl.maximum(a, b) - tl.minimum(a, b), 0)
    return (
        error, excess, magnitude, moved, toward, relative, distance, finite,
        tl.sum(nonzero.to(tl.int32), 0), tl.sum(informs.to(tl.int32), 0),
        tl.sum(mismatch.to(tl.int32), 0), tl.sum((inside & ~finite).to(tl.int32), 0),
    )  # fmt: skip


@triton.jit
def _plain(
    raw, ref, PLACES: tl.constexpr, EMIN: tl.constexpr, EMAX: tl.constexpr, ODD: tl.constexpr,
):  # fmt: skip
    """Whether out is finite and ref is safely inside the format's normal range, per row."""
    high = (ref.to(tl.int64, bitcast=True) >> 32).to(tl.int32)
    field = (high & 0x7FF00000) - ((EMIN + 1023) << 20)
    within = (field >= 0) & (field < ((EMAX - EMIN) << 20))
    finite = (raw.to(tl.int32) & ((1 << PLACES) - 1)) < ODD
    return tl.min((within & finite).to(tl.int32), 0)


@triton.jit
def _plain_elements(raw, ref, FORMAT: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr):
    """The same where `_plain` holds: no kinds, no zeros, no subnormals."""
    wide = _widen(raw, FORMAT)
    bits = ref.to(tl.int64, bitcast=True)
    field = (bits >> 32).to(tl.int32) & 0x7FF00000
    shifter = _power(field + (((53 - PRECISION) << 20) | 0x80000))
    half = _power(field - (PRECISION << 20))
    rounded = (ref + shifter) - shifter
    error = tl.abs(wide - rounded)
    signed = wide - ref
    moved = tl.abs(signed)
    toward = (signed.to(tl.int64, bitcast=True) ^ (bits & (-9223372036854775808))).to(
        tl.float64, bitcast=True
    )
    # A division takes thrice the instructions; what this loses is far below 2^-20.
    inverse_root = tl.rsqrt(tl.abs(rounded).to(tl.float32))
    relative = (error.to(tl.float32) * inverse_root) * inverse_root
    a, b = raw.to(tl.int32), _pattern(rounded, FORMAT)
    if PLACES == 31:
        a, b = _ordered(a, PLACES).to(tl.int64), _ordered(b, PLACES).to(tl.int64)
    else:
        a, b = _ordered(a, PLACES), _ordered(b, PLACES)
    return (
        error, moved - half, tl.abs(ref), moved, toward, relative, tl.abs(a - b),
        tl.sum((signed != 0.0).to(tl.int32), 0),
    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=UNALIGNED)
def statistics(
    out_p, ref_p, sigma_p, rows_p, keys_p, scales_p, brackets_p,
    count: tl.int64, tiles: tl.int32, first: tl.int64, capacity: tl.int32,
    samples: tl.int32, turns: tl.int32, stride: tl.int64,
    atol: tl.float64, slope: tl.float64, roundoff: tl.float64,
    FORMAT: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr, EMIN: tl.constexpr,
    EMAX: tl.constexpr, MAX: tl.constexpr, ODD: tl.constexpr, INFINITE: tl.constexpr,
    SIGMA: tl.constexpr, LIMIT: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
    R: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Each program's share of the statistics into its row of ``rows_p`` [programs, 64].

    A row holds maxima in its first half (the envelopes at 6 and 17), sums from 32 on, counts of
    the brackets at 43, whether keys were dropped at 49, and the largest distance's bits at 63.

    KEYS: 1 leaves every error as a float32's bits in ``keys_p`` [count], 2 those inside a
    bracket in its ``R * capacity`` places of it. ``scales_p`` [2, 4096] takes the scale samples.
    ``tiles`` are all there are from element ``first`` on; each [E, R] belongs to one program.
    LIMIT: 1 counts residual > atol + slope*scale, 2 error > atol. MASKED: the last tile may be
    short; without it every tile is whole and plain tiles take the fast path.
    """
    program = tl.program_id(0).to(tl.int64)
    # 64 bits: an output may have more than 2^31 elements.
    step = tl.num_programs(0).to(tl.int64) * (R * E)
    WIDE: tl.constexpr = tl.float64 if FORMAT == "float64" else tl.float32
    wide0 = tl.zeros([R], tl.float64)
    zero = tl.zeros([R], WIDE)
    none = tl.zeros([R], tl.int32)
    max_key, max_abs, max_ref = none, wide0, wide0
    max_residual = zero
    sum_abs, sum_rel, sum_moved, sum_toward, sum_square = wide0, wide0, wide0, wide0, wide0
    max_rel, z, z_abs = zero, zero, zero
    s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11 = (
        zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero
    )  # fmt: skip
    a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11 = (
        zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero
    )  # fmt: skip
    # Unsigned numbers in signed bits are in order once their first bit is flipped.
    flip: tl.constexpr = -9223372036854775808 if FORMAT == "float64" else 0
    max_ulp, sum_ulp = tl.full([R], flip, tl.int64), tl.zeros([R], tl.int64)
    real_ulp = wide0
    nonzeros, informing, mismatches, exceeding, oddities = none, none, none, none, none
    l0, l1, l2, l3, l4, l5 = none, none, none, none, none, none
    kept = none
    # A tile is [E, R] with R the number of threads: what is reduced over its first axis stays
    # within a thread, as long as no load is vectorised along the second; see UNALIGNED.
    lane = tl.arange(0, R)
    offsets = tl.arange(0, E)[:, None] * R + lane[None, :]
    # The least float32; written as a number it would be taken for fp64.
    tiny = tl.full([1, 1], 1, tl.int32).to(tl.float32, bitcast=True)

    # Programs share the samples of both scales, one a thread and turn.
    ordinal = program * R + tl.arange(0, R)
    for _ in range(0, turns):
        at = ordinal * stride
        chosen = ordinal < samples
        raw = tl.load(out_p + at, mask=chosen, other=0)[None, :]
        ref = tl.load(ref_p + at, mask=chosen, other=0.0)[None, :]
        _e, _x, magnitude, _m, _t, _r, _d, finite, _0, _1, _2, _3 = _any_elements(
            raw, ref, chosen[None, :], FORMAT, PLACES, PRECISION, EMIN, MAX, INFINITE
        )
        scale = magnitude
        if SIGMA:
            sigma = tl.load(sigma_p + at, mask=chosen, other=0.0)[None, :]
            scale += tl.where(finite, sigma, 0.0)
        tl.store(scales_p + ordinal[None, :], scale.to(tl.float32), mask=chosen[None, :])
        tl.store(
            scales_p + samples + ordinal[None, :], magnitude.to(tl.float32), mask=chosen[None, :]
        )
        ordinal += tl.num_programs(0).to(tl.int64) * R

    if KEYS == 2:
        b0, b1 = tl.load(brackets_p), tl.load(brackets_p + 1)
        b2, b3 = tl.load(brackets_p + 2), tl.load(brackets_p + 3)
        b4, b5 = tl.load(brackets_p + 4), tl.load(brackets_p + 5)
        w0, w1, w2 = width(b0, b1), width(b2, b3), width(b4, b5)
    base = first + program * (R * E)
    for _ in range(tl.program_id(0), tiles, tl.num_programs(0)):
        if MASKED:
            inside = offsets < count - base
            raw = tl.load(out_p + base + offsets, mask=inside, other=0)
            ref = tl.load(ref_p + base + offsets, mask=inside, other=0.0)
            if SIGMA:
                sigma = tl.load(sigma_p + base + offsets, mask=inside, other=0.0)
        else:
            inside = tl.full([E, R], True, tl.int1)
            raw = tl.load(out_p + base + offsets)
            ref = tl.load(ref_p + base + offsets)
            if SIGMA:
                sigma = tl.load(sigma_p + base + offsets)
        if MASKED or FORMAT == "float64":
            (error, excess, magnitude, moved, toward, relative, distance, finite, n0, n1, n2,
             n3) = _any_elements(
                raw, ref, inside, FORMAT, PLACES, PRECISION, EMIN, MAX, INFINITE
            )  # fmt: skip
            if SIGMA:
                scale = magnitude + tl.where(finite, sigma, 0.0)
        elif tl.min(_plain(raw, ref, PLACES, EMIN, EMAX, ODD), 0) == 1:
            error, excess, magnitude, moved, toward, relative, distance, n1 = _plain_elements(
                raw, ref, FORMAT, PLACES, PRECISION
            )
            n0, n2, n3 = none + E, none, none
            if SIGMA:
                scale = magnitude + sigma
        else:
            (error, excess, magnitude, moved, toward, relative, far, finite, n0, n1, n2,
             n3) = _any_elements(
                raw, ref, inside, FORMAT, PLACES, PRECISION, EMIN, MAX, INFINITE
            )  # fmt: skip
            distance = far.to(tl.int64 if PLACES == 31 else tl.int32)
            if SIGMA:
                scale = magnitude + tl.where(finite, sigma, 0.0)
        if not SIGMA:
            scale = magnitude

        max_ref = _larger(max_ref, tl.reduce(magnitude, 0, _larger))
        max_rel = tl.maximum(max_rel, tl.max(relative, 0))
        sum_abs += tl.sum(error, 0)
        sum_rel += tl.sum(relative, 0).to(tl.float64)
        sum_moved += tl.sum(moved, 0)
        sum_toward += tl.sum(toward, 0)
        sum_square += tl.sum(magnitude * magnitude, 0)
        if FORMAT == "float64":  # an unsigned distance in signed bits
            max_ulp = tl.maximum(max_ulp, tl.max(distance ^ flip, 0))
            real = distance.to(tl.float64)
            real_ulp += tl.sum(tl.where(distance < 0, real + 18446744073709551616.0, real), 0)
        else:
            max_ulp = tl.maximum(max_ulp, tl.max(distance, 0).to(tl.int64))
            sum_ulp += tl.sum(distance, 0).to(tl.int64)
        nonzeros += n0
        informing += n1
        mismatches += n2
        oddities += n3
        if LIMIT == 1:
            exceeding += tl.sum((excess > atol + slope * scale).to(tl.int32), 0)
        elif LIMIT == 2:
            exceeding += tl.sum((error > atol).to(tl.int32), 0)

        # Residuals rounded up, scales down: what follows from them never understates.
        residual = excess.to(WIDE)
        if WIDE == tl.float32:
            up = tl.fma(residual, 1.0000001192092896, tiny)
            residual = tl.where(excess > 0.0, up, 0.0)
        else:
            residual = tl.where(excess > 0.0, excess, 0.0)
        max_residual = tl.maximum(max_residual, tl.max(residual, 0))
        if tl.max(tl.max((residual > 0.0).to(tl.int32), 0), 0) == 1:
            unit = (magnitude * roundoff).to(WIDE)
            if WIDE == tl.float32:
                unit = tl.fma(unit, 0.9999998807907104, -tiny)
                unit = tl.maximum(unit, 0.0)
            z_abs = tl.maximum(z_abs, tl.max(tl.where(residual > 0.0, residual / unit, 0.0), 0))
            a1 = tl.maximum(a1, tl.max(tl.fma(unit, -0.5, residual), 0))
            a2 = tl.maximum(a2, tl.max(tl.fma(unit, -1.0, residual), 0))
            a3 = tl.maximum(a3, tl.max(tl.fma(unit, -2.0, residual), 0))
            a4 = tl.maximum(a4, tl.max(tl.fma(unit, -4.0, residual), 0))
            a5 = tl.maximum(a5, tl.max(tl.fma(unit, -8.0, residual), 0))
            a6 = tl.maximum(a6, tl.max(tl.fma(unit, -16.0, residual), 0))
            a7 = tl.maximum(a7, tl.max(tl.fma(unit, -32.0, residual), 0))
            a8 = tl.maximum(a8, tl.max(tl.fma(unit, -64.0, residual), 0))
            a9 = tl.maximum(a9, tl.max(tl.fma(unit, -128.0, residual), 0))
            a10 = tl.maximum(a10, tl.max(tl.fma(unit, -256.0, residual), 0))
            a11 = tl.maximum(a11, tl.max(tl.fma(unit, -512.0, residual), 0))
            if SIGMA:
                unit = (scale * roundoff).to(WIDE)
                if WIDE == tl.float32:
                    unit = tl.fma(unit, 0.9999998807907104, -tiny)
                    unit = tl.maximum(unit, 0.0)
                z = tl.maximum(z, tl.max(tl.where(residual > 0.0, residual / unit, 0.0), 0))
                s1 = tl.maximum(s1, tl.max(tl.fma(unit, -0.5, residual), 0))
                s2 = tl.maximum(s2, tl.max(tl.fma(unit, -1.0, residual), 0))
                s3 = tl.maximum(s3, tl.max(tl.fma(unit, -2.0, residual), 0))
                s4 = tl.maximum(s4, tl.max(tl.fma(unit, -4.0, residual), 0))
                s5 = tl.maximum(s5, tl.max(tl.fma(unit, -8.0, residual), 0))
                s6 = tl.maximum(s6, tl.max(tl.fma(unit, -16.0, residual), 0))
                s7 = tl.maximum(s7, tl.max(tl.fma(unit, -32.0, residual), 0))
                s8 = tl.maximum(s8, tl.max(tl.fma(unit, -64.0, residual), 0))
                s9 = tl.maximum(s9, tl.max(tl.fma(unit, -128.0, residual), 0))
                s10 = tl.maximum(s10, tl.max(tl.fma(unit, -256.0, residual), 0))
                s11 = tl.maximum(s11, tl.max(tl.fma(unit, -512.0, residual), 0))

        key = error.to(tl.float32).to(tl.int32, bitcast=True)
        if FORMAT == "float64":
            max_abs = _larger(max_abs, tl.reduce(error, 0, _larger))
        else:
            max_key = tl.maximum(max_key, tl.max(key, 0))
        if KEYS == 1:
            tl.store(keys_p + base + offsets, key, mask=inside)
        elif KEYS == 2:
            kept, l0, l1, l2, l3, l4, l5 = bracketed(
                key, inside, b0, b1, b2, b3, b4, b5, w0, w1, w2,
                keys_p + program * (R * capacity), kept, capacity, l0, l1, l2, l3, l4, l5,
            )  # fmt: skip
        base += step

    row = rows_p + program * 64
    if FORMAT == "float64":
        tl.store(row + 0, tl.max(max_abs, 0))
    else:
        tl.store(row + 0, tl.max(max_key, 0).to(tl.float32, bitcast=True))
    tl.store(row + 1, tl.max(max_residual, 0))
    tl.store(row + 2, tl.max(max_ref, 0))
    tl.store(row + 3, tl.max(max_rel, 0))
    if not SIGMA:
        z = z_abs
        s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11 = a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11
    tl.store(row + 4, tl.max(z, 0))
    tl.store(row + 5, tl.max(z_abs, 0))
    tl.store(row + 6, tl.max(s1, 0))
    tl.store(row + 7, tl.max(s2, 0))
    tl.store(row + 8, tl.max(s3, 0))
    tl.store(row + 9, tl.max(s4, 0))
    tl.store(row + 10, tl.max(s5, 0))
    tl.store(row + 11, tl.max(s6, 0))
    tl.store(row + 12, tl.max(s7, 0))
    tl.store(row + 13, tl.max(s8, 0))
    tl.store(row + 14, tl.max(s9, 0))
    tl.store(row + 15, tl.max(s10, 0))
    tl.store(row + 16, tl.max(s11, 0))
    tl.store(row + 17, tl.max(a1, 0))
    tl.store(row + 18, tl.max(a2, 0))
    tl.store(row + 19, tl.max(a3, 0))
    tl.store(row + 20, tl.max(a4, 0))
    tl.store(row + 21, tl.max(a5, 0))
    tl.store(row + 22, tl.max(a6, 0))
    tl.store(row + 23, tl.max(a7, 0))
    tl.store(row + 24, tl.max(a8, 0))
    tl.store(row + 25, tl.max(a9, 0))
    tl.store(row + 26, tl.max(a10, 0))
    tl.store(row + 27, tl.max(a11, 0))
    tl.store(row + 32, tl.sum(sum_abs, 0))
    tl.store(row + 33, tl.sum(sum_rel, 0))
    tl.store(row + 34, tl.sum(sum_moved, 0))
    tl.store(row + 35, tl.sum(sum_toward, 0))
    tl.store(row + 36, tl.sum(sum_square, 0))
    tl.store(row + 37, tl.sum(nonzeros, 0))
    tl.store(row + 38, tl.sum(informing, 0))
    tl.store(row + 39, tl.sum(mismatches, 0))
    tl.store(row + 40, tl.sum(exceeding, 0))
    if FORMAT == "float64":
        tl.store(row + 41, tl.sum(real_ulp, 0))
    else:
        tl.store(row + 41, tl.sum(sum_ulp, 0))
    tl.store(row + 42, tl.sum(oddities, 0))
    if KEYS == 2:
        tl.store(row + 43, tl.sum(l0, 0))
        tl.store(row + 44, tl.sum(l1, 0))
        tl.store(row + 45, tl.sum(l2, 0))
        tl.store(row + 46, tl.sum(l3, 0))
        tl.store(row + 47, tl.sum(l4, 0))
        tl.store(row + 48, tl.sum(l5, 0))
        tl.store(row + 49, tl.sum((kept > capacity).to(tl.int32), 0))
    top = tl.max(max_ulp, 0) ^ flip
    tl.store(row + 63, top.to(tl.float64, bitcast=True))


@triton.jit
def total(rows_p, result_p, programs: tl.int32, BLOCK: tl.constexpr):
    """Rows [programs, 64] into one: maxima, sums, and the one unsigned maximum."""
    column = tl.arange(0, 64)
    largest = tl.zeros([64], tl.float64)
    sums = tl.zeros([64], tl.float64)
    flip: tl.constexpr = -9223372036854775808
    ulp = tl.full([BLOCK], flip, tl.int64)
    for start in range(0, programs, BLOCK):
        row = start + tl.arange(0, BLOCK)
        there = row < programs
        part = tl.load(rows_p + row[:, None] * 64 + column[None, :], mask=there[:, None], other=0.0)
        largest = _larger(largest, tl.reduce(part, 0, _larger))
        sums += tl.sum(part, 0)
        bits = tl.load(rows_p + row * 64 + 63, mask=there, other=0.0).to(tl.int64, bitcast=True)
        ulp = tl.maximum(ulp, bits ^ flip)
    tl.store(result_p + column, tl.where(column < 32, largest, sums), mask=column < 63)
    tl.store(result_p + 63, (tl.max(ulp, 0) ^ flip).to(tl.float64, bitcast=True))


@triton.jit
def sample_keys(
    out_p, ref_p, keys_p, count: tl.int64, samples: tl.int32, salt: tl.int64,
    FORMAT: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr, EMIN: tl.constexpr,
    MAX: tl.constexpr, INFINITE: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """The error of one element, hashed from its ordinal, in each of ``samples`` equal strata."""
    ordinal = tl.program_id(0) * R + tl.arange(0, R)
    chosen = ordinal < samples
    width = count // samples
    mixed = (ordinal.to(tl.int64) + salt) * 6364136223846793005 + 1442695040888963407
    mixed = ((mixed >> 33) ^ mixed) & 0x3FFFFFFFFFFFFFFF
    at = ordinal.to(tl.int64) * width + mixed % width
    raw = tl.load(out_p + at, mask=chosen, other=0)[None, :]
    ref = tl.load(ref_p + at, mask=chosen, other=0.0)[None, :]
    error, _x, _g, _m, _t, _r, _d, _f, _0, _1, _2, _3 = _any_elements(
        raw, ref, chosen[None, :], FORMAT, PLACES, PRECISION, EMIN, MAX, INFINITE
    )
    key = error.to(tl.float32).to(tl.int32, bitcast=True)
    tl.store(keys_p + ordinal[None, :], key, mask=chosen[None, :])
