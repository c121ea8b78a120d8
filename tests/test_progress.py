"""Progress of a run: bars on a terminal, lines elsewhere; and its plan."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from measure_support import GOOD, write_op
from rich.console import Console
from rich.progress import Progress

from tolcal.cli import main
from tolcal.report import terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that progress sees, to be set."""
    now = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal: a line every ten seconds with rate and time left, and the last."""
    with terminal.measuring() as report:
        for done in range(1, 101):
            clock[0] += 1.0
            report(done, 100, "relu" if done <= 50 else "silu", 1 + (done - 1) % 50, 50)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == 10
    assert lines[0] == "measuring: 10 of 100 records, 1/s, 1:30 left, relu 10 of 50"
    assert lines[6] == "measuring: 70 of 100 records, 1/s, 0:30 left, silu 20 of 50"
    assert lines[-1] == "measuring: 100 of 100 records, 1/s, silu 50 of 50"


def test_what_was_there_is_no_rate(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """Records of the run that is resumed count as done and not as fast."""
    with terminal.measuring() as report:
        for done in range(100_001, 100_021):
            clock[0] += 1.0
            report(done, 200_000, "relu", done, 200_000)
    assert capsys.readouterr().err.splitlines() == [
        "measuring: 100010 of 200000 records, 1/s, 27:46:30 left, relu 100010 of 200000",
        "measuring: 100020 of 200000 records, 1/s, 27:46:20 left, relu 100020 of 200000",
    ]


def bars(calls: list[tuple[int, int, str, int, int]], clock: list[float]) -> list[str]:
    """The lines that stand on a terminal after these calls, ten seconds apart."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    columns = terminal.Bars.columns()
    with Progress(*columns, console=console, auto_refresh=False, get_time=lambda: clock[0]) as bar:
        report = terminal.Bars(bar).report
        for call in calls:
            clock[0] += 10.0
            report(*call)
        assert isinstance(console.file, io.StringIO)
        console.file.truncate(console.file.seek(0))
        bar.refresh()
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    return [" ".join(re.sub("[━╸╺]", "", line).split()) for line in text.splitlines() if line]


def test_bars(clock: list[float]) -> None:
    """One for all records and one for each op that is not done, with rate and time left."""
    calls = [(n, 100, "relu", n, 20) for n in range(1, 21)]
    calls += [(20 + n, 100, "silu[red]\x1b[31m", n, 80) for n in range(1, 41)]
    lines = bars(calls, clock)
    assert lines == ["all 60/100 0/s 0:06:40", "silu[red] [31m 40/80 0/s 0:06:40"]


def test_bars_of_many_ops_are_few(clock: list[float]) -> None:
    """Of many ops under way the last ones are shown."""
    lines = bars([(n, 100, f"op{n}", 1, 5) for n in range(1, 40)], clock)
    assert [line.split()[0] for line in lines] == ["all", *(f"op{n}" for n in range(32, 40))]


def test_plan_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """--plan is a row for each op, dtype, profile, dims; totals and device; no kernel runs."""
    root = tmp_path / "c"
    monkeypatch.chdir(tmp_path)
    trap = "open('ran', 'w')\nraise SystemExit\n"
    write_op(root, "aa", ("float32", "float16"), kernels={"aa_one": trap, "aa_two": trap})
    write_op(root, "bb", kernels={"bb_one": GOOD, "bb_two": GOOD})
    toml = root / "bb" / "op.toml"
    toml.write_text(toml.read_text() + "[kernels.bb_two.dims]\nB = [7]\nH = [1, 3]\n")
    asked = ["run", "--plan", "--device", "cpu", "--gate", "2", "--cases", "200", "--repeat", "2",
             "--corpus", "c"]  # fmt: skip
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:8] == [
        "op  dtype    profile  dims        kernels  cases  records  shard",
        "aa  float32  default  B=1..4 H=5        2    404      808  1/1",
        "aa  float16  default  B=1..4 H=5        2    404      808  1/1",
        "bb  float32  default  B=1..4 H=5        1    404      404  1/1",
        "bb  float32  default  B=7 H=1..3        1    404      404  1/1",
        "",
        "2424 records of 2 runs in 16 units of work, by cpu (engine local)",
        lines[7],
    ]
    assert lines[7].startswith("on ")
    assert "interpreter" in lines[7]
    assert len(lines) == 8
    assert sorted(p.name for p in root.parent.iterdir()) == ["c"]
    assert main([*asked, "--shard", "2/3", "--seed", "1"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert {row[-1] for row in rows if row and row[0] in ("aa", "bb")} == {"2/3"}
    assert 700 < int(next(row[0] for row in rows if "records" in row)) < 900


def test_the_triton_cache_reaches_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """--triton-cache, else triton_cache of pyproject.toml, is TRITON_CACHE_DIR, made whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    tells = "import os\n\ndef run(x):\n    raise ValueError(os.environ.get('TRITON_CACHE_DIR'))\n"
    write_op(tmp_path / "c", kernels={"aa_tells": tells})
    asked = ["run", "--device", "cpu", "--gate", "1", "--cases", "0", "--corpus", "c"]
    for pyproject, more, expected in (
        ("", [], "None"),
        ('triton_cache = "kept"\n', [], f"{tmp_path}/kept"),
        ('triton_cache = "kept"\n', ["--triton-cache", "mine"], f"{tmp_path}/mine"),
    ):
        (tmp_path / "pyproject.toml").write_text(f"[tool.tolcal]\n{pyproject}")
        assert main([*asked, *more]) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert f"ValueError: {expected} (aa_tells.py:4); tolcal minimize aa_tells:" in last
