"""Cases too large to have a reference of the whole, with "large" made small."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measure_support import request, run
from test_inputs import make_op

from tolcal import cases, corpus
from tolcal.measure import large, units, wire
from tolcal.measure.worker import Worker
from tolcal.model import DTYPES, Case, InputSpec, Op, TolcalError

TOML = """\
summary = "x by a gain, shifted by a row's label"
dtypes = ["float32"]
batch = "B"
[dims]
B = [2]
H = [10]
[inputs.x]
shape = ["H", "B"]
[inputs.w]
shape = ["H"]
low = 0.5
high = 2.0
[inputs.label]
shape = ["B"]
dtype = "int32"
below = "H"
[output]
shape = ["B", "H"]
[sizes.large]
B = [1000]
[buggy.wraps]
corrupts = "good"
fault = "the index of an element ends at 6000"
"""
REFERENCE = """\
def reference(x, w, label):
    assert x.shape[1] == len(label) < 100 and len(w) == 10
    return x.T * w + label[:, None]
"""
GOOD = """\
def run(x, w, label):
    y = x.T * w + label[:, None]
    x.zero_()
    return y
"""
WRAPS = """\
def run(x, w, label):
    y = (x.T * w + label[:, None]).contiguous()
    beyond = y.view(-1)[6000:]
    beyond.copy_(y.view(-1)[: len(beyond)].clone())
    return y
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices end at 6000 elements and at 32,000 bytes; eight rows are judged."""
    monkeypatch.setattr(large, "INDEX_ENDS", (6000, 12000))
    monkeypatch.setattr(large, "BYTE_ENDS", (32000,))
    monkeypatch.setattr(large, "JUDGED_ELEMENTS", 80)
    monkeypatch.setattr(large, "CHUNK", 777)


def write(root: Path, toml: str = TOML, **kernels: str) -> Op:
    """The op in a corpus, with these kernels beside the good one."""
    folder = root / "shift"
    for sub in ("kernels", "buggy"):
        (folder / sub).mkdir(parents=True)
    (folder / "op.toml").write_text(toml)
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "buggy" / "wraps.py").write_text(WRAPS)
    for name, code in {"good": GOOD, **kernels}.items():
        (folder / "kernels" / f"{name}.py").write_text(code)
    (op,) = corpus.load(root)
    return op


def measured(op: Op, **changes: object) -> list[wire.Measured]:
    """What a worker in this process says of the op's large cases."""
    messages: list[wire.Message] = []
    worker = Worker(torch.device("cpu"), messages.append)
    with torch.no_grad():
        for p in units.plan(request((op,), profiles=("large",), **changes), [1]):
            worker.unit(p.unit)
    return [m for m in messages if isinstance(m, wire.Measured)]


@pytest.mark.usefixtures("small")
def test_only_rows_are_judged_and_they_meet_the_wrap(tmp_path: Path) -> None:
    """The kernel has the whole, the reference a few rows, among them those that go wrong."""
    op = write(tmp_path)
    good, wraps = measured(op)
    assert (good.status, wraps.status, good.reason) == ("ok", "ok", "")
    assert good.stats is not None
    assert wraps.stats is not None
    assert good.stats.count == wraps.stats.count == 80
    assert good.stats.scaled_max is not None
    assert good.stats.scaled_max <= 2
    assert good.stats.scale_quantiles != good.stats.scale_abs_quantiles
    assert wraps.stats.max_abs > 1
    assert wraps.same_as_control is False
    (case,) = cases.draw_cases(op, op.kernels[0].dims, "float32", cases.GATE_SEED, 9, "large")
    whole = cases.inputs_torch(op, case, "cpu")
    assert good.input_hash == wraps.input_hash == cases.input_hash_torch(whole)


@pytest.mark.usefixtures("small")
def test_each_kernel_has_inputs_of_its_own(tmp_path: Path) -> None:
    """One that writes to them reaches no other, and memory holds one copy at a time."""
    op = write(tmp_path, another=GOOD)
    found = measured(op)
    assert [m.status for m in found] == ["ok"] * 3
    assert found[0].stats == found[1].stats


@pytest.mark.usefixtures("small")
def test_a_wrong_shape_is_that_of_the_whole(tmp_path: Path) -> None:
    """The contract is checked on what the kernel returned, not on its rows."""
    op = write(tmp_path, short="def run(x, w, label):\n    return x.T[:8].contiguous()\n")
    found = measured(op)
    assert [m.reason for m in found if m.kernel == "short"] == [
        "ValueError: run() returned shape [8, 10], [1000, 10] expected by op.toml"
    ]


def test_the_interpreter_skips_what_would_take_days(tmp_path: Path) -> None:
    """With what is needed and what is free; nothing is drawn."""
    op = write(tmp_path, TOML.replace("B = [1000]", "B = [1000000]"))
    assert [(m.kernel, m.status, m.input_hash) for m in measured(op)] == [
        ("good", "skipped", ""), ("wraps", "skipped", ""),
    ]  # fmt: skip
    reason = measured(op)[0].reason
    assert reason.startswith("B=1000000 H=10 needs 1.")
    assert reason.endswith(" GiB are free, but the interpreter would take days; a GPU runs it")


