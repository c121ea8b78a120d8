"""Starts tolcal with the action's inputs, which come as TOLCAL_INPUT_* variables.

What tolcal prints is never read as a workflow command. In mode `run`, where a pull request's own
code runs, no file that steers the job and no token is passed on.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # where PYTHONSAFEPATH is set it is not there
from log import ActionError, escape, fail, needed, stopped

#: input -> option, by mode; an empty input leaves the default (pyproject.toml's, in mode run).
RUN = {
    "corpus": "--corpus",
    "tolerances": "--tolerances",
    "device": "--device",
    "profile": "--profile",
    "cases": "--cases",
    "gate": "--gate",
    "shard": "--shard",
    "engine": "--engine",
    "timeout": "--timeout",
    "workers": "--workers",
}
INGEST = {
    "corpus": "--corpus",
    "tolerances": "--tolerances",
    "history": "--history",
    "history-branch": "--history-branch",
    "ingest-workflow": "--ingest-workflow",
}
#: Of report and command, which both judge.
JUDGING = INGEST | {
    "rule": "--rule",
    "fail-on": "--fail-on",
    "run-workflow": "--run-workflow",
    "tighten-permission": "--tighten-permission",
    "widen-permission": "--widen-permission",
}
SWITCHES = ("comment", "self-approval")  # of them as well
MODES = ("run", "report", "command", "ingest")
#: Events of trusted jobs: what a pull request wrote must not run there.
TRUSTED_EVENTS = ("pull_request_target", "workflow_run", "issue_comment")
#: What a kernel has no business with: it could speak for the job, or act for it.
WITHHELD = re.compile(
    r"TOLCAL_(INPUT_.*|TOKEN)|ACTIONS_.*|GH_TOKEN"
    r"|GITHUB_(TOKEN|OUTPUT|ENV|PATH|STATE|STEP_SUMMARY|EVENT_PATH)"
)
_PATH = re.compile(r"[\w./ +@-]{1,1000}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,120}")


def given(environment: Mapping[str, str], name: str) -> str:
    """The value of an input, "" if it is not set."""
    return environment.get(f"TOLCAL_INPUT_{name.upper().replace('-', '_')}", "").strip()


def out(environment: Mapping[str, str]) -> Path:
    """The folder of results: outside the checkout unless it is named."""
    return Path(
        given(environment, "out") or Path(needed(environment, "RUNNER_TEMP")) / "tolcal-out"
    )


def domain(environment: Mapping[str, str], event: Mapping[str, Any]) -> str:
    """Whose code this run executes: what one has compiled, another must not load."""
    if "pull_request" in event:
        head, base = (event["pull_request"].get(side) or {} for side in ("head", "base"))
        ids = [(side.get("repo") or {}).get("id") for side in (head, base)]
        return "same-repository" if ids[0] is not None and ids[0] == ids[1] else "fork"
    default = (event.get("repository") or {}).get("default_branch")
    trusted = default and environment.get("GITHUB_REF") == f"refs/heads/{default}"
    return "default-branch" if trusted else "same-repository"


def arguments(environment: Mapping[str, str], event: Mapping[str, Any]) -> list[str]:
    """What follows `tolcal`. Values are joined to their option, so that none can be one."""
    mode = given(environment, "mode")
    if mode not in MODES:
        raise ActionError(f"mode: {mode!r}; one of {', '.join(MODES)} is needed")
    table = {"run": RUN, "ingest": INGEST}.get(mode, JUDGING)
    options = [
        f"{option}={value}" for name, option in table.items() if (value := given(environment, name))
    ]
    if mode != "run":
        for name in SWITCHES if mode != "ingest" else ():
            value = given(environment, name)
            if value not in ("", "true", "false"):
                raise ActionError(f"{name}: {value!r}; give true or false")
            if value:
                options.append(f"--{name}" if value == "true" else f"--no-{name}")
        return ["github", mode, *options, f"--out={out(environment)}"]
    kind = environment.get("GITHUB_EVENT_NAME")
    if kind in TRUSTED_EVENTS:
        raise ActionError(
            f"mode: run executes the code of the checkout, and a job on {kind} may hold a token "
            "that can write: measure in a workflow on pull_request"
        )
    cache = Path(
        given(environment, "cache-directory") or f"{needed(environment, 'RUNNER_TEMP')}/triton"
    )
    return [
        "run", *options,
        # The same for all shards, and again when failed ones are run again: they are one run.
        f"--seed={int(needed(environment, 'GITHUB_RUN_ID'))}",
        f"--triton-cache={cache.absolute() / domain(environment, event)}",
        f"--out={out(environment) / 'records.jsonl.gz'}",
        "--overwrite",
    ]  # fmt: skip


def for_child(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that tolcal gets."""
    if given(environment, "mode") == "run":
        return {name: v for name, v in environment.items() if not WITHHELD.fullmatch(name)}
    kept = {n: v for n, v in environment.items() if not n.startswith("TOLCAL_INPUT_")}
    return kept | {"TOLCAL_TOKEN": given(environment, "token")}


