"""A run's records against the approved tolerances and the proposal: the verdict table.

Numbers of an untrusted job are claims, so everything here is recomputed from the records'
envelopes; their own ``num_exceeding`` is not believed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np

from tolcal import bounds
from tolcal.compare import exact
from tolcal.model import (
    Baseline,
    Cell,
    ErrorStats,
    Finding,
    FindingKind,
    Kernel,
    Proposal,
    Record,
    Tolerance,
    Tolerances,
    Values,
    Verdict,
    plural,
)

_ORDER: tuple[FindingKind, ...] = (
    "regression", "escaped", "crashed", "check_failed", "drift", "false_positive", "caught",
    "uncalibrated", "out_of_domain",
)  # fmt: skip


def compare(
    records: Sequence[Record],
    approved: Tolerances,
    proposal: Proposal,
    baseline: Baseline,
    legacy: Mapping[Cell, float] | None = None,
    kernels: Mapping[str, Kernel] | None = None,
    changed: Collection[str] | None = None,
) -> Verdict:
    """Judges every kernel and dtype of a run.

    Args:
        records: those of the run, of one environment.
        approved: the tolerances in force.
        proposal: what the history, this run included, would allow.
        baseline: sources and environments that the trusted history has seen, this run excluded.
        legacy: hand-picked atol by cell, the "before" of a cell with nothing approved.
        kernels: by name, for where a finding's file is and what a buggy kernel has wrong.
        changed: names of the kernels that count as changed, whatever the records say of their
            sources; None: those with a source that the baseline has not seen.

    A cell without an approved tolerance is judged for information by the proposed one: it can
    show which buggy kernels would be caught, and never blocks.
    """
    proposed = proposal.tolerances()
    groups: dict[tuple[str, str], list[Record]] = {}
    # In an order of their own: ties must not depend on how the records came.
    for record in sorted(records, key=lambda r: (r.case_set != "gate", r.id, r.run.id)):
        groups.setdefault((record.kernel, record.case.dtype), []).append(record)
    findings: list[Finding] = []
    judged_rows = empty = 0
    # Controls first: what a broken one's buggy form does says nothing.
    for (kernel, dtype), group in sorted(groups.items(), key=lambda g: g[1][0].role == "buggy"):
        cell = (group[0].case.op, dtype)
        new = _changed(group[0], baseline, changed)
        broken = [r for r in group if r.status in ("crashed", "timeout")]
        if broken:
            findings.append(_crashed(broken, len(group), new))
        ran = [r for r in group if r.status == "ok" and r.stats is not None]
        if not ran:
            continue
        present, future = (in_units_of(t.get(cell), ran[0].roundoff) for t in (approved, proposed))
        inside = int(_inside(ran).sum())
        empty += len(ran) - inside
        judged_rows += inside if present is not None else 0
        if group[0].role == "control":
            finding = _control(ran, present, new, baseline)
            findings.extend(_out_of_domain(ran, new))
        else:
            wrong = any(f.blocks and (f.kernel, f.dtype) == (group[0].corrupts, dtype)
                        for f in findings)  # fmt: skip
            known = frozenset() if wrong else baseline.caught.get((kernel, dtype), frozenset())
            hand = (legacy or {}).get(cell)
            finding = _buggy(ran, present, future, hand, new, known)
        if finding is not None:
            findings.append(finding)
    findings = [_of(f, (kernels or {}).get(f.kernel)) for f in findings]
    findings.sort(key=lambda f: (_ORDER.index(f.kind), not f.blocks, f.op, f.kernel, f.dtype))
    first = records[0] if records else None
    return Verdict(
        blocks=any(f.blocks for f in findings),
        environment=first.run.environment.text if first else "",
        commit=first.run.commit if first else "",
        kernels=len({r.kernel for r in records}),
        records=len(records),
        cases=len({r.case.id for r in records}),
        statuses=dict(sorted(Counter(str(r.status) for r in records).items())),
        skipped_reasons=dict(
            sorted(Counter(r.reason for r in records if r.status == "skipped").items())
        ),
        findings=tuple(findings),
        judged=judged_rows,
        empty=empty,
    )


def _of(finding: Finding, kernel: Kernel | None) -> Finding:
    """The finding with what its kernel's folder says of it."""
    if kernel is None:
        return finding
    return msgspec.structs.replace(
        finding, path=kernel.path, line=kernel.line, fault=kernel.fault or ""
    )


