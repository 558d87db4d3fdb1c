"""Trains EXor's members: blocks of them over threads or devices, the host once a chunk."""

import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import jax
import numpy as np

from jaxtie.config import UserError, setting_and_seed
from jaxtie.exor import theory
from jaxtie.exor.blocks import CHUNK, Program, assign_workers, block_of, compile_block
from jaxtie.exor.config import Experiment
from jaxtie.exor.task import Setting, Static, build_contexts, make_member, stack_settings
from jaxtie.training.devices import cores, describe_device, memory_limit
from jaxtie.training.distributed import Processes
from jaxtie.training.member import State
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

TRIAL_RECORDS = 2  # that an estimate of time takes


@dataclasses.dataclass
class Block:
    """Members that are trained together, on the device `device`; what pads them up repeats the
    last.
    """

    numbers: np.ndarray  # without padding
    step: int  # updates made when all calls that were asked for are done
    streams: np.ndarray
    settings: Setting
    states: State
    device: jax.Device
    latest: Future | None = None


class BlockRun:
    """Members of an arm on their way to a step: the blocks that wait and those that are under way.

    Args:
      workers: see `assign_workers`.
      until: the step.
      chunk_seconds: how long a piece should take; its number of records follows from the speed
        seen.
    """

    def __init__(
        self,
        program: Program,
        workers: Sequence[jax.Device],
        experiment: Experiment,
        until: int,
        chunk_seconds: float = 1.0,
    ):
        self.program, self.workers, self.experiment, self.until = (
            program,
            workers,
            experiment,
            until,
        )
        self.chunk_seconds, self.every = chunk_seconds, experiment.record_every
        self.settings, self.devices = stack_settings(experiment), itertools.cycle(workers)
        self.waiting: deque[Block] = deque()
        self.placed: dict[
            jax.Device, tuple[bytes, Setting]
        ] = {}  # settings that a device has got last

    def pieces(self, numbers: Sequence[int], standing: Members | None) -> Iterator[Piece]:
        """Train these members, each from where it stands, else from step 0; hand out records as
        they come, block by block.

        Every worker has work while the caller has a piece in hand. Members stand at different steps
        meanwhile, by up to a chunk or, if there are more blocks than workers, more.
        """
        known: set[int] = set()
        if standing is not None:
            known = set(standing.numbers.tolist())
            self._go_on(np.array(numbers), standing)
        fresh = np.array([number for number in numbers if number not in known], np.int64)
        for own in _in_blocks(fresh, self.program.block):
            yield self._begin(own)
        seconds_per_record = self.chunk_seconds  # one record first, to see the speed
        under_way: deque[Future] = deque()
        with ThreadPoolExecutor(len(self.workers)) as pool:
            while self.waiting or under_way:
                while self.waiting and len(under_way) <= len(self.workers):
                    under_way.append(self._submit(pool, seconds_per_record))
                done, seconds_per_record = under_way.popleft().result()
                yield done

    def _pad(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, np.repeat(x[-1:], self.program.block - len(x), axis=0)])

    def _settings_of(self, numbers: np.ndarray) -> Setting:
        places, _ = setting_and_seed(numbers)
        return jax.tree.map(lambda x: x[self._pad(places)], self.settings)

    def _place(self, numbers: np.ndarray, device: jax.Device) -> Setting:
        """The settings of a block's members on a device: those of the block before, if these are
        the same.

        The exact laws of a model with an order of tokens are larger than its state, and without a
        sweep all have the same.
        """
        places, _ = setting_and_seed(self._pad(numbers))
        if device not in self.placed or self.placed[device][0] != places.tobytes():
            self.placed[device] = (
                places.tobytes(),
                jax.device_put(self._settings_of(numbers), device),
            )
        return self.placed[device][1]

    def _go_on(self, numbers: np.ndarray, standing: Members) -> None:
        """Let blocks of members wait that stand at the same step."""
        wanted = np.isin(standing.numbers, numbers)
        for step in np.unique(standing.steps[wanted & (standing.steps < self.until)]):
            for indices in _in_blocks(
                np.flatnonzero(wanted & (standing.steps == step)), self.program.block
            ):
                own, device = jax.tree.map(lambda x, i=indices: x[i], standing), next(self.devices)
                states = jax.tree.map(self._pad, unflatten(self.program.states, own.states))
                placed = self._place(own.numbers, device), jax.device_put(states, device)
                self.waiting.append(
                    Block(own.numbers, int(step), self._pad(own.streams), *placed, device)
                )

    def _begin(self, own: np.ndarray) -> Piece:
        """The record at step 0 of members that wait from then on."""
        _, seeds = setting_and_seed(self._pad(own))
        states, streams, records = self.program.start(
            seeds.astype(np.uint32), self._settings_of(own)
        )
        device = next(self.devices)
        placed = self._place(own, device), jax.device_put(states, device)
        block = Block(own, 0, np.array(streams), *placed, device)
        self.waiting.append(block)
        return self._piece(
            block,
            0,
            0,
            _on_host(states),
            {name: value[None] for name, value in _on_host(records).items()},
        )

    def _submit(self, pool: ThreadPoolExecutor, seconds_per_record: float) -> Future:
        """Have the next block that waits trained for a chunk."""
        block = self.waiting.popleft()
        count = min(
            max(1, int(self.chunk_seconds / seconds_per_record)),
            CHUNK,
            (self.until - block.step) // self.every,
        )
        block.latest = pool.submit(self._advance, block, block.latest, block.step, count)
        block.step += count * self.every
        if block.step < self.until:
            self.waiting.append(block)
        return block.latest

    def _advance(
        self, block: Block, previous: Future | None, step: int, count: int
    ) -> tuple[Piece, float]:
        if previous:
            wait([previous])
        began = time.monotonic()
        block.states, records = self.program.advance[block.device](
            block.states,
            block.streams,
            block.settings,
            *map(np.int32, (step, count, self.experiment.steps)),
        )
        records = {name: np.asarray(value)[:count] for name, value in records.items()}
        seconds = time.monotonic() - began
        after = step + count * self.every
        return (
            self._piece(block, step // self.every + 1, after, _on_host(block.states), records),
            seconds / count,
        )

    def _piece(
        self, block: Block, first_record: int, step: int, states: State, records: Records
    ) -> Piece:
        size = len(block.numbers)
        leaves = {name: leaf[:size] for name, leaf in flatten(states).items()}
        members = Members(
            block.numbers, np.full(size, step, np.int64), block.streams[:size], leaves
        )
        own = {name: value[:, :size] for name, value in records.items()}
        updates = own["loss"].size * self.every if first_record else 0
        return Piece(block.numbers, first_record, own, members, updates)


# copies: the device's own are given away to the next call
_on_host = partial(jax.tree.map, np.array)


def _in_blocks(values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (values[i : i + size] for i in range(0, len(values), size))


class ExorEngine:
    """See `jaxtie.training.task.Engine`. Each process trains a share of the members."""

    def __init__(self, experiment: Experiment, processes: Processes):
        devices = jax.local_devices()
        self.experiment, self.processes = experiment, processes
        self.block = block_of(experiment, devices)
        self.own = set(processes.share(experiment.members, self.block))
        self.workers = assign_workers(len(self.own), self.block, devices, cores())
        laws = {setting.process for setting in experiment.settings}
        self.best_losses = [
            theory.best_loss(build_contexts(law, ordered=False)[0].joint_CxV) for law in laws
        ]
        self.facts = {
            "device": describe_device(self.workers[0]),
            "workers": len(self.workers),
            "processes": processes.count,
            "block": self.block,
        }

    def compile(self, phase: Phase) -> Program:
        static = Static.of(self.experiment, tied=phase.tied, head=phase.arm.head)
        program = compile_block(static, self.block, self.workers)
        check_memory(program, self.workers, len(self.own), swept=bool(self.experiment.sweep))
        return program

    def parameters(self, program: Program) -> int:
        return tie.count_parameters(program.states.params) // program.block

    def run(
        self,
        program: Program,
        numbers: Sequence[int],
        standing: Members | None,
        until: int,
        control: Control,
    ) -> Iterator[Piece]:
        own = [number for number in numbers if number in self.own]
        pieces = BlockRun(program, self.workers, self.experiment, until).pieces(own, standing)
        return self.processes.together(pieces, control.stopped)

    def untie(self, phase: Phase, members: Members) -> Members:
        return untie_members(self.experiment, phase, members)

    def estimate(self, program: Program) -> Estimate:
        records = len(self.experiment.record_steps) - 1
        seconds = seconds_per_record(program, self.workers, self.experiment) * records
        members, swept = len(self.experiment.members), bool(self.experiment.sweep)
        return Estimate(seconds, device_bytes(program, self.workers, members, swept=swept))


def member_shapes(experiment: Experiment, static: Static) -> State:
    """What the state of a member is laid out as, with a first axis of one member."""
    seeds, settings = (
        np.zeros(1, np.uint32),
        jax.tree.map(lambda x: x[:1], stack_settings(experiment)),
    )
    return jax.eval_shape(jax.vmap(make_member(static).start), seeds, settings)[0]


def untie_members(experiment: Experiment, phase: Phase, members: Members) -> Members:
    """Tied members, untied where they stand."""
    like = member_shapes(experiment, Static.of(experiment, tied=True, head=phase.arm.head))
    state = unflatten(like, members.states)
    params, opt_state = tie.untie(state.params, state.opt_state)
    return members._replace(
        states=flatten(state._replace(params=params, opt_state=opt_state, role_moments=()))
    )


def seconds_per_record(
    program: Program, workers: Sequence[jax.Device], experiment: Experiment
) -> float:
    """How long all blocks take from one record to the next, by measurement on a block per
    worker.
    """
    seeds = tuple(range(program.block * len(workers)))
    steps = (1 + TRIAL_RECORDS) * experiment.record_every
    # others may end later
    trial = dataclasses.replace(experiment, seeds=seeds, steps=steps, arms=("untied",), sweep=())
    for piece in BlockRun(program, workers, trial, steps).pieces(trial.members, None):
        if piece.first_record <= 1:
            began = time.monotonic()
    rounds = -(-len(experiment.members) // len(seeds))
    return rounds * (time.monotonic() - began) / TRIAL_RECORDS


def bytes_of_waiting(program: Program, device: jax.Device, *, swept: bool) -> int:
    """Memory that a block takes while others are worked on: states and, where members differ in
    them, settings.
    """
    if swept:
        return program.advance[device].memory_analysis().argument_size_in_bytes
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.states))


def device_bytes(
    program: Program, workers: Sequence[jax.Device], members: int, *, swept: bool
) -> int:
    """Memory that the states of so many members and the work on a block per worker take, over all
    devices.
    """
    sizes = [program.advance[device].memory_analysis() for device in workers]
    work = sum(
        size.argument_size_in_bytes + size.output_size_in_bytes + size.temp_size_in_bytes
        for size in sizes
    )
    waiting = max(0, -(-members // program.block) - len(workers))
    return work + waiting * bytes_of_waiting(program, workers[0], swept=swept)


def check_memory(
    program: Program, workers: Sequence[jax.Device], members: int, *, swept: bool
) -> None:
    """Refuse what the devices have no room for, before anything is trained; blocks go to the
    workers in turn.

    Raises:
      UserError: says how many members there is room for.
    """
    limit = memory_limit(workers[0])
    if limit is None:
        return
    each = -(-members // program.block // len(workers))  # blocks of a worker
    needed = device_bytes(program, workers[:1], each * program.block, swept=swept)
    if needed <= limit:
        return
    room = each + (limit - needed) // bytes_of_waiting(program, workers[0], swept=swept)
    fitting = max(0, room) * len(workers) * program.block
    remedy = (
        f"train at most {fitting:,} a run (--seeds, --out)" if fitting else "use devices with more"
    )
    gib = (
        f"{needed / 2**30:,.1f} GiB on each {describe_device(workers[0])}, where JAX may use"
        f" {limit / 2**30:,.1f}"
    )
    raise UserError(f"{members:,} members in blocks of {program.block:,} need {gib}; {remedy}")
