"""Which cells of a pull request's own file count: what GitHub confirms of an approval."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from github_server.git import Person
from github_server.hub import Hub
from github_server.state import Comment, Pull, User
from github_support import client, hub
from hypothesis import given
from hypothesis import strategies as st

from tolcal import tolerances
from tolcal.github import approvals, binding, pulls, trailers
from tolcal.github.commands import comments, committing
from tolcal.github.settings import Inputs
from tolcal.github.trailers import Trailers
from tolcal.model import AllClose, Approved, Cell, Evidence, HeldOut, Tolerance, Values

__all__ = ["hub"]  # a fixture

PATH = "tolerances.toml"
SOFTMAX, GELU = ("softmax", "float16"), ("gelu", "float32")


def cell(atol: float, **changes: object) -> Tolerance:
    """A cell of that atol, at a median scale of 1."""
    evidence = Evidence(
        "residual", 2.0, 720, 18, ("NVIDIA H200",), HeldOut(18, 0), "0" * 16, 0.99,
        roundoff=2.0**-24, scale=1.0,
    )  # fmt: skip
    fields = {"evidence": evidence} | changes
    return Tolerance(atol, 0.0, AllClose(1e-3, 1e-3), **fields)  # type: ignore[arg-type]


BASE = {SOFTMAX: cell(1e-3), GELU: cell(1e-3)}


@pytest.fixture
def project(hub: Hub) -> Hub:
    """A repository with two cells, people of every role, and a pull request of alice's."""
    hub.repository(files={PATH: tolerances.edited(None, BASE, PATH), "k.py": "1\n"})
    for login in ("write", "maintain", "admin", "triage", "read"):
        hub.user(login, login)
    hub.user("alice", "admin")
    hub.pull(files={"k.py": "2\n"}, author="alice")
    return hub


def the_pull(hub: Hub) -> Pull:
    """The pull request."""
    return next(iter(hub.main.pulls.values()))


def bind(
    hub: Hub, values: dict[Cell, Tolerance], force: dict[Cell, Tolerance], head: str = ""
) -> Trailers:
    """The trailers of a proposal of those values, without a comment yet."""
    return Trailers(
        head=head or the_pull(hub).head_sha,
        base=binding.base_digest("main", force),
        history="ab" * 8,
        cells=tuple(sorted((*c, t.value_digest) for c, t in values.items())),
        comment=1,
        by="x",
    )


def approve(
    hub: Hub,
    values: dict[Cell, Tolerance],
    line: str = "/tolcal approve {digest}",
    who: str = "maintain",
    *,
    force: dict[Cell, Tolerance] | None = None,
    written: dict[Cell, Tolerance] | None = None,
    bound: Trailers | None = None,
) -> Comment:
    """What the command does: a comment, and the bot's commit of the values."""
    pull = the_pull(hub)
    bound = bound or bind(hub, values, BASE if force is None else force)
    comment = hub.comment(pull, who, line.format(digest=bound.digest))
    bound = msgspec.structs.replace(bound, comment=comment.id, by=who)
    api = client(hub)
    said = comments.read(api, pull.number, comment.id)
    assert isinstance(said, comments.Comment)
    mark = said.mark(pull.number, bound.digest)
    marked = {
        c: msgspec.structs.replace(t, approved=msgspec.structs.replace(mark, value=t.value_digest))
        for c, t in (written or values).items()
    }
    before = pulls.file(api, PATH, pull.head_sha)
    text = tolerances.edited((before or b"").decode(), marked, PATH)
    branch = committing.Branch(pull.head_branch, pull.head_sha)
    committing.commit(api, branch, PATH, text, f"Approve\n\n{trailers.text(bound)}")
    return comment


def check(hub: Hub, inputs: Inputs | None = None) -> approvals.Checked:
    """What counts of the head's file as it is now."""
    api, number = client(hub), the_pull(hub).number
    pull = pulls.read(api, number)
    files = [pulls.file(api, PATH, ref) for ref in (pull.head_sha, pull.merge_base)]
    head, base = (tolerances.of_text((raw or b"").decode(), PATH) for raw in files)
    return approvals.verified(api, inputs or Inputs(), pull, head, base)


