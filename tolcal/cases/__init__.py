"""Ops into cases, and a case into its input tensors: the same bytes on every machine."""

from tolcal.cases.choose import GATE_SEED, PROFILES, draw_cases, shape_of
from tolcal.cases.draw import (
    dtype_of,
    hash_sum_torch,
    hash_sums_torch,
    input_hash,
    input_hash_numpy,
    input_hash_torch,
    input_torch,
    inputs_numpy,
    inputs_torch,
    sign_words,
)
from tolcal.cases.profiles import stream
from tolcal.cases.words import key, signed, words_numpy, words_torch

__all__ = [
    "GATE_SEED", "PROFILES", "draw_cases", "dtype_of", "hash_sum_torch", "hash_sums_torch",
    "input_hash", "input_hash_numpy", "input_hash_torch", "input_torch", "inputs_numpy",
    "inputs_torch", "key", "shape_of", "sign_words", "signed", "stream", "words_numpy",
    "words_torch",
]  # fmt: skip
