"""What tests of the action share: the action's folder as a runner has it, and a wheelhouse."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests_support import ROOT

#: What GitHub's copy of the action must hold.
PARTS = ("action.yml", "action", "tolcal", "pyproject.toml", "constraints.txt", "README.md",
         "LICENSE", "CHANGELOG.md")  # fmt: skip


def copy_action(folder: Path) -> Path:
    """The action as GitHub unpacks it: no git, no caches, read-only."""
    folder.mkdir(parents=True)
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / part)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return folder


def listing(folder: Path) -> dict[str, bytes | None]:
    """Every path below it and the bytes of files: permissions don't hold back root."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def wheelhouse(folder: Path, *, built: bool) -> Path:
    """A folder with tolcal's wheel, or with the build backend that makes it: as documented."""
    text = (ROOT / "docs" / "github.md").read_text()
    wheel, backend = re.search("^```sh wheelhouse\n(.*\n)(.*\n)```", text, re.MULTILINE).groups()  # type: ignore[union-attr]
    program, *arguments = shlex.split(wheel if built else backend)
    assert program == "python"
    command = [sys.executable, *(str(folder) if a == "out/wheelhouse" else a for a in arguments)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return folder
