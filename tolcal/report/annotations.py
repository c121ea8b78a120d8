"""Findings as workflow commands, which GitHub shows beside the lines of a pull request.

The form is that of "Workflow commands for GitHub Actions". A step's first ten errors, warnings
and notices are shown; so here the last of a kind says how many more there are.
"""

from __future__ import annotations

from tolcal.model import Finding
from tolcal.report import findings, text
from tolcal.report.document import Document

#: How many of a kind GitHub shows of one step.
SHOWN = 10


def render(document: Document) -> str:
    """One line a finding, the gravest first; nothing where nothing is amiss."""
    amiss = findings.amiss(document.verdict)
    lines: list[str] = []
    if why := text.not_judged(document.verdict):
        lines.append(f"::warning title=tolcal::{text.unjudged(document.blocks)}: {_data(why)}")
    for level in ("error", "warning", "note"):
        command = "notice" if level == "note" else level
        items = [f for f in amiss if findings.level(f) == level]
        shown = items if len(items) <= SHOWN else items[: SHOWN - 1]
        lines += [_annotation(command, f) for f in shown]
        if len(shown) < len(items):
            lines.append(
                f"::{command} title=tolcal::{len(items) - len(shown)} more of this kind, in the "
                "summary"
            )
    return "".join(f"{line}\n" for line in lines)


def _annotation(command: str, finding: Finding) -> str:
    where = findings.place(finding)
    properties = {"title": findings.title(finding)}
    if where is not None:
        properties = {"file": where[0], "line": str(where[1]), **properties}
    listed = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{command} {listed}::{_data(findings.sentence(finding, most=1))}"


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    # `##[` is the old form of a command, which a runner takes anywhere in a line.
    inert = _data(words.replace("##[", "##("))
    return inert.replace(":", "%3A").replace(",", "%2C")
