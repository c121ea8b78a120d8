"""Numbers and counts in words, the same in every format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from tolcal.model import (
    MIN_ROWS,
    CellProposal,
    Finding,
    HeldOutRows,
    Locked,
    Proposal,
    Verdict,
    cut,
    one_line,
    plural,
)
from tolcal.report.document import OnPull

#: Everything that reaches Markdown as a name goes through this: nothing else can be a mention,
#: a link, HTML or the end of a table cell.
_MARKUP = frozenset("\\`*[]<>|~&@#$")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:=+\-/ ]")
#: What starts an item of a list where it starts a line.
_ITEM = re.compile(r"(?:[-+]|\d{1,9}[.)])(?= |$)")


def code(text: str) -> str:
    """``text`` as an inert code span."""
    return f"`{cut(_UNSAFE.sub('?', text), 160) or '-'}`"


def quoted(text: str) -> str:
    """Foreign text (a kernel's exception) as a code span: whole, and to be copied as it is.

    Not for tables, whose cells a bar ends in a code span, too.
    """
    words = one_line(text, 400)
    fence = "`" * (1 + max(map(len, re.findall("`+", words)), default=0))
    pad = " " if words.startswith("`") or words.endswith("`") else ""
    return f"{fence}{pad}{words}{pad}{fence}" if words else ""


def plain(text: str) -> str:
    """Free text (a note, a device's name) as inert words of one line."""
    words = one_line(text, 400)  # `::` at the start of a log's line is a workflow command
    inert = "".join(f"&#{ord(c)};" if c in _MARKUP else c for c in words)
    inert = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", "&#95;", inert)  # sm_90 is no emphasis
    if item := _ITEM.match(inert):
        inert = f"{inert[: item.end() - 1]}&#{ord(inert[item.end() - 1])};{inert[item.end() :]}"
    # An entity does not stop a mention or an issue link, nor anything a bare URL or an emoji's
    # name; a joiner does.
    inert = re.sub(r"(&#64;|&#35;)(?=\w)", "\\1\u200d", inert)
    inert = re.sub(r":(?=[\w+-]+:)", ":\u200d", inert)
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


def held_out_claims(held_out: HeldOutRows) -> str:
    """The same of runs and of rows, as a sentence without its stop."""
    claim = held_out_claim(held_out.runs_with_false_alarms, held_out.runs)
    if held_out.rows:
        claim += f"; {held_out.false_alarms} of {held_out.rows} held-out control rows flagged"
    return claim[0].upper() + claim[1:]


def recall_claim(proposal: Proposal) -> str:
    """``Recall of buggy kernels: 99.4 % of detectable rows, 79.5 % of all rows``, or that none."""
    if proposal.recall is None:
        return "No buggy kernel was judged"
    every = f"{percent(proposal.recall)} of all rows"
    if proposal.detectable_recall is None:
        return f"Recall of buggy kernels: {every}, none of which is detectable"
    detectable = f"{percent(proposal.detectable_recall)} of detectable rows"
    return f"Recall of buggy kernels: {detectable}, {every}"


def locked_claim(locked: Locked) -> str:
    """What the runs kept apart show."""
    ours, paper = locked.held_out, locked.paper
    bound = math.ceil(upper_bound(ours.runs_with_false_alarms, ours.runs) * 1000) / 10
    detectable = sum(b.proposed.detectable for b in locked.buggy if b.proposed)
    flagged = sum(b.proposed.detectable_flagged for b in locked.buggy if b.proposed)
    every = "; ".join(locked.missed) or "every buggy kernel caught in every run"
    seen = f"Detectable recall {percent(flagged / detectable)}; {every}" if detectable else ""
    return (
        f"Locked runs: {ours.runs_with_false_alarms} of {ours.runs} red (at most {bound:.1f} % of "
        f"runs, 95 % confidence), {ours.false_alarms} of {ours.rows} control rows flagged; "
        f"the paper's rule: {paper.runs_with_false_alarms} of {paper.runs} red, "
        f"{paper.false_alarms} rows. {seen or 'No buggy kernel was judged'}."
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


def skips(verdict: Verdict) -> list[tuple[str, int]]:
    """Reasons that records were skipped for, and how many, the most first."""
    return sorted(verdict.skipped_reasons.items(), key=lambda item: (-item[1], item[0]))


def not_judged(verdict: Verdict | None) -> str:
    """Why nothing of a run was held against a tolerance; nothing if something was."""
    if verdict is None:
        return ""
    if not verdict.records:
        return "the run has no records"
    skipped, ran = verdict.statuses.get("skipped", 0), verdict.statuses.get("ok", 0)
    if skipped and skipped == verdict.records:
        return f"every record was skipped ({skipped})"
    if verdict.judged == 0 and ran:
        return "what ran has no approved tolerance"
    return "no kernel ran to its end" if verdict.judged == 0 else ""


def approvable(proposal: Proposal) -> bool:
    """Whether `approve` takes it: others are for comparison."""
    return proposal.rule == "residual" and proposal.by == "op"


def to_approve(proposal: Proposal) -> list[CellProposal]:
    """Cells that a maintainer may approve: new ones and tightenings, the largest factor first."""
    cells = [c for c in proposal.cells if c.state in ("new", "tighten") and c.tolerance]
    return sorted(cells, key=lambda c: (-(c.tightening or 0), c.op, c.dtype))


def headline(proposal: Proposal, verdict: Verdict | None, pull: OnPull | None = None) -> str:
    """The verdict in words: what blocks, or that nothing does, and one count of each kind."""
    return " ".join(filter(None, lead_and_rest(proposal, verdict, pull)))


def lead_and_rest(
    proposal: Proposal, verdict: Verdict | None, pull: OnPull | None = None
) -> tuple[str, str]:
    """The same as two sentences: what blocks, and the counts of the rest ("" if there is none)."""
    states = [c.state for c in proposal.cells if c.tolerance is not None]
    news, tighter = states.count("new"), states.count("tighten")
    rest = []
    if tighter:
        verb = "tolerance can tighten" if tighter == 1 else "tolerances can tighten"
        rest.append(f"{tighter} {verb}")
    if news:
        rest.append(plural(news, "new tolerance"))
    if verdict is None and pull is None:  # no run to judge
        return f"{', '.join(rest) or _nothing_new(proposal)}.", ""
    regressions, crashes = by_kind(verdict, "regression"), by_kind(verdict, "crashed")
    escaped = by_kind(verdict, "escaped")
    blocking = _counted(
        (sum(f.blocks for f in regressions), "regression", "regressions"),
        (sum(f.blocks for f in escaped), "escaped buggy kernel", "escaped buggy kernels"),
        (sum(f.blocks for f in crashes), "crash", "crashes"),
    )
    if pull is not None:
        blocking += _counted(
            (len(pull.unapproved), "tolerance changed without approval",
             "tolerances changed without approval"),
            (len(pull.gone), "approved tolerance whose op leaves the corpus",
             "approved tolerances whose ops leave the corpus"),
            (len(pull.unmeasured), "changed kernel not measured", "changed kernels not measured"),
            (len(pull.unusable), "file unusable", "files unusable"),
        )  # fmt: skip
    harmless = _counted(
        (sum(not f.blocks for f in regressions), "regression that does not block",
         "regressions that do not block"),
        (sum(not f.blocks for f in crashes), "crash that does not block",
         "crashes that do not block"),
    )  # fmt: skip
    others = _counted(
        (len({f.kernel for f in by_kind(verdict, "caught") if f.newly}),
         "buggy kernel newly caught", "buggy kernels newly caught"),
        (len({f.kernel for f in new_escapes(verdict)}),
         "new buggy kernel not caught", "new buggy kernels not caught"),
        (len(by_kind(verdict, "false_positive")), "false positive", "false positives"),
    )  # fmt: skip
    if drift := len(by_kind(verdict, "drift")):
        others.append(f"drift in {plural(drift, 'place')}")
    why = not_judged(verdict)
    if blocking:
        lead, rest = f"blocked by {', '.join(blocking)}", [*harmless, *rest, *others]
    elif why:
        lead, rest = f"nothing was judged: {why}", [*harmless, *rest, *others]
    else:
        lead, rest = ", ".join(harmless) or "no regressions", [*rest, *others]
    if rest:
        return f"{lead}.", f"{', '.join(rest)}."
    return (f"{lead}, nothing to decide." if lead == "no regressions" else f"{lead}."), ""


def _nothing_new(proposal: Proposal) -> str:
    """Why a calibration proposes nothing: all is as approved, or nothing can be fitted yet."""
    lacking = [c for c in proposal.cells if c.needs_rows]
    if lacking and all(c.state == "uncalibrated" for c in proposal.cells):
        most = max(c.needs_rows for c in lacking)
        return (
            f"nothing can be calibrated yet: {plural(len(lacking), 'cell')} without enough rows, "
            f"up to {most} more of a control needed (tolcal run --repeat N)"
        )
    return "nothing to change"


def next_step(proposal: Proposal, verdict: Verdict | None, pull: OnPull | None) -> str:
    """What to do where nothing was judged for want of tolerances; nothing in other cases."""
    if not not_judged(verdict).endswith("tolerance") or to_approve(proposal):
        return ""
    needs = [c.needs_rows for c in proposal.cells if c.state == "uncalibrated"]
    has = [max(0, MIN_ROWS - need) for need in needs] or [0]
    rows = f"{min(has)}" if min(has) == max(has) else f"{min(has)} to {max(has)}"
    how = (
        "run the workflow *tolcal ingest* on the default branch (Actions, Run workflow)"
        if pull
        else "measure more (`tolcal run --repeat 18 --history DIR`)"
    )
    return (
        f"{how} until the controls have {MIN_ROWS} rows a cell (now {rows}); the tolerances "
        "are then proposed here, to be approved"
    )


def new_escapes(verdict: Verdict | None) -> list[Finding]:
    """Buggy kernels, new or changed, that nothing catches and nothing caught before."""
    return [f for f in by_kind(verdict, "escaped") if f.changed and not f.blocks]


def _counted(*kinds: tuple[int, str, str]) -> list[str]:
    return [plural(count, one, many) for count, one, many in kinds if count]
