"""A control whose algorithm changes on purpose: when its older records leave the fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_calibrate import control_rows, frame_of
from tests_support import CORPUS, make_run

from tolcal import calibrate, corpus, history
from tolcal.calibrate import sweep, variants
from tolcal.history import clocks, columns
from tolcal.model import CellProposal, Proposal, Record, Setting

OLD, NEW = "00000000000000c0", "00000000000000d0"


def rows(source: str, runs: int, residual: float, first: int = 0, **changes: Any) -> list[Record]:
    """100 rows a run of that source; runs are numbered, and dated, from ``first``."""
    made = []
    for record in control_rows(runs=runs, residual=residual, kernel_hash=source, **changes):
        number = int(record.run.id, 16) + first
        run = msgspec.structs.replace(
            record.run, id=f"{number:016x}", started=f"2025-12-{number + 1:02d}T00:00:00+00:00"
        )
        made.append(msgspec.structs.replace(record, run=run))
    return made


def calibrated(records: list[Record]) -> tuple[CellProposal, Proposal]:
    """The only cell, and the whole."""
    proposal = calibrate.calibrate(frame_of(records))
    (cell,) = proposal.cells
    return cell, proposal


def aged(proposal: Proposal) -> list[str]:
    """What is said of older sources."""
    return [note for note in proposal.notes if "older source" in note]


def test_older_sources_stay_until_the_newest_has_enough() -> None:
    """700 rows of the better algorithm: the cell still allows what the old one needs."""
    old = rows(OLD, 8, 2.0**-18)
    cell, proposal = calibrated(old + rows(NEW, 7, 2.0**-22, first=8))
    alone, _ = calibrated(old)
    assert cell.rows == 1500
    assert cell.allowed_proposed is not None
    assert alone.allowed_proposed is not None
    assert cell.allowed_proposed >= alone.allowed_proposed
    assert aged(proposal) == [
        "800 rows of older sources stay in the fit until the newest has 720 rows of 3 runs there "
        "(it has 700 rows of 7 runs): softmax_triton float32 on sm_90 (newest: 00000000000000d0 of "
        "2025-12-15)"
    ]


def test_older_sources_leave_once_the_newest_has_enough() -> None:
    """800 rows: the fit is that of the new algorithm alone, and the note says what left."""
    new = rows(NEW, 8, 2.0**-22, first=8)
    cell, proposal = calibrated(rows(OLD, 8, 2.0**-18) + new)
    alone, quiet = calibrated(new)
    assert (cell.rows, cell.runs, cell.held_out.runs) == (800, 8, 8)
    assert cell.tolerance is not None
    assert alone.tolerance is not None
    assert cell.tolerance.numbers == alone.tolerance.numbers
    assert aged(proposal) == [
        "800 rows of older sources left the fit, which rests on the newest alone: softmax_triton "
        "float32 on sm_90 (newest: 00000000000000d0 of 2025-12-16)"
    ]
    assert aged(quiet) == []


def test_a_sweep_leaves_out_what_a_fit_does() -> None:
    """Its default setting is the proposal's, over a change of source too."""
    made = rows(OLD, 8, 2.0**-18) + rows(NEW, 8, 2.0**-22, first=8)
    cell, proposal = calibrated(made)
    points = {(p.op, p.setting): p for p in sweep.sweep(frame_of(made))}
    found = points[None, variants.DEFAULT.with_margin(None)]
    assert found.held_out == proposal.held_out
    assert found.held_out.rows == cell.rows == 800
    published = calibrate.calibrate(frame_of(made), rule="paper")
    assert points[None, Setting("paper", percentile=95, factor=1.5)].held_out == published.held_out


def test_the_newest_is_that_of_the_newest_run_whatever_the_order() -> None:
    """A revert makes the first source the newest again, with all of its records."""
    first, second = rows(OLD, 8, 2.0**-22), rows(NEW, 8, 2.0**-18, first=8)
    back = rows(OLD, 1, 2.0**-22, first=16)
    cell, _ = calibrated(back + second + first)
    assert cell.rows == 900
    assert calibrated(first + second)[0].rows == 800


def test_a_changed_reference_counts_as_a_source() -> None:
    """Errors against another reference are other errors."""
    other = rows(OLD, 8, 2.0**-22, first=8, reference_hash="00000000000000e1")
    assert calibrated(rows(OLD, 8, 2.0**-18) + other)[0].rows == 800


def test_each_device_class_waits_for_its_own_records() -> None:
    """On a device without records of the newest source the older ones still say what it needs."""
    old = rows(OLD, 8, 2.0**-18)
    environment = msgspec.structs.replace(old[0].run.environment, device="cpu", device_class="cpu")
    there = [
        msgspec.structs.replace(
            r, run=msgspec.structs.replace(r.run, id=f"f{r.run.id[1:]}", environment=environment)
        )
        for r in old
    ]
    cell, proposal = calibrated(there + old + rows(NEW, 8, 2.0**-22, first=8))
    assert cell.rows == 1600
    assert {n.device_class: n.rows for n in cell.by_device} == {"cpu": 800, "sm_90": 800}
    assert len(aged(proposal)) == 2


def test_pull_requests_rows_stay_and_do_not_make_a_source_the_newest() -> None:
    """Their word can raise an envelope, and replaces nothing."""
    claimed = [
        msgspec.structs.replace(r, run=msgspec.structs.replace(r.run, origin="pull_request"))
        for r in rows(NEW, 8, 2.0**-16, first=8)
    ]
    old = rows(OLD, 8, 2.0**-18)
    cell, proposal = calibrated(old + claimed)
    assert cell.rows == 800
    assert aged(proposal) == []
    alone, _ = calibrated(old)
    assert cell.allowed_proposed is not None
    assert alone.allowed_proposed is not None
    assert cell.allowed_proposed > 2 * alone.allowed_proposed


