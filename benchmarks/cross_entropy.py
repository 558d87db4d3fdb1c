"""Memory and time of `jaxtie.cross_entropy` against the plain loss, which makes all logits at once.

    python benchmarks/cross_entropy.py

Working memory is what XLA allots beyond arguments and results (`memory_analysis`), of the loss and
of the loss with its gradients in hidden states and table. Seconds are of one call each, in turns,
by the processor's clock (all threads together, so that other work on the machine counts little) and
by the wall's; ratios are of one round.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from turns import Spread, take_turns

from jaxtie import cross_entropy
from jaxtie.training.devices import start_jax


def plain(h_PxD: jax.Array, table_VxD: jax.Array, target_P: jax.Array) -> jax.Array:
    """Return the loss, from all logits at once."""
    logits_PxV = jnp.matmul(h_PxD, table_VxD.T, preferred_element_type=jnp.float32)
    chosen_P = jnp.take_along_axis(logits_PxV, target_P[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits_PxV, axis=1) - chosen_P)


def blockwise(h_PxD: jax.Array, table_VxD: jax.Array, target_P: jax.Array) -> jax.Array:
    """Return jaxtie's loss."""
    return cross_entropy(h_PxD, table_VxD, target_P)[0]


def compile_loss(loss: Callable, arguments: Sequence[jax.Array], *, gradients: bool) -> Any:
    """Compile a loss, or a loss with its gradients."""
    f = jax.value_and_grad(loss, argnums=(0, 1)) if gradients else loss
    return jax.jit(f).lower(*arguments).compile()


def measure(program: Any, arguments: Sequence[jax.Array]) -> tuple[float, float]:
    """Return seconds of one call, by the processor's clock and the wall's."""
    began = time.process_time(), time.perf_counter()
    jax.block_until_ready(program(*arguments))
    return time.process_time() - began[0], time.perf_counter() - began[1]


def row(arguments: Sequence[jax.Array], gradients: bool, repeats: int) -> str:
    """Measure both losses; return a row of the table."""
    programs = {
        loss.__name__: compile_loss(loss, arguments, gradients=gradients)
        for loss in (plain, blockwise)
    }
    calls = {name: partial(measure, each, arguments) for name, each in programs.items()}
    take_turns(calls, 1)  # the first call touches memory for the first time
    theirs, ours = (
        tuple(zip(*found, strict=True)) for found in take_turns(calls, repeats).values()
    )
    sizes = [each.memory_analysis().temp_size_in_bytes / 2**20 for each in programs.values()]
    processor, wall = map(Spread.of_ratios, theirs, ours)
    cells = [
        f"{len(arguments[1]):,}",
        "with gradients" if gradients else "loss",
        *(f"{size:,.0f}" for size in sizes),
        f"{sizes[0] / sizes[1]:.1f}",
        *(f"{Spread.of(seconds[0]):.2f}" for seconds in (theirs, ours)),
        f"{processor:.2f}",
        f"{wall:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--vocabularies", default="32000,256000", help="V (%(default)s)")
    add("--positions", type=int, default=1024, help="P (%(default)s)")
    add("--width", type=int, default=128, help="D (%(default)s)")
    add("--dtype", default="float32", help="of hidden states and table (%(default)s)")
    add("--repeats", type=int, default=5, help="rounds (%(default)s)")
    options = parser.parse_args()
    start_jax()
    positions, width, dtype = options.positions, options.width, options.dtype
    print(f"{positions:,} positions, width {width}, {dtype}\n")
    print(
        "| V | | memory, plain, MiB | ours | plain / ours | processor, plain, s | ours | plain /"
        " ours | wall, ratio |"
    )
    print("| --- " * 9 + "|")
    for vocabulary in map(int, options.vocabularies.split(",")):
        keys = jax.random.split(jax.random.key(0), 3)
        h_PxD = jax.random.normal(keys[0], (positions, width), dtype)
        table_VxD = jax.random.normal(keys[1], (vocabulary, width), dtype) / width**0.5
        target_P = jax.random.randint(keys[2], (positions,), 0, vocabulary)
        for gradients in (False, True):
            print(row((h_PxD, table_VxD, target_P), gradients, options.repeats), flush=True)


if __name__ == "__main__":
    main()
