"""A pull request's verdict, recomputed from what it claims: for the report and for commands.

Its numbers are claims, so nothing but its records is taken from it: which files it changes is
asked of the API, the tolerances are the merge base's and what a maintainer approved since, the
code is the default branch's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from tolcal import corpus, tolerances
from tolcal.github import approvals, artifacts, binding, histories, overlay, pulls, stricter
from tolcal.github.client import ApiError, Client, NotFound
from tolcal.github.pulls import Pull
from tolcal.github.settings import Inputs, Job
from tolcal.model import Cell, Op, Record, TolcalError, Tolerance, digest, one_line, plural
from tolcal.report.document import Document, OnPull, Remark
from tolcal.review import review

#: Kernels and dtypes that the records of a run may be of: each costs some 30 ms.
MAX_GROUPS = 4000


class Measuring(msgspec.Struct, frozen=True):
    """A run of the workflow that measures, as GitHub has it now."""

    id: int
    attempt: int
    status: str
    conclusion: str  # "" while it runs
    head_sha: str

    @property
    def order(self) -> tuple[int, int]:
        """Later runs have higher ids."""
        return (self.id, self.attempt)


class Judged(msgspec.Struct, frozen=True):
    """What is known of a pull request's head."""

    pull: Pull
    run: Measuring
    measured: str  # commit: the head, without approval commits of ours on top of it
    heads: tuple[str, ...]  # commits whose runs are runs of this head: from the head to that one
    document: Document  # proposal and verdict; the proposal's digest is bound to ``measured``
    base_file: dict[Cell, Tolerance]  # of the merge base and the base's tip, what is stricter
    head_file: dict[Cell, Tolerance] | None  # None: it can't be read
    in_force: dict[Cell, Tolerance]  # the base's, and those of the head that count
    refused: dict[Cell, str]  # cells that the head changes and that don't count, and why
    ops: tuple[Op, ...]

    @property
    def mark(self) -> str:
        """All that the proposal is bound to: names the check of it."""
        proposal = self.document.proposal
        base = binding.base_digest(self.pull.base_ref, self.in_force)
        cells = digest("cells", binding.bound_cells(proposal))
        return f"{proposal.digest} {base} {proposal.history} {cells}"


def judge(
    client: Client, inputs: Inputs, job: Job, pull: Pull, run: Measuring | None = None
) -> Judged:
    """Everything recomputed for the head of ``pull``.

    Args:
        run: a completed one that is known already; the newest for the head is taken.

    Raises:
        artifacts.Missing: there are no records (yet).
        artifacts.Rejected: the records break a rule.
        TolcalError: the base's files or the history can't be used.
    """
    heads, measured = approvals.below(client, inputs, pull.head_sha, pull.merge_base)
    run = newest(client, inputs, heads, run)
    fresh = run.conclusion != "success"
    claimed = artifacts.records(client, run.id, run.attempt, fresh=fresh)
    records = artifacts.stamp(claimed, "pull_request")
    past = histories.read(client, inputs, job)
    left = _tolerances(client, inputs, pull.merge_base)
    base_file, moved = left, frozenset[Cell]()
    if pull.base_sha != pull.merge_base:
        base_file, moved = stricter.of_both(left, _tolerances(client, inputs, pull.base_sha))
    head_file, unusable = _head_file(client, inputs, pull, left)
    theirs = left if head_file is None else head_file
    # A cell that the head leaves as it found it is the base's, whatever that is by now.
    own = {cell: t for cell, t in theirs.items() if t != left.get(cell)}
    checked = approvals.verified(client, inputs, pull, base_file | own, base_file)
    in_force = base_file | dict(checked.counted)
    refused = dict(checked.refused)
    for cell in left.keys() - theirs.keys():
        refused[cell] = "it was removed; a cell without a tolerance is judged by nothing"
    laid = overlay.overlay(client, pull, inputs.corpus)
    _check_kernels(records, laid)
    found = review(
        past.table,
        records,
        approved=in_force,
        legacy={(op.name, d): atol for op in laid.ops for d, atol in op.legacy_atol.items()},
        reductions=corpus.reductions(laid.ops),
        subtle=corpus.subtle(laid.ops),
        checked=corpus.found_by_checks(laid.ops),
        kernels=laid.kernels,
        rule=inputs.rule,
        budget=inputs.budget,
        changed=laid.changed_of(records),
    )
    bound = binding.proposal_digest(
        measured,
        binding.base_digest(pull.base_ref, in_force),
        found.proposal.history,
        binding.bound_cells(found.proposal),
    )
    document = Document(
        proposal=msgspec.structs.replace(found.proposal, digest=bound),
        verdict=msgspec.structs.replace(found.verdict, commit=pull.head_sha),
        base=pull.merge_base,
        attempt=str(run.attempt),
        pull=OnPull(
            number=pull.number,
            run=run.id,
            name=inputs.name,
            report_url=f"{job.server_url}/{job.repository}/actions/runs/{job.run_id}#artifacts",
            counted=tuple("/".join(cell) for cell in sorted(checked.counted)),
            unapproved=tuple(Remark("/".join(c), why) for c, why in sorted(refused.items())),
            gone=tuple(r for r in laid.gone(in_force) if tuple(r.what.split("/")) not in refused),
            unmeasured=laid.unmeasured(records, in_force),
            unusable=(*unusable, *laid.unusable),
            notes=(*_moved(pull, moved), *past.notes, *laid.notes),
            self_approval=inputs.self_approval,
        ),
    )
    return Judged(
        pull=pull,
        run=run,
        measured=measured,
        heads=heads,
        document=document,
        base_file=base_file,
        head_file=head_file,
        in_force=in_force,
        refused=refused,
        ops=laid.ops,
    )


