"""Define tasks, and the data that engines exchange with the trainer.

A task is an experiment's configuration bound to one variant (tied or not, and the head): a handful
of pure functions of one seed. An engine trains members of a task; the loop over phases, records and
checkpoints in `jaxtie.training.trainer` is the same for every engine.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import jax
import numpy as np
import optax

from jaxtie.config import SEEDS, Arm, TaskConfig, UserError, Variant

KEY_IMPLEMENTATION = "threefry2x32"
Params = Any  # a pytree; tied it has embedding/input, untied embedding/input and embedding/output
StreamKey = jax.Array  # u32[2]: key data of a seed's random numbers
HParams = Mapping[str, Any]  # hyperparameters of a sweep point that are arguments of the program
Metrics = dict[str, jax.Array]
Recorded = dict[str, np.ndarray]
States = TypeVar("States")  # of arrays
CompiledProgram = TypeVar("CompiledProgram")  # of an engine


def stream(data_seed: int, seed: jax.typing.ArrayLike | None) -> StreamKey:
    """Return the stream of a seed's samples; `seed` None: the one that all seeds share."""
    key = jax.random.key(data_seed, impl=KEY_IMPLEMENTATION)
    return jax.random.key_data(key if seed is None else jax.random.fold_in(key, seed))


def key_at(stream: StreamKey, step: jax.typing.ArrayLike) -> jax.Array:
    """Return the key of one step."""
    return jax.random.fold_in(jax.random.wrap_key_data(stream, impl=KEY_IMPLEMENTATION), step)


def evaluation_stream(data_seed: int) -> np.ndarray:
    """Return the stream of evaluations, of a seed that training does not have; u32[2]."""
    key = jax.random.key(data_seed, impl=KEY_IMPLEMENTATION)
    for _ in range(2):
        key = jax.random.fold_in(key, np.uint32(SEEDS - 1))
    return np.asarray(jax.random.key_data(key))


class HostBatch(Protocol):
    """Rows that the host makes."""

    @property
    def tokens_BxL(self) -> np.ndarray:  # noqa: N802, a shape
        """Tokens, i32."""

    @property
    def lengths_B(self) -> np.ndarray:  # noqa: N802, a shape
        """Number of real tokens of each row."""


class Batches(Protocol):
    """The batches of a seed, by step."""

    def __getitem__(self, step: int, /) -> HostBatch:
        """Return the batch of a step: a function of (seed, step) alone."""


class HostRows(NamedTuple):
    """Rows of a task whose batches the host makes.

    Attributes:
      key: equal for equal rows and vocabularies.
      size: rows of a batch.
      lengths: the row lengths; each has a program of its own.
      validation: the batches of every evaluation.
      training: returns the batches of a seed.
    """

    key: Hashable
    size: int
    lengths: tuple[int, ...]
    validation: Sequence[HostBatch]
    training: Callable[[int], Batches]


class Roles(NamedTuple):
    """Rows of a tied table whose gradients by role are recorded.

    Attributes:
      groups: number of groups of rows.
      group_V: group of each row; None: every row is its own.
      pairs: ids of pairs of rows; contributions to their log-distance are recorded.
    """

    groups: int
    group_V: np.ndarray | None = None
    pairs: Sequence[tuple[int, int]] = ()


