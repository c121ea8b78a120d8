"""Numbers and counts in words, the same in every format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from tolcal import binomial
from tolcal.model import (
    MIN_ROWS,
    MIN_RUNS,
    BuggyRecall,
    CellProposal,
    Finding,
    HeldOutRows,
    Interval,
    Locked,
    Proposal,
    Recall,
    Theory,
    Totals,
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


#: Findings that no tolerance has a say in.
UNJUDGED = ("crashed", "uncalibrated", "out_of_domain")


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
    if shown >= 1e7:
        text = scientific(shown)  # compared with next to nothing: no table need be that wide
    else:
        text = f"{shown:.0f}" if shown >= 10 else f"{shown:.1f}"
    return f"{text}x looser" if looser else f"{text}x"


def times(over: float | None) -> str:
    """For a table: ``7.3e3x``, ``0.7x``, and ``just over`` what would round to ``1x``."""
    if over is None:
        return "-"
    return "just over" if 1 < over < 1.05 else f"{number(over)}x"


def over(finding: Finding) -> str:
    """``7.3e3x`` of the bound, ``not finite``, ``by a check``; ``-`` for what is not judged."""
    within = finding.over is not None and finding.over <= 1
    if finding.checks and (within or finding.allowed is None):
        return "by a check"
    if finding.over is None and finding.kind not in UNJUDGED:
        return "not finite"
    return times(finding.over)


def residual(finding: Finding) -> str:
    """Of the worst case: ``8.8e-3``, ``not finite``; ``-`` for what is not judged."""
    unbounded = finding.checks and finding.allowed is None
    if finding.observed is None and finding.kind not in UNJUDGED and not unbounded:
        return "not finite"
    return number(finding.observed)


def excess(over: float | None) -> str:
    """``7.3e3x the bound``, ``just over the bound``; nothing for what is not over it."""
    return f"{times(over)} the bound" if over is not None and over > 1 else ""


def percent(value: float | None) -> str:
    """Rounded down, so that 100 % means all."""
    return "-" if value is None else f"{math.floor(value * 1000) / 10:.1f} %"


def held_out_claim(bad: int, runs: int) -> str:
    """What held-out runs show, and no more."""
    if runs == 0:
        return "no held-out runs"
    bound = math.ceil(binomial.upper(bad, runs) * 1000) / 10
    return f"{bad} of {runs} held-out runs red (at most {bound:.1f} % of runs, 95 % confidence)"


def _flagged(held: HeldOutRows) -> str:
    """Flagged rows: a flagged line of a summary is at least one."""
    return f"{'at least ' if held.unseen else ''}{held.false_alarms}"


def held_out_claims(proposal: Proposal) -> str:
    """The same of runs and of rows, those the fit rests on beside them: without its stop."""
    held, sample = proposal.held_out, proposal.in_sample
    claim = held_out_claim(held.runs_with_false_alarms, held.runs)
    if held.rows:
        most = _rounded_up(100 * binomial.upper(held.false_alarms + held.unseen, held.rows))
        claim += f"; {_flagged(held)} of {held.rows} held-out control rows flagged (at most "
        claim += f"{most} %)"
    if sample is not None:
        both = f"{_flagged(sample.ours)} of {sample.ours.rows}"
        if proposal.rule != "paper":
            both += f", by the paper's rule {_flagged(sample.paper)}"
        claim += f"; in sample {both}"
    return claim[0].upper() + claim[1:]


def forecast_claim(proposal: Proposal) -> str:
    """What the tail model adds to the runs seen, and that it is a model; "" without one."""
    foreseen = proposal.forecast
    if foreseen is None:
        return ""
    bad, runs = proposal.held_out.runs_with_false_alarms, proposal.held_out.runs
    budget = f"the budget of {_in_1000(proposal.budget)} in 1,000"
    if bad and _at_least(bad, runs, foreseen.upper) < 0.01:
        return (
            f"No estimate of rarer false alarms: {bad} of {runs} held-out runs red is more than "
            f"the tail model ({_in_1000(foreseen.upper)} in 1,000) allows; {budget} is not met"
        )
    if foreseen.upper == 0:
        return f"No error was seen, so the tail model says nothing of rarer ones, nor of {budget}"
    if foreseen.upper <= proposal.budget:
        met = f"within {budget}"
    else:
        need = f", which needs about {plural(foreseen.more_runs, 'more run')}"
        need += f", most for {foreseen.worst}" if foreseen.worst else ""
        met = f"{budget} is not shown to hold{need if foreseen.more_runs else ''}"
    return (
        f"If tails continue as seen, at most about {_in_1000(foreseen.upper)} in 1,000 runs red "
        f"(central {_in_1000(foreseen.rate)}; a model figure, for the same ops, inputs, GPU and "
        f"software): {met}"
    )


def _at_least(bad: int, runs: int, rate: float) -> float:
    """P(at least ``bad`` of ``runs``) at that rate; exact only where it is small."""
    if bad <= rate * runs or bad > runs:
        return 1.0
    # As many good runs at most: the smaller tail, which is summed from its largest term.
    return binomial.at_most(runs - bad, runs, min(max(1 - rate, 1e-12), 1 - 1e-12))


def _in_1000(rate: float) -> str:
    """A share of runs as so many in 1,000: never better than it is, never 0."""
    return _rounded_up(rate * 1000)


def _rounded_up(value: float) -> str:
    """To one digit below 1, to a whole number above: ``13``, ``0.3``, ``0.009``."""
    value = max(value, 1e-9)
    if value > 1:
        return f"{math.ceil(value - 1e-9)}"
    digits = -math.floor(math.log10(value))
    return f"{math.ceil(value * 10**digits - 1e-9) / 10**digits:.{digits}f}"


def recall_claim(proposal: Proposal) -> str:
    """``Recall of buggy kernels: 99.4 % of detectable rows (95 %: 99.3 to 99.6 %), ...``.

    Subtle ones follow, since many rows of theirs lie within any tolerance.
    """
    plain, subtle = _recall_claim(proposal), proposal.subtle
    if subtle is None:
        return plain
    return f"{plain}; of {_subtle_ones(subtle)} {_share(subtle)}"


def _recall_claim(proposal: Proposal) -> str:
    if proposal.recall is None:
        kind = "buggy kernel" if proposal.subtle is None else "buggy kernel but subtle ones"
        return f"No {kind} was judged"
    every = f"{percent(proposal.recall)} of all rows{_likely(proposal.recall_interval)}"
    if proposal.detectable_recall is None:
        return f"Recall of buggy kernels: {every}, none of which is detectable"
    detectable = f"{percent(proposal.detectable_recall)} of detectable rows"
    detectable += _likely(proposal.detectable_interval)
    return f"Recall of buggy kernels: {detectable}, {every}"


def _subtle_ones(subtle: Totals) -> str:
    return "the subtle one" if subtle.kernels == 1 else f"the {subtle.kernels} subtle ones"


def _share(subtle: Totals) -> str:
    """``84.9 % of detectable rows (95 %: 84.1 to 85.6 %)``."""
    if subtle.detectable_recall is None:
        return f"{percent(subtle.recall)} of all rows, none of which is detectable"
    likely = _likely(subtle.detectable_interval)
    return f"{percent(subtle.detectable_recall)} of detectable rows{likely}"


def _likely(interval: Interval | None) -> str:
    return f" (95 %: {span(interval)})" if interval else ""


def span(interval: Interval) -> str:
    """``99.3 to 99.6 %``: down and up, so never narrower than it is."""
    low, high = math.floor(interval[0] * 1000) / 10, math.ceil(interval[1] * 1000 - 1e-9) / 10
    return f"{low:.1f} to {high:.1f} %"


def exact(recall: Recall) -> str:
    """The exact 95 % interval of one buggy kernel's detectable recall; - without such rows.

    Of a sample as of so many rows as were judged.
    """
    judged = recall.detectable if recall.judged is None else recall.judged
    if not recall.detectable or not judged:
        return "-"
    return span(binomial.interval(recall.detectable_flagged * judged // recall.detectable, judged))


#: Order of dtypes in tables: others come after these.
_DTYPES = ("float32", "float16", "bfloat16")


def by_kernel(buggy: Iterable[BuggyRecall], subtle: bool) -> list[BuggyRecall]:
    """Those that are subtle, or those that are not, by name and then dtype."""

    def place(one: BuggyRecall) -> tuple[str, int, str]:
        known = one.dtype in _DTYPES
        return (one.kernel, _DTYPES.index(one.dtype) if known else len(_DTYPES), one.dtype)

    return sorted((b for b in buggy if b.subtle == subtle), key=place)


def together(buggy: Sequence[BuggyRecall]) -> dict[str, str]:
    """Detectable rows of them all, and what each rule flags of these: the last row of a table.

    A rule that had no limit for some of them says of how many rows its figure is.
    """
    whole = Recall.of(b.proposed or b.paper for b in buggy)
    kernels = plural(len({b.kernel for b in buggy}), "kernel")
    found = {"kernels": kernels, "rows": f"{whole.detectable} of {whole.rows}"}
    for rule in ("legacy", "paper", "proposed"):
        judged = Recall.of(getattr(b, rule) for b in buggy)
        some = f" (of {judged.detectable})" if 0 < judged.detectable < whole.detectable else ""
        found[rule] = f"{percent(judged.detectable_recall)}{some}"
    return found


def theory_claim(theory: Theory) -> str:
    """The record nearest to the a-priori bound on a sum of its length."""
    near = theory.nearest
    return (
        f"{near.kernel} errs by {number(near.measured)} u of the scale at {near.dims}; a sum of "
        f"{near.terms} terms explains at most {number(near.bound)} (gamma_K), likely "
        f"{number(near.probable)} (sqrt K)"
    )


def locked_claim(locked: Locked) -> str:
    """What the runs kept apart show."""
    ours, paper = locked.held_out, locked.paper
    bound = math.ceil(binomial.upper(ours.runs_with_false_alarms, ours.runs) * 1000) / 10
    recall = Recall.of(b.proposed for b in locked.buggy if not b.subtle).detectable_recall
    every = "; ".join(locked.missed) or "every buggy kernel caught in every run"
    seen = []
    if recall is not None:
        likely = _likely(locked.detectable_interval)
        seen.append(f"Detectable recall {percent(recall)}{likely}; {every}")
    if locked.subtle is not None:
        seen.append(
            f"{'of' if seen else 'Of'} {_subtle_ones(locked.subtle)} {_share(locked.subtle)}, "
            f"{locked.subtle_caught} caught in every run (in some dtype)"
        )
    return (
        f"Locked runs: {ours.runs_with_false_alarms} of {ours.runs} red (at most {bound:.1f} % of "
        f"runs, 95 % confidence), {_flagged(ours)} of {ours.rows} control rows flagged; "
        f"the paper's rule: {paper.runs_with_false_alarms} of {paper.runs} red, "
        f"{_flagged(paper)} rows. {'; '.join(seen) or 'No buggy kernel was judged'}."
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
    if verdict.judged == 0 and 0 < verdict.empty == ran:
        return "no element of what ran lies inside the domain"
    if verdict.judged == 0 and ran:
        return "what ran has no approved tolerance"
    return "no kernel ran to its end" if verdict.judged == 0 else ""


def unjudged(blocks: bool) -> str:
    """What `not_judged` is the reason of: what blocks (by a check, a crash) was judged."""
    return "nothing was held against a tolerance" if blocks else "nothing was judged"


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
        (len(by_kind(verdict, "check_failed")), "failed check", "failed checks"),
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
    lacking = [c for c in proposal.cells if c.needs_rows or c.needs_runs]
    if lacking and all(c.state == "uncalibrated" for c in proposal.cells):
        most = max(lacking, key=lambda c: (c.needs_runs, c.needs_rows))
        return (
            f"nothing can be calibrated yet: {plural(len(lacking), 'cell')} without enough rows or "
            f"runs, up to {needs(most)} needed (tolcal run --repeat N)"
        )
    looser = sum(c.state == "looser" for c in proposal.cells)
    if looser:
        return f"nothing to change; {plural(looser, 'cell')} would be looser"
    return "nothing to change"


def needs(cell: CellProposal) -> str:
    """``7 more runs (620 rows of a control)``: what an uncalibrated cell lacks."""
    rows = f"{plural(cell.needs_rows, 'row')} of a control" if cell.needs_rows else ""
    runs = plural(cell.needs_runs, "more run") if cell.needs_runs else ""
    return f"{runs} ({rows})" if runs and rows else runs or rows


def next_step(proposal: Proposal, verdict: Verdict | None, pull: OnPull | None) -> str:
    """What to do where nothing was judged for want of tolerances; nothing in other cases."""
    if not not_judged(verdict).endswith("tolerance") or to_approve(proposal):
        return ""
    has = [max(0, MIN_ROWS - c.needs_rows) for c in proposal.cells if c.state == "uncalibrated"]
    has = has or [0]
    rows = f"{min(has)}" if min(has) == max(has) else f"{min(has)} to {max(has)}"
    how = (
        "run the workflow *tolcal ingest* on the default branch (Actions, Run workflow)"
        if pull
        else "measure more (`tolcal run --cases 40 --repeat 18 --history DIR`)"
    )
    return (
        f"{how} until the controls have {MIN_ROWS} rows a cell (now {rows}) of {MIN_RUNS} runs; "
        "the tolerances are then proposed here, to be approved"
    )


def new_escapes(verdict: Verdict | None) -> list[Finding]:
    """Buggy kernels, new or changed, that nothing catches and nothing caught before."""
    return [f for f in by_kind(verdict, "escaped") if f.changed and not f.blocks]


def _counted(*kinds: tuple[int, str, str]) -> list[str]:
    return [plural(count, one, many) for count, one, many in kinds if count]
