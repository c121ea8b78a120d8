"""What the machine formats share: which findings they carry, how grave, in which words, where."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

from tolcal.model import Finding, FindingKind, Verdict, one_line, plural
from tolcal.report import text

Level = Literal["error", "warning", "note"]

#: Kinds that are something amiss, in the order of importance -> their title and what they mean.
#: `caught` is good news and `uncalibrated` no fault of a kernel.
KINDS: dict[FindingKind, tuple[str, str]] = {
    "regression": (
        "Regression",
        "A control whose source, reference or contract changed exceeds its approved tolerance.",
    ),
    "escaped": (
        "Escaped buggy kernel",
        "A kernel that is known to be wrong is flagged in no case.",
    ),
    "crashed": ("Crashed or hung", "A kernel raised, hung or faulted the device."),
    "check_failed": (
        "Failed check",
        "An unchanged control fails a check that needs no tolerance: it leaves elements unwritten, "
        "writes elsewhere, does not repeat itself, or breaks a relation.",
    ),
    "drift": (
        "Drift",
        "An unchanged control exceeds its tolerance in an environment that the tolerance was not "
        "calibrated in.",
    ),
    "false_positive": (
        "False positive",
        "An unchanged control exceeds its tolerance in a known environment: it is too tight.",
    ),
    "out_of_domain": (
        "Outside the domain",
        "A control's values that depend on inputs outside its domain are not finite where the "
        "reference's are, or the other way round: shown, never failed.",
    ),
}
_LEVELS: tuple[Level, ...] = ("error", "warning", "note")


def amiss(verdict: Verdict | None) -> list[Finding]:
    """The findings of KINDS: the gravest level first, then by kind and by importance."""
    ordered = [f for kind in KINDS for f in text.by_importance(text.by_kind(verdict, kind))]
    return sorted(ordered, key=lambda f: _LEVELS.index(level(f)))


def level(finding: Finding) -> Level:
    """``error`` blocks; ``warning`` is to be looked at; what is no news is a ``note``."""
    if finding.blocks:
        return "error"
    return "note" if finding.kind in ("escaped", "out_of_domain") else "warning"


def title(finding: Finding) -> str:
    """``Regression: softmax_triton float16``."""
    name = KINDS[finding.kind][0]
    return f"{name}: {one_line(finding.kernel, 80)} {one_line(finding.dtype, 20)}"


def sentence(finding: Finding, most: int | None = None) -> str:
    """What is the matter and how to see it again, as one printable line.

    ``most``: of `commands`, so many at most; None: all.
    """
    f = finding
    what = [f"{f.exceeding} of {plural(f.cases, 'case')}"]
    if f.kind in ("regression", "drift", "false_positive", "check_failed"):
        if text.excess(f.over):
            what.append(text.excess(f.over))
        if text.residual(f) != "-":
            what.append(f"largest residual {text.residual(f)}")
        what.append(f"worst at {one_line(f.worst_dims, 120)}")
    said = ", ".join(what)
    if f.fault:
        said += f"; the fault: {one_line(f.fault, 200)}"
    if f.detail:
        said += f"; {one_line(f.detail, 400)}"
    again = "".join(f"; {command}" for command in commands(f)[:most])
    return one_line(f"{said}{again}", 1000)


def commands(finding: Finding) -> list[str]:
    """What shows its worst case again, and what makes it small, where that is of use."""
    f = finding
    if not f.exceeding or not f.worst:
        return []
    verbs = ("replay", "minimize") if f.kind in ("regression", "crashed") else ("replay",)
    return [f"tolcal {verb} {one_line(f.worst, 100)}" for verb in verbs]


def place(finding: Finding) -> tuple[str, int] | None:
    """Path from the repository's root and line; None where that is not known, or no such path."""
    path = finding.path
    inside = (
        path
        and len(path) <= 500
        and path.isprintable()
        and not path.startswith(("/", "\\"))
        and ":" not in path.split("/")[0]
        and ".." not in PurePosixPath(path).parts
    )
    return (path, max(1, finding.line)) if inside else None
