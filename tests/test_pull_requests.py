"""What a pull request's own records may do to a proposal: raise it, and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_calibrate import control_rows
from tests_support import make_record, make_run, make_stats

from tolcal import bounds, calibrate, history
from tolcal.calibrate.rows import controls_of
from tolcal.history import columns
from tolcal.model import CellProposal, Record

CLAIMED = make_run(id="f" * 16, origin="pull_request")


def trusted() -> list[Record]:
    """720 rows and more in fp32 and in fp16, which borrows."""
    scales = (2.0**-7, 1.0, 4.0)
    wide = control_rows(rows=91)
    for n, record in enumerate(wide):
        stats = msgspec.structs.replace(
            make_stats(2.0**-24 * (1 + n % 91), scale=scales[n % 3]),
            scale_quantiles=scales, scale_abs_quantiles=scales,
        )  # fmt: skip
        wide[n] = msgspec.structs.replace(record, stats=stats)
    narrow = [msgspec.structs.replace(r.case, dtype="float16") for r in wide]
    return wide + [msgspec.structs.replace(r, case=c) for r, c in zip(wide, narrow, strict=True)]


OWN = columns.from_records(trusted())


def with_(claimed: list[Record]) -> pd.DataFrame:
    """The frame of trusted rows and these."""
    if not claimed:
        return history.to_frame(OWN)
    both = pa.concat_tables([OWN, columns.from_records(claimed)]).unify_dictionaries()
    return history.to_frame(both.combine_chunks())


def cells(claimed: list[Record]) -> tuple[list[CellProposal], Any]:
    """The cells of a proposal with these beside the trusted rows, and its forecast."""
    proposal = calibrate.calibrate(with_(claimed))
    return list(proposal.cells), proposal.forecast


ALONE = cells([])


def margin(cell: CellProposal) -> float:
    """That its fit took."""
    assert cell.tolerance is not None
    assert cell.tolerance.evidence is not None
    return cell.tolerance.evidence.margin


def must_only_raise(claimed: list[Record]) -> list[CellProposal]:
    """What all evidence and the numbers of trusted rows alone are to a pull request's rows."""
    (before, tails), (after, now) = ALONE, cells(claimed)
    assert tails == now
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        assert old.tolerance is not None
        assert new.tolerance is not None
        assert old.allowed_proposed is not None
        assert new.allowed_proposed is not None
        assert new.allowed_proposed >= old.allowed_proposed
        assert new.tolerance.atol >= old.tolerance.atol
        assert new.tolerance.scaled_tol == old.tolerance.scaled_tol
        assert (new.rows, new.runs, new.held_out, new.devices, margin(new)) == (
            old.rows, old.runs, old.held_out, old.devices, margin(old)
        )  # fmt: skip
        assert old.tolerance.evidence is not None
        assert new.tolerance.evidence is not None
        assert new.tolerance.evidence.roundoff == old.tolerance.evidence.roundoff
        assert new.tolerance.evidence.scale == old.tolerance.evidence.scale
        raised = new.tolerance.numbers != old.tolerance.numbers
        assert ("by rows of a pull request" in new.note) == raised
    return after


ROW = st.tuples(
    st.sampled_from(["float32", "float16"]),
    st.sampled_from([0.0, 2.0**-26, 2.0**-23, 2.0**-20, 2.0**-10, 2.0**60]),
    st.sampled_from([0.0, 2.0**-20, 1.0, 2.0**20]),
    st.sampled_from([2.0**-24, 2.0**-11]),
    st.sampled_from(["softmax_triton", "another_triton"]),
    st.sampled_from(["00000000000000c0", "ffffffffffffffff"]),
)


