"""minimize: what is left still fails in the same way, and nothing of it can go."""

from __future__ import annotations

import ast
import functools
import itertools
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from checks_support import op_of
from hypothesis import given, settings
from hypothesis import strategies as st
from measure_support import request
from tests_support import CORPUS, ROOT, make_environment, make_record, make_run, make_stats

from tolcal import cases, corpus, measure, minimize, tolerances
from tolcal.cli import main, minimizing
from tolcal.minimize import failure, search, snippet, values
from tolcal.model import (
    DTYPES,
    LAYOUTS,
    AllClose,
    Case,
    Checks,
    InputSpec,
    Kernel,
    Op,
    Outside,
    Record,
    TolcalError,
    Tolerance,
)

TOLERANCE = Tolerance(atol=1e-6, scaled_tol=4.0, allclose=AllClose(1e-6, 1e-6))

# --- the search, of anything ------------------------------------------------------------------

sizes = st.integers(1, 3000)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.tuples(sizes, sizes, sizes), st.data())
def test_dims_are_the_least_of_a_monotone_fault(
    start: tuple[int, int, int], data: st.DataObject
) -> None:
    """Where a size fails, all larger ones do: then the least sizes are found, in few trials."""
    least = tuple(data.draw(st.integers(1, size)) for size in start)
    tried = []

    def accept(dims: search.Dims) -> bool:
        tried.append(dims)
        return all(size >= low for (_, size), low in zip(dims, least, strict=True))

    dims = tuple(zip("BSH", start, strict=True))
    assert search.smallest_dims(dims, accept) == tuple(zip("BSH", least, strict=True))
    assert len(tried) < 4 + 3 * 2 * (8 + 3 * 12 + 12)
    assert all(size >= 1 for dims in tried for _, size in dims)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.tuples(sizes, sizes), st.sets(sizes, min_size=1, max_size=6), st.integers(1, 3000))
def test_dims_of_its_own_stay_among_these(
    start: tuple[int, int], own: set[int], least: int
) -> None:
    """The least of them that fails, and no other is tried."""
    size = max(own)
    dims = search.smallest_dims(
        (("B", start[0]), ("H", size)), lambda dims: dict(dims)["H"] >= least and
        (dict(dims)["H"] in own), {"H": sorted(own, reverse=True)},
    )  # fmt: skip
    assert dims == (
        ("B", 1 if size >= least else start[0]),
        ("H", min((n for n in own if n >= least), default=size)),
    )


@settings(deadline=None, max_examples=200, derandomize=True)
@given(sizes, st.integers(2, 40), st.integers(0, 39))
def test_a_fault_at_some_sizes_alone(size: int, modulus: int, rest: int) -> None:
    """Whatever a fault depends on, what is found fails, and is no larger."""
    found = search.smallest_size(size, lambda n: n % modulus == rest % modulus)
    assert found == size or (found < size and found % modulus == rest % modulus)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.integers(1, 200), st.sets(st.integers(0, 199), max_size=5))
def test_the_fewest_items_are_those_needed(count: int, needed: set[int]) -> None:
    """Of items, of which some are needed together, these alone are left."""
    needed = {n for n in needed if n < count}
    left = set(range(count))

    def accept(some: Sequence[int]) -> bool:
        if needed & set(some):
            return False
        left.difference_update(some)
        return True

    assert set(search.fewest(range(count), accept)) == needed == left


# --- values ----------------------------------------------------------------------------------

EVERY = (*DTYPES, "int8", "uint8", "int32", "int64")


def numpy_dtype(dtype: str) -> Any:
    width = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}
    return width.get(dtype) or np.dtype(dtype)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.sampled_from(EVERY), st.integers(0, 2**64 - 1))
def test_a_pattern_is_its_number(dtype: str, bits: int) -> None:
    """A finite pattern comes back from its number; a number between two is refused."""
    form = np.dtype(numpy_dtype(dtype))
    pattern = np.array([bits], np.uint64).view(form)[:1]
    value = values.decode(pattern, dtype)[0]
    if math.isfinite(value) and abs(value) <= 2**53:
        assert values.encode(value, dtype).tobytes() == pattern.tobytes()
    if dtype != "float64":
        with pytest.raises(ValueError, match=f"3.14.* is no {dtype}"):
            values.encode(math.pi, dtype)


def test_8_bit_numbers_are_those_of_torch() -> None:
    """All 256 patterns of both formats."""
    torch = pytest.importorskip("torch")
    patterns = np.arange(256, dtype=np.uint8)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        theirs = torch.from_numpy(patterns.copy()).view(getattr(torch, dtype)).to(torch.float64)
        np.testing.assert_array_equal(values.decode(patterns, dtype), theirs.numpy())


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.floats(width=32, allow_nan=False), st.integers(2, 24))
def test_simpler_numbers_are_simpler(value: float, precision: int) -> None:
    """Each candidate is strictly simpler, within the range, and they come in order."""
    found = list(values.simpler(value, precision, -1e9, 1e9))
    keys = [values.complexity(number) for number in found]
    assert keys == sorted(keys)
    assert all(key < values.complexity(value) for key in keys)
    assert all(-1e9 <= number <= 1e9 for number in found)


def test_what_numbers_are_simple() -> None:
    """Few bits first, then near to 1, then positive; whole numbers are met on the way."""
    ladder = [0.0, 1.0, -1.0, 2.0, 0.25, 3.0, 5.0, 3.140625, math.pi, math.inf]
    assert sorted(ladder, key=values.complexity) == ladder
    assert list(values.simpler(3.2, 24, -10, 10))[:5] == [1.0, 2.0, 4.0, 3.0, 3.25]
    assert values.significant_bits(1025.0) == 11


