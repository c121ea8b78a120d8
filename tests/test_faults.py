"""Kernels that misbehave in earnest, in real workers: each costs its own cases, nothing else."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from measure_support import GOOD, of, run, write_op

from tolcal.measure import process
from tolcal.measure.pool import TAMPERED
from tolcal.model import Record, TolcalError

ON_2 = "import os\ndef run(x):\n    if x.shape[0] == 2:\n        {}\n    return x + x\n"
AGAIN = (
    "import os, sys\nseen = []\ndef run(x):\n    if x.shape[0] == 2:\n        seen.append(x)\n"
    "        if len(seen) == 2:\n            {}\n    return x + x\n"
)
EACH_FD = "for fd in map(int, os.listdir('/proc/self/fd')):\n            "
WRITE = "try:\n                os.write(fd, {})\n            except OSError:\n                pass"
#: By name; each does it where B = 2 alone.
FAULTS = {
    # A flood on both streams that never ends, of what a CI log would take for commands.
    "a_floods": ON_2.format(
        "while True:\n            os.write(1, b'::error::owned\\n' * 4096)\n"
        "            os.write(2, b'##[error]owned\\n' * 4096)"
    ),
    # An end that the parent can't see in the pipes: a child holds them open, for ever.
    "b_leaves_a_child": ON_2.format(
        "child = os.fork()\n        if child == 0:\n            while True:\n"
        "                pass\n"
        "        open(FILE + '.fork', 'w').write(str(child))\n        os._exit(9)"
    ),
    "c_starts_a_program": ON_2.format(
        "import subprocess\n        child = subprocess.Popen(['sleep', '600'])\n"
        "        open(FILE + '.program', 'w').write(str(child.pid))\n        os._exit(9)"
    ),
    "ca_ends_well": ON_2.format("os._exit(0)"),
    "cb_exits": ON_2.format("exit()"),
    # The first launch of a case is right; the second is in guarded memory.
    "cc_ends_a_check": AGAIN.format("os._exit(0)"),
    "cd_exits_in_a_check": AGAIN.format("sys.exit(0)"),
    "d_closes_all": ON_2.format("os.closerange(0, 256)"),
    "e_closes_all_and_hangs": ON_2.format(
        "os.closerange(0, 256)\n        while True:\n            pass"
    ),
    "f_asks_too_much": ON_2.format("import torch\n        return torch.empty(1 << 60)"),
    "g_is_killed": ON_2.format("os.kill(os.getpid(), 9)"),
    "h_stops": ON_2.format("os.kill(os.getpid(), 19)"),
    "i_scribbles": ON_2.format(EACH_FD + WRITE.format("b'\\xff' * 100")),
    "j_scribbles_zeros": ON_2.format(EACH_FD + WRITE.format("b'\\0' * 400")),
    # The beginning of a message of a megabyte: all that follows would be part of it.
    "k_begins_a_message": ON_2.format(EACH_FD + WRITE.format("b'\\0\\x10\\0\\0'")),
    "z_good": GOOD,
}
REASONS = {
    "a_floods": ("timeout", "no result within 4 s"),
    "b_leaves_a_child": ("crashed", "exit status 9"),
    "c_starts_a_program": ("crashed", "exit status 9"),
    "d_closes_all": ("crashed", "exit status "),
    "e_closes_all_and_hangs": ("crashed", "SIGKILL"),
    "g_is_killed": ("crashed", "SIGKILL, perhaps out of memory"),
    "h_stops": ("timeout", "no result within 4 s"),
    "i_scribbles": ("crashed", TAMPERED),
    "j_scribbles_zeros": ("crashed", TAMPERED),
    "k_begins_a_message": ("timeout", "no result within 4 s"),
    "ca_ends_well": ("crashed", "exit status 0, before its work was done"),
    "cb_exits": ("crashed", "SystemExit: 0"),
    "cc_ends_a_check": ("crashed", "exit status 0, before its work was done"),
    "cd_exits_in_a_check": ("crashed", "in check a launch in guarded memory: SystemExit: 0"),
}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], Path]:
    """Three cases, B = 1, 2 and 3 or 4, of every kernel; the folder it wrote process ids to."""
    root = tmp_path_factory.mktemp("faults")
    folder = tmp_path_factory.mktemp("pids")
    kernels = {
        name: code.replace("FILE", repr(str(folder / "pid"))) for name, code in FAULTS.items()
    }
    write_op(root, kernels=kernels)
    return run(root, gate=4, timeout=4.0, workers=2), folder


def test_everybody_has_a_record_of_every_case(faults: tuple[list[Record], Path]) -> None:
    """What one kernel does where B = 2 shows nowhere else."""
    records, _ = faults
    order = list(dict.fromkeys(r.case.id for r in records))
    assert [(r.case.id, r.kernel) for r in records] == [(c, k) for c in order for k in FAULTS]
    assert {r.status for r in records if dict(r.case.dims)["B"] != 2} == {"ok"}
    assert {r.status for r in of(records, "z_good").values()} == {"ok"}
    for record in of(records, "z_good").values():
        assert record.stats is not None
        assert record.stats.max_abs == 0.0


@pytest.mark.parametrize("kernel", REASONS)
def test_a_fault_is_a_record(faults: tuple[list[Record], Path], kernel: str) -> None:
    """Its status and reason; a flood's last line is quoted at most, and made inert."""
    record = of(faults[0], kernel)[2]
    status, reason = REASONS[kernel]
    assert (record.status, record.reason[: len(reason)]) == (status, reason)
    assert "##[" not in record.reason
    assert len(record.reason) <= 240


