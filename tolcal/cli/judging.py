"""``calibrate``, ``report`` and ``approve``: from numbers to tolerances."""

from __future__ import annotations

import argparse
import getpass
import json
import subprocess
import sys
import webbrowser
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tolcal import corpus, project, tolerances, tomlfile
from tolcal.cli import config
from tolcal.hook import names, rules
from tolcal.model import Approved, Cell, CellProposal, Op, TolcalError, Tolerance, plural
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
    if not ((frame["role"] == "control") & (frame["status"] == "ok")).any():
        read = ", ".join(f"{p}{'' if p.exists() else ' (not there)'}" for p in settings.history)
        raise TolcalError(
            f"no record of a control that ran in {read}; measure some first (`tolcal run --repeat "
            "18 --history DIR`), or name another with --history"
        )
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
    chosen = args.format or ("html" if args.open else "terminal")
    if chosen not in FORMATS:
        hint = tomlfile.did_you_mean(chosen, FORMATS)
        raise TolcalError(f"--format {chosen}: known are {', '.join(FORMATS)}{hint}")
    if args.open and chosen != "html":
        raise TolcalError(f"--open shows the HTML report, not {chosen}; leave --format out")
    out = Path(args.out) if args.out else None
    if args.schema:
        from tolcal.report.schema import json_schema

        rendered = json.dumps(json_schema(), indent=2) + "\n"
    elif args.proposal is None:
        raise TolcalError("report: name a proposal, P.json (`tolcal calibrate --json P.json`)")
    else:
        source = Path(args.proposal)
        document = read(source)
        if args.open and out is None:
            out = source.with_name("report.html")
        if args.plots:
            from tolcal.report import html

            folder = Path(args.plots)
            folder.mkdir(parents=True, exist_ok=True)
            for name, picture in html.pictures(document).items():
                (folder / name).write_bytes(picture)
        rendered = FORMATS[chosen](document)
    if out is None:
        sys.stdout.write(rendered)
        return 0
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(rendered, "utf-8")
    if args.open and not webbrowser.open(out.resolve().as_uri()):
        print(f"written: {out}; no browser could be started, open it yourself", file=sys.stderr)
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
        cells = _chosen(cells, args.cells, document.proposal.cells)
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
    known = _known_to_check(settings.tolerances)
    useless: dict[Cell, str] = {}
    for cell in cells:
        assert cell.tolerance is not None
        why = rules.gone((cell.op, cell.dtype), known)
        if why:
            useless[cell.op, cell.dtype] = why
            continue
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
    if useless:
        why, more = next(iter(useless.values())), "" if len(useless) == 1 else ", and so on"
        print(
            f"left out, since `tolcal check` would refuse it: {names(list(useless))}: {why}{more}"
        )
    if not values and useless:
        return 0
    tolerances.write(settings.tolerances, values)
    print(f"{plural(len(values), 'cell')} written to {settings.tolerances} in the name of "
          f"{by}")  # fmt: skip
    return 0


def _known_to_check(path: Path) -> rules.Context:
    """What the hook judges the cells of that file by: ops of the corpus and of tests."""
    around = project.around(path.parent, path)
    return rules.Context(ops=project.outline(around.corpus), test_ops=around.test_ops)


def _chosen(
    cells: list[CellProposal], wanted: list[str], proposed: tuple[CellProposal, ...]
) -> list[CellProposal]:
    """Of ``cells``, those of a wanted name; TolcalError with the reason if there is none."""
    chosen: dict[str, CellProposal] = {}
    for name in wanted:
        hits = {k: c for k, c in _named(cells).items() if k == name or k.startswith(f"{name}/")}
        if not hits:
            raise TolcalError(f"{name}: {_why_not(name, proposed)}")
        chosen |= hits
    return list(chosen.values())


def _named(cells: Iterable[CellProposal]) -> dict[str, CellProposal]:
    return {f"{c.op}/{c.dtype}": c for c in cells}


def _why_not(name: str, proposed: tuple[CellProposal, ...]) -> str:
    """Why no cell of that name can be approved, and what to do."""
    of_name = {k: c for k, c in _named(proposed).items() if k == name or c.op == name}
    states = {c.state for c in of_name.values()}
    if "looser" in states:
        return "it would be looser, which needs --widen REASON"
    if states == {"unchanged"}:
        return "unchanged within rounding, so there is nothing to approve or to widen"
    if "uncalibrated" in states:
        rows = max(c.needs_rows for c in of_name.values())
        return f"not calibrated, {plural(rows, 'more row')} needed; measure and calibrate again"
    hint = tomlfile.did_you_mean(name, [*_named(proposed), *(c.op for c in proposed)])
    return f"no cell of that name in the proposal{hint or '; `tolcal report` lists them'}"


def _git_user() -> str:
    answer = subprocess.run(["git", "config", "user.name"], capture_output=True, text=True)
    return answer.stdout.strip() or getpass.getuser()
