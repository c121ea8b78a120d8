"""The same units over a Ray cluster, a real one on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from measure_support import GOOD, without_run, write_op

from tolcal.history import jsonlines
from tolcal.model import Record

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ops; a kernel that raises and one that ends its worker; records by the local engine."""
    folder = tmp_path_factory.mktemp("engine")
    dies = (
        "import os\n\ndef run(x):\n    if x.shape[0] == 2:\n        os._exit(9)\n    return x + x\n"
    )
    write_op(folder / "c", "aa", ("float32", "float16"), kernels={"aa_one": GOOD, "aa_dies": dies})
    write_op(folder / "c", "bb", kernels={"bb_raises": "def run(x):\n    1 / 0\n"})
    done = tolcal(folder, *command("local.jsonl.gz"))
    assert done.returncode == 1
    return folder


def command(out: str, *more: str) -> tuple[str, ...]:
    return (
        "run", "--device", "cpu", "--seed", "6", "--gate", "2", "--cases", "4", "--corpus", "c",
        "--out", out, *more,
    )  # fmt: skip


def tolcal(folder: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: Ray keeps threads and warns of much."""
    return subprocess.run(
        [sys.executable, "-m", "tolcal", *args], cwd=folder, env=os.environ | variables,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def plain(path: Path) -> list[object]:
    return [without_run(r) for r in jsonlines.read(path)]


def test_ray_gives_the_records_of_one_machine(folder: Path) -> None:
    """In the same order, whatever a kernel does; Ray is gone afterwards and has said nothing."""
    done = tolcal(folder, *command("ray.jsonl.gz", "--engine", "ray"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert "30 records (" in done.stderr
    assert "Traceback" not in done.stderr
    assert plain(folder / "ray.jsonl.gz") == plain(folder / "local.jsonl.gz")
    records: list[Record] = list(jsonlines.read(folder / "ray.jsonl.gz"))
    assert {r.reason for r in records if r.kernel == "aa_dies"} == {"", "exit status 9"}


def test_a_cut_run_is_resumed_by_ray(folder: Path) -> None:
    """What an engine began the other ends."""
    whole = list(jsonlines.read(folder / "local.jsonl.gz"))
    writer = jsonlines.Writer(folder / "r.jsonl.gz.part")
    for value in (whole[0].run, *whole[:17]):
        writer.write(value)
    writer.flush()
    writer.file.close()
    done = tolcal(folder, *command("r.jsonl.gz", "--engine", "ray", "--resume"))
    assert done.returncode == 1, done.stderr
    assert list(jsonlines.read(folder / "r.jsonl.gz"))[:17] == whole[:17]
    assert plain(folder / "r.jsonl.gz") == plain(folder / "local.jsonl.gz")


def test_a_cluster_of_somebody_else_is_left_running(folder: Path) -> None:
    """Ray that was there before us is there after us, and may run in another folder."""
    code = (
        "import os, sys, ray\n"
        "home = os.getcwd()\nos.chdir('/')\n"
        "ray.init(address='local', include_dashboard=False, _node_ip_address='127.0.0.1',\n"
        "         num_cpus=2, log_to_driver=False)\n"
        "os.chdir(home)\n"
        "from tolcal.cli import main\n"
        "status = main(sys.argv[1:])\n"
        "print(status, ray.is_initialized())\n"
        "ray.shutdown()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command("other.jsonl.gz", "--engine", "ray")],
        cwd=folder, env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "1 True", done.stderr[-2000:]
    assert plain(folder / "other.jsonl.gz") == plain(folder / "local.jsonl.gz")


def test_a_signal_ends_ray_too(tmp_path: Path) -> None:
    """SIGTERM in the midst: the status of it, what was measured in the file, Ray gone."""
    flag = tmp_path / "go"
    gated = (
        "import os, time\n\ndef run(x):\n"
        f"    while not os.path.exists({str(flag)!r}):\n        time.sleep(0.01)\n"
        "    return x + x\n"
    )
    write_op(tmp_path / "c", "aa", kernels={"aa_one": GOOD, "aa_two": GOOD})
    write_op(tmp_path / "c", "bb", kernels={"bb_gated": gated})
    part = tmp_path / "r.jsonl.gz.part"
    asked = command("r.jsonl.gz", "--engine", "ray", "--cases", "300", "--workers", "2")
    with subprocess.Popen(
        [sys.executable, "-m", "tolcal", *asked], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        until = time.monotonic() + 120
        while not (part.exists() and part.stat().st_size) and time.monotonic() < until:
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.splitlines()[-1].endswith("--resume measures the others")
    assert "Traceback" not in err
    assert len(jsonlines.read_partial(part).records) >= 256


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("cuda:1", "tolcal: --device cuda:1: Ray chooses the GPUs; give --device cuda"),
        ("cuda", "tolcal: --device cuda: the Ray cluster has no GPU; give --device cpu"),
    ],
)
def test_devices_that_ray_cannot_give(folder: Path, device: str, says: str) -> None:
    """One line, exit status 2."""
    asked = [device if word == "cpu" else word for word in command("d.jsonl.gz")]
    done = tolcal(folder, *asked, "--engine", "ray", CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, says)


def test_a_bad_reference_is_one_line(folder: Path, tmp_path: Path) -> None:
    """What the user can mend is said as by the local engine; the task's traceback isn't."""
    write_op(tmp_path / "c", reference="def reference(x):\n    raise ValueError('not today')\n")
    done = tolcal(tmp_path, *command("x.jsonl.gz", "--engine", "ray"))
    assert done.returncode == 2
    assert "ValueError: not today" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_no_cluster_at_the_address(folder: Path) -> None:
    """An address where nobody listens is one line that names it."""
    done = tolcal(folder, *command("n.jsonl.gz", "--engine", "ray"), RAY_ADDRESS="127.0.0.1:1")
    assert done.returncode == 2, done.stderr[-500:]
    assert done.stderr.splitlines()[-1] == (
        "tolcal: --engine ray: no cluster at 127.0.0.1:1: [Errno 111] Connection refused; check "
        "RAY_ADDRESS"
    )
