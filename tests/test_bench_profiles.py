"""The table of kernels x profiles: who is flagged where, and by what."""

from __future__ import annotations

import sys

import pytest
from tests_support import CORPUS, make_record, make_stats

from tolcal.model import Case, Checks, Outside, Record

sys.path.insert(0, str(CORPUS.parent / "tests" / "bench"))

import profiles


def record(profile: str, seed: int, **changes: object) -> Record:
    case = Case("softmax", "float32", (("B", 1),), profile, "contiguous", seed)
    return make_record(**{"case": case, "stats": make_stats(2.0**-30)} | changes)


def test_cells_say_by_what() -> None:
    """Counts by reason; a control's kinds outside the domain are no false alarm."""
    bad = {"kernel": "bad", "role": "buggy"}
    broken = Checks(unwritten=0, stray=2, inputs_changed=0, unrepeatable=0)
    records = [
        record("default", 1), record("default", 1, **bad),
        record("huge", 2, outside=Outside(5, 2)),
        record("huge", 2, outside=Outside(5, 2, 1), checks=broken, **bad),
        record("huge", 3, status="crashed", stats=None, **bad),
    ]  # fmt: skip
    assert profiles.table(records, {}, "buggy")[2:] == [
        "| `bad` | - | 2/2: 1 crashed, 1o, 1 stray |",
        "| **flagged** | **0 of 1** | **2 of 2** |",
    ]
    assert profiles.table(records, {}, "control")[2:] == [
        "| `softmax_triton` | - | 0/1: 1o |",
        "| **flagged** | **0 of 1** | **0 of 1** |",
    ]


def test_it_runs_on_two_ops(capsys: pytest.CaptureFixture[str]) -> None:
    """Every case is checked; no control is flagged, and a plain fault is."""
    arguments = ["l2norm", "relu", "--device", "cpu", "--cases", "2", "--profile", "default"]
    assert profiles.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| `l2norm_triton_buggy` | 2/2: 2 broken, 2t |" in lines
    assert "| **flagged** | **0 of 4** |" in lines
