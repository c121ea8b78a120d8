"""Several device classes in one history: what holds where, who is judged by it, what transfers."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from test_calibrate import control_rows, frame_of
from tests_support import DATA, ROOT, make_record, make_run, make_stats

from tolcal import bounds, calibrate, compare, history, hook, tolerances
from tolcal.calibrate import devices, fit
from tolcal.calibrate.margins import Fitted
from tolcal.cli import main
from tolcal.github import binding, stricter
from tolcal.model import (
    AllClose,
    Approved,
    Baseline,
    Cell,
    Environment,
    Proposal,
    Record,
    TolcalError,
    Tolerance,
    Values,
)
from tolcal.report import FORMATS, text, transfer
from tolcal.report.document import Document, to_json
from tolcal.tolerances import approving, loosening

CELL: Cell = ("softmax", "float32")
SMALL, LARGE = 2.0**-22, 2.0**-18


def environment(device_class: str) -> Environment:
    """One of that device class."""
    return msgspec.structs.replace(
        make_run().environment, device=f"a {device_class}", device_class=device_class
    )


def rows_on(device_class: str, residual: float, **changes: Any) -> list[Record]:
    """800 rows of 8 runs of one control there, residuals evenly up to ``residual``."""
    here = environment(device_class)
    made = []
    for record in control_rows(residual=residual, **changes):
        run = msgspec.structs.replace(
            record.run,
            id=f"{record.run.id[-4:]}{sum(device_class.encode()):012x}",
            environment=here,
        )
        made.append(msgspec.structs.replace(record, run=run))
    return made


def two(small: float = SMALL, large: float = LARGE) -> pd.DataFrame:
    """The same control on an H200 and on a CPU, where it errs more."""
    return frame_of(rows_on("sm_90", small) + rows_on("cpu", large))


def calibrated(frame: pd.DataFrame, **options: Any) -> Proposal:
    """Its proposal."""
    return calibrate.calibrate(frame, **options)


def value(proposal: Proposal) -> Tolerance:
    """The tolerance of its only cell."""
    (cell,) = proposal.cells
    assert cell.tolerance is not None
    return cell.tolerance


def test_one_number_where_devices_agree() -> None:
    """Within 2x at the median element: the wider holds on both, and no override is made."""
    proposal = calibrated(two(large=1.8 * SMALL))
    alone = value(calibrated(frame_of(rows_on("cpu", 1.8 * SMALL))))
    both = value(proposal)
    assert (both.on, both.atol, both.scaled_tol) == ({}, alone.atol, alone.scaled_tol)
    assert [n.device_class for n in proposal.cells[0].by_device] == ["cpu", "sm_90"]
    assert not any(n.own for n in proposal.cells[0].by_device)


def test_a_device_that_needs_far_less_gets_its_own() -> None:
    """Sixteen times less: what it needs alone holds there, and on unknown ones the wider."""
    proposal = calibrated(two())
    both = value(proposal)
    small = value(calibrated(frame_of(rows_on("sm_90", SMALL))))
    large = value(calibrated(frame_of(rows_on("cpu", LARGE))))
    assert set(both.on) == {"sm_90"}
    assert both.on["sm_90"].numbers == small.numbers
    assert both.numbers == large.numbers == both.for_device("gfx942").numbers
    evidence = both.on["sm_90"].evidence
    assert evidence is not None
    assert (evidence.rows, evidence.runs, evidence.devices) == (800, 8, ("a sm_90",))
    assert both.evidence is not None
    assert both.evidence.rows == 1600
    assert both.evidence.devices == ("a cpu", "a sm_90")


def test_what_other_devices_need_does_not_tighten_without_them() -> None:
    """A history that lacks the CPU's records leaves the cell's own values, and says why."""
    both = value(calibrated(two()))
    approved = {("softmax", "float32"): both}
    proposal = calibrated(frame_of(rows_on("sm_90", SMALL / 4)), approved=approved)
    (cell,) = proposal.cells
    after = value(proposal)
    assert after.numbers == both.numbers
    assert after.evidence is not None
    assert "a cpu" in after.evidence.devices
    assert cell.note == "approved for a cpu too, not fitted here: no tighter for all"
    assert cell.state == "tighten"  # sm_90's own alone
    assert after.on["sm_90"].scaled_tol < both.on["sm_90"].scaled_tol
    again = calibrated(
        frame_of(rows_on("sm_90", SMALL / 4)), approved={("softmax", "float32"): after}
    )
    assert again.cells[0].state == "unchanged"
    assert calibrated(two(), approved=approved).cells[0].note == ""


def test_a_control_missing_on_a_device_allows_no_override_there() -> None:
    """The second control was measured on the CPU alone: sm_90's need is not known."""
    other = rows_on("cpu", LARGE, kernel="softmax")
    both = value(calibrated(frame_of(rows_on("sm_90", SMALL) + rows_on("cpu", LARGE) + other)))
    assert both.on == {}


