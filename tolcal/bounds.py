"""Judges records by their envelopes alone: no tensor is needed once a record exists.

A record keeps a(c) = max over elements of (residual - c*u*scale) on ENVELOPE_GRID, and
z = max residual/(u*scale), where it reaches 0. As a maximum of linear functions of c it is
convex, so interpolating linearly between knots never understates it; at a grid point it is
exact. All functions take arrays over records: envelopes of shape [rows, grid], z of [rows].
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from tolcal.model import DTYPES, ENVELOPE_GRID, Tolerance, Values

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
GRID: Floats = np.array(ENVELOPE_GRID)
#: Bias is judged only over at least so many elements with an error: at 1,024 independent signs
#: its standard deviation under no bias is at most about 0.03.
BIAS_MIN_COUNT = 1024


class Rows(msgspec.Struct, frozen=True):
    """What judging needs of records, as arrays of equal length."""

    envelope: Floats  # [rows, grid]
    z: Floats
    bias: Floats
    bias_count: npt.NDArray[np.int64]
    mismatch: npt.NDArray[np.int64]
    device: npt.NDArray[np.object_] | None = None  # class of each row's; None: any other

    def of(self, mask: Bools) -> Rows:
        """The rows where ``mask`` holds."""
        return Rows(
            self.envelope[mask], self.z[mask], self.bias[mask], self.bias_count[mask],
            self.mismatch[mask], None if self.device is None else self.device[mask],
        )  # fmt: skip


def knots(envelope: Floats, z: Floats) -> tuple[Floats, Floats]:
    """Abscissae and values of each row's piecewise linear envelope, (z, 0) included."""
    count = len(z)
    c = np.concatenate([np.broadcast_to(GRID, (count, GRID.size)), z[:, None]], axis=1)
    a = np.concatenate([envelope, np.zeros((count, 1))], axis=1)
    order = np.argsort(c, axis=1, kind="stable")
    return np.take_along_axis(c, order, 1), np.take_along_axis(a, order, 1)


def at(envelope: Floats, z: Floats, c: float) -> Floats:
    """a(c) of each row, interpolated upwards; infinite where a non-finite value mismatched."""
    # With the ends beyond the last knot, where it is 0.
    xs, ys = knots(envelope, z)
    result = np.zeros(len(z))
    for j in range(xs.shape[1] - 1):
        inside = (xs[:, j] <= c) & (c < xs[:, j + 1])
        if inside.any():
            x0, x1, y0, y1 = xs[inside, j], xs[inside, j + 1], ys[inside, j], ys[inside, j + 1]
            share = np.where(np.isfinite(x1), (c - x0) / np.where(np.isfinite(x1), x1 - x0, 1), 0)
            exact = c == x0
            with np.errstate(invalid="ignore"):
                result[inside] = np.where(exact, y0, y0 + (y1 - y0) * share)
    infinite = np.isinf(envelope[:, 0])
    result[infinite] = np.inf
    return result


def along(envelope: Floats, z: float, cs: Floats) -> Floats:
    """``at`` of one envelope (of shape [grid]) at each of ``cs``."""
    xs, ys = (one[0] for one in knots(envelope[None, :], np.array([z])))
    # The segment with xs[j] <= c < xs[j + 1]; below the first and from the last knot on it is 0.
    j = np.searchsorted(xs, cs, side="right") - 1
    inside = (j >= 0) & (j < len(xs) - 1)
    j = np.clip(j, 0, len(xs) - 2)
    x0, x1, y0, y1 = xs[j], xs[j + 1], ys[j], ys[j + 1]
    finite = np.isfinite(x1)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(finite, (cs - x0) / np.where(finite, x1 - x0, 1), 0)
        between = np.where(cs == x0, y0, y0 + (y1 - y0) * share)
    result = np.where(inside, between, 0.0)
    return np.full_like(result, np.inf) if np.isinf(envelope[0]) else result