def test_the_same_source_elsewhere_is_the_same(tmp_path: Path) -> None:
    """Hashes are of content: records of another repository with it are of no older source."""
    folder = tmp_path / "elsewhere" / "kernels"
    for path in (CORPUS / "softmax").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = folder / "softmax" / path.relative_to(CORPUS / "softmax")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (here,) = (op for op in corpus.load(CORPUS) if op.name == "softmax")
    (there,) = corpus.load(folder)
    for kernel in here.kernels:
        assert there.kernel(kernel.name).source_hash == kernel.source_hash
    assert (there.reference_hash, there.op_hash) == (here.reference_hash, here.op_hash)
    ours = rows(here.kernel("softmax_triton").source_hash, 4, 2.0**-22)
    theirs = [
        msgspec.structs.replace(r, run=msgspec.structs.replace(r.run, commit="a" * 40))
        for r in rows(there.kernel("softmax_triton").source_hash, 4, 2.0**-22, first=4)
    ]
    cell, proposal = calibrated(ours + theirs)
    assert (cell.rows, aged(proposal)) == (800, [])


def test_imported_rows_are_of_no_source() -> None:
    """Without hashes they are neither newer nor older."""
    records = rows(OLD, 8, 2.0**-22)
    run = make_run(id="9" * 16, origin="import", started="")
    imported = [msgspec.structs.replace(r, run=run, kernel_hash="", reference_hash="")
                for r in records[:5]]  # fmt: skip
    table = history.merge(columns.from_records(records), columns.from_records(imported))
    assert aged(calibrate.calibrate(table)) == []


def wrongly_timed(record: Record, started: str) -> Record:
    """The same from a machine whose clock says that."""
    return msgspec.structs.replace(record, run=msgspec.structs.replace(record.run, started=started))


@pytest.mark.parametrize(
    "started", ["2999-01-01T00:00:00+00:00", "9999-12-31T23:59:59-23:59", "garbage", "~", "2025-13"]
)
def test_a_wrong_clock_makes_no_source_the_newest(started: str) -> None:
    """One run of the old source that claims to be of the future: the new source still counts."""
    old, new = rows(OLD, 8, 2.0**-18), rows(NEW, 8, 2.0**-22, first=8)
    first = old[0].run.id
    odd = [wrongly_timed(r, started) if r.run.id == first else r for r in old]
    cell, proposal = calibrated(odd + new)
    alone, _ = calibrated(new)
    assert cell.rows == 800
    assert cell.allowed_proposed == alone.allowed_proposed
    assert proposal.runs[0].id == first
    assert (
        "1 run with a clock in the future, or of no time: taken for the oldest: "
        f"{first} ({started})"
    ) in proposal.notes


def test_times_are_compared_as_times() -> None:
    """23:00 five hours west of Greenwich is later than 03:00 there, whatever the texts say."""
    assert clocks.instant("2025-12-01T23:00:00-05:00") > clocks.instant("2025-12-02T03:00:00+00:00")
    old = [wrongly_timed(r, "2025-12-02T03:00:00+00:00") for r in rows(OLD, 8, 2.0**-18)]
    new = [wrongly_timed(r, "2025-12-01T23:00:00-05:00") for r in rows(NEW, 8, 2.0**-22, first=8)]
    assert calibrated(old + new)[0].allowed_proposed == calibrated(new)[0].allowed_proposed


def changed_run(records: list[Record], **changes: Any) -> list[Record]:
    """The same of runs that differ in that."""
    return [
        msgspec.structs.replace(r, run=msgspec.structs.replace(r.run, **changes)) for r in records
    ]


def test_uncommitted_changes_are_no_newest_source() -> None:
    """An experiment in a working tree leaves the committed source its rows, and is named."""
    committed = rows(OLD, 8, 2.0**-18)
    tried = changed_run(rows(NEW, 8, 2.0**-22, first=8), dirty=True, origin="local")
    cell, proposal = calibrated(committed + tried)
    alone, _ = calibrated(committed)
    assert (cell.rows, cell.allowed_proposed) == (800, alone.allowed_proposed)
    assert aged(proposal) == [
        "800 rows of older sources left the fit, which rests on the newest alone: softmax_triton "
        "float32 on sm_90 (newest: 00000000000000c0 of 2025-12-08; 00000000000000d0 is of "
        "uncommitted changes alone: commit, measure again)"
    ]
    both = changed_run(committed, dirty=True, origin="local") + tried
    assert calibrated(both)[0].allowed_proposed == calibrated(tried)[0].allowed_proposed


def test_pull_requests_rows_of_a_source_that_leaves_go_with_it() -> None:
    """What the old source needed holds the cell no longer, whoever measured it."""
    old, new = rows(OLD, 8, 2.0**-18), rows(NEW, 8, 2.0**-22, first=8)
    claimed = changed_run(rows(OLD, 1, 2.0**-14, first=20), origin="pull_request")
    cell, proposal = calibrated(old + new + claimed)
    assert cell.allowed_proposed == calibrated(new)[0].allowed_proposed
    assert aged(proposal)[0].startswith(
        "800 rows of older sources and 100 of pull requests left the fit"
    )
