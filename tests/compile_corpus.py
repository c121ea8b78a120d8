"""Compiles every Triton kernel of the corpus for a GPU that need not be there; launches nothing.

usage: compile_corpus.py TARGET [KERNEL ...]     TARGET: cuda:90, hip:gfx942, ...

Prints `ok KERNEL DTYPE` or `FAIL KERNEL DTYPE why` a line. A process of its own, without
TRITON_INTERPRET: that variable decides at import time what @triton.jit makes.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tolcal import cases, corpus
from tolcal.measure.worker import load
from tolcal.model import Case, Kernel, Op

#: Bytes of shared memory a program may use: a kernel that needs more fails only at launch.
SHARED_LIMIT = {
    "cuda:80": 166_912,
    "cuda:90": 232_448,
    "cuda:100": 232_448,
    "cuda:120": 101_376,
    "hip:gfx942": 65_536,
}
ROOT = Path(__file__).resolve().parent.parent


def tried(call: Callable[[], None], quantiles: tuple[float, ...]) -> tuple[float, ...]:
    """An autotuner's clock: every config is compiled, and all are as fast."""
    call()
    return (0.0,) * len(quantiles)


class FakeDriver:
    """What Triton's JIT asks its driver for up to the compilation, and nothing after it."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., tuple[float, ...]]:
        return tried


def intercept(target: str) -> list[Any]:
    """Turns every launch into a compilation for ``target``; the list receives what it compiled."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    backend, _, arch = target.partition(":")
    wanted = GPUTarget("cuda", int(arch), 32) if backend == "cuda" else GPUTarget("hip", arch, 64)
    driver.set_active(FakeDriver(wanted))
    compiled: list[Any] = []
    original = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        # Alignment is part of what is compiled; CPU tensors are aligned enough to match a GPU's.
        kernel = original(self, *args, grid=grid, warmup=True, **kwargs)
        compiled.append(kernel)
        return kernel

    JITFunction.run = run
    return compiled


def check(op: Op, kernel: Kernel, dtype: str, compiled: list[Any], limit: int) -> None:
    """Compiles a kernel at its largest dims; raises what the compiler raises."""
    compiled.clear()
    dims = tuple((name, max(sizes)) for name, sizes in kernel.dims.items())
    case = Case(op.name, dtype, dims, "default", "contiguous", 0)
    inputs = {
        name: torch.zeros(
            cases.shape_of(spec.shape, case), dtype=getattr(torch, spec.dtype or dtype)
        )
        for name, spec in op.inputs.items()
    }
    load(kernel.path, "run")(**inputs)
    if not compiled:
        raise RuntimeError("run() launched no Triton kernel")
    for binary in compiled:
        if not {"cubin", "hsaco"} & set(binary.asm):
            raise RuntimeError(f"no binary, only {sorted(binary.asm)}")
        if binary.metadata.shared > limit:
            raise RuntimeError(f"{binary.metadata.shared} B of shared memory, {limit} there are")


def main(target: str, only: list[str]) -> int:
    if os.environ.get("TRITON_INTERPRET"):
        raise SystemExit("unset TRITON_INTERPRET: the interpreter compiles nothing")
    failed = False
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        compiled = intercept(target)
        for op in corpus.load(ROOT / "corpus"):
            for kernel in op.kernels:
                if not kernel.uses_triton or (only and kernel.name not in only):
                    continue
                for dtype in op.dtypes:
                    try:
                        check(op, kernel, dtype, compiled, SHARED_LIMIT[target])
                    except Exception as error:
                        failed = True
                        why = " ".join(f"{type(error).__name__}: {error}".split())
                        print(f"FAIL {kernel.name} {dtype} {why}", flush=True)
                    else:
                        print(f"ok {kernel.name} {dtype}", flush=True)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
