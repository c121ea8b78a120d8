"""Fits with one run left out: the same, to the last bit, as fitting the rows that remain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import DATA, make_record, make_run, make_stats

from tolcal import bounds, history
from tolcal.calibrate import fit, leaving
from tolcal.calibrate.rows import Control, controls_of
from tolcal.history import columns
from tolcal.model import ENVELOPE_GRID


def by_hand(control: Control, wide: Control | None, run: str) -> fit.Bound | None:
    """`fit.residual` on the rows of the other runs, as its documentation says."""
    mask = control.fits & (control.runs != run)
    if not mask.any():
        return None
    lent = None
    if wide is not None:
        other = wide.fits & (wide.runs != run)
        lent = wide.subset(other) if other.any() else None
    return fit.residual(control.subset(mask), lent, control.dtype)


def test_the_shipped_history() -> None:
    """Every control of two ops, every run, with and without borrowing."""
    frame = history.read([DATA / "h200-history.parquet"])
    some = frame[frame["op"].isin(["softmax", "gelu"]) & (frame["role"] == "control")]
    controls = controls_of(some)
    wide = {c.kernel: c for c in controls if c.dtype == "float32"}
    compared = 0
    for control in controls:
        lender = wide.get(control.kernel) if control.dtype != "float32" else None
        (part,) = leaving.parts(control, lender, sorted(set(control.device)))
        for run in [*np.unique(control.runs), "no such run"]:
            assert part.without(run) == by_hand(control, lender, run)
            compared += 1
    assert compared >= 100


NUMBERS = st.sampled_from([0.0, 2.0**-30, 2.0**-24, 3 * 2.0**-24, 2.0**-20, 2.0**-10])
ROWS = st.lists(
    st.tuples(st.integers(0, 3), NUMBERS, st.sampled_from([0.0, 2.0**-20, 1.0, 1024.0]),
              st.sampled_from([0, 1023, 1024, 4096])),
    min_size=1, max_size=12,
)  # fmt: skip


def control_of(rows: list[tuple[int, float, float, int]], dtype: str) -> Control:
    """A control with so many rows: run, residual, scale, elements with an error."""
    frame = history.to_frame(
        columns.from_records(
            make_record(
                run=make_run(id=f"{run:016x}"), seed=n, dtype=dtype,
                stats=make_stats(residual, scale or 1.0, scale_quantiles=(scale,) * 3,
                                 scale_abs_quantiles=(scale,) * 3, bias_count=count,
                                 bias=(n % 5) / 8),
            )
            for n, (run, residual, scale, count) in enumerate(rows)
        )
    )  # fmt: skip
    (control,) = controls_of(frame)
    return control


@settings(deadline=None, max_examples=60)
@given(ROWS, ROWS)
def test_any_rows(
    rows: list[tuple[int, float, float, int]], lent: list[tuple[int, float, float, int]]
) -> None:
    """Ties, rows without a scale, a single run, a run that one side lacks."""
    narrow, wide = control_of(rows, "float16"), control_of(lent, "float32")
    (part,) = leaving.parts(narrow, wide, ["sm_90"])
    (alone,) = leaving.parts(wide, None, ["sm_90"])
    for run in (f"{n:016x}" for n in range(5)):
        assert part.without(run) == by_hand(narrow, wide, run)
        assert alone.without(run) == by_hand(wide, None, run)


@settings(deadline=None, max_examples=100)
@given(st.lists(NUMBERS, min_size=1, max_size=1), st.floats(0, 1e6), st.lists(st.floats(0, 2000)))
def test_along_is_at(residual: list[float], z: float, cs: list[float]) -> None:
    """One envelope at many c is each c by itself."""
    stats = make_stats(residual[0])
    assert stats.envelope is not None
    envelope = np.array(stats.envelope)
    points = np.array([*cs, *ENVELOPE_GRID, z])
    expected = [bounds.at(envelope[None, :], np.array([z]), c)[0] for c in points]
    assert bounds.along(envelope, z, points).tolist() == expected


def test_along_of_what_is_not_finite() -> None:
    """As `at`: infinite everywhere, and an infinite z is no end."""
    grid = len(ENVELOPE_GRID)
    cs = np.array([0.0, 3.0, 1e9])
    for envelope, z in ((np.full(grid, np.inf), np.inf), (np.linspace(1, 0.5, grid), np.inf)):
        expected = [bounds.at(envelope[None, :], np.array([z]), c)[0] for c in cs]
        assert bounds.along(envelope, z, cs).tolist() == pytest.approx(expected, nan_ok=True)
