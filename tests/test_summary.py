"""Summaries: lines that merge, dominate the records they stand for, and are refused if hostile."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import DATA, make_record, make_run, make_stats, single

from tolcal import bounds, history
from tolcal.calibrate.rows import judged_rows
from tolcal.history import columns, frames, lines, loading, reduce, summaries, summary
from tolcal.model import AllClose, Record, TolcalError, Tolerance

KERNELS = (("softmax_triton", "control"), ("softmax_triton_buggy", "buggy"))


@st.composite
def runs(draw: st.DrawFn, most: int = 5) -> list[pa.Table]:
    """Records of a few runs, a table each: controls and buggy rows of any kind."""
    tables = []
    for number in range(draw(st.integers(1, most))):
        info = make_run(id=f"{number:016x}", started=f"2026-11-{number + 1:02d}T00:00:00+00:00")
        tables.append(columns.from_records(draw(records(info))))
    return tables


@st.composite
def records(draw: st.DrawFn, info: Any) -> list[Record]:
    made = []
    for seed in range(draw(st.integers(1, 12))):
        kernel, role = draw(st.sampled_from(KERNELS))
        buggy = role == "buggy"
        what: dict[str, Any] = {
            "run": info, "kernel": kernel, "role": role, "seed": seed,
            "dtype": draw(st.sampled_from(["float32", "float16"])),
            "case_set": draw(st.sampled_from(["gate", "explore"])),
            "corrupts": "softmax_triton" if buggy else None,
            "same_as_control": draw(st.booleans()) if buggy else None,
        }  # fmt: skip
        if draw(st.integers(0, 9)) == 0:
            what |= {"status": "crashed", "reason": "it did", "stats": None}
        else:
            what["stats"] = draw(stats())
        made.append(make_record(**what))
    return made


@st.composite
def stats(draw: st.DrawFn) -> Any:
    """Envelopes of several elements: maxima of lines, which may bend anywhere."""
    elements = draw(st.lists(st.tuples(st.floats(0, 4), st.floats(1 / 64, 64)), min_size=1,
                             max_size=3))  # fmt: skip
    if draw(st.booleans()):  # all are the nearest numbers
        elements = [(0.0, scale) for _, scale in elements]
    u = 2.0**-24
    pairs = [(single(r * 2.0**-20), single(s)) for r, s in elements]
    envelope = tuple(
        _up(max(max(0.0, r - c * u * s) for r, s in pairs)) for c in columns.ENVELOPE_GRID
    )
    z = _up(max(r / (u * s) for r, s in pairs))
    changes: dict[str, Any] = {
        "envelope": envelope, "envelope_abs": envelope, "scaled_max": z, "scaled_max_abs": z,
        "max_abs": pairs[0][0], "num_exceeding": draw(st.sampled_from([0, 0, 3, None])),
        "bias": single(draw(st.floats(-1, 1))), "bias_count": draw(st.sampled_from([8, 5000])),
        "scale_quantiles": tuple(sorted(single(draw(st.floats(0, 9))) for _ in range(3))),
    }  # fmt: skip
    if draw(st.integers(0, 9)) == 0:
        infinite = (float("inf"),) * len(envelope)
        changes |= {"envelope": infinite, "envelope_abs": infinite, "nonfinite_mismatch": 2}
    if draw(st.integers(0, 9)) == 0:  # as imported rows are
        changes |= dict.fromkeys(
            ("envelope", "envelope_abs", "scaled_max", "scaled_max_abs", "scale_quantiles",
             "scale_abs_quantiles", "bias", "bias_count", "nonfinite_mismatch", "ref_rms",
             "ref_max", "residual_max")
        )  # fmt: skip
    return make_stats(**changes)


def _up(value: float) -> float:
    rounded = np.float32(value)
    return float(rounded if rounded >= value else np.nextafter(rounded, np.float32(np.inf)))


@functools.cache
def real() -> pa.Table:
    """Six runs of the committed history."""
    table = history.read_table([DATA / "h200-history.parquet"])
    some = sorted(set(table["run_id"].to_pylist()))[:6]
    return lines.of_runs(table.unify_dictionaries().combine_chunks(), some)


def by_run(table: pa.Table) -> list[pa.Table]:
    return [lines.of_runs(table.combine_chunks(), {r})
            for r in pc.unique(table["run_id"]).to_pylist()]  # fmt: skip


# --- merging --------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(runs(), st.integers(1, 6), st.randoms(use_true_random=False))
def test_merging_is_a_union(tables: list[pa.Table], sample: int, random: Any) -> None:
    """Associative, commutative, idempotent; and the same as summarising everything at once."""
    whole = lines.merge(summary.of_table(columns_of(tables)), sample=sample)
    parts = [lines.merge(summary.of_table(t), sample=sample) for t in tables]
    random.shuffle(parts)
    at = random.randint(0, len(parts))
    left, right = (lines.merge(*some, sample=sample) for some in (parts[:at], parts[at:]))
    for merged in (
        lines.merge(*parts, sample=sample),
        lines.merge(left, right, sample=sample),
        lines.merge(right, left, left, sample=sample),
        lines.merge(whole, *parts, sample=sample),
    ):
        assert merged.equals(whole)


def columns_of(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables([columns.empty(), *tables]).unify_dictionaries()


def test_merging_real_runs_in_any_order() -> None:
    """The same bits, with a sample that is cut: by the parts, by the whole."""
    whole = lines.merge(summary.of_table(real()), sample=50)
    parts = [lines.merge(summary.of_table(t), sample=50) for t in by_run(real())]
    folded = functools.reduce(lambda a, b: lines.merge(a, b, sample=50), reversed(parts))
    assert folded.equals(whole)
    rows = whole.filter(pa.array(lines.is_kind(whole, "row"))).to_pandas()
    assert set(rows.groupby(["kernel", "dtype"], observed=True).size()) == {50}


@settings(max_examples=25, deadline=None)
@given(runs(most=2))
def test_records_count_once(tables: list[pa.Table]) -> None:
    """Shards that overlap say nothing new, in whatever order their rows come."""
    table = columns_of(tables)
    again = pa.concat_tables([table.slice(len(table) // 2), table])
    assert lines.merge(summary.of_table(again)).equals(lines.merge(summary.of_table(table)))


def test_a_part_that_holds_another_replaces_it() -> None:
    """A run of which there are more records by now: its old lines are gone, in any order."""
    table = by_run(real())[0]
    less, more = summary.of_table(table.slice(0, 100)), summary.of_table(table)
    at = lines.SCHEMA.get_field_index("replaces")
    told = pa.array([less["part"][0].as_py()] * len(more), pa.string()).cast(lines.TEXT)
    more = more.set_column(at, lines.SCHEMA.field(at), told)
    merged = lines.merge(more, less)
    assert merged.equals(lines.merge(more))
    assert merged.equals(lines.merge(less, more, less))
    assert lines.runs_of(merged) == {table["run_id"][0].as_py(): len(table)}


# --- what a line says -----------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(runs(most=1), st.sampled_from([24, 12, 5]))
def test_a_line_dominates_its_records(tables: list[pa.Table], bits: int) -> None:
    """At every c its envelope is at or above each record's; at a grid point it is the maximum."""
    table = tables[0]
    line = lines.cut(lines.merge(summary.of_table(table)), bits).to_pandas()
    line = line[(line["kind"] == "line") & (line["role"] == "control") & (line["status"] == "ok")]
    frame = history.to_frame(table)
    names, names_abs = (list(columns.TUPLES[n]) for n in ("envelope", "envelope_abs"))
    for _, one in line.iterrows():
        if one["shape"] == "none":
            continue
        same = (frame["dtype"] == one["dtype"]) & (frame["case_set"] == one["case_set"])
        same &= (frame["role"] == "control") & (frame["status"] == "ok")
        same &= (frame["num_exceeding"].fillna(0) == 0) == one["passed"]
        finite = np.isfinite(frame[names[0]].to_numpy(np.float64))
        known = frame[names[0]].notna()
        theirs = frame[same & known & (finite == (one["shape"] == "finite"))]
        assert len(theirs) == one["rows"]
        for own, z in ((names, "scaled_max"), (names_abs, "scaled_max_abs")):
            envelopes = theirs[own].to_numpy(np.float64)
            mine = one[own].to_numpy(np.float64)[None]
            if bits == 24:
                assert (mine[0] == envelopes.max(axis=0)).all()
                assert one[z] == theirs[z].max()
            assert (mine[0] >= envelopes).all()
            assert one[z] >= theirs[z].max()
            mine_z = np.array([one[z]], np.float64)
            for c in (0.0, 0.3, 1.0, 5.7, 100.0, 700.0, 1e5):
                each = bounds.at(envelopes, theirs[z].to_numpy(np.float64), c)
                assert bounds.at(mine, mine_z, c)[0] >= each.max() * (1 - 1e-12)
        counted = theirs[theirs["bias_count"] >= bounds.BIAS_MIN_COUNT]
        assert one["bias"] >= counted["bias"].abs().max() or counted.empty
        judged = counted[~(counted[names[0]] <= 0)]
        most = float(judged["bias"].abs().max()) if len(judged) else 0.0
        assert most <= one["bias_told"] <= most * (1 + 2.0 ** (1 - bits))
        assert one["mismatch"] == theirs["nonfinite_mismatch"].sum()


