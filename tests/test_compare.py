"""The verdict table, one test a row: what exceeds, what that is called, and what blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import make_environment, make_record, make_run, make_stats

from tolcal.compare import compare
from tolcal.model import (
    ENVELOPE_GRID,
    AllClose,
    Baseline,
    Cell,
    CellProposal,
    Checks,
    Evidence,
    Finding,
    HeldOut,
    HeldOutRows,
    Kernel,
    Outside,
    Proposal,
    Record,
    Tolerance,
    Tolerances,
    Verdict,
)
from tolcal.report import text

CELL: Cell = ("softmax", "float32")
FINE = 2.0**-24  # a residual well inside the tolerance
BAD = 2.0**-10  # one far outside
DIMS = (("B", 1), ("S", 7), ("H", 1025))


def tolerance(atol: float = 2.0**-22, devices: tuple[str, ...] = ("NVIDIA H200",)) -> Tolerance:
    """An approved cell: residual <= atol + 2 u scale, bias at most 0.3."""
    evidence = Evidence("residual", 2.0, 700, 18, devices, HeldOut(18, 0), "sha256:00", 1.0)
    return Tolerance(atol, 2.0, AllClose(1e-5, 1e-4), bias_tol=0.3, evidence=evidence)


APPROVED: Tolerances = {CELL: tolerance()}


def proposal(cells: Tolerances | None = None) -> Proposal:
    """What calibration would say; by default nothing."""
    held = HeldOutRows(100, 0, 18, 0)
    made = tuple(
        CellProposal(
            op=op, dtype=dtype, kernel=None, state="new", rows=100, runs=18, devices=(),
            needs_rows=0, tolerance=value, proposed_tol=None, allowed_now=None,
            allowed_source="none", allowed_proposed=None, allowed_paper=None, paper_atol=None,
            tightening=None, recall=None, detectable_recall=None, held_out=held,
        )
        for (op, dtype), value in (cells or {}).items()
    )  # fmt: skip
    return Proposal(
        rule="residual", by="op", margin=2.0, history="sha256:00", digest="0" * 16, recall=None,
        detectable_recall=None, held_out=held, cells=made, buggy=(), runs=(),
    )  # fmt: skip


def seen(records: Sequence[Record]) -> Baseline:
    """A history that has just these sources and environments."""
    environments: dict[str, frozenset[str]] = {}
    for r in records:
        keys = environments.get(r.kernel, frozenset())
        environments[r.kernel] = keys | {r.run.environment.key}
    hashes = {
        (r.kernel, r.case.dtype): frozenset({(r.kernel_hash, r.reference_hash, r.op_hash)})
        for r in records
    }
    return Baseline(hashes, environments)


UNSEEN = Baseline({}, {})


def control(residual: float = BAD, **changes: Any) -> Record:
    """A gate record of `softmax_triton`."""
    fields: dict[str, Any] = {"stats": make_stats(residual), "case_set": "gate", "dims": DIMS}
    return make_record(**fields | changes)


def buggy(residual: float = BAD, **changes: Any) -> Record:
    """A gate record of `softmax_bad`, whose output differs from its control's."""
    fields: dict[str, Any] = {
        "kernel": "softmax_bad",
        "role": "buggy",
        "corrupts": "softmax_triton",
        "same_as_control": False,
    }
    return control(residual, **fields | changes)


def caught(*records: Record) -> Baseline:
    """A history in which these gate cases caught their kernels."""
    found: dict[tuple[str, str], frozenset[tuple[str, str]]] = {}
    for r in records:
        case = (r.run.environment.device_class, r.case.id)
        found[r.kernel, r.case.dtype] = found.get((r.kernel, r.case.dtype), frozenset()) | {case}
    return msgspec.structs.replace(seen(records), caught=found)


def only(verdict: Verdict) -> Finding:
    """The verdict's one finding."""
    assert len(verdict.findings) == 1, [f.kind for f in verdict.findings]
    assert verdict.blocks == verdict.findings[0].blocks
    return verdict.findings[0]


# --- controls -------------------------------------------------------------------------------


