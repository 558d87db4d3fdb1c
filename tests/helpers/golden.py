"""Compare two checkouts of jaxtie on one machine: programs, data, tables, errors, bits of runs.

    python tests/helpers/golden.py BEFORE AFTER [--book FILE] [--only KIND,KIND:ITEM] [--work DIR]

Each checkout is measured by processes of its own, so the two never meet in one. A measurement is
a table of items; each item has names, and a short text for each. Two measurements are compared
name by name: equal, differs, gone or new. The exit status is 1 unless all are equal.

Measurements of a clean checkout are kept in DIR: by its commit, by Python, and by what is measured
and how. They depend on the processor and on the version of JAX, so they are not committed.
"""

import argparse
import contextlib
import dataclasses
import difflib
import hashlib
import importlib
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

Measured = dict[str, dict[str, str]]  # item -> name -> what was found

# ----- What a later change adapts.

# Old word -> new word, in names that BEFORE has: of results, leaves of checkpoints, tables, ...
# Experiment files and options below are tried as they stand first, then with the new words.
RENAMED: dict[str, str] = {
    "optimiser": "optimizer",
    "Optimiser": "Optimizer",
    "deviation": "init_std",
    "tied+deviation": "tied+init-std",
    "soft_cap": "logit_softcap",
    "soft-cap": "logit-softcap",
    "decay_alone": "decay_factor",
    "undecided": "inconclusive",
    "task='masked'": "objective='masked'",
    ".totals.loss": ".totals['loss']",
    ".totals.right": ".totals['accuracy']",
    ".totals.asked": ".totals['weight']",
    **{
        f".roles.{name}": f".totals['{name}']"
        for name in (
            "step_square",
            "input_step_product",
            "input_gradient_square",
            "output_gradient_square",
            "gradient_product",
        )
    },
    "task='causal'": "objective='causal'",
}

# Where things are: the first place that a checkout has. This alone knows the inside of the package.
PLACES = {
    "jaxtie.run": ("jaxtie.run.command:main", "jaxtie.cli:main"),
    "jaxtie.audit": ("jaxtie.audit.command:main_audit",),
    "tables": (
        "commit:tables_by_name",  # of experiments/lab
        "jaxtie.run.report:tables_by_name",
        "jaxtie.document:tables_by_name",
    ),
    "documents": ("commit:DOCUMENTS", "jaxtie.run.report:DOCUMENTS", "jaxtie.document:DOCUMENTS"),
    "split": ("jaxtie.exor.data:split", "jaxtie.exor.process:split"),
    "sample": ("jaxtie.exor.data:sample", "jaxtie.exor.process:sample"),
    "process law": ("jaxtie.exor.data:enumerate_process", "jaxtie.exor.process:enumerate_process"),
    "split laws": ("jaxtie.exor.task:build_contexts", "jaxtie.exor.member:build_contexts"),
    "stream": (
        "jaxtie.training.task:stream",
        "jaxtie.training.member:stream",
        "jaxtie.training.streams:stream",
    ),
    "prepare": ("jaxtie.text.data.tokens:prepare_text", "jaxtie.text.corpus.tokens:prepare_text"),
    "material": (
        "jaxtie.text.corpus:prepare_corpus",
        "jaxtie.text.corpus:make_material",
        "jaxtie.text.material:make_material",
    ),
    "training batches": (
        "jaxtie.text.corpus:training_batches",
        "jaxtie.text.material:training_batches",
    ),
    "validation batches": (
        "jaxtie.text.corpus:validation_batches",
        "jaxtie.text.material:validation_batches",
    ),
}


def find(what: str) -> Any:
    """Something from the inside of the checkout."""
    for place in PLACES[what]:
        module, name = place.split(":")
        with contextlib.suppress(ModuleNotFoundError, AttributeError):
            return getattr(importlib.import_module(module), name)
    raise LookupError(f"{what}: is at none of {', '.join(PLACES[what])}")


def command(*options: str) -> list[str]:
    """The command that starts a run: `python -m jaxtie.run`, without saving figures."""
    return [sys.executable, "-c", START, *options]