def test_rows_are_judged_by_what_holds_on_their_device() -> None:
    """An error that the CPU makes is a false alarm on sm_90; elsewhere the cell's values hold."""
    both = value(calibrated(two()))
    error = make_stats(float(np.float32(LARGE)))
    found = {}
    for name in ("sm_90", "cpu", "gfx942"):
        run = make_run(environment=environment(name))
        (found[name],) = bounds.exceeds(
            compare.judged([make_record(run=run, stats=error)]), both
        ).tolist()
        frame = frame_of([make_record(run=run, stats=error)])
        assert bounds.exceeds(calibrate.judged_rows(frame), both).tolist() == [found[name]]
        assert (bounds.share(calibrate.judged_rows(frame), both) > 1).tolist() == [found[name]]
    assert found == {"sm_90": True, "cpu": False, "gfx942": False}


def test_held_out_runs_are_judged_by_their_own_device() -> None:
    """A run of sm_90 with an error as on the CPU is red: the wider fit does not hide it."""
    records = rows_on("sm_90", SMALL)
    spike = make_record(run=records[0].run, seed=999_999, stats=make_stats(LARGE / 4))
    proposal = calibrated(frame_of([*records, spike, *rows_on("cpu", LARGE)]))
    assert set(value(proposal).on) == {"sm_90"}  # with the spike it still needs far less
    assert proposal.held_out.runs == 16
    assert proposal.held_out.runs_with_false_alarms == 1
    on = value(proposal).on["sm_90"].evidence
    assert on is not None
    assert (on.held_out.runs, on.held_out.red) == (8, 1)


def test_recall_and_locked_runs_are_by_device() -> None:
    """A fault between what the two allow is caught on sm_90 and not on the CPU."""
    fault = {"kernel": "b", "role": "buggy", "corrupts": "softmax_triton", "same_as_control": False}
    between = {**fault, "residual": LARGE / 2}
    frame = frame_of(rows_on("sm_90", SMALL) + rows_on("cpu", LARGE))
    faults = [
        msgspec.structs.replace(r, stats=make_stats(float(np.float32(LARGE / 2))))
        for name in ("sm_90", "cpu")
        for r in rows_on(name, **between)[:10]  # type: ignore[arg-type]
    ]
    whole = pd.concat([frame, frame_of(faults)], ignore_index=True)
    for column in whole.columns:  # concat of categories of different values gives objects
        if whole[column].dtype == object:
            whole[column] = whole[column].astype("category")
    (recall,) = calibrated(whole).buggy
    assert recall.proposed is not None
    assert (recall.proposed.rows, recall.proposed.flagged) == (20, 10)
    apart = calibrate.locked(
        frame_of([*faults, *rows_on("cpu", LARGE), *rows_on("sm_90", LARGE / 2)]),
        calibrated(frame), {},
    )  # fmt: skip
    assert apart.held_out.runs_with_false_alarms == 8  # those of sm_90
    assert apart.missed == ("b float32: not caught in 1 of the runs",)


def test_the_order_of_devices_and_records_does_not_matter() -> None:
    """The same set of records gives the same proposal."""
    records = rows_on("sm_90", SMALL) + rows_on("cpu", LARGE)
    shuffled = [records[i] for i in np.random.default_rng(0).permutation(len(records))]
    assert calibrated(frame_of(records)) == calibrated(frame_of(shuffled))


