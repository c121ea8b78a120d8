"""The hook: what it refuses and where, what it compares with, and the order it makes."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import ROOT

from tolcal import hook, project, tolerances, tomlfile
from tolcal.calibrate import fit
from tolcal.cli import config
from tolcal.hook import base as git
from tolcal.hook import layout, rules
from tolcal.hook.schema import json_schema
from tolcal.model import DTYPES, AllClose, TolcalError, Tolerance

CELL = """\
schema = 1

[softmax.float16]
atol = 2.5e-08
scaled_tol = 8.0
bias_tol = 0.31
allclose = {atol = 6.5e-08, rtol = 0.0011}

[softmax.float16.evidence]
rule = "residual"
margin = 2.0
rows = 720
runs = 18
devices = ["NVIDIA H200"]
held_out = {runs = 18, red = 0}
history = "00"
scale = 1.0

[softmax.float16.approved]
by = "ada"
at = "2026-12-01T10:12:00Z"
digest = "9c1e7a40d2b86f13"
value = "VALUE"
"""
OVERRIDE = """
[softmax.float16.on.sm_90]
atol = 2.5e-07
scaled_tol = 8.0
bias_tol = 0.31
allclose = {atol = 6.5e-08, rtol = 0.0011}

[softmax.float16.on.sm_90.evidence]
rule = "residual"
margin = 2.0
rows = 720
runs = 18
devices = ["NVIDIA H200"]
held_out = {runs = 18, red = 0}
history = "00"
scale = 1.0

[softmax.float16.on.sm_90.approved]
by = "ada"
at = "2026-12-01T10:12:00Z"
digest = "9c1e7a40d2b86f13"
value = "VALUE"
"""


def approved(text: str, **changes: str) -> str:
    """``text`` with each approval's digest that of its numbers, and with changes to approvals."""
    for name, value in changes.items():
        text = re.sub(rf'(?m)^{name} = "[^"]*"', f'{name} = "{value}"', text)
    cells, _ = tolerances.parse(tomli.loads(text))
    for tolerance in cells.values():
        for values in (tolerance, *tolerance.on.values()):
            text = text.replace("VALUE", values.value_digest, 1)
    return text


GOOD = approved(CELL + OVERRIDE)


def write(folder: Path, text: str) -> Path:
    path = folder / "tolerances.toml"
    path.write_bytes(text.encode())
    return path


def make_op(folder: Path, name: str, legacy: str = "", dtypes: str = '"float16"') -> None:
    """A corpus with that op in it."""
    kernels = folder / "corpus" / name / "kernels"
    kernels.mkdir(parents=True)
    (kernels / f"{name}_triton.py").write_text("def run(x): return x\n")
    (kernels.parent / "op.toml").write_text(f"dtypes = [{dtypes}]\n{legacy}")


def texts(findings: list[hook.Finding]) -> list[str]:
    return [f"{f.line}:{f.column} {f.level} {f.what}" for f in findings]


