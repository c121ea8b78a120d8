"""From an id to its case: which files are looked in, what next steps are named, and two at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from measure_support import GOOD, write_op
from tests_support import make_record, make_run

from tolcal import corpus, minimize
from tolcal.cli import finding, main, minimizing
from tolcal.corpus import pinning
from tolcal.history import jsonlines
from tolcal.model import Case

WRONG = "def run(x):\n    y = x + x\n    y[-1, -1] += 1\n    return y\n"
KERNEL = Path("corpus/double/kernels/twice.py")
TOML = Path("corpus/double/op.toml")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An op with a hand-picked atol and a kernel that is wrong in one element."""
    monkeypatch.chdir(tmp_path)
    write_op(tmp_path / "corpus", kernels={"twice": WRONG})
    TOML.write_text(TOML.read_text() + "[legacy_atol]\nfloat32 = 0.01\n")
    return tmp_path


def run(*more: str) -> int:
    return main(["run", "--device", "cpu", "--workers", "1", "--gate", "0", "--cases", "1", *more])


def test_the_next_step_names_the_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of records that are looked for nowhere else, from the run to what stays; none where they
    are."""
    assert run("--out", "a b/r.jsonl.gz") == 0
    (record,) = jsonlines.read(Path("a b/r.jsonl.gz"))
    there = "--history 'a b/r.jsonl.gz'"
    elements = record.stats.count if record.stats else 0
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == (
        f"exceeds: {record.id} float32 {record.case.dims_text}: 1 of {elements} elements; "
        f"tolcal minimize {record.id} {there}"
    )
    assert main(["replay", record.id, "--device", "cpu"]) == 2
    capsys.readouterr()
    assert main(["replay", record.id, "--device", "cpu", "--history", "a b/r.jsonl.gz"]) == 0
    said = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(said) if "no approved tolerance" in line)
    assert said[at : at + 2] == [
        "  no approved tolerance to judge it by; the hand-picked atol is 0.01: 1 of "
        f"{elements} elements over",
        f"  the smallest input that still fails: tolcal minimize {record.id} {there}",
    ]
    assert run() == 0
    (record,) = jsonlines.read(finding.RECORDS)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith(f"tolcal minimize {record.id}")


def test_a_damaged_file_of_smaller_cases(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is passed over, with its name; what is found next is kept beside it."""
    assert run() == 0
    (record,) = jsonlines.read(finding.RECORDS)
    finding.MINIMIZED.write_bytes(b"\x1f\x8bno gzip")
    capsys.readouterr()
    assert main(["replay", record.id, "--device", "cpu"]) == 0
    said = "out/minimized.jsonl.gz is passed over: out/minimized.jsonl.gz: "
    assert capsys.readouterr().err.startswith(said)
    assert main(["minimize", record.id, "--device", "cpu"]) == 1
    out, err = capsys.readouterr()
    assert "put aside as out/minimized.jsonl.gz.damaged" in err
    assert Path("out/minimized.jsonl.gz.damaged").read_bytes() == b"\x1f\x8bno gzip"
    (small,) = jsonlines.read(finding.MINIMIZED)
    assert f"keep it    tolcal pin {small.id} --why TEXT\n" in out
    assert main(["pin", small.id, "--why", "the last element"]) == 0
    (op,) = corpus.load(Path("corpus"))
    assert op.pinned == (small.case,)


def test_replay_of_a_kernel_that_was_mended(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The record is of another source, and what matters is whether the case passes now."""
    assert run() == 0
    (record,) = jsonlines.read(finding.RECORDS)
    for source, status, now in (
        (GOOD, 0, "it passes now"),
        (f"{WRONG}# changed\n", 1, "it fails now: largest error "),
        (WRONG.replace("1\n", "2\n"), 1, "it fails now: largest error 2, 0.01 allowed by the "
         "hand-picked atol (200x, 1 of "),
    ):  # fmt: skip
        KERNEL.write_text(source)
        capsys.readouterr()
        assert main(["replay", record.id, "--device", "cpu"]) == status
        said = capsys.readouterr().out
        assert (
            "  kernel source has changed since the record\n"
            f"  so the record is of what was there before; {now}"
        ) in said
        assert "envelope" not in said
    TOML.write_text(TOML.read_text().split("[legacy_atol]")[0])
    assert main(["replay", record.id, "--device", "cpu"]) == 0
    assert "before; no tolerance says whether it fails now\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("corpus", "--out corpus: is a folder; name a file"),
        ("note/x.py", "--out note/x.py: HERE/note is no folder; give another name"),
    ],
)
def test_where_no_script_can_be_is_known_before_the_search(
    here: Path, out: str, says: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A search takes a minute, and is not spent on what can't be written."""
    assert run() == 0
    (record,) = jsonlines.read(finding.RECORDS)
    Path("note").write_text("")
    capsys.readouterr()
    monkeypatch.delattr(minimize, "minimize")
    assert main(["minimize", record.id, "--device", "cpu", "--out", out]) == 2
    assert capsys.readouterr().err == f"tolcal: {says.replace('HERE', str(here))}\n"


def test_a_case_that_its_kernel_would_skip_is_not_pinned(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By dims that op.toml has given the kernel since."""
    assert run() == 0
    (record,) = jsonlines.read(finding.RECORDS)
    TOML.write_text(TOML.read_text() + "[kernels.twice.dims]\nH = [6, 7]\n")
    before = TOML.read_text()
    capsys.readouterr()
    assert main(["pin", record.id, "--why", "w"]) == 2
    assert capsys.readouterr().err == (
        f"tolcal: {TOML}: by op.toml twice is run with H = 6, 7 alone, so it would skip case "
        f"{record.case.id} ({record.case.dims_text}); add the size to the kernel's own dims first\n"
    )
    assert TOML.read_text() == before


def test_a_file_that_is_read_only_stays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Though its folder would let it be replaced."""
    assert run() == 0
    (record,) = jsonlines.read(finding.RECORDS)
    before = TOML.read_text()
    TOML.chmod(0o444)
    capsys.readouterr()
    assert main(["pin", record.id, "--why", "w"]) == 2
    assert capsys.readouterr().err == (
        f"tolcal: {TOML}: is read-only; make it writable (`chmod u+w`) and pin again\n"
    )
    assert (TOML.read_text(), TOML.stat().st_mode & 0o777) == (before, 0o444)


# --- many at once -------------------------------------------------------------------------------


def at_once(function: Any, values: list[Any]) -> None:
    with ThreadPoolExecutor(len(values)) as pool:
        list(pool.map(function, values))


def test_pins_of_many_processes_are_all_there(here: Path) -> None:
    """Each reads the file and writes it anew, one after the other."""
    pins = [Case("double", "float32", (("B", 1), ("H", 5)), "default", "contiguous", n)
            for n in range(24)]  # fmt: skip
    at_once(lambda case: pinning.pin(TOML, case, f"number {case.seed}"), pins)
    (op,) = corpus.load(Path("corpus"))
    assert sorted(op.pinned, key=lambda case: case.seed) == pins


def test_smaller_cases_of_many_processes_are_all_there(here: Path) -> None:
    """The last two hundred of them."""
    record = make_record(op="double", kernel="twice", dims=(("B", 1), ("H", 5)), run=make_run())
    records = [
        msgspec.structs.replace(record, case=msgspec.structs.replace(record.case, seed=n))
        for n in range(24)
    ]
    at_once(minimizing._keep, records)
    kept = sorted(r.case.seed for r in jsonlines.read(finding.MINIMIZED))
    assert kept == list(range(24))
