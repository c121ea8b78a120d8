"""Which case an id means: that of a record, or of the gate set."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tolcal import cases, corpus, history, measure, tolerances
from tolcal.cli import config, options
from tolcal.cli.recording import say
from tolcal.history import columns, loading
from tolcal.model import Case, Op, Record, TolcalError, Tolerance

if TYPE_CHECKING:
    import pyarrow as pa

#: What `tolcal run` and `tolcal ci` write, if they are told nothing else.
RECORDS = Path("out/records.jsonl.gz")
#: Where `tolcal minimize` keeps the cases that it has found, since their ids are in no run.
MINIMIZED = Path("out/minimized.jsonl.gz")


class Found(NamedTuple):
    """A case, its op with the kernels that are meant (and their controls), and its records."""

    ops: tuple[Op, ...]  # all of the corpus
    op: Op
    kernel: str  # "" if the id names none
    case: Case
    records: list[Record]  # of that id, in the order of the places they are looked for in
    tolerance: Tolerance | None  # approved for its cell

    @property
    def limit(self) -> Tolerance | float | None:
        """What judges the case: what is approved, else the hand-picked atol of its cell."""
        by_hand = self.op.legacy_atol.get(self.case.dtype)
        return by_hand if self.tolerance is None else self.tolerance


def find(settings: config.Config, args: argparse.Namespace) -> Found:
    """What ``args.id`` means. TolcalError if nothing here has that id, or its inputs are lost."""
    kernel, _, case_id = args.id.rpartition(":")
    ops = corpus.load(settings.corpus)
    if case_id in {name for op in ops for name in (op.name, *(k.name for k in op.kernels))}:
        raise TolcalError(
            f"{args.id}: give KERNEL:CASE, as the `tolcal replay` lines of reports have it"
        )
    approved = tolerances.read(settings.tolerances)
    records = _recorded(settings, args, kernel, case_id)
    case = records[0].case if records else measure.find_case(ops, case_id, settings.cases.gate)
    if case is None:
        raise TolcalError(
            f"no record or gate case with id {args.id!r} in "
            f"{', '.join(map(str, places(settings, args)))}; give the file or folder that holds "
            "it with --history"
        )
    op = next((op for op in ops if op.name == case.op), None)
    if op is None:
        raise TolcalError(f"case {case_id} is of op {case.op!r}, which the corpus lacks")
    if case.profile not in cases.PROFILES:
        raise TolcalError(
            f"case {case_id} has input profile {case.profile!r}, known are "
            f"{', '.join(cases.PROFILES)}: a test drew its inputs; run that test again with "
            "--tolcal-seed"
        )
    if {name for name, _ in case.dims} != set(op.kernels[0].dims):
        raise TolcalError(
            f"case {case_id} has the dims {case.dims_text}, {op.name} has "
            f"{', '.join(op.kernels[0].dims)}: op.toml has changed since, so it can't be drawn "
            "again"
        )
    op = corpus.select((op,), [kernel or op.name])[0]
    return Found(ops, op, kernel, case, records, approved.get((op.name, case.dtype)))


def places(settings: config.Config, args: argparse.Namespace) -> list[Path]:
    """Where records are looked for."""
    return [*settings.history, *_usual(args)]


def _usual(args: argparse.Namespace) -> list[Path]:
    """Files that nobody named, in which ids are found all the same."""
    usual = [] if args.history else [RECORDS]
    return [path for path in (*usual, MINIMIZED) if path.exists()]


def named_unless_usual(path: Path) -> str:
    """The same of one records file; nothing if ids are looked for in it anyway."""
    return "" if path.resolve() == RECORDS.resolve() else options.history([path])


def _recorded(
    settings: config.Config, args: argparse.Namespace, kernel: str, case_id: str
) -> list[Record]:
    found = _of(history.read_table(loading.recorded(settings.history)), kernel, case_id)
    for path in _usual(args):
        try:
            found += _of(history.read_table([path]), kernel, case_id)
        except TolcalError as error:  # it need not hold what is asked for
            say(f"{path} is passed over: {error}")
    return found


def _of(table: pa.Table, kernel: str, case_id: str) -> list[Record]:
    import pyarrow.compute as pc

    mask = pc.equal(pc.cast(table["case_id"], "string"), case_id)
    if kernel:
        mask = pc.and_(mask, pc.equal(pc.cast(table["kernel"], "string"), kernel))
    return list(columns.to_records(table.filter(mask)))
