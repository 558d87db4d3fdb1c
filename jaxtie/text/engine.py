"""Trains language models of text: member after member, each on every device; small ones side by
side on a CPU.

A thread makes the rows ahead; the host looks at nothing until a record is due. What is summed up
since the last record is carried along, and swaps and masks are drawn from (seed, step): so a run
stops at any step, goes on from there, and ends with the numbers of one that was never stopped. All
processes make every step together and hold all there is to know.

Shapes: B rows, L tokens a row.
"""

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxtie.text.analysis import text_schema
from jaxtie.text.config import TextExperiment
from jaxtie.text.corpus import FREQUENCIES, Material, training_batches, validation_batches
from jaxtie.text.data.batches import CausalBatches, MaskedBatches, RowBatch
from jaxtie.text.programs import (
    Carry,
    TextProgram,
    Totals,
    carry_shapes,
    compile_text,
    make_mesh,
    no_role_sums,
    no_totals,
)
from jaxtie.text.task import summarise
from jaxtie.training.devices import cores, describe_device
from jaxtie.training.distributed import Processes
from jaxtie.training.gradient_by_role import RoleSums
from jaxtie.training.member import evaluation_stream, stream
from jaxtie.training.side_by_side import side_by_side
from jaxtie.training.task import (
    Control,
    Estimate,
    Members,
    Phase,
    Piece,
    Records,
    flatten,
    unflatten,
)
from jaxtie.tying import tie

# bytes of a member's parameters and moments, at most, where several are trained side by side
SIDE_BY_SIDE = 2**25
AHEAD = 4  # batches that are made before they are wanted
TRIAL_STEPS = 20  # that an estimate of time takes


def place(x: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """A host array that every process has, on the devices."""
    return jax.make_array_from_callback(np.shape(x), sharding, lambda index: np.asarray(x)[index])


def make_ahead(
    batches: MaskedBatches | CausalBatches, steps: range, sharding: NamedSharding
) -> Iterator[tuple[jax.Array, int]]:
    """Batches of steps on the devices, and their real tokens; a thread makes some before they are
    wanted.
    """

    def make(step: int) -> tuple[jax.Array, int]:
        batch = batches[step]
        return place(batch.tokens_BxL, sharding), int(batch.lengths_B.sum())

    with ThreadPoolExecutor(1) as pool:
        made = deque(pool.submit(make, step) for step in steps[:AHEAD])
        for step in steps:
            if step + AHEAD < steps.stop:
                made.append(pool.submit(make, step + AHEAD))
            yield made.popleft().result()


def _stacked(shapes: Carry) -> Carry:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), shapes)


def load_carry(shapes: Carry, member: Members) -> Carry:
    """Where one member stands; UserError where that is of another model."""
    return jax.tree.map(lambda x: x[0], unflatten(_stacked(shapes), member.states))


