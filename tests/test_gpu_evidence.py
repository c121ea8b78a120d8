"""The committed run of the GPU tests: it passed, and on these sources."""

from __future__ import annotations

import runpy
import warnings
import xml.etree.ElementTree as ElementTree

from tests_support import ROOT, MovedOnWarning

GPU = ROOT / "tests" / "gpu"


def test_the_gpu_tests_passed() -> None:
    """The committed JUnit file holds every GPU test, none failed and none skipped."""
    suite = ElementTree.parse(GPU / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    names = {str(case.get("name")).partition("[")[0] for case in suite.iter("testcase")}
    sources = "".join(path.read_text() for path in sorted(GPU.glob("test_*.py")))
    assert names == {line[4:].split("(")[0] for line in sources.splitlines()
                     if line.startswith("def test_")}  # fmt: skip
    assert [suite.get(k) for k in ("errors", "failures", "skipped")] == ["0", "0", "0"]


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
