"""Parts of one run, on machines that never meet: together they are the run."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure_support import GOOD, request, write_op
from tests_support import make_run

from tolcal import __version__, corpus, history, measure
from tolcal.cli import main
from tolcal.history import columns, jsonlines
from tolcal.measure import wire
from tolcal.measure.resume import check_plan
from tolcal.measure.units import CHUNK, Planned, plan, run_id
from tolcal.model import Op, Record, TolcalError


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ops, three (op, dtype)."""
    root = tmp_path_factory.mktemp("shards")
    write_op(root, "aa", ("float32", "float16"), kernels={"aa_one": GOOD, "aa_two": GOOD})
    write_op(root, "bb", kernels={"bb_one": GOOD, "bb_raises": "def run(x):\n    1 / 0\n"})
    return root


@pytest.fixture(scope="module")
def ops(root: Path) -> tuple[Op, ...]:
    return corpus.load(root)


@settings(max_examples=25, deadline=None)
@given(
    gate=st.integers(0, 3), explore=st.integers(1, 400), repeat=st.integers(1, 3),
    parts=st.integers(1, 9),
)  # fmt: skip
def test_parts_are_the_plan(
    ops: tuple[Op, ...], gate: int, explore: int, repeat: int, parts: int
) -> None:
    """Every unit is in exactly one part, in the order of the plan; the parts are about even."""
    asked = request(ops, gate=gate, explore=explore, repeat=repeat, seed=3)
    seeds = list(range(3, 3 + repeat))
    whole = plan(asked, seeds)
    assert all(len(p.unit.cases) <= CHUNK for p in whole)
    shards = [
        plan(msgspec.structs.replace(asked, shard=(i, parts)), seeds) for i in range(1, parts + 1)
    ]

    def names(planned: list[Planned]) -> list[tuple[int, int, tuple[str, ...]]]:
        return [(p.run, p.gate, tuple(c.id for c in p.unit.cases)) for p in planned]

    assert Counter(names(whole)) == Counter(n for shard in shards for n in names(shard))
    for shard in shards:
        order = [names(whole).index(n) for n in names(shard)]
        assert order == sorted(order)
    sizes = [sum(p.size for p in shard) for shard in shards]
    assert max(sizes) - min(sizes) <= max(p.size for p in whole)


@settings(max_examples=25, deadline=None)
@given(gate=st.integers(0, 300), explore=st.integers(0, 300))
def test_chunks_keep_gate_and_explore_apart(ops: tuple[Op, ...], gate: int, explore: int) -> None:
    """However cases fall into units, the first of a (op, dtype) are the gate cases."""
    planned = plan(request(ops, gate=gate, explore=explore, dtypes=("float16",)), [1])
    flags = [c < p.gate for p in planned for c in range(len(p.unit.cases))]
    assert flags == [True] * gate + [False] * explore


def test_shards_agree_on_their_run(ops: tuple[Op, ...]) -> None:
    """The run's id follows from what the shards share, and from nothing else."""

    def name(run: int = 0, seeds: tuple[int, ...] = (3, 4), **changes: object) -> str:
        fields = {"ops": ops, "shard": (1, 2), "seed": 3} | changes
        return run_id(request(**fields), list(seeds), run, "5e55", "c" * 40, "e1")

    assert name() == name(shard=(2, 2)) == name(workers=9)
    others = [
        name(run=1), name(seeds=(5, 6)), name(shard=(1, 3)), name(gate=2), name(explore=2),
        name(ops=ops[:1]), name(shard=None), name(dtypes=("float32",)), name(checks="all"),
        name(checks="none"), name(profiles=("sparse",)), name(repeat=3),
    ]  # fmt: skip
    assert len({name(), *others}) == 13


def outcome(record: Record) -> object:
    """A record less when and where its run was taken."""
    body = msgspec.to_builtins(record)
    run = body.pop("run")
    return body, run["seed"], run["commit"], run["environment"], run["device_uuid"]


