"""A worker of two GPUs that there are not: speaks the protocol as one that launches in bulk.

Run by the pool in place of ``tolcal.measure.worker``. Kernels are not executed: their names say
what becomes of the worker.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
from tests_support import make_environment, make_stats

from tolcal.measure import wire


def changed(**fields: Any) -> Callable[[wire.Measured], wire.Measured]:
    return lambda message: msgspec.structs.replace(message, **fields)


#: What a kernel might put into a record of its own, to make the file unreadable.
UNSOUND = {
    "long_reason": changed(reason="x" * 241),
    "odd_reason": changed(reason="a\nb"),
    "odd_hash": changed(input_hash="../.."),
    "ok_without_stats": changed(status="ok"),
    "stats_unlike_any": changed(status="ok", stats=make_stats(bias=2.0)),
    "stats_of_double": changed(status="ok", stats=make_stats(mean_abs=0.1)),
}


def act(kernel: str, case: int, outgoing: int) -> None:
    """What a kernel of that name does when it runs."""
    if kernel == "dies_on_2" and case == 2:
        os._exit(9)
    if kernel == "always_dies":
        os._exit(7)
    if kernel == "hangs_on_1" and case == 1:
        while True:
            time.sleep(60)
    if kernel == "repeats":
        wire.write_frame(outgoing, measured(case, kernel, "forged"))
        wire.write_frame(outgoing, measured(case, kernel, "forged"))
    if kernel == "for_another":
        wire.write_frame(outgoing, measured(case, "zz_good", "forged"))
    if kernel == "restarts":
        wire.write_frame(outgoing, wire.Started(case, kernel))
    if kernel == "refuses":
        wire.write_frame(outgoing, wire.Refused("forged"))
    if kernel in UNSOUND:
        wire.write_frame(outgoing, UNSOUND[kernel](measured(case, kernel, "")))
        os._exit(0)
    if kernel == "greets":
        wire.write_frame(outgoing, hello(sys.argv[3]))


def measured(case: int, kernel: str, reason: str) -> wire.Measured:
    return wire.Measured(case, kernel, "skipped", reason, "", None, None)


def hello(device: str) -> wire.Hello:
    index = int(device.rpartition(":")[2].rpartition("+")[2]) % 2
    unlike = os.environ.get("STAND_IN_UNLIKE") == "1" and index == 1
    environment = make_environment(**({"driver": "570.9"} if unlike else {}))
    return wire.Hello(environment, f"cuda:{index}", f"GPU-{5 - index}", 2)


def main(incoming: int, outgoing: int, device: str) -> None:
    greeting = hello(device)
    wire.write_frame(outgoing, greeting)
    while True:
        try:
            unit = wire.decode_unit(wire.read_frame(incoming))
        except EOFError:
            return
        todo = [
            (c, k.name) for c in range(len(unit.cases)) for k in unit.kernels
            if (c, k.name) not in unit.done
        ]  # fmt: skip
        if not unit.careful:
            for key in todo:
                wire.write_frame(outgoing, wire.Started(*key))
        for case, kernel in todo:
            if unit.careful:
                wire.write_frame(outgoing, wire.Started(case, kernel))
            act(kernel, case, outgoing)
            if unit.careful:
                wire.write_frame(outgoing, measured(case, kernel, f"careful {os.getpid()}"))
        if not unit.careful:
            for case, kernel in reversed(todo):
                wire.write_frame(outgoing, measured(case, kernel, f"bulk on {greeting.device}"))
        wire.write_frame(outgoing, wire.Finished())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
