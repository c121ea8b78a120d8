"""Keeps a case in op.toml as a regression case: ``[[pinned]]``, measured in every run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tolcal import files, tomlfile
from tolcal.corpus import contract
from tolcal.model import Case, TolcalError

WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
#: Of a reason, which is for people.
MOST = 300


def pin(path: Path, case: Case, why: str) -> None:
    """Appends ``case`` to the op.toml at ``path``, whose other bytes stay.

    Raises:
        TolcalError: if it is there already, does not fit the op as it is now, ``why`` is no line,
            or the file is not to be written to; it is as it was then.
    """
    with files.locked(path.parent):  # two at a time would each drop the other's
        _pin(path, case, why)


def _pin(path: Path, case: Case, why: str) -> None:
    spec, _ = contract.read(path)
    text = tomlfile.read(path)[1]
    _check(path, spec, case, why)
    # By its mode, too: a rename would replace what nobody may write to, and root may write to all.
    if not path.stat().st_mode & WRITABLE or not os.access(path, os.W_OK):
        raise TolcalError(f"{path}: is read-only; make it writable (`chmod u+w`) and pin again")
    edited = appended(text, case, why)
    try:
        tomlfile.loads(edited, path)
    except TolcalError as error:
        # `pinned = [...]` written inline can't be added to by a table.
        line = tomlfile.line_of(text, ("pinned",))
        raise TolcalError(
            f"{path}:{line}: pinned: can't be added to ({error}); write what is there as "
            "[[pinned]] tables"
        ) from None
    after = contract.parse(edited, path)[0]
    kept = (after.pinned[:-1], contract.digest_of(after)) == (
        spec.pinned, contract.digest_of(spec)
    )  # fmt: skip
    if not kept or _case(path, after.pinned[-1], after) != case:
        raise TolcalError(f"{path}: can't add a case to it without changing more; add it by hand")
    files.replace(path, edited)


def appended(text: str, case: Case, why: str) -> str:
    """The text with one more table at its end, its line ends as they are.

    tomlkit writes the table, but not the file: it moves tables together that stand apart.
    """
    import tomlkit

    dims = tomlkit.inline_table()
    dims.update(dict(case.dims))
    table = tomlkit.table()
    table["dtype"], table["dims"] = case.dtype, dims
    for name, usual in (("profile", "default"), ("layout", "contiguous")):
        if getattr(case, name) != usual:
            table[name] = getattr(case, name)
    table["seed"], table["why"] = case.seed, why
    block = f"\n[[pinned]]\n{table.as_string()}"
    newline = "\r\n" if "\r\n" in text else "\n"
    start = text if not text or text.endswith("\n") else text + newline
    return start + block.replace("\n", newline)


def _check(path: Path, spec: contract.OpToml, case: Case, why: str) -> None:
    if not why.strip() or not why.isprintable() or len(why) > MOST:
        raise TolcalError(
            f"--why: {len(why)} characters; say in one line of at most {MOST} what the case shows"
        )
    if any(_case(path, p, spec) == case for p in spec.pinned):
        line = tomlfile.line_of(tomlfile.read(path)[1], ("pinned",))
        raise TolcalError(f"{path}:{line}: case {case.id} is pinned already")
    if case.dtype not in spec.dtypes:
        raise TolcalError(
            f"{path}: case {case.id} is in {case.dtype}, the op is in {', '.join(spec.dtypes)}"
        )
    if [name for name, _ in case.dims] != list(spec.dims):
        raise TolcalError(
            f"{path}: case {case.id} has the dims {case.dims_text}, the op has "
            f"{', '.join(spec.dims)}: op.toml has changed since, so it can't be drawn again"
        )


def _case(path: Path, p: contract.Pinned, spec: contract.OpToml) -> Case:
    dims = tuple((dim, p.dims[dim]) for dim in spec.dims)
    return Case(path.parent.name, p.dtype, dims, p.profile, p.layout, p.seed)
