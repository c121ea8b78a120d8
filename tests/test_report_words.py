"""What a report says where little, nothing or something odd was measured; and its free text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report_support import (
    DOCUMENTS,
    broken,
    busy,
    crowd,
    make_cell,
    make_finding,
    make_proposal,
    make_verdict,
    quiet,
)

from tolcal.model import BuggyRecall, HeldOutRows, Recall, TolcalError, Totals, cut
from tolcal.report import FORMATS, document, markdown, text
from tolcal.report.document import Document, OnPull

UNJUDGED = make_finding("uncalibrated", exceeding=0, observed=None, allowed=None, over=None)
NOTHING = {
    "skipped": make_verdict(
        records=6, cases=6, kernels=1, statuses={"skipped": 6}, judged=0,
        skipped_reasons={"bfloat16 has no interpreter": 6},
    ),
    "old file": make_verdict(records=6, statuses={"skipped": 6}, judged=None),
    "uncalibrated": make_verdict(UNJUDGED, judged=0),
    "crashed": make_verdict(records=6, statuses={"crashed": 6}, judged=0),
    "no records": make_verdict(records=0, cases=0, kernels=0, statuses={}, judged=0),
}  # fmt: skip


# --- nothing, or not everything, was judged -------------------------------------------------


@pytest.mark.parametrize("name", NOTHING)
def test_a_run_that_judged_nothing_says_so(name: str) -> None:
    """In every format that has words for a run: nowhere does it look like a pass."""
    made = Document(make_proposal(make_cell(state="unchanged")), NOTHING[name])
    for kind in ("comment", "summary", "terminal", "html"):
        assert "nothing was judged: " in FORMATS[kind](made), kind
        assert "nothing to decide" not in FORMATS[kind](made), kind
    assert FORMATS["annotations"](made).startswith("::warning title=tolcal::nothing was judged: ")
    (run,) = json.loads(FORMATS["sarif"](made))["runs"]
    (told,) = run["invocations"][0]["toolExecutionNotifications"]
    assert told["message"]["text"].startswith("Nothing was judged: ")


def test_why_nothing_was_judged_is_not_folded() -> None:
    """The reasons for skipping stand above the fold, and once."""
    rendered = markdown.comment(Document(make_proposal(), NOTHING["skipped"]))
    assert "- 6: `bfloat16 has no interpreter`\n" in rendered.split("<details>")[0]
    assert rendered.count("bfloat16 has no interpreter") == 1
    assert "### tolcal: nothing was judged: every record was skipped (6).\n" in rendered


def test_what_blocks_without_a_tolerance_says_something_of_the_change() -> None:
    """A check or a crash judges by itself: that the tolerances are missing is another matter."""
    crash = make_finding(
        "crashed", observed=None, allowed=None, over=None, changed=True, blocks=True
    )
    verdict = make_verdict(
        crash, UNJUDGED, judged=0, statuses={"ok": 6, "crashed": 1, "skipped": 6},
        skipped_reasons={"bfloat16 has no interpreter": 6},
    )  # fmt: skip
    made = Document(make_proposal(), verdict)
    rendered = markdown.comment(made)
    assert "says nothing about the change" not in rendered
    assert (
        "\nNothing was held against a tolerance: what ran has no approved tolerance. "
        "**Next step**: measure more (`tolcal run --cases 40 --repeat 18 "
    ) in rendered
    assert "6 records skipped:\n- 6: `bfloat16 has no interpreter`\n" in rendered
    first = FORMATS["annotations"](made).splitlines()[0]
    assert first.startswith("::warning title=tolcal::nothing was held against a tolerance: ")
    (run,) = json.loads(FORMATS["sarif"](made))["runs"]
    (told,) = run["invocations"][0]["toolExecutionNotifications"]
    assert told["message"]["text"].startswith("Nothing was held against a tolerance: ")


def test_the_first_pull_request_has_a_next_step() -> None:
    """Nothing approved and no history yet: which workflow to run, and how much is there."""
    first = Document(make_proposal(), NOTHING["uncalibrated"], pull=OnPull(41, 1))
    step = (
        "This says nothing about the change. **Next step**: run the workflow *tolcal ingest* on "
        "the default branch (Actions, Run workflow) until the controls have 720 rows a cell (now "
        "0) of 3 runs; "
    )
    assert step in markdown.comment(first).split("<details>")[0]
    lacking = [
        make_cell(f"op{need}", state="uncalibrated", tolerance=None, needs_rows=need)
        for need in (620, 700)
    ]
    some = Document(make_proposal(*lacking), NOTHING["uncalibrated"])
    assert "measure more (`tolcal run --cases 40 --repeat 18 --history DIR`)" in markdown.comment(
        some
    )
    assert "(now 20 to 100)" in markdown.comment(some)
    ready = Document(make_proposal(make_cell(state="new")), NOTHING["uncalibrated"])
    assert "Next step" not in markdown.comment(ready)
    assert "\n\n\n" not in markdown.comment(first)


def test_a_calibration_without_rows_does_not_sound_done() -> None:
    """What can't be fitted yet is more to do, not nothing to change."""
    lacking = make_cell(state="uncalibrated", tolerance=None, needs_rows=620, needs_runs=13)
    once = make_cell("gelu", state="uncalibrated", tolerance=None, needs_runs=2)
    assert text.headline(make_proposal(lacking, once), None) == (
        "nothing can be calibrated yet: 2 cells without enough rows or runs, up to 13 more runs "
        "(620 rows of a control) needed (tolcal run --repeat N)."
    )
    assert "up to 2 more runs needed" in text.headline(make_proposal(once), None)
    assert text.headline(make_proposal(make_cell(state="unchanged")), None) == "nothing to change."


