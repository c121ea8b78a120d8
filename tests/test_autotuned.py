"""Autotuned kernels, interpreted: each launch is seen, and every configuration of it is checked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from measure_support import of, run, write_op

from tolcal.measure import configs
from tolcal.measure.configs import Launch, Launches
from tolcal.model import RELATION_MAX, Checks, Record

#: 2 x, in programs of 8 elements; with PART 1 only the first half is written.
HALF = """\
import functools

import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"PART": 0}), triton.Config({"PART": 1})]


@triton.jit
def double(x_ptr, y_ptr, n, PART: tl.constexpr):
    at = tl.program_id(0) * 8 + tl.arange(0, 8)
    mask = at < (n if PART == 0 else n // 2)
    x = tl.load(x_ptr + at, mask=mask)
    tl.store(y_ptr + at, x + x, mask=mask)


def launch(tuned, x):
    x = x.contiguous()
    y = torch.empty_like(x)
    tuned[(triton.cdiv(x.numel(), 8),)](x, y, x.numel())
    return y


"""
#: How a kernel may get hold of its autotuner.
WAYS = {
    "a_global": "tuned = triton.autotune(CONFIGS, ['n'])(double)\n"
    "def run(x):\n    return launch(tuned, x)\n",
    "a_class": "class Ops:\n    tuned = triton.autotune(CONFIGS, ['n'])(double)\n"
    "def run(x):\n    return launch(Ops.tuned, x)\n",
    "a_dict": "TUNED = {2: triton.autotune(CONFIGS, ['n'])(double)}\n"
    "def run(x):\n    return launch(TUNED[x.dim()], x)\n",
    "a_closure": "def made():\n    tuned = triton.autotune(CONFIGS, ['n'])(double)\n"
    "    def run(x):\n        return launch(tuned, x)\n    return run\nrun = made()\n",
    "a_partial": "run = functools.partial(launch, triton.autotune(CONFIGS, ['n'])(double))\n",
    "a_method": "kept = triton.autotune(CONFIGS, ['n'])(double).run\n"
    "def run(x):\n    x, y = x.contiguous(), torch.empty_like(x)\n"
    "    kept(x, y, x.numel(), grid=(triton.cdiv(x.numel(), 8),), warmup=False)\n    return y\n",
    "an_import": "from _beside import tuned\ndef run(x):\n    return launch(tuned, x)\n",
    "built_once": "@functools.cache\ndef built():\n"
    "    return triton.autotune(CONFIGS, ['n'])(double)\n"
    "def run(x):\n    return launch(built(), x)\n",
    "built_anew": "def run(x):\n    return launch(triton.autotune(CONFIGS, ['n'])(double), x)\n",
    "inside_heuristics": "tuned = triton.heuristics({})(triton.autotune(CONFIGS, ['n'])(double))\n"
    "def run(x):\n    return launch(tuned, x)\n",
    "around_heuristics": "tuned = triton.autotune(CONFIGS, ['n'])(triton.heuristics({})(double))\n"
    "def run(x):\n    return launch(tuned, x)\n",
}
BESIDE = HALF + "tuned = triton.autotune(CONFIGS, ['n'])(double)\n"


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    root = tmp_path_factory.mktemp("ways")
    write_op(root, kernels={n: HALF + code for n, code in WAYS.items()} | {"_beside": BESIDE})
    records = run(root, gate=4)
    return {name: of(records, name)[4] for name in WAYS}


@pytest.mark.parametrize("way", list(WAYS))
def test_an_autotuner_is_found_however_it_is_reached(ways: dict[str, Record], way: str) -> None:
    """It runs without a clock, and its second configuration, which writes half, fails."""
    record = ways[way]
    assert (record.status, record.reason) == ("ok", "")
    assert record.checks == Checks(
        unwritten=0, stray=0, inputs_changed=0, unrepeatable=0, configs=RELATION_MAX, broken=10,
        configs_judged=20,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ("tl.store(x_ptr + at, x + 1, mask=mask & (at == 0))", {"inputs_changed": 1}),
        ("tl.store(x_ptr + n + at, x, mask=at == 0)", {"stray": 1}),
    ],
)
def test_a_configuration_that_was_not_chosen_writes_to_an_input(
    store: str, expected: dict[str, int], tmp_path: Path
) -> None:
    source = HALF.replace("n if PART == 0 else n // 2", "n") + WAYS["a_global"]
    write_op(tmp_path, kernels={"tuned": source.replace(
        "    tl.store(y", f"    if PART == 1:\n        {store}\n    tl.store(y"
    )})  # fmt: skip
    checks = of(run(tmp_path, gate=4), "tuned")[4].checks
    none = {"unwritten": 0, "stray": 0, "inputs_changed": 0, "unrepeatable": 0}
    assert checks == Checks(**none | expected, configs=0.0, configs_judged=20, broken=0)


# --- several keys -------------------------------------------------------------------------------

#: Rows 0 and 1 by one launch, the others by another, of other keys; the second configuration's
#: bits are others. Pruning prefers another one for each key.
KEYS = """\
import torch
import triton
import triton.language as tl


def by_key(configs, args, **_):
    return configs[::-1] if args["kind"] == 10 else configs


@triton.autotune(
    [triton.Config({"ADD": 0.0}), triton.Config({"ADD": 2.0**-22})], ["kind"],
    prune_configs_by={"early_config_prune": by_key},
)
@triton.jit
def double(x_ptr, y_ptr, n, kind, BLOCK: tl.constexpr, ADD: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, x * (2 + ADD) BROKEN, mask=at < n)


def run(x):
    y = torch.empty_like(x)
    for rows in (slice(0, 2), slice(2, None)):
        if y[rows].numel():
            count = y[rows].numel()
            double[(1,)](x[rows], y[rows], count, count + rows.start, BLOCK=32)
    return y
"""


@pytest.mark.parametrize(
    ("broken", "expected"),
    [("", 0), ("+ (1.0 if kind == 10 and ADD == 0 else 0.0)", 10)],
)
def test_each_key_keeps_its_choice(broken: str, expected: int, tmp_path: Path) -> None:
    """Two launches of other keys repeat themselves, and each configuration is seen with each key.

    B = 3: keys 10 and 7; the first chooses the second configuration, the second the first.
    """
    source = KEYS.replace("BROKEN", broken)
    write_op(tmp_path, kernels={"double_good": source})
    record = of(run(tmp_path, gate=4), "double_good")[3]
    assert (record.status, record.reason) == ("ok", "")
    assert record.checks is not None
    failed = ("broken",) if expected else ()
    assert (record.checks.failed, record.checks.broken) == (failed, expected)


def launched(*made: tuple[int, str]) -> Launches:
    found = Launches()
    found.made["tuner"] = [Launch(["a", "b", "c"], key, config) for key, config in made]
    return found


@pytest.mark.parametrize(
    ("by_place", "asked", "expected"),
    [
        # As before: the key at its place, whatever the same key took elsewhere.
        (False, [1, 2, 1], ["a", "b", "c"]),
        # One launch less: the key knows.
        (False, [2, 1], ["b", "c"]),
        # Keys never seen, and a launch more: by place, and then the last.
        (False, [7, 8, 9, 9], ["a", "b", "c", "c"]),
        # Fewer rows: the second launch now has the key that the first had.
        (True, [9, 1, 8], ["a", "b", "c"]),
    ],
)
def test_what_a_launch_takes_again(by_place: bool, asked: list[int], expected: list[str]) -> None:
    """The configuration of the launch that it repeats."""
    again = Launches(launched((1, "a"), (2, "b"), (1, "c")), by_place=by_place)
    got = []
    for key in asked:
        (config,) = again.wanted("tuner", key)
        got.append(config)
        again.made.setdefault("tuner", []).append(Launch(["a", "b", "c"], key, config))
    assert got == expected
    assert again.wanted("another", 1) == []


# --- configurations that can't be launched ------------------------------------------------------

#: `static_assert` in the kernel or in a function that it calls; its own assertion is a fault.
ASSERTS = """\
import torch
import triton
import triton.language as tl


@triton.jit
def checked(x, PART: tl.constexpr):
    INNER
    return x + x


@triton.autotune([triton.Config({"PART": part}) for part in (0, 1, 2)], ["n"])
@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr, PART: tl.constexpr):
    OUTER
    at = tl.arange(0, BLOCK)
    mask = at < (n // 2 if PART == 2 else n)
    x = checked(tl.load(x_ptr + at, mask=mask), PART)
    tl.store(y_ptr + at, x, mask=mask)


def run(x):
    y = torch.empty_like(x)
    double[(1,)](x, y, x.numel(), BLOCK=32)
    return y
"""
EXCLUDES = {
    "outer": ("pass", 'tl.static_assert(PART > 0, "no")'),
    "inner": ("tl.static_assert(PART > 0)", "pass"),
    "both": ("tl.static_assert(PART > 0)", "tl.static_assert(PART < 2)"),
    "all": ("tl.static_assert(PART > 2)", "pass"),
    "own": ("pass", "assert PART > 0"),
}


@pytest.fixture(scope="module")
def excluded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    root = tmp_path_factory.mktemp("excluded")
    kernels = {
        f"{name}_excludes": ASSERTS.replace("INNER", inner).replace("OUTER", outer)
        for name, (inner, outer) in EXCLUDES.items()
    }
    write_op(root, kernels=kernels)
    records = run(root, gate=4)
    return {name: of(records, f"{name}_excludes")[4] for name in EXCLUDES}


@pytest.mark.parametrize(("name", "broken"), [("outer", 10), ("inner", 10), ("both", 0)])
def test_a_static_assert_excludes_a_configuration(
    excluded: dict[str, Record], name: str, broken: int
) -> None:
    """The first is passed over as on a GPU: not launched, chosen or checked, but the others are."""
    record = excluded[name]
    assert (record.status, record.reason) == ("ok", "")
    assert record.checks == Checks(
        unwritten=0, stray=0, inputs_changed=0, unrepeatable=0,
        configs=RELATION_MAX if broken else 0.0, broken=broken, configs_judged=20,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["all", "own"])
def test_what_excludes_nothing_is_a_crash(excluded: dict[str, Record], name: str) -> None:
    """Where no configuration is left, and where the kernel itself asserts."""
    record = excluded[name]
    assert record.status == "crashed"
    assert record.reason.startswith("InterpreterError: ")
    assert "AssertionError" in record.reason


class Tuned:
    """An autotuner over a kernel of no device, whose clock likes PART 2 best, then 0.

    ``raised``: what a configuration raises, by PART; ``pruned``: those that pruning leaves.
    """

    def __init__(self, raised: dict[int, Exception], pruned: tuple[int, ...] = (0, 1, 2)) -> None:
        import triton
        from triton.runtime.jit import KernelInterface

        self.made: list[int] = []  # what was launched since the last call
        times = {2: 1.0, 0: 2.0, 1: 3.0}

        class Kernel(KernelInterface):  # type: ignore[misc, type-arg]
            arg_names = ("n", "PART")
            fn = staticmethod(lambda n, PART: None)

            def run(_, *__: Any, PART: int, **___: Any) -> None:  # noqa: N805
                if PART in raised:
                    raise raised[PART]
                self.made.append(PART)

        def bench(call: Any, quantiles: Any) -> list[float]:
            call()
            return [times[self.made[-1]]] * len(quantiles)

        self.tuner = triton.autotune(
            [triton.Config({"PART": part}) for part in (0, 1, 2)], ["n"], do_bench=bench,
            prune_configs_by={"early_config_prune": lambda configs, *_, **__: [
                config for config in configs if config.kwargs["PART"] in pruned
            ]},
        )(Kernel())  # fmt: skip

    def __call__(self, n: int, launches: Launches) -> list[int]:
        """What is launched for ``n``."""
        self.made.clear()
        with launches:
            self.tuner[(1,)](n)
        return list(self.made)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`configs.install`, for this test alone."""
    autotuner = pytest.importorskip("triton.runtime.autotuner").Autotuner
    monkeypatch.setattr(autotuner, "run", autotuner.run)
    return configs.install


def unusable() -> list[Exception]:
    errors = pytest.importorskip("triton.runtime.errors")
    compiler = pytest.importorskip("triton.compiler.errors")
    return [
        errors.OutOfResources(2, 1, "shared memory"), errors.PTXASError("no"),
        compiler.CompileTimeAssertionFailure(None, ast.parse(""), "no"),
    ]  # fmt: skip


def test_without_a_clock_the_first_that_can_be_launched_is_taken(installed: Any) -> None:
    """What the autotuner itself passes over is passed over; nothing else is."""
    installed(interpreted=True)
    assert Tuned({})(1, Launches()) == [0]
    for error in unusable():
        one = Tuned({0: error})
        assert one(1, Launches()) == [1]
        assert one(1, Launches()) == [1]
        assert Tuned({0: error}, pruned=(0, 2))(1, Launches()) == [2]
        with pytest.raises(type(error)):
            Tuned(dict.fromkeys((0, 1, 2), error))(1, Launches())
    with pytest.raises(RuntimeError, match="no"):
        Tuned({0: RuntimeError("no")})(1, Launches())


def test_with_a_clock_its_choice_is_taken_again(installed: Any) -> None:
    """The clock runs once a key, and the choice is the autotuner's own afterwards."""
    installed(interpreted=False)
    one, first = Tuned({}), Launches()
    assert one(1, first) == [0, 1, 2, 2]
    again = Launches(first)
    assert one(5, again) == [2]  # a key never seen
    ((made,),), ((repeated,),) = first.made.values(), again.made.values()
    assert (made.key, made.config.kwargs) == ((1,), {"PART": 2})
    assert (repeated.key, repeated.config) == ((5,), made.config)
    assert list(one.tuner.cache) == [(1,)]
    assert one(1, Launches()) == [2]
    assert one(5, Launches()) == [0, 1, 2, 2]


def test_another_configuration_is_launched_where_it_can_be(installed: Any) -> None:
    """Where it is pruned or can't be launched, the one that was chosen is."""
    installed(interpreted=False)
    for raised, pruned, expected in (
        ({}, (0, 1, 2), [1]),
        ({}, (0, 2), [2]),
        *(({1: error}, (0, 1, 2), [2]) for error in unusable()),
    ):
        one, first = Tuned(raised, pruned), Launches()
        one(1, first)
        (name,) = first.made
        other = Launches(first, instead=(name, one.tuner.configs[1]))
        assert one(1, other) == expected
        assert [launch.config.kwargs["PART"] for launch in other.made[name]] == expected
