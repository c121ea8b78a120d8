"""Which cases a run measures: profiles and their counts, layouts, pinned ones."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure_support import GOOD, request, run, write_op
from tests_support import ROOT

from tolcal import corpus, measure
from tolcal.cases.choose import draw_cases, edges
from tolcal.cli import config, main
from tolcal.measure.units import counts, plan, run_id
from tolcal.model import LAYOUTS, PROFILES, Case, InputSpec, Op, TolcalError

PINS = """
[[pinned]]
dtype = "float32"
dims = { B = 3, H = 9 }
profile = "sorted"
layout = "strided"
seed = 123
why = "a tail"

[[pinned]]
dtype = "float16"
dims = { B = 1, H = 1 }
seed = 5
why = "overflowed"
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ops: one of three profiles, all layouts, pins and sizes, one of none of these."""
    root = tmp_path_factory.mktemp("plans")
    write_op(root, "aa", ("float32", "float16"), kernels={"aa_one": GOOD, "aa_two": GOOD})
    write_op(root, "bb", kernels={"bb_one": GOOD})
    path = root / "aa" / "op.toml"
    path.write_text(
        'profiles = ["default", "boundary", "sparse"]\n'
        f"layouts = {list(LAYOUTS)}\n" + path.read_text() + "[sizes.large]\nB = [64]\n"
        "[sizes.sparse]\nH = [2, 4]\n[kernels.aa_two.dims]\nB = [2]\nH = [6]\n" + PINS
    )
    return root


@pytest.fixture(scope="module")
def ops(root: Path) -> tuple[Op, ...]:
    return corpus.load(root)


def gate_of(asked: measure.Request) -> list[Case]:
    return [c for p in plan(asked, [1]) for c in p.unit.cases[: p.gate]]


def explore_of(asked: measure.Request) -> list[Case]:
    return [c for p in plan(asked, [1]) for c in p.unit.cases[p.gate :]]


@pytest.mark.parametrize(
    ("spec", "profile", "sizes"),
    [
        (InputSpec(("B",), dtype="int8", below="H"), "regular", {128}),
        (InputSpec(("B",), low=2, dtype="uint8", below="H"), "boundary", {3, 7}),
        (InputSpec(("B",), low=7, dtype="int32", below="H"), "boundary", {8, 9}),
        (InputSpec(("B",), low=3, dtype="int32", below="H"), "edges", {4, 5, 7, 8, 9}),
        (InputSpec(("B",), dtype="int8", below="B"), "regular", {128, 256, 512}),
    ],
)
def test_sizes_of_a_profile_leave_integers_below_them(
    ops: tuple[Op, ...], spec: InputSpec, profile: str, sizes: set[int]
) -> None:
    """That the dtype has, too; a profile without such sizes has those declared."""
    inputs = {**ops[1].inputs, "labels": spec}
    op = msgspec.structs.replace(ops[1], inputs=inputs, reduction="H")
    drawn = draw_cases(op, {"B": (1, 2), "H": (8, 9)}, "float32", 1, 24, profile)
    assert {dict(case.dims)["H"] for case in drawn} == sizes


sizes_lists = st.lists(st.integers(1, 600), min_size=1, max_size=5, unique=True)


@settings(max_examples=200, deadline=None)
@given(
    own=sizes_lists, table=sizes_lists, profile=st.sampled_from(PROFILES), seed=st.integers(0, 9)
)
def test_a_kernel_is_run_on_no_sizes_but_its_own(
    ops: tuple[Op, ...], own: list[int], table: list[int], profile: str, seed: int
) -> None:
    """Of those of a profile and of its table the ones that it has, and if it has none, its own."""
    kernel = ops[0].kernel("aa_two")
    dims = {"B": (1, 2, 3, 4), "H": tuple(own)}
    of_profile = {"boundary": {1, 3, 7}, "regular": {128, 256, 512}, "edges": edges(max(own))}
    tables = {} if profile in of_profile else {profile: {"H": tuple(table)}}
    op = msgspec.structs.replace(ops[0], sizes=tables, pinned=())
    cases = draw_cases(op, dims, "float32", seed, 12, profile, ("H",))
    wanted = set(of_profile.get(profile, table)) & set(own) or set(own)
    drawn = {dict(c.dims)["H"] for c in cases}
    assert drawn == wanted or (profile == "large" and drawn <= wanted)
    bound = msgspec.structs.replace(kernel, dims=dims, own=("H",))
    assert {bound.refuses(case) for case in cases} == {""}


@settings(max_examples=30, deadline=None)
@given(gate=st.integers(0, 40), explore=st.integers(0, 40))
def test_other_profiles_get_a_quarter(ops: tuple[Op, ...], gate: int, explore: int) -> None:
    """Of an op's own list ``default`` has all cases and each other a quarter, rounded up."""
    asked = request(ops, gate=gate, explore=explore)
    aa, bb = ops
    quarter = -(-gate // 4), -(-explore // 4)
    assert counts(asked, aa) == [
        ("default", gate, explore), ("boundary", *quarter), ("sparse", *quarter),
    ]  # fmt: skip
    assert counts(asked, bb) == [("default", gate, explore)]
    named = msgspec.structs.replace(asked, profiles=("sparse", "huge", "sparse"))
    assert counts(named, bb) == [("sparse", gate, explore), ("huge", gate, explore)]


def test_every_profile_there_is(ops: tuple[Op, ...]) -> None:
    """`all` is each of them; `large` of an op with sizes for it."""
    aa, bb = (counts(request(ops, profiles=("all",)), op) for op in ops)
    assert [c.profile for c in aa] == list(PROFILES)
    assert [c.profile for c in bb] == [p for p in PROFILES if p != "large"]
    large = plan(request(ops, gate=5, explore=5, profiles=("large",), dtypes=("float32",)), [1])
    assert [(p.unit.op.name, p.gate, len(p.unit.cases)) for p in large] == [("aa", 2, 3)] * 2
    with pytest.raises(TolcalError, match="unknown input profile 'larg'"):
        plan(request(ops, profiles=("larg",)), [1])


def test_the_plan_has_the_cases_of_each_profile(ops: tuple[Op, ...]) -> None:
    """Of profiles one after another, gate cases before explore cases, for each group of dims."""
    asked = request(ops, gate=6, explore=5, dtypes=("float32",))
    one, two, other = plan(asked, [1])
    assert (one.gate, two.gate, other.gate) == (6 + 2 + 2 + 1, 11, 6)
    profiles = [c.profile for c in one.unit.cases]
    gate = ["default"] * 6 + ["boundary"] * 2 + ["sparse"] * 2 + ["sorted"]
    assert profiles == gate + ["default"] * 5 + ["boundary"] * 2 + ["sparse"] * 2
    assert {dict(c.dims)["H"] for c in one.unit.cases if c.profile == "boundary"} <= {1, 3, 7}
    # A kernel's own dims hold whatever the profile names.
    sizes = {(c.profile, c.dims) for c in two.unit.cases if c.profile in ("default", "sparse")}
    assert {(p, dict(d)["B"]) for p, d in sizes} == {("default", 2), ("sparse", 2)}
    assert {dict(d)["H"] for p, d in sizes if p == "default"} == {6}
    assert {dict(d)["H"] for p, d in sizes if p == "sparse"} == {6}
    assert {c.layout for c in one.unit.cases} == set(LAYOUTS)
    assert {c.layout for c in other.unit.cases} == {"contiguous"}


def test_the_default_profile_is_what_it_was(ops: tuple[Op, ...]) -> None:
    """Whatever else an op measures, its default cases keep their dims and seeds; those of an op
    with one layout keep their ids."""
    plain = [
        msgspec.structs.replace(op, profiles=("default",), layouts=("contiguous",), pinned=())
        for op in ops
    ]
    then = [c for p in plan(request(tuple(plain), gate=6, explore=5), [1]) for c in p.unit.cases]
    now = [
        c for p in plan(request(ops, gate=6, explore=5), [1]) for c in p.unit.cases
        if c.profile == "default" and c.seed != 5
    ]  # fmt: skip
    assert [msgspec.structs.replace(c, layout="contiguous") for c in now] == then


# --- pinned cases -----------------------------------------------------------------------------


@pytest.mark.parametrize("profiles", [(), ("default",), ("normal", "tiny")])
def test_pinned_cases_are_gate_cases_of_every_run(
    ops: tuple[Op, ...], profiles: tuple[str, ...]
) -> None:
    """Whatever profile is asked for, once a group of kernels, if their dtype is."""
    first, second = ops[0].pinned
    asked = request(ops, profiles=profiles)
    assert [c for c in gate_of(asked) if c in ops[0].pinned] == [first] * 2 + [second] * 2
    half = request(ops, profiles=profiles, dtypes=("float16",))
    assert [c for c in gate_of(half) if c in ops[0].pinned] == [second] * 2
    assert not set(explore_of(asked)) & set(ops[0].pinned)
    assert gate_of(request(ops, profiles=profiles, gate=0, explore=1)) == []


def test_a_pinned_case_that_is_drawn_as_well_is_measured_once(ops: tuple[Op, ...]) -> None:
    """It keeps its place."""
    before = gate_of(request(ops[1:], gate=5))
    op = msgspec.structs.replace(ops[1], pinned=(before[2],))
    assert gate_of(request((op,), gate=5)) == before
    more = gate_of(request((op,), gate=2))
    assert more == [*before[:2], before[2]]


def test_pinned_cases_run(root: Path) -> None:
    """With their own dims, profile and layout."""
    records = run(root, dtypes=("float32",))
    (pin,) = {r.case for r in records if r.case.profile == "sorted"}
    assert (pin.dims, pin.layout, pin.seed) == ((("B", 3), ("H", 9)), "strided", 123)
    of_pin = {r.kernel: (r.status, r.case_set, r.reason) for r in records if r.case == pin}
    assert of_pin == {
        "aa_one": ("ok", "gate", ""),
        "aa_two": ("skipped", "gate", f"pinned case {pin.id} (B=3 H=9): by op.toml aa_two is run "
                   "with B = 2 alone"),
    }  # fmt: skip


REFERENCE = """\
import os

def reference(x):
    if x.shape[1] == 100:
        raise ValueError("no such row")
    if x.shape[1] == 101:
        os._exit(3)
    return 2 * x
"""
SPOILS_TORCH = """\
import torch

def run(x):
    y = x + x
    torch.Tensor.__mul__ = torch.Tensor.__rmul__ = None
    return y
"""


@pytest.mark.parametrize("kernel", [GOOD, SPOILS_TORCH])
def test_a_pin_that_can_not_be_run_is_alone(tmp_path: Path, kernel: str) -> None:
    """Its records say so; no other case, kernel or the reference is blamed for it, nor is it for
    what a kernel does to the process."""
    write_op(tmp_path, "dd", ("float32",), REFERENCE, {"dd_good": kernel, "dd_two": GOOD})
    path = tmp_path / "dd" / "op.toml"
    pins = [
        ("H = 100", "contiguous", "default"), ("H = 101", "contiguous", "default"),
        ("H = 5", "strided", "default"), (f"H = {2**39}", "contiguous", "default"),
        ("H = 6", "contiguous", "default"),
    ]  # fmt: skip
    text = path.read_text() + "".join(
        f'[[pinned]]\ndtype = "float32"\ndims = {{ B = 3, {h} }}\nprofile = "{profile}"\n'
        f'layout = "{layout}"\nseed = 1\nwhy = "so"\n'
        for h, layout, profile in pins
    )
    path.write_text(text)
    records = run(tmp_path, gate=1, explore=2)
    (op,) = corpus.load(tmp_path)
    assert len(records) == 2 * (1 + 5 + 2)
    raised = f"{op.reference_path}: reference() failed on B=3 H=100: ValueError: no such row "
    raised += "(reference.py:5)"
    expected = [
        ("skipped", f"PIN can't be run: {raised}"[:240]),
        ("crashed", "PIN: before any kernel ran: exit status 3"),
        ("skipped", "PIN: the layouts of op.toml lack strided"),
        ("skipped", "PIN: B=3 H=549755813888 needs FREE"),
        ("ok", ""),
    ]
    for name in ("dd_good", "dd_two") if kernel == GOOD else ("dd_two",):
        said = {r.case: (r.status, r.reason) for r in records if r.kernel == name}
        for pin, what in zip(op.pinned, expected, strict=True):
            status, reason = said.pop(pin)
            reason = reason.replace(f"pinned case {pin.id} ({pin.dims_text})", "PIN")
            assert (status, re.sub("needs .*", "needs FREE", reason)) == what
        assert set(said.values()) == {("ok", "")}


TELLS = """\
import torch

def run(x):
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    raise ValueError(f"{x.stride()} {x.storage_offset()} {whole.isnan().sum()}")
"""
SPOILS = """\
def run(x):
    y = x + x
    x.untyped_storage().fill_(1)
    return y
"""


def test_kernels_get_tensors_that_really_lie_so(tmp_path: Path) -> None:
    """Strides, offset and what lies around, though another kernel has written over its own."""
    write_op(tmp_path, "cc", kernels={"cc_spoils": SPOILS, "tells": TELLS, "z_good": GOOD})
    path = tmp_path / "cc" / "op.toml"
    text = path.read_text().replace("B = [1, 2, 3, 4]", "B = [3]")
    path.write_text(f"layouts = {list(LAYOUTS)}\n{text}")
    records = run(tmp_path, gate=6)
    said = {r.case.layout: r.reason.removeprefix("ValueError: ").removesuffix(" (tells.py:5)")
            for r in records if r.reason}  # fmt: skip
    assert said == {
        "contiguous": "(5, 1) 0 0", "transposed": "(1, 3) 0 0", "sliced": "(21, 1) 0 48",
        "strided": "(10, 2) 0 15", "expanded": "(0, 1) 0 10", "offset": "(5, 1) 1 17",
    }  # fmt: skip
    for record in records:
        if record.kernel != "tells":
            assert record.stats is not None
            assert (record.stats.max_abs, record.stats.nonfinite_mismatch) == (0, 0)
            assert record.stats.ref_max


# --- cases by their ids -----------------------------------------------------------------------


def test_every_gate_case_is_found(ops: tuple[Op, ...]) -> None:
    """Of each profile and each pin; explore cases are not."""
    asked = request(ops, gate=3, explore=2, profiles=("all",))
    for case in gate_of(asked)[::7]:
        assert measure.find_case(ops, case.id, 3) == case
    for case in (*ops[0].pinned, *gate_of(request(ops, gate=3))):
        assert measure.find_case(ops, case.id, 3) == case
    assert measure.find_case(ops, explore_of(asked)[0].id, 3) is None


def test_shards_of_other_plans_are_other_runs(ops: tuple[Op, ...]) -> None:
    """Profiles that are asked for, and what an op says of its cases, are in the run's name."""

    def name(ops: tuple[Op, ...], **changes: object) -> str:
        asked = request(ops, **{"shard": (1, 2), "seed": 3} | changes)
        return run_id(asked, [3], 0, "5e55", "c" * 40, "e1")

    aa, bb = ops
    others = [
        msgspec.structs.replace(aa, profiles=("default",)),
        msgspec.structs.replace(aa, layouts=("contiguous",)),
        msgspec.structs.replace(aa, pinned=aa.pinned[:1]),
        msgspec.structs.replace(aa, sizes={}),
    ]
    names = [name((op, bb)) for op in others]
    names += [name(ops), name(ops, profiles=("default",)), name(ops, profiles=("all",))]
    assert len(set(names)) == len(names)


# --- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "given", "expected"),
    [
        ("", None, ()),
        ('profile = "sparse"', None, ("sparse",)),
        ('profile = ["sparse", "huge"]', None, ("sparse", "huge")),
        ('profile = "sparse,huge"', ["default"], ("default",)),
        ("", ["tiny,huge", "all", "huge"], ("tiny", "huge", "all")),
        ("", [" tiny , ,huge"], ("tiny", "huge")),
        ("profile = []", None, ()),
    ],
)
def test_profiles_are_asked_for(
    table: str, given: list[str] | None, expected: tuple[str, ...],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By --profile, several times or with commas, else by [tool.tolcal]; else each op's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f"[tool.tolcal]\n{table}\n")
    assert config.load(argparse.Namespace(profile=given)).profiles == expected


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            'profile = ["default", "sparce"]',
            "unknown input profile 'sparce'; did you mean 'sparse'?",
        ),
        ('profile = ""', "no input profile is named; leave it out"),
    ],
)
def test_a_profile_of_the_settings_that_is_none(
    table: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says where it stands."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f"[tool.tolcal]\n{table}\n")
    with pytest.raises(TolcalError, match=re.escape(f"profile, under [tool.tolcal]: {says}")):
        config.load(argparse.Namespace())


def test_a_profile_that_is_excluded(ops: tuple[Op, ...]) -> None:
    """It is not said that another one lacks its sizes."""
    op = msgspec.structs.replace(ops[1], excluded_profiles=("huge", "tiny"))
    asked = request((op,), profiles=("huge", "large"))
    with pytest.raises(TolcalError) as caught:
        next(measure.measure(asked, Path()))
    assert str(caught.value) == (
        "--profile huge,large: bb has none of these, by `excluded_profiles` and [sizes.large] of "
        "its op.toml; ask for another profile"
    )


def test_the_plan_shows_profiles(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row each, with the sizes of their own; pinned cases have theirs, and who is not run on
    them another."""
    asked = ["run", "aa", "--plan", "--device", "cpu", "--corpus", str(root), "--dtype", "float32"]
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:9] == [
        "op  dtype    profile          dims           kernels  cases  records  shard",
        "aa  float32  default          B=1..4 H=5           1     36       36  1/1",
        "aa  float32  boundary         B=1..4 H=1..7        1      9        9  1/1",
        "aa  float32  sparse           B=1..4 H=2..4        1      9        9  1/1",
        "aa  float32  sorted, pinned   B=3 H=9              1      1        1  1/1",
        "aa  float32  default          B=2 H=6              1     36       36  1/1",
        "aa  float32  boundary         B=2 H=6              1      9        9  1/1",
        "aa  float32  sparse           B=2 H=6              1      9        9  1/1",
        "aa  float32  sorted, skipped  B=3 H=9              1      1        1  1/1",
    ]
    assert main([*asked, "--profile", "huge,tiny", "--profile", "large", "--gate", "2",
                 "--cases", "3"]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert {line.split()[2] for line in out.splitlines()[1:9]} == {
        "huge",
        "tiny",
        "sorted,",
        "large",
    }


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["bb", "--profile", "large"], "--profile large: no table [sizes.large] in op.toml of bb, "
         "so there is none; add one with the dims of large cases, or ask for another profile"),
        (["--profile", ""], "--profile: no input profile is named; leave it out for each op's "
         f"own, or name some of {', '.join(PROFILES)}, all"),
        (["--profile", " , "], "--profile: no input profile is named; leave it out for each op's "
         f"own, or name some of {', '.join(PROFILES)}, all"),
    ],
)  # fmt: skip
def test_no_profile_at_all(
    root: Path, argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that says what to ask for."""
    assert main(["run", "--device", "cpu", "--corpus", str(root), "--plan", *argv]) == 2
    assert capsys.readouterr().err == f"tolcal: {says}\n"


def test_too_many_records_of_many_profiles(ops: tuple[Op, ...], root: Path) -> None:
    """The limit counts them all, before anything is drawn."""
    asked = request(ops, gate=0, explore=200_000, profiles=("all",))
    with pytest.raises(TolcalError, match="16800000 records are asked for"):
        next(measure.measure(asked, root))


def test_the_page_lists_what_there_is() -> None:
    """Every profile and every layout has its row, in order, and none has two."""
    tables = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "inputs.md").read_text(), re.MULTILINE)
    assert tables == [*PROFILES, *LAYOUTS]
