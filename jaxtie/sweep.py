"""Many members at once: `vmap` over a block of seeds, blocks over devices, the host once a chunk.

Training amplifies rounding, so members agree over a full run only if one and the same program has made every one of their
steps. Hence blocks of constant size, the last one padded: a seed gives the same numbers alone as among many, on one
device as on several of the kind, in chunks of any length. (On a CPU few members get blocks half the size: whole vectors
still, 16 numbers at most, so steps have the same bits; what is mapped over members without lanes goes in parts of one size.)
"""

import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxtie import optim, train
from jaxtie.config import LSTM, SEEDS, Body, Experiment, Mixer, Process, Transformer, UserError, untied_from
from jaxtie.data import exor
from jaxtie.lanes import lanes
from jaxtie.models import embedding, lstm, mixer, transformer
from jaxtie.models.masked_lm import MaskedLM

BLOCK = {"cpu": 32, "gpu": 64, "tpu": 128}  # seeds in a block, per kind of device; the CPU's by measurement
HALF_BLOCK = 16  # on a CPU, of an LSTM, as fast a seed as 32; and where 32 members or fewer would leave cores or lanes idle
WIDE = 32  # a member this wide fills a CPU's vector units and cache by itself: twice as fast alone, at 16 half as fast
FAST = {"cpu": {"xla_cpu_prefer_vector_width": 512}}  # compiler options; no more than what the processor has is used
ONCE = {"cpu": {"xla_backend_optimization_level": 0}}  # for what runs once, compilation is what takes time
CHUNK = 64  # records in a chunk, at most

Records = dict[str, np.ndarray]


def build_model(config: Body, *, tied: bool) -> MaskedLM:
    """The model of an experiment."""
    match config:
        case Transformer():
            body = transformer.Transformer(**dataclasses.asdict(config))
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


class Setting(NamedTuple):
    """What a member has of its own: an argument of the compiled program, which is one for all values. float32."""

    learning_rate: jax.Array
    eta_min: jax.Array
    weight_decay: jax.Array
    eps: jax.Array
    zeros: jax.Array  # p(X), p(Y)
    ones: jax.Array  # p(A), p(B)
    train_CxV: jax.Array  # the exact law of the training split over its contexts
    valid_CxV: jax.Array


def stack_settings(experiment: Experiment) -> Setting:
    """Every setting of the sweep, or the only one; host arrays (settings, ...)."""

    def own(setting: Experiment) -> Setting:
        process, optimiser = setting.process, setting.optimiser
        if process not in laws:
            laws[process] = [split.joint_CxV for split in build_contexts(process, ordered=ordered)]
        scalars = (getattr(optimiser, name) for name in Setting._fields[:4])
        return jax.tree.map(np.float32, Setting(*scalars, np.array(process.zeros), np.array(process.ones), *laws[process]))

    laws: dict[Process, list[np.ndarray]] = {}
    ordered = build_model(experiment.model, tied=True).body.ordered
    return jax.tree.map(lambda *values: np.stack(values), *map(own, experiment.settings))


class Member(NamedTuple):
    """What one member does, as pure functions of its seed, setting and state."""

    start: Callable  # seed, Setting -> State, stream of samples, loss, accuracy and evaluation at step 0
    advance: Callable  # State, stream of samples, Setting, step -> State, records at step + record_every
    evaluate: Callable  # State, Setting -> exact evaluation


def make_member(experiment: Experiment, *, tied: bool) -> Member:
    """Close over all that is static in a member's training."""
    process, optimiser = experiment.process, experiment.optimiser
    model = build_model(experiment.model, tied=tied)
    bits = exor.split(process.length, process.all_strings, process.data_seed).train
    contexts = build_contexts(process, ordered=model.body.ordered)

    def adamw(setting):
        schedule = optim.periodic_cosine(setting.learning_rate, setting.eta_min, optimiser.half_period)
        return optim.adamw(schedule, weight_decay=setting.weight_decay, b1=optimiser.b1, b2=optimiser.b2, eps=setting.eps)

    def batch(stream, setting, step):
        return exor.sample(stream, step, bits, setting.zeros, setting.ones)

    def start(seed, setting):
        state = train.initial_state(model, adamw(setting), jax.random.key(seed), process.length + 1)
        stream = exor.stream(process.data_seed, seed if experiment.data == "per-seed" else None)
        loss, accuracy = train.loss_and_accuracy(model, state.params, batch(stream, setting, 0))
        return state, stream, {"loss": loss, "accuracy": accuracy, **evaluate(state, setting)}

    def advance(state, stream, setting, step):
        optimise = adamw(setting)

        def body(carry, at):
            state, total = carry
            state, looked_at = train.step(model, optimise, state, jax.lax.optimization_barrier(batch(stream, setting, at)))
            return (state, jax.tree.map(jnp.add, total, looked_at)), None

        every = experiment.record_every
        zero = (jnp.float32(0), jnp.float32(0))
        (new, total), _ = jax.lax.scan(body, (state, zero), step + jnp.arange(every, dtype=jnp.int32))
        state = train.keep_finite(new, state, total[0], step + every)
        return state, {"loss": total[0] / every, "accuracy": total[1] / every, **train.record(state)}

    def evaluate(state, setting):
        pairs = ((exor.X, exor.X + 1), (exor.A, exor.A + 1))
        laws = setting.train_CxV, setting.valid_CxV
        own = [split._replace(joint_CxV=law_CxV) for split, law_CxV in zip(contexts, laws, strict=True)]
        on_train, on_valid = train.evaluate(model, state.params, own, pairs)
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
    """The compiled training of tied or of untied members, for blocks of them."""

    start: Callable  # seeds, settings -> states, streams of samples, records at step 0; on the first device
    advance: dict[jax.Device, Callable]  # states (donated), streams, settings, step, count, last -> states, CHUNK records
    states: train.State  # shapes and dtypes of a block's
    block: int


