"""``tolcal.testing``: it judges as the records do, on numpy and torch alike, and says why."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tolcal import bounds, stats, testing, tolerances
from tolcal.calibrate import fit
from tolcal.model import (
    DTYPES,
    AllClose,
    Approved,
    Evidence,
    HeldOut,
    TolcalError,
    Tolerance,
    Values,
)
from tolcal.testing import arrays, judging

EVIDENCE = Evidence("residual", 2.0, 720, 18, ("NVIDIA H200",), HeldOut(18, 0), "00", 1.0, 2.0**-24)
CELL = Tolerance(1e-6, 4.0, AllClose(2e-6, 2e-3), evidence=EVIDENCE)


def approve(values: Any) -> Any:
    mark = Approved("ada", "2026-12-01T10:12:00Z", "9c1e7a40d2b86f13", values.value_digest)
    return msgspec.structs.replace(values, approved=mark)


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with cells of `double` in three dtypes, as if this file stood in it."""
    path = tmp_path / "tolerances.toml"
    on = {"sm_90": approve(Values(1.0, 4.0, AllClose(2e-6, 2e-3)))}
    tolerances.write(
        path,
        {
            ("double", "float32"): approve(CELL),
            ("double", "float16"): approve(msgspec.structs.replace(CELL, on=on)),
            ("double", "bfloat16"): approve(msgspec.structs.replace(CELL, bias_tol=0.5)),
        },
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(testing.cells, "caller", lambda: tmp_path)
    return path


def double(x: Any) -> Any:
    return x * 2.0


def as_kind(value: Any, kind: str) -> Any:
    return np.asarray(value) if kind == "numpy" else torch.as_tensor(value)


KINDS = pytest.mark.parametrize("kind", ["numpy", "torch"])


# --- the bound ------------------------------------------------------------------------------

FINITE = st.floats(-1e4, 1e4)
ANY = FINITE | st.sampled_from([math.inf, -math.inf, math.nan, 0.0, 70000.0])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_overflow_of_a_format_without_infinity(sign: float) -> None:
    """float8_e4m3fn may give nan or saturate, as records are judged."""
    ref = torch.tensor([sign * 1e6], dtype=torch.float64)
    cell = Tolerance(1e-6, 4.0, AllClose(1e-6, 1e-6))
    for value, mismatches in ((math.nan, 0), (sign * 448.0, 0), (-sign * 448.0, 1), (1.0, 1)):
        out = torch.tensor([value]).to(torch.float8_e4m3fn)
        compared = arrays.Compared(out, ref, None, "wide", DTYPES["float8_e4m3fn"], {})
        assert judging.judge(compared, cell, 2.0**-24).mismatches == mismatches


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_it_judges_as_records_are_judged(data: Any) -> None:
    """Same verdict as error_stats counts and bounds.exceeds tells; numpy and torch agree."""
    count = data.draw(st.integers(1, 12))
    ref = np.array(data.draw(st.lists(ANY, min_size=count, max_size=count)))
    off = np.array(data.draw(st.lists(st.floats(-4, 4), min_size=count, max_size=count)))
    with np.errstate(all="ignore"):
        out = (ref * (1 + off * 1e-3)).astype(np.float16)
    sigma = np.array(data.draw(st.lists(st.floats(0, 1e3), min_size=count, max_size=count)))
    values = Tolerance(
        data.draw(st.sampled_from([1e-6, 1e-3, 1.0])),
        data.draw(st.sampled_from([0.0, 1.0, 64.0, 512.0])),
        AllClose(1.0, 0.5),
    )
    u = 2.0**-24
    judgements = []
    for kind in ("numpy", "torch"):
        parts = [as_kind(a, kind) for a in (out, ref, sigma)]
        compared = arrays.Compared(*parts, "function", DTYPES["float16"], {})
        judgements.append(judging.judge(compared, values, u))
    ours, theirs = judgements
    assert math.isclose(ours.bias, theirs.bias, rel_tol=1e-9, abs_tol=1e-12)  # order of the sum
    assert repr(msgspec.structs.replace(theirs, bias=ours.bias)) == repr(ours)
    record = stats.error_stats(*map(torch.as_tensor, (out, ref, sigma)), u, values)
    assert (ours.exceeding, ours.mismatches) == (record.num_exceeding, record.nonfinite_mismatch)
    assert ours.passes == (record.num_exceeding == 0)
    assert (ours.used > 1) == (not ours.passes)
    assert ours.bias_count == record.bias_count
    assert record.bias is not None
    assert math.isclose(ours.bias, record.bias, rel_tol=1e-6, abs_tol=1e-9)
    rows = bounds.Rows(
        np.array([record.envelope]), np.array([record.scaled_max]), np.array([record.bias]),
        np.array([record.bias_count]), np.array([record.nonfinite_mismatch]),
    )  # fmt: skip
    if ours.used < 1 - 1e-6 or ours.used > 1 + 1e-6:  # records are rounded up to float32
        assert bounds.exceeds(rows, values)[0] == (not ours.passes)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_chunks_change_nothing(data: Any) -> None:
    """Three elements at a time give what all at once do: the same worst, at the same index."""
    ref = np.array(data.draw(st.lists(ANY, min_size=12, max_size=12))).reshape(3, 4)
    with np.errstate(all="ignore"):
        out = (ref * 1.01).astype(np.float16)
    compared = arrays.Compared(out, ref, None, "wide", DTYPES["float16"], {})
    whole = judging.judge(compared, CELL, 2.0**-24)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "CHUNK", 3)
        parts = judging.judge(compared, CELL, 2.0**-24)
    assert math.isclose(whole.bias, parts.bias, abs_tol=1e-12)
    same = msgspec.structs.replace(parts, bias=whole.bias)
    assert repr(same) == repr(whole)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.sampled_from(sorted(DTYPES)),
)
def test_the_numpy_forms_are_those_of_stats(values: list[float], name: str) -> None:
    """Gap and rounding, for any fp64 number and any format, bit for bit."""
    ref = np.array(values)
    dtype = DTYPES[name]
    tensor = torch.from_numpy(ref)
    np.testing.assert_array_equal(arrays.gap(ref, dtype), stats.gap(tensor, dtype).numpy())
    with np.errstate(all="ignore"):
        ours = arrays.round_to(ref, dtype)
    np.testing.assert_array_equal(ours, stats.round_to(tensor, dtype).numpy())


