"""Tolerances, one a cell, with what they rest on."""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from tolcal.model.base import DTYPES, digest

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # exactly a float


Margin = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


#: a share above 0, which a budget of red runs is
Budget = Annotated[float, msgspec.Meta(gt=0, le=1)]


Roundoff = Annotated[float, msgspec.Meta(gt=0, lt=1)]


Scale = Annotated[float, msgspec.Meta(ge=0, le=DTYPES["float64"].max)]  # finite


class AllClose(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For plain ``torch.testing.assert_close`` against a reference in the kernel's dtype."""

    atol: float
    rtol: float


class HeldOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs judged by tolerances fitted without them, and how many had any false alarm."""

    runs: Count
    red: Count


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tolerance rests on."""

    rule: str
    margin: Margin
    rows: Count
    runs: Count
    devices: tuple[str, ...]
    held_out: HeldOut
    history: str
    detectable_recall: Share | None = None  # None: the op has no detectable buggy row
    roundoff: Roundoff | None = None  # u that scaled_tol is in units of; None: the record's own
    scale: Scale | None = None  # median |ref| + sigma, where tighter and looser are told apart


class Approved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who let these values in. ``value`` is `Values.value_digest`."""

    by: str
    at: str
    digest: str
    value: str
    pr: Count | None = None
    reason: str | None = None  # of a widening


class Values(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An element passes if residual <= atol + scaled_tol*u*(|ref| + sigma)."""

    atol: float
    scaled_tol: float
    allclose: AllClose
    bias_tol: float | None = None
    evidence: Evidence | None = None
    approved: Approved | None = None

    @property
    def value_digest(self) -> str:
        """16 hex digits over all that judging uses, so that the hook can recompute it.

        Beside the numbers: the unit that scaled_tol is in, and the scale at which the hook tells
        looser from tighter.
        """
        rest = self.evidence
        units = (rest.roundoff, rest.scale) if rest else (None, None)
        return digest("value", *self.numbers.values(), *units)

    @property
    def numbers(self) -> dict[tuple[str, ...], float | None]:
        """The five numbers by their keys in the file."""
        return {
            ("atol",): self.atol,
            ("scaled_tol",): self.scaled_tol,
            ("bias_tol",): self.bias_tol,
            ("allclose", "atol"): self.allclose.atol,
            ("allclose", "rtol"): self.allclose.rtol,
        }


class Tolerance(Values, frozen=True, forbid_unknown_fields=True):
    """One cell, and what holds instead on single device classes."""

    on: Mapping[str, Values] = {}

    def for_device(self, device_class: str) -> Values:
        """The values that hold on ``sm_90``, ``gfx942`` or ``cpu``."""
        return self.on.get(device_class, self)

    @property
    def whole_digest(self) -> str:
        """16 hex digits over the values on every device class; `value_digest` without overrides."""
        if not self.on:
            return self.value_digest
        overrides = sorted((device, values.value_digest) for device, values in self.on.items())
        return digest("cell", self.value_digest, overrides)


Cell = tuple[str, str]  # (op, dtype)


Tolerances = Mapping[Cell, Tolerance]


#: Limits of a share, 95 % together.
Interval = tuple[Share, Share]
