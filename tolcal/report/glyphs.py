"""Bars made of block characters: a picture that e-mail, a terminal and a diff can show."""

from __future__ import annotations

import math

_EIGHTHS = " ▏▎▍▌▋▊▉"


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