@pytest.mark.parametrize("judged", [1, None])
def test_what_was_judged_in_part_was_judged(judged: int | None) -> None:
    """One record held against a tolerance; or a file that doesn't say."""
    verdict = make_verdict(UNJUDGED, statuses={"ok": 3, "skipped": 6}, records=9, judged=judged)
    assert text.not_judged(verdict) == ""
    assert text.headline(make_proposal(), verdict) == "no regressions, nothing to decide."
    assert text.not_judged(None) == ""


@pytest.mark.parametrize("kind", ["comment", "summary", "terminal"])
def test_skips_are_mentioned(kind: str) -> None:
    """How many, and why."""
    shown = FORMATS[kind](busy())
    assert "6 records skipped" in shown
    assert "no float8 on this device" in shown


@pytest.mark.parametrize("kind", ["comment", "summary", "terminal"])
def test_there_are_words_for_nothing(kind: str) -> None:
    """No dash for a recall and no `0 of 0` where there was nothing to count."""
    shown = FORMATS[kind](broken())
    assert "No buggy kernel was judged. No held-out runs." in re.sub(r"(No held.*\.)\n(No b.*\.)",
                                                                   r"\2 \1", shown)  # fmt: skip
    assert "- of" not in shown
    assert "0 of 0 held-out" not in shown
    assert "| kernel | dtype | detectable rows |" not in shown


def test_recall_of_subtle_kernels_is_told_apart() -> None:
    """After the others', with its own interval; alone where there are no others."""
    subtle = Totals(12, 0.6, 0.849, (0.59, 0.61), (0.841, 0.856))
    made = make_proposal(make_cell(), subtle=subtle)
    assert text.recall_claim(made) == (
        "Recall of buggy kernels: 99.4 % of detectable rows, 79.5 % of all rows; of the 12 subtle "
        "ones 84.9 % of detectable rows (95 %: 84.1 to 85.6 %)"
    )
    for kind in ("comment", "summary", "terminal", "html"):
        words = " ".join(FORMATS[kind](Document(made)).split())  # a terminal breaks lines
        assert "of the 12 subtle ones 84.9 %" in words, kind
    alone = make_proposal(recall=None, detectable_recall=None, subtle=subtle)
    assert text.recall_claim(alone).startswith(
        "No buggy kernel but subtle ones was judged; of the 12 subtle ones 84.9 % of "
    )
    assert "of the 12 subtle ones 84.9 %" in FORMATS["html"](Document(alone))
    same = make_proposal(subtle=Totals(1, 0.0, None, (0.0, 0.1), None))
    assert text.recall_claim(same).endswith(
        "; of the subtle one 0.0 % of all rows, none of which is detectable"
    )


