"""Seeds of a small causal model: one after the other on all cores, one on each core, or several in one program.

    python benchmarks/seeds_of_text.py [--steps 40] [--rounds 4] [--batch 16] [--length 64]

Each way trains as many seeds for as many steps on the same made-up tokens. Ways take turns, and each round's wall and
processor seconds are told, so that other work on the machine falls on all alike. What is timed are the steps of
`duplicates_causal`,
compiled as its runs compile them; making batches and evaluations is left out.
"""

import argparse
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.experiment import Head, Optimiser
from jaxtie.models.embedding import make_embedding
from jaxtie.models.text_model import causal_model
from jaxtie.text import masking
from jaxtie.text.member import make_step
from jaxtie.training.devices import FAST, cores, start_jax
from jaxtie.training.member import initial_state
from jaxtie.training.optimiser import adamw_of

SEEDS, VOCABULARY, WIDTH = 4, 2_148, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    options = parser.parse_args()
    start_jax()
    jax.config.update("jax_num_cpu_devices", cores())
    ways = {"one after the other": one_after_the_other, "one on each core": one_on_each_core, "all in one program": together}
    run = {name: make(options) for name, make in ways.items()}
    for warm in run.values():
        warm(1)
    first = {name: way(1) for name, way in run.items()}
    for name, bits in first.items():
        same = all(np.array_equal(x, y) for x, y in zip(bits, first["one after the other"], strict=True))
        print(f"{name:22} loss of the first seed {bits[0]:.7f}; {'the same bits' if same else 'other bits'}")
    print(f"{SEEDS} seeds, {options.steps} steps of {options.batch} x {options.length} tokens; seconds, wall / processor")
    for number in range(options.rounds):
        told = []
        for name, way in run.items():
            wall, processor = time.perf_counter(), time.process_time()
            way(options.steps)
            told.append(f"{name} {time.perf_counter() - wall:6.2f} / {time.process_time() - processor:6.2f}")
        print(f"round {number + 1}: " + "; ".join(told), flush=True)


def pieces(options: argparse.Namespace):
    """Start and step of one member, and what it is trained on."""
    ends = make_embedding(Head(), VOCABULARY, WIDTH, tied=True, deviation=0.02, padding=0, matmul_dtype=None)
    model = causal_model(ends, layers=1, heads=4, feedforward=256)
    adamw = adamw_of(Optimiser(learning_rate=2e-3, weight_decay=0.01))

    def ask(key, tokens_BxL):
        return masking.next_tokens(tokens_BxL, padding=0)

    step = make_step(model, adamw, ask)

    def advance(state, tokens_BxL):
        state, found = step(state, tokens_BxL, jax.random.key(0))
        return state, found.loss

    rng = np.random.default_rng(0)
    tokens = rng.zipf(1.3, (SEEDS, 8, options.batch, options.length + 1)).clip(1, VOCABULARY - 1).astype(np.int32)
    return lambda key: initial_state(model, adamw, key, 16), advance, tokens


def one_after_the_other(options: argparse.Namespace):
    start, advance, tokens = pieces(options)
    program = jax.jit(advance, donate_argnums=0, compiler_options=FAST["cpu"])

    def run(steps: int) -> list[float]:
        found = []
        for seed in range(SEEDS):
            state = start(jax.random.key(seed))
            for at in range(steps):
                state, loss = program(state, tokens[seed, at % 8])
            found.append(float(loss))
        return found

    return run


def one_on_each_core(options: argparse.Namespace):
    start, advance, tokens = pieces(options)
    programs = {}
    for device in jax.local_devices():
        sharding = jax.sharding.SingleDeviceSharding(device)
        programs[device] = jax.jit(
            advance, donate_argnums=0, in_shardings=sharding, out_shardings=sharding, compiler_options=FAST["cpu"]
        )

    def train(steps: int, place: int) -> list[tuple[int, float]]:
        device, found = jax.local_devices()[place], []
        for seed in range(place, SEEDS, len(programs)):
            state = jax.device_put(start(jax.random.key(seed)), device)
            for at in range(steps):
                state, loss = programs[device](state, jax.device_put(tokens[seed, at % 8], device))
            found.append((seed, float(loss)))
        return found

    def run(steps: int) -> list[float]:
        with ThreadPoolExecutor(len(programs)) as pool:
            found = itertools.chain.from_iterable(pool.map(partial(train, steps), range(len(programs))))
            return [loss for _, loss in sorted(found)]

    return run


def together(options: argparse.Namespace):
    start, advance, tokens = pieces(options)
    program = jax.jit(jax.vmap(advance), donate_argnums=0, compiler_options=FAST["cpu"])

    def run(steps: int) -> list[float]:
        state = jax.vmap(lambda seed: start(jax.random.key(seed)))(jnp.arange(SEEDS))
        for at in range(steps):
            state, loss = program(state, tokens[:, at % 8])
        return [float(each) for each in loss]

    return run


if __name__ == "__main__":
    main()