def run(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """``tolcal ARGS`` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tolcal", *args],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        capture_output=True, text=True,
    )  # fmt: skip


# --- refusals -------------------------------------------------------------------------------


def test_the_shipped_file_has_no_finding() -> None:
    """Not even a warning."""
    assert hook.check(ROOT / "tolerances.toml") == []


def test_a_good_file_has_no_finding(tmp_path: Path) -> None:
    """With an override, and in a folder of no repository and no corpus."""
    assert texts(hook.check(write(tmp_path, GOOD))) == []


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("scaled_tol = 8.0", "scaledtol = 8.0", "5:1", "drop it; did you mean 'scaled_tol'?"),
        ("[softmax.float16]", "[softmax.float61]", "3:2", "did you mean 'float64'?"),
        ("[softmax.float16]", "[Softmax.float16]", "3:2", "no name of an op"),
        ("atol = 2.5e-08", "atol = nan", "4:1", "= nan: a finite number >= 0 is needed"),
        ("atol = 2.5e-08", "atol = -1e-9", "4:1", "= -1e-09: a finite number"),
        ("atol = 2.5e-08", "atol = 0.0", "4:1", "= 0: tighter than float16 can show"),
        ("atol = 2.5e-08", "atol = 65504.0", "4:1", "could never fail, below 65504 is due"),
        ("scaled_tol = 8.0", "scaled_tol = 2e7", "5:1", "could never fail, below 1.67772e+07"),
        ("bias_tol = 0.31", "bias_tol = 1.0", "6:1", "could never fail"),
        ("bias_tol = 0.31", "bias_tol = 0", "6:1", "at least 0.01 is due"),
        ("rtol = 0.0011", "rtol = 4e-4", "7:29", "tighter than float16 can show"),
        ("rtol = 0.0011", "rtol = 1.0", "7:29", "could never fail"),
        ("atol = 6.5e-08,", "atol = 5e-8,", "7:13", "at least 5.96046e-08 is due"),
        ("runs = 18, red = 0", "runs = 18, red = 19", "15:1", "19 red of 18 runs can't be"),
        ("runs = 18, red = 0", "runs = -1, red = 0", "15:13", "Expected `int` >= 0"),
        ("scale = 1.0", "detectable_recall = 1.1", "17:1", "Expected `float` <= 1.0"),
        ("scale = 1.0", "roundoff = 0.0", "17:1", "Expected `float` > 0.0"),
        ("scale = 1.0", "roundoff = 1.0", "17:1", "Expected `float` < 1.0"),
        ("scale = 1.0", "scale = nan", "17:1", "Expected `float` >= 0.0"),
        ("scale = 1.0", "scale = -1.0", "17:1", "Expected `float` >= 0.0"),
        ("scale = 1.0", "scale = inf", "17:1", "Expected `float` <= 1.79"),
        ("margin = 2.0", "margin = nan", "11:1", "Expected `float` > 0.0"),
        ("margin = 2.0", "margin = inf", "11:1", "Expected `float` <= 1000000000.0"),
        ("scaled_tol = 8.0", "scale = 8.0", "5:1", "it belongs in [softmax.float16.evidence]"),
        ("margin = 2.0", "atol = 2.0", "11:1", "`atol`; it belongs in [softmax.float16]"),
        ("[softmax.float16]", "[softmax.float8]", "3:2",
         "say which: float8_e4m3fn or float8_e5m2"),
        ("scaled_tol = 8.0", "scaled_tol = 9.0", "3:2", "changed by hand since it was approved"),
        ("scale = 1.0", "scale = 1.0\nroundoff = 0.0003", "3:2", "changed by hand since it was"),
        ("scale = 1.0", "scale = 2.0", "3:2", "changed by hand since it was approved"),
        ("on.sm_90", "on.sm90", "25:2", "no device class; expected sm_<digits>"),
        ("atol = 2.5e-07", "atol = 2.5", "25:2", "changed by hand since it was approved"),
    ],
)  # fmt: skip
def test_a_refusal_names_line_and_column(
    tmp_path: Path, old: str, new: str, where: str, what: str
) -> None:
    """What, where and why, as an error, and the file fails."""
    text = CELL + OVERRIDE
    by_hand = "by hand" in what
    broken = (GOOD if by_hand else text).replace(old, new, -1 if "on." in old else 1)
    assert broken != text
    path = write(tmp_path, broken if by_hand else approved(broken))
    found = texts(hook.check(path))
    assert any(f.startswith(f"{where} error") and what in f for f in found), found
    assert run(tmp_path, "check").returncode == 1


def test_each_remedy_is_in_its_finding(tmp_path: Path) -> None:
    """Whole output of a file with several faults, in the order of its lines."""
    broken = GOOD.replace("atol = 2.5e-08", "atol = 0.0", 1)
    broken = broken.replace("[softmax.float16.on.sm_90]", "[softmax.float16.on.sm_90]\nwide = 1")
    write(tmp_path, broken + "\n[rms.float17]\natol = 1\n")
    done = run(tmp_path, "check")
    assert done.stdout.splitlines() == [
        "tolerances.toml:26:1: error: softmax.float16.on.sm_90.wide: Object contains unknown field "
        "`wide`; drop it",
        "tolerances.toml:48:2: error: rms.float17: unknown dtype; known: float64, float32, "
        "float16, bfloat16, float8_e4m3fn, float8_e5m2; did you mean 'float16'?",
    ]
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("schema = 1\n[a.float32\n", "2:11", "not TOML: "),
        (CELL + CELL.partition("\n\n")[2], "24:17", "twice; keep one of the two"),
        ("schema = 2\n", "1:1", "schema is 2, this tolcal reads 1"),
        ("", "1:1", "there is no line `schema = 1`; add it"),
    ],
)
def test_what_is_no_tolerance_file(tmp_path: Path, text: str, where: str, what: str) -> None:
    """TOML errors, cells twice, another version: one line and status 1, as a hook should."""
    write(tmp_path, text)
    done = run(tmp_path, "check")
    assert done.returncode == 1
    assert done.stdout.startswith(f"tolerances.toml:{where}: ")
    assert what in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"schema = 1\nop = 3\n", "tolerances.toml:2:1: "),
        (b"schema = 1\n[[op]]\na = 1\n", "tolerances.toml:"),
        (b"schema = 1\n# \xff\n", "tolerances.toml:2: not UTF-8; save the file as UTF-8"),
        (None, "tolcal: tolerances.toml: cannot read it: Too many levels of symbolic links"),
    ],
)
@pytest.mark.parametrize("name", ["check", "format"])
def test_odd_files_are_no_traceback(
    tmp_path: Path, name: str, raw: bytes | None, says: str
) -> None:
    """Of a script or a command, with --fix too."""
    path = tmp_path / "tolerances.toml"
    if raw is None:
        path.symlink_to(path)
    else:
        path.write_bytes(raw)
    code = f"from tolcal.hook import commands; commands.{name}_script()"
    script = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    fixed = run(tmp_path, name, *(["--fix"] if name == "check" else []))
    for done in (script, fixed, run(tmp_path, name)):
        assert done.returncode == (2 if raw is None else 1)
        assert (done.stderr if raw is None else done.stdout).startswith(says)
        assert "Traceback" not in done.stderr


def test_missing_evidence_and_approval_are_warnings(tmp_path: Path) -> None:
    """A first hand-written cell doesn't fail, and says what it lacks."""
    write(tmp_path, CELL.partition("\n[softmax.float16.evidence]")[0])
    done = run(tmp_path, "check")
    assert done.returncode == 0
    assert [line.split(": ", 2)[1] for line in done.stdout.splitlines()] == ["warning"] * 2


def test_an_unreadable_file_and_an_unknown_base(tmp_path: Path) -> None:
    """Neither is a traceback, and the other files are still checked."""
    write(tmp_path, GOOD.replace("8.0", "9.0"))
    done = run(tmp_path, "check", "absent.toml", "tolerances.toml")
    assert done.returncode == 2
    assert done.stderr == (
        "tolcal: absent.toml: cannot read it: No such file or directory; give the path of a file "
        "that is there\n"
    )
    assert "changed by hand" in done.stdout
    assert run(tmp_path, "format", "absent.toml").returncode == 2
    assert run(tmp_path, "check", "--base", "nosuch").returncode == 2
    done = run(tmp_path, "check", "--base", "--upload-pack=x", "tolerances.toml")
    assert done.returncode == 2


# --- the corpus -----------------------------------------------------------------------------


def test_cells_of_ops_that_are_gone_or_misspelt(tmp_path: Path) -> None:
    """Unknown ops and dtypes are errors, with what was meant."""
    make_op(tmp_path, "softmix")
    (tmp_path / "corpus" / "notes" / "op.toml").mkdir(parents=True)  # no op
    (tmp_path / "corpus" / "README").touch()
    path = write(tmp_path, GOOD)
    said = hook.check(path)[1].what
    assert (
        "no op 'softmax' in the corpus; did you mean 'softmix'?; rename or drop softmax's" in said
    )
    make_op(tmp_path, "softmax", dtypes='"float32"')
    found = texts(hook.check(path))
    assert found[0].startswith("1:1 warning softmax.float32: not calibrated yet; measure it on a")
    assert found[1].startswith("1:1 warning softmix.float16: not calibrated yet")
    assert any("has no dtype float16, only float32; drop the cell" in f for f in found)
    (tmp_path / "corpus/softmax/kernels/softmax_triton.py").unlink()
    assert any("no kernel left in kernels/" in f for f in texts(hook.check(path)))


def test_an_op_that_only_tests_know(tmp_path: Path) -> None:
    """`test_ops` in [tool.tolcal] needs no folder."""
    make_op(tmp_path, "gelu", dtypes="")
    (tmp_path / "pyproject.toml").write_text('[tool.tolcal]\ntest_ops = ["softmax"]\n')
    assert texts(hook.check(write(tmp_path, GOOD))) == []


def test_looser_than_the_hand_picked_value(tmp_path: Path) -> None:
    """At the median element: 2.5e-8 + 8 * 2^-24 * 1 is 5.0e-7. A reason lets it pass."""
    make_op(tmp_path, "softmax", "[legacy_atol]\nfloat16 = 4e-7\n")
    base = GOOD.partition("\n[softmax.float16.on")[0]
    path = write(tmp_path, base)
    assert "looser than the hand-picked 4e-07 of op.toml: 5.02e-07" in hook.check(path)[0].what
    write(tmp_path, base.replace('by = "ada"', 'by = "ada"\nreason = "measured"'))
    assert texts(hook.check(path)) == []
    (tmp_path / "corpus/softmax/op.toml").write_text(
        'dtypes = ["float16"]\n[legacy_atol]\nfloat16 = 6e-7\n'
    )
    assert texts(hook.check(write(tmp_path, base))) == []


def test_the_project_around_a_file(tmp_path: Path) -> None:
    """The nearest tolerances, and the corpus of the nearest [tool.tolcal]."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert project.around(inner).tolerances == inner / "tolerances.toml"
    (tmp_path / "pyproject.toml").write_text('[tool.tolcal]\ntolerances = "t.toml"\ncorpus = "c"\n')
    assert project.around(inner) == project.Project(
        tmp_path / "t.toml", tmp_path / "c", (), f"{tmp_path}/pyproject.toml: tool.tolcal.corpus"
    )
    write(tmp_path / "a", GOOD)
    near = project.around(inner)
    assert (near.tolerances, near.corpus) == (tmp_path / "a" / "tolerances.toml", tmp_path / "c")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('corpse = "c"', "2: tool.tolcal.corpse: unknown key; known: corpus, tolerances"),
        ("corpus = 3", "2: tool.tolcal.corpus: expected the path of a folder"),
        ('test_ops = "softmax"', "2: tool.tolcal.test_ops: expected names of ops"),
        ('corpus = "absent"', "tool.tolcal.corpus = "),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, table: str, says: str) -> None:
    """Rather than judged as if it weren't there; so is a corpus that was named and isn't there."""
    (tmp_path / "pyproject.toml").write_text(f"[tool.tolcal]\n{table}\n")
    write(tmp_path, GOOD)
    for command in (["check"], ["check", "--fix"]):
        done = run(tmp_path, *command)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1
    done = run(tmp_path, "check", "--corpus", "nowhere")
    assert done.returncode == 2


def test_the_hook_knows_every_setting() -> None:
    """Those that the other commands take, and no other."""
    assert set(project.KEYS) == set(config._Table.__struct_fields__)


# --- against the merge base -----------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with the good file on main, on a branch of its own."""
    for command in (
        "init -q -b main .",
        "config user.name ada",
        "config user.email ada@example.org",
        "add -A",
        "commit -q -m one",
        "checkout -q -b change",
    ):
        if command == "add -A":
            write(tmp_path, GOOD)
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    return tmp_path


NEW = {"at": "2027-01-01T00:00:00Z", "digest": "1111111111111111"}


def changed(old: str, new: str, **approval: str) -> str:
    """The good file with other numbers, approved."""
    assert old in CELL + OVERRIDE
    return approved((CELL + OVERRIDE).replace(old, new, 1), **approval)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("scaled_tol = 8.0", "scaled_tol = 9.0", "1.12x at the median element"),
        # one grows, the other shrinks: 2.5e-8 + 8u becomes 1e-6 + 1u
        ("atol = 2.5e-08\nscaled_tol = 8.0", "atol = 1e-6\nscaled_tol = 1.0", "2.11x at the"),
        ("scale = 1.0", "scale = 1.0\nroundoff = 0.0003", "4.78e+03x at the median element"),
        ("bias_tol = 0.31", "bias_tol = 0.4", "bias_tol 0.31 -> 0.4"),
        ("bias_tol = 0.31\n", "", "bias_tol 0.31 -> not judged"),
        ("rtol = 0.0011", "rtol = 0.0012", "allclose.rtol 0.0011 -> 0.0012"),
    ],
)
def test_a_loosening_needs_a_reason(repository: Path, old: str, new: str, says: str) -> None:
    """Even if it was approved anew; with a reason it passes."""
    path = write(repository, changed(old, new, **NEW))
    found = [f.what for f in hook.check(path)]
    assert len(found) == 1
    assert f"looser than before ({says}" in found[0]
    text = changed(old, new, **NEW).replace('by = "ada"', 'by = "ada"\nreason = "new GPU"')
    assert texts(hook.check(write(repository, text))) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scaled_tol = 8.0", "scaled_tol = 7.0"),
        # atol grows, and yet less is allowed where elements are
        ("atol = 2.5e-08\nscaled_tol = 8.0", "atol = 5e-8\nscaled_tol = 4.0"),
        ("bias_tol = 0.31", "bias_tol = 0.3"),
    ],
)
def test_a_tightening_needs_none(repository: Path, old: str, new: str) -> None:
    """What `tolcal approve` writes of its own accord is never refused."""
    assert texts(hook.check(write(repository, changed(old, new, **NEW)))) == []


