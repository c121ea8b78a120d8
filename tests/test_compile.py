"""Every Triton kernel compiles for every GPU family, on a machine that has none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests_support import CORPUS, ROOT

from tolcal import corpus


def assert_compiles(script: str, target: str, expected: list[str]) -> None:
    """That script prints just these lines for the target."""
    pytest.importorskip("triton")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "tests" / f"{script}.py"), target],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.splitlines() == expected, done.stderr[-2000:]
    assert done.returncode == 0


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100", "cuda:120", "hip:gfx942"])
def test_every_kernel_compiles(target: str) -> None:
    """Every Triton kernel gives, in every dtype, a binary that fits the target's shared memory."""
    expected = [
        f"ok {kernel.name} {dtype}"
        for op in corpus.load(CORPUS)
        for kernel in op.kernels
        if kernel.uses_triton
        for dtype in op.dtypes
    ]
    assert len(expected) == 195
    assert_compiles("compile_corpus", target, expected)


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_kernels_of_the_package_compile(target: str) -> None:
    """The fused statistics and the drawing of cases, for NVIDIA and for AMD."""
    formats = [f for f in ("float16", "float32", "float64", "float8_e4m3fn") for _ in range(2)]
    expected = [f"ok statistics {name}" for name in formats]
    expected += ["ok total -", "ok narrow -", "ok spread -", "ok sway -", "ok draw bfloat16",
                 "ok differ -"]  # fmt: skip
    assert_compiles("compile_package", target, expected)