START = """import runpy
from matplotlib.figure import Figure
Figure.savefig = lambda *_, **__: None
runpy.run_module("jaxtie.run", run_name="__main__", alter_sys=True)"""


def renamed(text: str) -> str:
    """A text with the new words."""
    for old, new in RENAMED.items():
        text = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _, new=new: new, text)
    return text


# ----- What is measured.

FILE = """from jaxtie import Corpus, Experiment, LSTM, Mixer, Optimiser, Process
from jaxtie import TextExperiment, Transformer
experiment = {}
"""
PROCESSES = {
    "main": "Process()",
    "ndh": "Process(zeros=(1.0, 0.0), ones=(0.1, 0.9))",
    "ydh": "Process(zeros=(1.0, 0.0), ones=(0.5, 0.5))",
    "control": "Process(zeros_by_label=True)",
    "all strings": "Process(all_strings=True, data_seed=7)",
    "short": "Process(length=5, zeros=(0.3, 0.7))",
}
BODIES = {
    "transformer-small": "Transformer()",
    "mixer-small": "Mixer()",
    "lstm-small": "LSTM()",
    "transformer-medium": "Transformer(layers=2, width=32, feedforward=32)",
    "mixer-medium": "Mixer(layers=2, width=32, tokenwise=32, channelwise=32)",
    "lstm-medium": "LSTM(layers=4, width=32, hidden=32)",
}
HEADS = """
tied+bias untied+bias tied+undecayed-bias tied+half-swap untied+half-swap tied+shuffle
tied+projection untied+projection tied+bert-head tied+deviation=log-n-by-D tied+input-scale=root-D
tied+logit-scale=1-by-root-D tied+input-gradient=0.5 tied+output-gradient=0 tied+soft-cap=5
tied+output-start
""".split()
TEXT = """TextExperiment(
    model=Transformer(layers=1, heads=2, width=16, feedforward=32), batch=16, length=16,
    buckets=(8, 16), words=12, contexts=4, steps=100, record_every=25, eval_every=50,
    eval_batches=4, seeds=(0, 1), optimiser=Optimiser(learning_rate=1e-2, half_period=100),
    corpus=Corpus(vocab_size=300), {}
)"""
TEXTS = {
    "masked": TEXT.format("task='masked'"),
    "causal": TEXT.format("task='causal', duplicates=(0.5, 0.1)"),
    "masked-plain": TEXT.format("task='masked', duplicates=False"),
    "causal-roles": TEXT.format("task='causal', duplicates=False, roles=True"),
}
MAIN, ROLES = "Experiment()", "Experiment(roles=True)"
NDH, CONTROL = (f"Experiment(process={PROCESSES[name]})" for name in ("ndh", "control"))
BOOK = "--text BOOK "  # a path takes the place of BOOK


class Run(NamedTuple):
    """A run. `options`: of its commands, in one folder; `kill`: each is stopped so, and goes on."""

    experiment: str
    options: str
    kill: signal.Signals | None = None
    processes: int = 1


