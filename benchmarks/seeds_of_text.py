"""Seeds of a small causal model of text: one after the other, side by side, or in one program.

    python benchmarks/seeds_of_text.py [--steps 40] [--rounds 4] [--batch 16] [--length 64]
    python benchmarks/seeds_of_text.py --text PATH --against CHECKOUT [CHECKOUT ...] [--seeds 2]

Each way trains as many seeds for as many steps on the same made-up tokens. Ways take turns, and
each round's wall and processor seconds are printed, so that other work on the machine falls on all
alike. The steps are those of `duplicates_causal`, compiled as its runs compile them; making batches
and evaluations is left out.

With `--against` whole commands take turns, of this jaxtie and of others: short runs of the model of
`text_clm`, some seeds of four arms, compiling and two evaluations of each included. They print
members per hour.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from text import make_member
from turns import CHECKOUT, Spread, run_command, take_turns

from jaxtie.config import Head, Optimizer, Transformer
from jaxtie.models.language_model import TextModel, build_body
from jaxtie.text import masking
from jaxtie.training.devices import cores, start_jax
from jaxtie.training.optimizer import make_optimizer
from jaxtie.training.task import side_by_side
from jaxtie.tying.linen import make_embedding

SEEDS, BATCHES, VOCABULARY, WIDTH = 4, 8, 2_148, 64
Way = Callable[[int], list[float]]  # steps -> the last loss of each seed


def main() -> None:
    """Compare ways, or with `--against` versions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--steps", type=int, default=40)
    add("--rounds", type=int, default=4)
    add("--batch", type=int, default=16)
    add("--length", type=int, default=64)
    add("--text", type=Path, help="of commands that take turns")
    add("--against", type=Path, nargs="+", metavar="CHECKOUT")
    add("--seeds", type=int, default=2, help="of commands, of each arm")
    options = parser.parse_args()
    if options.against and not options.text:
        parser.error("--against: expected --text, the text that the commands train on")
    if options.against:
        compare_commands(options)
    else:
        compare_ways(options)


def compare_commands(options: argparse.Namespace) -> None:
    """Print members per hour of versions of jaxtie, and ratios round by round."""
    half = str(options.steps // 2)
    arms = "tied", "tied+bias", "untied", f"untied@{half}"
    members = options.seeds * len(arms)
    command = [str(CHECKOUT / "experiments" / "text_clm.py"), "--text", str(options.text.resolve())]
    command += ["--arms", ",".join(arms), "--seeds", str(options.seeds)]
    command += ["--steps", str(options.steps), "--record-every", half]
    command += ["--eval-every", str(options.steps)]

    def members_per_hour(checkout: Path) -> float:
        began = time.perf_counter()
        run_command(command, checkout=checkout)
        return members / (time.perf_counter() - began) * 3600

    sides = [CHECKOUT, *(checkout.resolve() for checkout in options.against)]
    turns = {str(side): partial(members_per_hour, side) for side in sides}
    found = take_turns(turns, options.rounds)
    for side, rates in found.items():
        ratio = Spread.of_ratios(found[str(CHECKOUT)], rates)
        line = f"{side}: {Spread.of(rates):,.0f} members of {options.steps} steps an hour"
        print(f"{line}; this one / it {ratio:.2f}")


def compare_ways(options: argparse.Namespace) -> None:
    """Print seconds of each way, and whether it has the bits of the first."""
    start_jax()
    parts = make_parts(options)
    one_by_one, at_once = train_alone(*parts)
    run = {
        "one after the other": one_by_one,
        "side by side": at_once,
        "in one program": train_together(*parts),
    }
    for warm in run.values():
        warm(1)
    first = {name: way(1) for name, way in run.items()}
    for name, losses in first.items():
        same = "the same" if losses == first["one after the other"] else "other"
        print(f"{name:22} loss of the first seed {losses[0]:.7f}; {same} bits")
    size = f"{options.steps} steps of {options.batch} x {options.length} tokens"
    print(f"{SEEDS} seeds, {size}; seconds, wall / processor")
    for number in range(options.rounds):
        shown = []
        for name, way in run.items():
            began = time.perf_counter(), time.process_time()
            way(options.steps)
            wall, processor = time.perf_counter() - began[0], time.process_time() - began[1]
            shown.append(f"{name} {wall:6.2f} / {processor:6.2f}")
        print(f"round {number + 1}: " + "; ".join(shown), flush=True)


def make_parts(options: argparse.Namespace) -> tuple[Callable, Callable, np.ndarray]:
    """Return start and step of one member, and tokens (seeds, batches, rows, length)."""
    embedding = make_embedding(Head(), VOCABULARY, WIDTH, tied=True, init_std=0.02, padding=0)
    sizes = Transformer(layers=1, heads=4, width=WIDTH, feedforward=256)
    model = TextModel(embedding, build_body(sizes, causal=True))
    optimizer = make_optimizer(Optimizer(learning_rate=2e-3, weight_decay=0.01))

    def ask(key, tokens_BxL):
        return masking.next_tokens(tokens_BxL, padding=0)

    start, step = make_member(model, optimizer, ask)
    shape = SEEDS, BATCHES, options.batch, options.length + 1
    tokens = np.random.default_rng(0).zipf(1.3, shape).clip(1, VOCABULARY - 1).astype(np.int32)
    return start, lambda state, tokens_BxL: step(state, tokens_BxL, jax.random.key(0)), tokens


def train_alone(start: Callable, advance: Callable, tokens: np.ndarray) -> tuple[Way, Way]:
    """Return two ways of a program for one seed: one after the other, and side by side."""
    program = jax.jit(advance, donate_argnums=0)

    def losses(seed: int, steps: int) -> Iterator[tuple[int, float]]:
        state = start(jax.random.key(seed))
        for at in range(steps):
            state, loss = program(state, tokens[seed, at % BATCHES])
            yield seed, float(loss)

    def one_by_one(steps: int) -> list[float]:
        return [[*losses(seed, steps)][-1][1] for seed in range(SEEDS)]

    def at_once(steps: int) -> list[float]:
        iterators = [losses(seed, steps) for seed in range(SEEDS)]
        last = dict(side_by_side(iterators, cores()))
        return [last[seed] for seed in range(SEEDS)]

    return one_by_one, at_once


def train_together(start: Callable, advance: Callable, tokens: np.ndarray) -> Way:
    """Return the way of one program for all seeds."""
    program = jax.jit(jax.vmap(advance), donate_argnums=0)

    def run(steps: int) -> list[float]:
        state = jax.vmap(lambda seed: start(jax.random.key(seed)))(jnp.arange(SEEDS))
        for at in range(steps):
            state, loss = program(state, tokens[:, at % BATCHES])
        return [float(each) for each in loss]

    return run


if __name__ == "__main__":
    main()
