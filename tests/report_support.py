"""Documents that the tests of reports share, and the comparison with golden files."""

from __future__ import annotations

import difflib
import lzma
import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests_support import DATA

from tolcal.model import (
    AllClose,
    BuggyRecall,
    CellProposal,
    Finding,
    FindingKind,
    Forecast,
    HeldOutRows,
    InSample,
    Locked,
    Proposal,
    Recall,
    RunSummary,
    Tolerance,
    Totals,
    Verdict,
)
from tolcal.report.document import Document, OnPull, Remark

GOLDEN = DATA / "golden"
KINDS: tuple[FindingKind, ...] = (
    "regression", "escaped", "crashed", "drift", "false_positive", "caught", "uncalibrated",
)  # fmt: skip


def make_cell(op: str = "softmax", dtype: str = "float16", **changes: Any) -> CellProposal:
    """A cell that can tighten 100-fold."""
    fields: dict[str, Any] = {
        "kernel": None,
        "state": "tighten",
        "rows": 720,
        "runs": 18,
        "devices": ("NVIDIA H200",),
        "needs_rows": 0,
        "tolerance": Tolerance(2.4e-8, 8.0, AllClose(3.1e-8, 1.1e-3), 0.31),
        "proposed_tol": None,
        "allowed_now": 5.0e-2,
        "allowed_source": "approved",
        "allowed_proposed": 5.0e-4,
        "allowed_paper": 1.0e-3,
        "paper_atol": 9.0e-4,
        "tightening": 100.0,
        "recall": 0.8,
        "detectable_recall": 0.997,
        "held_out": HeldOutRows(720, 0, 18, 0),
    }
    return CellProposal(op, dtype, **fields | changes)


def make_finding(kind: FindingKind, **changes: Any) -> Finding:
    """Two of 36 cases of `softmax_triton` in float16."""
    fields: dict[str, Any] = {
        "op": "softmax",
        "kernel": "softmax_triton",
        "dtype": "float16",
        "blocks": False,
        "cases": 36,
        "exceeding": 2,
        "gate_exceeding": 1,
        "worst": "softmax_triton:9e1c02b7d4a8f655",
        "worst_dims": "B=2 S=7 H=1025",
        "observed": 8.8e-3,
        "allowed": 1.2e-6,
        "over": 7333.3,
        "changed": False,
        "newly": False,
        "detail": "",
    }
    return Finding(kind, **fields | changes)


def make_proposal(*cells: CellProposal, **changes: Any) -> Proposal:
    """18 runs, none of them red when held out."""
    fields: dict[str, Any] = {
        "rule": "residual",
        "by": "op",
        "margin": 2.0,
        "history": "05520401089eb539",
        "digest": "9c1e7a40d2b86f13",
        "recall": 0.795,
        "detectable_recall": 0.994,
        "held_out": HeldOutRows(34560, 0, 18, 0),
        "cells": cells,
        "buggy": (),
        "runs": (),
    }
    return Proposal(**fields | changes)


def make_verdict(*findings: Finding, **changes: Any) -> Verdict:
    """One run on an H200."""
    fields: dict[str, Any] = {
        "blocks": any(f.blocks for f in findings),
        "environment": "NVIDIA H200 (sm_90, driver 580.1, cuda 13.0, torch 2.11.0, triton 3.6.0)",
        "commit": "3f2a91c" + "0" * 33,
        "kernels": 26,
        "records": 4680,
        "cases": 1560,
        "statuses": {"ok": 4680},
        "skipped_reasons": {},
        "findings": findings,
        "judged": 4600,
    }
    return Verdict(**fields | changes)


BUGGY = (
    BuggyRecall("softmax_llm_buggy", "softmax_triton", "softmax", "float16",
                Recall(96, 64, 64, 64), Recall(96, 0, 64, 0), Recall(96, 32, 64, 32), None),
    BuggyRecall("rmsnorm_buggy", "rmsnorm_triton", "rmsnorm", "float32",
                Recall(96, 95, 96, 95), None, None, Recall(96, 3, 96, 3)),
    BuggyRecall("rmsnorm_eps_buggy", "rmsnorm_triton", "rmsnorm", "float32",
                Recall(96, 48, 80, 48), None, Recall(96, 24, 80, 24), Recall(96, 0, 80, 0),
                subtle=True),
)  # fmt: skip


