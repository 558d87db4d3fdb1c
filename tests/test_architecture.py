"""The house: which room may know which, what is found where, what a start must not import."""

import ast
import os
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import jaxtie

PACKAGE = Path(jaxtie.__file__).parent
ROOMS = ("exor", "text")  # kinds of experiments, which never import each other
# Wing or module of the entrance -> what its modules may import beside each other; a row has all
# that is above it, too.
MAY_IMPORT = {
    "formulas": set(),
    "experiment": {"formulas"},
    "models": {"experiment", "formulas"},
    "results": {"experiment"},
    # What two models say of pairs of tokens: arrays in, numbers out. What trains and asks them is
    # `instrument`.
    "hypothesis": {"experiment", "results"},
    "training": {"experiment", "models", "results"},
    "options": {"experiment"},
    "leave": set(),
    "nnx": {"formulas", "experiment", "models"},
    **{
        room: {"formulas", "experiment", "models", "results", "training", "options"}
        for room in ROOMS
    },
    "audit": {"formulas", "experiment", "models", "results", "options", "leave"},
    "kinds": {"experiment", "results", "training"},
    "runs": {"experiment", "results", "training", "kinds"},
    "page": {"experiment", "results", "training", "kinds", "runs"},
    "plan": {"experiment", "results", "training", "kinds"},
    "all": {"experiment", "results", "training", "kinds", "runs", "page"},
    # The main experiment of the paper is what runs by default, so the command line knows one
    # declaration.
    "document": {"experiment", "results", "training", "kinds", "runs", "exor"},
    "cli": {
        "document",
        "experiment",
        "results",
        "training",
        "kinds",
        "runs",
        "page",
        "plan",
        "all",
        "options",
        "leave",
        "exor",
    },
    # It ties one room's models to the estimates: the only one that knows both, so that neither has
    # to know the other.
    "instrument": {
        "cli",
        "experiment",
        "hypothesis",
        "kinds",
        "leave",
        "models",
        "options",
        "results",
        "runs",
        "text",
        "training",
    },
    "hypothesis.__main__": {"instrument", "leave"},
    "audit.__main__": {"audit"},
    "run": {"cli", "leave"},
    "figures": {"cli"},
    "report": {"cli"},
}
WITHOUT_JAX = (
    "experiment models.sizes formulas models.initial_loss options kinds runs page plan all document"
    " cli training.devices training.progress results.folder results.netcdf results.page_section"
    " results.plots results.roles results.schema results.share_figure results.similarity"
    " results.statistics results.survival results.tables results.terminal results.verdicts"
    " exor.declaration exor.kind exor.options exor.results exor.theory exor.claims exor.evidence"
    " exor.escape exor.stability exor.tables exor.figures exor.portrait text.declaration"
    " text.evidence text.kind text.options text.results text.material text.tables text.heads"
    " text.figures text.corpus.tokens text.corpus.batches hypothesis.estimators"
    " hypothesis.inference hypothesis.sources hypothesis.judgement hypothesis.report"
    " instrument.command text.planting text.two_models text.windows text.baselines text.claims"
    " text.contexts text.groups text.pairs audit.adapter audit.checkpoint audit.command"
    " audit.compare audit.find audit.findings audit.flags audit.headers audit.ids audit.judge"
    " audit.loaders audit.names audit.stored"
).split()
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
MODULES = {name: path for name, path in FILES.items() if path.name != "__init__.py"}


def imports_of(path: Path) -> set[str]:
    """Names of the jaxtie modules that a file imports, at its top or within functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {
        name.removeprefix("jaxtie.") for name in names if name.startswith("jaxtie.")
    } & MODULES.keys()


def wing_of(module: str) -> str:
    return module if module.endswith(".__main__") else module.partition(".")[0]


def test_imports_go_in_the_directions_of_the_design():
    assert {wing_of(module) for module in MODULES} == MAY_IMPORT.keys()
    for module, path in MODULES.items():
        for imported in imports_of(path):
            wing, other = wing_of(module), wing_of(imported)
            assert other == wing or other in MAY_IMPORT[wing], f"{module} imports {imported}"
    assert imports_of(MODULES["cli"]) & {m for m in MODULES if wing_of(m) in ROOMS} == {
        "exor.declaration"
    }


def test_no_module_needs_itself():
    """Not even by way of imports within functions."""
    order = TopologicalSorter(
        {module: imports_of(path) for module, path in MODULES.items()}
    ).static_order()
    assert set(order) == MODULES.keys()  # it raises CycleError


def names_at_the_top(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        names |= {
            part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
        }
    return names


def names_of_protocol() -> set[str]:
    tree = ast.parse(MODULES["kinds"].read_text())
    (kind,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Kind")
    functions = {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}
    return functions | {node.target.id for node in kind.body if isinstance(node, ast.AnnAssign)}


@pytest.mark.parametrize("room", ROOMS)
def test_a_kind_answers_all_that_is_asked_of_it(room):
    assert names_of_protocol() <= names_at_the_top(MODULES[f"{room}.kind"])


def run_python(code: str, *options: str, **where) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, **where
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_start_is_light():
    heavy = (
        "jax",
        "flax",
        "matplotlib",
        "orbax",
        "xarray",
        "tyro",
        "tensorflow_datasets",
        "tokenizers",
    )
    assert (
        run_python(f"import sys, jaxtie; print([name for name in {heavy} if name in sys.modules])")
        == "[]"
    )


def test_what_declares_and_what_reads_results_needs_no_jax():
    modules = ", ".join(f"jaxtie.{name}" for name in WITHOUT_JAX)
    assert run_python(f"import sys, {modules}; print('jax' in sys.modules)") == "False"


@pytest.mark.slow
def test_without_text_the_rest_works(tmp_path):
    """Its folder and its line in `kinds.py` deleted: an experiment on EXor declares, trains, is
    shown; no option of text.
    """
    house = tmp_path / "jaxtie"
    shutil.copytree(PACKAGE, house, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(house / "text")
    kinds = (house / "kinds.py").read_text()
    line = '    "text": "jaxtie.text.kind",\n'
    assert kinds.count(line) == 1
    (house / "kinds.py").write_text(kinds.replace(line, ""))
    code = """
import sys
import jaxtie
sys.path.append({tests!r})
from drawing import save_small
from jaxtie.cli import main
from jaxtie.results import plots
plots.save = save_small
assert jaxtie.__file__.startswith({place!r})
options = "--seeds 1 --steps 100 --record-every 20 --eval-every 100 --arms tied --quiet --out run"
assert main(options.split()) == 0
assert main(["--text", "books"]) == 2
assert jaxtie.load("run").sizes["step"] == 6
"""
    # as other tests, which compile the same
    place, environment = (
        str(tmp_path),
        os.environ | {"JAX_NUM_CPU_DEVICES": "2"},
    )
    code = code.format(place=place, tests=str(Path(__file__).parent))
    out = run_python(code, cwd=place, env=environment)
    assert "train accuracy" in out and "figures, results and summary: run" in out