def edit_file(hub: Hub, old: str, new: str, author: User | None = None) -> None:
    """A push that changes the tolerance file by hand."""
    pull = the_pull(hub)
    before = (pulls.file(client(hub), PATH, pull.head_sha) or b"").decode()
    assert old in before
    hub.push(pull, {PATH: before.replace(old, new, 1)}, "by hand", author)


TIGHT, WIDE = {SOFTMAX: cell(1e-5)}, {SOFTMAX: cell(1e-1)}
WIDEN = "/tolcal widen {digest} softmax/float16 because it sums in another order"


def test_a_tightening_counts(project: Hub) -> None:
    """Approved by comment, committed by the bot; the other cell is the base's."""
    approve(project, TIGHT)
    found = check(project)
    assert found.refused == {}
    assert {c: t.atol for c, t in found.counted.items()} == {SOFTMAX: 1e-5}


def test_a_file_that_is_the_bases_asks_nothing(project: Hub) -> None:
    """No call is made for a pull request that leaves the tolerances alone."""
    before = len(project.calls)
    pull = pulls.read(client(project), the_pull(project).number)
    assert approvals.verified(client(project), Inputs(), pull, BASE, BASE).refused == {}
    assert len(project.calls) == before + 2


def test_a_widening_counts_until_somebody_pushes(project: Hub) -> None:
    """Attack 7: what was widened for one state of the kernels does not hold for the next."""
    approve(project, WIDE, WIDEN)
    assert set(check(project).counted) == {SOFTMAX}
    approve(project, {GELU: cell(1e-5)}, force=BASE | WIDE)  # our own commits push nothing
    assert set(check(project).counted) == {SOFTMAX, GELU}
    widened_for = project.main.git.log(the_pull(project).head_sha)[2]
    project.push(the_pull(project), {"k.py": "evil\n"})
    found = check(project)
    assert set(found.counted) == {GELU}  # a tightening can only make the check stricter
    assert found.refused == {
        SOFTMAX: f"it was widened for {widened_for[:7]}, and commits were pushed since; it has to "
        "be widened again"
    }


def test_a_widening_does_not_outlive_its_base(project: Hub) -> None:
    """Retargeted to a branch with other tolerances, the same head has another merge base."""
    pull = the_pull(project)
    old = project.main.git.log(pull.head_sha)[1]
    project.main.git.update("refs/heads/release", old)
    other = tolerances.edited(None, BASE | {GELU: cell(1e-4)}, PATH)
    project.main.commit("release", {PATH: other})
    tip = project.main.git.ref("refs/heads/release")
    assert tip
    project.main.git.update("refs/heads/feature", tip)
    project.push(pull, {"k.py": "3\n"})  # the head is above both
    approve(project, WIDE, WIDEN)
    assert set(check(project).counted) == {SOFTMAX}
    pull.base_branch = "release"
    project.state.sync(pull)
    assert check(project).refused == {
        SOFTMAX: "it was widened over another base; it has to be widened again"
    }


def test_a_widening_is_for_its_base_branch(project: Hub) -> None:
    """Though another has the very same tolerances."""
    approve(project, WIDE, WIDEN)
    assert set(check(project).counted) == {SOFTMAX}
    tip = project.main.git.ref("refs/heads/main")
    assert tip
    project.main.git.update("refs/heads/stable", tip)
    the_pull(project).base_branch = "stable"
    assert check(project).refused == {
        SOFTMAX: "it was widened over another base; it has to be widened again"
    }


def test_nothing_counts_without_an_approval(project: Hub) -> None:
    """A number by hand."""
    edit_file(project, "atol = 0.001", "atol = 1.0")  # that of the first cell
    assert check(project) == approvals.Checked({}, {GELU: "nobody has approved it"})


