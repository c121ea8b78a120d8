"""``minimize`` and ``pin``: from a case that fails to one that is small, and stays."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tolcal import cases, files, minimize
from tolcal.cli import config, finding, measuring, options, output
from tolcal.cli.recording import say
from tolcal.corpus import pinning
from tolcal.history import jsonlines
from tolcal.minimize import Minimized, snippet, values
from tolcal.model import Case, Op, Record, TolcalError, one_line, plural

#: Of the cases that were found last, so many are kept.
KEPT = 200
#: Numbers of a small case that are printed.
SHOWN = 8


def shrink(args: argparse.Namespace) -> int:
    """``tolcal minimize``: 1, since what it leaves fails; TolcalError if the case does not."""
    settings = config.load(args)
    measuring.need_torch()
    found = finding.find(settings, args)
    if not found.kernel:
        raise TolcalError(f"{args.id}: give KERNEL:CASE: one kernel fails in its own way")
    kernel = found.op.kernel(found.kernel)
    script = Path(args.out or f"out/minimize/{kernel.name}-{found.case.id}.py")
    read = (settings.tolerances, *settings.history)
    output.must_be_free(script, "script", "--out", read)
    output.must_be_writable(script, "--out")
    last = found.records[-1] if found.records else None
    with _progress() as progress:
        done = minimize.minimize(
            measuring.one_case(settings, found), kernel, found.case, settings.corpus,
            found.limit, budget=args.budget_seconds,
            hangs=last is not None and last.status == "timeout", progress=progress,
        )  # fmt: skip
    for line in _told(found.op, done):
        print(line)
    is_new = done.seeded.case != found.case
    if not is_new or _keep(done.seeded.record):
        name = f"{kernel.name}:{done.seeded.case.id}"
        there = "" if is_new else options.history(args.history or ())
        print(f"keep it    tolcal pin {name} --why TEXT{there}")
    after = done.after
    try:
        text = snippet.write(
            found.op, kernel, after.record, after.failure, done.tolerance, after.values
        )
    except TolcalError as error:
        print(f"script     none: {error}")
        return 1
    script.parent.mkdir(parents=True, exist_ok=True)
    files.replace(script, text)
    print(f"script     python {script}")
    return 1


def _told(op: Op, done: Minimized) -> Iterator[str]:
    before, seeded, after = done.before, done.seeded, done.after
    yield f"{before.record.id} {before.case.op} {before.case.dtype} fails"
    yield f"  on {before.record.run.environment.text}: {before.failure.text}"
    yield f"dims       {before.case.dims_text} -> {seeded.case.dims_text}"
    if after.case.dims != seeded.case.dims:
        yield f"           -> {after.case.dims_text} as values"
    if before.case.layout != seeded.case.layout:
        yield f"layout     {before.case.layout} -> {seeded.case.layout}"
    elif after.case.layout != "contiguous":
        yield f"layout     {after.case.layout}; contiguous does not fail like that"
    if after.values is not None:
        was, now = done.elements
        yield f"elements   {was} -> {now} that are not 0"
        yield f"values     {_numbers(op, after.case, after.values)}"
    yield f"fails      {after.failure.text}"
    ended = "" if done.finished else ", when it was ended: --budget-seconds gives it more time"
    yield f"           found in {plural(done.trials, 'trial')}, {done.seconds:.1f} s{ended}"
    for note in done.notes:
        yield f"note       {note}"


def _numbers(op: Op, case: Case, arrays: values.Values) -> str:
    """``x[0, 2] = 3.0, ...``: the elements that are not 0."""
    import numpy as np

    found = []
    for name, spec in op.inputs.items():
        numbers = values.decode(arrays[name], cases.dtype_of(spec, case))
        for at in np.argwhere(~(numbers == 0))[: SHOWN + 1]:
            found.append(f"{name}[{', '.join(map(str, at))}] = {float(numbers[tuple(at)])!r}")
    rest = "" if len(found) <= SHOWN else ", ..."
    return one_line(", ".join(found[:SHOWN]), 2000) + rest if found else "all 0"


def _keep(record: Record) -> bool:
    """Puts a case where `replay`, `minimize` and `pin` find it by its id; False if it can't."""
    path = finding.MINIMIZED
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.locked(path.parent):
            known = _known(path)
            kept = [*(old for old in known if old.id != record.id), record][-KEPT:]
            with jsonlines.Writer(part) as writer:
                for one in kept:
                    writer.write(one.run)
                    writer.write(one)
            part.replace(path)
    except OSError as error:  # the script is still to be written
        say(f"{path}: cannot write it: {error.strerror}; so {record.id} can't be named later")
        return False
    return True


def _known(path: Path) -> list[Record]:
    """What was kept before; what can't be read is put aside."""
    if not path.exists():
        return []
    try:
        return list(jsonlines.read(path))
    except TolcalError as error:
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        say(f"{error}; it is put aside as {aside}")
        return []


@contextmanager
def _progress() -> Iterator[minimize.Progress]:
    """How far it is: one line on a terminal that is written over, now and then one elsewhere."""
    tty = sys.stderr.isatty()
    shown = 0.0

    def show(text: str) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < (0.1 if tty else 10.0):
            return
        shown = now
        if tty:
            print(f"\r\x1b[K{one_line(text, 78)}", end="", file=sys.stderr, flush=True)
        else:
            say(text)

    try:
        yield show
    finally:
        if tty:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def pin(args: argparse.Namespace) -> int:
    """``tolcal pin``."""
    settings = config.load(args)
    found = finding.find(settings, args)
    path = Path(found.op.path) / "op.toml"
    if found.kernel and (why := found.op.kernel(found.kernel).refuses(found.case)):
        raise TolcalError(
            f"{path}: {why}, so it would skip case {found.case.id} ({found.case.dims_text}); add "
            "the size to the kernel's own dims first"
        )
    pinning.pin(path, found.case, args.why)
    case = found.case
    print(
        f"{path}: pinned {case.dtype} {case.dims_text} profile={case.profile} seed={case.seed}; "
        "the case is in the gate set of every run from now on"
    )
    kernel = found.kernel or found.op.kernels[0].name
    print(f"next: commit {path.name}; `tolcal replay {kernel}:{case.id}` runs the case alone")
    return 0