@settings(max_examples=60, deadline=None)
@given(runs(most=1), st.floats(0.01, 0.99))
def test_a_line_is_over_a_bias_just_where_a_record_is(tables: list[pa.Table], tol: float) -> None:
    """A run's largest may be of a record without a residual, which is not judged by it."""
    frame = history.to_frame(tables[0])
    made = frames.frame_of(
        loading.Loaded(columns.empty(), lines.merge(summary.of_table(tables[0])))
    )
    limit = Tolerance(1e30, 0.0, AllClose(1e30, 0.0), bias_tol=tol)

    def over(rows: pd.DataFrame) -> set[tuple[str, ...]]:
        judged = rows[(rows["status"] == "ok") & (rows["role"] == "control")]
        by = [judged[name].astype(str) for name in ("run_id", "kernel", "dtype", "case_set")]
        failed = bounds.exceeds(judged_rows(judged), limit)
        return set(zip(*(values[failed] for values in by), strict=True))

    assert over(made) == over(frame)


def test_the_first_form_is_read(tmp_path: Path) -> None:
    """Its largest bias counts as judged where the run has a residual; a newer line is preferred."""
    table = lines.merge(summary.of_table(real()))
    old = table.drop_columns(["bias_told"])
    read = summaries.read(told(tmp_path / "old.parquet", old, 1))
    bias, told_bias, first = (
        read[name].to_numpy() for name in ("bias", "bias_told", columns.TUPLES["envelope"][0])
    )
    assert np.array_equal(told_bias, np.where(first <= 0, 0, bias))
    assert read.drop_columns(["bias_told"]).equals(old)
    assert (told_bias > table["bias_told"].to_numpy()).any()
    for both in ((table, read), (read, table)):
        assert lines.merge(*both).equals(table)
    twice = old.append_column("bias", old["bias"])
    at = lines.SCHEMA.get_field_index("bias")
    texts = old.set_column(at, "bias", pa.array(["x"] * len(old)))
    for name, version, table, says in (
        ("new", 2, old, "not the columns of a summary (bias_told)"),
        ("twice", 1, twice, "not the columns of a summary"),
        ("texts", 1, texts, "another type than ours"),
    ):
        with pytest.raises(TolcalError, match=re.escape(says)):
            summaries.read(told(tmp_path / f"{name}.parquet", table, version))


