"""Records as the bytes that a measuring job uploads."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterable

import msgspec

from tolcal.history import jsonlines
from tolcal.model import Record


def packed(records: Iterable[Record]) -> bytes:
    """A records file: each run before its records, and the end."""
    lines, number = [], 0
    for run, group in itertools.groupby(records, key=lambda record: record.run):
        lines.append(jsonlines.encode(run))
        for record in group:
            lines.append(jsonlines.encode(record))
            number += 1
    lines.append(msgspec.json.encode({"end": number}) + b"\n")
    return gzip.compress(b"".join(lines), 1)
