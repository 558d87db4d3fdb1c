"""Many members at once: `vmap` over a block of seeds, blocks over devices, the host once a chunk.

Training amplifies rounding, so members agree over a full run only if one and the same program has made every one of their
steps. Hence blocks of constant size, the last one padded: a seed gives the same numbers alone as among many, on one
device as on several of the kind, in chunks of any length.
"""

import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxtie import optim, train
from jaxtie.config import LSTM, Body, Experiment, Mixer, Process, Transformer
from jaxtie.data import exor
from jaxtie.lanes import lanes
from jaxtie.models import lstm, mixer, transformer
from jaxtie.models.masked_lm import MaskedLM

BLOCK = {"cpu": 32, "gpu": 64, "tpu": 128}  # seeds in a block, per kind of device; the CPU's by measurement
WIDE = 32  # a member this wide fills a CPU's vector units and cache by itself: twice as fast alone, at 16 half as fast
FAST = {"cpu": {"xla_cpu_prefer_vector_width": 512}}  # compiler options; no more than what the processor has is used
ONCE = {"cpu": {"xla_backend_optimization_level": 0}}  # for what runs once, compilation is what takes time
CHUNK = 64  # records in a chunk, at most

Records = dict[str, np.ndarray]


def build_model(config: Body, *, tied: bool) -> MaskedLM:
    """The model of an arm."""
    match config:
        case Transformer():
            body = transformer.Transformer(config.layers, config.heads, config.feedforward, config.independent_layers)
        case LSTM():
            body = lstm.LSTM(config.layers, config.hidden)
        case Mixer():
            body = mixer.Mixer(config.layers, config.tokenwise, config.channelwise)
    return MaskedLM(exor.VOCABULARY, config.width, exor.MASK, body, tied)


def build_contexts(process: Process, *, ordered: bool) -> tuple[exor.Contexts, exor.Contexts]:
    """The exact laws of the training and the validation split."""
    strings = exor.split(process.length, process.all_strings, process.data_seed)
    return tuple(
        exor.enumerate_contexts(bits, process.zeros, process.ones, ordered=ordered) for bits in (strings.train, strings.valid)
    )


class Member(NamedTuple):
    """What one member does, as pure functions of its seed and state."""

    start: Callable  # seed -> State, records at step 0
    advance: Callable  # State, seed, step -> State, records at step + record_every
    evaluate: Callable  # State -> exact evaluation


def make_member(experiment: Experiment, arm: str) -> Member:
    """Close over all that is static in an arm."""
    process, optimiser = experiment.process, experiment.optimiser
    model = build_model(experiment.model, tied=arm == "tied")
    schedule = optim.periodic_cosine(optimiser.learning_rate, optimiser.eta_min, optimiser.half_period)
    adamw = optim.adamw(schedule, weight_decay=optimiser.weight_decay, b1=optimiser.b1, b2=optimiser.b2, eps=optimiser.eps)
    bits = exor.split(process.length, process.all_strings, process.data_seed).train
    contexts = build_contexts(process, ordered=model.body.ordered)

    def stream(seed):
        return exor.stream(process.data_seed, seed if experiment.data == "per-seed" else None)

    def batch(stream, step):
        return exor.sample(stream, step, bits, process.zeros, process.ones)

    def start(seed):
        state = train.initial_state(model, adamw, jax.random.key(seed), process.length + 1)
        loss, accuracy = train.loss_and_accuracy(model, state.params, batch(stream(seed), 0))
        return state, {"loss": loss, "accuracy": accuracy, **train.record(state), **evaluate(state)}

    def advance(state, seed, step):
        own_stream = stream(seed)

        def body(carry, at):
            state, total = carry
            state, looked_at = train.step(model, adamw, state, jax.lax.optimization_barrier(batch(own_stream, at)))
            return (state, jax.tree.map(jnp.add, total, looked_at)), None

        every = experiment.record_every
        zero = (jnp.float32(0), jnp.float32(0))
        (new, total), _ = jax.lax.scan(body, (state, zero), step + jnp.arange(every, dtype=jnp.int32))
        state = train.keep_finite(new, state, total[0], step + every)
        return state, {"loss": total[0] / every, "accuracy": total[1] / every, **train.record(state)}

    def evaluate(state):
        pairs = ((exor.X, exor.X + 1), (exor.A, exor.A + 1))
        on_train, on_valid = train.evaluate(model, state.params, contexts, pairs)
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
    """A compiled arm, for blocks of members."""

    start: Callable  # seeds -> states, records at step 0; on the first device
    advance: dict[jax.Device, Callable]  # states (donated), seeds, step, count, last -> states, CHUNK records
    block: int