def test_the_points_of_a_line_are_its_records_order_statistics() -> None:
    """By a plain computation in pandas, on real rows."""
    table = by_run(real())[0]
    made = lines.merge(summary.of_table(table)).to_pandas()
    frame = history.to_frame(table)
    controls = made[(made["role"] == "control") & (made["kind"] == "line")]
    told = frame[frame["role"] == "control"].groupby(["kernel", "dtype", "case_set"], observed=True)
    assert len(controls) == told.ngroups
    for _, one in controls.iterrows():
        theirs = frame[(frame["kernel"] == one["kernel"]) & (frame["dtype"] == one["dtype"])]
        theirs = theirs[theirs["case_set"] == one["case_set"]]
        largest = np.sort(theirs["max_abs"].to_numpy())[::-1]
        assert (one[list(lines.TOPS)].to_numpy(np.float32) == largest[: lines.TOP]).all()
        rest = np.sort(largest[lines.TOP :])
        at = [int((i + 0.5) * len(rest) / lines.REST) for i in range(lines.REST)]
        assert (one[list(lines.RESTS)].to_numpy(np.float32) == rest[at]).all()
        floor = theirs["ref_rms"].to_numpy() * np.float32(2.0**-12)
        scales = theirs[list(columns.TUPLES["scale_quantiles"])].to_numpy()
        typical = np.sort(np.maximum(scales, floor[:, None]).ravel())
        typical = typical[typical > 0]
        at = [int((i + 0.5) * len(typical) / lines.TYPICAL) for i in range(lines.TYPICAL)]
        assert (one[list(lines.TYPICALS)].to_numpy(np.float32) == typical[at]).all()
        assert one["typical_count"] == len(typical)