class Task:
    """An experiment bound to one variant, as pure functions of one seed.

    Subclass it and implement `init`, `batch` and `loss`; `TaskConfig.build` returns one.

    Attributes:
      config: the experiment's configuration.
      variant: tied or not, and the head.
      data_seed: seed of the streams of samples: the configuration's `data_seed`, or 0.
      roles: rows to record gradients by role of, if `config.roles` is set.
      rows: rows that the host makes; None: `batch` draws its data on the device.
      best_loss: the best reachable loss if it is known, nats.
    """

    roles: Roles | None = None
    rows: HostRows | None = None
    best_loss: float | None = None

    def __init__(self, config: TaskConfig, variant: Variant):
        self.config, self.variant = config, variant
        self.data_seed: int = getattr(config, "data_seed", 0)

    def hparams(self) -> HParams:
        """Return the traced fields of the configuration and its optimizer, on the host; f32.

        They are arguments of the program, so that a sweep over them shares it.
        """
        owners = self.config.optimizer, self.config
        found = {name: own for own in owners for name in self.config.traced if hasattr(own, name)}
        return {name: np.float32(getattr(own, name)) for name, own in found.items()}

    def stream(self, seed: jax.typing.ArrayLike) -> StreamKey:
        """Return the stream of a seed's samples, shared by its arms."""
        return stream(self.data_seed, seed)

    def init(self, key: jax.Array, hparams: HParams) -> Params:
        """Return fresh parameters. Variants of one key share the values of all they share."""
        raise NotImplementedError

    def batch(
        self, stream: StreamKey, hparams: HParams, step: jax.Array, rows: jax.Array | None
    ) -> Any:
        """Return the batch of a step; `rows`: those that the host made for it, i32[B, L]."""
        raise NotImplementedError

    def loss(self, params: Params, batch: Any) -> tuple[jax.Array, Metrics]:
        """Return the loss to differentiate and the metrics to record, `loss` among them.

        Records are means over steps, weighted by a metric `weight` if there is one, such as a
        number of predictions.
        """
        raise NotImplementedError

    def measure(self, params: Params) -> Metrics:
        """Return further metrics of every record; not called for a task with `rows`."""
        return {}

    def evaluate(self, params: Params, hparams: HParams) -> Metrics:
        """Return the metrics of an evaluation."""
        return {}

    def validate(self, means: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return records of the mean metrics over the validation rows, for a task with `rows`."""
        return {f"valid_{name}": value for name, value in means.items()}


class State(NamedTuple):
    """The state of a member.

    Attributes:
      params: its parameters.
      opt_state: of its optimizer.
      diverged_at: step of the record at which it was found to have diverged; -1: it has not.
      role_moments: Adam's first moment of a tied table by role, see
        `jaxtie.training.gradient_by_role`; () where it is not recorded.
    """

    params: Params
    opt_state: optax.OptState
    diverged_at: jax.Array
    role_moments: tuple = ()


class Members(NamedTuple):
    """Some members of an arm on the host, as a checkpoint holds them. Arrays (members, ...)."""

    numbers: np.ndarray  # see `jaxtie.config.member_number`
    steps: np.ndarray  # updates made; -1: not even recorded at step 0
    streams: np.ndarray  # u32[M, 2]
    states: dict[str, np.ndarray]  # leaf path -> [M, ...]


class Chunk(NamedTuple):
    """Records and state that an engine yields after training some members for a while.

    Attributes:
      numbers: of these members.
      first_record: number of the first record.
      records: arrays (records, members, ...); None if no record was due.
      members: their state after the last record; None where it is not copied to the host, since no
        checkpoint is due (`Control.wanted`) and more chunks of them follow.
      updates: made since the chunk before, summed over these members.
      tokens: real tokens of text in these updates.
      evaluating: seconds that were not training.
    """

    numbers: np.ndarray
    first_record: int
    records: Recorded | None
    members: Members | None
    updates: int
    tokens: int = 0
    evaluating: float = 0.0


class Control(NamedTuple):
    """Requests that an engine checks while it runs.

    Attributes:
      stopped: signals received. After the first one the engine ends soon; its last chunks have
        their members.
      wanted: whether a checkpoint is due, so that chunks need their members.
    """

    stopped: list[int]
    wanted: Callable[[], bool] = lambda: False


def merge(*parts: Members | None) -> Members:
    """Join members in the order of their numbers; the last part wins."""
    joined = jax.tree.map(
        lambda *arrays: np.concatenate(arrays), *[part for part in parts if part is not None]
    )
    _, last = np.unique(joined.numbers[::-1], return_index=True)
    return jax.tree.map(lambda x: x[len(joined.numbers) - 1 - last], joined)


def flatten(states: States) -> dict[str, np.ndarray]:
    """Return the leaves of a tree by their paths."""
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(states)
    }


def unflatten(like: States, leaves: dict[str, np.ndarray]) -> States:
    """Return the tree whose leaves have these paths; members are stacked as in `like`.

    Raises:
      UserError: if they are not the leaves of `like`.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(like)
    expected = {jax.tree_util.keystr(path): (leaf.shape[1:], leaf.dtype) for path, leaf in paths}
    if expected != {name: (leaf.shape[1:], leaf.dtype) for name, leaf in leaves.items()}:
        raise UserError(
            "the checkpoint holds a model of other parts or sizes than this version builds;"
            " --overwrite the run"
        )
    return jax.tree.unflatten(tree, [leaves[name] for name in expected])


class Phase(NamedTuple):
    """The tied or the untied part of an arm's training.

    Attributes:
      name: its members have this name in checkpoints.
      until: its last step.
      follows: name of the phase whose members are untied for this one.
    """

    arm: Arm
    name: str
    tied: bool
    until: int
    follows: str | None = None

    @property
    def variant(self) -> Variant:
        """Tied or not, and the head."""
        return Variant(self.tied, self.arm.head)


def phases_of(arm: Arm, steps: int) -> list[Phase]:
    """Return the phases of an arm, in order; the last one has the arm's name."""
    if not arm.tied or arm.untie_at is None:
        return [Phase(arm, arm.name, arm.tied, steps)]
    before = f"{arm.name}, tied"
    return [
        Phase(arm, before, True, arm.untie_at),
        Phase(arm, arm.name, False, steps, follows=before),
    ]


def shared_tied_parts(arms: Sequence[Arm], arm: Arm) -> dict[int, list[Phase]]:
    """Return step -> phases of other arms that equal a tied arm's training up to that step."""
    found: dict[int, list[Phase]] = {}
    for other in arms:
        if (
            arm.tied
            and arm.untie_at is None
            and other.untie_at is not None
            and other.head == arm.head
        ):
            found.setdefault(other.untie_at, []).append(phases_of(other, other.untie_at)[0])
    return found


def steps_reached(progress: Mapping[str, Members], arm: Arm, steps: int) -> dict[int, int]:
    """Return the updates made of each member of an arm, by its number."""
    parts = [progress[phase.name] for phase in phases_of(arm, steps) if phase.name in progress]
    return {
        number: step
        for part in parts
        for number, step in zip(part.numbers.tolist(), part.steps.tolist(), strict=True)
    }


def steps_recorded(progress: Mapping[str, Members], arm: Arm, steps: int) -> dict[int, int]:
    """Return the steps up to which each member of an arm has records, by its number.

    A member on rows from the host has none after it has diverged.
    """
    recorded = {}
    for name, part in progress.items():
        diverged_at = part.states.get(".state.diverged_at", np.array(-1))
        ends = np.where(diverged_at < 0, part.steps, np.minimum(diverged_at, part.steps))
        recorded[name] = part._replace(steps=ends)
    return steps_reached(recorded, arm, steps)


class Estimate(NamedTuple):
    """Measured cost of a program.

    Attributes:
      seconds: for all members of an arm, all steps and evaluations.
      device_bytes: memory on the devices.
      speed: in words, may be "".
    """

    seconds: float
    device_bytes: int
    speed: str = ""


class Engine(Generic[CompiledProgram]):
    """Trains members of an experiment.

    Attributes:
      config: of the experiment.
      facts: device, workers, processes, ...; written into `config.json`.
      best_losses: the best reachable losses if known, nats; progress shows them.
    """

    config: TaskConfig
    facts: dict[str, Any]
    best_losses: Sequence[float] = ()

    def compile(self, phase: Phase) -> CompiledProgram:
        """Return the program of a phase; equal for phases that differ in nothing static."""
        raise NotImplementedError

    def parameters(self, program: CompiledProgram) -> int:
        """Return the number of parameters of a member."""
        raise NotImplementedError

    def run(
        self,
        program: CompiledProgram,
        numbers: Sequence[int],
        known: Members | None,
        until: int,
        control: Control,
    ) -> Iterator[Chunk]:
        """Train members up to a step, from their known state or from the start.

        The last chunk of each member has `members`. Several processes call this alike; the first
        one gets every chunk.
        """
        raise NotImplementedError

    def untie(self, phase: Phase, members: Members) -> Members:
        """Untie members for a phase that follows a tied one."""
        raise NotImplementedError

    def trial(self, program: CompiledProgram) -> tuple[Iterator[Chunk], int, int]:
        """Return chunks of a short training, its number of members, and bytes on the devices."""
        raise NotImplementedError

    def estimate(self, program: CompiledProgram) -> Estimate:
        """Train a little and estimate the cost of an arm."""
        chunks, together, needed = self.trial(program)
        first: list[Chunk] = []
        trained: set[int] = set()
        while len(trained) < together:  # an evaluation of each, and first updates, which are slow
            first.append(next(chunks))
            trained.update(first[-1].numbers.tolist() if first[-1].updates else ())
        began, rest = time.monotonic(), list(chunks)
        training = time.monotonic() - began - sum(chunk.evaluating for chunk in rest)
        of_step = training / sum(chunk.updates for chunk in rest)
        evaluating = sum(chunk.evaluating for chunk in first if not chunk.updates) / together
        of_member = of_step * self.config.steps + evaluating * len(self.config.eval_steps)
        members = -(-len(self.config.members) // together) * together
        tokens = sum(chunk.tokens for chunk in rest) / training
        return Estimate(of_member * members, needed, f"{tokens:,.0f} tokens/s" if tokens else "")


def untie_members(like: States, members: Members, untied: Callable[[States], States]) -> Members:
    """Return members whose states, shaped `like` one tied member's, are `untied`."""
    stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), like)
    return members._replace(states=flatten(untied(unflatten(stacked, members.states))))


def programs_of(experiment: TaskConfig) -> list[Phase]:
    """Return one phase for each program that an experiment needs."""
    found = {
        phase.variant: phase
        for arm in experiment.arms
        for phase in phases_of(arm, experiment.steps)
    }
    return list(found.values())