def test_an_approval_on_the_authors_machine_does_not_count(project: Hub) -> None:
    """`tolcal approve` in the pull request's own clone says anything."""
    bound = bind(project, WIDE, BASE)
    approved = Approved("x", "today", bound.digest, WIDE[SOFTMAX].value_digest, 41)
    wide = {SOFTMAX: msgspec.structs.replace(WIDE[SOFTMAX], approved=approved)}
    text = tolerances.edited(tolerances.edited(None, BASE, PATH), wide, PATH)
    # With the trailers of a real one, and in the bot's name: nobody's push has its signature.
    message = f"Approve\n\n{trailers.text(bound)}"
    project.push(the_pull(project), {PATH: text}, message, project.state.bot)
    assert check(project).refused == {
        SOFTMAX: f"no approval of proposal {bound.digest} by a comment on this pull request; "
        "values that were approved elsewhere count once they are merged"
    }


def test_a_signed_commit_that_is_no_bots_does_not_count(project: Hub) -> None:
    """GitHub signs what people commit on its pages as well."""
    comment = approve(project, TIGHT)
    pull = the_pull(project)
    made = project.main.git.read(pull.head_sha)
    text = (pulls.file(client(project), PATH, pull.head_sha) or b"").decode()
    project.main.git.update("refs/heads/feature", made.parents[0])
    project.main.commit("feature", {PATH: text}, made.message, pull.author, verified=True)
    assert comment.body.split()[-1] in check(project).refused[SOFTMAX]


def test_nothing_in_a_fork_counts(hub: Hub) -> None:
    """Its own workflows can make signed commits of github-actions[bot], with any message."""
    hub.repository(files={PATH: tolerances.edited(None, BASE, PATH), "k.py": "1\n"})
    hub.user("maintain", "maintain")
    source = hub.fork("bob")
    pull = hub.pull(files={"k.py": "2\n"}, author="bob", fork=source)
    bound = bind(hub, TIGHT, BASE)
    comment = hub.comment(pull, "maintain", f"/tolcal approve {bound.digest}")
    bound = msgspec.structs.replace(bound, comment=comment.id, by="maintain")
    said = comments.read(client(hub), pull.number, comment.id)
    assert isinstance(said, comments.Comment)
    mark = msgspec.structs.replace(
        said.mark(pull.number, bound.digest), value=TIGHT[SOFTMAX].value_digest
    )
    tight = {SOFTMAX: msgspec.structs.replace(TIGHT[SOFTMAX], approved=mark)}
    text = tolerances.edited(tolerances.edited(None, BASE, PATH), tight, PATH)
    message = f"Approve\n\n{trailers.text(bound)}"
    hub.main.verified.add(source.commit("feature", {PATH: text}, message, hub.state.bot))
    assert check(hub) == approvals.Checked(
        {}, {SOFTMAX: "the head is in a fork; values approved for it come with its base branch"}
    )


# --- the comment ----------------------------------------------------------------------------


def _edit(hub: Hub, comment: Comment) -> None:
    hub.edit(comment, comment.body + " ")


def _edit_at_once(hub: Hub, comment: Comment) -> None:
    """Within the second that both times are given in."""
    comment.body += "\n"
    comment.updated += 0.4


def _delete(hub: Hub, comment: Comment) -> None:
    del hub.main.comments[comment.id]


def _move(hub: Hub, comment: Comment) -> None:
    comment.issue += 1


def _other_digest(hub: Hub, comment: Comment) -> None:
    comment.body = "/tolcal approve " + "0" * 16


def _other_cell(hub: Hub, comment: Comment) -> None:
    comment.body += " gelu"


def _bot(hub: Hub, comment: Comment) -> None:
    comment.author = hub.state.bot


def _renamed(hub: Hub, comment: Comment) -> None:
    comment.author = User(999_999, comment.author.login)  # another account took the name


def _demoted(hub: Hub, comment: Comment) -> None:
    hub.main.roles["maintain"] = "triage"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_edit, "the comment that its commit names is edited"),
        (_edit_at_once, "the comment that its commit names is edited"),
        (_delete, "the comment that its commit names is deleted"),
        (_move, "the comment that its commit names is of another issue"),
        (_other_digest, "the comment that its commit names does not approve it"),
        (_other_cell, "the comment that its commit names does not approve it"),
        (_bot, "the comment that its commit names is no command of a user's"),
        (_renamed, "maintain has the role none by now, and approve needs write"),
        (_demoted, "maintain has the role triage by now, and approve needs write"),
    ],
)
def test_the_comment_must_stand(
    project: Hub, change: Callable[[Hub, Comment], None], why: str
) -> None:
    """Attack 8, complaint 18: as it was written, by somebody who may, of this pull request."""
    change(project, approve(project, TIGHT))
    assert check(project) == approvals.Checked({}, {SOFTMAX: why})