def busy() -> Document:
    """Something of everything that a pull request can show."""
    cells = (
        make_cell(),
        make_cell("attention", allowed_now=5.0e-2, allowed_proposed=1.7e-4, tightening=289.2,
                  allowed_source="legacy", state="new"),
        make_cell("l2norm", state="looser", allowed_now=1.3e-8, allowed_proposed=2.8e-8,
                  tightening=0.464, held_out=HeldOutRows(720, 1, 18, 1)),
        make_cell("rmsnorm", "float32", state="unchanged", allowed_now=1.2e-6,
                  allowed_proposed=1.2e-6, tightening=1.0),
        make_cell("gelu", "bfloat16", state="uncalibrated", tolerance=None, rows=100, runs=2,
                  needs_rows=620, needs_runs=13, allowed_now=None, allowed_source="none",
                  tightening=None,
                  allowed_proposed=None, allowed_paper=None, detectable_recall=None,
                  held_out=HeldOutRows(0, 0, 0, 0),
                  note="needs 13 more runs (620 rows of a control); has 100 rows of 2 runs"),
    )  # fmt: skip
    findings = (
        make_finding("regression", kernel="rmsnorm_triton", op="rmsnorm", dtype="float32",
                     blocks=True, changed=True, worst="rmsnorm_triton:9e1c02b7d4a8f655"),
        make_finding("crashed", kernel="gelu_triton", op="gelu", dtype="bfloat16", observed=None,
                     worst="gelu_triton:00c0ffee00c0ffee", allowed=None, over=None,
                     detail="raised or died: ValueError: a | b"),
        make_finding("drift", kernel="attention_triton", op="attention", observed=None, over=None,
                     worst="attention_triton:0123456789abcdef",
                     detail="an environment that the tolerance was not calibrated in"),
        make_finding("false_positive", kernel="l2norm_triton", op="l2norm", exceeding=1,
                     over=1.23, worst="l2norm_triton:fedcba9876543210"),
        make_finding("caught", kernel="softmax_llm_buggy", cases=96, exceeding=64, newly=True,
                     worst="softmax_llm_buggy:0011223344556677", detail="all with H=1025"),
        make_finding("caught", kernel="softmax_triton_buggy", cases=96, exceeding=96,
                     worst="softmax_triton_buggy:0011223344556677"),
        make_finding("uncalibrated", kernel="gelu_triton", op="gelu", dtype="bfloat16",
                     exceeding=0, observed=None, allowed=None, over=None,
                     detail="no approved tolerance"),
    )  # fmt: skip
    verdict = make_verdict(
        *findings,
        statuses={"crashed": 2, "ok": 4672, "skipped": 6},
        skipped_reasons={"no float8 on this device": 4, "out of memory": 2},
    )
    held = HeldOutRows(22896, 0, 12, 0)
    locked = Locked(held, HeldOutRows(22896, 45, 12, 11), BUGGY, ("rmsnorm_buggy float32: not "
                    "caught in 1 of the runs",), (0.9871, 0.999),
                    Totals(1, 0.5, 0.6, (0.398, 0.602), (0.48, 0.71)), 1)  # fmt: skip
    run = RunSummary("00aa", "2026-11-29T18:00:00+00:00", "NVIDIA H200", "GPU-1", "e0", "local",
                     4680, 1920, 0)  # fmt: skip
    proposal = make_proposal(
        *cells, buggy=BUGGY, runs=(run,), locked=locked,
        forecast=Forecast(4e-3, 12.2e-3, "layernorm/float32", 120),
        recall_interval=(0.789, 0.801), detectable_interval=(0.9931, 0.9955),
        in_sample=InSample(HeldOutRows(34560, 0, 18, 0), HeldOutRows(34560, 476, 18, 18)),
        subtle=Totals(1, 0.5, 0.6, (0.398, 0.602), (0.48, 0.71)),
        notes=("18 runs dated 2026-11-29 to 2026-11-30 (2 distinct days, 2 distinct GPUs)",
               "12 of 4692 rows come from another tool, without what the fit needs"),
    )  # fmt: skip
    return Document(proposal, verdict, base="77b0d12" + "0" * 33, attempt="1")


def pull() -> Document:
    """The same as the trusted job shows it, with all that can be wrong beside the numbers."""
    on = OnPull(
        number=41,
        run=123,
        report_url="https://github.com/o/kernels/actions/runs/124#artifacts",
        counted=("softmax/float16",),
        unapproved=(Remark("gelu/float16", "no comment of a maintainer approves it"),),
        gone=(Remark("silu/float16", "it leaves the corpus here"),),
        unmeasured=(Remark("gelu_triton", "no record of it is in the run"),),
        unusable=(Remark("tolerances.toml:12", "softmax.float32.atol: expected a number"),),
        notes=("1 artifact of the history has expired",),
        self_approval=True,
    )
    return msgspec.structs.replace(busy(), pull=on)