class MemberRun:
    """One member on its way to a step.

    Attributes:
      step: updates made; of a member that is frozen, those that it was to make.
      frozen: whether its loss has stopped being finite: then it has no records any more.
      is_over: whether it was stopped.
      carry: on the devices.
    """

    def __init__(
        self,
        engine: "TextEngine",
        program: TextProgram,
        seed: int,
        standing: Members | None,
        until: int,
    ):
        self.engine, self.program, self.seed, self.until = engine, program, seed, until
        self.stream = np.asarray(stream(engine.experiment.data_seed, np.uint32(seed)))
        self.is_over = False
        known = np.flatnonzero(standing.numbers == seed) if standing else ()
        self.is_new = not len(known)
        if self.is_new:
            self.step, self.carry, self.frozen = 0, program.start(np.uint32(seed)), False
        else:
            own = jax.tree.map(lambda x: x[known], standing)
            self.step, self.carry = (
                int(own.steps[0]),
                self._on_devices(load_carry(program.shapes, own)),
            )
            self.frozen = int(self.carry.state.diverged_at) >= 0

    def pieces(self, control: Control) -> Iterator[Piece]:
        """One each step, until it is there or one is stopped."""
        experiment, program = self.engine.experiment, self.program
        batches = training_batches(experiment, self.engine.material, self.seed)
        if self.is_new:
            tokens = place(batches[0].tokens_BxL, program.rows)
            evaluate = program.evaluate[tokens.shape[1]]
            found = jax.device_get(
                evaluate(self.carry.state.params, tokens, self.stream, np.int32(0))
            )
            first = Totals(
                found.loss * found.asked, found.accuracy * found.asked, found.asked, found.dropped
            )
            yield self._piece(0, 0, first, control)
        if self.frozen:
            if not self.is_new:
                yield self._piece(0, 0, None, control)
            return
        if self.is_over:
            return
        for tokens, real in make_ahead(batches, range(self.step, self.until), program.rows):
            step = program.step[tokens.shape[1]]
            self.carry = step(self.carry, tokens, self.stream, np.int32(self.step))
            totals, summed = None, ()
            self.step += 1
            if self.step % experiment.record_every == 0:
                totals = jax.device_get(self.carry.totals)
                summed = jax.device_get(self.carry.roles)
                nothing = self._on_devices((no_totals(), no_role_sums(self.carry)))
                self.carry = self.carry._replace(totals=nothing[0], roles=nothing[1])
            piece = self._piece(1, real, totals, control, summed)
            yield piece
            if self.frozen or self.is_over:
                return

    def _piece(
        self,
        updates: int,
        tokens: int,
        totals: Totals | None,
        control: Control,
        summed: RoleSums | tuple[()] = (),
    ) -> Piece:
        began = time.monotonic()
        records = None if totals is None else self._record(totals, summed)
        processes = self.engine.processes
        # Several processes agree at records alone: it takes a message to each.
        self.is_over = (processes.count == 1 or records is not None) and processes.agree(
            control.stopped
        )
        ends = self.is_over or self.frozen or self.step == self.until
        stands_at = self.until if self.frozen else self.step
        members = self._members(stands_at) if ends or control.wanted() else None
        evaluating = time.monotonic() - began
        number = self.step // self.engine.experiment.record_every
        return Piece(np.array([self.seed]), number, records, members, updates, tokens, evaluating)

    def _record(self, totals: Totals, summed: RoleSums | tuple[()]) -> Records:
        """What is recorded at this step; a member whose loss or evaluation is not finite is frozen
        here.
        """
        experiment, engine = self.engine.experiment, self.engine
        records: dict[str, Any] = {
            "loss": totals.loss / totals.asked,
            "accuracy": totals.right / totals.asked,
        }
        if experiment.roles:
            unknown: Any = np.full(len(FREQUENCIES), np.nan, np.float32)
            found = summed or RoleSums(*[unknown] * len(RoleSums._fields))
            records |= {
                name: value / experiment.record_every for name, value in found._asdict().items()
            }
        due = self.step % experiment.eval_every == 0 or self.step == experiment.steps
        records |= (
            engine.evaluate(self.program, self.carry.state.params)
            if due
            else engine.nothing_evaluated()
        )
        if not np.isfinite(
            [records["loss"], records["valid_loss"]]
        ).all():  # the latter sees the last update too
            self.frozen = True
            state = self.carry.state._replace(diverged_at=self._on_devices(np.int32(self.step)))
            self.carry = self.carry._replace(state=state)
        records["diverged_at"] = self.carry.state.diverged_at
        return {name: np.asarray(value)[None, None] for name, value in records.items()}

    def _members(self, stands_at: int) -> Members:
        states = {name: np.array(leaf)[None] for name, leaf in flatten(self.carry).items()}
        return Members(np.array([self.seed]), np.array([stands_at]), self.stream[None], states)

    def _on_devices(self, tree):
        return jax.tree.map(lambda x: place(x, self.program.whole), tree)


