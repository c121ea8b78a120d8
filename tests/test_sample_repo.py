"""A user's repository from outside: wheel, hook, tests, records, calibration, a bug seen."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_precommit import git, home, hooks, start, tool
from tests_support import DATA, ROOT

from tolcal import tolerances

__all__ = ["home", "hooks"]  # fixtures

KERNEL = Path("corpus/row_softmax/kernels/row_softmax_torch.py")
BUGGY = Path("corpus/row_softmax/buggy/row_softmax_tail.py")


@pytest.fixture(scope="module")
def bin_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts of an environment with tolcal's wheel in it, and this one's libraries beside."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    for command in (
        [*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT)],
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")],
    ):
        subprocess.run(command, check=True, cwd=folder, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    python = folder / "venv" / "bin" / "python"
    done = subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", str(wheel)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (site,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    import msgspec

    (site / "libraries.pth").write_text(f"{Path(msgspec.__file__).parents[1]}\n")
    return python.parent


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, hooks: Path) -> Path:
    """The sample as a git repository with the hooks of this one."""
    folder = tmp_path_factory.mktemp("user") / "repository"
    shutil.copytree(DATA / "sample_repo", folder, ignore=shutil.ignore_patterns("__pycache__"))
    config = folder / ".pre-commit-config.yaml"
    config.write_text(config.read_text().replace("TOLCAL", str(hooks)))
    start(folder)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    return folder


def run(repository: Path, bin_: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command of the installed environment."""
    env = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"} | {
        "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "120",
    }  # fmt: skip
    return subprocess.run(
        [str(bin_ / command[0]), *command[1:]], cwd=repository, env=env, capture_output=True,
        text=True,
    )  # fmt: skip


