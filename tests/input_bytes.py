"""Cases whose input bytes are frozen: replays rest on them, on every machine and device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests_support import DATA

from tolcal import cases
from tolcal.model import DTYPES, INTEGERS, Case, InputSpec, Op

GOLDEN = DATA / "golden" / "inputs.json"
FLOATS = ("float64", "float32", "float16", "bfloat16")


def make_op(own: str | None) -> Op:
    """Two inputs: x of the case's dtype or its own, and a vector w of the case's."""
    low, high = (-10.0, 10.0) if own in (None, *DTYPES) else (0, 100)
    return Op(
        name="frozen",
        summary="",
        dtypes=FLOATS,
        compute_dtype="float32",
        inputs={"x": InputSpec(("B", "H"), low, high, dtype=own), "w": InputSpec(("H",), 0.5, 2.0)},
        output=("B", "H"),
        legacy_atol={},
        reduction=None,
        path="",
        reference_path="",
        op_hash="",
        reference_hash="",
        kernels=(),
    )


def frozen() -> Iterator[tuple[str, Op, Case]]:
    """(name, op, case): every dtype that an input can have, and every profile."""
    eights = [name for name in DTYPES if name not in FLOATS]
    for own in (*INTEGERS, *eights):
        yield f"float32 with {own}", make_op(own), make_case("float32", "default")
    for profile in cases.PROFILES:
        for dtype in FLOATS:
            yield f"{dtype} {profile}", make_op(None), make_case(dtype, profile)


def make_case(dtype: str, profile: str) -> Case:
    dims = (("B", 3), ("H", 257))
    return Case("frozen", dtype, dims, profile, "contiguous", 2**62 + 12345)


def hashes(raw: Mapping[str, bytes], input_hash: str) -> dict[str, str]:
    """What is frozen of a case: the bytes of each input, and the hash that records have."""
    found = {name: hashlib.sha256(data).hexdigest()[:16] for name, data in raw.items()}
    return {**found, "input_hash": input_hash}


def of_tensors(tensors: Mapping[str, Any]) -> dict[str, str]:
    """The same of tensors on any device."""
    import torch

    raw = {
        name: x.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, x in tensors.items()
    }
    return hashes(raw, cases.input_hash_torch(tensors))


def golden() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text())
    return found
