"""Going on with a run that was cut: its records must be the beginning of what is planned now."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tolcal import __version__
from tolcal.measure import wire
from tolcal.measure.ledger import Outcomes
from tolcal.measure.units import Planned, Request
from tolcal.measure.wire import FAILED_CHECK
from tolcal.model import Environment, Kernel, Record, Run, TolcalError

_SELECTION = "OP, --dtype, --gate, --cases, --repeat, --profile, --shard or --seed"


class Recorded(msgspec.Struct, frozen=True):
    """What a cut file holds, in the order of its plan; at least one run."""

    path: str
    runs: tuple[Run, ...]
    records: tuple[Record, ...]
    ended: bool  # it was cut after its last record

    def differs(self, what: str, then: object, now: object) -> TolcalError:
        """The run that was cut is not the one asked for now."""
        return TolcalError(
            f"--resume {self.path}: {what}: {then} then, {now} now; ask for what was asked then, "
            "or give these records up with --overwrite"
        )


def with_seed(request: Request, recorded: Recorded) -> Request:
    """The request with the seed that was drawn then."""
    seed = recorded.runs[0].seed
    if request.seed not in (None, seed):
        raise recorded.differs("the seed differs", seed, request.seed)
    return msgspec.structs.replace(request, seed=seed)


def check_plan(
    recorded: Recorded, planned: list[Planned], seeds: list[int], commit: str, origin: str
) -> None:
    """TolcalError that names the first thing in which the records are not the plan's."""
    for index, run in enumerate(recorded.runs):
        if index >= len(seeds):
            raise recorded.differs("--repeat differs", len(recorded.runs), len(seeds))
        for what, then, now in (
            ("the seed differs", run.seed, seeds[index]),
            ("the commit differs", run.commit or "none", commit or "none"),
            ("tolcal's version differs", run.tolcal, __version__),
            ("the origin differs", run.origin, origin),
            ("the session differs", run.session, recorded.runs[0].session),
        ):
            if then != now:
                raise recorded.differs(what, then, now)
    expected = _expected(planned)
    for record in recorded.records:
        p, kernel, at = next(expected, (None, None, 0))
        if p is None or kernel is None:
            raise recorded.differs(f"{_SELECTION} differs", "more records", "fewer")
        case = p.unit.cases[at]
        if (record.kernel, record.case) != (kernel.name, case) or (record.run.seed != seeds[p.run]):
            raise recorded.differs(
                f"{_SELECTION} differs",
                f"{record.id} {record.case.dtype}", f"{kernel.name}:{case.id} {case.dtype}",
            )  # fmt: skip
        op = p.unit.op
        for what, then, now in (
            (f"the source of {kernel.name} differs", record.kernel_hash, kernel.source_hash),
            (f"the reference of {op.name} differs", record.reference_hash, op.reference_hash),
            (f"op.toml of {op.name} differs", record.op_hash, op.op_hash),
        ):
            if then != now:
                raise recorded.differs(what, then, now)
        # What failed elsewhere does not say whether it was to be checked.
        checked = record.checks is not None or record.reason.startswith(FAILED_CHECK)
        if checked != p.unit.checks(at) and (checked or record.status == "ok"):
            said = ("not checked", "checked")
            raise recorded.differs(
                f"--checks differs: {record.id}", said[checked], said[not checked]
            )
    total = sum(p.size for p in planned)
    if recorded.ended and len(recorded.records) != total:
        raise recorded.differs(f"{_SELECTION} differs", len(recorded.records), total)


def check_environment(
    recorded: Recorded, ids: list[str], environment: Environment, device_uuid: str
) -> None:
    """TolcalError if the machine is another: a run is of one environment and names its GPUs."""
    for run, name in zip(recorded.runs, ids, strict=False):
        for what, then, now in (
            ("the environment differs", run.environment.text, environment.text),
            ("the GPUs differ", run.device_uuid, device_uuid),
            ("--shard, --repeat or --checks differs", run.id, name),
        ):
            if then != now:
                raise recorded.differs(what, then, now)


def _expected(planned: list[Planned]) -> Iterator[tuple[Planned, Kernel, int]]:
    """Kernel and number of the case within the unit, of each record of the plan."""
    for p in planned:
        for at in range(len(p.unit.cases)):
            for kernel in p.unit.kernels:
                yield p, kernel, at


def split(planned: list[Planned], records: tuple[Record, ...]) -> tuple[int, Outcomes]:
    """How many units the records cover whole, and what they know of the one after those."""
    at = units = 0
    for p in planned:
        if at + p.size > len(records):
            break
        at += p.size
        units += 1
    known: Outcomes = {}
    for number, record in enumerate(records[at:]):
        case = number // len(planned[units].unit.kernels)
        known[case, record.kernel] = wire.Measured(
            case, record.kernel, record.status, record.reason, record.input_hash, record.stats,
            record.same_as_control,
        )  # fmt: skip
    return units, known
