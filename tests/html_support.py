"""Documents for the tests of report.html: real records, foreign names, very many cells."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
from tests_support import CORPUS, DATA, make_environment, make_record, make_run, make_stats

from tolcal import calibrate, corpus, history
from tolcal.history import columns
from tolcal.model import Finding, Proposal, Record, Verdict
from tolcal.report.document import Document

#: What a file may hold in place of a name.
HOSTILE = (
    "</script><img src=x onerror=\"document.title='owned'\">",
    "<!--<script>document.title='owned'</script>",
    "a\u202eb\x1b[31m\n::error::c",
    "{{ 7 * 7 }}",
    "'\"`;rm -rf $HOME #",
    "datum.x = 1",
    "javascript:document.title='owned'",
)


@functools.cache
def real() -> Document:
    """The shipped H200 history against the hand-picked values, judged on the locked runs too."""
    ops = corpus.load(CORPUS)
    legacy = {(op.name, d): atol for op in ops for d, atol in op.legacy_atol.items()}
    proposal = calibrate.calibrate(history.read([DATA / "h200-history.parquet"]), legacy=legacy)
    locked = history.read([DATA / "h200-heldout.parquet"])
    apart = calibrate.locked(locked, proposal, legacy)
    return Document(msgspec.structs.replace(proposal, locked=apart))


def patched(change: Callable[[Any], None]) -> Document:
    """``real`` with a changed P.json."""
    content = msgspec.json.decode(msgspec.json.encode(real()))
    change(content["proposal"])
    return msgspec.convert(content, Document)


def records() -> list[Record]:
    """Two runs on each of two devices: a control, half as much error as it, and a buggy kernel."""
    made = []
    for number in range(4):
        device = make_environment(device="AMD MI300X", device_class="gfx942", vendor="amd")
        run = make_run(
            id=f"{number:016x}",
            started=f"2026-11-{number + 1:02}T00:00:00+00:00",
            environment=make_environment() if number < 2 else device,
        )
        for case in range(4):
            shared: dict[str, Any] = {
                "run": run,
                "seed": 10 * number + case,
                "dims": (("B", 1), ("H", 8**case)),
            }
            made += [
                make_record(stats=make_stats(2.0 ** -(22 + case)), **shared),
                make_record(kernel="softmax_half", stats=make_stats(2.0 ** -(23 + case)), **shared),
                make_record(
                    kernel="softmax_buggy", role="buggy", corrupts="softmax_triton",
                    same_as_control=False, stats=make_stats(2.0**-10 if case else 0.0), **shared,
                ),
            ]  # fmt: skip
    return made


@functools.cache
def small() -> Document:
    """One cell of two devices, with a run that made a regression."""
    frame = history.to_frame(columns.from_records(records()))
    proposal = calibrate.calibrate(
        frame, min_rows=8, min_runs=1, legacy={("softmax", "float32"): 1e-3}
    )
    finding = Finding(
        kind="regression", op="softmax", kernel="softmax_triton", dtype="float32", blocks=True,
        cases=36, exceeding=2, gate_exceeding=1, worst="softmax_triton:9e1c02b7d4a8f655",
        worst_dims="B=1 H=512", observed=8.8e-3, allowed=1.2e-6, over=7333.3, changed=True,
        newly=False, detail="",
    )  # fmt: skip
    verdict = Verdict(
        blocks=True, environment=make_environment().text, commit="c" * 40, kernels=3, records=48,
        cases=16, statuses={"ok": 48}, skipped_reasons={}, findings=(finding,),
    )  # fmt: skip
    return Document(proposal, verdict)


@functools.cache
def uncalibrated() -> Document:
    """The same records, too few for a tolerance, and nothing hand-picked."""
    return Document(calibrate.calibrate(history.to_frame(columns.from_records(records()))))


def hostile() -> Document:
    """``small`` with every string of it a hostile one, where its type allows any string."""
    words = iter(HOSTILE * 1000)
    fixed = {
        "kind", "state", "role", "rule", "by", "origin", "allowed_source", "judged_by", "dtype",
    }  # fmt: skip

    def spoilt(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: spoilt(v, k) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [spoilt(v, key) for v in value]
        return next(words) if isinstance(value, str) and key not in fixed else value

    document = small()
    return Document(
        msgspec.convert(spoilt(msgspec.to_builtins(document.proposal)), Proposal),
        msgspec.convert(spoilt(msgspec.to_builtins(document.verdict)), Verdict),
    )


def many(count: int) -> Document:
    """The real cells again and again, each time of another op, the last of them to tighten."""
    cells = real().proposal.cells
    made = [
        msgspec.structs.replace(
            cells[i % len(cells)], op=f"{cells[i % len(cells)].op}_{i:05}",
            state="tighten" if i >= count - 10 else "unchanged",
        )
        for i in range(count)
    ]  # fmt: skip
    return Document(msgspec.structs.replace(real().proposal, cells=tuple(made)))