def test_the_sample_is_even() -> None:
    """About as many of each run, and whatever is kept is the least by a hash of its identity."""
    whole = lines.merge(summary.of_table(real()), sample=60)
    rows = whole.filter(pa.array(lines.is_kind(whole, "row"))).to_pandas()
    shares = rows.groupby("run_id", observed=True).size() / len(rows)
    assert shares.min() > 0.1
    assert shares.max() < 0.25
    everything = lines.merge(summary.of_table(real()))
    picks = everything.filter(pa.array(lines.is_kind(everything, "row"))).to_pandas()
    for key, group in rows.groupby(["kernel", "dtype"], observed=True):
        every = picks[(picks["kernel"] == key[0]) & (picks["dtype"] == key[1])]["pick"]
        assert sorted(group["pick"]) == sorted(every)[:60]


def test_an_earlier_cutoff_makes_the_sample_smaller_not_uneven() -> None:
    """A part that kept less decides up to where all others are used."""
    first, second = by_run(real())[:2]
    key = ("softmax_triton_buggy", "float32")
    limited = summary.of_table(first, cutoffs={key: 2**30})
    merged = lines.merge(limited, summary.of_table(second)).to_pandas()
    own = merged[(merged["kernel"] == key[0]) & (merged["dtype"] == key[1])]
    rows = own[own["kind"] == "row"]
    assert set(own["cutoff"]) == {2**30}
    assert rows["pick"].max() <= 2**30
    assert rows["run_id"].nunique() == 2


@settings(max_examples=25, deadline=None)
@given(runs(), st.integers(2, 23))
def test_cut_numbers_understate_no_control_and_overstate_no_fault(
    tables: list[pa.Table], bits: int
) -> None:
    """Within a unit of the last bit, in the right direction; cutting again changes nothing."""
    table = lines.merge(summary.of_table(columns_of(tables)))
    short = lines.cut(table, bits)
    assert lines.cut(short, bits).equals(short)
    buggy = lines.equals(table, "role", "buggy")
    for name in (*lines.BOUNDS, *lines.POINTS):
        exact, cut = (t[name].to_numpy().astype(np.float64) for t in (table, short))
        assert (np.isnan(exact) == np.isnan(cut)).all()
        known = np.isfinite(exact)
        assert (cut[known & ~buggy] >= exact[known & ~buggy]).all()
        assert (cut[known & buggy] <= exact[known & buggy]).all()
        normal = known & (exact > 2.0**-126)
        assert (np.abs(cut[normal] - exact[normal]) <= exact[normal] * 2.0 ** (1 - bits)).all()
        assert (cut[known & (exact == 0)] == 0).all()


# --- files ----------------------------------------------------------------------------------


