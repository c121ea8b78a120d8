"""The pytest plugin, in sessions of its own: where records go, and when they don't."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests_support import ROOT

from tolcal import history

SUITE = """
import os
import numpy as np
import pytest

@pytest.mark.parametrize("number", range(3))
def test_double(tolcal, number):
    x = np.random.default_rng(tolcal.seed).uniform(1, 2, 8)
    out = x * 2 + (number == 2 and "BREAK" in os.environ)
    tolcal.assert_close(out, lambda x: x * 2, inputs=[x], op="double", fallback="torch")

def test_nothing():
    pass
"""
CELL = """schema = 1

[double.float64]
atol = 1e-06
scaled_tol = 4.0
allclose = {atol = 2e-06, rtol = 0.002}
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder with one test module."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "tolerances.toml").write_text(CELL)
    return tmp_path


def session(folder: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """One pytest session."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "400"} | env,
        capture_output=True, text=True,
    )  # fmt: skip


def records(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines of the plugin's section of the summary, without what is drawn by lot.

    Only of that section: where `CI` is set, pytest repeats each failure's whole message below it.
    """
    section = done.stdout.split("tolcal: records")[1].splitlines()[1:]
    section = list(itertools.takewhile(lambda line: not line.startswith("==="), section))
    lines = [re.sub(r"seed \d+", "seed N", line) for line in section]
    lines = [re.sub(r"failed-[0-9a-f]{16}", "failed-ID", line) for line in lines]
    return [line for line in lines if "tolcal" in line or "records" in line]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tolcal-record", "a.jsonl"], "a.jsonl: is no name of a records file; give a new name"),
        (["--tolcal-record", "a.json"], "a.json: is no name of a records file; give a new name"),
        (["--tolcal-record", "there.jsonl.gz"], "there.jsonl.gz: is a folder; give a new name"),
        (["--tolcal-record", "pytest.ini"], "pytest.ini: exists; its records are not overwritten"),
        (["--tolcal-record", "/dev/null"], "/dev/null: exists; its records are not overwritten"),
        (["--tolcal-record", "pytest.ini/a.jsonl.gz"], "cannot write there: File exists"),
        (["--tolcal-seed", "-5"], "-5: a whole number from 0 to 4611686018427387904"),
        (["--tolcal-seed", "4611686018427387905"], "905: a whole number from 0 to 461168601842738"),
        (["--tolcal-seed", "9" * 30], "99: a whole number from 0 to 4611686018427387904"),
    ],
)
def test_an_option_that_can_not_be_met(suite: Path, options: list[str], says: str) -> None:
    """Known before a test has run, and nothing is left behind."""
    (suite / "there.jsonl.gz").mkdir()
    before = sorted(suite.iterdir())
    done = session(suite, *options)
    assert done.returncode == 4
    assert says in done.stderr
    assert "passed" not in done.stdout
    assert [p for p in sorted(suite.iterdir()) if p.name != "__pycache__"] == before


MISTAKES = """
import numpy as np
import pytest
from tolcal.testing import assert_close

X = np.ones(8)

@pytest.mark.parametrize(("out", "reference", "more"), [
    (X, lambda x: x, {"op": "triple", "inputs": [X]}),
    (X, lambda x: x, {"op": "double"}),
    (X, lambda x: x[:4], {"op": "double", "inputs": [X]}),
    (X, lambda x: x, {"op": "double", "inputs": [X], "dtype": "int7"}),
    (X, "text", {"op": "double"}),
    (X, lambda x: x, {"op": "double", "inputs": [X], "compute_dtype": "int7"}),
])
def test_mistake(out, reference, more):
    assert_close(out, reference, **more)
"""


def test_a_mistake_is_shown_where_it_was_made(suite: Path) -> None:
    """The line of the test and the message: none of ours, which are no news."""
    (suite / "test_suite.py").write_text(MISTAKES)
    done = session(suite)
    assert "6 failed" in done.stdout
    places = re.findall(r"^(\S+\.py):\d+: ", done.stdout, re.MULTILINE)
    assert places == ["test_suite.py"] * 6


