"""The runner: whatever a kernel does becomes a record, and the run goes on."""

from __future__ import annotations

import contextlib
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from measure_support import GOOD, of, request, run, without_run, write_op

from tolcal import cases, corpus, measure
from tolcal.measure import git_root, git_state, process
from tolcal.measure.units import plan, run_seeds
from tolcal.model import PROFILES, Record, Run, TolcalError

#: Controls of the zoo by name; those that misbehave do so on the case with B = 2 at most.
ZOO = {
    # Comes first, so that whatever it did to the inputs would reach all others.
    "a_mutates": "def run(x):\n    y = x * 2\n    x.zero_()\n    return y\n",
    "aa_good": GOOD,  # right behind it: in the same worker on every case
    "b_raises": 'def run(x):\n    raise ValueError("no\\nsuch luck \\x1b[31m")\n',
    "c_exits": "import sys\ndef run(x):\n    sys.exit(3)\n",
    "d_shape": "def run(x):\n    return (x + x).T.contiguous()\n",
    "e_dtype": "def run(x):\n    return (x + x).double()\n",
    "f_list": "def run(x):\n    return [x + x]\n",
    "g_import": "import no_such_module_of_ours\n" + GOOD,
    "h_segfault": (
        "import ctypes\nimport torch\n"
        "def run(x):\n    return torch.tensor(ctypes.string_at(0))\n"
    ),
    "i_vanishes": (
        "import os\n"
        "def run(x):\n    if x.shape[0] == 2:\n        os._exit(9)\n    return x + x\n"
    ),
    "j_hangs": (
        "def run(x):\n    while x.shape[0] == 2:\n        pass\n    return x + x\n"
    ),
    "k_unwritten": (
        "import torch\n"
        "def run(x):\n    y = torch.empty_like(x)\n    y[:, 1:] = 2 * x[:, 1:]\n    return y\n"
    ),
    "k_sparse": "def run(x):\n    return (x + x).to_sparse()\n",
    "l_no_run": "def walk(x):\n    return x + x\n",
    "m_exits_at_import": "raise SystemExit('not here')\n",
    "z_good": GOOD,
}  # fmt: skip
BUGGY = {
    "wrong": "def run(x):\n    return 3 * x\n",
    "harmless": "def run(x):\n    return 2 * x\n",
    "sometimes": "def run(x):\n    return 3 * x if x.shape[0] == 3 else 2 * x\n",
    "of_crash": GOOD,
}
# --- the zoo: one run of kernels that misbehave in every way ---------------------------------


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Four cases, B = 1, 2, 3 and 4 in some order, of every kernel of the zoo, by one worker."""
    root = tmp_path_factory.mktemp("zoo")
    write_op(root, kernels=ZOO, buggy=BUGGY)
    return run(root, gate=4, timeout=3.0)


def test_every_kernel_has_a_record_of_every_case(zoo: list[Record]) -> None:
    """The run goes on after every failure: each kernel has one record a case, in plan order."""
    order = list(dict.fromkeys(r.case.id for r in zoo))
    kernels = sorted(ZOO) + sorted(BUGGY)
    assert [(r.case.id, r.kernel) for r in zoo] == [(c, k) for c in order for k in kernels]
    assert len(order) == 4


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("b_raises", "ValueError: no such luck [31m (b_raises.py:2)"),
        ("c_exits", "SystemExit: 3 (c_exits.py:3)"),
        ("d_shape", "ValueError: run() returned shape [5, {B}], [{B}, 5] expected by op.toml"),
        ("e_dtype", "ValueError: run() returned torch.float64, torch.float32 expected"),
        ("f_list", "TypeError: run() returned list, a tensor expected"),
        (
            "g_import",
            "at import: ModuleNotFoundError: No module named 'no_such_module_of_ours' "
            "(g_import.py:1)",
        ),
        ("k_sparse", "ValueError: run() returned a torch.sparse_coo tensor, a dense one expected"),
        ("l_no_run", "at import: TypeError: l_no_run.py has no function run()"),
        ("m_exits_at_import", "at import: SystemExit: not here (m_exits_at_import.py:1)"),
    ],
)
def test_failure_is_a_record(zoo: list[Record], kernel: str, reason: str) -> None:
    """What a kernel raises is the printable one-line reason of a crashed record."""
    for size, record in of(zoo, kernel).items():
        assert (record.status, record.stats) == ("crashed", None)
        assert record.reason == reason.replace("{B}", str(size))


def test_segfault_costs_its_own_cases(zoo: list[Record]) -> None:
    """A segfault is a crashed record that names the signal; after three it is not tried again."""
    reasons = Counter(r.reason for r in of(zoo, "h_segfault").values())
    assert reasons == {"SIGSEGV": 3, "not run, after 3 lost workers: SIGSEGV": 1}
    assert {r.status for r in of(zoo, "h_segfault").values()} == {"crashed"}


def test_vanishing_worker_costs_one_case(zoo: list[Record]) -> None:
    """os._exit() in a kernel is a crashed record with the exit status; its other cases are ok."""
    records = of(zoo, "i_vanishes")
    assert (records[2].status, records[2].reason) == ("crashed", "exit status 9")
    assert {size: r.status for size, r in records.items() if size != 2} == dict.fromkeys(
        (1, 3, 4), "ok"
    )


def test_a_control_that_takes_its_worker_with_it_costs_its_own_records(tmp_path: Path) -> None:
    """A buggy kernel is measured all the same; that it differs from that control is unknown."""
    vanishes = (
        "import os\ndef run(x):\n    if x.shape[0] == 2:\n        os._exit(9)\n    return x\n"
    )
    write_op(
        tmp_path, kernels={"z_good": vanishes}, buggy={"wrong": "def run(x):\n    return 3 * x\n"}
    )
    records = run(tmp_path, gate=4)
    assert of(records, "z_good")[2].status == "crashed"
    wrong = of(records, "wrong")
    assert {r.status for r in wrong.values()} == {"ok"}
    assert {size: r.same_as_control for size, r in wrong.items()} == {
        1: False, 2: None, 3: False, 4: False,
    }  # fmt: skip


def test_a_crash_says_where(tmp_path: Path) -> None:
    """The innermost line of a file beside the kernel, which its own local import may be."""
    kernels = {
        "_beside": "def half(x):\n    return x.foo\n",
        "a_own": "import torch\n\ndef run(x):\n    return torch.empty(-1)\n",
        "b_other": "from _beside import half\ndef run(x):\n    return half(x)\n",
        "c_import": "\n\nimport torchh\n",
        "d_long": "def run(x):\n    raise ValueError('x' * 999)\n",
    }
    write_op(tmp_path, kernels=kernels)
    reasons = {r.kernel: r.reason for r in run(tmp_path)}
    assert reasons["a_own"].endswith(" (a_own.py:4)")
    assert (
        reasons["b_other"]
        == "AttributeError: 'Tensor' object has no attribute 'foo' (_beside.py:2)"
    )
    assert reasons["c_import"] == (
        "at import: ModuleNotFoundError: No module named 'torchh' (c_import.py:3)"
    )
    assert reasons["d_long"].endswith("xxx… (d_long.py:2)")


def test_hang_costs_one_case(zoo: list[Record]) -> None:
    """An endless loop is a timeout record that names the limit; its other cases are ok."""
    records = of(zoo, "j_hangs")
    assert (records[2].status, records[2].reason) == ("timeout", "no result within 3 s")
    assert {size: r.status for size, r in records.items() if size != 2} == dict.fromkeys(
        (1, 3, 4), "ok"
    )


def test_unwritten_output_is_caught(zoo: list[Record]) -> None:
    """An element of torch.empty that a kernel never writes counts as a non-finite mismatch."""
    for size, record in of(zoo, "k_unwritten").items():
        assert record.status == "ok"
        assert record.stats is not None
        assert record.stats.nonfinite_mismatch == size
        assert record.stats.residual_max == float("inf")


def test_modified_input_disturbs_nobody(zoo: list[Record]) -> None:
    """A kernel that zeroes its input does it to its own copy: all others stay exact."""
    for kernel in ("a_mutates", "aa_good", "z_good"):
        for record in of(zoo, kernel).values():
            assert record.stats is not None
            assert (record.stats.max_abs, record.stats.residual_max) == (0.0, 0.0)
            assert record.stats.ref_max is not None
            assert record.stats.ref_max > 0.0
    for size in (1, 2, 3, 4):
        hashes = {r.input_hash for r in zoo if dict(r.case.dims)["B"] == size} - {""}
        assert len(hashes) == 1


def test_same_as_control(zoo: list[Record]) -> None:
    """A buggy record says whether its output equals its control's on that case; others don't."""
    assert {r.same_as_control for r in of(zoo, "wrong").values()} == {False}
    assert {r.same_as_control for r in of(zoo, "harmless").values()} == {True}
    sometimes = {size: r.same_as_control for size, r in of(zoo, "sometimes").items()}
    assert sometimes == {1: True, 2: True, 3: False, 4: True}
    # Its control crashed, so nothing is known.
    assert {r.same_as_control for r in of(zoo, "of_crash").values()} == {None}
    assert {r.same_as_control for r in zoo if r.role == "control"} == {None}


def test_records_carry_their_provenance(zoo: list[Record]) -> None:
    """A record holds role, control, hashes, roundoff, case set and the environment of its run."""
    record = of(zoo, "wrong")[1]
    assert (record.role, record.corrupts, record.case_set) == ("buggy", "z_good", "gate")
    assert record.roundoff == 2.0**-24
    assert all(map(len, (record.kernel_hash, record.reference_hash, record.op_hash)))
    assert record.kernel_hash != of(zoo, "z_good")[1].kernel_hash
    environment = record.run.environment
    assert (environment.device_class, environment.vendor) == ("cpu", "cpu")
    assert "interpreter" in environment.switches
    assert len({r.run for r in zoo}) == 1


# --- several units --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ops of two dtypes, so four units, in one of which a kernel raises."""
    root = tmp_path_factory.mktemp("pair")
    write_op(root, "double", ("float32", "float16"), buggy=None)
    write_op(
        root, "twofold", ("float32", "float16"), kernels={"bad": "def run(x):\n    1 / 0\n",
                                                          "fine": GOOD},
    )  # fmt: skip
    return root


