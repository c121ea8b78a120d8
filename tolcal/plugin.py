"""The pytest plugin: fixture ``tolcal``, ``--tolcal-record`` and ``--tolcal-report``.

pytest imports it wherever tolcal is installed, so it imports nothing until it is used.
"""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tolcal.model import TolcalError, digest

if TYPE_CHECKING:
    from tolcal.testing.observing import Headroom
    from tolcal.testing.recording import Recorder

#: As of `tolcal run --seed`.
MAX_SEED = 2**62
_STATE = pytest.StashKey["_State"]()


class _State:
    """What this session records and reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.recorder: Recorder | None = None
        self.headroom: Headroom | None = None
        self.lines: list[str] = []
        given = config.getoption("--tolcal-seed")
        path = config.getoption("--tolcal-record")
        self.fresh = path is not None or given is not None
        self.seed = secrets.randbits(62) if given is None else given
        # The controller of pytest-xdist runs no test itself.
        self.spread = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
        if self.spread:
            self.lines = [
                "tests ran in workers: each has recorded into a file or shard of its own; one with "
                "a failed comparison never into the history folder, but into a file beside it"
            ]
        elif path is not None:
            self.recorder = _recorder(_path(config, Path(path)), self.seed)
        if config.getoption("--tolcal-report"):
            from tolcal.testing.observing import Headroom as Report

            self.headroom = Report()


class Comparisons:
    """The fixture: comparisons with the calibrated tolerances, and a seed for their inputs."""

    def __init__(self, node: str, state: _State) -> None:
        self._node, self._state = node, state

    @property
    def seed(self) -> int:
        """For the test's inputs: fixed, but fresh in a session that records.

        Only inputs that differ from run to run tell how a tolerance does on what it has not
        seen; a fixed seed otherwise keeps the suite from flaking.
        """
        if self._state.fresh:
            from tolcal.testing.observing import drawn

            drawn[self._node] = self._state.seed
        fresh = self._state.seed if self._state.fresh else 0
        return int(digest("test inputs", self._node, fresh), 16) >> 2

    def assert_close(self, actual: Any, reference: Any, **options: Any) -> None:
        """As ``tolcal.testing.assert_close``."""
        __tracebackhide__ = True
        from tolcal import testing

        testing.assert_close(actual, reference, **options)

    def tolerance(self, op: str, dtype: Any, **options: Any) -> dict[str, float]:
        """As ``tolcal.testing.tolerance``."""
        from tolcal import testing

        return testing.tolerance(op, dtype, **options)


@pytest.fixture
def tolcal(request: pytest.FixtureRequest) -> Comparisons:
    """Comparisons with the calibrated tolerances: ``tolcal.assert_close(out, ref, op=...)``."""
    return Comparisons(request.node.nodeid, request.config.stash[_STATE])


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("tolcal", "measured tolerances of GPU kernels")
    group.addoption("--tolcal-record", metavar="PATH",
                    help="write an error record of every comparison: a new .jsonl.gz file, or a "
                    "history folder, which a session with a failed comparison does not join (it "
                    "becomes a file beside it); `tolcal calibrate --history PATH` reads "
                    "both")  # fmt: skip
    group.addoption("--tolcal-report", action="store_true",
                    help="show how much of its tolerance each op used")  # fmt: skip
    group.addoption("--tolcal-seed", metavar="N", type=_seed,
                    help="seed of what tests draw from `tolcal.seed` (default: fixed; fresh with "
                    "--tolcal-record)")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Starts to listen, if asked to."""
    state = config.stash[_STATE] = _State(config)
    listeners = [one for one in (state.recorder, state.headroom) if one is not None]
    if listeners:
        from tolcal.testing.observing import observers

        observers.extend(listeners)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stops listening."""
    state = config.stash.get(_STATE, None)
    if state is None:
        return
    if state.recorder is not None:
        state.recorder.release()  # a session that never came to its end
    if state.fresh or state.headroom is not None:
        from tolcal.testing.observing import drawn, observers

        drawn.clear()
        observers[:] = [o for o in observers if o not in (state.recorder, state.headroom)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the records."""
    state = session.config.stash[_STATE]
    if state.recorder is not None:
        try:
            state.lines = state.recorder.close()
        except OSError as error:
            state.lines = [f"records not written: {error}"]
            session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says what was recorded and how near the limits the tests came."""
    state = config.stash[_STATE]
    if state.recorder is not None or (state.spread and config.getoption("--tolcal-record")):
        terminalreporter.section("tolcal: records")
        for line in state.lines:
            terminalreporter.write_line(line)
    if state.headroom is not None:
        terminalreporter.section("tolcal: share of the tolerance that was used")
        lines = ["not known here: tests ran in workers"] if state.spread else None
        for line in lines or state.headroom.lines():
            terminalreporter.write_line(line)


def _path(config: pytest.Config, path: Path) -> Path:
    """Where to record. Workers of pytest-xdist each have a file of their own."""
    worker = getattr(config, "workerinput", {}).get("workerid")
    suffix = ".jsonl.gz"
    if worker and path.name.endswith(suffix):
        path = path.with_name(f"{path.name.removesuffix(suffix)}.{worker}{suffix}")
    if path.name in ("", ".."):
        path = path.resolve()
    what = ""
    if path.is_dir():
        what = "is a folder" if path.name.endswith(suffix) else ""
    elif path.exists():
        what = "exists; its records are not overwritten"
    elif path.suffix and not path.name.endswith(suffix):
        what = "is no name of a records file"
    if what:
        raise pytest.UsageError(
            f"--tolcal-record {path}: {what}; give a new name that ends in .jsonl.gz, or a history "
            "folder (a name without a dot)"
        )
    return path


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > 19 or int(text) > MAX_SEED:
        raise argparse.ArgumentTypeError(f"{text}: a whole number from 0 to {MAX_SEED}")
    return int(text)


def _recorder(path: Path, seed: int) -> Recorder:
    try:
        from tolcal.testing.recording import Recorder as Opened

        return Opened(path, seed)
    except ModuleNotFoundError as error:
        raise pytest.UsageError(
            f"--tolcal-record needs {error.name}, which is not installed: pip install 'tolcal[gpu]'"
        ) from None
    except TolcalError as error:
        raise pytest.UsageError(str(error)) from None