def test_a_source_is_known_by_what_holds_on_its_device() -> None:
    """Rows beyond sm_90's own values don't make a source known there; on the CPU they would."""
    both = value(calibrated(two()))

    def known(device_class: str) -> int:
        records = rows_on(device_class, LARGE, kernel_hash="00000000000000ab")
        found = calibrate.baseline(frame_of(records), {CELL: both})
        return len(found.sources.get(("softmax_triton", "float32"), ()))

    assert (known("sm_90"), known("cpu"), known("gfx942")) == (0, 1, 1)


# --- states ---------------------------------------------------------------------------------


def signed(tolerance: Tolerance) -> Tolerance:
    """As if it had been approved."""

    def mark(values: Values) -> Approved:
        return Approved("ada", "2026-11-29T00:00:00Z", "0" * 16, values.value_digest)

    on = {d: msgspec.structs.replace(v, approved=mark(v)) for d, v in tolerance.on.items()}
    return msgspec.structs.replace(tolerance, approved=mark(tolerance), on=on)


def test_a_calibrated_cell_is_unchanged_when_calibrated_again() -> None:
    """Base and override alike, and what is approved and not fitted stays as it is."""
    approved = signed(value(calibrated(two())))
    again = calibrated(two(), approved={CELL: approved})
    assert again.cells[0].state == "unchanged"
    assert value(again).whole_digest == approved.whole_digest
    kept = Values(1e-9, 1.0, AllClose(1e-9, 1e-6), 0.5)
    more = msgspec.structs.replace(approved, on={**approved.on, "gfx942": kept})
    again = calibrated(two(), approved={CELL: more})
    assert value(again).on["gfx942"] == kept
    assert again.cells[0].state == "unchanged"


def test_an_override_stays_down_to_one_and_a_half() -> None:
    """Made at 2x, kept at 1.7x, so that a cell does not go back and forth."""
    near = two(large=1.7 * SMALL)
    assert value(calibrated(near)).on == {}
    approved = signed(value(calibrated(two())))
    assert set(value(calibrated(near, approved={CELL: approved})).on) == {"sm_90"}
    fits = {d: value(calibrated(frame_of(rows_on(d, s)))) for d, s in
            (("sm_90", SMALL), ("cpu", 1.2 * SMALL))}  # fmt: skip
    element = devices.Element("float32", 2.0**-24, 1.0, 1.0)
    assert devices.combined(Fitted(fits, 2.0), frozenset(fits), element, approved).on == {}
    # But as long as nobody widens it, it stays rather than becoming looser by a little.
    (cell,) = calibrated(two(large=1.2 * SMALL), approved={CELL: approved}).cells
    assert cell.state == "tighten"
    assert cell.tolerance is not None
    assert cell.tolerance.on == approved.on
    assert devices.KEPT >= hook.rules.OVERRIDE_FACTOR  # what it keeps the hook lets stand


def test_a_cell_tightens_if_any_of_its_values_does_and_none_loosens() -> None:
    """One wide number approved: an override is a tightening of that device alone."""
    own = value(calibrated(two()))
    wide = signed(msgspec.structs.replace(own, on={}))
    (cell,) = calibrated(two(), approved={CELL: wide}).cells
    assert cell.state == "tighten"
    assert cell.tightening == 1.0  # of the base
    assert {n.device_class: n.tightening for n in cell.by_device}["cpu"] == 1.0
    narrow = value(calibrated(frame_of(rows_on("sm_90", SMALL))))
    (cell,) = calibrated(two(), approved={CELL: signed(narrow)}).cells
    assert cell.state == "looser"  # on the CPU and unknown devices
    assert {n.device_class: n.tightening for n in cell.by_device}["sm_90"] == 1.0
    assert cell.base == signed(narrow).whole_digest


