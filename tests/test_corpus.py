"""The corpus: what is shipped, what breaks the contract, hashes and selection."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests_support import CORPUS, DATA

from tolcal import corpus
from tolcal.model import PROFILES, Op, TolcalError

TOML = """\
summary = "twice x"
dtypes = ["float32"]

[dims]
B = [1, 2]

[inputs.x]
shape = ["B"]

[output]
shape = ["B"]

[buggy.thrice]
corrupts = "twice"
fault = "three times x"
"""
REFERENCE = "def reference(x):\n    return 2 * x\n"
KERNEL = "def run(x):\n    return x + x\n"

# op -> controls, buggy kernel -> control, dims, hand-picked values: as the paper has them, but for
# the subtle buggy kernels, which it lacks.
BSH = {"B": (1, 2, 8), "S": (1, 7, 128), "H": (1, 3, 256, 1025)}
NORM = BSH | {"H": (2, 3, 256, 1025)}
ATTENTION = {"M": (1, 2, 8), "N": (1, 3, 16, 256), "D": (8, 16, 64)}
FLASH = ATTENTION | {"N": (1, 3, 16, 64, 128, 256)}
TIGHT, LOOSE = {"float32": 1e-5, "float16": 1e-3}, {"float32": 1e-4, "float16": 5e-2}
WIDE = {"float32": 1e-3, "float16": 5e-2}
MATMUL = {"M": (1, 2, 7, 128), "K": (1, 3, 16, 127, 256), "N": (1, 2, 15, 64)}
MATMUL_TRITON = {"M": (1, 2, 7, 64), "K": (1, 3, 16, 64), "N": (1, 2, 15, 64)}
SHIPPED: dict[str, tuple[set[str], dict[str, str], dict[str, tuple[int, ...]], object]] = {
    "attention": (
        {"attention_triton"},
        {
            "attention_triton_buggy": "attention_triton",
            "attention_bfloat16_scores_buggy": "attention_triton",
        },
        ATTENTION,
        WIDE,
    ),
    "elu": ({"elu_triton"}, {}, BSH, LOOSE),
    "flash_attention": (
        {"flash_attention_triton"},
        {
            "flash_attention_triton_buggy": "flash_attention_triton",
            "flash_attention_last_tile_buggy": "flash_attention_triton",
        },
        FLASH,
        WIDE,
    ),
    "gelu": (
        {"gelu_triton"},
        {"gelu_triton_buggy": "gelu_triton", "gelu_erf_buggy": "gelu_triton"},
        BSH,
        LOOSE,
    ),
    "l2norm": (
        {"l2norm_triton"},
        {"l2norm_triton_buggy": "l2norm_triton", "l2norm_odd_width_buggy": "l2norm_triton"},
        NORM,
        LOOSE,
    ),
    "layernorm": ({"layernorm"}, {"layernorm_one_pass_buggy": "layernorm"}, NORM, LOOSE),
    "leaky_relu": (
        {"leaky_relu_triton"},
        {
            "leaky_relu_triton_buggy": "leaky_relu_triton",
            "leaky_relu_bfloat16_slope_buggy": "leaky_relu_triton",
        },
        BSH,
        TIGHT,
    ),
    "matmul": (
        {"matmul", "matmul_triton"},
        {
            "matmul_triton_buggy": "matmul_triton",
            "matmul_bfloat16_accumulator_buggy": "matmul_triton",
        },
        MATMUL,
        {"float32": 5e-2},
    ),
    "relu": ({"relu_triton"}, {}, BSH, TIGHT),
    "rmsnorm": (
        {"rmsnorm_triton"},
        {"rmsnorm_triton_buggy": "rmsnorm_triton", "rmsnorm_eps_buggy": "rmsnorm_triton"},
        NORM,
        LOOSE,
    ),
    "sigmoid": ({"sigmoid_triton"}, {"sigmoid_log2e_buggy": "sigmoid_triton"}, BSH, LOOSE),
    "silu": (
        {"silu_triton"},
        {"silu_triton_buggy": "silu_triton", "silu_truncating_store_buggy": "silu_triton"},
        BSH,
        LOOSE,
    ),
    "softmax": (
        {"softmax", "softmax_triton"},
        {
            "softmax_llm_buggy": "softmax",
            "softmax_triton_buggy": "softmax_triton",
            "softmax_float16_sum_buggy": "softmax_triton",
        },
        BSH,
        {"float32": 1e-5, "float16": 2e-2},
    ),
    "tanh": ({"tanh_triton"}, {"tanh_cancelling_buggy": "tanh_triton"}, BSH, LOOSE),
}  # fmt: skip


@pytest.fixture(scope="module")
def shipped() -> dict[str, Op]:
    return {op.name: op for op in corpus.load(CORPUS)}


def write_op(root: Path, name: str = "double", /, **files: str | bytes | None) -> Path:
    """A sound op folder; ``files`` (``buggy__thrice`` is buggy/thrice.py) replace or drop."""
    content: dict[str, str | bytes | None] = {
        "op.toml": TOML,
        "reference.py": REFERENCE,
        "kernels/twice.py": KERNEL,
        "buggy/thrice.py": KERNEL,
    }
    for key, value in files.items():
        content["op.toml" if key == "toml" else key.replace("__", "/") + ".py"] = value
    for path, value in content.items():
        if value is not None:
            target = root / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(value.encode() if isinstance(value, str) else value)
    return root / name


def refusal(root: Path) -> str:
    """The message with which loading ``root`` fails, its path written as ROOT."""
    with pytest.raises(TolcalError) as caught:
        corpus.load(root)
    return str(caught.value).replace(str(root), "ROOT")


# --- what is shipped ------------------------------------------------------------------------


def test_shipped_counts(shipped: dict[str, Op]) -> None:
    """The paper's 14 ops have 16 controls, 10 uniform buggy kernels and 12 subtle."""
    assert set(SHIPPED) <= set(shipped)
    kernels = [kernel for name in SHIPPED for kernel in shipped[name].kernels]
    counts = Counter((kernel.role, kernel.subtle) for kernel in kernels)
    assert counts == {("control", False): 16, ("buggy", False): 10, ("buggy", True): 12}
    assert len(SHIPPED) == 14


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_op(shipped: dict[str, Op], name: str) -> None:
    """Every op has the paper's kernels, dims, dtypes and hand-picked tolerances."""
    op = shipped[name]
    controls, buggy, dims, legacy = SHIPPED[name]
    assert {k.name for k in op.kernels if k.role == "control"} == controls
    assert {k.name: k.corrupts for k in op.kernels if k.role == "buggy"} == buggy
    assert op.dtypes == ("float32", "float16", "bfloat16")
    assert op.compute_dtype == "float32"
    assert op.legacy_atol == legacy
    for kernel in op.kernels:
        own = MATMUL_TRITON if "matmul_triton" in (kernel.name, kernel.corrupts) else dims
        assert dict(kernel.dims) == own, kernel.name