@pytest.fixture(scope="module")
def seeded(pair: Path) -> list[Record]:
    """The pair, two gate and three explore cases of seed 5, by one worker."""
    return run(pair, gate=2, explore=3, seed=5, workers=1)


@pytest.fixture(scope="module")
def fresh(pair: Path) -> list[Record]:
    """The same without a seed."""
    return run(pair, gate=2, explore=3, workers=2)


def test_workers_do_not_show(pair: Path, seeded: list[Record]) -> None:
    """With the same seed, one worker and two give the same records in the same order."""
    two = run(pair, gate=2, explore=3, seed=5, workers=2)
    assert [without_run(r) for r in two] == [without_run(r) for r in seeded]
    assert {r.run.session for r in two}.isdisjoint(r.run.session for r in seeded)
    assert {r.run.id for r in two}.isdisjoint(r.run.id for r in seeded)


def test_order_is_op_dtype_case_kernel(seeded: list[Record]) -> None:
    """Records come by op, dtype as in op.toml, case (gate first) and kernel."""
    units = list(dict.fromkeys((r.case.op, r.case.dtype) for r in seeded))
    assert units == [
        ("double", "float32"), ("double", "float16"), ("twofold", "float32"),
        ("twofold", "float16"),
    ]  # fmt: skip
    twofold = [r for r in seeded if (r.case.op, r.case.dtype) == units[2]]
    assert [r.case_set for r in twofold] == ["gate"] * 4 + ["explore"] * 6
    assert [r.kernel for r in twofold] == ["bad", "fine"] * 5


