"""The pull-request comment and the job summary, as GitHub Markdown."""

from __future__ import annotations

import functools
from typing import Any

import jinja2

from tolcal.model import CellProposal, Finding, FindingKind, digest, plural
from tolcal.report import glyphs, text, transfer
from tolcal.report.document import Document

#: GitHub's limit is 65,536 bytes; leave room for what it adds.
MAX_BYTES = 60_000
#: GitHub's limit on the summary of a step is 1 MiB.
MAX_SUMMARY_BYTES = 1_000_000
#: Rows a list or table of the comment shows before it says how many more there are.
ROWS = 30


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tolcal.report", "templates"),
        undefined=jinja2.StrictUndefined,
        # Markdown: HTML escaping would not help; `code` and `plain` make text inert.
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for filter_ in (
        text.code, text.ident, text.plain, text.quoted, text.number, text.scientific, text.factor,
        text.over, text.residual, text.excess, text.percent, text.exact, plural,
    ):  # fmt: skip
        environment.filters[filter_.__name__] = filter_
    environment.filters["bar"] = glyphs.factor_bar
    environment.globals["claim"] = text.held_out_claim
    environment.globals["claims"] = text.held_out_claims
    environment.globals["forecast_claim"] = text.forecast_claim
    environment.globals["recall_claim"] = text.recall_claim
    environment.globals["locked_claim"] = text.locked_claim
    environment.globals["by_kernel"] = text.by_kernel
    environment.globals["together"] = text.together
    environment.globals["overrides"] = transfer.overrides
    return environment


def comment(document: Document) -> str:
    """What stands under a pull request: only what needs a decision; the rest folds.

    One line if nothing needs one. At most MAX_BYTES bytes: until it fits, rows go (their number
    stays), those of the fold first.
    """
    values = _values(document)
    template = _environment().get_template("quiet.md" if values["quiet"] else "comment.md")
    rows = folded = ROWS
    while True:
        rendered = template.render(**values, rows=rows, folded=folded)
        if len(rendered.encode()) <= MAX_BYTES or rows == 1:
            return rendered
        if folded > 1:
            folded //= 2
        else:
            rows //= 2


def summary(document: Document) -> str:
    """Every cell and every buggy kernel: for the job summary and the README.

    Whole up to MAX_SUMMARY_BYTES; then rows go as in the comment.
    """
    template = _environment().get_template("summary.md")
    values = _values(document)
    rows = 1 << 20
    while True:
        rendered = template.render(**values, rows=rows)
        if len(rendered.encode()) <= MAX_SUMMARY_BYTES or rows == 1:
            return rendered
        rows = min(rows, _longest(document)) // 2 or 1


def _longest(document: Document) -> int:
    verdict = document.verdict
    return max(len(document.proposal.cells), len(verdict.findings) if verdict else 0, 1)


def _values(document: Document) -> dict[str, Any]:
    proposal, verdict, pull = document.proposal, document.verdict, document.pull
    cells = sorted(proposal.cells, key=lambda c: (c.op, c.dtype, c.kernel or ""))

    def found(kind: FindingKind) -> list[Finding]:
        return text.by_importance(text.by_kind(verdict, kind))

    caught = found("caught")
    escaped = found("escaped")
    calibrated = [c for c in cells if c.allowed_proposed is not None]
    unjudged = found("uncalibrated")
    beyond = found("out_of_domain")
    why = text.not_judged(verdict)
    lead, rest = text.lead_and_rest(proposal, verdict, pull)
    approve = text.to_approve(proposal)
    open_ = {
        "regressions": found("regression"),
        "escaped": [f for f in escaped if f.blocks],
        "new_escapes": text.by_importance(text.new_escapes(verdict)),
        "crashed": found("crashed"),
        "failed_checks": found("check_failed"),
        "drift": found("drift"),
        "approve": approve,
        "newly": [f for f in caught if f.newly],
        "false_positives": found("false_positive"),
    }
    return open_ | {
        "quiet": not any(open_.values()) and not (pull and pull.blocks) and not why,
        "why": why,
        "blocked": document.blocks,
        "not_held": text.unjudged(document.blocks).capitalize(),
        "tighten": [c for c in approve if c.state == "tighten"],
        "new": [c for c in approve if c.state == "new"],
        "approvable": text.approvable(proposal),
        "counts": _counts(cells, len(unjudged), len(beyond)),
        "pull": pull,
        "report": text.link(pull.report_url) if pull else "",
        "name": pull.name if pull else "",
        "named": digest("name", pull.name) if pull and pull.name else "",
        "marked": pull.run if pull else proposal.digest,
        "head": verdict.commit if verdict else "",
        "base": document.base,
        "attempt": document.attempt,
        "headline": text.headline(proposal, verdict, pull),
        "transfer": transfer.claim(proposal),
        "transfer_lines": transfer.lines(proposal),
        "lead": lead,
        "rest": rest,
        "blocks": document.blocks,
        "next_step": text.next_step(proposal, verdict, pull),
        "p": proposal,
        "v": verdict,
        "skips": text.skips(verdict) if verdict else [],
        "skipped": verdict.statuses.get("skipped", 0) if verdict else 0,
        "known_escapes": [f for f in escaped if not f.blocks and not f.changed],
        "caught": caught,
        "uncalibrated": [c for c in cells if c.state == "uncalibrated"],
        "unjudged": unjudged,
        "beyond": beyond,
        "proposed": {(c.op, c.dtype): c for c in cells} if text.approvable(proposal) else {},
        "median": _median([c.tightening for c in calibrated]),
        "median_paper": _median(
            [
                c.allowed_paper / c.allowed_proposed
                for c in calibrated
                if c.allowed_paper and c.allowed_proposed
            ]
        ),
    }


def _counts(cells: list[CellProposal], unjudged: int, beyond: int) -> str:
    """Cells that nothing is to be decided of, each in one count, and kernels without a bound."""
    states = [
        "for comparison alone" if c.tolerance is None and c.state != "uncalibrated" else c.state
        for c in cells
    ]
    words = {"unchanged": "unchanged", "looser": "would be looser", "uncalibrated": "uncalibrated"}
    words["for comparison alone"] = "for comparison alone"
    parts = [f"{n} {said}" for state, said in words.items() if (n := states.count(state))]
    if not parts:
        parts = ["0 unchanged"] if cells else ["0 calibrated"]
    first = parts[0]
    count, _, said = first.partition(" ")
    parts[:1] = [f"{plural(int(count), 'cell')} {said}"]
    if unjudged:
        parts.append(f"{plural(unjudged, 'result')} without an approved tolerance")
    if beyond:
        parts.append(f"{plural(beyond, 'result')} of other kinds outside the domain")
    return ", ".join(parts)


def _median(values: list[float | None]) -> float | None:
    known = sorted(v for v in values if v is not None)
    if not known:
        return None
    middle = len(known) // 2
    return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2