def test_shipped_buggy_kernels_name_their_control_and_fault(shipped: dict[str, Op]) -> None:
    """Every buggy kernel corrupts an existing control of its op, shares its dims, says how."""
    for op in shipped.values():
        for kernel in op.kernels:
            if kernel.role == "buggy":
                assert kernel.corrupts is not None
                control = op.kernel(kernel.corrupts)
                assert control.role == "control"
                assert control.dims == kernel.dims
                assert control.source_hash != kernel.source_hash
                assert kernel.fault


def test_shipped_triton_flags(shipped: dict[str, Op]) -> None:
    """Exactly the paper's four CPU stand-ins, and what corrupts one, use no Triton."""
    plain = {k.name for op in shipped.values() for k in op.kernels if not k.uses_triton}
    assert plain == {
        "softmax", "layernorm", "matmul", "softmax_llm_buggy", "layernorm_one_pass_buggy"
    }  # fmt: skip


def test_controls_come_before_buggy_kernels(shipped: dict[str, Op]) -> None:
    """An op lists its controls before its buggy kernels: workers rely on that order."""
    for op in shipped.values():
        roles = [kernel.role for kernel in op.kernels]
        assert roles == sorted(roles, reverse=True)


# --- loading --------------------------------------------------------------------------------


def test_loading_never_executes_files(tmp_path: Path) -> None:
    """Neither kernels nor the reference are executed by loading the corpus."""
    trap = tmp_path / "executed"
    code = f"open({str(trap)!r}, 'w').close()\n"
    root = tmp_path / "corpus"
    write_op(
        root,
        reference=code + REFERENCE,
        kernels__twice="import _help\n" + code + KERNEL,
        kernels___help=code,
        buggy__thrice=code + KERNEL,
    )
    (op,) = corpus.load(root)
    assert [kernel.name for kernel in op.kernels] == ["twice", "thrice"]
    assert not trap.exists()


