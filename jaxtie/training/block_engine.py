"""Train many members of a task in blocks, by one compiled program per device.

Training amplifies rounding, so members agree over a full run only if the same program made every
step. Hence blocks of constant size, the last one padded: at one block size a seed gives the same
numbers alone as among many, on one device as on several of the kind, in chunks of any length.

On a CPU a model has one block size, but an LSTM two. On a GPU or TPU a kernel takes as long for a
few members as for hundreds, so blocks are large; the small and the large one may round differently.
`config.json` has the size.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxtie.config import Layout, TaskConfig, Variant, point_and_seed
from jaxtie.training import devices as machine
from jaxtie.training.distributed import Processes
from jaxtie.training.lanes import lanes
from jaxtie.training.member import Member, as_host, make_member, untie_state
from jaxtie.training.task import (
    Chunk,
    Control,
    HParams,
    Members,
    Phase,
    Recorded,
    State,
    Task,
    flatten,
    side_by_side,
    unflatten,
    untie_members,
)
from jaxtie.tying import tie

CPU_PART = 16  # members that a CPU maps at once without lanes
CHUNK = 64  # most records in a chunk
TRIAL_RECORDS = 3  # records trained to estimate the time
SMALL_PARAMETERS = 2_000  # of a member: up to this many, a task without a layout uses lanes
SMALL_LAYOUT = {
    "cpu": Layout((32,), lanes=True),
    "gpu": Layout((128, 512, 1024, 2048), few=256, lanes=True),
    "tpu": Layout((128, 512), few=256),
}
LARGE_LAYOUT = {"cpu": Layout((1,)), "gpu": Layout((128, 512), few=256), "tpu": Layout((64,))}
BlockFunction = tuple[jax.stages.Wrapped, tuple]  # and the shapes of its arguments


class BlockProgram(NamedTuple):
    """The compiled training of a variant, for blocks of members.

    Attributes:
      start: seeds, hparams -> states, streams, records at step 0; on the first device.
      advance: device -> states (donated), streams, hparams, step, count, last -> states, records.
      state: shapes and dtypes of a member's state.
      block: members in a block.
    """

    start: jax.stages.Compiled
    advance: dict[jax.Device, Any]
    state: State
    block: int


def layout_of(config: TaskConfig, platform: str) -> Layout:
    """Return how members are laid out on a platform: as the configuration says, or by size."""
    if (own := config.layout(platform)) is not None:
        return own
    task = config.build(config.arms[-1].variant, platform)
    small = tie.count_parameters(state_shapes(task).params) <= SMALL_PARAMETERS
    return (SMALL_LAYOUT if small else LARGE_LAYOUT)[platform]


def state_shapes(task: Task) -> State:
    """Return shapes and dtypes of a member's state."""
    return jax.eval_shape(make_member(task).init, np.uint32(0), task.hparams())


def members_per_block(layout: Layout, members: int) -> int:
    """Return the members of a block: of few its first size, of more the least that has them all."""
    if members <= layout.few:
        return layout.blocks[0]
    return next((size for size in layout.blocks[1:] if members <= size), layout.blocks[-1])


def assign_workers(
    members: int, block: int, devices: Sequence[jax.Device], cores: int
) -> list[jax.Device]:
    """Return the devices that train blocks at the same time; a CPU once per core.

    There are at most as many as blocks.
    """
    one_cpu = devices[0].platform == "cpu" and len(devices) == 1
    workers = [devices[0]] * cores if one_cpu else list(devices)
    return workers[: max(1, -(-members // block))]


def stack_hparams(config: TaskConfig, platform: str) -> HParams:
    """Return the hyperparameters of every sweep point; host arrays (points, ...)."""
    variant = config.arms[0].variant
    own = [point.build(variant, platform).hparams() for point in config.traced_points]
    missing = {name for name in config.traced if hasattr(config.optimizer, name)} - own[0].keys()
    if missing:
        raise ValueError(f"task {config.task}: hparams lacks {missing}; add super().hparams()")
    return jax.tree.map(lambda *values: np.stack(values), *own)


def advance_members(member: Member, layout: Layout, platform: str, states, streams, hparams, step):
    """Train the members of a block from one record to the next."""
    if not layout.lanes or len(streams) == 1:  # a vector of one wastes places
        return jax.vmap(member.advance, in_axes=(0, 0, 0, None))(states, streams, hparams, step)
    members_last = jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), (states, streams, hparams))
    advance = lanes(lambda *own: member.advance(*own, step), kept_apart=platform == "cpu")
    return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), advance(*members_last))


