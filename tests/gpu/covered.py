"""Prints the hash of the sources that the GPU tests cover."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PATTERNS = (
    "corpus/**/*.py", "corpus/**/op.toml", "tolcal/bounds.py", "tolcal/cases/*.py",
    "tolcal/stats/*.py", "tolcal/measure/*.py", "tolcal/testing/*.py", "tests/gpu/test_*.py",
)  # fmt: skip


def covered() -> str:
    """sha256 over names and contents."""
    whole = hashlib.sha256()
    for path in sorted({p for pattern in PATTERNS for p in ROOT.glob(pattern)}):
        whole.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()


if __name__ == "__main__":
    print(covered())
