"""Cold start of the hook on 1,000 cells of 334 ops, beside check-jsonschema on the same file.

    python tests/bench/hook.py [RUNS]

The hook runs in an environment of its own that holds the base installation, as pre-commit makes
it; check-jsonschema is that of this environment. Commands run in turn; whole processes are timed.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEMA = ROOT / "tolcal" / "hook" / "tolerances.schema.json"
CELLS = 1000


def thousand() -> str:
    """The shipped cells again and again under other ops' names."""
    text = (ROOT / "tolerances.toml").read_text()
    head, *blocks = re.split(r"(?m)^(?=\[\w+\.\w+\]$)", text)
    cells = [
        re.sub(r"(?m)^\[(\w+?)\.", rf"[\1_{i // len(blocks)}.", blocks[i % len(blocks)].rstrip())
        for i in range(CELLS)
    ]
    return head + "\n\n".join(cells) + "\n"


def wall(command: list[str], folder: Path) -> float:
    """Seconds of one process; it must say that the file is good."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, env=ENV)
    taken = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{command}: {done.stdout.decode()}{done.stderr.decode()}")
    return taken


ENV = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def main(runs: int) -> None:
    """Prints the table."""
    tools, text = Path(sys.executable).parent, thousand()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "venv", "env"], cwd=folder, check=True)
        scripts = folder / "env" / "bin"
        pip = [str(scripts / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
        source = folder / "source"
        shutil.copytree(ROOT / "tolcal", source / "tolcal")
        for file in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
            shutil.copy(ROOT / file, source)
        subprocess.run([*pip, "install", str(source)], check=True, env=ENV)
        alone, repository = folder / "alone", folder / "repository"
        for place in (alone, repository):
            place.mkdir()
            (place / "tolerances.toml").write_text(text)
        for op in set(re.findall(r"(?m)^\[(\w+)\.\w+\]$", text)):
            shutil.copytree(ROOT / "corpus" / op.rpartition("_")[0], repository / "corpus" / op)
        for command in ("init -q -b main .", "add -A", "commit -q -m one"):
            user = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
            subprocess.run(["git", *user, *command.split()], cwd=repository, check=True)
        # One cell changed, so that the merge base has to be read as well.
        other = text.replace('by = "the tolcal maintainers"', 'by = "somebody"', 1)
        (repository / "tolerances.toml").write_text(other)
        hook = [str(scripts / "tolcal-check"), "tolerances.toml"]
        other_tool = str(tools / "check-jsonschema")
        commands = {
            "`tolcal-check`, the file alone": (alone, hook),
            "`tolcal-check`, with corpus and a changed cell": (repository, hook),
            "`check-jsonschema`, the file alone": (
                alone, [other_tool, "--schemafile", str(SCHEMA), "tolerances.toml"],
            ),
        }  # fmt: skip
        taken: dict[str, list[float]] = {tool: [] for tool in commands}
        for run in range(runs + 1):
            for tool, (place, command) in commands.items():
                seconds = wall(command, place)
                if run:  # the first fills the caches
                    taken[tool].append(seconds)
    cores = len(os.sched_getaffinity(0))
    print(f"{CELLS} cells of 334 ops, {len(text) // 1000} kB, {runs} runs in turn, {cores} cores, "
          f"{datetime.now(UTC):%Y-%m-%d}, Python {sys.version.split()[0]}\n")  # fmt: skip
    print("| | median | least | most |\n|---|---:|---:|---:|")
    for tool, values in taken.items():
        low, high = min(values), max(values)
        print(f"| {tool} | {1000 * statistics.median(values):.0f} ms | {1000 * low:.0f} ms | "
              f"{1000 * high:.0f} ms |")  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 15)