def batch_members(
    config: TaskConfig, variant: Variant, layout: Layout, block: int, platform: str
) -> tuple[BlockFunction, BlockFunction]:
    """Batch a member's functions over a block: return `BlockProgram.start` and `advance`."""
    task = config.build(variant, platform)
    member = make_member(task)
    at_once = min(block, CPU_PART if platform == "cpu" else layout.blocks[0])
    every, eval_every = config.record_every, config.eval_every

    to_record = partial(advance_members, member, layout, platform)

    def of_each(function, *own):
        """Map a constant number of members at a time: another one may round differently."""
        return jax.lax.map(lambda each: function(*each), own, batch_size=at_once)

    @partial(jax.jit, donate_argnums=0)
    def advance(states, streams, hparams, step, count, last):
        def body(i, carry):
            states, chunk = carry
            at = step + i * every
            states, records = to_record(states, streams, hparams, at)
            unmeasured = {name: x for name, x in shapes.items() if name not in records}
            due = ((at + every) % eval_every == 0) | (at + every == last)
            evaluated = jax.lax.cond(
                due,
                partial(of_each, member.evaluate),
                lambda *_: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), unmeasured),
                states,
                hparams,
            )
            records = {**records, **evaluated}
            return states, jax.tree.map(lambda into, x: into.at[i].set(x), chunk, records)

        chunk = jax.tree.map(lambda x: jnp.zeros((CHUNK, *x.shape), x.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, (states, chunk))

    @jax.jit
    def start(seeds, hparams):
        states, streams, records = of_each(member.start, seeds, hparams)
        # One by one: distances in a mixer's tables differ even so between one part and two.
        return states, streams, records | jax.lax.map(member.measure, states)

    seeds = jax.ShapeDtypeStruct((block,), jnp.uint32)
    hparams = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((block, *np.shape(x)), np.asarray(x).dtype), task.hparams()
    )
    # a record has the shapes of the first one
    states, streams, shapes = jax.eval_shape(start, seeds, hparams)
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    of_advance = states, streams, hparams, scalar, scalar, scalar
    return (start, (seeds, hparams)), (advance, of_advance)


def lower(function: jax.stages.Wrapped, shapes: tuple, device: jax.Device) -> jax.stages.Lowered:
    """Lower a function for arguments of these shapes on one device."""
    sharding = SingleDeviceSharding(device)
    return function.lower(
        *jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)
    )


@functools.lru_cache(32)
def compile_block(
    config: TaskConfig, variant: Variant, layout: Layout, block: int, devices: tuple
) -> BlockProgram:
    """Compile the training of a variant, for any number of seeds, steps and sweep points.

    Every device has its own copy of the same program: one that is partitioned over a mesh goes
    through other compiler passes and rounds differently. Programs are cached, by configurations
    that are reduced to `TaskConfig.program_key`.
    """
    platform = devices[0].platform
    fast: dict[str, Any] = dict(machine.FAST.get(platform, {}))
    once: dict[str, Any] = fast if layout.fast_start else dict(machine.ONCE.get(platform, {}))
    # Accelerators would round the operands of float32 products otherwise. Tracing holds Python's
    # lock, compiling does not.
    with jax.default_matmul_precision("highest"), ThreadPoolExecutor() as pool:
        state = state_shapes(config.build(variant, platform))
        start, advance = batch_members(config, variant, layout, block, platform)
        lowered = [lower(*advance, device) for device in devices]
        compiled = [pool.submit(each.compile, fast) for each in lowered]
        started = lower(*start, devices[0]).compile(once)
        advances = {device: each.result() for device, each in zip(devices, compiled, strict=True)}
        return BlockProgram(started, advances, state, block)


