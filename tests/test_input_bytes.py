"""The input bytes of a case are what they were, in numpy and in torch."""

from __future__ import annotations

import json
import os

import input_bytes
import pytest

from tolcal import cases

torch = pytest.importorskip("torch")


def test_input_bytes_are_frozen() -> None:
    """Every dtype and profile; `tests/gpu` compares what a GPU draws with the same file."""
    found = {}
    for name, op, case in input_bytes.frozen():
        arrays = cases.inputs_numpy(op, case)
        raw = {key: array.tobytes() for key, array in arrays.items()}
        found[name] = input_bytes.hashes(raw, cases.input_hash_numpy(arrays))
        tensors = cases.inputs_torch(op, case, "cpu")
        assert input_bytes.of_tensors(tensors) == found[name], name
    if os.environ.get("TOLCAL_UPDATE_GOLDEN"):
        input_bytes.GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
    assert found == input_bytes.golden()
