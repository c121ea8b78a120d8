"""Which fault shows where: `python tests/bench/profiles.py [OP ...] [--corpus DIR] [--device D]`.

Runs the corpus over input profiles, N cases each (8), in one dtype (float32), every case checked,
and prints two tables as Markdown:

- known-wrong kernels x profiles: of N cases those flagged, by what: `t` the approved tolerance,
  `k` kinds of values inside the domain, `o` kinds outside it (against the control's), and each
  check that failed; a cell that nothing flags is `-`;
- controls x profiles: the same, which there are false alarms but for `o`, values outside the
  domain that are not of the reference's kind and that are never failed.

The last row of each is the rate of each profile over all kernels.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tolcal import bounds, compare, corpus, measure, tolerances
from tolcal.model import PROFILES, Op, Record, Tolerances

ROOT = Path(__file__).resolve().parent.parent.parent
#: What flags a known-wrong kernel without failing a control.
BEYOND = "o"


def reasons(record: Record, approved: Tolerances) -> list[str]:
    """What flags a record that ran: nothing for most of a control's."""
    found = []
    tolerance = approved.get((record.case.op, record.case.dtype))
    if record.stats is not None and record.stats.count:
        if record.stats.nonfinite_mismatch:
            found.append("k")
        elif tolerance is not None and bounds.exceeds(compare.judged([record]), tolerance)[0]:
            found.append("t")
    if record.outside is not None:
        known = record.outside.differing
        bad = record.outside.mismatch if record.role == "control" else known
        found += [BEYOND] if bad else []
    return found + list(record.checks.failed if record.checks else ())


def measured(
    ops: tuple[Op, ...],
    profiles: Sequence[str],
    dtype: str,
    cases: int,
    device: str,
    root: Path = ROOT / "corpus",
) -> list[Record]:
    """Every record, each case checked."""
    request = measure.Request(
        ops=ops, dtypes=(dtype,), device=device, gate=cases, explore=0, profiles=tuple(profiles),
        checks="all",
    )  # fmt: skip
    return [v for v in measure.measure(request, root) if isinstance(v, Record)]


def table(records: Iterable[Record], approved: Tolerances, role: str) -> list[str]:
    """Kernels x profiles, as lines of Markdown."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    profiles, kernels = dict[str, None](), dict[str, None]()
    for record in records:
        if record.role != role or record.status == "skipped":
            continue
        cell = counts[record.kernel, record.case.profile]
        profiles[record.case.profile] = kernels[record.kernel] = None
        why = reasons(record, approved) if record.status == "ok" else [record.status]
        cell.update(["all", *why] + (["flagged"] if set(why) - _harmless(role) else []))
    lines = [_row([role, *profiles]), _row(["---", *["---:"] * len(profiles)])]
    for kernel in kernels:
        lines.append(_row([f"`{kernel}`", *(_cell(counts[kernel, p]) for p in profiles)]))
    totals = {p: sum((counts[k, p] for k in kernels), Counter()) for p in profiles}
    shown = (f"**{t['flagged']} of {t['all']}**" for t in totals.values())
    return [*lines, _row(["**flagged**", *shown])]


def _harmless(role: str) -> set[str]:
    return {BEYOND} if role == "control" else set()


def _cell(counts: Counter[str]) -> str:
    why = [f"{n}{name}" if len(name) == 1 else f"{n} {name}"
           for name, n in sorted(counts.items()) if name not in ("all", "flagged")]  # fmt: skip
    return f"{counts['flagged']}/{counts['all']}{': ' if why else ''}{', '.join(why)}" if why else (
        "-" if counts["all"] else ""
    )  # fmt: skip


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ops", nargs="*", metavar="OP")
    parser.add_argument("--corpus", default=ROOT / "corpus", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cases", type=int, default=8)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--profile", action="append", choices=PROFILES)
    args = parser.parse_args(argv)
    ops = corpus.select(corpus.load(args.corpus), args.ops)
    profiles = args.profile or [p for p in PROFILES if p != "large"]
    records = measured(ops, profiles, args.dtype, args.cases, args.device, args.corpus)
    approved = tolerances.read(ROOT / "tolerances.toml")
    for role in ("buggy", "control"):
        print("\n".join(table(records, approved, role)), end="\n\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
