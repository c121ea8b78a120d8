"""``report.html``: one file that needs no network, and the main charts as pictures.

The page carries its data as JSON, its charts as Vega-Lite specifications and the scripts that
draw them. Its content security policy lets just these scripts run (by their hashes) and nothing
be loaded; what comes from a file enters the page as text only.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

import jinja2
import msgspec

from tolcal import __version__
from tolcal.model import CellProposal, one_line
from tolcal.report import text
from tolcal.report.document import Document, OnPull
from tolcal.report.html import charts, data

#: What a page may weigh; 0.9 MB of it are Vega.
MAX_BYTES = 3_000_000
#: Findings that the page lists; the comment and the machine formats have all.
MAX_FINDINGS = 300


def render(document: Document) -> str:
    """The page, at most MAX_BYTES bytes.

    Charts of single cells are left out where they no longer fit, the least important first, and
    the page says of how many.
    """
    vega = _vega()
    page = _raw("page.js")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tolcal.report.html", ""),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for filter_name in ("number", "percent", "plural"):
        environment.filters[filter_name] = getattr(text, filter_name)
    found = data.findings(document.verdict)
    proposal = document.proposal
    whole = data.whole(document)
    template = environment.get_template("page.html")

    def shell(content: bytes, without: int) -> str:
        return template.render(
            policy=_policy(vega, page),
            css=_raw("page.css"),
            vega=vega,
            page=page,
            data=content.decode(),
            version=__version__,
            headline=text.headline(proposal, document.verdict, document.pull),
            blocks=document.blocks,
            environment=data.name(document.verdict.environment) if document.verdict else "",
            commit=text.ident(document.verdict.commit) if document.verdict else "",
            p=proposal,
            claim=text.held_out_claim(
                proposal.held_out.runs_with_false_alarms, proposal.held_out.runs
            ),
            locked=one_line(text.locked_claim(proposal.locked), 2000) if proposal.locked else "",
            notes=[one_line(note, 400) for note in (*proposal.notes, *_remarks(document.pull))],
            findings=found[:MAX_FINDINGS],
            more=len(found) - len(found[:MAX_FINDINGS]),
            cells=len(proposal.cells),
            without=without,
            charts={key: bool(table.rows) for key, table in whole.items()},
            drawn=min(len(proposal.cells), data.MAX_CELLS),
            devices=sorted({data.name(run.device) for run in proposal.runs}),
        )

    ordered = data.important(proposal.cells)
    content = _content(whole, ordered)
    room = MAX_BYTES - len(shell(_json(content), len(ordered)).encode())
    for cell in ordered:
        detail = _detail(cell, document)
        key = data.title(cell)
        room -= len(_json({key: detail}))
        if room < 0:
            break
        content["details"][key] = detail
    return shell(_json(content), len(ordered) - len(content["details"]))


def _remarks(pull: OnPull | None) -> list[str]:
    """What is to be said of a pull request beside its numbers, what blocks first."""
    if pull is None:
        return []
    titled = (
        ("unusable", pull.unusable),
        ("changed without approval", pull.unapproved),
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
    for name, table in data.whole(document).items():
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


_PICTURE = {"range": {"category": ["#0072b2", "#c04a00", "#00795a", "#8a3a7a", "#6b5b00"]}}


def _content(whole: dict[str, data.Table], ordered: list[CellProposal]) -> dict[str, Any]:
    return {
        "charts": {
            name: {"spec": make(), "table": whole[name]}
            for name, make in charts.WHOLE.items()
            if whole[name].rows
        },
        "specs": {name: make() for name, make in charts.CELL.items()},
        "cells": data.cells(ordered),
        "details": {},
    }


def _detail(cell: CellProposal, document: Document) -> dict[str, Any]:
    detail: dict[str, Any] = {"facts": data.cell_facts(cell), "kernels": [], "charts": {}}
    if cell.plots is not None:
        tables = {
            "spreads": data.spreads(cell.plots, document.proposal),
            "shares": data.shares(cell.plots),
            "shapes": data.shapes(cell.plots),
        }
        detail["kernels"] = data.kernels(cell.plots)
        detail["charts"] = {name: table for name, table in tables.items() if table.rows}
    return detail


def _json(content: Any) -> bytes:
    """JSON that can stand in a script element: no ``<`` can end it, nor ``&`` be read as HTML."""
    raw = msgspec.json.encode(content)
    for character in (b"<", b">", b"&"):
        raw = raw.replace(character, b"\\u%04x" % character[0])
    return raw


@functools.cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script. It takes seconds to put together."""
    import vl_convert

    wanted = "window.vegaEmbed = vegaEmbed;"
    bundle: str = vl_convert.javascript_bundle(wanted, vl_version=charts.VEGA_LITE)
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
