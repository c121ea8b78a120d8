"""Which fault shows where: `python tests/bench/profiles.py [OP ...] [--records FILE] [--device D]`.

Runs the corpus over input profiles, N cases each (8), in one dtype (float32), every case checked,
or reads the records of such a run (`tolcal run --profile all --checks all --gate 8 --cases 0
--dtype float32`). Prints three tables as Markdown:

1. Profiles: rows of known-wrong kernels, those whose output differs from their control's in some
   bit, those flagged, and by what; rows of controls that are flagged, which are false alarms, and
   those with values outside the domain that are not of the reference's kind, which are counted and
   never failed.
2. Known-wrong kernels and what flags them, in rows over all profiles: all, those that nothing else
   flags, and those that nothing else flags while no tolerance is approved.
3. Known-wrong kernels and profiles: rows flagged.

A row is flagged by the approved `tolerance`, by `kinds` of values inside the domain, by kinds
`outside` it that are not the control's, or by a check.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tolcal import bounds, compare, corpus, history, measure, tolerances
from tolcal.history import columns
from tolcal.model import CHECKS, PROFILES, RELATIONS, Op, Record, Tolerances

ROOT = Path(__file__).resolve().parent.parent.parent
WAYS = ("tolerance", "kinds", "outside", *CHECKS)


def reasons(record: Record, approved: Tolerances, units: dict[tuple[str, str], float]) -> list[str]:
    """What flags a record that ran: nothing for most of a control's."""
    found = []
    tolerance = approved.get((record.case.op, record.case.dtype))
    if record.stats is not None and record.stats.count:
        if record.stats.nonfinite_mismatch:
            found.append("kinds")
        elif tolerance is not None and bounds.exceeds(compare.judged([record]), tolerance)[0]:
            found.append("tolerance")
    if record.outside is not None and record.outside.differing:
        found.append("outside")
    if record.checks is None:
        return found
    for name in CHECKS:
        value = getattr(record.checks, name)
        allowed = units.get((record.case.op, name), 64.0) if name in RELATIONS else 0.0
        if value is not None and value > allowed:
            found.append(name)
    return found


def measured(ops: tuple[Op, ...], profiles: Sequence[str], dtype: str, cases: int, device: str,
             root: Path = ROOT / "corpus") -> list[Record]:  # fmt: skip
    """Every record, each case checked."""
    request = measure.Request(
        ops=ops, dtypes=(dtype,), device=device, gate=cases, explore=0, profiles=tuple(profiles),
        checks="all",
    )  # fmt: skip
    return [v for v in measure.measure(request, root) if isinstance(v, Record)]


def read(path: Path) -> list[Record]:
    """The records of a file."""
    return list(columns.to_records(history.read_table([path])))


def tables(records: Iterable[Record], approved: Tolerances, ops: Iterable[Op]) -> list[str]:
    """All three, as lines of Markdown."""
    units = {(op.name, r.kind): r.units for op in ops for r in op.relations}
    rows = [r for r in records if r.status != "skipped"]
    why = {id(r): reasons(r, approved, units) if r.status == "ok" else [r.status] for r in rows}
    wrong, right = ([r for r in rows if r.role == role] for role in ("buggy", "control"))
    profiles = [p for p in PROFILES if any(r.case.profile == p for r in rows)]
    kernels = list(dict.fromkeys(r.kernel for r in wrong))
    return [
        *_by_profile(wrong, right, profiles, why), "",
        *_by_way(wrong, kernels, why), "",
        *_by_kernel(wrong, kernels, profiles, why),
    ]  # fmt: skip


def _by_profile(
    wrong: list[Record], right: list[Record], profiles: list[str], why: dict[int, list[str]]
) -> list[str]:
    lines = [_row(["profile", "known-wrong rows", "differ", "flagged", "by tolerance", "by kinds",
                   "outside the domain", "by checks", "by checks alone", "control rows flagged",
                   "of other kinds outside the domain"]),
             _row(["---", *["---:"] * 10])]  # fmt: skip
    for profile in profiles:
        some = [r for r in wrong if r.case.profile == profile]
        ways = [why[id(r)] for r in some]
        controls = [r for r in right if r.case.profile == profile]
        checked = [w for w in ways if set(w) & set(CHECKS)]
        lines.append(_row([
            f"`{profile}`", str(len(some)), str(sum(r.same_as_control is False for r in some)),
            str(sum(map(bool, ways))),
            *(str(sum(way in w for w in ways)) for way in ("tolerance", "kinds", "outside")),
            str(len(checked)), str(sum(set(w) <= set(CHECKS) for w in checked)),
            f"{sum(bool(why[id(r)]) for r in controls)} of {len(controls)}",
            str(sum(bool(r.outside and r.outside.mismatch) for r in controls)),
        ]))  # fmt: skip
    return lines


def _by_way(wrong: list[Record], kernels: list[str], why: dict[int, list[str]]) -> list[str]:
    seen: Counter[tuple[str, str]] = Counter()
    alone: Counter[tuple[str, str]] = Counter()
    first: Counter[tuple[str, str]] = Counter()
    for record in wrong:
        ways = set(why[id(record)])
        for way in ways:
            for kernel in (record.kernel, "all"):
                seen[kernel, way] += 1
                alone[kernel, way] += ways == {way}
                first[kernel, way] += ways - {"tolerance"} == {way}
    ways = [way for way in WAYS if seen["all", way]]
    lines = [_row(["known-wrong kernel", "rows", *(f"`{way}`" for way in ways)]),
             _row(["---", *["---:"] * (len(ways) + 1)])]  # fmt: skip
    for kernel in (*kernels, "all"):
        cells = [
            f"{seen[kernel, way]} ({alone[kernel, way]}, {first[kernel, way]})"
            if way != "tolerance" else f"{seen[kernel, way]} ({alone[kernel, way]})"
            for way in ways
        ]  # fmt: skip
        count = sum(kernel in (record.kernel, "all") for record in wrong)
        cells = ["" if cell.startswith("0 ") else cell for cell in cells]
        lines.append(_row([f"`{kernel}`" if kernel != "all" else "**all**", str(count), *cells]))
    return lines


def _by_kernel(
    wrong: list[Record], kernels: list[str], profiles: list[str], why: dict[int, list[str]]
) -> list[str]:
    lines = [_row(["known-wrong kernel", *(f"`{p}`" for p in profiles)]),
             _row(["---", *["---:"] * len(profiles)])]  # fmt: skip
    cells: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for record in wrong:
        cells[record.kernel, record.case.profile].append(bool(why[id(record)]))
    for kernel in kernels:
        counts = (cells[kernel, profile] for profile in profiles)
        lines.append(_row([f"`{kernel}`", *(f"{sum(c)}/{len(c)}" if c else "" for c in counts)]))
    return lines


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ops", nargs="*", metavar="OP")
    parser.add_argument("--corpus", default=ROOT / "corpus", type=Path)
    parser.add_argument("--tolerances", default=ROOT / "tolerances.toml", type=Path)
    parser.add_argument("--records", type=Path, help="records of such a run, instead of one")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cases", type=int, default=8)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--profile", action="append", choices=PROFILES)
    args = parser.parse_args(argv)
    ops = corpus.select(corpus.load(args.corpus), args.ops)
    profiles = args.profile or [p for p in PROFILES if p != "large"]
    records = (
        [r for r in read(args.records) if r.case.op in {op.name for op in ops}]
        if args.records else
        measured(ops, profiles, args.dtype, args.cases, args.device, args.corpus)
    )  # fmt: skip
    print("\n".join(tables(records, tolerances.read(args.tolerances), ops)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