def block_size(platform: str, model: Body, members: int) -> int:
    """Members in a block, where there are so many, on a kind of device."""
    if platform == "cpu" and model.width >= WIDE:
        return 1
    halved = platform == "cpu" and (isinstance(model, LSTM) or members <= BLOCK["cpu"])
    return HALF_BLOCK if halved else BLOCK[platform]


def assign_workers(members: int, block: int, devices: Sequence[jax.Device], cores: int) -> list[jax.Device]:
    """Where blocks are worked on at the same time: every device; the CPU as often as it has cores, a thread each.

    No more than there are blocks of members.
    """
    workers = [devices[0]] * cores if devices[0].platform == "cpu" and len(devices) == 1 else list(devices)
    return workers[: max(1, -(-members // block))]


def compile_program(experiment: Experiment, devices: Sequence[jax.Device], *, tied: bool) -> Program:
    """Compile all that training needs: nothing is compiled later, whatever the number of seeds and steps.

    Each device has a program of its own, the same for all. One program partitioned over a mesh would be compiled by other
    passes than the one for a single device, and then rounds differently.
    """
    platform, member = devices[0].platform, make_member(experiment, tied=tied)
    block = block_size(platform, experiment.model, len(experiment.members))
    at_once = min(block, HALF_BLOCK) if platform == "cpu" else block
    every, eval_every = experiment.record_every, experiment.eval_every

    def advance_members(states, streams, settings, step):
        if platform != "cpu" or block == 1:
            return jax.vmap(member.advance, in_axes=(0, 0, 0, None))(states, streams, settings, step)
        members_last = jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), (states, streams, settings))
        advanced = lanes(lambda *member_: member.advance(*member_, step))(*members_last)
        return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), advanced)

    def of_each(function, *own):
        """So many at a time, whatever the block: mapped over another number of members, the last bits may be others."""
        return jax.lax.map(lambda each: function(*each), own, batch_size=at_once)

    def next_record(states, streams, settings, step, last):
        states, records = advance_members(states, streams, settings, step)
        skip = lambda *_: {name: jnp.zeros(x.shape, x.dtype) for name, x in shapes.items() if name not in records}
        due = ((step + every) % eval_every == 0) | (step + every == last)
        return states, {**records, **jax.lax.cond(due, partial(of_each, member.evaluate), skip, states, settings)}

    @partial(jax.jit, donate_argnums=0)
    def advance(states, streams, settings, step, count, last):
        def body(i, carry):
            states, chunk = carry
            states, records = next_record(states, streams, settings, step + i * every, last)
            return states, jax.tree.map(lambda places, value: places.at[i].set(value), chunk, records)

        chunk = jax.tree.map(lambda x: jnp.zeros((CHUNK, *x.shape), x.dtype), shapes)
        return jax.lax.fori_loop(0, count, body, (states, chunk))

    @jax.jit
    def start(seeds, settings):
        states, streams, records = of_each(member.start, seeds, settings)
        # One by one: distances in a mixer's tables differ even so between one part and two.
        return states, streams, records | jax.lax.map(train.record, states)

    scalar, seeds = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((block,), jnp.uint32)
    settings = jax.tree.map(lambda x: jax.ShapeDtypeStruct((block, *x.shape[1:]), x.dtype), stack_settings(experiment))
    states, streams, shapes = jax.eval_shape(start, seeds, settings)  # a record has the shapes of the first one

    def on_device(tree, device):
        sharding = SingleDeviceSharding(device)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    def lower(device):
        return advance.lower(*on_device((states, streams, settings), device), scalar, scalar, scalar)

    # Accelerators would round the operands of float32 products otherwise. Tracing holds Python's lock, compiling does not.
    with jax.default_matmul_precision("highest"), ThreadPoolExecutor() as pool:
        lowered = {device: lower(device) for device in set(devices)}
        compiled = {device: pool.submit(lowered[device].compile, FAST.get(platform)) for device in lowered}
        start = start.lower(*on_device((seeds, settings), devices[0]))
        ordered = build_model(experiment.model, tied=True).body.ordered  # then evaluating takes longer than compiling
        start = start.compile((FAST if ordered else ONCE).get(platform))
        return Program(start, {device: future.result() for device, future in compiled.items()}, states, block)