UNTIED = "--arms tied,untied@1000,tied+bias --steps 2000 --seeds "
SWEPT = "--sweep weight_decay=0,0.1 --sweep p_X=0.1,0.5 --steps 2000 --seeds "
EXTENDED = "--seeds 4 --steps 300;--seeds 40 --steps 300;--seeds 40 --steps 600"
OTHER_DATA = "--data-seed 7 --all-strings --independent-layers"
RUNS = {
    "main": Run(MAIN, "--seeds 64 --steps 3000"),
    "ndh": Run(NDH, "--seeds 4 --steps 1000"),
    "ydh": Run(MAIN, "--zeros 1,0 --ones 0.5,0.5 --seeds 4 --steps 1000"),
    "control": Run(CONTROL, "--seeds 4 --steps 1000"),
    "other data": Run(MAIN, f"{OTHER_DATA} --seeds 4 --steps 500"),
    "untied": Run(MAIN, UNTIED + "4"),
    "sweep": Run(MAIN, SWEPT + "8"),
    "roles": Run(ROLES, "--arms tied,tied+output-start,untied --seeds 4 --steps 1000"),
    "masked": Run(TEXTS["masked"], BOOK),
    "causal": Run(TEXTS["causal"], BOOK),
    "causal-roles": Run(TEXTS["causal-roles"], BOOK),
    "text-untied": Run(TEXTS["masked"], BOOK + "--arms tied,untied@50"),
    "main-killed": Run(MAIN, "--seeds 64 --steps 3000", signal.SIGKILL),
    "sweep-stopped": Run(MAIN, SWEPT + "64", signal.SIGTERM),
    "untied-killed": Run(MAIN, UNTIED + "64", signal.SIGKILL),
    "masked-killed": Run(
        TEXTS["masked"], BOOK + "--arms tied,untied@500 --steps 1000", signal.SIGKILL
    ),
    "causal-stopped": Run(TEXTS["causal-roles"], BOOK + "--steps 1000", signal.SIGTERM),
    "main-extended": Run(MAIN, EXTENDED),
    "two-processes": Run(MAIN, "--seeds 64 --steps 500", processes=2),
    "two-processes-text": Run(TEXTS["masked"], BOOK, processes=2),
}
PROGRAMS = {  # experiment, arms, options; each arm is traced alone, so that no run begins
    "heads": (MAIN, HEADS, ""),
    "roles": (ROLES, ("tied",), ""),
    "control": (CONTROL, ("tied",), ""),
    "heads of text": (TEXTS["causal"], ("tied+bert-head", "untied+bias"), BOOK),
}
for name, body in BODIES.items():
    PROGRAMS[name] = f"Experiment(model={body})", ("tied", "untied"), ""
    if name != "transformer-small":
        steps = 300 if name.endswith("medium") else 500
        RUNS[name] = Run(f"Experiment(model={body})", f"--seeds 4 --steps {steps}")
for name, experiment in TEXTS.items():
    PROGRAMS[name] = experiment, ("tied", "untied"), BOOK

LINES = {  # of each command, separated by | or the end of a line
    "jaxtie.run": """
--seeds 0|--seeds=-3|--seeds 5-2|--seeds a|--seeds 1,1|--seeds ''|--seeds 5-
--seeds 4294967296-4294967296|--steps 0|--steps 150|--steps 3000000000|--steps 99999999999
--eval-every 150|--record-every 0|--arms tied,knotted|--arms untied@0|--arms untied@150
--arms tied@100|--arms tied,tied|--arms tied+shuffle=3|--arms ''|--data-seed=-1
--zeros 0.1,0.8|--ones nan,nan|nowhere.py|README.txt|raises.py|broken.py|empty.py|unlikely.py
leaves.py|misspelt.py|named.py|good.py good.py|--checkpoint-every 0|--coordinator here:4000
--distributed --coordinator here --process-count 2 --process-index 0|--out finished --dry-run
--out earlier --dry-run|--out damaged|--out README.txt|--out other --overwrite|causal.py
causal.py --text nowhere|causal.py --text README.txt|causal.py --text README.txt --zeros 0.2,0.8
--text README.txt|causal.py --arms tied+nonsense|causal.py --arms tied+bias+bias
causal.py --arms tied+soft-cap=-1|causal.py --arms untied@100+bias|--sweep ''
--sweep momentum=0.9|--sweep weight_decay=|--sweep p_X=0.5,1.5|--sweep eps=1e-8,1e-08
--zeros 0.2,0.8 --sweep p_X=0.1,0.5
--sedes 3|--steps
""",
    "jaxtie.audit": """
nowhere|other|empty.safetensors|short.safetensors|list.safetensors|lfs.safetensors|model.onnx
model.gguf|tables.npz|model.weights.h5|good --input embed_tokens|good --output lm_head.wieght
good --adapter other|good --sideways|good --json
""",
}
PIPES = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
TENSOR = '"dtype": "F32", "shape": [64, 8], "data_offsets"'
HEADER = b"""{"model.embed_tokens.weight": {%b: [0, 2048]}, "lm_head.weight": {%b: [2048, 4096]}}"""
HEADER %= TENSOR.encode(), TENSOR.encode()
FILES = {
    "README.txt": "no Python",
    "raises.py": "def fail():\n    pass\n1 / 0\n",
    "broken.py": "def :",
    "empty.py": "",
    "leaves.py": "raise SystemExit(0)",
    "unlikely.py": FILE.format("Experiment(process=Process(zeros=(0.5, 0.6)))"),
    "misspelt.py": FILE.format("Experiment(step=100)"),
    "named.py": FILE.format("Experiment(name='../elsewhere')"),
    "good.py": FILE.format("Experiment()"),
    "causal.py": FILE.format("TextExperiment(name='causal', task='causal')"),
    "other/thesis.tex": "years of work",
    "finished/config.json": '{"experiment": {"name": "", "steps": 200000}, "finished": true}',
    "earlier/config.json": '{"experiment": {"name": "", "data_seed": 7}, "finished": true}',
    "damaged/config.json": "{",
    "empty.safetensors": "",
    "short.safetensors": b"\x88\x13" + bytes(6) + b"{",
    "list.safetensors": b"\x02" + bytes(7) + b"[]",
    "lfs.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 100\n",
    "model.onnx": "ONNX",
    "model.gguf": b"GGML" + bytes(20),
    "tables.npz": b"PK\x03\x04" + bytes(20),
    "model.weights.h5": "HDF5",
    "good/model.safetensors": len(HEADER).to_bytes(8, "little") + HEADER + bytes(range(256)) * 16,
    "good/config.json": json.dumps({"tie_word_embeddings": True}),
}

