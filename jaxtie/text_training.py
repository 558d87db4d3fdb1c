"""Language models of text, trained into a run folder: one member after the other, each on every device.

A step is one compiled program for each length of rows. A thread makes the rows ahead; the host looks at nothing until a
record is due. What is summed up since the last record is carried along, and swaps and masks are drawn from (seed, step): so
a run stops at any step, goes on from there, and ends with the numbers of one that was never stopped.

Of several devices each has a share of a batch's rows and all of the parameters: XLA partitions the one program, so the loss
is the mean over the whole batch, exactly, and masks do not depend on the number of devices. Several processes are more such
devices: every one of them makes the same steps and holds all there is to know; the first writes.

Shapes: B rows, L tokens a row, K words, V vocabulary.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxtie import optim, sweep, train, train_text
from jaxtie.checkpoint import Checkpoints, exchange
from jaxtie.config import SEEDS, TextExperiment, UserError
from jaxtie.data import exor, masking
from jaxtie.data.batches import Batch, CausalBatches, MaskedBatches, Rows
from jaxtie.data.text import Text, frequent_words
from jaxtie.models import embedding
from jaxtie.models.text import TextModel, causal_model, masked_model
from jaxtie.processes import Processes
from jaxtie.progress import Progress, add_times
from jaxtie.results import NEIGHBOURS, TEXT_VARIABLES, RunFolder, labels_of
from jaxtie.sweep import Members, Records

AHEAD = 4  # batches that are made before they are wanted
COMPILER = {"gpu": {"xla_gpu_deterministic_ops": True}}  # else rows of a gradient are added in any order


class Material(NamedTuple):
    """A corpus as an experiment sees it.

    Attributes:
      text: the corpus.
      vocabulary: its tokens, then a duplicate of each of the frequent words, marked by a star; V.
      words_K, duplicates_K: ids of the frequent words and of their duplicates, if there are any.
      first, second: ids of the pairs that are looked at, (kinds, K).
    """

    text: Text
    vocabulary: tuple[str, ...]
    words_K: np.ndarray
    duplicates_K: np.ndarray
    first: np.ndarray
    second: np.ndarray


def load(experiment: TextExperiment, text: Text) -> Material:
    """The corpus, prepared, as the experiment sees it.

    Raises:
      UserError: where the text is too short for one batch or has too few words.
    """
    words_K, words = frequent_words(text, experiment.words)
    duplicates_K = len(text.vocabulary) + np.arange(len(words_K) if experiment.duplicates else 0, dtype=np.int32)
    random = train_text.random_pairs(experiment.data_seed, words_K, experiment.words)
    pairs = {"duplicate": (words_K, duplicates_K), "random": random}
    first, second = (np.stack([pairs[kind][i] for kind in experiment.kinds]) for i in (0, 1))
    stars = tuple(f"{word}*" for word in words) if experiment.duplicates else ()
    material = Material(text, text.vocabulary + stars, words_K, duplicates_K, first, second)
    training_batches(experiment, material, experiment.seeds[0])  # they raise
    validation_batches(experiment, material)
    return material


def _batches(experiment: TextExperiment, material: Material, rows: Rows, seed: int | None, **options):
    special = material.text.special
    if experiment.task == "causal":
        return CausalBatches(rows, special, experiment.batch, experiment.length, seed, **options)
    return MaskedBatches(rows, special, experiment.batch, experiment.length, seed, experiment.buckets, **options)


def training_batches(experiment: TextExperiment, material: Material, seed: int) -> MaskedBatches | CausalBatches:
    """A seed's own order of the rows."""
    return _batches(experiment, material, material.text.train, experiment.data_seed * SEEDS + seed)


def validation_batches(experiment: TextExperiment, material: Material) -> list[Batch]:
    """Of all rows, or a choice of them, the same for all seeds and arms."""
    batches = _batches(experiment, material, material.text.valid, None, keep_last=True)
    if batches.count > experiment.eval_batches:
        batches = _batches(experiment, material, material.text.valid, experiment.data_seed)
    return [batches[k] for k in range(min(batches.count, experiment.eval_batches))]


