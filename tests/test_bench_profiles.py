"""The tables of profiles, kernels and checks: who is flagged where, and by what."""

from __future__ import annotations

import re
import sys

import pytest
from tests_support import CORPUS, DATA, ROOT, make_record, make_stats

from tolcal import bounds, calibrate, corpus, history, tolerances
from tolcal.model import Case, Checks, Outside, Record

sys.path.insert(0, str(CORPUS.parent / "tests" / "bench"))

import profiles


def record(profile: str, seed: int, **changes: object) -> Record:
    case = Case("softmax", "float32", (("B", 1),), profile, "contiguous", seed)
    return make_record(**{"case": case, "stats": make_stats(2.0**-30)} | changes)


def test_rows_are_counted_by_what_flags_them() -> None:
    """Alone, and first: before a tolerance is approved. Outside the domain a control is not wrong.

    A relation counts beyond the units that op.toml allows (softmax: 16 of `sums`, 16 of `shift`).
    """
    ops = corpus.select(corpus.load(CORPUS), ["softmax"])
    bad = {"kernel": "bad", "role": "buggy", "same_as_control": False}
    far = make_stats(1e30)
    none = Checks(unwritten=0, stray=0, inputs_changed=0, unrepeatable=0, sums=15.0, shift=0.0)
    stray = Checks(unwritten=0, stray=2, inputs_changed=0, unrepeatable=0)
    sums = Checks(unwritten=0, stray=0, inputs_changed=0, unrepeatable=0, sums=17.0, shift=16.0)
    records = [
        record("default", 1, checks=none),
        record("default", 1, checks=none, stats=far, **bad),
        record("default", 2, checks=sums, stats=far, **bad),
        record("default", 3, checks=sums, **bad),
        record("huge", 2, outside=Outside(5, 2)),
        record("huge", 2, outside=Outside(5, 2, 1), checks=stray, kernel="bad", role="buggy"),
        record("huge", 3, status="crashed", stats=None, **bad),
    ]  # fmt: skip
    approved = profiles.tolerances.read(CORPUS.parent / "tolerances.toml")
    assert profiles.tables(records, approved, ops) == [
        "| profile | known-wrong rows | differ | flagged | by tolerance | by kinds | outside the "
        "domain | by checks | by checks alone | control rows flagged | of other kinds outside the "
        "domain |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| `default` | 3 | 3 | 3 | 2 | 0 | 0 | 2 | 1 | 0 of 1 | 0 |",
        "| `huge` | 2 | 1 | 2 | 0 | 0 | 1 | 1 | 0 | 0 of 1 | 1 |",
        "",
        "| known-wrong kernel | rows | `tolerance` | `outside` | `stray` | `sums` |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| `bad` | 5 | 2 (1) | 1 (0, 0) | 1 (0, 0) | 2 (1, 2) |",
        "| **all** | 5 | 2 (1) | 1 (0, 0) | 1 (0, 0) | 2 (1, 2) |",
        "",
        "| known-wrong kernel | `default` | `huge` |",
        "| --- | ---: | ---: |",
        "| `bad` | 3/3 | 2/2 |",
    ]


def test_the_page_shows_the_committed_records(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/faults.md has the tables, and its words the numbers that they have."""
    page = (CORPUS.parent / "docs" / "faults.md").read_text()
    assert profiles.main(["--records", str(DATA / "h200-profiles.parquet")]) == 0
    printed = capsys.readouterr().out
    shown = re.search(r"<!-- faults:begin -->\n\n(.*)\n<!-- faults:end -->", page, re.DOTALL)
    assert shown is not None
    assert shown[1] == printed
    rows = {line.split(" | ")[0]: line.split(" | ")[1:] for line in printed.splitlines()[2:18]}
    flagged = {name: row[8].split(" of ") for name, row in rows.items()}
    wrong, right = (sum(int(n[i]) for n in flagged.values()) for i in (0, 1))
    assert f"Tolerances flag {wrong} of {right:,} rows" in page
    for name in ("adversarial", "nan_injected", "default", "normal"):
        assert flagged[f"| `{name}`"][0] == "0"
    differ, found = rows["| `adversarial`"][1:3]
    words = " ".join(page.split())
    assert (
        f"There are {differ} rows where the two differ in a bit, and {found} are flagged" in words
    )
    (whole,) = (line for line in printed.splitlines() if line.startswith("| **all**"))
    by_way = dict(zip(printed.splitlines()[19].split(" | "), whole.split(" | "), strict=True))
    alone = {way.strip("`"): re.search(r"\((\d+), (\d+)\)", by_way[way]) for way in by_way}
    never = {way for way, m in alone.items() if m is not None and m[1] == "0"}
    assert never == {"unwritten", "scale_invariant", "linear"}
    first = [m[2] for way in ("scale_invariant", "linear") if (m := alone[way]) is not None]
    assert f"they are all that flags {' and '.join(first)} rows" in words


def test_of_whole_numbers_sums_are_exact() -> None:
    """No residual but of wrong kernels, all of them flagged, as docs/faults.md says."""
    frame = history.read([DATA / "h200-profiles.parquet"])
    rows = frame[(frame["profile"] == "integers") & frame["op"].isin(["matmul", "relu"])]
    residual = rows["residual_max"].to_numpy() > 0
    right = (rows["role"] == "control").to_numpy()
    assert right.sum() == 24
    assert not residual[right].any()
    shown = rows[residual]
    assert len(shown) == 7
    approved = tolerances.read(ROOT / "tolerances.toml")
    for (op, dtype), some in shown.groupby(["op", "dtype"], observed=True):
        assert bounds.exceeds(calibrate.judged_rows(some), approved[str(op), str(dtype)]).all()
    page = " ".join((ROOT / "docs" / "faults.md").read_text().split())
    assert f"wrong kernels of theirs have one in {len(shown)}. The tolerance flags all" in page


def test_it_runs_on_two_ops(capsys: pytest.CaptureFixture[str]) -> None:
    """Every case is checked; no control is flagged, and a plain fault is."""
    arguments = ["l2norm", "relu", "--device", "cpu", "--cases", "2", "--profile", "default"]
    assert profiles.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| `default` | 4 | ")
    assert lines[2].endswith(" | 0 of 4 | 0 |")
    assert "| `l2norm_triton_buggy` | 2/2 |" in lines
