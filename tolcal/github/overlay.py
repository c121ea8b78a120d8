"""The corpus as a pull request would leave it, as data: nothing of it is ever executed.

The default branch's corpus is checked out; the files that the pull request changes are read by
the API and laid over a copy of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from tolcal import corpus, imports
from tolcal.github import pulls
from tolcal.github.client import ApiError, Client
from tolcal.github.pulls import Pull
from tolcal.model import Cell, Kernel, Op, Record, TolcalError, Tolerances
from tolcal.report.document import Remark

#: Files that are laid over; with more, all that they touch counts as changed.
MAX_FILES = 200
#: What `corpus.load` reads of an op. All else in its folder may be loaded by a kernel when it runs;
#: outside of it documents change nothing.
READ, DOCUMENTS = (".py", ".toml"), (".md", ".rst")


class Overlaid(msgspec.Struct, frozen=True):
    """The ops, and which kernels differ from those of the default branch."""

    ops: tuple[Op, ...]
    kernels: Mapping[str, Kernel]  # by name, paths from the repository's root
    before: tuple[Op, ...] = ()  # the default branch's
    complete: bool = True  # ``ops`` are the head's; else the default branch's, for want of them
    changed: frozenset[str] = frozenset()  # names of kernels
    touched: frozenset[str] = frozenset()  # ops of which every kernel counts as changed
    everything: bool = False
    unusable: tuple[Remark, ...] = ()
    notes: tuple[str, ...] = ()

    def is_changed(self, kernel: str, op: str) -> bool:
        """Whether the pull request changes that kernel, its reference or its contract."""
        return self.everything or kernel in self.changed or op in self.touched

    def changed_of(self, records: Iterable[Record]) -> frozenset[str]:
        """Names of the kernels of these records that it changes."""
        named = {(r.kernel, r.case.op) for r in records}
        return frozenset(kernel for kernel, op in named if self.is_changed(kernel, op))

    def unmeasured(self, records: Sequence[Record], approved: Tolerances) -> tuple[Remark, ...]:
        """Changed kernels that nothing was held against a tolerance of, as ``kernel dtype``.

        Without a tolerance one record of the kernel will do, be it of a case that was skipped.
        With one a gate case has to have run, or to have failed to: nothing else can block.
        """
        present = {r.kernel for r in records}
        judged = {(r.kernel, r.case.dtype) for r in records if _counts(r)}
        none = "it changes here, and the run has no record of it; measure it (`tolcal run`)"
        unjudged = (
            "it changes here, and of the cases that its approved tolerance would judge none ran; "
            "measure it (`tolcal run`)"
        )
        found = []
        for op in self.ops:
            for name in (k.name for k in op.kernels if self.is_changed(k.name, op.name)):
                if name not in present:
                    found.append(Remark(name, none))
                    continue
                found += [
                    Remark(f"{name} {dtype}", unjudged)
                    for dtype in op.dtypes
                    if (op.name, dtype) in approved and (name, dtype) not in judged
                ]
        return tuple(found)

    def gone(self, approved: Tolerances) -> tuple[Remark, ...]:
        """Approved cells of an op or dtype that the corpus has, and would have no more."""
        left = _cells(self.before) - _cells(self.ops)
        why = (
            "it leaves the corpus here, be it under a new name, so nothing is judged by its "
            "approved tolerance any more"
        )
        return tuple(Remark("/".join(cell), why) for cell in sorted(left & approved.keys()))


def _cells(ops: Iterable[Op]) -> set[Cell]:
    return {(op.name, dtype) for op in ops for dtype in op.dtypes}


def _counts(record: Record) -> bool:
    ran = record.status == "ok" and record.stats is not None
    return record.case_set == "gate" and (ran or record.status in ("crashed", "timeout"))


def overlay(client: Client, pull: Pull, folder: str) -> Overlaid:
    """The corpus at ``folder`` (from the repository's root, the working directory) and ``pull``."""
    here = Path(folder)
    prefix = PurePosixPath(here.as_posix())
    before = _load(here) if here.is_dir() else ()
    if pull.files is None:
        note = "over 300 files differ from the merge base, so every kernel counts as changed"
        return _unread(before, everything=True, notes=(note,))
    files = [PurePosixPath(path) for path in pull.files]
    if any(prefix.is_relative_to(path) for path in files):
        note = f"{folder} is no plain folder (a submodule, say), so every kernel counts as changed"
        return _unread(before, everything=True, notes=(note,))
    beside = frozenset(_importing(before, files))
    inside = [p.relative_to(prefix) for p in files if p.is_relative_to(prefix)]
    relevant = [p for p in inside if len(p.parts) > 1 or p.suffix.lower() not in DOCUMENTS]
    if not relevant:
        return Overlaid(before, _by_name(before), before, changed=beside)
    # What lies in an op's folder and is no source of it, and what lies in none.
    loose = {p.parts[0] for p in relevant if len(p.parts) > 1 and p.suffix not in READ}
    everything = any(len(p.parts) == 1 for p in relevant)
    touched = frozenset(p.parts[0] for p in relevant if len(p.parts) > 1)
    sources = [p for p in relevant if p.suffix in READ]
    if len(sources) > MAX_FILES:
        note = (
            f"{len(sources)} files of the corpus change, over {MAX_FILES}: they aren't read, and "
            "all kernels of their ops count as changed"
        )
        return _unread(
            before, changed=beside, touched=touched, everything=everything, notes=(note,)
        )
    with tempfile.TemporaryDirectory(prefix="tolcal-") as root:
        try:
            _lay_over(client, pull, here, Path(root) / prefix, prefix, sources)
            after = tuple(_placed(op, Path(root)) for op in _load(Path(root) / prefix))
        except ApiError:
            raise
        except (TolcalError, OSError) as error:
            said = str(error).replace(f"{Path(root)}/", "")
            unusable = (Remark(folder, said),)
            return _unread(
                before, changed=beside, touched=touched, everything=everything, unusable=unusable
            )
    changed = beside | _differing(before, after)
    return Overlaid(
        after,
        _by_name(after),
        before,
        changed=changed,
        touched=frozenset(loose),
        everything=everything,
    )


def _unread(before: tuple[Op, ...], **rest: Any) -> Overlaid:
    """What is known without the files that the pull request changes."""
    return Overlaid(before, _by_name(before), before, complete=False, **rest)


def _placed(op: Op, root: Path) -> Op:
    """The op with paths as from the repository's root, not from a copy of it."""

    def inside(path: str) -> str:
        return Path(path).relative_to(root).as_posix()

    return msgspec.structs.replace(
        op,
        path=inside(op.path),
        reference_path=inside(op.reference_path),
        kernels=tuple(msgspec.structs.replace(k, path=inside(k.path)) for k in op.kernels),
    )


def _by_name(ops: Iterable[Op]) -> dict[str, Kernel]:
    return corpus.by_name(ops, Path())


def _load(folder: Path) -> tuple[Op, ...]:
    # Of what lies outside the folder a copy of it has nothing: `_importing` asks for that.
    return corpus.load(folder, alone=True) if any(folder.glob("*/op.toml")) else ()


def _lay_over(
    client: Client, pull: Pull, here: Path, target: Path, prefix: PurePosixPath,
    sources: list[PurePosixPath],
) -> None:  # fmt: skip
    found = {}
    for path in sources:
        if {".", ".."} & set(path.parts):
            raise TolcalError(f"{path}: no path of a file in a repository")
        found[path] = pulls.file(client, str(prefix / path), pull.head_sha)
    if here.is_dir():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(here, target, ignore=ignored, ignore_dangling_symlinks=True)
    for path, content in found.items():
        if content is None:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                (target / path).unlink()
    for path, content in found.items():
        if content is not None:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(content)


def _differing(before: Iterable[Op], after: Iterable[Op]) -> set[str]:
    """Kernels of ``after`` whose source, reference or contract is not what it was."""

    def hashes(ops: Iterable[Op]) -> dict[str, tuple[str, str, str]]:
        return {
            k.name: (k.source_hash, op.reference_hash, op.op_hash) for op in ops for k in op.kernels
        }

    was = hashes(before)
    return {name for name, values in hashes(after).items() if was.get(name) != values}


def _importing(ops: Iterable[Op], files: Collection[PurePosixPath]) -> Iterator[str]:
    """Kernels that import one of these files from the repository, or whose reference does.

    That is a module, one that would be found in its place, the folder of one (if it is a
    submodule), and what else is in the folder of one, documents apart.
    """
    if not files:
        return
    root = Path.cwd()
    known: dict[str, bool] = {}

    def touched(path: str) -> bool:
        if path not in known:
            known[path] = _touched(imports.of(Path(path), root), root, files)
        return known[path]

    for op in ops:
        of_all = touched(op.reference_path)
        yield from (k.name for k in op.kernels if of_all or touched(k.path))


def _touched(found: imports.Imports, root: Path, files: Collection[PurePosixPath]) -> bool:
    linked = {Path(os.path.realpath(file)) for file in found.files}
    sought = {
        PurePosixPath(place.relative_to(root).as_posix())
        for place in found.places | linked
        if place.is_relative_to(root)
    }
    sought |= {folder for place in sought for folder in place.parents}
    roots = {root / name for name in imports.ROOTS}
    packages = {
        PurePosixPath(file.parent.relative_to(root).as_posix())
        for file in found.files
        if file.parent not in roots and file.is_relative_to(root)
    }
    return any(
        file in sought
        or (file.suffix not in (".py", *DOCUMENTS) and not packages.isdisjoint(file.parents))
        for file in files
    )
