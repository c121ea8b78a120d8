"""Ops into cases, and a case into its input tensors: the same bytes on every machine."""

from tolcal.cases.choose import GATE_SEED, draw_cases, profiles_of, shape_of, sizes_of
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
    part_torch,
    sign_words,
    usual_key,
    usual_torch,
    widened,
)
from tolcal.cases.layouts import copy, lay_out
from tolcal.cases.profiles import LIKE_DEFAULT, OF_FEW, leaves, stream
from tolcal.cases.words import key, signed, words_numpy, words_torch
from tolcal.model import PROFILES

__all__ = [
    "GATE_SEED",
    "LIKE_DEFAULT",
    "OF_FEW",
    "PROFILES",
    "copy",
    "draw_cases",
    "dtype_of",
    "hash_sum_torch",
    "hash_sums_torch",
    "input_hash",
    "input_hash_numpy",
    "input_hash_torch",
    "input_torch",
    "inputs_numpy",
    "inputs_torch",
    "key",
    "lay_out",
    "leaves",
    "part_torch",
    "profiles_of",
    "shape_of",
    "sign_words",
    "signed",
    "sizes_of",
    "stream",
    "usual_key",
    "usual_torch",
    "widened",
    "words_numpy",
    "words_torch",
]
