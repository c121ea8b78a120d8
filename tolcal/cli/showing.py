"""``show``: what a tolerance is, how much of it is used, and what it rests on."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from typing import TYPE_CHECKING

import msgspec

from tolcal import corpus, tolerances, tomlfile
from tolcal.cli import approvals, config, packages
from tolcal.model import DTYPES, MIN_ROWS, Op, Theory, TolcalError, Tolerance, cut, one_line
from tolcal.report import catalogue, glyphs, text

if TYPE_CHECKING:
    import pandas as pd


class Seen(msgspec.Struct, frozen=True):
    """Rows of a history by the bound of their cell: the share of it that each needs."""

    used: tuple[float, ...]  # 1 is the limit
    exceeding: int  # by its bound, its bias or what is not finite
    worst: str = ""  # id of the record that needs most
    theory: Theory | None = None  # of controls, if the op declares a reduction


#: Controls and buggy kernels of a cell.
Pair = tuple[Seen, Seen]


def show(args: argparse.Namespace) -> int:
    """``tolcal show``."""
    settings = config.load(args)
    approved = tolerances.read(settings.tolerances)
    ops = corpus.load(settings.corpus) if settings.corpus.is_dir() else ()
    names = sorted({op.name for op in ops} | {op for op, _ in approved})
    args.op, _, dtype = (args.op or "").partition("/")
    args.op = args.op or None
    if dtype and dtype not in DTYPES:
        raise TolcalError(f"no dtype {dtype!r}: known are {', '.join(DTYPES)}")
    if args.op is not None and args.op not in names:
        hint = tomlfile.did_you_mean(args.op, names)
        raise TolcalError(f"no op {args.op!r} in {settings.corpus} or {settings.tolerances}{hint}")
    if not names:
        raise TolcalError(
            f"no corpus in {settings.corpus} and no tolerances in {settings.tolerances}; start "
            "with `tolcal new OP`, or give --corpus and --tolerances"
        )
    if args.markdown:
        print(catalogue.markdown(op for op in ops if args.op in (None, op.name)), end="")
        return 0
    if args.approvals:
        for line in approvals.lines({c: t for c, t in approved.items() if args.op in (None, c[0])}):
            say(line)
        return 0
    for name in names if args.op is None else [args.op]:
        op = next((op for op in ops if op.name == name), None)
        if args.op is None:
            cells = ", ".join(d for o, d in approved if o == name) or "uncalibrated"
            summary = one_line(op.summary, 200) if op else "not in the corpus"
            say(f"{name:<18}{cells:<32}{summary}")
        else:
            config.must_exist(args)
            of = {d: t for (o, d), t in approved.items() if o == name}
            try:
                seen, note = _seen(name, op, of, settings), ""
            except ImportError as error:  # what is approved can be shown all the same
                if (remedy := packages.remedy(error)) is None:
                    raise
                seen, note = {}, f"needs {remedy}"
            except TolcalError as error:
                seen, note = {}, str(error)
            _show_op(name, op, of, seen, dtype)
            if note:
                print()
                say(f"no histograms: {note}")
    return 0


def say(line: str) -> None:
    """Prints a line that quotes a file of anyone's: nothing in it steers a terminal or a log.

    What is taken out is what ``one_line`` takes out; spacing stays.
    """
    inert = "".join(c if c.isprintable() else " " for c in line).replace("##[", "##(")
    print(re.sub(r"^( *):+", r"\1", inert))


def _seen(
    name: str, op: Op | None, cells: dict[str, Tolerance], settings: config.Config
) -> dict[str, Pair]:
    """What the history has of an op's kernels, by dtype."""
    from tolcal import bounds, history
    from tolcal.calibrate import rows as arrays
    from tolcal.calibrate import theory
    from tolcal.history import loading

    frame = history.read(loading.recorded(settings.history))
    frame = frame[frame["op"] == name]
    found: dict[str, Pair] = {}
    for dtype, tolerance in cells.items():
        here = frame[frame["dtype"] == dtype]
        unit = tolerance.evidence.roundoff if tolerance.evidence else None
        if unit is not None:  # rows of another compute dtype are in another unit
            here = here[here["roundoff"] == unit]

        def seen(role: str, here: pd.DataFrame = here, tolerance: Tolerance = tolerance) -> Seen:
            here = here[(here["role"] == role) & arrays.judged_some(here)]
            # Imported rows have no envelope to judge them by.
            here = here[here["envelope_00"].notna() | (here["nonfinite_mismatch"] > 0)]
            if here.empty:
                return Seen((), 0)
            rows = arrays.judged_rows(here)
            used = bounds.share(rows, tolerance)
            worst = here.iloc[int(used.argmax())]
            sums = op.reduction if op and role == "control" else None
            trusted = here[here["origin"] != "pull_request"]
            return Seen(
                used=tuple(used.tolist()),
                exceeding=int(bounds.exceeds(rows, tolerance).sum()),
                worst=f"{worst['kernel']}:{worst['case_id']}",
                theory=theory.of_rows(trusted, sums) if sums else None,
            )

        found[dtype] = seen("control"), seen("buggy")
    return found


