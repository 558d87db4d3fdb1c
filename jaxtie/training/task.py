"""Define tasks, and the data that engines exchange with the trainer.

A task is an experiment's configuration bound to one variant (tied or not, and the head): a handful
of pure functions of one seed. An engine trains members of a task; the loop over phases, records and
checkpoints in `jaxtie.training.trainer` is the same for every engine.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, TypeVar

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
Item = TypeVar("Item")
_EXHAUSTED = object()


def stream(data_seed: int, seed: jax.typing.ArrayLike) -> StreamKey:
    """Return the stream of a seed's samples."""
    key = jax.random.key(data_seed, impl=KEY_IMPLEMENTATION)
    return jax.random.key_data(jax.random.fold_in(key, seed))


def key_at(stream: StreamKey, step: jax.typing.ArrayLike) -> jax.Array:
    """Return the key of one step."""
    return jax.random.fold_in(jax.random.wrap_key_data(stream, impl=KEY_IMPLEMENTATION), step)


def evaluation_stream(data_seed: int) -> np.ndarray:
    """Return the stream of evaluations, of a seed that training does not have; u32[2]."""
    last = np.uint32(SEEDS - 1)
    return np.asarray(jax.random.key_data(key_at(stream(data_seed, last), last)))


class HostRows(NamedTuple):
    """Rows of a task whose batches the host makes.

    A batch has `tokens_BxL`, i32, and `lengths_B`, the number of real tokens of each row; NumPy.

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
    validation: Sequence[Any]
    training: Callable[[int], Any]


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
    """Return the tree of stacked members whose leaves have these paths; `like`: one member's.

    Raises:
      UserError: if they are not the leaves of `like`.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(like)
    expected = {jax.tree_util.keystr(path): (leaf.shape, leaf.dtype) for path, leaf in paths}
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


def side_by_side(
    iterators: Iterable[Iterator[Item]],
    count: int,
    stopped: Sequence[object] = (),
    *,
    in_turns: bool = False,
) -> Iterator[Item]:
    """Advance several iterators at a time, each in a thread; yield their items as they come.

    Args:
      iterators: advanced by any thread, never by two at once.
      count: number of iterators at a time.
      stopped: no other iterator begins once it is not empty; running ones must end by themselves.
      in_turns: advance all of them in turns, an item each; else the first ones to their end.
    """
    waiting = deque(iterators)
    with ThreadPoolExecutor(count) as pool:
        under_way: dict[Future, Iterator[Item]] = {}

        def advance_next() -> None:
            if waiting:
                iterator = waiting.popleft()
                under_way[pool.submit(next, iterator, _EXHAUSTED)] = iterator

        for _ in range(count):
            advance_next()
        while under_way:
            items = []  # handed out when all are under way again, since the caller takes its time
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                iterator = under_way.pop(future)
                if (item := future.result()) is _EXHAUSTED:
                    if not stopped:
                        advance_next()
                else:
                    (waiting.append if in_turns else waiting.appendleft)(iterator)
                    advance_next()
                    items.append(item)
            yield from items


def untie_members(like: States, members: Members, untied: Callable[[States], States]) -> Members:
    """Return members whose states, shaped `like` one tied member's, are `untied`."""
    return members._replace(states=flatten(untied(unflatten(like, members.states))))


def programs_of(experiment: TaskConfig) -> list[Phase]:
    """Return one phase for each program that an experiment needs."""
    found = {
        phase.variant: phase
        for arm in experiment.arms
        for phase in phases_of(arm, experiment.steps)
    }
    return list(found.values())
