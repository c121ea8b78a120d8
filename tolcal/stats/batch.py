"""Statistics of many outputs, left on the device until somebody asks for them.

On a GPU an output costs a launch or two of `fused` and no host round trip; all results of a batch
come back in one transfer. Elsewhere `definition` computes them at once. What the fused form gives:

| fields | against the definition |
|---|---|
| counts, max_ulp, ref_max, scale quantiles | equal |
| max_abs | 1 float32 ulp: to nearest, where the definition rounds up |
| residual_max | never less, at most 2^-21 of itself more |
| p50, p90, p99 | equal but for interpolation between float32 order statistics: 1 float32 ulp |
| mean_abs, mean_ulp, bias, ref_rms | fp64 sums in another order: 1 float32 ulp |
| mean_rel | to 2^-20 of itself |
| max_rel, scaled_max, scaled_max_abs | never less, at most 2^-18 of itself more |
| envelopes | never less, at most 2^-20 of residual_max more |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tolcal.model import ENVELOPE_GRID, DType, ErrorStats, Tolerance
from tolcal.stats import definition, order

#: An output of at most so many elements is sorted with others in one call.
ROW = 4096
#: One of at most so many is sorted whole; above it, order statistics are found by sampling.
SORTED = 2**20
#: Outputs a batch holds before it has to be emptied.
CAPACITY = 64
QUANTILES = (0.5, 0.9, 0.99)
SCALE_QUANTILES = (0.1, 0.5, 0.9)
#: How often brackets are drawn before all keys are sorted.
ATTEMPTS = 2
#: Elements of a thread, then of a tile of the kernel that minds an output's end and of the other.
SHORT_EACH, WHOLE_EACH = 8, 8
SHORT_TILE, WHOLE_TILE = 256 * SHORT_EACH, 32 * WHOLE_EACH
#: Names of the sums in a row of results, from its column SUMS on.
SUMS = 32
SUM_NAMES = (
    "abs", "rel", "moved", "toward", "square", "nonzero", "bias_count", "mismatch", "exceeding",
    "ulp", "nonfinite",
)  # fmt: skip
_INT = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


class Pending(NamedTuple):
    """An output whose results are still on the device."""

    elements: int
    dtype: DType
    limited: bool


class Batch:
    """Collects outputs with `add`; `results` gives their statistics in that order."""

    def __init__(self, device: torch.device, fused: bool | None = None) -> None:
        self.device = device
        #: On a CPU the fused form is for tests: Triton interprets it there.
        self.fused = device.type != "cpu" if fused is None else fused
        self.done: dict[int, ErrorStats] = {}
        self.pending: dict[int, Pending] = {}
        self.size = 0
        if self.fused:
            self.rows = torch.empty((CAPACITY, 64), dtype=torch.float64, device=device)
            self.picks = torch.empty((CAPACITY, 6), dtype=torch.float32, device=device)
            self.keys = torch.empty((CAPACITY, ROW), dtype=torch.float32, device=device)
            self.scales = torch.empty((CAPACITY, 2 * ROW), dtype=torch.float32, device=device)

    def add(
        self,
        out: torch.Tensor,
        ref: torch.Tensor,
        sigma: torch.Tensor | None,
        roundoff: float,
        limit: Tolerance | float | None = None,
    ) -> None:
        """Takes one output; arguments as of `definition.error_stats`. sigma None counts as 0.

        `results` must come after at most CAPACITY outputs.
        """
        index, self.size = self.size, self.size + 1
        if not self.fused or out.numel() == 0:
            zero = torch.zeros_like(ref) if sigma is None else sigma
            self.done[index] = definition.error_stats(out, ref, zero, roundoff, limit)
        else:
            self._launch(index, _Fused(out, ref, sigma, roundoff, limit))

    def _launch(self, index: int, fused: _Fused) -> None:
        count = fused.count
        if count > SORTED:
            self.done[index] = fused.alone()
            return
        self.pending[index] = fused.pending
        scales = self.scales[index]
        if count <= ROW:
            fused.launch(self.rows[index], self.keys[index], scales)
            return
        keys = torch.empty(count, dtype=torch.float32, device=self.device)
        fused.launch(self.rows[index], keys, scales)
        fused.pick(keys.sort().values, self.picks[index])

    def results(self) -> list[ErrorStats]:
        """The statistics of everything added since the last call, by one transfer."""
        if self.pending:
            self._fetch()
        found = [self.done[index] for index in range(self.size)]
        self.done, self.pending, self.size = {}, {}, 0
        return found

    def _fetch(self) -> None:
        # Places past an output's own elements hold what an earlier batch left: infinity there
        # sorts behind everything.
        size = self.size
        counts, samples, places, quantiles = [], [], [], []
        for index in range(size):
            pending = self.pending.get(index)
            count = pending.elements if pending else 0
            counts.append(count if count <= ROW else 0)
            samples.append(_samples(count)[0] if count else 0)
            small = 0 < count <= ROW
            places.append(
                [p for q in QUANTILES for p in order.ranks(q, count)] if small else [0] * 6
            )
            last = max(samples[-1] - 1, 0)
            quantiles.append([round(q * last) for q in SCALE_QUANTILES])
        host = torch.tensor(
            [[c, s, *p, *q] for c, s, p, q in zip(counts, samples, places, quantiles, strict=True)],
            dtype=torch.int64,
        ).to(self.device)
        ordinal = torch.arange(ROW, device=self.device)
        keys = self.keys[:size].masked_fill_(ordinal >= host[:, :1], torch.inf)
        sampled = host[:, 1:2, None]
        # Samples of both scales lie one behind the other, as many as there are.
        at = (ordinal + sampled * torch.arange(2, device=self.device)[:, None]).clamp_(
            max=2 * ROW - 1
        )
        scales = self.scales[:size].gather(1, at.flatten(1)).view(size, 2, ROW)
        scales = scales.masked_fill_(ordinal >= sampled, torch.inf)
        in_order = torch.cat([keys[:, None], scales], 1).sort(dim=2).values
        few = in_order[:, 0].gather(1, host[:, 2:8])
        picked = torch.where((host[:, :1] > 0), few, self.picks[:size])
        wanted = host[:, None, 8:11].expand(size, 2, 3)
        quantile = in_order[:, 1:].gather(2, wanted).flatten(1)
        # One transfer, which also waits for every kernel of the batch.
        everything = torch.cat([self.rows[:size], picked.double(), quantile.double()], 1)
        table = everything.cpu().numpy()
        found = finish(table[list(self.pending)], list(self.pending.values()))
        self.done.update(zip(self.pending, found, strict=True))


class _Fused:
    """One output's launches."""

    def __init__(
        self,
        out: torch.Tensor,
        ref: torch.Tensor,
        sigma: torch.Tensor | None,
        roundoff: float,
        limit: Tolerance | float | None,
    ) -> None:
        definition.check_shapes(out, ref, sigma)
        self.dtype = definition.dtype_of(out)
        self.out = out.reshape(-1).contiguous().view(_INT[self.dtype.bits])
        self.ref = ref.reshape(-1).contiguous()
        self.sigma = None if sigma is None else sigma.reshape(-1).contiguous()
        self.count = out.numel()
        self.roundoff = roundoff
        self.limited = limit is not None
        self.mode, self.atol, self.slope = 0, 0.0, 0.0
        if isinstance(limit, Tolerance):
            self.mode, self.atol = 1, limit.atol
            self.slope = limit.scaled_tol * roundoff
        elif limit is not None:
            self.mode, self.atol = 2, limit

    @property
    def pending(self) -> Pending:
        """What its results will need."""
        return Pending(self.count, self.dtype, self.limited)

    @property
    def format(self) -> dict[str, Any]:
        """The compile-time description of the output's format."""
        d = self.dtype
        return {
            "FORMAT": d.name, "PLACES": d.bits - 1, "PRECISION": d.precision, "EMIN": d.emin,
            "MAX": d.max, "INFINITE": d.has_infinity,
        }  # fmt: skip

    def launch(self, row: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor) -> None:
        """The whole output by one kernel that minds its end; every error's key goes to keys."""
        programs = -(-self.count // SHORT_TILE)
        rows = row if programs == 1 else torch.empty(
            (programs, 64), dtype=torch.float64, device=row.device
        )  # fmt: skip
        self._statistics(rows, keys, scales, programs, programs, 0, 1, 0, None, True)
        if programs > 1:
            _kernels().total[(1,)](rows, row, programs, BLOCK=64, num_warps=4)

    def pick(self, in_order: torch.Tensor, picks: torch.Tensor) -> None:
        """The order statistics that the percentiles need."""
        from tolcal.stats import narrowing

        ranks = [p for q in QUANTILES for p in order.ranks(q, self.count)]
        narrowing.pick[(1,)](in_order, picks, *ranks, num_warps=1)

    def _statistics(
        self, rows: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor, programs: int,
        tiles: int, first: int, mode: int, capacity: int, brackets: torch.Tensor | None,
        masked: bool,
    ) -> None:  # fmt: skip
        samples, stride = _samples(self.count)
        warps = 8 if masked else 1
        turns = 0 if first else -(-samples // (programs * 32 * warps))
        _kernels().statistics[(programs,)](
            self.out, self.ref, self.sigma if self.sigma is not None else self.ref, rows,
            keys.view(torch.int32), scales, brackets if brackets is not None else rows,
            self.count, tiles, first, capacity, samples, turns, stride,
            self.atol, self.slope, self.roundoff,
            EMAX=exponent(self.dtype),
            ODD=first_odd(self.dtype), SIGMA=self.sigma is not None, LIMIT=self.mode,
            KEYS=mode, MASKED=masked, R=32 * warps, E=SHORT_EACH if masked else WHOLE_EACH,
            num_warps=warps,
            enable_fp_fusion=False, **self.format,
        )  # fmt: skip

    def alone(self) -> ErrorStats:
        """The statistics of a large output, with the host looking in between."""
        device = self.ref.device
        samples, _ = _samples(self.count)
        ranks = [p for q in QUANTILES for p in order.ranks(q, self.count)]
        scales = torch.empty((2, samples), device=device)
        result = torch.empty(64, dtype=torch.float64, device=device)
        whole = self.count // WHOLE_TILE
        programs = order.PROGRAMS
        rest = whole * WHOLE_TILE
        tail = int(rest < self.count)
        rows = torch.empty((programs + tail, 64), dtype=torch.float64, device=device)
        # The kept keys of a lane lie together; those of the tail come last.
        room = order.room(whole * WHOLE_EACH // programs + WHOLE_EACH)
        main = programs * 32 * room
        for attempt in range(ATTEMPTS):
            brackets = self._brackets(ranks, attempt)
            buffer = torch.full((main + tail * SHORT_TILE,), torch.inf, device=device)
            self._statistics(rows, buffer, scales, programs, whole, 0, 2, room, brackets, False)
            if tail:
                self._statistics(
                    rows[programs:],
                    buffer[main:],
                    scales,
                    1,
                    1,
                    rest,
                    2,
                    SHORT_EACH,
                    brackets,
                    True,
                )
            _kernels().total[(1,)](rows, result, programs + tail, BLOCK=64, num_warps=4)
            quantiles = self._quantiles(scales)
            host = torch.cat([result, brackets, quantiles]).cpu().numpy()
            picked = order.resolve(buffer, ranks, host[64:70], host[43:50])
            if picked is not None:
                break
        else:  # e.g. a tie that the sample did not show; then all keys are worth their memory
            buffer = torch.empty(self.count, dtype=torch.float32, device=device)
            self._statistics(rows, buffer, scales, programs, whole, 0, 1, 0, None, False)
            if tail:
                self._statistics(rows[programs:], buffer, scales, 1, 1, rest, 1, 0, None, True)
            picked = order.select(buffer, ranks)
        row = np.concatenate([host[:64], picked, host[70:]])
        return finish(row[None, :], [self.pending])[0]

    def _quantiles(self, scales: torch.Tensor) -> torch.Tensor:
        """The quantiles [6] of both rows of scales, as `definition` takes them."""
        in_order = scales.sort(dim=1).values
        places = [round(q * (scales.shape[1] - 1)) for q in SCALE_QUANTILES]
        return torch.stack([in_order[:, place] for place in places], 1).flatten()

    def _brackets(self, ranks: Sequence[int], salt: int) -> torch.Tensor:
        keys = torch.empty(order.SAMPLE, dtype=torch.int32, device=self.ref.device)
        _kernels().sample_keys[(order.SAMPLE // 128,)](
            self.out, self.ref, keys, self.count, order.SAMPLE, salt * order.SAMPLE, R=128,
            num_warps=4, enable_fp_fusion=False, **self.format,
        )  # fmt: skip
        return order.around(keys, ranks, self.count)


def _kernels() -> Any:
    from tolcal.stats import fused  # Triton is needed on a GPU alone

    return fused


def exponent(dtype: DType) -> int:
    """That of the format's largest number."""
    return math.frexp(dtype.max)[1] - 1


def first_odd(dtype: DType) -> int:
    """The least magnitude bits that are no finite number."""
    if not dtype.has_infinity:
        return 0x7F
    return 0 if dtype.bits == 64 else (2 ** (dtype.bits - dtype.precision) - 1) << (
        dtype.precision - 1
    )  # fmt: skip


def _samples(count: int) -> tuple[int, int]:
    """How many elements the scale quantiles are read from, and their distance."""
    stride = -(-count // definition.QUANTILE_SAMPLE)
    return -(-count // stride), stride


def finish(table: npt.NDArray[np.float64], pending: Sequence[Pending]) -> list[ErrorStats]:
    """Rows of results [n, 76] as records keep them: 64 columns of `fused`, six order statistics of
    the error in pairs, and three quantiles of each scale.
    """
    count = np.array([p.elements for p in pending], np.float64)
    # What was computed in fp32 is widened so that it is no less than the definition.
    wide = np.array([p.dtype.bits == 64 for p in pending])
    sums = table[:, SUMS : SUMS + len(SUM_NAMES)]
    by = {name: sums[:, i] for i, name in enumerate(SUM_NAMES)}
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        residual = table[:, 1:2]
        points = [residual]
        for start in (6, 17):
            above = table[:, start : start + len(ENVELOPE_GRID) - 1]
            widened = np.where(wide[:, None], above, above * (1 + 2.0**-22))
            points += [np.minimum.accumulate(np.concatenate([residual, widened], 1), axis=1)]
        ratios = table[:, 3:6]
        ratios = np.where(wide[:, None], ratios, ratios * (1 + 2.0**-20))
        upper = _up(np.concatenate([table[:, :3], ratios, *points[1:]], 1))
        near = _near(
            np.stack(
                [
                    by["abs"] / count,
                    *_percentiles(table[:, 64:70], count),
                    by["rel"] / np.maximum(by["nonzero"], 1.0),
                    (by["ulp"] + by["nonfinite"] * 2.0**64) / count,
                    np.where(
                        (by["moved"] > 0) & (by["moved"] < np.inf), by["toward"] / by["moved"], 0.0
                    ),
                    np.sqrt(by["square"] / count),
                ],
                1,
            )
        )
    tops = np.ascontiguousarray(table[:, 63]).view(np.uint64).tolist()
    quantiles = table[:, 70:76].tolist()
    whole = np.stack([by[name] for name in _COUNTS], 1).astype(np.int64).tolist()
    grid = len(ENVELOPE_GRID)
    found = []
    for p, up, mean, counts, top, q in zip(
        pending, upper.tolist(), near.tolist(), whole, tops, quantiles, strict=True
    ):
        bias_count, mismatches, exceeding, nonfinite = counts
        found.append(
            ErrorStats(
                count=p.elements,
                num_exceeding=exceeding if p.limited else None,
                max_abs=up[0],
                mean_abs=mean[0],
                p50_abs=mean[1],
                p90_abs=mean[2],
                p99_abs=mean[3],
                max_rel=up[3],
                mean_rel=mean[4],
                max_ulp=2**64 - 1 if nonfinite else top,
                mean_ulp=mean[5],
                residual_max=up[1],
                envelope=tuple(up[6 : 6 + grid]),
                envelope_abs=tuple(up[6 + grid : 6 + 2 * grid]),
                scaled_max=up[4],
                scaled_max_abs=up[5],
                scale_quantiles=(q[0], q[1], q[2]),
                scale_abs_quantiles=(q[3], q[4], q[5]),
                bias=mean[6],
                bias_count=bias_count,
                nonfinite_mismatch=mismatches,
                ref_rms=mean[7],
                ref_max=up[2],
            )
        )
    return found


_COUNTS = ("bias_count", "mismatch", "exceeding", "nonfinite")


def _percentiles(
    picked: npt.NDArray[np.float64], count: npt.NDArray[np.float64]
) -> list[npt.NDArray[np.float64]]:
    """Interpolated between the pairs as `definition` does."""
    found = []
    for k, q in enumerate(QUANTILES):
        below, above = picked[:, 2 * k], picked[:, 2 * k + 1]
        position = q * (count - 1)
        share = position - np.floor(position)
        between = below + (above - below) * share
        found.append(np.where((share == 0) | (below == above), below, between))
    return found


def _near(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    return values.astype(np.float32)


def _up(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """The least float32 numbers that are not below values."""
    near = values.astype(np.float32)
    return np.where(near < values, np.nextafter(near, np.float32(np.inf)), near)