class Members(NamedTuple):
    """Where some members of an arm stand, all one needs to go on with them. Host arrays (members, ...)."""

    numbers: np.ndarray  # see `Experiment.members`
    steps: np.ndarray  # updates made
    streams: np.ndarray  # key data of each one's stream of samples
    states: dict[str, np.ndarray]  # the leaves of `train.State` by their paths


class Phase(NamedTuple):
    """A part of an arm's training, which one program does; where its members stand is kept under `name`."""

    arm: str
    name: str
    tied: bool
    until: int
    follows: str | None = None  # the phase whose members are untied for this one


def phases(arm: str, steps: int) -> list[Phase]:
    """One after the other; at its end an arm's members stand under the arm's name."""
    untied_at = untied_from(arm)
    if untied_at is None:
        return [Phase(arm, arm, True, steps)]
    if not untied_at:
        return [Phase(arm, arm, False, steps)]
    before = f"{arm}, tied"
    return [Phase(arm, before, True, untied_at), Phase(arm, arm, False, steps, follows=before)]


def steps_reached(standing: Mapping[str, Members], arm: str, steps: int) -> dict[int, int]:
    """Where each member of an arm stands, by its number, of all phases' members."""
    parts = [standing[phase.name] for phase in phases(arm, steps) if phase.name in standing]
    return {number: step for part in parts for number, step in zip(part.numbers.tolist(), part.steps.tolist())}


def untie(experiment: Experiment, members: Members) -> Members:
    """Tied members, untied where they stand."""
    seeds, settings = np.zeros(1, np.uint32), jax.tree.map(lambda x: x[:1], stack_settings(experiment))
    like = jax.eval_shape(jax.vmap(make_member(experiment, tied=True).start), seeds, settings)[0]
    state = unflatten(like, members.states)
    params, opt_state = embedding.untie(state.params, state.opt_state)
    return members._replace(states=flatten(state._replace(params=params, opt_state=opt_state)))


class Piece(NamedTuple):
    """Records of some members: arrays (records, members, ...); and where the members stand after the last of them."""

    first_record: int
    records: Records
    members: Members


def merge(*parts: Members | None) -> Members:
    """All members of the parts, in the order of their numbers; of one that several have, the last."""
    joined = jax.tree.map(lambda *arrays: np.concatenate(arrays), *[part for part in parts if part is not None])
    _, last = np.unique(joined.numbers[::-1], return_index=True)
    return jax.tree.map(lambda x: x[len(joined.numbers) - 1 - last], joined)


@dataclasses.dataclass
class _Block:
    """Members that are trained together, on the device `device`; what pads them up repeats the last."""

    numbers: np.ndarray  # without padding
    step: int  # updates made when all calls that were asked for are done
    streams: np.ndarray
    settings: Setting
    states: train.State
    device: jax.Device
    latest: Future | None = None


