"""Checks without a tolerance: each is failed by a kernel that breaks just that, and by no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checks_support import CASE, TRITON, checked, context, op_of, write_triton
from measure_support import run as measured
from measure_support import write_op

from tolcal.cli import main
from tolcal.measure import checks, configs
from tolcal.model import RELATION_MAX, Checks, Relation

#: Checks of a kernel that does all right, on an op that declares nothing.
CLEAN = Checks(unwritten=0, stray=0, inputs_changed=0, unrepeatable=0)


def failing(found: Checks) -> dict[str, int]:
    return {name: getattr(found, name) for name in found.failed}


# --- right kernels, and those that could be taken for wrong ones ------------------------------

RIGHT = {
    "plain": "def run(x):\n    return x + x\n",
    "written": "def run(x):\n    y = torch.empty_like(x)\n    torch.add(x, x, out=y)\n    return y\n",
    "zeros": "def run(x):\n    y = torch.zeros_like(x)\n    y += x\n    y += x\n    return y\n",
    "full": "def run(x):\n    return torch.full(x.shape, 2.0, dtype=x.dtype) * x\n",
    "view_of_scratch": (
        "def run(x):\n    big = torch.empty(2, *x.shape, dtype=x.dtype)\n    big[1] = x + x\n"
        "    return big[1]\n"
    ),
    "strided_scratch": (
        "def run(x):\n    s = torch.empty_strided(x.shape, (2 * x.shape[1], 2), dtype=x.dtype)\n"
        "    s.copy_(x)\n    return (s + s).contiguous()\n"
    ),
    "transposed_output": (
        "def run(x):\n    y = torch.empty(x.shape[::-1], dtype=x.dtype).T\n    y[:] = x + x\n"
        "    return y\n"
    ),
    "unused_scratch": "def run(x):\n    torch.empty(100)\n    x.new_empty((3, 4))\n    return x + x\n",
    "integer_scratch": (
        "def run(x):\n    i = torch.empty(x.shape[1], dtype=torch.int64)\n"
        "    torch.arange(x.shape[1], out=i)\n    return (x + x)[:, i]\n"
    ),
    "bool_scratch": (
        "def run(x):\n    m = torch.empty(x.shape, dtype=torch.bool)\n    m.fill_(True)\n"
        "    return torch.where(m, x + x, x)\n"
    ),
    "empty_allocation": "def run(x):\n    return torch.cat([x.new_empty(0, x.shape[1]), x + x])\n",
    "out_given": (
        "def run(x):\n    y = x.new_empty(x.shape)\n    torch.zeros(x.shape, out=y)\n"
        "    return y.add_(x).add_(x)\n"
    ),
    "in_place_on_a_copy": "def run(x):\n    y = x.clone()\n    y.mul_(2)\n    return y\n",
    "cached_output": (
        "kept = {}\n"
        "def run(x):\n    y = kept.setdefault(x.shape, torch.empty_like(x))\n"
        "    return torch.add(x, x, out=y)\n"
    ),
    "through_its_storage": (
        "def run(x):\n    y = torch.empty_like(x)\n    y.untyped_storage().fill_(0)\n"
        "    flat = torch.as_strided(y, (y.numel(),), (1,), 0)\n"
        "    flat += torch.as_strided(x, (x.numel(),), (1,), 0)\n"
        "    torch.empty(0, dtype=x.dtype).set_(y.untyped_storage()).add_(x.reshape(-1))\n"
        "    return y\n"
    ),
    "storage_as_large_as_it": (
        "def run(x):\n    y, rows = torch.empty_like(x), torch.zeros(4, 9, dtype=x.dtype)\n"
        "    for z in (x, y, rows, rows.new_empty(3)):\n"
        "        assert z.untyped_storage().nbytes() == z.numel() * z.element_size()\n"
        "        assert (z.storage_offset(), z._base) == (0, None)\n"
        "    return y.copy_(x + x)\n"
    ),
    "made_smaller": (
        "def run(x):\n    y = x.new_empty(100).resize_(x.shape)\n    return y.copy_(x + x)\n"
    ),
    "set_to_other_memory": (
        "def run(x):\n    y = torch.empty_like(x)\n    y.set_(x + x)\n    x.set_(y)\n"
        "    return y\n"
    ),
    "permuted_allocation": (
        "def run(x):\n    y = torch.empty_permuted(x.shape, (1, 0), dtype=x.dtype)\n"
        "    y.copy_(x + x)\n    return y\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(RIGHT))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_a_right_kernel_passes(name: str, dtype: str, tmp_path: Path) -> None:
    """However it allocates, and whatever memory its output is a view of."""
    assert checked(tmp_path, RIGHT[name], dtype=dtype) == msgspec.structs.replace(CLEAN, batch=0)


# --- one fault each ---------------------------------------------------------------------------

#: The second launch is that in guarded memory, where alone a stray write hurts nobody.
RAW = """\
import ctypes

