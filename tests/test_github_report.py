"""The report on a pull request, against the stand-in for GitHub."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from github_server.state import Run
from github_site import (
    APPROVED,
    BAD,
    CHANGED,
    CORPUS,
    KERNEL,
    OP,
    Site,
    approved_cell,
    claims,
    new_site,
    site,
    tolerances_text,
    trusted,
)
from github_support import hub
from markdown_it import MarkdownIt
from report_support import make_finding, make_proposal, make_verdict
from tests_support import make_record

from tolcal.github import checks, judging, outputs, overlay, pulls, report, sticky, stricter
from tolcal.github.checks import Outcome
from tolcal.github.client import ApiError
from tolcal.github.settings import Inputs
from tolcal.model import TolcalError
from tolcal.report.document import Document

__all__ = ["hub", "new_site", "site", "trusted"]

TRITON = "corpus/softmax/kernels/softmax_triton.py"


@pytest.fixture(autouse=True)
def without_charts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page takes half a second, and one test looks at it."""
    if "process" not in request.node.name:
        monkeypatch.setitem(sys.modules, "altair", None)


def body(site: Site) -> str:
    """The one comment of ours."""
    (comment,) = site.comments
    return comment.body


def headline(site: Site) -> str:
    """Its second line, and the counts below it."""
    lines = body(site).splitlines()
    return f"{lines[1]} {lines[2]}".rstrip()


# --- scenarios ------------------------------------------------------------------------------


def test_the_main_scenario_as_a_process(site: Site) -> None:
    """A pull request breaks a control: comment, check with annotation, summary, page, outputs."""
    pull = site.pull({TRITON: CHANGED})
    run = site.measure(pull, claims(1, softmax_triton=BAD))
    status, printed, values = site.process(run)
    assert status == 1
    assert printed == (
        "tolcal: pull request 41: failure: blocked by 1 regression. 2 tolerances can tighten.\n"
    )
    assert headline(site) == "### tolcal: blocked by 1 regression. 2 tolerances can tighten."
    assert body(site).startswith(
        f"<!-- tolcal:v1 head={pull.head_sha} run={run.id} attempt=1 -->\n"
    )
    assert site.said(pull) == ("completed", "failure")
    assert site.check(pull).annotations == [
        {
            "path": TRITON,
            "start_line": 4,
            "end_line": 4,
            "annotation_level": "failure",
            "title": "Regression: softmax_triton float32",
            "message": (
                "6 of 6 cases, 2.7e3x the bound, largest residual 9.8e-4, worst at B=1 S=7 H=256; "
                "tolcal replay softmax_triton:17227759ff49a889"
            ),
        }
    ]
    out = site.folder / "out"
    digest = json.loads((out / "proposal.json").read_text())["digest"]
    comment = site.comments[0].id
    assert values == {
        "verdict": "failure",
        "tightened": "2",
        "newly-caught": "0",
        "new-false-positives": "0",
        "regressions": "1",
        "proposal-digest": digest,
        "comment-url": f"{site.hub.api.url}/octo/kernels/pull/41#issuecomment-{comment}",
        "report-path": str(out / "report.html"),
    }
    assert (out / "comment.md").read_text() == body(site)
    assert digest in (out / "report.html").read_text()
    (summary,) = site.hub.folder.glob("step-*/summary.md")
    assert "| regression (blocks) | `softmax_triton` | float32 | 6 of 6 |" in summary.read_text()
    assert site.hub.token not in printed


def test_a_report_never_imports_torch(site: Site) -> None:
    """Whatever it reads, fits, judges and renders."""
    run = site.measure(site.pull({TRITON: CHANGED}))
    code = (
        "import sys; from tolcal.cli import main; main(sys.argv[1:]); "
        "print(*({'torch', 'triton', 'ray'} & set(sys.modules)))"
    )
    status, printed, _ = site.process(run, code=code)
    assert (status, printed.splitlines()[1:]) == (0, [""])


def test_the_first_pull_request_ever(new_site: Site) -> None:
    """Complaint 22: without a history what is approved holds, and another device is drift."""
    pull = new_site.pull({TRITON: CHANGED})
    assert new_site.report(new_site.measure(pull, claims(1, relu_triton=BAD))) == 0
    assert new_site.said(pull) == ("completed", "success")
    assert headline(new_site) == "### tolcal: no regressions. drift in 1 place."
    assert "no held-out runs" in body(new_site)
    broken = new_site.pull({TRITON: CHANGED}, head="other")
    assert new_site.report(new_site.measure(broken, claims(2, softmax_triton=BAD))) == 1
    assert new_site.said(broken) == ("completed", "failure")


def test_a_second_push_updates_the_one_comment(site: Site) -> None:
    """The new head gets a check of its own; what the first one said of itself stays."""
    pull = site.pull({TRITON: CHANGED})
    first = pull.head_sha
    assert site.report(site.measure(pull, claims(1, softmax_triton=BAD))) == 1
    before = site.comments[0].id
    site.hub.push(pull, {TRITON: CHANGED + "\n"})
    run = site.measure(pull)
    assert site.report(run) == 0
    assert [c.id for c in site.comments] == [before]
    assert f"head={pull.head_sha} run={run.id} attempt=1" in body(site)
    assert headline(site).startswith("### tolcal: no regressions.")
    assert site.said(first) == ("completed", "failure")
    assert site.said(pull) == ("completed", "success")


def test_a_fork(site: Site) -> None:
    """Complaints 9 and 11: a fork's run has no pull request in its event, and gets its comment."""
    fork = site.hub.fork("mallory")
    pull = site.pull({TRITON: CHANGED}, fork=fork, author="mallory", head="main")
    run = site.measure(pull)
    assert site.payload(run)["workflow_run"]["pull_requests"] == []
    assert site.report(run) == 0
    assert site.said(pull) == ("completed", "success")
    assert len(site.comments) == 1


