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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pytorch_loop import SeedsAtOnce, batches, make_models, training_strings
from torch.func import functional_call

from jaxtie import Experiment

# shares of the training: of the published 150,000 steps, where its code was measured
MEASURED_AT = (
    1 / 15,
    1 / 3,
    2 / 3,
    1,
)
SAVED_EVERY = 2_000  # steps
PAIRS = {"X-Y": (0, 1), "A-B": (2, 3)}
ARMS = ("tied", "untied")
COLUMNS = ("arm", "seed", "step", "quantity", "value")


class Law(NamedTuple):
    """Every context of the training split with the laws of context and target, (C, L), (C, 1) and
    (C, V).
    """

    tokens: torch.Tensor
    at: torch.Tensor
    joint: torch.Tensor


def training_law(experiment: Experiment) -> Law:
    """By every string, place of the mask and spelling of the other symbols."""
    bits_Bxn, label_Bx1 = training_strings(experiment)
    # [bit, first or second]
    spelled = torch.tensor([experiment.process.zeros, experiment.process.ones])
    size, length = bits_Bxn.shape
    tokens, at, joint = [], [], []
    for place, spelling in itertools.product(
        range(length), itertools.product((0, 1), repeat=length - 1)
    ):
        second = torch.tensor([*spelling[:place], 0, *spelling[place:]])
        probability_Bxn = spelled[bits_Bxn, second]
        probability_Bxn[:, place] = 1 / (size * length)
        symbols_Bxn = 2 * bits_Bxn + second
        symbols_Bxn[:, place] = 6
        target_BxV = torch.zeros(size, 7)
        for spelling_of_target in (0, 1):
            bit = bits_Bxn[:, place]
            target_BxV[torch.arange(size), 2 * bit + spelling_of_target] = spelled[
                bit, spelling_of_target
            ]
        tokens.append(torch.cat([symbols_Bxn, label_Bx1], 1))
        at.append(torch.full((size, 1), place))
        joint.append(probability_Bxn.prod(1, keepdim=True) * target_BxV)
    return Law(torch.cat(tokens), torch.cat(at), torch.cat(joint))


def measure(
    skeleton: torch.nn.Module, parameters: Mapping[str, torch.Tensor], law: Law
) -> Iterator[tuple[int, str, float]]:
    """Of each seed: its number, what is measured, and the value."""
    for seed in range(len(parameters["input"])):
        own = {name: value[seed] for name, value in parameters.items()}
        for table, (pair, (first, second)) in itertools.product(("input", "output"), PAIRS.items()):
            if table in own:
                yield (
                    seed,
                    f"{table} {pair}",
                    float((own[table][first] - own[table][second]).norm()),
                )
        with torch.no_grad():
            logits_CxV = functional_call(skeleton, own, (law.tokens, law.at))[:, 0]
            yield seed, "loss", float(-(law.joint * logits_CxV.log_softmax(1)).sum())


def train(
    arm: str, seeds: int, steps: int, checkpoint: Path, compiled: bool = False
) -> list[tuple[Any, ...]]:
    """Rows of `COLUMNS`; goes on from the checkpoint where there is one."""
    torch.set_num_threads(1)
    experiment = Experiment()
    models = make_models(experiment, arm, seeds, seed=ARMS.index(arm))
    training = SeedsAtOnce(experiment, models, compiled)
    drawn, law = batches(experiment, seeds), training_law(experiment)
    done, rows = _restored(checkpoint, training)
    parent = multiprocessing.parent_process()
    for step in range(done + 1, steps + 1):
        if parent and not parent.is_alive():
            os._exit(1)  # killed, and perhaps started again: two must not write one checkpoint
        training(next(drawn))
        if step in {round(share * steps) for share in MEASURED_AT}:
            found = measure(models[0], training.parameters, law)
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
    """Steps done, and the rows of them."""
    if not checkpoint.exists():
        return 0, []
    kept = torch.load(checkpoint)
    for name, value in kept["parameters"].items():
        training.parameters[name].copy_(value)
    training.adamw.load_state_dict(kept["adamw"])
    training.schedule.load_state_dict(kept["schedule"])
    torch.set_rng_state(kept["random"])
    return kept["step"], kept["rows"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the file to write, CSV")
    parser.add_argument("--seeds", type=int, default=64, help="of each arm")
    parser.add_argument("--steps", type=int, default=Experiment().steps)
    parser.add_argument(
        "--compile", action="store_true", help="by torch.compile, which needs a C++ compiler"
    )
    options = parser.parse_args()
    checkpoints = [options.out.with_suffix(f".{arm}.pt") for arm in ARMS]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        train_arm = partial(
            train, seeds=options.seeds, steps=options.steps, compiled=options.compile
        )
        under_way = [
            pool.submit(train_arm, arm, checkpoint=path) for arm, path in zip(ARMS, checkpoints)
        ]
        rows = [row for arm in under_way for row in arm.result()]
    with options.out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    for path in checkpoints:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