@settings(deadline=None, max_examples=12)
@given(st.lists(ROW, min_size=1, max_size=4), st.sampled_from([1, 100]))
def test_any_rows_of_a_pull_request_only_raise(rows: list[Any], times: int) -> None:
    """However many, whatever they claim of unit, scale, source and kernel."""
    claimed = [
        make_record(
            run=CLAIMED, seed=100_000 + 1000 * n + again, dtype=dtype, kernel=kernel,
            kernel_hash=source, roundoff=unit,
            stats=make_stats(residual, scale or 1.0, scale_quantiles=(scale,) * 3,
                             scale_abs_quantiles=(scale,) * 3),
        )
        for n, (dtype, residual, scale, unit, kernel, source) in enumerate(rows)
        for again in range(times)
    ]  # fmt: skip
    must_only_raise(claimed)


def test_more_rows_never_lower_what_fewer_raised() -> None:
    """A second pull request's rows come on top of the first's."""
    first = make_record(run=CLAIMED, seed=1, stats=make_stats(2.0**-18, 4.0))
    second = make_record(run=CLAIMED, seed=2, stats=make_stats(2.0**-16, 64.0))
    one, two = must_only_raise([first]), must_only_raise([first, second])
    assert one[1].allowed_proposed is not None
    assert two[1].allowed_proposed is not None
    assert two[1].allowed_proposed >= one[1].allowed_proposed


def test_a_majority_of_another_unit_is_no_evidence() -> None:
    """1,600 rows that claim fp16 arithmetic leave 728 of fp32 what they are."""
    claimed = [
        make_record(run=CLAIMED, seed=n, stats=make_stats(0.0), roundoff=2.0**-11)
        for n in range(1600)
    ]
    frame = with_(claimed)
    control = next(c for c in controls_of(frame) if c.dtype == "float32")
    assert control.arrays.roundoff == 2.0**-24
    assert [c.allowed_proposed for c in must_only_raise(claimed)] == [
        c.allowed_proposed for c in ALONE[0]
    ]


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
def test_scales_of_a_pull_request_choose_nothing(factor: float) -> None:
    """Rows that raise nothing, with typical scales far off."""
    claimed = [
        msgspec.structs.replace(
            r,
            run=CLAIMED,
            stats=make_stats(0.0, scale_quantiles=(factor,) * 3, scale_abs_quantiles=(factor,) * 3),
        )
        for r in trusted()
    ]
    for old, new in zip(ALONE[0], must_only_raise(claimed), strict=True):
        assert new.tolerance is not None
        assert old.tolerance is not None
        assert new.tolerance.numbers == old.tolerance.numbers


def test_a_bound_that_a_pull_request_sets_says_so() -> None:
    """A new cell's reader learns what trusted rows need; so does one of an approved cell."""
    loud = make_record(run=CLAIMED, seed=1, stats=make_stats(2.0**-10))
    old, new = ALONE[0][1], must_only_raise([loud])[1]
    assert old.dtype == new.dtype == "float32"
    assert new.note == (f"by rows of a pull request; trusted rows need {old.allowed_proposed:.3g}")
    assert new.state == "new"
    assert old.tolerance is not None
    frame = with_([loud])
    again = calibrate.calibrate(frame, approved={("softmax", "float32"): old.tolerance})
    cell = next(c for c in again.cells if c.dtype == "float32")
    assert (cell.state, cell.note) == ("looser", new.note)


def test_a_kernel_that_only_a_pull_request_measured_leaves_the_cell() -> None:
    """It would lack rows for ever, and the cell its tolerance."""
    claimed = [make_record(run=CLAIMED, kernel="another_triton", stats=make_stats(2.0**-10))]
    assert [c.state for c in must_only_raise(claimed)] == ["new", "new"]


def test_no_row_of_a_raised_cell_exceeds() -> None:
    """The raised tolerance covers the rows that raised it, borrowed ones too."""
    claimed = [
        make_record(run=CLAIMED, seed=n, dtype=d, stats=make_stats(2.0**-12 * (n + 1), 2.0**-n))
        for d in ("float32", "float16")
        for n in range(8)
    ]
    after = must_only_raise(claimed)
    frame = with_(claimed)
    for cell in after:
        assert cell.tolerance is not None
        rows = frame[(frame["dtype"] == cell.dtype).to_numpy(bool)]
        assert not np.any(bounds.exceeds(calibrate.judged_rows(rows), cell.tolerance))