def test_one_that_mends_a_buggy_kernel(site: Site) -> None:
    """Caught before and in no case now: the fault is no longer shown, which blocks."""
    pull = site.pull({"corpus/softmax/buggy/softmax_bad.py": CHANGED})
    inside = claims(1)[0].stats
    assert site.report(site.measure(pull, claims(1, softmax_bad=inside))) == 1
    assert (
        headline(site) == "### tolcal: blocked by 1 escaped buggy kernel. 2 tolerances can tighten."
    )
    # Its output equals the control's now: the corpus should say so by dropping the kernel.
    gone = site.pull(
        {"corpus/softmax/buggy/softmax_bad.py": None, "corpus/softmax/op.toml": OP}, head="gone"
    )
    left = [r for r in claims(2) if r.kernel != "softmax_bad"]
    assert site.report(site.measure(gone, left)) == 0
    assert site.said(gone) == ("completed", "success")


def test_a_run_that_judged_nothing_is_no_success(site: Site) -> None:
    """Every record skipped: a check that is neutral would satisfy branch protection."""
    pull = site.pull({"README.md": "more\n"})
    skipped = [
        msgspec.structs.replace(r, status="skipped", reason="no GPU", stats=None) for r in claims(1)
    ]
    assert site.report(site.measure(pull, skipped)) == 1
    assert site.said(pull) == ("completed", "failure")
    assert "nothing was judged: every record was skipped (18)" in headline(site)


def test_documents_only(site: Site) -> None:
    """Nothing counts as changed, so nothing can regress; the corpus isn't read again."""
    pull = site.pull({"README.md": "more\n", "corpus/NOTES.md": "x\n"})
    assert site.report(site.measure(pull, claims(1, softmax_triton=BAD))) == 0
    assert "1 false positive" in headline(site)
    assert site.said(pull) == ("completed", "success")
    assert not [path for _, path, _ in site.hub.calls if "contents/corpus" in path]


def test_what_fails_can_be_chosen(site: Site) -> None:
    """`--fail-on`: false positives and drift as well, or nothing at all."""
    pull = site.pull({"README.md": "more\n"})
    run = site.measure(pull, claims(1, softmax_triton=BAD))
    assert site.report(run, fail_on=("regression", "false-positive")) == 1
    assert site.said(pull) == ("completed", "failure")
    broken = site.pull({TRITON: CHANGED}, head="other")
    run = site.measure(broken, claims(2, softmax_triton=BAD))
    assert site.report(run, fail_on=("never",)) == 0
    assert site.said(broken) == ("completed", "neutral")


def test_no_comment_is_wanted(site: Site) -> None:
    """`--no-comment`: the check and the summary say it alone."""
    pull = site.pull({TRITON: CHANGED})
    assert site.report(site.measure(pull), comment=False) == 0
    assert site.comments == []
    assert site.said(pull) == ("completed", "success")


def test_github_enterprise_server(site: Site) -> None:
    """Complaint 16: every address is of the server that the variables name."""
    site.hub.base_path = "/api/v3"
    pull = site.pull({TRITON: CHANGED})
    assert site.report(site.measure(pull)) == 0
    assert site.said(pull) == ("completed", "success")
    assert f"[Report]({site.hub.api.url}/octo/kernels/actions/runs/" in body(site)


def test_two_corpora_in_one_repository(site: Site) -> None:
    """Each has its own check and comment, or the green one would replace the red one."""
    for path, text in {**CORPUS, "tolerances.toml": tolerances_text(APPROVED)}.items():
        (site.folder / "b" / path).parent.mkdir(parents=True, exist_ok=True)
        (site.folder / "b" / path).write_text(text)
        site.hub.main.commit("main", {f"b/{path}": text})
    pull = site.pull({TRITON: CHANGED, f"b/{TRITON}": CHANGED})
    workflow = ".github/workflows/b.yml"
    second = {"corpus": "b/corpus", "tolerances": "b/tolerances.toml", "run_workflow": workflow}
    runs = [site.measure(pull, claims(1, softmax_triton=BAD)), site.measure(pull, path=workflow)]
    for _ in range(2):  # again: each finds its own
        assert [site.report(runs[0]), site.report(runs[1], **second)] == [1, 0]
    assert [(c.values["name"], c.values["conclusion"]) for c in site.hub.checks(pull.head_sha)] == [
        ("tolcal", "failure"),
        ("tolcal (b/corpus, b.yml)", "success"),
    ]
    one, other = (c.body.splitlines()[1] for c in site.comments)
    assert one.startswith("### tolcal: blocked by 1 regression.")
    assert other.startswith("### tolcal (b/corpus, b.yml): no regressions.")


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (Inputs(), "tolcal"),
        (Inputs(corpus="kernels"), "tolcal (kernels)"),
        (Inputs(corpus="p/k", tolerances="p/tolerances.toml"), "tolcal (p/k)"),
        (Inputs(corpus="p/k"), "tolcal (p/k, tolerances.toml)"),
        (Inputs(tolerances="t.toml"), "tolcal (t.toml)"),
        (Inputs(run_workflow=".github/workflows/amd.yml"), "tolcal (amd.yml)"),
    ],
)
def test_names_of_checks(inputs: Inputs, name: str) -> None:
    """No two setups have the same one."""
    assert checks.name(inputs) == name
    long = [checks.name(Inputs(corpus="x" * 200 + end)) for end in "ab"]
    assert len(set(long)) == 2
    assert max(map(len, long)) <= checks.MAX_NAME


# --- which pull request ---------------------------------------------------------------------


def test_a_run_that_begins(site: Site) -> None:
    """Complaint 23: the head has a check at once; a second event makes no second one."""
    pull = site.pull({TRITON: CHANGED})
    run = site.measure(pull, None, status="in_progress")
    for action in ("requested", "in_progress"):
        assert site.report(run, action) == 0
    assert site.said(pull) == ("in_progress", None)
    run.status, run.conclusion = "completed", "success"
    site.upload(run, claims(1))
    assert site.report(run) == 0
    assert site.said(pull) == ("completed", "success")
    assert site.report(run, "requested") == 0  # late
    assert len(site.hub.checks(pull.head_sha)) == 2  # in progress again
    assert site.report(run) == 0
    assert {c.values["status"] for c in site.hub.checks(pull.head_sha)} == {"completed"}


