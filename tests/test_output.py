"""Files that commands write: in one step, and never over what isn't theirs."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from report_support import busy, make_proposal, quiet
from tests_support import DATA, ROOT, make_record

from tolcal import files, history
from tolcal.cli import main
from tolcal.model import TolcalError
from tolcal.report import FORMATS
from tolcal.report.document import Document, read, to_json


@pytest.fixture
def proposal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """P.json in an otherwise empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "P.json"
    path.write_text(to_json(busy()))
    return path


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The line that a command with exit status 2 says."""
    capsys.readouterr()
    assert main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


# --- in one step ----------------------------------------------------------------------------


def test_a_reader_never_sees_half_of_a_file(tmp_path: Path) -> None:
    """The old text or the new one, whole; mode and links stay, and nothing is left behind."""
    path = tmp_path / "x"
    link = tmp_path / "link"
    link.symlink_to(path)
    texts = [letter * 2**20 for letter in "ab"]
    files.replace(path, texts[0])
    path.chmod(0o640)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for text in texts:
                files.replace(link, text)

    writer = threading.Thread(target=write)
    writer.start()
    seen = {path.read_text() for _ in range(50)}
    stop.set()
    writer.join()
    assert seen <= set(texts)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "x"]
    assert link.is_symlink()


def full(limit: int = 10_000) -> None:
    """As if the disk had no more room than that: runs in a child before the command."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


