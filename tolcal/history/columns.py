"""Records as flat columns, and back, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tolcal.model import (
    DEVICE_CLASS,
    DTYPES,
    ENVELOPE_GRID,
    STATUSES,
    Case,
    Checks,
    Environment,
    ErrorStats,
    Outside,
    Record,
    Run,
    TolcalError,
)

_TEXT = pa.dictionary(pa.int32(), pa.string())
_POINTS = range(len(ENVELOPE_GRID))
_QUANTILES = ("q10", "q50", "q90")

#: Columns that hold one number of ErrorStats each.
_SCALARS: dict[str, pa.DataType] = {
    "count": pa.int64(),
    "num_exceeding": pa.int64(),
    "max_abs": pa.float32(),
    "mean_abs": pa.float32(),
    "p50_abs": pa.float32(),
    "p90_abs": pa.float32(),
    "p99_abs": pa.float32(),
    "max_rel": pa.float32(),
    "mean_rel": pa.float32(),
    "max_ulp": pa.uint64(),
    "mean_ulp": pa.float32(),
    "residual_max": pa.float32(),
    "scaled_max": pa.float32(),
    "scaled_max_abs": pa.float32(),
    "bias": pa.float32(),
    "bias_count": pa.int64(),
    "nonfinite_mismatch": pa.int64(),
    "ref_rms": pa.float32(),
    "ref_max": pa.float32(),
}
#: Fields of ErrorStats that are tuples, and the columns they become.
TUPLES: dict[str, tuple[str, ...]] = {
    "envelope": tuple(f"envelope_{i:02d}" for i in _POINTS),
    "envelope_abs": tuple(f"envelope_abs_{i:02d}" for i in _POINTS),
    "scale_quantiles": tuple(f"scale_{q}" for q in _QUANTILES),
    "scale_abs_quantiles": tuple(f"scale_abs_{q}" for q in _QUANTILES),
}
#: Parts of a record, each the columns of its fields' names behind a prefix.
_PARTS: dict[str, tuple[str, type[Outside | Checks]]] = {
    "outside": ("outside_", Outside),
    "checks": ("check_", Checks),
}


def _columns(prefix: str, part: type[msgspec.Struct]) -> dict[str, pa.DataType]:
    """Column -> type of each field of a part; ints and floats, or None."""
    kinds = {f.name: str(f.type) for f in msgspec.structs.fields(part)}
    return {
        prefix + name: pa.float32() if "float" in kind else pa.int64()
        for name, kind in kinds.items()
    }


_PART_COLUMNS = {
    name: kind for prefix, part in _PARTS.values() for name, kind in _columns(prefix, part).items()
}
_ENVIRONMENT = ("device", "device_class", "vendor", "driver", "runtime", "torch", "triton")

SCHEMA = pa.schema(
    [
        ("run_id", _TEXT),
        ("run_seed", pa.int64()),
        ("started", _TEXT),
        ("session", _TEXT),
        ("origin", _TEXT),
        ("commit", _TEXT),
        ("dirty", pa.bool_()),
        ("tolcal", _TEXT),
        ("device_uuid", _TEXT),
        *((name, _TEXT) for name in _ENVIRONMENT),
        ("switches", _TEXT),
        ("environment", _TEXT),
        ("op", _TEXT),
        ("dtype", _TEXT),
        ("kernel", _TEXT),
        ("role", _TEXT),
        ("corrupts", _TEXT),
        ("dims", _TEXT),
        ("profile", _TEXT),
        ("layout", _TEXT),
        ("seed", pa.int64()),
        ("case_id", _TEXT),
        ("case_set", _TEXT),
        ("status", _TEXT),
        ("reason", _TEXT),
        ("input_hash", _TEXT),
        ("kernel_hash", _TEXT),
        ("reference_hash", _TEXT),
        ("op_hash", _TEXT),
        ("roundoff", pa.float32()),
        ("same_as_control", pa.bool_()),
        *_SCALARS.items(),
        *((column, pa.float32()) for names in TUPLES.values() for column in names),
        *_PART_COLUMNS.items(),
    ]
)


def empty() -> pa.Table:
    """No records."""
    return SCHEMA.empty_table()


#: Columns that a file may lack: what stands for "not known" in them.
_NEUTRAL: dict[str, Any] = {
    "same_as_control": None, "num_exceeding": None, "reason": "", "session": "", "commit": "",
    "dirty": False, "tolcal": "", "device_uuid": "", **dict.fromkeys(_PART_COLUMNS),
}  # fmt: skip
#: Ours beside the published eleven: rows of other tools lack all of them.
_OURS = frozenset(
    [*list(_SCALARS)[list(_SCALARS).index("residual_max") :],
     *(column for names in TUPLES.values() for column in names)]
)  # fmt: skip


def must_have_all(names: Iterable[str], path: Path | str) -> list[str]:
    """Our columns that are not among them; TolcalError if one must not be lacking.

    A file of another version or tool may lack provenance, and either all or none of the
    statistics that are ours alone: these are then unknown, as in imported rows.
    """
    here = set(names)
    if {"part", "cutoff"} <= here:
        raise TolcalError(
            f"{path}: a summary (`tolcal history summarize`), and this needs records: only "
            "`tolcal calibrate` and `tolcal history` read summaries; name the history itself"
        )
    lacking = [name for name in SCHEMA.names if name not in here]
    known = set(lacking) & _OURS
    bad = [n for n in lacking if n not in _NEUTRAL and (n not in _OURS or known != _OURS)]
    if bad:
        raise TolcalError(
            f"{path}: no column {bad[0]!r} ({len(lacking)} of {len(SCHEMA)} lacking): not a "
            "tolcal history of this version; read it with the tolcal that wrote it, measure "
            "again, or import foreign results with `tolcal history import`"
        )
    return lacking


def conform(table: pa.Table, path: Path | str, only: Sequence[str] | None = None) -> pa.Table:
    """``table`` with exactly our columns, or ``only`` these of a file that `must_have_all`.

    TolcalError if it lacks one, has another type, or holds what no honest record does.
    """
    if only is None:
        lacking, wanted = must_have_all(table.column_names, path), SCHEMA.names
    else:
        lacking, wanted = [n for n in only if n not in table.column_names], list(only)
    for name in lacking:
        field = SCHEMA.field(name)
        value = pa.scalar(_NEUTRAL.get(name), _plain(field.type))
        filled = pa.repeat(value, table.num_rows).cast(field.type)
        table = table.append_column(field, filled)
    try:
        table = table.select(wanted).cast(pa.schema([SCHEMA.field(name) for name in wanted]))
    except (pa.ArrowException, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise TolcalError(f"{path}: a column has another type than ours: {reason}") from None
    problems = unsound(table)
    if problems:
        raise TolcalError(
            f"{path}: {problems[0]}: no honest record has that; restore it from a backup or "
            "artifact (nothing was changed)"
        )
    return table


def from_records(records: Iterable[Record]) -> pa.Table:
    """Records as a table. ValueError if a statistic would lose digits in float32."""
    data: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for record in records:
        row = _row(record)
        for name, values in data.items():
            values.append(row.get(name))
    arrays = []
    for field in SCHEMA:
        array = pa.array(data[field.name], type=_plain(field.type), from_pandas=False)
        if pa.types.is_float32(field.type):
            _check_exact(field.name, data[field.name], array)
        arrays.append(array.cast(field.type) if field.type == _TEXT else array)
    return pa.table(arrays, schema=SCHEMA)


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if kind == _TEXT else kind


def _check_exact(name: str, values: list[float | None], array: pa.Array) -> None:
    wanted = np.array([0.0 if v is None else v for v in values], np.float64)
    got = array.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64)
    same = (wanted == got) | (np.isnan(wanted) & np.isnan(got))
    if not same.all():
        value = float(wanted[~same][0])
        raise ValueError(f"{name} = {value!r} is no float32 number; statistics are rounded first")


def _row(record: Record) -> dict[str, Any]:
    run, case, stats = record.run, record.case, record.stats
    row: dict[str, Any] = {
        "run_id": run.id,
        "run_seed": run.seed,
        "environment": run.environment.key,
        "switches": msgspec.json.encode(run.environment.switches).decode(),
        "op": case.op,
        "dtype": case.dtype,
        "dims": case.dims_text,
        "profile": case.profile,
        "layout": case.layout,
        "seed": case.seed,
        "case_id": case.id,
    }
    for name in ("started", "session", "origin", "commit", "dirty", "tolcal", "device_uuid"):
        row[name] = getattr(run, name)
    for name in _ENVIRONMENT:
        row[name] = getattr(run.environment, name)
    for name in ("kernel", "role", "corrupts", "case_set", "status", "reason", "input_hash",
                 "kernel_hash", "reference_hash", "op_hash", "roundoff",
                 "same_as_control"):  # fmt: skip
        row[name] = getattr(record, name)
    if stats is not None:
        row |= {name: getattr(stats, name) for name in _SCALARS}
        for name, names in TUPLES.items():
            row |= dict(zip(names, getattr(stats, name) or [None] * len(names), strict=True))
    for name, (prefix, _) in _PARTS.items():
        part = getattr(record, name)
        if part is not None:
            row |= {prefix + k: v for k, v in msgspec.structs.asdict(part).items()}
    return row


def to_records(table: pa.Table) -> Iterator[Record]:
    """The inverse of ``from_records``."""
    runs: dict[tuple[str, str], Run] = {}
    for row in table.to_pylist():
        key = (row["run_id"], row["session"])  # shards of one run differ in when and where
        run = runs.get(key)
        if run is None:
            environment = Environment(
                **{name: row[name] for name in _ENVIRONMENT},
                switches=tuple(msgspec.json.decode(row["switches"])),
            )
            run = runs[key] = Run(
                id=row["run_id"],
                seed=row["run_seed"],
                environment=environment,
                **{
                    name: row[name]
                    for name in ("started", "session", "origin", "commit", "dirty", "tolcal",
                                 "device_uuid")
                },
            )  # fmt: skip
        yield Record(
            run=run,
            case=parse_case(row),
            stats=_stats(row),
            outside=_part(row, "outside"),
            checks=_part(row, "checks"),
            **{
                name: row[name]
                for name in ("kernel", "role", "corrupts", "case_set", "status", "reason",
                             "input_hash", "kernel_hash", "reference_hash", "op_hash",
                             "roundoff", "same_as_control")
            },
        )  # fmt: skip


def parse_case(row: dict[str, Any]) -> Case:
    """The case of a row."""
    pairs = (part.split("=") for part in row["dims"].split(" ") if part)
    return Case(
        op=row["op"],
        dtype=row["dtype"],
        dims=tuple((name, int(size)) for name, size in pairs),
        profile=row["profile"],
        layout=row["layout"],
        seed=row["seed"],
    )


def _stats(row: dict[str, Any]) -> ErrorStats | None:
    if row["count"] is None:
        return None
    tuples = {
        name: None if row[names[0]] is None else tuple(row[n] for n in names)
        for name, names in TUPLES.items()
    }
    return ErrorStats(**{name: row[name] for name in _SCALARS}, **tuples)  # type: ignore[arg-type]


def _part(row: dict[str, Any], name: str) -> Any:
    """A part of a record; None where its columns are empty."""
    prefix, part = _PARTS[name]
    values = {field: row[prefix + field] for field in part.__struct_fields__}
    return None if all(v is None for v in values.values()) else part(**values)


def unsound(table: pa.Table) -> list[str]:
    """What no honest record holds; empty if all are sound. One pass a column that is there."""
    problems = []
    here = set(table.column_names)
    table = table.unify_dictionaries()
    for name in here & _NEEDED:
        if table[name].null_count:
            problems.append(f"a record without {name}")
    problems += unknown_classes(table) if {"device_class", "origin"} <= here else []
    problems += no_switches(table) if "switches" in here else []
    allowed: dict[str, list[str]] = {
        "dtype": list(DTYPES),
        "status": list(STATUSES),
        "role": ["control", "buggy"],
        "origin": ["local", "ingest", "pull_request", "import"],
        "case_set": ["gate", "explore"],
    }
    for name, values in allowed.items():
        found = set(pc.unique(table[name]).to_pylist())
        problems += [f"a record with {name} {v!r}" for v in found - set(values) if v is not None]
    if "count" in here and table["count"].null_count:
        ok = pc.equal(pc.cast(table["status"], pa.string()), "ok")
        if pc.any(pc.and_(ok, pc.is_null(table["count"]))).as_py():
            problems.append("a record with status ok and no statistics")
    numbers = {name: _floats(table[name]) for name in here & _FLOATS}
    for names in (TUPLES["envelope"], TUPLES["envelope_abs"]):
        for first, second in itertools.pairwise(names):
            if (numbers[first] < numbers[second]).any():
                problems.append(f"a record with {second} above {first}")
        if (numbers[names[-1]] < 0).any():
            problems.append(f"a record with {names[-1]} < 0")
    for field in SCHEMA:
        # Ours are numbers whatever the kernel gives; max_abs tells of an output that is none.
        ours = field.name in numbers and (field.name in _OURS or field.name == "roundoff")
        if ours and np.isnan(numbers[field.name]).sum() > table[field.name].null_count:
            problems.append(f"a record with {field.name} = nan")
    for name in ("max_abs", "residual_max", "scaled_max", "scaled_max_abs", *TUPLES["envelope"]):
        if name in here and (numbers[name] < 0).any():
            problems.append(f"a record with {name} < 0")
    for name in here & set(_PART_COLUMNS):
        if pc.any(pc.less(table[name], 0)).as_py():
            problems.append(f"a record with {name} < 0")
    if (np.abs(numbers["bias"]) > 1).any():
        problems.append("a record with bias outside -1 to 1")
    return problems + _unjudgeable(table, numbers)


def unknown_classes(table: pa.Table) -> list[str]:
    """Device classes that no tolerance can be told apart by; an imported row's is never asked."""
    pairs = table.select(["device_class", "origin"]).group_by(["device_class", "origin"])
    found = pairs.aggregate([])
    return [
        f"a record with device_class {name!r} (expected sm_<digits>, gfx<digits> or cpu)"
        for name, origin in zip(*(found[n].to_pylist() for n in found.column_names), strict=True)
        if name is not None and origin != "import" and not DEVICE_CLASS.fullmatch(name)
    ]