def test_a_control_inside_its_tolerance_is_no_finding() -> None:
    """A changed control that stays inside gives nothing to say."""
    verdict = compare([control(FINE)], APPROVED, proposal(), UNSEEN)
    assert verdict.findings == ()
    assert not verdict.blocks


def test_the_bound_itself_passes_and_the_next_number_does_not() -> None:
    """residual == atol + 2 u scale passes, anything above it fails."""
    bound = 2.0**-22 + 2 * 2.0**-24
    assert compare([control(bound)], APPROVED, proposal(), UNSEEN).findings == ()
    above = only(compare([control(bound * (1 + 2.0**-20))], APPROVED, proposal(), UNSEEN))
    assert above.kind == "regression"


def test_changed_control_in_a_gate_case_is_a_regression_that_blocks() -> None:
    """A changed control that exceeds in a gate case blocks, with the worst case to replay."""
    rows = [control(BAD / 2, seed=1), control(BAD, seed=2), control(FINE, seed=3)]
    finding = only(compare(rows, APPROVED, proposal(), UNSEEN))
    assert (finding.kind, finding.blocks, finding.changed) == ("regression", True, True)
    assert (finding.exceeding, finding.gate_exceeding, finding.cases) == (2, 2, 3)
    assert finding.worst == rows[1].id
    assert finding.worst_dims == "B=1 S=7 H=1025"
    assert finding.observed == BAD
    # t (atol + 2 u) = residual, for one element of scale 1
    assert finding.over == pytest.approx(BAD / (2.0**-22 + 2.0**-23), rel=1e-12)
    # atol + 2 u scale + half a gap at 1
    assert finding.allowed == pytest.approx(2.0**-22 + 2.0**-23 + 2.0**-24, rel=1e-12)
    assert finding.detail == ""


def test_changed_control_in_explore_cases_alone_does_not_block_and_says_so() -> None:
    """A regression seen in explore cases only is shown and blocks nothing."""
    rows = [control(BAD, case_set="explore"), control(FINE, seed=2)]
    finding = only(compare(rows, APPROVED, proposal(), UNSEEN))
    assert (finding.kind, finding.blocks, finding.gate_exceeding) == ("regression", False, 0)
    assert "explore" in finding.detail
    assert "does not block" in finding.detail


def test_one_gate_case_among_explore_cases_blocks() -> None:
    """It is the exceeding case that has to be a gate case, not the worst one."""
    rows = [control(BAD, case_set="explore"), control(BAD / 4, seed=2)]
    finding = only(compare(rows, APPROVED, proposal(), UNSEEN))
    assert (finding.blocks, finding.exceeding, finding.gate_exceeding) == (True, 2, 1)
    assert finding.worst == rows[0].id


def test_unchanged_control_in_a_known_environment_is_a_false_positive() -> None:
    """The tolerance is too tight: no block."""
    rows = [control()]
    finding = only(compare(rows, APPROVED, proposal(), seen(rows)))
    assert (finding.kind, finding.blocks, finding.changed) == ("false_positive", False, False)
    assert finding.exceeding == finding.gate_exceeding == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "NVIDIA B200"),
        ("device_class", "sm_100"),
        ("driver", "590.0"),
        ("runtime", "cuda 13.1"),
        ("torch", "2.12.0"),
        ("triton", "3.7.0"),
        ("switches", ("tf32",)),
    ],
)
def test_unchanged_control_in_an_unseen_environment_is_drift(field: str, value: object) -> None:
    """GPU, driver, runtime, torch, triton or a switch changed: said, never blocking."""
    history = [control()]
    here = make_run(environment=make_environment(**{field: value}))
    finding = only(compare([control(run=here)], APPROVED, proposal(), seen(history)))
    assert (finding.kind, finding.blocks, finding.changed) == ("drift", False, False)
    assert "environment" in finding.detail


