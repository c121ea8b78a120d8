"""The tables of profiles, kernels and checks: who is flagged where, and by what."""

from __future__ import annotations

import sys

import pytest
from tests_support import CORPUS, make_record, make_stats

from tolcal import corpus
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


def test_it_runs_on_two_ops(capsys: pytest.CaptureFixture[str]) -> None:
    """Every case is checked; no control is flagged, and a plain fault is."""
    arguments = ["l2norm", "relu", "--device", "cpu", "--cases", "2", "--profile", "default"]
    assert profiles.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| `default` | 4 | ")
    assert lines[2].endswith(" | 0 of 4 | 0 |")
    assert "| `l2norm_triton_buggy` | 2/2 |" in lines
