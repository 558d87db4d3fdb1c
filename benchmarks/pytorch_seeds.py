"""Train the main experiment in PyTorch, many seeds to the end, to compare distributions over seeds.

The loop is that of `pytorch_loop.py`: seeds at once by `torch.func.vmap`, a process per arm, a
thread each. At four steps it measures distances and the exact training loss, by every string,
masked position and symbol. Killed, it goes on when it is started again: a checkpoint of each arm
lies next to the output file until that is complete.

    # 64 seeds of both arms; with torch.compile in half the time
    python benchmarks/pytorch_seeds.py experiments/data/pytorch.csv
    python benchmarks/pytorch_seeds.py experiments/data/pytorch.csv --compile
"""

import argparse
import csv
import itertools
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pytorch_loop import SeedsAtOnce, batches, make_models, training_strings
from torch.func import functional_call

from jaxtie import Experiment

MEASURED_AT = (1 / 15, 1 / 3, 2 / 3, 1)  # shares of the training, as in the published code
SAVED_EVERY = 2_000  # steps
PAIRS = {"X-Y": (0, 1), "A-B": (2, 3)}
ARMS = ("tied", "untied")
COLUMNS = ("arm", "seed", "step", "quantity", "value")


class Contexts(NamedTuple):
    """Contexts of the training split, (C, L) and (C, 1), and p(context and target), (C, V)."""

    tokens: torch.Tensor
    at: torch.Tensor
    joint: torch.Tensor


def enumerate_contexts(experiment: Experiment) -> Contexts:
    """Enumerate every string, masked place and way to write the other symbols."""
    bits_Bxn, label_Bx1 = training_strings(experiment)
    # [bit, first or second]
    written = torch.tensor([experiment.process.zeros, experiment.process.ones])
    size, length = bits_Bxn.shape
    choices = itertools.product((0, 1), repeat=length - 1)
    tokens, at, joint = [], [], []
    for place, others in itertools.product(range(length), choices):
        second = torch.tensor([*others[:place], 0, *others[place:]])
        probability_Bxn = written[bits_Bxn, second]
        probability_Bxn[:, place] = 1 / (size * length)
        symbols_Bxn = 2 * bits_Bxn + second
        symbols_Bxn[:, place] = 6
        target_BxV, bit = torch.zeros(size, 7), bits_Bxn[:, place]
        for way in (0, 1):
            target_BxV[torch.arange(size), 2 * bit + way] = written[bit, way]
        tokens.append(torch.cat([symbols_Bxn, label_Bx1], 1))
        at.append(torch.full((size, 1), place))
        joint.append(probability_Bxn.prod(1, keepdim=True) * target_BxV)
    return Contexts(torch.cat(tokens), torch.cat(at), torch.cat(joint))


def measure(
    skeleton: torch.nn.Module, parameters: Mapping[str, torch.Tensor], contexts: Contexts
) -> Iterator[tuple[int, str, float]]:
    """Yield seed, quantity and value."""
    for seed in range(len(parameters["input"])):
        own = {name: value[seed] for name, value in parameters.items()}
        for table, (pair, (first, second)) in itertools.product(("input", "output"), PAIRS.items()):
            if table in own:
                distance = (own[table][first] - own[table][second]).norm()
                yield seed, f"{table} {pair}", float(distance)
        with torch.no_grad():
            logits_CxV = functional_call(skeleton, own, (contexts.tokens, contexts.at))[:, 0]
            yield seed, "loss", float(-(contexts.joint * logits_CxV.log_softmax(1)).sum())


def train(
    arm: str, seeds: int, steps: int, checkpoint: Path, compiled: bool = False
) -> list[tuple[Any, ...]]:
    """Train an arm, from the checkpoint on where there is one; return rows of `COLUMNS`."""
    torch.set_num_threads(1)
    experiment = Experiment()
    models = make_models(experiment, arm, seeds, seed=ARMS.index(arm))
    training = SeedsAtOnce(experiment, models, compiled)
    drawn, contexts = batches(experiment, seeds), enumerate_contexts(experiment)
    done, rows = _restored(checkpoint, training)
    parent = multiprocessing.parent_process()
    for step in range(done + 1, steps + 1):
        if parent and not parent.is_alive():
            os._exit(1)  # killed, and perhaps started again: two must not write one checkpoint
        training(next(drawn))
        if step in {round(share * steps) for share in MEASURED_AT}:
            found = measure(models[0], training.parameters, contexts)
            rows += [(arm, seed, step, quantity, f"{value:.6g}") for seed, quantity, value in found]
        if step % SAVED_EVERY == 0:
            _save(checkpoint, training, step, rows)
            print(f"{arm}: {step:,}/{steps:,} steps", file=sys.stderr, flush=True)
    return rows


def _save(checkpoint: Path, training: SeedsAtOnce, step: int, rows: list) -> None:
    own = {
        "parameters": training.parameters,
        "adamw": training.adamw.state_dict(),
        "schedule": training.schedule.state_dict(),
    }
    new = checkpoint.with_suffix(".new")
    torch.save(own | {"step": step, "rows": rows, "random": torch.get_rng_state()}, new)
    new.replace(checkpoint)


def _restored(checkpoint: Path, training: SeedsAtOnce) -> tuple[int, list]:
    """Return the steps made, and their rows."""
    if not checkpoint.exists():
        return 0, []
    saved = torch.load(checkpoint)
    for name, value in saved["parameters"].items():
        training.parameters[name].copy_(value)
    training.adamw.load_state_dict(saved["adamw"])
    training.schedule.load_state_dict(saved["schedule"])
    torch.set_rng_state(saved["random"])
    return saved["step"], saved["rows"]


def main() -> None:
    """Train both arms and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("out", type=Path, help="the file to write, CSV")
    add("--seeds", type=int, default=64, help="of each arm")
    add("--steps", type=int, default=Experiment().steps)
    add("--compile", action="store_true", help="by torch.compile, which needs a C++ compiler")
    options = parser.parse_args()
    checkpoints = [options.out.with_suffix(f".{arm}.pt") for arm in ARMS]
    how = {"seeds": options.seeds, "steps": options.steps, "compiled": options.compile}
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        under_way = [
            pool.submit(train, arm, checkpoint=path, **how) for arm, path in zip(ARMS, checkpoints)
        ]
        rows = [row for arm in under_way for row in arm.result()]
    with options.out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    for path in checkpoints:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