def test_an_old_approval_is_none_of_new_numbers(repository: Path) -> None:
    """The digest alone, recomputed by hand, is no approval."""
    found = texts(hook.check(write(repository, changed("scaled_tol = 8.0", "scaled_tol = 7.0"))))
    assert len(found) == 1
    assert "19:2 error softmax.float16.approved: is the approval of the numbers before" in found[0]


def test_an_approval_can_not_be_dropped(repository: Path) -> None:
    """Nor can a cell, nor an override where the cell is looser."""
    without = re.sub(r"\n\[softmax.float16.approved\](\n\w.*)*", "", GOOD)
    found = texts(hook.check(write(repository, without)))
    assert found == [f"3:2 error softmax.float16: approval was removed; {rules.REMEDY}"]
    found = texts(hook.check(write(repository, "schema = 1\n")))
    assert len(found) == 1
    assert "an approved cell of a kernel that is still there was removed" in found[0]
    other = CELL.replace("softmax.float16", "softmax.float32").replace("2.5e-08", "2.6e-08")
    found = texts(hook.check(write(repository, approved(other))))
    assert [f[:31] for f in found] == ["1:1 error softmax.float16: an a"]  # not [softmax.float32]
    base = GOOD.partition("\n[softmax.float16.on")[0]
    tight = changed("atol = 2.5e-07\nscaled_tol = 8.0", "atol = 2.5e-08\nscaled_tol = 2.0")
    write(repository, tight)
    subprocess.run(["git", "commit", "-qam", "two"], cwd=repository, check=True)
    path = write(repository, base)
    assert hook.check(path) == []  # main had the looser override
    found = texts(hook.check(path, base="HEAD"))
    assert len(found) == 1
    assert "the override for sm_90 is gone and the cell is looser there" in found[0]
    mark = re.findall(r"\[softmax\.float16\.approved\]\n(?:\w.*\n?)*", base)[-1]
    widened = re.sub(r"digest = .*", 'digest = "00000000000000ee"\nreason = "it errs more"', mark)
    assert widened != mark
    assert hook.check(write(repository, base.replace(mark, widened)), base="HEAD") == []