@pytest.mark.parametrize("state", ["closed", "pushed"])
def test_no_open_pull_request(site: Site, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Complaint 21: closed or pushed over: a line, and no check is left waiting."""
    pull = site.pull({TRITON: CHANGED})
    sha, run = pull.head_sha, site.measure(pull, claims(1, softmax_triton=BAD))
    assert site.report(run, "requested") == 0
    if state == "closed":
        pull.state = "closed"
    else:
        site.hub.push(pull, {"README.md": "x\n"})
    assert site.report(run) == 0
    assert site.comments == []
    assert site.said(sha) == ("completed", "cancelled")
    assert "nothing to do: " in capsys.readouterr().out.splitlines()[-1]


def test_two_pull_requests_with_one_head(site: Site) -> None:
    """Complaint 12: which one was measured is not guessed, and neither of them passes by it."""
    pull = site.pull({TRITON: CHANGED})
    site.hub.main.commit("release", {"x": "y"})
    site.hub.pull("feature", base="release")
    assert site.report(site.measure(pull)) == 1
    assert site.comments == []
    assert site.said(pull) == ("completed", "failure")


def test_events_that_are_not_ours(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Another workflow of the same name, a push, a deleted fork; another event is a mistake."""
    pull = site.pull({TRITON: CHANGED})
    for run in (
        site.measure(pull, path=".github/workflows/evil.yml"),
        site.measure(pull, event="push"),
    ):
        assert site.report(run) == 0
    payload = site.payload(site.measure(pull))
    payload["workflow_run"]["head_repository"] = None
    job = site.hub.job("workflow_run", payload)
    assert report.report(site.client(), site.inputs, job) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line[:23] for line in said] == ["tolcal: nothing to do: "] * 3
    assert site.written == {"comments": [], "checks": []}
    with pytest.raises(TolcalError, match="answers workflow_run, this is a push"):
        report.report(site.client(), site.inputs, site.hub.job("push", {}))
    with pytest.raises(TolcalError, match="no workflow_run with a head_sha"):
        report.report(site.client(), site.inputs, site.hub.job("workflow_run", {"a": 1}))


# --- the comment ----------------------------------------------------------------------------


def marker(head: str, run: int, attempt: int = 1) -> str:
    """The first line of a comment of ours."""
    return f"<!-- tolcal:v1 head={head} run={run} attempt={attempt} -->\n"


def test_a_copied_marker_is_not_ours(site: Site) -> None:
    """Attack 9 and complaint 20: nobody else's comment is edited, whatever it begins with."""
    pull = site.pull({TRITON: CHANGED}, author="mallory")
    theirs = marker(pull.head_sha, 10**17) + "approved"
    site.hub.comment(pull, "mallory", theirs)
    assert site.report(site.measure(pull)) == 0
    foreign, own = site.hub.main.comments.values()
    assert (foreign.body, foreign.updated) == (theirs, foreign.created)
    assert own.author is site.hub.state.bot


def test_ours_is_found_behind_101_comments(site: Site) -> None:
    """Complaint 3: all pages are looked through; other words of the bot's are no marker."""
    pull = site.pull({TRITON: CHANGED})
    for n in range(60):
        site.hub.comment(pull, "alice", f"{n}")
        site.hub.comment(pull, site.hub.state.bot, f"a reply: {marker(pull.head_sha, n)}")
    ours = site.hub.comment(pull, site.hub.state.bot, marker("0" * 40, 1) + "old")
    run = site.measure(pull)
    assert site.report(run) == 0
    assert len(site.hub.main.comments) == 121
    assert ours.body.startswith(marker(pull.head_sha, run.id))


def test_an_older_run_after_a_newer_one(site: Site) -> None:
    """Complaint 19: of two runs for a head the newer is shown, whichever report comes last."""
    pull = site.pull({TRITON: CHANGED})
    old = site.measure(pull, claims(1, softmax_triton=BAD))
    new = site.measure(pull)
    assert [site.report(run) for run in (new, old)] == [0, 0]
    assert f"run={new.id} " in body(site)
    assert site.said(pull) == ("completed", "success")


def test_a_comment_of_a_later_run_stays(site: Site) -> None:
    """An attempt counts as later than the one before it; the head alone doesn't decide."""
    pull = site.pull({TRITON: CHANGED})
    job, client = site.hub.job(), site.client()
    for order, kept in (((5, 2), (5, 2)), ((5, 1), (5, 2)), ((4, 9), (5, 2)), ((6, 1), (6, 1))):
        text = marker(pull.head_sha, *order) + f"{order}"
        shown = sticky.upsert(client, job, pull.number, text, lambda s, o=order: s.order > o)
        assert (shown is None) == (order != kept)
        assert body(site).endswith(f"{kept}")


@pytest.mark.parametrize("which", ["none", "attempt", "workflow", "other", "long", "words"])
def test_a_marker_that_stands_for_no_later_run(site: Site, which: str) -> None:
    """Another workflow's comment, with the same token, doesn't silence the report."""
    pull = site.pull({TRITON: CHANGED})
    run = site.measure(pull, claims(1, softmax_triton=BAD))
    other = site.pull({"README.md": "x\n"}, head="other")
    begins = {
        "none": marker("0" * 40, 10**17),
        "attempt": marker("0" * 40, run.id, 2),
        "workflow": marker("0" * 40, site.measure(pull, None, path=".github/workflows/x.yml").id),
        "other": marker(other.head_sha, site.measure(other, None).id),
        "long": marker("0" * 40, 10**30),
        "words": "<!-- tolcal:v1 later than all -->\n",
    }[which]
    echo = site.hub.comment(pull, site.hub.state.bot, begins + "All good!")
    assert site.report(run) == 1
    assert [c.body.startswith(marker(pull.head_sha, run.id)) for c in site.comments][-1]
    assert len(site.comments) == 1 or which in ("long", "words")
    assert echo.body.endswith("All good!") == (which in ("long", "words"))


