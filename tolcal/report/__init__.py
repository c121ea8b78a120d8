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


#: Name of a format -> its renderer.
FORMATS: dict[str, Callable[[Document], str]] = {
    "comment": _comment,
    "summary": _summary,
    "html": _html,
    "json": _json,
    "terminal": _terminal,
}
