"""Numbers and counts in words, the same in every format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from tolcal.model import CellProposal, Finding, Locked, Proposal, Verdict, plural
from tolcal.report.document import OnPull

#: Everything that reaches Markdown as a name goes through this: nothing else can be a mention,
#: a link, HTML or the end of a table cell.
_MARKUP = frozenset("\\`*[]<>|~&@#")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:=+\-/ ]")


def code(text: str) -> str:
    """``text`` as an inert code span."""
    return f"`{_UNSAFE.sub('?', text)[:120] or '-'}`"


def plain(text: str) -> str:
    """Free text (a kernel's exception, a device's name) as inert words of one line."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())[:400]
    words = words.lstrip(": ")  # `::` at the start of a log's line is a workflow command
    inert = "".join(f"&#{ord(c)};" if c in _MARKUP else c for c in words)
    inert = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", "&#95;", inert)  # sm_90 is no emphasis
    # An entity does not stop a mention or an issue link, nor anything a bare URL; a joiner does.
    inert = re.sub(r"(&#64;|&#35;)(?=\w)", "\\1\u200d", inert)
    return re.sub(r"(?i)(https?|ftp|www|\bgh)(?=[:.-])", "\\1\u200d", inert)


def ident(text: str) -> str:
    """An id (commit, digest, dtype, op) with nothing in it that an id does not have."""
    return re.sub(r"[^A-Za-z0-9_.-]", "", text)[:64]


def link(address: str) -> str:
    """``address`` if it is a plain web address, which Markdown takes as it is; else nothing."""
    return address if re.fullmatch(r"https?://[A-Za-z0-9._:/#-]{1,500}", address) else ""


def number(value: float | None) -> str:
    """Two significant digits: ``8.8e-3``, ``1.2``, ``0``."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if 99.5 <= abs(value) < 999.5:
        return f"{value:.0f}"
    if 0.01 <= abs(value) < 99.5:
        return f"{value:.2g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def scientific(value: float | None) -> str:
    """Two significant digits with an exponent, for columns of tolerances."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def factor(value: float | None) -> str:
    """``289x``, ``1.4x``, ``1.4x looser``, ``same``."""
    if value is None:
        return "-"
    looser = value < 1
    shown = (1 / value if value > 0 else math.inf) if looser else value
    if shown < 1.05:
        return "same"
    text = f"{shown:.0f}" if shown >= 10 else f"{shown:.1f}"
    return f"{text}x looser" if looser else f"{text}x"


def times(over: float | None) -> str:
    """For a table: ``7.3e3x``, ``0.7x``, and ``just over`` what would round to ``1x``."""
    if over is None:
        return "-"
    return "just over" if 1 < over < 1.05 else f"{number(over)}x"


def over(finding: Finding) -> str:
    """``7.3e3x`` of the bound, ``not finite``; ``-`` for what is not judged."""
    if finding.over is None and finding.kind not in ("crashed", "uncalibrated"):
        return "not finite"
    return times(finding.over)


def residual(finding: Finding) -> str:
    """Of the worst case: ``8.8e-3``, ``not finite``; ``-`` for what is not judged."""
    if finding.observed is None and finding.kind not in ("crashed", "uncalibrated"):
        return "not finite"
    return number(finding.observed)


def excess(over: float | None) -> str:
    """``7.3e3x the bound``, ``just over the bound``; nothing for what is not over it."""
    return f"{times(over)} the bound" if over is not None and over > 1 else ""


def percent(value: float | None) -> str:
    """Rounded down, so that 100 % means all."""
    return "-" if value is None else f"{math.floor(value * 1000) / 10:.1f} %"


def upper_bound(bad: int, runs: int) -> float:
    """One-sided 95 % upper bound on a rate after ``bad`` of ``runs``, exact (Clopper-Pearson).

    Beyond 10^8 runs Hoeffding's bound, which is above the exact one by less than 0.02 %.
    """
    if runs == 0 or bad >= runs:
        return 1.0
    if bad == 0:
        return float(1 - 0.05 ** (1 / runs))
    # exp(-2 runs (p - bad/runs)^2) = 0.05: the tail at this rate is at most 5 %.
    low, high = bad / runs, min(1.0, bad / runs + math.sqrt(math.log(20) / (2 * runs)))
    if runs > 10**8:
        return high
    ways = math.lgamma(runs + 1) - math.lgamma(bad + 1) - math.lgamma(runs - bad + 1)
    while high - low > 1e-9:
        middle = (low + high) / 2
        # P(at most `bad` of `runs`) at rate `middle`: its largest term by logarithms (binomials
        # overflow), each next one from the one before, until what is left adds nothing.
        odds = (1 - middle) / middle
        term = math.exp(ways + bad * math.log(middle) + (runs - bad) * math.log1p(-middle))
        tail, k = term, bad
        while k and term > 1e-16 * tail:
            term *= k / (runs - k + 1) * odds
            tail += term
            k -= 1
        low, high = (middle, high) if tail > 0.05 else (low, middle)
    return high