def test_a_new_device_goes_through_widening(tmp_path: Path) -> None:
    """Drift, widen: the file gets the wider values with a reason and sm_90's own without one."""
    path = tmp_path / "tolerances.toml"
    narrow = signed(value(calibrated(frame_of(rows_on("sm_90", SMALL)))))
    tolerances.write(path, {CELL: narrow})
    old = path.read_text().replace("\n[softmax.float32]", "\n# why\n[softmax.float32]")
    path.write_text(old)
    proposal = calibrated(two(), approved=tolerances.read(path))
    proof = tmp_path / "P.json"
    proof.write_text(to_json(Document(proposal)))
    common = [str(proof), "softmax/float32", "--tolerances", str(path), "--by", "ada"]
    assert main(["approve", *common]) == 2
    assert main(["approve", *common, "--widen", "a CPU joins"]) == 0
    after = tolerances.read(path)[CELL]
    assert after.approved is not None
    assert after.approved.reason == "a CPU joins"
    assert after.on["sm_90"].numbers == narrow.numbers
    mark = after.on["sm_90"].approved
    assert mark is not None
    assert (mark.reason, mark.value) == (None, after.on["sm_90"].value_digest)
    assert after.whole_digest == value(proposal).whole_digest
    assert "# why" in path.read_text()
    assert [f.text for f in hook.check(path) if f.level == "error"] == []
    changed = re.sub(r"(on\.sm_90\]\natol = )\S+", r"\g<1>1e-30", path.read_text())
    path.write_text(changed)
    (problem,) = [f for f in hook.check(path) if f.level == "error"]
    assert "softmax.float32.on.sm_90: changed by hand since it was approved" in problem.text


def test_an_override_that_leaves_takes_a_reason_along() -> None:
    """Where the cell's values come to hold again they are looser there, so it needs widening."""
    approved = signed(value(calibrated(two())))
    same = two(small=LARGE)
    proposal = calibrated(same, approved={CELL: approved})
    (cell,) = proposal.cells
    assert cell.state == "looser"
    mark = Approved("ada", "2026-11-30T00:00:00Z", proposal.digest, "", reason="H200 errs as much")
    written = approving.values([cell], {CELL: approved}, mark, "t.toml", "")[CELL]
    assert written.on == {}
    assert written.approved is not None
    assert written.approved.reason == "H200 errs as much"


def test_approving_twice_changes_nothing_and_a_changed_override_is_stale() -> None:
    """The digests compared are of the whole cell."""
    frame = two()
    wide = signed(msgspec.structs.replace(value(calibrated(frame)), on={}))
    proposal = calibrated(frame, approved={CELL: wide})
    mark = Approved("ada", "2026-11-30T00:00:00Z", proposal.digest, "")
    written = approving.values(proposal.cells, {CELL: wide}, mark, "t.toml", "again")
    assert set(written[CELL].on) == {"sm_90"}
    assert approving.values(proposal.cells, written, mark, "t.toml", "again") == {}
    other = msgspec.structs.replace(
        written[CELL], on={"sm_90": msgspec.structs.replace(written[CELL].on["sm_90"], atol=1.0)}
    )
    with pytest.raises(TolcalError, match="is not what the proposal was compared with; again"):
        approving.values(proposal.cells, {CELL: other}, mark, "t.toml", "again")


def test_a_proposal_is_bound_to_its_overrides() -> None:
    """Another override is another proposal, on a pull request and in its seal."""
    proposal = calibrated(two())
    own = value(proposal)
    looser = msgspec.structs.replace(own.on["sm_90"], atol=1.0)
    forged = msgspec.structs.replace(
        proposal,
        cells=(msgspec.structs.replace(
            proposal.cells[0], tolerance=msgspec.structs.replace(own, on={"sm_90": looser})
        ),),
    )  # fmt: skip
    assert forged.content_digest != proposal.seal
    assert binding.bound_cells(forged) != binding.bound_cells(proposal)
    assert msgspec.structs.replace(own, on={}).whole_digest == own.value_digest


def test_the_stricter_of_two_files_is_so_on_each_device() -> None:
    """One has an override, the other a tighter cell: neither lets more pass than both."""
    loose, tight = Tolerance(1e-6, 8.0, AllClose(1e-6, 1e-5)), AllClose(1e-6, 1e-5)
    left = msgspec.structs.replace(loose, on={"sm_90": Values(1e-8, 8.0, tight)})
    tip = Tolerance(1e-7, 8.0, tight)
    held, moved = stricter.of_both({CELL: left}, {CELL: tip})
    assert moved == {CELL}
    assert held[CELL].atol == 1e-7
    assert held[CELL].for_device("sm_90").atol == 1e-8
    assert stricter.of_both({CELL: left}, {CELL: left}) == ({CELL: left}, frozenset())
    assert loosening.loosened_anywhere("float32", left, tip) != ""
    assert loosening.loosened_anywhere("float32", tip, held[CELL]) == ""


