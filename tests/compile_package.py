"""Compiles the package's own Triton kernels for a GPU that need not be there; launches nothing.

usage: compile_package.py TARGET     TARGET: cuda:90, hip:gfx942, ...

Prints `ok KERNEL FORMAT` a line. A process of its own, as compile_corpus.py is.
"""

import os
import sys
import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tolcal.measure import fused as cases
from tolcal.model import DTYPES
from tolcal.stats import batch, fused, narrowing

POINTERS = {
    "raw_p": "i16", "keys_p": "i32", "buffer_p": "i32", "brackets_p": "i32", "counts_p": "i64",
    "hash_p": "i64", "scales_p": "fp32", "differing_p": "i32",
}  # fmt: skip
INTEGERS = {"tiles": "i32", "turns": "i32", "samples": "i32", "capacity": "i32", "vectors": "i32",
            "programs": "i32", "low": "fp64", "span": "fp64", "step": "fp64", "per_step": "fp64",
            "atol": "fp64", "slope": "fp64", "roundoff": "fp64", "vector": "i32"}  # fmt: skip
BITS = {8: "i8", 16: "i16", 32: "i32", 64: "i64"}


def compile_one(target: GPUTarget, kernel: Any, warps: int, out: str = "fp64", **fixed: Any) -> Any:
    """One kernel with these compile-time values; its other arguments by their names."""
    signature = {}
    for name in kernel.arg_names:
        if name in fixed:
            signature[name] = "constexpr"
        elif name in ("out_p", "a_p", "b_p"):
            signature[name] = f"*{out}"
        elif name.endswith("_p"):
            signature[name] = "*" + POINTERS.get(name, "fp64")
        else:
            signature[name] = INTEGERS.get(name, "i64")
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed, attrs={})
    options = {"num_warps": warps, "enable_fp_fusion": False}
    return triton.compile(source, target=target, options=options)


def statistics(target: GPUTarget, name: str, masked: bool, keys: int) -> Any:
    """The fused statistics of one format."""
    dtype = DTYPES[name]
    warps = 8 if masked else 1
    return compile_one(
        target, fused.statistics, warps, BITS[dtype.bits], FORMAT=name, PLACES=dtype.bits - 1,
        PRECISION=dtype.precision, EMIN=dtype.emin, EMAX=batch.exponent(dtype), MAX=dtype.max,
        ODD=batch.first_odd(dtype), INFINITE=dtype.has_infinity, SIGMA=True, LIMIT=1, KEYS=keys,
        MASKED=masked, R=32 * warps, E=8,
    )  # fmt: skip


def main(text: str) -> int:
    backend, _, arch = text.partition(":")
    target = GPUTarget("cuda", int(arch), 32) if backend == "cuda" else GPUTarget("hip", arch, 64)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        made = [
            ("statistics", name, statistics(target, name, masked, keys))
            for name in ("float16", "float32", "float64", "float8_e4m3fn")
            for masked, keys in ((True, 1), (False, 2))
        ]
        made += [
            ("total", "", compile_one(target, fused.total, 4, BLOCK=64)),
            ("narrow", "", compile_one(target, narrowing.narrow, 1, R=32, E=8)),
            ("spread", "", compile_one(target, cases.spread, 4, VECTORS=32, FIRST=True, LAST=True,
                                       BLOCK=1024)),
            ("sway", "", compile_one(target, cases.sway, 4, VECTORS=32, BLOCK=1024)),
            ("draw", "bfloat16", compile_one(target, cases.draw, 4, FORMAT="bfloat16", BLOCK=1024)),
            ("differ", "", compile_one(target, cases.differ, 4, "fp16", BLOCK=1024)),
        ]  # fmt: skip
        for kernel, name, binary in made:
            if not {"cubin", "hsaco"} & set(binary.asm):
                raise RuntimeError(f"{kernel}: no binary, only {sorted(binary.asm)}")
            print("ok", kernel, name or "-")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
