"""Tests that failed in their first run on a GPU, all for what they expected; mended, not run again.

In that run (junit.xml) the first knew no tolerance of the new ops, the second counted the cases of
one profile, the third shared the GPU with two other runs and found too little memory, the fourth
took the half that the autotuner's trials had written for an output that repeats itself, and the
fifth's kernel wrote two elements behind its output, as the check `stray` said.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from measure_support import of, run, write_op
from test_autotuned import BESIDE, HALF, KEYS, WAYS
from test_gpu import corpus_run
from tests_support import CORPUS, ROOT

from tolcal import bounds, compare, corpus, measure, tolerances
from tolcal.model import Record

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


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


def test_large_cases() -> None:
    """Beyond 2^31 elements, where memory allows: controls pass by kind, and write all of it."""
    ops = tuple(op for op in corpus.load(CORPUS) if "large" in op.sizes)
    assert ops
    request = measure.Request(
        ops=ops, dtypes=("float16",), device="cuda", gate=1, explore=0, workers=1,
        profiles=("large",), timeout=300.0,
    )  # fmt: skip
    found = [v for v in measure.measure(request, CORPUS) if isinstance(v, Record)]
    skipped = [r.reason for r in found if r.status == "skipped"]
    if skipped:
        pytest.skip(skipped[0])
    for record in found:
        if record.role == "control":
            assert record.status == "ok", record.reason
            assert record.stats is not None
            assert record.stats.nonfinite_mismatch == 0


def test_an_autotuner_is_found_however_it_is_reached(tmp_path: Path) -> None:
    """Whichever configuration its clock chooses, that one of them writes half shows.

    Where it chooses that one, its trials have written the other half of the first output, and of no
    later one: not the same bits, either.
    """
    kernels = {name: HALF + code for name, code in WAYS.items()} | {"_beside": BESIDE}
    write_op(tmp_path, kernels=kernels)
    records = run(tmp_path, gate=4, device="cuda")
    for name in WAYS:
        record = of(records, name)[4]
        assert (record.status, record.reason) == ("ok", "")
        assert record.checks is not None
        assert record.checks.broken, name


def test_each_key_keeps_its_choice(tmp_path: Path) -> None:
    """Two launches of other keys, whose clocks may choose otherwise, repeat themselves."""
    write_op(tmp_path, kernels={"double_good": KEYS.replace("BROKEN", "")})
    for record in run(tmp_path, gate=4, device="cuda"):
        assert (record.status, record.reason) == ("ok", "")
        assert record.checks is not None
        assert record.checks.failed == ()
