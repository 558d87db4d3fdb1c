"""Where the time of a step goes: sampling, forward, backward, optimiser, records.

    python benchmarks/shares.py

One block of members on one core, the main experiment untied, medians over repeats that take turns. The parts are timed as
programs of their own that each do a little more than the one before; the difference is the part's share.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from turns import Spread, take_turns

from jaxtie import Experiment
from jaxtie.exor import process
from jaxtie.exor.blocks import block_of, compile_block
from jaxtie.exor.member import Static, build_model, loss_and_accuracy, stack_settings, step
from jaxtie.training.devices import FAST, start_jax
from jaxtie.training.lanes import lanes
from jaxtie.training.member import State, initial_state
from jaxtie.training.optimiser import adamw_of
from jaxtie.training.streams import stream

STEPS = 400  # of each part, each time
EXPERIMENT = Experiment()
STATIC = Static.of(EXPERIMENT, tied=False)
MODEL, ADAMW = build_model(STATIC), adamw_of(EXPERIMENT.optimiser)

Part = Callable[[State, process.Batch], tuple[State, jax.Array]]  # of a step: the state after it, and what it saw


def sample_only(state: State, batch: process.Batch) -> tuple[State, jax.Array]:
    """A batch is drawn."""
    return state, jnp.sum(batch.tokens_BxL) + jnp.sum(batch.at_BxP) + jnp.sum(batch.target_BxP)


def forward(state: State, batch: process.Batch) -> tuple[State, jax.Array]:
    """... and its loss computed."""
    loss, _ = loss_and_accuracy(MODEL, state.params, batch)
    return state._replace(params=jax.tree.map(lambda leaf: leaf + 1e-9 * loss, state.params)), loss


def backward(state: State, batch: process.Batch) -> tuple[State, jax.Array]:
    """... and the loss's gradient."""
    loss, gradient = jax.value_and_grad(lambda params: loss_and_accuracy(MODEL, params, batch)[0])(state.params)
    return state._replace(params=jax.tree.map(lambda p, g: p - 1e-9 * g, state.params, gradient)), loss


def whole_step(state: State, batch: process.Batch) -> tuple[State, jax.Array]:
    """... and the optimiser's update."""
    state, (loss, _) = step(MODEL, ADAMW, state, batch)
    return state, loss


def compile_part(part: Part, seeds: np.ndarray, device: jax.Device) -> Callable[[], object]:
    """So many steps of a part for a block of members, to be called."""
    own = EXPERIMENT.process
    bits = process.split(own.length, own.all_strings, own.data_seed).train

    def start(seed):
        state = initial_state(MODEL, ADAMW, jax.random.key(seed), own.length + 1)
        return state, stream(own.data_seed, seed)

    def member(state, own_stream):
        def body(state, at):
            batch = process.sample(own_stream, at, bits, own.zeros, own.ones)
            return part(state, jax.lax.optimization_barrier(batch))

        state, seen = jax.lax.scan(body, state, jnp.arange(STEPS, dtype=jnp.int32))
        return state, jnp.sum(seen, axis=0)

    states = jax.jit(jax.vmap(start, out_axes=-1))(seeds)
    program = jax.jit(lanes(member)).lower(*states).compile(FAST[device.platform])
    return lambda: jax.block_until_ready(program(*states))


def compile_shipped(every: int, eval_every: int, seeds: np.ndarray, device: jax.Device) -> Callable[[], None]:
    """So many steps as they are shipped, with records and evaluations so often, to be called."""
    steps = 10 * eval_every
    often = dataclasses.replace(EXPERIMENT, record_every=every, eval_every=eval_every, steps=steps)
    program = compile_block(Static.of(often, tied=False), len(seeds), [device])
    settings = jax.tree.map(lambda x: np.repeat(x, len(seeds), axis=0), stack_settings(often))
    states, streams, _ = program.start(seeds, settings)
    scalars = [np.int32(x) for x in (0, STEPS // every, steps)]

    def run() -> None:
        nonlocal states
        states, _ = jax.block_until_ready(program.advance[device](states, streams, settings, *scalars))

    return run


def microseconds_a_step(part: Callable[[], object]) -> float:
    """Of a block of members."""
    began = time.perf_counter()
    part()
    return (time.perf_counter() - began) / STEPS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=14, help="of each part (default: %(default)s)")
    options = parser.parse_args()
    device = start_jax().devices()[0]
    seeds = np.arange(block_of(EXPERIMENT, [device]), dtype=np.uint32)
    alone = {"sampling": sample_only, "+ forward": forward, "+ backward": backward, "+ optimiser": whole_step}
    parts = {name: compile_part(part, seeds, device) for name, part in alone.items()}
    parts[f"as shipped, a record after {STEPS} steps"] = compile_shipped(STEPS, 100 * STEPS, seeds, device)
    parts["+ a record every 100"] = compile_shipped(100, 100 * STEPS, seeds, device)
    # One in STEPS steps; as shipped one in 1,000, so 0.4 of this difference is its share.
    parts["+ an evaluation"] = compile_shipped(100, STEPS, seeds, device)
    sides = {name: partial(microseconds_a_step, part) for name, part in parts.items()}
    take_turns(sides, 1)  # caches fill
    for name, values in take_turns(sides, options.repeats).items():
        spread = Spread.of(values)
        print(f"{name:40s} {spread.median:7.1f} us a step of {len(seeds)} members  [{spread.min:.1f}, {spread.max:.1f}]")


if __name__ == "__main__":
    main()