def test_merged_shards_are_the_run(root: Path, tmp_path: Path) -> None:
    """Added to a history in any order, three shards are the records of the whole, in two runs."""
    asked = [
        "run", "--device", "cpu", "--seed", "3", "--gate", "1", "--cases", "2", "--repeat", "2",
        "--corpus", str(root), "--workers", "1",
    ]  # fmt: skip
    assert main([*asked, "--out", str(tmp_path / "whole.jsonl.gz")]) == 1
    whole = list(jsonlines.read(tmp_path / "whole.jsonl.gz"))
    shards = []
    for i in (1, 2, 3):
        out = tmp_path / f"{i}.jsonl.gz"
        main([*asked, "--shard", f"{i}/3", "--out", str(out)])
        shards.append(list(jsonlines.read(out)))
    assert sum(map(len, shards)) == len(whole) == 36
    for number, order in enumerate(itertools.permutations(shards)):
        for shard in order:
            history.add(tmp_path / f"h{number}", shard)
        merged = list(columns.to_records(history.read_table([tmp_path / f"h{number}"])))
        assert sorted(map(repr, map(outcome, merged))) == sorted(map(repr, map(outcome, whole)))
        assert len({r.run.id for r in merged}) == 2
    assert {r.run.id for r in shards[0]} == {r.run.id for r in shards[2]}
    assert len({r.run.session for shard in shards for r in shard}) == 3


@pytest.mark.parametrize(
    ("shard", "seed", "says"),
    [
        ((1, 2), None, "--shard 1/2: give --seed N, the same for every shard, or they would not "
                       "be parts of one run"),
        ((7, 9), 3, "--shard 7/9: there are 3 units of work, so nothing is left for this part; "
                    "make fewer parts"),
    ],
)  # fmt: skip
def test_shards_that_cannot_be(
    root: Path, ops: tuple[Op, ...], shard: tuple[int, int], seed: int | None, says: str
) -> None:
    """One line, before any worker starts."""
    with pytest.raises(TolcalError) as caught:
        next(measure.measure(request(ops, shard=shard, seed=seed), root))
    assert str(caught.value) == says


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/", "/2", "a/b", "1/2/3", "1/10001"])
def test_odd_shards(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--shard is I/N and nothing else."""
    with pytest.raises(SystemExit) as caught:
        main(["run", "--shard", text])
    assert caught.value.code == 2
    assert f"{text}: give I/N with 1 <= I <= N <= 10000, as in 1/4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reason", "checks", "says"),
    [
        ("ValueError: no", "none", ""),
        ("ValueError: no", "all", ""),
        ("in check shift: ValueError: no", "all", ""),
        ("in check shift: ValueError: no", "none", "checked then, not checked now"),
    ],
)
def test_what_failed_in_a_check_was_checked(
    ops: tuple[Op, ...], reason: str, checks: str, says: str
) -> None:
    """What failed elsewhere does not say, so a run is resumed either way."""
    planned = plan(request(ops, gate=1, seed=3, checks=checks), [3])
    (case, *_), kernel = planned[0].unit.cases, planned[0].unit.kernels[0]
    crashed = wire.Measured(0, kernel.name, "crashed", reason, "", None, None)
    one = measure.record_of(make_run(seed=3), planned[0], crashed)
    run = msgspec.structs.replace(one.run, tolcal=__version__, commit="")
    one = msgspec.structs.replace(one, run=run)
    cut = measure.Recorded("r.part", (run,), (one,), False)
    if not says:
        check_plan(cut, planned, [3], "", run.origin)
        return
    with pytest.raises(TolcalError) as caught:
        check_plan(cut, planned, [3], "", run.origin)
    assert str(caught.value) == (
        f"--resume r.part: --checks differs: {kernel.name}:{case.id}: {says}; ask for what was "
        "asked then, or give these records up with --overwrite"
    )
