"""The documents are true: their commands run, their tables are what is printed, paths exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests_support import DATA, ROOT

from tolcal import corpus
from tolcal.cli import build_parser
from tolcal.github.commands import replies
from tolcal.report import catalogue

#: In the order in which they are read: what README makes, later pages use.
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
TEXTS = {name: (ROOT / name).read_text() for name in PAGES}
README = TEXTS["README.md"]
FIGURES = TEXTS["docs/figures.md"]
#: Run by .ci/run itself, on the whole repository.
MAKE = {"make demo", "make test", "make lint"}
#: The parts of the golden comment that README shows.
SHOWN = ("**Regression**", "**Tighten", "**New tolerances**", "**Newly caught**")


def blocks(page: str, kind: str) -> list[str]:
    """The fenced blocks of that kind, in order."""
    found = re.findall(rf"^ *```{kind}\n(.*?)^ *```", TEXTS[page], re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in found]


def between(text: str, mark: str) -> str:
    """What stands between two comments of that name."""
    found = re.findall(rf"<!-- {mark}:begin -->\n(.*?)<!-- {mark}:end -->", text, re.DOTALL)
    assert len(found) == 1, mark
    return str(found[0]).strip()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as a reader would have it: a clone, with tolcal on the PATH."""
    target = tmp_path_factory.mktemp("readme") / "tolcal"
    ignore = shutil.ignore_patterns(".git", ".venv", "out", "__pycache__", ".hypothesis")
    shutil.copytree(ROOT, target, ignore=ignore)
    (target / "out").mkdir()
    tools = target.parent / "bin"
    tools.mkdir()
    (tools / "tolcal").write_text(f'#!/bin/sh\nexec {sys.executable} -m tolcal "$@"\n')
    (tools / "tolcal").chmod(0o755)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(target))
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "a clone")):
        subprocess.run([*git, *words], check=True)
    return target


