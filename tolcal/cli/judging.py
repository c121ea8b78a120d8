"""``calibrate``, ``report`` and ``approve``: from numbers to tolerances."""

from __future__ import annotations

import argparse
import getpass
import json
import subprocess
import sys
import webbrowser
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tolcal import corpus, files, project, tolerances, tomlfile
from tolcal.cli import config, output, summarizing, sweeping
from tolcal.hook import names, rules
from tolcal.model import Approved, Op, TolcalError, plural
from tolcal.report import FORMATS, text
from tolcal.report.document import Document, read, to_json
from tolcal.tolerances import approving

if TYPE_CHECKING:
    import pandas as pd


def _must_be_apart(frame: pd.DataFrame, kept: pd.DataFrame, apart: list[Path]) -> None:
    """TolcalError if a run is both in the history and among the locked ones."""
    shared = sorted({str(run) for run in set(frame["run_id"]) & set(kept["run_id"])})
    if shared:
        raise TolcalError(
            f"--locked {' '.join(map(str, apart))}: {len(shared)} of its "
            f"{plural(kept['run_id'].nunique(), 'run')} (first {shared[0]}) are in --history too, "
            "so they were not kept apart; name runs that the history lacks"
        )


def calibrate(args: argparse.Namespace) -> int:
    """``tolcal calibrate``."""
    from tolcal import calibrate as stage
    from tolcal.history import frames
    from tolcal.report import terminal

    settings = config.load(args)
    config.must_exist(args)
    apart = [Path(p) for p in args.locked or ()]
    out = Path(args.json) if args.json else None
    if out:  # before minutes of work
        read = (*settings.history, *apart, settings.tolerances)
        output.must_be_free(out, "proposal", "--json", read)
    swept = None
    if args.sweep is not None:
        read = (*settings.history, *apart, settings.tolerances, *([out] if out else []))
        swept = sweeping.places(args.sweep, read)
    ops = _ops_if_any(settings.corpus)
    past = summarizing.load(settings.history, args)
    others = summarizing.load(tuple(apart), args) if apart else None
    frame = frames.frame_of(past)
    kept = frames.frame_of(others) if others else None
    if kept is not None:
        _must_be_apart(frame, kept, apart)
    if swept is not None and any("line_kind" in one for one in (frame, kept) if one is not None):
        raise TolcalError(
            "--sweep judges record by record, and a summary has none: name histories of at most "
            "1,000,000 records with --history and --locked"
        )
    if not ((frame["role"] == "control") & (frame["status"] == "ok")).any():
        where = ", ".join(f"{p}{'' if p.exists() else ' (not there)'}" for p in settings.history)
        raise TolcalError(
            f"no record of a control that ran in {where}; measure some first (`tolcal run --repeat "
            "18 --history DIR`), or name another with --history"
        )
    # Approved tolerances are of the residual rule; against the paper's they say nothing.
    approved = tolerances.read(settings.tolerances) if args.rule == "residual" else {}
    legacy = {(op.name, d): atol for op in ops for d, atol in op.legacy_atol.items()}
    subtle, checked = corpus.subtle(ops), corpus.found_by_checks(ops)
    with terminal.progress("calibrating", "cells") as progress:
        proposal = stage.calibrate(
            frame,
            rule=args.rule,
            by=args.by,
            margin=args.margin,
            budget=settings.budget,
            approved=approved,
            legacy=legacy,
            reductions=corpus.reductions(ops),
            subtle=subtle,
            checked=checked,
            known=past.notes + (others.notes if others else ()),
            progress=progress,
        )
    if kept is not None:
        locked = stage.locked(kept, proposal, legacy, subtle, checked)
        if not locked.held_out.rows and not locked.paper.rows:
            raise TolcalError(
                f"--locked {' '.join(map(str, apart))}: no explore case of a control that the "
                "proposal has a tolerance for, so nothing was judged; name runs of the ops of "
                f"--history {' '.join(map(str, settings.history))}"
            )
        proposal = msgspec.structs.replace(proposal, locked=locked)
    if swept:
        sweeping.write(swept, frame, kept, proposal, args.by, args.margin, subtle | checked)
    document = Document(proposal)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        files.replace(out, to_json(document))
    print(terminal.render(document), end="")
    if out:
        ready = text.approvable(proposal) and text.to_approve(proposal)
        print(f"written: {out}{f'; next: tolcal approve {out}' if ready else ''}", file=sys.stderr)
    if swept:
        print(f"sensitivity: {swept[1]}, every setting: {swept[0]}")
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

        beside = {"P.json": args.proposal, "--format": args.format, "--open": args.open,
                  "--plots": args.plots}  # fmt: skip
        if any(beside.values()):
            given = next(name for name, value in beside.items() if value)
            raise TolcalError(f"--schema prints the schema of every P.json: leave {given} out")
        rendered = json.dumps(json_schema(), indent=2) + "\n"
        if out is not None:
            output.must_be_free(out, "report", "--out", ())
    elif args.proposal is None:
        raise TolcalError("report: name a proposal, P.json (`tolcal calibrate --json P.json`)")
    else:
        source = Path(args.proposal)
        document = read(source)
        if args.open and out is None:
            out = source.with_name("report.html")
        if out is not None:
            kind = "proposal" if chosen == "json" else "report"
            output.must_be_free(out, kind, "--out", [source])
        if args.plots:
            _draw(document, Path(args.plots), source)
        rendered = FORMATS[chosen](document)
    if out is None:
        if chosen == "terminal" and not args.schema:
            sys.stdout.write(rendered)
        else:
            output.emit(rendered)
        return 0
    out.parent.mkdir(parents=True, exist_ok=True)
    files.replace(out, rendered)
    if args.open and not webbrowser.open(out.resolve().as_uri()):
        print(f"written: {out}; no browser could be started, open it yourself", file=sys.stderr)
    return 0


