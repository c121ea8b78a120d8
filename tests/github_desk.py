"""A pull request with something to approve and something to widen, and people who comment on it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from github_server.state import Comment, Pull
from github_site import BAD, CHANGED, CORPUS, Site, approved_cell, claims
from tests_support import ROOT, make_stats

from tolcal import tolerances
from tolcal.github import command, judging, pulls
from tolcal.model import AllClose, Record, Tolerance

PATH = "tolerances.toml"
SOFTMAX, RELU = ("softmax", "float32"), ("relu", "float32")
KERNEL = "corpus/relu/kernels/relu_triton.py"
NOTE = "# ours: ask Ada\n"
WIDEN = "/tolcal widen {digest} relu/float32 because the sum is in another order"
ROLES = ("none", "read", "triage", "write", "maintain", "admin")
#: softmax can tighten; relu's hand-made bound is below what its control makes.
FORCE = {SOFTMAX: approved_cell(), RELU: approved_cell(2.0**-26)}


class Desk(Site):
    """`pull` is alice's, and breaks relu by a little more than is approved."""

    def __init__(self, hub: Any, folder: Path, records: Sequence[Record]) -> None:
        super().__init__(hub, folder, records)
        self._digests: dict[Any, str] = {}
        narrow = msgspec.structs.replace(FORCE[RELU], scaled_tol=0.0)
        mark = msgspec.structs.replace(narrow.approved, value=narrow.value_digest)
        force = FORCE | {RELU: msgspec.structs.replace(narrow, approved=mark)}
        self.before = NOTE + tolerances.edited("schema = 1\n", force, PATH)
        hub.main.commit("main", {PATH: self.before})
        for role in ROLES:
            hub.user(role, role)
        hub.user("alice", "admin")
        self.pull = hub.pull(files={KERNEL: CHANGED}, author="alice")
        self.measured = self.pull.head_sha
        self.run = self.measure(self.pull, claims(1, relu_triton=make_stats(2.0**-25)))

    # What is known

    @property
    def digest(self) -> str:
        """That of the present proposal; judged once for each state of things."""
        main, run = self.hub.main, max(self.hub.main.runs.values(), key=lambda run: run.id)
        state = (
            self.pull.number, self.pull.head_sha, self.pull.base_branch, run.id,
            main.git.ref("refs/heads/main"), *sorted((self.folder / "history").iterdir()),
        )  # fmt: skip
        if state not in self._digests:
            self._digests[state] = self.judged.document.proposal.digest
        return self._digests[state]

    @property
    def judged(self) -> judging.Judged:
        """The pull request as a report would judge it."""
        api = self.client()
        return judging.judge(api, self.inputs, self.hub.job(), pulls.read(api, self.pull.number))

    @property
    def file(self) -> str:
        """The tolerance file on the pull request's head, as git has it."""
        return self.git("show", f"{self.pull.head_sha}:{PATH}")

    @property
    def cells(self) -> dict[tuple[str, str], Tolerance]:
        """Its cells."""
        return tolerances.of_text(self.file, PATH)

    def git(self, *arguments: str) -> str:
        """In the bare repository of the base."""
        done = subprocess.run(
            ["git", "-C", str(self.hub.main.git.path), *arguments],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    # What is done

    def say(self, who: str, line: str, pull: Pull | None = None) -> Comment:
        """A comment; ``{digest}`` is the present proposal's."""
        text = line.format(digest=self.digest) if "{digest}" in line else line
        return self.hub.comment(pull or self.pull, who, text)

    def event(self, comment: Comment, action: str = "created") -> dict[str, Any]:
        """The event of a comment, of the API's own answers."""
        api = self.client()
        return {
            "action": action,
            "issue": api.get(f"issues/{comment.issue}"),
            "comment": api.get(f"issues/comments/{comment.id}"),
        }

    def handle(self, comment: Comment, action: str = "created", **inputs: Any) -> str:
        """`tolcal github command` in this process; the reply, "" without one."""
        job = self.hub.job("issue_comment", self.event(comment, action))
        self.hub.calls.clear()
        chosen = msgspec.structs.replace(self.inputs, **inputs)
        assert command.run(self.client(), chosen, job) == 0
        return self.reply(comment)

    def ask(self, who: str, line: str, **inputs: Any) -> str:
        """A comment, and the reply to it."""
        return self.handle(self.say(who, line), **inputs)

    def reply(self, comment: Comment) -> str:
        """The one reply to a comment, without its marker."""
        mark = f"<!-- tolcal:reply {comment.id} -->\n"
        found = [c.body.removeprefix(mark) for c in self.comments if c.body.startswith(mark)]
        assert len(found) <= 1
        return found[0].rstrip("\n") if found else ""

    def reactions(self, comment: Comment) -> list[str]:
        """Of the bot."""
        return [content for _, _, content, _ in comment.reactions]

    def process_command(self, comment: Comment, *options: str) -> tuple[int, str]:
        """The same as a process of its own: exit status, and all that it printed."""
        environment = self.hub.environment("issue_comment", self.event(comment))
        given = ["--history", self.inputs.history, "--out", str(self.inputs.out), *options]
        done = subprocess.run(
            [sys.executable, "-m", "tolcal", "github", "command", *given],
            cwd=self.folder, capture_output=True, text=True,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment},
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


def scrubbed(desk: Desk, text: str) -> str:
    """A reply without what differs from run to run."""
    text = text.replace(desk.hub.api.url, "https://github.example")
    text = re.sub(r"(?<=commit/)[0-9a-f]{40}", "SHA", text)
    text = re.sub(r"`[0-9a-f]{16}`", "`DIGEST`", text)
    return re.sub(r"`[0-9a-f]{7}`", "`SHA`", text)


@pytest.fixture
def desk(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: Path
) -> Iterator[Desk]:
    """One with a history; reports in this process are without charts, which are slow."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "altair", None)
    return Desk(hub, folder, trusted)


__all__ = ["BAD", "CORPUS", "AllClose", "Desk", "desk", "scrubbed"]
