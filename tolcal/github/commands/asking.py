"""``status``, ``explain`` and ``rerun``: what changes no tolerance."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from tolcal import tomlfile
from tolcal.github import judging, report
from tolcal.github.approvals import below
from tolcal.github.commands import replies
from tolcal.github.commands.asked import Answer, Asked
from tolcal.github.commands.deciding import open_pull
from tolcal.github.judging import Judged
from tolcal.model import (
    Cell,
    CellProposal,
    KernelPlot,
    ShapeShare,
    TolcalError,
    Tolerance,
    Values,
    plural,
)
from tolcal.report import text, transfer
from tolcal.tolerances import approving


def status(asked: Asked) -> Answer:
    """The present proposal, and which cells of the head's file count."""
    judged = judging.judge(asked.client, asked.inputs, asked.job, open_pull(asked))
    proposal, verdict = judged.document.proposal, judged.document.verdict
    head = text.code(judged.pull.head_sha[:7])
    measured = "" if judged.measured == judged.pull.head_sha else (
        f" (measured at {text.code(judged.measured[:7])}, approvals are above it)"
    )  # fmt: skip
    lines = [
        f"**{text.headline(proposal, verdict)}** Head {head}{measured}, proposal "
        f"{text.code(proposal.digest)}.",
        replies.to_copy(proposal),
    ]
    base = judged.base_file
    counted = {cell: t for cell, t in judged.in_force.items() if t is not base.get(cell)}
    if counted:
        rows = [f"- {_cell(cell)}: {_by(t)}" for cell, t in sorted(counted.items())]
        lines.append("Approved on this head, and counted:\n\n" + _some(rows))
    if judged.refused:
        refused = sorted(judged.refused.items())
        rows = [f"- {_cell(cell)}: {text.plain(why)}" for cell, why in refused]
        lines.append("On this head and **not counted**:\n\n" + _some(rows))
    # An approval may have lost its comment since the check was made.
    again = functools.partial(report.publish, asked.client, asked.inputs, asked.job, judged)
    return Answer("\n\n".join(lines), then=again)


def explain(asked: Asked, cell: Cell) -> Answer:
    """What a cell's tolerance rests on, and the record that comes nearest to it."""
    judged = judging.judge(asked.client, asked.inputs, asked.job, open_pull(asked))
    proposal = judged.document.proposal
    found = next((c for c in proposal.cells if (c.op, c.dtype) == cell), None)
    force = judged.in_force.get(cell)
    if found is None and force is None:
        names = approving.by_name((c.op, c.dtype) for c in proposal.cells)
        hint = tomlfile.did_you_mean("/".join(cell), names)
        raise TolcalError(f"{'/'.join(cell)}: neither approved nor in the history{hint}")
    lines = [f"**{_cell(cell)}**"]
    lines.append(f"- in force: {_bound(force)}; {_by(force)}" if force else "- nothing is approved")
    if force and force.evidence:
        rest = force.evidence
        lines.append(
            f"- it rests on {plural(rest.rows, 'row')} of {plural(rest.runs, 'run')} on "
            f"{text.plain(', '.join(rest.devices))}; "
            f"{text.held_out_claim(rest.held_out.red, rest.held_out.runs)}; detectable recall "
            f"{text.percent(rest.detectable_recall)}"
        )
    if found:
        lines += _proposed(found)
    lines += _here(judged, cell)
    return Answer("\n".join([lines[0], "", *lines[1:]]))