# ----- How one checkout is measured, in a process of its own that imports it.


def hashed(content: bytes) -> str:
    """The beginning of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:12]


def shown(value: Any) -> str:
    """A short text that is equal for equal values, to the bit; NaN equals NaN."""
    import numpy as np

    array = np.asarray(value)
    if array.ndim == 0:
        return repr(array.item())
    if array.dtype.kind in "OUST" or array.size == 0:
        return f"{array.shape} {hashed(repr(array.tolist()).encode())}"
    bits, mean = array, ""
    if array.dtype.kind == "f":
        bits = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    if array.dtype.kind in "fiu" and not np.isnan(array).all():
        mean = f"mean {np.nanmean(array):.7g}, "
    return f"{array.dtype} {array.shape} {mean}{hashed(np.ascontiguousarray(bits).tobytes())}"


def parts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Names and texts of what is in nested tuples, dictionaries and dataclasses."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, list | tuple) and not all(isinstance(each, str) for each in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        yield name, shown("None" if value is None else value)
        return
    for key, each in value.items():
        yield from parts(each, f"{name}.{key}" if name else str(key))


def spellings(*texts: str) -> list[tuple[str, ...]]:
    """Texts as they stand, then with the new words."""
    return [texts, tuple(map(renamed, texts))] if RENAMED else [texts]


def declared(expression: str) -> Any:
    """The object that an expression of this module makes."""
    for (text,) in spellings(FILE.format(expression)):
        names: dict[str, Any] = {}
        with contextlib.suppress(ImportError, NameError, TypeError):
            exec(text, names)
            return names["experiment"]
    raise ValueError(f"{expression}: cannot be made here")


def called(main: Callable[[list[str]], int], line: str, *more: str) -> tuple[str, str, str]:
    """Exit status of a command line in this process, its standard output and error."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            status = str(main([*shlex.split(line), *more]))
        except SystemExit as stop:
            status = f"exit {stop.code}"
    return status, out.getvalue(), error.getvalue()