launches = [0]


def watched():
    launches[0] += 1
    return launches[0] == 2


def at(x, i):
    return ctypes.c_float.from_address(x.data_ptr() + 4 * i)


"""
WRONG: dict[str, tuple[str, dict[str, int]]] = {
    "leaves_a_column": (
        "def run(x):\n    y = torch.empty_like(x)\n    y[:, 1:] = 2 * x[:, 1:]\n    return y\n",
        {"unwritten": 4},
    ),
    "writes_behind": (
        RAW + "def run(x):\n    y = torch.empty_like(x)\n    y[:] = x + x\n    if watched():\n"
        "        for i in (20, 21, 22):\n            at(y, i).value = 1\n    return y\n",
        {"stray": 3},
    ),
    "writes_before": (
        RAW + "def run(x):\n    y = torch.zeros_like(x)\n    y[:] = x + x\n    if watched():\n"
        "        at(y, -1).value = at(y, -9000).value = 1\n    return y\n",
        {"stray": 2},
    ),
    "writes_behind_its_input": (
        RAW + "def run(x):\n    if watched():\n        at(x, 20).value = 1\n    return x + x\n",
        {"stray": 1},
    ),
    "changes_its_input": (
        "def run(x):\n    y = x + x\n    x[0, :2] = 0\n    return y\n",
        {"inputs_changed": 2},
    ),
    "counts_its_launches": (
        "n = [0]\ndef run(x):\n    n[0] += 1\n    y = x + x\n    y[0, 0] += n[0] == 2\n    return y\n",
        {"unrepeatable": 1},
    ),
    "reads_behind_its_input": (
        RAW + "def run(x):\n    y = x + x\n    if watched():\n"
        "        y[3, 2] += 0 * at(x, 20).value\n    return y\n",
        {"unrepeatable": 1},
    ),
    "looks_at_the_whole_batch": (
        "def run(x):\n    y = x + x\n    y[0, 0] += x.shape[0] == 4\n    return y\n",
        {"batch": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG))
def test_a_fault_fails_its_check_alone(name: str, tmp_path: Path) -> None:
    """Nothing but the check that is meant for it, with the number of elements."""
    source, expected = WRONG[name]
    assert failing(checked(tmp_path, source)) == expected


def test_declared_writes_to_an_input_are_none(tmp_path: Path) -> None:
    """`mutates` allows them, for the input that it names."""
    source, _ = WRONG["changes_its_input"]
    assert checked(tmp_path, source, mutates=("x",)).failed == ()


def test_no_batch_no_check(tmp_path: Path) -> None:
    """Only what op.toml declares is checked."""
    source, _ = WRONG["looks_at_the_whole_batch"]
    assert checked(tmp_path, source, batch=None).batch is None


def test_a_kernel_may_keep_no_batch(tmp_path: Path) -> None:
    """One that `[kernels.X] batch = false` names, and what is made from it; the others must."""
    source = TRITON.format(second="n")
    wrong = source.replace("x + x, mask", "x + x + x, mask")
    write_op(tmp_path, kernels={"kept": source, "z_good": source}, buggy={"wrong": wrong})
    path = tmp_path / "double" / "op.toml"
    text = path.read_text().replace("[dims]", 'batch = "B"\n[dims]')
    path.write_text(text + "[kernels.z_good]\nbatch = false\n")
    found = [r for r in measured(tmp_path, gate=4) if dict(r.case.dims)["B"] == 4]
    assert {r.kernel: r.checks and r.checks.batch for r in found} == {
        "kept": 0, "z_good": None, "wrong": None
    }  # fmt: skip


@pytest.mark.parametrize(
    "layout", [("transposed", (1, 4), 0), ("sliced", (9, 1), 0), ("offset", (5, 1), 1)]
)
def test_inputs_keep_their_layout(layout: Any, tmp_path: Path) -> None:
    """Watched and transformed inputs have the strides and the alignment of the case's own."""
    _, stride, offset = layout
    source = (
        f"def run(x):\n    assert x.stride() == {stride}, x.stride()\n"
        f"    assert x.data_ptr() % 16 == {4 * offset}\n    return x + x\n"
    )
    found = checked(
        tmp_path, source, stride=stride, offset=offset, batch=None,
        relations=(Relation("odd", ("x",), (), 0.0), Relation("linear", ("x",), (), 1.0)),
    )  # fmt: skip
    assert found.failed == ()
    assert (found.odd, found.linear) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("around", "count"), [("x.storage_offset() - 1", 1), ("x.storage_offset() + 5", 1)]
)
def test_writes_between_rows_are_stray(around: str, count: int, tmp_path: Path) -> None:
    """What lies between the rows of a sliced input is none of it."""
    source = (
        f"{RAW}def run(x):\n    y = x + x\n    if watched():\n"
        f"        torch.as_strided(x, (1,), (1,), {around})[:] = 7\n    return y\n"
    )
    found = checked(tmp_path, source, stride=(9, 1), offset=2, batch=None)
    assert failing(found) == {"stray": count}


