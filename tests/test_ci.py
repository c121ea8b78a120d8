"""The main job on this machine: the corpus on Triton's interpreter, judged by H200 history."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests_support import CORPUS, ROOT

from tolcal import corpus
from tolcal.history import jsonlines
from tolcal.model import Record

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `tolcal ci` needs of the repository."""
    target = tmp_path_factory.mktemp("ci")
    for name in ("corpus", "tolerances.toml", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)
    (target / "tests" / "data").mkdir(parents=True)
    for name in ("choice", "history", "profiles-choice", "profiles-history"):
        shutil.copy(ROOT / f"tests/data/h200-{name}.parquet", target / "tests" / "data")
    return target


def ci(folder: Path, *args: str) -> tuple[int, dict[str, Any], list[Record]]:
    """Exit status, P.json and records of `tolcal ci`."""
    done = subprocess.run(
        [sys.executable, "-m", "tolcal", "ci", "--device", "cpu", *args],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr[-2000:]
    assert done.stdout == (folder / "out" / "comment.md").read_text()
    page = (folder / "out" / "report.html").read_text()
    assert json.loads((folder / "out" / "proposal.json").read_text())["digest"] in page
    document = json.loads((folder / "out" / "proposal.json").read_text())
    return done.returncode, document, list(jsonlines.read(folder / "out" / "records.jsonl.gz"))


def gate_verdicts(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What a verdict says of gate cases; whether a subtle one escapes all, fresh cases decide."""
    keys = ("kind", "kernel", "dtype", "gate_exceeding", "blocks", "changed")
    return [
        tuple(f[key] for key in keys)
        for f in document["verdict"]["findings"]
        if f["gate_exceeding"] or f["blocks"]
    ]


def test_the_whole_corpus_twice(copy: Path) -> None:
    """Every kernel runs, controls pass, buggy kernels are caught; the second run agrees.

    As `make demo` does it, in one profile: the interpreter takes its time for the others.
    """
    status, document, records = ci(copy, "--profile", "default", "--gate", "4", "--cases", "2")
    assert status == 0
    kernels = {(r.kernel, r.case.dtype): Counter[str]() for r in records}
    for record in records:
        kernels[record.kernel, record.case.dtype][record.status] += 1
    # bfloat16 is skipped by the interpreter.
    ops = corpus.load(CORPUS)
    assert kernels == {
        (kernel.name, dtype): {
            "skipped" if kernel.uses_triton and dtype == "bfloat16" else "ok": 6
        }
        for op in ops for kernel in op.kernels for dtype in op.dtypes
    }  # fmt: skip
    assert len(kernels) == 70 * 3
    # A device that nothing was calibrated on may drift, but never blocks or regresses.
    found = {f["kind"] for f in document["verdict"]["findings"]}
    assert found <= {"caught", "drift", "escaped", "out_of_domain"}
    caught = {f["kernel"] for f in document["verdict"]["findings"] if f["kind"] == "caught"}
    subtle = {k.name for op in ops for k in op.kernels if k.subtle}
    buggy = {k.name for op in ops for k in op.kernels if k.role == "buggy"}
    # The interpreter runs one program after the other, so atomics have an order.
    ordered = {"rmsnorm_weight_grad_atomic_buggy"}
    assert buggy - subtle - caught == ordered
    assert len(caught & subtle) >= 8  # a fault of the others may stay inside the tolerance
    assert {
        f["kernel"] for f in document["verdict"]["findings"] if f["kind"] == "escaped"
    } <= subtle | ordered
    for finding in document["verdict"]["findings"]:
        source = (copy / finding["path"]).read_text().splitlines()
        assert Path(finding["path"]).stem == finding["kernel"]
        assert source[finding["line"] - 1].startswith("def run(")
        assert bool(finding["fault"]) == (finding["kernel"] in buggy)
    (shard,) = (copy / "out" / "history").glob("*.parquet")
    before = shard.read_bytes()

    _, again, repeated = ci(copy, "--profile", "default", "--gate", "4", "--cases", "2")
    assert gate_verdicts(again) == gate_verdicts(document)
    assert len(gate_verdicts(document)) >= 20
    gate = [[(r.id, r.case.dtype, r.stats) for r in run if r.case_set == "gate"]
            for run in (records, repeated)]  # fmt: skip
    assert gate[0] == gate[1]
    assert shard.read_bytes() == before
    assert len(list((copy / "out" / "history").glob("*.parquet"))) == 2


def test_a_broken_control_blocks_until_it_is_mended(copy: Path) -> None:
    """A wrong epsilon exits 1 as a regression, run after run: its records stay out of history."""
    kernel = copy / "corpus" / "rmsnorm" / "kernels" / "rmsnorm_triton.py"
    good = kernel.read_text()
    assert good.count("1e-6") == 1
    kernel.write_text(good.replace("1e-6", "1e-1"))
    shards = sorted((copy / "out" / "history").glob("*"))
    for _ in range(2):
        status, document, _ = ci(copy, "rmsnorm", "--gate", "6", "--cases", "0")
        assert status == 1
        blocking = {
            (f["kind"], f["kernel"]) for f in document["verdict"]["findings"] if f["blocks"]
        }
        assert blocking == {("regression", "rmsnorm_triton")}
        assert sorted((copy / "out" / "history").glob("*")) == shards
    kernel.write_text(good.replace("1e-6", "1e-6  # as in the reference"))
    status, document, _ = ci(copy, "rmsnorm", "--gate", "6", "--cases", "0")
    assert status == 0  # changed, but right
    kernel.write_text(good)


def test_a_run_that_judges_nothing_says_so(copy: Path) -> None:
    """Exit 1 where no kernel ran; 0, said as loudly, where nothing has been approved yet."""
    few = ("relu_triton", "--gate", "1", "--cases", "0")
    status, document, records = ci(copy, *few, "--dtype", "bfloat16")
    assert status == 1
    assert document["verdict"]["statuses"] == {"skipped": len(records)}
    comment = (copy / "out" / "comment.md").read_text()
    assert "### tolcal: nothing was judged: every record was skipped (3)." in comment
    approved = copy / "tolerances.toml"
    kept = approved.read_text()
    approved.unlink()
    status, document, _ = ci(copy, *few, "--dtype", "float32")
    assert status == 0
    assert document["verdict"]["judged"] == 0
    comment = (copy / "out" / "comment.md").read_text()
    assert "### tolcal: nothing was judged: what ran has no approved tolerance." in comment
    approved.write_text(kept)


@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        ("sys.modules['altair'] = None",
         "altair, which is not installed: pip install 'tolcal[html]'"),
        ("sys.path.insert(0, 'broken')",
         "altair, which is installed but broken (half of it): reinstall it: "
         "pip install --force-reinstall altair"),
    ],
)  # fmt: skip
def test_without_the_charts_library_there_is_all_but_the_report(
    copy: Path, lacking: str, says: str
) -> None:
    """One line says how to get it; a report of another run is not left lying about."""
    (copy / "broken" / "altair").mkdir(parents=True, exist_ok=True)
    (copy / "broken" / "altair" / "__init__.py").write_text("raise ImportError('half of it')\n")
    (copy / "out").mkdir(exist_ok=True)
    stale = copy / "out" / "report.html"
    stale.write_text("<!doctype html><title>tolcal</title>of another run")
    options = ["ci", "relu", "--device", "cpu", "--gate", "1", "--cases", "0"]
    code = f"import sys; {lacking}; from tolcal.cli import main; main({options})"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0
    assert f"no report.html: it needs {says}\n" in done.stderr
    assert not stale.exists()
    assert (copy / "out" / "comment.md").read_text() == done.stdout
