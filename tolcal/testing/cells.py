"""The cell that a test is judged by: the nearest ``tolerances.toml``, its op, dtype and device."""

from __future__ import annotations

import sys
from operator import methodcaller
from pathlib import Path
from types import FrameType

import msgspec

from tolcal import project, tolerances, tomlfile
from tolcal.model import DTYPES, Cell, TolcalError, Tolerance, Values

#: pytest shows the test's own line of what is refused here, and all of a fault of ours.
__tracebackhide__ = methodcaller("errisinstance", (TolcalError, AssertionError))


class UncalibratedError(TolcalError):
    """There is no tolerance for this op and dtype yet, and none is made up."""


class Found(msgspec.Struct, frozen=True):
    """A cell, its values on the device in use, and where they stand."""

    path: Path
    line: int
    tolerance: Tolerance
    values: Values
    device: str  # "" unless an override holds

    @property
    def where(self) -> str:
        """``tolerances.toml:12 (sm_90)``."""
        return f"{self.path}:{self.line}{f' ({self.device})' if self.device else ''}"


class _File(msgspec.Struct, frozen=True):
    stamp: tuple[int, int]
    cells: dict[Cell, Tolerance]
    positions: tomlfile.Positions


_files: dict[Path, _File] = {}


def find(op: str, dtype: str, device: str, path: Path | None) -> Found:
    """The cell of (op, dtype), with what holds on that device class.

    Args:
        op: name of the op.
        dtype: torch's name of the dtype.
        device: device class, as `arrays.device_class`.
        path: the file; None: the nearest above the file that called into ``tolcal.testing``.

    Raises:
        UncalibratedError: if the file has no such cell.
        TolcalError: if it is no tolerance file.
    """
    path = path or project.around(caller()).tolerances
    cells, positions = _read(path)
    tolerance = cells.get((op, dtype))
    if tolerance is None:
        others = [d for o, d in cells if o == op]
        has = f"{op} has {', '.join(others)}" if others else "the op has no cell at all"
        hint = "" if others else tomlfile.did_you_mean(op, {o for o, _ in cells})
        known = "" if dtype in DTYPES else f"; known dtypes: {', '.join(DTYPES)}"
        where, why = f"{path}: ", f" ({has}{hint}{known})"
        if not path.is_file():
            where, why = f"there is no {path} yet, so ", known
        raise UncalibratedError(
            f"{where}no tolerance for {op}/{dtype}{why}; measure it (pytest "
            "--tolcal-record out/history, or `tolcal run --history out/history`), `tolcal "
            "calibrate --history out/history --json out/proposal.json`, `tolcal approve "
            'out/proposal.json`, or give fallback="torch" to use torch\'s defaults meanwhile'
        )
    values = tolerance.for_device(device)
    override = device if device in tolerance.on else ""
    keys = (op, dtype, "on", device) if override else (op, dtype)
    return Found(_short(path), positions.of(keys)[0], tolerance, values, override)


def _read(path: Path) -> tuple[dict[Cell, Tolerance], tomlfile.Positions]:
    """A file once for as long as it stays the same."""
    if not path.is_file():
        return {}, tomlfile.Positions("")
    stat = path.stat()
    stamp = (stat.st_mtime_ns, stat.st_size)
    known = _files.get(path)
    if known is None or known.stamp != stamp:
        cells = tolerances.read(path)
        by_hand = tolerances.changed_by_hand(cells)
        if by_hand:
            op, dtype = by_hand[0]
            raise TolcalError(
                f"{path}: [{op}.{dtype}] was changed by hand since it was approved; restore it, "
                "or approve a proposal (`tolcal check` says more)"
            )
        known = _File(stamp, cells, tomlfile.Positions(path.read_text("utf-8")))
        _files[path] = known
    return known.cells, known.positions


def caller() -> Path:
    """Folder of the file that called into tolcal; the working folder if there is none."""
    here = Path(__file__).parents[1]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if here not in file.parents and file.is_file():
            return file.parent
        frame = frame.f_back
    return Path.cwd()


def _short(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
