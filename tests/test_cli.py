"""The command line: help, exit statuses, light edges, configuration, and each command once."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests_support import CORPUS, ROOT, make_environment, make_record, make_run, make_stats

from tolcal import calibrate, history, tolerances
from tolcal.cli import build_parser, main, showing
from tolcal.history import columns, jsonlines
from tolcal.model import PROFILES, CellState, Checks, Proposal, Record
from tolcal.report.document import Document, read, to_json

TOML = """\
summary = "twice x"
dtypes = ["float32"]

[dims]
B = [1, 2, 3]

[inputs.x]
shape = ["B"]

[output]
shape = ["B"]
"""


def write_op(root: Path, kernel: str = "def run(x):\n    return x + x\n") -> None:
    """A plain-torch op `double` with the control `twice`."""
    folder = root / "double"
    (folder / "kernels").mkdir(parents=True)
    (folder / "op.toml").write_text(TOML)
    (folder / "reference.py").write_text("def reference(x):\n    return 2 * x\n")
    (folder / "kernels" / "twice.py").write_text(kernel)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own, with no pyproject.toml above it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def records() -> list[Record]:
    """A history of softmax/float32 that is large enough to calibrate: 720 rows of 4 runs."""
    runs = [make_run(id=f"{n:016x}", seed=n) for n in range(4)]
    return [
        make_record(run=runs[i % 4], seed=i, stats=make_stats((1 + i % 7) * 2.0**-26))
        for i in range(720)
    ]


@pytest.fixture(scope="session")
def proposal() -> Proposal:
    """What `tolcal calibrate` makes of it."""
    return calibrate.calibrate(history.to_frame(columns.from_records(records())))


@pytest.fixture
def proposal_file(here: Path, proposal: Proposal) -> Path:
    path = here / "P.json"
    path.write_text(to_json(Document(proposal)))
    return path


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=120
    )


# --- help -----------------------------------------------------------------------------------


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Every command's and verb's parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield sub
                yield from parsers(sub)


COMMANDS = {sub.prog: sub for sub in parsers(build_parser())}


def test_commands_are_those_of_the_design() -> None:
    """The fixed command names are all there."""
    fixed = {
        "run", "calibrate", "report", "ci", "approve", "show", "replay", "history",
        "history ls", "history verify", "history import", "new",
    }  # fmt: skip
    assert {f"tolcal {name}" for name in fixed} <= set(COMMANDS)


@pytest.mark.parametrize("prog", COMMANDS)
def test_help_has_an_example(prog: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command's --help exits 0, on stdout, and ends with an example of that command."""
    with pytest.raises(SystemExit) as caught:
        main([*prog.split()[1:], "--help"])
    out, err = capsys.readouterr()
    assert (caught.value.code, err) == (0, "")
    example = out.partition("Example: ")[2]
    assert example.startswith(prog)


@pytest.mark.parametrize("prog", COMMANDS)
def test_every_option_has_help(prog: str) -> None:
    """Every option of every command says what it does."""
    options = [a for a in COMMANDS[prog]._actions if a.option_strings]
    assert [a.dest for a in options if not a.help] == []
    assert COMMANDS[prog].description


