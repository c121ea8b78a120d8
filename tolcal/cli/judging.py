"""``calibrate``, ``report``, ``approve`` and ``show``: the commands that read numbers."""

from __future__ import annotations

import argparse
import getpass
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tolcal import corpus, tolerances, tomlfile
from tolcal.cli import config
from tolcal.model import Approved, Cell, CellProposal, Op, TolcalError, Tolerance, one_line, plural
from tolcal.report import FORMATS, text
from tolcal.report.document import Document, read, to_json


def calibrate(args: argparse.Namespace) -> int:
    """``tolcal calibrate``."""
    from tolcal import calibrate as stage
    from tolcal import history
    from tolcal.calibrate import fit
    from tolcal.report import terminal

    settings = config.load(args)
    config.must_exist(args)
    ops = _ops_if_any(settings.corpus)
    frame = history.read(settings.history)
    # Approved tolerances are of the residual rule; against the paper's they say nothing.
    approved = tolerances.read(settings.tolerances) if args.rule == "residual" else {}
    legacy = {(op.name, d): atol for op in ops for d, atol in op.legacy_atol.items()}
    with terminal.progress("calibrating", "cells") as progress:
        proposal = stage.calibrate(
            frame,
            rule=args.rule,
            by=args.by,
            margin=args.margin or fit.MARGIN,
            approved=approved,
            legacy=legacy,
            progress=progress,
        )
    if args.locked:
        apart = stage.locked(history.read([Path(p) for p in args.locked]), proposal, legacy)
        proposal = msgspec.structs.replace(proposal, locked=apart)
    document = Document(proposal)
    if args.json:
        path = Path(args.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_json(document), "utf-8")
    print(terminal.render(document), end="")
    return 0


def _ops_if_any(folder: Path) -> tuple[Op, ...]:
    """The corpus, for hand-picked tolerances; a history can be calibrated without one."""
    return corpus.load(folder) if folder.is_dir() else ()