def test_an_interval_of_a_sample_is_of_what_was_judged() -> None:
    """732 rows known by 37 say no more than 37 do."""
    assert text.exact(Recall(732, 549, 549, 549)) == "99.3 to 100.0 %"
    assert text.exact(Recall(732, 549, 549, 549, judged=37)) == "90.5 to 100.0 %"
    assert text.exact(Recall(732, 0, 549, 0, judged=0)) == "-"


def test_tables_of_buggy_kernels_are_in_order_and_summed() -> None:
    """Plain ones, then subtle ones, by kernel and dtype; below each what every rule flags."""

    def one(
        kernel: str, dtype: str, flagged: int, by_hand: int | None, **rest: bool
    ) -> BuggyRecall:
        legacy = None if by_hand is None else Recall(20, by_hand, 10, by_hand)
        proposed, paper = Recall(20, flagged, 10, flagged), Recall(20, 5, 10, 5)
        return BuggyRecall(kernel, "c", "op", dtype, proposed, None, paper, legacy, **rest)

    buggy = (
        one("a_buggy", "float32", 1, 0, subtle=True),
        one("b_buggy", "bfloat16", 10, None),
        one("b_buggy", "float16", 9, 4),
        one("b_buggy", "float32", 10, 3),
        one("a2_buggy", "float8", 10, 3),
    )
    said = FORMATS["summary"](Document(make_proposal(buggy=buggy)))
    rows = [line for line in said.splitlines() if "_buggy`" in line or "kernel" in line[:14]]
    assert [row.split(" | ")[:2] for row in rows if "_buggy" in row] == [
        ["| `a2_buggy`", "float8"],
        ["| `b_buggy`", "float32"],
        ["| `b_buggy`", "float16"],
        ["| `b_buggy`", "bfloat16"],
        ["| `a_buggy`", "float32"],
    ]
    sums = [line for line in said.splitlines() if line.startswith("| **") and "kernel" in line]
    assert sums == [
        "| **2 kernels** | | 40 of 80 | 33.3 % (of 30) | 50.0 % | 97.5 % | |",
        "| **1 kernel** | | 10 of 20 | 0.0 % | 50.0 % | 10.0 % | |",
    ]


def test_recall_without_detectable_rows() -> None:
    """A share of all rows is one even if none of them can be detected."""
    made = make_proposal(recall=0.0, detectable_recall=None)
    assert text.recall_claim(made) == (
        "Recall of buggy kernels: 0.0 % of all rows, none of which is detectable"
    )


def test_a_table_without_rows_has_no_head() -> None:
    """Where all that was found is what was known, the terminal has no findings to list."""
    assert "finding" not in FORMATS["terminal"](quiet())


@pytest.mark.parametrize("kind", ["summary", "terminal"])
def test_not_finite_is_not_a_dash(kind: str) -> None:
    """The gravest regression says what it is; a crash and what was not judged have no number."""
    rows = {
        name: line
        for line in FORMATS[kind](broken()).splitlines()
        for name in ("regression (blocks)", "crashed (blocks)", "uncalibrated")
        if line.lstrip(" |").startswith(name)
    }
    assert "not finite" in rows["regression (blocks)"]
    for name in ("crashed (blocks)", "uncalibrated"):
        assert "not finite" not in rows[name]
        assert re.search(r" -( |$)", rows[name])