def build_model(experiment: TextExperiment, material: Material, platform: str, *, tied: bool) -> TextModel:
    """The model of an experiment; on accelerators products of matrices have bfloat16 operands."""
    sizes = {name: getattr(experiment.model, name) for name in ("layers", "heads", "feedforward")}
    dtype = None if platform == "cpu" else jnp.bfloat16
    vocabulary, width, padding = len(material.vocabulary), experiment.model.width, material.text.special.pad
    if experiment.task == "causal":
        ends = embedding.Embedding(vocabulary, width, tied, experiment.deviation, matmul_dtype=dtype, padding=padding)
        return causal_model(ends, **sizes, dtype=dtype)
    options = {"tied": tied, "width": width, "deviation": experiment.deviation, "padding": padding, "dtype": dtype}
    return masked_model(vocabulary, **sizes, **options)


def make_ask(experiment: TextExperiment, material: Material) -> train_text.Ask:
    """What the model is asked of a batch: words swapped for their duplicates, then masks or next tokens."""
    special = material.text.special

    def ask(key, tokens_BxL):
        swap_key, mask_key = jax.random.split(key)
        if experiment.duplicates:
            tokens_BxL = masking.swap(swap_key, tokens_BxL, material.words_K, material.duplicates_K)
        if experiment.task == "causal":
            return masking.next_tokens(tokens_BxL, padding=special.pad)
        return masking.mask(
            mask_key, tokens_BxL, mask=special.mask, never=(special.pad, special.cls, special.sep),
            base_vocabulary=len(material.text.vocabulary), room=masking.capacity(tokens_BxL.size),
        )  # fmt: skip

    return ask


class Totals(NamedTuple):
    """Sums over the batches since the last record: of losses, nats, and right answers over all positions asked."""

    loss: jax.Array
    right: jax.Array
    asked: jax.Array
    dropped: jax.Array


class Carry(NamedTuple):
    """All that a step takes from the one before."""

    state: train.State
    totals: Totals


def _no_totals() -> Totals:
    return Totals(*(np.zeros((), dtype) for dtype in (np.float32, np.float32, np.float32, np.int32)))


class Program(NamedTuple):
    """The compiled training of a tied or an untied member. A stream is the data of a key; a number tells the batch."""

    start: Callable  # seed -> Carry
    step: dict[int, Any]  # length of rows -> (Carry, donated; tokens; stream; number) -> Carry
    evaluate: dict[int, Any]  # length of rows -> (parameters, tokens, stream, number) -> Metrics
    look: Callable  # parameters -> distances of the pairs and nearest neighbours, in both tables
    shapes: Carry
    rows: NamedSharding  # of tokens
    whole: NamedSharding  # of all else


def _start(experiment: TextExperiment, model: TextModel, seed: jax.typing.ArrayLike) -> Carry:
    """A fresh member. Tied and untied ones of a seed share the initial values of all they share."""
    state = train.initial_state(model, _adamw(experiment), jax.random.key(seed), min(experiment.length, 16))
    return Carry(state, jax.tree.map(jnp.asarray, _no_totals()))


def _adamw(experiment: TextExperiment) -> optax.GradientTransformation:
    optimiser = experiment.optimiser
    schedule = optim.periodic_cosine(optimiser.learning_rate, optimiser.eta_min, optimiser.half_period)
    settings = {name: getattr(optimiser, name) for name in ("weight_decay", "b1", "b2", "eps")}
    return optim.adamw(schedule, **settings)


def carry_shapes(experiment: TextExperiment, material: Material, *, tied: bool) -> Carry:
    """Shapes and dtypes of a member."""
    model = build_model(experiment, material, "cpu", tied=tied)
    return jax.eval_shape(partial(_start, experiment, model), np.uint32(0))