def test_sigma_is_the_same_in_numpy_and_torch() -> None:
    """The same signs for an input of the same name, so the same sensitivity."""
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(4, 33)), rng.normal(size=33)

    def soft(x: Any, w: Any, axis: int) -> Any:
        xp = torch if isinstance(x, torch.Tensor) else np
        e = xp.exp(x * w)
        return e / e.sum(axis, keepdims=True)

    out = soft(x, w, 1)
    ours = arrays.compare(out, soft, {"x": x, "w": w, "axis": 1}, None)
    tensors = {"x": torch.from_numpy(x), "w": torch.from_numpy(w), "axis": 1}
    theirs = arrays.compare(torch.from_numpy(out), soft, tensors, None)
    assert ours.sigma is not None
    np.testing.assert_allclose(ours.sigma, theirs.sigma.numpy(), rtol=1e-6)  # type: ignore[union-attr]
    assert (ours.sigma > 0).all()
    sequence = arrays.compare(out, soft, [x, w, 1], None)
    np.testing.assert_array_equal(sequence.sigma, ours.sigma)


# --- a reference that is a value ------------------------------------------------------------


@settings(deadline=None, max_examples=500)
@given(
    ref=st.floats(-60000, 60000), atol=st.floats(1e-9, 1e-2), c=st.floats(0, 1e4),
    share=st.floats(0, 1), name=st.sampled_from(["float16", "bfloat16", "float32"]),
)  # fmt: skip
def test_what_calibration_allows_passes_against_a_value(
    ref: float, atol: float, c: float, share: float, name: str
) -> None:
    """An output within (atol, c) on |ref| passes against the fp64 value and the rounded one.

    And by torch.testing with the pair itself, which is never tighter.
    """
    dtype, u = DTYPES[name], 2.0**-24
    pair = fit.allclose(atol, c, u, name)
    exact = torch.tensor([ref], dtype=torch.float64)
    allowed = atol + c * u * abs(ref) + float(stats.gap(exact, dtype)[0]) / 2
    out = (exact + share * allowed).to(getattr(torch, name))
    inside = abs(out.double() - exact) <= allowed
    if not inside or not torch.isfinite(out).all():
        return  # rounding to the output's dtype led out of it
    values = Values(atol, c, pair)
    rounded = stats.round_to(exact, dtype)
    for kind, value in (("wide", exact), ("rounded", rounded)):
        compared = arrays.Compared(out, value, None, kind, dtype, {})  # type: ignore[arg-type]
        assert judging.judge(compared, values, u).passes
    torch.testing.assert_close(out, rounded.to(out.dtype), atol=pair.atol, rtol=pair.rtol)