def regressed(
    records: Sequence[Record],
    approved: Tolerances,
    baseline: Baseline,
    changed: Collection[str] | None = None,
) -> frozenset[tuple[str, str]]:
    """(kernel, dtype) of changed controls that exceed, or fail a check without a tolerance: their
    records must not enter a fit.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.role == "control" and record.status == "ok":
            groups.setdefault((record.kernel, record.case.dtype), []).append(record)
    return frozenset(
        key
        for key, group in groups.items()
        if _changed(group[0], baseline, changed)
        and (
            exact.failed(group).any()
            or (
                (cell := approved.get((group[0].case.op, key[1]))) is not None
                and (tolerance := in_units_of(cell, group[0].roundoff)) is not None
                and bounds.exceeds(judged(group), tolerance).any()
            )
        )
    )


def _changed(record: Record, baseline: Baseline, changed: Collection[str] | None) -> bool:
    """Whether the kernel, its reference or its contract is not what the history last saw."""
    if changed is not None:
        return record.kernel in changed
    hashes = (record.kernel_hash, record.reference_hash, record.op_hash)
    return hashes not in baseline.sources.get((record.kernel, record.case.dtype), frozenset())


def in_units_of(tolerance: Tolerance | None, roundoff: float) -> Tolerance | None:
    """The same bound in another unit: a changed compute_dtype must not loosen what is approved."""
    if tolerance is None:
        return None

    def scaled(values: Values) -> Values:
        evidence = values.evidence or tolerance.evidence
        unit = evidence.roundoff if evidence else None
        factor = (unit or roundoff) / roundoff
        return msgspec.structs.replace(values, scaled_tol=values.scaled_tol * factor)

    on = {device: scaled(values) for device, values in tolerance.on.items()}
    whole = scaled(tolerance)
    return msgspec.structs.replace(tolerance, scaled_tol=whole.scaled_tol, on=on)


def _inside(ran: Sequence[Record]) -> bounds.Bools:
    """Which records have an element inside the domain: statistics of none say nothing."""
    return np.array([r.stats is not None and r.stats.count > 0 for r in ran], bool)


def judged(records: Sequence[Record]) -> bounds.Rows:
    """Arrays over records; a record without envelopes (imported) never exceeds."""
    stats = [r.stats for r in records]
    assert all(s is not None for s in stats)
    known: list[ErrorStats] = [s for s in stats if s is not None]
    nothing = (math.nan,) * len(bounds.GRID)
    return bounds.Rows(
        envelope=np.array([s.envelope or nothing for s in known], np.float64),
        z=np.array([math.nan if s.scaled_max is None else s.scaled_max for s in known]),
        bias=np.array([s.bias or 0.0 for s in known], np.float64),
        bias_count=np.array([s.bias_count or 0 for s in known], np.int64),
        mismatch=np.array([s.nonfinite_mismatch or 0 for s in known], np.int64),
        device=np.array([r.run.environment.device_class for r in records], object),
    )


def _crashed(broken: list[Record], total: int, changed: bool) -> Finding:
    first = broken[0]
    hung = all(r.status == "timeout" for r in broken)
    what = "hung" if hung else "raised or died"
    return Finding(
        kind="crashed",
        op=first.case.op,
        kernel=first.kernel,
        dtype=first.case.dtype,
        blocks=changed and any(r.case_set == "gate" for r in broken),
        cases=total,
        exceeding=len(broken),
        gate_exceeding=sum(r.case_set == "gate" for r in broken),
        worst=first.id,
        worst_dims=first.case.dims_text,
        observed=None,
        allowed=None,
        over=None,
        changed=changed,
        newly=False,
        detail=f"{what}: {first.reason}",
    )


def _out_of_domain(ran: list[Record], changed: bool) -> list[Finding]:
    """A control whose values outside its domain are not of the reference's kind."""
    bad = [r for r in ran if r.outside is not None and r.outside.mismatch]
    if not bad:
        return []
    elements = sum(r.outside.mismatch for r in bad if r.outside is not None)
    of = sum(r.outside.count for r in ran if r.outside is not None)
    detail = (
        f"{elements} of {plural(of, 'element')} outside the domain are not finite where the "
        "reference is, or the other way round"
    )
    return [
        _plain_finding(
            "out_of_domain", ran, bad[0], changed, len(bad),
            sum(r.case_set == "gate" for r in bad), detail,
        )
    ]  # fmt: skip