def make_mesh(batch: int, devices: Sequence[jax.Device]) -> Mesh:
    """As many devices in a row as share a batch evenly; of several processes' devices, all.

    Raises:
      UserError: where several processes' devices do not share it evenly.
    """
    count = max(each for each in range(1, len(devices) + 1) if batch % each == 0)
    if count < len(devices) and len({device.process_index for device in devices}) > 1:
        raise UserError(f"--distributed: a batch of {batch} rows cannot be shared evenly by {len(devices)} devices")
    return jax.make_mesh((count,), ("rows",), axis_types=(AxisType.Auto,), devices=devices[:count])


def compile_program(experiment: TextExperiment, material: Material, mesh: Mesh, *, tied: bool) -> Program:
    """Compile all that training needs, every length of rows."""
    platform = mesh.devices.flat[0].platform
    rows, whole = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
    model, ask = build_model(experiment, material, platform, tied=tied), make_ask(experiment, material)
    one_step = train_text.make_step(model, _adamw(experiment), ask)
    evaluation = train_text.make_evaluation(model, ask)

    def key_of(stream, number):
        return jax.random.fold_in(jax.random.wrap_key_data(stream, impl=exor.KEY_IMPLEMENTATION), number)

    def step(carry, tokens_BxL, stream, number):
        state, found = one_step(carry.state, tokens_BxL, key_of(stream, number))
        new = Totals(found.loss * found.asked, found.accuracy * found.asked, found.asked, found.dropped)
        return Carry(state, jax.tree.map(jnp.add, carry.totals, new))

    def evaluate(params, tokens_BxL, stream, number):
        return evaluation(params, tokens_BxL, key_of(stream, number))

    def look(params):
        found = {}
        for name, table_VxD in zip(("input", "output"), train.tables(params["embedding"]), strict=True):
            distances = train_text.pair_distances(table_VxD, material.first.ravel(), material.second.ravel())
            found[f"{name}_distance"] = distances.reshape(material.first.shape)
            nearest = partial(train_text.nearest, table_VxD, count=NEIGHBOURS, besides=material.text.special)
            found[f"{name}_neighbour"] = jax.lax.map(nearest, material.words_K[labels_of(experiment)["probe"]])
        return found

    shapes = carry_shapes(experiment, material, tied=tied)
    scalar, stream = jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((2,), np.uint32)
    tokens = {length: jax.ShapeDtypeStruct((experiment.batch, length), np.int32) for length in lengths(experiment, material)}
    shard = {"in_shardings": (whole, rows, whole, whole), "out_shardings": whole}
    start = jax.jit(partial(_start, experiment, model), out_shardings=whole)
    jobs = {("start", 0): start.lower(jax.ShapeDtypeStruct((), np.uint32))}
    jobs["look", 0] = jax.jit(look, in_shardings=whole, out_shardings=whole).lower(shapes.state.params)
    for length, shape in tokens.items():
        jobs["step", length] = jax.jit(step, donate_argnums=0, **shard).lower(shapes, shape, stream, scalar)
        jobs["evaluate", length] = jax.jit(evaluate, **shard).lower(shapes.state.params, shape, stream, scalar)
    with ThreadPoolExecutor() as pool:  # compiling does not hold Python's lock
        compiled = {name: pool.submit(job.compile, COMPILER.get(platform)) for name, job in jobs.items()}
        compiled = {name: future.result() for name, future in compiled.items()}
    of_length = lambda what: {length: compiled[what, length] for length in tokens}
    return Program(compiled["start", 0], of_length("step"), of_length("evaluate"), compiled["look", 0], shapes, rows, whole)


def lengths(experiment: TextExperiment, material: Material) -> tuple[int, ...]:
    """Of the rows of batches."""
    if experiment.task == "causal":
        return (experiment.length + 1,)
    return training_batches(experiment, material, experiment.seeds[0]).buckets