def _draw(document: Document, folder: Path, source: Path) -> None:
    """The main charts as files; says so where there is nothing to draw."""
    from tolcal.report import html

    pictures = html.pictures(document)
    for name in pictures:
        output.must_be_free(folder / name, "picture", "--plots", [source])
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        files.replace(folder / name, picture)
    if not pictures:
        print(f"--plots {folder}: nothing was drawn, {source} has no data for charts",
              file=sys.stderr)  # fmt: skip


def approve(args: argparse.Namespace) -> int:
    """``tolcal approve``: only new and tighter cells; loosening is never a side effect."""
    settings = config.load(args)
    document = read(Path(args.proposal))
    proposal = document.proposal
    approving.must_be_unedited(proposal, args.proposal)
    cells = text.to_approve(proposal)
    if args.widen is not None:
        if not args.cells or approving.is_no_reason(args.widen):
            raise TolcalError("--widen REASON: name the cells to widen, and give a reason")
        cells += approving.to_widen(proposal)
    if args.cells:
        cells = approving.chosen(cells, args.cells, proposal.cells, "--widen REASON")
    if not cells:
        print("nothing to approve: no cell is new or tighter")
        return 0
    approving.must_be_approvable(proposal, args.proposal)
    by = args.by or _git_user()
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    known = _known_to_check(settings.tolerances)
    useless = {
        (c.op, c.dtype): why for c in cells if (why := rules.gone((c.op, c.dtype), known, False))
    }
    why = next(iter(useless.values()), "") + (", and so on" if len(useless) > 1 else "")
    if useless and args.cells:
        raise TolcalError(f"`tolcal check` would refuse {names(list(useless))}: {why}")
    values = approving.values(
        [c for c in cells if (c.op, c.dtype) not in useless],
        tolerances.read(settings.tolerances),
        Approved(by=by, at=now, digest=proposal.digest, value="", reason=args.widen),
        str(settings.tolerances),
        "calibrate again (`tolcal calibrate --json`)",
    )
    if useless:
        print(f"left out, since `tolcal check` would refuse it: {names(list(useless))}: {why}")
        if not values:
            return 0
    if not values:
        print(f"nothing to approve: {settings.tolerances} has these numbers already")
        return 0
    tolerances.write(settings.tolerances, values)
    print(f"{plural(len(values), 'cell')} written to {settings.tolerances} in the name of "
          f"{by}")  # fmt: skip
    return 0


def _known_to_check(path: Path) -> rules.Context:
    """What the hook judges the cells of that file by: ops of the corpus and of tests."""
    around = project.around(path.parent, path)
    return rules.Context(ops=project.outline(around.corpus), test_ops=around.test_ops)


def _git_user() -> str:
    answer = subprocess.run(["git", "config", "user.name"], capture_output=True, text=True)
    return answer.stdout.strip() or getpass.getuser()