def test_an_environment_that_left_records_but_no_evidence_is_drift() -> None:
    """A device in the history on which the tolerance does not rest is still drift."""
    here = make_run(environment=make_environment(device="NVIDIA B200"))
    rows = [control(run=here)]
    assert only(compare(rows, APPROVED, proposal(), seen(rows))).kind == "drift"
    wider = {CELL: tolerance(devices=("NVIDIA H200", "NVIDIA B200"))}
    assert only(compare(rows, wider, proposal(), seen(rows))).kind == "false_positive"


def test_a_tolerance_without_evidence_rests_on_the_history_alone() -> None:
    """Written by hand, it has no devices to compare with."""
    rows = [control()]
    by_hand = {CELL: Tolerance(2.0**-22, 2.0, AllClose(1e-5, 1e-4))}
    assert only(compare(rows, by_hand, proposal(), seen(rows))).kind == "false_positive"
    assert only(compare(rows, by_hand, proposal(), seen([control(kernel="x")]))).blocks


@pytest.mark.parametrize("field", ["kernel_hash", "reference_hash", "op_hash"])
def test_a_changed_source_reference_or_contract_counts_as_changed(field: str) -> None:
    """Any of the three hashes makes it a regression, in a known environment or not."""
    history = seen([control()])
    for environment in (make_environment(), make_environment(device="NVIDIA B200")):
        row = control(run=make_run(environment=environment), **{field: "f" * 16})
        finding = only(compare([row], APPROVED, proposal(), history))
        assert (finding.kind, finding.blocks, finding.changed) == ("regression", True, True)


def test_a_new_kernel_counts_as_changed() -> None:
    """One that the history has never seen is judged as this pull request's work."""
    new = control(kernel="softmax_new")
    finding = only(compare([new], APPROVED, proposal(), seen([control()])))
    assert (finding.kind, finding.blocks) == ("regression", True)


def test_num_exceeding_is_not_believed() -> None:
    """The record's own count says nothing: envelopes are judged, both ways."""
    liar = control(BAD, stats=make_stats(BAD, num_exceeding=0))
    assert only(compare([liar], APPROVED, proposal(), UNSEEN)).kind == "regression"
    modest = control(FINE, stats=make_stats(FINE, num_exceeding=4096))
    assert compare([modest], APPROVED, proposal(), UNSEEN).findings == ()


def test_bias_alone_is_a_regression_with_its_reason() -> None:
    """Inside the elementwise bound, outside bias_tol: the detail says which."""
    row = control(stats=make_stats(FINE, bias=-0.75))
    finding = only(compare([row], APPROVED, proposal(), UNSEEN))
    assert (finding.kind, finding.blocks) == ("regression", True)
    assert finding.detail == "by its bias alone: -0.75, 0.3 allowed"
    assert finding.over is not None
    assert finding.over <= 1


def test_bias_of_few_elements_is_not_judged() -> None:
    """1,023 elements with an error are too few to call a bias, 1,024 are enough."""
    few = control(stats=make_stats(FINE, bias=1.0, bias_count=1023))
    enough = control(stats=make_stats(FINE, bias=1.0, bias_count=1024))
    assert compare([few], APPROVED, proposal(), UNSEEN).findings == ()
    assert only(compare([enough], APPROVED, proposal(), UNSEEN)).kind == "regression"


def test_a_non_finite_value_is_a_regression_with_its_reason() -> None:
    """However small the residual, a value not finite where the reference is fails."""
    row = control(stats=make_stats(0.0, nonfinite_mismatch=3))
    other = control(BAD, seed=2)
    finding = only(compare([other, row], APPROVED, proposal(), UNSEEN))
    assert (finding.kind, finding.blocks, finding.exceeding) == ("regression", True, 2)
    assert finding.worst == row.id
    assert finding.over is None
    assert finding.detail.startswith("3 of 4096 values are not finite where the reference is")


def test_an_infinite_envelope_is_worse_than_any_number() -> None:
    """Its residual has no number to print: observed and over are None."""
    infinite = make_stats(
        residual_max=math.inf, envelope=(math.inf,) * len(ENVELOPE_GRID), scaled_max=math.inf
    )
    finding = only(compare([control(stats=infinite)], APPROVED, proposal(), UNSEEN))
    assert (finding.kind, finding.observed, finding.over) == ("regression", None, None)