def place(x: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """A host array that every process has, on the devices."""
    return jax.make_array_from_callback(np.shape(x), sharding, lambda index: np.asarray(x)[index])


class Moment(NamedTuple):
    """A member after a step.

    Attributes:
      step: updates made; of a member that is frozen, those that it was to make.
      tokens: real ones, padding left out, of the step's batch.
      number: of the record, if one is due.
      records: arrays (1, 1, ...), or None.
      members: where the member stands, copied to the host when called.
      evaluating: seconds since the moment before that were no training.
    """

    step: int
    tokens: int
    number: int
    records: Records | None
    members: Callable[[], Members]
    evaluating: float


def run(
    program: Program,
    experiment: TextExperiment,
    material: Material,
    validation: Sequence[Batch],
    seed: int,
    members: Members | None,
    until: int,
) -> Iterator[Moment]:
    """Train one member up to a step, from where it stands among `members`, else from the start; a moment each step.

    A member whose loss stops being finite is frozen there, and has no records behind.
    """
    stream = np.asarray(exor.stream(experiment.data_seed, np.uint32(seed)))
    batches, every = training_batches(experiment, material, seed), experiment.record_every
    on_devices = partial(jax.tree.map, lambda x: place(x, program.whole))

    def moment(step: int, tokens: int, totals: Totals | None) -> Moment:
        nonlocal carry, frozen
        records, began = None, time.monotonic()
        if totals is not None:
            records = {"loss": totals.loss / totals.asked, "accuracy": totals.right / totals.asked}
            if step % experiment.eval_every == 0 or step == experiment.steps:
                records |= evaluate(program, experiment, carry.state.params, validation)
            else:
                records |= not_evaluated(experiment)
            if not np.isfinite([records["loss"], records["valid_loss"]]).all():  # the latter sees the last update too
                frozen = True
                carry = carry._replace(state=carry.state._replace(diverged_at=on_devices(np.int32(step))))
            records["diverged_at"] = carry.state.diverged_at
            records = {name: np.asarray(value)[None, None] for name, value in records.items()}
        own, stands_at = carry, until if frozen else step

        def members() -> Members:
            states = {name: np.array(leaf)[None] for name, leaf in sweep.flatten(own).items()}
            return Members(np.array([seed]), np.array([stands_at]), stream[None], states)

        return Moment(stands_at, tokens, step // every, records, members, time.monotonic() - began)

    known = np.flatnonzero(members.numbers == seed) if members else ()
    if len(known):
        own = jax.tree.map(lambda x: x[known], members)
        step, carry = int(own.steps[0]), on_devices(load_carry(program.shapes, own))
        frozen = int(carry.state.diverged_at) >= 0
    else:
        step, carry, frozen = 0, program.start(np.uint32(seed)), False
        tokens = place(batches[0].tokens_BxL, program.rows)
        found = jax.device_get(program.evaluate[tokens.shape[1]](carry.state.params, tokens, stream, np.int32(0)))
        yield moment(0, 0, Totals(found.loss * found.asked, found.accuracy * found.asked, found.asked, found.dropped))
    if frozen:
        yield moment(step, 0, None)
        return
    for tokens, real in _ahead(batches, range(step, until), program.rows):
        carry, totals = program.step[tokens.shape[1]](carry, tokens, stream, np.int32(step)), None
        step += 1
        if step % every == 0:
            totals = jax.device_get(carry.totals)
            carry = carry._replace(totals=on_devices(_no_totals()))
        yield moment(step, real, totals)
        if frozen:
            return


def _ahead(batches: MaskedBatches | CausalBatches, steps: range, sharding: NamedSharding) -> Iterator[tuple[jax.Array, int]]:
    """Batches of steps on the devices, and their real tokens; a thread makes some before they are wanted."""

    def make(step: int) -> tuple[jax.Array, int]:
        batch = batches[step]
        return place(batch.tokens_BxL, sharding), int(batch.lengths_B.sum())

    with ThreadPoolExecutor(1) as pool:
        made = deque(pool.submit(make, step) for step in steps[:AHEAD])
        for step in steps:
            if step + AHEAD < steps.stop:
                made.append(pool.submit(make, step + AHEAD))
            yield made.popleft().result()


def not_evaluated(experiment: TextExperiment) -> Records:
    """What a record has in the place of an evaluation that is not due."""
    sizes = {name: len(labels) for name, labels in labels_of(experiment).items()}
    own = {name: dimensions[1:] for name, (dimensions, _, _) in TEXT_VARIABLES.items() if dimensions[0] == "eval_step"}
    return {name: np.zeros([sizes[each] for each in dimensions], np.float32) for name, dimensions in own.items()}


def evaluate(program: Program, experiment: TextExperiment, params: dict, validation: Sequence[Batch]) -> Records:
    """What is measured now and then, of one member; NaN where it is not finite."""
    key = jax.random.key(experiment.data_seed, impl=exor.KEY_IMPLEMENTATION)
    for _ in range(2):  # a seed and a step that training does not have
        key = jax.random.fold_in(key, np.uint32(SEEDS - 1))
    stream, found = np.asarray(jax.random.key_data(key)), []
    for number, batch in enumerate(validation):
        tokens = place(batch.tokens_BxL, program.rows)
        found.append(program.evaluate[tokens.shape[1]](params, tokens, stream, np.int32(number)))
    whole = train_text.summarise(jax.device_get(found))
    measured = {"valid_loss": whole.loss, "valid_accuracy": whole.accuracy, "perplexity": whole.perplexity}
    measured |= jax.device_get(program.look(params))
    return {name: np.where(np.isfinite(value), value, np.nan).astype(np.float32) for name, value in measured.items()}


def _stacked(shapes: Carry) -> Carry:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), shapes)