def quiet_pull() -> Document:
    """Nothing to decide, on a pull request."""
    return msgspec.structs.replace(quiet(), attempt="2", pull=OnPull(41, 123, "https://x.test/y"))


def quiet() -> Document:
    """Nothing to decide."""
    caught = make_finding("caught", kernel="softmax_llm_buggy", exceeding=64, cases=96)
    cell = make_cell(state="unchanged", tightening=1.0, allowed_now=5.0e-4)
    return Document(make_proposal(cell), make_verdict(caught))


HOSTILE = [
    "a | b | c",
    "`code` ``two``",
    "@org/team @user",
    "fixes #12, org/repo#3, GH-12",
    "<img src=x onerror=alert(1)><!-- x",
    "[x](javascript:alert(1)) ![y](https://evil.example/p.png)",
    "one\ntwo\r\n\r\n| three |\x0b\x0cfour\u2028five\x85six",
    "::error file=a,line=1::boom",
    "x\n::error::boom\n##[error]boom",
    "--> --!> -->",
    "https://evil.example www.evil.example HTTP://evil.example",
    "\u202egnp.exe\u200f\u2066x\u2069\ufeff",
    "\x1b]0;title\x07\x1b[31mred",
    "*bold* _it_ ~~no~~ # h > q",
    "a&lt;b &#64;org &commat;org",
    "\\| \\` \\",
    "%0A::error::x",
    "x" * 100_000,
    "|" * 100_000,
    "@a " * 30_000,
]


def hostile(words: str) -> Document:
    """Every free text of a document is ``words``; ids have a test of their own."""
    findings = tuple(
        make_finding(
            kind, kernel=words, worst=words, worst_dims=words, detail=words, changed=True,
            blocks=True, newly=newly,
        )
        for kind in KINDS
        for newly in (False, True)
    )  # fmt: skip
    states = ("new", "tighten", "unchanged", "looser", "uncalibrated")
    cells = [make_cell(state=state, note=words, devices=(words,)) for state in states]
    buggy = tuple(msgspec.structs.replace(b, kernel=words, control=words) for b in BUGGY)
    proposal = make_proposal(*cells, notes=(words, words), history=words, buggy=buggy,
                             forecast=Forecast(0.5, 1.0, words, 3))  # fmt: skip
    verdict = make_verdict(
        *findings, environment=words, statuses={"skipped": 3}, skipped_reasons={words: 3}
    )
    remarks = (Remark(words, words),)
    pull = OnPull(
        41, 123, counted=(words,), unapproved=remarks, gone=remarks, unmeasured=remarks,
        unusable=remarks, notes=(words,), self_approval=True,
    )  # fmt: skip
    return Document(proposal, verdict, base=words, attempt=words, pull=pull)


def crowd(count: int, **changes: Any) -> Document:
    """So many findings of every kind, and cells of every state."""
    findings = [
        make_finding(kind, kernel=f"kernel_number_{n}", detail="because " * 40, newly=n % 2 == 0)
        for kind in KINDS
        for n in range(count)
    ]
    cells = [
        make_cell(f"op_{state}_{n}", state=state, note="for want of rows " * 20)
        for state in ("new", "tighten", "unchanged", "uncalibrated")
        for n in range(count)
    ]
    return Document(make_proposal(*cells), make_verdict(*findings, **changes))