# --- drift ----------------------------------------------------------------------------------


def kind_on(device_class: str, approved: Tolerance, seen: tuple[str, ...]) -> str:
    """What an unchanged control's error of the CPU's size is called there."""
    run = make_run(environment=environment(device_class))
    record = make_record(run=run, stats=make_stats(float(np.float32(4 * LARGE))))
    hashes = (record.kernel_hash, record.reference_hash, record.op_hash)
    known = Baseline(
        {(record.kernel, "float32"): frozenset({hashes})},
        {record.kernel: frozenset(environment(name).key for name in seen)},
    )
    proposal = calibrated(frame_of([]))
    verdict = compare.compare([record], {CELL: approved}, proposal, known)
    (finding,) = verdict.findings
    assert finding.allowed == bounds.allowed(
        approved.for_device(device_class), "float32", record.roundoff,
        record.stats.scale_quantiles[1], record.stats.scale_abs_quantiles[1],  # type: ignore
    )  # fmt: skip
    return str(finding.kind)


def test_drift_with_an_override_and_on_a_new_device_class() -> None:
    """Known devices give false positives; a new class is judged by the cell, and drifts."""
    approved = value(calibrated(two()))
    assert kind_on("sm_90", approved, ("sm_90", "cpu")) == "false_positive"
    assert kind_on("cpu", approved, ("sm_90", "cpu")) == "false_positive"
    assert kind_on("gfx942", approved, ("sm_90", "cpu")) == "drift"
    assert kind_on("gfx942", approved, ("sm_90", "cpu", "gfx942")) == "drift"  # not in evidence


def test_units_of_overrides_follow_a_changed_compute_dtype() -> None:
    """A changed unit loosens no override."""
    approved = value(calibrated(two()))
    half = compare.in_units_of(approved, 2.0**-23)
    assert half is not None
    assert half.scaled_tol == approved.scaled_tol / 2
    assert half.on["sm_90"].scaled_tol == approved.on["sm_90"].scaled_tol / 2


# --- what is shown --------------------------------------------------------------------------


def test_every_format_names_the_override() -> None:
    """Compactly, with what is allowed there; and what transfers."""
    frame = two()
    wide = signed(msgspec.structs.replace(value(calibrated(frame)), on={}))
    document = Document(calibrated(frame, approved={CELL: wide}))
    (need,) = [n for n in document.proposal.cells[0].by_device if n.own]
    allowed = text.scientific(need.allowed_proposed)
    comment = FORMATS["comment"](document)
    assert f"| `softmax/float32 on sm_90` | {text.scientific(need.allowed_now)} → {allowed} |" in (
        comment
    )
    summary = FORMATS["summary"](document)
    assert "| `softmax on sm_90` | float32 |" in summary
    assert f"| `softmax/float32` | sm_90 | 800 | 8 | {allowed} | 1/" in summary
    assert f"| `softmax/float32` | cpu | 800 | 8 | {text.scientific(need.allowed_now)} | most" in (
        summary
    )
    terminal = FORMATS["terminal"](document)
    assert re.search(r"^ *softmax/float32 on sm_90 +\S+ +1/\S+ +has its own$", terminal, re.M)
    claim = "One number holds for 0 of 1 cells on all the device classes"
    assert all(claim in page for page in (comment, summary, terminal))
    assert "Needed on sm_90" in FORMATS["html"](document)


def test_one_device_class_shows_nothing_of_devices() -> None:
    """No table, no claim."""
    proposal = calibrated(frame_of(rows_on("sm_90", SMALL)))
    assert transfer.lines(proposal) == []
    assert transfer.claim(proposal) == ""
    assert proposal.cells[0].by_device == ()


# --- real records ---------------------------------------------------------------------------


