"""Many members in one compiled program: a block of them, laid out as `jaxtie.exor.forms` says.

Training amplifies rounding, so members agree over a full run only if one and the same program has
made every one of their steps. Hence blocks of constant size, the last one padded: a seed gives the
same numbers alone as among many, on one device as on several of the kind, in chunks of any length.

- On a CPU a model has one size. What is mapped over members without lanes goes in parts of one
  size, too.
- On a GPU or TPU a step is a sequence of kernels, each of which takes as long for a few members as
  for hundreds, so blocks are large. Equal sizes give equal bits; the small block and the large one
  may round differently. `config.json` has the size.
"""

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from jaxtie.config import LSTM, Body
from jaxtie.exor.config import Experiment
from jaxtie.exor.forms import WIDE, advance_members
from jaxtie.exor.task import Setting, Static, build_contexts, make_member, record
from jaxtie.models.language_model import build_body
from jaxtie.training import devices as machine
from jaxtie.training.member import State

# Members in a block on a CPU, by measurement: 32 numbers are the least that its compiler makes
# vectors of in all loops (see
# `devices.FAST`); an LSTM is as fast a seed in half a block, and needs less memory. Mapped without
# lanes at once: as many.
CPU_BLOCK, CPU_HALF_BLOCK = 32, 16
# On accelerators, block sizes for few members and for many. A TPU's vectors have 128 places. An
# LSTM or a wide model is bound by memory from few members on; on a TPU more than 64 gain next to
# nothing.
ACCELERATED = {"gpu": (128, 2048), "tpu": (128, 512)}
ACCELERATED_LARGE_MODEL = {"gpu": (128, 512), "tpu": (64,)}
CHUNK = 64  # records in a chunk, at most


class Program(NamedTuple):
    """The compiled training of tied or of untied members, for blocks of them."""

    # seeds, settings -> states, streams of samples, records at step 0; on the first device
    start: jax.stages.Compiled
    # states (donated), streams, settings, step, count, last -> states, CHUNK records
    advance: dict[jax.Device, Any]
    states: State  # shapes and dtypes of a block's
    block: int


def block_sizes(platform: str, model: Body) -> tuple[int, ...]:
    """Members in a block on a kind of device; on an accelerator it may have two sizes, for few
    members and for many.
    """
    if platform != "cpu":
        large_model = model.width >= WIDE or isinstance(model, LSTM)
        return (ACCELERATED_LARGE_MODEL if large_model else ACCELERATED)[platform]
    if model.width >= WIDE:
        return (1,)
    return (CPU_HALF_BLOCK,) if isinstance(model, LSTM) else (CPU_BLOCK,)


def block_size(platform: str, model: Body, members: int) -> int:
    """Members in a block, where there are so many: what fits into two small blocks takes these."""
    sizes = block_sizes(platform, model)
    return sizes[0] if members <= 2 * sizes[0] else sizes[-1]


def block_of(experiment: Experiment, devices: Sequence[jax.Device]) -> int:
    """Members in a block of an experiment's."""
    return block_size(devices[0].platform, experiment.model, len(experiment.members))


