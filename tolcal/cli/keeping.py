"""``history`` and ``new``: the commands that keep data and folders."""

from __future__ import annotations

import argparse
from pathlib import Path

from tolcal import corpus
from tolcal.cli import config
from tolcal.model import NAME, TolcalError, plural


def ls(args: argparse.Namespace) -> int:
    """``tolcal history ls``."""
    from tolcal import history

    config.must_exist(args)
    table = history.ls(config.load(args).history)
    print(f"{'run':<18}{'started':<27}{'origin':<14}{'rows':>7}{'failed':>8}{'kernels':>9}  device")
    for row in table.astype({"started": str, "origin": str}).to_dict("records"):
        print(f"{row['run_id']:<18}{row['started'] or '-':<27}{row['origin']:<14}{row['rows']:>7}"
              f"{row['failed']:>8}{row['kernels']:>9}  {row['device']}")  # fmt: skip
    print(f"{plural(len(table), 'run')}, {plural(int(table['rows'].sum()), 'record')}")
    return 0


def verify(args: argparse.Namespace) -> int:
    """``tolcal history verify``."""
    from tolcal import history

    config.must_exist(args)
    for path in config.load(args).history:
        if path.suffix == "" and not path.exists():
            print(f"{path}: there is no such history yet, so nothing was verified")
            continue
        for line in history.verify([path]):
            print(line)
    return 0


def compact(args: argparse.Namespace) -> int:
    """``tolcal history compact``."""
    from tolcal import history

    config.must_exist(args)
    folders = [path for path in config.load(args).history if path.is_dir()]
    if not folders:
        print("there is no history folder yet, so nothing was compacted")
    for folder in folders:
        shards = len(list(folder.glob("*.parquet")))
        into = history.compact(folder)
        if into is None:
            print(f"{folder}: {plural(shards, 'shard')}, so there is nothing to compact")
        else:
            print(f"{folder}: {shards} shards are one now, with the same records: {into}")
    return 0


def import_foreign(args: argparse.Namespace) -> int:
    """``tolcal history import``."""
    from tolcal import history
    from tolcal.history import gpuemu

    settings = config.load(args)
    ops = corpus.load(settings.corpus)
    records = list(gpuemu.read(Path(args.folder), ops, args.device))
    target = Path(args.history) if args.history else config.writable_history(settings.history)
    known = len(history.read_table([target]))
    shard = history.add(target, records)
    runs = len({r.run.id for r in records})
    gained = len(history.read_table([target])) - known
    print(
        f"{plural(len(records), 'record')} of {plural(runs, 'run')} read, {gained} of them "
        f"new, in {shard}"
    )
    return 0


_FILES = {
    "op.toml": """\
summary = "y = x * x, element by element: replace with your op"
dtypes = ["float32", "float16", "bfloat16"]

[dims]                      # symbolic dims and the sizes they take; keep boundary sizes in
B = [1, 3]
H = [1, 7, 128, 1025]

[inputs.x]                  # drawn from U[low, high], by default U[-10, 10]
shape = ["B", "H"]

[output]
shape = ["B", "H"]

# What you write by hand today, shown as "before" in every table:
# [legacy_atol]
# float32 = 1e-5

# A kernel that is known to be wrong, in buggy/<name>.py, shows that the tolerance can catch it:
# [buggy.{op}_triton_buggy]
# corrupts = "{op}_triton"
# fault = "what is wrong with it"
# subtle = true             # if the fault is small or rare
""",
    "reference.py": '''\
"""The op in fp64: what correct means. Imports nothing from a kernel."""

import torch


def reference(x: torch.Tensor) -> torch.Tensor:
    """fp64 in, fp64 out."""
    return x * x
''',
    "kernels/{op}_triton.py": '''\
"""y = x * x in Triton: computes in fp32, rounds once at the store."""

import torch
import triton
import triton.language as tl


@triton.jit
def {op}_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + offsets, (x * x).to(y_ptr.dtype.element_ty), mask=inside)


def run(x: torch.Tensor) -> torch.Tensor:
    """Inputs by the names of op.toml, on the device they are on; returns the output."""
    y = torch.empty_like(x)
    n = x.numel()
    {op}_kernel[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024)
    return y
''',
}


def new(args: argparse.Namespace) -> int:
    """``tolcal new``."""
    op = args.op
    if not NAME.fullmatch(op):
        raise TolcalError(f"{op!r} is no op name: it must match {NAME.pattern}")
    root = config.load(args).corpus
    folder = root / op
    if folder.exists():
        raise TolcalError(f"{folder}: exists; choose another name or remove it first")
    for name, content in _FILES.items():
        path = folder / name.replace("{op}", op)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.replace("{op}", op), "utf-8")
    print(f"{folder} is ready. Try it: tolcal run {op} --device cpu --cases 4 --corpus {root}")
    return 0
