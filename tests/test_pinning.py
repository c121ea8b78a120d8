"""pin: a case joins op.toml, and nothing else of the file changes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from tolcal import corpus
from tolcal.corpus import contract, pinning
from tolcal.model import Case, TolcalError

TOML = """\
# What this op is for.
summary = "twice x"
dtypes = ["float32", "bfloat16"]

[dims]   # of small tensors
B = [1, 3]
H = [7]

[inputs.x]
shape = ["B", "H"]

[output]
shape = ["B", "H"]
# The end.
"""
CASE = Case("double", "bfloat16", (("B", 2), ("H", 5)), "default", "contiguous", 2**63 - 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An op folder's op.toml."""
    folder = tmp_path / "double"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "twice.py").write_text("def run(x):\n    return x + x\n")
    (folder / "reference.py").write_text("def reference(x):\n    return 2 * x\n")
    (folder / "op.toml").write_text(TOML)
    return folder / "op.toml"


def test_a_pinned_case_is_the_same_case(path: Path) -> None:
    """With its id, in op.toml's order; the hash of the op stays; every other byte, too."""
    before = corpus.load_op(path.parent)
    other = msgspec.structs.replace(CASE, profile="sparse", layout="transposed", seed=0)
    pinning.pin(path, CASE, "one")
    pinning.pin(path, other, "two")
    after = corpus.load_op(path.parent)
    assert after.pinned == (CASE, other)
    assert [case.id for case in after.pinned] == [CASE.id, other.id]
    assert after.op_hash == before.op_hash
    text = path.read_text()
    assert text.startswith(TOML)
    assert text.removeprefix(TOML) == (
        '\n[[pinned]]\ndtype = "bfloat16"\ndims = {B = 2, H = 5}\n'
        'seed = 9223372036854775807\nwhy = "one"\n'
        '\n[[pinned]]\ndtype = "bfloat16"\ndims = {B = 2, H = 5}\nprofile = "sparse"\n'
        'layout = "transposed"\nseed = 0\nwhy = "two"\n'
    )


@pytest.mark.parametrize(
    ("text", "case", "why", "says"),
    [
        (TOML, CASE, "a\nb", "say in one line"),
        (TOML, CASE, "  ", "say in one line"),
        (TOML, CASE, "x" * 301, "301 characters"),
        (TOML, msgspec.structs.replace(CASE, dtype="float16"), "w", "the op is in float32, bf"),
        (TOML, msgspec.structs.replace(CASE, dims=(("B", 2),)), "w", "op.toml has changed since"),
        (TOML, msgspec.structs.replace(CASE, op="other"), "w", "add it by hand"),
        ("pinned = []\n" + TOML, CASE, "w", r"op.toml:1: pinned: can't be added to"),
    ],
)
def test_what_is_refused(path: Path, text: str, case: Case, why: str, says: str) -> None:
    """With the reason, and the file as it was."""
    path.write_text(text)
    with pytest.raises(TolcalError, match=says):
        pinning.pin(path, case, why)
    assert path.read_text() == text


def test_a_case_is_pinned_once(path: Path) -> None:
    """The second time is refused, with the line of the first."""
    pinning.pin(path, CASE, "one")
    with pytest.raises(TolcalError, match=rf"op.toml:16: case {CASE.id} is pinned already"):
        pinning.pin(path, CASE, "two")


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.text(min_size=1, max_size=60), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_reason_is_text(why: str, newline: str, ended: bool) -> None:
    """No reason becomes keys or tables, with the line ends of either world."""
    text = TOML.replace("\n", newline)
    text = text if ended else text.removesuffix(newline)
    made = pinning.appended(text, CASE, why)
    assert made.startswith(text)
    before, after = tomli.loads(text), tomli.loads(made)
    assert set(after) == {*before, "pinned"}
    assert after["pinned"][0]["why"].replace("\r\n", "\n") == why.replace("\r\n", "\n")
    assert after["pinned"][0]["seed"] == CASE.seed
    assert len(after["pinned"]) == 1
    assert made.count("\r\n") in (0, made.count("\n"))
    assert contract.parse(made, Path("double/op.toml"))[0].pinned[0].dims == dict(CASE.dims)