def measure_programs(item: str, book: str) -> dict[str, str]:
    """Fingerprints of the programs of each arm, which are lowered and never compiled."""
    import jax

    found: dict[str, list[tuple[str, str]]] = {}

    class TracedError(Exception):
        """Instead of the first call of a program."""

    def stop(*_: Any) -> None:
        raise TracedError

    def fingerprint(lowered: jax.stages.Lowered, *_: Any, **__: Any) -> Callable[..., None]:
        text, numbers = lowered.as_text(), {}
        name = re.search(r"module @(\S+)", text)[1]
        text = re.sub(r"@[\w.]+", lambda at: f"@f{numbers.setdefault(at[0], len(numbers))}", text)
        unnamed = re.sub(r'jax.result_info = "[^"]*"', "", text)
        found.setdefault(name, []).append((hashed(text.encode()), hashed(unnamed.encode())))
        return stop

    jax.stages.Lowered.compile = fingerprint
    measured: dict[str, str] = {}
    experiment, arms, options = PROGRAMS[item]
    for arm in arms:
        found.clear()
        for text, line in spellings(
            FILE.format(experiment), f"{options}--arms {arm} --seeds 1 --quiet"
        ):
            with tempfile.TemporaryDirectory() as place, contextlib.suppress(TracedError):
                Path(place, "traced.py").write_text(text)
                line = f"{place}/traced.py {line.replace('BOOK', book)} --out {place}/out"
                *_, measured[f"{arm}: no program"] = called(find("jaxtie.run"), line)
            if found:
                measured.pop(f"{arm}: no program", None)
                break
        for name, each in found.items():
            named, unnamed = (" ".join(sorted(prints)) for prints in zip(*each))
            measured |= {f"{arm} {name}": named, f"{arm} {name}, results without names": unnamed}
    return measured


def measure_run(item: str, book: str) -> dict[str, str]:
    """Variables of a run's results and leaves of its last checkpoint."""
    run = RUNS[item]
    for file, lines in spellings(FILE.format(run.experiment), run.options):
        with tempfile.TemporaryDirectory() as place:
            Path(place, "measured.py").write_text(file)
            out, error = Path(place, "out"), ""
            for line in lines.replace("BOOK", book).split(";"):
                own = command(
                    f"{place}/measured.py", *shlex.split(line), "--quiet", "--out", str(out)
                )
                if run.kill:
                    error = start_and_kill(own, out, run.kill)
                error = error or finish(own, run.processes)
            if not error:
                return dict(results_of(out))
    return {"failed": error}


def finish(own: list[str], processes: int) -> str:
    """Run a command by one or several processes; returns what is wrong."""
    more: list[list[str]] = [[]]
    if processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            together = ["--distributed", "--coordinator", f"127.0.0.1:{free.getsockname()[1]}"]
        together += ["--process-count", str(processes), "--process-index"]
        more = [[*together, str(i)] for i in range(processes)]
    started = [subprocess.Popen([*own, *options], **PIPES) for options in more]
    errors = [each.communicate()[1] for each in started]
    return "".join(error[-500:] for each, error in zip(started, errors) if each.returncode)


def start_and_kill(own: list[str], out: Path, kill: signal.Signals) -> str:
    """Stop a run when its first checkpoint is there; returns what is wrong."""
    started = subprocess.Popen([*own, "--checkpoint-every", "0.3"], **PIPES)
    while started.poll() is None and not any(out.glob("checkpoints/[0-9]*/sha256.json")):
        time.sleep(0.01)
    started.send_signal(kill)
    error = started.communicate()[1]
    stopped = started.returncode in (-kill, 130)
    return "" if stopped else f"ended before it was killed: {error[-500:]}"


