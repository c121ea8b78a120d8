"""The same reduction as tasks of a Ray cluster, a row group each; the results are the same."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tolcal.history import reduce
from tolcal.model import TolcalError, one_line


class Cluster:
    """An ``Engine`` of ``history.reduce``, over a cluster that this process is connected to.

    Every node needs tolcal and, at the same paths, the history. At most ``ahead`` results wait to
    be taken, so that a driver's memory does not grow with the history.
    """

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.ahead = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))

    def __call__(
        self,
        pieces: Sequence[reduce.Piece],
        split: frozenset[str],
        wanted: frozenset[str],
        cutoffs: Callable[[], dict[tuple[str, str], int]],
    ) -> Iterator[tuple[pa.Table, pa.Table | None, reduce.Piece]]:
        """Starts tasks and gives what they found, in the order of the pieces."""
        task = self.ray.remote(num_cpus=1)(_task)
        waiting: list[tuple[Any, reduce.Piece]] = []
        try:
            for piece in pieces:
                there = msgspec.structs.replace(piece, path=str(Path(piece.path).absolute()))
                waiting.append((task.remote(there, split, wanted, cutoffs()), piece))
                if len(waiting) > self.ahead:
                    yield self._result(*waiting.pop(0))
            while waiting:
                yield self._result(*waiting.pop(0))
        finally:
            for reference, _ in waiting:
                self.ray.cancel(reference, force=True)

    def _result(
        self, reference: Any, piece: reduce.Piece
    ) -> tuple[pa.Table, pa.Table | None, reduce.Piece]:
        errors = self.ray.exceptions
        try:
            return *self.ray.get(reference), piece
        except errors.RayTaskError as error:
            if isinstance(error.cause, TolcalError):
                raise TolcalError(str(error.cause)) from None
            raise
        except errors.RayError as error:
            raise TolcalError(
                f"the Ray cluster failed: {type(error).__name__}: {one_line(str(error), 300)}; see "
                "that every node has tolcal and enough memory"
            ) from None


def _task(
    piece: reduce.Piece,
    split: frozenset[str],
    wanted: frozenset[str],
    cutoffs: Mapping[tuple[str, str], int],
) -> tuple[pa.Table, pa.Table | None]:
    if piece.table is None and not Path(piece.path).is_file():
        raise TolcalError(
            f"node {platform.node()}: there is no file {piece.path}; the history must lie at the "
            "same path on every node"
        )
    return reduce.reduced(piece, split, wanted, cutoffs)