def test_a_caught_kernel_that_is_not_finite() -> None:
    """Also in the comment's table of what was caught."""
    caught = make_finding("caught", over=None, observed=None)
    drift = make_finding("drift", kernel="other")
    rendered = markdown.comment(Document(make_proposal(), make_verdict(caught, drift)))
    assert "| 2 of 36 | not finite |" in rendered


# --- the first line, and where the rest is --------------------------------------------------


def test_the_first_line_says_whether_it_blocks() -> None:
    """A regression of an explore case alone is none that blocks, in the title of its list too."""
    one = make_finding("regression", changed=True, detail="in explore cases only")
    rendered = markdown.comment(Document(make_proposal(), make_verdict(one)))
    assert "### tolcal: 1 regression that does not block.\n" in rendered
    assert "**Regression** (changed here; does not block)\n" in rendered
    both = make_verdict(one, make_finding("regression", kernel="other", blocks=True))
    rendered = markdown.comment(Document(make_proposal(), both))
    assert "### tolcal: blocked by 1 regression.\n1 regression that does not block.\n" in rendered
    assert "**Regression** (changed here; blocks, unless said otherwise)\n" in rendered


@pytest.mark.parametrize("blocks", [True, False])
def test_a_verdict_that_belies_its_findings_is_refused(tmp_path: Path, blocks: bool) -> None:
    """One that blocks by no finding, and one that passes with a finding that blocks."""
    content = json.loads(document.to_json(quiet() if blocks else busy()))
    content["verdict"]["blocks"] = blocks
    path = tmp_path / "P.json"
    path.write_text(json.dumps(content))
    with pytest.raises(TolcalError, match=r"verdict\.blocks is (true|false) and its findings say"):
        document.read(path)


def test_the_rest_is_where_it_is_said_to_be() -> None:
    """The proposal's JSON has every finding, which no other format promises."""
    made = crowd(400)
    rendered = markdown.comment(made)
    assert "more in `proposal.json`." in rendered
    linked = msgspec.structs.replace(made, pull=OnPull(41, 1, "https://x.test/y"))
    assert "more in `proposal.json` of the [report](https://x.test/y)." in markdown.comment(linked)
    assert made.verdict is not None
    content = json.loads(FORMATS["json"](made))
    assert len(content["verdict"]["findings"]) == len(made.verdict.findings)


def test_a_new_buggy_kernel_that_nothing_catches_is_shown() -> None:
    """No pull request that adds one is quiet; one that was never caught and is known is folded."""
    detail = "its output differs in 64 of 96 cases"
    new = make_finding("escaped", kernel="new_buggy", exceeding=0, over=0.4, changed=True,
                       fault="a wrong mask", detail=detail)  # fmt: skip
    old = make_finding("escaped", kernel="old_buggy", exceeding=0, over=0.4)
    rendered = markdown.comment(Document(make_proposal(), make_verdict(new, old)))
    shown, folded = rendered.split("<details>")
    assert "### tolcal: no regressions.\n1 new buggy kernel not caught.\n" in rendered
    assert "- `new_buggy`, `softmax/float16`, a wrong mask: its output differs in 64" in shown
    assert "old_buggy" not in shown
    assert "old_buggy" in folded
    assert "new_buggy" not in folded


# --- what can be approved -------------------------------------------------------------------


def test_red_runs_are_said_where_one_approves() -> None:
    """Above the line to copy, not in a fold alone."""
    red = make_proposal(make_cell(), held_out=HeldOutRows(720, 36, 18, 18))
    rendered = markdown.comment(Document(red, make_verdict()))
    warning = (
        "Mind before you approve: 18 of 18 held-out runs red (at most 100.0 % of runs, 95 % "
        "confidence).\n\nThis approves the cell above:\n```\n"
        "tolcal approve out/proposal.json\n```\n"
    )
    assert warning in rendered
    assert "Mind" not in markdown.comment(busy())


