"""Comparisons of a test suite as error records, which ``tolcal calibrate`` reads like any other.

What a test doesn't know is left open, never made up: a record has no source hashes (so it can't
make a source a known one), its dims are the output's shape, its profile is ``tests``, its seed
is a digest of the test's id. With a reference value instead of a function sigma is 0: such rows
can only make a cell looser. A value in the kernel's own dtype says nothing finer than its own
rounding and is not recorded.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from tolcal import __version__, cases, history, stats
from tolcal.history import jsonlines
from tolcal.measure import git_state
from tolcal.measure.environment import describe
from tolcal.model import Case, CaseSet, Record, Run, TolcalError, Tolerance, digest, plural
from tolcal.testing.arrays import Compared
from tolcal.testing.cells import Found
from tolcal.testing.judging import Judgement
from tolcal.testing.observing import current_test, drawn

PROFILE = "tests"


class Recorder:
    """Writes a record for every comparison: into a new file, or as a shard of a history folder.

    The file is there from the start, so that of two sessions one is refused, and what can't be
    written is known before the tests have run. A session in which a comparison failed does not
    join a history: it becomes a file beside it. Raises TolcalError if the place can't be used.
    """

    records = True

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.seed = path, seed
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.session = secrets.token_hex(8)
        self.commit, self.dirty = git_state(Path.cwd())
        #: A run is of one device.
        self.runs: dict[torch.device, Run] = {}
        self.kept: list[Record] = []
        #: Comparisons made so far, by test.
        self.seen: Counter[str] = Counter()
        self.rounded = 0
        self.failures = 0
        #: Tests may change the working folder.
        self.whole = path.absolute()
        self.folder = not path.name.endswith(".jsonl.gz")
        #: What this session has made and not filled yet.
        self.empty: Path | None = None
        self._claim()

    def compared(
        self, op: str, kernel: str, compared: Compared, roundoff: float, found: Found | None
    ) -> None:
        """Keeps the record of one comparison."""
        test = current_test()
        self.seen[test] += 1
        if compared.kind == "rounded" or 0 in compared.out.shape:
            self.rounded += 1
            return
        out, ref = _tensor(compared.out, compared.dtype.name), _tensor(compared.ref, "float64")
        zero = torch.zeros_like(ref)
        sigma = zero if compared.sigma is None else _tensor(compared.sigma, "float64")
        fresh = test in drawn
        case = Case(
            op=op,
            dtype=compared.dtype.name,
            dims=tuple((f"D{i}", size) for i, size in enumerate(out.shape)),
            profile=PROFILE,
            layout="contiguous" if out.is_contiguous() else "strided",
            seed=cases.key("test", test, self.seen[test], self.seed if fresh else 0) >> 1,
        )
        case_set: CaseSet = "explore" if fresh else "gate"
        self.kept.append(
            Record(
                run=self._run(out.device),
                kernel=kernel,
                role="control",
                corrupts=None,
                case=case,
                case_set=case_set,
                status="ok",
                reason="",
                input_hash=_input_hash(compared.inputs),
                kernel_hash="",
                reference_hash="",
                op_hash="",
                roundoff=roundoff,
                stats=stats.error_stats(out, ref, sigma, roundoff, _limit(compared, found)),
            )
        )

    def judged(self, op: str, dtype: str, judgement: Judgement) -> None:
        """A record knows all that judging found."""

    def failed(self) -> None:
        """Counts: the user must know that the file holds it."""
        self.failures += 1

    def _run(self, device: torch.device) -> Run:
        if device not in self.runs:
            environment, uuid = describe(device)
            self.runs[device] = Run(
                id=digest("run", self.session, str(device)),
                seed=self.seed,
                started=self.started,
                session=self.session,
                origin="local",
                commit=self.commit,
                dirty=self.dirty,
                tolcal=__version__,
                device_uuid=uuid,
                environment=environment,
            )
        return self.runs[device]

    def _claim(self) -> None:
        try:
            if self.folder:
                new = not self.whole.exists()
                self.whole.mkdir(parents=True, exist_ok=True)
                self.empty = self.whole if new else None
                with tempfile.TemporaryFile(dir=self.whole):
                    pass
                return
            self.whole.parent.mkdir(parents=True, exist_ok=True)
            self.whole.open("xb").close()
            self.empty = self.whole
        except OSError as error:
            self.release()
            why = f"cannot write there: {error.strerror}; give another path"
            if isinstance(error, FileExistsError) and error.filename == str(self.whole):
                why = "exists; its records are not overwritten, give a new name"
            raise TolcalError(f"--tolcal-record {self.path}: {why}") from None

    def release(self) -> None:
        """Removes what was made for records that did not come."""
        with contextlib.suppress(OSError):  # a folder that somebody else has put something into
            if self.empty is not None:
                self.empty.rmdir() if self.folder else self.empty.unlink()
        self.empty = None

    def close(self) -> list[str]:
        """Writes what was kept; returns what to say of it."""
        if not self.kept:
            self.release()
            lines = [f"no record was made, so {self.path} was not written"]
        elif not self.folder:
            self.empty = None
            self._write(self.whole)
            lines = [f"{self._kept(self.path)}: {_calibrate(self.path)}"]
            if self.failures:
                lines.append(
                    f"{plural(self.failures, 'comparison')} failed: if the kernel is wrong, keep "
                    "the file out of your history"
                )
        elif not self.failures:
            self.empty = None
            history.add(self.whole, self.kept)
            lines = [f"{self._kept(self.path)}: {_calibrate(self.path)}"]
        else:
            self.release()  # a new folder stays empty
            name = f"{self.whole.name}.failed-{self.session}.jsonl.gz"
            self._write(self.whole.with_name(name))
            beside = self.path.parent / name
            both = [self.path, beside] if self.whole.exists() else [beside]
            lines = [
                f"{plural(self.failures, 'comparison')} failed, so nothing was added to "
                f"{self.path}: {self._kept(beside)}",
                f"if the kernel is right, read that file too: {_calibrate(*both)}",
            ]
        if self.rounded:
            lines.append(
                f"{self.rounded} comparisons not recorded: their reference is in the kernel's own "
                "dtype, or they are empty; give a float64 value, or the function"
            )
        return lines

    def _kept(self, where: Path) -> str:
        fresh = sum(r.case_set == "explore" for r in self.kept)
        return f"{len(self.kept)} records in {where} (seed {self.seed}; {fresh} of fresh inputs)"

    def _write(self, path: Path) -> None:
        with jsonlines.Writer(path) as writer:
            for run in self.runs.values():
                writer.write(run)
                for record in self.kept:
                    if record.run.id == run.id:
                        writer.write(record)


def _calibrate(*paths: Path) -> str:
    """The command that reads them."""
    return " ".join(["tolcal calibrate", *(f"--history {shlex.quote(str(p))}" for p in paths)])


def _tensor(value: Any, dtype: str) -> torch.Tensor:
    """As a tensor where it lies. numpy has no float8, and bfloat16 only by ml_dtypes."""
    if not isinstance(value, torch.Tensor):
        exact = value if value.dtype.kind == "f" else value.astype("float32")
        value = torch.from_numpy(exact.copy())
    tensor: torch.Tensor = value.to(getattr(torch, dtype))
    return tensor


def _input_hash(inputs: Any) -> str:
    tensors = {name: x for name, x in inputs.items() if isinstance(x, torch.Tensor)}
    return cases.input_hash_torch(tensors) if tensors else ""


def _limit(compared: Compared, found: Found | None) -> Tolerance | None:
    """What ``num_exceeding`` counts against; a value alone is judged by another bound."""
    if found is None or compared.kind != "function":
        return None
    values = msgspec.structs.asdict(found.values)
    return Tolerance(**{name: v for name, v in values.items() if name != "on"})