def test_a_tolerance_of_nothing_still_judges() -> None:
    """atol = scaled_tol = 0 (a bit-exact kernel) flags any residual without a warning."""
    exact = {CELL: Tolerance(0.0, 0.0, AllClose(0.0, 0.0))}
    assert only(compare([control()], exact, proposal(), UNSEEN)).kind == "regression"


# --- without an approved tolerance ----------------------------------------------------------


def test_a_control_without_an_approved_tolerance_is_uncalibrated() -> None:
    """Never a default number, and never a block, whatever the error or the proposal."""
    for future in (None, APPROVED):
        finding = only(compare([control()], {}, proposal(future), UNSEEN))
        assert (finding.kind, finding.blocks, finding.exceeding) == ("uncalibrated", False, 0)
        assert "no approved tolerance" in finding.detail
        assert (finding.over, finding.allowed) == (None, None)


def test_another_dtype_has_a_tolerance_of_its_own() -> None:
    """float16 of a calibrated op is uncalibrated until float16 is."""
    rows = [control(FINE), control(BAD, dtype="float16")]
    finding = only(compare(rows, APPROVED, proposal(), UNSEEN))
    assert (finding.kind, finding.dtype) == ("uncalibrated", "float16")


# --- buggy kernels --------------------------------------------------------------------------


def test_a_buggy_kernel_that_exceeds_is_caught() -> None:
    """Caught is good news: it blocks nothing, even when changed."""
    finding = only(compare([buggy()], APPROVED, proposal(), UNSEEN))
    assert (finding.kind, finding.blocks, finding.newly) == ("caught", False, False)
    assert finding.exceeding == 1


def test_an_escape_that_was_caught_before_blocks() -> None:
    """A known-wrong kernel caught by a gate case in the history and by none now."""
    rows = [buggy(FINE), buggy(FINE, seed=2, same_as_control=True)]
    finding = only(compare(rows, APPROVED, proposal(), caught(rows[0])))
    assert (finding.kind, finding.blocks, finding.exceeding) == ("escaped", True, 0)
    assert finding.detail == (
        "none of the 1 gate cases that caught it does now; its output differs from its control's "
        "in 1 of 2 cases"
    )


@pytest.mark.parametrize("explore", [FINE, BAD])
@pytest.mark.parametrize("others", [0, 1])
def test_fresh_cases_decide_nothing(explore: float, others: int) -> None:
    """Whether an escape blocks is the same whatever the explore cases of a run are."""
    fresh = [buggy(explore, seed=5, case_set="explore"), buggy(seed=6, case_set="explore")]
    for residual in (FINE, BAD):
        rows = [buggy(residual), *fresh[:others]]
        verdict = compare(rows, APPROVED, proposal(), caught(rows[0]))
        assert verdict.blocks is (residual == FINE)


def test_what_fresh_cases_still_catch_is_said() -> None:
    rows = [buggy(FINE), buggy(seed=5, case_set="explore")]
    finding = only(compare(rows, APPROVED, proposal(), caught(rows[0])))
    assert finding.detail.startswith(
        "none of the 1 gate cases that caught it does now, 1 explore case still; its output"
    )


@pytest.mark.parametrize("before", [
    UNSEEN,
    caught(buggy(seed=9)),  # another case
    caught(buggy(dtype="float16")),
    caught(buggy(run=make_run(environment=make_environment(device_class="gfx942")))),
])  # fmt: skip
def test_an_escape_that_this_case_never_caught_does_not_block(before: Baseline) -> None:
    """Never caught, or in another case, dtype or on another device: shown, not blocking."""
    finding = only(compare([buggy(FINE)], APPROVED, proposal(), before))
    assert (finding.kind, finding.blocks) == ("escaped", False)


def test_an_escape_beside_a_broken_control_does_not_block() -> None:
    """It is the control's regression once more: a buggy kernel is known by its difference."""
    rows = [control(BAD, kernel_hash="f" * 16), buggy(FINE)]
    verdict = compare(rows, APPROVED, proposal(), caught(buggy()))
    assert [(f.kind, f.blocks) for f in verdict.findings] == [
        ("regression", True), ("escaped", False),
    ]  # fmt: skip


