"""Train members of a task whose rows the host makes: one member per program, on all devices.

A thread prepares the rows; the host reads nothing back until a record is due. The state includes
sums since the last record, and random draws are a function of (seed, step), so a resumed run ends
with the bits of an uninterrupted one. All processes make every step together. On one CPU several
small models train at the same time.

Several devices share a batch's rows, and each has all parameters: XLA partitions the program, so
the loss is the mean over the whole batch for any number of devices.

Shapes: B rows, L tokens a row.
"""

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxtie.config import TaskConfig, UserError, Variant, check
from jaxtie.training import devices as machine
from jaxtie.training.distributed import Processes
from jaxtie.training.member import make_member, means, unmeasured_roles, untie_state, weighted
from jaxtie.training.task import (
    Chunk,
    Control,
    HostRows,
    Members,
    Metrics,
    Params,
    Phase,
    Recorded,
    State,
    Task,
    evaluation_stream,
    flatten,
    side_by_side,
    unflatten,
    untie_members,
)
from jaxtie.tying import tie

# Members train at the same time if their parameters and moments have at most this many bytes.
SIDE_BY_SIDE = 2**25
AHEAD = 4  # batches that are made before they are needed
TRIAL_STEPS = 20  # steps trained to estimate the time


class Carry(NamedTuple):
    """The state of a member, and sums since its last record."""

    state: State
    totals: Metrics


class RowProgram(NamedTuple):
    """The compiled training of one member of a variant.

    Attributes:
      start: seed -> Carry.
      step: row length -> (Carry, donated; tokens; stream; step) -> Carry.
      validate: row length -> (params, tokens, stream, number of the batch) -> metrics.
      evaluate: params -> metrics of an evaluation.
      shapes: of the carry.
      mesh: the devices.
      evaluated: zeros in place of an evaluation that is not due.
      no_roles: NaN in place of gradients by role, if the task records them.
    """

    start: Callable
    step: dict[int, Any]
    validate: dict[int, Any]
    evaluate: Callable
    shapes: Carry
    mesh: Mesh
    evaluated: Recorded
    no_roles: Recorded

    def place(self, x: np.ndarray, *axes: str) -> jax.Array:
        """Put a host array that every process has on the devices, cut along `axes`."""
        sharding = NamedSharding(self.mesh, PartitionSpec(*axes))
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def make_mesh(batch: int, devices: Sequence[jax.Device]) -> Mesh:
    """Return a mesh of as many devices as divide the batch; of several processes, all.

    Raises:
      UserError: if the devices of several processes do not divide it.
    """
    count = max(each for each in range(1, len(devices) + 1) if batch % each == 0)
    if count < len(devices) and len({device.process_index for device in devices}) > 1:
        raise UserError(
            f"--distributed: a batch of {batch} rows cannot be shared evenly by {len(devices)}"
            " devices"
        )
    return jax.make_mesh((count,), ("rows",), axis_types=(AxisType.Auto,), devices=devices[:count])


def carry_shapes(config: TaskConfig, variant: Variant, platform: str = "cpu") -> Carry:
    """Return shapes and dtypes of a member."""
    return jax.eval_shape(_make_start(config.build(variant, platform)), np.uint32(0))


def load_carry(shapes: Carry, member: Members) -> Carry:
    """Return the carry of one member on the host; UserError where it is of another model."""
    return jax.tree.map(lambda x: x[0], unflatten(shapes, member.states))


def _row_shape(rows: HostRows, length: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows.size, length), np.int32)


def _make_start(task: Task) -> Callable:
    assert task.rows is not None
    member, tokens = make_member(task), _row_shape(task.rows, task.rows.lengths[0])
    stream, step = jax.ShapeDtypeStruct((2,), np.uint32), jax.ShapeDtypeStruct((), np.int32)

    def start(seed):
        state = member.init(seed, {})
        _, terms = jax.eval_shape(member.step, state, {}, stream, step, tokens)
        return Carry(state, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), terms))

    return start


@functools.lru_cache(8)
def compile_rows(
    config: TaskConfig, rows_key: Hashable, variant: Variant, mesh: Mesh
) -> RowProgram:
    """Compile the training of a variant for every row length.

    Programs are cached, by configurations that are reduced to `TaskConfig.program_key`; they also
    depend on the rows, see `HostRows`.
    """
    return _compile(config.build(variant, mesh.devices.flat[0].platform), mesh)