@functools.cache
def transferred() -> Proposal:
    """The H200's history and a CPU's, of the same controls.

    `cpu-history.parquet`: 12 runs of 60 fresh cases of every control in float32 and float16
    (`tolcal run --device cpu --cases 60 --gate 0`), Triton's by its interpreter. It is small: known
    wrong kernels and hashes of inputs are left out, and what envelopes don't need has 12 bits.
    """
    return calibrate.calibrate(
        history.read([DATA / "h200-history.parquet", DATA / "cpu-history.parquet"])
    )


def test_a_cpu_history_is_enough_for_a_fit_of_its_own() -> None:
    """720 rows of 12 runs of each of 16 controls, in the two dtypes that the interpreter has."""
    frame = history.read([DATA / "cpu-history.parquet"])
    counts = frame.groupby(["kernel", "dtype"], observed=True)["run_id"].agg(["size", "nunique"])
    assert len(counts) == 32
    assert counts["size"].min() >= 720
    assert counts["nunique"].min() >= 12
    assert set(frame["device_class"]) == {"cpu"}


def test_what_transfers_between_a_gpu_and_a_cpu() -> None:
    """Real numbers: one holds where needs are alike, and no device allows less than it needs."""
    lines = transfer.lines(transferred())
    assert len(lines) == 2 * 14 * 2  # cells in float32 and float16, on two device classes
    for line in lines:
        need = line.need
        assert need.allowed_proposed >= need.allowed_needed * 0.999, line.name
        assert need.own == (need.allowed_proposed < line.cell.allowed_proposed), line.name
        if need.own:
            assert need.allowed_proposed * devices.OWN < (line.cell.allowed_proposed or 0)
        else:
            assert need.allowed_needed * devices.OWN >= (line.cell.allowed_proposed or 0)


def test_each_device_is_judged_by_its_own_on_real_records() -> None:
    """No row of either history exceeds what holds on its device."""
    cells = transferred().tolerances()
    for name in ("h200-history", "cpu-history"):
        frame = history.read([DATA / f"{name}.parquet"])
        controls = frame[(frame["role"] == "control") & (frame["status"] == "ok")]
        for (op, dtype), rows in controls.groupby(["op", "dtype"], observed=True):
            judged = calibrate.judged_rows(rows)
            assert not bounds.exceeds(judged, cells[str(op), str(dtype)]).any(), (name, op, dtype)


def test_the_page_shows_what_transfers() -> None:
    """docs/lifecycle.md quotes the table's float32 rows; TOLCAL_UPDATE_GOLDEN=1 renews them."""
    page = ROOT / "docs" / "lifecycle.md"
    summary = FORMATS["summary"](Document(transferred()))
    table = summary.split("What transfers: ")[1].split("\n\n")[1].splitlines()
    rows = [r for i, r in enumerate(table) if i < 2 or "/float32`" in r]
    shown = "\n".join([f"{transfer.claim(transferred())} (float32 here).", "", *rows])
    begin, end = "<!-- transfer:begin -->\n", "<!-- transfer:end -->"
    before, _, rest = page.read_text().partition(begin)
    found, _, after = rest.partition(end)
    if os.environ.get("TOLCAL_UPDATE_GOLDEN") == "1":
        page.write_text(f"{before}{begin}{shown}\n{end}{after}")
        return
    assert found.strip() == shown, "TOLCAL_UPDATE_GOLDEN=1 renews it"


def test_a_plain_pair_that_allows_anything_is_the_bound_at_usual_scales() -> None:
    """Sums that cancel at 1e30 leave no atol for those of 10; others keep that of their rows."""
    element = devices.Element("float32", 2.0**-24, scale=10.0, ref=1.0)
    slope = 2.0 * 2.0**-24 * 10.0
    for atol, kept in ((60 * slope, True), (70 * slope, False), (1e30, False)):
        own = Values(0.0, 2.0, AllClose(atol, 1e-6), None)
        whole = Tolerance(0.0, 2.0, AllClose(atol, 1e-6), None, on={"cpu": own})
        got = devices.with_plain(whole, element)
        assert got.numbers.keys() == whole.numbers.keys()
        expected = own.allclose if kept else fit.allclose(8 * slope, 2.0, 2.0**-24, "float32")
        assert got.allclose == got.on["cpu"].allclose == expected
        assert (got.atol, got.scaled_tol, got.bias_tol) == (0.0, 2.0, None)