def test_an_override_by_hand(repository: Path) -> None:
    """Without approval it can't be looser than its cell, and the message says what to do."""
    plain = """
[softmax.float16.on.sm_80]
atol = 1e-07
scaled_tol = SLOPE
allclose = {atol = 2e-07, rtol = 0.0012}
"""
    found = hook.check(write(repository, GOOD + plain.replace("SLOPE", "64.0")))
    errors = [f.what for f in found if f.level == "error"]
    assert errors == [
        "softmax.float16.on.sm_80: looser than its cell (7.8x at the median element) and not "
        "approved; calibration gives overrides to device classes that need less: drop it, or "
        "measure there and widen the cell (`tolcal calibrate`, `tolcal approve --widen REASON`)"
    ]
    found = hook.check(write(repository, GOOD + plain.replace("SLOPE", "2.0")))
    assert {f.level for f in found} == {"warning"}
    mark = GOOD[GOOD.rindex("[softmax.float16.on.sm_90.approved]") :].replace("sm_90", "sm_80")
    mark = mark.replace(re.findall('value = "(.*)"', mark)[0], "VALUE")
    signed = GOOD + plain.replace("SLOPE", "64.0") + "\n" + mark
    cells, _ = tolerances.parse(tomli.loads(signed))
    signed = signed.replace("VALUE", cells["softmax", "float16"].on["sm_80"].value_digest)
    errors = [f.what for f in hook.check(write(repository, signed)) if f.level == "error"]
    assert len(errors) == 1
    assert "looser than the cell that held there before (7.8x" in errors[0]