def environment(copy: Path) -> Mapping[str, str]:
    """With tolcal on the PATH, and nothing of a pull request that these tests may run for."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith(("GITHUB_", "GIT_"))}
    path = f"{copy.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "PYTHONPATH": str(copy)}


def test_every_command_runs(copy: Path) -> None:
    """Each block of each page is a script that ends with 0, in the order in which they are read."""
    listed = [(page, block) for page in PAGES for block in blocks(page, "sh")]
    assert len(listed) == 15
    for page, block in listed:
        lines = block.splitlines()
        made = [line for line in lines if line.startswith("make ")]
        assert set(made) <= MAKE | {"make help"}
        assert all(line in (ROOT / ".ci" / "run").read_text() for line in made if line in MAKE)
        script = "\n".join(line for line in lines if line not in MAKE)
        done = subprocess.run(
            ["bash", "-eux", "-c", script], cwd=copy, env=environment(copy),
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{page}\n{done.stdout[-1000:]}\n{done.stderr[-1000:]}"
        if "tolcal report out/hand.json --format summary" in lines:
            assert done.stdout.strip().endswith(between(FIGURES, "table"))
        if "tolcal calibrate --rule paper" in block:
            assert "1.48e-05" in done.stdout  # layernorm float32, as published


def test_workflows_are_copied_as_readme_says(copy: Path) -> None:
    """All four, with the action of the commit that was reviewed."""
    (block,) = (b for b in blocks("README.md", "sh") if "$REPO/.github/workflows" in b)
    script = ["bash", "-eux", "-c", block]
    subprocess.run(script, cwd=copy, env=environment(copy), capture_output=True, check=True)
    head = subprocess.run(
        ["git", "-C", str(copy), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    there = {path.name: path.read_text() for path in (copy.parent / "kernels").rglob("*.yml")}
    source = ROOT / ".github" / "workflows"
    assert there == {
        path.name: path.read_text().replace("uses: ./\n", f"uses: OWNER/tolcal@{head}\n")
        for path in source.glob("tolcal*.yml")
    }


def test_the_python_example_runs(copy: Path) -> None:
    """The first one, as a file of a repository; the second is a test that uses the fixture."""
    example, fixture = blocks("README.md", "python")
    (copy / "example.py").write_text(f"import torch\ntorch.manual_seed(0)\n{example}")
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=copy, env=environment(copy),
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "def test_softmax(tolcal, draw):" in fixture


def test_gpu_commands_are_commands() -> None:
    """What needs a GPU at least parses; a benchmark is a script that exists and compiles."""
    listed = [line for page in PAGES for block in blocks(page, "sh gpu")
              for line in block.splitlines()]  # fmt: skip
    assert len(listed) == 24
    for command in listed:
        program, *arguments = shlex.split(command)
        if program == "python":
            compile((ROOT / arguments[0]).read_text(), arguments[0], "exec")
        else:
            build_parser().parse_args(arguments)


def test_the_sample_comment_is_the_golden_one() -> None:
    """What README shows a reader is what tolcal writes, word for word, less the other parts.

    TOLCAL_UPDATE_GOLDEN=1 renews it.
    """
    golden = (DATA / "golden" / "busy" / "comment.md").read_text()
    lines = golden.split("\n<details>")[0].splitlines()
    heading = next(line for line in lines if line.startswith("### "))
    parts = re.split(r"^(?=\*\*)", "\n".join(lines), flags=re.MULTILINE)
    shown = [part.strip() for part in parts if part.startswith(SHOWN)]
    assert len(shown) >= 3
    quoted = "\n".join(f"> {line}".rstrip() for line in "\n\n".join([heading, *shown]).splitlines())
    if os.environ.get("TOLCAL_UPDATE_GOLDEN") == "1":
        text = README.replace(between(README, "comment"), quoted)
        (ROOT / "README.md").write_text(text)
        return
    assert between(README, "comment") == quoted, "TOLCAL_UPDATE_GOLDEN=1 renews README's sample"


def test_the_corpus_is_listed_as_it_is() -> None:
    """Every op and kernel, as their op.toml has them. TOLCAL_UPDATE_GOLDEN=1 renews it."""
    ops = corpus.load(ROOT / "corpus")
    table = catalogue.markdown(ops).strip()
    if os.environ.get("TOLCAL_UPDATE_GOLDEN") == "1":
        head, rest = (ROOT / "README.md").read_text().split("<!-- corpus:begin -->")
        tail = rest.split("<!-- corpus:end -->")[1]
        mended = f"{head}<!-- corpus:begin -->\n{table}\n<!-- corpus:end -->{tail}"
        (ROOT / "README.md").write_text(mended)
        return
    assert between(README, "corpus") == table, "TOLCAL_UPDATE_GOLDEN=1 renews README's table"
    controls = [k for op in ops for k in op.kernels if k.role == "control"]
    assert table.count("nothing: a control") == len(controls) >= 16


def test_figures_of_the_introduction_are_those_of_the_table() -> None:
    """The opening claim quotes the locked runs, number for number."""
    table = between(FIGURES, "table")
    intro = README.split("## Try it")[0]
    ours = re.search(r"Locked runs: (\d+) of (\d+) red \(at most ([\d.]+) %.*?(\d+) control", table)
    assert ours is not None
    red, runs, bound, rows = ours.groups()
    words = " ".join(intro.split())
    assert f"on {runs} locked runs" in words
    assert f"made {red} red, at least {red} of {int(rows):,} control rows" in words
    assert f"That shows at most {bound} % of runs" in words
    tail = re.search(r"at most about ([\d.]+ in 1,000) runs red .*budget .* not shown", table)
    assert tail is not None
    assert f"a model of the tails says at most about {tail[1].replace(' in', ' runs in')}" in words
    assert "every buggy kernel caught in every run" in table
    plain, subtle = (
        re.search(rf"\*\*{n} kernels\*\* .*\| ([\d.]+) % \| ([\d.]+) % \| \|", table)
        for n in (13, 20)
    )
    assert plain is not None
    assert subtle is not None
    paper = re.search(r"the paper's rule: (\d+) of (\d+) red", table)
    assert paper is not None
    assert f"in {plain[2]} % of the rows where the fault shows at all" in words
    assert f"twenty subtle ones in {float(subtle[2]):.0f} %" in words
    assert (
        f"same rows: {paper[1]} of {paper[2]} runs red, {plain[1]} % and {float(subtle[1]):.0f} %"
    ) in words
    assert re.search(r"\*\*median\*\* .*\| same \| \|", table)
    cells = re.findall(
        r"\| (same|[\de.]+x(?: looser)?) \| \d+ \| \d+ of \d+ \|$", table, re.MULTILINE
    )
    looser = sum(cell.endswith("looser") for cell in cells)
    tighter = len(cells) - looser - cells.count("same")
    assert (
        f"tighter in {tighter} of {len(cells)} cells, looser in {looser} and the same in the median"
    ) in words


def test_speeds_in_readme_are_those_that_were_measured() -> None:
    """Each stands in a row of docs/speed.md's tables, with the columns that README means."""
    speed = TEXTS["docs/speed.md"]
    words = " ".join(README.split())
    fused = re.search(r"2\^28 float16 outputs takes ([\d.]+) ms \((\d+x) faster", words)
    assert fused is not None
    assert re.search(
        rf"^\| float16 \| no \| few \| [\d.]+ \| {fused[1]} \| \S+ \| \d+ \| {fused[2]} \|$",
        speed, re.MULTILINE,
    )  # fmt: skip
    records = re.search(r"(\d+) worker processes make ([\d,]+) records/s", words)
    assert records is not None
    assert re.search(rf"^\| warm \| {records[1]} \| .* \| {records[2]} \|$", speed, re.MULTILINE)
    hook = re.search(r"takes (\d+ ms) for 1,000 cells", words)
    assert hook is not None
    assert f"\n| `tolcal-check`, the file alone | {hook[1]} |" in speed


