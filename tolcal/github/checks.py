"""The check run named ``tolcal`` on a pull request's head: what branch protection waits for.

A workflow_run's own status lands on the default branch's commit, so the head gets a check run of
its own: in progress while the run measures, then its verdict with annotations.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from tolcal.github.client import Client
from tolcal.github.settings import Inputs, Job
from tolcal.model import Verdict, digest, one_line
from tolcal.report import findings

NAME = "tolcal"
MAX_NAME = 100
#: GitHub takes so many annotations with one request.
BATCH = 50
#: Beyond these a check says how many more there are.
MAX_ANNOTATIONS = 500
#: What begins the ids of ours: a job named ``tolcal`` makes check runs of that name, too.
_OURS = re.compile(r"run [0-9]+ [0-9]+|[0-9a-f]{16}( [0-9a-f]{16}){3}")
_LEVELS = {"error": "failure", "warning": "warning", "note": "notice"}

Conclusion = Literal["success", "failure", "neutral", "cancelled", "action_required"]


class Outcome(msgspec.Struct, frozen=True):
    """What a finished check says. ``id``: equal for the same proposal, so that it stays one."""

    id: str
    conclusion: Conclusion
    title: str
    summary: str  # Markdown
    annotations: tuple[dict[str, Any], ...] = ()


def name(inputs: Inputs) -> str:
    """What the check of that setup is called: ``tolcal``, or ``tolcal (pkg/corpus)``."""
    whole = f"{NAME} ({inputs.name})" if inputs.name else NAME
    return whole if len(whole) <= MAX_NAME else f"{whole[: MAX_NAME - 20]}... {digest(whole)}"


def waiting(run: int, attempt: int) -> str:
    """The id of a check without a proposal: that of the measuring run."""
    return f"run {run} {attempt}"


def annotations_of(verdict: Verdict | None) -> tuple[dict[str, Any], ...]:
    """Findings on the lines of their kernels, the gravest first."""
    amiss = [(f, where) for f in findings.amiss(verdict) if (where := findings.place(f))]
    shown = amiss if len(amiss) <= MAX_ANNOTATIONS else amiss[: MAX_ANNOTATIONS - 1]
    made = [
        {
            "path": where[0],
            "start_line": where[1],
            "end_line": where[1],
            "annotation_level": _LEVELS[findings.level(finding)],
            "title": findings.title(finding),
            "message": findings.sentence(finding, most=1),
        }
        for finding, where in shown
    ]
    if len(shown) < len(amiss):
        last = dict(made[-1])
        more = f"{len(amiss) - len(shown)} more findings, in the summary of the report"
        made.append(last | {"annotation_level": "notice", "title": "tolcal", "message": more})
    return tuple(made)


def start(client: Client, job: Job, sha: str, run: int, attempt: int, called: str = NAME) -> None:
    """Says on ``sha`` that the measuring run is on its way, by the check of that `name`."""
    known = _ours(client, sha, called)
    if any(c["status"] != "completed" for c in known):
        return
    mark = waiting(run, attempt)
    if any(c["external_id"] == mark for c in known):
        return  # `requested` came after `completed`
    values = {"status": "in_progress", "output": {"title": "measuring", "summary": "Measuring."}}
    _create(client, job, sha, called, mark, values, known)


def finish(client: Client, job: Job, sha: str, outcome: Outcome, called: str = NAME) -> int:
    """Completes the check on ``sha``, or makes one; returns its id.

    The same outcome again changes nothing, and a report that was cut goes on where it stopped:
    annotations add up on GitHub's side, so only those that lack are sent.
    """
    known = _ours(client, sha, called)
    open_ = [c for c in known if c["status"] != "completed"]
    # The newest is the one that counts: an older one with this outcome must not be brought back.
    if open_ or (known and known[0]["external_id"] == outcome.id):
        check = open_[0] if open_ else known[0]
    else:
        check = _create(client, job, sha, called, outcome.id, {"status": "in_progress"}, known)
    number = int(check["id"])
    output = {"title": one_line(outcome.title, 250), "summary": outcome.summary}
    sent = _sent(check) if check["external_id"] == outcome.id else 0
    left = list(outcome.annotations[sent:])
    while len(left) > BATCH:
        _send(client, number, {"external_id": outcome.id}, output, left[:BATCH], sent)
        sent, left = sent + BATCH, left[BATCH:]
    end = {
        "external_id": outcome.id, "status": "completed", "conclusion": outcome.conclusion,
    }  # fmt: skip
    _send(client, number, end, output, left, sent)
    for twin in open_[1:]:  # two events may have started one each
        _send(client, int(twin["id"]), end, output, [], 0)
    return number


def _sent(check: dict[str, Any]) -> int:
    return int((check.get("output") or {}).get("annotations_count") or 0)


def _send(
    client: Client, number: int, values: dict[str, str], output: dict[str, str],
    some: list[dict[str, Any]], sent: int,
) -> None:  # fmt: skip
    """One request. Annotations add up, so a lost answer is looked up before it is repeated."""
    path = f"check-runs/{number}"

    def done() -> dict[str, Any] | None:
        now = client.get(path)
        there = _sent(now) >= sent + len(some)
        return now if there and all(now.get(k) == v for k, v in values.items()) else None

    body = {**values, "output": output | ({"annotations": some} if some else {})}
    client.patch(path, body, done=done if some else None)


def settle(client: Client, job: Job, sha: str, outcome: Outcome, called: str = NAME) -> None:
    """Completes a check that would stay in progress for ever; makes none."""
    if any(c["status"] != "completed" for c in _ours(client, sha, called)):
        finish(client, job, sha, outcome, called)


def _ours(client: Client, sha: str, called: str) -> list[dict[str, Any]]:
    """Check runs of ours on ``sha``, the newest first."""
    path = f"commits/{sha}/check-runs"
    found = client.pages(path, "check_runs", check_name=called, filter="all")
    ours = [c for c in found if _OURS.fullmatch(str(c.get("external_id") or ""))]
    return sorted(ours, key=lambda c: -int(c["id"]))


def _create(
    client: Client, job: Job, sha: str, called: str, mark: str, values: dict[str, Any],
    known: list[dict[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    before = {c["id"] for c in known}

    def made() -> dict[str, Any] | None:
        fresh = (c for c in _ours(client, sha, called) if c["id"] not in before)
        return next((c for c in fresh if c["external_id"] == mark), None)

    body = {
        "name": called,
        "head_sha": sha,
        "external_id": mark,
        "details_url": f"{job.server_url}/{job.repository}/actions/runs/{job.run_id}",
        **values,
    }
    return client.post("check-runs", body, done=made)