def test_rounding_is_no_change(repository: Path) -> None:
    """What `tolcal format` makes of numbers keeps their approval."""
    long = changed("scaled_tol = 8.0", "scaled_tol = 8.0012")
    write(repository, long)
    subprocess.run(["git", "commit", "-qam", "two"], cwd=repository, check=True)
    path = repository / "tolerances.toml"
    assert hook.order(path)
    assert "scaled_tol = 8.01\n" in path.read_text()
    assert hook.check(path, base="HEAD") == []


def test_which_base(repository: Path) -> None:
    """The default branch; --base; what pre-commit or Actions name; HEAD on a lone branch."""
    loose = changed("scaled_tol = 8.0", "scaled_tol = 9.0", **NEW)
    path = write(repository, loose)
    assert len(hook.check(path)) == 1
    subprocess.run(["git", "commit", "-qam", "two"], cwd=repository, check=True)
    assert len(hook.check(path)) == 1  # main still has 8
    assert hook.check(path, base="HEAD") == []
    done = run(repository, "check", PRE_COMMIT_FROM_REF="HEAD")
    assert (done.returncode, done.stdout) == (0, "")
    with pytest.raises(TolcalError, match="not TOML"):
        hook.check(write(repository / ".git", "="))  # what git was asked is let go of
    with pytest.raises(TolcalError, match="--base nonsense: git knows no such commit"):
        hook.check(path, base="nonsense")
    with pytest.raises(TolcalError, match="knows no such commit"):
        hook.check(path, base="--output=x")
    assert not (repository / "x").exists()


def loosened_clone(repository: Path) -> Path:
    """A clone of one commit, as Actions make it, in which a loosening is committed."""
    write(repository, changed("scaled_tol = 8.0", "scaled_tol = 9.0", **NEW))
    git_in(repository, "commit", "-qam", "two")
    clone = repository / "clone"
    git_in(repository, "clone", "-q", "--depth=1", repository.as_uri(), str(clone))
    return clone


def git_in(folder: Path, *command: str) -> None:
    subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize(
    "named", [{"GITHUB_BASE_REF": "main"}, {"PRE_COMMIT_FROM_REF": "1234567890"}]
)
def test_a_named_base_that_is_not_there_is_an_error(
    repository: Path, named: dict[str, str]
) -> None:
    """Never compared with HEAD instead; once fetched, it is compared with."""
    clone = loosened_clone(repository)
    done = run(clone, "check", **named)
    (what,) = [f"{name}={value}" for name, value in named.items()]
    assert done.returncode == 2, done.stdout
    assert f"{what}: git knows no such commit" in done.stderr
    assert "fetch-depth: 0" in done.stderr
    git_in(clone, "fetch", "-q", "--depth=1", "origin", "main:refs/remotes/origin/main")
    done = run(clone, "check", GITHUB_BASE_REF="main")
    assert done.returncode == 1
    assert "looser than before (1.12x" in done.stdout
    assert run(repository, "check", PRE_COMMIT_FROM_REF="0" * 40).returncode == 1  # names none


def test_a_moved_file_is_compared_with_what_it_was(repository: Path) -> None:
    """Committed or not, with another name too; what was removed is missed."""
    loose = changed("scaled_tol = 8.0", "scaled_tol = 9.0", **NEW)
    (repository / "new").mkdir()
    git_in(repository, "mv", "tolerances.toml", "new/limits.toml")
    path = repository / "new" / "limits.toml"
    path.write_text(loose)
    for _ in range(2):
        found = texts(hook.check(path))
        assert found[0] == (
            "1:1 warning is not in the base commit; compared with tolerances.toml there"
        )
        assert len(found) == 2
        assert "looser than before (1.12x" in found[1]
        git_in(repository, "commit", "--allow-empty", "-qam", "two")
    path.write_text("schema = 1\n")
    assert "was removed" in texts(hook.check(path))[1]


def test_a_copy_beside_the_old_file_is_compared_too(repository: Path) -> None:
    """Cells of both, that is: a second file may lack what the first has."""
    other = repository / "other.toml"
    other.write_text(changed("scaled_tol = 8.0", "scaled_tol = 9.0", **NEW))
    assert any("looser than before (1.12x" in f for f in texts(hook.check(other)))
    other.write_text(GOOD.replace("softmax", "gelu"))
    assert [f.level for f in hook.check(other)] == ["warning"]
    git_in(repository, "rm", "-q", "tolerances.toml")
    git_in(repository, "commit", "-qm", "none")
    assert texts(hook.check(other, base="HEAD")) == []  # the first file of a repository


