"""A run that is cut at any moment leaves what it measured, and --resume measures the rest."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from measure_support import GOOD, without_run, write_op

from tolcal import corpus
from tolcal.cli import main, recording
from tolcal.history import jsonlines
from tolcal.measure import Request
from tolcal.model import Record, TolcalError

#: Waits, on one case late in the first op, until the test lets it go: the run is then in the midst.
GATED = """\
import os, time

def run(x):
    while x.shape[0] == 4 and not os.path.exists({flag!r}):
        time.sleep(0.01)
    return x + x
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(out: str, *more: str, cases: int = 60) -> list[str]:
    return [
        "run", "--device", "cpu", "--workers", "1", "--seed", "11", "--repeat", "2", "--gate", "4",
        "--cases", str(cases), "--corpus", "c", "--out", out, *more,
    ]  # fmt: skip


def plain(records: list[Record]) -> list[object]:
    return [without_run(r) for r in records]


def two_ops(here: Path, second: str) -> None:
    """An op of three kernels, one of which fails, and an op with the kernel ``second``."""
    write_op(
        here / "c", "aa", ("float32", "float16"),
        kernels={"aa_one": GOOD, "aa_raises": "def run(x):\n    1 / 0\n"},
        buggy={"aa_wrong": "def run(x):\n    return 3 * x\n"},
    )  # fmt: skip
    toml = here / "c" / "aa" / "op.toml"
    toml.write_text(toml.read_text().replace("z_good", "aa_one"))
    write_op(here / "c", "bb", kernels={"bb_gated": second})