def test_gate_cases_are_the_same_in_every_run(seeded: list[Record], fresh: list[Record]) -> None:
    """Gate cases and their input bytes never change; explore cases without a seed are fresh."""

    def cases(records: list[Record], case_set: str) -> list[tuple[str, str]]:
        return [(r.case.id, r.input_hash) for r in records if r.case_set == case_set]

    assert cases(seeded, "gate") == cases(fresh, "gate")
    assert len(cases(seeded, "gate")) == 12
    assert set(cases(seeded, "explore")).isdisjoint(cases(fresh, "explore"))
    assert len(cases(seeded, "explore")) == len(cases(fresh, "explore")) == 18
    assert {r.run.seed for r in seeded} == {5}
    assert {r.run.seed for r in fresh} != {5}


def test_every_size_is_met(pair: Path) -> None:
    """A handful of cases already meets every size of every dim, each equally often."""
    (first, *_) = plan(request(corpus.load(pair), gate=8), [1])
    assert Counter(dict(c.dims)["B"] for c in first.unit.cases) == {1: 2, 2: 2, 3: 2, 4: 2}


def test_repeat_gives_distinct_runs(tmp_path: Path) -> None:
    """repeat=3 yields three Runs of one session with ids and seeds of their own."""
    write_op(tmp_path)
    progress: list[measure.Step] = []
    ops = corpus.load(tmp_path)
    values = list(
        measure.measure(
            request(ops, repeat=3, gate=1, explore=2), tmp_path,
            progress.append,
        )
    )  # fmt: skip
    runs = [v for v in values if isinstance(v, Run)]
    records = [v for v in values if isinstance(v, Record)]
    assert len({r.id for r in runs}) == len({r.seed for r in runs}) == len(runs) == 3
    assert len({r.session for r in runs}) == 1
    assert [r.run for r in records] == [run for run in runs for _ in range(3)]
    assert isinstance(values[0], Run)
    assert len({r.case.id for r in records if r.case_set == "explore"}) == 6
    assert len({r.case.id for r in records if r.case_set == "gate"}) == 1
    assert progress == [(n, 9, "double", n, 9) for n in range(1, 10)]