@pytest.mark.parametrize(
    ("who", "line", "counts"),
    [
        ("read", "/tolcal approve {digest}", False),
        ("triage", "/tolcal approve {digest}", False),
        ("write", "/tolcal approve {digest}", True),
        ("maintain", "/tolcal approve {digest} softmax", True),
        ("admin", "/tolcal approve {digest} softmax/float16", True),
        ("alice", "/tolcal approve {digest}", True),  # an author may tighten
        ("stranger", "/tolcal approve {digest}", False),
        ("admin", "/tolcal status", False),
        ("admin", "/tolcal reject {digest}", False),
    ],
)
def test_who_may_tighten(project: Hub, who: str, line: str, counts: bool) -> None:
    """By the role that the collaborators endpoint gives."""
    approve(project, TIGHT, line, who)
    assert set(check(project).counted) == ({SOFTMAX} if counts else set())


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("write", "write has the role write by now, and widen needs maintain"),
        ("maintain", None),
        ("admin", None),
        ("alice", "alice may not widen it: they opened this pull request; somebody else has to"),
    ],
)
def test_who_may_widen(project: Hub, who: str, why: str | None) -> None:
    """Attack 6: maintainers, but not for their own pull request, unless the input says so."""
    approve(project, WIDE, WIDEN, who)
    assert check(project).refused == ({SOFTMAX: why} if why else {})
    if who == "alice":
        assert set(check(project, Inputs(self_approval=True)).counted) == {SOFTMAX}
    only_admins = check(project, Inputs(widen_permission="admin"))
    assert bool(only_admins.counted) == (who == "admin")


@pytest.mark.parametrize(
    ("login", "message", "why"),
    [
        ("maintain", "more", "commit {sha} is theirs; somebody else has to"),
        ("write", "more", None),
        ("write", "more\n\nCo-authored-by: M <{id}+maintain@users.noreply.github.com>",
         "commit {sha} is theirs too, as its co-author; somebody else has to"),
        ("write", "more\n\nCo-authored-by: M <Maintain@users.noreply.github.com>",
         "commit {sha} is theirs too, as its co-author; somebody else has to"),
        (None, "more",
         "GitHub knows no account of the author of commit {sha}, so whose work it is can't be "
         "told; its e-mail address has to be linked to an account"),
    ],
)  # fmt: skip
def test_authors_of_commits_may_not_widen(
    project: Hub, login: str | None, message: str, why: str | None
) -> None:
    """Attack 6: nor whoever wrote a commit of it; unknown authors may be the same person."""
    maintainer = project.user("maintain")
    author = project.user(login) if login else Person("M", "m@example.org", "1770000000 +0000")
    text = message.format(id=maintainer.id)
    sha = project.main.commit("feature", {"k.py": "3\n"}, text, author)
    approve(project, WIDE, WIDEN)
    expected = why and f"maintain may not widen it: {why.format(sha=sha[:7])}"
    assert check(project).refused == ({SOFTMAX: expected} if expected else {})


# --- the file and the commit ----------------------------------------------------------------


def test_approve_never_lets_in_what_is_looser(project: Hub) -> None:
    """Attack 4: a looser value of the same proposal needs widen, whoever put it in the file."""
    both = {SOFTMAX: cell(1e-1), GELU: cell(1e-5)}
    approve(project, both, "/tolcal approve {digest}", written=both)
    found = check(project)
    assert set(found.counted) == {GELU}
    assert found.refused == {
        SOFTMAX: "it is looser than the base's (100x at the median element), which only widen lets "
        "in"
    }