# --- a kernel that raises in a check ----------------------------------------------------------


def test_raising_on_an_input_of_its_domain_says_in_which_check(tmp_path: Path) -> None:
    """The relation's name, and what was raised."""
    from tolcal.measure.checks import FailedCheckError

    source = (
        "def run(x):\n    if (x < 0).all():\n        raise ValueError('no')\n    return x + x\n"
    )
    with pytest.raises(FailedCheckError) as caught:
        checked(tmp_path, source, low=1.0, relations=(Relation("odd", ("x",), (), 0.0),))
    assert (caught.value.check, str(caught.value.error)) == ("odd", "no")


def test_raising_in_guarded_memory_alone_is_no_fault(tmp_path: Path) -> None:
    """A kernel may make its memory larger: it is launched in the usual one then."""
    source = "def run(x):\n    y = torch.empty(4, 1).resize_(x.shape)\n    return y.copy_(x + x)\n"
    assert checked(tmp_path, source, batch=None) == CLEAN


# --- relations --------------------------------------------------------------------------------


def relation(kind: str, units: float = 0.0, **fields: Any) -> Relation:
    given: dict[str, Any] = {"inputs": ("x",), "dims": ()} | fields
    return Relation(kind, given["inputs"], given["dims"], units, given.get("to"))  # type: ignore[arg-type]


