"""What only a GPU can show. Run as tests/gpu/README.md says; its JUnit file is committed."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import input_bytes
import msgspec
import pytest
from tests_support import CORPUS, ROOT

from tolcal import bounds, cases, compare, corpus, measure, tolerances
from tolcal.model import DTYPES, LAYOUTS, PROFILES, Case, InputSpec, Record, Run

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


def values(gate: int, explore: int, workers: int = 8, ops: tuple[str, ...] = ()) -> list[Record]:
    """Records of the corpus on the GPU."""
    request = measure.Request(
        ops=corpus.select(corpus.load(CORPUS), ops),
        dtypes=(),
        device="cuda",
        gate=gate,
        explore=explore,
        workers=workers,
    )
    return [v for v in measure.measure(request, CORPUS) if isinstance(v, Record)]


@functools.cache
def corpus_run() -> list[Record]:
    """12 gate and 12 explore cases of every kernel and dtype."""
    return values(12, 12)


def test_every_kernel_runs_in_every_dtype() -> None:
    """70 kernels, three dtypes, 24 cases and 6 of each further profile: every record is ok."""
    sizes = [24 + 6 * (len(op.profiles) - 1) for op in corpus.load(CORPUS) for _ in op.kernels]
    assert len(sizes) == 70
    assert len(corpus_run()) == 3 * sum(sizes)
    assert {r.status for r in corpus_run()} == {"ok"}


def test_controls_pass_and_buggy_kernels_are_caught() -> None:
    """Under the shipped tolerances, on cases that no fit has seen, or by a check of gate cases.

    A subtle one may escape, and so may sums in any order: test_oracle.py has what shows those.
    """
    may_escape = {k.name for op in corpus.load(CORPUS) for k in op.kernels if k.subtle}
    may_escape.add("rmsnorm_weight_grad_atomic_buggy")
    approved = tolerances.read(ROOT / "tolerances.toml")
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for record in corpus_run():
        key = (record.case.op, record.case.dtype, record.kernel, record.role)
        groups.setdefault(key, []).append(record)
    for (op, dtype, kernel, role), records in groups.items():
        judged = [r for r in records if r.stats is not None and r.stats.count]
        flagged = bounds.exceeds(compare.judged(judged), approved[op, dtype])
        failed = [r.id for r in records if r.checks is not None and r.checks.failed]
        if kernel not in may_escape:
            assert (flagged.any() or failed != []) == (role == "buggy"), (kernel, dtype)


def test_num_exceeding_agrees_with_the_envelope() -> None:
    """What the device counts against a tolerance is what the record's envelope says later."""
    approved = tolerances.read(ROOT / "tolerances.toml")
    request = measure.Request(
        ops=corpus.select(corpus.load(CORPUS), ["softmax", "matmul", "gelu"]),
        dtypes=(), device="cuda", gate=12, explore=0, limits=approved,
    )  # fmt: skip
    for record in measure.measure(request, CORPUS):
        if isinstance(record, Run):
            continue
        assert record.stats is not None
        tolerance = approved[record.case.op, record.case.dtype]
        rows = compare.judged([record])
        over = bounds.at(rows.envelope, rows.z, tolerance.scaled_tol)[0] > tolerance.atol
        counted = (record.stats.num_exceeding or 0) > 0
        assert counted <= over, record.id  # between grid points the envelope overstates
        if not over:
            assert not counted


def test_the_same_seeds_give_the_same_records() -> None:
    """Bit for bit, whatever the number of workers."""
    ops = ("softmax", "matmul", "flash_attention", "layernorm")
    first, second = values(6, 0, 1, ops), values(6, 0, 6, ops)
    assert [(r.id, r.case.dtype, r.input_hash, r.stats) for r in first] == [
        (r.id, r.case.dtype, r.input_hash, r.stats) for r in second
    ]


def test_bulk_gives_what_care_gives() -> None:
    """Kernels launched many at a time give the records of kernels waited for one by one."""
    from tolcal.measure import wire
    from tolcal.measure.units import plan
    from tolcal.measure.worker import Worker

    request = measure.Request(
        ops=corpus.select(corpus.load(CORPUS), ["softmax", "gelu"]), dtypes=("float16",),
        device="cuda", gate=6, explore=0, profiles=("default",),
    )  # fmt: skip
    found: dict[bool, list[wire.Measured]] = {}
    torch.set_grad_enabled(False)
    for careful in (False, True):
        messages: list[wire.Message] = []
        worker = Worker(torch.device("cuda", 0), messages.append)
        for planned in plan(request, [1]):
            worker.unit(msgspec.structs.replace(planned.unit, careful=careful))
        found[careful] = [m for m in messages if isinstance(m, wire.Measured)]
    assert len(found[True]) == 6 * sum(len(op.kernels) for op in request.ops)
    assert found[False] == found[True]


def test_all_gpus_give_the_records_of_one() -> None:
    """Bit for bit, however many GPUs share the work; the run names each of them."""
    count = torch.cuda.device_count()
    found = []
    for device in ("cuda:0", "cuda"):
        request = measure.Request(
            ops=corpus.select(corpus.load(CORPUS), ("softmax", "matmul", "l2norm")),
            dtypes=(), device=device, gate=12, explore=0, workers=2 * count,
        )  # fmt: skip
        found.append(list(measure.measure(request, CORPUS)))
    records = [
        [(r.id, r.case.dtype, r.input_hash, r.stats) for r in values if isinstance(r, Record)]
        for values in found
    ]
    assert records[0]
    assert records[0] == records[1]
    runs = [[v for v in values if isinstance(v, Run)] for values in found]
    assert [len(run[0].device_uuid.split(",")) for run in runs] == [1, count]