def test_commands_are_those_of_help() -> None:
    """README's table has the commands that `/tolcal help` answers with, in its order."""
    listed = [
        re.findall(r"^\| (`/tolcal .*?`) \|", t, re.MULTILINE) for t in (README, replies.HELP)
    ]
    assert listed[0] == listed[1] != []


@pytest.mark.parametrize("name", [*PAGES, "CONTRIBUTING.md", "tests/gpu/README.md"])
def test_every_path_exists(name: str) -> None:
    """Links, their headings, and paths of the repository lead somewhere."""
    text = (ROOT / name).read_text()
    here = (ROOT / name).parent
    links = [t for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t]
    spans = re.findall(r"(?<![\w./-])((?:tolcal|tests|corpus|docs|\.ci)/[\w./-]*\w)", text)
    for link in links:
        path, _, heading = link.partition("#")
        target = here / path if path else ROOT / name
        assert target.exists(), link
        if heading:
            assert heading in headings(target.read_text()), link
    for span in spans:
        if not span.startswith(("corpus/my_op", "tolcal/approve-")):
            assert (ROOT / span).exists(), span


def test_contributing_names_every_module() -> None:
    """The table of modules is whole: each stage, and each part of those that it takes apart."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.split("| where | what |")[1].split("\n\n")[0]
    package = ROOT / "tolcal"
    stages = {path.name for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    shown = {f"tolcal/{name}{'' if name.endswith('.py') else '/'}" for name in stages}
    assert {one for one in shown if f"`{one}" not in table and "__" not in one} == set()
    for folder in (
        "calibrate",
        "cases",
        "github",
        "github/commands",
        "measure",
        "report/html",
        "stats",
    ):
        for path in (package / folder).glob("[!_]*.py"):
            assert f"`{path.stem}`" in table, path


def headings(text: str) -> set[str]:
    """As GitHub names them: small letters, no punctuation, hyphens for spaces."""
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in found}


def test_every_page_is_reached() -> None:
    """README names each page of docs/, directly or by one that it names."""
    reached = " ".join(TEXTS.values())
    for page in PAGES[1:]:
        assert f"({page})" in README or f"({Path(page).name})" in reached, page
