"""``run``, ``ci`` and ``replay``: the commands that execute kernels."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import msgspec

from tolcal import corpus, files, history, measure, review, tolerances
from tolcal.cli import config, finding, options, output, packages, planning
from tolcal.cli.recording import measure_into, say
from tolcal.compare import exact
from tolcal.history import loading
from tolcal.model import (
    RELATIONS,
    Cell,
    Checks,
    ErrorStats,
    Op,
    Outside,
    Record,
    Run,
    TolcalError,
    Tolerance,
    one_line,
    plural,
)
from tolcal.report import terminal, text


def need_torch() -> None:
    # Found out here in one line rather than by a worker's traceback.
    for name in ("torch", "triton"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(name=name)


def limits(ops: tuple[Op, ...], approved: dict[Cell, Tolerance]) -> dict[Cell, Tolerance | float]:
    """What ``num_exceeding`` counts against: the approved tolerance, else the hand-picked one."""
    found: dict[Cell, Tolerance | float] = dict(legacy(ops))
    return found | approved


def legacy(ops: tuple[Op, ...]) -> dict[Cell, float]:
    """Hand-picked tolerances by cell."""
    return {(op.name, dtype): atol for op in ops for dtype, atol in op.legacy_atol.items()}


def _request(
    args: argparse.Namespace,
    settings: config.Config,
    ops: tuple[Op, ...],
    repeat: int,
    shard: tuple[int, int] | None = None,
) -> measure.Request:
    return measure.Request(
        ops=ops,
        dtypes=tuple(args.dtype or ()),
        device=settings.device,
        gate=settings.cases.gate,
        explore=settings.cases.explore,
        repeat=repeat,
        seed=args.seed,
        profiles=settings.profiles,
        timeout=settings.timeout,
        workers=args.workers,
        limits=limits(ops, tolerances.read(settings.tolerances)),
        checks=settings.checks,
        shard=shard,
        engine=args.engine,
        variables=_variables(settings),
    )


def one_case(settings: config.Config, found: finding.Found) -> measure.Request:
    """To run the kernels that were found, on the case."""
    return measure.Request(
        ops=(found.op,), dtypes=(), device=settings.device, gate=0, explore=0, workers=1,
        timeout=settings.timeout, limits=limits(found.ops, tolerances.read(settings.tolerances)),
        variables=_variables(settings),
    )  # fmt: skip


def _variables(settings: config.Config) -> dict[str, str]:
    # Whole, since a kernel may change the working directory.
    cache = settings.triton_cache
    return {} if cache is None else {"TRITON_CACHE_DIR": str(cache.absolute())}


def _count_statuses(records: list[Record]) -> str:
    counts: dict[str, int] = {}
    for record in records:
        counts[record.status] = counts.get(record.status, 0) + 1
    return ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))


def run(args: argparse.Namespace) -> int:
    """``tolcal run``."""
    settings = config.load(args)
    need_torch()
    ops = corpus.select(corpus.load(settings.corpus), args.ops)
    out = Path(args.out)
    if not out.name.endswith((".jsonl.gz",)):
        raise TolcalError(f"--out {out}: give a name that ends in .jsonl.gz")
    if args.history and Path(args.history).is_file():
        raise TolcalError(f"--history {args.history}: is a file; name a folder to add records to")
    request = _request(args, settings, ops, args.repeat, args.shard)
    if args.plan:
        planning.show(request)
        return 0
    records = measure_into(out, request, settings.corpus, args.resume, args.overwrite)
    runs = len({record.run.id for record in records})
    say(
        f"{plural(len(records), 'record')} ({_count_statuses(records)}) of {plural(runs, 'run')} "
        f"in {out}"
    )
    if args.history:
        shard = history.add(Path(args.history), records)
        say(f"added to the history as {shard}")
    skipped = Counter(r.reason for r in records if r.status == "skipped")
    for reason, count in skipped.most_common(3):
        say(f"skipped: {count}: {reason}")
    there = finding.named_unless_usual(out)
    over = [r for r in records if r.role == "control" and r.stats and r.stats.num_exceeding]
    for record in over[:5]:
        assert record.stats is not None
        say(f"exceeds: {record.id} {_case_text(record)}: "
             f"{record.stats.num_exceeding} of {record.stats.count} elements; "
             f"tolcal minimize {record.id}{there}")  # fmt: skip
    if len(over) > 5:
        say(f"... and {len(over) - 5} more")
    broken = [r for r in records if r.role == "control" and r.checks and r.checks.failed]
    for record in broken[:5]:
        say(f"fails a check: {record.id} {_case_text(record)}: "
            f"{' '.join(_failed_counts(record))}; tolcal replay {record.id}{there}")  # fmt: skip
    if len(broken) > 5:
        say(f"... and {len(broken) - 5} more")
    failed = [r for r in records if r.status in ("crashed", "timeout")]
    for record in failed[:5]:
        say(f"{record.status}: {record.id} {_case_text(record)}: "
             f"{record.reason}; tolcal minimize {record.id}{there}")  # fmt: skip
    if len(failed) > 5:
        say(f"... and {len(failed) - 5} more")
    _say_never_judged(records)
    return 1 if failed else 0


def _case_text(record: Record) -> str:
    """``float32 B=3 H=5 adversarial strided``: the last two where they are not the usual ones."""
    case = record.case
    usual = {"profile": "default", "layout": "contiguous"}
    more = [value for key, word in usual.items() if (value := getattr(case, key)) != word]
    return " ".join((case.dtype, case.dims_text, *more))


def _failed_counts(record: Record) -> list[str]:
    """``unwritten=4``, for each check that fails; of relations which, too."""
    checks = record.checks
    found = [f"{name}={getattr(checks, name)}" for name in (checks.failed if checks else ())]
    return [f"{one} ({exact.relations_of(checks)})" if one.startswith("broken=") else one
            for one in found]  # fmt: skip


def _say_never_judged(records: list[Record]) -> None:
    """Ops and relations that no case of a control was judged by, though some were checked."""
    judged: dict[tuple[str, str], int] = {}
    for record in records:
        for kind in RELATIONS if record.checks and record.role == "control" else ():
            count = getattr(record.checks, f"{kind}_judged")
            if count is not None:
                key = (record.case.op, kind)
                judged[key] = judged.get(key, 0) + count
    for (op, relation), count in judged.items():
        if not count:
            say(f"{op}: relation `{relation}` was judged on no element: the fp64 reference does "
                "not keep it; drop it, or mend its `inputs` or `dims`")  # fmt: skip


def ci(args: argparse.Namespace) -> int:
    """``tolcal ci``: the steps of the workflows, on one machine.

    1 for what blocks, and where no kernel ran: a job that tests nothing must not be green. Where
    what ran has no approved tolerance yet, which is how every repository begins, it is 0.
    """
    from tolcal.report import FORMATS
    from tolcal.report.document import Document, to_json

    settings = config.load(args)
    need_torch()
    ops = corpus.select(corpus.load(settings.corpus), args.ops)
    if args.tolerances and not settings.tolerances.exists():
        raise TolcalError(f"--tolerances {settings.tolerances}: no such file")
    approved = tolerances.read(settings.tolerances)
    by_hand = tolerances.changed_by_hand(approved)
    if by_hand:
        op, dtype = by_hand[0]
        raise TolcalError(
            f"{settings.tolerances}: [{op}.{dtype}] was changed by hand since it was approved "
            f"({plural(len(by_hand), 'such cell')}): restore it, or approve a proposal "
            "(`tolcal approve`)"
        )
    home = config.writable_history(settings.history)
    past = loading.load(settings.history)
    out = Path(args.out)
    page = out / "report.html"
    read = (settings.tolerances, *settings.history)
    for file, kind in (("comment.md", "report"), (page.name, "report"),
                       ("proposal.json", "proposal")):  # fmt: skip
        output.must_be_free(out / file, kind, "--out", read)
    output.must_not_be_read(out / "records.jsonl.gz", "--out", read)
    records = measure_into(
        out / "records.jsonl.gz", _request(args, settings, ops, 1), settings.corpus, args.resume,
        args.overwrite,
    )  # fmt: skip
    kernels = corpus.by_name(ops, measure.git_root(settings.corpus))
    with terminal.progress("calibrating", "cells") as progress:
        found = review.review(
            past.records, records, approved=approved, legacy=legacy(ops), kernels=kernels,
            budget=settings.budget, reductions=corpus.reductions(ops), subtle=corpus.subtle(ops),
            checked=corpus.found_by_checks(ops),
            summarised=past.lines, known=past.notes, progress=progress,
        )  # fmt: skip
    verdict = found.verdict
    document = Document(found.proposal, verdict)
    files.replace(out / "proposal.json", to_json(document))
    comment = FORMATS["comment"](document)
    files.replace(out / "comment.md", comment)
    output.emit(comment)
    if not found.sound:
        say(
            "regressions or crashes of what changed, so the records stay out of the history; they "
            f"are in {out / 'records.jsonl.gz'}"
        )
    else:
        shard = history.add(home, records)
        say(f"records added to the history as {shard}")
    written = [out / "comment.md", out / "proposal.json", out / "records.jsonl.gz"]
    try:
        files.replace(page, FORMATS["html"](document))
        written.insert(1, page)
    except ImportError as error:  # the comment decides; the report is for digging
        if (remedy := packages.remedy(error)) is None:
            raise
        page.unlink(missing_ok=True)  # of another run
        say(f"no report.html: it needs {remedy}")
    say(f"written: {', '.join(map(str, written))}")
    if there := finding.named_unless_usual(out / "records.jsonl.gz"):
        say(f"commands on these ids (replay, minimize, pin) need{there}")
    _say_never_judged(records)
    if why := text.not_judged(verdict):
        say(f"{text.unjudged(document.blocks)}: {why}")
    return 1 if verdict.blocks or not verdict.ran else 0


def replay(args: argparse.Namespace) -> int:
    """``tolcal replay``."""
    settings = config.load(args)
    need_torch()
    found = finding.find(settings, args)
    there = options.history(args.history or ())
    if args.snippet is None:
        return _replay(settings, found, None, there)
    if not found.kernel:
        raise TolcalError(f"{args.id}: a script is of one kernel: give KERNEL:CASE")
    if args.snippet == "-":  # to be redirected: what replay says is not part of it
        with contextlib.redirect_stdout(sys.stderr):
            scripts: list[str] = []
            status = _replay(settings, found, scripts, there)
        output.emit("".join(scripts))
        return status
    path = Path(args.snippet)
    output.must_be_free(path, "script", "--snippet", (settings.tolerances, *settings.history))
    output.must_be_writable(path, "--snippet")
    scripts = []
    status = _replay(settings, found, scripts, there)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, "".join(scripts))
    print(f"\nwritten: {path}, which fails by itself as long as the kernel does")
    return status


def _replay(
    settings: config.Config, found: finding.Found, scripts: list[str] | None, there: str
) -> int:
    """Runs and shows what was found; a script of it joins ``scripts``.

    ``there``: options with which other commands find its records.
    """
    from tolcal.minimize import failure

    case, kernel_name = found.case, found.kernel
    request = one_case(settings, found)
    print(
        f"{case.op} {case.dtype} {case.dims_text} profile={case.profile} layout={case.layout} "
        f"seed={case.seed}"
    )
    same = True
    for value in measure.replay(request, case, settings.corpus):
        if isinstance(value, Run):
            print(f"on {value.environment.text}")
            continue
        if kernel_name and value.kernel != kernel_name:
            continue
        _show_judged(value, found.limit, there)
        device = value.run.environment.device_class
        failed = failure.of(value, failure.holding(found.limit, found.op, device))
        if failed:
            now = f"it fails now: {failed.text}"
        elif value.status != "ok":
            now = "it was not run here"
        elif found.limit is None:
            now = "no tolerance says whether it fails now"
        else:
            now = "it passes now"
        recorded = [r for r in found.records if r.kernel == value.kernel]
        same &= _compare_recorded(
            value, recorded, now, failed is not None and value.role == "control"
        )
        if scripts is not None:
            scripts.append(_script(found, value))
    return 0 if same else 1


def _script(found: finding.Found, record: Record) -> str:
    from tolcal.minimize import failure, snippet

    device = record.run.environment.device_class
    tolerance = failure.holding(found.limit, found.op, device)
    return snippet.write(
        found.op, found.op.kernel(record.kernel), record, failure.of(record, tolerance), tolerance
    )


def _show_judged(new: Record, tolerance: Tolerance | float | None, there: str) -> None:
    """What the kernel did on the case, and whether its tolerance lets it pass."""
    from tolcal import bounds, compare

    reason = f": {one_line(new.reason, 400)}" if new.reason else ""
    print(f"\n{new.id} ({new.role}): {'ran' if new.status == 'ok' else new.status}{reason}")
    if new.stats is None:
        return
    print(f"  largest residual {new.stats.residual_max:.6g}, max_abs {new.stats.max_abs:.6g}, "
          f"max_ulp {new.stats.max_ulp}, input hash {new.input_hash}")  # fmt: skip
    _show_parts(new)
    if tolerance is None:
        print("  no approved tolerance to judge it by")
        return
    if isinstance(tolerance, float):
        print(f"  no approved tolerance to judge it by; the hand-picked atol is {tolerance:g}: "
              f"{new.stats.num_exceeding} of {new.stats.count} elements over")  # fmt: skip
        if new.stats.num_exceeding:
            print(f"  the smallest input that still fails: tolcal minimize {new.id}{there}")
        return
    if not new.stats.count:
        print("  no element inside the domain to judge by its tolerance")
        return
    rows = compare.judged([new])
    used = bounds.share(rows, tolerance)[0]
    if bounds.exceeds(rows, tolerance)[0]:
        elementwise = bounds.utilisation(rows.envelope, rows.z, tolerance.atol,
                                         tolerance.scaled_tol)[0]  # fmt: skip
        why = f"{used:.3g}x its bound" if elementwise > 1 else f"bias {new.stats.bias:+.2f}"
        if new.stats.nonfinite_mismatch:
            why = f"{new.stats.nonfinite_mismatch} values not finite where the reference is"
        print(f"  EXCEEDS its tolerance: {why}, {new.stats.num_exceeding} of {new.stats.count} "
              "elements over")  # fmt: skip
        print(f"  the smallest input that still fails: tolcal minimize {new.id}{there}")
    else:
        print(f"  passes its tolerance, of which it uses {100 * used:.1f} %")


def _show_parts(new: Record) -> None:
    """What was found without a tolerance."""
    if new.outside is not None:
        o = new.outside
        kinds = f"{o.mismatch} of another kind than the reference's"
        control = "" if o.differing is None else f", {o.differing} than the control's"
        print(f"  outside the domain: {plural(o.count, 'element')}, {kinds}{control}")
    if new.checks is None:
        return
    values = {k: v for k, v in msgspec.structs.asdict(new.checks).items() if v is not None}
    judged = {
        kind: n for kind in RELATIONS if (n := values.pop(f"{kind}_judged", None)) is not None
    }
    said = ", ".join(
        f"{k} {v:.3g} (of {judged[k]})" if k in judged else
        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
        for k, v in values.items()
    )  # fmt: skip
    print(f"  {'FAILS checks' if new.checks.failed else 'passes its checks'}: {said}")
    nowhere = ", ".join(kind for kind, count in judged.items() if not count)
    if nowhere:
        print(f"  not judged, for want of an element that could be: {nowhere}")


def _compare_recorded(new: Record, recorded: list[Record], now: str, fails: bool) -> bool:
    """Prints how new differs from recorded; False if it does where it must not.

    Where the source has changed since, other numbers are what was meant, and what counts is
    whether a control ``fails``, which ``now`` says in words: a known-wrong kernel is to fail.
    """
    here = [r for r in recorded if r.run.environment.key == new.run.environment.key]
    if not recorded:
        print("  no record of it to compare with")
        return True
    old, changed = (here or recorded)[-1], False
    if not here:
        print(f"  the environment differs: recorded on {old.run.environment.text}; "
              "numbers may differ")  # fmt: skip
    if old.input_hash and new.input_hash and old.input_hash != new.input_hash:
        print(f"  the inputs differ from the recorded ones (hash {old.input_hash}): op.toml has "
              "changed since")  # fmt: skip
    for name in ("kernel_hash", "reference_hash", "op_hash"):
        if getattr(old, name) != getattr(new, name):
            print(f"  {name.removesuffix('_hash')} source has changed since the record")
            changed = True
    if changed:
        print(f"  so the record is of what was there before; {now}")
    if old.status != new.status:
        print(f"  recorded status: {old.status} {one_line(old.reason, 400)}")
    differing = _differing(old, new)
    if not differing and old.status == new.status:
        print(f"  identical to the record of run {old.run.id}")
        return not (changed and fails)
    for name, before, after in differing:
        if not changed or name in _TELLING:
            print(f"  {name}: recorded {before}, now {after}")
    return not fails if changed else not here


#: What is said of numbers that were to change.
_TELLING = (
    "residual_max", "max_abs", "nonfinite_mismatch", "checks.unwritten", "checks.stray",
    "checks.inputs_changed", "checks.unrepeatable", "checks.batch", "checks.broken",
)  # fmt: skip


def _differing(old: Record, new: Record) -> list[tuple[str, str, str]]:
    """(name, recorded, now) of every number that differs, as text."""
    found = [
        (name, _field(old.stats, name), _field(new.stats, name))
        for name in ErrorStats.__struct_fields__
        if name != "num_exceeding"
    ]
    if old.outside is not None:
        found += [(f"outside.{name}", _field(old.outside, name), _field(new.outside, name))
                  for name in Outside.__struct_fields__]  # fmt: skip
    if old.checks is not None:  # a replay checks what a run need not have checked
        now = _as_old(new.checks, old.checks)
        found += [(f"checks.{name}", _field(old.checks, name), _field(now, name))
                  for name in Checks.__struct_fields__]  # fmt: skip
    return [one for one in found if one[1] != one[2]]


def _as_old(new: Checks | None, old: Checks) -> Checks | None:
    """``new`` as a record of an older version tells it.

    One that does not say how many elements a relation was judged at has 0 where that was none. Of
    a kernel of plain torch on a CPU, batch and permutation were not looked at.
    """
    if new is None:
        return None
    unknown: dict[str, float | int | None] = {}
    for kind in RELATIONS:
        if getattr(new, f"{kind}_judged") is not None and getattr(old, f"{kind}_judged") is None:
            unknown[f"{kind}_judged"] = None
            unknown[kind] = getattr(new, kind) or 0.0
            unknown["broken"] = new.broken or 0
    if old.batch is None and not new.batch:
        unknown["batch"] = None
    if old.permutation is None and old.permutation_judged is None and not new.broken:
        unknown |= {"permutation": None, "permutation_judged": None}
        unknown.setdefault("broken", old.broken)
    return msgspec.structs.replace(new, **unknown)


def _field(part: ErrorStats | Outside | Checks | None, name: str) -> str:
    value = None if part is None else getattr(part, name)
    return " ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)
