"""Histories that say little, or what is not so: each has an outcome, and none is silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_calibrate import control_rows, frame_of
from tests_support import make_record, make_run, make_stats

from tolcal import calibrate, history
from tolcal.cli import main
from tolcal.history import columns, jsonlines, tables
from tolcal.model import ErrorStats, Record, TolcalError

BUGGY = {"kernel": "b", "role": "buggy", "corrupts": "softmax_triton", "same_as_control": False}
#: What rows of the published format lack.
FOREIGN = dict.fromkeys(
    ("residual_max", "envelope", "envelope_abs", "scaled_max", "scaled_max_abs",
     "scale_quantiles", "scale_abs_quantiles", "bias", "bias_count", "nonfinite_mismatch",
     "ref_rms", "ref_max")
)  # fmt: skip


def written(folder: Path, records: list[Record]) -> Path:
    """A history of those records."""
    history.add(folder, records)
    return folder


def told(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    """Exit status, output (its lines joined: they break by width) and complaints of calibrating."""
    nowhere = str(path.parent / "none.toml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")  # wide enough for the notes of cells
        status = main(["calibrate", "--history", str(path), "--tolerances", nowhere, *options])
    said = capsys.readouterr()
    return status, " ".join(said.out.split()), said.err


def changed(path: Path, table: pa.Table) -> Path:
    """A single Parquet file of it."""
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize("records", [[], [make_record(**BUGGY)]], ids=["empty", "buggy rows only"])
def test_nothing_to_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], records: list[Record]
) -> None:
    """One line that says how to get records; no proposal."""
    status, out, err = told(
        changed(tmp_path / "h.parquet", columns.from_records(records)), capsys,
        "--json", str(tmp_path / "P.json"),
    )  # fmt: skip
    assert (status, out) == (2, "")
    assert err.startswith("tolcal: no record of a control that ran in ")
    assert "tolcal run --repeat" in err
    assert not (tmp_path / "P.json").exists()


def test_a_control_that_never_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Crashes alone are nothing to fit either."""
    crash = make_record(status="crashed", reason="ValueError", stats=None)
    status, _, err = told(written(tmp_path / "h", [crash]), capsys)
    assert status == 2
    assert err.count("\n") == 1


@pytest.mark.parametrize("rows", [5, 800])
def test_one_run_is_uncalibrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: int
) -> None:
    """Five rows or 800: one run is no evidence, so there is a count of what lacks, not a number."""
    status, out, err = told(written(tmp_path / "h", control_rows(runs=1, rows=rows)), capsys)
    assert (status, err.count("Traceback")) == (0, 0)
    assert "uncalibrated: needs" in out
    assert "nothing can be calibrated yet" in out


@pytest.mark.parametrize(
    "name",
    ["bias", "ref_rms", "ref_max", "scale_q50", "scale_abs_q90", "envelope_03", "envelope_abs_05",
     "scaled_max", "residual_max", "roundoff"],
)  # fmt: skip
def test_a_statistic_that_is_no_number_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A NaN would be compared, and pass, without a word."""
    table = columns.from_records(control_rows(runs=1, rows=3))
    values = table[name].to_numpy().copy()
    values[1] = np.nan
    spoilt = pa.array(values, pa.float32(), from_pandas=False)
    table = table.set_column(table.column_names.index(name), name, spoilt)
    status, _, err = told(changed(tmp_path / "h.parquet", table), capsys)
    assert status == 2
    assert f"h.parquet: a record with {name} = nan: no honest record has that" in err


@given(st.sampled_from(sorted(FOREIGN)))
def test_nor_is_it_taken_from_a_records_file(name: str) -> None:
    """The same in JSON lines, where NaN is a word."""
    record = make_record()
    assert record.stats is not None
    value = getattr(record.stats, name)
    if isinstance(value, int):
        return
    nan = (float("nan"), *value[1:]) if isinstance(value, tuple) else float("nan")
    bad = msgspec.structs.replace(
        record, stats=msgspec.structs.replace(record.stats, **{name: nan})
    )
    lines = jsonlines.encode(record.run) + jsonlines.encode(bad)
    with pytest.raises(TolcalError, match=f"{name} (is nan|does not fall to 0|is not in -1 to 1)"):
        list(jsonlines._records("r", enumerate(lines.splitlines(), 1)))


def test_the_published_statistics_may_be_nan() -> None:
    """What the kernel's output makes them: its fault shows there."""
    stats = make_stats(max_abs=float("nan"), mean_abs=float("nan"), mean_rel=float("nan"))
    record = make_record(stats=stats)
    assert columns.unsound(columns.from_records([record])) == []
    lines = jsonlines.encode(record.run) + jsonlines.encode(record) + b'{"end": 1}'
    assert len(list(jsonlines._records("r", enumerate(lines.splitlines(), 1)))) == 1


# --- other versions and tools ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["same_as_control", "session", "device_uuid", "dirty", "tolcal"])
def test_a_history_without_some_provenance_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """An older schema's: what it lacks is unknown, and changes no number."""
    whole = columns.from_records(control_rows())
    before = calibrate.calibrate(history.to_frame(whole))
    status, _, _ = told(changed(tmp_path / "h.parquet", whole.drop_columns([name])), capsys)
    assert status == 0
    read = history.read([tmp_path / "h.parquet"])
    assert list(read.columns) == columns.SCHEMA.names
    assert calibrate.calibrate(read).tolerances() == before.tolerances()