def test_progress_is_of_records_and_not_of_units(tmp_path: Path) -> None:
    """Each counts when it is measured, though an op and dtype is believed, and written, as one."""
    write_op(tmp_path, dtypes=("float32", "float16"))
    steps: list[measure.Step] = []
    asked = request(corpus.load(tmp_path), gate=0, explore=5, workers=1)
    with contextlib.closing(measure.measure(asked, tmp_path, steps.append)) as values:
        next(values)  # the run, when its first unit is complete
        assert [step.done for step in steps[:5]] == [1, 2, 3, 4, 5]
        assert {(step.total, step.op_total) for step in steps} == {(10, 10)}
        list(values)
    assert [step.done for step in steps] == list(range(1, 11))


def test_seeds_of_repeated_runs_follow_from_the_seed() -> None:
    """The same seed and repeat name the same runs' cases; one run uses the seed itself."""
    one, many = request((), seed=7), request((), seed=7, repeat=4)
    assert run_seeds(one) == [7]
    assert run_seeds(many) == run_seeds(many)
    assert len(set(run_seeds(many))) == 4
    assert run_seeds(request((), repeat=2)) != run_seeds(request((), repeat=2))


def test_raised_tolcal_error_is_a_record(tmp_path: Path) -> None:
    """Exceptions that mean something to us mean nothing when a kernel raises them."""
    raising = "from tolcal.model import TolcalError\ndef run(x):\n    raise {}\n"
    kernels = {
        "a": raising.replace("{}", "TolcalError('stop')"),
        "b": raising.replace("{}", "BrokenPipeError(1, 'x')"),
        "c": GOOD,
    }
    write_op(tmp_path, kernels=kernels)
    records = run(tmp_path)
    assert [r.status for r in records] == ["crashed", "crashed", "ok"]
    assert [r.reason for r in records] == [
        "TolcalError: stop (a.py:3)",
        "BrokenPipeError: [Errno 1] x (b.py:3)",
        "",
    ]