def broken() -> Document:
    """Everything crashed, hung or is not finite, an explore case failed, and no history yet."""
    findings = (
        make_finding("regression", observed=None, over=None, blocks=True, changed=True,
                     path="corpus/softmax/kernels/softmax_triton.py", line=31, exceeding=36,
                     detail="4096 of 4096 values are not finite where the reference is, or the "
                     "other way round"),
        make_finding("regression", dtype="float32", changed=True, over=1.02, gate_exceeding=0,
                     path="corpus/softmax/kernels/softmax_triton.py", line=31,
                     detail="in explore cases only, so it does not block"),
        make_finding("escaped", kernel="softmax_llm_buggy", blocks=True, exceeding=0, over=0.7,
                     path="corpus/softmax/buggy/softmax_llm_buggy.py", line=8,
                     fault="no maximum subtracted beyond column 1024",
                     detail="its output differs from its control's in 64 of 96 cases"),
        make_finding("escaped", kernel="gelu_buggy", op="gelu", exceeding=0, over=0.5,
                     fault="tanh for erf",
                     detail="its output differs from its control's in 1 of 96 cases"),
        make_finding("crashed", kernel="gelu_triton", op="gelu", observed=None, allowed=None,
                     over=None, blocks=True, changed=True, exceeding=36,
                     path="corpus/gelu/kernels/gelu_triton.py", line=19,
                     worst="gelu_triton:00c0ffee00c0ffee",
                     detail="hung: no answer within 120 s, worker 7 was ended"),
        make_finding("uncalibrated", kernel="gelu_torch", op="gelu", exceeding=0, observed=None,
                     allowed=None, over=None, detail="no approved tolerance"),
    )  # fmt: skip
    cell = make_cell(
        "gelu", state="uncalibrated", tolerance=None, rows=0, runs=0, needs_rows=720, needs_runs=3,
        devices=(),
        allowed_now=None, allowed_source="none", allowed_proposed=None, allowed_paper=None,
        paper_atol=None, tightening=None, recall=None, detectable_recall=None,
        held_out=HeldOutRows(0, 0, 0, 0),
        note="needs 3 more runs (720 rows of a control); has 0 rows of 0 runs",
    )  # fmt: skip
    verdict = make_verdict(*findings, environment="", commit="", kernels=5, records=396, cases=96,
                           statuses={"crashed": 200, "ok": 160, "timeout": 36})  # fmt: skip
    proposal = make_proposal(cell, recall=None, detectable_recall=None,
                             held_out=HeldOutRows(0, 0, 0, 0))  # fmt: skip
    return Document(proposal, verdict)


def hostile_names() -> Document:
    """All that is hostile, in every place for a name or free text."""
    return hostile("\n".join(HOSTILE[:-3]))


def many() -> Document:
    """500 cells of 125 ops, a fifth of which can tighten, and a finding for a tenth of them."""
    cells, findings = [], []
    for n in range(500):
        op, dtype = f"op_{n // 4:03}", ("float64", "float32", "float16", "bfloat16")[n % 4]
        factor = 1.3 + 37.0 * (n % 97)
        cells.append(make_cell(
            op, dtype, allowed_now=5e-4 * factor, tightening=factor,
            state=("tighten", "unchanged", "unchanged", "looser", "unchanged")[n % 5],
        ))  # fmt: skip
        if n % 10 == 0:
            kind = KINDS[n // 10 % len(KINDS)]
            name = f"{op}_triton"
            findings.append(make_finding(
                kind, op=op, dtype=dtype, kernel=name, over=1.0 + n, worst=f"{name}:{n:016x}",
                blocks=kind == "regression", path=f"corpus/{op}/kernels/{name}.py", line=n + 1,
                newly=n % 20 == 0,
            ))  # fmt: skip
    return Document(make_proposal(*cells), make_verdict(*findings), base="77b0d12" + "0" * 33)


#: What every format has a golden file of.
DOCUMENTS: dict[str, Callable[[], Document]] = {
    "quiet": quiet,
    "quiet_pull": quiet_pull,
    "pull": pull,
    "busy": busy,
    "broken": broken,
    "hostile": hostile_names,
    "many": many,
}


def check_golden(name: str, rendered: str) -> None:
    """Compares with a whole file; writes it instead if TOLCAL_UPDATE_GOLDEN=1.

    A big file is kept compressed; the diff that a failure shows is of its lines all the same.
    """
    packed = len(rendered.encode()) > 60_000
    path = GOLDEN / (f"{name}.xz" if packed else name)
    if os.environ.get("TOLCAL_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        raw = rendered.encode()
        path.write_bytes(lzma.compress(raw) if packed else raw)
        return
    assert path.exists(), f"{path.name} is missing: TOLCAL_UPDATE_GOLDEN=1 writes it"
    raw = path.read_bytes()
    expected = (lzma.decompress(raw) if packed else raw).decode()
    if rendered != expected:
        diff = difflib.unified_diff(
            expected.splitlines(), rendered.splitlines(), f"golden/{name}", "rendered", lineterm=""
        )
        pytest.fail("\n".join([*diff, "read it; TOLCAL_UPDATE_GOLDEN=1 accepts it"]), pytrace=False)