def test_proposals_for_comparison_have_no_line_to_approve() -> None:
    """By kernel, kernels are named and told apart; nothing of it can be approved or widened."""
    cells = [make_cell(kernel=name) for name in ("softmax_triton", "softmax_torch")]
    cells += [make_cell("l2norm", kernel="l2norm_triton", state="looser", tightening=0.5)]
    false = make_finding("false_positive", op="l2norm", kernel="l2norm_triton")
    rendered = markdown.comment(Document(make_proposal(*cells, by="kernel"), make_verdict(false)))
    assert "/tolcal" not in rendered
    assert "approve with the line below" not in rendered
    assert "| `softmax_torch`, `softmax/float16` |" in rendered
    assert "| `softmax_triton`, `softmax/float16` |" in rendered


def test_cells_for_comparison_are_counted() -> None:
    """The published rule has no tolerance to approve: its cells are new, and in no other count."""
    cells = [make_cell(f"op{n}", state="new", tolerance=None) for n in range(3)]
    made = Document(make_proposal(*cells, rule="paper"))
    assert "; 3 cells for comparison alone; " in f"; {markdown.comment(made).split('** ')[1]}"
    cells += [make_cell(state="looser"), make_cell("x", state="uncalibrated", tolerance=None)]
    made = Document(make_proposal(*cells), make_verdict(make_finding("drift")))
    assert (
        "<summary>1 cell would be looser, 1 uncalibrated, 3 for comparison alone; 0 of 18"
        in markdown.comment(made)
    )


@pytest.mark.parametrize(
    ("changes", "widen"),
    [
        ({"state": "looser", "tightening": 0.5}, True),
        ({"state": "unchanged", "tightening": 1.0}, False),
        ({"state": "tighten", "tightening": 9.0}, False),
        ({"state": "uncalibrated", "tolerance": None, "note": "needs 620 more rows"}, False),
    ],
)
def test_a_widening_is_offered_where_it_would_be_taken(
    changes: dict[str, Any], widen: bool
) -> None:
    """`approve --widen` takes looser cells alone; for the others the comment says what helps."""
    twice = [make_finding("false_positive", kernel=name) for name in ("a", "b")]
    local = Document(make_proposal(make_cell(**changes)), make_verdict(*twice))
    here = "`tolcal approve out/proposal.json softmax/float16 --widen REASON`"
    assert markdown.comment(local).count(here) == widen
    rendered = markdown.comment(msgspec.structs.replace(local, pull=OnPull(41, 1)))
    helps = f"The fit proposes nothing wider ({changes['state']}"
    there = "`/tolcal widen 9c1e7a40d2b86f13 softmax/float16 because REASON`"
    assert rendered.count(there) == widen
    assert (f"{helps}{', needs 620 more rows' if 'note' in changes else ''}): " in rendered) == (
        not widen
    )


# --- machines -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_sarif_result_has_a_location(name: str) -> None:
    """Code scanning refuses a whole upload for one result that has none."""
    (run,) = json.loads(FORMATS["sarif"](DOCUMENTS[name]()))["runs"]
    for result in run["results"]:
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"]
    if name == "busy":  # of which no finding has a path
        uris = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
                for r in run["results"]}  # fmt: skip
        assert uris == {"tolerances.toml"}


def test_a_path_is_inert_in_junit() -> None:
    """Printed in a job's log, nothing of the file is a command."""
    found = make_finding("regression", blocks=True, path="corpus/##[error]boom/k.py")
    rendered = FORMATS["junit"](Document(make_proposal(), make_verdict(found)))
    assert "##[" not in rendered
    assert "corpus/##(error]boom/k.py:1: " in "".join(ET.fromstring(rendered).itertext())


# --- free text ------------------------------------------------------------------------------