@pytest.mark.parametrize(
    ("spec", "span", "simplest"),
    [
        (InputSpec(("B",)), (-65504.0, 65504.0), 0.0),
        (InputSpec(("B",), domain=(-100.0, 100.0)), (-100.0, 100.0), 0.0),
        (InputSpec(("B",), 0.5, 2.0), (0.5, 2.0), 1.0),
        (InputSpec(("B",), 2.0, 4.0), (2.0, 4.0), 2.0),
        (InputSpec(("B",), 2.0, 1e5), (2.0, 65504.0), 2.0),
        (InputSpec(("B",), 3, 9, dtype="int64"), (3, 8), 3),
        (InputSpec(("B",), dtype="int64", below="B"), (0, 6), 0),
    ],
)
def test_what_an_input_may_be(spec: InputSpec, span: tuple[float, float], simplest: float) -> None:
    """A gain that is drawn from positive numbers is never made 0, a label stays one."""
    case = Case("op", "float16", (("B", 7),), "default", "contiguous", 1)
    assert values.span(spec, case) == span
    assert values.simplest(spec, case) == simplest


# --- in which way a record fails --------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "way"),
    [
        ({}, None),
        ({"status": "crashed", "reason": "ValueError: at 7", "stats": None}, "crashed ValueError"),
        ({"status": "crashed", "reason": "at import: KeyError: 'a'", "stats": None},
         "crashed KeyError"),
        ({"status": "crashed", "reason": "SIGSEGV", "stats": None}, "crashed SIGSEGV"),
        ({"status": "timeout", "reason": "no result within 5 s", "stats": None}, "timeout"),
        ({"status": "skipped", "reason": "memory", "stats": None}, None),
        ({"stats": make_stats(1.0, num_exceeding=3)}, "elements"),
        ({"stats": make_stats(1.0, num_exceeding=0)}, "envelope"),
        ({"stats": make_stats(1.0, nonfinite_mismatch=2)}, "kinds"),
        ({"stats": make_stats(2.0**-30, bias=0.5)}, "bias"),
        ({"stats": make_stats(0.0, bias=0.5)}, None),  # no error that could lean anywhere
        ({"checks": Checks(1, 0, 0, 0)}, "check unwritten"),
        ({"outside": Outside(5, 2, 3)}, "outside"),
        ({"outside": Outside(5, 2, 0)}, None),
        ({"outside": Outside(5, 2, None)}, None),
        ({"outside": Outside(5, 2, 3), "checks": Checks(1, 0, 0, 0)}, "check unwritten"),
    ],
)  # fmt: skip
def test_the_way_of_a_failure(changes: dict[str, Any], way: str | None) -> None:
    """As a verdict judges, and more exactly."""
    tolerance = msgspec.structs.replace(TOLERANCE, bias_tol=0.3)
    found = failure.of(make_record(**changes), tolerance)
    assert (None if found is None else found.way) == way
    if changes.get("stats"):
        assert failure.of(make_record(**changes), None) is None  # nothing to judge by


def test_what_holds_is_in_the_ops_units() -> None:
    """An override replaces all numbers, and a changed compute_dtype loosens none."""
    (op,) = corpus.select(corpus.load(CORPUS), ["relu"])
    own = msgspec.structs.replace(TOLERANCE, atol=1.0)
    whole = msgspec.structs.replace(TOLERANCE, on={"cpu": own})
    assert failure.holding(whole, op, "cpu") == own
    assert failure.holding(whole, op, "sm_90") == TOLERANCE
    assert failure.holding(None, op, "cpu") is None


# --- kernels -----------------------------------------------------------------------------------

TOML = r"""
summary = "a \"sum\"\n''' \"\"\"\nexit(3) # \\"
dtypes = ["float32", "float16"]

[dims]
B = [1, 4, 16]
H = [2, 5, 40]

[inputs.lambda]
shape = ["B", "H"]

[inputs.w]
shape = ["H"]
low = 0.5
high = 2.0

[output]
shape = ["B"]
"""
REFERENCE = """\
def reference(**inputs):
    return (inputs["lambda"] * inputs["w"]).sum(-1)
"""
GOOD = """\
import torch


def run(**inputs):
    x = inputs["lambda"]
    return (x.double() * inputs["w"].double()).sum(-1).to(x.dtype)
"""
#: Of rows longer than 4 the last element is forgotten.
TAIL = GOOD.replace(
    "    return", "    if x.shape[1] > 4:\n        x = x.clone()\n        x[:, -1] = 0\n    return"
)
RAISES = GOOD.replace("    return", """\
    if x.shape[1] < 3:
        raise KeyError(x.shape)
    if x.shape[0] > 2:
        raise ValueError(f"{tuple(x.shape)}")
    return""")  # fmt: skip
DIES = GOOD.replace("    return", """\
    if x.shape[1] > 3:
        import os
        os.kill(os.getpid(), 11)
    return""")  # fmt: skip