def test_two_reports_that_race_to_the_first_comment(site: Site) -> None:
    """Both find none and make one: one comment is left, of the newer run."""
    pull = site.pull({TRITON: CHANGED})
    first = site.measure(pull, claims(1, softmax_triton=BAD))
    later: list[Run] = []

    def overtake() -> None:
        later.append(site.measure(pull))
        assert site.report(later[0]) == 0

    site.hub.on("POST issues/*/comments", overtake)
    assert site.report(first) == 0  # the newer run is judged in the end
    assert f"run={later[0].id} " in body(site)
    assert headline(site).startswith("### tolcal: no regressions.")


def test_a_report_that_is_overtaken_while_it_writes(site: Site) -> None:
    """The older text that lands last is replaced by what the newer run says."""
    pull = site.pull({TRITON: CHANGED})
    old = marker("0" * 40, 1)
    sticky.upsert(site.client(), site.hub.job(), pull.number, old, lambda _: False)
    first = site.measure(pull, claims(1, softmax_triton=BAD))
    later: list[Run] = []

    def overtake() -> None:
        later.append(site.measure(pull))
        assert site.report(later[0]) == 0

    site.hub.on("PATCH issues/comments/*", overtake)
    assert site.report(first) == 0
    assert f"run={later[0].id} " in body(site)
    newest = max(site.hub.checks(pull.head_sha), key=lambda c: c.id)
    assert newest.values["conclusion"] == "success"


def test_the_push_between_reading_and_writing(site: Site) -> None:
    """The next report shows the new head; until then the comment says which head it is of."""
    pull = site.pull({TRITON: CHANGED})
    run = site.measure(pull)
    old = pull.head_sha
    site.hub.on("POST issues/*/comments", lambda: site.hub.push(pull, {"README.md": "x\n"}))
    assert site.report(run) == 0
    assert body(site).startswith(marker(old, run.id))
    assert site.said(old) == ("completed", "success")
    assert site.hub.checks(pull.head_sha) == []


# --- what a pull request may not do ---------------------------------------------------------


def test_its_own_tolerances_do_not_count(site: Site) -> None:
    """Attack 5: wider values in its own file change no verdict, and block until approved."""
    wide = tolerances_text({**APPROVED, ("softmax", "float32"): approved_cell(1.0)})
    pull = site.pull({TRITON: CHANGED, "tolerances.toml": wide})
    assert site.report(site.measure(pull, claims(1, softmax_triton=BAD))) == 1
    assert "### tolcal: blocked by 1 regression, 1 tolerance changed without approval." in headline(
        site
    )
    lonely = site.pull({"tolerances.toml": wide}, head="lonely")
    assert site.report(site.measure(lonely)) == 1
    removed = site.pull({"tolerances.toml": tolerances_text({})}, head="removed")
    assert site.report(site.measure(removed)) == 1
    assert "it was removed; a cell without a tolerance" in site.comments[-1].body


WIDE = tolerances_text(dict.fromkeys(APPROVED, approved_cell(1.0)))


@pytest.mark.parametrize(
    ("left", "tip", "changed"),
    [
        (None, tolerances_text(APPROVED), 2),
        (WIDE, tolerances_text(APPROVED), 2),
        (tolerances_text(APPROVED), WIDE, 2),
        (tolerances_text(APPROVED), None, 2),
        (WIDE, tolerances_text({**APPROVED, ("softmax", "float32"): approved_cell(1.0)}), 1),
    ],
    ids=["from before", "tightened since", "widened since", "removed since", "one of two"],
)
def test_the_point_that_a_branch_begins_at(
    site: Site, left: str | None, tip: str | None, changed: int
) -> None:
    """It is the contributor's choice, so the tip's tolerances judge as well: the stricter ones."""
    main = site.hub.main
    old = main.commit("main", {"tolerances.toml": left}, "as it was")
    main.git.update("refs/heads/old", old, "0" * 40)
    main.commit("main", {"tolerances.toml": tip}, "as it is")
    pull = site.pull({"corpus/relu/kernels/relu_triton.py": CHANGED}, head="old")
    assert site.report(site.measure(pull, claims(1, relu_triton=BAD))) == 1
    assert site.said(pull) == ("completed", "failure")
    assert headline(site).startswith("### tolcal: blocked by 1 regression.")
    said = {1: "1 tolerance of main changed", 2: "2 tolerances of main changed"}[changed]
    assert f"\n{said} since this branch left it, and the stricter one judges: relu/" in body(site)
    quiet = site.report(site.measure(pull, claims(2)))
    assert quiet == 0  # and nothing counts as changed by the branch itself
    assert "changed since this branch left it" in body(site)


