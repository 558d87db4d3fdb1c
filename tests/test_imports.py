"""Imports between packages point down; configurations and results need no jax."""

import ast
import subprocess
import sys
from collections.abc import Iterable
from graphlib import TopologicalSorter
from pathlib import Path

import jaxtie

PACKAGE = Path(jaxtie.__file__).parent
# A package may import from the layers above its own in this list, never from its neighbours.
LAYERS = (
    {"config", "shutdown"},
    {"options", "__main__"},  # which finds its commands by name
    {"tying", "results"},
    {"models"},
    {"training"},
    {"exor", "text"},
    {"run"},
)
BESIDE = {
    "advise": {"__main__", "config", "options", "shutdown", "tying", "compare"},
    "audit": {"__main__", "config", "options", "shutdown", "results"},
    "compare": {"__main__", "config", "options", "shutdown", "results"},
    "nnx": {"config", "tying"},
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
MODULES = {name: path for name, path in FILES.items() if path.name != "__init__.py"}


def imports_of(nodes: Iterable[ast.AST]) -> set[str]:
    """Names of the jaxtie modules that some statements import."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("jaxtie.") for name in names} & MODULES.keys()


def package_of(module: str) -> str:
    return module.partition(".")[0]


def test_imports_point_down():
    allowed = dict(BESIDE)
    for i, layer in enumerate(LAYERS):
        allowed |= dict.fromkeys(layer, set().union(*LAYERS[:i]))
    assert {package_of(module) for module in MODULES} == allowed.keys()
    for module, path in MODULES.items():
        for imported in imports_of(ast.walk(ast.parse(path.read_text()))):
            own, other = package_of(module), package_of(imported)
            assert other == own or other in allowed[own], f"{module} imports {imported}"


def test_no_import_cycles():
    """Functions may import what imports their module: a configuration its results, for one."""
    graph = {
        module: imports_of(ast.parse(path.read_text()).body) for module, path in MODULES.items()
    }
    assert set(TopologicalSorter(graph).static_order()) == MODULES.keys()  # it raises CycleError


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names_are_listed_before_they_are_imported():
    assert set(jaxtie.__all__) <= set(dir(jaxtie))


def test_importing_jaxtie_is_light():
    heavy = "jax flax matplotlib orbax xarray tyro tensorflow_datasets tokenizers".split()
    assert (
        run_python(f"import sys, jaxtie; print([name for name in {heavy} if name in sys.modules])")
        == "[]"
    )


def test_configurations_and_results_need_no_jax():
    modules = [
        f"jaxtie.{name}"
        for name in MODULES
        if (name in WITHOUT_JAX or not {name, package_of(name)} & WITH_JAX)
        and not name.endswith("__main__")
    ]
    assert len(modules) > 50
    code = f"import sys, {', '.join(modules)}; print('jax' in sys.modules)"
    assert run_python(code) == "False"
