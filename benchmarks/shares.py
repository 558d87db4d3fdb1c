"""Where the time of a step goes: sampling, forward, backward, optimiser, records.

    python benchmarks/shares.py

One block of members on one core, the main experiment untied, medians over repeats that take turns. The parts are timed as
programs of their own that each do a little more than the one before; the difference is the part's share.
"""

import dataclasses
import statistics
import sys
import time

from jaxtie.config import Experiment
from jaxtie.run import start_jax

STEPS, REPEATS = 400, 15


def main() -> None:
    jax = start_jax()
    import jax.numpy as jnp
    import numpy as np

    from jaxtie import optim, sweep, train
    from jaxtie.data import exor
    from jaxtie.lanes import lanes

    experiment, device = Experiment(), jax.devices()[0]
    process, optimiser = experiment.process, experiment.optimiser
    bits = exor.split(process.length, process.all_strings, process.data_seed).train
    model = sweep.build_model(experiment.model, tied=False)
    schedule = optim.periodic_cosine(optimiser.learning_rate, optimiser.eta_min, optimiser.half_period)
    adamw = optim.adamw(schedule, weight_decay=optimiser.weight_decay, b1=optimiser.b1, b2=optimiser.b2, eps=optimiser.eps)
    block = sweep.block_size(device.platform, experiment.model, len(experiment.members))
    seeds = np.arange(block, dtype=np.uint32)

    def sample(state, batch):
        return state, jnp.sum(batch.tokens_BxL) + jnp.sum(batch.at_BxP) + jnp.sum(batch.target_BxP)

    def forward(state, batch):
        loss, _ = train.loss_and_accuracy(model, state.params, batch)
        return state._replace(params=jax.tree.map(lambda leaf: leaf + 1e-9 * loss, state.params)), loss

    def backward(state, batch):
        loss, gradient = jax.value_and_grad(lambda p: train.loss_and_accuracy(model, p, batch)[0])(state.params)
        return state._replace(params=jax.tree.map(lambda p, g: p - 1e-9 * g, state.params, gradient)), loss

    def step(state, batch):
        state, (loss, _) = train.step(model, adamw, state, batch)
        return state, loss

    def alone(part):
        def member(state, stream):
            def body(state, at):
                batch = exor.sample(stream, at, bits, process.zeros, process.ones)
                return part(state, jax.lax.optimization_barrier(batch))

            state, seen = jax.lax.scan(body, state, jnp.arange(STEPS, dtype=jnp.int32))
            return state, jnp.sum(seen, axis=0)

        last = lambda seeds: (
            train.initial_state(model, adamw, jax.random.key(seeds), process.length + 1),
            exor.stream(process.data_seed, seeds),
        )
        states = jax.jit(jax.vmap(last, out_axes=-1))(seeds)
        program = jax.jit(lanes(member)).lower(*states).compile(sweep.FAST[device.platform])
        return lambda: jax.block_until_ready(program(*states))

    def shipped(every, eval_every):
        often = dataclasses.replace(experiment, record_every=every, eval_every=eval_every, steps=10 * eval_every)
        program = sweep.compile_program(often, [device], tied=False)
        settings = jax.tree.map(lambda x: np.repeat(x, block, axis=0), sweep.stack_settings(often))
        states, streams, _ = program.start(seeds, settings)
        scalars = [np.int32(x) for x in (0, STEPS // every, 10 * eval_every)]

        def run():
            nonlocal states
            states, _ = jax.block_until_ready(program.advance[device](states, streams, settings, *scalars))

        return run

    parts = {
        "sampling": alone(sample),
        "+ forward": alone(forward),
        "+ backward": alone(backward),
        "+ optimiser": alone(step),
        f"as shipped, a record after {STEPS} steps": shipped(STEPS, 100 * STEPS),
        "+ a record every 100": shipped(100, 100 * STEPS),
    }
    # One in STEPS steps; as shipped one in 1,000, so 0.4 of this difference is its share.
    parts["+ an evaluation"] = shipped(100, STEPS)
    times = {name: [] for name in parts}
    for i in range(REPEATS):
        for name, part in parts.items():
            print(f"\rrepeat {i + 1} of {REPEATS}", end="", file=sys.stderr, flush=True)
            began = time.perf_counter()
            part()
            times[name].append((time.perf_counter() - began) / STEPS * 1e6)
    print(file=sys.stderr)
    for name, values in times.items():
        low, middle, high = min(values[1:]), statistics.median(values[1:]), max(values[1:])
        print(f"{name:40s} {middle:7.1f} us a step of {block} members  [{low:.1f}, {high:.1f}]")


if __name__ == "__main__":
    main()
