"""``report.html``: one file that needs no network, and the main charts as pictures.

The page carries its data as JSON, its charts as Vega-Lite specifications and the scripts that
draw them. Its content security policy lets just these scripts run (by their hashes) and nothing
be loaded; what comes from a file enters the page as text only.
"""

from __future__ import annotations

import base64
import concurrent.futures
import functools
import hashlib
import subprocess
import sys
from importlib import resources
from typing import Any

import jinja2
import msgspec

from tolcal import __version__
from tolcal.model import CellProposal, Proposal, one_line, plural
from tolcal.report import findings, text
from tolcal.report.document import Document, OnPull
from tolcal.report.html import cell, charts, data, overview

#: What a page may weigh; 0.9 MB of it are Vega.
MAX_BYTES = 3_000_000
#: Findings and notes that the page lists; the proposal's JSON has all.
MAX_FINDINGS = 300
MAX_NOTES = 100


def render(document: Document) -> str:
    """The page, at most MAX_BYTES bytes.

    Charts of single cells are left out where they no longer fit, the least important first; then
    rows of the tables. The page says of how many.
    """
    whole = overview.whole(document.proposal)
    ordered = data.important(document.proposal.cells)
    most = max(len(ordered), overview.MAX_ROWS)
    while True:
        page = _page(document, whole, ordered, most)
        if len(page.encode()) <= MAX_BYTES or most == 1:
            return page
        most //= 2


def _page(
    document: Document, whole: dict[str, data.Table], ordered: list[CellProposal], most: int
) -> str:
    """With at most so many rows in any table; cells' charts as far as there is room."""
    content = _content(whole, ordered[:most], most)
    values = _values(document, most) | {"vega": _vega(), "script": _raw("page.js")}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tolcal.report.html", ""),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for filter_name in ("percent", "plural"):
        environment.filters[filter_name] = getattr(text, filter_name)
    template = environment.get_template("page.html")

    def shell(without: int) -> str:
        return template.render(
            **values, policy=_policy(values["vega"], values["script"]), css=_raw("page.css"),
            data=_json(content).decode(), charts=content["charts"], without=without,
            hidden=len(ordered) - len(ordered[:most]),
        )  # fmt: skip

    room = MAX_BYTES - len(shell(len(ordered)).encode())
    for one in ordered:
        detail = _detail(one, document)
        key = data.title(one)
        room -= len(_json({key: detail}))
        if room < 0:
            break
        content["details"][key] = detail
    return shell(len(ordered) - len(content["details"]))


def _values(document: Document, most: int) -> dict[str, Any]:
    """What the template says, apart from the data of its scripts."""
    proposal, verdict, pull = document.proposal, document.verdict, document.pull
    lead, rest = text.lead_and_rest(proposal, verdict, pull)
    held = proposal.held_out
    found = data.findings(verdict)
    notes = (*_remarks(pull), *proposal.notes)
    listed, noted = found[: min(most, MAX_FINDINGS)], notes[: min(most, MAX_NOTES)]
    red = held.runs_with_false_alarms
    amiss = (
        red
        or text.not_judged(verdict)
        or any(
            f.kind in findings.KINDS
            and f.kind != "out_of_domain"
            and (f.kind != "escaped" or f.changed)
            for f in (verdict.findings if verdict else ())
        )
    )
    return {
        "version": __version__,
        "sign": "✗" if document.blocks else "!" if amiss else "✓",
        "headline": text.headline(proposal, verdict, pull),
        "lead": lead,
        "rest": rest,
        "judged": verdict is not None or pull is not None,
        "blocks": document.blocks,
        "unsaid": not any(f["blocks"] for f in found) and not (pull and pull.blocks),
        "environment": data.name(verdict.environment) if verdict else "",
        "commit": text.ident(verdict.commit) if verdict else "",
        "p": proposal,
        "rule": one_line(proposal.rule, 40),
        "digest": text.ident(proposal.digest),
        "history": one_line(proposal.history, 100),
        "claim": text.held_out_claim(red, held.runs),
        "claims": text.held_out_claims(proposal),
        "forecast": one_line(text.forecast_claim(proposal), 600),
        "recall": text.recall_claim(proposal),
        "red": red,
        "locked": one_line(text.locked_claim(proposal.locked), 2000) if proposal.locked else "",
        "approve": _to_approve(proposal),
        "comparison": not text.approvable(proposal),
        "notes": [one_line(note, 400) for note in noted],
        "more_notes": len(notes) - len(noted),
        "findings": listed,
        "more": len(found) - len(listed),
        "drawn": min(len(proposal.cells), overview.MAX_CELLS),
        "runs_left": max(0, sum(run.held_out_share is not None for run in proposal.runs)
                         - overview.MAX_RUNS),
        "devices": [data.name(d) for d in sorted({run.device for run in proposal.runs})[:10]],
    }  # fmt: skip