def test_too_much_memory_is_an_ordinary_error(faults: tuple[list[Record], Path]) -> None:
    """An allocation that can't be is raised by torch: the worker lives on."""
    record = of(faults[0], "f_asks_too_much")[2]
    assert record.status == "crashed"
    assert record.reason.startswith("RuntimeError: ")
    assert record.input_hash


@pytest.mark.parametrize("how", ["fork", "program"])
def test_children_end_with_their_worker(faults: tuple[list[Record], Path], how: str) -> None:
    """What a kernel has started is gone with the worker it was in."""
    pid = int((faults[1] / f"pid.{how}").read_text())
    until = time.monotonic() + 30
    while alive(pid) and time.monotonic() < until:
        os.sched_yield()  # killed by now, but the system may yet have to bury it
    assert not alive(pid)


def alive(pid: int) -> bool:
    """Whether that process runs; one that nobody has waited for is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_nothing_reaches_our_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Floods on both streams and descriptors, then an end: a bounded reason is all there is."""
    flood = (
        "import os, sys\n"
        "def run(x):\n"
        "    for stream in (sys.stdout, sys.stderr):\n"
        "        stream.write('::error::owned\\n' * 20000)\n"
        "        stream.flush()\n"
        "    os.write(1, b'::add-mask::x\\n')\n"
        "    os.write(2, b'##[error]owned\\n')\n"
        "    if x.shape[0] == 1:\n"
        "        os._exit(1)\n"
        "    return x + x\n"
    )
    write_op(tmp_path, kernels={"floods": flood, "fine": GOOD})
    records = run(tmp_path, gate=4)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert Counter(r.status for r in records) == {"ok": 7, "crashed": 1}
    (died,) = [r for r in records if r.status == "crashed"]
    assert died.reason == "exit status 1: ##(error]owned"


def test_a_kernel_has_a_limit_over_its_cases(tmp_path: Path) -> None:
    """Cases that each keep the limit may not together: the rest of that kernel is not run."""
    slow = "import time\ndef run(x):\n    time.sleep(1.2)\n    return x + x\n"
    write_op(tmp_path, kernels={"a_slow": slow, "b_good": GOOD})
    records = run(tmp_path, gate=5, timeout=60.0, kernel_timeout=3.0)
    assert {r.status for r in records if r.kernel == "b_good"} == {"ok"}
    statuses = [r.status for r in records if r.kernel == "a_slow"]
    good = statuses.count("ok")
    assert 1 <= good <= 3
    assert statuses == ["ok"] * good + ["timeout"] * (5 - good)
    assert [r.reason for r in records if r.kernel == "a_slow"][-1] == (
        "not run, after 3 s spent on cases before it"
    )


def test_a_hang_is_held_to_the_limit_over_all_cases(tmp_path: Path) -> None:
    """Where that limit is the nearer one it ends the case, and is named."""
    write_op(tmp_path, kernels={"a_hangs": "def run(x):\n    while True:\n        pass\n"})
    records = run(tmp_path, gate=3, timeout=600.0, kernel_timeout=2.0)
    assert [r.status for r in records] == ["timeout"] * 3
    assert [r.reason for r in records] == [
        "no result within the 2 s that a kernel may take in all",
        *["not run, after 2 s spent on cases before it"] * 2,
    ]