def _compile(task: Task, mesh: Mesh) -> RowProgram:
    assert task.rows is not None
    platform = mesh.devices.flat[0].platform
    options: dict[str, Any] = dict(machine.REPEATABLE.get(platform, {}))
    member, start = make_member(task), _make_start(task)

    def step(carry, tokens_BxL, stream, number):
        state, terms = member.step(carry.state, {}, stream, number, tokens_BxL)
        return Carry(state, jax.tree.map(jnp.add, carry.totals, terms))

    def validate(params, tokens_BxL, stream, number):
        return task.loss(params, task.batch(stream, {}, number, tokens_BxL))[1]

    def evaluate(params):
        return task.evaluate(params, {})

    shapes = jax.eval_shape(start, np.uint32(0))
    params = shapes.state.params
    scalar, stream = jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((2,), np.uint32)
    tokens = {length: _row_shape(task.rows, length) for length in task.rows.lengths}
    replicated = NamedSharding(mesh, PartitionSpec())

    def shared(function: Callable, **more: Any) -> Any:
        """Compile a function of rows that the devices share."""
        shardings = replicated, NamedSharding(mesh, PartitionSpec("rows")), replicated, replicated
        return jax.jit(function, in_shardings=shardings, out_shardings=replicated, **more)

    seed = jax.ShapeDtypeStruct((), np.uint32)
    lowered: dict[str, Any] = {"step": {}, "validate": {}}
    lowered["start"] = jax.jit(start, out_shardings=replicated).lower(seed)
    of_params = jax.jit(evaluate, in_shardings=replicated, out_shardings=replicated)
    lowered["evaluate"] = of_params.lower(params)
    for length, shape in tokens.items():
        of_step = shared(step, donate_argnums=0)
        lowered["step"][length] = of_step.lower(shapes, shape, stream, scalar)
        lowered["validate"][length] = shared(validate).lower(params, shape, stream, scalar)
    with ThreadPoolExecutor() as pool:  # compiling does not hold Python's lock
        compiling = jax.tree.map(lambda each: pool.submit(each.compile, options), lowered)
        compiled = jax.tree.map(Future.result, compiling)
    metrics = jax.eval_shape(validate, params, next(iter(tokens.values())), stream, scalar)
    ones = jax.tree.map(lambda x: np.ones(x.shape), metrics)
    evaluated = _mean_metrics(task, [ones, ones]) | jax.eval_shape(evaluate, params)
    return RowProgram(
        **compiled,
        shapes=shapes,
        mesh=mesh,
        evaluated={name: np.zeros(np.shape(x), np.float32) for name, x in evaluated.items()},
        no_roles=jax.device_get(unmeasured_roles(task)),
    )


def make_ahead(batches: Any, steps: range, program: RowProgram) -> Iterator[tuple[jax.Array, int]]:
    """Yield the tokens of each step, on the devices, and the number of real ones.

    A thread makes some batches before they are needed.
    """

    def make(step: int) -> tuple[jax.Array, int]:
        batch = batches[step]
        return program.place(batch.tokens_BxL, "rows"), int(batch.lengths_B.sum())

    left = iter(steps)
    with ThreadPoolExecutor(1) as pool:
        made = deque(pool.submit(make, step) for step in itertools.islice(left, AHEAD))
        while made:
            made.extend(pool.submit(make, step) for step in itertools.islice(left, 1))
            yield made.popleft().result()