def load_carry(shapes: Carry, member: Members) -> Carry:
    """Where one member stands; UserError where that is of another model."""
    return jax.tree.map(lambda x: x[0], sweep.unflatten(_stacked(shapes), member.states))


def untie(shapes: Carry, members: Members) -> Members:
    """Tied members, untied where they stand: parameters and moments are copied, nothing else changes."""
    carry = sweep.unflatten(_stacked(shapes), members.states)
    params, opt_state = embedding.untie(carry.state.params, carry.state.opt_state)
    carry = carry._replace(state=carry.state._replace(params=params, opt_state=opt_state))
    return members._replace(states=sweep.flatten(carry))


def train_into(
    folder: RunFolder,
    experiment: TextExperiment,
    material: Material,
    config: dict,
    checkpoints: Checkpoints,
    processes: Processes,
    stopped: list,
    *,
    checkpoint_every: float,
    quiet: bool,
    report: Callable[[str], None],
) -> bool:
    """Train every member of every arm, from the last checkpoint on; returns whether it came to the end.

    `config` is brought up to date; `stopped` is looked at after each step, by several processes after each record.
    """
    mesh = make_mesh(experiment.batch, jax.devices())
    validation = validation_batches(experiment, material)
    standing = exchange(processes, checkpoints.load(report) if processes.leads else {})
    programs, saved, over = {}, time.monotonic(), False
    reached = lambda arm: sweep.steps_reached(standing, arm, experiment.steps)
    if processes.leads:
        folder.start_records({arm: reached(arm) for arm in experiment.arms}, experiment.record_every)
    for phase in [phase for arm in experiment.arms for phase in sweep.phases(arm, experiment.steps)]:
        steps = reached(phase.arm)
        todo = [seed for seed in experiment.seeds if steps.get(seed, -1) < phase.until]
        if not todo or over:
            continue
        if phase.follows in standing:
            untied = untie(carry_shapes(experiment, material, tied=True), standing.pop(phase.follows))
            standing[phase.name] = sweep.merge(standing.get(phase.name), untied)
        before, began = sum(steps.values()), time.monotonic()
        with Progress(phase.arm, experiment.steps, len(experiment.seeds), quiet=quiet or not processes.leads) as progress:
            if phase.tied not in programs:
                progress.say("compiling")
                programs[phase.tied] = compile_program(experiment, material, mesh, tied=phase.tied)
            compiled, done, tokens, evaluating, loss = time.monotonic(), before, 0, 0.0, np.nan
            for seed in todo:
                for now in run(
                    programs[phase.tied], experiment, material, validation, seed, standing.get(phase.name), phase.until
                ):
                    done += bool(now.tokens)
                    tokens, evaluating = tokens + now.tokens, evaluating + now.evaluating
                    if now.records:
                        loss = float(now.records["loss"].item())
                        if processes.leads:
                            folder.append(phase.arm, now.number, np.array([seed]), now.records)
                    progress.update(done, loss, tokens)
                    over = (processes.count == 1 or bool(now.records)) and processes.agree(stopped)
                    if over:
                        break
                    if processes.leads and time.monotonic() - saved > checkpoint_every:
                        here = sweep.merge(standing.get(phase.name), now.members())
                        checkpoints.save(standing | {phase.name: here}, config)
                        saved = time.monotonic()
                standing[phase.name] = sweep.merge(standing.get(phase.name), now.members())
                if over:
                    break
        times = config["arms"].setdefault(phase.arm, {})
        parameters = embedding.count_parameters(programs[phase.tied].shapes.state.params)
        add_times(times, len(experiment.seeds), began, compiled, done - before, tokens, evaluating)
        times["parameters"] = parameters
    if processes.leads:
        checkpoints.save(standing, config)
    return not over