def test_a_fault_that_shows_in_no_case_is_no_finding() -> None:
    """Where every output equals the control's there is nothing to catch."""
    rows = [buggy(FINE, same_as_control=True), buggy(FINE, seed=2, same_as_control=True)]
    assert compare(rows, APPROVED, proposal(), caught(rows[0])).findings == ()


def test_newly_caught_under_the_proposal_where_the_approved_tolerance_misses() -> None:
    """The tighter proposal flags what the approved tolerance lets through."""
    loose = {CELL: tolerance(atol=1.0)}
    rows = [buggy(BAD), buggy(FINE, seed=2)]
    finding = only(compare(rows, loose, proposal(APPROVED), UNSEEN))
    assert (finding.kind, finding.newly, finding.exceeding) == ("caught", True, 1)
    assert not finding.blocks


def test_newly_caught_under_the_proposal_where_the_hand_picked_one_misses() -> None:
    """With nothing approved, the hand-picked atol is the before."""
    rows = [buggy(BAD)]
    missed = only(compare(rows, {}, proposal(APPROVED), UNSEEN, legacy={CELL: 2 * BAD}))
    assert (missed.kind, missed.newly, missed.exceeding) == ("caught", True, 1)
    known = only(compare(rows, {}, proposal(APPROVED), UNSEEN, legacy={CELL: BAD / 2}))
    assert (known.kind, known.newly, known.exceeding) == ("caught", False, 1)


def test_the_approved_tolerance_and_not_the_hand_picked_one_is_the_before() -> None:
    """Once a cell is approved, legacy has no say."""
    finding = only(compare([buggy()], APPROVED, proposal(APPROVED), UNSEEN, {CELL: 1.0}))
    assert (finding.kind, finding.newly) == ("caught", False)


def test_without_any_tolerance_a_buggy_kernel_is_not_judged() -> None:
    """Nothing approved, nothing proposed: no finding."""
    assert compare([buggy()], {}, proposal(), UNSEEN).findings == ()


def test_what_only_the_hand_picked_tolerance_catches_is_not_called_caught() -> None:
    """Nothing approved and a proposal that misses: a `caught` finding has at least one case."""
    wide = proposal({CELL: tolerance(atol=1.0)})
    finding = only(compare([buggy()], {}, wide, UNSEEN, legacy={CELL: BAD / 2}))
    assert finding.kind == "escaped" or finding.exceeding > 0


def test_an_unknown_comparison_with_the_control_is_no_escape() -> None:
    """A control that crashed leaves same_as_control None: that shows no fault to catch."""
    rows = [buggy(FINE, same_as_control=None)]
    verdict = compare(rows, APPROVED, proposal(), caught(rows[0]))
    assert not verdict.blocks


def test_common_dims_of_the_flagged_cases_are_named() -> None:
    """`all with H=1025` where only those cases are flagged."""
    rows = [
        buggy(BAD, seed=1, dims=(("B", 1), ("S", 7), ("H", 1025))),
        buggy(BAD, seed=2, dims=(("B", 2), ("S", 7), ("H", 1025))),
        buggy(FINE, seed=3, dims=(("B", 2), ("S", 7), ("H", 256))),
    ]
    finding = only(compare(rows, APPROVED, proposal(), UNSEEN))
    assert finding.detail == "all with H=1025"
    assert only(compare(rows[:2], APPROVED, proposal(), UNSEEN)).detail == ""


def test_flagged_cases_that_share_no_size_are_not_explained() -> None:
    """No size in common: no guess."""
    rows = [
        buggy(BAD, seed=1, dims=(("B", 1), ("H", 3))),
        buggy(BAD, seed=2, dims=(("B", 2), ("H", 5))),
        buggy(FINE, seed=3, dims=(("B", 1), ("H", 5))),
    ]
    assert only(compare(rows, APPROVED, proposal(), UNSEEN)).detail == ""


# --- crashes and hangs ----------------------------------------------------------------------