@KINDS
def test_a_rounded_reference_gets_one_more_half_gap(cells: Path, kind: str) -> None:
    """At 1.0 in float16 (gap 2^-10): one gap off passes only if the reference was rounded."""
    cell = approve(Tolerance(1e-9, 0.0, AllClose(6e-8, 9.8e-4), evidence=EVIDENCE))
    tolerances.write(cells, {("double", "float16"): cell})
    out = as_kind(np.array([1 + 2.0**-10], np.float16), kind)
    testing.assert_close(out, as_kind(np.array([1.0], np.float16), kind), op="double")
    with pytest.raises(AssertionError, match="beyond half a gap of float16"):
        testing.assert_close(out, as_kind(np.array([1.0]), kind), op="double")
    out = as_kind(np.array([1 + 2.0**-9], np.float16), kind)
    with pytest.raises(AssertionError, match="beyond a whole gap of float16"):
        testing.assert_close(out, as_kind(np.array([1.0], np.float16), kind), op="double")


# --- what it says ---------------------------------------------------------------------------


@KINDS
def test_the_whole_message(cells: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of a failure, by hand: 2 of 6 elements, one of them nan."""
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "tests/test_x.py::test_double[a b] (call)")
    x = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3)
    out = x * 2
    out[0, 1], out[1, 2] = 4.5, np.nan
    with pytest.raises(AssertionError) as caught:
        testing.assert_close(as_kind(out, kind), double, inputs=[as_kind(x, kind)], op="double")
    line = cells.read_text().splitlines().index("[double.float32]") + 1
    assert (
        str(caught.value)
        == f"""\
double/float32 is outside its tolerance (tolerances.toml:{line})

Mismatched elements: 2 / 6 (33.3%)
Not finite here or in the reference, but not in both alike: 1, first at index (1, 2): out nan, ref 12
Greatest residual and scaled error (1.05e+06 u of the scale): 0.5 at index (0, 1): out 4.5, ref 4, allowed 2.91e-06 (1.72e+05x)

Bound: residual <= atol 1e-06 + scaled_tol 4 * u * (|ref| + sigma), u = 2^-24; residual = |out - ref| beyond half a gap of float32
Evidence: rule residual, margin 2, 720 rows of 18 runs on NVIDIA H200; 0 of 18 held-out runs red; approved by ada at 2026-12-01T10:12:00Z
Again: pytest 'tests/test_x.py::test_double[a b]'
A value that is not finite is no noise, and no tolerance covers it: look at the kernel, its inputs and the reference"""
    )


def test_what_to_do_about_noise(cells: Path) -> None:
    """The last line, where a wider tolerance could help: sessions of fresh inputs, in a history."""
    with pytest.raises(AssertionError) as caught:
        testing.assert_close(X * 2 + 1e-4, double, inputs=[X], op="double")
    assert (
        str(caught.value).splitlines()[-1]
        == "If the kernel is right and this is noise, the cell needs more evidence (a control has "
        "720 rows or more): parametrize the test over seeds, record sessions into a history, and "
        "ask for more: pytest --tolcal-record out/history; tolcal calibrate --history out/history "
        "--json out/proposal.json; tolcal approve out/proposal.json double/float32 --widen REASON. "
        "A session in which a comparison failed becomes a file beside the history, as it says: "
        "give that as one more --history"
    )
    with pytest.raises(AssertionError) as caught:
        testing.assert_close(X * 2 + 1e-3, double, inputs=[X], op="double")
    assert (
        str(caught.value)
        .splitlines()[-1]
        .startswith(
            "At 512x its bound this looks like a fault, not noise: check the kernel, its inputs and "
            "the reference first. If the kernel is right and this is noise, "
        )
    )


def test_again_from_a_folder_below(cells: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node id starts at pytest's root; the line is for where its reader stands. And whole."""
    test = f"tests/test_x.py::test_double[{'long-' * 100}]"
    monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{test} (call)")
    below = cells.parent / "tests" / "below"
    below.mkdir(parents=True)
    (below.parent / "test_x.py").touch()
    for here, expected in ((cells.parent, test), (below, test.replace("tests/", "../"))):
        monkeypatch.chdir(here)
        with pytest.raises(AssertionError) as caught:
            testing.assert_close(X, double, inputs=[X], op="double")
        assert f"Again: pytest '{expected}'" in str(caught.value).splitlines()


def test_where_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and its remedy reads what it records."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(testing.UncalibratedError) as caught:
        testing.assert_close(X * 2, double, inputs=[X], op="double", tolerances="none.toml")
    assert (
        str(caught.value) == "there is no none.toml yet, so no tolerance for double/float32; "
        "measure it (pytest --tolcal-record out/history, or `tolcal run --history out/history`), "
        "`tolcal calibrate --history out/history --json out/proposal.json`, `tolcal approve "
        'out/proposal.json`, or give fallback="torch" to use torch\'s defaults meanwhile'
    )


@KINDS
def test_a_coherent_error_is_seen(cells: Path, kind: str) -> None:
    """Truncation to bfloat16 is inside the elementwise bound, and its bias is not."""
    rng = np.random.default_rng(3)
    exact = rng.uniform(1, 2, 4096).astype(np.float32)
    truncated = (exact.view(np.uint32) & 0xFFFF0000).view(np.float32)
    cell = Tolerance(1e-2, 4.0, AllClose(1e-2, 2e-2), bias_tol=0.5, evidence=EVIDENCE)
    tolerances.write(cells, {("double", "bfloat16"): approve(cell)})
    out, ref = as_kind(truncated, kind), as_kind(exact.astype(np.float64), kind)
    if kind == "torch":
        out = out.to(torch.bfloat16)
    with pytest.raises(AssertionError, match=r"Bias: errors of \d+ elements point one way") as said:
        testing.assert_close(out, ref, op="double", dtype="bfloat16")
    assert "Mismatched" not in str(said.value)
    few = slice(0, 1000)
    testing.assert_close(out[few], ref[few], op="double", dtype="bfloat16")


@KINDS
def test_a_rounded_reference_tells_truncation_from_a_slight_lean(cells: Path, kind: str) -> None:
    """Its bias is nearly that against the exact reference, though most errors are 0 or a gap."""
    exact = np.random.default_rng(3).uniform(1, 2, 2**17)
    nearest, gap = exact.astype(np.float32), np.float32(2.0**-23)
    truncated = np.where(nearest > exact, nearest - gap, nearest)
    leaning = (exact + 0.02 * gap).astype(np.float32)
    cell = Tolerance(1e-2, 4.0, AllClose(1e-2, 2e-2), bias_tol=0.5, evidence=EVIDENCE)
    tolerances.write(cells, {("double", "float32"): approve(cell)})
    ref = as_kind(nearest, kind)
    with pytest.raises(AssertionError, match=r"Bias: errors of \d+ elements point one way") as said:
        testing.assert_close(as_kind(truncated, kind), ref, op="double")
    assert "Mismatched" not in str(said.value)
    testing.assert_close(as_kind(leaning, kind), ref, op="double")
    for out in (truncated, leaning):
        rounded, wide = (
            judging.judge(
                arrays.compare(as_kind(out, kind), as_kind(of, kind), None, None), cell, 2.0**-24
            )
            for of in (nearest, exact)
        )
        assert rounded.bias_count >= bounds.BIAS_MIN_COUNT
        assert math.isclose(rounded.bias, wide.bias, abs_tol=0.02)


@KINDS
def test_matching_non_finite_values_pass(cells: Path, kind: str) -> None:
    """By position and kind, after rounding: 1e5 is an infinity of float16."""
    out = as_kind(np.array([np.nan, np.inf, -np.inf, np.inf, 1.0], np.float16), kind)
    ref = as_kind(np.array([np.nan, np.inf, -np.inf, 1e5, 1.0]), kind)
    testing.assert_close(out, ref, op="double")
    with pytest.raises(AssertionError, match="alike: 3, first at index"):
        testing.assert_close(out, -ref, op="double")


def test_an_empty_output_passes(cells: Path) -> None:
    """There is nothing to be wrong."""
    testing.assert_close(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.float64), op="double")