def test_the_numbers_must_be_the_approved_ones(project: Hub) -> None:
    """Changed by a later push, with or without the digest of the new numbers."""
    approve(project, TIGHT)
    edit_file(project, "atol = 1e-05", "atol = 1.0")
    assert check(project).refused[SOFTMAX].startswith("its numbers are not those of proposal ")
    edit_file(project, TIGHT[SOFTMAX].value_digest, cell(1.0).value_digest)
    assert check(project).refused[SOFTMAX].startswith("its numbers are not those of proposal ")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('by = "maintain"', 'by = "admin"'),
        ('at = "2026-05', 'at = "2025-05'),
        ("digest", 'reason = "x"\ndigest'),
    ],
)
def test_the_audit_trail_must_be_true(project: Hub, old: str, new: str) -> None:
    """Who, when, where and why are the approving comment's own."""
    approve(project, TIGHT)
    edit_file(project, old, new)
    assert check(project).refused == {
        SOFTMAX: "its [approved] table is not what the approving comment says"
    }


def test_an_approval_names_its_pull_request(project: Hub) -> None:
    """Or that of the fork which it was made for."""
    approve(project, TIGHT)
    edit_file(project, "pr = 41", "pr = 40")
    assert check(project).refused == {SOFTMAX: "its approval names another pull request"}


def test_evidence_is_not_rewritten(project: Hub) -> None:
    """Of a cell approved here, or of one that is the base's: nobody approved those figures."""
    approve(project, TIGHT)
    edit_file(project, "rows = 720", "rows = 999999")
    edit_file(project, "rows = 720", "rows = 999998")
    assert check(project).refused == {
        SOFTMAX: "it was changed by hand since it was approved",
        GELU: "its evidence or its approval was changed by hand",
    }


def test_a_rejection_revokes(project: Hub) -> None:
    """Before the approval or after it, as long as it stands, by somebody who may."""
    comment = approve(project, TIGHT)
    digest = comment.body.split()[-1]
    project.comment(41, "read", f"/tolcal reject {digest}")
    assert set(check(project).counted) == {SOFTMAX}
    no = project.comment(41, "write", f"/tolcal reject {digest} because no")
    assert check(project).refused == {SOFTMAX: f"write has rejected proposal {digest}"}
    del project.main.comments[no.id]
    assert set(check(project).counted) == {SOFTMAX}


def test_who_approved_may_be_called_otherwise_by_now(project: Hub) -> None:
    """The account is the same, and so is its role."""
    comment = approve(project, TIGHT)
    project.state.users.pop("maintain")
    comment.author.login = "renamed"
    project.state.users["renamed"] = comment.author
    project.main.roles["renamed"] = "maintain"
    assert set(check(project).counted) == {SOFTMAX}


def test_a_tightening_that_is_gone_leaves_a_widening(project: Hub) -> None:
    """The widening was of the state with it, and is of none with more in it."""
    tight, measured = {GELU: cell(1e-5)}, the_pull(project).head_sha
    first = approve(project, tight)
    approve(project, WIDE, WIDEN, bound=bind(project, WIDE, BASE | tight, measured))
    assert check(project).refused == {}
    del project.main.comments[first.id]
    assert check(project).refused == {GELU: "the comment that its commit names is deleted"}


def test_a_custom_role_is_what_it_inherits(project: Hub) -> None:
    """GitHub gives its permission as write, and what it may do beside that."""
    project.main.roles["maintain"] = "releaser over maintain"
    approve(project, WIDE, WIDEN)
    assert set(check(project).counted) == {SOFTMAX}
    project.main.roles["maintain"] = "releaser over write"
    assert check(project).refused == {
        SOFTMAX: "maintain has the role write by now, and widen needs maintain"
    }


def test_nobody_widens_what_a_bot_opened(project: Hub) -> None:
    """Attack 6: whose work it is can't be told."""
    the_pull(project).author = project.state.bot
    approve(project, WIDE, WIDEN)
    assert check(project).refused == {
        SOFTMAX: "maintain may not widen it: a bot opened this pull request, so whose work it is "
        "can't be told; a person has to open it"
    }