def test_the_stricter_of_two_tolerances() -> None:
    """One of the two as it is where it is the stricter one in all; else the bounds of both."""
    tight, wide = approved_cell(2.0**-22), approved_cell(1.0)
    sloped = msgspec.structs.replace(tight, atol=2.0**-23, scaled_tol=4.0, bias_tol=None)
    cell = ("relu", "float32")
    for left, tip in ((tight, wide), (wide, tight)):
        assert stricter.of_both({cell: left}, {cell: tip}) == ({cell: tight}, {cell})
    assert stricter.of_both({cell: tight}, {cell: tight}) == ({cell: tight}, set())
    (both,) = stricter.of_both({cell: tight}, {cell: sloped})[0].values()
    assert (both.atol, both.scaled_tol, both.bias_tol) == (2.0**-23, 2.0, 0.31)
    # In the tip's unit: half the slope in twice the unit is the same bound.
    assert tight.evidence
    coarse = msgspec.structs.replace(
        tight, scaled_tol=1.0, evidence=msgspec.structs.replace(tight.evidence, roundoff=2.0**-23)
    )
    (same,) = stricter.of_both({cell: tight}, {cell: coarse})[0].values()
    assert same == coarse


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("schema = 1\n[softmax.float32]\natol = 'x'\n", "`tolerances.toml:3`: softmax.float32"),
        ("schema = 1\nno toml", "`tolerances.toml:2:4`: not TOML"),
        (b"schema = 1\n\xff", "`tolerances.toml:2`: not UTF-8"),
        ("# " + "x" * 2**20, "`tolerances.toml`: over 1048576 bytes"),
        ("a = " + "[" * 100_000, "`tolerances.toml`: nested too deeply"),
    ],
)
def test_a_broken_tolerance_file(site: Site, text: str | bytes, place: str) -> None:
    """What is wrong, and where, stands in the comment; the base's values judge."""
    pull = site.pull({"tolerances.toml": text})
    assert site.report(site.measure(pull)) == 1
    assert f"- {place}" in body(site)
    assert "1 file unusable" in headline(site)
    assert site.said(pull) == ("completed", "failure")


def test_a_changed_kernel_without_records(site: Site) -> None:
    """Not to measure what it changes is no way to pass."""
    pull = site.pull({TRITON: CHANGED, "corpus/relu/kernels/relu_new.py": KERNEL})
    left = [r for r in claims(1) if r.kernel != "softmax_triton"]
    assert site.report(site.measure(pull, left)) == 1
    assert headline(site).startswith("### tolcal: blocked by 2 changed kernels not measured.")


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "skipped", "stats": None, "reason": "no GPU"},
        {"case_set": "explore"},
        {"case_set": "explore", "status": "crashed", "stats": None, "reason": "boom"},
    ],
    ids=str,
)
def test_a_changed_kernel_that_nothing_judged(site: Site, changes: dict[str, object]) -> None:
    """Skipped, or in cases that can't block alone: its tolerance was held against nothing."""
    pull = site.pull({TRITON: CHANGED})
    claimed = [
        msgspec.structs.replace(r, **changes) if r.kernel == "softmax_triton" else r
        for r in claims(1, softmax_triton=BAD)
    ]
    assert site.report(site.measure(pull, claimed)) == 1
    assert site.said(pull) == ("completed", "failure")
    assert headline(site).startswith("### tolcal: blocked by 1 changed kernel not measured.")
    assert "- `softmax_triton float32`: it changes here, and of the cases" in body(site)


def test_a_dtype_that_was_not_measured(site: Site) -> None:
    """A changed kernel needs a judged record in each dtype that has an approved tolerance."""
    op = OP.replace('["float32"]', '["float32", "float16", "bfloat16"]')
    cells = {**APPROVED, ("relu", "float16"): approved_cell()}
    files = {"corpus/relu/op.toml": op, "tolerances.toml": tolerances_text(cells)}
    site.hub.main.commit("main", files)
    (site.folder / "corpus/relu/op.toml").write_text(op)
    pull = site.pull({"corpus/relu/kernels/relu_triton.py": CHANGED})
    assert site.report(site.measure(pull)) == 1
    assert headline(site).startswith("### tolcal: blocked by 1 changed kernel not measured.")
    assert "- `relu_triton float16`: " in body(site)


@pytest.mark.parametrize(
    "files",
    [
        {TRITON: CHANGED},
        {"corpus/softmax/reference.py": CORPUS["corpus/softmax/reference.py"] + "\n"},
        {"corpus/softmax/op.toml": CORPUS["corpus/softmax/op.toml"].replace("[7]", "[7, 8]")},
        {"corpus/softmax/kernels/helper.cu": "// loaded when it runs"},
        {"corpus/softmax/scale.txt": "2.0"},
        {"corpus/softmax/NOTES.md": "a kernel may read it\n"},
        {"corpus/common.json": "{}"},
        {"corpus/softmax/op.toml": "broken ="},
        {TRITON: "x = (\n"},
        {f"bulk/{n}.txt": "x" for n in range(301)},
        {f"corpus/softmax/{n}.py": "x" for n in range(201)},
    ],
    ids=lambda files: f"{len(files)}-{next(iter(files))}",
)
def test_what_makes_a_kernel_a_changed_one(site: Site, files: dict[str, str]) -> None:
    """The files that differ say it, not the hashes that the records claim; in doubt it is."""
    pull = site.pull(files)
    assert site.report(site.measure(pull, claims(1, softmax_triton=BAD))) == 1
    assert "### tolcal: blocked by 1 regression" in headline(site)


