"""The steps that `tolcal ci` and the report of a pull request share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests_support import make_record, make_run, make_stats

from tolcal.history import columns
from tolcal.model import AllClose, Record, Tolerance
from tolcal.review import Review, review

APPROVED = {("softmax", "float32"): Tolerance(2.0**-22, 2.0, AllClose(1e-5, 1e-4))}
BAD = make_stats(2.0**-10)
#: 20 runs of 40 rows: enough for a fit.
PAST = [
    make_record(run=make_run(id=f"{n:016x}"), seed=1000 * n + k, stats=make_stats(k * 2.0**-30))
    for n in range(20)
    for k in range(40)
]


def judged(records: Sequence[Record], past: Sequence[Record] = (), **options: Any) -> Review:
    """A review with nothing but softmax in float32 approved."""
    given: dict[str, Any] = {"approved": APPROVED, "legacy": {}, "kernels": {}}
    return review(columns.from_records(past), records, **given | options)


def fresh(**changes: Any) -> list[Record]:
    """A gate record of a run of its own, as a pull request sends it."""
    run = make_run(id="f" * 16, origin="pull_request")
    return [make_record(**{"run": run, "case_set": "gate", "seed": 5} | changes)]


def test_a_regression_without_a_history_is_a_verdict_not_an_error() -> None:
    """The only control broke, so nothing can be fitted; that must not hide the regression."""
    found = judged(fresh(stats=BAD))
    assert [(f.kind, f.blocks) for f in found.verdict.findings] == [("regression", True)]
    assert found.proposal.cells == ()
    assert found.broken == {("softmax_triton", "float32")}
    assert not found.sound


@pytest.mark.parametrize(
    ("changed", "kind"),
    [(None, "false_positive"), (("softmax_triton",), "regression"), (("x",), "false_positive")],
)
def test_what_counts_as_changed_can_be_told(changed: tuple[str, ...] | None, kind: str) -> None:
    """Records that claim a known source don't make a changed kernel an unchanged one."""
    found = judged(fresh(stats=BAD), PAST, changed=changed)
    assert [f.kind for f in found.verdict.findings] == [kind]


def test_a_claimed_source_makes_no_regression_of_what_is_told_unchanged() -> None:
    """Nor the other way round: main moved on since its records."""
    new = fresh(stats=BAD, kernel_hash="0" * 16)
    assert judged(new, PAST).verdict.blocks
    assert not judged(new, PAST, changed=()).verdict.blocks


def test_a_broken_control_does_not_widen_its_own_tolerance() -> None:
    """Its records are judged, and stay out of the fit."""
    found = judged(fresh(stats=BAD), PAST, changed=("softmax_triton",))
    assert found.proposal.tolerances() == judged([], PAST).proposal.tolerances()


def test_a_broken_control_makes_no_new_tolerance_either() -> None:
    """Where it has none approved, what is proposed is what main's records alone give."""

    def half(record: Record) -> Record:
        case = msgspec.structs.replace(record.case, dtype="float16")
        return msgspec.structs.replace(record, case=case)

    past = [*PAST, *map(half, PAST)]
    (bad,) = fresh(stats=BAD)
    found = judged([bad, half(bad)], past, changed=("softmax_triton",))
    assert found.broken == {("softmax_triton", "float32")}
    assert ("softmax", "float16") in found.proposal.tolerances()
    assert found.proposal.tolerances() == judged([], past).proposal.tolerances()


def test_a_pull_request_is_no_evidence() -> None:
    """Attack 4: its rows can raise an envelope, count nowhere, and tighten nothing."""
    before = judged([], PAST).proposal.cells[0]
    run = make_run(id="f" * 16, origin="pull_request")
    exact = [make_record(run=run, seed=s, stats=make_stats(0.0)) for s in range(90_000, 95_000)]
    wrong = [
        msgspec.structs.replace(
            r, kernel="softmax_bad", role="buggy", corrupts="softmax_triton", stats=BAD,
            same_as_control=False,
        )
        for r in exact
    ]  # fmt: skip
    assert before.tolerance is not None
    same = judged([*exact, *wrong], PAST).proposal.cells[0]
    assert same.tolerance is not None
    assert same.tolerance.evidence == msgspec.structs.replace(
        before.tolerance.evidence, history=same.tolerance.evidence.history
    )
    assert (same.rows, same.runs, same.detectable_recall) == (before.rows, before.runs, None)
    assert same.tolerance.value_digest == before.tolerance.value_digest
    raised = judged(fresh(stats=make_stats(2.0**-22)), PAST).proposal.cells[0]
    assert raised.tolerance is not None
    assert raised.tolerance.atol > before.tolerance.atol
    assert raised.rows == before.rows
