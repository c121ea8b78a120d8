"""What inputs and checks show on a GPU: of every kernel of the corpus, in every profile."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec
import pytest
from measure_support import of, run, write_op
from test_autotuned import BESIDE, HALF, KEYS, WAYS
from tests_support import CORPUS

from tolcal import corpus, measure
from tolcal.model import PROFILES, RELATION_MAX, Record

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
DTYPES = ("float32", "float16", "bfloat16")


@functools.cache
def records() -> tuple[Record, ...]:
    """Four checked cases of each kernel, dtype and profile; `large` is measured by itself."""
    profiles = tuple(p for p in PROFILES if p != "large")
    request = measure.Request(
        ops=corpus.load(CORPUS), dtypes=(), device="cuda", gate=4, explore=0, workers=8,
        profiles=profiles, checks="all",
    )  # fmt: skip
    return tuple(v for v in measure.measure(request, CORPUS) if isinstance(v, Record))


def test_no_check_fails_a_control() -> None:
    """In no profile, whatever the values: exact checks, relations, and kinds inside the domain."""
    controls = [r for r in records() if r.role == "control"]
    assert {r.case.profile for r in controls} == set(PROFILES) - {"large"}
    wrong = {
        (r.kernel, r.case.dtype, r.case.profile): (r.status, r.reason, r.checks)
        for r in controls
        if r.status != "ok"
        or r.checks is None
        or r.checks.failed
        or (r.stats is not None and r.stats.nonfinite_mismatch)
    }
    assert wrong == {}


def test_faults_that_only_a_check_sees() -> None:
    """An unwritten half that the autotuner's trials hide has the control's bits in plain runs."""
    found = [r for r in records() if r.kernel == "swiglu_half_written_buggy"]
    assert any(r.checks is not None and r.checks.failed for r in found)
    for dtype in DTYPES:
        assert any(r.checks and r.checks.failed for r in found if r.case.dtype == dtype), dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("geglu_vector_tail_buggy", "stray"),
        ("fused_add_rmsnorm_in_place_buggy", "inputs_changed"),
        ("fp8_gemm_split_k_buggy", "broken"),
    ],
)
def test_one_check_is_all_that_fails(name: str, check: str, dtype: str) -> None:
    """In some cases, and in those where the output has the control's values no other does."""
    found = [r for r in records() if r.kernel == name and r.case.dtype == dtype]
    failed = [r for r in found if r.checks is not None and r.checks.failed]
    assert any(check in r.checks.failed for r in failed if r.checks)
    for record in failed:
        if record.same_as_control and record.checks:
            assert record.checks.failed == (check,), record.id
        if check == "broken" and record.checks:
            assert record.checks.configs == RELATION_MAX, record.id  # a nan and a number


def test_sums_in_any_order_are_unrepeatable() -> None:
    """Atomics of 256 programs in float32: 16 bits show hardly any of the orders.

    The control, which sums the same rows in one order, repeats itself.
    """
    (op,) = corpus.select(corpus.load(CORPUS), ["rmsnorm_weight_grad_atomic_buggy"])
    dims = {"B": (256,), "H": (4096,)}
    kernels = tuple(msgspec.structs.replace(kernel, dims=dims) for kernel in op.kernels)
    request = measure.Request(
        ops=(msgspec.structs.replace(op, kernels=kernels),), dtypes=("float32",), device="cuda",
        gate=8, explore=0, workers=2, profiles=("default",),
    )  # fmt: skip
    found = [v for v in measure.measure(request, CORPUS) if isinstance(v, Record)]
    assert {(r.status, r.reason) for r in found} == {("ok", "")}
    shown = {
        (r.role, r.case.dtype) for r in found if r.checks is not None and r.checks.unrepeatable
    }
    assert shown == {("buggy", "float32")}


def test_every_known_wrong_kernel_shows() -> None:
    """In some case of each its output is not its control's, or a check fails."""
    shown = {
        r.kernel
        for r in records()
        if r.same_as_control is False or (r.checks is not None and r.checks.failed)
    }
    assert {k.name for op in corpus.load(CORPUS) for k in op.kernels if k.corrupts} <= shown


def test_a_guarded_tensor_has_storage_of_its_own_size() -> None:
    """As on a CPU: what is done through it stays between the guard zones."""
    from tolcal.measure.watch import Place

    place = Place(torch.float16, 20, torch.device("cuda"))
    x = place.tensor((4, 5), (5, 1))
    assert (x.storage_offset(), x.untyped_storage().nbytes(), x.data_ptr() % 16) == (0, 40, 0)
    x.untyped_storage().fill_(0)
    torch.as_strided(x, (20,), (1,), 0).add_(1)
    assert (int(place.stray()), float(x.sum())) == (0, 20.0)


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