def test_inputs_on_the_gpu_are_those_on_the_cpu() -> None:
    """Inputs drawn there are the frozen ones, and numpy's, of every profile, layout and dtype."""
    from tolcal.measure import device  # needs a Triton that compiles

    golden = input_bytes.golden()
    for name, op, case in input_bytes.frozen():
        drawn, _, sums = device.draw(op, case, torch.device("cuda"))
        assert input_bytes.of_tensors(drawn) == golden[name], name
        assert cases.input_hash(sums.tolist()) == golden[name]["input_hash"], name
    ops = {op.name: op for op in corpus.load(CORPUS)}
    for record in corpus_run()[::37]:
        if record.case.dtype in ("float32", "float16", "bfloat16"):
            arrays = cases.inputs_numpy(ops[record.case.op], record.case)
            assert record.input_hash == cases.input_hash_numpy(arrays), record.id
    mixed = msgspec.structs.replace(
        ops["matmul"],
        inputs={
            "x": InputSpec(("M", "K")), "half": InputSpec(("K/4",), dtype="float16"),
            "gain": InputSpec(("K", "N"), 0.5, 2.0, steady=True),
            "label": InputSpec(("M",), dtype="int64", below="K"),
        },
    )  # fmt: skip
    dims = (("M", 3), ("K", 1037), ("N", 2))
    for profile, layout, dtype in itertools.product(PROFILES, LAYOUTS, DTYPES):
        for seed in range(16 if profile == "adversarial" else 1):
            case = Case("matmul", dtype, dims, profile, layout, seed)
            arrays = cases.inputs_numpy(mixed, case)
            inputs, _, sums = device.draw(mixed, case, torch.device("cuda", 0))
            assert cases.input_hash(sums.tolist()) == cases.input_hash_numpy(arrays), case
            assert cases.input_hash_torch(inputs) == cases.input_hash_numpy(arrays), case


def test_a_faulting_kernel_costs_its_own_case(tmp_path: Path) -> None:
    """An illegal address poisons the CUDA context: the worker is replaced, the rest still runs."""
    folder = tmp_path / "fault"
    (folder / "kernels").mkdir(parents=True)
    (folder / "op.toml").write_text(
        'summary = "y = x"\ndtypes = ["float32"]\n[dims]\nH = [4, 8]\n'
        '[inputs.x]\nshape = ["H"]\n[output]\nshape = ["H"]\n'
    )
    (folder / "reference.py").write_text("def reference(x):\n    return x.clone()\n")
    (folder / "kernels" / "a_good.py").write_text("def run(x):\n    return x.clone()\n")
    (folder / "kernels" / "b_wild.py").write_text(
        "import torch, triton\nimport triton.language as tl\n"
        "@triton.jit\ndef wild(x, y, OFFSET: tl.constexpr):\n"
        "    tl.store(y + OFFSET, tl.load(x + OFFSET))\n"
        "def run(x):\n    y = torch.empty_like(x)\n"
        "    wild[(1,)](x, y, OFFSET=1 << 44)\n    return y\n"
    )
    (folder / "kernels" / "c_good.py").write_text("def run(x):\n    return x.clone()\n")
    request = measure.Request(
        ops=corpus.load(tmp_path), dtypes=(), device="cuda", gate=0, explore=3, workers=1
    )
    records = [v for v in measure.measure(request, tmp_path) if isinstance(v, Record)]
    assert [(r.kernel, r.status) for r in records] == [
        ("a_good", "ok"), ("b_wild", "crashed"), ("c_good", "ok"),
    ] * 3  # fmt: skip
    assert "illegal memory access" in records[1].reason


WILD = (
    "import torch, triton\nimport triton.language as tl\n"
    "@triton.jit\ndef spin(flag):\n"
    "    while tl.load(flag, volatile=True) == 0:\n        pass\n"
    "def run(x):\n    flag = torch.zeros(1, dtype=torch.int32, device=x.device)\n"
    "    spin[(1,)](flag)\n    return x.clone()\n"
)


def test_a_kernel_that_never_ends_costs_its_own_cases(tmp_path: Path) -> None:
    """Launched in bulk it holds up its batch; one by one it is known, and the others measured."""
    folder = tmp_path / "hang"
    (folder / "kernels").mkdir(parents=True)
    (folder / "op.toml").write_text(
        'summary = "y = x"\ndtypes = ["float32"]\n[dims]\nH = [4, 8]\n'
        '[inputs.x]\nshape = ["H"]\n[output]\nshape = ["H"]\n'
    )
    (folder / "reference.py").write_text("def reference(x):\n    return x.clone()\n")
    for name, code in (("a_good", "def run(x):\n    return x.clone()\n"), ("b_spins", WILD)):
        (folder / "kernels" / f"{name}.py").write_text(code)
    request = measure.Request(
        ops=corpus.load(tmp_path), dtypes=(), device="cuda", gate=0, explore=2, workers=1,
        timeout=10.0,
    )  # fmt: skip
    records = [v for v in measure.measure(request, tmp_path) if isinstance(v, Record)]
    assert [(r.kernel, r.status) for r in records] == [("a_good", "ok"), ("b_spins", "timeout")] * 2