class MemberRun:
    """Train one member up to a step.

    Attributes:
      step: updates made.
      frozen: whether it has diverged; then it has no further records.
      is_over: whether it was stopped.
      carry: on the devices.
    """

    def __init__(
        self, engine: "RowEngine", program: RowProgram, seed: int, known: Members | None, until: int
    ):
        self.engine, self.program, self.seed, self.until = engine, program, seed, until
        self.stream = np.asarray(engine.task.stream(np.uint32(seed)))
        self.is_over = self.frozen = False
        places = np.flatnonzero(known.numbers == seed) if known else ()
        self.is_new = not len(places)
        if self.is_new:
            self.step, self.carry = 0, program.start(np.uint32(seed))
        else:
            own = jax.tree.map(lambda x: x[places], known)
            self.step = int(own.steps[0])
            self.carry = self._on_devices(load_carry(program.shapes, own))
            self.frozen = int(self.carry.state.diverged_at) >= 0

    def chunks(self, control: Control) -> Iterator[Chunk]:
        """Yield a chunk each call, until the last one or a signal."""
        program, every = self.program, self.engine.config.record_every
        batches = self.engine.rows.training(self.seed)
        if self.is_new:
            tokens = program.place(batches[0].tokens_BxL, "rows")
            validate = program.validate[tokens.shape[1]]
            found = validate(self.carry.state.params, tokens, self.stream, np.int32(0))
            first = means(weighted(jax.device_get(found)), 1) | program.no_roles
            yield self._chunk(0, 0, first, control)
        elif self.frozen:
            yield self._chunk(0, 0, None, control)
        if self.frozen or self.is_over:
            return
        for tokens, real in make_ahead(batches, range(self.step, self.until), program):
            step = program.step[tokens.shape[1]]
            self.carry = step(self.carry, tokens, self.stream, np.int32(self.step))
            record: dict[str, Any] | None = None
            self.step += 1
            if self.step % every == 0:
                totals = jax.device_get(self.carry.totals)
                record = program.no_roles | means(totals, every)
                zero = jax.tree.map(np.zeros_like, totals)
                self.carry = self.carry._replace(totals=self._on_devices(zero))
            yield self._chunk(1, real, record, control)
            if self.frozen or self.is_over:
                return

    def _chunk(
        self, updates: int, tokens: int, record: dict[str, Any] | None, control: Control
    ) -> Chunk:
        began = time.monotonic()
        records = None if record is None else self._evaluated(record)
        processes = self.engine.processes
        # Several processes agree only at records, since it takes a message to each.
        self.is_over = (processes.count == 1 or records is not None) and processes.agree(
            control.stopped
        )
        ends = self.is_over or self.frozen or self.step == self.until
        step = self.until if self.frozen else self.step
        members = None
        if ends or control.wanted():
            states = {name: np.array(leaf)[None] for name, leaf in flatten(self.carry).items()}
            members = Members(np.array([self.seed]), np.array([step]), self.stream[None], states)
        evaluating = time.monotonic() - began
        number = self.step // self.engine.config.record_every
        return Chunk(np.array([self.seed]), number, records, members, updates, tokens, evaluating)

    def _evaluated(self, record: dict[str, Any]) -> Recorded:
        """Add an evaluation if it is due; freeze the member if a loss is not finite."""
        config, engine = self.engine.config, self.engine
        due = self.step % config.eval_every == 0 or self.step == config.steps
        params, evaluated = self.carry.state.params, self.program.evaluated
        record = record | (engine.evaluate(self.program, params) if due else evaluated)
        # the validation loss sees the last update too
        if not np.isfinite([record["loss"], record.get("valid_loss", 0.0)]).all():
            self.frozen = True
            state = self.carry.state._replace(diverged_at=self._on_devices(np.int32(self.step)))
            self.carry = self.carry._replace(state=state)
        record["diverged_at"] = self.carry.state.diverged_at
        return {name: np.asarray(value)[None, None] for name, value in record.items()}

    def _on_devices(self, tree):
        return jax.tree.map(lambda x: self.program.place(np.asarray(x)), tree)