def _show_op(
    name: str, op: Op | None, cells: dict[str, Tolerance], seen: dict[str, Pair], only: str
) -> None:
    say(f"{name}: {one_line(op.summary, 200) if op else 'not in the corpus'}")
    for kernel in op.kernels if op else ():
        fault = (
            f" corrupts {kernel.corrupts}: {one_line(kernel.fault or '', 200)}"
            if kernel.corrupts
            else ""
        )
        say(f"  {kernel.role:<8}{kernel.name}{fault}")
    for dtype in dict.fromkeys([*(op.dtypes if op else ()), *cells]):
        if only not in ("", dtype):
            continue
        print()
        say(f"{name}/{dtype}")
        legacy = op.legacy_atol.get(dtype) if op else None
        if legacy is not None:
            say(f"  hand-picked  atol {legacy:g}")
        tolerance = cells.get(dtype)
        if tolerance is None:
            say(f"  uncalibrated: measure {MIN_ROWS} rows of a control (`tolcal run --repeat N`), "
                "`tolcal calibrate`, approve")  # fmt: skip
            continue
        say(f"  bound        residual <= {tolerance.atol:g} + {tolerance.scaled_tol:g} u "
              "(|ref| + sigma)")  # fmt: skip
        bias = tolerance.bias_tol
        say(f"  bias         {'not judged' if bias is None else f'at most {bias:g}'}")
        pair = tolerance.allclose
        say(f"  allclose     atol={pair.atol:g}, rtol={pair.rtol:g} (torch.testing)")
        for device, values in tolerance.on.items():
            say(f"  on {cut(device, 40):<10}residual <= {values.atol:g} + "
                f"{values.scaled_tol:g} u (|ref| + sigma)")  # fmt: skip
            if (rests := values.evidence) is not None:
                say(f"               {rests.rows} rows of {rests.runs} runs on "
                    f"{cut(', '.join(rests.devices), 400)}; "
                    f"{text.held_out_claim(rests.held_out.red, rests.held_out.runs)}")  # fmt: skip
        evidence, mark = tolerance.evidence, tolerance.approved
        if evidence is not None:
            held = evidence.held_out
            say(f"  evidence     rule {cut(evidence.rule, 80)}, margin {evidence.margin:g}: "
                  f"{evidence.rows} rows of {evidence.runs} runs on "
                  f"{cut(', '.join(evidence.devices), 400)}")  # fmt: skip
            if evidence.rule == "residual":
                say(f"               margin {evidence.margin:g}: {_why(evidence.margin)}")
            say(f"               {text.held_out_claim(held.red, held.runs)}; detectable recall "
                  f"{text.percent(evidence.detectable_recall)}")  # fmt: skip
        if mark is not None and tolerances.changed_by_hand({(name, dtype): tolerance}):
            say("  CHANGED BY HAND since it was approved: evidence and approval are of other "
                  "numbers")  # fmt: skip
        if mark is not None:
            reason = f" because {cut(mark.reason, 400)}" if mark.reason else ""
            where = f" in #{mark.pr}" if mark.pr is not None else ""
            say(f"  approved     by {cut(mark.by, 80)} at {cut(mark.at, 40)}{where}, "
                f"proposal {cut(mark.digest, 64)}{reason}")  # fmt: skip
        _show_histogram(*seen.get(dtype, (Seen((), 0), Seen((), 0))))


def _why(margin: float) -> str:
    """Why a cell has that margin."""
    from tolcal.calibrate.fit import LADDER

    rungs = ", ".join(f"{m:g}" for m in LADDER)
    if margin not in LADDER:
        return f"as --margin asked for (by itself it is one of {rungs})"
    why = "the most there is" if margin == LADDER[-1] else "enough for their share of the budget"
    return f"of {rungs}, by the tails of its controls: {why} (or as --margin asked for)"


def _show_histogram(controls: Seen, buggy: Seen) -> None:
    """How much of the bound the history's rows need; nothing without a history."""
    columns = {
        f"{title} ({row.exceeding} of {len(row.used)} exceed)": row.used
        for title, row in (("controls", controls), ("buggy", buggy))
        if row.used
    }
    if not columns:
        return
    if controls.used:
        most = text.number(max(controls.used))
        say(f"  nearest      a control that needs {most} of the bound: tolcal replay "
              f"{controls.worst}")  # fmt: skip
    if controls.theory is not None:
        say(f"  theory       {text.theory_claim(controls.theory)}")
    say("  share of the bound that a row of the history needs:")
    width = shutil.get_terminal_size((100, 24)).columns
    for line in glyphs.histogram(columns, width - 4):
        say(f"    {glyphs.fitting(line, sys.stdout.encoding)}")