@dataclasses.dataclass
class Block:
    """Members that are trained together on a device; the last one is repeated as padding.

    Attributes:
      numbers: of the members, without padding.
      device: trains the block.
      step: updates made.
      streams: host array, padded.
      states: padded, on the device; None before the start.
      count: records of the next chunk; one at first, to see the speed.
    """

    numbers: np.ndarray
    device: jax.Device
    step: int = 0
    streams: Any = None
    states: State | None = None
    count: int = 1


class BlockRun:
    """Train members of an arm up to a step, in blocks that take turns.

    A chunk takes about `chunk_seconds`; its number of records follows from the speed.
    """

    def __init__(
        self,
        program: BlockProgram,
        workers: Sequence[jax.Device],
        config: TaskConfig,
        until: int,
        chunk_seconds: float = 1.0,
    ):
        self.program, self.workers, self.config, self.until = program, workers, config, until
        self.chunk_seconds, self.every = chunk_seconds, config.record_every
        self.hparams = stack_hparams(config, workers[0].platform)
        # By device and sweep points, since the exact distributions of an ordered model are larger
        # than its state, and equal for all members without a sweep.
        self.placed: dict[tuple[jax.Device, bytes], HParams] = {}

    def chunks(self, numbers: Sequence[int], known: Members | None) -> Iterator[Chunk]:
        """Train these members from their known state or from step 0; yield chunks of records.

        Workers go on while the caller holds a chunk, so members are at different steps.
        """
        size, devices = self.program.block, itertools.cycle(self.workers)
        fresh, blocks = np.array(numbers, np.int64), []
        if known is not None:
            wanted = np.isin(known.numbers, fresh) & (known.steps < self.until)
            fresh = fresh[~np.isin(fresh, known.numbers)]
            for step in np.unique(known.steps[wanted]):
                for own in _in_blocks(np.flatnonzero(wanted & (known.steps == step)), size):
                    block = Block(known.numbers[own], next(devices), int(step))
                    block.streams = self._pad(known.streams[own])
                    leaves = {name: self._pad(leaf[own]) for name, leaf in known.states.items()}
                    states = unflatten(self.program.state, leaves)
                    block.states = jax.device_put(states, block.device)
                    blocks.append(block)
        blocks += [Block(own, next(devices)) for own in _in_blocks(fresh, size)]
        return side_by_side(map(self._train, blocks), len(self.workers), in_turns=True)

    def _pad(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, np.repeat(x[-1:], self.program.block - len(x), axis=0)])

    def _train(self, block: Block) -> Iterator[Chunk]:
        if block.states is None:
            yield self._begin(block)
        while block.step < self.until:
            yield self._advance(block)

    def _begin(self, block: Block) -> Chunk:
        """Start the members of a block; return their record at step 0."""
        points, seeds = point_and_seed(self._pad(block.numbers))
        hparams = jax.tree.map(lambda x: x[points], self.hparams)
        states, streams, records = self.program.start(seeds.astype(np.uint32), hparams)
        block.states, block.streams = jax.device_put(states, block.device), np.array(streams)
        return self._chunk(block, 0, jax.tree.map(lambda x: x[None], as_host(records)))

    def _advance(self, block: Block) -> Chunk:
        """Train a block for a chunk."""
        points, _ = point_and_seed(self._pad(block.numbers))
        began, key = time.monotonic(), (block.device, points.tobytes())
        if key not in self.placed:
            own = jax.tree.map(lambda x: x[points], self.hparams)
            self.placed[key] = jax.device_put(own, block.device)
        count = min(block.count, CHUNK, (self.until - block.step) // self.every)
        block.states, records = self.program.advance[block.device](
            block.states,
            block.streams,
            self.placed[key],
            *map(np.int32, (block.step, count, self.config.steps)),
        )
        records = {name: np.asarray(value)[:count] for name, value in records.items()}
        seconds = (time.monotonic() - began) / count
        block.count = max(1, int(self.chunk_seconds / seconds))
        first_record = block.step // self.every + 1
        block.step += count * self.every
        return self._chunk(block, first_record, records)

    def _chunk(self, block: Block, first_record: int, records: Recorded) -> Chunk:
        size = len(block.numbers)
        leaves = {name: leaf[:size] for name, leaf in flatten(as_host(block.states)).items()}
        steps = np.full(size, block.step, np.int64)
        members = Members(block.numbers, steps, block.streams[:size], leaves)
        own = {name: value[:, :size] for name, value in records.items()}
        updates = own["loss"].size * self.every if first_record else 0
        return Chunk(block.numbers, first_record, own, members, updates)


def _in_blocks(values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (values[i : i + size] for i in range(0, len(values), size))


class BlockEngine:
    """Engine of tasks that draw their batches on the device.

    Each process trains a share of the members.
    """

    def __init__(self, config: TaskConfig, processes: Processes):
        devices = jax.local_devices()
        self.config, self.processes, platform = config, processes, devices[0].platform
        self.layout = layout_of(config, platform)
        self.block = members_per_block(self.layout, len(config.members))
        self.own = set(processes.share(config.members, self.block))
        self.workers = assign_workers(len(self.own), self.block, devices, machine.cores())
        variant = config.arms[0].variant
        best = [point.build(variant, platform).best_loss for point in config.traced_points]
        self.best_losses = [loss for loss in best if loss is not None]
        self.facts: dict[str, Any] = {
            "device": machine.describe_device(self.workers[0]),
            "workers": len(self.workers),
            "processes": processes.count,
            "block": self.block,
        }

    def compile(self, phase: Phase) -> BlockProgram:
        """Compile the program of a phase."""
        devices = tuple(dict.fromkeys(self.workers))
        key = self.config.program_key()
        return compile_block(key, phase.variant, self.layout, self.block, devices)

    def parameters(self, program: BlockProgram) -> int:
        """Return the number of parameters of a member."""
        return tie.count_parameters(program.state.params)

    def run(
        self,
        program: BlockProgram,
        numbers: Sequence[int],
        known: Members | None,
        until: int,
        control: Control,
    ) -> Iterator[Chunk]:
        """Train members up to a step, from their known state or from the start.

        Several processes call this alike; the first one gets every chunk.
        """
        own = [number for number in numbers if number in self.own]
        run = BlockRun(program, self.workers, self.config, until)
        return self.processes.together(run.chunks(own, known), control.stopped)

    def untie(self, phase: Phase, members: Members) -> Members:
        """Untie members for a phase that follows a tied one."""
        tied = self.config.build(Variant(True, phase.arm.head), self.workers[0].platform)
        return untie_members(state_shapes(tied), members, untie_state)

    def trial(self, program: BlockProgram) -> tuple[Iterator[Chunk], int, int]:
        """Return chunks of a block per worker for some records, its members, and device bytes.

        A waiting block has states and, where members differ in them, hyperparameters.
        """
        sizes = [program.advance[device].memory_analysis() for device in self.workers]
        needed = sum(
            size.argument_size_in_bytes + size.output_size_in_bytes + size.temp_size_in_bytes
            for size in sizes
        )
        state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.state))
        of_block = sizes[0].argument_size_in_bytes if self.config.sweep else state * program.block
        waiting = max(0, -(-len(self.config.members) // program.block) - len(self.workers))
        needed += waiting * of_block
        until, together = TRIAL_RECORDS * self.config.record_every, self.block * len(self.workers)
        run = BlockRun(program, self.workers, self.config, until)
        return run.chunks(range(together), None), together, needed