def block_size(platform: str, model: Body) -> int:
    """Seeds in a block on a kind of device."""
    return 1 if platform == "cpu" and model.width >= WIDE else BLOCK[platform]


def assign_workers(seeds: int, model: Body, devices: Sequence[jax.Device], cores: int) -> list[jax.Device]:
    """Where blocks are worked on at the same time: every device; the CPU as often as it has cores, a thread each.

    No more than there are blocks of seeds.
    """
    platform = devices[0].platform
    workers = [devices[0]] * cores if platform == "cpu" and len(devices) == 1 else list(devices)
    return workers[: -(-seeds // block_size(platform, model))]


def compile_arm(experiment: Experiment, arm: str, devices: Sequence[jax.Device]) -> Program:
    """Compile what an arm needs: nothing is compiled later, whatever the number of seeds and steps.

    Each device has a program of its own, the same for all. One program partitioned over a mesh would be compiled by other
    passes than the one for a single device, and then rounds differently.
    """
    platform, member = devices[0].platform, make_member(experiment, arm)
    block, every, eval_every = block_size(platform, experiment.model), experiment.record_every, experiment.eval_every

    def advance_members(states, seeds, step):
        if platform != "cpu" or block == 1:
            return jax.vmap(member.advance, in_axes=(0, 0, None))(states, seeds, step)
        members_last = jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), (states, seeds))
        advanced = lanes(lambda state, seed: member.advance(state, seed, step))(*members_last)
        return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), advanced)

    def next_record(states, seeds, step, last):
        states, records = advance_members(states, seeds, step)
        evaluate = jax.vmap(member.evaluate)
        skip = lambda states: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(evaluate, states))
        due = ((step + every) % eval_every == 0) | (step + every == last)
        return states, {**records, **jax.lax.cond(due, evaluate, skip, states)}

    @partial(jax.jit, donate_argnums=0)
    def advance(states, seeds, step, count, last):
        def body(i, carry):
            states, chunk = carry
            states, records = next_record(states, seeds, step + i * every, last)
            return states, jax.tree.map(lambda places, value: places.at[i].set(value), chunk, records)

        _, shapes = jax.eval_shape(next_record, states, seeds, step, last)
        chunk = jax.tree.map(lambda x: jnp.zeros((CHUNK, *x.shape), x.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, (states, chunk))

    start = jax.jit(jax.vmap(member.start))
    scalar, seeds = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((block,), jnp.uint32)
    arguments = jax.eval_shape(start, seeds)[0], seeds

    def lower(device):
        on_device = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
        return advance.lower(*jax.tree.map(lambda x: on_device(x.shape, x.dtype), arguments), scalar, scalar, scalar)

    # Accelerators would round the operands of float32 products otherwise. Tracing holds Python's lock, compiling does not.
    with jax.default_matmul_precision("highest"), ThreadPoolExecutor() as pool:
        lowered = {device: lower(device) for device in set(devices)}
        compiled = {device: pool.submit(lowered[device].compile, FAST.get(platform)) for device in lowered}
        start = start.lower(jax.ShapeDtypeStruct((block,), jnp.uint32, sharding=SingleDeviceSharding(devices[0])))
        ordered = build_model(experiment.model, tied=True).body.ordered  # then evaluating takes longer than compiling
        start = start.compile((FAST if ordered else ONCE).get(platform))
        return Program(start, {device: future.result() for device, future in compiled.items()}, block)


class Piece(NamedTuple):
    """Records of some members at some steps: arrays (records, seeds, ...)."""

    first_record: int
    first_seed: int
    records: Records


def run(
    program: Program, workers: Sequence[jax.Device], experiment: Experiment, *, chunk_seconds: float = 1.0
) -> Iterator[Piece]:
    """Train all seeds of an arm, and hand out their records as they come: chunk after chunk, block after block.

    Every worker has work while the caller has a piece in hand.

    Args:
      workers: see `assign_workers`.
      chunk_seconds: how long a piece should take; its number of records follows from the speed seen.
    """
    block, every, last, seeds = program.block, experiment.record_every, experiment.steps, experiment.seeds
    padded = np.array([*seeds, *[seeds[-1]] * (-len(seeds) % block)], np.uint32)
    blocks = list(enumerate(zip(np.split(padded, len(padded) // block), itertools.cycle(workers))))
    rounds = -(-len(blocks) // len(workers))

    def piece(first_record: int, number: int, count: int, records: dict[str, jax.Array]) -> Piece:
        real = len(seeds) - number * block  # the rest is padding
        records = {name: value[:count, :real] for name, value in jax.device_get(records).items()}
        return Piece(first_record, number * block, records)

    states = []
    for number, (block_seeds, device) in blocks:
        state, records = program.start(block_seeds)
        states.append(jax.device_put(state, device))
        yield piece(0, number, 1, {name: value[None] for name, value in records.items()})

    def advance(number: int, previous: Future | None, *scalars: int) -> dict[str, jax.Array]:
        block_seeds, device = blocks[number][1]
        if previous:
            wait([previous])
        states[number], records = program.advance[device](states[number], block_seeds, *map(np.int32, scalars))
        return records

    done, count, under_way, latest = 0, 1, deque(), {}
    with ThreadPoolExecutor(len(workers)) as pool:
        while done < last:
            began = time.monotonic()
            for number, _ in blocks:
                latest[number] = pool.submit(advance, number, latest.get(number), done, count, last)
                under_way.append((done // every + 1, number, count, latest[number]))
                if len(under_way) > len(workers):
                    *place, records = under_way.popleft()
                    yield piece(*place, records.result())
            while under_way and not done:  # the first chunk is there to see the speed
                *place, records = under_way.popleft()
                yield piece(*place, records.result())
            done += count * every
            seconds_per_record = (time.monotonic() - began) / count / rounds
            count = min(max(1, int(chunk_seconds / seconds_per_record)), CHUNK, (last - done) // every)
        for *place, records in under_way:
            yield piece(*place, records.result())


def seconds_per_record(program: Program, workers: Sequence[jax.Device], experiment: Experiment, records: int = 2) -> float:
    """How long all blocks take from one record to the next, by measurement on a block per worker."""
    seeds = tuple(range(program.block * len(workers)))
    trial = dataclasses.replace(experiment, seeds=seeds, steps=(1 + records) * experiment.record_every)
    for piece in run(program, workers, trial):
        if piece.first_record <= 1:
            began = time.monotonic()
    rounds = -(-len(experiment.seeds) // len(seeds))
    return rounds * (time.monotonic() - began) / records


def device_bytes(program: Program, workers: Sequence[jax.Device], experiment: Experiment) -> int:
    """Memory that the states of all members and the work on a block per worker take, over all devices."""
    blocks = -(-len(experiment.seeds) // program.block)
    sizes = [program.advance[device].memory_analysis() for device in workers]
    work = sum(size.output_size_in_bytes + size.temp_size_in_bytes for size in sizes)
    return work + blocks * sizes[0].argument_size_in_bytes
