"""Compare two checkouts of jaxtie on one machine: programs, and bits of runs.

    python tests/helpers/golden.py BEFORE AFTER --book FILE [--only KIND,KIND:ITEM]

Each checkout is measured by a process of its own. A measurement has items; each item has names, and
a short text for each. Two measurements are compared name by name: equal, differs, gone or new. The
exit status is 1 unless all are equal. `FILE` is any text of a few hundred kilobytes.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Measured = dict[str, dict[str, str]]  # item -> name -> what was found

FILE = """from jaxtie import Corpus, Experiment, LSTM, Mixer, Optimizer, Process
from jaxtie import TextExperiment, Transformer
experiment = {}
"""
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
tied+projection untied+projection tied+bert-head tied+init-std=log-n-by-D tied+input-scale=root-D
tied+logit-scale=1-by-root-D tied+input-gradient=0.5 tied+output-gradient=0 tied+logit-softcap=5
tied+output-start
""".split()
TEXT = """TextExperiment(
    model=Transformer(layers=1, heads=2, width=16, feedforward=32), batch=16, length=16,
    buckets=(8, 16), words=12, contexts=4, steps=100, record_every=25, eval_every=50,
    eval_batches=4, seeds=(0, 1), optimizer=Optimizer(learning_rate=1e-2, half_period=100),
    corpus=Corpus(vocab_size=300), {}
)"""
TEXTS = {
    "masked": TEXT.format("objective='masked'"),
    "causal": TEXT.format("objective='causal', duplicates=(0.5, 0.1)"),
    "masked-plain": TEXT.format("objective='masked', duplicates=False"),
    "causal-roles": TEXT.format("objective='causal', duplicates=False, roles=True"),
}
MAIN, ROLES = "Experiment()", "Experiment(roles=True)"
CONTROL = "Experiment(process=Process(zeros_by_label=True))"
BOOK = "--text BOOK "  # a path takes the place of BOOK


class Run(NamedTuple):
    """A run. `options`: of its commands, in one folder; `kill`: each is stopped so, and goes on."""

    experiment: str
    options: str
    kill: signal.Signals | None = None


UNTIED = "--arms tied,untied@1000,tied+bias --steps 2000 --seeds "
SWEPT = "--sweep weight_decay=0,0.1 --sweep p_X=0.1,0.5 --steps 2000 --seeds "
OTHER_DATA = "--data-seed 7 --all-strings --independent-layers"
RUNS = {
    "main": Run(MAIN, "--seeds 64 --steps 3000"),
    "control": Run(CONTROL, "--seeds 4 --steps 1000"),
    "other data": Run(
        MAIN, "--data-seed 7 --all-strings --independent-layers --seeds 4 --steps 500"
    ),
    "untied": Run(MAIN, UNTIED + "4"),
    "sweep": Run(MAIN, SWEPT + "8"),
    "roles": Run(ROLES, "--arms tied,tied+output-start,untied --seeds 4 --steps 1000"),
    "masked": Run(TEXTS["masked"], BOOK + "--arms tied,untied,untied@50"),
    "causal-roles": Run(TEXTS["causal-roles"], BOOK),
    "sweep-stopped": Run(MAIN, SWEPT + "64", signal.SIGTERM),
    "untied-killed": Run(MAIN, UNTIED + "64", signal.SIGKILL),
    "extended": Run(MAIN, "--seeds 4 --steps 300;--seeds 40 --steps 300;--seeds 40 --steps 600"),
}
PROGRAMS = {  # experiment, arms, options; each arm is traced alone, so that no run begins
    "heads": (MAIN, HEADS, ""),
    "roles": (ROLES, ("tied",), ""),
    "control": (CONTROL, ("tied",), ""),
    "heads of text": (TEXTS["causal"], ("tied+bert-head", "untied+bias"), BOOK),
}
for name, body in BODIES.items():
    PROGRAMS[name] = f"Experiment(model={body})", ("tied", "untied"), ""
for name, experiment in TEXTS.items():
    PROGRAMS[name] = experiment, ("tied", "untied"), BOOK