def _proposed(cell: CellProposal) -> Iterator[str]:
    if cell.tolerance is None:
        yield f"- not calibrated: {text.plain(cell.note)}"
    else:
        yield (
            f"- proposed ({cell.state}): {_bound(cell.tolerance)}; of the error at the median "
            f"element {text.scientific(cell.allowed_now)} is allowed now, "
            f"{text.scientific(cell.allowed_proposed)} proposed ({text.factor(cell.tightening)})"
            + (f"; {text.plain(cell.note)}" if cell.note else "")
        )
        for line in transfer.overrides(cell):
            need = line.need
            yield (
                f"- on {text.ident(need.device_class)}: "
                f"{_bound(cell.tolerance.for_device(need.device_class))}; "
                f"{text.scientific(need.allowed_now)} is allowed now, "
                f"{text.scientific(need.allowed_proposed)} proposed "
                f"({text.factor(need.tightening)})"
            )
    held = cell.held_out
    yield (
        f"- from {plural(cell.rows, 'row')} of {plural(cell.runs, 'run')} on "
        f"{text.plain(', '.join(cell.devices)) or 'no device'}; "
        f"{text.held_out_claim(held.runs_with_false_alarms, held.runs)}; detectable recall "
        f"{text.percent(cell.detectable_recall)}"
    )
    worst = _worst(cell)
    if worst is not None and cell.plots is not None:
        kernel, shape = worst
        yield (
            f"- worst case of a control: {text.code(kernel.kernel)} at {text.code(shape.dims)} "
            f"needs {text.number(shape.share)} of what is {cell.plots.judged_by}; "
            f"{text.code(f'tolcal replay {kernel.kernel}:{shape.case}')}"
        )


def _worst(cell: CellProposal) -> tuple[KernelPlot, ShapeShare] | None:
    """The control's record that uses most of the tolerance."""
    kernels = cell.plots.kernels if cell.plots else ()
    shapes = [(k, s) for k in kernels if k.role == "control" for s in k.shapes]
    return max(shapes, key=lambda pair: pair[1].share, default=None)


def _here(judged: Judged, cell: Cell) -> Iterator[str]:
    """What the run of this pull request found in the cell."""
    verdict = judged.document.verdict
    for f in verdict.findings if verdict else ():
        if (f.op, f.dtype) == cell and f.worst:
            yield (
                f"- here: {f.kind.replace('_', ' ')} of {text.code(f.kernel)} in {f.exceeding} of "
                f"{plural(f.cases, 'case')}, worst at {text.code(f.worst_dims)}; "
                f"{text.code(f'tolcal replay {f.worst}')}"
            )


def rerun(asked: Asked) -> Answer:
    """Runs the measuring run of the head once more."""
    client, pull = asked.client, open_pull(asked)
    heads, head = below(client, asked.inputs, pull.head_sha, pull.merge_base)
    runs = judging.runs(client, asked.inputs, *heads)
    if not runs:
        raise TolcalError(
            f"no run of {asked.inputs.run_workflow} has measured {head[:7]}; push, or close and "
            "reopen the pull request, to start one"
        )
    run = runs[0]
    link = f"{asked.job.server_url}/{asked.job.repository}/actions/runs/{run.id}"
    if run.status != "completed":
        return Answer(f"[Attempt {run.attempt}]({link}) of {text.code(head[:7])} is on its way.")

    def again() -> dict[str, Any] | None:
        now = client.get(f"actions/runs/{run.id}")
        return now if int(now.get("run_attempt") or 0) > run.attempt else None

    client.post(f"actions/runs/{run.id}/rerun", {}, done=again)
    return Answer(f"Measuring {text.code(head[:7])} again: [attempt {run.attempt + 1}]({link}).")


def _cell(cell: Cell) -> str:
    return text.code("/".join(cell))


def _bound(tolerance: Values) -> str:
    bias = "" if tolerance.bias_tol is None else f", bias at most {tolerance.bias_tol:g}"
    slope = f"{tolerance.scaled_tol:g} u (&#124;ref&#124; + sigma)"
    return f"residual at most {tolerance.atol:g} + {slope}{bias}"


def _by(tolerance: Tolerance) -> str:
    mark = tolerance.approved
    if mark is None:
        return "nobody has approved it"
    where = f" in #{mark.pr}" if mark.pr is not None else ""
    because = f" because {text.plain(mark.reason)}" if mark.reason else ""
    return f"approved by {text.code(mark.by)} at {text.code(mark.at)}{where}{because}"


def _some(rows: list[str]) -> str:
    more = [f"- and {len(rows) - 50} more"] if len(rows) > 50 else []
    return "\n".join(rows[:50] + more)