def test_bfloat16_triton_is_skipped_on_a_cpu(tmp_path: Path) -> None:
    """The interpreter can't round bfloat16: such a Triton kernel is skipped, plain torch runs."""
    pytest.importorskip("triton")
    kernel = (
        "import torch\nimport triton\nimport triton.language as tl\n\n"
        "@triton.jit\n"
        "def k(x, y, n, BLOCK: tl.constexpr):\n"
        "    i = tl.arange(0, BLOCK)\n"
        "    v = tl.load(x + i, mask=i < n, other=0.0)\n"
        "    tl.store(y + i, v + v, mask=i < n)\n\n"
        "def run(x):\n"
        "    y = torch.empty_like(x)\n"
        "    k[(1,)](x, y, x.numel(), BLOCK=32)\n"
        "    return y\n"
    )
    write_op(tmp_path, "d", ("float32", "bfloat16"), kernels={"d_triton": kernel, "d_torch": GOOD})
    records = {(r.kernel, r.case.dtype): r for r in run(tmp_path)}
    skipped = records.pop(("d_triton", "bfloat16"))
    assert (skipped.status, skipped.reason) == (
        "skipped", "the Triton interpreter does not round bfloat16 as hardware does",
    )  # fmt: skip
    assert {r.status for r in records.values()} == {"ok"}
    for record in records.values():
        assert record.stats is not None
        assert record.stats.max_abs == 0.0


def test_replay_gives_the_same_record(pair: Path, seeded: list[Record]) -> None:
    """Replaying a case gives the very numbers and input bytes of its record."""
    old = next(r for r in seeded if r.kernel == "double_good" and r.case_set == "explore")
    ops = corpus.select(corpus.load(pair), ["double"])
    values = list(measure.replay(request(ops), old.case, pair))
    (new,) = [v for v in values if isinstance(v, Record)]
    assert (new.case, new.stats, new.input_hash) == (old.case, old.stats, old.input_hash)


def test_find_case_knows_the_gate_set(pair: Path, seeded: list[Record]) -> None:
    """A gate case is found by its id without any record of it, an explore case is not."""
    ops = corpus.load(pair)
    gate = next(r.case for r in seeded if r.case_set == "gate")
    explore = next(r.case for r in seeded if r.case_set == "explore")
    assert measure.find_case(ops, gate.id, 2) == gate
    assert measure.find_case(ops, explore.id, 2) is None


# --- what the user can mend -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (
            "def reference(x):\n    raise ValueError('not today')\n",
            "reference() failed on B={B} H=5: ValueError: not today (reference.py:2)",
        ),
        (
            "def reference(x):\n    return 2 * x[:, 1:]\n",
            "reference() returned torch.float64 [{B}, 4] for B={B} H=5, expected torch.float64 "
            "[{B}, 5] as op.toml's [output] says",
        ),
        (
            "def reference(x):\n    return (2 * x).float()\n",
            "reference() returned torch.float32 [{B}, 5] for B={B} H=5, expected torch.float64 "
            "[{B}, 5] as op.toml's [output] says",
        ),
        ("def ref(x):\n    return 2 * x\n", "TypeError: reference.py has no function reference()"),
        (
            "def reference(x):\n    exit()\n",
            "reference() failed on B={B} H=5: SystemExit: 0 (reference.py:2)",
        ),
    ],
    ids=["raises", "shape", "dtype", "name", "exits"],
)
def test_bad_reference(tmp_path: Path, reference: str, expected: str) -> None:
    """A reference that fails or breaks the contract ends the run in one line that names it."""
    write_op(tmp_path, reference=reference)
    (first,) = plan(request(corpus.load(tmp_path)), [1])
    size = str(dict(first.unit.cases[0].dims)["B"])
    with pytest.raises(TolcalError) as caught:
        run(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/double/reference.py: " + expected.replace("{B}", size)
    )


def test_reference_that_dies_does_not_spin(tmp_path: Path) -> None:
    """Workers that die in the reference end the run in one line instead of dying for ever."""
    write_op(tmp_path, reference="import os\n\ndef reference(x):\n    os._exit(5)\n")
    with pytest.raises(TolcalError) as caught:
        run(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/double/reference.py: workers die before any kernel runs (exit status 5); "
        "check the reference, memory and driver"
    )


