"""The pool against a stand-in for GPUs: real processes and pipes, kernels by name alone."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import stand_in_gpu
from measure_support import GOOD, request, without_run, write_op

from tolcal import corpus, measure
from tolcal.measure import process
from tolcal.measure.pool import TAMPERED
from tolcal.model import Record, TolcalError

TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are the stand-in."""
    monkeypatch.setattr(process, "WORKER", "stand_in_gpu")
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{TESTS.parent}")


def run(
    root: Path, *kernels: str, workers: int = 1, device: str = "cuda", cases: int = 4,
    timeout: float = 120.0, seed: int | None = None,
) -> list[Record]:  # fmt: skip
    """Records of kernels of those names, and of ``zz_good``."""
    if not root.joinpath("double").exists():
        write_op(root, kernels=dict.fromkeys((*kernels, "zz_good"), GOOD))
    asked = request(
        corpus.load(root), device=device, gate=cases, workers=workers, timeout=timeout, seed=seed
    )
    return [v for v in measure.measure(asked, root) if isinstance(v, Record)]


def test_bulk_comes_in_the_order_of_the_plan(tmp_path: Path) -> None:
    """A GPU unit is reported at its end, in any order; nobody waits for each kernel."""
    records = run(tmp_path, "a_good")
    assert [r.kernel for r in records] == ["a_good", "zz_good"] * 4
    assert {r.reason for r in records} == {"bulk on cuda:0"}


def test_all_gpus_take_part(tmp_path: Path) -> None:
    """By default workers stand on every visible GPU, and the run names all of them, sorted."""
    records = run(tmp_path, workers=0, cases=1280)
    assert {r.run.device_uuid for r in records} == {"GPU-4,GPU-5"}
    assert {r.reason for r in records} <= {"bulk on cuda:0", "bulk on cuda:1"}
    assert [r.case.id for r in records] == [
        r.case.id for r in run(tmp_path, workers=1, cases=1280)
    ]  # fmt: skip


def test_a_named_gpu_is_the_only_one(tmp_path: Path) -> None:
    """--device cuda:1 measures on that one alone."""
    records = run(tmp_path, device="cuda:1", workers=3, cases=400)
    assert {r.reason for r in records} == {"bulk on cuda:1"}
    assert {r.run.device_uuid for r in records} == {"GPU-4"}


def test_unlike_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds of GPU in one run are one line that names both and the way out."""
    monkeypatch.setenv("STAND_IN_UNLIKE", "1")
    text = "NVIDIA H200 (sm_90, driver {}, cuda 13.0, torch 2.11.0, triton 3.6.0)"
    with pytest.raises(TolcalError) as caught:
        run(tmp_path, workers=2, cases=400)
    assert str(caught.value) == (
        f"the GPUs here differ: cuda:0 is {text.format('580.1')}, and cuda:1 is "
        f"{text.format('570.9')}; one run is of one kind: choose with --device cuda:N"
    )
    monkeypatch.setenv("STAND_IN_UNLIKE", "")
    assert len(run(tmp_path, workers=2)) == 4


def test_only_a_careful_unit_blames(tmp_path: Path) -> None:
    """A worker lost in bulk blames nobody: the unit is run again with care, and that one is."""
    records = run(tmp_path, "a_good", "dies_on_2")
    failed = [(r.kernel, r.reason) for r in records if r.status == "crashed"]
    assert failed == [("dies_on_2", "exit status 9")]
    others = [r for r in records if r.status != "crashed"]
    assert len(others) == 11
    assert {r.reason.split()[0] for r in others} == {"careful"}
    assert records[7].kernel == "dies_on_2"  # the third case, the second kernel
    assert records[7].status == "crashed"


def test_a_hang_in_bulk_costs_one_case(tmp_path: Path) -> None:
    """The same for a worker that reports nothing within the limit."""
    records = run(tmp_path, "hangs_on_1", timeout=2.0)
    assert Counter((r.kernel, r.status) for r in records) == {
        ("hangs_on_1", "timeout"): 1, ("hangs_on_1", "skipped"): 3, ("zz_good", "skipped"): 4,
    }  # fmt: skip
    assert (records[2].status, records[2].reason) == ("timeout", "no result within 2 s")


def test_three_losses_are_enough(tmp_path: Path) -> None:
    """The loss in bulk counts for nobody; after three with care the rest is not tried."""
    records = run(tmp_path, "always_dies", cases=6)
    assert [r.reason for r in records if r.kernel == "always_dies"] == [
        *["exit status 7"] * 3, *["not run, after 3 lost workers: exit status 7"] * 3,
    ]  # fmt: skip
    assert {r.status for r in records if r.kernel == "zz_good"} == {"skipped"}


@pytest.mark.parametrize(
    "kernel", ["repeats", "for_another", "restarts", "refuses", "greets", *stand_in_gpu.UNSOUND]
)
def test_forged_messages_cost_their_forger(tmp_path: Path, kernel: str) -> None:
    """A report of what was not started, or was reported, is tampering, and only the forger's."""
    records = run(tmp_path, kernel, cases=2)
    forged = [r for r in records if r.kernel == kernel]
    assert {r.status for r in forged} == {"crashed"}
    assert {r.reason for r in forged} == {TAMPERED}
    good = [r for r in records if r.kernel == "zz_good"]
    assert {r.reason.split()[0] for r in good} == {"careful"}


def test_workers_on_two_gpus_give_the_records_of_one(tmp_path: Path) -> None:
    """The number of workers and GPUs shows in nothing but the run's list of devices."""
    one = run(tmp_path, device="cuda:0", workers=1, cases=300, seed=1)
    two = run(tmp_path, device="cuda", workers=2, cases=300, seed=1)

    def plain(records: list[Record]) -> list[object]:
        return [without_run(r) | {"reason": ""} for r in records]

    assert plain(one) == plain(two)
