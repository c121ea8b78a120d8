"""Installs tolcal beside the runner's own packages, which stay as they are.

Run by the Python of the input `python`. The virtual environment lies in RUNNER_TEMP, since the
action's own folder may be read-only; it sees all packages of that Python, also where that is
itself a virtual environment, so the runner's torch is the one that kernels run with.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # where PYTHONSAFEPATH is set it is not there
from log import ActionError, fail, needed, stopped

#: Never installed again nor upgraded where the runner has them: builds for one GPU stack.
KEPT = ("torch", "triton", "numpy")
#: Settings of the runner's that would have pip install elsewhere, or nothing, and say it did; or
#: refuse what has no hash. Its indexes, proxies and constraints hold.
_ELSEWHERE = re.compile(
    "PIP_(USER|TARGET|PREFIX|ROOT|DRY_RUN|PYTHON|REQUIRE_HASHES|REPORT)|PYTHON(WARNINGS|HOME)"
)
EXTRAS = {"run": "gpu", "report": "html", "command": "html", "ingest": "report"}


def site_folders() -> list[str]:
    """Where this Python's packages lie: its own, its user's, its virtual environment's."""
    names = ("site-packages", "dist-packages")
    return [entry for entry in sys.path if Path(entry).name in names and Path(entry).is_dir()]


def extra(mode: str) -> str:
    """What of tolcal's optional parts a mode needs.

    ROCm's triton has another distribution's name: where torch and triton can be imported, neither
    is asked for.
    """
    there = all(importlib.util.find_spec(name) for name in ("torch", "triton"))
    return "report" if mode == "run" and there else EXTRAS[mode]


def constraints(mode: str, source: Path, wheelhouse: Path | None) -> str:
    """pip's constraints: what the runner has stays; else, in trusted jobs, tested versions."""
    kept: dict[str, str] = {}
    for name in KEPT:
        try:
            kept[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    lines = [f"{name}=={version}" for name, version in kept.items()]
    if mode != "run" and wheelhouse is None:
        for line in (source / "constraints.txt").read_text().splitlines():
            if re.split("[=<>]", line)[0] not in (*kept, "torch", "triton"):
                lines.append(line)
    return "\n".join(lines) + "\n"


def version(source: Path) -> str:
    """Of the tolcal in the action's folder."""
    found = re.search(r'^__version__ = "([\w.+-]+)"', (source / "tolcal/__init__.py").read_text(),
                      re.MULTILINE)  # fmt: skip
    if found is None:
        raise ActionError(
            f"{source}/tolcal/__init__.py: no __version__; is the action's copy whole?"
        )
    return found[1]


def make(folder: Path) -> Path:
    """A virtual environment that sees this Python's packages, its pip too; its Python."""
    bring_pip = importlib.util.find_spec("pip") is None
    try:
        venv.EnvBuilder(clear=True, symlinks=True, with_pip=bring_pip).create(folder)
    except (Exception, SystemExit) as error:
        raise ActionError(
            f"no virtual environment can be made with {sys.executable} ({error}): on Debian and "
            "Ubuntu install python3-venv, or name another Python by the input `python`"
        ) from None
    (site,) = folder.glob("lib/python3*/site-packages")
    lines = (f"import site; site.addsitedir({path!r})" for path in site_folders())
    # Last in order, so that what is installed here comes first.
    (site / "zz-runner.pth").write_text("\n".join(lines) + "\n")
    return folder / "bin" / "python"


def pip(python: Path, *arguments: str) -> None:
    """Runs pip in the environment; ActionError with its last word if it fails."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    # In a folder of ours: `-m` would import a `pip` of the repository's root before pip.
    done = subprocess.run(
        command, cwd=python.parent, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if not _ELSEWHERE.fullmatch(name)},
    )  # fmt: skip
    print(done.stderr, end="", flush=True)
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if "ERROR: " in line]
        raise ActionError(f"pip cannot install tolcal: {said[0] if said else 'see above'}")


def install(environment: Mapping[str, str]) -> Path:
    """Does it, unless this job has done the same before; the folder of the environment."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the runner's Python, not ours
        raise ActionError(
            f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}, 3.11 or "
            "newer is needed: name one by the input `python`"
        )
    mode = environment.get("TOLCAL_INPUT_MODE", "")
    if mode not in EXTRAS:
        raise ActionError(f"mode: {mode!r}; one of {', '.join(EXTRAS)} is needed")
    source = Path(needed(environment, "GITHUB_ACTION_PATH")).resolve()
    given = environment.get("TOLCAL_INPUT_WHEELHOUSE", "")
    wheelhouse = Path(given).absolute() if given else None
    if wheelhouse is not None and not wheelhouse.is_dir():
        raise ActionError(f"wheelhouse: {wheelhouse} is no folder on this runner")
    folder = Path(needed(environment, "RUNNER_TEMP")) / "tolcal-venv"
    wanted = [mode, str(source), str(wheelhouse), sys.executable]
    note = folder / "tolcal.json"
    if note.is_file() and json.loads(note.read_text()) == wanted:
        return folder
    with stopped():
        python = make(folder)
        (folder / "constraints.txt").write_text(constraints(mode, source, wheelhouse))
        own = version(source)
        index = [] if wheelhouse is None else ["--no-index", "--find-links", str(wheelhouse)]
        built = wheelhouse is not None and any(wheelhouse.glob(f"tolcal-{own}-*.whl"))
        what = f"tolcal=={own}" if built else str(source)
        # Forced, and first: a tolcal that the runner has as well is not the one that was pinned.
        pip(python, "install", "-q", *index, "--no-deps", "--force-reinstall", what)
        pip(
            python, "install", "-q", *index, "-c", str(folder / "constraints.txt"),
            f"tolcal[{extra(mode)}]=={own}",
        )  # fmt: skip
    if not any(folder.glob(f"lib/python3*/site-packages/tolcal-{own}.dist-info")):
        raise ActionError(
            f"pip ended well, but tolcal {own} is not in {folder}: look for a pip.conf of the "
            "runner's that sends packages elsewhere (`pip config list`)"
        )
    note.write_text(json.dumps(wanted))
    return folder


if __name__ == "__main__":
    try:
        print(f"tolcal is in {install(os.environ)}", flush=True)
    except ActionError as problem:
        sys.exit(fail(problem))