def _control(
    ran: list[Record], tolerance: Tolerance | None, changed: bool, baseline: Baseline
) -> Finding | None:
    first = ran[0]
    failed = exact.failed(ran)
    exceeds = bounds.exceeds(judged(ran), tolerance) if tolerance else np.zeros(len(ran), bool)
    if tolerance is None and not failed.any():
        return _finding("uncalibrated", ran, None, None, changed, False, "no approved tolerance")
    flagged = exceeds | failed
    if not flagged.any():
        return None
    gate = any(r.case_set == "gate" for r, bad in zip(ran, flagged, strict=True) if bad)
    if changed:
        detail = "" if gate else "in explore cases only, so it does not block"
        return _finding("regression", ran, flagged, tolerance, True, gate, detail)
    if not exceeds.any():
        return _finding("check_failed", ran, flagged, tolerance, False, False, "")
    assert tolerance is not None
    # A device may have left records in the history without the tolerance resting on them.
    seen = baseline.environments.get(first.kernel, frozenset())
    evidence = tolerance.for_device(first.run.environment.device_class).evidence
    known_here = first.run.environment.key in seen and (
        evidence is None or first.run.environment.device in evidence.devices
    )
    if known_here:
        return _finding("false_positive", ran, flagged, tolerance, False, False, "")
    detail = "an environment that the tolerance was not calibrated in"
    return _finding("drift", ran, flagged, tolerance, False, False, detail)


def _buggy(
    ran: list[Record],
    present: Tolerance | None,
    future: Tolerance | None,
    hand: float | None,
    changed: bool,
    known: frozenset[tuple[str, str]],
) -> Finding | None:
    """Whether a known-wrong kernel is caught: by a tolerance, by a check that needs none, or by
    values outside the domain that are of another kind than its control's.

    ``known``: (device class, id) of the gate cases that have caught it. It is by these alone, the
    same in every run, that an escape blocks.
    """
    tolerance = present or future
    outside = np.array([bool(r.outside and r.outside.differing) for r in ran], bool)
    bare = exact.failed(ran) | outside  # without a tolerance
    if tolerance is None and not bare.any():
        return None
    rows = judged(ran)
    none = np.zeros(len(ran), bool)
    if present is not None:
        now = bounds.exceeds(rows, present)
    elif hand is not None:
        now = np.array([r.stats is not None and r.stats.max_abs > hand for r in ran])
    else:
        now = none
    then = bounds.exceeds(rows, future) if future is not None else none
    now, then = now | bare, then | bare
    newly = bool(then.any() and not now.any())
    flagged = then if newly or present is None else now
    before = [r.case_set == "gate" and (r.run.environment.device_class, r.case.id) in known
              for r in ran]  # fmt: skip
    lost = any(before) and not flagged[[r.case_set == "gate" for r in ran]].any()
    if lost or not flagged.any():
        shown = sum(r.same_as_control is False for r in ran)
        if not shown:
            return None  # as far as is known the fault shows in none of these cases
        detail = f"its output differs from its control's in {shown} of {len(ran)} cases"
        if lost:
            which = f"none of the {sum(before)} gate cases that caught it does now"
            others = int(flagged.sum())
            also = f", {plural(others, 'explore case')} still" if others else ""
            detail = f"{which}{also}; {detail}"
        return _finding("escaped", ran, flagged, tolerance, changed, lost, detail)
    same = _common_dims([r for r, bad in zip(ran, flagged, strict=True) if bad], ran)
    said = [same] if same else []
    if outside.any():
        said.append(f"outside the domain, by kinds, in {plural(int(outside.sum()), 'case')}")
    return _finding("caught", ran, flagged, tolerance, changed, False, "; ".join(said), newly)


