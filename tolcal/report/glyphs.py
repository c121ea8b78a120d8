"""Bars made of block characters: a picture that e-mail, a terminal and a diff can show."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉"
#: Upper edges of the bins of a histogram of shares: finer below the limit, where controls are.
EDGES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 8.0, 64.0, math.inf)
_LABELS = ("up to 1/16", "1/8", "1/4", "1/2", "1", "2", "8", "64", "more")
_LIMIT = EDGES.index(1.0)


def bar(length: float, most: int) -> str:
    """A bar of ``length`` characters, to an eighth of one, and at most ``most`` of them.

    Whatever is above 0 shows at least an eighth; nan and what is not above 0 show nothing.
    """
    if not length > 0:
        return ""
    eighths = 8 * most if length >= most else max(1, round(8 * length))
    whole, rest = divmod(eighths, 8)
    return "█" * whole + _EIGHTHS[rest].strip()


def factor_bar(factor: float | None) -> str:
    """A block for each power of ten: 10x is ``█``, 1000x is ``███``; nothing up to 1.05x."""
    if factor is None or not factor >= 1.05:
        return ""
    return bar(math.log10(factor), 8)


def histogram(columns: Mapping[str, Sequence[float]], width: int) -> list[str]:
    """Side by side, one bar chart a column, of shares of a limit; a rule where the limit is.

    Bars of a column are relative to its fullest bin. ``width`` is what a line may take: bars
    shrink, down to 4 characters, and titles stand above each other; counts are never cut.
    """
    counts = [_counts(values) for values in columns.values()]
    label = max(map(len, _LABELS))
    digits = [len(str(max(c))) for c in counts]
    room = width - label - sum(digits) - 3 * len(counts)
    most = max(4, min(24, room // max(1, len(counts))))
    lines = [f"{'':{label}}  {'| ' * n}{title}" for n, title in enumerate(columns)]
    for row, name in enumerate(_LABELS):
        shown = [
            f"{bar(c[row] / max(c) * most, most):<{most}} {c[row]:>{d}}"
            for c, d in zip(counts, digits, strict=True)
        ]
        lines.append(f"{name:>{label}}  {'  '.join(shown)}")
        if row == _LIMIT:
            rule = sum(most + 1 + d for d in digits) + 2 * (len(counts) - 1)
            lines.append(f"{'the limit':>{label}}  {'-' * rule}")
    return lines


def _counts(values: Sequence[float]) -> list[int]:
    counts = [0] * len(EDGES)
    for value in values:
        counts[bisect_left(EDGES, value)] += 1
    return counts


def fitting(line: str, encoding: str | None) -> str:
    """The line, with # for blocks where they have no code: a bar stays a bar."""
    try:
        line.encode(encoding or "ascii")
    except UnicodeEncodeError:
        return "".join("#" if c == "█" or c in _EIGHTHS.strip() else c for c in line)
    return line
