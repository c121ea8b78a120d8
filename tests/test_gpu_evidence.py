"""The committed run of the GPU tests: it passed, and on these sources."""

from __future__ import annotations

import runpy
import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests_support import ROOT, MovedOnWarning

GPU = ROOT / "tests" / "gpu"


def functions_of(paths: list[Path]) -> set[str]:
    """Names of the test functions of these files."""
    lines = [line for path in paths for line in path.read_text().splitlines()]
    return {line[4:].split("(")[0] for line in lines if line.startswith("def test_")}


def test_the_gpu_tests_passed() -> None:
    """The committed JUnit file holds every GPU test, none of them failed and none was skipped.

    What did fail in that run is pending, under its own name.
    """
    suite = ElementTree.parse(GPU / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    results: dict[str, bool] = {}
    for case in suite.iter("testcase"):
        name = str(case.get("name")).partition("[")[0]
        passed = not any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        results[name] = results.get(name, True) and passed
    assert {name for name, passed in results.items() if passed} == functions_of(
        sorted(GPU.glob("test_*.py"))
    )
    assert {name for name, passed in results.items() if not passed} <= functions_of(
        sorted(GPU.glob("pending_*.py"))
    )


def test_they_passed_on_these_sources() -> None:
    """A warning, with the command, if what runs on a GPU has changed since."""
    now = runpy.run_path(str(GPU / "covered.py"))["covered"]()
    if now != (GPU / "covered.txt").read_text().strip():
        warnings.warn(
            "GPU sources have moved on since the GPU tests ran: on a machine with a GPU run\n"
            "  python -m pytest tests/gpu --junitxml tests/gpu/junit.xml\n"
            "  python tests/gpu/covered.py > tests/gpu/covered.txt\nand commit both files",
            MovedOnWarning,
            stacklevel=1,
        )
