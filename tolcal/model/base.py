"""What everything else uses: names, errors, number formats, digests."""

import decimal
import hashlib
import math
import re

import msgspec

#: Names reach Markdown, file names and command lines, so they are allow-listed where they enter.
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


#: Device classes that tolerances can be told apart by: what a measured record may be of.
DEVICE_CLASS = re.compile(r"sm_[0-9]{2,3}[a-z]?|gfx[0-9a-f]{3,5}|cpu")


DIM = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,15}")


def one_line(text: str, limit: int) -> str:
    """Foreign text (an exception, a worker's output) as one printable line for a terminal or log.

    A GitHub runner takes ``::`` at the start of a line and ``##[`` anywhere for its commands.
    """
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return cut(words.replace("##[", "##(").lstrip(": "), limit)


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters, of which an ellipsis is one where anything was cut.

    At a blank if there is one in the second half: half a number would read as another.
    """
    if len(text) <= limit:
        return text
    at = text.rfind(" ", limit // 2, limit)
    return text[: limit - 1 if at < 0 else at].rstrip() + "…"


class TolcalError(Exception):
    """Something the user can mend: shown as one line, exit status 2, never a traceback."""

    def __init__(self, message: str) -> None:
        # Messages quote files of others, whose keys and names may hold anything.
        super().__init__(one_line(message, 2000))


class DType(msgspec.Struct, frozen=True):
    """A floating-point format: ``precision`` significand bits, the hidden one included."""

    name: str
    bits: int
    precision: int
    emin: int  # exponent of the smallest normal number
    max: float

    @property
    def roundoff(self) -> float:
        """Unit roundoff u = 2^-precision: half the distance from 1 to the next number."""
        return math.ldexp(1.0, -self.precision)

    @property
    def tiny(self) -> float:
        """The smallest subnormal number, which is the spacing near zero."""
        return math.ldexp(1.0, self.emin - self.precision + 1)

    @property
    def has_infinity(self) -> bool:
        """Whether overflow has a value of its own; without one it is nan, or saturates."""
        return self.name != "float8_e4m3fn"

    def gap(self, value: float) -> float:
        """Distance of the two numbers of this format that bracket ``value`` (finite)."""
        exponent = math.frexp(value)[1] - 1 if value else self.emin
        return math.ldexp(1.0, max(exponent, self.emin) - self.precision + 1)


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("float64", 64, 53, -1022, 1.7976931348623157e308),
        DType("float32", 32, 24, -126, 3.4028234663852886e38),
        DType("float16", 16, 11, -14, 65504.0),
        DType("bfloat16", 16, 8, -126, 3.3895313892515355e38),
        DType("float8_e4m3fn", 8, 4, -6, 448.0),
        DType("float8_e5m2", 8, 3, -14, 57344.0),
    )
}


#: Rows a control needs for a fit: below that one history in a hundred holds no ill-conditioned
#: case.
MIN_ROWS = 720


#: Runs a control needs for a fit: what a single sitting had by chance shows in none of fewer.
MIN_RUNS = 3


#: Red runs that a repository puts up with, as a share of all: 1 in 1,000.
BUDGET = 1e-3


def digest(*parts: object) -> str:
    """16 hex digits over ``parts``: the name of a value in ids, file names and comments."""
    raw = msgspec.json.encode(parts, order="sorted")
    return hashlib.sha256(raw).hexdigest()[:16]


def round_up(value: float, digits: int = 3) -> float:
    """To ``digits`` significant digits, never down: a printed limit is never tighter."""
    if value <= 0 or not math.isfinite(value):
        return value
    nearest = float(f"{value:.{digits - 1}e}")
    if nearest >= value:
        return nearest if math.isfinite(nearest) else value
    above = decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING)
    rounded = float(above.create_decimal_from_float(value))
    return rounded if math.isfinite(rounded) else value


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 regression``, ``2 regressions``."""
    return f"{count} {one if count == 1 else many or one + 's'}"