# --- calls that can't be judged -------------------------------------------------------------

X = torch.ones(2)


def in_place(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2.0)


def by_position(x: torch.Tensor, /) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        ({"op": "Double"}, TolcalError, "no name of an op"),
        ({"op": "triple"}, testing.UncalibratedError, "triple/float32 (the op has no cell at all"),
        ({"op": "doubel"}, testing.UncalibratedError, "did you mean 'double'?"),
        ({"actual": X.double()}, testing.UncalibratedError, "double has float32, float16, bfloat1"),
        ({"dtype": "float16"}, AssertionError, "the output is float32, float16 expected"),
        ({"dtype": "int8"}, TolcalError, "dtype int8: known are float64"),
        ({"compute_dtype": "tf32"}, TolcalError, "compute_dtype 'tf32'"),
        ({"fallback": "numpy"}, TolcalError, "fallback='numpy'"),
        ({"inputs": None}, TolcalError, "needs inputs="),
        ({"inputs": [X, X]}, TolcalError, "don't fit the reference function"),
        ({"inputs": [3]}, TolcalError, "no floating-point tensor"),
        ({"reference": X.double()}, TolcalError, "inputs= goes with a reference function"),
        ({"reference": in_place}, TolcalError, "changes its input 'x'"),
        ({"reference": lambda x: x.float()}, TolcalError, "returned a Tensor of torch.float32"),
        ({"reference": lambda x: x[:1]}, AssertionError, "shape [2], its reference [1]"),
        ({"actual": [2.0, 2.0]}, TolcalError, "actual is a list"),
        ({"inputs": {"y": X}}, TolcalError, "don't fit the reference function (missing a required"),
        ({"reference": by_position}, TolcalError, "takes 'x' by position only"),
        ({"reference": by_position, "inputs": {"x": X}}, TolcalError, "takes 'x' by position only"),
        ({"reference": lambda *x: x[0]}, TolcalError, "takes '*x' by position only"),
        ({"actual": X.to_sparse()}, TolcalError, "actual is sparse (torch.sparse_coo); give a"),
        ({"inputs": [X.to_sparse()]}, TolcalError, "inputs= 'x' is sparse"),
        ({"reference": lambda x: x.to_sparse()}, TolcalError, "function's value is sparse"),
        ({"actual": X.to("meta")}, TolcalError, "actual is on the meta device"),
        ({"reference": X.to("meta"), "inputs": None}, TolcalError, "reference is on the meta dev"),
        ({"reference": "2, 2", "inputs": None}, TolcalError, "reference is of dtype <U4, not of"),
        ({"reference": [[1], [2, 3]], "inputs": None}, TolcalError, "reference is no array of num"),
    ],
)
def test_a_call_that_can_not_be_judged(
    cells: Path, call: dict[str, Any], error: type[Exception], says: str
) -> None:
    """One line that says what to give instead."""
    whole = {"actual": X * 2, "reference": double, "inputs": [X], "op": "double"} | call
    if call.get("actual") == [2.0, 2.0]:
        whole |= {"reference": np.ones(2), "inputs": None}
    with pytest.raises(error) as caught:
        testing.assert_close(whole.pop("actual"), whole.pop("reference"), **whole)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_reference_that_is_no_function(cells: Path) -> None:
    """Chance or a state in it would make sigma explode, so that zeros pass. numpy and torch."""
    calls = [0]

    def counting(x: Any) -> Any:
        calls[0] += 1
        return x * calls[0]

    def drops(x: Any) -> Any:
        return torch.nn.functional.dropout(torch.softmax(x, -1))

    def noisy(x: Any) -> Any:
        return x + np.random.default_rng().normal(size=x.shape)

    def spoilt_later(x: Any) -> Any:  # the calls for sigma are what changes it
        calls[0] += 1
        return x * (1.0 if calls[0] < 3 else 2.0)

    for function, kind in (
        (counting, "numpy"), (counting, "torch"), (drops, "torch"), (noisy, "numpy"),
        (spoilt_later, "numpy"), (spoilt_later, "torch"),
    ):  # fmt: skip
        calls[0] = 0
        x = as_kind(np.ones((4, 64), np.float32), kind)
        with pytest.raises(TolcalError, match="two different values for the same inputs") as said:
            testing.assert_close(x * 0, function, inputs=[x], op="double")
        assert "\n" not in str(said.value)


