"""Seeds of a small causal model of text: one after the other on all cores, side by side, or several
in one program.

    python benchmarks/seeds_of_text.py [--steps 40] [--rounds 4] [--batch 16] [--length 64]
    python benchmarks/seeds_of_text.py --text PATH --against CHECKOUT [CHECKOUT ...] [--seeds 2]

Each way trains as many seeds for as many steps on the same made-up tokens. Ways take turns, and
each round's wall and processor seconds are told, so that other work on the machine falls on all
alike. What is timed are the steps of
`duplicates_causal`, compiled as its runs compile them; making batches and evaluations is left out.

With `--against` whole commands take turns, of the jaxtie beside this script and of others: short
runs of the model of
`text_clm`, some seeds of four arms, compiling and two evaluations of each included. What is told
are members per hour.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtie.training.side_by_side import side_by_side
from turns import CHECKOUT, Spread, run_command, take_turns

from jaxtie.config import Head, Optimizer
from jaxtie.models.language_model import causal_model
from jaxtie.text import masking
from jaxtie.text.task import make_step
from jaxtie.training.devices import cores, start_jax
from jaxtie.training.member import initial_state
from jaxtie.training.optimizer import adamw_of
from jaxtie.tying.linen import make_embedding

SEEDS, VOCABULARY, WIDTH = 4, 2_148, 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--text", type=Path, help="of commands that take turns")
    parser.add_argument("--against", type=Path, nargs="+", metavar="CHECKOUT")
    parser.add_argument("--seeds", type=int, default=2, help="of commands, of each arm")
    options = parser.parse_args()
    if options.against and not options.text:
        parser.error("--against: expected --text, the text that the commands train on")
    if options.against:
        compare_commands(options)
    else:
        compare_ways(options)


def compare_commands(options: argparse.Namespace) -> None:
    """Members per hour of versions of jaxtie, and ratios of the first to each other one, round by
    round.
    """
    arms = "tied", "tied+bias", "untied", f"untied@{options.steps // 2}"
    members = options.seeds * len(arms)
    command = [
        str(CHECKOUT / "experiments" / "text_clm.py"),
        "--text",
        str(options.text.resolve()),
        "--arms",
        ",".join(arms),
    ]
    command += [
        "--seeds",
        str(options.seeds),
        "--steps",
        str(options.steps),
        "--record-every",
        str(options.steps // 2),
    ]
    command += ["--eval-every", str(options.steps)]

    def members_per_hour(checkout: Path) -> float:
        began = time.perf_counter()
        run_command(command, checkout=checkout)
        return members / (time.perf_counter() - began) * 3600

    sides = [CHECKOUT, *(checkout.resolve() for checkout in options.against)]
    found = take_turns(
        {str(side): partial(members_per_hour, side) for side in sides}, options.rounds
    )
    for side, rates in found.items():
        ratio = Spread.of_ratios(found[str(CHECKOUT)], rates)
        print(
            f"{side}: {Spread.of(rates):,.0f} members of {options.steps} steps an hour; this one /"
            f" it {ratio:.2f}"
        )


def compare_ways(options: argparse.Namespace) -> None:
    """Seconds of each way, and whether it comes to the bits of the first."""
    start_jax()
    ways = {
        "one after the other": one_after_the_other,
        "side by side": all_side_by_side,
        "in one program": together,
    }
    run = {name: make(options) for name, make in ways.items()}
    for warm in run.values():
        warm(1)
    first = {name: way(1) for name, way in run.items()}
    for name, bits in first.items():
        same = all(
            np.array_equal(x, y) for x, y in zip(bits, first["one after the other"], strict=True)
        )
        print(
            f"{name:22} loss of the first seed {bits[0]:.7f};"
            f" {'the same bits' if same else 'other bits'}"
        )
    print(
        f"{SEEDS} seeds, {options.steps} steps of {options.batch} x {options.length} tokens;"
        " seconds, wall / processor"
    )
    for number in range(options.rounds):
        told = []
        for name, way in run.items():
            wall, processor = time.perf_counter(), time.process_time()
            way(options.steps)
            told.append(
                f"{name} {time.perf_counter() - wall:6.2f} / {time.process_time() - processor:6.2f}"
            )
        print(f"round {number + 1}: " + "; ".join(told), flush=True)


def pieces(options: argparse.Namespace):
    """Start and step of one member, and what it is trained on."""
    ends = make_embedding(
        Head(), VOCABULARY, WIDTH, tied=True, init_std=0.02, padding=0, matmul_dtype=None
    )
    model = causal_model(ends, layers=1, heads=4, feedforward=256)
    adamw = adamw_of(Optimizer(learning_rate=2e-3, weight_decay=0.01))

    def ask(key, tokens_BxL):
        return masking.next_tokens(tokens_BxL, padding=0)

    step = make_step(model, adamw, ask)

    def advance(state, tokens_BxL):
        state, found = step(state, tokens_BxL, jax.random.key(0))
        return state, found.loss

    rng = np.random.default_rng(0)
    tokens = (
        rng.zipf(1.3, (SEEDS, 8, options.batch, options.length + 1))
        .clip(1, VOCABULARY - 1)
        .astype(np.int32)
    )
    return lambda key: initial_state(model, adamw, key, 16), advance, tokens


def each_by_itself(options: argparse.Namespace) -> Callable[[int, int], Iterator[float]]:
    """A seed, and how many steps -> its loss at each of them."""
    start, advance, tokens = pieces(options)
    program = jax.jit(advance, donate_argnums=0)

    def losses(seed: int, steps: int) -> Iterator[float]:
        state = start(jax.random.key(seed))
        for at in range(steps):
            state, loss = program(state, tokens[seed, at % 8])
            yield float(loss)

    return losses


def one_after_the_other(options: argparse.Namespace):
    losses = each_by_itself(options)
    return lambda steps: [[*losses(seed, steps)][-1] for seed in range(SEEDS)]


def all_side_by_side(options: argparse.Namespace):
    losses = each_by_itself(options)

    def of_seed(seed: int, steps: int) -> Iterator[tuple[int, float]]:
        for loss in losses(seed, steps):
            yield seed, loss

    def run(steps: int) -> list[float]:
        last = dict(side_by_side([of_seed(seed, steps) for seed in range(SEEDS)], cores()))
        return [last[seed] for seed in range(SEEDS)]

    return run


def together(options: argparse.Namespace):
    start, advance, tokens = pieces(options)
    program = jax.jit(jax.vmap(advance), donate_argnums=0)

    def run(steps: int) -> list[float]:
        state = jax.vmap(lambda seed: start(jax.random.key(seed)))(jnp.arange(SEEDS))
        for at in range(steps):
            state, loss = program(state, tokens[:, at % 8])
        return [float(each) for each in loss]

    return run


if __name__ == "__main__":
    main()