def test_a_link_is_the_file_that_it_is_of(repository: Path) -> None:
    """Its name and its folder: a link to a loosened file, and a file that became a link."""
    (repository / "sub").mkdir()
    path = write(repository, changed("scaled_tol = 8.0", "scaled_tol = 9.0", **NEW))
    link = repository / "sub" / "link.toml"
    link.symlink_to(path)
    assert any("looser than before (1.12x" in f for f in texts(hook.check(link)))
    target = path.rename(repository / "sub" / "target.toml")
    path.symlink_to(target)
    assert any("looser than before (1.12x" in f for f in texts(hook.check(path)))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_the_shorter_base_holds_every_cell_that_changed(data: Any) -> None:
    """Whatever is added, changed, moved or dropped: unchanged cells alone may be missing."""
    names = [f"{op}.{d}" for op in "abc" for d in ("float32", "float16")]

    def file() -> str:
        parts = []
        for name in names:
            kind = data.draw(st.sampled_from(["", "plain", "plain", "on"]))
            numbers = f"atol = {data.draw(st.sampled_from(['1.0', '2.0']))}\nscaled_tol = 1.0\n"
            numbers += "allclose = {atol = 1.0, rtol = 0.5}\n"
            indent = data.draw(st.sampled_from(["", "", " "]))
            if kind:
                parts.append(f"{indent}[{name}]\n{numbers}")
            if kind == "on":  # it may stand anywhere
                parts.append(f"{indent}[{name}.on.cpu]\n{numbers}")
        return "schema = 1\n" + "".join(data.draw(st.permutations(parts)))

    old, new = file(), file()
    before, after = (tolerances.parse(tomli.loads(text))[0] for text in (old, new))
    shorter = tolerances.parse(tomli.loads(git.changed(old, new)))[0]
    assert {c: t for c, t in before.items() if after.get(c) != t}.items() <= shorter.items()
    assert shorter.items() <= before.items()


def test_an_indented_override_is_of_its_own_cell() -> None:
    """Not of the table above it: the cell that it changes must not be missing."""
    numbers = "atol = 1.0\nscaled_tol = 1.0\nallclose = {atol = 1.0, rtol = 0.5}\n"
    old = f"schema = 1\n[a.float32]\n{numbers}[b.float32]\n{numbers}"
    assert git.changed(old, f"{old} [a.float32.on.cpu]\n{numbers}") == old
    assert "[a.float32]" in git.changed(old, f"{old}[a.float32.on.cpu]\n{numbers}")


# --- the schema -----------------------------------------------------------------------------


def test_the_shipped_schema_is_that_of_the_types(tmp_path: Path) -> None:
    """The file in the package, `tolcal check --schema` and the types say the same."""
    shipped = (ROOT / "tolcal/hook/tolerances.schema.json").read_text()
    done = run(tmp_path, "check", "--schema")
    assert done.stdout == shipped
    assert json.loads(shipped) == json.loads(json.dumps(json_schema()))
    jsonschema.Draft7Validator.check_schema(json_schema())


