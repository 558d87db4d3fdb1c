"""What `jaxtie.cross_entropy` takes beside the plain loss, which makes all logits at once: memory
and time.

    python benchmarks/cross_entropy.py

Working memory is what XLA allots to the compiled program beyond arguments and results
(`memory_analysis`), of the loss and of the loss with its gradients in hidden states and table.
Seconds are of one call each, in turns, by the processor's clock (all threads together, so that
other work on the machine counts little) and by the wall's; ratios are of one round.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from turns import Spread, take_turns

from jaxtie import cross_entropy
from jaxtie.training.devices import start_jax


class Side(NamedTuple):
    """A compiled program, to be called, and its working memory in bytes."""

    run: Callable[[], object]
    memory: int


def plain(h_PxD: jax.Array, table_VxD: jax.Array, target_P: jax.Array) -> jax.Array:
    """The loss by all logits at once."""
    logits_PxV = jnp.matmul(h_PxD, table_VxD.T, preferred_element_type=jnp.float32)
    chosen_P = jnp.take_along_axis(logits_PxV, target_P[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits_PxV, axis=1) - chosen_P)


def blockwise(h_PxD: jax.Array, table_VxD: jax.Array, target_P: jax.Array) -> jax.Array:
    """The loss of jaxtie."""
    return cross_entropy(h_PxD, table_VxD, target_P)[0]


def compile_side(loss: Callable, arguments: tuple[jax.Array, ...], *, gradients: bool) -> Side:
    """A loss, or a loss with its gradients, for these arguments."""
    f = jax.value_and_grad(loss, argnums=(0, 1)) if gradients else loss
    program = jax.jit(f).lower(*arguments).compile()
    return Side(
        lambda: jax.block_until_ready(program(*arguments)),
        program.memory_analysis().temp_size_in_bytes,
    )


class Seconds(NamedTuple):
    """Of one call."""

    processor: float
    wall: float


def measure(side: Side) -> Seconds:
    """One call."""
    began = time.process_time(), time.perf_counter()
    side.run()
    return Seconds(time.process_time() - began[0], time.perf_counter() - began[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabularies", default="32000,256000", help="V (default: %(default)s)")
    parser.add_argument("--positions", type=int, default=1024, help="P (default: %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="D (default: %(default)s)")
    parser.add_argument(
        "--dtype", default="float32", help="of hidden states and table (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default: %(default)s)")
    options = parser.parse_args()
    start_jax()
    print(f"{options.positions:,} positions, width {options.width}, {options.dtype}\n")
    print(
        "| V | | memory, plain, MiB | ours | plain / ours | processor, plain, s | ours | plain /"
        " ours | wall, ratio |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for vocabulary in map(int, options.vocabularies.split(",")):
        keys = jax.random.split(jax.random.key(0), 3)
        h_PxD = jax.random.normal(keys[0], (options.positions, options.width), options.dtype)
        table_VxD = (
            jax.random.normal(keys[1], (vocabulary, options.width), options.dtype)
            / options.width**0.5
        )
        arguments = (
            h_PxD,
            table_VxD,
            jax.random.randint(keys[2], (options.positions,), 0, vocabulary),
        )
        for gradients in (False, True):
            sides = {
                loss.__name__: compile_side(loss, arguments, gradients=gradients)
                for loss in (plain, blockwise)
            }
            calls = {name: partial(measure, side) for name, side in sides.items()}
            take_turns(calls, 1)  # the first call touches memory for the first time
            theirs, ours = take_turns(calls, options.repeats).values()
            memory = [side.memory / 2**20 for side in sides.values()]
            (processor, wall), (ours_processor, ours_wall) = (
                tuple(zip(*side, strict=True)) for side in (theirs, ours)
            )
            print(
                f"| {vocabulary:,} | {'with gradients' if gradients else 'loss'} | {memory[0]:,.0f}"
                f" | {memory[1]:,.0f} | {memory[0] / memory[1]:.1f} | {Spread.of(processor):.2f} |"
                f" {Spread.of(ours_processor):.2f} |"
                f" {Spread.of_ratios(processor, ours_processor):.2f} |"
                f" {Spread.of_ratios(wall, ours_wall):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