SOFTMAX = "def run(x):\n    e = torch.exp(x - x.amax(-1, keepdim=True))\n    return e / e.sum(-1, keepdim=True)\n"
SOFTMAX_REF = "def reference(x):\n    return torch.softmax(x, -1)\n"
NORM = "def run(x):\n    return x / (x * x).mean(-1, keepdim=True).sqrt()\n"
NORM_REF = NORM.replace("run", "reference")
TWICE_REF = "def reference(x):\n    return 2 * x\n"
SHIFT, SUMS = relation("shift"), relation("sums", 2.0, inputs=(), to=1.0)
RELATIONS: dict[str, tuple[Relation, str, str, str]] = {
    # name: relation, reference, a kernel that keeps it, one that does not
    "shift": (SHIFT, SOFTMAX_REF, SOFTMAX,
              "def run(x):\n    e = torch.exp(x)\n    return e / e.sum(-1, keepdim=True)\n"),
    "sums": (SUMS, SOFTMAX_REF, SOFTMAX,
             SOFTMAX.replace("e / e.sum(-1, keepdim=True)", "e / (e.sum(-1, keepdim=True) + 1e-5)")),
    "scale_invariant": (relation("scale_invariant", 4.0), NORM_REF, NORM,
                        NORM.replace(".sqrt()", ".add(1e-3).sqrt()")),
    "scale_equivariant": (relation("scale_equivariant"), TWICE_REF, RIGHT["plain"],
                          "def run(x):\n    return x + x + 1e-3\n"),
    "permutation": (relation("permutation", inputs=(), dims=("B", "H")), TWICE_REF,
                    RIGHT["plain"], "def run(x):\n    y = x + x\n    y[0, 0] *= 1.5\n    return y\n"),
    "odd": (relation("odd"), TWICE_REF, RIGHT["plain"],
            "def run(x):\n    return torch.where(x > 0, 2 * x, 2.0001 * x)\n"),
    "linear": (relation("linear", 4.0), TWICE_REF, RIGHT["plain"],
               "def run(x):\n    return x + x + 1e-4\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(RELATIONS))
def test_relations_tell_right_from_wrong(name: str, tmp_path: Path) -> None:
    """A kernel that keeps the relation has broken 0; one that doesn't fails by it alone."""
    kind, reference, right, wrong = RELATIONS[name]
    fields: dict[str, Any] = {"reference": reference, "relations": (kind,), "batch": None}
    good = checked(tmp_path / "good", right, **fields)
    assert good.broken == 0
    assert getattr(good, name) <= kind.units
    bad = checked(tmp_path / "bad", wrong, **fields)
    assert bad.failed == ("broken",)
    assert getattr(bad, name) > kind.units


@pytest.mark.parametrize("name", list(RELATIONS))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_relations_hold_in_each_dtype(name: str, dtype: str, tmp_path: Path) -> None:
    """Transformed inputs are exact: a kernel that rounds as it should passes."""
    kind, reference, right, _ = RELATIONS[name]
    inside = right.replace("def run(x):\n", "def run(x):\n    kept = x.dtype\n    x = x.double()\n")
    head, _, value = inside.rpartition("return ")
    source = f"{head}return ({value.strip()}).to(kept)\n"
    found = checked(
        tmp_path, source, dtype=dtype, reference=reference, relations=(kind,), batch=None,
        compute_dtype="float64" if dtype == "float64" else "float32",
    )  # fmt: skip
    assert found.broken == 0


def test_a_side_that_is_not_finite_is_as_far_as_can_be(tmp_path: Path) -> None:
    """RELATION_MAX, which a record can keep."""
    source = "def run(x):\n    return torch.where(x.sum() > 0, x + x, torch.inf)\n"
    found = checked(tmp_path, source, low=1.0, relations=(relation("odd"),), batch=None)
    assert (found.odd, found.broken) == (RELATION_MAX, 20)


def test_where_the_reference_does_not_keep_it_nothing_is_asked(tmp_path: Path) -> None:
    """An epsilon that matters at some elements: the relation is judged at the others."""
    reference = "def reference(x):\n    return torch.where(x > 5, x + 1, 2 * x)\n"
    found = checked(
        tmp_path, reference.replace("reference", "run"), reference=reference, batch=None,
        relations=(relation("scale_equivariant"),),
    )  # fmt: skip
    assert found.broken == 0


def test_a_relation_that_was_judged_nowhere_has_not_been_kept(tmp_path: Path) -> None:
    """It says so instead of 0 units; of others that were judged the elements are counted."""
    reference = "def reference(x):\n    return x + 1\n"
    odd, permutation = relation("odd"), relation("permutation", inputs=(), dims=("B",))
    fields: dict[str, Any] = {"reference": reference, "batch": None}
    source = reference.replace("reference", "run")
    alone = checked(tmp_path, source, relations=(odd,), **fields)
    assert alone == msgspec.structs.replace(CLEAN, odd_judged=0)
    both = checked(tmp_path, source, relations=(odd, permutation), **fields)
    assert both == msgspec.structs.replace(
        CLEAN, odd_judged=0, permutation=0.0, permutation_judged=20, broken=0
    )


def test_elements_outside_the_domain_are_not_judged_by_a_relation(tmp_path: Path) -> None:
    """All of a case may lie outside, before or after: of f(4x) = 4 f(x) those beyond a quarter."""
    fields: dict[str, Any] = {"relations": (relation("scale_equivariant"),), "batch": None}
    found = checked(tmp_path, RIGHT["plain"], domain=(-10.0, 10.0), **fields)
    inside = int((context(op_of(), TWICE_REF).ref.abs() <= 2 * 10 / 4).sum())
    assert 0 < inside < 20
    assert (found.scale_equivariant, found.scale_equivariant_judged) == (0.0, inside)
    found = checked(tmp_path, RIGHT["plain"], low=9.0, domain=(9.0, 10.0), **fields)
    assert (found.scale_equivariant, found.scale_equivariant_judged) == (None, 0)
    assert found.broken is None


@pytest.mark.parametrize("kind", ["shift", "linear"])
def test_what_a_relation_makes_of_an_input_may_lie_outside(kind: str, tmp_path: Path) -> None:
    """x + c and 0 are beyond a domain that holds x: a kernel may be wrong there."""
    source = "def run(x):\n    return torch.where((x < 9) | (x > 10), torch.nan, x - x)\n"
    found = checked(
        tmp_path, source, reference="def reference(x):\n    return 0 * x\n", low=9.0,
        domain=(9.0, 10.0), relations=(relation(kind),), batch=None,
    )  # fmt: skip
    assert (getattr(found, kind), getattr(found, f"{kind}_judged"), found.broken) == (None, 0, None)


@pytest.mark.parametrize("pattern", [0x7F, 0xFF])
def test_an_8_bit_nan_is_written(pattern: int, tmp_path: Path) -> None:
    """Either nan of float8_e4m3fn, one of which is what guarded memory is filled with."""
    source = (
        "def run(x):\n    y = (2 * x.double()).to(x.dtype)\n    bits = y.view(torch.uint8)\n"
        f"    bits[0, 1:3] = {pattern}\n    return y\n"
    )
    assert checked(tmp_path, source, dtype="float8_e4m3fn").unwritten == 0


@pytest.mark.parametrize("right", [True, False])
def test_sides_of_a_relation_in_the_same_memory(right: bool, tmp_path: Path) -> None:
    """A kernel that uses its output's memory again gives the second side in that of the first."""
    shift = " - x.amax(-1, keepdim=True)" if right else ""
    source = (
        f"kept = {{}}\ndef run(x):\n    e = torch.exp(x{shift})\n"
        "    y = kept.setdefault(x.shape, torch.empty_like(x))\n"
        "    return torch.div(e, e.sum(-1, keepdim=True), out=y)\n"
    )
    found = checked(
        tmp_path, source, dtype="float64", reference=SOFTMAX_REF, relations=(SHIFT,), batch=None,
        compute_dtype="float64",
    )  # fmt: skip
    assert (found.broken == 0) is right


@pytest.mark.parametrize(
    ("dtype", "near", "far"),
    [("float32", 2.0**-19, 2.0**-14), ("float16", 2.0**-9, 2.0**-5)],
)
def test_places_of_vector_loops_matter_little(dtype: str, near: float, far: float) -> None:
    """Where an element's place is in its bits, batches and permutations may differ by a little of
    the largest element, and what is farther off is a fault there, too."""
    made = context(
        op_of(relations=(relation("permutation", inputs=(), dims=("B",)), relation("odd"))),
        TWICE_REF, dtype,
    )  # fmt: skip
    for off in (0.0, near, far):

        def run(x: Any, off: float = off) -> Any:
            y = 2 * x
            y[x.shape[0] // 2] *= 1 + off
            return y

        for vectorised in (False, True):
            pending = checks.run(
                made, run, run(made.inputs["x"].clone()), configs.Launches(), interpreted=True,
                vectorised=vectorised,
            )  # fmt: skip
            found = checks.found(pending.names, pending.values.tolist())
            fails = off == far or (off != 0.0 and not vectorised)
            assert bool(found.batch) is bool(found.broken) is fails
            assert (found.permutation_judged, found.odd) == (20, 0.0)


# --- autotuned kernels --------------------------------------------------------------------------


@pytest.mark.parametrize(("second", "broken"), [("n", 0), ("n // 2", 10)])
def test_each_config_is_checked(second: str, broken: int, tmp_path: Path) -> None:
    """A config that writes half of the output fails, though another is chosen."""
    found = write_triton(tmp_path, second)
    assert (found.broken, found.configs) == (broken, RELATION_MAX if broken else 0.0)
    assert (found.unwritten, found.unrepeatable) == (0, 0)


def test_a_config_that_the_autotuner_passes_over_is_no_failure() -> None:
    """Too large for the device, or excluded by an assertion; anything else is the kernel's."""
    from triton.runtime.errors import OutOfResources

    assert configs.unusable(OutOfResources(2, 1, "shared memory"))
    assert not configs.unusable(RuntimeError("no"))


def test_context_is_of_the_case() -> None:
    """The tests' own case has the shape that the kernels above count on."""
    assert dict(CASE.dims) == {"B": 4, "H": 5}
    assert context(op_of(), TWICE_REF).ref.shape == (4, 5)


def test_run_says_what_was_broken_where_and_what_was_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which relation, in which profile and layout; and one that no output can keep."""
    write_op(tmp_path / "corpus", kernels={"double_bad": "def run(x):\n    return x + x.abs()\n"})
    path = tmp_path / "corpus" / "double" / "op.toml"
    path.write_text(
        path.read_text().replace(
            "[dims]", 'profiles = ["normal"]\nlayouts = ["strided"]\n\n[dims]'
        ).replace("4]", "1]")
        + '[relations]\nodd = { inputs = ["x"], units = 0 }\nsums = { to = 7.0, units = 1 }\n'
    )  # fmt: skip
    assert main([
        "run", "--corpus", str(tmp_path / "corpus"), "--device", "cpu", "--gate", "1", "--cases",
        "0", "--out", str(tmp_path / "r.jsonl.gz"),
    ]) == 0  # fmt: skip
    said = re.sub(r"double_bad:\w{16}", "ID", capsys.readouterr().err).splitlines()
    (broken,) = (line for line in said if line.startswith("fails a check: "))
    assert re.fullmatch(
        r"fails a check: ID float32 B=\d H=\d normal strided: broken=\d \(odd \S+\); "
        r"tolcal replay ID --history \S+",
        broken,
    )
    assert said[-1] == (
        "double: relation `sums` was judged on no element: the fp64 reference does not keep it; "
        "drop it, or mend its `inputs` or `dims`"
    )
