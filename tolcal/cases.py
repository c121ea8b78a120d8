"""Ops into cases, and a case into its input tensors: the same bytes on every machine.

Values come from SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number
generators") used as a counter-based generator: element i of a stream is a bijective mix of
``key + (i + 1) * GAMMA``, so it needs no state, and 64-bit integer arithmetic is exact
everywhere. It exists here in a numpy and a torch form that give the same bits; torch's own
generators depend on device and version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tolcal.model import Case, InputSpec, Op, TolcalError, digest

if TYPE_CHECKING:
    import torch

GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
#: Every run measures the same gate cases; the name is frozen, since it fixes their inputs.
GATE_SEED = int(digest("gate cases", 1), 16) >> 1
PROFILES = ("default",)


def signed(word: int) -> int:
    """A 64-bit word as the int64 of the same bits."""
    return word - 2**64 if word >= 2**63 else word


def key(*parts: object) -> int:
    """A 64-bit stream key named by ``parts``."""
    return int(digest(*parts), 16)


# --- which cases ----------------------------------------------------------------------------


def draw_cases(
    op: Op,
    dims: Mapping[str, tuple[int, ...]],
    dtype: str,
    master_seed: int,
    count: int,
    profile: str = "default",
) -> tuple[Case, ...]:
    """``count`` cases of ``op`` for kernels with these ``dims``.

    Dims are a Latin hypercube: each dim runs through a fresh shuffle of its sizes before any
    size comes again, so that a handful of cases already meets every boundary size.
    """
    if profile not in PROFILES:
        raise TolcalError(f"unknown input profile {profile!r}; known: {', '.join(PROFILES)}")
    columns = {}
    for name, sizes in dims.items():
        rounds = -(-count // len(sizes))
        column: list[int] = []
        for turn in range(rounds):
            words = words_numpy(key("dims", master_seed, op.name, dtype, name, turn), len(sizes))
            column += [sizes[i] for i in np.argsort(words, kind="stable")]
        columns[name] = column
    return tuple(
        Case(
            op=op.name,
            dtype=dtype,
            dims=tuple((name, columns[name][i]) for name in dims),
            profile=profile,
            layout="contiguous",
            seed=key("case", master_seed, op.name, dtype, i) >> 1,
        )
        for i in range(count)
    )


def shape_of(shape: tuple[str, ...], case: Case) -> tuple[int, ...]:
    """Symbolic dims with this case's sizes in them."""
    sizes = dict(case.dims)
    return tuple(sizes[name] for name in shape)


def stream(case: Case, name: str) -> int:
    """The key of an input's words."""
    return key("input", case.profile, case.seed, name)


# --- the generator, twice -------------------------------------------------------------------


def words_numpy(start: int, count: int) -> npt.NDArray[np.uint64]:
    """The first ``count`` 64-bit words of a stream."""
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA) + np.uint64(start)
        return _mix_numpy(z)


def _mix_numpy(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
        return z ^ (z >> np.uint64(31))


def words_torch(start: int, count: int, device: Any) -> torch.Tensor:
    """The same words as int64 bit patterns, on ``device``."""
    import torch

    z = torch.arange(1, count + 1, dtype=torch.int64, device=device)
    return _mix_torch(z * signed(GAMMA) + signed(start))


def _mix_torch(z: torch.Tensor) -> torch.Tensor:
    # >> is arithmetic on int64, so the shifted-in sign bits are masked away.
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * signed(MIX_1)
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * signed(MIX_2)
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


# --- input tensors --------------------------------------------------------------------------


def inputs_numpy(op: Op, case: Case) -> dict[str, npt.NDArray[Any]]:
    """Input arrays of a case. 16-bit brain floats, which numpy lacks, come as uint16 patterns."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, spec in op.inputs.items():
        shape = shape_of(spec.shape, case)
        words = words_numpy(stream(case, name), int(np.prod(shape)))
        unit = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        value = spec.low + (spec.high - spec.low) * unit
        arrays[name] = _as_dtype_numpy(value, case.dtype).reshape(shape)
    return arrays


def _as_dtype_numpy(value: npt.NDArray[np.float64], dtype: str) -> npt.NDArray[Any]:
    # fp64 -> fp32 -> 16 bit rounds twice, as torch does; one rule for both forms.
    if dtype == "float64":
        return value
    single = value.astype(np.float32)
    if dtype == "float32":
        return single
    if dtype == "float16":
        return single.astype(np.float16)
    if dtype == "bfloat16":
        bits = single.view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)
    raise TolcalError(f"inputs of dtype {dtype} have no numpy form; use the torch form")


def inputs_torch(op: Op, case: Case, device: Any) -> dict[str, torch.Tensor]:
    """Input tensors of a case, drawn on ``device``: bit for bit those of ``inputs_numpy``."""
    return {name: _draw_torch(spec, name, case, device) for name, spec in op.inputs.items()}


def _draw_torch(spec: InputSpec, name: str, case: Case, device: Any) -> torch.Tensor:
    import torch

    shape = shape_of(spec.shape, case)
    words = words_torch(stream(case, name), _numel(shape), device)
    unit = ((words >> 11) & (2**53 - 1)).to(torch.float64) * 2.0**-53
    value = spec.low + (spec.high - spec.low) * unit
    dtype: torch.dtype = getattr(torch, case.dtype)
    if case.dtype != "float64":
        value = value.to(torch.float32)
    return value.to(dtype).reshape(shape)


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def sign_words(op: Op, case: Case, device: Any) -> dict[str, torch.Tensor]:
    """For each input an int64 word an element, whose low 32 bits are its signs in 32 vectors.

    They are the same for every case of a shape: the number of vectors and their seed belong to
    the definition of sigma, not to the case.
    """
    return {
        name: words_torch(
            key("sigma", 1, name), _numel(shape_of(spec.shape, case)), device
        ).reshape(shape_of(spec.shape, case))
        for name, spec in op.inputs.items()
    }


def hash_sums_torch(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """[inputs] int64 in the order of their names: what `input_hash` is made of.

    Each element's bits are mixed with its position and summed modulo 2^64: the order of the
    summation does not matter, so a GPU and numpy agree.
    """
    import torch

    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = []
    for name in sorted(inputs):
        tensor = inputs[name].contiguous()
        bits = tensor.view(integer[tensor.element_size()]).reshape(-1).to(torch.int64)
        mixed = _mix_torch(words_torch(key("hash", name), bits.numel(), tensor.device) ^ bits)
        sums.append(mixed.sum())
    return torch.stack(sums) if sums else torch.zeros(0, dtype=torch.int64)


def input_hash_torch(inputs: Mapping[str, torch.Tensor]) -> str:
    """`input_hash` of tensors."""
    return input_hash(hash_sums_torch(inputs).tolist())


def input_hash(sums: Iterable[int]) -> str:
    """16 hex digits over all input bytes."""
    return digest("inputs", [value % 2**64 for value in sums])


def input_hash_numpy(inputs: Mapping[str, npt.NDArray[Any]]) -> str:
    """`input_hash` of the numpy form."""
    sums = []
    for name in sorted(inputs):
        array = np.ascontiguousarray(inputs[name])
        bits = array.view(f"i{array.itemsize}").reshape(-1).astype(np.int64).view(np.uint64)
        mixed = _mix_numpy(words_numpy(key("hash", name), bits.size) ^ bits)
        sums.append(int(mixed.sum(dtype=np.uint64)))
    return input_hash(sums)
