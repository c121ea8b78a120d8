"""Runs tests/interpreted: Triton decides when it is imported whether it interprets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_kernels_of_the_package_by_the_interpreter() -> None:
    """The tests of our own Triton kernels pass where no GPU is."""
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--ignore-glob=*/gpu/*", str(HERE / "interpreted")],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=HERE.parent,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stdout[-6000:]
