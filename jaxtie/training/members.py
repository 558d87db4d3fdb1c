"""Where members stand: all that one needs to go on with them, on the host, by their numbers."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from jaxtie.experiment import UserError

Records = dict[str, np.ndarray]
States = TypeVar("States")  # of arrays


class Members(NamedTuple):
    """Where some members of an arm stand. Host arrays (members, ...)."""

    numbers: np.ndarray  # see `jaxtie.experiment.number_of`
    steps: np.ndarray  # updates made; -1: not even recorded at step 0
    streams: np.ndarray  # key data of each one's stream of samples
    states: dict[str, np.ndarray]  # the leaves of its state by their paths


class Piece(NamedTuple):
    """What an engine hands out: some members have come some way.

    Attributes:
      numbers: of these members.
      first_record: number of the first of the records.
      records: arrays (records, members, ...); None where no record was due.
      members: where they stand after the last of them. None, if that costs and nobody has asked
        (`Control.wanted`) and more pieces of them will come.
      updates: made since the piece before, summed over these members.
      tokens: real ones of text that these updates were made on.
      evaluating: seconds that were no training.
    """

    numbers: np.ndarray
    first_record: int
    records: Records | None
    members: Members | None
    updates: int
    tokens: int = 0
    evaluating: float = 0.0


class Control(NamedTuple):
    """What an engine looks at while it runs.

    Attributes:
      stopped: signals received; when there is one, it ends soon, every piece handed out with its
        members.
      wanted: whether a checkpoint is due, so a piece shall have its members.
    """

    stopped: list[int]
    wanted: Callable[[], bool] = lambda: False


def merge(*parts: Members | None) -> Members:
    """All members of the parts, in the order of their numbers; of one that several have, the
    last.
    """
    joined = jax.tree.map(
        lambda *arrays: np.concatenate(arrays), *[part for part in parts if part is not None]
    )
    _, last = np.unique(joined.numbers[::-1], return_index=True)
    return jax.tree.map(lambda x: x[len(joined.numbers) - 1 - last], joined)


def flatten(states: States) -> dict[str, np.ndarray]:
    """The leaves of a tree by their paths."""
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(states)
    }


def unflatten(like: States, leaves: dict[str, np.ndarray]) -> States:
    """The tree whose leaves have these paths, of members stacked as in `like`, however many.

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
