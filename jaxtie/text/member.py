"""What one member does with text: a step, an evaluation, distances between words. All pure; batches
and keys come in.

A member is one seed of one arm. Fresh ones come from `jaxtie.training.member.initial_state`.

Shapes: B rows, L tokens a row, V vocabulary, D width, K pairs of words.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtie.experiment import Optimiser
from jaxtie.models.cross_entropy import POSITIONS, blockwise_cross_entropy
from jaxtie.models.text_model import TextModel, output_end
from jaxtie.text.masking import Asked
from jaxtie.training.member import State, update
from jaxtie.training.roles import RoleSums, sum_by_group, update_by_role

# From a key and tokens BxL to what the model is asked: `masking.mask` or `masking.next_tokens`,
# after `masking.swap`.
Ask = Callable[[jax.Array, jax.Array], Asked]


class Metrics(NamedTuple):
    """What a model makes of a batch: means over the positions asked (`loss`, nats, and `accuracy`),
    and counts.

    `asked`: positions; `dropped`: positions that found no room, see `masking.mask`.
    """

    loss: jax.Array
    accuracy: jax.Array
    asked: jax.Array
    dropped: jax.Array


def metrics(model: TextModel, params: dict, asked: Asked, block: int = POSITIONS) -> Metrics:
    """What a model makes of what it is asked; `loss` is what training takes the gradient of."""
    h_PxD = model.apply({"params": params}, asked.tokens_BxL, asked.at_P, method="hidden")

    def logits_of(embedding: dict, h_KxD: jax.Array) -> Any:
        """The embedding's own apply, unbound from the model: a pure function of its parameters."""
        return model.embedding.apply({"params": embedding}, h_KxD, method="logits")

    end = output_end(params["embedding"], model.embedding.untied_rows)
    loss, accuracy = blockwise_cross_entropy(
        logits_of, end, h_PxD, asked.target_P, asked.weight_P, block
    )
    return Metrics(loss, accuracy, jnp.sum(asked.weight_P), asked.dropped)


def make_step(
    model: TextModel, optimiser: optax.GradientTransformation, ask: Ask, block: int = POSITIONS
) -> Callable[[State, jax.Array, jax.Array], tuple[State, Metrics]]:
    """A step: (state, tokens BxL, key) -> (state, metrics of the batch before it). Jit it with the
    state donated.
    """

    def step(state: State, tokens_BxL: jax.Array, key: jax.Array) -> tuple[State, Metrics]:
        state, (_, looked_at) = update(
            _loss_on(model, ask(key, tokens_BxL), block), optimiser, state
        )
        return state, looked_at

    return step


def _loss_on(
    model: TextModel, asked: Asked, block: int
) -> Callable[[dict], tuple[jax.Array, Metrics]]:
    """The loss on a batch as a function of the parameters, with all metrics beside it."""

    def loss_of(params: dict) -> tuple[jax.Array, Metrics]:
        looked_at = metrics(model, params, asked, block)
        return looked_at.loss, looked_at

    return loss_of


def make_step_by_role(
    model: TextModel,
    optimiser: optax.GradientTransformation,
    ask: Ask,
    adam: Optimiser,
    group_V: np.ndarray,
    groups: int,
) -> Callable[[State, jax.Array, jax.Array], tuple[State, Metrics, RoleSums]]:
    """A step of a tied member as `make_step` makes it, and who wrote the table, group by group.

    Args:
      optimiser: what `adam` declares.
      group_V: the group of each token.
    """
    constants = {"b1": adam.b1, "b2": adam.b2, "eps": adam.eps}

    def step(
        state: State, tokens_BxL: jax.Array, key: jax.Array
    ) -> tuple[State, Metrics, RoleSums]:
        loss_of = _loss_on(model, ask(key, tokens_BxL), POSITIONS)
        state, (_, looked_at), own = update_by_role(loss_of, optimiser, state, **constants)
        return state, looked_at, sum_by_group(own, group_V, groups)

    return step


def make_evaluation(
    model: TextModel, ask: Ask, block: int = POSITIONS
) -> Callable[[dict, jax.Array, jax.Array], Metrics]:
    """An evaluation: (params, tokens BxL, key) -> metrics. The same key asks the same, of every arm
    and at every step.
    """
    return lambda params, tokens_BxL, key: metrics(model, params, ask(key, tokens_BxL), block)


class Summary(NamedTuple):
    """Over many batches, every position asked counting alike; perplexity is e^loss."""

    loss: float | np.ndarray
    accuracy: float | np.ndarray
    perplexity: float | np.ndarray


def summarise(batches: list[Metrics]) -> Summary:
    """The metrics of a whole split from those of its batches (host values, numbers or stacked
    members).
    """
    loss, accuracy, asked, _ = (
        np.array(values, np.float64) for values in zip(*batches, strict=True)
    )

    def mean(values: np.ndarray) -> np.ndarray:
        return np.sum(values * asked, axis=0) / np.sum(asked, axis=0)

    return Summary(mean(loss), mean(accuracy), np.exp(mean(loss)))


def pair_distances(table_VxD: jax.Array, first_K: np.ndarray, second_K: np.ndarray) -> jax.Array:
    """Euclidean distances between rows first_K and second_K of a table: words and their duplicates,
    or any pairs; K.
    """
    return jnp.sqrt(jnp.sum((table_VxD[first_K] - table_VxD[second_K]) ** 2, axis=-1))


def nearest(
    table_VxD: jax.Array, row: jax.typing.ArrayLike, count: int, besides: Sequence[int] = ()
) -> jax.Array:
    """Numbers of the rows nearest to a row, the nearest first, itself and some others left out;
    int32[count].
    """
    distance_V = jnp.sum((table_VxD - table_VxD[row][None]) ** 2, axis=-1)
    distance_V = distance_V.at[jnp.stack([row, *map(jnp.int32, besides)])].set(jnp.inf)
    return jax.lax.top_k(-distance_V, count)[1]