HANGS = GOOD.replace("    return", "    while x.shape[0] > 1:\n        pass\n    return")
NANS = GOOD.replace("    return", "    x[x.sum(-1) > 0] = torch.inf\n    return")
#: Right to the last bit, but for what only a check sees.
WRITES = GOOD.replace("    return", "    inputs['w'][-1] += 1\n    x = x.clone()\n    return")
WRITES = WRITES.replace('inputs["w"].double()', "(inputs['w'].double() - last)").replace(
    "    x = inputs",
    "    last = torch.zeros_like(inputs['w']).double()\n    last[-1] = 1\n    x = inputs",
)
VARIES = "import itertools\n\n" + GOOD.replace("def run", "CALLS = itertools.count()\n\n\ndef run")
VARIES = VARIES.replace("    return", "    x = x * (1 + 2.0**-16 * (next(CALLS) % 5))\n    return")
BUGGY = {
    "writes": WRITES, "varies": VARIES, "tail": TAIL, "raises": RAISES, "dies": DIES,
    "hangs": HANGS, "nans": NANS,
}  # fmt: skip
CASE = Case("row_sum", "float32", (("B", 16), ("H", 40)), "default", "contiguous", 5)


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of one op with hostile words, and kernels that fail each in its own way."""
    root = tmp_path_factory.mktemp("minimize")
    folder = root / "row_sum"
    for sub in ("kernels", "buggy"):
        (folder / sub).mkdir(parents=True)
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "kernels" / "good.py").write_text(GOOD)
    toml = TOML
    for name, code in BUGGY.items():
        (folder / "buggy" / f"{name}.py").write_text(code)
        toml += f"[buggy.{name}]\n"
        toml += r"""corrupts = "good"
fault = "\n\"\"\"; exit(4) #"
"""
    (folder / "op.toml").write_text(toml)
    return root


@functools.cache
def loaded(root: Path, kernel: str) -> tuple[Op, Kernel]:
    ops = corpus.load(root)
    op = next(op for op in ops if any(k.name == kernel for k in op.kernels))
    (op,) = corpus.select((op,), [kernel])
    return op, op.kernel(kernel)


def minimized(root: Path, kernel: str, case: Case = CASE, **changes: Any) -> minimize.Minimized:
    op, one = loaded(root, kernel)
    fields: dict[str, Any] = {"budget": 600.0, "tolerance": TOLERANCE} | changes
    return minimize.minimize(request((op,)), one, case, root, **fields)


@pytest.fixture(scope="session")
def tail(root: Path) -> minimize.Minimized:
    return minimized(root, "tail")


def test_a_forgotten_element(tail: minimize.Minimized) -> None:
    """One row of five, in which one element of each input tells; the gain stays a gain."""
    assert tail.before.case == CASE
    assert tail.seeded.case == msgspec.structs.replace(CASE, dims=(("B", 1), ("H", 5)))
    assert tail.after.case.dims == (("B", 1), ("H", 5))
    assert tail.after.values is not None
    x, w = tail.after.values["lambda"], tail.after.values["w"]
    assert x.tolist() == [[0.0, 0.0, 0.0, 0.0, 1.0]]
    assert w.tolist() == [1.0] * 5
    assert {f.failure.way for f in (tail.before, tail.seeded, tail.after)} == {"elements"}
    assert tail.elements == (10, 1)
    assert tail.finished


def test_a_kernel_with_dims_of_its_own(root: Path) -> None:
    """What is left is a case that it is run on, as values too."""
    op, kernel = loaded(root, "tail")
    own = msgspec.structs.replace(kernel, own=("H",), dims={"B": (16,), "H": (9, 13, 40)})
    kernels = tuple(own if k.name == "tail" else k for k in op.kernels)
    found = minimize.minimize(
        request((msgspec.structs.replace(op, kernels=kernels),)), own, CASE, root, TOLERANCE,
        budget=600.0,
    )  # fmt: skip
    assert found.seeded.case.dims == found.after.case.dims == (("B", 1), ("H", 9))


def test_a_failure_of_another_kind_is_none(root: Path) -> None:
    """A ValueError is not traded for the KeyError of a smaller case."""
    found = minimized(root, "raises")
    assert found.seeded.case.dims == (("B", 3), ("H", 3))
    assert found.after.failure.way == "crashed ValueError"
    assert found.after.failure.text == "raised or died: ValueError: (3, 3) (raises.py:9)"
    assert found.elements[1] == 0


def test_a_kernel_that_kills_its_process(root: Path) -> None:
    """Every trial of it costs a worker, and the search goes on."""
    found = minimized(root, "dies")
    assert found.seeded.case.dims == (("B", 1), ("H", 4))
    assert found.after.failure.way == "crashed SIGSEGV"


def test_a_kernel_that_hangs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hang can be minimised as well, without waiting out the timeout of a run."""
    monkeypatch.setattr(minimize, "TRIAL_SECONDS", 3.0)
    found = minimized(root, "hangs", hangs=True, budget=40.0)
    assert found.seeded.case.dims == (("B", 2), ("H", 1))
    assert found.after.failure.way == "timeout"