@pytest.mark.parametrize("changes", [{"gate": 0}, {"dtypes": ("float64",)}, {"ops": ()}])
def test_nothing_selected(pair: Path, changes: dict[str, Any]) -> None:
    """A selection that leaves nothing to measure is one line that says where to look."""
    asked = request(**{"ops": corpus.load(pair)} | changes)
    with pytest.raises(TolcalError) as caught:
        list(measure.measure(asked, pair))
    assert str(caught.value) == (
        "nothing to measure: no kernel, dtype and case is left by the selection; check OP, "
        "--dtype and --cases"
    )


def test_unknown_profile(pair: Path) -> None:
    """An unknown input profile is one line that lists the known ones."""
    with pytest.raises(
        TolcalError, match=r"^unknown input profile 'wild'; known: default, .* all$"
    ):
        run(pair, profiles=("wild",))


def test_cuda_without_gpu(pair: Path) -> None:
    """--device cuda without a GPU is one line that says what to install or use instead."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(TolcalError) as caught:
        run(pair, device="cuda")
    assert str(caught.value) == (
        f"--device cuda: torch {torch.__version__} sees no GPU; install torch's CUDA or ROCm "
        "build on a machine with one, or use --device cpu (Triton's interpreter)"
    )


def test_auto_without_a_gpu_interprets(pair: Path) -> None:
    """Where there is no GPU, `auto` is `cpu`: the same environment, Triton's interpreter in it."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    auto, cpu = (run(pair, device=device)[0].run.environment for device in ("auto", "cpu"))
    assert auto == cpu
    assert "interpreter" in auto.switches