def _to_approve(proposal: Proposal) -> str:
    """What a maintainer may let in: ``2 tighter tolerances, 1 new tolerance``."""
    states = [c.state for c in text.to_approve(proposal)] if text.approvable(proposal) else []
    return ", ".join(
        plural(states.count(state), f"{words} tolerance")
        for state, words in (("tighten", "tighter"), ("new", "new"))
        if state in states
    )


def _remarks(pull: OnPull | None) -> list[str]:
    """What is to be said of a pull request beside its numbers, what blocks first."""
    if pull is None:
        return []
    titled = (
        ("unusable", pull.unusable),
        ("changed without approval", pull.unapproved),
        ("left without its op", pull.gone),
        ("changed and not measured", pull.unmeasured),
    )
    blocking = [f"{r.what}: {title}: {r.why}" for title, remarks in titled for r in remarks]
    return [*blocking, *pull.notes]


def pictures(document: Document) -> dict[str, bytes]:
    """The charts of the whole as ``tightening.svg``, ``tightening.png`` and so on, by file name.

    Charts that this proposal has no data for are left out.
    """
    import vl_convert

    made = {}
    for name, table in overview.whole(document.proposal).items():
        if not table.rows:
            continue
        spec = charts.WHOLE[name]()
        spec.setdefault("datasets", {})["rows"] = table.dicts()
        spec["background"] = "white"
        options: dict[str, Any] = {"vl_version": charts.VEGA_LITE, "config": _PICTURE}
        file = name.replace("_", "-")
        made[f"{file}.svg"] = vl_convert.vegalite_to_svg(spec, **options).encode()
        made[f"{file}.png"] = vl_convert.vegalite_to_png(spec, scale=1.5, **options)
    return made


_PICTURE = {
    "range": {"category": ["#0072b2", "#c04a00", "#00795a", "#8a3a7a", "#6b5b00"]},
    "legend": {"columns": 3},
}


def _content(whole: dict[str, data.Table], listed: list[CellProposal], most: int) -> dict[str, Any]:
    return {
        "charts": {
            name: {"spec": make(), "table": whole[name].first(most)}
            for name, make in charts.WHOLE.items()
            if whole[name].rows
        },
        "specs": {name: make() for name, make in charts.CELL.items()},
        "cells": data.cells(listed),
        "details": {},
    }


def _detail(one: CellProposal, document: Document) -> dict[str, Any]:
    detail: dict[str, Any] = {"facts": cell.facts(one), "kernels": [], "charts": {}}
    if one.plots is not None:
        tables = {
            "spreads": cell.spreads(one.plots, document.proposal),
            "shares": cell.shares(one.plots),
            "shapes": cell.shapes(one.plots),
        }
        detail["kernels"] = cell.kernels(one.plots)
        detail["left"] = len(one.plots.kernels) - len(cell.drawn(one.plots))
        detail["charts"] = {name: table for name, table in tables.items() if table.rows}
    return detail


def _json(content: Any) -> bytes:
    """JSON that can stand in a script element: no ``<`` can end it, nor ``&`` be read as HTML."""
    raw = msgspec.json.encode(content)
    for character in (b"<", b">", b"&"):
        raw = raw.replace(character, b"\\u%04x" % character[0])
    return raw


#: Run with it, Python prints the scripts; the bundler keeps other threads of a process waiting.
_BUNDLER = (
    "import sys, vl_convert; sys.stdout.buffer.write("
    "vl_convert.javascript_bundle(*sys.argv[1:2], vl_version=sys.argv[2]).encode())"
)
_WANTED = "window.vegaEmbed = vegaEmbed;"


@functools.cache
def begin() -> concurrent.futures.Future[str | None]:
    """Has the scripts put together, which takes a second or two, on another core.

    For callers that have something else to do before they render. The result is None if that
    failed; then rendering does it.
    """
    return concurrent.futures.ThreadPoolExecutor(1, "vega").submit(_bundle_apart)


def _bundle_apart() -> str | None:
    command = [sys.executable, "-P", "-c", _BUNDLER, _WANTED, charts.VEGA_LITE]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    return done.stdout.decode() if done.returncode == 0 else None


@functools.cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script. It takes seconds to put together."""
    import vl_convert

    begun = begin().result() if begin.cache_info().currsize else None
    bundle: str = begun or vl_convert.javascript_bundle(_WANTED, vl_version=charts.VEGA_LITE)
    return bundle.replace("</script", "<\\/script")


def _policy(*scripts: str) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
        for s in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _raw(file: str) -> str:
    return (resources.files(__package__) / file).read_text("utf-8")
