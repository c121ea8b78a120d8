"""The action's scripts: what they install, what they start, what they let through."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import install
import log
import pytest
import start
from action_support import copy_action, listing, wheelhouse
from ruamel.yaml import YAML
from tests_support import DATA, ROOT

from tolcal.cli import build_parser, hosting
from tolcal.github import checks

ACTION: dict[str, Any] = YAML(typ="safe", pure=True).load((ROOT / "action.yml").read_text())
INSTALL, START = ACTION["runs"]["steps"]
RUNNER = {"RUNNER_TEMP": "/temp", "GITHUB_RUN_ID": "1234567890", "GITHUB_RUN_ATTEMPT": "2"}
#: An acceptable value of each input, other than its default.
VALUES = {
    "corpus": "kernels", "tolerances": "limits.toml", "device": "cuda:1", "profile": "default",
    "cases": "3", "gate": "5", "shard": "2/4", "engine": "ray", "timeout": "9", "workers": "2",
    "history": "branch", "history-branch": "numbers", "rule": "paper", "fail-on": "drift",
    "comment": "false", "run-workflow": ".github/workflows/a.yml",
    "ingest-workflow": ".github/workflows/b.yml", "tighten-permission": "admin",
    "widen-permission": "admin", "self-approval": "true", "out": "results",
    "cache-directory": "/cache",
}  # fmt: skip


def variables(mode: str, **inputs: str) -> dict[str, str]:
    """What a step of the action has in its environment: defaults, and what is given."""
    values = {name: spec.get("default", "") for name, spec in ACTION["inputs"].items()}
    values |= {name.replace("_", "-"): value for name, value in inputs.items()} | {"mode": mode}
    return RUNNER | {
        f"TOLCAL_INPUT_{name.upper().replace('-', '_')}": value for name, value in values.items()
    }


def test_every_input_reaches_the_command_line() -> None:
    """Complaint 16: another value of any input is another command line, in one mode at least."""
    silent = set()
    for name in set(ACTION["inputs"]) - {"mode", "python", "wheelhouse", "token"}:
        plain = [start.arguments(variables(mode), {}) for mode in start.MODES]
        value = {name: VALUES[name]}
        if plain == [start.arguments(variables(mode, **value), {}) for mode in start.MODES]:
            silent.add(name)
    assert silent == set()


@pytest.mark.parametrize("mode", start.MODES)
def test_command_lines_are_understood(mode: str) -> None:
    """All inputs at once, through the real parser: the values arrive where they belong."""
    args = build_parser().parse_args(start.arguments(variables(mode, **VALUES), {}))
    assert (args.corpus, args.tolerances) == ("kernels", "limits.toml")
    if mode == "run":
        assert (args.device, args.cases, args.gate, args.shard) == ("cuda:1", 3, 5, (2, 4))
        assert (args.engine, args.timeout, args.workers) == ("ray", 9.0, 2)
        assert args.triton_cache == "/cache/same-repository"
        assert args.out == "results/records.jsonl.gz"
        assert args.seed == 1234567890  # for all shards and attempts: they are one run
    else:
        assert (args.command, args.mode, args.out) == ("github", mode, "results")
        assert (args.history, args.history_branch) == ("branch", "numbers")
        assert args.ingest_workflow == ".github/workflows/b.yml"
        judging = mode != "ingest"
        assert args.rule == ("paper" if judging else None)
        assert args.fail_on == ("drift" if judging else None)
        assert (args.comment, args.self_approval) == ((False, True) if judging else (None, None))
        assert args.run_workflow == (".github/workflows/a.yml" if judging else None)
        people = "admin" if judging else None
        assert (args.tighten_permission, args.widen_permission) == (people, people)


def test_trusted_jobs_read_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complaint 16: the corpus of pyproject.toml is the one in all modes; an input is above it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.tolcal]\ncorpus = "kernels"\n')
    for mode in ("report", "command", "ingest"):
        plain = build_parser().parse_args(start.arguments(variables(mode), {}))
        assert hosting.inputs(plain).corpus == "kernels"
        assert hosting.inputs(plain).tolerances == "tolerances.toml"
        given = build_parser().parse_args(start.arguments(variables(mode, corpus="ops"), {}))
        assert hosting.inputs(given).corpus == "ops"


def test_defaults_leave_settings_alone() -> None:
    """What is not given is not passed on: pyproject.toml's table holds."""
    assert start.arguments(variables("run"), {}) == [
        "run", "--shard=1/1", "--seed=1234567890", "--triton-cache=/temp/triton/same-repository",
        "--out=/temp/tolcal-out/records.jsonl.gz", "--overwrite",
    ]  # fmt: skip


def rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading of docs/github.md, without the head."""
    section = (
        (ROOT / "docs" / "github.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    )
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_the_reference_lists_every_input_and_output() -> None:
    """docs/github.md has each with its default and the modes that take it."""
    listed = {row[0].strip("`"): row[1:] for row in rows("Inputs")}
    defaults = {name: spec.get("default", "") for name, spec in ACTION["inputs"].items()}
    assert {name: row[1].strip("`") for name, row in listed.items()} == defaults
    for name, row in listed.items():
        if name in VALUES:
            value = {name: VALUES[name]}
            takes = [
                mode for mode in start.MODES
                if start.arguments(variables(mode), {})
                != start.arguments(variables(mode, **value), {})
            ]  # fmt: skip
            assert row[0] == ("all" if len(takes) == 4 else ", ".join(takes)), name
    assert [row[0].strip("`") for row in rows("Outputs")] == list(ACTION["outputs"])


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_descriptions_name_the_modes_of_the_reference(kind: str) -> None:
    """action.yml says of each input and output which modes it is of, as docs/github.md does."""
    said = {}
    for name, spec in ACTION[kind].items():
        found = re.match(rf"(({'|'.join(start.MODES)})(, | and |: ))+", spec["description"])
        said[name] = found[0].removesuffix(": ") if found and found[0].endswith(": ") else "all"
    listed = {row[0].strip("`"): row[1] for row in rows(kind.capitalize())}
    assert said == {name: modes or "all" for name, modes in listed.items()}


def test_every_verdict_is_explained() -> None:
    """docs/github.md says what each conclusion of the check means."""
    explained = [row[0].strip("`") for row in rows("What the check says")]
    assert explained == list(typing.get_args(checks.Conclusion))


def test_inputs_come_by_the_environment_alone() -> None:
    """Attack 12: each input has its variable in the step that uses it; scripts have no input."""
    start_inputs = {name for name in ACTION["inputs"] if name not in ("python", "wheelhouse")}
    expected = {
        f"TOLCAL_INPUT_{name.upper().replace('-', '_')}": f"${{{{ inputs.{name} }}}}"
        for name in start_inputs
    } | {"TOLCAL_INPUT_TOKEN": "${{ inputs.mode != 'run' && inputs.token || '' }}"}
    assert START["env"] == expected
    assert INSTALL["env"] == {
        f"TOLCAL_INPUT_{name.upper()}": f"${{{{ inputs.{name} }}}}"
        for name in ("mode", "python", "wheelhouse")
    }


def test_outputs_are_those_of_the_step() -> None:
    """Complaint 16: nothing is declared that leads nowhere."""
    assert {name: spec["value"] for name, spec in ACTION["outputs"].items()} == {
        name: f"${{{{ steps.start.outputs.{name} }}}}"
        for name in (
            "verdict", "tightened", "newly-caught", "new-false-positives", "regressions",
            "proposal-digest", "comment-url", "report-path", "records", "records-artifact",
            "history-path", "history-artifact",
        )
    }  # fmt: skip


@pytest.mark.parametrize("value", ["--help", "-x", "a b; rm -rf /", "$(id)", "a\u2028b"])
def test_a_value_is_never_an_option(value: str) -> None:
    """Attack 12: whatever an input holds stays one argument, joined to its option."""
    assert f"--corpus={value}" in start.arguments(variables("run", corpus=value), {})


@pytest.mark.parametrize("event", start.TRUSTED_EVENTS)
def test_kernels_do_not_run_in_trusted_jobs(event: str) -> None:
    """Attack 5: a job whose token may write doesn't execute a checkout's kernels."""
    with pytest.raises(log.ActionError, match="measure in a workflow on pull_request"):
        start.arguments(variables("run") | {"GITHUB_EVENT_NAME": event}, {})


@pytest.mark.parametrize("inputs", [{"mode": "merge"}, {"mode": "report", "comment": "maybe"}])
def test_wrong_inputs_are_named(inputs: dict[str, str]) -> None:
    """One line: which input, what it is, what it may be."""
    (name, value), *_ = reversed(inputs.items())
    with pytest.raises(log.ActionError, match=f"^{name}: '{value}'"):
        start.arguments(variables(**inputs), {})


def repository(number: int | None) -> dict[str, Any] | None:
    return None if number is None else {"id": number}


@pytest.mark.parametrize(
    ("event", "ref", "domain"),
    [
        ({"pull_request": {"head": {"repo": repository(1)}, "base": {"repo": repository(1)}}},
         "refs/pull/7/merge", "same-repository"),
        ({"pull_request": {"head": {"repo": repository(2)}, "base": {"repo": repository(1)}}},
         "refs/pull/7/merge", "fork"),
        ({"pull_request": {"head": {"repo": None}, "base": {"repo": repository(1)}}},
         "refs/heads/main", "fork"),  # a fork that is gone
        ({"repository": {"default_branch": "main"}}, "refs/heads/main", "default-branch"),
        ({"repository": {"default_branch": "main"}}, "refs/heads/topic", "same-repository"),
        ({}, "refs/heads/main", "same-repository"),
    ],
)  # fmt: skip
def test_compiled_kernels_stay_in_their_trust_domain(
    event: dict[str, Any], ref: str, domain: str
) -> None:
    """Attack 13: what a fork has compiled is never loaded by a run that is trusted."""
    found = start.arguments(variables("run") | {"GITHUB_REF": ref}, event)
    assert f"--triton-cache=/temp/triton/{domain}" in found


def test_kernels_get_no_token_and_no_file_of_the_job() -> None:
    """Attack 11, 14: the environment of kernels has nothing to speak or act for the job with."""
    names = {f"GITHUB_{n}" for n in ("ENV", "OUTPUT", "PATH", "STATE", "STEP_SUMMARY", "TOKEN")}
    names |= {"GH_TOKEN", "ACTIONS_RUNTIME_TOKEN", "TOLCAL_TOKEN", "GITHUB_EVENT_PATH"}
    full = variables("run", token="t") | dict.fromkeys(names | {"PATH", "CUDA_HOME"}, "x")
    assert set(start.for_child(full)) == {"PATH", "CUDA_HOME", *RUNNER}
    hosted = variables("report", token="t") | {"GITHUB_OUTPUT": "x"}
    assert start.for_child(hosted) == RUNNER | {"GITHUB_OUTPUT": "x", "TOLCAL_TOKEN": "t"}


def test_annotations_are_one_line() -> None:
    """Attack 16: a message with a line break is no second command."""
    assert log.escape("50 %\n::set-env::x\r") == "50 %25%0A::set-env::x%0D"


def test_a_signal_reaches_tolcal() -> None:
    """A cancelled job ends tolcal in order, and its status is the step's."""
    child = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    code = (
        f"import os, sys, start; "
        f"sys.exit(start.run([sys.executable, '-c', {child!r}], os.environ)[0])"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT / "action")},
    )  # fmt: skip
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == b"ready\n"
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(60) == 7