def test_stopping_early_leaves_no_worker(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the iterator ends the workers: a run that is interrupted leaves nobody behind."""
    started: list[Any] = []
    init = process.Process.__init__

    def recording(self: Any, *args: Any) -> None:
        init(self, *args)
        started.append(self.child)

    monkeypatch.setattr(process.Process, "__init__", recording)
    values = measure.measure(request(corpus.load(pair)), pair)
    next(values)
    assert [process.poll() for process in started] == [None]
    values.close()
    assert [process.poll() for process in started] == [-9]


# --- git ------------------------------------------------------------------------------------


def test_git_root(tmp_path: Path) -> None:
    """The top of the work tree, from any folder in it; none outside."""
    assert git_root(tmp_path) is None
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a" / "b").mkdir(parents=True)
    found = git_root(tmp_path / "a" / "b")
    assert found is not None
    assert found.samefile(tmp_path)


def test_git_state_outside_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside git the commit is the runner's GITHUB_SHA if that is one, else unknown."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("GITHUB_SHA", "a" * 40)
    assert git_state(tmp_path) == ("a" * 40, False)
    monkeypatch.setenv("GITHUB_SHA", "$(id)")
    assert git_state(tmp_path) == ("", False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) == ("", False)


# --- what an attack once got past -------------------------------------------------------------


def test_helpers_of_the_same_name_stay_apart(tmp_path: Path) -> None:
    """Two ops with a `_common.py` each: every kernel imports its own."""
    for name, factor in (("aa", 2), ("bb", 2)):
        write_op(tmp_path, name, kernels={f"{name}_good": "from _common import f as run\n"})
        body = "x + x" if name == "aa" else f"{factor} * x"
        (tmp_path / name / "kernels" / "_common.py").write_text(
            f"OWNER = {name!r}\ndef f(x):\n    assert OWNER == {name!r}\n    return {body}\n"
        )
    (tmp_path / "bb" / "kernels" / "_common.py").write_text("def f(x):\n    return x - x\n")
    good, wrong = run(tmp_path)
    assert good.stats is not None
    assert wrong.stats is not None
    assert good.stats.max_abs == 0.0
    assert wrong.stats.max_abs > 0.0


def test_a_reference_that_writes_to_its_input_is_refused(tmp_path: Path) -> None:
    """Its sigma would excuse anything, so the run ends in words."""
    write_op(tmp_path, reference="def reference(x):\n    x.mul_(2)\n    return x.clone()\n")
    with pytest.raises(TolcalError, match=r"reference\(\) changes its input 'x'"):
        run(tmp_path)


def test_a_kernel_that_forks_is_one_record(tmp_path: Path) -> None:
    """The child does not report beside its parent."""
    forking = "import os\ndef run(x):\n    os.fork()\n    return x + x\n"
    write_op(tmp_path, kernels={"a_forks": forking, "b_good": GOOD})
    assert [(r.kernel, r.status) for r in run(tmp_path, gate=2)] == [
        ("a_forks", "ok"), ("b_good", "ok"), ("a_forks", "ok"), ("b_good", "ok"),
    ]  # fmt: skip


def test_a_kernel_that_changes_the_folder_disturbs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files named relative to where the run began are still found."""
    away = "import os\ndef run(x):\n    os.chdir('/')\n    return x + x\n"
    write_op(tmp_path / "c", "aa", kernels={"aa_goes": away})
    write_op(tmp_path / "c", "bb", kernels={"bb_good": GOOD})
    monkeypatch.chdir(tmp_path)
    assert {r.status for r in run(Path("c"))} == {"ok"}


SETS = """\
import torch
torch.set_default_dtype(torch.float64)
torch.set_default_device("meta")
torch.set_float32_matmul_precision("high")
torch.set_flush_denormal(True)
def run(x):
    # As it left them at its import, and in its last launch.
    assert torch.tensor(1.0).dtype == torch.float64 and torch.empty(1).is_meta
    assert torch.get_float32_matmul_precision() == "high"
    assert float(x[0, 0]) * 0 == 5e-324 * float(1)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(2)
    return x + x
"""
FINDS = """\
import torch
def {name}(x):
    assert torch.tensor(1.0).dtype == torch.float32
    assert torch.tensor(1.0).device.type == "cpu"
    assert torch.get_float32_matmul_precision() == "highest"
    assert 5e-324 * float(1) != 0
    assert not torch.is_grad_enabled() and torch.get_num_threads() == 1
    assert not torch.are_deterministic_algorithms_enabled()
    return x + x
"""


def test_a_kernel_that_sets_torch_up_otherwise_disturbs_nobody(tmp_path: Path) -> None:
    """Neither the reference nor other kernels find what one set, which finds it itself."""
    kernels = {"a_sets": SETS, "b_finds": FINDS.format(name="run")}
    write_op(tmp_path, kernels=kernels, reference=FINDS.format(name="reference"))
    records = run(tmp_path, gate=3)
    assert {(r.kernel, r.status, r.reason) for r in records} == {
        ("a_sets", "ok", ""), ("b_finds", "ok", ""),
    }  # fmt: skip
    assert not any(r.checks and r.checks.failed for r in records)


def test_a_forged_report_does_not_end_the_run(tmp_path: Path) -> None:
    """A kernel that writes to the worker's pipe is `crashed`, and the others still run."""
    forger = (
        "import sys\nfrom tolcal.measure import wire\n"
        "def run(x):\n    wire.write_frame(int(sys.argv[2]), wire.Finished())\n"
        "    return x + x\n"
    )
    write_op(tmp_path, kernels={"a_forges": forger, "b_good": GOOD})
    records = run(tmp_path)
    assert [(r.kernel, r.status) for r in records] == [("a_forges", "crashed"), ("b_good", "ok")]
    assert records[0].reason == "the worker's reports were tampered with"


def test_too_many_records_are_refused_before_any_work(tmp_path: Path) -> None:
    """A slip of the finger in --cases is one line at once."""
    write_op(tmp_path)
    with pytest.raises(TolcalError, match="at most 5000000 in one go"):
        run(tmp_path, explore=1_000_000, repeat=100)


def test_no_bias_of_few_different_values(tmp_path: Path) -> None:
    """Nothing is judged by bias in a profile whose errors are the rounding of a few values."""
    write_op(tmp_path, kernels={"double_good": "def run(x):\n    return x * 1.9999\n"})
    records = run(tmp_path, gate=4, profiles=("all",))
    stats = {(r.case.profile, r.id): r.stats for r in records}
    assert {profile for profile, _ in stats} == set(PROFILES) - {"large"}
    for (profile, _), found in stats.items():
        assert found is not None
        if profile in cases.OF_FEW:
            assert (found.bias, found.bias_count) == (0.0, 0)
    counted = {profile for (profile, _), found in stats.items() if found and found.bias_count}
    assert {"default", "normal", "sorted"} <= counted