LIBRARY = {
    TRITON: "import torch\nfrom mylib import kernels\n\nrun = kernels.run\n",
    "mylib/__init__.py": "",
    "mylib/kernels.py": "from . import inner\nfrom other.deep import it\n\nrun = it\n",
    "mylib/inner.py": "broken = (\n",
    "mylib/code/kernel.cu": "// 1",
    "src/other/deep.py": "it = 1\n",
    "unrelated.py": "it = 1\n",
}


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        ("mylib/kernels.py", True),
        ("mylib/__init__.py", True),
        ("mylib/inner.py", True),
        ("mylib/code/kernel.cu", True),
        ("src/other/deep.py", True),
        ("other/deep.py", True),  # would be found first
        ("torch.py", True),
        ("src/torch/__init__.py", True),
        ("mylib", True),  # a submodule
        ("mylib/README.md", False),
        ("mylib/unused.py", False),
        ("unrelated.py", False),
        ("pyproject.toml", False),
        ("tests/torch.py", False),
    ],
)
def test_modules_beside_the_corpus(site: Site, path: str, changed: bool) -> None:
    """What a kernel imports from elsewhere in the repository is its source, too."""
    for name, text in LIBRARY.items():
        (site.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (site.folder / name).write_text(text)
    pull = pulls.read(site.client(), site.pull({"README.md": "more\n"}).number)
    laid = overlay.overlay(
        site.client(), msgspec.structs.replace(pull, files=(path, "docs/x.py")), "corpus"
    )
    assert ("softmax_triton" in laid.changed) == changed
    assert ("relu_triton" in laid.changed) == ("/torch" in f"/{path}" and changed)
    assert not laid.everything


def test_a_module_beside_the_corpus_regresses(site: Site) -> None:
    """The kernel's own file is as it was, and the verdict is that of a changed kernel."""
    for name, text in LIBRARY.items():
        (site.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (site.folder / name).write_text(text)
    site.hub.main.commit("main", LIBRARY)
    pull = site.pull({"mylib/kernels.py": "run = 2\n"})
    assert site.report(site.measure(pull, claims(1, softmax_triton=BAD))) == 1
    assert "### tolcal: blocked by 1 regression" in headline(site)


@pytest.mark.parametrize("path", ["corpus", "pkg"])
def test_a_corpus_that_is_a_submodule(site: Site, path: str) -> None:
    """Its files can't be compared, so every kernel counts as changed."""
    shutil.copytree("corpus", "pkg/corpus")
    folder = "corpus" if path == "corpus" else "pkg/corpus"
    pull = pulls.read(site.client(), site.pull({"README.md": "more\n"}).number)
    pull = msgspec.structs.replace(pull, files=(path,))
    laid = overlay.overlay(site.client(), pull, folder)
    assert laid.everything
    assert laid.notes


def test_another_kernel_of_the_op_is_not_changed(site: Site) -> None:
    """A file beside it, or another op's."""
    pull = site.pull(
        {"corpus/softmax/buggy/softmax_bad.py": CHANGED,
         "corpus/relu/kernels/relu_triton.py": CHANGED}
    )  # fmt: skip
    assert site.report(site.measure(pull, claims(1, softmax_triton=BAD))) == 0
    assert "1 false positive" in headline(site)


def test_a_file_becomes_a_folder_and_a_name_that_climbs(site: Site) -> None:
    """Odd trees are laid over as they are; kernels of an op that moved are new ones."""
    pull = site.pull({TRITON: None, f"{TRITON}/x.py": "y", "corpus/relu/kernels/b.py": KERNEL})
    assert site.report(site.measure(pull)) == 1
    assert "file unusable" in headline(site)


def test_a_control_that_poses_as_a_buggy_kernel(site: Site) -> None:
    """A regression that calls itself a catch is refused."""
    pull = site.pull({TRITON: CHANGED})
    posing = [
        msgspec.structs.replace(r, role="buggy", corrupts="relu_triton")
        if r.kernel == "softmax_triton"
        else r
        for r in claims(1, softmax_triton=BAD)
    ]
    with pytest.raises(TolcalError, match="refused: those of softmax_triton don't say that it is"):
        site.report(site.measure(pull, posing))
    assert site.said(pull) == ("completed", "failure")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kernel": "evil"}, "the corpus of this pull request has no kernel evil"),
        (
            {"case": make_record(op="relu", dtype="float64").case},
            "relu_triton was measured in float64, which is no dtype of relu",
        ),
    ],
    ids=str,
)
def test_records_of_what_the_corpus_lacks(site: Site, changes: dict[str, object], why: str) -> None:
    """Kernels and dtypes that only the records know are refused, all records with them."""
    pull = site.pull({TRITON: CHANGED})
    odd = [
        msgspec.structs.replace(r, **changes) if r.kernel == "relu_triton" else r for r in claims(1)
    ]
    with pytest.raises(TolcalError, match=f"records are refused: {why} .1 such kernel.;"):
        site.report(site.measure(pull, odd))
    assert site.said(pull) == ("completed", "failure")


def test_records_of_too_many_kernels(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the corpus can't be read either, their number is bounded."""
    monkeypatch.setattr(judging, "MAX_GROUPS", 5)
    pull = site.pull({"corpus/relu/op.toml": "broken ="})
    named = [msgspec.structs.replace(claims(1)[0], kernel=f"k{n}") for n in range(6)]
    assert site.report(site.measure(pull, named[:5])) == 1
    with pytest.raises(TolcalError, match="refused: of 6 kernels and dtypes, at most 5 are judged"):
        site.report(site.measure(pull, named))


def test_an_op_that_leaves_its_tolerance(site: Site) -> None:
    """By another name nothing would judge it: that is said first, and blocks."""
    files: dict[str, str | bytes | None] = {}
    for path, text in CORPUS.items():
        if path.startswith("corpus/relu/"):
            files |= {path: None, path.replace("/relu/", "/relu2/"): text}
    pull = site.pull(files)
    moved = [
        msgspec.structs.replace(r, case=msgspec.structs.replace(r.case, op="relu2"))
        if r.kernel == "relu_triton"
        else r
        for r in claims(1, relu_triton=BAD)
    ]
    assert site.report(site.measure(pull, moved)) == 1
    assert "by 1 approved tolerance whose op leaves the corpus." in headline(site)
    assert "- `relu/float32`: it leaves the corpus here, be it under a new name" in body(site)
    assert site.said(pull) == ("completed", "failure")


def test_claims_are_no_evidence(site: Site) -> None:
    """Attack 4, complaint 8: its exact rows of any origin tighten nothing and count nowhere."""
    pull = site.pull({TRITON: CHANGED})
    modest = claims(1)[0]
    origin = msgspec.structs.replace(modest.run, origin="ingest", started="2020-01-01T00:00:00Z")
    many = [
        msgspec.structs.replace(
            r, run=origin, case_set="explore",
            case=msgspec.structs.replace(r.case, seed=10_000 + n),
        )
        for n in range(400)
        for r in claims(1)
        if r.role == "control"
    ]  # fmt: skip
    site.report(site.measure(pull))
    before = json.loads((site.folder / "out/proposal.json").read_text())
    site.report(site.measure(pull, many))
    after = json.loads((site.folder / "out/proposal.json").read_text())
    for one, other in zip(before["cells"], after["cells"], strict=True):
        for name in ("rows", "runs", "held_out", "recall", "tightening"):
            assert one[name] == other[name]
    assert [r["origin"] for r in after["runs"]].count("pull_request") == 1


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"no gzip", "refused"),
        (b"", "refused"),
    ],
)
def test_a_poisoned_artifact(site: Site, content: bytes, what: str) -> None:
    """Attack 2: the check says why, exit status 2 by TolcalError, and the comment stays."""
    pull = site.pull({TRITON: CHANGED})
    assert site.report(site.measure(pull)) == 0
    before = body(site)
    site.hub.push(pull, {TRITON: CHANGED + "\n"})
    run = site.measure(pull, content or b"\x00")
    status, printed, values = site.process(run)
    assert (status, values) == (2, {"verdict": "failure"})
    assert what in printed
    assert len(printed.splitlines()) == 1
    assert body(site) == before
    assert site.said(pull) == ("completed", "failure")
    assert site.check(pull).values["output"]["title"] == "not judged"


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "<<EOF", "x" * 2000, "é", Path("a\nb")])
def test_outputs_are_plain(site: Site, value: str | Path) -> None:
    """Attack 11: what could end a line of GITHUB_OUTPUT, or begin another value, is never set."""
    job = site.hub.job()
    with pytest.raises(ValueError, match="output verdict would be"):
        outputs.outputs(job, {"verdict": value})
    with pytest.raises(ValueError, match="output"):
        outputs.outputs(job, {"a=b": "c"})
    assert job.output is not None
    assert not job.output.exists()


