"""Verdicts without a tolerance: failed checks, and values outside the domain."""

from __future__ import annotations

from typing import Any

import pytest
from test_compare import APPROVED, UNSEEN, buggy, caught, control, only, proposal, seen

from tolcal.compare import compare, regressed
from tolcal.model import Checks, Outside
from tolcal.report import findings, text

FINE = 2.0**-24


def checks(**counts: Any) -> Checks:
    return Checks(**{"unwritten": 0, "stray": 0, "inputs_changed": 0, "unrepeatable": 0} | counts)


FAILING = {
    "unwritten": ("4 elements left unwritten", {}),
    "stray": ("4 elements written outside of tensors", {}),
    "inputs_changed": ("4 elements of inputs written to", {}),
    "unrepeatable": ("4 elements with other bits in another launch", {}),
    "batch": ("4 elements whose bits depend on the batch", {}),
    "broken": ("4 elements that break a relation (shift 3.5, odd 2)", {"shift": 3.5, "odd": 2.0}),
}


def test_checks_that_pass_are_no_finding() -> None:
    record = control(FINE, checks=checks(batch=0, odd=3.0, broken=0))
    assert compare([record], APPROVED, proposal(), seen([record])).findings == ()


@pytest.mark.parametrize("name", list(FAILING))
@pytest.mark.parametrize("tolerances", [APPROVED, {}])
def test_a_changed_control_that_fails_a_check_regresses(name: str, tolerances: Any) -> None:
    """It blocks on a gate case, whatever is approved, and says which check, how often, where."""
    said, more = FAILING[name]
    good = control(FINE, checks=checks(), seed=2)
    bad = control(FINE, checks=checks(**{name: 4}, **more))
    finding = only(compare([good, bad], tolerances, proposal(), UNSEEN))
    assert (finding.kind, finding.blocks, finding.exceeding) == ("regression", True, 1)
    assert finding.worst == bad.id
    assert f"{name} in 1 case: {said} at B=1 S=7 H=1025 ({bad.id})" in finding.detail
    assert text.over(finding) == "by a check"
    assert "not finite" not in findings.sentence(finding)
    assert regressed([good, bad], tolerances, UNSEEN) == {("softmax_triton", "float32")}


def test_in_explore_cases_alone_it_does_not_block() -> None:
    bad = control(FINE, checks=checks(stray=1), case_set="explore")
    finding = only(compare([bad], APPROVED, proposal(), UNSEEN))
    assert (finding.kind, finding.blocks) == ("regression", False)


@pytest.mark.parametrize("tolerances", [APPROVED, {}])
def test_an_unchanged_control_fails_a_check_without_blocking(tolerances: Any) -> None:
    """No fault of a tolerance, so it is no false positive, and nothing is to be widened."""
    bad = control(FINE, checks=checks(unrepeatable=2))
    finding = only(compare([bad], tolerances, proposal(), seen([bad])))
    assert (finding.kind, finding.blocks, finding.exceeding) == ("check_failed", False, 1)


def test_a_tolerance_that_is_exceeded_too_stays_what_it_is() -> None:
    bad = control(checks=checks(unrepeatable=2))
    finding = only(compare([bad], APPROVED, proposal(), seen([bad])))
    assert finding.kind == "false_positive"
    assert "unrepeatable in 1 case" in finding.detail
    assert text.over(finding).endswith("x")


@pytest.mark.parametrize("tolerances", [APPROVED, {}])
def test_a_buggy_kernel_is_caught_by_its_bits(tolerances: Any) -> None:
    bad = buggy(FINE, checks=checks(unwritten=1))
    finding = only(compare([bad], tolerances, proposal(), caught(bad)))
    assert (finding.kind, finding.blocks, finding.exceeding) == ("caught", False, 1)
    assert finding.detail.startswith("by its bits: unwritten in 1 case")


def test_a_buggy_kernel_is_caught_outside_the_domain() -> None:
    """By kinds that are not its control's; not by those that both have."""
    bad = buggy(FINE, outside=Outside(9, 9, 3))
    finding = only(compare([bad], APPROVED, proposal(), caught(bad)))
    assert (finding.kind, finding.detail) == (
        "caught", "outside the domain, by kinds, in 1 case",
    )  # fmt: skip
    same = buggy(FINE, outside=Outside(9, 9, 0))
    assert only(compare([same], APPROVED, proposal(), UNSEEN)).kind == "escaped"


def test_other_kinds_outside_the_domain_are_shown_and_never_block() -> None:
    records = [
        control(FINE, outside=Outside(10, 3)),
        control(FINE, outside=Outside(6, 0), seed=2),
        control(FINE, seed=3),
    ]
    verdict = compare(records, APPROVED, proposal(), UNSEEN)
    finding = only(verdict)
    assert (finding.kind, finding.blocks, verdict.blocks) == ("out_of_domain", False, False)
    assert (finding.exceeding, finding.cases) == (1, 3)
    assert finding.detail.startswith("3 of 16 elements outside the domain")
    assert findings.level(finding) == "note"
    assert regressed(records, APPROVED, UNSEEN) == frozenset()
