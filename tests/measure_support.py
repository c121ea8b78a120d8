"""Small corpora and runs of them, which the tests of the runner share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tolcal import corpus, measure
from tolcal.model import Op, Record

TOML = """\
summary = "twice x"
dtypes = {dtypes}

[dims]
B = [1, 2, 3, 4]
H = [5]

[inputs.x]
shape = ["B", "H"]

[output]
shape = ["B", "H"]
"""
REFERENCE = "def reference(x):\n    return 2 * x\n"
GOOD = "def run(x):\n    return x + x\n"

CORRUPTS = {"of_crash": "b_raises"}


def write_op(
    root: Path,
    name: str = "double",
    dtypes: tuple[str, ...] = ("float32",),
    reference: str = REFERENCE,
    kernels: dict[str, str] | None = None,
    buggy: dict[str, str] | None = None,
) -> None:
    folder = root / name
    for sub, files in (("kernels", kernels or {f"{name}_good": GOOD}), ("buggy", buggy or {})):
        (folder / sub).mkdir(parents=True)
        for kernel, code in files.items():
            (folder / sub / f"{kernel}.py").write_text(code)
    (folder / "reference.py").write_text(reference)
    toml = TOML.replace("{dtypes}", str(list(dtypes)).replace("'", '"'))
    for kernel in buggy or {}:
        control = CORRUPTS.get(kernel, "z_good")
        toml += f'[buggy.{kernel}]\ncorrupts = "{control}"\nfault = "something"\n'
    (folder / "op.toml").write_text(toml)


def request(ops: tuple[Op, ...], **changes: Any) -> measure.Request:
    fields: dict[str, Any] = {
        "ops": ops, "dtypes": (), "device": "cpu", "gate": 1, "explore": 0, "workers": 1,
    }  # fmt: skip
    return measure.Request(**fields | changes)


def run(root: Path, **changes: Any) -> list[Record]:
    """All records of a run of the corpus ``root``."""
    values = measure.measure(request(corpus.load(root), **changes), root)
    return [v for v in values if isinstance(v, Record)]


def without_run(record: Record) -> Any:
    """A record less what names the run: two measurements of one thing agree in the rest."""
    body = msgspec.to_builtins(record)
    body["run"] = body["run"]["environment"]
    return body


def of(records: list[Record], kernel: str) -> dict[int, Record]:
    """Records of a kernel by B."""
    return {dict(r.case.dims)["B"]: r for r in records if r.kernel == kernel}
