"""Output and fp64 reference into ErrorStats: the torch form, which is the definition.

Everything is computed in fp64 on the tensors' own device; one small vector comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch

from tolcal.model import DTYPES, ENVELOPE_GRID, DType, ErrorStats, Tolerance

#: Number of random sign vectors of sigma; 8 leave a tail that no margin cures.
SIGN_VECTORS = 32
#: Relative step: far above fp64 rounding (2^-53), far below where f bends.
STEP = 2.0**-26
#: Sign vectors are evaluated together as long as a tensor of them holds no more elements: on a
#: GPU kernel launches dominate small cases, on a CPU whatever leaves the cache.
BATCH_ELEMENTS_CPU = 2**15
BATCH_ELEMENTS = 2**24
#: Scale quantiles are read from a strided subsample of at most this many elements.
QUANTILE_SAMPLE = 4096

_INT = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
_SIGN64 = -(2**63)


def dtype_of(tensor: torch.Tensor) -> DType:
    """The format of a tensor's dtype; KeyError if it is none of ours."""
    return DTYPES[str(tensor.dtype).removeprefix("torch.")]


def sensitivity(
    reference: Callable[..., torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    ref: torch.Tensor,
    signs: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """sigma: first-order sensitivity of each output element to relative input errors.

    The rms over SIGN_VECTORS random sign vectors r of ``|f(x*(1 + h*r)) - f(x)| / h``: the
    expected change of an output when every input is off by one unit of relative error, which is
    the componentwise condition number in the probabilistic sense (Higham & Mary 2019). An
    element whose perturbed references are not finite gets 0: no excuse.

    Args:
        reference: the op's fp64 reference.
        inputs: its fp64 inputs, by name; those that hold integers are bound in ``reference``.
        ref: ``reference(**inputs)``, fp64.
        signs: for each input an int64 tensor of its shape; bit k is its sign in vector k.

    Returns:
        fp64, of ref's shape, >= 0, in ref's unit per unit of relative input error.
    """
    total = torch.zeros_like(ref)
    if not inputs:  # nothing that could be off
        return total
    size = max(x.numel() for x in (ref, *inputs.values()))
    limit = BATCH_ELEMENTS_CPU if ref.device.type == "cpu" else BATCH_ELEMENTS
    chunk = max(1, min(SIGN_VECTORS, limit // max(size, 1)))
    vectors = torch.arange(SIGN_VECTORS, device=ref.device)

    for start in range(0, SIGN_VECTORS, chunk):
        some = vectors[start : start + chunk]
        # To fp64 first: int64 times a Python number would be fp32, where 1 + STEP is 1.
        moved = {
            name: x * (1.0 + STEP * (1 - 2 * ((signs[name] >> _along(some, x)) & 1)).double())
            for name, x in inputs.items()
        }
        total += ((batched(reference, moved, len(some)) - ref) / STEP).square().sum(0)
    sigma = (total / SIGN_VECTORS).sqrt_()
    return torch.where(torch.isfinite(sigma), sigma, 0.0)


def _along(vectors: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return vectors.reshape(-1, *[1] * x.dim())


def batched(
    reference: Callable[..., torch.Tensor], inputs: Mapping[str, torch.Tensor], count: int
) -> torch.Tensor:
    """``reference`` of each of ``count`` sets of inputs, which are stacked along a first axis."""
    try:
        values: torch.Tensor = torch.func.vmap(lambda moved: reference(**moved))(dict(inputs))
    except Exception:  # e.g. a reference that branches on values, which vmap can't batch
        values = torch.stack(
            [reference(**{name: x[k] for name, x in inputs.items()}) for k in range(count)]
        )
    return values


def gap(ref: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Distance of the two numbers of ``dtype`` that bracket each (finite, fp64) element.

    A representable element counts as the lower of the two, in magnitude: its gap is the
    spacing above it. Taken from the exponent's bits, so it is exact.
    """
    exponent = ((ref.view(torch.int64) >> 52) & 0x7FF) - 1023
    power = exponent.clamp(min=dtype.emin) - dtype.precision + 1
    normal = (power.clamp(min=-1022) + 1023) << 52
    subnormal = torch.ones_like(power) << (power + 1074).clamp(0, 52)
    return torch.where(power >= -1022, normal, subnormal).view(torch.float64)


def round_to(ref: torch.Tensor, dtype: DType) -> torch.Tensor:
    """fp64 rounded to ``dtype`` once, half to even, kept as fp64; overflow gives infinities.

    torch's own cast to 16 bits goes through fp32 and so rounds twice.
    """
    if dtype.name == "float64":
        return ref
    spacing = gap(ref, dtype)
    rounded = torch.round(ref / spacing) * spacing
    # Past the largest number the next one that the format would have is where inf begins.
    return torch.where(rounded.abs() > dtype.max, rounded * torch.inf, rounded)


def ordered(value: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Bit patterns as int64 that count the numbers of ``dtype`` in order; both zeros are 0."""
    bits = value.view(_INT[dtype.bits]).to(torch.int64)
    magnitude = bits & ((1 << (dtype.bits - 1)) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)


def kinds(value: torch.Tensor) -> torch.Tensor:
    """int8, of value's shape: 0 finite, 1 +inf, 2 -inf, 3 nan."""
    kind = torch.zeros(value.shape, dtype=torch.int8, device=value.device)
    kind += torch.isposinf(value) * 1
    kind += torch.isneginf(value) * 2
    kind += torch.isnan(value) * 3
    return kind


def mismatches(out: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """bool, of their shape: where the kind of an output is not that of its fp64 reference.

    Kinds are those of `kinds`, after the reference is rounded to the output's dtype. Where a
    format has no infinity (float8_e4m3fn), a reference that overflows is met by nan and by the
    largest number of its sign: hardware and frameworks do either.
    """
    dtype = dtype_of(out)
    wide = out.to(torch.float64)
    ours, theirs = kinds(wide), kinds(round_to(ref, dtype))
    mismatch = ours != theirs
    if not dtype.has_infinity:
        over = (theirs == 1) | (theirs == 2)
        mismatch &= ~(over & ((ours == 3) | (wide == torch.sign(ref) * dtype.max)))
    return mismatch


def _ulps(
    out: torch.Tensor, rounded: torch.Tensor, dtype: DType
) -> tuple[torch.Tensor, torch.Tensor]:
    """ULP distances as uint64 bit patterns in int64, and as fp64 (exact below 2^53)."""
    target = rounded.to(out.dtype)  # exact: it is representable
    a, b = ordered(out, dtype), ordered(target, dtype)
    # Up to 2^64 - 2 for fp64: read the wrapped difference as unsigned.
    distance = torch.maximum(a, b) - torch.minimum(a, b)
    real = torch.where(distance < 0, distance.to(torch.float64) + 2.0**64, distance.double())
    return distance, real


def error_stats(
    out: torch.Tensor,
    ref: torch.Tensor,
    sigma: torch.Tensor,
    roundoff: float,
    limit: Tolerance | float | None = None,
) -> ErrorStats:
    """Every statistic of one output, by its definition.

    Args:
        out: what the kernel returned, in its own dtype.
        ref: the fp64 reference, *not* rounded to that dtype, of the same shape.
        sigma: `sensitivity`, of the same shape.
        roundoff: u of the op's compute dtype, the unit of the envelopes' grid.
        limit: what ``num_exceeding`` counts against: a tolerance, or a bare atol on
            ``|out - rounded ref|`` (a hand-picked one), or None.

    An element where out and the rounded reference are not both finite is a mismatch if their
    kinds differ (`mismatches`): its error is infinite. If they agree its error is 0, except that
    its ULP distance saturates at 2^64 - 1 as published.

    Percentiles interpolate linearly between order statistics (numpy's default). Scale quantiles
    are the nearest order statistics of a strided subsample. Statistics are float32 numbers:
    maxima are rounded up, the others to nearest.

    Raises:
        ValueError: if shapes, dtype or device don't fit.
    """
    check_shapes(out, ref, sigma)
    dtype = dtype_of(out)
    out, ref, sigma = out.reshape(-1), ref.reshape(-1).contiguous(), sigma.reshape(-1)
    count = out.numel()
    if count == 0:
        return _empty(limit)

    wide = out.to(torch.float64)
    rounded = round_to(ref, dtype)
    ref_kinds = kinds(rounded)
    finite = (kinds(wide) == 0) & (ref_kinds == 0)
    mismatch = mismatches(out, ref)

    def clean(value: torch.Tensor) -> torch.Tensor:
        """0 where matching non-finite, inf where kinds differ."""
        value = torch.where(finite, value, 0.0)
        return torch.where(mismatch, torch.inf, value)

    # The published fields, against the rounded reference.
    error = clean((wide - rounded).abs())
    in_order = error.sort().values
    nonzero = (rounded != 0) & (ref_kinds == 0)
    relative = torch.where(nonzero, error / torch.where(nonzero, rounded, 1.0).abs(), 0.0)
    distance, distance_real = _ulps(out.contiguous(), rounded, dtype)
    max_ulp = torch.where(finite, distance ^ _SIGN64, 2**63 - 1).max() ^ _SIGN64
    mean_ulp = torch.where(finite, distance_real, 2.0**64).mean()

    # Ours, against the reference itself.
    signed = torch.where(finite, wide - ref, 0.0)
    magnitude = torch.where(finite, ref.abs(), 0.0)
    spacing = gap(magnitude, dtype)
    residual = clean((signed.abs() - spacing / 2).clamp(min=0.0))
    scale = magnitude + torch.where(finite, sigma, 0.0)
    bias, bias_count = _bias(signed, ref)
    worst = torch.cat(
        [
            residual.max().reshape(1),
            *(_envelope(residual, s, roundoff) for s in (scale, magnitude)),
            error.max().reshape(1),
            relative.max().reshape(1),
            magnitude.max().reshape(1),
        ]
    )
    typical = torch.stack(
        [
            error.mean(),
            *(_percentile(in_order, q) for q in (0.5, 0.9, 0.99)),
            relative.sum() / nonzero.sum().clamp(min=1),
            mean_ulp,
            bias,
            magnitude.square().mean().sqrt(),
            *_quantiles(scale),
            *_quantiles(magnitude),
        ]
    )
    exceeding: torch.Tensor | None = None
    if isinstance(limit, Tolerance):
        exceeding = (residual > limit.atol + limit.scaled_tol * roundoff * scale).sum()
    elif limit is not None:
        exceeding = (error > limit).sum()
    integers = torch.stack(
        [max_ulp, bias_count, mismatch.sum(), mismatch.sum() if exceeding is None else exceeding]
    )
    up, near = _float32_up(worst).tolist(), typical.to(torch.float32).tolist()
    ulp, counted, mismatched, exceeds = integers.tolist()
    points = len(ENVELOPE_GRID)
    first, second = up[1 : points + 2], up[points + 2 : 2 * points + 3]
    max_abs, max_rel, ref_max = up[-3:]
    mean_abs, p50, p90, p99, mean_rel, mean_ulps, bias_value, ref_rms = near[:8]
    return ErrorStats(
        count=count,
        num_exceeding=None if exceeding is None else exceeds,
        max_abs=max_abs,
        mean_abs=mean_abs,
        p50_abs=p50,
        p90_abs=p90,
        p99_abs=p99,
        max_rel=max_rel,
        mean_rel=mean_rel,
        max_ulp=ulp % 2**64,
        mean_ulp=mean_ulps,
        residual_max=up[0],
        envelope=tuple(first[:points]),
        envelope_abs=tuple(second[:points]),
        scaled_max=first[points],
        scaled_max_abs=second[points],
        scale_quantiles=cast("tuple[float, float, float]", tuple(near[8:11])),
        scale_abs_quantiles=cast("tuple[float, float, float]", tuple(near[11:14])),
        bias=bias_value,
        bias_count=counted,
        nonfinite_mismatch=mismatched,
        ref_rms=ref_rms,
        ref_max=ref_max,
    )


def check_shapes(out: torch.Tensor, ref: torch.Tensor, sigma: torch.Tensor | None) -> None:
    """ValueError if output, reference and sigma don't fit together."""
    if out.shape != ref.shape or (sigma is not None and sigma.shape != ref.shape):
        shape = None if sigma is None else sigma.shape
        raise ValueError(f"shapes differ: out {out.shape}, ref {ref.shape}, sigma {shape}")
    if ref.dtype != torch.float64:
        raise ValueError(f"the reference is {ref.dtype}, float64 expected")


def _envelope(residual: torch.Tensor, scale: torch.Tensor, roundoff: float) -> torch.Tensor:
    """a(c) on the grid, then z = max residual / (u*scale), where it reaches 0."""
    # c = 0 by itself: 0 * scale would be nan where scale overflows.
    points = [
        (residual - c * roundoff * scale if c else residual).max().clamp(min=0.0)
        for c in ENVELOPE_GRID
    ]
    ratio = residual / (roundoff * scale)
    points.append(torch.where(residual > 0, ratio, 0.0).max())
    return torch.stack(points)


def _bias(signed: torch.Tensor, ref: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """mean(sign(ref)*(out-ref)) / mean|out-ref|, and how many elements it rests on."""
    counts = (signed != 0) & (ref != 0)
    total = torch.where(counts, signed.abs(), 0.0).sum()
    toward = torch.where(counts, torch.sign(ref) * signed, 0.0).sum()
    known = (total > 0) & torch.isfinite(total)  # fp64 differences can overflow
    return torch.where(known, toward / total, 0.0), counts.sum()


def _percentile(in_order: torch.Tensor, q: float) -> torch.Tensor:
    position = q * (in_order.numel() - 1)
    low = int(position)
    high = min(low + 1, in_order.numel() - 1)
    below, above = in_order[low], in_order[high]
    # Not lerp: beside a mismatch it would make nan of inf - inf or of inf * 0.
    if position == low:
        return below
    return torch.where(below == above, below, below + (above - below) * (position - low))


def _quantiles(scale: torch.Tensor) -> list[torch.Tensor]:
    stride = -(-scale.numel() // QUANTILE_SAMPLE)
    in_order = scale[::stride].sort().values
    return [in_order[round(q * (in_order.numel() - 1))] for q in (0.1, 0.5, 0.9)]


def _float32_up(value: torch.Tensor) -> torch.Tensor:
    single = value.to(torch.float32)
    above = torch.nextafter(single, torch.full_like(single, torch.inf))
    return torch.where(single.double() < value, above, single)


def _empty(limit: Tolerance | float | None) -> ErrorStats:
    zeros = (0.0,) * len(ENVELOPE_GRID)
    none = (0.0, 0.0, 0.0)
    return ErrorStats(
        count=0,
        num_exceeding=None if limit is None else 0,
        max_abs=0.0,
        mean_abs=0.0,
        p50_abs=0.0,
        p90_abs=0.0,
        p99_abs=0.0,
        max_rel=0.0,
        mean_rel=0.0,
        max_ulp=0,
        mean_ulp=0.0,
        residual_max=0.0,
        envelope=zeros,
        envelope_abs=zeros,
        scaled_max=0.0,
        scaled_max_abs=0.0,
        scale_quantiles=none,
        scale_abs_quantiles=none,
        bias=0.0,
        bias_count=0,
        nonfinite_mismatch=0,
        ref_rms=0.0,
        ref_max=0.0,
    )