def test_missing_corpus(tmp_path: Path) -> None:
    """A corpus folder that is not there is one line that says how to give or start one."""
    assert refusal(tmp_path / "no") == (
        "ROOT: no such corpus folder; give --corpus DIR, set `corpus` under [tool.tolcal] in "
        "pyproject.toml, or start one with `tolcal new OP`"
    )


def test_empty_corpus(tmp_path: Path) -> None:
    """A folder without ops is one line that says how to start one."""
    assert refusal(tmp_path) == "ROOT: no */op.toml in it; start an op with `tolcal new OP`"


LABELS = '[inputs.labels]\nshape = ["B"]\ndtype = "int8"\nbelow = "B"\n'
PIN = '[[pinned]]\ndtype = "float32"\ndims = { B = 3 }\nseed = 1\nwhy = "so"\n'
KNOWN = "float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2"
BROKEN: dict[str, tuple[dict[str, str | bytes | None], str]] = {
    "toml syntax": (
        {"toml": TOML.replace('dtypes = ["float32"]', "dtypes = float32")},
        "ROOT/double/op.toml:2:10: not TOML: Invalid value; mend the syntax there",
    ),
    "batch is no dim of the output": (
        {"toml": TOML.replace("[dims]", 'batch = "K"\n[dims]\nK = [2]')},
        "ROOT/double/op.toml:4: batch: 'K' is no dim of the output ['B']",
    ),
    "unknown key": (
        {"toml": TOML.replace("[dims]", "colour = 1\n[dims]")},
        "ROOT/double/op.toml:4: colour: Object contains unknown field `colour`; known: "
        "summary, dtypes, dims, inputs, output, compute_dtype, reduction, legacy_atol, kernels, "
        "buggy, profiles, excluded_profiles, layouts, batch, mutates, nonfinite, sizes, relations, "
        "pinned",
    ),
    "unknown key in a table": (
        {"toml": TOML.replace('fault = "', 'blame = "')},
        "ROOT/double/op.toml:15: buggy.thrice.blame: Object contains unknown field `blame`; known: "
        "corrupts, fault, subtle, found_by",
    ),
    "subtle is no boolean": (
        {"toml": TOML + 'subtle = "yes"\n'},
        "ROOT/double/op.toml:16: buggy.thrice.subtle: Expected `bool`, got `str`",
    ),
    "wrong type": (
        {"toml": TOML.replace("B = [1, 2]", "B = 2")},
        "ROOT/double/op.toml:5: dims.B: Expected `array`, got `int`",
    ),
    "unknown dtype": (
        {"toml": TOML.replace('"float32"', '"flaot32"')},
        "ROOT/double/op.toml:2: dtypes: unknown dtype 'flaot32'; did you mean 'float32'?; "
        f"known: {KNOWN}",
    ),
    "dtype twice": (
        {"toml": TOML.replace('"float32"', '"float32", "float32"')},
        "ROOT/double/op.toml:2: dtypes: a dtype is listed twice",
    ),
    "size 0": (
        {"toml": TOML.replace("B = [1, 2]", "B = [0, 2]")},
        "ROOT/double/op.toml:5: dims.B: sizes [0, 2]: give positive sizes below 2^40",
    ),
    "dim not in dims": (
        {"toml": TOML.replace('[inputs.x]\nshape = ["B"]', '[inputs.x]\nshape = ["B", "H"]')},
        "ROOT/double/op.toml:7: inputs.x: dim 'H' is not in [dims] (B)",
    ),
    "output dim not in dims": (
        {"toml": TOML.replace('[output]\nshape = ["B"]', '[output]\nshape = ["b"]')},
        "ROOT/double/op.toml:10: output: dim 'b' is not in [dims] (B)",
    ),
    "divided by 1": (
        {"toml": TOML.replace('[inputs.x]\nshape = ["B"]', '[inputs.x]\nshape = ["B/1"]')},
        "ROOT/double/op.toml:7: inputs.x: 'B/1': as in K/32, a dim and by what it is divided, "
        "at least 2 and below 2^20",
    ),
    "divided by digits of another script": (
        {"toml": TOML.replace('[inputs.x]\nshape = ["B"]', '[inputs.x]\nshape = ["B/٣"]')},
        "ROOT/double/op.toml:7: inputs.x: 'B/٣': as in K/32, a dim and by what it is divided, "
        "at least 2 and below 2^20",
    ),
    "divided by a number too long to read": (
        {"toml": TOML.replace('[inputs.x]\nshape = ["B"]',
                              f'[inputs.x]\nshape = ["B/{"9" * 5000}"]')},
        f"ROOT/double/op.toml:7: inputs.x: 'B/{'9' * 38}': as in K/32, a dim and by what it is "
        "divided, at least 2 and below 2^20",
    ),
    "range without an end": (
        {"toml": TOML.replace("[output]", "high = inf\n[output]")},
        "ROOT/double/op.toml:7: inputs.x: low -10 to high inf: numbers between -3e38 and 3e38 "
        "expected",
    ),
    "range of no numbers": (
        {"toml": TOML.replace("[output]", "low = nan\n[output]")},
        "ROOT/double/op.toml:7: inputs.x: low nan to high 10: numbers between -3e38 and 3e38 "
        "expected",
    ),
    "empty range": (
        {"toml": TOML.replace("[output]", "low = 1.0\nhigh = 1.0\n[output]")},
        "ROOT/double/op.toml:7: inputs.x: low 1.0 must be below high 1.0",
    ),
    "sizes of profile default": (
        {"toml": TOML + "[sizes.default]\nB = [3]\n"},
        "ROOT/double/op.toml:16: sizes.default: the sizes of profile default are those of [dims]: "
        "write them there, and drop this table",
    ),
    "a size beyond what labels can be": (
        {"toml": TOML + LABELS + "[sizes.sparse]\nB = [128, 129]\n"},
        "ROOT/double/op.toml:21: sizes.sparse.B: int8 of input labels ends at 127, B goes up to "
        "129",
    ),
    "a kernel's size beyond what labels can be": (
        {"toml": TOML + LABELS + "[kernels.twice.dims]\nB = [300]\n"},
        "ROOT/double/op.toml:21: kernels.twice.dims.B: int8 of input labels ends at 127, B goes up "
        "to 300",
    ),
    "a pinned size beyond what labels can be": (
        {"toml": TOML + LABELS + PIN.replace("B = 3", "B = 129")},
        "ROOT/double/op.toml:20: pinned: int8 of input labels ends at 127, B goes up to 129",
    ),
    "no label below a size": (
        {"toml": TOML + LABELS + "low = 2\n" + PIN},
        "ROOT/double/op.toml:19: inputs.labels.below: input labels goes from 2 to B, excluded: "
        "B = 1 leaves no number",
    ),
    "labels from a part of a number on": (
        {"toml": TOML + LABELS + "low = nan\n"},
        "ROOT/double/op.toml:20: inputs.labels.low: nan: a whole number of int8 expected",
    ),
    "a large pinned case that does not lie contiguous": (
        {"toml": TOML + PIN + 'profile = "large"\nlayout = "expanded"\n'},
        "ROOT/double/op.toml:16: pinned: layout 'expanded': cases of profile large are contiguous",
    ),
    "hand-picked value of no dtype": (
        {"toml": TOML + "[legacy_atol]\nfloat16 = 1e-3\n"},
        "ROOT/double/op.toml:17: legacy_atol.float16: not among this op's dtypes ['float32']",
    ),
    "sums to nan": (
        {"toml": TOML + "[relations]\nsums = { units = 1, to = nan }\n"},
        "ROOT/double/op.toml:17: relations.sums.to: nan: a number expected, which sums can be near",
    ),
    "no reference": (
        {"reference": None},
        "ROOT/double/op.toml: no reference.py beside it; add one with `def reference(...)`",
    ),
    "no control": (
        {"kernels__twice": None, "buggy__thrice": None, "toml": TOML.split("[buggy")[0]},
        "ROOT/double: no control in kernels/; add kernels/<name>.py with `run`",
    ),
    "excludes an unknown profile": (
        {"toml": TOML.replace("[dims]", 'excluded_profiles = ["spares"]\n[dims]')},
        "ROOT/double/op.toml:4: excluded_profiles: unknown profile 'spares'; did you mean "
        f"'sparse'?; known: {', '.join(PROFILES)}",
    ),
    "excludes a profile of its own": (
        {"toml": TOML.replace(
            "[dims]",
            'profiles = ["default", "sparse"]\nexcluded_profiles = ["sparse"]\n[dims]'
        )},
        "ROOT/double/op.toml:5: excluded_profiles: 'sparse' is among `profiles`, too",
    ),
    "excludes a profile twice": (
        {"toml": TOML.replace("[dims]", 'excluded_profiles = ["huge", "huge"]\n[dims]')},
        "ROOT/double/op.toml:4: excluded_profiles: ['huge', 'huge']: list each once",
    ),
    "a pinned case of an excluded profile": (
        {"toml": TOML.replace("[dims]", 'excluded_profiles = ["huge"]\n[dims]') + (
            '[[pinned]]\ndtype = "float32"\ndims = { B = 1 }\nseed = 1\nwhy = "w"\n'
            'profile = "huge"\n'
        )},
        "ROOT/double/op.toml:17: pinned: profile 'huge' is among `excluded_profiles`: drop it "
        "there or this case",
    ),
    "found by a relation that is not declared": (
        {"toml": TOML + 'found_by = "odd"\n'},
        "ROOT/double/op.toml:16: buggy.thrice.found_by: 'odd' is not looked at: declare it under "
        "[relations]",
    ),
    "found by batches of an op without": (
        {"toml": TOML + 'found_by = "batch"\n'},
        "ROOT/double/op.toml:16: buggy.thrice.found_by: 'batch' is not looked at: name a dim as "
        "the op's `batch`, and no `batch = false` of the kernel or its control",
    ),
    "found by batches that its control does not keep": (
        {"toml": TOML.replace("[dims]", 'batch = "B"\n[dims]') + (
            'found_by = "batch"\n[kernels.twice]\nbatch = false\n'
        )},
        "ROOT/double/op.toml:17: buggy.thrice.found_by: 'batch' is not looked at: name a dim as "
        "the op's `batch`, and no `batch = false` of the kernel or its control",
    ),
    "found by changes of inputs that may change": (
        {"toml": TOML.replace("[dims]", 'mutates = ["x"]\n[dims]') + (
            'found_by = "inputs_changed"\n'
        )},
        "ROOT/double/op.toml:17: buggy.thrice.found_by: 'inputs_changed' is not looked at: "
        "`mutates` names every input",
    ),
    "a kernel keeps no batch of an op without": (
        {"toml": TOML + "[kernels.twice]\nbatch = false\n"},
        "ROOT/double/op.toml:17: kernels.twice.batch: the op names no `batch` that it could keep",
    ),
    "buggy file without table": (
        {"buggy__fourfold": KERNEL},
        "ROOT/double/buggy/fourfold.py: op.toml has no [buggy.fourfold]; add it with `corrupts` "
        "(the control it is made from) and `fault` (what is wrong)",
    ),
    "table without file": (
        {"buggy__thrice": None},
        "ROOT/double/op.toml:13: buggy.thrice: there is no buggy/thrice.py; add it or drop the "
        "table",
    ),
    "dims of no kernel": (
        {"toml": TOML + "[kernels.twise.dims]\nB = [1]\n"},
        "ROOT/double/op.toml:16: kernels.twise: no such kernel; did you mean 'twice'?",
    ),
    "corrupts an unknown control": (
        {"toml": TOML.replace('corrupts = "twice"', 'corrupts = "twise"')},
        "ROOT/double/op.toml:14: buggy.thrice.corrupts: no control 'twise' in kernels/; did you "
        "mean 'twice'?",
    ),
    "bad kernel name": (
        {"kernels__Twice": KERNEL},
        "ROOT/double/kernels/Twice.py: the file's name is the kernel's name and must match "
        "[a-z][a-z0-9_]{0,63}",
    ),
    "not UTF-8": (
        {"toml": TOML.encode().replace(b"twice x", b"tw\xefce x")},
        "ROOT/double/op.toml:1: not UTF-8; save the file as UTF-8",
    ),
    "Python syntax error": (
        {"kernels__twice": "import torch\n\ndef run(x:\n    return x\n"},
        "ROOT/double/kernels/twice.py:3: not Python: '(' was never closed (twice.py, line 3); "
        "mend the file",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_contract(tmp_path: Path, what: str) -> None:
    """A broken contract is one line with file, line, what is wrong and the remedy."""
    files, expected = BROKEN[what]
    write_op(tmp_path, **files)
    message = refusal(tmp_path)
    if what == "Python syntax error":
        # The parser's own words differ between versions of Python.
        assert message.startswith("ROOT/double/kernels/twice.py:3: not Python: ")
        assert message.endswith("; mend the file")
        assert "\n" not in message
    else:
        assert message == expected


def test_bad_op_name(tmp_path: Path) -> None:
    """A folder whose name is no op name is refused, whatever a shell or Markdown makes of it."""
    write_op(tmp_path, "Double-it")
    assert refusal(tmp_path) == (
        "ROOT/Double-it/op.toml: the folder's name 'Double-it' is the op's name and must match "
        "[a-z][a-z0-9_]{0,63}; rename the folder"
    )


def test_duplicate_kernel_names(tmp_path: Path) -> None:
    """Two ops can't have kernels of one name: a record's id would mean two things."""
    write_op(tmp_path, "double")
    write_op(tmp_path, "zwei", buggy__thrice=None, toml=TOML.split("[buggy")[0])
    assert refusal(tmp_path) == (
        "ROOT/zwei/kernels/twice.py: kernel name 'twice' is taken by ROOT/double/kernels/twice.py; "
        "kernel names are unique in the corpus, rename one"
    )


# --- hashes ---------------------------------------------------------------------------------


def test_source_hash_follows_local_imports(tmp_path: Path) -> None:
    """A kernel's hash covers the local modules it imports, directly or not, and nothing else."""
    folder = write_op(
        tmp_path,
        kernels__twice="import torch\nfrom _a import f\n" + KERNEL,
        kernels___a="import _b as other\nf = other.g\n",
        kernels___b="def g(x):\n    return x\n",
        kernels___other="unrelated = 1\n",
    )
    path = folder / "kernels" / "twice.py"
    first = corpus.source_hash(path)
    (folder / "kernels" / "_other.py").write_text("unrelated = 2\n")
    (folder / "torch.py").write_text("not = the folder it imports from\n")
    assert corpus.source_hash(path) == first
    (folder / "kernels" / "_b.py").write_text("def g(x):\n    return -x\n")
    second = corpus.source_hash(path)
    assert second != first
    path.write_text(path.read_text() + "\n# a comment\n")
    assert corpus.source_hash(path) not in (first, second)


def test_source_hash_follows_the_repository(tmp_path: Path) -> None:
    """A package beside the corpus is a kernel's source: a bug in it is a changed kernel."""
    folder = write_op(tmp_path / "corpus", kernels__twice="from mylib import inner\n" + KERNEL)

    def hashes(**how: bool) -> list[str]:
        return [k.source_hash for k in corpus.load(tmp_path / "corpus", **how)[0].kernels]

    (tmp_path / "mylib").mkdir()
    (tmp_path / "mylib" / "inner.py").write_text("A = 1\n")
    alone = hashes()  # no repository: what it may import can't be told
    (tmp_path / ".git").mkdir()
    first = hashes()
    assert first != alone
    assert hashes(alone=True) == alone
    (tmp_path / "mylib" / "other.py").write_text("A = 1\n")
    assert hashes() == first
    (tmp_path / "mylib" / "inner.py").write_text("A = (\n")  # not Python, and not the corpus's
    assert hashes() != first
    assert corpus.load_op(folder).kernels[0].source_hash in hashes()


def test_source_hash_follows_packages(tmp_path: Path) -> None:
    """A local package's module counts as well, imported inside a function too."""
    folder = tmp_path / "k"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "__init__.py").write_text("")
    (folder / "lib" / "part.py").write_text("A = 1\n")
    path = folder / "kernel.py"
    path.write_text("def run(x):\n    import lib.part\n    return x * lib.part.A\n")
    first = corpus.source_hash(path)
    (folder / "lib" / "part.py").write_text("A = 2\n")
    assert corpus.source_hash(path) != first


def test_triton_is_seen_through_a_helper(tmp_path: Path) -> None:
    """A kernel uses Triton if a local module that it imports does."""
    folder = write_op(
        tmp_path,
        kernels__twice="from _k import kernel\n" + KERNEL,
        kernels___k="import triton.language as tl\nkernel = tl\n",
    )
    assert corpus.source_hash(folder / "kernels" / "twice.py")[1] is True
    assert corpus.source_hash(folder / "buggy" / "thrice.py")[1] is False


def test_op_hash_covers_what_changes_numbers(tmp_path: Path) -> None:
    """op.toml's hash moves with dims and ranges, not with summary, wording or hand-picked ones."""
    base = corpus.load_op(write_op(tmp_path)).op_hash
    wording = TOML.replace("twice x", "2x").replace("three times", "3") + "[legacy_atol]\n"
    assert corpus.load_op(write_op(tmp_path, toml=wording)).op_hash == base
    for old, new in (("[1, 2]", "[1, 3]"), ("[output]", "high = 9.0\n[output]")):
        changed = corpus.load_op(write_op(tmp_path, toml=TOML.replace(old, new)))
        assert changed.op_hash != base
    own = TOML + "[kernels.twice.dims]\nB = [1]\n"
    assert corpus.load_op(write_op(tmp_path, toml=own)).op_hash != base


def test_a_new_buggy_kernel_changes_no_control(tmp_path: Path) -> None:
    """Neither its table, nor dims of its own, nor its being subtle, make op.toml a changed one."""
    base = corpus.load_op(write_op(tmp_path))
    more = TOML + (
        '[buggy.fourfold]\ncorrupts = "twice"\nfault = "four times x"\nsubtle = true\n'
        "[kernels.fourfold.dims]\nB = [1]\n"
    )
    op = corpus.load_op(write_op(tmp_path, toml=more, buggy__fourfold=KERNEL))
    assert op.op_hash == base.op_hash
    assert op.kernel("twice") == base.kernel("twice")
    assert [k.name for k in op.kernels if k.subtle] == ["fourfold"]
    assert op.kernel("fourfold").dims == {"B": (1,)}


def test_what_is_checked_and_drawn_changes_no_contract(tmp_path: Path) -> None:
    """Neither profiles that an op lacks, nor batches that a kernel need not keep."""
    head = TOML.replace("[dims]", 'batch = "B"\n[dims]')
    base = corpus.load_op(write_op(tmp_path, toml=head))
    assert [k.batch for k in base.kernels] == [True, True]
    more = head.replace("[dims]", 'excluded_profiles = ["sparse"]\n[dims]')
    op = corpus.load_op(write_op(tmp_path, toml=more + "[kernels.twice]\nbatch = false\n"))
    assert op.op_hash == base.op_hash
    assert op.excluded_profiles == ("sparse",)
    # What is made from a kernel keeps what that does, unless its own table says otherwise.
    assert [k.batch for k in op.kernels] == [False, False]
    own = "[kernels.twice]\nbatch = false\n[kernels.thrice]\nbatch = true\n"
    op = corpus.load_op(write_op(tmp_path, toml=head + own))
    assert op.op_hash == base.op_hash
    assert [k.batch for k in op.kernels] == [False, True]


def test_shipped_op_hashes_are_those_of_the_history(shipped: dict[str, Op]) -> None:
    """Records of the committed history are records of these contracts."""
    table = pq.read_table(DATA / "h200-history.parquet", columns=["op", "op_hash"])
    pairs = {
        (row["op"], row["op_hash"])
        for row in table.group_by(["op", "op_hash"]).aggregate([]).to_pylist()
    }
    assert pairs == {(name, shipped[name].op_hash) for name in SHIPPED}


# --- selection ------------------------------------------------------------------------------


def test_select_nothing_is_everything(shipped: dict[str, Op]) -> None:
    """No names select the whole corpus."""
    assert corpus.select(tuple(shipped.values()), []) == tuple(shipped.values())


def test_select_by_op(shipped: dict[str, Op]) -> None:
    """An op's name selects it with all its kernels."""
    assert corpus.select(tuple(shipped.values()), ["softmax"]) == (shipped["softmax"],)


def test_select_by_kernel_brings_its_control(shipped: dict[str, Op]) -> None:
    """A buggy kernel's name selects it and its control alone; a control's itself alone."""
    (softmax,) = corpus.select(tuple(shipped.values()), ["softmax_llm_buggy"])
    assert [k.name for k in softmax.kernels] == ["softmax", "softmax_llm_buggy"]
    (matmul,) = corpus.select(tuple(shipped.values()), ["matmul_triton"])
    assert [k.name for k in matmul.kernels] == ["matmul_triton"]


def test_select_unknown(shipped: dict[str, Op]) -> None:
    """An unknown name is one line that guesses what was meant."""
    with pytest.raises(TolcalError) as caught:
        corpus.select(tuple(shipped.values()), ["softmacs"])
    assert str(caught.value) == (
        "no op or kernel 'softmacs' in the corpus; did you mean 'softmax'?; `tolcal show` lists "
        "what there is"
    )


def test_kernels_say_where_their_run_is(tmp_path: Path) -> None:
    """The line of `def run`, and the path from the root where the corpus lies in it."""
    ops = corpus.load(CORPUS)
    kernels = corpus.by_name(ops, CORPUS.parent)
    assert len(kernels) == sum(len(op.kernels) for op in ops)
    for kernel in kernels.values():
        lines = (CORPUS.parent / kernel.path).read_text().splitlines()
        assert lines[kernel.line - 1].startswith("def run("), kernel.name
    found = kernels["softmax_triton"]
    assert found.path == "corpus/softmax/kernels/softmax_triton.py"
    for root in (None, tmp_path):
        there = corpus.by_name(ops, root)["softmax_triton"].path
        assert there == (CORPUS / "softmax/kernels/softmax_triton.py").as_posix()