def held_out_claim(bad: int, runs: int) -> str:
    """What held-out runs show, and no more."""
    if runs == 0:
        return "no held-out runs"
    bound = math.ceil(upper_bound(bad, runs) * 1000) / 10
    return f"{bad} of {runs} held-out runs red (at most {bound:.1f} % of runs, 95 % confidence)"


def locked_claim(locked: Locked) -> str:
    """What the runs kept apart show."""
    ours, paper = locked.held_out, locked.paper
    bound = math.ceil(upper_bound(ours.runs_with_false_alarms, ours.runs) * 1000) / 10
    detectable = sum(b.proposed.detectable for b in locked.buggy if b.proposed)
    flagged = sum(b.proposed.detectable_flagged for b in locked.buggy if b.proposed)
    every = "; ".join(locked.missed) or "every buggy kernel caught in every run"
    return (
        f"Locked runs: {ours.runs_with_false_alarms} of {ours.runs} red (at most {bound:.1f} % of "
        f"runs, 95 % confidence), {ours.false_alarms} of {ours.rows} control rows flagged; "
        f"the paper's rule: {paper.runs_with_false_alarms} of {paper.runs} red, "
        f"{paper.false_alarms} rows. Detectable recall "
        f"{percent(flagged / detectable if detectable else None)}; {every}."
    )


def by_kind(verdict: Verdict | None, *kinds: str) -> list[Finding]:
    """Findings of these kinds, in the verdict's order."""
    return [f for f in verdict.findings if f.kind in kinds] if verdict else []


def by_importance(findings: Iterable[Finding]) -> list[Finding]:
    """What blocks first, then what is not finite, then the largest excess; ties by name."""

    def weight(f: Finding) -> tuple[object, ...]:
        over = math.inf if f.over is None else f.over  # None: not finite
        return (not f.blocks, -over, f.op, f.kernel, f.dtype, f.worst, f.detail)

    return sorted(findings, key=weight)


def approvable(proposal: Proposal) -> bool:
    """Whether `approve` takes it: others are for comparison."""
    return proposal.rule == "residual" and proposal.by == "op"


def to_approve(proposal: Proposal) -> list[CellProposal]:
    """Cells that a maintainer may approve: new ones and tightenings, the largest factor first."""
    cells = [c for c in proposal.cells if c.state in ("new", "tighten") and c.tolerance]
    return sorted(cells, key=lambda c: (-(c.tightening or 0), c.op, c.dtype))


def headline(proposal: Proposal, verdict: Verdict | None, pull: OnPull | None = None) -> str:
    """The verdict in words, and one count of each kind that there is."""
    regressions = len(by_kind(verdict, "regression"))
    escaped = len([f for f in by_kind(verdict, "escaped") if f.blocks])
    crashed = len(by_kind(verdict, "crashed"))
    states = [c.state for c in proposal.cells if c.tolerance is not None]
    news, tighter = states.count("new"), states.count("tighten")
    newly = len({f.kernel for f in by_kind(verdict, "caught") if f.newly})
    false = len(by_kind(verdict, "false_positive"))
    drift = len(by_kind(verdict, "drift"))
    first = []
    if regressions:
        first.append(plural(regressions, "regression"))
    if escaped:
        first.append(plural(escaped, "escaped buggy kernel"))
    if crashed:
        first.append(plural(crashed, "crash", "crashes"))
    if pull and pull.unapproved:
        first.append(f"{plural(len(pull.unapproved), 'tolerance')} changed without approval")
    if pull and pull.unmeasured:
        first.append(f"{plural(len(pull.unmeasured), 'changed kernel')} not measured")
    if pull and pull.unusable:
        first.append(f"{plural(len(pull.unusable), 'file')} unusable")
    lead = ", ".join(first) if first else "no regressions"
    rest: list[str] = []
    if tighter:
        verb = "tolerance can tighten" if tighter == 1 else "tolerances can tighten"
        rest.append(f"{tighter} {verb}")
    if news:
        rest.append(plural(news, "new tolerance"))
    if newly:
        rest.append(plural(newly, "buggy kernel") + " newly caught")
    if false:
        rest.append(plural(false, "false positive"))
    if drift:
        rest.append(f"drift in {plural(drift, 'place')}")
    if verdict is None:  # no run to judge
        return f"{', '.join(rest)}." if rest else "nothing to change."
    if rest:
        return f"{lead}. {', '.join(rest)}."
    return f"{lead}." if first else f"{lead}, nothing to decide."
