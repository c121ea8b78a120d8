"""10,000 mutated tolerance files: never a traceback, never accepted against the schema."""

from __future__ import annotations

import random
import re
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import jsonschema
import tomli
from tests_support import ROOT

from tolcal import hook, tolerances, tomlfile
from tolcal.hook import layout, rules
from tolcal.hook.schema import json_schema
from tolcal.model import TolcalError

FILES = 10_000
VALUES = (
    "nan", "inf", "-inf", "-1.0", "0", "0.0", "1e-400", "1e400", "5e-324", "1e308", "true", "''",
    '"x\\n::error::"', "[]", "[[1]]", "{}", "{atol = 1.0}", "2026-12-01", "2026-12-01T10:12:00Z",
    "10:12:00", "9" * 400, "0x10", "1_0.5", "-0.0", "0.5", "2", "18", "'''a\n[b.c]'''",
)  # fmt: skip
NAMES = (
    "softmax", "schema", "on", "float16", "float61", "atol", "rtol", "evidence", "sm_90", "gfx942",
    "__proto__", "a.b", '"a b"', "''", "bias_tol", "held_out", "é",
)  # fmt: skip


def seed_text() -> str:
    """Three cells of the shipped file, one with an override, one approved.

    Without approval a mutated number can still be accepted, so ranges alone decide.
    """
    text = (ROOT / "tolerances.toml").read_text()
    head, *cells = re.split(r"(?m)^(?=\[\w+\.\w+\]$)", text)
    first, second = (cell.partition(".approved]")[0].rpartition("\n[")[0] for cell in cells[:2])
    override = first.replace("[attention.float32", "[attention.float32.on.sm_90")
    override = re.sub(r"(?m)^atol = .*$", "atol = 1e-08", override, count=1)
    return "\n".join([head, first, override, second, cells[2]])


def mutate(text: str, rng: random.Random) -> bytes:
    """A few edits: of a value, a key, a line, or some bytes."""
    for _ in range(rng.randint(1, 3)):
        lines = text.splitlines(keepends=True) or ["\n"]
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        kind = rng.randrange(8)
        if kind <= 2:
            spots = list(re.finditer(r"(?<== )[^\s,}{][^,}\n]*", text))
            if spots:
                spot = rng.choice(spots)
                text = text[: spot.start()] + rng.choice(VALUES) + text[spot.end() :]
            continue
        if kind == 3:
            spots = list(re.finditer(r"\w+", text))
            if spots:
                spot = rng.choice(spots)
                text = text[: spot.start()] + rng.choice(NAMES) + text[spot.end() :]
            continue
        if kind == 4:
            del lines[i]
        elif kind == 5:
            lines.insert(j, lines[i])
        elif kind == 6:
            lines[i], lines[j] = lines[j], lines[i]
        else:
            lines.insert(i, f"{rng.choice(NAMES)} = {rng.choice(VALUES)}\n")
        text = "".join(lines)
    raw = bytearray(text.encode())
    if rng.random() < 0.1:
        for _ in range(rng.randint(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def plain(value: Any) -> Any:
    """As JSON has it: dates as text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.isoformat() if isinstance(value, date | datetime | time) else value


def test_mutated_files(tmp_path: Path) -> None:
    """Each is refused in one line a finding, or accepted by an independent validator too."""
    rng = random.Random(20261129)
    validator = jsonschema.Draft7Validator(json_schema())
    seed, path = seed_text(), tmp_path / "tolerances.toml"
    counts = {"not TOML": 0, "refused": 0, "accepted": 0, "refused by the schema": 0, "ordered": 0}
    for _ in range(FILES):
        path.write_bytes(mutate(seed, rng))
        try:
            data, text = tomlfile.read(path)
        except TolcalError:
            counts["not TOML"] += 1
            continue
        found = hook.findings(path, data, text, rules.Context())
        assert all("\n" not in f.text and f.line >= 1 and f.column >= 1 for f in found)
        valid = validator.is_valid(plain(data))
        counts["refused by the schema"] += not valid
        refused = any(f.level == "error" for f in found)
        counts["refused" if refused else "accepted"] += 1
        assert refused or valid, path.read_text()
        try:
            ordered = layout.canonical(text)
        except layout.OrderError:
            continue
        counts["ordered"] += 1
        assert layout.canonical(ordered) == ordered
        assert tolerances.parse(tomli.loads(ordered))[0].keys() == tolerances.parse(data)[0].keys()
    # The mutations are neither all fatal nor all harmless.
    assert min(counts.values()) > FILES // 50, counts
