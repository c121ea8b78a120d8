"""Who listens to comparisons: the pytest plugin's recorder and its headroom report."""

from __future__ import annotations

import os
from typing import Protocol

from tolcal.testing.arrays import Compared
from tolcal.testing.cells import Found
from tolcal.testing.judging import Judgement


class Observer(Protocol):
    """Told of every comparison before it is judged, and of the judgement."""

    records: bool  # an uncalibrated comparison goes into a file, so it need not fail

    def compared(
        self, op: str, kernel: str, compared: Compared, roundoff: float, found: Found | None
    ) -> None:
        """Before it is judged; ``found`` is None for an uncalibrated cell."""

    def judged(self, op: str, dtype: str, judgement: Judgement) -> None:
        """Before a failing one raises."""

    def failed(self) -> None:
        """Of any that raises, by torch's defaults too."""


#: Empty unless the plugin is at work.
observers: list[Observer] = []
#: Tests that drew their inputs from a seed of their session, and that seed; the inputs of others
#: are the same in every session.
drawn: dict[str, int] = {}


def current_test() -> str:
    """The node id of the test that runs, "" outside pytest."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


class Headroom:
    """How near to its limit each op came, and in which test."""

    records = False

    def __init__(self) -> None:
        #: (op, dtype) -> comparisons, largest share of the limit used, the test
        self.worst: dict[tuple[str, str], tuple[int, float, str]] = {}
        self.uncalibrated: dict[tuple[str, str], int] = {}

    def compared(
        self, op: str, kernel: str, compared: Compared, roundoff: float, found: Found | None
    ) -> None:
        """Counts what nothing judges."""
        if found is None:
            cell = (op, compared.dtype.name)
            self.uncalibrated[cell] = self.uncalibrated.get(cell, 0) + 1

    def judged(self, op: str, dtype: str, judgement: Judgement) -> None:
        """Keeps the worst."""
        count, used, test = self.worst.get((op, dtype), (0, -1.0, ""))
        if judgement.used > used:
            used, test = judgement.used, current_test()
        self.worst[op, dtype] = (count + 1, used, test)

    def failed(self) -> None:
        """Its share of the limit says so."""

    def lines(self) -> list[str]:
        """A table, the nearest to its limit first."""
        rows = [
            f"{op:<24}{dtype:<16}{count:>11}{100 * used:>9.1f} %  {test}"
            for (op, dtype), (count, used, test) in sorted(
                self.worst.items(), key=lambda item: -item[1][1]
            )
        ]
        rows += [
            f"{op:<24}{dtype:<16}{count:>11}{'-':>11}  uncalibrated"
            for (op, dtype), count in sorted(self.uncalibrated.items())
        ]
        head = f"{'op':<24}{'dtype':<16}{'comparisons':>11}{'of limit':>11}  nearest in"
        return [head, *rows] if rows else ["no comparison was made"]
