"""Collected only where Triton interprets: tests/test_interpreted.py starts it so."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