@pytest.mark.parametrize("name", ["kernel", "max_abs", "roundoff", "device_class", "envelope_07",
                                  "bias"])  # fmt: skip
def test_a_history_without_what_judging_needs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """One of our statistics alone can't be left out: it would not be judged, unseen."""
    table = columns.from_records(control_rows(runs=1, rows=3)).drop_columns([name])
    status, out, err = told(changed(tmp_path / "h.parquet", table), capsys)
    assert (status, out) == (2, "")
    assert f"no column '{name}'" in err
    assert "measure again, or import foreign results with `tolcal history import`" in err


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("device_class", None, "a record without device_class"),
        ("device_class", "xpu 1550", "device_class 'xpu 1550' (expected sm_<digits>"),
        ("switches", None, "a record without switches"),
        ("switches", "{", "switches '{'"),
        ("kernel_hash", None, "a record without kernel_hash"),
        ("bias", None, "an envelope and no bias"),
        ("scale_q50", float("inf"), "scale_q50 = inf"),
        ("scale_abs_q90", None, "an envelope and no scale_abs_q90"),
        ("ref_rms", float("inf"), "ref_rms = inf"),
        ("roundoff", float("inf"), "a roundoff that is none"),
        ("roundoff", None, "a record without roundoff"),
    ],
)
def test_records_that_cannot_be_judged_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: Any, says: str
) -> None:
    """In one line, where they are read: file, column, and what to do."""
    table = columns.from_records(control_rows(runs=1, rows=3))
    field = table.schema.field(name)
    plain = pa.string() if pa.types.is_dictionary(field.type) else field.type
    other = pa.array([value] * len(table), plain).cast(field.type)
    table = table.set_column(table.schema.get_field_index(name), field, other)
    status, out, err = told(changed(tmp_path / "h.parquet", table), capsys)
    assert (status, out) == (2, "")
    assert "h.parquet: " in err
    assert says in err
    assert "restore it" in err


def foreign(**changes: Any) -> ErrorStats:
    """The eleven published statistics alone."""
    return msgspec.structs.replace(make_stats(2.0**-20), **FOREIGN | changes)


def test_a_table_of_the_published_statistics_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of ours lacking: rows as another tool has them, for the published rule alone."""
    table = columns.from_records(control_rows())
    bare = table.drop_columns([n for n in table.column_names if n in columns._OURS])
    path = changed(tmp_path / "h.parquet", bare)
    status, out, _ = told(path, capsys)
    assert status == 0
    assert "imported rows have no envelopes; only `--rule paper` can use them" in out
    assert "800 of 800 rows come from another tool, without what the fit needs" in out
    status, out, _ = told(path, capsys, "--rule", "paper")
    assert status == 0
    assert "come from another tool" not in out


def test_imported_rows_beside_own_ones_are_said_to_be_there() -> None:
    """The fit is that of the own ones, and the note counts the others."""
    own = control_rows()
    run = make_run(id="9" * 16, origin="import", started="")
    theirs = [make_record(run=run, seed=s, stats=foreign()) for s in range(20_000, 20_100)]
    alone, both = (calibrate.calibrate(frame_of(r)) for r in (own, own + theirs))
    assert both.tolerances()["softmax", "float32"].numbers == (
        alone.tolerances()["softmax", "float32"].numbers
    )
    assert "100 of 900 rows come from another tool, without what the fit needs" in both.notes


# --- records that stand twice ---------------------------------------------------------------


def again(records: list[Record], residual: float) -> list[Record]:
    """The same runs, kernels and cases, with another result."""
    stats = make_stats(residual)
    return [msgspec.structs.replace(r, stats=stats) for r in records]


def test_the_same_records_twice_are_once(tmp_path: Path) -> None:
    """Overlapping shards, after a retry say."""
    records = control_rows()
    folder = written(tmp_path / "h", records)
    history.add(folder, records[100:300])
    whole = history.read_table([folder])
    assert (len(whole), tables.differing(whole)) == (800, 0)
    proposal = calibrate.calibrate(history.read([folder]))
    assert proposal == calibrate.calibrate(frame_of(records))
    assert "say something else" not in " ".join(proposal.notes)


def test_records_that_contradict_each_other_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run id with two contents: one of them counts, and everybody says so."""
    folder = written(tmp_path / "h", control_rows())
    history.add(folder, again(control_rows(runs=1, rows=7), 2.0**-10))
    status, out, _ = told(folder, capsys)
    assert status == 0
    assert (
        "7 records left out for others of the same run, kernel and case that say something else: "
        "`tolcal history verify` names the history."
    ) in out
    for command in ("verify", "compact"):
        assert main(["history", command, "--history", str(folder)]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"tolcal: {folder}: 7 of its records say something else than others")
    assert len(list(folder.glob("*.parquet"))) == 2  # both are still there


def test_contradictions_are_counted_across_histories_and_not_written() -> None:
    """Also between a history and a run's records; the mark stays out of new shards."""
    past = columns.from_records(control_rows(runs=2))
    once = tables.union(past, columns.from_records(again(control_rows(runs=1, rows=3), 1.0)))
    assert tables.differing(once) == 3
    twice = tables.union(once, columns.from_records(again(control_rows(runs=1, rows=2), 0.5)))
    assert tables.differing(twice) == 5
    assert history.to_frame(twice).attrs == {"differing": 5}
    assert pc.max(twice["residual_max"]).as_py() == pc.max(past["residual_max"]).as_py()
    assert tables.differing(tables.new(past, past)) == 0