def run(
    program: Program,
    workers: Sequence[jax.Device],
    experiment: Experiment,
    numbers: Sequence[int] | None = None,
    members: Members | None = None,
    *,
    until: int | None = None,
    chunk_seconds: float = 1.0,
) -> Iterator[Piece]:
    """Train members of an arm up to a step, and hand out their records as they come, block after block.

    Every worker has work while the caller has a piece in hand. Members stand at different steps meanwhile, by up to a
    chunk or, if there are more blocks than workers, more.

    Args:
      workers: see `assign_workers`.
      numbers: those of the experiment's members, or a share of them.
      members: where the run goes on; what is not among them starts at step 0.
      until: the step; by default the experiment's last.
      chunk_seconds: how long a piece should take; its number of records follows from the speed seen.
    """
    every, until = experiment.record_every, until or experiment.steps
    numbers = experiment.members if numbers is None else numbers
    settings = stack_settings(experiment)
    pad = lambda x: np.concatenate([x, np.repeat(x[-1:], program.block - len(x), axis=0)])
    on_host = partial(jax.tree.map, np.array)  # copies: the device's own are given away to the next call
    devices = itertools.cycle(workers)
    todo: deque[_Block] = deque()

    def piece(block: _Block, first_record: int, step: int, states: train.State, records: Records) -> Piece:
        take = lambda x: x[: len(block.numbers)]
        states = flatten(jax.tree.map(take, states))
        steps = np.full(len(block.numbers), step, np.int64)
        records = {name: value[:, : len(block.numbers)] for name, value in records.items()}
        return Piece(first_record, records, Members(block.numbers, steps, take(block.streams), states))

    def settings_of(numbers: np.ndarray) -> Setting:
        return jax.tree.map(lambda x: x[pad(numbers // SEEDS)], settings)

    if members is not None:
        wanted = np.isin(members.numbers, numbers)
        for step in np.unique(members.steps[wanted & (members.steps < until)]):
            for indices in _blocks(np.flatnonzero(wanted & (members.steps == step)), program.block):
                own, device = jax.tree.map(lambda x, i=indices: x[i], members), next(devices)
                states = jax.tree.map(pad, unflatten(program.states, own.states))
                placed = jax.device_put((settings_of(own.numbers), states), device)
                todo.append(_Block(own.numbers, int(step), pad(own.streams), *placed, device))
    known = set() if members is None else set(members.numbers.tolist())
    fresh = np.array([number for number in numbers if number not in known], np.int64)
    for own in _blocks(fresh, program.block):
        states, streams, records = program.start((pad(own) % SEEDS).astype(np.uint32), settings_of(own))
        device = next(devices)
        block = _Block(own, 0, np.array(streams), *jax.device_put((settings_of(own), states), device), device)
        yield piece(block, 0, 0, on_host(states), {name: value[None] for name, value in on_host(records).items()})
        todo.append(block)

    def advance(block: _Block, previous: Future | None, step: int, count: int) -> tuple[Piece, float]:
        if previous:
            wait([previous])
        began = time.monotonic()
        block.states, records = program.advance[block.device](
            block.states, block.streams, block.settings, *map(np.int32, (step, count, experiment.steps))
        )
        records = {name: np.asarray(value)[:count] for name, value in records.items()}
        seconds = time.monotonic() - began
        return piece(block, step // every + 1, step + count * every, on_host(block.states), records), seconds / count

    seconds_per_record, under_way = chunk_seconds, deque()  # one record first, to see the speed
    with ThreadPoolExecutor(len(workers)) as pool:
        while todo or under_way:
            while todo and len(under_way) <= len(workers):
                block = todo.popleft()
                count = min(max(1, int(chunk_seconds / seconds_per_record)), CHUNK, (until - block.step) // every)
                block.latest = pool.submit(advance, block, block.latest, block.step, count)
                under_way.append(block.latest)
                block.step += count * every
                if block.step < until:
                    todo.append(block)
            done, seconds_per_record = under_way.popleft().result()
            yield done


def _blocks(values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (values[i : i + size] for i in range(0, len(values), size))


def flatten(states: train.State) -> dict[str, np.ndarray]:
    """The leaves by their paths."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(states)}


def unflatten(like: train.State, leaves: dict[str, np.ndarray]) -> train.State:
    """The state whose leaves have these paths.

    Raises:
      UserError: if they are not the leaves of `like`.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(like)
    expected = {jax.tree_util.keystr(path): (leaf.shape[1:], leaf.dtype) for path, leaf in paths}
    if expected != {name: (leaf.shape[1:], leaf.dtype) for name, leaf in leaves.items()}:
        raise UserError("the checkpoint holds a model of other parts or sizes than this version builds; --overwrite the run")
    return tree.unflatten([leaves[name] for name in expected])


def seconds_per_record(program: Program, workers: Sequence[jax.Device], experiment: Experiment, records: int = 2) -> float:
    """How long all blocks take from one record to the next, by measurement on a block per worker."""
    seeds = tuple(range(program.block * len(workers)))
    steps = (1 + records) * experiment.record_every
    trial = dataclasses.replace(experiment, seeds=seeds, steps=steps, arms=("untied",), sweep=())  # others may end later
    for piece in run(program, workers, trial):
        if piece.first_record <= 1:
            began = time.monotonic()
    rounds = -(-len(experiment.members) // len(seeds))
    return rounds * (time.monotonic() - began) / records


def device_bytes(program: Program, workers: Sequence[jax.Device], experiment: Experiment) -> int:
    """Memory that the states of all members and the work on a block per worker take, over all devices."""
    blocks = -(-len(experiment.members) // program.block)
    sizes = [program.advance[device].memory_analysis() for device in workers]
    work = sum(size.output_size_in_bytes + size.temp_size_in_bytes for size in sizes)
    return work + blocks * sizes[0].argument_size_in_bytes