def test_overrides_by_hand_do_not_ride_along(project: Hub) -> None:
    """A looser override on one device class would hold under the cell's approval."""
    approve(project, TIGHT)
    looser = Values(1.0, 1.0, AllClose(1.0, 1.0))
    pull = the_pull(project)
    text = (pulls.file(client(project), PATH, pull.head_sha) or b"").decode()
    now = tolerances.of_text(text, PATH)[SOFTMAX]
    wide = msgspec.structs.replace(now, on={"sm_90": looser})
    project.push(pull, {PATH: tolerances.edited(text, {SOFTMAX: wide}, PATH)})
    assert check(project).refused == {
        SOFTMAX: "its overrides for single devices were changed by hand"
    }


def test_a_commit_binds_its_own_digest_alone(project: Hub) -> None:
    """The trailers must hash to what the comment names: here they are of other values."""
    bound = bind(project, TIGHT, BASE)
    lying = msgspec.structs.replace(bound, history="cd" * 8)
    pull = the_pull(project)
    comment = project.comment(pull, "maintain", f"/tolcal approve {bound.digest}")
    lying = msgspec.structs.replace(lying, comment=comment.id)
    api = client(project)
    said = comments.read(api, pull.number, comment.id)
    assert isinstance(said, comments.Comment)
    mark = msgspec.structs.replace(
        said.mark(pull.number, bound.digest), value=TIGHT[SOFTMAX].value_digest
    )
    text = tolerances.edited(
        tolerances.edited(None, BASE, PATH),
        {SOFTMAX: msgspec.structs.replace(TIGHT[SOFTMAX], approved=mark)},
        PATH,
    )
    committing.commit(
        api, committing.Branch("feature", pull.head_sha), PATH, text,
        f"Approve\n\n{trailers.text(lying)}",
    )  # fmt: skip
    assert check(project).refused[SOFTMAX].startswith(f"no approval of proposal {bound.digest}")


def test_the_measured_head_is_below_our_own_commits(project: Hub) -> None:
    """Approvals that change the file alone are passed by; anything else is measured."""
    head = the_pull(project).head_sha
    approve(project, TIGHT)
    approve(project, {GELU: cell(1e-5)}, force=BASE | TIGHT)
    api = client(project)
    tip = the_pull(project).head_sha
    assert approvals.measured_head(api, Inputs(), tip) == head
    assert approvals.measured_head(api, Inputs(tolerances="x.toml"), tip) == tip
    pushed = project.push(the_pull(project), {PATH: "schema = 1\n"})
    assert approvals.measured_head(api, Inputs(), pushed) == pushed


# --- trailers -------------------------------------------------------------------------------

HEX16 = st.from_regex("[0-9a-f]{16}", fullmatch=True)
TRAILERS = st.builds(
    Trailers,
    head=st.from_regex("[0-9a-f]{40}", fullmatch=True),
    base=HEX16,
    history=HEX16,
    cells=st.dictionaries(
        st.tuples(st.sampled_from(["gelu", "softmax"]), st.sampled_from(["float16", "float32"])),
        HEX16,
        min_size=1,
    ).map(lambda cells: tuple(sorted((*c, v) for c, v in cells.items()))),
    comment=st.integers(1, 2**62),
    by=st.sampled_from(["ada", "octo-cat", "x_y"]),
)


@given(TRAILERS, st.sampled_from(["Approve\n\n", "A\n\nTolcal-Head: x\n\n", ""]))
def test_trailers_are_read_as_written(bound: Trailers, before: str) -> None:
    """Those of the last paragraph, whatever stands before it and whatever GitHub strips."""
    assert trailers.parse(before + trailers.text(bound)) == bound
    assert trailers.parse((before + trailers.text(bound)).rstrip()) == bound


