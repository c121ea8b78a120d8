"""Proposal and verdict into what people and programs read: one renderer a format.

None of these imports torch, numpy or pandas: a report is made from ``P.json`` alone.
"""

from __future__ import annotations

from collections.abc import Callable

from tolcal.report.document import Document


def _comment(document: Document) -> str:
    from tolcal.report import markdown

    return markdown.comment(document)


def _summary(document: Document) -> str:
    from tolcal.report import markdown

    return markdown.summary(document)


def _html(document: Document) -> str:
    from tolcal.report import html

    return html.render(document)


def _json(document: Document) -> str:
    from tolcal.report import document as module

    return module.to_json(document)


def _terminal(document: Document) -> str:
    from tolcal.report import terminal

    return terminal.render(document)


def _sarif(document: Document) -> str:
    from tolcal.report import sarif

    return sarif.render(document)


def _junit(document: Document) -> str:
    from tolcal.report import junit

    return junit.render(document)


def _annotations(document: Document) -> str:
    # `annotations` is also what every module here imports from __future__.
    from tolcal.report.annotations import render

    return render(document)


#: Name of a format -> its renderer.
FORMATS: dict[str, Callable[[Document], str]] = {
    "comment": _comment,
    "summary": _summary,
    "html": _html,
    "json": _json,
    "sarif": _sarif,
    "junit": _junit,
    "annotations": _annotations,
    "terminal": _terminal,
}