HOSTILE = [
    "::error file=a::boom",
    "@octo/team fixes #1 [x](https://evil.test) <img src=x>",
    "| a | b |\n\n# heading\n<!-- tolcal:v1 -->",
    "`code` --> ##[error]x",
]


def test_hostile_words_in_records(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Attacks 10 and 16: reasons, devices and commits are shown inert, in every place."""
    pull = site.pull({TRITON: CHANGED})
    words = "\n".join(HOSTILE)
    records = [
        msgspec.structs.replace(
            r,
            status="crashed" if r.kernel == "softmax_triton" else "skipped",
            reason=words[:300],
            stats=None,
            same_as_control=None,
        )
        for r in claims(1)
    ]
    status = site.report(site.measure(pull, records))
    assert status == 1
    output = site.check(pull).values["output"]
    rendered = [body(site), output["summary"], *site.hub.folder.glob("step-*/summary.md")]
    for text in rendered:
        plain = text.read_text() if isinstance(text, Path) else text
        tokens = MarkdownIt("commonmark").enable("table").parse(plain)
        inline = [child for token in tokens for child in token.children or ()]
        links = [c.attrs["href"] for c in inline if c.type == "link_open"]
        assert all(str(link).startswith(site.hub.api.url) for link in links)
        assert not [c for c in inline if c.type in ("image", "html_inline")]
        assert not re.search(r"(?m)^(::|##\[)", plain)
        shown = "\n".join(c.content for c in inline if c.type == "text")  # not in code spans
        assert not re.search(r"@octo/team|#1\b(?!\d)|https://evil", shown)
        blocks = [token.content for token in tokens if token.type == "html_block"]
        assert [b for b in blocks if not re.match("<!-- tolcal:v1 |</?details>", b)] == []
    for one in site.check(pull).annotations:
        assert "\n" not in one["message"]
    assert all(line.startswith("tolcal: ") for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("statuses", "judged", "fail_on", "expected"),
    [
        ({"ok": 6}, 6, "regression", "success"),
        ({"ok": 6}, 0, "regression", "neutral"),
        ({"ok": 6}, None, "regression", "success"),
        ({"skipped": 6}, 0, "regression", "failure"),
        ({"skipped": 6}, 0, "never", "neutral"),
        ({}, 0, "regression", "failure"),
    ],
)
def test_what_a_run_that_judged_nothing_concludes(
    statuses: dict[str, int], judged: int | None, fail_on: str, expected: str
) -> None:
    """Neutral where nothing is approved yet; a run in which no kernel ran fails."""
    verdict = make_verdict(records=sum(statuses.values()), statuses=statuses, judged=judged)
    assert report.conclude(Document(make_proposal(), verdict), (fail_on,)) == expected


@pytest.mark.parametrize(
    ("kind", "checks", "expected"),
    [
        ("check_failed", "stray in 1 case", "failure"),
        ("false_positive", "stray in 1 case", "failure"),
        ("false_positive", "", "success"),
        ("caught", "stray in 1 case", "success"),
        ("escaped", "stray in 1 case", "success"),
    ],
)
def test_a_failed_check_of_a_control_can_fail(kind: Any, checks: str, expected: str) -> None:
    """`--fail-on check-failed`, whatever else the control does; without it none of these fails."""
    verdict = make_verdict(findings=(make_finding(kind, checks=checks),), blocks=False)
    document = Document(make_proposal(), verdict)
    assert report.conclude(document, ("regression", "check-failed")) == expected
    assert report.conclude(document, ("regression",)) == "success"


# --- runs without records -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conclusion", "expected", "status"),
    [
        ("failure", "failure", 1),
        ("timed_out", "failure", 1),
        ("success", "failure", 1),
        ("cancelled", "cancelled", 0),
        ("action_required", "action_required", 0),
        ("skipped", "action_required", 0),
    ],
)
def test_a_run_without_records(site: Site, conclusion: str, expected: str, status: int) -> None:
    """It is no pass, be it that the pull request's own workflow skips the job."""
    pull = site.pull({TRITON: CHANGED})
    run = site.measure(pull, None, conclusion=conclusion)
    assert site.report(run) == status
    assert site.said(pull) == ("completed", expected)
    assert "has no artifact" in site.check(pull).values["output"]["summary"]
    assert site.comments == []
    run.attempt, run.conclusion = 2, "success"
    site.upload(run, claims(1))
    assert site.report(run) == 0
    assert max(site.hub.checks(pull.head_sha), key=lambda c: c.id).values["conclusion"] == "success"


def test_a_run_that_failed_with_records(site: Site) -> None:
    """Kernels that crash make the measuring job red; its records say which."""
    pull = site.pull({TRITON: CHANGED})
    crashed = [
        msgspec.structs.replace(r, status="crashed", reason="boom", stats=None)
        if r.kernel == "softmax_triton"
        else r
        for r in claims(1)
    ]
    assert site.report(site.measure(pull, crashed, conclusion="failure")) == 1
    assert headline(site).startswith("### tolcal: blocked by 1 crash.")


def test_a_run_that_is_run_again(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Its first attempt's event comes late: nothing is said until the second has ended."""
    pull = site.pull({TRITON: CHANGED})
    run = site.measure(pull)
    payload = site.payload(run)
    run.attempt, run.status, run.conclusion = 2, "in_progress", None
    job = site.hub.job("workflow_run", payload)
    assert report.report(site.client(), site.inputs, job) == 0
    assert "being run again" in capsys.readouterr().out
    assert site.written == {"comments": [], "checks": []}


def test_two_shards(site: Site) -> None:
    """Their records are judged together; one alone is no verdict."""
    pull = site.pull({TRITON: CHANGED})
    made = claims(1, relu_triton=BAD)
    parts = [[r for r in made if (r.case.op == "relu") == half] for half in (False, True)]
    run = site.measure(pull, None)
    site.upload(run, parts[0], "1of2")
    assert site.report(run) == 1
    assert site.said(pull) == ("completed", "failure")
    site.upload(run, parts[1], "2of2")
    assert site.report(run) == 0
    assert "18 records of 12 cases" in body(site)
    assert "1 false positive" in headline(site)


# --- checks ---------------------------------------------------------------------------------


def outcome(annotations: int, mark: str = "0") -> Outcome:
    """A failure with that many annotations."""
    made = [
        {"path": "a.py", "start_line": n + 1, "end_line": n + 1, "annotation_level": "failure",
         "title": "t", "message": f"{n}"}
        for n in range(annotations)
    ]  # fmt: skip
    return Outcome(" ".join([mark * 16] * 4), "failure", "title", "summary", tuple(made))


@pytest.mark.parametrize("after", range(8))
def test_many_annotations_come_in_batches(site: Site, after: int) -> None:
    """50 a request; cut anywhere and sent again, each is there once."""
    pull = site.pull({TRITON: CHANGED})
    job = site.hub.job()
    for status, effect in ((503, False), ("drop", True)):
        site.hub.fail(after=after, status=status, effect=effect, times=1 if effect else 1000)
        try:
            checks.finish(site.client(), job, pull.head_sha, outcome(120))
        except ApiError:
            assert not effect
        site.hub.faults.clear()
    checks.finish(site.client(), job, pull.head_sha, outcome(120))
    made = site.check(pull)
    assert [a["message"] for a in made.annotations] == [str(n) for n in range(120)]
    assert made.values["conclusion"] == "failure"


def test_another_proposal_is_another_check(site: Site) -> None:
    """The digest that was approved stays readable after a newer one came."""
    pull = site.pull({TRITON: CHANGED})
    job, client = site.hub.job(), site.client()
    for mark in "aab":
        checks.finish(client, job, pull.head_sha, outcome(1, mark))
    first, second = site.hub.checks(pull.head_sha)
    assert first.values["external_id"].startswith("a" * 16)
    assert second.values["external_id"].startswith("b" * 16)
    assert [len(c.annotations) for c in (first, second)] == [1, 1]


def test_a_job_named_tolcal_is_no_check_of_ours(site: Site) -> None:
    """Actions makes a check run for each job, with an id of its own."""
    pull = site.pull({TRITON: CHANGED})
    client = site.client()
    client.post(
        "check-runs",
        {"name": "tolcal", "head_sha": pull.head_sha, "status": "in_progress",
         "external_id": "ca395085-040a-526b-2ce8-bdc85f692774"},
        done=None,
    )  # fmt: skip
    checks.finish(client, site.hub.job(), pull.head_sha, outcome(0))
    job, ours = site.hub.checks(pull.head_sha)
    assert job.values["status"] == "in_progress"
    assert ours.values["status"] == "completed"


# --- numbers that must agree ----------------------------------------------------------------


def test_the_summary_has_every_row(site: Site) -> None:
    """Complaint 14: the summary is of the full data: every finding, cell and buggy kernel."""
    pull = site.pull({TRITON: CHANGED})
    site.report(site.measure(pull, claims(1, softmax_triton=BAD)))
    content = json.loads((site.folder / "out/proposal.json").read_text())
    (path,) = site.hub.folder.glob("step-*/summary.md")
    found = [line for line in path.read_text().splitlines() if line.startswith("| ")]
    headers, medians, totals = 3, 1, 1
    expected = len(content["verdict"]["findings"]) + len(content["cells"]) + len(content["buggy"])
    assert len(found) == expected + headers + medians + totals


def test_the_digest_is_bound_to_head_base_history_and_values(site: Site) -> None:
    """What each part of it is can be told from the check, and each changes it."""
    pull = site.pull({TRITON: CHANGED})
    run = site.measure(pull)
    client, job = site.client(), site.hub.job()

    def judged() -> judging.Judged:
        return judging.judge(client, site.inputs, job, pulls.read(client, pull.number))

    first = judged()
    assert judged() == first  # deterministic
    assert first.mark.split()[0] == first.document.proposal.digest
    assert first.measured == pull.head_sha
    site.hub.push(pull, {"README.md": "x\n"})
    site.upload(second := site.measure(pull, None), claims(run.id))
    moved = judged()
    assert moved.run.id == second.id
    assert moved.document.proposal.digest != first.document.proposal.digest
    assert moved.mark.split()[1:] == first.mark.split()[1:]
