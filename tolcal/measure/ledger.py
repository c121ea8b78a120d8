"""What is known of each unit: outcomes, and what its kernels have cost so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tolcal.measure import wire
from tolcal.model import Status, one_line

#: After this many lost workers a kernel's remaining cases of the unit are not tried.
LOSSES_PER_KERNEL = 3
#: How the reason of a case begins that was not tried.
NOT_RUN = "not run, after"
REASON_LIMIT = 240

Key = tuple[int, str]  # (case index, kernel)
Outcomes = dict[Key, wire.Measured]


class Ledger:
    """Outcomes by unit, until the unit is complete. ``limit``: seconds a kernel in a unit."""

    def __init__(self, units: Sequence[wire.Unit], limit: float) -> None:
        self.units, self.limit = units, limit
        self.partial: dict[int, Outcomes] = {}
        self.complete: dict[int, list[wire.Measured]] = {}
        self.losses: dict[tuple[int, str], int] = {}  # (unit, kernel)
        self.spent: dict[tuple[int, str], float] = {}  # seconds

    def restore(self, index: int, outcomes: Mapping[Key, wire.Measured]) -> None:
        """Outcomes of earlier, and the losses among them: a kernel once given up stays so."""
        self.partial[index] = dict(outcomes)
        for kernel in self.units[index].kernels:
            lost = [
                m for (_, name), m in sorted(outcomes.items(), key=lambda item: item[0])
                if name == kernel.name and _is_lost(m)
            ]  # fmt: skip
            given_up = next((m for m in lost if m.reason.startswith(NOT_RUN)), None)
            if given_up is not None:
                self._rest(index, kernel.name, given_up.status, given_up.reason)
            elif len(lost) >= LOSSES_PER_KERNEL:
                self._give_up(index, kernel.name, lost[-1].status, lost[-1].reason)
            self.losses[index, kernel.name] = len(lost)

    def state(self, index: int) -> tuple[frozenset[Key], set[Key]]:
        """What of a unit is done, and what is still to do."""
        unit, done = self.units[index], frozenset(self.partial.get(index, {}))
        return done, {(c, k.name) for c in range(len(unit.cases)) for k in unit.kernels} - done

    def lost(self, index: int) -> frozenset[Key]:
        """Cases and kernels of a unit that took a worker with them, or were not tried for it."""
        return frozenset(key for key, m in self.partial.get(index, {}).items() if _is_lost(m))

    def note(self, index: int, outcome: wire.Measured) -> None:
        """An outcome; it replaces what was there."""
        self.partial.setdefault(index, {})[outcome.case, outcome.kernel] = outcome

    def forget(self, index: int, keys: Iterable[Key]) -> None:
        """Outcomes that are not to be trusted."""
        for key in keys:
            del self.partial[index][key]

    def finish(self, index: int) -> None:
        """Nothing of the unit is left to do."""
        unit, got = self.units[index], self.partial.pop(index, {})
        self.complete[index] = [
            got[case, kernel.name] for case in range(len(unit.cases)) for kernel in unit.kernels
        ]

    def blame(self, index: int, key: Key, status: Status, reason: str) -> None:
        """A worker was lost in that case of that kernel."""
        case, kernel = key
        text = one_line(reason, REASON_LIMIT)
        self.note(index, _failed(case, kernel, status, text))
        lost = self.losses[index, kernel] = self.losses.get((index, kernel), 0) + 1
        if lost >= LOSSES_PER_KERNEL:
            self._give_up(index, kernel, status, text)

    def allowance(self, index: int, kernel: str) -> float:
        """Seconds that the kernel may yet take."""
        return max(0.0, self.limit - self.spent.get((index, kernel), 0.0))

    def spend(self, index: int, kernel: str, seconds: float) -> bool:
        """A case took so long; True if its others are given up for it."""
        self.spent[index, kernel] = self.spent.get((index, kernel), 0.0) + seconds
        return not self.allowance(index, kernel) and self._spent_up(index, kernel)

    def exhaust(self, index: int, key: Key) -> None:
        """The kernel was ended in that case, since its time was up."""
        why = f"no result within the {self.limit:g} s that a kernel may take in all"
        self.note(index, _failed(*key, "timeout", why))
        self._spent_up(index, key[1])

    def _spent_up(self, index: int, kernel: str) -> bool:
        why = f"{NOT_RUN} {self.limit:g} s spent on cases before it"
        return self._rest(index, kernel, "timeout", why)

    def _give_up(self, index: int, kernel: str, status: Status, text: str) -> None:
        why = one_line(f"{NOT_RUN} {LOSSES_PER_KERNEL} lost workers: {text}", REASON_LIMIT)
        self._rest(index, kernel, status, why)

    def _rest(self, index: int, kernel: str, status: Status, reason: str) -> bool:
        """The same for every case that the kernel has no outcome of; False if there is none."""
        got = self.partial.get(index, {})
        rest = [c for c in range(len(self.units[index].cases)) if (c, kernel) not in got]
        for case in rest:
            self.note(index, _failed(case, kernel, status, reason))
        return bool(rest)


def _is_lost(outcome: wire.Measured) -> bool:
    # What a worker reports itself has the hash of the inputs.
    return outcome.status in ("crashed", "timeout") and not outcome.input_hash


def _failed(case: int, kernel: str, status: Status, reason: str) -> wire.Measured:
    return wire.Measured(case, kernel, status, reason, "", None, None)
