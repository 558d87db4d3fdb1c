"""Many members at once: `vmap` over a block of seeds, a block per device, the host once a chunk.

Training amplifies rounding, so members agree over a full run only if one and the same compiled program has made every
one of their steps. Hence blocks of constant size, the last one padded: a seed gives the same numbers alone as among
many, on one device as on several of the kind, in chunks of any length.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxtie import optim, train
from jaxtie.config import Experiment, Process, Transformer
from jaxtie.data import exor
from jaxtie.models import transformer
from jaxtie.models.masked_lm import MaskedLM

BLOCK = {"cpu": 16, "gpu": 64, "tpu": 128}  # seeds in a block, per kind of device; by measurement
CHUNK = 64  # records in a chunk, at most

Records = dict[str, np.ndarray]


def build_model(process: Process, config: Transformer, *, tied: bool) -> MaskedLM:
    """The model of an arm."""
    body = transformer.Transformer(config.layers, config.heads, config.feedforward, config.independent_layers)
    return MaskedLM(exor.VOCABULARY, config.width, exor.MASK, body, tied)


def build_contexts(process: Process, *, ordered: bool) -> tuple[exor.Contexts, exor.Contexts]:
    """The exact laws of the training and the validation split."""
    strings = exor.split(process.length, process.all_strings, process.data_seed)
    return tuple(
        exor.enumerate_contexts(bits, process.zeros, process.ones, ordered=ordered)
        for bits in (strings.train, strings.valid)
    )


class Member(NamedTuple):
    """What one member does, as pure functions of its seed and state."""

    start: Callable  # seed -> State, records at step 0
    advance: Callable  # State, seed, step -> State, records at step + record_every
    evaluate: Callable  # State -> exact evaluation


def make_member(experiment: Experiment, arm: str) -> Member:
    """Close over all that is static in an arm."""
    process, optimiser = experiment.process, experiment.optimiser
    model = build_model(process, experiment.model, tied=arm == "tied")
    schedule = optim.periodic_cosine(optimiser.learning_rate, optimiser.eta_min, optimiser.half_period)
    adamw = optim.adamw(
        schedule, weight_decay=optimiser.weight_decay, b1=optimiser.b1, b2=optimiser.b2, eps=optimiser.eps
    )
    bits = exor.split(process.length, process.all_strings, process.data_seed).train
    train_contexts, valid_contexts = build_contexts(process, ordered=model.body.ordered)

    def stream(seed):
        key = jax.random.key(process.data_seed)
        return jax.random.fold_in(key, seed) if experiment.data == "per-seed" else key

    def batch(key, step):
        return exor.sample(jax.random.fold_in(key, step), bits, process.zeros, process.ones)

    def start(seed):
        state = train.initial_state(model, adamw, jax.random.key(seed), process.length + 1)
        loss, accuracy = train.loss_and_accuracy(model, state.params, batch(stream(seed), 0))
        return state, {"loss": loss, "accuracy": accuracy, **train.record(state), **evaluate(state)}

    def advance(state, seed, step):
        key = stream(seed)

        def body(carry, at):
            state, total = carry
            state, looked_at = train.step(model, adamw, state, batch(key, at), at)
            return (state, jax.tree.map(jnp.add, total, looked_at)), None

        every = experiment.record_every
        zero = (jnp.float32(0), jnp.float32(0))
        (state, total), _ = jax.lax.scan(body, (state, zero), step + jnp.arange(every, dtype=jnp.int32))
        return state, {"loss": total[0] / every, "accuracy": total[1] / every, **train.record(state)}

    def evaluate(state):
        pairs = ((exor.X, exor.X + 1), (exor.A, exor.A + 1))
        on_train = train.evaluate(model, state.params, train_contexts, pairs)
        on_valid = train.evaluate(model, state.params, valid_contexts, pairs)
        input_table, output_table = train.tables(state.params["embedding"])
        return {
            "train_loss": on_train["loss"],
            "train_accuracy": on_train["accuracy"],
            "valid_loss": on_valid["loss"],
            "valid_accuracy": on_valid["accuracy"],
            "log_odds": on_train["log_odds"],
            "log_odds_deviation": on_train["log_odds_deviation"],
            "input_table": input_table,
            "output_table": output_table,
        }

    return Member(start, advance, evaluate)


class Program(NamedTuple):
    """A compiled arm, for blocks of members: one round is a block on every device of the mesh."""

    start: Callable  # seeds -> states, records at step 0
    advance: Callable  # states (donated), seeds, step, count, last -> states, `count` records in CHUNK places
    mesh: jax.sharding.Mesh
    block: int

    @property
    def sharding(self) -> NamedSharding:
        """Of anything whose first axis is a round's members."""
        return NamedSharding(self.mesh, PartitionSpec("seeds"))

    @property
    def round_size(self) -> int:
        """Members that run at the same time."""
        return self.block * self.mesh.size


def block_size(mesh: jax.sharding.Mesh) -> int:
    """Seeds in a block on the mesh's kind of device."""
    return BLOCK[mesh.devices.flat[0].platform]