def _common_dims(flagged: list[Record], ran: list[Record]) -> str:
    """``all with H=1025`` where the flagged cases share sizes that the others don't all have."""
    if not flagged or len(flagged) == len(ran):
        return ""
    shared = set(flagged[0].case.dims)
    for record in flagged:
        shared &= set(record.case.dims)
    everywhere = set(ran[0].case.dims)
    for record in ran:
        everywhere &= set(record.case.dims)
    names = [f"{n}={s}" for n, s in flagged[0].case.dims if (n, s) in shared - everywhere]
    return f"all with {' '.join(names)}" if names else ""


def _finding(
    kind: FindingKind,
    ran: list[Record],
    flagged: bounds.Bools | None,
    tolerance: Tolerance | None,
    changed: bool,
    blocks: bool,
    detail: str,
    newly: bool = False,
) -> Finding:
    observed = allowed = over = None
    worst = ran[0]
    exceeding = gate = 0
    reasons = [detail] if detail else []
    if flagged is not None:
        exceeding = int(flagged.sum())
        gate = sum(r.case_set == "gate" for r, bad in zip(ran, flagged, strict=True) if bad)
        worst = ran[int(np.argmax(flagged))]
    if tolerance is not None and flagged is not None:
        rows = judged(ran)
        used = bounds.elementwise(rows, tolerance)
        index = int(np.argmax(np.where(flagged, used, -1.0) if flagged.any() else used))
        worst = ran[index]
        stats = worst.stats
        values = tolerance.for_device(worst.run.environment.device_class)
        assert stats is not None
        if stats.scale_quantiles is not None and stats.scale_abs_quantiles is not None:
            allowed = bounds.allowed(
                values,
                worst.case.dtype,
                worst.roundoff,
                stats.scale_quantiles[1],
                stats.scale_abs_quantiles[1],
            )
        observed = _finite(stats.residual_max)
        over = _finite(float(used[index]))
        if stats.nonfinite_mismatch:
            reasons.append(
                f"{stats.nonfinite_mismatch} of {stats.count} values are not finite where the "
                "reference is, or the other way round"
            )
        elif bounds.exceeds(rows, tolerance)[index] and over is not None and over <= 1.0:
            reasons.append(f"by its bias alone: {stats.bias:+.2f}, {values.bias_tol} allowed")
    checks = exact.words(ran) if flagged is not None else ""
    if checks:
        reasons.append(f"by its bits: {checks}" if kind == "caught" else checks)
    found = _plain_finding(kind, ran, worst, changed, exceeding, gate, "; ".join(reasons))
    told = _inside(ran) if flagged is None else _inside(ran) | flagged
    return msgspec.structs.replace(
        found, cases=int(told.sum()), blocks=blocks, observed=observed, allowed=allowed, over=over,
        newly=newly, checks=checks,
    )  # fmt: skip


def _plain_finding(
    kind: FindingKind, ran: list[Record], worst: Record, changed: bool, exceeding: int, gate: int,
    detail: str,
) -> Finding:  # fmt: skip
    """One that does not block, with nothing of a tolerance in it."""
    first = ran[0]
    return Finding(
        kind=kind,
        op=first.case.op,
        kernel=first.kernel,
        dtype=first.case.dtype,
        blocks=False,
        cases=len(ran),
        exceeding=exceeding,
        gate_exceeding=gate,
        worst=worst.id,
        worst_dims=worst.case.dims_text,
        observed=None,
        allowed=None,
        over=None,
        changed=changed,
        newly=False,
        detail=detail,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
