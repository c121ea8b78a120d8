"""Findings as SARIF 2.1.0 (OASIS), for code scanning and editors.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from tolcal import __version__
from tolcal.model import Finding, FindingKind, digest, one_line, plural
from tolcal.report import findings, text
from tolcal.report.document import Document

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
#: GitHub shows as many of an upload, and refuses more than 25,000.
MAX_RESULTS = 5_000

#: For a kernel whose file is not known: code scanning refuses an upload with a result that has no
#: location, and this is where its tolerance stands.
ELSEWHERE = ("tolerances.toml", 1)

_RULES = list(findings.KINDS)
#: In a message, brackets are links and braces placeholders (3.11.5, 3.11.6 of the standard).
_PLAIN = str.maketrans("[]{}", "()()")


def render(document: Document) -> str:
    """One run with a result for each finding that is something amiss, the gravest first."""
    amiss = findings.amiss(document.verdict)
    verdict, proposal = document.verdict, document.proposal
    invocation: dict[str, Any] = {"executionSuccessful": True}
    said = []
    if why := text.not_judged(verdict):
        said.append(f"{text.unjudged(document.blocks).capitalize()}: {why}")
    if len(amiss) > MAX_RESULTS:
        left = plural(len(amiss) - MAX_RESULTS, "finding")
        said.append(f"{left} of the least weight are left out")
    if said:
        invocation["toolExecutionNotifications"] = [
            {"level": "warning", "message": {"text": words}} for words in said
        ]
    run = {
        "tool": {
            "driver": {
                "name": "tolcal",
                "version": __version__,
                "rules": [_rule(kind) for kind in _RULES],
            }
        },
        "automationDetails": {"id": "tolcal/"},
        "invocations": [invocation],
        "results": [_result(f) for f in amiss[:MAX_RESULTS]],
        "properties": {
            "proposal": one_line(proposal.digest, 64),
            "history": one_line(proposal.history, 64),
            "commit": one_line(verdict.commit, 64) if verdict else "",
            "environment": one_line(verdict.environment, 400) if verdict else "",
        },
    }
    content = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n"


def _rule(kind: FindingKind) -> dict[str, Any]:
    name, meaning = findings.KINDS[kind]
    return {
        "id": kind,
        "name": name.title().replace(" ", ""),
        "shortDescription": {"text": name},
        "fullDescription": {"text": meaning},
        "help": {"text": "Run `tolcal replay` with the id in the message to see it again."},
    }


def _result(finding: Finding) -> dict[str, Any]:
    f = finding
    title, sentence = findings.title(f), findings.sentence(f)
    result: dict[str, Any] = {
        "ruleId": f.kind,
        "ruleIndex": _RULES.index(f.kind),
        "level": findings.level(f),
        "message": {"text": f"{title}: {sentence}".translate(_PLAIN)},
        # The same finding in the next run is the same alert, whatever its numbers and line.
        "partialFingerprints": {"tolcal/v1": digest(f.kind, f.op, f.kernel, f.dtype)},
    }
    path, line = findings.place(f) or ELSEWHERE
    artifact = {"uri": quote(path), "uriBaseId": "%SRCROOT%"}
    physical = {"artifactLocation": artifact, "region": {"startLine": line}}
    result["locations"] = [{"physicalLocation": physical}]
    names = ("op", "kernel", "dtype", "worst", "worst_dims")
    numbers = ("cases", "exceeding", "gate_exceeding", "observed", "allowed", "over", "changed")
    result["properties"] = {n: one_line(getattr(f, n), 200) for n in names} | {
        n: getattr(f, n) for n in numbers
    }
    return result