def test_what_tolcal_said_is_the_annotation_of_a_trusted_step() -> None:
    """Its last word is kept, and all of it is in the log; standard error is no terminal."""
    child = (
        "import sys\n"
        "print('tolcal: first', file=sys.stderr)\n"
        "print('tolcal: nowhere: no corpus', file=sys.stderr)\n"
        "print('else', sys.stderr.isatty(), file=sys.stderr)\n"
        "sys.exit(2)\n"
    )
    code = f"import os, sys, start; print(start.run([sys.executable, '-c', {child!r}], os.environ))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "action")},
    )  # fmt: skip
    assert done.stdout == "(2, 'nowhere: no corpus')\n"
    assert done.stderr == "tolcal: first\ntolcal: nowhere: no corpus\nelse False\n"


@pytest.mark.parametrize("name", ["RUNNER_TEMP", "GITHUB_RUN_ID"])
def test_scripts_started_by_hand_say_what_they_lack(name: str) -> None:
    """One line instead of a traceback."""
    with pytest.raises(log.ActionError, match=f"^{name} is not set: this script runs as a step"):
        start.arguments({k: v for k, v in variables("run").items() if k != name}, {})


class Runner:
    """A runner's folders, and the two steps of the action as bash starts them."""

    def __init__(self, folder: Path, action: Path, wheels: Path) -> None:
        self.temp, self.action, self.wheels = folder / "temp", action, wheels
        self.output = folder / "output"
        self.temp.mkdir(parents=True)
        self.event = folder / "event.json"
        self.event.write_text("{}")

    def step(self, step: dict[str, Any], cwd: Path, inputs: dict[str, str], **more: str) -> Any:
        given = variables(**inputs, python=sys.executable, wheelhouse=str(self.wheels))
        env = {
            "PATH": os.environ["PATH"], "HOME": str(self.temp), "PIP_NO_INDEX": "1",
            "GITHUB_ACTION_PATH": str(self.action), "GITHUB_EVENT_PATH": str(self.event),
            "GITHUB_OUTPUT": str(self.output), "GITHUB_EVENT_NAME": "pull_request",
            **given, "RUNNER_TEMP": str(self.temp), **more,
        }  # fmt: skip
        self.output.write_text("")
        return subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step["run"]], cwd=cwd, env=env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Mode run installed without an index, from tolcal's wheel, under a Python of a venv."""
    folder = tmp_path_factory.mktemp("runner")
    wheels = wheelhouse(folder / "wheels", built=True)
    made = Runner(folder, copy_action(folder / "action"), wheels)
    before = listing(made.action)
    done = made.step(INSTALL, folder, {"mode": "run"})
    assert done.returncode == 0, done.stdout
    assert listing(made.action) == before
    return made


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A user's repository."""
    folder = tmp_path / "checkout"
    shutil.copytree(DATA / "sample_repo", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_the_runners_packages_stay(runner: Runner) -> None:
    """Only tolcal is in the new environment; torch, triton and numpy are the runner's."""
    (site,) = (runner.temp / "tolcal-venv").glob("lib/python3*/site-packages")
    distributions = {path.name.split("-")[0] for path in site.glob("*.dist-info")}
    assert distributions == {"tolcal"}
    code = "import numpy, tolcal, torch, triton; print(tolcal.__file__, torch.__file__)"
    done = subprocess.run(
        [site.parents[2] / "bin" / "python", "-c", code], cwd=runner.temp,
        capture_output=True, text=True,
    )  # fmt: skip
    import torch

    assert done.stdout.split() == [str(site / "tolcal" / "__init__.py"), torch.__file__]


def test_pip_may_not_replace_them(runner: Runner) -> None:
    """The constraints name what the runner has."""
    import numpy
    import torch

    text = (runner.temp / "tolcal-venv" / "constraints.txt").read_text()
    assert f"torch=={torch.__version__}\n" in text
    assert f"numpy=={numpy.__version__}\n" in text
    assert "pandas" not in text
    assert "pandas==" in install.constraints("report", ROOT, None)


def test_installing_again_is_free(runner: Runner) -> None:
    """A job that uses the action twice installs once; pip doesn't run."""
    done = runner.step(INSTALL, runner.temp, {"mode": "run"})
    assert done.stdout == f"tolcal is in {runner.temp}/tolcal-venv\n"


def test_build_backend_in_the_wheelhouse(runner: Runner, tmp_path: Path) -> None:
    """No wheel of tolcal: it is built from the action's folder, which is not written to."""
    backend = wheelhouse(tmp_path / "backend", built=False)
    other = Runner(tmp_path / "other", runner.action, backend)
    before = listing(runner.action)
    done = other.step(INSTALL, tmp_path, {"mode": "report"})
    assert done.returncode == 0, done.stdout
    assert listing(runner.action) == before
    assert (other.temp / "tolcal-venv" / "bin" / "tolcal").is_file()


def test_settings_of_the_runner_lead_pip_nowhere_else(runner: Runner, tmp_path: Path) -> None:
    """What would install elsewhere or nothing is not for this; what still does is noticed."""
    astray = {
        "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "error", "PIP_DRY_RUN": "1", "PIP_USER": "1",
        "PIP_PREFIX": str(tmp_path / "away"), "PIP_PYTHON": "/usr/bin/python3",
        "PIP_REQUIRE_HASHES": "1", "PIP_TARGET": str(tmp_path / "away"),
    }  # fmt: skip
    other = Runner(tmp_path / "other", runner.action, runner.wheels)
    done = other.step(INSTALL, tmp_path, {"mode": "run"}, **astray)
    assert done.returncode == 0, done.stdout
    assert not (tmp_path / "away").exists()
    assert (other.temp / "tolcal-venv" / "bin" / "tolcal").is_file()
    again = Runner(tmp_path / "again", runner.action, runner.wheels)
    config = again.temp / "pip.conf"
    config.write_text("[install]\ndry-run = true\n")
    done = again.step(INSTALL, tmp_path, {"mode": "run"}, PIP_CONFIG_FILE=str(config))
    assert done.returncode == 2
    assert f"is not in {again.temp}/tolcal-venv: look for a pip.conf" in done.stdout
    assert not (again.temp / "tolcal-venv" / "tolcal.json").exists()


def test_a_wheelhouse_that_lacks_something(runner: Runner, tmp_path: Path) -> None:
    """Exit 2, and one line, also as an annotation, that says what is not there."""
    (tmp_path / "empty").mkdir()
    python = runner.temp / "tolcal-venv" / "bin" / "python"
    index = ("--no-index", "--find-links", str(tmp_path / "empty"))
    with pytest.raises(log.ActionError) as caught:
        install.pip(python, "install", "-q", *index, "--force-reinstall", str(runner.action))
    assert str(caught.value).startswith(
        "pip cannot install tolcal: ERROR: Could not find a version that satisfies the requirement "
        "hatchling>="
    )
    other = Runner(tmp_path / "other", runner.action, tmp_path / "none")
    done = other.step(INSTALL, tmp_path, {"mode": "run"})
    assert done.returncode == 2
    line = f"wheelhouse: {tmp_path}/none is no folder on this runner"
    assert done.stdout == f"::error title=tolcal::{line}\ntolcal: {line}\n"


def test_hostile_kernels(runner: Runner, checkout: Path) -> None:
    """Attack 11, 16: what a kernel prints is no command, and the job's files are out of sight.

    A kernel that crashes doesn't keep the records from being uploaded: the report decides.
    """
    kernel = checkout / "corpus/row_softmax/kernels/row_softmax_torch.py"
    kernel.write_text(
        "import os\n"
        "print('::error::from a kernel', flush=True)\n"
        "os.write(1, b'::set-output name=verdict::success')\n"
        "seen = [n for n in ('GITHUB_OUTPUT', 'GITHUB_ENV', 'TOLCAL_TOKEN') if n in os.environ]\n"
        "def run(x):\n"
        "    raise RuntimeError(f'seen {seen}')\n"
    )
    inputs = {"mode": "run", "device": "cpu", "gate": "1", "cases": "1", "shard": "1/1"}
    done = runner.step(START, checkout, inputs)
    assert done.returncode == 0, done.stdout
    assert "RuntimeError: seen []" in done.stdout
    lines = done.stdout.splitlines()
    token = lines[0].removeprefix("::stop-commands::")
    assert re.fullmatch("[0-9a-f]{32}", token)
    assert lines.index(f"::{token}::") == len(lines) - 2  # all that was printed is before it
    assert lines[-1] == "tolcal run: there are findings; the check on the pull request says which"
    records = runner.temp / "tolcal-out" / "records.jsonl.gz"
    assert runner.output.read_text() == (
        f"records={records}\nrecords-artifact=tolcal-records-1234567890-2-1of1\n"
    )
    assert records.is_file()


def test_errors_fail_the_step(runner: Runner, checkout: Path) -> None:
    """Exit 2 of tolcal is the step's, no output is written, and an annotation points at the log."""
    done = runner.step(START, checkout, {"mode": "run", "corpus": "nowhere"})
    assert done.returncode == 2
    assert "nowhere" in done.stdout
    assert done.stdout.splitlines()[-1] == (
        "::error title=tolcal::tolcal run ended with exit status 2: see the log"
    )
    assert runner.output.read_text() == ""


def test_other_versions_of_python_are_refused() -> None:
    """The script is read by any Python 3 that a runner may have, and says what is needed."""
    source = (ROOT / "action" / "install.py").read_text()
    ast.parse(source, feature_version=(3, 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 9, 2))
        with pytest.raises(log.ActionError, match=r"is Python 3\.9, 3\.11 or newer is needed"):
            install.install({})
