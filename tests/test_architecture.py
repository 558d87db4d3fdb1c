"""The direction of imports, and what a start must not import."""

import ast
import subprocess
import sys
from pathlib import Path

import jaxtie

PACKAGE = Path(jaxtie.__file__).parent
# Each module may import from its own row's predecessors only.
LAYERS = [
    {"config", "theory"},
    {"models.layers", "data.batches", "data.prepared"},
    {"models.embedding", "data.reading"},
    {"lanes", "data.exor", "data.masking", "models.transformer", "models.lstm", "models.mixer", "models.masked_lm", "optim"},
    {"models.cross_entropy", "models.text", "train", "data.text"},
    {"train_text"},
    {"sweep", "results", "progress", "cli"},
    {"processes"},
    {"checkpoint"},
    {"text_training", "run_text", "tables"},
    {"style", "comparison", "verdicts"},
    {"convergence", "text_summary"},
    {"portrait", "summary", "text_figures"},
    {"figures"},
    {"head_convergence", "initial_loss", "report"},
    {"run"},
]
WITHOUT_JAX = "config theory results tables comparison verdicts convergence text_summary summary portrait figures".split()
WITHOUT_JAX += ["report", "cli", "progress"]
WITHOUT_JAX += ["data.reading", "data.batches", "data.text"]


def imports(path: Path) -> set[str]:
    """Names of the jaxtie modules that a file imports, at its top or within functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    modules = {name.removeprefix("jaxtie.") for name in names if name.startswith("jaxtie.")}
    return {name for name in modules if (PACKAGE / f"{name.replace('.', '/')}.py").exists()}


def test_imports_go_one_way():
    rank = {module: i for i, layer in enumerate(LAYERS) for module in layer}
    files = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    assert files.keys() == rank.keys()
    for module, path in files.items():
        for imported in imports(path):
            assert rank[imported] < rank[module], f"{module} imports {imported}"


def test_one_module_imports_the_libraries_of_text():
    names = ("tensorflow_datasets", "tokenizers")
    importers = [path.stem for path in PACKAGE.rglob("*.py") if any(f"import {name}" in path.read_text() for name in names)]
    importers += [path.stem for path in PACKAGE.rglob("*.py") if any(f"from {name}" in path.read_text() for name in names)]
    assert set(importers) == {"text"}


def test_start_is_light():
    heavy = ("jax", "flax", "matplotlib", "orbax", "tensorflow_datasets", "tokenizers")
    code = f"import sys, jaxtie; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_what_reads_results_needs_no_jax():
    code = f"import sys, {', '.join(f'jaxtie.{name}' for name in WITHOUT_JAX)}; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
