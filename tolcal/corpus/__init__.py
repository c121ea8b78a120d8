"""Folders into ops. Reads op.toml and hashes sources; never executes a kernel.

The folder is the registration: ``corpus/<op>/op.toml``, ``reference.py``, ``kernels/<name>.py``
and ``buggy/<name>.py``. Adding a kernel is adding a file.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import msgspec

from tolcal import imports, tomlfile
from tolcal.corpus import contract
from tolcal.model import (
    NAME,
    Case,
    InputSpec,
    Kernel,
    Op,
    Relation,
    RelationKind,
    Role,
    TolcalError,
)


def load(root: Path, *, alone: bool = False) -> tuple[Op, ...]:
    """All ops under ``root``, sorted by name.

    Args:
        alone: sources are hashed without the modules that they import from elsewhere in the
            repository.

    Raises TolcalError, naming file and line, for a folder that breaks the contract.
    """
    if not root.is_dir():
        raise TolcalError(
            f"{root}: no such corpus folder; give --corpus DIR, set `corpus` under [tool.tolcal] "
            "in pyproject.toml, or start one with `tolcal new OP`"
        )
    ops = tuple(load_op(f.parent, alone=alone) for f in sorted(root.glob("*/op.toml")))
    if not ops:
        raise TolcalError(f"{root}: no */op.toml in it; start an op with `tolcal new OP`")
    owner: dict[str, str] = {}
    for op in ops:
        for kernel in op.kernels:
            if kernel.name in owner:
                raise TolcalError(
                    f"{kernel.path}: kernel name {kernel.name!r} is taken by {owner[kernel.name]}; "
                    "kernel names are unique in the corpus, rename one"
                )
            owner[kernel.name] = kernel.path
    return ops


def select(ops: tuple[Op, ...], names: Iterable[str]) -> tuple[Op, ...]:
    """The ops called ``names`` (an op's name, or a kernel's for that kernel and its controls)."""
    wanted = list(names)
    if not wanted:
        return ops
    known = {op.name for op in ops} | {k.name for op in ops for k in op.kernels}
    for name in wanted:
        if name not in known:
            raise TolcalError(
                f"no op or kernel {name!r} in the corpus{tomlfile.did_you_mean(name, known)}; "
                "`tolcal show` lists what there is"
            )
    chosen = []
    for op in ops:
        if op.name in wanted:
            chosen.append(op)
            continue
        named = {k.name for k in op.kernels if k.name in wanted}
        if named:
            need = named | {k.corrupts for k in op.kernels if k.name in named and k.corrupts}
            kernels = tuple(k for k in op.kernels if k.name in need)
            chosen.append(msgspec.structs.replace(op, kernels=kernels))
    return tuple(chosen)


def reductions(ops: Iterable[Op]) -> dict[str, str]:
    """By name, the dim that each op sums over, of those that declare one."""
    return {op.name: op.reduction for op in ops if op.reduction is not None}


def found_by_checks(ops: Iterable[Op]) -> frozenset[str]:
    """Names of the buggy kernels that no tolerance finds but by chance, by their op.toml."""
    return frozenset(k.name for op in ops for k in op.kernels if k.found_by is not None)


def subtle(ops: Iterable[Op]) -> frozenset[str]:
    """Names of the buggy kernels whose fault is small or rare, by their op.toml."""
    return frozenset(kernel.name for op in ops for kernel in op.kernels if kernel.subtle)


def load_op(folder: Path, *, alone: bool = False) -> Op:
    """One op folder; TolcalError names the file and line that break the contract."""
    root = None if alone else imports.repository(folder)
    path = folder / "op.toml"
    spec, bad = contract.read(path)
    if not NAME.fullmatch(folder.name):
        raise TolcalError(
            f"{path}: the folder's name {folder.name!r} is the op's name and must match "
            f"{NAME.pattern}; rename the folder"
        )
    reference = folder / "reference.py"
    if not reference.is_file():
        raise TolcalError(f"{path}: no reference.py beside it; add one with `def reference(...)`")
    kernels = _kernels(folder, spec, bad, root)
    return Op(
        name=folder.name,
        summary=spec.summary,
        dtypes=tuple(spec.dtypes),
        compute_dtype=spec.compute_dtype,
        inputs={
            name: InputSpec(
                tuple(t.shape), t.low, t.high, t.domain, t.dtype, t.below, t.steady
            )
            for name, t in spec.inputs.items()
        },
        output=tuple(spec.output.shape),
        legacy_atol=spec.legacy_atol,
        reduction=spec.reduction,
        path=str(folder),
        reference_path=str(reference),
        op_hash=contract.digest_of(spec),
        reference_hash=source_hash(reference, root)[0],
        kernels=kernels,
        output_dtype=spec.output.dtype,
        profiles=spec.profiles,
        excluded_profiles=spec.excluded_profiles,
        layouts=spec.layouts,
        batch=spec.batch,
        mutates=tuple(spec.mutates),
        nonfinite=spec.nonfinite,
        sizes={
            profile: {dim: tuple(sizes) for dim, sizes in table.items()}
            for profile, table in spec.sizes.items()
        },
        relations=tuple(
            Relation(cast("RelationKind", kind), tuple(r.inputs), tuple(r.dims), r.units, r.to)
            for kind, r in spec.relations.items()
        ),
        pinned=tuple(
            Case(
                folder.name, p.dtype, tuple((dim, p.dims[dim]) for dim in spec.dims), p.profile,
                p.layout, p.seed,
            )
            for p in spec.pinned
        ),
    )  # fmt: skip


def _kernels(
    folder: Path, spec: contract.OpToml, bad: contract.Bad, root: Path | None
) -> tuple[Kernel, ...]:
    dims = {name: tuple(sizes) for name, sizes in spec.dims.items()}
    found: list[Kernel] = []
    controls: dict[str, Kernel] = {}
    roles: tuple[tuple[Role, str], ...] = (("control", "kernels"), ("buggy", "buggy"))
    for role, sub in roles:
        for path in sorted((folder / sub).glob("*.py")):
            name = path.stem
            if name.startswith("_"):
                continue  # a helper module that kernels share
            if not NAME.fullmatch(name):
                raise TolcalError(
                    f"{path}: the file's name is the kernel's name and must match {NAME.pattern}"
                )
            entry = spec.buggy.get(name)
            sizes, own = dict(dims), set[str]()
            batch = spec.batch is not None
            if role == "buggy":
                if entry is None:
                    raise TolcalError(
                        f"{path}: op.toml has no [buggy.{name}]; add it with `corrupts` (the "
                        "control it is made from) and `fault` (what is wrong)"
                    )
                if entry.corrupts not in controls:
                    hint = tomlfile.did_you_mean(entry.corrupts, controls)
                    raise bad(
                        ("buggy", name, "corrupts"),
                        f"no control {entry.corrupts!r} in kernels/{hint}",
                    )
                control = controls[entry.corrupts]
                sizes, own, batch = dict(control.dims), set(control.own), control.batch
            table = spec.kernels.get(name)
            if table is not None:
                if table.dims or table.batch is None:
                    contract.check_dims(table.dims, ("kernels", name, "dims"), bad)
                batch = batch if table.batch is None else table.batch
                for dim in table.dims:
                    if dim not in dims:
                        raise bad(("kernels", name, "dims", dim), f"{dim!r} is not in [dims]")
                sizes |= {dim: tuple(given) for dim, given in table.dims.items()}
                own |= set(table.dims)
            hashed, uses_triton = source_hash(path, root)
            kernel = Kernel(
                name=name,
                role=role,
                path=str(path),
                dims=sizes,
                source_hash=hashed,
                uses_triton=uses_triton,
                corrupts=entry.corrupts if entry else None,
                fault=entry.fault if entry else None,
                subtle=entry is not None and entry.subtle,
                found_by=entry.found_by if entry else None,
                line=_line_of_run(path),
                own=tuple(dim for dim in dims if dim in own),
                batch=batch,
            )
            found.append(kernel)
            if role == "control":
                controls[name] = kernel
    if not controls:
        raise TolcalError(f"{folder}: no control in kernels/; add kernels/<name>.py with `run`")
    names = {kernel.name for kernel in found}
    for name in spec.buggy:
        if not any(k.name == name and k.role == "buggy" for k in found):
            raise bad(("buggy", name), f"there is no buggy/{name}.py; add it or drop the table")
    for name in spec.kernels:
        if name not in names:
            raise bad(("kernels", name), f"no such kernel{tomlfile.did_you_mean(name, names)}")
    return tuple(found)


def _line_of_run(path: Path) -> int:
    """Where a finding of a kernel points to; 1 if its `run` comes from elsewhere."""
    source = path.read_bytes()
    found = re.search(rb"^def run\b", source, re.MULTILINE)
    return source.count(b"\n", 0, found.start()) + 1 if found else 1


def by_name(ops: Iterable[Op], root: Path | None) -> dict[str, Kernel]:
    """Kernels by name, their paths as from ``root`` (of the repository) where they lie in it."""
    return {
        kernel.name: msgspec.structs.replace(kernel, path=_from(root, kernel.path))
        for op in ops
        for kernel in op.kernels
    }


def _from(root: Path | None, path: str) -> str:
    whole = Path(path).resolve()
    inside = root is not None and whole.is_relative_to(root.resolve())
    return (whole.relative_to(root.resolve()) if root and inside else Path(path)).as_posix()


def source_hash(path: Path, root: Path | None = None) -> tuple[str, bool]:
    """16 hex digits over a file and the local modules it imports, and whether one uses Triton.

    "Local" is what the file's own folder holds, since that folder is what it can import from, and
    ``root``, the repository.
    """
    found = imports.of(path, root)
    whole = hashlib.sha256()
    for file, content in sorted(found.files.items()):
        whole.update(file.name.encode() + b"\0" + hashlib.sha256(content).digest())
    return whole.hexdigest()[:16], "triton" in found.names