def assign_workers(
    members: int, block: int, devices: Sequence[jax.Device], cores: int
) -> list[jax.Device]:
    """Where blocks are worked on at the same time: every device; the CPU as often as it has cores,
    a thread each.

    No more than there are blocks of members.
    """
    workers = (
        [devices[0]] * cores
        if devices[0].platform == "cpu" and len(devices) == 1
        else list(devices)
    )
    return workers[: max(1, -(-members // block))]


class Batched(NamedTuple):
    """What a block of members does, and the shapes that it works on; not compiled yet."""

    start: jax.stages.Wrapped
    advance: jax.stages.Wrapped
    states: State
    streams: jax.ShapeDtypeStruct
    seeds: jax.ShapeDtypeStruct
    settings: Setting


def _setting_shapes(static: Static, block: int) -> Setting:
    """Shapes of a block's settings."""

    def of(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((block, *shape), jnp.float32)

    laws = build_contexts(static.process, ordered=build_body(static.model).ordered)
    shapes = (of(*split.joint_CxV.shape) for split in laws)
    return Setting._make((of(), of(), of(), of(), of(2), of(2), *shapes))


def batch_members(static: Static, block: int, platform: str) -> Batched:
    """A block of members, from what one member does."""
    member = make_member(static, accelerated=platform != "cpu")
    at_once = min(
        block, CPU_HALF_BLOCK if platform == "cpu" else block_sizes(platform, static.model)[0]
    )
    every, eval_every = static.record_every, static.eval_every
    to_record = partial(advance_members, member, static.model, platform)

    def of_each(function, *own):
        """So many at a time, whatever the block: mapped over another number of members, the last
        bits may be others.
        """
        return jax.lax.map(lambda each: function(*each), own, batch_size=at_once)

    def next_record(states, streams, settings, step, last):
        states, records = to_record(states, streams, settings, step)

        def skip(*_):
            return {
                name: jnp.zeros(x.shape, x.dtype)
                for name, x in shapes.items()
                if name not in records
            }

        due = ((step + every) % eval_every == 0) | (step + every == last)
        return states, {
            **records,
            **jax.lax.cond(due, partial(of_each, member.evaluate), skip, states, settings),
        }

    @partial(jax.jit, donate_argnums=0)
    def advance(states, streams, settings, step, count, last):
        def body(i, carry):
            states, chunk = carry
            states, records = next_record(states, streams, settings, step + i * every, last)
            return states, jax.tree.map(
                lambda places, value: places.at[i].set(value), chunk, records
            )

        chunk = jax.tree.map(lambda x: jnp.zeros((CHUNK, *x.shape), x.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, (states, chunk))

    @jax.jit
    def start(seeds, settings):
        states, streams, records = of_each(member.start, seeds, settings)
        # One by one: distances in a mixer's tables differ even so between one part and two.
        return (
            states,
            streams,
            records | jax.lax.map(partial(record, untied_rows=member.untied_rows), states),
        )

    seeds, settings = jax.ShapeDtypeStruct((block,), jnp.uint32), _setting_shapes(static, block)
    # a record has the shapes of the first one
    states, streams, shapes = jax.eval_shape(start, seeds, settings)
    return Batched(start, advance, states, streams, seeds, settings)


def lower_advance(batched: Batched, device: jax.Device) -> jax.stages.Lowered:
    """The program that trains a block, for one device, not compiled yet."""
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    own = _on_device((batched.states, batched.streams, batched.settings), device)
    return batched.advance.lower(*own, scalar, scalar, scalar)


def _on_device(tree, device: jax.Device):
    sharding = SingleDeviceSharding(device)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def compile_block(static: Static, block: int, devices: Sequence[jax.Device]) -> Program:
    """Compile all that training needs: nothing is compiled later, whatever the number of seeds,
    steps and settings.

    Each device has a program of its own, the same for all. One program partitioned over a mesh
    would be compiled by other passes than the one for a single device, and then rounds differently.
    A process keeps what it has compiled.
    """
    fast, once = (kind.get(devices[0].platform, {}) for kind in (machine.FAST, machine.ONCE))
    if build_body(static.model).ordered:  # then evaluating takes longer than compiling
        once = fast
    return _compile_block(
        static, block, tuple(dict.fromkeys(devices)), tuple(once.items()), tuple(fast.items())
    )


@functools.lru_cache(32)
def _compile_block(
    static: Static, block: int, devices: tuple[jax.Device, ...], of_start: tuple, of_advance: tuple
) -> Program:
    # Accelerators would round the operands of float32 products otherwise. Tracing holds Python's
    # lock, compiling does not.
    with jax.default_matmul_precision("highest"), ThreadPoolExecutor() as pool:
        batched = batch_members(static, block, devices[0].platform)
        lowered = {device: lower_advance(batched, device) for device in devices}
        compiled = {
            device: pool.submit(lowered[device].compile, dict(of_advance)) for device in lowered
        }
        start = batched.start.lower(*_on_device((batched.seeds, batched.settings), devices[0]))
        return Program(
            start.compile(dict(of_start)),
            {device: future.result() for device, future in compiled.items()},
            batched.states,
            block,
        )