TORCH = (
    "RuntimeError: shape [2, 7] is invalid: got <class 'x'> & x[0] for **kwargs, @user #12 "
    "`y` ``z`` |"
)


def test_an_exception_can_be_copied_from_the_comment() -> None:
    """Its words stand in a code span, as they were raised."""
    crash = make_finding("crashed", detail=f"raised or died: {TORCH}")
    rendered = markdown.comment(Document(make_proposal(), make_verdict(crash)))
    assert TORCH in rendered
    spans = [
        child.content
        for token in MarkdownIt("commonmark").enable("table").parse(rendered)
        for child in token.children or ()
        if child.type == "code_inline"
    ]
    assert TORCH in spans


@settings(deadline=None)
@given(st.text(max_size=300) | st.text("`a |\\", max_size=30))
def test_quoted_is_one_code_span(words: str) -> None:
    """Whatever stands in it, backticks included, and all of it on one line."""
    span = text.quoted(words)
    if not span:
        return
    assert len(span.splitlines()) == 1
    (token,) = MarkdownIt("commonmark").parseInline(f"x {span} y")
    kinds = [t.type for t in token.children or ()]
    assert kinds == ["text", "code_inline", "text"]
    assert "##[" not in span


@pytest.mark.parametrize("words", ["- x", "+ x", "1. x", "12) x", "-", "* x", "# x", "> x"])
def test_plain_starts_no_list(words: str) -> None:
    """At the start of a line it is a paragraph."""
    tokens = MarkdownIt("commonmark").parse(text.plain(words))
    assert [t.type for t in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert tokens[1].children is not None
    assert "".join(t.content for t in tokens[1].children) == words


@pytest.mark.parametrize("words", [":white_check_mark:", "a :+1: b", "$x$", "$$y$$", ":a::b:"])
def test_plain_has_no_emoji_and_no_mathematics(words: str) -> None:
    """GitHub makes pictures of `:name:` and formulas of `$x$`."""
    inert = text.plain(words)
    assert "$" not in inert
    assert not re.search(r":[\w+-]+:", inert)


@pytest.mark.parametrize("words", ["sm_90, driver 580.1", "1.5 of 2", "-1", "a: b", "12:30"])
def test_plain_leaves_words_as_they_are(words: str) -> None:
    """Only what means something is touched."""
    assert text.plain(words) == words


@given(st.text("ab 1=.", max_size=60), st.integers(2, 40))
def test_what_is_cut_says_so(words: str, limit: int) -> None:
    """With an ellipsis, and at a blank if there is one near."""
    short = cut(words, limit)
    assert len(short) <= limit
    assert (short == words) == (len(words) <= limit) or short.endswith("…")
    if len(words) > limit:
        assert short.endswith("…")
        assert words.startswith(short[:-1])
        at = len(short) - 1
        assert " " in words[at : at + 1] or " " not in words[limit // 2 : limit]


def test_dims_that_are_cut_end_in_an_ellipsis() -> None:
    """Six dims with the longest names fit; what doesn't is cut between two of them."""
    legal = " ".join(f"FEATURES_AXIS_{n:02}=1025" for n in range(6))
    assert text.code(legal) == f"`{legal}`"
    longer = " ".join(f"FEATURES_AXIS_{n:02}=1025" for n in range(9))
    assert re.search(r"=1025…`$", text.code(longer))
    assert text.plain("words " * 100).endswith("words…")


def test_a_json_of_a_later_version_is_read(tmp_path: Path) -> None:
    """Its new fields are ignored, and not kept: `--format json` is what this version knows."""
    content = json.loads(document.to_json(busy()))
    content["newfield"] = 1
    content["cells"][0]["extra"] = 2
    path = tmp_path / "P.json"
    path.write_text(json.dumps(content))
    assert document.read(path) == busy()
    assert msgspec.json.decode(FORMATS["json"](document.read(path))) == json.loads(
        document.to_json(busy())
    )