def told(path: Path, table: pa.Table, version: int = lines.VERSION) -> Path:
    note = msgspec.json.encode(summaries.Note(version))
    pq.write_table(table.replace_schema_metadata({b"tolcal_summary": note}), path)
    return path


def changed(name: str, value: Any) -> pa.Table:
    """A sound summary, but for one value in the first line of a control."""
    table = lines.merge(summary.of_table(by_run(real())[0]))
    frame = table.to_pylist()
    at = next(i for i, row in enumerate(frame) if row["role"] == "control")
    frame[at][name] = value
    plain = pa.schema([(f.name, pa.string() if f.type == lines.TEXT else f.type)
                       for f in lines.SCHEMA])  # fmt: skip
    return pa.Table.from_pylist(frame, schema=plain).cast(lines.SCHEMA)


def test_a_summary_survives_its_file(tmp_path: Path) -> None:
    """To the bit, and what stands beside the lines."""
    table = lines.merge(summary.of_table(real()))
    data = summaries.encoded(table, ["ab"], {"k float32": 7})
    back, note = summaries.parse("s.parquet", data)
    assert back.equals(table)
    assert (note.shards, dict(note.seen)) == (("ab",), {"k float32": 7})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("rows", 0, "rows below 1"),
        ("rows", None, "a line without rows"),
        ("run_id", None, "a line without run_id"),
        ("detectable", 10**6, "more detectable rows than rows"),
        ("detectable", -1, "detectable < 0"),
        ("typical_count", 10**6, "more typical scales"),
        ("envelope_03", 1e30, "envelope_03 above envelope_02"),
        ("envelope_11", -1.0, "envelope_11 < 0"),
        ("envelope_00", float("inf"), "envelope_00 = inf"),
        ("envelope_05", None, "no envelope_05"),
        ("envelope_abs_02", float("nan"), "no envelope_abs_02"),
        ("scaled_max", -1.0, "scaled_max < 0"),
        ("bias", 1.5, "a bias above 1"),
        ("bias", None, "no bias, though it ran"),
        ("bias_told", 0.99, "bias_told above bias"),
        ("bias_told", None, "no bias_told, though it ran"),
        ("typical_3", float("inf"), "typical_3 that is no number"),
        ("typical_0", None, "typical_0 that is no number"),
        ("typical_abs_7", 0.0, "typical_abs_7 out of order"),
        ("middle_2", None, "middle_2 that is no number"),
        ("middle_abs_0", float("nan"), "middle_abs_0 that is no number"),
        ("top_0", None, "top_0 that is no number"),
        ("top_5", 1e30, "top_5 out of order"),
        ("rest_4", float("inf"), "rest_4 that is no number"),
        ("rest_9", 1e30, "rest_9 above top_5"),
        ("roundoff", 0.5, "a roundoff that is none"),
        ("device_class", "xpu 1550", "device_class 'xpu 1550'"),
        ("roundoff", 2.0, "a roundoff that is none"),
        ("bits", 60, "bits that no significand has"),
        ("kind", "sum", "kind 'sum'"),
        ("role", "hero", "role 'hero'"),
        ("dtype", "int7", "dtype 'int7'"),
        ("origin", "moon", "origin 'moon'"),
        ("switches", "{", "switches '{'"),
    ],
)
def test_a_hostile_summary_is_one_line(tmp_path: Path, name: str, value: Any, says: str) -> None:
    """What no honest summary holds is refused, with the file's name."""
    path = told(tmp_path / "s.parquet", changed(name, value))
    with pytest.raises(TolcalError, match=r"^\S*s\.parquet: ") as error:
        summaries.read(path)
    assert says in str(error.value)


