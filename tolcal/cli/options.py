"""Options that several commands share, and the values they take."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Iterable
from pathlib import Path

from tolcal.model import DTYPES, PROFILES


def add_corpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--corpus", metavar="DIR", help="folder of op folders")


def add_history(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--history", action="append", metavar="DIR|FILE",
                        help="history folder, .parquet or .jsonl.gz file; may be "
                        "repeated")  # fmt: skip


def history(paths: Iterable[Path | str]) -> str:
    """What a command on an id is told beside it, to find records that lie in ``paths``."""
    return "".join(f" --history {shlex.quote(str(path))}" for path in paths)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Options of commands that read a history of any size."""
    parser.add_argument("--engine", choices=("local", "ray"), default="local",
                        help="where shards are summarised: local (default), or ray, the cluster "
                        "that RAY_ADDRESS names")  # fmt: skip
    parser.add_argument("--sample", type=positive, default=1000, metavar="K",
                        help="records of each buggy kernel and dtype that a summary keeps "
                        "(default: 1000)")  # fmt: skip


def bits(text: str) -> int:
    return int(number(text, int, 8, 24))


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="auto|cuda[:N]|cpu",
                        help="where kernels run: cuda is every visible GPU, cuda:1 that one "
                        "(default: auto, a GPU if there is one)")  # fmt: skip
    parser.add_argument(
        "--timeout", type=factor, metavar="S", help="seconds a case may take (default 120)"
    )


def add_measuring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ops", nargs="*", metavar="OP", help="ops or kernels (default: all)")
    add_corpus(parser)
    add_device(parser)
    parser.add_argument("--dtype", action="append", choices=tuple(DTYPES), metavar="DTYPE",
                        help="only this dtype; may be repeated")  # fmt: skip
    parser.add_argument("--cases", type=count, metavar="N",
                        help="explore cases a kernel and dtype, fresh in every run "
                        "(default 24)")  # fmt: skip
    parser.add_argument("--gate", type=count, metavar="N",
                        help="gate cases a kernel and dtype, the same in every run "
                        "(default 12; 0: nor pinned ones)")  # fmt: skip
    parser.add_argument("--seed", type=seed, metavar="N",
                        help="seed of the explore cases (default: a fresh one)")  # fmt: skip
    parser.add_argument("--profile", action="append", metavar="P",
                        help="input profile, or several with commas between them; may be repeated; "
                        f"all, or of {', '.join(PROFILES)} (default: each op's own)")  # fmt: skip
    parser.add_argument("--checks", choices=("gate", "all", "none"),
                        help="which cases are checked without a tolerance, too: the gate cases "
                        "(default), all, or none")  # fmt: skip
    parser.add_argument("--workers", type=count, default=0, metavar="N",
                        help="worker processes (default: as many as suit the machine)")  # fmt: skip
    parser.add_argument("--tolerances", metavar="F", help="the approved tolerances")
    parser.add_argument("--engine", choices=("local", "ray"), default="local",
                        help="local: all GPUs of this machine (default); ray: those of the cluster "
                        "that RAY_ADDRESS names")  # fmt: skip
    parser.add_argument("--triton-cache", metavar="DIR",
                        help="folder of compiled kernels, one for each trust domain (default: "
                        "Triton's own)")  # fmt: skip
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument("--resume", action="store_true",
                     help="go on with a run that was cut: its records lie beside --out, in a file "
                     "that ends in .part")  # fmt: skip
    cut.add_argument("--overwrite", action="store_true",
                     help="give up the records of a run that was cut")  # fmt: skip


def shard(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts) <= 10_000):
        raise argparse.ArgumentTypeError(f"{text}: give I/N with 1 <= I <= N <= 10000, as in 1/4")
    return int(part), int(parts)


def number(text: str, convert: type[int] | type[float], low: float, high: float) -> float:
    try:
        value = convert(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        whole = "whole " if convert is int else ""
        raise argparse.ArgumentTypeError(f"{text}: a {whole}number from {low:g} to {high:g}")
    return value


def count(text: str) -> int:
    return int(number(text, int, 0, 1_000_000))


def seed(text: str) -> int:
    return int(number(text, int, 0, 2**62))


def positive(text: str) -> int:
    return int(number(text, int, 1, 100_000))


def factor(text: str) -> float:
    return number(text, float, 1e-9, 1e9)


def margin(text: str) -> float:
    """Below 1 a bound would fail what it was fitted to."""
    return number(text, float, 1.0, 1e9)


def share(text: str) -> float:
    """A budget: above a half it would be none."""
    return number(text, float, 1e-9, 0.5)
