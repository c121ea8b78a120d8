"""What a failing ``assert_close`` says."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path

from tolcal.model import Evidence, one_line
from tolcal.testing.arrays import Compared
from tolcal.testing.cells import Found
from tolcal.testing.judging import Judgement, Worst
from tolcal.testing.observing import current_test, drawn

#: So many times its bound no history with more rows reaches.
FAULT = 100.0


def failure(op: str, compared: Compared, found: Found, judgement: Judgement, u: float) -> str:
    """Several lines: how much fails, the worst of it, which bound, on what evidence, what next."""
    dtype = compared.dtype.name
    lines = [f"{op}/{dtype} is outside its tolerance ({found.where})", ""]
    if judgement.exceeding:
        share = 100 * judgement.exceeding / judgement.count
        lines.append(
            f"Mismatched elements: {judgement.exceeding} / {judgement.count} ({share:.1f}%)"
        )
    if judgement.first_mismatch:
        lines.append(
            f"Not finite here or in the reference, but not in both alike: {judgement.mismatches}, "
            f"first at {_element(judgement.first_mismatch, dtype, judge_size=False)}"
        )
    worst, scaled = judgement.worst, judgement.worst_scaled
    if judgement.exceeding > judgement.mismatches and worst and scaled:
        units = f"{scaled.scaled:.3g} u of the scale"
        if scaled == worst:
            lines.append(f"Greatest residual and scaled error ({units}): {_element(worst, dtype)}")
        else:
            lines.append(f"Greatest residual: {_element(worst, dtype)}")
            lines.append(f"Greatest scaled error: {units}, {_element(scaled, dtype)}")
    if judgement.bias_fails:
        lines.append(
            f"Bias: errors of {judgement.bias_count} elements point one way, "
            f"mean(sign(ref)*(out-ref)) / mean|out-ref| = {judgement.bias:.2f}, at most "
            f"{judgement.bias_tol:g} either way allowed: truncation, or a coherent fault"
        )
    lines += ["", f"Bound: {_bound(compared, found, u)}"]
    lines.append(f"Evidence: {_evidence(found)}")
    lines += [f"Again: {_again()}", _advice(f"{op}/{dtype}", judgement)]
    return "\n".join(lines)


def _again() -> str:
    """The command that runs this test on these inputs."""
    test = current_test()
    if not test:
        return "the same call"
    seed = f" --tolcal-seed {drawn[test]}" if test in drawn else ""
    # Node ids start at pytest's root folder, its arguments here.
    file, colons, rest = test.partition("::")
    here = Path.cwd()
    root = next((f for f in (here, *here.parents) if (f / file).is_file()), here)
    named = os.path.relpath(root / file, here)
    return f"pytest {one_line(shlex.quote(named + colons + rest), 4000)}{seed}"


def _advice(cell: str, judgement: Judgement) -> str:
    if judgement.mismatches:
        return (
            "A value that is not finite is no noise, and no tolerance covers it: look at the "
            "kernel, its inputs and the reference"
        )
    fault = (
        f"At {judgement.used:.3g}x its bound this looks like a fault, not noise: check the kernel, "
        "its inputs and the reference first. "
        if judgement.used > FAULT
        else ""
    )
    return fault + (
        "If the kernel is right and this is noise, the cell needs more evidence (a control has 720 "
        "rows or more): parametrize the test over seeds, record sessions into a history, and ask "
        "for more: pytest --tolcal-record out/history; tolcal calibrate --history out/history "
        f"--json out/proposal.json; tolcal approve out/proposal.json {cell} --widen REASON. A "
        "session in which a comparison failed becomes a file beside the history, as it says: give "
        "that as one more --history"
    )


def _element(worst: Worst, dtype: str, *, judge_size: bool = True) -> str:
    digits = 17 if dtype == "float64" else 9
    text = f"index {worst.index}: out {worst.out:.{digits}g}, ref {worst.ref:.{digits}g}"
    if not judge_size:
        return text
    over = worst.residual / worst.allowed if worst.allowed else math.inf
    return f"{worst.residual:.3g} at {text}, allowed {worst.allowed:.3g} ({over:.3g}x)"


def _bound(compared: Compared, found: Found, u: float) -> str:
    values, dtype = found.values, compared.dtype.name
    residual = f"|out - ref| beyond half a gap of {dtype}"
    unit = f"u = 2^{math.log2(u):g}"
    if compared.kind == "function":
        return (
            f"residual <= atol {values.atol:g} + scaled_tol {values.scaled_tol:g} * u * "
            f"(|ref| + sigma), {unit}; residual = {residual}"
        )
    what = "the reference is a value, so its conditioning is unknown"
    if compared.kind == "rounded":
        residual = f"|out - ref| beyond a whole gap of {dtype}, since ref was rounded too"
    pair = values.allclose
    return (
        f"the pair allclose = {{atol = {pair.atol:g}, rtol = {pair.rtol:g}}} less its rounding, "
        f"on residual = {residual} ({what})"
    )


def _evidence(found: Found) -> str:
    evidence, approved = found.values.evidence, found.values.approved
    text = _rests_on(evidence) if evidence else "none: the cell was written by hand"
    if approved is None:
        return f"{text}; not approved"
    reason = f" because {approved.reason}" if approved.reason else ""
    return one_line(f"{text}; approved by {approved.by} at {approved.at}{reason}", 500)


def _rests_on(evidence: Evidence) -> str:
    held = evidence.held_out
    return (
        f"rule {evidence.rule}, margin {evidence.margin:g}, {evidence.rows} rows of "
        f"{evidence.runs} runs on {', '.join(evidence.devices)}; {held.red} of {held.runs} "
        "held-out runs red"
    )