@given(st.text())
def test_any_message_is_taken(message: str) -> None:
    """No message of a commit raises."""
    assert trailers.parse(message) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Tolcal-Head: ", "Tolcal-Head: A"),
        ("Tolcal-By: ada", ""),
        ("Tolcal-By: ada", "Tolcal-By: ada\nTolcal-By: eve"),
        ("Tolcal-By: ada", "Tolcal-By: ada\nTolcal-More: x"),
        ("Tolcal-Comment: 7", "Tolcal-Comment: 07"),
        ("Tolcal-Cell: gelu/float32", "Tolcal-Cell: gelu/fp32"),
        ("Tolcal-Comment: 7", "Tolcal-Comment: 7\nTolcal-Cell: gelu/float32 " + "0" * 16),
        ("Tolcal-Comment: 7", "Tolcal-Comment: \u0667"),
    ],
)
def test_trailers_are_strict(old: str, new: str) -> None:
    """Missing, twice, unknown or malformed: no approval."""
    cells = (("gelu", "float32", "1" * 16),)
    text = trailers.text(Trailers("a" * 40, "b" * 16, "c" * 16, cells, 7, "ada"))
    assert old in text
    assert trailers.parse(text)
    assert trailers.parse(text.replace(old, new)) is None


# --- overrides by device class --------------------------------------------------------------


def with_own(values: Tolerance, atol: float) -> Tolerance:
    """The cell with an override for sm_90 that rests on the same evidence."""
    own = Values(atol, 0.0, AllClose(1e-3, 1e-3), evidence=values.evidence)
    return msgspec.structs.replace(values, on={"sm_90": own})


def approve_own(
    hub: Hub, proposed: Tolerance, line: str, written: Tolerance | None = None
) -> Comment:
    """A proposal with an override; the bot marks it as well, in the same words."""
    pull = the_pull(hub)
    bound = msgspec.structs.replace(
        bind(hub, {SOFTMAX: proposed}, BASE), cells=((*SOFTMAX, proposed.whole_digest),)
    )
    comment = hub.comment(pull, "maintain", line.format(digest=bound.digest))
    said = comments.read(client(hub), pull.number, comment.id)
    assert isinstance(said, comments.Comment)
    mark = said.mark(pull.number, bound.digest)
    cell = written or proposed
    on = {
        device: msgspec.structs.replace(
            values, approved=msgspec.structs.replace(mark, value=values.value_digest, reason=None)
        )
        for device, values in cell.on.items()
    }
    mark = msgspec.structs.replace(mark, value=cell.value_digest)
    marked = msgspec.structs.replace(cell, approved=mark, on=on)
    before = pulls.file(client(hub), PATH, pull.head_sha)
    text = tolerances.edited((before or b"").decode(), {SOFTMAX: marked}, PATH)
    bound = msgspec.structs.replace(bound, comment=comment.id, by="maintain")
    branch = committing.Branch(pull.head_branch, pull.head_sha)
    committing.commit(client(hub), branch, PATH, text, f"Approve\n\n{trailers.text(bound)}")
    return comment


def test_an_approved_override_counts(project: Hub) -> None:
    """The proposal's digest covers it; the base's values stay, so this is no widening."""
    approve_own(project, with_own(BASE[SOFTMAX], 1e-5), "/tolcal approve {digest}")
    found = check(project)
    assert found.refused == {}
    assert found.counted[SOFTMAX].on["sm_90"].atol == 1e-5
    edit_file(project, "[softmax.float16.on.sm_90]\natol = 1e-05", "[softmax.float16.on.sm_90]\n"
              "atol = 0.9")  # fmt: skip
    assert check(project).refused == {
        SOFTMAX: "its overrides for single devices were changed by hand"
    }


def test_an_override_that_was_not_proposed_does_not_count(project: Hub) -> None:
    """The bot's commit holds a looser one than its trailers say."""
    proposed, looser = (with_own(BASE[SOFTMAX], atol) for atol in (1e-5, 1e-4))
    approve_own(project, proposed, "/tolcal approve {digest}", looser)
    assert check(project).refused == {
        SOFTMAX: "its overrides for single devices were changed by hand"
    }


def test_an_override_that_is_looser_needs_widening(project: Hub) -> None:
    """On its device it holds in place of the cell, so that is what it is compared with."""
    wide = with_own(BASE[SOFTMAX], 1e-1)
    approve_own(project, wide, "/tolcal approve {digest}")
    assert check(project).refused == {
        SOFTMAX: "it is looser than the base's (on sm_90: 100x at the median element), which only "
        "widen lets in"
    }