@pytest.fixture
def midway(here: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A real `tolcal run` that has written a member or more and now waits in a kernel."""
    flag = here / "go"
    two_ops(here, GATED.format(flag=str(flag)))
    # Tests in the background of a shell, or under nohup, hand on that ^C is ignored.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [sys.executable, "-m", "tolcal", *command("r.jsonl.gz")],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        signal.signal(signal.SIGINT, inherited)
        part = here / "r.jsonl.gz.part"
        until = time.monotonic() + 120
        while not (part.exists() and part.stat().st_size) and time.monotonic() < until:
            assert process.poll() is None
            time.sleep(0.02)
        yield process, flag
        process.kill()


def uninterrupted(here: Path) -> list[Record]:
    """The same run in one go."""
    assert main(command("whole.jsonl.gz")) == 1
    return list(jsonlines.read(here / "whole.jsonl.gz"))


def workers_of(pid: int) -> list[int]:
    """Worker processes that process has started."""
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for_death(pids: list[int]) -> None:
    until = time.monotonic() + 30
    while not all(map(dead, pids)):
        assert time.monotonic() < until, "a worker outlives its parent"
        os.sched_yield()


def test_killed_run_is_resumed(
    here: Path, midway: tuple[subprocess.Popen[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """kill -9 in the midst: workers die, members stay, the rest is measured, nothing differs."""
    process, flag = midway
    workers = workers_of(process.pid)
    assert workers
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for_death(workers)
    flag.touch()
    part = here / "r.jsonl.gz.part"
    cut = jsonlines.read_partial(part)
    assert 200 < len(cut.records) < 896
    with pytest.raises(TolcalError, match="cut or damaged"):
        list(jsonlines.read(part.rename(here / "cut.jsonl.gz")))
    (here / "cut.jsonl.gz").rename(part)

    assert main(command("r.jsonl.gz")) == 2
    assert capsys.readouterr().err == (
        f"tolcal: r.jsonl.gz.part: holds {len(cut.records)} records of a run that was cut; go on "
        "with it (--resume) or give it up (--overwrite)\n"
    )
    assert main(command("r.jsonl.gz", "--resume")) == 1
    assert not part.exists()
    resumed, whole = list(jsonlines.read(here / "r.jsonl.gz")), uninterrupted(here)
    assert plain(resumed) == plain(whole)
    assert tuple(resumed[: len(cut.records)]) == cut.records  # the very run they were part of
    assert len({r.run.id for r in resumed}) == 2
    assert len({r.run.session for r in resumed}) == 1
    assert [r.run.seed for r in resumed] == [r.run.seed for r in whole]


@pytest.mark.parametrize(
    ("number", "status", "says"),
    [(signal.SIGINT, 130, "tolcal: interrupted"), (signal.SIGTERM, 143, "tolcal: terminated")],
)
def test_a_signal_ends_the_run_in_order(
    here: Path,
    midway: tuple[subprocess.Popen[str], Path],
    number: signal.Signals,
    status: int,
    says: str,
) -> None:
    """Every record measured is in the file, no worker is left, and the status says which signal."""
    process, flag = midway
    workers = workers_of(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (status, "")
    wait_for_death(workers)
    said = re.search(r"the first (\d+) records are in r\.jsonl\.gz\.part; the same", err)
    assert said is not None
    assert says in err
    assert "Traceback" not in err
    assert len(jsonlines.read_partial(here / "r.jsonl.gz.part").records) == int(said.group(1))
    flag.touch()
    assert main(command("r.jsonl.gz", "--resume")) == 1
    assert plain(list(jsonlines.read(here / "r.jsonl.gz"))) == plain(uninterrupted(here))


def test_a_signal_within_the_first_unit_says_that_nothing_is_kept(here: Path) -> None:
    """Cases of an op and dtype are believed together, so a part of them is no record."""
    waits = (
        "import pathlib, time\ndef run(x):\n    if x.shape[0] == 4:\n"
        f"        pathlib.Path({str(here / 'waits')!r}).touch()\n"
        "        while True:\n            time.sleep(0.01)\n    return x + x\n"
    )
    write_op(here / "c", kernels={"a_waits": waits})
    with subprocess.Popen(
        [sys.executable, "-m", "tolcal", *command("r.jsonl.gz")], text=True, stderr=subprocess.PIPE
    ) as process:
        until = time.monotonic() + 120
        while not (here / "waits").exists() and time.monotonic() < until:
            assert process.poll() is None
            os.sched_yield()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.splitlines()[-2:] == [
        "tolcal: terminated", "stopped early: no op and dtype was complete, so no record is kept",
    ]  # fmt: skip
    assert [p.name for p in here.glob("r.jsonl.gz*")] == []


def test_two_runs_into_one_file(here: Path, midway: tuple[subprocess.Popen[str], Path]) -> None:
    """The second is one line, whatever it asks for; the first goes on to its end."""
    process, flag = midway
    for more in ((), ("--resume",), ("--overwrite",)):
        second = subprocess.run(
            [sys.executable, "-m", "tolcal", *command("r.jsonl.gz", *more)],
            capture_output=True, text=True,
        )  # fmt: skip
        assert second.returncode == 2
        assert second.stderr == (
            "tolcal: r.jsonl.gz.part: another run is writing it; wait for it, or give another "
            "--out\n"
        )
    flag.touch()
    process.communicate(timeout=120)
    assert process.returncode == 1
    assert len(list(jsonlines.read(here / "r.jsonl.gz"))) == 896


# --- cut anywhere -----------------------------------------------------------------------------


@pytest.fixture
def small(here: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A whole file of 48 records in members of seven."""
    monkeypatch.setattr(jsonlines, "MEMBER", 7)
    write_op(here / "c", "aa", kernels={"aa_one": GOOD, "aa_two": GOOD})
    assert main(command("r.jsonl.gz", cases=8)) == 0
    return (here / "r.jsonl.gz").read_bytes()


def test_cut_at_every_byte(here: Path, small: bytes) -> None:
    """Whatever is left of a file, what is read of it is its beginning; whole it is whole."""
    whole = list(jsonlines.read(here / "r.jsonl.gz"))
    assert len(whole) == 48
    part, seen = here / "cut.jsonl.gz", set()
    for size in range(len(small) + 1):
        part.write_bytes(small[:size])
        found = jsonlines.read_partial(part)
        assert found.records == tuple(whole[: len(found.records)])
        assert found.size <= size
        assert found.ended == (size == len(small))
        seen.add(len(found.records))
    assert seen == {0, 6, 13, 20, 26, 33, 40, 47, 48}


def test_damage_at_every_byte(here: Path, small: bytes) -> None:
    """A byte that has changed costs its member and what follows, or is refused in words."""
    whole = list(jsonlines.read(here / "r.jsonl.gz"))
    part = here / "cut.jsonl.gz"
    for at in range(0, len(small), 3):
        part.write_bytes(small[:at] + bytes([small[at] ^ 0x55]) + small[at + 1 :])
        found = jsonlines.read_partial(part)
        assert found.records == tuple(whole[: len(found.records)])


@pytest.mark.parametrize(
    ("share", "junk"), [(0.3, b""), (0.7, b""), (0.7, b"\0" * 50_000), (0.999, b""), (1.0, b"junk")]
)
def test_resumed_from_any_cut(here: Path, small: bytes, share: float, junk: bytes) -> None:
    """From wherever it was cut, whatever follows, the file has the records of the whole one."""
    whole = list(jsonlines.read(here / "r.jsonl.gz"))
    (here / "r.jsonl.gz.part").write_bytes(small[: int(share * len(small))] + junk)
    assert main(command("r.jsonl.gz", "--resume", cases=8)) == 0
    resumed = list(jsonlines.read(here / "r.jsonl.gz"))
    assert plain(resumed) == plain(whole)
    assert resumed[0].run == whole[0].run  # the run that was cut, not another


def test_nothing_to_resume(here: Path, small: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """--resume without a cut file, or with nothing whole in it, measures from the start."""
    part = here / "r.jsonl.gz.part"
    for left in (None, small[:20]):
        if left is not None:
            part.write_bytes(left)
        capsys.readouterr()
        assert main(command("r.jsonl.gz", "--resume", cases=8)) == 0
        assert "nothing to resume; measuring from the start" in capsys.readouterr().err
        assert len(list(jsonlines.read(here / "r.jsonl.gz"))) == 48
        assert not part.exists()


def test_overwrite_gives_the_records_up(here: Path, small: bytes) -> None:
    """--overwrite is a new run."""
    (whole, *_) = jsonlines.read(here / "r.jsonl.gz")
    (here / "r.jsonl.gz.part").write_bytes(small[:-10])
    assert main(command("r.jsonl.gz", "--overwrite", cases=8)) == 0
    assert next(jsonlines.read(here / "r.jsonl.gz")).run.id != whole.run.id


def test_kernels_given_up_stay_so(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three lost workers before the cut count after it: the records are those of one go."""
    monkeypatch.setattr(jsonlines, "MEMBER", 5)
    dies = "import os\n\ndef run(x):\n    os._exit(4)\n"
    write_op(here / "c", "aa", kernels={"aa_dies": dies, "aa_good": GOOD})
    asked = command("r.jsonl.gz", "--repeat", "1", cases=4)
    assert main(asked) == 1
    small = (here / "r.jsonl.gz").read_bytes()
    whole = plain(list(jsonlines.read(here / "r.jsonl.gz")))
    for count in (4, 9):  # before the third loss, and after it
        part = here / "r.jsonl.gz.part"
        for size in range(len(small)):
            part.write_bytes(small[:size])
            if len(jsonlines.read_partial(part).records) == count:
                break
        assert main([*asked, "--resume"]) == 1
        assert plain(list(jsonlines.read(here / "r.jsonl.gz"))) == whole


# --- what is not the same run -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--seed", "12"], "the seed differs: 11 then, 12 now"),
        (["--cases", "9"], "--seed differs: aa_one:"),
        (["--gate", "3"], "--seed differs: aa_one:"),
        (["--repeat", "1"], "--repeat differs: 2 then, 1 now"),
        (["aa_two"], "--seed differs: aa_one:"),
        (["--profile", "boundary"], "--seed differs: aa_one:"),
        (["--checks", "none"], "--checks differs: aa_one:"),
        (["--checks", "all"], "--checks differs: aa_one:"),
    ],
)
def test_another_selection_is_refused(
    here: Path, small: bytes, capsys: pytest.CaptureFixture[str], change: list[str], says: str
) -> None:
    """One line says what differs, and the cut file stays as it is."""
    part = here / "r.jsonl.gz.part"
    part.write_bytes(small[:-1])
    asked = command("r.jsonl.gz", "--resume", cases=8)
    asked[1:1] = [] if change[0].startswith("--") else change  # an op before the options
    assert main(asked + (change if change[0].startswith("--") else [])) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert says in line
    assert line.endswith("or give these records up with --overwrite")
    assert part.read_bytes() == small[:-1]


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("kernels/aa_one.py", "the source of aa_one differs: "),
        ("reference.py", "the reference of aa differs: "),
        ("op.toml", "op.toml of aa differs: "),
    ],
)
def test_changed_sources_are_refused(
    here: Path, small: bytes, capsys: pytest.CaptureFixture[str], file: str, says: str
) -> None:
    """Records of two versions of a file are never of one run."""
    (here / "r.jsonl.gz.part").write_bytes(small[:-1])
    path = here / "c" / "aa" / file
    path.write_text(path.read_text() + "\n# touched\n")
    if file == "op.toml":
        path.write_text(path.read_text().replace("\n\n[output]", "\nlow = -5.0\n\n[output]"))
    assert main(command("r.jsonl.gz", "--resume", cases=8)) == 2
    assert says in capsys.readouterr().err
    assert (here / "r.jsonl.gz.part").read_bytes() == small[:-1]


def test_another_environment_is_refused(
    here: Path, small: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is of one environment: another switch is another one."""
    (here / "r.jsonl.gz.part").write_bytes(small[:-400])
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    assert main(command("r.jsonl.gz", "--resume", cases=8)) == 2
    assert "the environment differs: " in capsys.readouterr().err
    assert (here / "r.jsonl.gz.part").read_bytes() == small[:-400]


@pytest.mark.parametrize("what", ["notes", "damaged"])
def test_what_can_not_be_read_is_not_overwritten(here: Path, small: bytes, what: str) -> None:
    """Somebody's notes, or records behind a damaged first member: only --overwrite takes them."""
    part = here / "r.jsonl.gz.part"
    left = b"my notes" if what == "notes" else bytes([*small[:20], small[20] ^ 1, *small[21:]])
    if what == "damaged":
        left += b"\0" * 4096  # as long as a real one
    part.write_bytes(left)
    ops = corpus.load(here / "c")
    asked = Request(ops=ops, dtypes=(), device="cpu", gate=1, explore=0)
    for resume in (True, False):
        with pytest.raises(TolcalError, match=r"bytes in which no record can be read"):
            recording.measure_into(here / "r.jsonl.gz", asked, here / "c", resume, False)
    assert part.read_bytes() == left


def test_a_folder_that_goes_away_is_named(here: Path) -> None:
    """Its end is an error of the file system, not of ours."""
    out = here / "gone" / "r.jsonl.gz"

    def work() -> None:  # what a run stands in
        with recording._locked(out):
            out.parent.rename(here / "elsewhere")
            out.stat()

    with pytest.raises(FileNotFoundError):
        work()


def test_a_foreign_part_is_refused(here: Path, small: bytes) -> None:
    """A file of that name that is none of ours is neither read nor overwritten."""
    part = here / "r.jsonl.gz.part"
    part.write_bytes(gzip.compress(b'{"mine": 1}\n'))
    ops = corpus.load(here / "c")
    asked = Request(ops=ops, dtypes=(), device="cpu", gate=1, explore=0)
    for resume in (True, False):
        with pytest.raises(TolcalError, match=r"r\.jsonl\.gz\.part:1: not a line of a tolcal"):
            recording.measure_into(here / "r.jsonl.gz", asked, here / "c", resume, False)
    assert part.exists()