def test_what_memory_does_not_hold_is_skipped(tmp_path: Path) -> None:
    """A run goes on, and its record says why."""
    toml = TOML.replace("B = [1000]", "B = [1000000000000]")
    write(tmp_path, toml)
    for record in run(tmp_path, profiles=("large", "default")):
        if record.case.profile == "large":
            assert (record.status, record.stats) == ("skipped", None)
            assert record.reason.startswith("B=1000000000000 H=10 needs 78232.6 GiB, ")
            assert record.reason.endswith(" GiB are free")
        else:
            assert record.status == "ok"


@pytest.mark.usefixtures("small")
def test_a_kernel_out_of_memory_is_skipped(tmp_path: Path) -> None:
    """What a kernel allocates beside its output is not known before."""
    hungry = "import torch\ndef run(x, w, label):\n    raise torch.OutOfMemoryError('2 TiB')\n"
    found = {m.kernel: m for m in measured(write(tmp_path, hungry=hungry))}
    assert (found["hungry"].status, found["hungry"].reason) == (
        "skipped", "the kernel needs more memory than there is: 2 TiB",
    )  # fmt: skip
    assert found["hungry"].input_hash == found["good"].input_hash
    assert found["good"].status == "ok"


def make_case(dims: dict[str, int], dtype: str = "float16", seed: int = 3) -> Case:
    return Case("mixed", dtype, tuple(dims.items()), "large", "contiguous", seed)


def test_rows_are_those_where_indices_end() -> None:
    """First, last, both sides of 2^31 and 2^32 elements and of 2^32 bytes, of every tensor."""
    op = msgspec.structs.replace(
        make_op(x=InputSpec(("B", "H")), wide=InputSpec(("B", "H"), dtype="float64")),
        output=("B", "H"),
    )
    case = make_case({"B": 2**21, "H": 4097})
    rows = large.judged_rows(op, case, "B")
    assert rows == sorted(set(rows))
    assert len(rows) == 2**22 // 4097
    assert {0, 2**21 - 1} <= set(rows)
    for element in (2**31, 2**32, 2**32 // 8, 2**32 // 2):
        assert {(element - 1) // 4097, element // 4097} <= set(rows)
    assert large.judged_rows(op, case, "B") == rows
    assert large.judged_rows(op, make_case({"B": 2**21, "H": 4097}, seed=4), "B") != rows
    even = large.judged_rows(op, make_case({"B": 2**21, "H": 4096}), "B")
    assert {2**19 - 1, 2**19, 2**20 - 1, 2**20} <= set(even)
    # A row of few outputs and many inputs is a slice, too, and the ends are among the few.
    sums = msgspec.structs.replace(make_op(x=InputSpec(("B", "H"))), output=("B",))
    summed = large.judged_rows(sums, make_case({"B": 2**14 + 1, "H": 2**17}), "B")
    assert len(summed) == 2**26 // 2**17
    assert {0, 2**14 - 1, 2**14} <= set(summed)
    # Of rows that are long, the first and the last are judged if nothing else.
    assert large.judged_rows(op, make_case({"B": 4, "H": 2**30}), "B") == [0, 3]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(sorted(DTYPES)), st.integers(1, 700))
def test_parts_are_the_whole(b: int, h: int, dtype: str, chunk: int) -> None:
    """Drawn a part at a time, an input has the bytes and the hash that it has in one."""
    op = make_op(x=InputSpec(("B", "H")), i=InputSpec(("H",), 3, 99, dtype="int16"))
    case = make_case({"B": b, "H": h}, dtype)
    whole = cases.inputs_torch(op, case, "cpu")
    sums = torch.zeros(2, dtype=torch.int64)
    for place, name in enumerate(sorted(whole)):
        count = whole[name].numel()
        for at in range(0, count, chunk):
            part = cases.part_torch(op, name, case, "cpu", at, min(chunk, count - at))
            expected = whole[name].reshape(-1)[at : at + chunk]
            assert torch.equal(part.double(), expected.double())
            sums[place] += cases.hash_sum_torch(name, part, at)
    assert torch.equal(sums, cases.hash_sums_torch(whole))


@pytest.mark.parametrize(
    ("batch", "output", "shape", "says"),
    [
        ("B", ("B", "H"), ("B/4", "H"), "of which x has ['B/4', 'H']"),
        ("B", ("B",), ("B", "B"), "of which x has ['B', 'B']"),
        ("H", ("B",), ("B", "H"), "rows of the output, ['B'], which has no H"),
        (None, (), ("B", "H"), "rows of the output, [], which has no dim"),
    ],
)
def test_an_op_without_rows_is_refused(
    batch: str | None, output: tuple[str, ...], shape: tuple[str, ...], says: str
) -> None:
    """One line that says what op.toml has to say instead."""
    op = msgspec.structs.replace(make_op(x=InputSpec(shape)), batch=batch, output=output)
    with pytest.raises(TolcalError) as caught:
        large.sliced_dim(op)
    assert says in str(caught.value)
    assert "drop [sizes.large]" in str(caught.value)
    assert large.sliced_dim(msgspec.structs.replace(op, batch=None, output=("V",))) == "V"


def test_numbers_of_rows_are_refused() -> None:
    """An index among rows means another one, or none, where the reference has few of them."""
    op = msgspec.structs.replace(
        make_op(x=InputSpec(("B", "H")), i=InputSpec(("H",), dtype="int32", below="B")),
        output=("B", "H"), batch="B",
    )  # fmt: skip
    with pytest.raises(TolcalError, match=r"rows along B, of which i holds numbers: .* another"):
        large.sliced_dim(op)
    assert large.sliced_dim(msgspec.structs.replace(op, batch="H")) == "H"
