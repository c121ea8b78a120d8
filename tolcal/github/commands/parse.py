"""The first line of a comment into a command; anything is taken, and nothing raises.

Grammar, of the comment's first line up to its end (``\\n`` or ``\\r\\n``)::

    line    = "/tolcal" [ gap command ] [ gap ]
    command = "approve" gap digest { gap cells }
            | "widen" gap digest gap cell { gap cell } gap "because" gap reason
            | "reject" gap digest [ gap "because" gap reason ]
            | "explain" gap cell
            | "status" | "rerun" | "help"
    gap     = one or more spaces or tabs
    digest  = 16 of 0-9 a-f
    cell    = op "/" dtype            (an op's name and a dtype of `model`)
    cells   = op | cell
    reason  = 1 to 300 printable characters, a letter among them, and not REASON itself

Words are exact: lower case, no look-alikes. A line that does not start with ``/tolcal`` (in any
case) is no command (None): so it is in quotes, code blocks, lists, after a blank line or an indent.
One that does and is none of the above is `Unknown`, which is answered with help.
"""

from __future__ import annotations

import re

import msgspec

from tolcal.model import DTYPES, NAME, Cell
from tolcal.tolerances.approving import is_no_reason

PREFIX = "/tolcal"
MAX_LINE = 8_000  # characters
MAX_REASON = 300
_DIGEST = re.compile(r"[0-9a-f]{16}")


class Approve(msgspec.Struct, frozen=True):
    """All that is new or tighter in a proposal, or of that what is named: ``op``, ``op/dtype``."""

    digest: str
    cells: tuple[str, ...] = ()


class Widen(msgspec.Struct, frozen=True):
    """Cells that become looser, one by one."""

    digest: str
    cells: tuple[Cell, ...]
    reason: str


class Reject(msgspec.Struct, frozen=True):
    """A proposal that nobody may approve, as long as the comment stands."""

    digest: str
    reason: str = ""


class Explain(msgspec.Struct, frozen=True):
    """Why a cell's tolerance is what it is."""

    cell: Cell


class Status(msgspec.Struct, frozen=True):
    """What can be approved, and what is."""


class Rerun(msgspec.Struct, frozen=True):
    """Measure again."""


class Help(msgspec.Struct, frozen=True):
    """What commands there are."""


class Unknown(msgspec.Struct, frozen=True):
    """Meant for us, and no command."""

    why: str  # may quote the comment: hostile


Command = Approve | Widen | Reject | Explain | Status | Rerun | Help | Unknown


def parse(body: str) -> Command | None:
    """The command of a new comment's first line; None if it has none."""
    line = body.partition("\n")[0].removesuffix("\r")
    if line[: len(PREFIX)].lower() != PREFIX:
        return None
    if len(line) > MAX_LINE:
        return Unknown(f"the line has {len(line)} characters, at most {MAX_LINE} are read")
    odd = next((c for c in line if not (c.isprintable() or c == "\t")), None)
    if odd is not None:
        return Unknown(f"the line holds the unprintable character U+{ord(odd):04X}")
    if not line.startswith(PREFIX) or line[len(PREFIX) :][:1] not in ("", " ", "\t"):
        return Unknown(f"a command begins with {PREFIX}, in lower case, and a space")
    # Not split(): a no-break space and its kin are no gap.
    words = [word for word in re.split(r"[ \t]+", line[len(PREFIX) :]) if word]
    if not words:
        return Help()
    verb, rest = words[0], words[1:]
    if verb == "approve":
        return _approve(rest)
    if verb == "widen":
        return _widen(rest)
    if verb == "reject":
        return _reject(rest)
    if verb == "explain":
        return _explain(rest)
    plain: dict[str, Command] = {"status": Status(), "rerun": Rerun(), "help": Help()}
    if verb not in plain:
        return Unknown(f"no command {verb!r}")
    return Unknown(f"{verb} takes nothing after it") if rest else plain[verb]


def _approve(words: list[str]) -> Command:
    digest, names = words[:1], words[1:]
    if not digest or not _DIGEST.fullmatch(digest[0]):
        return Unknown(_no_digest("approve", digest))
    if "because" in names:
        return Unknown("approve takes no reason; what becomes looser needs widen")
    wrong = [name for name in names if not (NAME.fullmatch(name) or _cell(name))]
    if wrong:
        return Unknown(f"{wrong[0]!r} is no op, and no op/dtype")
    return Approve(digest[0], tuple(dict.fromkeys(names)))


def _widen(words: list[str]) -> Command:
    digest = words[:1]
    if not digest or not _DIGEST.fullmatch(digest[0]):
        return Unknown(_no_digest("widen", digest))
    before, reason = _because(words[1:])
    cells = [_cell(name) for name in before]
    for name, cell in zip(before, cells, strict=True):
        if cell is None:
            return Unknown(f"{name!r} is no op/dtype; widen names each cell")
    if not before:
        return Unknown("widen names each cell, op/dtype")
    if not reason:
        return Unknown("widen needs a reason: because REASON")
    if wrong := _no_reason(reason):
        return Unknown(wrong)
    return Widen(digest[0], tuple(dict.fromkeys(c for c in cells if c)), reason)


def _reject(words: list[str]) -> Command:
    digest = words[:1]
    if not digest or not _DIGEST.fullmatch(digest[0]):
        return Unknown(_no_digest("reject", digest))
    before, reason = _because(words[1:])
    if before:
        return Unknown(f"reject takes a digest and because REASON, not {before[0]!r}")
    if reason == "":
        return Unknown("there is no reason after because")
    if reason and (wrong := _no_reason(reason)):
        return Unknown(wrong)
    return Reject(digest[0], reason or "")


def _explain(words: list[str]) -> Command:
    cell = _cell(words[0]) if words else None
    if cell is None or len(words) > 1:
        return Unknown("explain takes one cell, op/dtype")
    return Explain(cell)


def _because(words: list[str]) -> tuple[list[str], str | None]:
    """What stands before the first ``because`` and, as one text, after it; None without one."""
    if "because" not in words:
        return words, None
    at = words.index("because")
    return words[:at], " ".join(words[at + 1 :])


def _cell(name: str) -> Cell | None:
    op, slash, dtype = name.partition("/")
    return (op, dtype) if slash and NAME.fullmatch(op) and dtype in DTYPES else None


def _no_digest(verb: str, given: list[str]) -> str:
    what = f", not {given[0]!r}" if given else ""
    return f"{verb} takes the 16 hex digits of a proposal first{what}"


def _no_reason(reason: str) -> str:
    """Why it is none: too long, or the placeholder of a line that was copied as it stood."""
    if len(reason) > MAX_REASON:
        return f"the reason has {len(reason)} characters, at most {MAX_REASON} are kept"
    if is_no_reason(reason):
        return f"{reason!r} is no reason: say after because why it may be so"
    return ""