def utilisation(envelope: Floats, z: Floats, atol: float, c: float) -> Floats:
    """How much of (atol, c) each row uses: the t with a(t*c) = t*atol; it fails where t > 1.

    Along this ray both parts of the bound grow together, which is what a margin does to them.
    """
    if c == 0.0:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(envelope[:, 0] > 0, envelope[:, 0] / atol, 0.0)
    xs, ys = knots(envelope, z)
    t = xs / c
    with np.errstate(invalid="ignore", over="ignore"):
        g = ys - t * atol  # decreasing along a row: its zero is t
    below = g <= 0
    first = np.argmax(below, axis=1)
    rows = np.arange(len(z))
    before = np.maximum(first - 1, 0)
    g0, g1 = g[rows, before], g[rows, first]
    t0, t1 = t[rows, before], t[rows, first]
    with np.errstate(invalid="ignore", divide="ignore"):
        crossing = np.where(np.isfinite(t1), t0 + (t1 - t0) * g0 / (g0 - g1), g0 / atol + t0)
    result = np.where(first == 0, 0.0, crossing)
    result[np.isinf(envelope[:, 0]) | ~below.any(axis=1)] = np.inf
    result[np.isnan(envelope[:, 0])] = 0.0  # imported: nothing is known to exceed
    return result


def tells_bias(envelope: Floats, counts: Floats | npt.NDArray[np.int64]) -> Bools:
    """Which rows have enough elements with an error, and one beyond rounding.

    Where every element is the nearest number (tanh of tiny inputs) errors may lean to one side as
    well: not the kernel's doing.
    """
    enough: Bools = counts >= BIAS_MIN_COUNT
    return enough & ~(envelope[:, 0] <= 0)


def exceeds(rows: Rows, tolerance: Values) -> Bools:
    """Which rows fail: by the elementwise bound, by bias, or by a non-finite value.

    As everywhere here, each row is judged by what holds on its own device class.
    """
    failed = np.zeros(len(rows.z), bool)
    for mask, some, values in _parts(rows, tolerance):
        wrong = at(some.envelope, some.z, values.scaled_tol) > values.atol
        wrong |= some.mismatch > 0
        if values.bias_tol is not None:
            judged = tells_bias(some.envelope, some.bias_count)
            wrong |= judged & (np.abs(some.bias) > values.bias_tol)
        failed[mask] = wrong
    return failed


def elementwise(rows: Rows, tolerance: Values) -> Floats:
    """How much of (atol, scaled_tol) each row uses; infinite for a non-finite mismatch."""
    return _used(rows, tolerance, with_bias=False)


def share(rows: Rows, tolerance: Values) -> Floats:
    """How much of the tolerance each row uses, the bias bound included: it fails beyond 1.

    With every part of the tolerance times t, just the rows with a share above t fail.
    """
    return _used(rows, tolerance, with_bias=True)


def _used(rows: Rows, tolerance: Values, with_bias: bool) -> Floats:
    result = np.zeros(len(rows.z))
    for mask, some, values in _parts(rows, tolerance):
        used = utilisation(some.envelope, some.z, values.atol, values.scaled_tol)
        if with_bias and values.bias_tol is not None:
            judged = tells_bias(some.envelope, some.bias_count)
            with np.errstate(divide="ignore", invalid="ignore"):
                bias = np.abs(some.bias) / values.bias_tol
            used = np.maximum(used, np.where(judged & (some.bias != 0), bias, 0.0))
        result[mask] = np.where(some.mismatch > 0, np.inf, used)
    return result


def _parts(rows: Rows, tolerance: Values) -> Iterator[tuple[Bools, Rows, Values]]:
    """The rows of each device class with an override, and all others, with what holds there."""
    rest = np.ones(len(rows.z), bool)
    overrides = tolerance.on if isinstance(tolerance, Tolerance) else {}
    if rows.device is None or not overrides:
        yield rest, rows, tolerance
        return
    for device, values in overrides.items():
        mask = rows.device == device
        rest &= ~mask
        yield mask, rows.of(mask), values
    yield rest, rows.of(rest), tolerance


def half_gap(dtype: str, value: float) -> float:
    """Half the spacing of ``dtype`` at ``value``: the rounding that no kernel can avoid."""
    return DTYPES[dtype].gap(value) / 2


def allowed(tolerance: Values, dtype: str, roundoff: float, scale: float, ref: float) -> float:
    """What is allowed of |out - ref| at an element of that scale and reference value."""
    return tolerance.atol + tolerance.scaled_tol * roundoff * scale + half_gap(dtype, ref)
