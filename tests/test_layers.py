"""The module table of the design: which module may import what, and what stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tolcal

PACKAGE = Path(tolcal.__file__).parent
#: Stage -> what it may import beyond the standard library, itself and tolcal.__version__;
#: lower-case names of our own stages first, distributions after the bar.
ALLOWED: dict[str, str] = {
    "model": "| msgspec",
    "tomlfile": "model | tomli msgspec",
    "files": "model |",
    "imports": "model | msgspec",
    "corpus": "model tomlfile imports files | msgspec tomlkit",
    "cases": "model | numpy torch",
    "stats": "model | numpy torch triton",
    "binomial": "|",
    "bounds": "model | msgspec numpy",
    "sound": "model | msgspec",
    "measure": "model cases stats sound | msgspec torch triton ray",
    "history": "model sound | pyarrow pandas numpy msgspec",
    "calibrate": "model binomial bounds history | numpy pandas msgspec",
    "compare": "model bounds | msgspec numpy",
    "minimize": "model imports cases measure bounds compare | msgspec numpy",
    "tolerances": "model tomlfile files | tomlkit msgspec",
    "report": "model binomial | jinja2 rich msgspec altair vl_convert",
    "github": "model corpus imports tolerances history calibrate compare review report tomlfile "
    "bounds files | requests msgspec pyarrow",
    "review": "model history calibrate compare | msgspec pandas pyarrow",
    "testing": "model cases stats bounds measure history tolerances project tomlfile "
    "| msgspec numpy torch",
    "project": "model tomlfile | msgspec tomli",
    "plugin": "model testing | pytest",
    "hook": "model tolerances project tomlfile files | msgspec tomli",
    "cli": "model tomlfile corpus cases measure history calibrate compare tolerances report "
    "github hook bounds binomial stats project review files minimize "
    "| msgspec pyarrow numpy pandas",
    "__main__": "cli |",
    "__init__": "|",
}
#: Modules that may import these when they are imported (``x.*``: all of that folder); all others
#: only inside functions.
HEAVY = {
    "torch": {
        "tolcal.stats.*", "tolcal.measure.worker", "tolcal.measure.context",
        "tolcal.measure.checks", "tolcal.measure.device", "tolcal.measure.domain",
        "tolcal.measure.environment", "tolcal.measure.given", "tolcal.measure.large",
        "tolcal.measure.relations", "tolcal.measure.room",
        "tolcal.measure.settings",
        "tolcal.measure.watch", "tolcal.testing.recording",
    },
    "triton": {"tolcal.stats.fused", "tolcal.stats.narrowing", "tolcal.measure.fused"},
    "pandas": {"tolcal.history.*", "tolcal.calibrate.*"},
    "pyarrow": {"tolcal.history.*"},
    "numpy": {
        "tolcal.cases.*", "tolcal.stats.batch", "tolcal.stats.order", "tolcal.bounds",
        "tolcal.history.*", "tolcal.calibrate.*", "tolcal.compare.*", "tolcal.testing.arrays",
        "tolcal.testing.judging", "tolcal.testing.kinds", "tolcal.testing.reference",
        "tolcal.minimize.*",
    },
    "jinja2": {"tolcal.report.markdown", "tolcal.report.html"},
    "altair": {"tolcal.report.html.charts"},
    "vl_convert": set[str](),
    "rich": {"tolcal.report.terminal"},
    "ray": set[str](),
}  # fmt: skip
MODULES = {
    ".".join(("tolcal", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def stage_of(module: str) -> str:
    """The stage of a dotted name of ours: ``tolcal.report.text`` -> ``report``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(module: str) -> set[tuple[str, bool]]:
    """What a module imports, and whether on being imported itself (else in a function)."""
    found: set[tuple[str, bool]] = set()

    def visit(node: ast.AST, top: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            top = False
        if isinstance(node, ast.Import):
            found.update((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add((whole if whole in MODULES else node.module, top))
        inner = top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    visit(ast.parse(MODULES[module].read_text("utf-8")), True)
    return {(name, top) for name, top in found if name != "__future__"}


def foreign(module: str) -> set[tuple[str, bool]]:
    """Distributions it imports, by their top-level name."""
    names = {(name.split(".")[0], top) for name, top in imports(module)}
    return {(n, top) for n, top in names if n not in sys.stdlib_module_names and n != "tolcal"}


def own(module: str) -> set[str]:
    """Our modules that it imports; ``from tolcal import __version__`` is no import of a stage."""
    return {name for name, _ in imports(module) if name.startswith("tolcal.")}


@pytest.mark.parametrize("module", MODULES)
def test_imports_are_allowed(module: str) -> None:
    """A module imports only what the table of the design lets its stage import."""
    stage = stage_of(module)
    ours, _, theirs = ALLOWED[stage].partition("|")
    assert {stage_of(name) for name in own(module)} <= {stage, *ours.split()}
    assert {name for name, _ in foreign(module)} <= set(theirs.split())


@pytest.mark.parametrize("heavy", HEAVY)
def test_heavy_imports_are_where_they_belong(heavy: str) -> None:
    """A heavy distribution is imported at module level only by the modules listed for it."""
    at_top = {module for module in MODULES if (heavy, True) in foreign(module)}
    folders = tuple(name.removesuffix("*") for name in HEAVY[heavy] if name.endswith("*"))
    assert {m for m in at_top - HEAVY[heavy] if not f"{m}.".startswith(folders)} == set()


def test_stages_import_in_one_direction() -> None:
    """No two stages import each other, directly or around a circle."""
    edges: dict[str, set[str]] = {}
    for module in MODULES:
        stage = stage_of(module)
        edges.setdefault(stage, set()).update({stage_of(n) for n in own(module)} - {stage})
    finished: set[str] = set()

    def visit(stage: str, path: tuple[str, ...]) -> None:
        assert stage not in path, " -> ".join((*path, stage))
        if stage not in finished:
            for other in sorted(edges[stage]):
                visit(other, (*path, stage))
            finished.add(stage)

    for stage in sorted(edges):
        visit(stage, ())


def test_every_stage_is_in_the_table() -> None:
    """A new stage gets its row in the table before it gets an import."""
    assert {stage_of(module) for module in MODULES} <= set(ALLOWED)


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("tolcal", "msgspec torch triton numpy pandas pyarrow jinja2 rich tomlkit"),
        ("tolcal.model", "torch triton numpy pandas pyarrow jinja2 rich tomlkit"),
        ("tolcal.corpus", "torch triton numpy pandas pyarrow jinja2 rich tomlkit"),
        ("tolcal.tolerances", "torch triton numpy pandas pyarrow jinja2 rich tomlkit"),
        ("tolcal.report", "torch triton numpy pandas pyarrow jinja2 rich altair"),
        ("tolcal.report.markdown", "torch triton numpy pandas pyarrow rich"),
        ("tolcal.report.html", "torch triton numpy pandas pyarrow rich"),
        ("tolcal.report.terminal", "torch triton numpy pandas pyarrow"),
        (
            "tolcal.hook.commands",
            "torch triton numpy pandas pyarrow jinja2 rich tomlkit difflib socket ssl",
        ),
        ("tolcal.project", "torch triton numpy pandas pyarrow jinja2 rich tomlkit"),
        ("tolcal.testing", "torch triton pandas pyarrow rich tomlkit"),
        ("tolcal.plugin", "torch triton numpy pandas pyarrow rich tomlkit"),
        ("tolcal.cli", "torch triton numpy pandas pyarrow jinja2 rich tomlkit"),
        ("tolcal.cli.config", "torch triton numpy pandas pyarrow jinja2 rich tomlkit"),
        ("tolcal.cli.judging", "torch triton numpy pandas pyarrow jinja2 rich"),
        ("tolcal.cli.showing", "torch triton numpy pandas pyarrow jinja2 rich tomlkit"),
        ("tolcal.cli.keeping", "torch triton numpy pandas pyarrow jinja2 rich"),
        ("tolcal.cases", "torch triton pandas pyarrow"),
        ("tolcal.compare", "torch triton pandas pyarrow"),
        ("tolcal.history", "torch triton"),
        ("tolcal.calibrate", "torch triton"),
        # The parent of the workers: nothing that a kernel does may reach it.
        ("tolcal.measure", "torch triton pandas pyarrow ray"),
        ("tolcal.cli.measuring", "torch triton ray"),
        ("tolcal.cli.minimizing", "torch triton ray"),
        ("tolcal.minimize", "torch triton pandas pyarrow ray"),
        ("tolcal.github.histories", "torch triton"),
        ("tolcal.github.ingest", "torch triton"),
        ("tolcal.github.command", "torch triton"),
        ("tolcal.github.approvals", "torch triton numpy pandas pyarrow jinja2 tomlkit"),
    ],
)
def test_importing_stays_light(module: str, never: str) -> None:
    """Importing a module does not bring in, however indirectly, what it must do without."""
    code = f"import sys, {module}; print(*(n for n in {never.split()} if n in sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert answer.stdout.split() == []