@pytest.mark.parametrize("kind", ["html", "json", "terminal", "summary"])
def test_a_write_that_fails_leaves_the_old_file(proposal: Path, kind: str) -> None:
    """Exit 2 in one line, the good old report as it was, no rest of the new one."""
    out = proposal.with_name("out")
    old = FORMATS["json" if kind == "json" else "comment"](quiet())
    out.write_text(old)
    big = msgspec.structs.replace(busy().proposal, notes=("long " * 70,) * 500)
    proposal.write_text(to_json(Document(big)))
    done = subprocess.run(
        [sys.executable, "-m", "tolcal", "report", "P.json", "--format", kind, "--out", "out"],
        cwd=proposal.parent, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, preexec_fn=full,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("tolcal: out: cannot write it: File too large; ")
    assert out.read_text() == old
    assert sorted(p.name for p in proposal.parent.iterdir()) == ["P.json", "out"]


def test_what_is_no_file_is_written_as_it_is(tmp_path: Path) -> None:
    """A pipe stays a pipe, and a folder an error."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()), daemon=True)
    reader.start()
    files.replace(pipe, "words\n")
    reader.join(60)
    assert found == ["words\n"]
    assert pipe.is_fifo()
    with pytest.raises(TolcalError, match=os.strerror(errno.EISDIR)):
        files.replace(tmp_path, "x")
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_standard_output_by_name(proposal: Path) -> None:
    """/dev/stdout is a link to what has no name of its own where it is a pipe."""
    done = subprocess.run(
        [sys.executable, "-m", "tolcal", "report", "P.json", "--format", "json", "--out",
         "/dev/stdout"],
        cwd=proposal.parent, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, proposal.read_text(), "")


# --- never over something else --------------------------------------------------------------


@pytest.mark.parametrize("option", ["--history", "--tolerances", "--locked"])
def test_calibrate_does_not_write_over_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    """Neither by its own name nor by another."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "h200-history.parquet", "h.parquet")
    shutil.copy(DATA / "h200-history.parquet", "l.parquet")
    shutil.copy(ROOT / "tolerances.toml", "t.toml")
    name = {"--history": "h.parquet", "--tolerances": "t.toml", "--locked": "l.parquet"}[option]
    before = Path(name).read_bytes()
    Path("same").symlink_to(name)
    for json in (name, f"./{name}", "same"):
        said = refused(
            capsys, "calibrate", "--history", "h.parquet", "--tolerances", "t.toml", "--locked",
            "l.parquet", "--json", json,
        )  # fmt: skip
        assert (
            said == f"tolcal: --json {Path(json)}: is what this command reads; give another name\n"
        )
    assert Path(name).read_bytes() == before


def test_calibrate_writes_over_an_older_proposal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not over a file that is none, be it a report; an empty one is free."""
    monkeypatch.chdir(tmp_path)
    history.add(tmp_path / "h", [make_record(seed=n) for n in range(3)])
    argv = ("calibrate", "--history", "h", "--json", "out/P.json")
    assert main([*argv]) == 0
    assert main([*argv]) == 0
    path = Path("out/P.json")
    assert read(path).verdict is None
    path.write_text("")
    assert main([*argv]) == 0
    for other in ("notes of mine\n", FORMATS["comment"](busy()), '{"name": "x"}'):
        path.write_text(other)
        assert "--json out/P.json: exists and is no proposal of tolcal; " in refused(capsys, *argv)
        assert path.read_text() == other


@pytest.mark.parametrize("kind", FORMATS)
def test_report_writes_over_an_older_report(
    proposal: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Of each format; and not over its proposal, a proposal, records, or words of one's own."""
    out = Path("r")
    for _ in range(2):
        assert main(["report", "P.json", "--format", kind, "--out", "r"]) == 0
        assert out.read_text() == FORMATS[kind](busy())
    argv = ("report", "P.json", "--format", kind, "--out")
    assert "is what this command reads" in refused(capsys, *argv, "P.json")
    assert read(proposal) == busy()
    out.write_text("# my notes\n")
    assert "exists and is no " in refused(capsys, *argv, "r")
    assert out.read_text() == "# my notes\n"
    shutil.copy(DATA / "h200-history.parquet", out)
    assert "exists and is no " in refused(capsys, *argv, "r")
    if kind != "json":
        out.write_text(to_json(quiet()))
        assert "exists and is no report of tolcal" in refused(capsys, *argv, "r")
        assert read(out) == quiet()


def test_the_schema_is_a_report_too(proposal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is written over, and does not write over anything else."""
    for _ in range(2):
        assert main(["report", "--schema", "--out", "s.json"]) == 0
    assert "exists and is no report" in refused(capsys, "report", "--schema", "--out", "P.json")


def test_open_does_not_take_the_place_of_another_page(
    proposal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`report.html` beside P.json may be somebody's own."""
    page = proposal.with_name("report.html")
    page.write_text("<html>mine</html>")
    assert f"{page.name}: exists and is no report" in refused(capsys, "report", "P.json", "--open")
    assert page.read_text() == "<html>mine</html>"


def test_plots_do_not_take_the_place_of_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pictures are written over, other files aren't, and nothing to draw is said."""
    monkeypatch.chdir(tmp_path)
    Path("P.json").write_text(to_json(busy()))
    argv = ("report", "P.json", "--format", "comment", "--plots", "d")
    for _ in range(2):
        assert main([*argv]) == 0
    drawn = sorted(Path("d").iterdir())
    assert drawn
    for path in drawn:
        before = path.read_bytes()
        path.write_text("mine")
        assert f"--plots {path}: exists and is no picture" in refused(capsys, *argv)
        path.write_bytes(before)
    Path("P.json").write_text(to_json(Document(make_proposal())))
    capsys.readouterr()
    assert main(["report", "P.json", "--format", "comment", "--plots", "e"]) == 0
    assert capsys.readouterr().err == (
        "--plots e: nothing was drawn, P.json has no data for charts\n"
    )


@pytest.mark.parametrize("name", ["comment.md", "report.html", "proposal.json"])
def test_ci_does_not_write_over_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """It says so before it measures anything."""
    pytest.importorskip("triton")
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("mine")
    argv = ("ci", "relu", "--corpus", str(ROOT / "corpus"), "--history", "h", "--out", ".")
    assert f"{name}: exists and is no " in refused(capsys, *argv)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_ci_does_not_write_over_the_history_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The records of the last run, taken as history, are not its own to replace."""
    pytest.importorskip("triton")
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "h200-history.parquet", "h.parquet")
    Path("records.jsonl.gz").symlink_to("h.parquet")
    argv = ("ci", "relu", "--corpus", str(ROOT / "corpus"), "--history", "h.parquet", "--history",
            "h", "--out", ".")  # fmt: skip
    assert "records.jsonl.gz: is what this command reads" in refused(capsys, *argv)


# --- standard output, and options -----------------------------------------------------------


@pytest.mark.parametrize("argv", [("report", "P.json", "--format", "comment"), ("report", "P.json"),
                                  ("show", "nothing"), ("--version",)])  # fmt: skip
def test_a_closed_output_is_no_bug(proposal: Path, argv: tuple[str, ...]) -> None:
    """`>&- 2>&-`: nobody wants to read anything, so nothing is said; the status stays."""
    command = f"{sys.executable} -m tolcal {' '.join(argv)}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for closed, streams in ((">&-", ("stdout",)), (">&- 2>&-", ("stdout", "stderr"))):
        done = subprocess.run(
            f"{command} {closed}", shell=True, cwd=proposal.parent, env=environment,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == (2 if argv[0] == "show" else 0)
        assert "bug" not in done.stderr
        assert all(getattr(done, name) == "" for name in streams)


@pytest.mark.parametrize(
    "beside", [("P.json",), ("--format", "sarif"), ("--open",), ("--plots", "d")]
)
def test_the_schema_goes_with_nothing_else(
    proposal: Path, capsys: pytest.CaptureFixture[str], beside: tuple[str, ...]
) -> None:
    """What would be ignored is refused."""
    said = refused(capsys, "report", "--schema", *beside)
    assert f"leave {beside[0]} out" in said
    assert [p.name for p in proposal.parent.iterdir()] == ["P.json"]