@pytest.mark.parametrize("status", ["crashed", "timeout"])
@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize("case_set", ["gate", "explore"])
def test_a_crash_or_hang_blocks_only_if_changed_and_in_a_gate_case(
    status: str, changed: bool, case_set: str
) -> None:
    """Four combinations, one of which blocks."""
    row = control(status=status, stats=None, reason="boom", case_set=case_set)
    rows = [row, control(FINE, seed=2)]
    finding = only(compare(rows, APPROVED, proposal(), UNSEEN if changed else seen(rows)))
    assert finding.kind == "crashed"
    assert finding.blocks == (changed and case_set == "gate")
    assert (finding.exceeding, finding.cases, finding.worst) == (1, 2, row.id)
    assert finding.detail == ("hung: boom" if status == "timeout" else "raised or died: boom")


def test_what_ran_is_judged_beside_what_crashed() -> None:
    """A kernel that crashes in one case and exceeds in another has two findings."""
    rows = [control(status="crashed", stats=None, reason="boom"), control(BAD, seed=2)]
    verdict = compare(rows, APPROVED, proposal(), UNSEEN)
    assert [f.kind for f in verdict.findings] == ["regression", "crashed"]


def test_skipped_records_are_counted_and_judge_nothing() -> None:
    """A skip is no finding; its reasons are counted."""
    rows = [
        control(status="skipped", stats=None, reason="no bfloat16", seed=n, kernel=f"k{n % 2}")
        for n in range(3)
    ]
    verdict = compare([*rows, control(FINE)], APPROVED, proposal(), UNSEEN)
    assert verdict.findings == ()
    assert verdict.statuses == {"ok": 1, "skipped": 3}
    assert verdict.skipped_reasons == {"no bfloat16": 3}


def test_a_record_without_an_element_inside_the_domain_judges_nothing() -> None:
    """It is a record, and no case that a tolerance judged; a check that it fails counts."""
    outside = Outside(7, 0)
    empty = [control(stats=make_stats(0.0, count=0), seed=n, outside=outside) for n in range(3)]
    verdict = compare(empty, APPROVED, proposal(), UNSEEN)
    assert (verdict.judged, verdict.empty, verdict.records) == (0, 3, 3)
    assert verdict.findings == ()
    assert text.not_judged(verdict) == "no element of what ran lies inside the domain"
    verdict = compare(
        [*empty, control(seed=9), control(FINE, seed=8)], APPROVED, proposal(), UNSEEN
    )
    assert (verdict.judged, verdict.empty, text.not_judged(verdict)) == (2, 3, "")
    (finding,) = verdict.findings
    assert (finding.kind, finding.exceeding, finding.cases) == ("regression", 1, 2)
    failing = control(
        stats=make_stats(0.0, count=0), seed=7, checks=Checks(1, 0, 0, 0), outside=outside
    )
    verdict = compare([*empty, failing, control(FINE, seed=8)], APPROVED, proposal(), UNSEEN)
    (finding,) = verdict.findings
    assert (finding.kind, finding.exceeding, finding.cases) == ("regression", 1, 2)


# --- the whole ------------------------------------------------------------------------------


def test_the_verdict_counts_kernels_records_and_cases() -> None:
    """Two kernels on the same two cases: four records of two cases, with commit and place."""
    rows = [control(FINE, seed=s, kernel=k) for k in ("a", "b") for s in (1, 2)]
    verdict = compare(rows, APPROVED, proposal(), UNSEEN)
    assert (verdict.kernels, verdict.records, verdict.cases) == (2, 4, 2)
    assert verdict.commit == "c" * 40
    assert verdict.environment == make_environment().text


def test_a_run_without_records_is_an_empty_verdict() -> None:
    """Nothing measured: nothing found, nothing blocked."""
    verdict = compare([], APPROVED, proposal(), UNSEEN)
    assert (verdict.blocks, verdict.records, verdict.findings) == (False, 0, ())


