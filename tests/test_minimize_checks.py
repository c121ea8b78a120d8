"""Scripts of what only a check sees: they fail without tolcal, and pass with the right kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checks_support import TRITON
from measure_support import GOOD, request
from test_minimize import run_alone

from tolcal import corpus, minimize
from tolcal.minimize import snippet
from tolcal.model import Case

TOML = """\
summary = "f"
dtypes = ["float32", "float16"]
batch = "B"
[dims]
B = [1, 4]
H = [5]
[inputs.x]
shape = ["B", "H"]
[output]
shape = ["B", "H"]
"""
TWICE = "def reference(x):\n    return 2 * x\n"
SOFTMAX = "import torch\ndef reference(x):\n    return torch.softmax(x, -1)\n"
RIGHT_SOFTMAX = """\
import torch
def run(x):
    e = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)
"""
NORM = "import torch\ndef reference(x):\n    return x / x.square().sum(-1, keepdim=True).sqrt()\n"
RIGHT_NORM = """\
import torch
def run(x):
    y = x.float()
    return (y / y.square().sum(-1, keepdim=True).sqrt()).to(x.dtype)
"""
STRAY = """\
import torch
def run(x):
    y = torch.empty((x.numel(),), dtype=x.dtype)
    import ctypes
    y.copy_((x + x).reshape(-1))
    ctypes.memset(y.data_ptr() + y.numel() * y.element_size() + 64, 1, 2)
    return y.view(x.shape)
"""
CANCELS = "import torch\ndef {name}(x):\n    return x.sigmoid() - (x + 2**-14).sigmoid(){more}\n"
ROWS = r"\d+ elements depend on how many rows there are \(by more than [\d.e-]+\), 0 allowed"
TUNED, GOOD_TUNED = TRITON.format(second="n // 2"), TRITON.format(second="n")
#: check, relation, reference, wrong kernel, right kernel, what the script says
SEEN = {
    "batch": ("", TWICE, "def run(x):\n    return 2 * x * (1 + x.shape[0] / 64)\n", GOOD,
              ROWS),
    # whose differences are small beside what they are of
    "cancelling": ("", CANCELS.format(name="reference", more=""),
                   CANCELS.format(name="run", more=" + (x.shape[0] == 1)"),
                   CANCELS.format(name="run", more=""), ROWS),
    "stray": ("", TWICE, STRAY, GOOD, r"\d+ bytes written outside of tensors, 0 allowed"),
    "unwritten": ("", TWICE, "import torch\ndef run(x):\n    y = torch.empty_like(x)\n"
                  "    y[1:] = 2 * x[1:]\n    y[0, 1:] = 2 * x[0, 1:]\n    return y\n", GOOD,
                  r"1 elements that nothing is written to, 0 allowed"),
    "odd": ('odd = { inputs = ["x"], units = 0 }', TWICE,
            "def run(x):\n    return 2 * x + 1\n", GOOD, r".* break odd, .* 0 allowed"),
    "linear": ('linear = { inputs = ["x"], units = 4 }', TWICE,
               "def run(x):\n    return 2 * x + 1\n", GOOD, r".* break linear, .* allowed"),
    "scale_equivariant": ('scale_equivariant = { inputs = ["x"], units = 4 }', TWICE,
                          "def run(x):\n    return 2 * x + 1\n", GOOD,
                          r".* break scale_equivariant, .* allowed"),
    "permutation": ('permutation = { dims = ["H"], units = 4 }', TWICE,
                    "def run(x):\n    y = 2 * x\n    y[:, -1] *= 1.5\n    return y\n", GOOD,
                    r".* break permutation, .* allowed"),
    "shift": ('shift = { inputs = ["x"], units = 16 }', SOFTMAX,
              RIGHT_SOFTMAX.replace("exp(x", "exp(x.float() ** 2 / 64 + x"), RIGHT_SOFTMAX,
              r".* break shift, .* allowed"),
    "sums": ("sums = { to = 1.0, units = 16 }", SOFTMAX,
             RIGHT_SOFTMAX.replace("(e /", "(1.1 * e /"), RIGHT_SOFTMAX,
             r".* break sums, .* allowed"),
    "scale_invariant": ('scale_invariant = { inputs = ["x"], units = 16 }', NORM,
                        RIGHT_NORM.replace("sqrt()", "add(1).sqrt()"), RIGHT_NORM,
                        r".* break scale_invariant, .* allowed"),
    "configs": ("", TWICE, TUNED, GOOD_TUNED, r".* break configs, .* allowed"),
}  # fmt: skip


@pytest.mark.parametrize("check", SEEN)
def test_a_script_of_what_only_a_check_sees(check: str, tmp_path: Path) -> None:
    """Without a tolerance: of the case itself, which is strided, and of the smallest."""
    relation, reference, bad, good, said = SEEN[check]
    folder = tmp_path / "c" / "f"
    for sub, source in (("kernels", good), ("buggy", bad)):
        (folder / sub).mkdir(parents=True)
        (folder / sub / f"{sub}.py").write_text(source)
    (folder / "reference.py").write_text(reference)
    (folder / "op.toml").write_text(
        f'layouts = ["contiguous", "strided"]\n{TOML}[relations]\n{relation}\n'
        '[buggy.buggy]\ncorrupts = "kernels"\nfault = "some"\n'
    )
    (op,) = corpus.select(corpus.load(tmp_path / "c"), ["buggy"])
    case = Case("f", "float32", (("B", 4), ("H", 5)), "default", "strided", 5)
    found = minimize.minimize(
        request((op,)), op.kernel("buggy"), case, tmp_path / "c", None, budget=600.0
    )
    for one in (found.before, found.after):
        text = snippet.write(op, op.kernel("buggy"), one.record, one.failure, None, one.values)
        done = run_alone(text, tmp_path)
        last = done.stderr.splitlines()[-1]
        assert re.fullmatch(f"AssertionError: {said}", last), last
        mended = text.replace(bad.strip("\n"), good.strip("\n"))
        assert mended != text
        done = run_alone(mended, tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "run() returned\n", "")
