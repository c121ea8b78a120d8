"""Rows of a table by the values of some columns, as numbers: exact, without hashing texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Codes = npt.NDArray[np.int64]
#: Codes above this are numbered anew.
_MOST = 2**16


def codes_of(
    table: pa.Table, names: Sequence[str], more: Sequence[Codes] = ()
) -> tuple[Codes, int]:
    """A number below ``count`` for each row, equal just where all columns are; and ``count``.

    Args:
        table: of one chunk a column. Nulls are a value of their own.
        names: columns of texts (dictionaries) or numbers; fastest if those that most others
            follow from come first.
        more: numbers from 0 upwards, as further columns.
    """
    codes, size = np.zeros(table.num_rows, np.int64), 1
    heads: Codes | None = None  # a row of each code, once codes are consecutive
    for column in (*more, *(table[name] for name in names)):
        if heads is not None and _follows(column, codes, heads):
            continue
        values, own = _sized(column) if isinstance(column, np.ndarray) else _column(column)
        if own <= 1:
            continue
        codes *= own
        codes += values
        size *= own
        heads = None
        if size > _MOST:
            codes, size = _renumbered(codes, size)
            heads = np.empty(size, np.int64)
            heads[codes] = np.arange(len(codes))
    return _renumbered(codes, size)


def _follows(column: pa.ChunkedArray | Codes, codes: Codes, heads: Codes) -> bool:
    """Whether a column is the same in all rows of each code; False where that is not plain."""
    if isinstance(column, np.ndarray):
        values: Any = column
    else:
        whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        values = whole.indices if pa.types.is_dictionary(whole.type) else whole
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.int8())
        # A code that no value has, in place of null: places of texts begin at 0.
        if values.null_count and not pa.types.is_dictionary(whole.type):
            return False
        values = (values.fill_null(-1) if values.null_count else values).to_numpy()
        if values.dtype.kind == "f":
            values = values.view(f"u{values.dtype.itemsize}")  # nan equals nan
    return bool((values == values[heads][codes]).all())


def _sized(values: Codes) -> tuple[Codes, int]:
    return values, int(values.max()) + 1 if values.size else 1


def _renumbered(codes: Codes, size: int) -> tuple[Codes, int]:
    """The same by consecutive numbers, order kept."""
    if not codes.size:
        return codes, 0
    if size > max(_MOST, 16 * codes.size):
        values, inverse = np.unique(codes, return_inverse=True)
        return inverse.astype(np.int64), len(values)
    used = np.zeros(size, bool)
    used[codes] = True
    places = np.cumsum(used, dtype=np.int32)
    return places[codes].astype(np.int64) - 1, int(places[-1])


def _column(column: pa.ChunkedArray) -> tuple[Codes, int]:
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_dictionary(whole.type):
        return _texts(whole)
    if pa.types.is_boolean(whole.type):
        values = whole.cast(pa.int8()).fill_null(-1).to_numpy(zero_copy_only=False) + 1
        return values.astype(np.int64), 3
    encoded = pc.dictionary_encode(whole, null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)


def _texts(array: pa.DictionaryArray) -> tuple[Codes, int]:
    """Codes of a column of texts; a dictionary may hold a text twice, or null."""
    numbers: dict[str | None, int] = {}
    for value in array.dictionary.to_pylist():
        numbers.setdefault(value, len(numbers))
    indices = array.indices
    if len(numbers) <= 1 and not indices.null_count and None not in numbers:
        return np.zeros(0, np.int64), 1
    if len(numbers) == len(array.dictionary) and not indices.null_count:
        return indices.to_numpy(), len(numbers)
    null = numbers.get(None, len(numbers))
    places = np.array([numbers[v] for v in array.dictionary.to_pylist()] + [null], np.int64)
    found = indices.fill_null(len(places) - 1) if indices.null_count else indices
    return places[found.to_numpy(zero_copy_only=False)], max(len(numbers), null + 1)


def first_of_each(codes: Codes) -> Codes:
    """Places of the first row of each code, in their order."""
    return np.sort(np.unique(codes, return_index=True)[1]).astype(np.int64)


def has_repeats(hashes: npt.NDArray[np.uint64]) -> bool:
    """Whether any is there twice: most are told apart by half of their bits, which sorts fast."""
    half = hashes.astype(np.uint32)
    ordered = np.sort(half)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    some = hashes if len(twice) > 64 else hashes[np.isin(half, twice)]
    return len(np.unique(some)) < len(some)


def row_hashes(table: pa.Table, texts: Sequence[str], number: str) -> npt.NDArray[np.uint64]:
    """64 bits that depend on these columns of a row alone: not on the rest of the table."""
    mixed = table[number].combine_chunks().fill_null(-1).to_numpy(zero_copy_only=False)
    found = _mix(mixed.astype(np.int64, copy=False).view(np.uint64))
    for name in texts:
        column = table[name].combine_chunks()
        values = [*column.dictionary.to_pylist(), None]
        own = np.array([_hash(name, value) for value in values], np.uint64)
        indices = column.indices
        if len(own) == 2 and not indices.null_count:
            found += own[0]
            continue
        indices = indices.fill_null(len(own) - 1) if indices.null_count else indices
        found += own[indices.to_numpy(zero_copy_only=False)]
    return _mix(found)


def _hash(name: str, value: str | None) -> int:
    data = f"{name}={value}".encode() if value is not None else name.encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer after its increment: every bit depends on every bit."""
    with np.errstate(over="ignore"):
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z ^= z >> np.uint64(30)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> np.uint64(27)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        return z