def seed_mesh(seeds: int, devices: Sequence[jax.Device]) -> jax.sharding.Mesh:
    """A 1-D mesh over no more devices than there are blocks of seeds."""
    size = min(len(devices), -(-seeds // BLOCK[devices[0].platform]))
    return jax.make_mesh((size,), ("seeds",), axis_types=(AxisType.Auto,), devices=devices[:size])


def compile_arm(experiment: Experiment, arm: str, mesh: jax.sharding.Mesh) -> Program:
    """Compile what an arm needs: nothing is compiled later, whatever the number of seeds and steps."""
    block = block_size(mesh)
    member = make_member(experiment, arm)
    blocks, chunks = PartitionSpec("seeds"), PartitionSpec(None, "seeds")
    shard = partial(jax.shard_map, mesh=mesh, check_vma=False)
    every, eval_every = experiment.record_every, experiment.eval_every

    def next_record(states, seeds, step, last):
        states, records = jax.vmap(member.advance, in_axes=(0, 0, None))(states, seeds, step)
        evaluate = jax.vmap(member.evaluate)
        skip = lambda states: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(evaluate, states))
        due = ((step + every) % eval_every == 0) | (step + every == last)
        return states, {**records, **jax.lax.cond(due, evaluate, skip, states)}

    @jax.jit
    @partial(shard, in_specs=blocks, out_specs=(blocks, blocks))
    def start(seeds):
        return jax.vmap(member.start)(seeds)

    @partial(jax.jit, donate_argnums=0)
    @partial(shard, in_specs=(blocks, blocks, PartitionSpec(), PartitionSpec(), PartitionSpec()), out_specs=(blocks, chunks))
    def advance(states, seeds, step, count, last):
        def body(i, carry):
            states, chunk = carry
            states, records = next_record(states, seeds, step + i * every, last)
            return states, jax.tree.map(lambda places, value: places.at[i].set(value), chunk, records)

        _, shapes = jax.eval_shape(next_record, states, seeds, step, last)
        chunk = jax.tree.map(lambda x: jnp.zeros((CHUNK, *x.shape), x.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, (states, chunk))

    sharded = NamedSharding(mesh, blocks)
    seeds = jax.ShapeDtypeStruct((block * mesh.size,), jnp.uint32, sharding=sharded)
    states = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharded), jax.eval_shape(start, seeds)[0]
    )
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    return Program(
        start.lower(seeds).compile(), advance.lower(states, seeds, scalar, scalar, scalar).compile(), mesh, block
    )


def device_bytes(program: Program, rounds: int) -> int:
    """Memory that the states of `rounds` rounds and the work on one of them take, over all devices."""
    size = program.advance.memory_analysis()
    one_device = rounds * size.argument_size_in_bytes + size.output_size_in_bytes + size.temp_size_in_bytes
    return program.mesh.size * one_device


def seconds_per_record(program: Program, experiment: Experiment) -> float:
    """How long a round takes from one record to the next, by measurement."""
    seeds = jax.device_put(np.arange(program.round_size, dtype=np.uint32), program.sharding)
    states, _ = program.start(seeds)
    scalars = [np.int32(x) for x in (0, 2, experiment.steps)]
    states, records = jax.block_until_ready(program.advance(states, seeds, *scalars))
    began = time.monotonic()
    jax.block_until_ready(program.advance(states, seeds, *scalars))
    return (time.monotonic() - began) / 2


class Piece(NamedTuple):
    """Records of some members at some steps: arrays (records, seeds, ...)."""

    first_record: int
    first_seed: int
    records: Records


def run(program: Program, experiment: Experiment, *, chunk_seconds: float = 1.0) -> Iterator[Piece]:
    """Train all seeds of an arm, and hand out their records as they come: chunk after chunk, round after round.

    The next round is under way while the caller has a piece in hand.

    Args:
      chunk_seconds: how long a piece should take; its number of records follows from the speed seen.
    """
    size, every, last = program.round_size, experiment.record_every, experiment.steps
    padded = [*experiment.seeds, *[experiment.seeds[-1]] * (-len(experiment.seeds) % size)]
    rounds = [
        jax.device_put(np.array(padded[i : i + size], np.uint32), program.sharding)
        for i in range(0, len(padded), size)
    ]
    def piece(first_record: int, first_seed: int, count: int, records: dict[str, jax.Array]) -> Piece:
        real = len(experiment.seeds) - first_seed  # the rest is padding
        return Piece(first_record, first_seed, {k: v[:count, :real] for k, v in jax.device_get(records).items()})

    states = []
    for number, seeds in enumerate(rounds):
        state, records = program.start(seeds)
        states.append(state)
        yield piece(0, number * size, 1, {name: value[None] for name, value in records.items()})

    under_way = deque()  # at most two: one computed, one handed out
    seconds_per_record, mark = chunk_seconds, time.monotonic()

    def oldest() -> Piece:
        nonlocal seconds_per_record, mark
        finished = piece(*under_way.popleft())
        mark, began = time.monotonic(), mark
        seconds_per_record = (mark - began) / len(finished.records["loss"])
        return finished

    done = 0
    while done < last:
        count = min(max(1, int(chunk_seconds / seconds_per_record)), CHUNK, (last - done) // every)
        for number, seeds in enumerate(rounds):
            scalars = (np.int32(done), np.int32(count), np.int32(last))
            states[number], records = program.advance(states[number], seeds, *scalars)
            under_way.append((done // every + 1, number * size, count, records))
            if len(under_way) > 1:
                yield oldest()
        done += count * every
    while under_way:
        yield oldest()