@pytest.mark.parametrize("tool", ["check-jsonschema", "taplo"])
def test_other_validators_take_the_schema(tmp_path: Path, tool: str) -> None:
    """check-jsonschema and Taplo accept the shipped file and refuse a bad one by its schema."""
    schema = ROOT / "tolcal/hook/tolerances.schema.json"
    command = {
        "check-jsonschema": ["check-jsonschema", "--schemafile", str(schema)],
        "taplo": ["taplo", "lint", "--schema", schema.as_uri()],
    }[tool]
    program = Path(sys.executable).with_name(command[0])
    (tmp_path / "good").mkdir()
    good, bad = ROOT / "tolerances.toml", write(tmp_path, GOOD.replace("0.0011", "0.0001"))
    for path, status in ((good, 0), (write(tmp_path / "good", GOOD), 0), (bad, 1)):
        done = subprocess.run([program, *command[1:], str(path)], capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr


@settings(deadline=None, max_examples=200)
@given(
    st.floats(2.0**-140, 1e4), st.floats(0, 1e6), st.sampled_from(sorted(DTYPES)),
    st.sampled_from([2.0**-24, 2.0**-53]),
)  # fmt: skip
def test_calibrated_pairs_are_in_range(atol: float, c: float, dtype: str, u: float) -> None:
    """Nothing that calibration gives is tighter than the hook lets pass."""
    pair = fit.allclose(max(atol, fit.ATOL_FLOOR), c, u, dtype)
    for keys, value in Tolerance(1.0, 1.0, pair).numbers.items():
        if keys[0] == "allclose":
            assert value is not None
            assert value >= rules.ranges(dtype)[keys].low
    assert rules.ranges(dtype)[("atol",)].low <= fit.ATOL_FLOOR


# --- order ----------------------------------------------------------------------------------

MESSY = """\
# Ours.
schema = 1   # the first

# softmax, narrow
[softmax.float16]   # ask Ada
rtol_note = "kept"
allclose = { rtol = 1.0e-3, atol = 0.0000000651 }   # pair
# measured twice
atol = 2.4137e-8  # yes
scaled_tol=8

  [softmax.float16.approved]
  value = "VALUE"
  by = '''ada
  [x.y]'''

[attention.float32]
atol = 1
scaled_tol = 2.0
allclose = {atol=1,rtol=0.5}
[attention.float32.evidence]
devices = [
  "a", # one
  "b",
]
# the end
"""


def test_order_and_rounding_by_hand(tmp_path: Path) -> None:
    """Whole text: ops sorted, keys in order, comments in place; unsound numbers stay."""
    text = MESSY.replace('rtol_note = "kept"\n', "")
    assert (
        layout.canonical(text)
        == """\
# Ours.
schema = 1   # the first

[attention.float32]
atol = 1
scaled_tol = 2.0
allclose = {atol=1,rtol=0.5}

[attention.float32.evidence]
devices = [
  "a", # one
  "b",
]

# softmax, narrow
[softmax.float16]  # ask Ada
# measured twice
atol = 2.4137e-8  # yes
scaled_tol=8
""".replace("scaled_tol=8", "scaled_tol = 8")
        + """\
allclose = { rtol = 1.0e-3, atol = 0.0000000651 }   # pair

[softmax.float16.approved]
by = '''ada
  [x.y]'''
value = "VALUE"

# the end
"""
    )


def test_rounding_keeps_an_approval_and_no_other(tmp_path: Path) -> None:
    """A digest that was right is renewed; one that was wrong stays wrong."""
    text = (CELL + OVERRIDE).replace("atol = 2.5e-08", "atol = 2.4137e-8").replace("8.0", "8", 1)
    path = write(tmp_path, approved(text))
    assert hook.order(path)
    cells = tolerances.read(path)
    assert cells["softmax", "float16"].atol == 2.42e-8
    assert tolerances.changed_by_hand(cells) == []
    path = write(tmp_path, approved(text).replace("bias_tol = 0.31", "bias_tol = 0.32", 1))
    assert hook.order(path)
    assert tolerances.changed_by_hand(tolerances.read(path)) == [("softmax", "float16")]


def test_what_is_in_order_stays() -> None:
    """The shipped file, and the good one, byte for byte; with CRLF too."""
    for text in ((ROOT / "tolerances.toml").read_text(), GOOD):
        assert layout.canonical(text) == text
    assert layout.canonical(GOOD.replace("\n", "\r\n")) == GOOD.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("schema = 1\nsoftmax.float16 = {atol = 1.0}\n", 2),
        ("schema = 1\n[softmax]\nfloat16 = {atol = 1.0}\n", 2),
        ("schema = 1\n[softmax.float16]\nallclose.atol = 1.0\n", 3),
        ("schema = 1\n[[softmax.float16]]\natol = 1.0\n", 2),
    ],
)
def test_what_has_no_place_is_left(tmp_path: Path, text: str, line: int) -> None:
    """Other spellings are named, and the file stays as it was."""
    path = write(tmp_path, text)
    with pytest.raises(TolcalError, match=f"{re.escape(str(path))}:{line}:1: .*left as it is"):
        hook.order(path)
    assert path.read_text() == text
    assert run(tmp_path, "format").returncode == 1


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_order_loses_nothing(data: Any) -> None:
    """Any file made of shuffled cells: the same values but for rounding, every comment, stable."""
    names = data.draw(st.permutations(["b.float16", "b.float32", "a.bfloat16", "a.float64"]))
    text, comments = "schema = 1\n", 0
    for name in names:
        keys = {
            "atol": data.draw(st.floats(1e-300, 1e300)),
            "scaled_tol": data.draw(st.integers(0, 10**6)),
            "bias_tol": data.draw(st.floats(0.01, 0.99)),
            "allclose": "{atol = 1, rtol = 0.33333}",
        }
        text += f"[{name}]\n"
        for key in data.draw(st.permutations(sorted(keys))):
            for _ in range(data.draw(st.integers(0, 2))):
                text += f"# c{comments}\n"
                comments += 1
            text += f"{key} = {keys[key]}  # c{comments}\n"
            comments += 1
    ordered = layout.canonical(text)
    assert layout.canonical(ordered) == ordered
    assert sorted(re.findall(r"# c\d+\b", ordered)) == sorted(re.findall(r"# c\d+\b", text))
    before, after = (tolerances.parse(tomli.loads(t))[0] for t in (text, ordered))
    assert list(after) == sorted(after, key=lambda c: (c[0], list(DTYPES).index(c[1])))
    assert before.keys() == after.keys()
    for cell, tolerance in before.items():
        for keys_, value in tolerance.numbers.items():
            now = after[cell].numbers[keys_]
            assert value is not None
            assert now is not None
            assert value <= now <= value * 1.011


def test_fix_drops_cells_that_are_gone_and_nothing_else(tmp_path: Path) -> None:
    """A cell that may be misspelt stays, and so does what somebody changed by hand."""
    make_op(tmp_path, "softmax")
    gone = approved(CELL).replace("softmax", "zeta").partition("\n\n")[2]
    near = approved(CELL).replace("softmax", "softmx").partition("\n\n")[2]
    path = write(tmp_path, GOOD.replace("8.0", "9.0", 1) + "\n" + gone + "\n" + near)
    done = run(tmp_path, "check", "--fix")
    assert done.returncode == 1
    assert done.stdout.splitlines()[:2] == [
        "tolerances.toml: dropped 1 cell of ops that are gone: zeta/float16",
        "tolerances.toml: put in order",
    ]
    assert set(tolerances.read(path)) == {("softmax", "float16"), ("softmx", "float16")}
    assert "changed by hand" in done.stdout
    assert "did you mean 'softmax'?" in done.stdout
    assert "zeta" not in path.read_text()