def no_switches(table: pa.Table) -> list[str]:
    """Switches that are no list of texts."""
    problems = []
    for text in pc.unique(pc.cast(table["switches"], pa.string())).to_pylist():
        try:
            if text is not None:
                msgspec.json.decode(text, type=tuple[str, ...])
        except (msgspec.DecodeError, RecursionError):
            problems.append(f"a record with switches {text!r}")
    return problems


def _unjudgeable(table: pa.Table, numbers: Mapping[str, npt.NDArray[np.float32]]) -> list[str]:
    """Statistics that a record with an envelope lacks, or that no fit can take."""
    judged = ~np.isnan(numbers["envelope_00"])
    problems = [
        f"a record with an envelope and no {name}"
        for name in (*_JUDGED, "bias_count", "nonfinite_mismatch")
        if name in table.column_names and table[name].null_count
        and (judged & ~table[name].is_valid().to_numpy()).any()
    ]  # fmt: skip
    fitted = np.isfinite(numbers["envelope_00"])
    if {"role", "status"} <= set(table.column_names):
        for name, value in (("role", "control"), ("status", "ok")):
            fitted &= pc.equal(pc.cast(table[name], pa.string()), value).to_numpy()
    problems += [
        f"a record of a control with {name} = inf"
        for name in ("ref_rms", *TUPLES["scale_quantiles"], *TUPLES["scale_abs_quantiles"])
        if name in numbers and (fitted & np.isinf(numbers[name])).any()
    ]
    if np.isinf(numbers["roundoff"]).any() or (numbers["roundoff"] < 0).any():
        problems.append("a record with a roundoff that is none")
    return problems


