"""The pull-request comment and the job summary, as GitHub Markdown."""

from __future__ import annotations

from typing import Any

import jinja2

from tolcal.report import text
from tolcal.report.document import Document

#: GitHub's limit is 65,536 bytes; leave room for what it adds.
MAX_BYTES = 60_000
#: Rows a table shows before it says how many more there are.
ROWS = 30


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
    for name in ("code", "ident", "plain", "number", "scientific", "factor", "percent", "plural"):
        environment.filters[name] = getattr(text, name)
    environment.globals["claim"] = text.held_out_claim
    environment.globals["locked_claim"] = text.locked_claim
    return environment


def comment(document: Document) -> str:
    """What stands under a pull request: only what needs a decision; the rest folds.

    At most MAX_BYTES bytes: tables are cut, with the number of rows left out, until it fits.
    """
    template = _environment().get_template("comment.md")
    rows = ROWS
    while True:
        rendered = template.render(**_values(document), rows=rows)
        if len(rendered.encode()) <= MAX_BYTES or rows == 1:
            return rendered
        rows //= 2


def summary(document: Document) -> str:
    """Every cell and every buggy kernel, uncut: for the job summary and the README."""
    return _environment().get_template("summary.md").render(**_values(document))


def _values(document: Document) -> dict[str, Any]:
    proposal, verdict = document.proposal, document.verdict
    uncalibrated = [c for c in proposal.cells if c.state == "uncalibrated"]
    unchanged = [c for c in proposal.cells if c.state == "unchanged"]
    caught = text.by_kind(verdict, "caught")
    calibrated = [c for c in proposal.cells if c.allowed_proposed is not None]
    return {
        "head": verdict.commit if verdict else "",
        "base": document.base,
        "attempt": document.attempt,
        "headline": text.headline(proposal, verdict),
        "p": proposal,
        "v": verdict,
        "approve": text.to_approve(proposal),
        "regressions": text.by_kind(verdict, "regression"),
        "escaped": text.by_kind(verdict, "escaped"),
        "crashed": text.by_kind(verdict, "crashed"),
        "drift": text.by_kind(verdict, "drift"),
        "false_positives": text.by_kind(verdict, "false_positive"),
        "caught": caught,
        "newly": [f for f in caught if f.newly],
        "unchanged": unchanged,
        "looser": [c for c in proposal.cells if c.state == "looser"],
        "uncalibrated": uncalibrated,
        "proposed": {(c.op, c.dtype): c for c in proposal.cells},
        "median": _median([c.tightening for c in calibrated]),
        "median_paper": _median(
            [
                c.allowed_paper / c.allowed_proposed
                for c in calibrated
                if c.allowed_paper and c.allowed_proposed
            ]
        ),
        "calibrated": calibrated,
    }


def _median(values: list[float | None]) -> float | None:
    known = sorted(v for v in values if v is not None)
    if not known:
        return None
    middle = len(known) // 2
    return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2
