"""The first line of a comment: what is a command, what is help's, and what is none."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tolcal.github.commands import people, replies
from tolcal.github.commands.parse import (
    MAX_LINE,
    Approve,
    Command,
    Explain,
    Help,
    Reject,
    Rerun,
    Status,
    Unknown,
    Widen,
    parse,
)
from tolcal.github.settings import Inputs
from tolcal.model import DTYPES

D = "9c1e7a40d2b86f13"
NONE = "is no reason: say after because why it may be so"
SOFTMAX = ("softmax", "float16")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (f"/tolcal approve {D}", Approve(D)),
        (f"/tolcal approve {D} softmax/float16 gelu", Approve(D, ("softmax/float16", "gelu"))),
        (f"/tolcal approve {D} gelu gelu", Approve(D, ("gelu",))),
        (f"/tolcal\tapprove \t {D} ", Approve(D)),
        (
            f"/tolcal widen {D} softmax/float16 because  an H200 `sums` in another order; see #3",
            Widen(D, (SOFTMAX,), "an H200 `sums` in another order; see #3"),
        ),
        (
            f"/tolcal widen {D} softmax/float16 gelu/float32 softmax/float16 because so because so",
            Widen(D, (SOFTMAX, ("gelu", "float32")), "so because so"),
        ),
        (f"/tolcal reject {D}", Reject(D)),
        (f"/tolcal reject {D} because zu früh — 測定", Reject(D, "zu früh — 測定")),
        ("/tolcal explain softmax/float16", Explain(SOFTMAX)),
        ("/tolcal status", Status()),
        ("/tolcal rerun", Rerun()),
        ("/tolcal help", Help()),
        ("/tolcal", Help()),
        ("/tolcal ", Help()),
    ],
)
@pytest.mark.parametrize("rest", ["", "\n", "\r\n", "\nthanks!\n\n/tolcal help", "\r\nthanks"])
def test_commands(line: str, command: Command, rest: str) -> None:
    """Whatever follows the first line, and however the line ends."""
    assert parse(line + rest) == command


@pytest.mark.parametrize(
    "body",
    [
        "",
        "LGTM",
        f"\n/tolcal approve {D}",
        f"\r\n/tolcal approve {D}",
        f" /tolcal approve {D}",
        f"    /tolcal approve {D}",
        f"\t/tolcal approve {D}",
        f"> /tolcal approve {D}",
        f">/tolcal approve {D}",
        f"```\n/tolcal approve {D}\n```",
        f"~~~\n/tolcal approve {D}",
        f"`/tolcal approve {D}`",
        f"- /tolcal approve {D}",
        f"<!--\n/tolcal approve {D}\n-->",
        f"please\n/tolcal approve {D}",
        f"@ada /tolcal approve {D}",
        f"//tolcal approve {D}",
        f"\u2215tolcal approve {D}",  # a division slash
        f"\uff0ftolcal approve {D}",  # a fullwidth slash
        f"/t\u043elcal approve {D}",  # a Cyrillic o
        f"\ufeff/tolcal approve {D}",
        f"\u200b/tolcal approve {D}",
    ],
)
def test_what_is_no_command(body: str) -> None:
    """Attack 8: a command in a quote, in code, after other lines, or what only looks like one."""
    assert parse(body) is None


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ("approv", "no command 'approv'"),
        ("APPROVE " + D, "no command 'APPROVE'"),
        ("\u0430pprove " + D, "no command '\u0430pprove'"),
        ("approve", "approve takes the 16 hex digits of a proposal first"),
        ("approve softmax", "approve takes the 16 hex digits of a proposal first, not 'softmax'"),
        ("approve " + D[1:], f"approve takes the 16 hex digits of a proposal first, not '{D[1:]}'"),
        ("approve " + D.upper(), None),
        ("approve " + "\uff11" * 16, None),  # fullwidth digits
        (f"approve {D} soft-max", "'soft-max' is no op, and no op/dtype"),
        (f"approve {D} softmax/fp16", "'softmax/fp16' is no op, and no op/dtype"),
        (f"approve {D} softmax/float16/x", None),
        (f"approve {D} gelu because x", "approve takes no reason; what becomes looser needs widen"),
        (f"widen {D} softmax/float16", "widen needs a reason: because REASON"),
        (f"widen {D} softmax/float16 because", "widen needs a reason: because REASON"),
        (f"widen {D} softmax/float16 because ...", f"'...' {NONE}"),
        (f"widen {D} softmax/float16 because REASON", f"'REASON' {NONE}"),
        (f"widen {D} softmax/float16 because <REASON>.", f"'<REASON>.' {NONE}"),
        (f"widen {D} softmax/float16 because 12 - 3", f"'12 - 3' {NONE}"),
        (f"reject {D} because ...", f"'...' {NONE}"),
        (f"widen {D} softmax because x", "'softmax' is no op/dtype; widen names each cell"),
        (f"widen {D} because x", "widen names each cell, op/dtype"),
        (f"widen {D} softmax/float16 because {'x' * 301}",
         "the reason has 301 characters, at most 300 are kept"),
        (f"reject {D} softmax", "reject takes a digest and because REASON, not 'softmax'"),
        (f"reject {D} because", "there is no reason after because"),
        ("explain", "explain takes one cell, op/dtype"),
        ("explain softmax", "explain takes one cell, op/dtype"),
        ("explain softmax/float16 gelu/float16", "explain takes one cell, op/dtype"),
        ("status now", "status takes nothing after it"),
        (f"approve\u00a0{D}", "the line holds the unprintable character U+00A0"),
        (f"approve {D}\u202e", "the line holds the unprintable character U+202E"),
        (f"approve {D}\x00", "the line holds the unprintable character U+0000"),
        (f"approve {D}\r/tolcal help", "the line holds the unprintable character U+000D"),
        (f"approve {D}\u2028", "the line holds the unprintable character U+2028"),
        (f"approve {D} \x1b[31m", "the line holds the unprintable character U+001B"),
        ("x" * 10_000, f"the line has 10008 characters, at most {MAX_LINE} are read"),
        (f"approve {D}; rm -rf /", None),
        (f"approve $({D})", None),
    ],
)  # fmt: skip
def test_what_help_answers(rest: str, why: str | None) -> None:
    """Meant for us and not understood: look-alikes, 10 kB, control characters, shell syntax."""
    found = parse(f"/tolcal {rest}")
    assert isinstance(found, Unknown)
    if why is not None:
        assert found.why == why


@pytest.mark.parametrize(
    "line",
    [f"/tolcalapprove {D}", f"/tolcal-approve {D}", "/Tolcal help", "/TOLCAL", "/tolcal: help"],
)
def test_nearly_a_command_is_answered(line: str) -> None:
    """Never silence: the job starts for these as well, since GitHub's startsWith ignores case."""
    assert parse(line) == Unknown("a command begins with /tolcal, in lower case, and a space")


