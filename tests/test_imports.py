"""Imports between packages point down; configurations and results need no jax."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import jaxtie

PACKAGE = Path(jaxtie.__file__).parent
EXPERIMENTS = PACKAGE.parent / "experiments"
# A package may import from the layers above its own in this list, never from its neighbours.
LAYERS = (
    {"checks", "shutdown"},
    {"arms"},
    {"config"},
    {"options"},
    {"tying", "results"},
    {"models"},
    {"training"},
    {"exor", "text"},
    {"run"},
)
BESIDE = {
    "advise": {"checks", "arms", "config", "options", "shutdown", "tying", "compare"},
    "audit": {"checks", "config", "options", "shutdown", "results"},
    "compare": {"checks", "config", "options", "shutdown", "results"},
    "nnx": {"config", "tying"},
    "__main__": {"checks", "shutdown", "run", "compare", "advise", "audit"},
}
WITH_JAX = {
    "exor.data",
    "exor.task",
    "models",
    "nnx",
    "text.masking",
    "text.task",
    "training",
    "tying",
}
WITHOUT_JAX = {"tying.budget"}  # though of such a package
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {
    name: ast.parse(path.read_text()) for name, path in FILES.items() if path.name != "__init__.py"
}


def imports_of(nodes: Iterable[ast.AST]) -> set[str]:
    """Names of the jaxtie modules that some statements import."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("jaxtie.") for name in names} & TREES.keys()


def package_of(module: str) -> str:
    return module.partition(".")[0]


def test_imports_point_down():
    allowed = dict(BESIDE)
    for i, layer in enumerate(LAYERS):
        allowed |= dict.fromkeys(layer, set().union(*LAYERS[:i]))
    assert {package_of(module) for module in TREES} == allowed.keys()
    for module, tree in TREES.items():
        for imported in imports_of(ast.walk(tree)):
            own, other = package_of(module), package_of(imported)
            starts = module.endswith("__main__") and imported == "__main__"
            assert starts or other == own or other in allowed[own], f"{module} imports {imported}"


def run_by(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those below `if TYPE_CHECKING`, which no program executes."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from run_by(node)


def test_no_import_cycles():
    """Not even by imports inside of functions."""
    graph = {module: imports_of(run_by(tree)) for module, tree in TREES.items()}
    assert set(TopologicalSorter(graph).static_order()) == TREES.keys()  # it raises CycleError


def run_python(code: str, **options) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names_are_listed_before_they_are_imported():
    assert set(jaxtie.__all__) <= set(dir(jaxtie))


def test_importing_jaxtie_is_light_and_configurations_and_results_need_no_jax():
    heavy = "jax flax matplotlib orbax xarray tensorflow_datasets tokenizers".split()
    modules = [
        f"jaxtie.{name}"
        for name in TREES
        if (name in WITHOUT_JAX or not {name, package_of(name)} & WITH_JAX)
        and not name.endswith("__main__")
    ]
    assert len(modules) > 50
    light = f"import sys, jaxtie; print([name for name in {heavy} if name in sys.modules])"
    found = run_python(f"{light}; import {', '.join(modules)}; print('jax' in sys.modules)")
    assert found.split("\n") == ["[]", "False"]


def test_nothing_outside_of_the_laboratory_imports_it():
    laboratory = {path.stem for path in (EXPERIMENTS / "lab").iterdir()}
    assert laboratory >= {"commit", "condense", "pages"}
    others = (*EXPERIMENTS.glob("*.py"), *PACKAGE.rglob("__init__.py"))
    own = {path: ast.parse(path.read_text()) for path in others}
    for path, tree in (*TREES.items(), *own.items()):
        names: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            elif isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
        assert not {*names} & laboratory, path
        assert not [name for name in names if ".lab" in name], path


def test_an_installed_package_lists_its_experiments_without_the_laboratory(tmp_path, monkeypatch):
    """Of the files that setuptools would put into a wheel."""
    setuptools = pytest.importorskip("setuptools", minversion="77")  # as pyproject.toml asks
    monkeypatch.chdir(PACKAGE.parent)
    distribution = setuptools.Distribution({"script_name": "setup.py"})
    distribution.parse_config_files()
    built = distribution.get_command_obj("build_py")
    built.ensure_finalized()
    for package, module, path in built.find_all_modules():
        target = tmp_path.joinpath(*package.split("."), f"{module}.py")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    installed = tmp_path / "jaxtie" / "experiments"
    stems = {path.stem for path in EXPERIMENTS.glob("*.py")}
    assert {path.stem for path in installed.rglob("*.py")} == stems
    code = "from jaxtie.run.command import main; main(['--list'])"
    lines = run_python(code, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}).splitlines()
    assert {
        line.split()[0].strip(":") for line in lines if line[:3].strip() and line[0] == " "
    } == stems
    assert [line.split()[0] for line in lines if line[:1].strip()] == [
        "reproduce:",
        "explain:",
        "text:",
    ]