def suite(repository: Path, bin_: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The user's own tests."""
    return run(repository, bin_, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *options)


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """``{"passed": 8, "failed": 1}`` of pytest's last line."""
    last = done.stdout.strip().splitlines()[-1]
    return {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", last)}


def test_a_users_path(repository: Path, bin_: Path, home: Path) -> None:
    """From nothing to a bug caught, each step as README has it."""
    where = run(repository, bin_, "python", "-c", "import tolcal; print(tolcal.__file__)")
    assert Path(where.stdout.strip()).is_relative_to(bin_.parent)

    # Uncalibrated: an error that says what to do; torch's defaults still judge their tests.
    done = suite(repository, bin_, "-k", "shape0")
    assert counts(done) == {"failed": 30, "passed": 1}, done.stdout[-2000:]
    assert "tolerances.toml yet, so no tolerance for row_softmax/float32; measure it" in done.stdout

    readme = (ROOT / "README.md").read_text()
    block = re.search(r"^```sh tests\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    record, fit, approve, report = (shlex.split(line) for line in block.group(1).splitlines())

    # Three recorded runs of fresh inputs are 720 records, as many as a control needs.
    for _ in range(3):
        done = suite(repository, bin_, *record[1:])
        assert counts(done) == {"passed": 248}, done.stdout[-2000:]
        assert "240 records in out/history" in done.stdout
        assert "240 of fresh inputs" in done.stdout
    done = run(repository, bin_, "tolcal", "history", "verify")
    assert "720 records of 3 runs in 3 shard(s): good" in done.stdout, done.stderr
    done = run(repository, bin_, *fit)
    assert done.returncode == 0, done.stderr
    done = run(repository, bin_, *approve)
    assert done.stdout == "1 cell written to tolerances.toml in the name of ada\n", done.stderr
    cell = tolerances.read(repository / "tolerances.toml")["row_softmax", "float32"]
    assert cell.evidence is not None
    assert (cell.evidence.rows, cell.evidence.runs) == (720, 3)
    assert (cell.evidence.held_out.runs, cell.evidence.held_out.red) == (3, 0)
    assert cell.atol < 1e-7  # torch's default for float32 is 1e-5

    # The hook takes what was approved, and tests now hold it.
    git(repository, "add", "-A")
    done = tool(repository, home, "pre-commit", "run", "--all-files")
    assert done.returncode == 0, done.stdout
    git(repository, "commit", "-q", "-m", "approve")
    done = suite(repository, bin_, *report[1:])
    assert counts(done) == {"passed": 248}, done.stdout[-2000:]
    row = re.search(r"row_softmax +float32 +240 +([\d.]+) %  tests/test_row_softmax.py::test_row_",
                    done.stdout)  # fmt: skip
    assert row is not None, done.stdout[-1000:]
    assert 0 < float(row.group(1)) < 100

    # The corpus' own measuring sees its known-wrong kernel by the same cell.
    done = run(repository, bin_, "tolcal", "ci", "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no regressions, nothing to decide" in done.stdout
    done = run(repository, bin_, "tolcal", "report", "out/proposal.json", "--format", "summary")
    assert "| caught | `row_softmax_tail` | float32 |" in done.stdout

    # A bug gets into the kernel: torch's defaults let it pass, the calibrated cell does not.
    shutil.copy(repository / BUGGY, repository / KERNEL)
    done = suite(repository, bin_, "-k", "defaults")
    assert counts(done) == {"passed": 8}, done.stdout[-2000:]
    done = suite(repository, bin_, "-k", "(shape6 or shape7) and not defaults")
    assert counts(done) == {"failed": 60}, done.stdout[-2000:]
    assert "row_softmax/float32 is outside its tolerance (tolerances.toml:" in done.stdout
    # A margin wide enough for the test's inputs, whose seeds are new each time, to come out.
    evidence = r"Evidence: rule residual, margin (1\.5|2|3|4|6), 720 rows of 3 runs on "
    assert re.search(evidence, done.stdout), done.stdout[-2000:]
    assert "; 0 of 3 held-out runs red; approved by ada" in done.stdout
    git(repository, "checkout", "-q", str(KERNEL))

    # A number loosened by hand is caught at the commit, and by the tests.
    path = repository / "tolerances.toml"
    path.write_text(re.sub(r"scaled_tol = .*", "scaled_tol = 99999.0", path.read_text(), count=1))
    done = tool(repository, home, "pre-commit", "run", "--all-files")
    assert done.returncode == 1
    assert "changed by hand since it was approved" in done.stdout
    done = suite(repository, bin_, "-k", "shape0 and not defaults")
    assert counts(done) == {"failed": 30}
    git(repository, "checkout", "-q", "tolerances.toml")


def test_what_recording_says(repository: Path, bin_: Path) -> None:
    """Values in the kernel's dtype are not recorded, and an existing file is not overwritten."""
    other = repository / "tests" / "test_other.py"
    other.write_text(
        "import torch\nfrom tolcal.testing import assert_close\n\n\n"
        "def test_values():\n    x = torch.ones(5)\n"
        "    assert_close(x, x.double(), op='other')\n    assert_close(x, x, op='other')\n"
        "    assert_close(x.half(), x, op='other')\n"
    )
    record = ("--tolcal-record", "out/one.jsonl.gz", "tests/test_other.py")
    done = suite(repository, bin_, *record)
    assert counts(done) == {"passed": 1}, done.stdout
    assert "2 records in out/one.jsonl.gz (seed " in done.stdout
    assert "0 of fresh inputs" in done.stdout
    assert "1 comparisons not recorded: their reference is in the kernel's own dtype" in done.stdout
    before = (repository / "out/one.jsonl.gz").read_bytes()
    done = suite(repository, bin_, *record)
    assert done.returncode == 4
    assert (
        "--tolcal-record out/one.jsonl.gz: exists; its records are not overwritten" in done.stderr
    )
    assert (repository / "out/one.jsonl.gz").read_bytes() == before
    done = run(
        repository, bin_, "tolcal", "calibrate", "--history", "out/one.jsonl.gz", "--json",
        "out/one.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (
        "(719 rows of a control); has 1 row of 1 run" in (repository / "out/one.json").read_text()
    )
    other.unlink()


def test_pytest_starts_light(bin_: Path, repository: Path) -> None:
    """Where nothing asks for it, the plugin brings in no library."""
    code = ("import sys, tolcal.plugin; print(*(n for n in ('numpy', 'torch', 'pandas') "
            "if n in sys.modules))")  # fmt: skip
    assert run(repository, bin_, "python", "-c", code).stdout.split() == []