#: Texts that records are told apart and grouped by, and the unit of what they say.
_NEEDED = frozenset([f.name for f in SCHEMA if f.type == _TEXT] + ["roundoff"]) - {
    "corrupts",
    "reason",
    "input_hash",
    "commit",
    "tolcal",
}
#: What a record with an envelope is judged and fitted by, beside that.
_JUDGED = (
    *TUPLES["envelope"], *TUPLES["envelope_abs"], "scaled_max", "scaled_max_abs", "bias",
    "ref_rms", *TUPLES["scale_quantiles"], *TUPLES["scale_abs_quantiles"],
)  # fmt: skip


_FLOATS = frozenset(field.name for field in SCHEMA if pa.types.is_floating(field.type))


def _floats(column: pa.ChunkedArray) -> npt.NDArray[np.float32]:
    """A column's numbers, nan for null; without a copy where it is one chunk and has no null."""
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    numbers: npt.NDArray[np.float32] = whole.to_numpy(zero_copy_only=False)
    return numbers


def inconsistent(table: pa.Table) -> list[str]:
    """Records whose case id is not that of their case."""
    names = ["op", "dtype", "dims", "profile", "layout", "seed", "case_id"]
    problems = []
    for row in table.select(names).to_pylist():
        try:
            sound = parse_case(row).id == row["case_id"]
        except (ValueError, AttributeError, TypeError):
            sound = False
        if not sound:
            problems.append(f"case id {row['case_id']} does not belong to its case")
    return problems
