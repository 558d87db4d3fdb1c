"""One member of a text experiment: model, loss, predictions of pairs.

What a model predicts of pairs of tokens: how likely the one beside the other, and what it makes
of the one for the other.

Both are exact laws over the whole vocabulary, at places that `jaxtie.text.pairs` has chosen
once.

Shapes: C contexts at a time, L tokens, M places asked about beside a token, V vocabulary, K pairs
of a kind, N of a pair.

What one member does with text: a step, an evaluation, distances between words. All pure; batches
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

from jaxtie.config import Optimizer
from jaxtie.models.language_model import TextModel, output_params
from jaxtie.text.masking import Asked
from jaxtie.text.pairs import PREDICTED, PairContexts
from jaxtie.training.gradient_by_role import RoleSums, sum_by_group, update_by_role
from jaxtie.training.member import State, update
from jaxtie.tying.cross_entropy import BLOCK_SIZE, blockwise_cross_entropy


def make_look_at_predictions(
    model: TextModel, contexts: PairContexts
) -> Callable[[dict], dict[str, jax.Array]]:
    """A pure function of a model's parameters: what `PREDICTED` lists of each pair, (kinds, K); NaN
    where it has no place.
    """
    chunk = max(1, BLOCK_SIZE // contexts.asked_QxM.shape[1])
    count = len(contexts.at_Q)

    def in_chunks(x_Q: np.ndarray) -> np.ndarray:
        padded = np.pad(x_Q, [(0, -count % chunk)] + [(0, 0)] * (x_Q.ndim - 1), mode="edge")
        return padded.reshape(-1, chunk, *x_Q.shape[1:])

    chunks = tuple(map(in_chunks, contexts[:6]))

    def look(params: dict) -> dict[str, jax.Array]:
        each = jax.lax.map(lambda some: _of_chunk(model, params, some, contexts.mask), chunks)
        odds, divergence, counts = (x.ravel()[:count].reshape(contexts.shape) for x in each)
        there = jnp.where(counts > 0, 1.0, 0.0)
        total = jnp.sum(there, axis=-1)
        mean_odds = jnp.sum(odds * there, axis=-1) / total
        variance = jnp.sum((odds - mean_odds[..., None]) ** 2 * there, axis=-1) / total
        swapped = jnp.sum(divergence * there, axis=-1) / total
        return dict(zip(PREDICTED, (mean_odds, jnp.sqrt(variance), swapped), strict=True))

    return look


def _of_chunk(
    model: TextModel, params: dict, some: tuple[jax.Array, ...], mask: int | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-odds, divergence and how many of its places count, of each context; C, C, C."""
    tokens_CxL, at_C, asked_CxM, counts_CxM, first_C, second_C = some
    row_C = jnp.arange(len(at_C))

    def law(tokens_CxL: jax.Array, at_CxM: jax.Array) -> jax.Array:
        """ln p of every token at some places, CxMxV."""
        places_P = (row_C[:, None] * tokens_CxL.shape[1] + at_CxM).ravel()
        h_PxD = model.apply({"params": params}, tokens_CxL, places_P, method="hidden")
        logits_PxV: Any = model.apply(
            {"params": params}, h_PxD, method=lambda self, h: self.embedding.logits(h)
        )
        return jax.nn.log_softmax(logits_PxV.astype(jnp.float32)).reshape(*at_CxM.shape, -1)

    if mask is None:
        itself, others = law(tokens_CxL, at_C[:, None] - 1), tokens_CxL
    else:
        itself = law(tokens_CxL.at[row_C, at_C].set(mask), at_C[:, None])
        others = tokens_CxL.at[row_C[:, None], asked_CxM].set(mask)
    odds_C = itself[row_C, 0, first_C] - itself[row_C, 0, second_C]
    before, after = (
        jnp.exp(law(others.at[row_C, at_C].set(token_C), asked_CxM))
        for token_C in (first_C, second_C)
    )
    moved_CxM = jnp.sum(jnp.abs(after - before), axis=-1) / 2
    counts_C = jnp.sum(counts_CxM, axis=1)
    return odds_C, jnp.sum(moved_CxM * counts_CxM, axis=1) / jnp.maximum(counts_C, 1), counts_C


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


def metrics(model: TextModel, params: dict, asked: Asked, block: int = BLOCK_SIZE) -> Metrics:
    """What a model makes of what it is asked; `loss` is what training takes the gradient of."""
    h_PxD = model.apply({"params": params}, asked.tokens_BxL, asked.at_P, method="hidden")

    def logits_of(embedding: dict, h_KxD: jax.Array) -> Any:
        """The embedding's own apply, unbound from the model: a pure function of its parameters."""
        return model.embedding.apply({"params": embedding}, h_KxD, method="logits")

    end = output_params(params["embedding"], model.embedding.untied_rows)
    loss, accuracy = blockwise_cross_entropy(
        logits_of, end, h_PxD, asked.target_P, asked.weight_P, block
    )
    return Metrics(loss, accuracy, jnp.sum(asked.weight_P), asked.dropped)


def make_step(
    model: TextModel, optimizer: optax.GradientTransformation, ask: Ask, block: int = BLOCK_SIZE
) -> Callable[[State, jax.Array, jax.Array], tuple[State, Metrics]]:
    """A step: (state, tokens BxL, key) -> (state, metrics of the batch before it). Jit it with the
    state donated.
    """

    def step(state: State, tokens_BxL: jax.Array, key: jax.Array) -> tuple[State, Metrics]:
        state, (_, looked_at) = update(
            _loss_on(model, ask(key, tokens_BxL), block), optimizer, state
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
    optimizer: optax.GradientTransformation,
    ask: Ask,
    adam: Optimizer,
    group_V: np.ndarray,
    groups: int,
) -> Callable[[State, jax.Array, jax.Array], tuple[State, Metrics, RoleSums]]:
    """A step of a tied member as `make_step` makes it, and who wrote the table, group by group.

    Args:
      optimizer: what `adam` declares.
      group_V: the group of each token.
    """
    constants = {"b1": adam.b1, "b2": adam.b2, "eps": adam.eps}

    def step(
        state: State, tokens_BxL: jax.Array, key: jax.Array
    ) -> tuple[State, Metrics, RoleSums]:
        loss_of = _loss_on(model, ask(key, tokens_BxL), BLOCK_SIZE)
        state, (_, looked_at), own = update_by_role(loss_of, optimizer, state, **constants)
        return state, looked_at, sum_by_group(own, group_V, groups)

    return step


def make_evaluation(
    model: TextModel, ask: Ask, block: int = BLOCK_SIZE
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