def hashed(content: bytes) -> str:
    """Return the beginning of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:12]


def shown(value: Any) -> str:
    """Return a short text that is equal for equal values, to the bit; NaN equals NaN."""
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


def measure_programs(item: str, book: str) -> dict[str, str]:
    """Return fingerprints of the programs of each arm, which are lowered and never compiled."""
    import jax

    from jaxtie.run.command import main

    found: dict[str, list[str]] = {}

    class TracedError(Exception):
        """Instead of the first call of a program."""

    def stop(*_: Any) -> None:
        raise TracedError

    def fingerprint(lowered: jax.stages.Lowered, *_: Any, **__: Any) -> Callable[..., None]:
        text, numbers = lowered.as_text(), {}
        name = re.search(r"module @(\S+)", text)[1]
        text = re.sub(r"@[\w.]+", lambda at: f"@f{numbers.setdefault(at[0], len(numbers))}", text)
        found.setdefault(name, []).append(hashed(text.encode()))
        return stop

    jax.stages.Lowered.compile = fingerprint
    measured: dict[str, str] = {}
    experiment, arms, options = PROGRAMS[item]
    for arm in arms:
        found.clear()
        with tempfile.TemporaryDirectory() as place, contextlib.suppress(TracedError):
            Path(place, "traced.py").write_text(FILE.format(experiment))
            line = f"{options}--arms {arm} --seeds 1 --quiet".replace("BOOK", book)
            main([f"{place}/traced.py", *shlex.split(line), "--out", f"{place}/out"])
        for name, prints in (found or {"no program": []}).items():
            measured[f"{arm} {name}"] = " ".join(sorted(prints))
    return measured


def measure_run(item: str, book: str) -> dict[str, str]:
    """Return variables of a run's results and leaves of its last checkpoint."""
    run = RUNS[item]
    with tempfile.TemporaryDirectory() as place:
        file, out = Path(place, "measured.py"), Path(place, "out")
        file.write_text(FILE.format(run.experiment))
        for options in run.options.replace("BOOK", book).split(";"):
            own = [sys.executable, "-m", "jaxtie.run", str(file), *shlex.split(options)]
            own += ["--quiet", "--out", str(out)]
            if run.kill:
                start_and_kill(own, out, run.kill)
            subprocess.run(own, check=True, stdout=subprocess.DEVNULL)
        return dict(results_of(out))


def start_and_kill(own: list[str], out: Path, kill: signal.Signals) -> None:
    """Stop a run when its first checkpoint is there."""
    started = subprocess.Popen([*own, "--checkpoint-every", "0.3"], stdout=subprocess.DEVNULL)
    while started.poll() is None and not any(out.glob("checkpoints/[0-9]*/sha256.json")):
        time.sleep(0.01)
    started.send_signal(kill)
    if started.wait() not in (-kill, 130):
        raise RuntimeError("ended before it was killed")


def results_of(out: Path) -> Iterator[tuple[str, str]]:
    """Yield names and texts of a run's results and last checkpoint."""
    import jax
    import orbax.checkpoint as ocp
    import xarray as xr

    results = xr.load_dataset(out / "results.nc", engine="h5netcdf")
    for name, variable in results.variables.items():
        yield f"result {name}", f"{', '.join(map(str, variable.dims))}: {shown(variable.values)}"
    folders = out.glob("points/*") if (out / "points").exists() else [out]
    for folder in sorted(folders):
        last = max(folder.glob("checkpoints/[0-9]*"), key=lambda path: int(path.name))
        with ocp.PyTreeCheckpointer() as checkpointer:
            tree = checkpointer.restore((last / "members").absolute())
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            name = " ".join(str(each.key) for each in path)
            yield f"checkpoint {folder.name} {name}".replace(" out ", " "), shown(leaf)


KINDS = {"programs": (PROGRAMS, measure_programs), "runs": (RUNS, measure_run)}


def measure(kind: str, items: list[str], checkout: Path, book: str) -> Measured:
    """Measure a checkout by another process, which imports it and prints JSON at its end."""
    line = [sys.executable, __file__, str(checkout), str(checkout), "--book", book, "--here"]
    line += ["--only", ",".join(f"{kind}:{item}" for item in items)]
    with tempfile.TemporaryDirectory() as cache:
        env = os.environ | {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": cache}
        done = subprocess.run(line, env=env, cwd=checkout, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])


def compare(kind: str, before: Measured, after: Measured) -> Counter[str]:
    """Print how many names of each item are equal, and a line for each that is not; count them."""
    count: Counter[str] = Counter()
    for item, old in before.items():
        new, equal = after[item], 0
        for name in old | new:
            if old.get(name) == new.get(name):
                equal += 1
                continue
            word = "gone" if name not in new else "new" if name not in old else "differs"
            count[word] += 1
            print(f"{word:8}{kind} {item}: {name}: {old.get(name, '')} -> {new.get(name, '')}")
        count["equal"] += equal
        print(f"{'equal':8}{kind} {item}: {equal} of {len(old | new)}", flush=True)
    return count


def main() -> int:
    """Run the command; return the exit status."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", default=",".join(KINDS), help="KIND is all items, KIND:ITEM one")
    parser.add_argument("--book", required=True, help="a text file, for the text models")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    wanted: dict[str, list[str]] = {}
    for each in options.only.split(","):
        kind, _, item = each.partition(":")
        wanted.setdefault(kind, []).extend([item] if item else KINDS[kind][0])
    if options.here:
        (kind, items), *_ = wanted.items()
        found = {item: KINDS[kind][1](item, options.book) for item in items}
        print("\n" + json.dumps(found), flush=True)
        os._exit(0)  # a thread of a run that was stopped may still wait
    count: Counter[str] = Counter()
    for kind, items in wanted.items():
        pair = options.before.resolve(), options.after.resolve()
        count += compare(kind, *(measure(kind, items, each, options.book) for each in pair))
    print(", ".join(f"{count[word]} {word}" for word in ("equal", "differs", "gone", "new")))
    return int(count.total() > count["equal"])


if __name__ == "__main__":
    sys.exit(main())