def test_what_is_not_finite(root: Path) -> None:
    """By kinds: one positive number is enough, and its control passes there."""
    found = minimized(root, "nans")
    assert found.after.failure.way == "kinds"
    assert found.after.case.dims == (("B", 1), ("H", 1))
    assert found.after.values is not None
    assert found.after.values["lambda"].tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("kernel", "way"), [("writes", "check inputs_changed"), ("varies", "check unrepeatable")]
)
def test_what_only_a_check_sees(root: Path, tmp_path: Path, kernel: str, way: str) -> None:
    """The smallest case on which the check still fails, and a script that checks."""
    loose = msgspec.structs.replace(TOLERANCE, atol=0.1)
    found = minimized(root, kernel, tolerance=loose)
    assert found.after.failure.way == way
    assert found.after.case.dims == (("B", 1), ("H", 1))
    text = script(root, kernel, found.after, loose)
    last = run_alone(text, tmp_path).stderr.splitlines()[-1]
    assert re.search(r"^AssertionError: \d+ bytes .*, 0 allowed$", last), last
    done = run_alone(text.replace(BUGGY[kernel].strip("\n"), GOOD.strip("\n")), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_check_that_no_script_shows(root: Path) -> None:
    """Refused with the reason, rather than a script that passes."""
    op, one = loaded(root, "tail")
    fields: dict[str, Any] = {"op": "row_sum", "dims": CASE.dims, "run": cpu_run()}
    batch = make_record(checks=Checks(0, 0, 0, 0, 5), **fields)  # of an op that has none
    raised = make_record(status="crashed", reason="in check odd: KeyError", stats=None, **fields)
    for tolerance in (TOLERANCE, None):
        with pytest.raises(TolcalError, match=r"no script shows 'batch' \(5 elements batch"):
            snippet.write(op, one, batch, failure.of(batch, tolerance), tolerance)
        with pytest.raises(TolcalError, match="no script shows 'crashed in check odd'"):
            snippet.write(op, one, raised, failure.of(raised, tolerance), tolerance)


@pytest.mark.parametrize("domain", ["[-10.0, 10.0]", "[-inf, inf]", "[-11.0, inf]"])
def test_what_lies_outside_the_domain_is_not_judged(
    domain: str, root: Path, tmp_path: Path
) -> None:
    """A script of such a case judges the elements that the record does."""
    folder = tmp_path / "corpus" / "row_sum"
    shutil.copytree(root / "row_sum", folder)
    (folder / "op.toml").write_text(
        TOML.replace('shape = ["B", "H"]', 'shape = ["B", "H"]\ndomain = ' + domain, 1)
    )
    shutil.rmtree(folder / "buggy")
    wrong = GOOD.replace(
        "    return", "    x = x.clone()\n    x[~x.isfinite().all(-1)] = 0\n    return"
    )
    (folder / "kernels" / "good.py").write_text(wrong)
    op, one = loaded(tmp_path / "corpus", "good")
    case = msgspec.structs.replace(CASE, profile="nan_injected", dims=(("B", 16), ("H", 5)))
    values = measure.replay(request((op,)), case, tmp_path / "corpus")
    (record,) = [v for v in values if isinstance(v, Record)]
    assert record.outside is not None
    assert record.outside.mismatch
    assert failure.of(record, TOLERANCE) is None
    text = snippet.write(op, one, record, None, TOLERANCE)
    done = run_alone(text, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_wrong &= ~_outside" in text
    assert run_alone(text.replace("_wrong &= ~_outside", ""), tmp_path).returncode == 1


@pytest.mark.parametrize("nonfinite", [False, True])
def test_a_script_has_the_domain_of_the_measurement(nonfinite: bool) -> None:
    """Rows outside as a whole, in part, not at all, and 0/0 of their own."""
    import torch

    from tolcal.measure import domain

    def reference(x: torch.Tensor) -> torch.Tensor:
        return x / x.std(-1, keepdim=True)

    rows = [[math.inf] * 3, [-1e30] * 3, [math.nan, 1.0, 2.0], [1.0, 2.0, 3.0], [5.0] * 3]
    wide = {"x": torch.tensor(rows, dtype=torch.float64)}
    op = op_of(domain=(-100.0, 100.0), nonfinite=nonfinite)
    names: dict[str, Any] = {
        "torch": torch, "DEVICE": "cpu", "reference": reference, "_wide": wide,
        "_ref": reference(**wide),
    }  # fmt: skip
    exec(textwrap.dedent(snippet._WORDS) + snippet._outside(op), names)
    expected = domain.depends(op, reference, wide)
    assert names["_outside"].tolist() == expected.tolist()
    assert expected.any(-1).tolist() == [not nonfinite, True, not nonfinite, False, False]
    assert torch.equal(names["_usual"], cases.usual_torch("x", op.inputs["x"], (5, 3), "cpu"))


def test_what_differs_outside_the_domain_alone(root: Path, tmp_path: Path) -> None:
    """By kinds that are not its control's: one element, with a tolerance or without."""
    folder = tmp_path / "corpus" / "row_sum"
    shutil.copytree(root / "row_sum", folder)
    shutil.rmtree(folder / "buggy")
    (folder / "buggy").mkdir()
    (folder / "buggy" / "clips.py").write_text(
        GOOD.replace("    return", "    x = x.nan_to_num(0.0, 7.0, -7.0)\n    return")
    )
    (folder / "op.toml").write_text(
        TOML.replace('shape = ["B", "H"]', 'shape = ["B", "H"]\ndomain = [-10.0, 10.0]', 1)
        + '[buggy.clips]\ncorrupts = "good"\nfault = "no infinity comes through"\n'
    )
    case = msgspec.structs.replace(CASE, profile="nan_injected", dims=(("B", 16), ("H", 5)))
    for tolerance in (TOLERANCE, None):
        found = minimized(tmp_path / "corpus", "clips", case, tolerance=tolerance)
        assert found.after.failure == failure.Failure(
            "outside",
            "1 of 1 element outside the domain are finite where its control's are not, or the "
            "other way round; 0 allowed",
        )
        assert found.after.case.dims == (("B", 1), ("H", 1))
        assert found.after.values is not None
        (number,) = found.after.values["lambda"].reshape(-1)
        assert not np.isfinite(number)
        with pytest.raises(TolcalError, match=r"no script shows 'outside' \(1 of 1 element"):
            script(tmp_path / "corpus", "clips", found.after, tolerance)


def test_a_hand_picked_tolerance(root: Path, tmp_path: Path) -> None:
    """An atol on |out - rounded reference| judges search and script, where nothing is approved."""
    found = minimized(root, "tail", tolerance=0.5)
    assert found.after.case.dims == (("B", 1), ("H", 5))
    assert found.after.failure.way == "elements"
    assert found.after.record.stats is not None
    assert found.after.record.stats.max_abs > 0.5
    text = script(root, "tail", found.after, 0.5)
    assert re.search(
        r"^AssertionError: 1 of 1 elements are wrong, the worst at \[0\]: .* expected; observed "
        r"\S+ off the rounded reference, 0\.5 allowed$",
        run_alone(text, tmp_path).stderr.splitlines()[-1],
    )
    done = run_alone(text.replace(TAIL.strip("\n"), GOOD.strip("\n")), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(TolcalError, match=r"does not fail on .* nothing to minimise"):
        minimized(root, "tail", tolerance=1e6)


def test_what_does_not_fail_is_refused(root: Path) -> None:
    """A control that passes, and a cell that nothing is approved for."""
    with pytest.raises(TolcalError, match=r"^good:\w+ does not fail on .* nothing to minimise"):
        minimized(root, "good")
    with pytest.raises(TolcalError, match="row_sum/float32 has no approved tolerance"):
        minimized(root, "tail", tolerance=None)


def test_time_that_is_up(root: Path) -> None:
    """The best so far, which may be the case as it was."""
    found = minimized(root, "tail", budget=1e-9)
    assert not found.finished
    assert found.after == found.before


def test_a_control_that_fails_too(root: Path) -> None:
    """Then there is nothing that must pass, which is said."""
    wrong = msgspec.structs.replace(TOLERANCE, atol=0.0, scaled_tol=0.0)
    found = minimized(root, "tail", msgspec.structs.replace(CASE, dtype="float16"),
                      tolerance=wrong, budget=1e-9)  # fmt: skip
    assert found.notes == ()  # the control is right to the last bit
    op = corpus.load_op(root / "row_sum")
    both = msgspec.structs.replace(op.kernel("nans"), corrupts="tail")
    search = minimize.minimize(request((op,)), both, CASE, root, TOLERANCE, budget=1e-9)
    assert search.notes == (
        "its control tail fails on this case, too, so what is left need not show the fault",
    )


# --- the script ---------------------------------------------------------------------------------


def run_alone(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """In a fresh interpreter that could not import tolcal if it tried."""
    path = folder / "script.py"
    path.write_text(text, "utf-8")
    code = "import sys, runpy; sys.modules['tolcal'] = None; runpy.run_path(sys.argv[1])"
    return subprocess.run(
        [sys.executable, "-I", "-c", code, str(path)], capture_output=True, text=True,
        timeout=300, cwd=folder,
    )  # fmt: skip


def script(
    root: Path, kernel: str, found: minimize.Found, tolerance: Tolerance | float = TOLERANCE
) -> str:
    op, one = loaded(root, kernel)
    return snippet.write(op, one, found.record, found.failure, tolerance, found.values)


def test_a_script_fails_and_passes_with_the_controls_source(
    root: Path, tail: minimize.Minimized, tmp_path: Path
) -> None:
    """Observed and allowed in the assert; with the control instead of the kernel it passes."""
    for found in (tail.before, tail.seeded, tail.after):
        text = script(root, "tail", found)
        failed = run_alone(text, tmp_path)
        assert failed.returncode == 1, failed.stderr
        assert "AssertionError: " in failed.stderr
        last = failed.stderr.splitlines()[-1]
        assert re.search(r"observed \S+ beyond rounding, \S+ allowed$", last)
        mended = text.replace(TAIL.strip("\n"), GOOD.strip("\n"))
        assert mended != text
        good = run_alone(mended, tmp_path)
        assert (good.returncode, good.stdout, good.stderr) == (
            0, "every element is within its bound\n", "",
        )  # fmt: skip


def test_a_script_of_what_crashes(root: Path, tmp_path: Path) -> None:
    """It raises what the kernel does."""
    op, one = loaded(root, "raises")
    record = make_record(op="row_sum", kernel="raises", dims=CASE.dims, status="crashed",
                         reason="ValueError: no", stats=None)  # fmt: skip
    record = msgspec.structs.replace(record, run=cpu_run())
    for tolerance in (TOLERANCE, None):
        text = snippet.write(op, one, record, failure.of(record, None), tolerance)
        done = run_alone(text, tmp_path)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == "ValueError: (16, 40)"


@pytest.mark.parametrize("ends", ["exit()", "raise SystemExit(0)", "sys.exit(False)"])
def test_a_script_of_what_exits(root: Path, tmp_path: Path, ends: str) -> None:
    """It does not pass, whatever the status."""
    folder = tmp_path / "corpus" / "row_sum"
    shutil.copytree(root / "row_sum", folder)
    kernel = "import sys\n" + GOOD.replace("    return", f"    {ends}\n    return")
    (folder / "buggy" / "raises.py").write_text(kernel)
    op, one = loaded(tmp_path / "corpus", "raises")
    record = make_record(op="row_sum", kernel="raises", dims=CASE.dims, status="crashed",
                         reason="SystemExit: 0", stats=None, run=cpu_run())  # fmt: skip
    for tolerance in (TOLERANCE, None):
        text = snippet.write(op, one, record, failure.of(record, None), tolerance)
        done = run_alone(text, tmp_path)
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last == "AssertionError: run() ends the process with status 0"


def cpu_run() -> Any:
    return make_run(environment=make_environment(device_class="cpu", vendor="cpu", device="cpu"))


HELPER = "SHIFT = 1\n\n\ndef shifted(x):\n    return x + SHIFT\n"
#: (kernel, reference, modules beside the kernel), whose names are in each other's way or of a
#: module of their own
AWKWARD = {
    "local modules": (
        "import _near\nfrom _far.deep import shifted\n\n\ndef run(x):\n"
        "    return shifted(x) + _near.SHIFT\n",
        "def reference(x):\n    return x + 1\n",
        {"_near.py": HELPER, "_far/__init__.py": "", "_far/deep.py": HELPER},
    ),
    "the same names": (
        "SHIFT = 2\n\n\ndef reference(x):\n    return x + SHIFT\n\n\nrun = reference\n",
        "SHIFT = 1\n\n\ndef reference(x):\n    return x + SHIFT\n",
        {},
    ),
    "of a module": (
        "from __future__ import annotations\n\n\ndef run(x: Nowhere) -> Nowhere:\n"
        "    assert __name__ != '__main__'\n    return x + 2\n",
        "def reference(x):\n    '''a ''\\' in it'''\n    return x + 1\n",
        {},
    ),
    "the name of an exception": (
        "SHIFT = 2\n\n\ndef run(x):\n    return x + SHIFT\n",
        "try:\n    raise ValueError\nexcept ValueError as SHIFT:\n    pass\n\n\n"
        "def reference(x):\n    return x + 1\n",
        {},
    ),
    "a name that a function sets": (
        "SHIFT = 2\n\n\ndef run(x):\n    return x + SHIFT\n",
        "def _set():\n    global SHIFT\n    SHIFT = 5\n\n\n_set()\n\n\n"
        "def reference(x):\n    return x + 1\n",
        {},
    ),
    "a name that a pattern sets": (
        "SHIFT = 2\n\n\ndef run(x):\n    return x + SHIFT\n",
        "match (5, 6):\n    case (SHIFT, *rest):\n        pass\n\n\n"
        "def reference(x):\n    return x + 1\n",
        {},
    ),
    "our names": (
        "torch = 2\n_inputs = None\n\n\ndef float(x):\n    return x\n\n\ndef run(x):\n"
        "    return float(x) + torch\n",
        "def reference(x):\n    return x + 1\n",
        {},
    ),
    "quotes": (
        "TEXT = '''\\\n\\'''' + \"\"\"\t\"\"\"\n\n\ndef run(x):\n"
        "    return x + 2 * (TEXT[0] == \"'\")\n",
        "def reference(x):\n    return x + 1\n    # \\",
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "dtype"),
    list(
        zip(AWKWARD, itertools.cycle(("float32", "bfloat16", "float16", "float64")), strict=False)
    ),
)
def test_sources_that_do_not_stand_one_after_another(what: str, dtype: str, tmp_path: Path) -> None:
    """They become modules of their own, with the local modules that they import."""
    kernel, reference, modules = AWKWARD[what]
    folder = tmp_path / "shift"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "by_two.py").write_text(kernel)
    for name, code in modules.items():
        (folder / "kernels" / name).parent.mkdir(exist_ok=True)
        (folder / "kernels" / name).write_text(code)
    (folder / "reference.py").write_text(reference)
    (folder / "op.toml").write_text(
        f'summary = "x"\ndtypes = ["{dtype}"]\n[dims]\nH = [3]\n'
        '[inputs.x]\nshape = ["H"]\n[output]\nshape = ["H"]\n'
    )
    op, one = loaded(tmp_path, "by_two")
    record = make_record(op="shift", dtype=dtype, dims=(("H", 3),), run=cpu_run())
    text = snippet.write(op, one, record, None, TOLERANCE)
    done = run_alone(text, tmp_path)
    assert "AssertionError: 3 of 3 elements are wrong" in done.stderr, done.stderr
    right = text.replace("x + 2 ", "x + 1 ").replace("x + 2\\n", "x + 1\\n")
    right = right.replace("return x + 2\n", "return x + 1\n").replace("SHIFT = 2", "SHIFT = 1")
    right = right.replace("torch = 2\n", "torch = 1\n").replace(" + _near.SHIFT", "")
    done = run_alone(right, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_source_may_begin_with_a_mark(tmp_path: Path) -> None:
    """The byte order mark that some editors write, which Python itself takes, too."""
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbfdef run(x):\n    return x\n")
    (text,) = snippet._files(tmp_path / "a.py").values()
    assert text.startswith("def run")


def test_sources_that_no_script_can_hold(tmp_path: Path) -> None:
    """Too large, or not UTF-8: refused with the reason."""
    folder = tmp_path / "op" / "kernels"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("import _big\n")
    (folder / "_big.py").write_text("#" * snippet.MOST_SOURCE)
    with pytest.raises(TolcalError, match="with the 1 local modules that it imports"):
        snippet._files(folder / "a.py")
    (folder / "_big.py").write_bytes(b"# coding: latin-1\n# \xe9\n")
    with pytest.raises(TolcalError, match="not UTF-8"):
        snippet._files(folder / "a.py")


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    dtype=st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
    own=st.sampled_from([None, "int64", "uint8", "float8_e4m3fn", "float8_e5m2", "float32"]),
    count=st.sampled_from([1, 7, 64, 65, 1000]),
    few=st.integers(0, 3),
    seed=st.integers(0, 2**63 - 1),
    profile=st.sampled_from(cases.PROFILES),
)
def test_inputs_of_a_script_are_those_of_the_case(
    dtype: str, own: str | None, count: int, few: int, seed: int, profile: str
) -> None:
    """Literal, sparse, drawn or packed: the same bits in the same dtype and shape."""
    torch = pytest.importorskip("torch")
    high = 10.0 if own in (None, "float32") else 100
    spec = InputSpec(("B", "H"), -10.0 if own is None else 0, high, dtype=own)
    op = msgspec.structs.replace(loaded(CORPUS, "relu_triton")[0], inputs={"x": spec})
    case = Case("relu", dtype, (("B", 1), ("H", count)), profile, "contiguous", seed)
    arrays = cases.inputs_numpy(op, case)
    given = None
    if few:  # all but a few are 0
        keep = np.zeros(count, bool)
        keep[:: max(1, count // few)] = True
        given = {"x": np.where(keep, arrays["x"], np.zeros(1, arrays["x"].dtype))}
        arrays = given
    names: dict[str, Any] = {"torch": torch, "DEVICE": "cpu"}
    exec("\n\n".join(snippet._inputs(op, case, given)), names)
    x = names["_inputs"]["x"]
    assert (str(x.dtype), tuple(x.shape)) == (f"torch.{own or dtype}", (1, count))
    assert x.view(torch.uint8).numpy().tobytes() == np.ascontiguousarray(arrays["x"]).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn"])
def test_a_script_of_a_range_beyond_the_dtype(dtype: str) -> None:
    """What is no larger than the largest number in the case is not drawn anew."""
    torch = pytest.importorskip("torch")
    op = msgspec.structs.replace(
        loaded(CORPUS, "relu_triton")[0], inputs={"x": InputSpec(("B", "H"), -1e5, 1e5)}
    )
    case = Case("relu", dtype, (("B", 1), ("H", 1000)), "default", "contiguous", 3)
    names: dict[str, Any] = {"torch": torch, "DEVICE": "cpu"}
    exec("\n\n".join(snippet._inputs(op, case, None)), names)
    x = names["_inputs"]["x"].view(torch.uint8).numpy()
    assert x.tobytes() == cases.inputs_numpy(op, case)["x"].tobytes()


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.text(), st.sampled_from(["", "\n", "\r", "\x0c", "\u2028", "\x85"]))
def test_no_text_becomes_code(text: str, line_end: str) -> None:
    """What an exception said, or a device is called, stays in a comment."""
    op, one = loaded(CORPUS, "relu_triton")

    def code(reason: str) -> str:
        environment = msgspec.structs.replace(cpu_run().environment, device=reason)
        record = make_record(op="relu", status="crashed", stats=None,
                             reason=reason, run=make_run(environment=environment))  # fmt: skip
        made = snippet.write(op, one, record, failure.of(record, None), TOLERANCE)
        return ast.dump(ast.parse(made))

    assert code(f"Error: {text}{line_end}import os{line_end}exit(3)") == code("Error: none")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int32"])
def test_a_script_lays_inputs_out_as_the_case(layout: str, dtype: str) -> None:
    """The same strides and values, and something of nobody's around them."""
    torch = pytest.importorskip("torch")
    spec = InputSpec(("B", "H"), 0, 100, dtype=dtype)
    op = msgspec.structs.replace(loaded(CORPUS, "relu_triton")[0], inputs={"x": spec})
    case = Case("relu", "float32", (("B", 3), ("H", 5)), "default", layout, 7)
    names: dict[str, Any] = {"torch": torch, "DEVICE": "cpu"}
    exec("\n\n".join(snippet._inputs(op, case, None)), names)
    ours, theirs = names["_inputs"]["x"], cases.inputs_torch(op, case, "cpu")["x"]
    assert (ours.stride(), ours.storage_offset()) == (theirs.stride(), theirs.storage_offset())
    kinds = [x.contiguous().view(torch.uint8).tolist() for x in (ours, theirs)]
    assert kinds[0] == kinds[1]
    sizes = [x.untyped_storage().nbytes() for x in (ours, theirs)]
    assert sizes[0] == sizes[1]


def test_a_kernel_that_takes_a_layout_for_another(root: Path, tmp_path: Path) -> None:
    """Where the plain layout passes, the script has the one that does not."""
    folder = tmp_path / "corpus" / "row_sum"
    shutil.copytree(root / "row_sum", folder)
    flat = GOOD.replace("    return", "    x = x.as_strided(x.shape, (x.shape[1], 1))\n    return")
    (folder / "buggy" / "tail.py").write_text(flat)
    case = msgspec.structs.replace(CASE, layout="sliced", dims=(("B", 4), ("H", 3)))
    found = minimized(tmp_path / "corpus", "tail", case)
    assert found.after.case.layout == "sliced"
    assert found.after.case.dims == (("B", 2), ("H", 1))
    (op,) = corpus.select(corpus.load(tmp_path / "corpus"), ["row_sum"])
    told = list(minimizing._told(op, found))
    assert "layout     sliced; contiguous does not fail like that" in told
    text = script(tmp_path / "corpus", "tail", found.after)
    failed = run_alone(text, tmp_path)
    assert failed.returncode == 1
    assert "AssertionError" in failed.stderr
    done = run_alone(text.replace(flat.strip("\n"), GOOD.strip("\n")), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [("rmsnorm_triton_buggy", "float32"), ("softmax_llm_buggy", "float16"),
     ("flash_attention_last_tile_buggy", "float32")],
)  # fmt: skip
def test_known_wrong_kernels_of_the_corpus(kernel: str, dtype: str, tmp_path: Path) -> None:
    """In seconds to at most a handful of elements, by a script that the control passes."""
    op, one = loaded(CORPUS, kernel)
    assert one.corrupts is not None
    approved = tolerances.read(ROOT / "tolerances.toml")[op.name, dtype]
    dims = {"M": 8, "N": 64, "D": 8} if "M" in op.inputs.get("q", InputSpec(())).shape else {
        "B": 2, "S": 7, "H": 3}  # fmt: skip
    case = Case(op.name, dtype, tuple(dims.items()), "default", "contiguous", 1)
    found = minimized(CORPUS, kernel, case, tolerance=approved)
    assert found.finished
    assert found.elements[1] <= 3
    text = script(CORPUS, kernel, found.after, found.tolerance or TOLERANCE)
    assert run_alone(text, tmp_path).stderr.splitlines()[-1].startswith("AssertionError: ")
    source = Path(one.path).read_text().strip("\n")
    assert source in text
    control = Path(op.kernel(one.corrupts).path).read_text().strip("\n")
    done = run_alone(text.replace(source, control), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


# --- the commands --------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with this repository's corpus, tolerances and settings."""
    shutil.copytree(CORPUS, tmp_path / "corpus", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tolerances.toml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def between(text: str, mark: str) -> str:
    (found,) = re.findall(rf"<!-- {mark}:begin -->\n(.*?)<!-- {mark}:end -->", text, re.DOTALL)
    return str(found)


def masked(text: str) -> str:
    """Without what another machine, or another moment, gives otherwise."""
    text = re.sub(r"  on .*?\): ", "  on a CPU: ", text)
    return re.sub(r"found in .* s$", "found in some trials", text, flags=re.MULTILINE)


def test_the_page_shows_what_the_command_prints(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/minimize.md, from the id of a case to what is pinned. TOLCAL_UPDATE_GOLDEN=1 renews."""
    page = (ROOT / "docs" / "minimize.md").read_text()
    command, pinning = (shlex.split(line)[1:] for line in re.findall(r"^tolcal .*$", page, re.M))
    assert main([*command[: command.index("||")], "--budget-seconds", "600"]) == 1
    out = capsys.readouterr().out
    script = here / re.findall(r"^script +python (\S+)$", out, re.MULTILINE)[0]
    failed = run_alone(script.read_text(), here)
    assert failed.returncode == 1
    wrong = failed.stderr.splitlines()[-1]
    assert wrong.startswith("AssertionError: ")
    assert f"tolcal pin {pinning[1]} --why TEXT\n" in out
    before = (here / "corpus" / "flash_attention" / "op.toml").read_text()
    assert main(pinning) == 0
    assert "the gate set of every run from now on\nnext: commit" in capsys.readouterr().out
    after = (here / "corpus" / "flash_attention" / "op.toml").read_text()
    assert after.startswith(before)
    blocks = {"minimize": f"```text\n{out}```\n", "assertion": f"```text\n{wrong}\n```\n",
              "pinned": f"```toml\n{after.removeprefix(before).strip()}\n```\n"}  # fmt: skip
    if os.environ.get("TOLCAL_UPDATE_GOLDEN") == "1":
        for mark, block in blocks.items():
            begin, end = f"<!-- {mark}:begin -->\n", f"<!-- {mark}:end -->"
            page = page.replace(begin + between(page, mark) + end, begin + block + end)
        (ROOT / "docs" / "minimize.md").write_text(page)
        return
    for mark, block in blocks.items():
        assert masked(between(page, mark)) == masked(block)
    # What was found is found again by its id, and is pinned once.
    assert main([*pinning[:2], "--why", "again"]) == 2
    assert "is pinned already" in capsys.readouterr().err
    assert main(["replay", pinning[1], "--device", "cpu"]) == 0
    assert "identical to the record" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["minimize", "relu_triton:00"], "no record or gate case with id 'relu_triton:00'"),
        (["minimize", "83373d4d47553152"], "83373d4d47553152: give KERNEL:CASE: one kernel fails"),
        (["minimize", "softmax_triton:83373d4d47553152", "--device", "cpu"],
         "softmax_triton:83373d4d47553152 does not fail on "),
        (["minimize", "softmax_triton:83373d4d47553152", "--out", "pyproject.toml"],
         "--out pyproject.toml: exists and is no script of tolcal"),
        (["pin", "relu_triton:00", "--why", "w"], "no record or gate case with id"),
        (["pin", "softmax_triton:83373d4d47553152", "--why", "a\nb"], "--why: 3 characters"),
        (["replay", "83373d4d47553152", "--snippet"], "83373d4d47553152: a script is of one"),
    ],
)  # fmt: skip
def test_what_the_user_can_mend(
    here: Path, argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit status 2, and nothing written."""
    before = (here / "pyproject.toml").read_text()
    assert main(argv) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"tolcal: {says}")
    assert (here / "pyproject.toml").read_text() == before
    assert not (here / "out").exists()


def test_replay_prints_a_script(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To standard output alone, or to a file that it names."""
    case = "softmax_triton:83373d4d47553152"
    assert main(["replay", case, "--device", "cpu", "--snippet"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(snippet.FIRST)
    assert "passes its tolerance" in err
    assert main(["replay", case, "--device", "cpu", "--snippet", "a/b.py"]) == 0
    assert (here / "a" / "b.py").read_text() == out
    done = run_alone(out, here)
    assert (done.returncode, done.stdout) == (0, "every element is within its bound\n")
