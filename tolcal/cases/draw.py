"""A case into its input tensors: the same bytes on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tolcal.cases import formats, layouts, profiles
from tolcal.cases.arrays import Numpy, Torch
from tolcal.cases.choose import shape_of
from tolcal.cases.profiles import Source, numel
from tolcal.cases.words import key, mix_numpy, mix_torch, words_numpy, words_torch
from tolcal.model import Case, InputSpec, Op, digest

if TYPE_CHECKING:
    import torch


def dtype_of(spec: InputSpec, case: Case) -> str:
    """The dtype of an input: its own, else the case's."""
    return spec.dtype or case.dtype


def inputs_numpy(op: Op, case: Case) -> dict[str, npt.NDArray[Any]]:
    """Input arrays of a case.

    What numpy lacks comes as bit patterns: bfloat16 as uint16, 8-bit floats as uint8.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, spec in op.inputs.items():
        source = _source(Numpy(), op, name, case)
        if spec.is_integer:
            flat = profiles.integers(source, source.words()).astype(source.dtype)
        else:
            drawn = profiles.draw(source)
            flat = formats.to_numpy(drawn.value, source.dtype, drawn.kinds)
        array = flat.reshape(source.shape)
        if case.layout == "expanded" and array.ndim:
            array = np.broadcast_to(array[:1], array.shape).copy()
        arrays[name] = array
    return arrays


def inputs_torch(op: Op, case: Case, device: Any) -> dict[str, torch.Tensor]:
    """Input tensors of a case, drawn on ``device``, in the case's layout.

    Their elements are bit for bit those of ``inputs_numpy``.
    """
    return {name: input_torch(op, name, case, device) for name in op.inputs}


def input_torch(op: Op, name: str, case: Case, device: Any) -> torch.Tensor:
    """One of them."""
    source = _source(Torch(device), op, name, case)
    if source.spec.is_integer:
        flat = _integers(source, source.words())
    else:
        drawn = profiles.draw(source)
        flat = formats.to_torch(drawn.value, source.dtype, drawn.kinds)
    return layouts.lay_out(flat.reshape(source.shape), case.layout)


def part_torch(op: Op, name: str, case: Case, device: Any, first: int, count: int) -> torch.Tensor:
    """Flat: ``count`` elements of an input, from its element number ``first`` on.

    Of profiles whose values are those of ``default``: each element stands for itself there.
    """
    source = _source(Torch(device), op, name, case)
    words = source.words(count=count, first=first)
    if source.spec.is_integer:
        return _integers(source, words)
    return formats.to_torch(profiles.as_default(source, words).value, source.dtype)


def _integers(source: Source, words: torch.Tensor) -> torch.Tensor:
    import torch

    found: torch.Tensor = profiles.integers(source, words)
    return found.to(getattr(torch, source.dtype))


def _source(xp: Numpy | Torch, op: Op, name: str, case: Case) -> Source:
    spec = op.inputs[name]
    shape = shape_of(spec.shape, case)
    return Source(xp, name, list(op.inputs).index(name), spec, case, shape, dtype_of(spec, case))


def widened(x: torch.Tensor) -> torch.Tensor:
    """A copy as a reference gets it: contiguous, fp64 or int64."""
    import torch

    wide = torch.float64 if x.is_floating_point() else torch.int64
    return x.to(wide, copy=True, memory_format=torch.contiguous_format)


# --- beside them ----------------------------------------------------------------------------


def usual_key(name: str) -> int:
    """The key of the words that `usual_torch` makes its values of."""
    return key("usual", 1, name)


def usual_torch(name: str, spec: InputSpec, shape: Iterable[int], device: Any) -> torch.Tensor:
    """fp64 of that shape: what profile ``default`` may draw, unrounded; the same in every case.

    To stand for values that are not to be looked at, where one number for all of them would make
    a special input: a constant row has no variance.
    """
    shape = tuple(shape)
    xp = Torch(device)
    words = xp.words(usual_key(name), numel(shape), 0)
    values: torch.Tensor = profiles.uniform(xp, spec, words)
    return values.reshape(shape)


def sign_words(op: Op, case: Case, device: Any) -> dict[str, torch.Tensor]:
    """For each float input an int64 word an element, whose low 32 bits are its signs in 32 vectors.

    They are the same for every case of a shape: the number of vectors and their seed belong to
    the definition of sigma, not to the case.
    """
    found = {}
    for name, spec in op.inputs.items():
        if not spec.is_integer:
            shape = shape_of(spec.shape, case)
            words = words_torch(key("sigma", 1, name), numel(shape), device)
            found[name] = words.reshape(shape)
    return found


def hash_sum_torch(name: str, tensor: torch.Tensor, first: int = 0) -> torch.Tensor:
    """[] int64: an input's share of `input_hash`, of its elements from number ``first`` on.

    Each element's bits are mixed with its position and summed modulo 2^64: the order of the
    summation does not matter, so a GPU and numpy agree.
    """
    import torch

    bits = formats.bits_of(tensor.contiguous()).reshape(-1).to(torch.int64)
    words = words_torch(key("hash", name), bits.numel(), tensor.device, first)
    return mix_torch(words ^ bits).sum()


def hash_sums_torch(inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """[inputs] int64 in the order of their names: what `input_hash` is made of."""
    import torch

    sums = [hash_sum_torch(name, inputs[name]) for name in sorted(inputs)]
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
        mixed = mix_numpy(words_numpy(key("hash", name), bits.size) ^ bits)
        sums.append(int(mixed.sum(dtype=np.uint64)))
    return input_hash(sums)