@pytest.mark.parametrize(
    ("prog", "says"),
    [
        ("tolcal report", "P.json a proposal, as `calibrate --json P.json` writes it"),
        ("tolcal history import", "{gpuemu} gpuemu: what the authors of arXiv 2607.16228 publish"),
        ("tolcal history import", "DIR folder that holds the run-*/results.jsonl"),
        ("tolcal history ls", "List runs: when, where, how many records."),
        ("tolcal history verify", "Read every shard and check it. Damage, a lost shard"),
        ("tolcal run", "--device auto|cuda[:N]|cpu"),
    ],
)
def test_help_says(prog: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the arguments are."""
    with pytest.raises(SystemExit):
        main([*prog.split()[1:], "--help"])
    assert says in " ".join(capsys.readouterr().out.split())


def test_top_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """`tolcal --help` ends with an example as well."""
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "Example:" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints name and version."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("tolcal ")


# --- exit status 2: the user can mend it ----------------------------------------------------


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr of a command that exits 2 and prints nothing else."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tolcal: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err[len("tolcal: ") : -1]


ADVICE = (
    "no such corpus folder; give --corpus DIR, set `corpus` under [tool.tolcal] in "
    "pyproject.toml, or start one with `tolcal new OP`"
)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["run"], f"corpus: {ADVICE}"),
        (["run", "--corpus", "nowhere"], f"nowhere: {ADVICE}"),
        (["ci", "--corpus", "nowhere"], f"nowhere: {ADVICE}"),
        (["show", "softmaks", "--corpus", str(CORPUS)],
         f"no op 'softmaks' in {CORPUS} or tolerances.toml; did you mean 'softmax'?"),
        (["run", "softmaks", "--corpus", str(CORPUS)],
         "no op or kernel 'softmaks' in the corpus; did you mean 'softmax'?; `tolcal show` lists "
         "what there is"),
        (["run", "relu", "--out", "x.json", "--corpus", str(CORPUS)],
         "--out x.json: give a name that ends in .jsonl.gz"),
        (["run", "relu", "--profile", "wild", "--corpus", str(CORPUS)],
         f"--profile: unknown input profile 'wild'; known: {', '.join(PROFILES)}, all"),
        (["run", "relu", "--profile", "default,one-hot", "--corpus", str(CORPUS)],
         "--profile: unknown input profile 'one-hot'; did you mean 'one_hot'?; known: "
         f"{', '.join(PROFILES)}, all"),
        (["run", "relu", "--profile", "single dtype", "--corpus", str(CORPUS)],
         "--profile: unknown input profile 'single dtype'; --dtype measures a single dtype, in any "
         f"profile; known: {', '.join(PROFILES)}, all"),
        (["calibrate"],
         "no record of a control that ran in out/history (not there); measure some first (`tolcal "
         "run --repeat 18 --history DIR`), or name another with --history"),
        (["calibrate", "--history", "x.txt"],
         "--history x.txt: no such file or folder"),
        (["report", "P.json"],
         "P.json: cannot read it: No such file or directory; `tolcal calibrate --json P.json` "
         "writes one"),
        (["approve", "P.json"],
         "P.json: cannot read it: No such file or directory; `tolcal calibrate --json P.json` "
         "writes one"),
        (["report", "P.json", "--format", "coment"],
         "--format coment: known are comment, summary, html, json, sarif, junit, "
         "annotations, terminal; did you mean 'comment'?"),
        (["report"],
         "report: name a proposal, P.json (`tolcal calibrate --json P.json`)"),
        (["replay", "relu_triton:00", "--corpus", str(CORPUS)],
         "no record or gate case with id 'relu_triton:00' in out/history; give the file or folder "
         "that holds it with --history"),
        (["history", "verify", "--history", "h.parquet"],
         "--history h.parquet: no such file or folder"),
        (["new", "My-Op"], "'My-Op' is no op name: it must match [a-z][a-z0-9_]{0,63}"),
        (["new", "../up"], "'../up' is no op name: it must match [a-z][a-z0-9_]{0,63}"),
    ],
)  # fmt: skip
def test_user_error(argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the user can mend is one whole line on stderr, no traceback, exit status 2."""
    assert refused(argv, capsys) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "Input data was truncated"),
        (b"{oops", "JSON is malformed"),
        (b"\xff\xfe", "JSON is malformed"),
        (b'{"schema": 2}', 'expected an object with "schema": 1'),
        (b'{"schema": 1}', "Object missing required field `rule`"),
        (b"[1]", 'expected an object with "schema": 1'),
        (b"[" * 100_000, "nested"),
    ],
    ids=["empty", "no JSON", "no UTF-8", "later", "no proposal", "a list", "deep"],
)  # fmt: skip
def test_unreadable_proposal(
    here: Path, content: bytes, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A P.json that is none is one line that says why and what writes one."""
    (here / "P.json").write_bytes(content)
    line = refused(["report", "P.json"], capsys)
    assert line.startswith("P.json: not a tolcal proposal: ")
    assert expected in line
    assert line.endswith("; write one with `tolcal calibrate --json`")


def test_broken_op_toml(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken op.toml is one line with file, line and column, whatever the command."""
    write_op(here / "corpus")
    path = here / "corpus" / "double" / "op.toml"
    path.write_text(TOML.replace('["float32"]', "[float32]"))
    expected = "corpus/double/op.toml:2:11: not TOML: Invalid value; mend the syntax there"
    for argv in (["run"], ["show"], ["ci"], ["replay", "x:y"]):
        assert refused(argv, capsys) == expected


def test_mistakes_are_found_before_anything_is_measured(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A history that is a file, a replay without a case, a dtype that is none."""
    pytest.importorskip("torch")
    write_op(here / "corpus")
    (here / "r.jsonl.gz").touch()
    assert refused(["run", "--history", "r.jsonl.gz"], capsys) == (
        "--history r.jsonl.gz: is a file; name a folder to add records to"
    )
    assert refused(["replay", "double"], capsys) == (
        "double: give KERNEL:CASE, as the `tolcal replay` lines of reports have it"
    )
    assert refused(["show", "double/fp16"], capsys).startswith("no dtype 'fp16': known are ")
    assert main(["show", "double/float32"]) == 0
    assert "double/float32" in capsys.readouterr().out


def test_a_file_that_is_no_proposal(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Records, and a proposal of another version, are called what they are."""
    (here / "r.jsonl.gz").write_bytes(b"\x1f\x8b")
    assert refused(["report", "r.jsonl.gz"], capsys) == (
        "r.jsonl.gz: gzip, so records rather than a proposal; make one of them with `tolcal "
        "calibrate --history r.jsonl.gz --json P.json`"
    )
    (here / "P.json").write_text('{"schema": 2}')
    assert 'expected an object with "schema": 1, not 2: it is another' in refused(
        ["report", "P.json"], capsys
    )
    assert refused(["check"], capsys).startswith("tolerances.toml: there is none yet; `tolcal cal")


def test_broken_tolerances(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken tolerances.toml is one line with file and line."""
    (here / "tolerances.toml").write_text("schema = 1\n[softmax.float61]\natol = 1\n")
    assert refused(["show"], capsys).startswith(
        "tolerances.toml:2: softmax.float61: unknown dtype; known: float64, "
    )


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("[tool.tolcal]\ncolour = 1\n",
         ":2: tool.tolcal.colour: Object contains unknown field `colour`"),
        ("[tool.tolcal.cases]\n\ngates = 1\n",
         ":3: tool.tolcal.cases.gates: Object contains unknown field `gates`; known: gate, "
         "explore; did you mean 'gate'?"),
        ("[tool.tolcal]\ncorpus = 'c'\ntimeout = 'long'\n",
         ":3: tool.tolcal.timeout: Expected `float`, got `str`"),
        ("[tool.tolcal]\nbudget = 0\n", ":2: tool.tolcal.budget: Expected `float` > 0.0"),
        ("[tool]\ntolcal = 3\n", ":2: tool.tolcal: Expected `object`, got `int`"),
        ("[tool.tolcal\n", ":1:13: not TOML: Expected ']' at the end of a table declaration; "
         "mend the syntax there"),
        ("tool = 3\n", ":1: tool: Expected `object`, got `int`"),
        ("[tool.tolcal.cases]\ngate = -1\n", ":2: tool.tolcal.cases.gate: "),
        ("[tool.tolcal]\ntimeout = -1\n", ":2: tool.tolcal.timeout: "),
    ],
)  # fmt: skip
def test_bad_configuration(
    here: Path, table: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad [tool.tolcal] is one line with file and line."""
    (here / "pyproject.toml").write_text(table)
    line = refused(["history", "ls"], capsys)
    assert line.startswith(f"{here / 'pyproject.toml'}{expected}")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["run", "--cases", "-1"], "argument --cases: -1: a whole number from 0 to 1e+06"),
        (["run", "--repeat", "0"], "argument --repeat: 0: a whole number from 1 to 100000"),
        (["run", "--timeout", "nan"], "argument --timeout: nan: a number from 1e-09 to 1e+09"),
        (["run", "--dtype", "float61"], "argument --dtype: invalid choice: 'float61'"),
        (["calibrate", "--rule", "best"], "argument --rule: invalid choice: 'best'"),
        (["frobnicate"], "argument COMMAND: invalid choice: 'frobnicate'"),
        (["history", "import", "gpuemu"], "the following arguments are required: DIR"),
        ([], "the following arguments are required: COMMAND"),
        (["run", "--cases", "many"], "argument --cases: many: a whole number from 0"),
        (["calibrate", "--budget", "2"], "argument --budget: 2: a number from 1e-09 to 0.5"),
        (["calibrate", "--margin", "x"], "argument --margin: x: a number from 1 "),
    ],
)  # fmt: skip
def test_bad_option(argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad option or value exits 2, and one line says which and what is needed."""
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert expected in line


# --- exit status 3 and others ---------------------------------------------------------------


def test_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An error of ours exits 3 with its traceback and a request to report it."""

    def broken(args: argparse.Namespace) -> int:
        raise KeyError("oops")

    monkeypatch.setattr(showing, "show", broken)
    assert main(["show"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert "KeyError: 'oops'" in err
    assert err.splitlines()[-1].startswith("tolcal: this is a bug in tolcal; please report it")


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """^C is one line and the status that shells give it."""

    def interrupted(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(showing, "show", interrupted)
    assert main(["show"]) == 130
    assert capsys.readouterr().err == "tolcal: interrupted\n"


def test_full_disk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An error of the system is one line that names the file, exit status 2."""

    def full(args: argparse.Namespace) -> int:
        raise OSError(28, "No space left on device", "out/x")

    monkeypatch.setattr(showing, "show", full)
    assert refused(["show"], capsys) == (
        "out/x: No space left on device; check path, rights and space"
    )


BLOCKED = """\
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
from tolcal.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


RAY = ["run", "relu", "--corpus", str(CORPUS), "--engine", "ray"]


@pytest.mark.parametrize(
    ("blocked", "argv", "extra"),
    [
        ("torch", ["run", "relu", "--corpus", str(CORPUS)], "gpu"),
        ("ray", RAY, "ray"),
        ("pandas", ["calibrate"], "report"),
        ("numpy", ["history", "ls"], "report"),
        ("pyarrow", ["history", "verify"], "report"),
        ("jinja2", ["report", "P.json", "--format", "comment"], "report"),
        ("rich", ["report", "P.json"], "report"),
    ],
)
def test_missing_extra(proposal_file: Path, blocked: str, argv: list[str], extra: str) -> None:
    """A command whose extra is not installed says in one line which to install, exit status 2."""
    answer = run_python(BLOCKED.format(names={blocked}), *argv)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == (
        f"tolcal: `tolcal {argv[0]}` needs {blocked}, which is not installed: "
        f"pip install 'tolcal[{extra}]'\n"
    )


@pytest.mark.parametrize(
    ("package", "body", "reason", "argv"),
    [
        ("ray", "raise ImportError('libray.so: cannot open\\nshared object')",
         "libray.so: cannot open shared object", RAY),
        ("ray", "import no_such_dependency", "No module named 'no_such_dependency'", RAY),
        ("ray", "import broken_dependency", "gone", RAY),
        ("ray", "import ray.gone", "No module named 'ray.gone'", RAY),
        ("pandas", "raise ImportError('gone')", "gone", ["calibrate"]),
        ("vl_convert", "raise ImportError('gone')", "gone", ["report", "P.json", "--format=html"]),
        ("rich", "", "No module named 'rich.cells'", ["report", "P.json"]),
    ],
)  # fmt: skip
def test_broken_package(
    proposal_file: Path, package: str, body: str, reason: str, argv: list[str]
) -> None:
    """One that is there and can't be imported is named, with why, and is to be reinstalled."""
    folder = proposal_file.parent / "broken"
    for name, text in (("broken_dependency", "raise ImportError('gone')"), (package, body)):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"{text}\n")
    code = "import sys; sys.path.insert(0, 'broken'); from tolcal.cli import main; "
    answer = run_python(f"{code}sys.exit(main(sys.argv[1:]))", *argv)
    assert (answer.returncode, answer.stdout) == (2, "")
    name = {"vl_convert": "vl-convert-python"}.get(package, package)
    assert answer.stderr == (
        f"tolcal: `tolcal {argv[0]}` needs {package}, which is installed but broken ({reason}): "
        f"reinstall it: pip install --force-reinstall {name}\n"
    )


@pytest.mark.parametrize(
    "raised",
    [
        "import tolcal.no_such_module",
        "from tolcal.model import no_such_name",
        "import no_such_module",
        "raise ImportError('gone')",
        "import numpy; numpy.apply_along_axis(fail, 0, numpy.zeros(1))",
    ],
)
def test_an_import_error_of_ours_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: str
) -> None:
    """Reinstalling mends no module of ours, not even one that a package calls."""
    ours: dict[str, Any] = {"__name__": "tolcal.ours"}
    exec(f"def fail(_):\n raise ImportError('gone')\ndef show(_):\n {raised}", ours)
    monkeypatch.setattr(showing, "show", ours["show"])
    assert main(["show"]) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("tolcal: this is a bug in tolcal")


# --- light edges ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["report", "P.json", "--format", "comment"],
        ["report", "P.json", "--format", "json"],
        ["report", "P.json"],
        ["approve", "P.json", "--by", "me"],
        ["show", "--approvals", "--tolerances", str(CORPUS.parent / "tolerances.toml")],
        ["show", "--corpus", str(CORPUS)],
        ["show", "softmax", "--corpus", str(CORPUS)],
    ],
    ids=" ".join,
)
def test_light_commands(proposal_file: Path, argv: list[str]) -> None:
    """report, approve and show work without torch, triton, numpy, pandas and pyarrow."""
    names = {"torch", "triton", "numpy", "pandas", "pyarrow"}
    answer = run_python(BLOCKED.format(names=names), *argv)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout


def test_help_is_light() -> None:
    """--help needs nothing but the base dependencies."""
    names = {"torch", "triton", "numpy", "pandas", "pyarrow", "jinja2", "rich"}
    for argv in (["--help"], ["run", "--help"]):
        answer = run_python(BLOCKED.format(names=names), *argv)
        assert (answer.returncode, answer.stderr) == (0, "")


# --- calibrate, report, approve, show --------------------------------------------------------


def test_calibrate_report_approve_show(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """History to proposal to comment to tolerances.toml to `show`, each exiting 0."""
    history.add(here / "h", records())
    argv = ["calibrate", "--history", "h", "--json", "new/P.json", "--corpus", str(CORPUS)]
    assert main(argv) == 0
    assert "softmax" in capsys.readouterr().out
    assert main(["report", "new/P.json", "--format", "comment", "--out", "o/c.md"]) == 0
    assert capsys.readouterr().out == ""
    assert "softmax" in (here / "o" / "c.md").read_text()
    assert main(["approve", "new/P.json", "softmax/float32", "--by", "me"]) == 0
    assert capsys.readouterr().out == "1 cell written to tolerances.toml in the name of me\n"
    cells = tolerances.read(here / "tolerances.toml")
    assert set(cells) == {("softmax", "float32")}
    mark = cells["softmax", "float32"].approved
    assert mark is not None
    assert mark.value == cells["softmax", "float32"].value_digest
    assert main(["show", "softmax", "--corpus", str(CORPUS)]) == 0
    shown = capsys.readouterr().out
    assert f"{cells['softmax', 'float32'].atol:g}" in shown
    assert "approved     by me" in shown
    assert "720 rows of 4 runs on NVIDIA H200" in shown


@pytest.mark.parametrize(
    ("state", "options", "says"),
    [
        ("unchanged", ["--widen", "test"],
         "softmax/float32: unchanged within rounding, so there is nothing to approve or to widen"),
        ("looser", [], "softmax/float32: it would be looser, which needs --widen REASON"),
        ("uncalibrated", [],
         "softmax/float32: not calibrated, 9 more rows needed; measure and calibrate again"),
    ],
)  # fmt: skip
def test_approve_says_why_there_is_nothing_to_do(
    here: Path,
    proposal: Proposal,
    state: CellState,
    options: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a cell that was named, by what the proposal says of it."""
    (cell,) = (c for c in proposal.cells if (c.op, c.dtype) == ("softmax", "float32"))
    cell = msgspec.structs.replace(cell, state=state, needs_rows=9)
    other = msgspec.structs.replace(proposal, cells=(cell,)).sealed()
    (here / "P.json").write_text(to_json(Document(other)))
    assert refused(["approve", "P.json", "softmax/float32", *options], capsys) == says


def test_approve_leaves_out_what_check_would_refuse(
    here: Path, proposal_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells of ops that the corpus beside the file lacks, unless tests know them."""
    (here.parent / "tolerances.toml").write_text("schema = 1\n")  # of another project
    kernels = here / "corpus" / "gelu" / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "gelu_triton.py").touch()
    (kernels.parent / "op.toml").write_text('dtypes = ["float32"]\n')
    assert main(["approve", "P.json", "--by", "me"]) == 0
    assert capsys.readouterr().out.startswith(
        "left out, since `tolcal check` would refuse it: softmax/float32: no op 'softmax' in the "
        "corpus; list an op that only tests know under `test_ops`"
    )
    assert refused(["approve", "P.json", "softmax/float32"], capsys) == (
        "`tolcal check` would refuse softmax/float32: no op 'softmax' in the corpus; list an op "
        "that only tests know under `test_ops` in [tool.tolcal]"
    )
    assert not (here / "tolerances.toml").exists()
    (here / "pyproject.toml").write_text('[tool.tolcal]\ntest_ops = ["softmax"]\n')
    assert main(["approve", "P.json", "--by", "me"]) == 0
    assert capsys.readouterr().out == "1 cell written to tolerances.toml in the name of me\n"
    assert main(["approve", "P.json", "--by", "me"]) == 0
    assert capsys.readouterr().out == (
        "nothing to approve: tolerances.toml has these numbers already\n"
    )


def test_approve_refuses_unknown_cells_and_comparisons(
    here: Path, proposal: Proposal, proposal_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """approve names a cell that isn't proposed, and takes no proposal made for comparison."""
    assert refused(["approve", "P.json", "softmacs"], capsys) == (
        "softmacs: no cell of that name in the proposal; did you mean 'softmax'?"
    )
    other = msgspec.structs.replace(proposal, by="kernel").sealed()
    (here / "K.json").write_text(to_json(Document(other)))
    assert "by kernel is for comparison" in refused(["approve", "K.json"], capsys)
    assert not (here / "tolerances.toml").exists()


def test_a_claim_of_locked_runs_needs_locked_runs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typo, or runs of other ops, is no proof that every buggy kernel is caught."""
    history.add(here / "h", records())
    argv = ["calibrate", "--history", "h", "--corpus", str(CORPUS), "--json", "P.json", "--locked"]
    assert refused([*argv, "nope"], capsys) == "--locked nope: no such file or folder"
    # As of runs that the fit has not seen.
    mine = [
        msgspec.structs.replace(r, run=msgspec.structs.replace(r.run, id=f"f{r.run.id[1:]}"))
        for r in records()
    ]
    other = [
        msgspec.structs.replace(r, case=msgspec.structs.replace(r.case, op="gelu")) for r in mine
    ]
    history.add(here / "other", other)
    history.add(here / "mine", mine)
    assert main([*argv, "other"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "tolcal: --locked other: no explore case of a control that the proposal has a tolerance "
        "for, so nothing was judged; name runs of the ops of --history h"
    )
    assert not (here / "P.json").exists()
    assert main([*argv, "mine"]) == 0
    assert "Locked runs: 0 of 4 red" in capsys.readouterr().out


def test_a_budget_is_an_option_or_of_the_project(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 in 1,000 unless said otherwise; the proposal carries it, and so does its digest."""
    history.add(here / "h", records())
    argv = ["calibrate", "--history", "h", "--corpus", str(CORPUS), "--json"]

    def said(name: str, *more: str) -> Proposal:
        assert main([*argv, name, *more]) == 0
        return read(here / name).proposal

    assert said("a.json").budget == 0.001
    (here / "pyproject.toml").write_text("[tool.tolcal]\nbudget = 0.01\n")
    ours = said("b.json")
    assert ours.budget == 0.01
    assert said("c.json", "--budget", "0.5").budget == 0.5
    assert "the budget of 500 in 1,000" in " ".join(capsys.readouterr().out.split())
    assert ours.digest != said("d.json", "--budget", "0.02").digest
    assert said("e.json", "--margin", "2.5").margin == 2.5


def _edited(proposal: dict[str, Any], what: str) -> None:
    (cell,) = (c for c in proposal["cells"] if c["tolerance"])
    if what == "atol":
        cell["tolerance"]["atol"] = 0.5
    elif what == "evidence":
        cell["tolerance"]["evidence"]["runs"] = 500
    elif what == "state":
        cell["state"] = "tighten"
    else:
        proposal.pop("seal")


@pytest.mark.parametrize("what", ["atol", "evidence", "state", "seal"])
def test_approve_refuses_a_proposal_that_was_edited(
    here: Path, proposal_file: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers that nothing measured are not written as measured ones, nor their evidence."""
    content = json.loads(proposal_file.read_text())
    _edited(content, what)
    proposal_file.write_text(json.dumps(content))
    assert re.fullmatch(
        r"P\.json: its cells have the digest [0-9a-f]{16}, its seal is ([0-9a-f]{16}|missing): it "
        r"was edited, .*; make it again \(`tolcal calibrate --json`\), and change .*",
        refused(["approve", "P.json", "--by", "me"], capsys),
    )
    assert not (here / "tolerances.toml").exists()


def test_report_json_is_the_proposal(
    proposal_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`report --format json` gives P.json back unchanged."""
    assert main(["report", "P.json", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(proposal_file.read_text())


# --- new ------------------------------------------------------------------------------------


def test_new_runs_as_it_stands(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scaffolded op runs at once: all ok, but bfloat16 skipped where Triton is interpreted."""
    pytest.importorskip("triton")
    assert main(["new", "my_op"]) == 0
    assert capsys.readouterr().out == (
        "corpus/my_op is ready. Try it: tolcal run my_op --device cpu --cases 4 --corpus corpus\n"
    )
    assert main(["run", "my_op", "--device", "cpu", "--cases", "2", "--gate", "1"]) == 0
    done = list(jsonlines.read(here / "out" / "records.jsonl.gz"))
    assert len(done) == 9
    for record in done:
        assert record.status == ("skipped" if record.case.dtype == "bfloat16" else "ok")
        assert record.stats is None or record.stats.nonfinite_mismatch == 0
    said = capsys.readouterr().err
    for why in {record.reason for record in done if record.status == "skipped"}:
        assert f"skipped: 3: {why}\n" in said
    assert refused(["new", "my_op"], capsys) == (
        "corpus/my_op: exists; choose another name or remove it first"
    )


# --- configuration --------------------------------------------------------------------------


def test_configuration_is_honoured(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """[tool.tolcal] counts from a subfolder, its paths from pyproject.toml; options override."""
    (here / "pyproject.toml").write_text(
        '[tool.tolcal]\ncorpus = "ops"\ntolerances = "tol.toml"\nhistory = ["a", "b"]\n'
        'device = "cpu"\n[tool.tolcal.cases]\ngate = 1\nexplore = 2\n'
    )
    write_op(here / "ops")
    history.add(here / "a", [make_record(seed=1)])
    history.add(here / "b", [make_record(seed=2)])
    history.add(here / "c", [make_record(seed=3), make_record(seed=4), make_record(seed=5)])
    (here / "tol.toml").write_text(
        "schema = 1\n[elsewhere.float32]\natol = 1.0\nscaled_tol = 0.0\n"
        "allclose = { atol = 1.0, rtol = 0.0 }\n"
    )
    sub = here / "src" / "deep"
    sub.mkdir(parents=True)
    monkeypatch.chdir(sub)
    assert main(["show"]) == 0
    shown = capsys.readouterr().out
    assert "double" in shown
    assert "elsewhere" in shown
    assert main(["history", "ls"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 run, 2 records"
    assert main(["history", "ls", "--history", "../../c"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 run, 3 records"
    assert main(["show", "--corpus", str(CORPUS), "--tolerances", "none.toml"]) == 0
    shown = capsys.readouterr().out
    assert "softmax" in shown
    assert "elsewhere" not in shown
    assert main(["run", "--gate", "2", "--out", "r.jsonl.gz"]) == 0
    sets = [r.case_set for r in jsonlines.read(sub / "r.jsonl.gz")]
    assert sets == ["gate"] * 2 + ["explore"] * 2


# --- run, history, replay -------------------------------------------------------------------


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `tolcal run --repeat 2 --history h` has run on a plain-torch op."""
    folder = tmp_path_factory.mktemp("measured")
    write_op(folder / "corpus")
    status = main([
        "run", "--device", "cpu", "--repeat", "2", "--gate", "1", "--cases", "2", "--history",
        str(folder / "h"), "--corpus", str(folder / "corpus"), "--out",
        str(folder / "r.jsonl.gz"),
    ])  # fmt: skip
    assert status == 0
    return folder


def test_run_adds_to_the_history(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`run --repeat 2 --history DIR` writes the records file and adds both runs to DIR."""
    written = list(jsonlines.read(measured / "r.jsonl.gz"))
    assert len(written) == 6
    kept = list(columns.to_records(history.read_table([measured / "h"])))
    assert kept == written
    assert main(["history", "ls", "--history", str(measured / "h")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "2 runs, 6 records"
    assert {line.split()[0] for line in lines[1:-1]} == {r.run.id for r in written}
    assert main(["history", "verify", "--history", str(measured / "h")]) == 0
    assert capsys.readouterr().out == (
        f"{measured / 'h'}: 6 records of 2 runs in 1 shard(s): good\n"
    )


def test_a_history_to_come_is_not_called_good(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no run has been yet, there is nothing to verify."""
    assert main(["history", "verify"]) == 0
    assert capsys.readouterr().out == (
        "out/history: there is no such history yet, so nothing was verified\n"
    )


def replay(folder: Path, record_id: str, where: Path) -> int:
    return main([
        "replay", record_id, "--device", "cpu", "--corpus", str(folder / "corpus"), "--history",
        str(where),
    ])  # fmt: skip


def test_replay_is_identical(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replaying an explore case of a run gives its record, and says so."""
    record = [r for r in jsonlines.read(measured / "r.jsonl.gz") if r.case_set == "explore"][-1]
    assert replay(measured, record.id, measured / "h") == 0
    out = capsys.readouterr().out
    assert f"  identical to the record of run {record.run.id}\n" in out
    assert f"input hash {record.input_hash}" in out
    assert "differ" not in out


def doctored(folder: Path, where: Path, **changes: Any) -> Record:
    """A record of the folder's run with other numbers, alone in a history."""
    record = next(jsonlines.read(folder / "r.jsonl.gz"))
    assert record.stats is not None
    stats = msgspec.structs.replace(record.stats, max_abs=1.5)
    record = msgspec.structs.replace(record, stats=stats, **changes)
    history.add(where, [record])
    return record


def test_replay_in_another_environment(
    measured: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other numbers recorded in another environment are shown, with it, and are no finding."""
    record = doctored(measured, here / "h", run=make_run(environment=make_environment()))
    assert replay(measured, record.id, here / "h") == 0
    out = capsys.readouterr().out
    assert (
        "  the environment differs: recorded on NVIDIA H200 (sm_90, driver 580.1, cuda 13.0, "
        "torch 2.11.0, triton 3.6.0); numbers may differ\n"
    ) in out
    assert "  max_abs: recorded " in out
    assert "identical" not in out


def test_replay_of_a_record_made_by_a_test(
    measured: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its inputs were drawn by the test, so only that can draw them again."""
    case = next(jsonlines.read(measured / "r.jsonl.gz")).case
    case = msgspec.structs.replace(case, profile="tests", dims=(("D0", 7),))
    record = doctored(measured, here / "h", case=case)
    assert replay(measured, record.id, here / "h") == 2
    assert capsys.readouterr().err == (
        f"tolcal: case {case.id} has input profile 'tests', known are {', '.join(PROFILES)}: a "
        "test drew its inputs; run that test again with --tolcal-seed\n"
    )


def test_replay_that_differs(
    measured: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other numbers in the same environment are a finding: exit status 1, and which differ."""
    record = doctored(measured, here / "h")
    assert replay(measured, record.id, here / "h") == 1
    out = capsys.readouterr().out
    assert "  max_abs: recorded " in out
    assert "identical" not in out


def test_replay_prints_numbers(
    measured: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Differing numbers are printed as numbers."""
    record = doctored(measured, here / "h")
    assert replay(measured, record.id, here / "h") == 1
    assert "  max_abs: recorded 1.5, now 0.0\n" in capsys.readouterr().out


def test_replay_says_what_a_relation_was_judged_at(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of elements; of none, that it was not judged. A record of a version that did not
    say so is the same where its numbers are.
    """
    write_op(here / "corpus")
    path = here / "corpus" / "double" / "op.toml"
    path.write_text(f'batch = "B"\n{path.read_text()}')
    with path.open("a") as file:
        file.write('[relations]\nodd = { inputs = ["x"], units = 0 }\n'
                   'shift = { inputs = ["x"], units = 4 } # which 2x does not keep\n')  # fmt: skip
    assert main(["run", "--device", "cpu", "--gate", "1", "--cases", "0", "--corpus",
                 str(here / "corpus"), "--out", str(here / "r.jsonl.gz")]) == 0  # fmt: skip
    (record,) = jsonlines.read(here / "r.jsonl.gz")
    count = dict(record.case.dims)["B"]
    expected = Checks(0, 0, 0, 0, 0, odd=0.0, odd_judged=count, shift_judged=0, broken=0)
    assert record.checks == expected
    said = (
        "  passes its checks: unwritten 0, stray 0, inputs_changed 0, unrepeatable 0, batch 0, "
        f"odd 0 (of {count}), broken 0\n"
        "  not judged, for want of an element that could be: shift\n"
    )
    older = Checks(0, 0, 0, 0, odd=0.0, shift=0.0, broken=0)
    for i, (checks, status) in enumerate((
        (expected, 0), (older, 0), (msgspec.structs.replace(older, shift=1.0), 1),
        (msgspec.structs.replace(expected, odd_judged=count + 1), 1), (Checks(0, 0, 0, 0), 1),
    )):  # fmt: skip
        history.add(here / f"h{i}", [msgspec.structs.replace(record, checks=checks)])
        capsys.readouterr()
        assert replay(here, record.id, here / f"h{i}") == status
        out = capsys.readouterr().out
        assert said in out
        assert ("  checks." in out) is (status == 1)
        if i == 2:
            assert "  checks.shift: recorded 1.0, now 0.0\n" in out


def test_replay_of_a_case_that_lies_outside_the_domain(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No share of a bound is used where nothing was held against it."""
    write_op(here / "corpus")
    path = here / "corpus" / "double" / "op.toml"
    path.write_text(path.read_text().replace("[inputs.x]\n", "[inputs.x]\ndomain = [-10, 10]\n"))
    approved = tolerances.read(ROOT / "tolerances.toml")["relu", "float32"]
    tolerances.write(here / "tolerances.toml", {("double", "float32"): approved})
    assert main([
        "run", "--device", "cpu", "--gate", "1", "--cases", "0", "--profile", "shifted",
        "--corpus", str(here / "corpus"), "--out", str(here / "r.jsonl.gz"),
    ]) == 0  # fmt: skip
    (record,) = jsonlines.read(here / "r.jsonl.gz")
    assert record.stats is not None
    assert record.stats.count == 0
    history.add(here / "h", [record])
    capsys.readouterr()
    assert replay(here, record.id, here / "h") == 0
    out = capsys.readouterr().out
    assert "  no element inside the domain to judge by its tolerance\n" in out
    assert "passes its tolerance" not in out


@pytest.fixture(scope="session")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder in which `tolcal run` met a kernel that raises, and what it said on stderr."""
    folder = tmp_path_factory.mktemp("crashed")
    write_op(folder / "corpus", "def run(x):\n    raise ValueError('##[add-mask]no luck')\n")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([
            "run", "--device", "cpu", "--gate", "6", "--cases", "0", "--corpus",
            str(folder / "corpus"), "--out", str(folder / "r.jsonl.gz"),
        ])  # fmt: skip
    assert (status, out.getvalue()) == (1, "")
    return folder, err.getvalue().splitlines()


def test_run_with_crashes(crashed: tuple[Path, list[str]]) -> None:
    """A kernel that fails makes `run` exit 1 and say which case and why; its records are kept."""
    folder, lines = crashed
    done = list(jsonlines.read(folder / "r.jsonl.gz"))
    assert [r.status for r in done] == ["crashed"] * 6
    assert not list(folder.glob("partial-*"))
    assert f"6 records (6 crashed) of 1 run in {folder / 'r.jsonl.gz'}" in lines
    failures = [line for line in lines if line.startswith("crashed: ")]
    assert len(failures) == 5
    assert failures[0].startswith(f"crashed: {done[0].id} float32 {done[0].case.dims_text}: ")
    assert "no luck" in failures[0]
    assert lines[-1] == "... and 1 more"


def test_no_workflow_commands_on_stderr(crashed: tuple[Path, list[str]]) -> None:
    """No line is a workflow command; the runner takes ##[command] anywhere in a line for one."""
    assert [line for line in crashed[1] if "##[" in line or line.lstrip().startswith("::")] == []


def test_failed_run_keeps_the_last_records(
    measured: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that fails before its first record leaves the last run's file as it was."""
    write_op(here / "corpus")
    (here / "corpus" / "double" / "reference.py").write_text("raise ImportError('gone')\n")
    out = here / "out" / "records.jsonl.gz"
    out.parent.mkdir()
    out.write_bytes((measured / "r.jsonl.gz").read_bytes())
    assert refused(["run", "--device", "cpu", "--gate", "1", "--cases", "0"], capsys) == (
        "corpus/double/reference.py: ImportError: gone (reference.py:1)"
    )
    assert out.read_bytes() == (measured / "r.jsonl.gz").read_bytes()
    assert [p.name for p in out.parent.iterdir()] == ["records.jsonl.gz"]
