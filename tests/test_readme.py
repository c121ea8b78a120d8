"""README is true: its commands run, its table is what they print, its paths exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests_support import ROOT

from tolcal.cli import build_parser

README = (ROOT / "README.md").read_text()
#: Run by .ci/run itself, on the whole repository.
MAKE = {"make demo", "make test", "make lint"}


def commands(kind: str) -> list[str]:
    """Lines of the fenced blocks of that kind, in order."""
    blocks = re.findall(rf"^ *```{kind}\n(.*?)^ *```", README, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as a reader would have it."""
    target = tmp_path_factory.mktemp("readme") / "tolcal"
    ignore = shutil.ignore_patterns(".git", ".venv", "out", "__pycache__", ".hypothesis")
    shutil.copytree(ROOT, target, ignore=ignore)
    (target / "out").mkdir()
    return target


def test_every_command_runs(copy: Path) -> None:
    """Each command of README exits 0 in a fresh copy, in the order in which they are read."""
    tools = copy / "bin"
    tools.mkdir()
    (tools / "tolcal").write_text(f'#!/bin/sh\nexec {sys.executable} -m tolcal "$@"\n')
    (tools / "tolcal").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    listed = commands("sh")
    assert len(listed) == 28
    for command in listed:
        if command in MAKE:
            assert command in (ROOT / ".ci" / "run").read_text()
            continue
        done = subprocess.run(
            shlex.split(command),
            cwd=copy,
            env=os.environ | {"PATH": path, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-1000:]}\n{done.stderr[-1000:]}"
        if command == "tolcal report out/hand.json --format summary":
            table = README.split("<!-- table:begin -->\n")[1].split("<!-- table:end -->")[0]
            assert table.strip() == done.stdout.split("\n", 2)[2].strip()
        if command.startswith("tolcal calibrate --rule paper"):
            assert "1.48e-05" in done.stdout  # layernorm float32, as published


def test_the_python_example_runs(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one, as a file of a repository; the second is a test that uses the fixture."""
    example, fixture = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (copy / "example.py").write_text(f"import torch\ntorch.manual_seed(0)\n{example}")
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "def test_softmax(tolcal, draw):" in fixture


def test_gpu_commands_are_commands() -> None:
    """What needs a GPU at least parses; a benchmark is a script that exists and compiles."""
    listed = commands("sh gpu")
    assert len(listed) == 8
    for command in listed:
        program, *arguments = shlex.split(command)
        if program == "python":
            compile((ROOT / arguments[0]).read_text(), arguments[0], "exec")
        else:
            build_parser().parse_args(arguments)


def test_figures_of_the_introduction_are_those_of_the_table() -> None:
    """The opening claim quotes the locked runs, number for number."""
    table = README.split("<!-- table:begin -->")[1]
    intro = README.split("## Try it")[0]
    ours = re.search(r"Locked runs: (\d+) of (\d+) red \(at most ([\d.]+) %.*?(\d+) control", table)
    assert ours is not None
    red, runs, bound, rows = ours.groups()
    assert f"made {red} of {runs} runs\nred" in intro
    assert f"{int(rows):,} control rows; that alone shows at most {bound} %" in intro
    recall = re.search(r"Detectable recall ([\d.]+ %); every buggy kernel caught", table)
    assert recall is not None
    assert recall.group(1) in intro
    median = re.search(r"\*\*median\*\* .*\| ([\d.]+x) \| \|", table)
    assert median is not None
    looser = [line for line in table.splitlines() if re.search(r"x looser \| \d+ \| 0 of", line)]
    assert f"({median.group(1)} tighter in the median cell, looser in {len(looser)} of 42" in intro
    paper = re.search(r"the paper's rule: (\d+) of (\d+) red", table)
    assert paper is not None
    assert f"same rows made {paper.group(1)} of {paper.group(2)} red" in intro


@pytest.mark.parametrize(
    "name",
    ["README.md", "CONTRIBUTING.md", "tests/gpu/README.md", "docs/github.md", "docs/security.md"],
)
def test_every_path_exists(name: str) -> None:
    """Links and paths in code spans lead somewhere."""
    text = (ROOT / name).read_text()
    here = (ROOT / name).parent
    links = [t for t in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in t]
    spans = re.findall(r"`((?:tolcal|tests|corpus|\.ci)/[\w./-]*)`", text)
    for link in links:
        assert (here / link).exists(), link
    for span in spans:
        if "my_op" not in span:
            assert (ROOT / span).exists(), span
