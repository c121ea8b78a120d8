"""How fast the corpus is measured: `python tests/bench/runner.py [CASES] [WORKERS ...]`.

Measures every kernel of the corpus in its dtypes on the GPU, first with an empty Triton cache,
then warm with each number of workers: seconds from the start to the last record, and records a
second between the first and the last. Then runs units in this process under torch's profiler and
counts transfers between host and device, and where the time goes.
"""

from __future__ import annotations

import collections
import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import torch
import triton
from torch.profiler import ProfilerActivity, profile

from tolcal import corpus, measure
from tolcal.measure.units import plan
from tolcal.measure.worker import Worker
from tolcal.model import Record

ROOT = Path(__file__).resolve().parent.parent.parent


def timed(request: measure.Request) -> tuple[int, float, float]:
    """Records, seconds in all, and records a second once the first has come."""
    begun = time.perf_counter()
    stamps = [
        time.perf_counter()
        for value in measure.measure(request, ROOT / "corpus")
        if isinstance(value, Record)
    ]
    return len(stamps), stamps[-1] - begun, (len(stamps) - 1) / (stamps[-1] - stamps[0])


def transfers(request: measure.Request) -> None:
    """Copies and kernels a record, and the share of each kind of work, of warm units."""
    torch.set_grad_enabled(False)
    records = 0

    def count(message: object) -> None:
        nonlocal records
        records += type(message).__name__ == "Measured"

    worker = Worker(torch.device("cuda", 0), count)
    units = [
        msgspec.structs.replace(p.unit, careful=False) for p in plan(request, [1]) if p.unit.cases
    ]
    for unit in units:
        worker.unit(unit)
    records = 0
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        begun = time.perf_counter()
        for unit in units:
            worker.unit(unit)
        torch.cuda.synchronize()
        spent = time.perf_counter() - begun
    copies: collections.Counter[str] = collections.Counter()
    busy: collections.Counter[str] = collections.Counter()
    launches = 0
    for event in seen.key_averages():
        if str(event.device_type).endswith("CUDA"):
            if event.key.startswith("Memcpy"):
                copies[event.key.split(" (")[0]] += event.count
            else:
                launches += event.count
            busy[event.key[:60]] += event.self_device_time_total
    each = ", ".join(f"{n / records:.3f} {kind}" for kind, n in copies.items())
    print(f"\nin one process, profiled: {records} records in {spent:.2f} s; "
          f"a record takes {launches / records:.1f} kernels, {each}")  # fmt: skip
    total = sum(busy.values())
    print(f"device busy {total / 1e6 / spent:.0%} of that time; its largest parts:")
    for key, micros in busy.most_common(12):
        print(f"  {micros / total:6.1%} {key}")


def main(cases: int, workers: list[int]) -> None:
    ops = corpus.load(ROOT / "corpus")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton "
          f"{triton.__version__}, {cases} cases a kernel and dtype\n")  # fmt: skip
    print("| Triton cache | workers | records | seconds in all | records/s |")
    print("|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as cache:
        for turn, number in enumerate([workers[0], *workers]):
            request = measure.Request(
                ops=ops, dtypes=(), device="cuda", gate=0, explore=cases, workers=number,
                repeat=1 if turn == 0 else 6, seed=turn, variables={"TRITON_CACHE_DIR": cache},
            )  # fmt: skip
            records, seconds, rate = timed(request)
            kind = "empty" if turn == 0 else "warm"
            print(f"| {kind} | {number} | {records} | {seconds:.1f} | {rate:.0f} |", flush=True)
        os.environ["TRITON_CACHE_DIR"] = cache
        transfers(
            measure.Request(ops=ops, dtypes=(), device="cuda", gate=0, explore=min(cases, 24))
        )


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    main(numbers[0] if numbers else 60, numbers[1:] or [16, 1, 2, 4, 8, 16])
