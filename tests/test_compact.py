"""Compaction of a history folder: fewer files, the same records, whatever interrupts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import ROOT, make_record, make_run

from tolcal import history
from tolcal.cli import main
from tolcal.history import folder
from tolcal.model import TolcalError


def fill(at: Path, shards: int, overlap: bool = True) -> None:
    """Shards of three records each, of which neighbours share one."""
    for i in range(shards):
        first = i * (2 if overlap else 3)
        history.add(at, [make_record(seed=first + k) for k in range(3)])


def records(at: Path) -> list[int]:
    return sorted(history.read_table([at])["seed"].to_pylist())


def test_compact_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command: one shard in the place of many, the same digest, and a second time nothing."""
    at = tmp_path / "h"
    fill(at, 4)
    before = history.content_digest(history.read([at]))
    assert main(["history", "compact", "--history", str(at)]) == 0
    (shard,) = at.glob("*.parquet")
    assert capsys.readouterr().out == (
        f"{at}: 4 shards are one now, with the same records: {shard}\n"
    )
    assert history.content_digest(history.read([at])) == before
    assert records(at) == list(range(9))
    assert main(["history", "compact", "--history", str(at)]) == 0
    assert capsys.readouterr().out == f"{at}: 1 shard, so there is nothing to compact\n"
    assert history.verify([at]) == [f"{at}: 9 records of 1 runs in 1 shard(s): good"]


def test_a_lost_shard_stays_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is lost or damaged is not compacted away: the error stays, and so do the files."""
    fill(tmp_path, 3)
    lost, damaged, _ = sorted(tmp_path.glob("*.parquet"))
    content = lost.read_bytes()
    lost.unlink()
    assert main(["history", "compact", "--history", str(tmp_path)]) == 2
    assert f"{lost}: missing, but " in capsys.readouterr().err
    lost.write_bytes(content)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(TolcalError, match="damaged: its content hashes to"):
        history.compact(tmp_path)
    assert len(list(tmp_path.glob("*.parquet"))) == 3


def test_a_compacted_shard_may_come_back(tmp_path: Path) -> None:
    """Records of a shard that was compacted away may be added again, and are noticed if lost."""
    fill(tmp_path, 2)
    history.compact(tmp_path)
    again = history.add(tmp_path, [make_record(seed=k) for k in range(3)])
    assert again is not None
    assert records(tmp_path) == list(range(5))
    again.unlink()
    with pytest.raises(TolcalError, match="missing, but "):
        history.read([tmp_path])


def test_only_those_named(tmp_path: Path) -> None:
    """Some shards can be put together, and the others stay untouched."""
    fill(tmp_path, 4, overlap=False)
    names = sorted(shard.stem for shard in tmp_path.glob("*.parquet"))
    into = history.compact(tmp_path, names[:2])
    assert into is not None
    left = sorted(shard.stem for shard in tmp_path.glob("*.parquet"))
    assert left == sorted([into.stem, *names[2:]])
    assert records(tmp_path) == list(range(12))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=6), max_size=5))
def test_the_union_is_identical(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[tuple[int, int]]]
) -> None:
    """Whatever shards overlap in what, the records before and after are the same set."""
    at = tmp_path_factory.mktemp("h")
    for shard in shards:
        history.add(at, [make_record(run=make_run(id=f"{r:016x}"), seed=s) for r, s in shard])
    before = history.read([at])
    history.compact(at)
    assert history.content_digest(history.read([at])) == history.content_digest(before)
    assert len(list(at.glob("*.parquet"))) == min(1, len(before))


#: Compacts in a child of its own each time, which kills itself at its n-th look at the disk.
CHILD = """
import os, shutil, signal, sys
from pathlib import Path
from tolcal import history

source, work = Path(sys.argv[1]), Path(sys.argv[2])
moment = 0
while True:
    moment += 1
    at = work / str(moment)
    shutil.copytree(source, at)
    child = os.fork()
    if child == 0:
        left = moment
        def hook(event, arguments):
            global left
            if event == "open" or event.split(".")[0] in ("os", "fcntl"):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        history.compact(at)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(moment, status, flush=True)
    if status == 0:
        break
"""


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """kill -9 at every access to the disk in turn: readable, all records, and it can go on."""
    source = tmp_path / "h"
    fill(source, 4)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(source), str(work)],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    moments = [line.split() for line in done.stdout.splitlines()]
    assert len(moments) > 15
    assert {status for _, status in moments[:-1]} == {"9"}
    counts = set()
    for moment, _ in moments:
        at = work / moment
        counts.add(len(list(at.glob("*.parquet"))))
        assert records(at) == list(range(9)), moment
        history.compact(at)
        assert records(at) == list(range(9)), moment
        assert len(list(at.glob("*.parquet"))) == 1
    # The kills came before the new shard, after it, and amid the removal of the old ones.
    assert counts == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("name", ["_listed", "shards"])
def test_compacted_amid_a_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A reader that has just looked at MANIFEST, or at the files, finds them elsewhere."""
    fill(tmp_path, 3)
    real, done = getattr(folder, name), []

    def looked_at(at: Path) -> object:
        found = real(at)
        if not done:
            done.append(at)
            history.compact(at)
        return found

    monkeypatch.setattr(folder, name, looked_at)
    assert records(tmp_path) == list(range(7))


def test_readers_and_writers_meanwhile(tmp_path: Path) -> None:
    """While one process compacts over and over, others add and read, and nobody notices."""
    code = (
        "import sys; from pathlib import Path\n"
        "from tests_support import make_record\nfrom tolcal import history\n"
        "what = sys.argv[1]; at = Path('h'); sys.stdin.read()\n"
        "for i in range(12):\n"
        "    if what == 'compact':\n"
        "        history.compact(at)\n"
        "    elif what == 'read':\n"
        "        assert set(range(7)) <= set(history.read_table([at])['seed'].to_pylist())\n"
        "    else:\n"
        "        history.add(at, [make_record(seed=100 * int(what) + i), make_record(seed=1)])\n"
    )
    fill(tmp_path / "h", 3)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, what], cwd=tmp_path, env=environment,
            stdin=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for what in ("compact", "compact", "read", "1", "2")
    ]  # fmt: skip
    for worker in workers:  # all have started: let them go
        assert worker.stdin is not None
        worker.stdin.close()
        worker.stdin = None
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors.decode()
    expected = [*range(7), *(100 * n + i for n in (1, 2) for i in range(12))]
    assert records(tmp_path / "h") == expected
    assert set(folder._listed(tmp_path / "h")) == {
        shard.stem for shard in (tmp_path / "h").glob("*.parquet")
    }