# --- one process ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "by_itself", "oom", "words"),
    [
        (9, True, False, "exit status 9"),
        (0, True, False, "exit status 0, before its work was done"),
        (-11, True, False, "SIGSEGV"),
        (-9, True, True, "SIGKILL, out of memory"),
        (-9, True, False, "SIGKILL, perhaps out of memory"),
        (-9, False, True, "SIGKILL"),  # ours
        (-63, True, False, "signal 63"),
    ],
)
def test_exit_in_words(code: int, by_itself: bool, oom: bool, words: str) -> None:
    """Out of memory is said where the system has counted it, and guessed where only it could."""
    assert process.describe_exit(code, by_itself, oom) == words


def test_a_flood_is_kept_to_its_tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a worker prints 4 KiB stay, and one look takes a bounded part of it."""
    (tmp_path / "flooding.py").write_text(
        "import os\nwhile True:\n    os.write(1, b'0123456789abcdef' * 4096)\n"
    )
    monkeypatch.setattr(process, "WORKER", "flooding")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flooding = process.Process("cpu", {})
    taken = 0
    os.set_blocking(flooding.output, True)  # each look waits for what is coming
    while taken < 50:
        assert flooding.drain()
        assert len(flooding.tail) <= process.TAIL_BYTES
        taken += 1
    assert len(flooding.tail) == process.TAIL_BYTES
    assert flooding.end().startswith("SIGKILL: ")


#: Kernels that leave the process in a state, or say a word, by which the reference seems at fault.
UNDERMINING = {
    "refuses": (
        "import os, sys\nfrom tolcal.measure import wire\n"
        "def run(x):\n"
        "    fd = int(sys.argv[2])\n"
        "    wire.write_frame(fd, wire.Measured(0, 'b_bad', 'skipped', 'mine', '', None, None))\n"
        "    wire.write_frame(fd, wire.Refused('all is lost'))\n    return x + x\n"
    ),
    "moves_the_default_device": (
        "import torch\ndef run(x):\n    torch.set_default_device('meta')\n    return x + x\n"
    ),
    "unloads_modules": "import sys\ndef run(x):\n    sys.modules.clear()\n    return x + x\n",
}


@pytest.mark.parametrize("how", UNDERMINING)
def test_no_kerneca_ends_the_run_in_the_references_name(tmp_path: Path, how: str) -> None:
    """A reference is found at fault by a process in which no kernel has run; others all run."""
    reference = (
        "import torch\ndef reference(x):\n    return 2 * x + torch.zeros(x.shape).double()\n"
    )
    kernels = {"a_good": GOOD, "b_bad": UNDERMINING[how], "c_good": GOOD}
    write_op(tmp_path, reference=reference, kernels=kernels)
    records = run(tmp_path, gate=4)
    assert len(records) == 12
    assert {r.status for r in records if r.kernel == "a_good"} == {"ok"}
    assert [r.status for r in records if r.kernel == "c_good"].count("ok") >= 3


def test_a_reference_that_fails_later_stilca_ends_the_run(tmp_path: Path) -> None:
    """Kernels have run by then, so a fresh process has to confirm it: the message is the same."""
    reference = (
        "def reference(x):\n    if x.shape[0] == 3:\n        raise ValueError('not three')\n"
        "    return 2 * x\n"
    )
    write_op(tmp_path, reference=reference)
    with pytest.raises(TolcalError) as caught:
        run(tmp_path, gate=8)
    assert str(caught.value) == (
        f"{tmp_path}/double/reference.py: reference() failed on B=3 H=5: ValueError: not three "
        "(reference.py:3)"
    )


@pytest.mark.parametrize(
    "body",
    ["torch.nn.functional.dropout(2 * x)", "2 * x + calls.append(1) * 0", "x * len(calls)"],
    ids=["random", "fails", "counts"],
)
def test_a_reference_must_be_a_function(tmp_path: Path, body: str) -> None:
    """What gives other values the second time has no sensitivity."""
    body = body.replace("calls.append(1) * 0", "float(calls.append(1) or len(calls))")
    reference = (
        f"import torch\ncalls = []\ndef reference(x):\n    calls.append(1)\n    return {body}\n"
    )
    write_op(tmp_path, reference=reference)
    with pytest.raises(TolcalError, match=r"reference\(\) gives other values when it is called"):
        run(tmp_path)