@KINDS
def test_a_reference_that_changes_what_is_no_float(cells: Path, kind: str) -> None:
    """A mask, an index, and arrays in a list: all that goes in must come out as it was."""
    x = as_kind(np.ones(4, np.float32), kind)

    def flips(x: Any, mask: Any) -> Any:
        mask[:2] = ~mask[:2]
        return x * 2

    def counts(x: Any, index: Any) -> Any:
        index += 1
        return x * 2

    def fills(x: Any, state: Any) -> Any:
        state[0][0] = 7
        return x * 2

    for function, other in (
        (flips, as_kind(np.zeros(4, bool), kind)),
        (counts, as_kind(np.arange(4), kind)),
        (fills, [as_kind(np.zeros(4, np.float16), kind)]),
    ):
        name = list(inspect.signature(function).parameters)[1]
        with pytest.raises(TolcalError, match=f"changes its input '{name}'"):
            testing.assert_close(x * 2, function, inputs=[x, other], op="double")


@KINDS
def test_a_reference_may_use_one_buffer(cells: Path, kind: str) -> None:
    """Its first value is kept apart from those of the perturbed inputs."""
    x = np.arange(1.0, 5.0, dtype=np.float32)
    buffer = as_kind(np.zeros(4), kind)

    def fill(x: Any) -> Any:
        buffer[:] = x * 2
        return buffer

    given = as_kind(x, kind)
    ours = arrays.compare(given * 2, fill, [given], None)
    plain = arrays.compare(given * 2, double, [given], None)
    np.testing.assert_array_equal(np.asarray(ours.sigma), np.asarray(plain.sigma))
    np.testing.assert_array_equal(np.asarray(ours.ref), 2 * x)


