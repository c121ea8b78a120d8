"""How fast the statistics are: `python tests/bench/stats.py [LOG2 of the elements]`.

Prints, for each output dtype, milliseconds of the fused form, of the torch definition, and of a
kernel that only reads the same inputs once, from the same process: the median of repeated calls,
host work included. Needs a GPU.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from tolcal.stats import Batch, error_stats

PROGRAMS, BLOCK = 132 * 16, 1024


@triton.jit
def read(out_p, ref_p, sigma_p, sink_p, tiles: tl.int32, SIGMA: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    seen = tl.zeros([BLOCK], tl.int64)
    for _ in range(tiles):
        seen ^= tl.load(out_p + at).to(tl.int64) ^ tl.load(ref_p + at)
        if SIGMA:
            seen ^= tl.load(sigma_p + at)
        at += tl.num_programs(0).to(tl.int64) * BLOCK
    tl.store(sink_p + tl.program_id(0), tl.xor_sum(seen, 0))


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """Median milliseconds of a call, by events around it."""
    call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def line(name: str, count: int, with_sigma: bool, rough: bool) -> str:
    """One row of the table."""
    device = torch.device("cuda")
    torch.manual_seed(0)
    ref = torch.randn(count, dtype=torch.float64, device=device)
    # As a correct kernel makes them, or every element off by some spacings.
    noise = 2.0**-20 if not rough else {"float32": 2.0**-21}.get(name, 2.0**-6)
    out = (ref * (1 + noise * torch.rand_like(ref))).to(getattr(torch, name))
    sigma = ref.abs() if with_sigma else None
    zero = torch.zeros_like(ref) if sigma is None else sigma
    sink = torch.empty(PROGRAMS, dtype=torch.int64, device=device)
    bits = out.view(torch.int32 if name == "float32" else torch.int16)
    batch = Batch(device)

    def floor() -> None:
        read[(PROGRAMS,)](
            bits, ref.view(torch.int64), zero.view(torch.int64), sink,
            count // (PROGRAMS * BLOCK), SIGMA=with_sigma, BLOCK=BLOCK,
        )  # fmt: skip

    def fused() -> None:
        batch.add(out, ref, sigma, 2.0**-24, 1e-3)
        batch.results()

    least = median_ms(floor, 20)
    ours = median_ms(fused, 20)
    slow = median_ms(lambda: error_stats(out, ref, zero, 2.0**-24, 1e-3), 3)
    return (
        f"| {name} | {'yes' if with_sigma else 'no'} | {'all' if rough else 'few'} | {least:.2f} "
        f"| {ours:.2f} | {ours / least:.1f}x | {slow:.0f} | {slow / ours:.0f}x |"
    )


def main(log2: int) -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton "
          f"{triton.__version__}, 2^{log2} elements, medians in ms\n")  # fmt: skip
    print("| dtype | sigma | elements off | reading once | fused | of reading | torch | faster |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for name in ("float16", "bfloat16", "float32"):
        for with_sigma in (False, True):
            for rough in (False, True):
                print(line(name, 2**log2, with_sigma, rough), flush=True)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 28)