def test_fix_drops_nothing_by_a_wrong_corpus(tmp_path: Path) -> None:
    """More than half of the cells: the file stays, and the command says why."""
    make_op(tmp_path, "gelu")
    gone = "".join(approved(CELL).replace("softmax", op).partition("\n\n")[2] for op in ("a", "b"))
    path = write(tmp_path, "schema = 1\n" + gone)
    before = path.read_text()
    done = run(tmp_path, "check", "--fix")
    assert (done.returncode, done.stdout) == (2, "")
    assert "2 of 2 cells are of ops that" in done.stderr
    assert "(a/float16, b/float16), so nothing was dropped; name the right" in done.stderr
    assert path.read_text() == before


# --- writing --------------------------------------------------------------------------------


def test_nothing_is_written_through_a_planted_link(tmp_path: Path) -> None:
    """Neither by a name that could be known, nor in place of a link of the user's own."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".tolerances.toml.tmp").symlink_to(victim)
    (tmp_path / "real").mkdir()
    real = write(tmp_path / "real", GOOD.replace("8.0", "8", 1))
    real.chmod(0o640)
    link = tmp_path / "tolerances.toml"
    link.symlink_to(real)
    assert run(tmp_path, "format").stdout == "tolerances.toml: put in order\n"
    assert victim.read_text() == "mine"
    assert link.is_symlink()
    assert real.read_text() == GOOD
    assert real.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in real.parent.iterdir()] == ["tolerances.toml"]
    cell = tolerances.read(link)["softmax", "float16"]
    tolerances.write(link, {("gelu", "float16"): cell})
    assert link.is_symlink()
    assert len(tolerances.read(real)) == 2


def test_what_can_not_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a read-only file system, which root too can't write to; no file is left behind."""
    path = write(tmp_path, GOOD.replace("8.0", "8", 1))

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "fchmod", refuse)
    with pytest.raises(TolcalError, match="cannot write it: Read-only file system; check"):
        hook.order(path)
    assert [p.name for p in tmp_path.iterdir()] == ["tolerances.toml"]


@pytest.mark.parametrize("name", ["check", "format"])
def test_the_scripts_help_ends_with_an_example(name: str) -> None:
    """As that of every command."""
    code = f"from tolcal.hook import commands; commands.{name}_script()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].startswith(f"Example: tolcal-{name} ")


# --- overrides survive ----------------------------------------------------------------------


def test_an_approval_keeps_overrides(tmp_path: Path) -> None:
    """Writing a cell anew with its overrides leaves them, without them takes them out."""
    path = write(tmp_path, GOOD)
    before = tolerances.read(path)["softmax", "float16"]
    new = Tolerance(1e-7, 2.0, AllClose(1e-7, 1e-3), on=before.on)
    tolerances.write(path, {("softmax", "float16"): new})
    after = tolerances.read(path)["softmax", "float16"]
    assert (after.atol, after.evidence, after.on) == (1e-7, None, before.on)
    assert after.for_device("sm_90").atol == 2.5e-7
    assert after.for_device("sm_100").atol == 1e-7
    alone = Tolerance(1e-7, 2.0, AllClose(1e-7, 1e-3))
    tolerances.write(path, {("softmax", "float16"): alone})
    assert tolerances.read(path)["softmax", "float16"] == alone
    other = tmp_path / "other.toml"
    tolerances.write(other, {("softmax", "float16"): before})
    assert tolerances.read(other) == {("softmax", "float16"): before}
    assert hook.check(other) == []
    assert layout.canonical(other.read_text()) == other.read_text()


def test_positions_are_found_in_any_spelling() -> None:
    """Quoted device classes, inline tables and dotted keys."""
    text = 'schema = 1\n[a.float16.on."sm_90"]\nallclose = { atol = 1, rtol = 2 }\nb.c = 1\n'
    where = tomlfile.Positions(text)
    assert where.of(("a", "float16", "on", "sm_90")) == (2, 2)
    assert where.of(("a", "float16", "on", "sm_90", "allclose", "rtol")) == (3, 24)
    assert where.of(("a", "float16", "on", "sm_90", "b", "c")) == (4, 1)
    assert where.of(("a", "float16", "on", "sm_80")) == (2, 2)
    assert where.of(("other",)) == (1, 1)


def test_a_small_override_is_for_calibration_to_keep(tmp_path: Path) -> None:
    """One by hand is not worth its upkeep; one that was approved may have come nearer since."""
    small = OVERRIDE.replace("atol = 2.5e-07", "atol = 3.7e-08")
    found = hook.check(write(tmp_path, approved(CELL + small)))
    (why,) = [f for f in found if "within 1.5x of its cell in every number" in f.what]
    assert why.level == "warning"
    plain = small.partition("\n[softmax.float16.on.sm_90.approved]")[0]
    found = hook.check(write(tmp_path, approved(CELL) + plain))
    assert [f.level for f in found if "within 1.5x" in f.what] == ["error"]