# --- the run that measured ------------------------------------------------------------------


def runs(client: Client, inputs: Inputs, *heads: str) -> list[Measuring]:
    """Runs of the measuring workflow for those heads of a pull request, the newest first."""
    workflow = inputs.run_workflow.rpartition("/")[2]
    path = f"actions/workflows/{workflow}/runs"
    made: list[Measuring] = []
    for sha in heads:
        try:
            found = list(client.pages(path, "workflow_runs", head_sha=sha, event="pull_request"))
        except NotFound:
            raise TolcalError(
                f"{inputs.run_workflow}: the repository has no such workflow; it measures pull "
                "requests (input `run-workflow`)"
            ) from None
        of_ours = (measuring(one) for one in found if is_measuring(one, inputs))
        made += [run for run in of_ours if run.head_sha == sha]
    return sorted(made, key=lambda m: m.order, reverse=True)


def is_measuring(run: dict[str, Any], inputs: Inputs) -> bool:
    """Whether a workflow run, as the API has it, measured a pull request."""
    path = str(run.get("path") or "").partition("@")[0]
    return run.get("event") == "pull_request" and path == inputs.run_workflow


def measuring(run: dict[str, Any]) -> Measuring:
    """A workflow run as the API has it."""
    return Measuring(
        id=int(run["id"]),
        attempt=int(run.get("run_attempt") or 1),
        status=str(run.get("status") or ""),
        conclusion=str(run.get("conclusion") or ""),
        head_sha=str(run["head_sha"]),
    )


def newest(
    client: Client, inputs: Inputs, heads: Sequence[str], known: Measuring | None = None
) -> Measuring:
    """The newest completed run for any of those commits; Missing if there is none.

    The list may lag behind, so a run that is ``known`` counts as well.
    """
    found = runs(client, inputs, *heads)
    if known is not None and known.head_sha in heads:
        found.append(known)
    complete = [run for run in found if run.status == "completed"]
    if complete:
        return max(complete, key=lambda run: run.order)
    name = inputs.run_workflow.rpartition("/")[2]
    if found:
        raise artifacts.Missing(
            f"run {found[0].id} of {name} for {found[0].head_sha[:12]} is "
            f"{found[0].status or 'not done'}; wait for it"
        )
    raise artifacts.Missing(
        f"{name} has not run for {heads[-1][:12]}; push a commit, or re-run its workflow"
    )


# --- files ----------------------------------------------------------------------------------


def _tolerances(client: Client, inputs: Inputs, ref: str) -> dict[Cell, Tolerance]:
    """The tolerances of a commit; a missing file holds none."""
    raw = pulls.file(client, inputs.tolerances, ref)
    if raw is None:
        return {}
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise TolcalError(f"{inputs.tolerances}:{line}: not UTF-8; save it as UTF-8") from None
    return tolerances.of_text(text, inputs.tolerances)


def _moved(pull: Pull, cells: Collection[Cell]) -> tuple[str, ...]:
    """A note that the base's tip has other values than the pull request was begun with."""
    if not cells:
        return ()
    named = sorted("/".join(cell) for cell in cells)
    more = f" and {len(named) - 10} more" if len(named) > 10 else ""
    return (
        f"{plural(len(named), 'tolerance')} of {pull.base_ref} changed since this branch left it, "
        f"and the stricter one judges: {', '.join(named[:10])}{more}",
    )


def _head_file(
    client: Client, inputs: Inputs, pull: Pull, base_file: dict[Cell, Tolerance]
) -> tuple[dict[Cell, Tolerance] | None, tuple[Remark, ...]]:
    """The head's tolerances, or None and what is wrong with them: they are anybody's text."""
    if pull.files is not None and inputs.tolerances not in pull.files:
        return base_file, ()
    try:
        return _tolerances(client, inputs, pull.head_sha), ()
    except ApiError:
        raise
    except TolcalError as error:
        place, _, what = str(error).partition(": ")
        named = place if place.startswith(inputs.tolerances) else inputs.tolerances
        return None, (Remark(named, one_line(what or str(error), 400)),)


def _check_kernels(records: Sequence[Record], laid: overlay.Overlaid) -> None:
    """Rejected if the records are not of the corpus's kernels, as it has them.

    A control that passes for a buggy kernel would be "caught" where it regressed, and each kernel
    that only the records know costs the report its time.
    """
    known = {k.name: (op, k) for op in laid.ops for k in op.kernels}
    groups = {(r.kernel, r.case.op, r.case.dtype, r.role, r.corrupts) for r in records}
    if len(groups) > MAX_GROUPS:
        raise artifacts.Rejected(
            f"the records are refused: of {len(groups)} kernels and dtypes, at most {MAX_GROUPS} "
            "are judged"
        )
    wrong: dict[str, str] = {}
    for kernel, op, dtype, role, corrupts in sorted(groups, key=str):
        found = known.get(kernel)
        if found is None:
            if laid.complete:
                wrong[kernel] = f"the corpus of this pull request has no kernel {kernel}"
        elif (found[0].name, found[1].role, found[1].corrupts) != (op, role, corrupts):
            of = f" of {found[1].corrupts}" if found[1].corrupts else ""
            wrong[kernel] = (
                f"those of {kernel} don't say that it is a {found[1].role} kernel{of} of "
                f"{found[0].name}, as the corpus does"
            )
        elif laid.complete and dtype not in found[0].dtypes:
            wrong[kernel] = f"{kernel} was measured in {dtype}, which is no dtype of {op}"
    if wrong:
        raise artifacts.Rejected(
            f"the records are refused: {wrong[min(wrong)]} "
            f"({plural(len(wrong), 'such kernel')}); measure again"
        )