def report(args: argparse.Namespace) -> int:
    """``tolcal report``."""
    if args.format not in FORMATS:
        hint = tomlfile.did_you_mean(args.format, FORMATS)
        raise TolcalError(f"--format {args.format}: known are {', '.join(FORMATS)}{hint}")
    if args.schema:
        from tolcal.report.schema import json_schema

        rendered = json.dumps(json_schema(), indent=2) + "\n"
    elif args.proposal is None:
        raise TolcalError("report: name a proposal, P.json (`tolcal calibrate --json P.json`)")
    else:
        rendered = FORMATS[args.format](read(Path(args.proposal)))
    if args.out:
        out = Path(args.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(rendered, "utf-8")
    else:
        sys.stdout.write(rendered)
    return 0


def approve(args: argparse.Namespace) -> int:
    """``tolcal approve``: only new and tighter cells; loosening is never a side effect."""
    settings = config.load(args)
    document = read(Path(args.proposal))
    cells = text.to_approve(document.proposal)
    if args.widen is not None:
        if not args.cells or not args.widen.strip():
            raise TolcalError("--widen REASON: name the cells to widen, and give a reason")
        cells += [c for c in document.proposal.cells if c.state == "looser" and c.tolerance]
    if args.cells:
        cells = _chosen(cells, args.cells)
    if not cells:
        print("nothing to approve: no cell is new or tighter")
        return 0
    if document.proposal.rule != "residual" or document.proposal.by != "op":
        raise TolcalError(
            f"{args.proposal}: rule {document.proposal.rule!r} by {document.proposal.by} is for "
            "comparison; approve a proposal of `tolcal calibrate --rule residual --by op`"
        )
    by = args.by or _git_user()
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    values: dict[Cell, Tolerance] = {}
    present = tolerances.read(settings.tolerances)
    for cell in cells:
        assert cell.tolerance is not None
        now_approved = present.get((cell.op, cell.dtype))
        base = None if now_approved is None else now_approved.value_digest
        if base == cell.tolerance.value_digest:
            continue  # approved already
        if base != cell.base:
            raise TolcalError(
                f"{args.proposal}: {cell.op}/{cell.dtype} in {settings.tolerances} is not what "
                "the proposal was compared with; calibrate again (`tolcal calibrate --json`)"
            )
        approved = Approved(
            by=by,
            at=now,
            digest=document.proposal.digest,
            value=cell.tolerance.value_digest,
            reason=args.widen if (cell.tightening or 1.0) < 1.0 else None,
        )
        values[cell.op, cell.dtype] = msgspec.structs.replace(cell.tolerance, approved=approved)
    tolerances.write(settings.tolerances, values)
    print(f"{plural(len(values), 'cell')} written to {settings.tolerances} in the name of "
          f"{by}")  # fmt: skip
    return 0


def _chosen(cells: list[CellProposal], wanted: list[str]) -> list[CellProposal]:
    names = {f"{c.op}/{c.dtype}": c for c in cells}
    chosen: dict[str, CellProposal] = {}
    for name in wanted:
        hits = {k: c for k, c in names.items() if k == name or k.startswith(f"{name}/")}
        if not hits:
            hint = tomlfile.did_you_mean(name, [*names, *(c.op for c in cells)])
            raise TolcalError(
                f"{name}: no new or tighter cell of that name{hint} (looser ones need --widen "
                "REASON)"
            )
        chosen |= hits
    return list(chosen.values())


def _git_user() -> str:
    answer = subprocess.run(["git", "config", "user.name"], capture_output=True, text=True)
    return answer.stdout.strip() or getpass.getuser()


def show(args: argparse.Namespace) -> int:
    """``tolcal show``."""
    settings = config.load(args)
    approved = tolerances.read(settings.tolerances)
    ops = _ops_if_any(settings.corpus)
    names = sorted({op.name for op in ops} | {op for op, _ in approved})
    if args.op is not None and args.op not in names:
        hint = tomlfile.did_you_mean(args.op, names)
        raise TolcalError(f"no op {args.op!r} in {settings.corpus} or {settings.tolerances}{hint}")
    if not names:
        raise TolcalError(
            f"no corpus in {settings.corpus} and no tolerances in {settings.tolerances}; start "
            "with `tolcal new OP`, or give --corpus and --tolerances"
        )
    for name in names if args.op is None else [args.op]:
        op = next((op for op in ops if op.name == name), None)
        if args.op is None:
            cells = ", ".join(d for o, d in approved if o == name) or "uncalibrated"
            summary = one_line(op.summary, 200) if op else "not in the corpus"
            print(one_line(f"{name:<18}", 80).ljust(18) + f"{cells:<32}{summary}")
        else:
            _show_op(name, op, {d: t for (o, d), t in approved.items() if o == name})
    return 0


def _show_op(name: str, op: Op | None, cells: dict[str, Tolerance]) -> None:
    print(f"{name}: {one_line(op.summary, 200) if op else 'not in the corpus'}")
    for kernel in op.kernels if op else ():
        fault = (
            f" corrupts {kernel.corrupts}: {one_line(kernel.fault or '', 200)}"
            if kernel.corrupts
            else ""
        )
        print(f"  {kernel.role:<8}{kernel.name}{fault}")
    for dtype in dict.fromkeys([*(op.dtypes if op else ()), *cells]):
        print(f"\n{name}/{dtype}")
        legacy = op.legacy_atol.get(dtype) if op else None
        if legacy is not None:
            print(f"  hand-picked  atol {legacy:g}")
        tolerance = cells.get(dtype)
        if tolerance is None:
            print("  uncalibrated: measure (`tolcal run --repeat N`), `tolcal calibrate`, approve")
            continue
        print(f"  bound        residual <= {tolerance.atol:g} + {tolerance.scaled_tol:g} u "
              "(|ref| + sigma)")  # fmt: skip
        bias = tolerance.bias_tol
        print(f"  bias         {'not judged' if bias is None else f'at most {bias:g}'}")
        pair = tolerance.allclose
        print(f"  allclose     atol={pair.atol:g}, rtol={pair.rtol:g} (torch.testing)")
        for device, values in tolerance.on.items():
            print(f"  on {device:<10}residual <= {values.atol:g} + {values.scaled_tol:g} u "
                  "(|ref| + sigma)")  # fmt: skip
        evidence, mark = tolerance.evidence, tolerance.approved
        if evidence is not None:
            held = evidence.held_out
            print(f"  evidence     rule {evidence.rule}, margin {evidence.margin:g}: "
                  f"{evidence.rows} rows of {evidence.runs} runs on "
                  f"{', '.join(evidence.devices)}")  # fmt: skip
            print(f"               {text.held_out_claim(held.red, held.runs)}; detectable recall "
                  f"{text.percent(evidence.detectable_recall)}")  # fmt: skip
        if mark is not None and tolerances.changed_by_hand({(name, dtype): tolerance}):
            print("  CHANGED BY HAND since it was approved: evidence and approval are of other "
                  "numbers")  # fmt: skip
        if mark is not None:
            reason = f" because {mark.reason}" if mark.reason else ""
            where = f" in #{mark.pr}" if mark.pr is not None else ""
            print(
                f"  approved     by {mark.by} at {mark.at}{where}, proposal {mark.digest}{reason}"
            )