WORDS = st.sampled_from(
    ["/tolcal", "approve", "widen", "reject", "status", "explain", "rerun", "help", "because", D,
     "softmax", "softmax/float16", "gelu/float32", " ", "\t", "\n", "\r", "x", "/", "`", "@ada",
     "\u00a0", "<!--"]
)  # fmt: skip


@settings(deadline=None, max_examples=400)
@given(st.text() | st.lists(WORDS).map(" ".join) | st.lists(WORDS).map("".join))
@example("/tolcal " + "[" * 7000)
def test_any_text_is_taken(body: str) -> None:
    """No text raises, and what is taken for a command keeps to the grammar."""
    found = parse(body)
    first = re.split("\r?\n", body)[0]
    assert (found is not None) == bool(re.match(r"(?ai)/tolcal", first))
    assert isinstance(found, Unknown | None) or re.match(r"/tolcal(?![^ \t])", first)
    match found:
        case Approve(digest, names):
            assert re.fullmatch("[0-9a-f]{16}", digest)
            assert all(re.fullmatch(r"[a-z][a-z0-9_]*(/[a-z0-9_]+)?", name) for name in names)
        case Widen(digest, cells, reason):
            assert re.fullmatch("[0-9a-f]{16}", digest)
            assert cells
            assert all(dtype in DTYPES for _, dtype in cells)
            assert reason.isprintable()
            assert 0 < len(reason) <= 300
        case Reject(digest, reason):
            assert re.fullmatch("[0-9a-f]{16}", digest)
            assert reason.isprintable()


# --- what is said of it ---------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=500))
@example("`]] ``` @ada #1 <img src=x> | [x](javascript:y) https://evil.example ::set-output::")
def test_a_comment_is_quoted_inert(argument: str) -> None:
    """Attack 10: nothing of a comment is markup, a mention or a link in the reply to it."""
    found = parse(f"/tolcal {argument}")
    if not isinstance(found, Unknown):
        return
    said = replies.body(7, replies.unknown(found.why, "write", "maintain"))
    marker, quoted, *_ = said.split("\n")
    assert marker == "<!-- tolcal:reply 7 -->"
    assert not set("`<>[]|*~@#") & set(re.sub(r"&#\d+;", "", quoted))
    assert not re.search(r"(?i)https?:|www\.", quoted)
    assert not re.search(r"&#(64|35);\w", quoted)


@settings(deadline=None)
@given(st.text(max_size=200_000))
def test_a_reply_is_never_too_long(text: str) -> None:
    """Complaint 13: GitHub counts bytes."""
    assert len(replies.body(7, text).encode()) < 65_536


# --- who may --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tighten", "widen", "expected"),
    [
        ("write", "maintain", ("write", "maintain")),
        ("maintain", "maintain", ("maintain", "maintain")),
        ("admin", "maintain", ("admin", "admin")),
        ("write", "admin", ("write", "admin")),
        ("write", "write", ("write", "maintain")),  # an input only raises what is needed
    ],
)
def test_inputs_only_raise_what_is_needed(
    tighten: str, widen: str, expected: tuple[str, str]
) -> None:
    """Widening never takes less than maintain, nor less than tightening does."""
    inputs = msgspec.structs.replace(Inputs(), tighten_permission=tighten, widen_permission=widen)
    assert (people.needed("approve", inputs), people.needed("widen", inputs)) == expected
    assert people.needed("reject", inputs) == people.needed("rerun", inputs) == expected[0]
    assert (people.needed("status", inputs), people.needed("help", inputs)) == ("read", "none")