def test_a_path_is_taken_from_the_start(suite: Path) -> None:
    """A second session on it is refused while the first one runs, and the first one's records hold.

    The inner session is a test of the outer one.
    """
    (suite / "test_inner.py").write_text(
        "import subprocess, sys\n\ndef test_inner():\n"
        "    done = subprocess.run([sys.executable, '-m', 'pytest', '-q', 'test_suite.py',\n"
        "        '--tolcal-record', 'r.jsonl.gz'], capture_output=True, text=True)\n"
        "    assert done.returncode == 4\n"
        "    assert 'r.jsonl.gz: exists; its records are not overwritten' in done.stderr\n"
    )
    done = session(suite, "--tolcal-record", "r.jsonl.gz")
    assert done.returncode == 0, done.stdout
    assert records(done) == [
        "3 records in r.jsonl.gz (seed N; 3 of fresh inputs): tolcal calibrate --history r.jsonl.gz"
    ]
    assert history.read_table([suite / "r.jsonl.gz"]).num_rows == 3


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("r.jsonl.gz", ["-k", "nothing"]),
        ("history", ["-k", "nothing"]),
        ("r.jsonl.gz", ["nowhere.py"]),
        ("history", ["--help"]),
    ],
)
def test_nothing_is_left_where_nothing_was_recorded(
    suite: Path, place: str, options: list[str]
) -> None:
    """Neither by a suite without comparisons nor by a session that never started."""
    session(suite, "--tolcal-record", place, *options)
    assert not (suite / place).exists()


def test_a_failed_session_does_not_join_a_history(suite: Path) -> None:
    """Its records are a file beside, which calibrate reads with the history."""
    done = session(suite, "--tolcal-record", "out/history", BREAK="1")
    assert records(done) == [
        "1 comparison failed, so nothing was added to out/history: 3 records in "
        "out/history.failed-ID.jsonl.gz (seed N; 3 of fresh inputs)",
        "if the kernel is right, read that file too: tolcal calibrate --history "
        "out/history.failed-ID.jsonl.gz",
    ]
    assert not (suite / "out/history").exists()
    done = session(suite, "--tolcal-record", "out/history")
    assert records(done) == [
        "3 records in out/history (seed N; 3 of fresh inputs): tolcal calibrate --history "
        "out/history"
    ]
    (suite / "tolerances.toml").unlink()  # torch's defaults judge it, and fail it too
    done = session(suite, "--tolcal-record", "out/history", BREAK="1")
    assert records(done)[1].endswith(
        "--history out/history --history out/history.failed-ID.jsonl.gz"
    )
    assert history.read_table([suite / "out/history"]).num_rows == 3
    beside = sorted((suite / "out").glob("*.jsonl.gz"))
    assert [history.read_table([path]).num_rows for path in beside] == [3, 3]


def test_again_is_the_same_again(suite: Path) -> None:
    """The line of a failure that had fresh inputs repeats them."""
    done = session(suite, "--tolcal-record", "r.jsonl.gz", BREAK="1")
    again = re.search(r"^E +Again: pytest (.* --tolcal-seed \d+)$", done.stdout, re.MULTILINE)
    assert again is not None, done.stdout
    first = re.search(r"at index .*", done.stdout)
    done = session(suite, *shlex.split(again.group(1)), BREAK="1")
    second = re.search(r"at index .*", done.stdout)
    assert "1 failed" in done.stdout
    assert first is not None
    assert second is not None
    assert first.group() == second.group()
    done = session(suite, BREAK="1")  # fixed inputs need no seed
    assert re.search(r"^E +Again: pytest 'test_suite.py::test_double\[2\]'$", done.stdout,
                     re.MULTILINE)  # fmt: skip