def test_the_unit_is_that_of_the_evidence(cells: Path) -> None:
    """compute_dtype can't stretch a bound; without evidence it can only shrink it."""
    off = X * 2 + 1e-3

    def says(op: str, compute_dtype: str | None) -> str:
        try:
            testing.assert_close(off, double, inputs=[X], op=op, compute_dtype=compute_dtype)
        except (AssertionError, TolcalError) as error:
            return str(error)
        return "passes"

    assert "u = 2^-24" in says("double", None)
    assert "u = 2^-24" in says("double", "float32")
    for other in ("float8_e5m2", "float16", "float64"):
        assert "was fitted with u = 5.96046e-08, not" in says("double", other)
    tolerances.write(cells, {("mine", "float32"): Tolerance(1e-6, 4.0, AllClose(2e-6, 2e-3))})
    assert "u = 2^-24" in says("mine", None)
    assert "u = 2^-53" in says("mine", "float64")
    assert "rests on no evidence, so u may not be coarser than that of float32" in says(
        "mine", "float16"
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fallback", [None, "torch"])
@KINDS
def test_complex_numbers_are_refused(cells: Path, kind: str, fallback: Any) -> None:
    """With an imaginary part that is wrong they would pass."""
    real, wrong = as_kind(np.ones(3), kind), as_kind(np.ones(3) + 9j, kind)
    options = {"op": "double" if fallback is None else "new", "fallback": fallback}
    single = np.float32 if kind == "numpy" else torch.float32
    out = real.astype(single) if kind == "numpy" else real.to(single)
    for actual, reference, what in (
        (out, wrong, "reference is complex128"),
        (wrong, real, "actual is complex128"),
        (out, [1 + 9j] * 3, "reference is complex128"),
    ):
        with pytest.raises(TolcalError, match=f"{what}: only real numbers can be judged"):
            testing.assert_close(actual, reference, **options)
    with pytest.raises(TolcalError, match=r"returned a .* of .*complex128"):
        testing.assert_close(out, lambda x: x * (1 + 0j), inputs=[out], **options)


@KINDS
def test_torchs_defaults_are_opted_into(cells: Path, kind: str) -> None:
    """With a warning; they pass 1e-6 at 1 in float32 and refuse 1e-4."""
    ref = as_kind(np.ones(3), kind)
    near, far = (as_kind(np.full(3, 1 + e, np.float32), kind) for e in (1e-6, 1e-4))
    with pytest.warns(testing.UncalibratedWarning, match="no tolerance for new/float32"):
        testing.assert_close(near, ref, op="new", fallback="torch")
    with pytest.warns(testing.UncalibratedWarning), pytest.raises(AssertionError):
        testing.assert_close(far, ref, op="new", fallback="torch")


def test_numbers_changed_by_hand_are_not_used(cells: Path) -> None:
    """They are nobody's, until they are approved."""
    cells.write_text(cells.read_text().replace("scaled_tol = 4.0", "scaled_tol = 400.0", 1))
    with pytest.raises(TolcalError, match="was changed by hand since it was approved"):
        testing.assert_close(X * 2, double, inputs=[X], op="double")


def test_the_file_is_read_again_once_it_changes(cells: Path) -> None:
    """A long session sees an approval."""
    assert testing.tolerance("double", "float32") == {"atol": 2e-6, "rtol": 2e-3}
    cell = Tolerance(1e-6, 4.0, AllClose(3e-6, 2e-3))
    tolerances.write(cells, {("double", "float32"): cell})
    assert testing.tolerance("double", torch.float32) == {"atol": 3e-6, "rtol": 2e-3}


def test_the_nearest_file_above_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the working folder; and one can be named."""
    inner = tmp_path / "repo" / "tests"
    inner.mkdir(parents=True)
    tolerances.write(inner.parent / "tolerances.toml", {("mine", "float32"): CELL})
    source = inner / "t.py"
    source.write_text("def call():\n from tolcal import testing\n"
                      " return testing.tolerance('mine', 'float32')\n")  # fmt: skip
    scope: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), scope)
    monkeypatch.chdir(tmp_path)
    assert scope["call"]() == {"atol": 2e-6, "rtol": 2e-3}
    with pytest.raises(testing.UncalibratedError):
        testing.tolerance("mine", "float32")
    named = inner.parent / "tolerances.toml"
    assert testing.tolerance("mine", "float32", tolerances=named) == {"atol": 2e-6, "rtol": 2e-3}


def test_an_override_holds_on_its_device(cells: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the device class is that of the override, its numbers are judged by."""
    out, ref = np.full(2, 2.5, np.float16), np.full(2, 2.0)
    x = np.ones(2, np.float16)
    with pytest.raises(AssertionError, match=r"tolerances.toml:\d+\)"):
        testing.assert_close(out, double, inputs=[x], op="double")
    monkeypatch.setattr(arrays, "device_class", lambda value: "sm_90")
    testing.assert_close(out, double, inputs=[x], op="double")
    with pytest.raises(AssertionError, match=r"tolerances.toml:\d+ \(sm_90\)"):
        testing.assert_close(out * 2, double, inputs=[x], op="double")
    assert ref.dtype == np.float64


def test_opinfo_takes_the_overrides(cells: Path) -> None:
    """torch's own decorator accepts the dictionary, for each dtype that has a cell."""
    from torch.testing._internal.common_device_type import toleranceOverride

    overrides = testing.tolerance_override("double")
    assert set(overrides) == {torch.float32, torch.float16, torch.bfloat16}
    assert overrides[torch.float16] == (2e-6, 2e-3)
    marked = toleranceOverride(overrides)(lambda: None)
    assert marked.tolerance_overrides is overrides
    with pytest.raises(testing.UncalibratedError):
        testing.tolerance_override("triple")


@pytest.mark.parametrize("lacks", ["torch", "expecttest"])
def test_opinfo_needs_what_is_missing(
    cells: Path, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names that alone."""
    for name in [n for n in sys.modules if n.startswith("torch.testing._internal")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, lacks, None)
    with pytest.raises(TolcalError, match=f"helpers can't be imported .*: pip install {lacks}$"):
        testing.tolerance_override("double")


def test_what_a_mixture_of_kinds_does(cells: Path) -> None:
    """A tensor beside arrays makes all of them tensors; gradients stay out of it."""
    x = torch.ones(3, requires_grad=True)
    testing.assert_close(x * 2, double, inputs=[np.ones(3, np.float32)], op="double")
    testing.assert_close(x * 2, np.full(3, 2.0), op="double")
    testing.assert_close(np.full(3, 2.0, np.float32), torch.full((3,), 2.0).double(), op="double")


def test_numpy_alone_is_enough(cells: Path) -> None:
    """Where torch and the report's libraries are missing, arrays are judged all the same."""
    code = f"""
import sys
for name in ("torch", "triton", "pandas", "pyarrow", "rich", "jinja2", "requests"):
    sys.modules[name] = None
import numpy as np
from tolcal.testing import assert_close
x = np.ones((3, 5), np.float32)
options = {{"op": "double", "tolerances": {str(cells)!r}}}
assert_close(x * 2, lambda x: x * 2, inputs=[x], **options)
assert_close(x * 2, np.full((3, 5), 2.0), **options)
try:
    assert_close(x * 3, lambda x: x * 2, inputs=[x], **options)
except AssertionError as error:
    print(str(error).splitlines()[2])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("Mismatched elements: 15 / 15 (100.0%)\n", "")
