"""``P.json``: the Proposal, and beside it the Verdict of a run, if there was one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tolcal.model import Proposal, TolcalError, Verdict, one_line

SCHEMA = 1
MAX_BYTES = 64 * 2**20


class Remark(msgspec.Struct, frozen=True):
    """A cell, kernel or file, and what is to be said of it."""

    what: str
    why: str


class OnPull(msgspec.Struct, frozen=True):
    """What is known of a run on a pull request beside its numbers."""

    number: int
    run: int  # id of the workflow run that measured
    report_url: str = ""
    #: cells that the head changes and whose approval was verified, as ``op/dtype``
    counted: tuple[str, ...] = ()
    #: cells that the head changes without one; approved ones whose op or dtype leaves the corpus;
    #: kernels that it changes and that no record is of; files of it that can't be used: each of
    #: them blocks
    unapproved: tuple[Remark, ...] = ()
    gone: tuple[Remark, ...] = ()
    unmeasured: tuple[Remark, ...] = ()
    unusable: tuple[Remark, ...] = ()
    notes: tuple[str, ...] = ()
    self_approval: bool = False  # a widening may be approved by its own author
    name: str = ""  # of the setup, where a repository has several: its own paths

    @property
    def blocks(self) -> bool:
        """Whether it must not be merged as it stands, whatever its numbers are."""
        return bool(self.unapproved or self.gone or self.unmeasured or self.unusable)


class Document(msgspec.Struct, frozen=True):
    """What every renderer takes."""

    proposal: Proposal
    verdict: Verdict | None = None
    base: str = ""  # commit that the run was compared with
    attempt: str = "local"
    pull: OnPull | None = None

    @property
    def blocks(self) -> bool:
        """What the page, the check and the exit status say."""
        return bool(self.verdict and self.verdict.blocks) or bool(self.pull and self.pull.blocks)


def to_json(document: Document) -> str:
    """The proposal's fields at the top level; ``verdict`` and the rest beside them.

    As this version knows them: fields that a later version has added are not kept when read.
    """
    content: dict[str, Any] = {"schema": SCHEMA}
    content |= msgspec.to_builtins(document.proposal)
    content["verdict"] = msgspec.to_builtins(document.verdict)
    content |= {"base": document.base, "attempt": document.attempt}
    content["pull"] = msgspec.to_builtins(document.pull)
    for number, buggy in enumerate(document.proposal.buggy):
        for name in ("proposed", "approved", "paper", "legacy"):
            recall = getattr(buggy, name)
            if recall is not None:
                content["buggy"][number][name] |= {
                    "recall": recall.recall,
                    "detectable_recall": recall.detectable_recall,
                }
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n"


def read(path: Path) -> Document:
    """The inverse of ``to_json``. TolcalError if the file is something else."""
    try:
        size = path.stat().st_size
        raw = path.read_bytes() if size <= MAX_BYTES else b""
    except OSError as error:
        raise TolcalError(
            f"{path}: cannot read it: {error.strerror}; `tolcal calibrate --json {path.name}` "
            "writes one"
        ) from None
    if size > MAX_BYTES:
        raise TolcalError(f"{path}: {size} bytes, at most {MAX_BYTES} allowed")
    if raw.startswith(b"\x1f\x8b"):
        raise TolcalError(
            f"{path}: gzip, so records rather than a proposal; make one of them with `tolcal "
            f"calibrate --history {path.name} --json P.json`"
        )
    try:
        content = msgspec.json.decode(raw)
        schema = content.get("schema") if isinstance(content, dict) else None
        if type(schema) is not int or schema != SCHEMA:  # True == 1
            which = "" if schema is None else f", not {one_line(str(schema), 40)}"
            raise msgspec.ValidationError(
                f'expected an object with "schema": {SCHEMA}{which}: it is another file, or of '
                "another version of tolcal"
            )
        document = Document(
            proposal=msgspec.convert(content, Proposal),
            verdict=msgspec.convert(content.get("verdict"), Verdict | None),
            base=msgspec.convert(content.get("base", ""), str),
            attempt=msgspec.convert(content.get("attempt", "local"), str),
            pull=msgspec.convert(content.get("pull"), OnPull | None),
        )
        verdict = document.verdict
        if verdict is not None and verdict.blocks != any(f.blocks for f in verdict.findings):
            raise msgspec.ValidationError(
                f"verdict.blocks is {str(verdict.blocks).lower()} and its findings say otherwise"
            )
        return document
    except (msgspec.DecodeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise TolcalError(
            f"{path}: not a tolcal proposal: {reason}; write one with `tolcal calibrate --json`"
        ) from None
