"""``python -m tolcal``."""

from tolcal.cli import entry

entry()