def constants(experiment: TextExperiment, material: Material) -> dict[str, Any]:
    """What no member owns, variables for `RunFolder.assemble`: words, the vocabulary, the schedule."""
    import xarray as xr

    optimiser, vocabulary = experiment.optimiser, np.array(material.vocabulary)
    schedule = optim.periodic_cosine(optimiser.learning_rate, optimiser.eta_min, optimiser.half_period)
    rates = np.asarray(schedule(np.array(experiment.record_steps)))
    words = {"first_word": material.first, "second_word": material.second}
    probes = material.words_K[labels_of(experiment)["probe"]]
    return {name: xr.DataArray(vocabulary[ids].astype(object), dims=("kind", "pair")) for name, ids in words.items()} | {
        "probe_word": xr.DataArray(vocabulary[probes].astype(object), dims="probe"),
        "token": xr.DataArray(vocabulary.astype(object), dims="token_number"),
        "scheduled_learning_rate": xr.DataArray(
            np.broadcast_to(rates, (len(experiment.arms), len(rates))), dims=("arm", "step")
        ),
    }


def attributes(experiment: TextExperiment, material: Material) -> dict[str, str | int]:
    """Of the results: what the text was, and how many parameters a model has."""
    count = lambda tied: embedding.count_parameters(carry_shapes(experiment, material, tied=tied).state.params)
    return {
        "task": experiment.task,
        "text": str(material.text.report),
        "text_key": material.text.key,
        "model": repr(experiment.model),
        "parameters_tied": count(True),
        "parameters_untied": count(False),
    }


class Plan(NamedTuple):
    """What a run would take, by measurement: seconds, bytes on a device, real tokens per second, devices."""

    seconds: float
    bytes: int
    tokens_per_second: float
    devices: int


def plan(experiment: TextExperiment, material: Material, steps: int = 20) -> Plan:
    """Compile, train some steps of an untied member, evaluate once."""
    mesh, began = make_mesh(experiment.batch, jax.local_devices()), time.monotonic()
    program = compile_program(experiment, material, mesh, tied=False)
    compiling = time.monotonic() - began
    validation = validation_batches(experiment, material)
    moments = run(program, experiment, material, validation, experiment.seeds[0], None, min(steps, experiment.steps))
    evaluating = next(moments).evaluating
    began, rest = time.monotonic(), list(moments)
    jax.block_until_ready(rest[-1].members())
    training = time.monotonic() - began - sum(each.evaluating for each in rest)
    of_step = training / len(rest)
    of_member = of_step * experiment.steps + evaluating * len(experiment.eval_steps)
    seconds = len({arm == "tied" for arm in experiment.arms}) * compiling
    seconds += len(experiment.arms) * len(experiment.seeds) * of_member
    sizes = [each.memory_analysis() for each in program.step.values()]
    work = max(size.temp_size_in_bytes + size.argument_size_in_bytes for size in sizes)
    return Plan(seconds, work, sum(each.tokens for each in rest) / training, mesh.size)