class RowEngine:
    """Engine of tasks with rows from the host."""

    best_losses: Sequence[float] = ()  # unknown

    def __init__(
        self, config: TaskConfig, processes: Processes, devices: Sequence[jax.Device] = ()
    ):
        self.config, self.processes = config, processes
        check(
            not config.traced,
            f"task {config.task!r}: has rows from the host, so its hyperparameters are constants;"
            " set traced = () in its configuration",
        )
        device = jax.local_devices()[0]
        self.task = config.build(config.arms[0].variant, device.platform)
        assert self.task.rows is not None
        self.rows: HostRows = self.task.rows
        # A single process uses its own devices.
        self.mesh = make_mesh(
            self.rows.size,
            devices or (jax.devices() if processes.count > 1 else jax.local_devices()),
        )
        count = self.mesh.size
        workers = machine.cores() if device.platform == "cpu" and count == 1 else count
        self.facts: dict[str, Any] = {
            "device": machine.describe_device(device),
            "workers": workers,
            "devices": count,
            "processes": processes.count,
        }

    def compile(self, phase: Phase) -> RowProgram:
        """Compile the program of a phase."""
        key = self.config.program_key()
        return compile_rows(key, self.rows.key, phase.variant, self.mesh)

    def parameters(self, program: RowProgram) -> int:
        """Return the number of parameters of a member."""
        return tie.count_parameters(program.shapes.state.params)

    def run(
        self,
        program: RowProgram,
        numbers: Sequence[int],
        known: Members | None,
        until: int,
        control: Control,
    ) -> Iterator[Chunk]:
        """Train members up to a step, from their known state or from the start."""

        def chunks(seed: int) -> Generator[Chunk, None, bool]:
            member = MemberRun(self, program, seed, known, until)
            with self.processes.watched():
                yield from member.chunks(control)
            return member.is_over

        if (count := min(self.at_a_time(program), len(numbers))) > 1:
            for chunk in side_by_side(map(chunks, numbers), count, control.stopped):
                # the others train at the same time
                yield chunk._replace(evaluating=chunk.evaluating / count)
            return
        for seed in numbers:
            if (yield from chunks(seed)):
                return

    def at_a_time(self, program: RowProgram) -> int:
        """Return the number of members that are trained at the same time.

        On a CPU a small model's step on one core takes less than twice as long as on two, since
        little but matrix products is shared among cores. Bits do not depend on it.
        """
        is_one_cpu = self.processes.count == 1 and self.mesh.size == 1 and self.facts["workers"] > 1
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.shapes))
        return self.facts["workers"] if is_one_cpu and size <= SIDE_BY_SIDE else 1

    def evaluate(self, program: RowProgram, params: Params) -> Recorded:
        """Return an evaluation of one member; NaN where it is not finite."""
        stream, found = evaluation_stream(self.task.data_seed), []
        for number, batch in enumerate(self.rows.validation):
            tokens = program.place(batch.tokens_BxL, "rows")
            validate = program.validate[tokens.shape[1]]
            found.append(validate(params, tokens, stream, np.int32(number)))
        measured = _mean_metrics(self.task, jax.device_get(found))
        measured |= jax.device_get(program.evaluate(params))
        return {
            name: np.where(np.isfinite(value), value, np.nan).astype(np.float32)
            for name, value in measured.items()
        }

    def untie(self, phase: Phase, members: Members) -> Members:
        """Untie members for a phase that follows a tied one."""
        after = carry_shapes(self.config, phase.variant).totals

        def untied(carry: Carry) -> Carry:
            totals = {name: value for name, value in carry.totals.items() if name in after}
            return Carry(untie_state(carry.state), totals)

        tied = carry_shapes(self.config, Variant(True, phase.arm.head))
        return untie_members(tied, members, untied)

    def trial(self, program: RowProgram) -> tuple[Iterator[Chunk], int, int]:
        """Return chunks of members of one time for some steps, their number, and device bytes."""
        together = min(self.at_a_time(program), len(self.config.seeds))
        sizes = [each.memory_analysis() for each in program.step.values()]
        needed = max(size.temp_size_in_bytes + size.argument_size_in_bytes for size in sizes)
        own, steps = self.config.seeds[:together], max(2, min(TRIAL_STEPS, self.config.steps))
        return self.run(program, own, None, steps, Control([])), together, together * needed


def _mean_metrics(task: Task, found: Sequence[Metrics]) -> dict[str, Any]:
    """Return the means over the batches; of the loss also those of either half.

    A hyperparameter can be chosen on one half and reported on the other.
    """
    halves = {"valid_loss_even": found[::2], "valid_loss_odd": found[1::2]}
    losses = {
        name: mean_over_batches(half)["loss"] if half else np.nan for name, half in halves.items()
    }
    return task.validate(mean_over_batches(found)) | losses


def mean_over_batches(found: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the mean of each metric over batches by their weights, float64."""
    whole = {name: np.array([each[name] for each in found], np.float64) for name in found[0]}
    weight = whole.pop("weight", np.ones(len(found)))
    return {
        name: np.sum(values * weight, axis=0) / np.sum(weight, axis=0)
        for name, values in whole.items()
    }