def records_artifact(environment: Mapping[str, str]) -> str:
    """Unique in the repository: run, attempt and shard."""
    part, _, parts = (given(environment, "shard") or "1/1").partition("/")
    run, attempt = (int(environment[f"GITHUB_RUN_{name}"]) for name in ("ID", "ATTEMPT"))
    return f"tolcal-records-{run}-{attempt}-{int(part)}of{int(parts)}"


def write_outputs(environment: Mapping[str, str]) -> None:
    """Where the records are and what their artifact is called, if there are any."""
    records = out(environment).absolute() / "records.jsonl.gz"
    if not records.is_file():
        return
    name = records_artifact(environment)
    if not _PATH.fullmatch(str(records)) or not _NAME.fullmatch(name):
        raise ActionError(f"out: {str(records)!r} has characters that no output may have")
    with Path(environment["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.write(f"records={records}\nrecords-artifact={name}\n")


def run(command: list[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Its exit status, and the last that it said of itself on standard error.

    That is a pipe, on which tolcal draws no bars. A cancelled job's signal goes on to it, so that
    it ends in order.
    """
    child = subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )

    def hand_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, hand_on)
    said = ""

    def copy() -> None:
        nonlocal said
        assert child.stderr is not None
        while line := child.stderr.readline(1 << 16):
            os.write(2, line)
            if line.startswith(b"tolcal: "):
                said = line.decode("utf-8", "replace").removeprefix("tolcal: ").strip()[:2000]

    copying = threading.Thread(target=copy, daemon=True)
    copying.start()
    status = child.wait()
    copying.join(5)  # what a kernel has left behind may hold the pipe for good
    return (status if status >= 0 else 128 - status), said


def main(environment: Mapping[str, str]) -> int:
    """Status of the step: a verdict is no failure of it, since the check run says it.

    A job on workflow_run or issue_comment belongs to the default branch's commit, which must not
    turn red for somebody's pull request; and crashed kernels' records are to be uploaded.
    """
    path = environment.get("GITHUB_EVENT_PATH", "")
    event = json.loads(Path(path).read_text("utf-8")) if path else {}
    command = [str(Path(sys.executable).with_name("tolcal")), *arguments(environment, event)]
    mode = given(environment, "mode")
    with stopped():
        status, said = run(command, for_child(environment))
    if mode == "run" and status in (0, 1):
        write_outputs(environment)
    if status == 1 and mode != "ingest":
        print(f"tolcal {mode}: there are findings; the check on the pull request says which")
        return 0
    if status:
        # In mode run the pull request's code may have said anything: its words stay in the log.
        why = "see the log" if mode == "run" or not said else escape(said)
        print(f"::error title=tolcal::tolcal {mode} ended with exit status {status}: {why}")
    return status


if __name__ == "__main__":
    try:
        sys.exit(main(os.environ))
    except ActionError as problem:
        sys.exit(fail(problem))