class TextEngine:
    """See `jaxtie.training.task.Engine`."""

    best_losses = ()

    def __init__(
        self,
        experiment: TextExperiment,
        material: Material,
        processes: Processes,
        devices: Sequence[jax.Device] = (),
    ):
        self.experiment, self.material, self.processes = experiment, material, processes
        # One process alone, be it one of several, uses its own devices: it may estimate what a run
        # of all would take.
        self.mesh = make_mesh(
            experiment.batch,
            devices or (jax.devices() if processes.count > 1 else jax.local_devices()),
        )
        self.validation: list[RowBatch] = validation_batches(experiment, material)
        device, count = jax.local_devices()[0], self.mesh.size
        workers = cores() if device.platform == "cpu" and count == 1 else count
        self.facts: dict[str, Any] = {
            "device": describe_device(device),
            "workers": workers,
            "devices": count,
            "processes": processes.count,
        }

    def compile(self, phase: Phase) -> TextProgram:
        return compile_text(
            self.experiment, self.material, self.mesh, tied=phase.tied, head=phase.arm.head
        )

    def parameters(self, program: TextProgram) -> int:
        return tie.count_parameters(program.shapes.state.params)

    def run(
        self,
        program: TextProgram,
        numbers: Sequence[int],
        standing: Members | None,
        until: int,
        control: Control,
    ) -> Iterator[Piece]:
        def pieces(member: MemberRun) -> Iterator[Piece]:
            with self.processes.watched():
                yield from member.pieces(control)

        members = (MemberRun(self, program, seed, standing, until) for seed in numbers)
        if (count := min(self.at_a_time(program), len(numbers))) > 1:
            for piece in side_by_side(map(pieces, members), count, control.stopped):
                # the others train meanwhile
                yield piece._replace(evaluating=piece.evaluating / count)
            return
        for member in members:
            yield from pieces(member)
            if member.is_over:
                return

    def at_a_time(self, program: TextProgram) -> int:
        """How many members are trained at a time.

        On a CPU one core alone makes a small model's step in less than twice the time that all
        take: what is not a product of matrices is hardly shared among cores. It is the same program
        on the same samples, so bits do not depend on it.
        """
        is_one_cpu = self.processes.count == 1 and self.mesh.size == 1 and self.facts["workers"] > 1
        state = sum(
            math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.shapes)
        )
        return self.facts["workers"] if is_one_cpu and state <= SIDE_BY_SIDE else 1

    def evaluate(self, program: TextProgram, params: dict) -> Records:
        """What is measured now and then, of one member; NaN where it is not finite."""
        own, found = evaluation_stream(self.experiment.data_seed), []
        for number, batch in enumerate(self.validation):
            tokens = place(batch.tokens_BxL, program.rows)
            found.append(program.evaluate[tokens.shape[1]](params, tokens, own, np.int32(number)))
        whole = summarise(jax.device_get(found))
        measured = {
            "valid_loss": whole.loss,
            "valid_accuracy": whole.accuracy,
            "perplexity": whole.perplexity,
        }
        measured |= jax.device_get(program.look(params))
        return {
            name: np.where(np.isfinite(value), value, np.nan).astype(np.float32)
            for name, value in measured.items()
        }

    def nothing_evaluated(self) -> Records:
        """What a record has in the place of an evaluation that is not due."""
        schema = text_schema(self.experiment)
        own = [
            name
            for name, variable in schema.variables.items()
            if variable.dimensions[0] == "eval_step"
        ]
        return {name: np.zeros(schema.shape(name), np.float32) for name in own}

    def untie(self, phase: Phase, members: Members) -> Members:
        shapes = carry_shapes(self.experiment, self.material, tied=True, head=phase.arm.head)
        carry = unflatten(_stacked(shapes), members.states)
        params, opt_state = tie.untie(carry.state.params, carry.state.opt_state)
        carry = carry._replace(
            state=carry.state._replace(params=params, opt_state=opt_state, role_moments=()),
            roles=(),
        )
        return members._replace(states=flatten(carry))

    def estimate(self, program: TextProgram) -> Estimate:
        experiment = self.experiment
        steps, own = min(TRIAL_STEPS, experiment.steps), experiment.seeds[: self.at_a_time(program)]
        pieces = self.run(program, own, None, steps, Control([]))
        first: list[Piece] = []
        # each begins by an evaluation
        while {number for piece in first for number in piece.numbers.tolist()} != {*own}:
            first.append(next(pieces))
        began, found = time.monotonic(), list(pieces)
        training = time.monotonic() - began - sum(piece.evaluating for piece in found)
        evaluating = sum(piece.evaluating for piece in first if not piece.updates) / len(own)
        of_step = training / sum(piece.updates for piece in found)
        of_member = of_step * experiment.steps + evaluating * len(experiment.eval_steps)
        sizes = [each.memory_analysis() for each in program.step.values()]
        work = len(own) * max(
            size.temp_size_in_bytes + size.argument_size_in_bytes for size in sizes
        )
        speed = (
            f"{sum(piece.tokens for piece in found) / training:,.0f} tokens/s on {self.mesh.size}"
            " devices"
        )
        return Estimate(of_member * len(experiment.seeds), work, speed)
