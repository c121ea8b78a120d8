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


@triton.jit
def read(out_p, ref_p, sigma_p, sink_p, tiles: tl.int32, SIGMA: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    seen = tl.zeros([BLOCK], tl.int64)
    for _ in range(0, tiles):
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


def main(log2: int) -> None:
    device = torch.device("cuda")
    count = 2**log2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton "
          f"{triton.__version__}, 2^{log2} elements, medians in ms")  # fmt: skip
    print("dtype     sigma  residuals  floor   fused  x floor   torch  x fused")
    for name in ("float16", "bfloat16", "float32"):
        for with_sigma in (False, True):
            for rough in (False, True):
                torch.manual_seed(0)
                ref = torch.randn(count, dtype=torch.float64, device=device)
                # As a correct kernel makes them, or every element off by some spacings.
                noise = 2.0**-20 if not rough else {"float32": 2.0**-21}.get(name, 2.0**-6)
                out = (ref * (1 + noise * torch.rand_like(ref))).to(getattr(torch, name))
                sigma = ref.abs() if with_sigma else None
                bits = torch.int32 if name == "float32" else torch.int16
                sink = torch.empty(2**18, dtype=torch.int64, device=device)
                args = [out.view(bits), ref.view(torch.int64)]
                args.append(ref if sigma is None else sigma)
                args[2] = args[2].view(torch.int64)
                programs, block = 132 * 16, 1024

                def floor() -> None:
                    read[(programs,)](
                        *args, sink, count // (programs * block), SIGMA=with_sigma, BLOCK=block
                    )

                batch = Batch(device)

                def fused() -> None:
                    batch.add(out, ref, sigma, 2.0**-24, 1e-3)
                    batch.results()

                zero = torch.zeros_like(ref) if sigma is None else sigma
                least = median_ms(floor, 20)
                ours = median_ms(fused, 20)
                slow = median_ms(lambda: error_stats(out, ref, zero, 2.0**-24, 1e-3), 3)
                print(f"{name:9} {'yes' if with_sigma else 'no':6} {'all' if rough else 'few':9} "
                      f"{least:6.3f} {ours:7.3f} {ours / least:8.2f} {slow:7.1f} "
                      f"{slow / ours:8.1f}", flush=True)  # fmt: skip
                del ref, out, sigma, zero, args
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 28)
