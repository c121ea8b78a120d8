"""The hooks as their users have them: real pre-commit and prek, in repositories of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_hook import GOOD, changed
from tests_support import ROOT

TOOLS = Path(sys.executable).parent
#: What a clone of the hook's repository holds that an installation needs.
SOURCES = ("tolcal", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md",
           ".pre-commit-hooks.yaml")  # fmt: skip


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def start(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    git(folder, "init", "-q", "-b", "main", ".")
    git(folder, "config", "user.name", "ada")
    git(folder, "config", "user.email", "ada@example.org")


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This repository as one that a hook can be installed from, tagged v0."""
    folder = tmp_path_factory.mktemp("hooks")
    for name in SOURCES:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    start(folder)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all")
    git(folder, "tag", "v0")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One place for installed hooks, so that each tool installs once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def user(tmp_path: Path, hooks: Path) -> Path:
    """A user's repository with both hooks configured and a good file committed."""
    folder = tmp_path / "user"
    start(folder)
    (folder / ".pre-commit-config.yaml").write_text(
        f"repos:\n- repo: {hooks}\n  rev: v0\n  hooks:\n  - id: tolcal-check\n"
        "  - id: tolcal-format\n"
    )
    (folder / "tolerances.toml").write_text(GOOD)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def tool(folder: Path, home: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A tool of this environment, which keeps what it installs under ``home``."""
    env = {name: v for name, v in os.environ.items() if name not in ("PYTHONPATH", "GIT_DIR")} | {
        "PRE_COMMIT_HOME": str(home / "pc"),
        "PREK_HOME": str(home / "prek"),
        "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}",
    }
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["pre-commit", "prek"])
def test_the_manifest_is_valid(name: str, tmp_path: Path) -> None:
    """Both tools take it."""
    done = tool(ROOT, tmp_path, name, "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["pre-commit", "prek"])
def test_try_repo(name: str, user: Path, hooks: Path, home: Path) -> None:
    """A good file passes; one that was changed by hand fails with its line and remedy."""
    command = (name, "try-repo", str(hooks), "tolcal-check", "--files", "tolerances.toml")
    done = tool(user, home, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"tolcal check\.+Passed", done.stdout)
    (user / "tolerances.toml").write_text(GOOD.replace("8.0", "9.0", 1))
    done = tool(user, home, *command)
    assert done.returncode == 1
    assert "tolerances.toml:3:2: error: softmax.float16: changed by hand since it" in done.stdout
    assert "restore them, or take the calibrated value" in done.stdout


@pytest.mark.parametrize("name", ["pre-commit", "prek"])
def test_a_commit_is_blocked_until_it_is_mended(name: str, user: Path, home: Path) -> None:
    """install, git commit: a loosening is refused, messy text put in order, then it goes."""
    assert tool(user, home, name, "install").returncode == 0
    loose = changed("scaled_tol = 8.0", "scaled_tol = 9.0", at="2027-01-01T00:00:00Z")
    (user / "tolerances.toml").write_text(loose)
    blocked = commit(user, home, "loosen")
    assert blocked.returncode == 1, blocked.stdout + blocked.stderr
    assert "looser than before (1.12x at the median element)" in blocked.stdout + blocked.stderr
    messy = loose.replace('by = "ada"', 'reason = "new GPU"\nby = "ada"', 1)
    (user / "tolerances.toml").write_text(messy)
    assert commit(user, home, "loosen").returncode == 1  # the file was put in order
    text = (user / "tolerances.toml").read_text()
    assert text.index("by =") < text.index("reason =")
    done = commit(user, home, "loosen")
    assert done.returncode == 0, done.stdout + done.stderr
    assert git(user, "log", "-1", "--format=%s") == "loosen"
    assert git(user, "status", "--porcelain") == ""


def commit(folder: Path, home: Path, message: str) -> subprocess.CompletedProcess[str]:
    """``git commit -a`` with the hooks that are installed in the repository."""
    return tool(folder, home, "git", "commit", "-a", "-m", message)


def test_the_hooks_environment_is_small(home: Path) -> None:
    """What pre-commit installed from the wheel: the base alone, at most 25 MB without pip."""
    sites = list((home / "pc").glob("repo*/py_env*/lib/python3*/site-packages"))
    assert sites
    names = {p.name for p in sites[0].iterdir() if not re.match(r"pip|setuptools|wheel", p.name)}
    assert {"tolcal", "msgspec", "tomli", "tomlkit"} <= names
    assert not names & {"numpy", "torch", "pandas", "pyarrow", "triton", "rich", "requests"}
    assert (sites[0] / "tolcal/hook/tolerances.schema.json").is_file()
    files = [p for name in names for p in ((sites[0] / name), *(sites[0] / name).rglob("*"))]
    size = sum(p.stat().st_size for p in files if p.is_file())
    assert size <= 25e6
    # Importing what the hook imports needs no more than that.
    python = sites[0].parents[2] / "bin" / "python"
    done = subprocess.run(
        [python, "-I", "-c", "import tolcal.hook.commands, tolcal.hook.layout, "
         "tolcal.hook.schema, tolcal.tolerances.writing"], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