def results_of(out: Path) -> Iterator[tuple[str, str]]:
    """Of a run's folder: names and texts of its results, last checkpoint and configuration."""
    import jax
    import orbax.checkpoint as ocp
    import xarray as xr

    results = xr.load_dataset(out / "results.nc", engine="h5netcdf")
    for name, variable in results.variables.items():
        yield f"result {name}", f"{', '.join(map(str, variable.dims))}: {shown(variable.values)}"
    for name, value in results.attrs.items():
        if not name.startswith("version_") and name != "command":
            yield f"attribute {name}", str(value)
    last = max((out / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.restore((last / "members").absolute())
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield f"checkpoint {' '.join(str(each.key) for each in path)}", shown(leaf)
    said = json.loads((out / "config.json").read_text())["experiment"]
    for name, value in said.items():
        yield f"configuration {name}", json.dumps(value, sort_keys=True)


def measure_data(item: str, book: str) -> dict[str, str]:
    """What is drawn of a process, or prepared of a text, before anything is trained."""
    import numpy as np

    if item in TEXTS:
        own = declared(TEXTS[item].replace("Corpus(", f"Corpus(paths=({book!r},), "))
        material = find("material")(own, find("prepare")(own.corpus))
        found = {"material": material, "validation": find("validation batches")(own, material)}
        for seed in own.seeds:
            batches = find("training batches")(own, material, seed)
            found[f"batches of {seed}"] = [batches[k] for k in range(10)]
        return dict(parts(found))
    own = declared(PROCESSES[item])
    labelled = {"zeros_by_label": own.zeros_by_label}
    found = {"strings": find("split")(own.length, own.all_strings, own.data_seed)}
    found["law"] = find("process law")(own.length, own.zeros, own.ones, **labelled)
    for ordered in (False, True):
        found[f"laws of the splits, ordered={ordered}"] = find("split laws")(own, ordered=ordered)
    probabilities = np.array(own.zeros, np.float32), np.array(own.ones, np.float32)
    for seed in (None, 3):
        drawn = find("stream")(own.data_seed, seed), found["strings"].train, *probabilities
        for step in (0, 1, 1000):
            sample = find("sample")(drawn[0], np.uint32(step), *drawn[1:], **labelled)
            found[f"sample of seed {seed}, step {step}"] = sample
    return dict(parts(found))


def measure_tables(item: str, book: str) -> dict[str, str]:
    """Tables that the documents ask for, and every other one that one experiment's data have."""
    tables, documents = find("tables")(Path("experiments")), find("documents")
    text = "".join(Path(path).read_text() for path in documents if os.path.exists(path))
    asked = set(re.findall("^<!-- table: (.*) -->$", text, re.MULTILINE))
    names = [path.stem.replace("_", "-") for path in Path("experiments").glob("*.py")]
    measured: dict[str, str] = {}
    for request in sorted({f"{table} {name}" for table in tables for name in names} | asked):
        table, *arguments = request.split()
        try:
            with warnings.catch_warnings(action="ignore"):
                measured[request] = tables[table](*arguments).markdown()
        except Exception as error:  # most tables are not of this experiment
            if request in asked:
                measured[request] = f"{type(error).__name__}: {error}"
    return measured


def measure_lines(item: str, book: str) -> dict[str, str]:
    """Exit status, numbers of lines, and the text of what is refused."""
    main, measured = find(item), {}
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        for name, content in FILES.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        for line in LINES[item].strip("\n").replace("\n", "|").split("|"):
            status, out, error = called(main, line)
            lengths = f"{out.count(chr(10))} lines of output, {error.count(chr(10))} of errors"
            measured |= {f"{line} [status]": f"{status}, {lengths}", f"{line} [text]": out + error}
    return measured


KINDS = {  # items, and what measures one
    "programs": (PROGRAMS, measure_programs),
    "data": (PROCESSES | TEXTS, measure_data),
    "tables": (("all",), measure_tables),
    "lines": (LINES, measure_lines),
    "runs": (RUNS, measure_run),
}


def measure_here(kind: str, items: list[str], checkout: Path, book: str) -> Measured:
    """Measure a checkout in this process, which has imported nothing of it; two runs at a time."""
    found = Path(importlib.import_module("jaxtie").__file__)
    if not found.is_relative_to(checkout):
        raise SystemExit(f"{found}: was imported, but {checkout} is to be measured")

    def measured(item: str) -> dict[str, str]:
        try:
            return KINDS[kind][1](item, book)
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"}

    with ThreadPoolExecutor(2) as pool:
        each = pool.map if kind == "runs" else map
        return dict(zip(items, each(measured, items)))


# ----- How two checkouts are compared.


def commit_of(checkout: Path) -> str | None:
    """The commit of a checkout; None if it has changes."""
    git = ["git", "-C", str(checkout)]
    if subprocess.check_output([*git, "status", "--porcelain"]):
        return None
    return subprocess.check_output([*git, "rev-parse", "HEAD"], text=True)[:12]


def measure(kind: str, items: set[str], checkout: Path, options: argparse.Namespace) -> Measured:
    """Cached measurements of a checkout; another process measures the rest."""
    python, commit = Path(options.python).absolute(), commit_of(checkout)
    _, _, what, how, _ = Path(__file__).read_text().split("\n# ----- ")
    libraries = "import jax, platform; print(platform.python_version(), jax.__version__)"
    libraries = subprocess.check_output([python, "-c", libraries], text=True)
    version = hashed((what + how + libraries + Path(options.book).read_text()).encode())
    kept = options.work / f"{commit}-{version}-{kind}.json"
    known: Measured = json.loads(kept.read_text()) if commit and kept.exists() else {}
    if missing := items - known.keys():
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            out, what = Path(place, "out.json"), f"{kind}:{','.join(sorted(missing))}"
            line = [python, __file__, checkout, out, "--measure", what, "--book", options.book]
            paths = f"{checkout}{os.pathsep}{checkout}/experiments/lab"
            own = {"PYTHONPATH": paths, "PYTHONPYCACHEPREFIX": options.work / "pycache"}
            own |= {"XDG_CACHE_HOME": place, "JAX_COMPILATION_CACHE_DIR": options.work / "compiled"}
            env = os.environ | {name: str(value) for name, value in own.items()}
            subprocess.run(line, env=env, cwd=checkout, check=True)
            known |= json.loads(out.read_text())
        print(f"measured {kind} of {checkout} in {time.monotonic() - began:.0f} s", file=sys.stderr)
        if commit:
            sound = {item: names for item, names in known.items() if "failed" not in names}
            kept.write_text(json.dumps(sound, indent=1))
    return {item: known[item] for item in known if item in items}


def compare(kind: str, before: Measured, after: Measured) -> Counter[str]:
    """Print how many names of each item are equal, and a line for each that is not; count them."""
    said: Counter[str] = Counter()
    for item in before | after:
        old = {renamed(name): text for name, text in before.get(item, {}).items()}
        new, equal = after.get(item, {}), 0
        for name in old | new:
            if old.get(name) == new.get(name) and name != "failed":
                equal += 1
                continue
            word = "gone" if name not in new else "new" if name not in old else "differs"
            said[word] += 1
            print(f"{word:8}{kind} {item}: {name}")
            if word == "differs" or name == "failed":
                print(*difference(old.get(name, ""), new.get(name, "")), sep="\n")
        said["equal"] += equal
        print(f"{'equal':8}{kind} {item}: {equal} of {len(old | new)}")
    return said


def difference(old: str, new: str) -> list[str]:
    """The lines in which two texts differ."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return [f"            {line}" for line in lines if not line.startswith(("---", "+++", "@@"))]


def find_book() -> str:
    """A small book in `shared`, beside this checkout or a folder that holds it."""
    name, folders = "shared/corpora/gutenberg/carroll-alice.txt", Path(__file__).resolve().parents
    return str(next((folder / name for folder in folders if (folder / name).exists()), ""))


def main() -> int:
    """The command; returns the exit status."""
    raw, work = argparse.RawDescriptionHelpFormatter, Path(tempfile.gettempdir(), "golden")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default=",".join(KINDS), help="KIND is all items, KIND:ITEM one")
    parser.add_argument("--work", type=Path, default=work, help="keeps measurements")
    parser.add_argument("--python", default=sys.executable, help="has the dependencies of both")
    parser.add_argument("--book", default=find_book(), help="a text file for what is about text")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        kind, _, items = options.measure.partition(":")
        found = measure_here(kind, items.split(","), options.before, options.book)
        options.after.write_text(json.dumps(found))
        return 0
    if not options.book:
        parser.error("--book: expected a text file")
    options.work = options.work.absolute()
    options.work.mkdir(parents=True, exist_ok=True)
    wanted: dict[str, set[str]] = {}
    for each in options.only.split(","):
        kind, _, item = each.partition(":")
        if kind not in KINDS or (item and item not in KINDS[kind][0]):
            items = ", ".join(KINDS[kind][0] if kind in KINDS else KINDS)
            parser.error(f"--only {each}: expected one of {items}")
        wanted.setdefault(kind, set()).update({item} if item else KINDS[kind][0])
    said: Counter[str] = Counter()
    for kind, items in wanted.items():
        pair = options.before.resolve(), options.after.resolve()
        said += compare(kind, *(measure(kind, items, each, options) for each in pair))
    print(", ".join(f"{said[word]} {word}" for word in ("equal", "differs", "gone", "new")))
    return int(said.total() > said["equal"])


if __name__ == "__main__":
    sys.exit(main())