def mixed() -> tuple[list[Record], Baseline]:
    """A run with a finding of every kind, each with one worst case."""
    b200 = make_run(environment=make_environment(device="NVIDIA B200"))
    old = [control(kernel=name) for name in ("false_b", "false_a")]
    drifting = control(kernel="drifting", run=b200)
    history = seen([*old, control(kernel="drifting"), control(FINE, kernel="crash_old")])
    records = [
        control(kernel="regress_explore", case_set="explore"),
        control(kernel="regress_gate"),
        control(BAD / 2, kernel="regress_gate", seed=2),
        *old,
        drifting,
        control(kernel="crash_old", status="crashed", stats=None, reason="boom"),
        control(kernel="crash_new", status="timeout", stats=None, reason="late"),
        control(kernel="unknown", dtype="float16"),
        buggy(),
        buggy(FINE, seed=2),
        buggy(FINE, kernel="softmax_worse"),
    ]
    return records, history


def test_findings_come_worst_first() -> None:
    """By kind, what blocks before what does not, then by name."""
    records, history = mixed()
    verdict = compare(records, APPROVED, proposal(), history)
    assert verdict.blocks
    assert [(f.kind, f.kernel) for f in verdict.findings] == [
        ("regression", "regress_gate"),
        ("regression", "regress_explore"),
        ("escaped", "softmax_worse"),
        ("crashed", "crash_new"),
        ("crashed", "crash_old"),
        ("drift", "drifting"),
        ("false_positive", "false_a"),
        ("false_positive", "false_b"),
        ("caught", "softmax_bad"),
        ("uncalibrated", "unknown"),
    ]


@settings(deadline=None, max_examples=60)
@given(st.permutations(range(len(mixed()[0]))))
def test_findings_do_not_depend_on_the_order_of_records(order: list[int]) -> None:
    """Any permutation of the records gives the same findings, word for word."""
    records, history = mixed()
    expected = compare(records, APPROVED, proposal(), history)
    shuffled = compare([records[i] for i in order], APPROVED, proposal(), history)
    assert shuffled.findings == expected.findings
    assert shuffled.statuses == expected.statuses


def test_ties_do_not_depend_on_the_order_of_records() -> None:
    """Equally bad cases and several crashes name the same record whatever came first."""
    ties = [control(seed=1), control(seed=2)]
    crashes = [
        control(kernel="k", status="crashed", stats=None, reason=f"boom {n}", seed=n)
        for n in (1, 2)
    ]
    rows = [*ties, *crashes]
    one = compare(rows, APPROVED, proposal(), UNSEEN)
    assert compare(rows[::-1], APPROVED, proposal(), UNSEEN).findings == one.findings


def test_another_compute_dtype_does_not_loosen_an_approved_tolerance() -> None:
    """scaled_tol is in unit roundoffs of the dtype it was calibrated in, and stays that bound."""
    own = tolerance(atol=0.0)
    assert own.evidence is not None
    evidence = msgspec.structs.replace(own.evidence, roundoff=2.0**-24)
    approved = {CELL: msgspec.structs.replace(own, scaled_tol=2.0, evidence=evidence)}
    u = 2.0**-8  # op.toml now says bfloat16
    envelope = tuple(max(0.0, 0.25 - c * u) for c in ENVELOPE_GRID)
    stats = make_stats(0.25, envelope=envelope, envelope_abs=envelope, scaled_max=64.0)
    wrong = control(stats=stats, roundoff=u)
    assert only(compare([wrong], approved, proposal(), UNSEEN)).kind == "regression"


def test_a_finding_says_where_its_kernel_is() -> None:
    """File, line and, of a buggy kernel, the fault; nothing where the corpus lacks the kernel."""
    kernel = Kernel("softmax_buggy", "buggy", "corpus/softmax/buggy/softmax_buggy.py", {}, "h",
                    True, "softmax_triton", "no max subtracted", 17)  # fmt: skip
    rows = [control(), buggy(kernel="softmax_buggy")]
    verdict = compare(rows, APPROVED, proposal(), UNSEEN, kernels={kernel.name: kernel})
    assert {(f.kernel, f.path, f.line, f.fault) for f in verdict.findings} == {
        ("softmax_buggy", kernel.path, 17, "no max subtracted"),
        ("softmax_triton", "", 1, ""),
    }
