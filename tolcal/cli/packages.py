"""Packages that a command lacks, or that are there and broken: what to say of them."""

from __future__ import annotations

import traceback

from tolcal.model import one_line

#: Top-level module -> what to install for it.
SOURCES = {
    "torch": "tolcal[gpu]",
    "triton": "tolcal[gpu]",
    "numpy": "tolcal[report]",
    "pandas": "tolcal[report]",
    "pyarrow": "tolcal[report]",
    "requests": "tolcal[report]",
    "jinja2": "tolcal[report]",
    "rich": "tolcal[report]",
    "ray": "tolcal[ray]",
    "altair": "tolcal[html]",
    "vl_convert": "tolcal[html]",
    "msgspec": "tolcal",
    "tomli": "tolcal",
    "tomlkit": "tolcal",
}
_DISTRIBUTIONS = {"vl_convert": "vl-convert-python"}


def remedy(error: ImportError, measures: bool = False) -> str | None:
    """The package that couldn't be imported and what to do; None if the fault is ours.

    ``measures``: the command needs the extra that measuring does, which holds that of reports.
    """
    name = error.name or ""
    if isinstance(error, ModuleNotFoundError) and name in SOURCES:
        source = SOURCES[name]
        if source == "tolcal[report]" and measures:
            source = "tolcal[gpu]"
        return f"{name}, which is not installed: pip install '{source}'"
    broken = _raised_in(error) or name.partition(".")[0]
    if broken not in SOURCES:
        return None
    return (
        f"{broken}, which is installed but broken ({one_line(str(error), 200)}): reinstall it: "
        f"pip install --force-reinstall {_DISTRIBUTIONS.get(broken, broken)}"
    )


def _raised_in(error: ImportError) -> str | None:
    """The innermost package we know that was being imported; None if our own code raised it.

    What such a package imports itself comes and goes with it, so it is the one to reinstall.
    """
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if top == "tolcal":
            found = None
        elif top in SOURCES:
            found = top
    return found
