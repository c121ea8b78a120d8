"""op.toml: its keys, what each may be, and the hash of those that change a control's numbers."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tolcal import tomlfile
from tolcal.model import (
    CHECKS,
    DIM,
    DTYPES,
    INTEGERS,
    LAYOUTS,
    PROFILES,
    RELATIONS,
    TolcalError,
    limits_of,
)

#: What a dim can be divided by in a shape: short, since Python refuses to read long numbers.
DIVISOR = re.compile("[0-9]{1,7}")
Bad = Callable[[tuple[str, ...], str], TolcalError]


class Buggy(msgspec.Struct, forbid_unknown_fields=True):
    corrupts: str
    fault: str
    subtle: bool = False
    found_by: str | None = None


class KernelTable(msgspec.Struct, forbid_unknown_fields=True):
    dims: dict[str, list[int]] = {}
    batch: bool | None = None


class Input(msgspec.Struct, forbid_unknown_fields=True):
    shape: list[str]
    low: float = -10.0
    high: float = 10.0
    domain: tuple[float, float] | None = None
    dtype: str | None = None
    below: str | None = None
    steady: bool = False


class Output(msgspec.Struct, forbid_unknown_fields=True):
    shape: list[str]
    dtype: str | None = None


class Relation(msgspec.Struct, forbid_unknown_fields=True):
    units: float
    inputs: list[str] = []
    dims: list[str] = []
    to: float | None = None


class Pinned(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    dims: dict[str, int]
    seed: int
    why: str
    profile: str = "default"
    layout: str = "contiguous"


class OpToml(msgspec.Struct, forbid_unknown_fields=True):
    summary: str
    dtypes: list[str]
    dims: dict[str, list[int]]
    inputs: dict[str, Input]
    output: Output
    compute_dtype: str = "float32"
    reduction: str | None = None
    legacy_atol: dict[str, float] = {}
    kernels: dict[str, KernelTable] = {}
    buggy: dict[str, Buggy] = {}
    profiles: tuple[str, ...] = ("default",)
    excluded_profiles: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ("contiguous",)
    batch: str | None = None
    mutates: list[str] = []
    nonfinite: bool = False
    sizes: dict[str, dict[str, list[int]]] = {}
    relations: dict[str, Relation] = {}
    pinned: list[Pinned] = []


def read(path: Path) -> tuple[OpToml, Bad]:
    """An op.toml that keeps the contract, and what makes an error of keys and words.

    Raises TolcalError, naming file and line.
    """
    return _checked(*tomlfile.read(path), path)


def parse(text: str, path: Path) -> tuple[OpToml, Bad]:
    """The same of a text that may become the file ``path``."""
    return _checked(tomlfile.loads(text, path), text, path)


def _checked(data: dict[str, Any], text: str, path: Path) -> tuple[OpToml, Bad]:
    spec = tomlfile.convert(data, OpToml, path, text)

    def bad(keys: tuple[str, ...], what: str) -> TolcalError:
        return TolcalError(f"{path}:{tomlfile.line_of(text, keys)}: {'.'.join(keys)}: {what}")

    _check(spec, bad)
    return spec, bad


def _check(spec: OpToml, bad: Bad) -> None:
    for keys, names in ((("dtypes",), spec.dtypes), (("compute_dtype",), [spec.compute_dtype])):
        for name in names:
            if name not in DTYPES:
                hint = tomlfile.did_you_mean(name, DTYPES)
                raise bad(keys, f"unknown dtype {name!r}{hint}; known: {', '.join(DTYPES)}")
    if not spec.dtypes:
        raise bad(("dtypes",), "empty; list at least one")
    if len(set(spec.dtypes)) != len(spec.dtypes):
        raise bad(("dtypes",), "a dtype is listed twice")
    check_dims(spec.dims, ("dims",), bad)
    if not spec.inputs:
        raise bad(("inputs",), "no inputs; add a table [inputs.<name>] with a shape")
    for name, tensor in spec.inputs.items():
        if not name.isidentifier():
            raise bad(("inputs", name), "an input's name is a parameter of run(): an identifier")
        _check_shape(tensor.shape, spec.dims, ("inputs", name), bad)
        _check_input(name, tensor, bad)
        if tensor.below is not None:
            _check_below(name, tensor.below, spec, bad)
    _check_shape(spec.output.shape, spec.dims, ("output",), bad)
    if spec.output.dtype is not None:
        _check_among(spec.output.dtype, DTYPES, ("output", "dtype"), "dtype", bad)
    for key in ("reduction", "batch"):
        dim = getattr(spec, key)
        if dim is not None and dim not in spec.dims:
            raise bad((key,), f"{dim!r} is none of the dims {', '.join(spec.dims)}")
    if spec.batch is not None and spec.batch not in spec.output.shape:
        raise bad(("batch",), f"{spec.batch!r} is no dim of the output {spec.output.shape}")
    _check_oracle(spec, bad)
    for dtype, atol in spec.legacy_atol.items():
        if dtype not in spec.dtypes:
            raise bad(("legacy_atol", dtype), f"not among this op's dtypes {spec.dtypes}")
        if not 0 <= atol < float("inf"):
            raise bad(("legacy_atol", dtype), f"{atol} is no tolerance; give a number >= 0")


def check_dims(dims: Mapping[str, list[int]], keys: tuple[str, ...], bad: Bad) -> None:
    if not dims:
        raise bad(keys, "no dims; give each symbolic dim its candidate sizes")
    for name, sizes in dims.items():
        if not DIM.fullmatch(name):
            raise bad((*keys, name), "a dim's name is a short identifier")
        if not sizes or any(not 1 <= size < 2**40 for size in sizes):
            raise bad((*keys, name), f"sizes {sizes}: give positive sizes below 2^40")


def _check_shape(
    shape: list[str], dims: Mapping[str, list[int]], keys: tuple[str, ...], bad: Bad
) -> None:
    for entry in shape:
        dim, slash, by = entry.partition("/")
        if dim not in dims:
            hint = tomlfile.did_you_mean(dim, dims)
            raise bad(keys, f"dim {dim!r} is not in [dims] ({', '.join(dims)}){hint}")
        if slash and not (DIVISOR.fullmatch(by) and 1 < int(by) < 2**20):
            raise bad(keys, f"{entry[:40]!r}: as in K/32, a dim and by what it is divided, at "
                      "least 2 and below 2^20")  # fmt: skip


def _check_among(
    name: str, known: Collection[str], keys: tuple[str, ...], what: str, bad: Bad
) -> None:
    if name not in known:
        hint = tomlfile.did_you_mean(name, known)
        raise bad(keys, f"unknown {what} {name!r}{hint}; known: {', '.join(known)}")


def _check_input(name: str, t: Input, bad: Bad) -> None:
    keys = ("inputs", name)
    if t.dtype is not None:
        _check_among(t.dtype, (*DTYPES, *INTEGERS), (*keys, "dtype"), "dtype", bad)
    integer = t.dtype if t.dtype in INTEGERS else None
    if t.below is not None and integer is None:
        raise bad(
            (*keys, "below"),
            f"only integers are drawn below a dim: set dtype to one of {', '.join(INTEGERS)}",
        )
    if integer is not None:
        least, most = limits_of(integer)
        if t.below is not None:
            if t.low != t.low // 1 or not -most <= t.low < most:  # nan and infinities, too
                raise bad((*keys, "low"), f"{t.low:g}: a whole number of {t.dtype} expected")
        elif not least <= t.low < t.high <= most or t.low != int(t.low) or t.high != int(t.high):
            raise bad(keys, f"low {t.low:g} to high {t.high:g} (excluded): whole numbers within "
                            f"{least} to {most} expected of {t.dtype}")  # fmt: skip
        if t.domain is not None:
            raise bad((*keys, "domain"), "an integer input has none: low and high are its range")
    elif not (-3e38 < t.low < 3e38 and -3e38 < t.high < 3e38):
        raise bad(
            keys, f"low {t.low:g} to high {t.high:g}: numbers between -3e38 and 3e38 expected"
        )
    elif t.low >= t.high:
        raise bad(keys, f"low {t.low} must be below high {t.high}")
    if t.domain is not None and not t.domain[0] <= t.low < t.high <= t.domain[1]:
        raise bad(
            (*keys, "domain"), f"{list(t.domain)} does not hold low {t.low:g} to high {t.high:g}"
        )


def _check_below(name: str, dim: str, spec: OpToml, bad: Bad) -> None:
    """Wherever op.toml has a size of the dim there are integers below it, all of the dtype."""
    t, keys = spec.inputs[name], ("inputs", name, "below")
    if dim not in spec.dims:
        raise bad(keys, f"{dim!r} is none of the dims {', '.join(spec.dims)}")
    least, most = max(0, int(t.low)), limits_of(str(t.dtype))[1]
    places: list[tuple[tuple[str, ...], list[int]]] = [(keys, spec.dims[dim])]
    places += [(("sizes", p, dim), table.get(dim, [])) for p, table in spec.sizes.items()]
    places += [
        (("kernels", k, "dims", dim), table.dims.get(dim, [])) for k, table in spec.kernels.items()
    ]
    places += [(("pinned",), [p.dims[dim]]) for p in spec.pinned if dim in p.dims]
    for where, sizes in places:
        if sizes and max(sizes) > most:
            raise bad(
                where,
                f"{t.dtype} of input {name} ends at {most - 1}, {dim} goes up to {max(sizes)}",
            )
        if sizes and min(sizes) <= least:
            raise bad(
                where,
                f"input {name} goes from {least} to {dim}, excluded: {dim} = {min(sizes)} leaves "
                "no number",
            )


def _check_oracle(spec: OpToml, bad: Bad) -> None:
    """What is measured beside profile ``default`` in one layout, and what is checked there."""
    for key, known in (("profiles", PROFILES), ("layouts", LAYOUTS)):
        names = getattr(spec, key)
        for name in names:
            _check_among(name, known, (key,), key.removesuffix("s"), bad)
        if not names or len(set(names)) != len(names):
            raise bad((key,), f"{list(names)}: list at least one, and each once")
    for name, buggy in spec.buggy.items():
        if buggy.found_by is not None:
            _check_found_by(name, buggy, spec, bad)
    if len(set(spec.excluded_profiles)) != len(spec.excluded_profiles):
        raise bad(("excluded_profiles",), f"{list(spec.excluded_profiles)}: list each once")
    for name in spec.excluded_profiles:
        _check_among(name, PROFILES, ("excluded_profiles",), "profile", bad)
        if name in spec.profiles:
            raise bad(("excluded_profiles",), f"{name!r} is among `profiles`, too")
    for name, kernel in spec.kernels.items():
        if kernel.batch is not None and spec.batch is None:
            raise bad(("kernels", name, "batch"), "the op names no `batch` that it could keep")
    for name in spec.mutates:
        _check_among(name, spec.inputs, ("mutates",), "input", bad)
    for profile, table in spec.sizes.items():
        _check_among(profile, PROFILES, ("sizes", profile), "profile", bad)
        if profile == "default":
            raise bad(("sizes", profile), "the sizes of profile default are those of [dims]: write "
                      "them there, and drop this table")  # fmt: skip
        check_dims(table, ("sizes", profile), bad)
        for dim in table:
            _check_among(dim, spec.dims, ("sizes", profile, dim), "dim", bad)
    if "large" in spec.profiles and "large" not in spec.sizes:
        raise bad(("profiles",), "`large` needs a table [sizes.large] of its dims")
    for kind, relation in spec.relations.items():
        keys = ("relations", kind)
        _check_among(kind, RELATIONS, keys, "relation", bad)
        if not 0 <= relation.units < float("inf"):
            raise bad((*keys, "units"), f"{relation.units}: 0 (bit for bit) or more expected")
        takes = {"permutation": "dims", "sums": "to", "configs": ""}.get(kind, "inputs")
        for key in ("inputs", "dims", "to"):
            given = getattr(relation, key) not in ([], None)
            if given != (key == takes):
                need = f"needs `{key}`" if key == takes else f"takes no `{key}`"
                raise bad(keys, f"{kind} {need}")
        if relation.to is not None and not math.isfinite(relation.to):
            raise bad((*keys, "to"), f"{relation.to}: a number expected, which sums can be near")
        for name in relation.inputs:
            _check_among(name, spec.inputs, (*keys, "inputs"), "input", bad)
            if spec.inputs[name].dtype in INTEGERS:
                raise bad((*keys, "inputs"), f"{name!r} holds integers")
        for dim in relation.dims:
            _check_among(dim, spec.dims, (*keys, "dims"), "dim", bad)
    for p in spec.pinned:
        at = ("pinned",)
        _check_among(p.dtype, spec.dtypes, at, "dtype", bad)
        _check_among(p.profile, PROFILES, at, "profile", bad)
        if p.profile in spec.excluded_profiles:
            raise bad(at, f"profile {p.profile!r} is among `excluded_profiles`: drop it there or "
                      "this case")  # fmt: skip
        _check_among(p.layout, LAYOUTS, at, "layout", bad)
        if set(p.dims) != set(spec.dims) or not all(1 <= n < 2**40 for n in p.dims.values()):
            raise bad(
                at, f"dims {p.dims}: give a size of 1 or more for each of {', '.join(spec.dims)}"
            )
        if p.profile == "large" and p.layout != "contiguous":
            raise bad(at, f"layout {p.layout!r}: cases of profile large are contiguous")
        if not 0 <= p.seed < 2**63:
            raise bad(at, f"seed {p.seed}: 0 to 2^63 - 1 expected")


def _check_found_by(name: str, buggy: Buggy, spec: OpToml, bad: Bad) -> None:
    """The check that alone finds a known-wrong kernel is one that its op has."""
    keys, check = ("buggy", name, "found_by"), str(buggy.found_by)
    _check_among(check, CHECKS, keys, "check", bad)
    if check in RELATIONS and check != "configs" and check not in spec.relations:
        raise bad(keys, f"{check!r} is not looked at: declare it under [relations]")
    tables = [spec.kernels[k] for k in (name, buggy.corrupts) if k in spec.kernels]
    keeps = next((t.batch for t in tables if t.batch is not None), spec.batch is not None)
    if check == "batch" and not keeps:
        raise bad(keys, "'batch' is not looked at: name a dim as the op's `batch`, and no "
                  "`batch = false` of the kernel or its control")  # fmt: skip
    if check == "inputs_changed" and set(spec.inputs) <= set(spec.mutates):
        raise bad(keys, "'inputs_changed' is not looked at: `mutates` names every input")


def digest_of(spec: OpToml) -> str:
    """Over what changes a control's numbers: not the summary, known-wrong kernels with what tables
    they have, hand-picked values, or which cases are measured and what is checked on them. Nor the
    domain: beyond the ranges that are in the hash it says only which elements are judged.
    """
    kernels = {
        name: _Sized(table.dims)
        for name, table in spec.kernels.items()
        if name not in spec.buggy and table.dims
    }
    inputs = {name: _Drawn(t.shape, t.low, t.high) for name, t in spec.inputs.items()}
    output = {"shape": spec.output.shape}
    contract: tuple[object, ...] = (spec.dims, inputs, output, spec.compute_dtype, kernels)
    # Beside them what an op need not say, so that one which does not keeps its hash.
    more = {
        name: (t.dtype, t.below, t.steady)
        for name, t in spec.inputs.items()
        if (t.dtype, t.below, t.steady) != (None, None, False)
    }
    if more or spec.output.dtype:
        contract += (more, spec.output.dtype)
    return hashlib.sha256(msgspec.json.encode(contract, order="deterministic")).hexdigest()[:16]


class _Sized(msgspec.Struct):
    dims: dict[str, list[int]]


class _Drawn(msgspec.Struct):
    shape: list[str]
    low: float
    high: float