@pytest.mark.parametrize(("name", "value"), [("detectable", 0), ("rows", 10**6)])
def test_counts_that_the_sample_denies(tmp_path: Path, name: str, value: int) -> None:
    """A buggy kernel's line and its sampled records tell of the same rows."""
    rows = lines.merge(summary.of_table(by_run(real())[0])).to_pylist()
    for row in rows:
        if row["kind"] == "line" and row["role"] == "buggy":
            row[name] = value
    plain = pa.schema([(f.name, pa.string() if f.type == lines.TEXT else f.type)
                       for f in lines.SCHEMA])  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=plain).cast(lines.SCHEMA)
    with pytest.raises(TolcalError, match="another sample than its rows"):
        summaries.read(told(tmp_path / "s.parquet", table))


def test_other_files_are_refused(tmp_path: Path) -> None:
    """Another version, columns of another kind, no note, no Parquet, cut, too many lines."""
    good = lines.merge(summary.of_table(by_run(real())[0]))
    cases = {
        "version 9": told(tmp_path / "v.parquet", good, 9),
        "not the columns of a summary": told(tmp_path / "c.parquet", good.drop_columns(["rows"])),
        "not the columns of a summary (in another": told(
            tmp_path / "o.parquet", good.select(lines.SCHEMA.names[::-1])
        ),
        "another type": told(
            tmp_path / "t.parquet",
            good.set_column(
                lines.SCHEMA.get_field_index("rows"), "rows", pa.array(["x"] * len(good))
            ),
        ),
    }  # fmt: skip
    pq.write_table(good, tmp_path / "n.parquet")
    cases["no summary"] = tmp_path / "n.parquet"
    (tmp_path / "p.parquet").write_bytes(b"PAR1 it says")
    cases["unreadable"] = tmp_path / "p.parquet"
    whole = told(tmp_path / "w.parquet", good).read_bytes()
    (tmp_path / "h.parquet").write_bytes(whole[: len(whole) // 2])
    cases["unreadable or truncated"] = tmp_path / "h.parquet"
    for says, path in cases.items():
        with pytest.raises(TolcalError) as error:
            summaries.read(path)
        assert says in str(error.value)
        assert str(path) in str(error.value)


def test_a_huge_claim_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its header alone: Parquet packs equal rows into almost nothing."""
    path = told(tmp_path / "s.parquet", lines.merge(summary.of_table(by_run(real())[0])))
    monkeypatch.setattr(summaries, "MAX_LINES", 100)
    with pytest.raises(TolcalError, match="over the limit of 100 lines"):
        summaries.read(path)


# --- folders and whole histories --------------------------------------------------------------


def history_of(folder: Path, tables: list[pa.Table]) -> Path:
    for table in tables:
        history.add(folder, table)
    return folder


def summarised(paths: list[Path], out: Path, sample: int = 40) -> int:
    """As ``history summarize`` does; returns the runs that it added."""
    before = summaries.known(out)
    found = reduce.summarise(paths, known=before, sample=sample)
    summaries.update(out, found.table, found.shards, before, sample)
    return len(lines.runs_of(found.table))


@pytest.mark.parametrize("name", ["s", "s.parquet"])
def test_runs_are_added_one_by_one(tmp_path: Path, name: str) -> None:
    """The same lines as from all at once; nothing is read or written twice."""
    out, past = tmp_path / name, tmp_path / "h"
    for number, table in enumerate(by_run(real())):
        history.add(past, table)
        files = set(out.glob("*.parquet")) if out.is_dir() else set()
        assert summarised([past], out) == 1
        assert summarised([past], out) == 0
        if out.is_dir():
            assert files < set(out.glob("*.parquet"))
            assert len(files) == number
    whole = lines.merge(summary.of_table(real()), sample=40)
    merged = lines.merge(summaries.read(out), sample=40)
    names = [n for n in lines.SCHEMA.names if n != "cutoff"]
    line = pa.array(lines.is_kind(whole, "line"))
    assert (
        merged.filter(pa.array(lines.is_kind(merged, "line")))
        .select(names)
        .equals(whole.filter(line).select(names))
    )
    rows = merged.filter(pa.array(lines.is_kind(merged, "row")))
    assert rows.select(names).equals(whole.filter(pc.invert(line)).select(names))


def test_a_run_in_several_row_groups_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards and row groups may cut a run anywhere, and overlap."""
    table = real()
    size = len(table) // 4
    past = history_of(
        tmp_path / "h",
        [table.slice(i * size, size + 50) for i in range(4)] + [table.slice(4 * size)],
    )
    single_file = tmp_path / "one.parquet"
    pq.write_table(table, single_file, row_group_size=777)
    monkeypatch.setattr(reduce, "_BATCH", 2000)
    whole = lines.merge(summary.of_table(table))
    for path in (past, single_file):
        found = reduce.summarise([path])
        assert lines.merge(found.table).equals(whole)
        assert found.records == len(table)


def test_a_run_that_grew_is_summarised_anew(tmp_path: Path) -> None:
    """Its records of shards that were passed over count again; the old lines go."""
    table = by_run(real())[0]
    past, out = history_of(tmp_path / "h", [table.slice(0, 500)]), tmp_path / "s"
    assert summarised([past], out) == 1
    history.add(past, table.slice(500))
    assert summarised([past], out) == 1
    assert summarised([past], out) == 0
    merged = lines.merge(summaries.read(out))
    assert lines.runs_of(merged) == {table["run_id"][0].as_py(): len(table)}
    whole = lines.merge(summary.of_table(table), sample=40)
    assert (
        merged.drop_columns(["replaces", "cutoff"])
        .filter(pa.array(lines.is_kind(merged, "line")))
        .equals(
            whole.drop_columns(["replaces", "cutoff"]).filter(
                pa.array(lines.is_kind(whole, "line"))
            )
        )
    )


def test_a_compacted_history_is_known(tmp_path: Path) -> None:
    """Other shards, the same runs."""
    past, out = history_of(tmp_path / "h", by_run(real())[:3]), tmp_path / "s"
    assert summarised([past], out) == 3
    history.compact(past)
    assert summarised([past], out) == 0


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    """As when records are read; nothing is summarised."""
    past = history_of(tmp_path / "h", by_run(real())[:2])
    shard = next(past.glob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-9] + b"\0" * 9)
    with pytest.raises(TolcalError, match="damaged"):
        reduce.summarise([past])


def test_records_win_over_lines(tmp_path: Path) -> None:
    """A run that is in both counts once."""
    tables = by_run(real())
    out = tmp_path / "s.parquet"
    summarised([history_of(tmp_path / "h", tables[:4])], out)
    loaded = loading.load([out, history_of(tmp_path / "k", tables[3:])])
    assert set(loaded.records["run_id"].to_pylist()) == {t["run_id"][0].as_py() for t in tables[3:]}
    assert set(lines.runs_of(loaded.lines)) == {t["run_id"][0].as_py() for t in tables[:3]}


def test_of_a_run_in_both_what_holds_more_counts(tmp_path: Path) -> None:
    """A few records of a run leave its summary; what was passed over is said either way."""
    tables = by_run(real())[:2]
    out = tmp_path / "s.parquet"
    summarised([history_of(tmp_path / "h", tables)], out)
    few = history_of(tmp_path / "k", [tables[0].slice(0, 3)])
    loaded = loading.load([out, few])
    assert not loaded.records.num_rows
    assert lines.runs_of(loaded.lines) == {t["run_id"][0].as_py(): len(t) for t in tables}
    first = tables[0]["run_id"][0].as_py()
    assert loaded.notes == (
        f"3 records of 1 run passed over ({first} first): summaries hold more of the same runs",
    )
    (note,) = loading.load([out, tmp_path / "h"]).notes
    assert note.startswith(f"{sum(map(len, tables))} records of 2 runs passed over")


def of_kernel(table: pa.Table, op: str) -> pa.Table:
    return table.filter(pc.equal(pc.cast(table["op"], pa.string()), op)).combine_chunks()


def test_records_in_two_parts_of_a_run_count_once(tmp_path: Path) -> None:
    """The part that holds more of a kernel counts, in any order; nothing else is lost."""
    table = by_run(real())[0]
    ops = sorted(set(table["op"].to_pylist()))[:2]
    one, other = (of_kernel(table, op) for op in ops)
    both = pa.concat_tables([one.slice(0, len(one) // 2), other]).combine_chunks()
    paths = []
    for name, part in (("a", one), ("b", both)):
        paths.append(told(tmp_path / f"{name}.parquet", lines.merge(summary.of_table(part))))
    for order in (paths, paths[::-1]):
        loaded = loading.load(order)
        sums = lines.runs_of(loaded.lines)
        assert list(sums.values()) == [len(one) + len(other)]
        (note,) = loaded.notes
        assert note.startswith(f"{len(one) // 2} records of 1 run passed over")
    a, b = (summaries.read(path) for path in paths)
    assert lines.merge(a, lines.merge(b, a)).equals(lines.merge(b, a))


def test_overlapping_files_are_named_by_verify(tmp_path: Path) -> None:
    """As two processes leave them that add to one folder at once."""
    table = by_run(real())[0]
    op = sorted(set(table["op"].to_pylist()))[0]
    for part in (of_kernel(table, op), table):
        summaries.add(tmp_path / "s", lines.merge(summary.of_table(part)), [], {})
    (line,) = history.verify([tmp_path / "s"])
    assert f"a summary of {len(table)} records of 1 runs" in line
    assert f"{len(of_kernel(table, op))} more records of 1 run" in line


def test_a_part_of_other_records_is_not_replaced(tmp_path: Path) -> None:
    """A run's new records replace only those lines that they hold as well."""
    table = by_run(real())[0]
    ops = sorted(set(table["op"].to_pylist()))[:3]
    out = tmp_path / "s.parquet"
    summarised([history_of(tmp_path / "h", [of_kernel(table, ops[0])])], out)
    rest = pa.concat_tables([of_kernel(table, op) for op in ops[1:]]).combine_chunks()
    summarised([history_of(tmp_path / "k", [rest])], out)
    whole = len(rest) + len(of_kernel(table, ops[0]))
    assert list(lines.runs_of(summaries.read(out)).values()) == [whole]


def test_many_records_are_summarised_while_read(tmp_path: Path) -> None:
    """Beyond the limit no record stays; of a run that a summary has too, the records count."""
    past, out = history_of(tmp_path / "h", by_run(real())), tmp_path / "s.parquet"
    summarised([history_of(tmp_path / "k", by_run(real())[:2])], out)
    loaded = loading.load([past, out], most=1000)
    assert not loaded.records.num_rows
    assert loaded.lines.equals(lines.merge(summary.of_table(real())))


def test_ls_and_verify_read_summaries(tmp_path: Path) -> None:
    """The same table as of the records, and a line that says what it is."""
    past, out = history_of(tmp_path / "h", by_run(real())), tmp_path / "s"
    summarised([past], out)
    pd.testing.assert_frame_equal(history.ls([out]), history.ls([past]))
    pd.testing.assert_frame_equal(history.ls([past, out]), history.ls([past]))
    (line,) = history.verify([out])
    assert f"a summary of {len(real())} records of 6 runs in 1 file(s): good" in line


def test_records_cannot_be_had_from_a_summary(tmp_path: Path) -> None:
    """What needs records says so in one line."""
    out = tmp_path / "s.parquet"
    summarised([history_of(tmp_path / "h", by_run(real())[:1])], out)
    with pytest.raises(TolcalError, match="a summary"):
        history.read_table([out])


def test_case_hashes_need_no_dictionary_order() -> None:
    """A record's pick is its own: another table around it changes nothing."""
    some = columns.from_records([make_record(seed=s, kernel=k, role=r, corrupts="softmax_triton")
                                 for s in (1, 2) for k, r in KERNELS[1:]])  # fmt: skip
    one = columns.from_records([make_record(seed=2, kernel=KERNELS[1][0], role="buggy",
                                            corrupts="softmax_triton")])  # fmt: skip
    picks = [
        set(t["pick"].to_pylist())
        for t in (summary.of_table(some), summary.of_table(one))
        for t in [t.filter(pa.array(lines.is_kind(t, "row")))]
    ]
    assert picks[1] < picks[0]
    assert len(picks[0]) == 2
