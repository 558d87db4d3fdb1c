"""The loss of a fresh model whose body does nothing yet, measured; `jaxtie.models.initial_loss` has its estimates.

Shapes: A arms, T tokens, D width, W words of the vocabulary at a time, S deviations of the tables.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from jaxtie.experiment import Arm
from jaxtie.formulas import size
from jaxtie.models.embedding import make_embedding
from jaxtie.models.transforms import Projection

WORDS_AT_ONCE = 1000  # whose logits are in memory

STATIC = ("arms", "vocabulary", "width", "tokens")  # what the program of `measure` is compiled for

Drawn = dict[str, dict[str, jax.Array]]  # name of a transform -> its parameters


def word_rows(key: jax.Array, words: jax.Array, width: int) -> jax.Array:
    """Rows N(0, 1) of a table: a function of the word, so that no table need ever be in memory; (..., D)."""
    keys = jax.vmap(partial(jax.random.fold_in, key))(words)
    return jax.vmap(lambda key: jax.random.normal(key, (width,)))(keys)


def transform_of(arm: Arm, width: int) -> Callable[[jax.Array], jax.Array] | Projection | None:
    """What hidden states of an arm go through; the size of the vocabulary does not matter."""
    return make_embedding(arm.head, 1, width, tied=arm.tied).transform


def draw_projections(arms: tuple[Arm, ...], seed: int, width: int) -> Drawn:
    """Fresh parameters of every transform that has some."""
    transforms = {arm.head.transform: transform_of(arm, width) for arm in arms}
    of_seed = partial(_draw, seed=jnp.uint32(seed), width=width)
    return {name: of_seed(each) for name, each in transforms.items() if isinstance(each, Projection)}


@partial(jax.jit, static_argnames=("projection", "width"))
def _draw(projection: Projection, seed: jax.Array, width: int) -> dict[str, jax.Array]:
    return projection.init(jax.random.key(seed), width)


@partial(jax.jit, static_argnames=STATIC)
def measure(
    key: jax.Array,
    deviation_S: jax.Array,
    drawn: Drawn,
    *,
    arms: tuple[Arm, ...],
    vocabulary: int,
    width: int,
    tokens: int,
) -> jax.Array:
    """Initial loss of every deviation and arm, nats, mean over tokens; SxA.

    A deviation σ only multiplies logits, for the hidden state is normalised: so all share one table N(0, 1), and the same
    tokens. The target is any other word than the token. Logits are there for some words at a time.
    """
    keys = jax.random.split(key, 4)
    token_T = jax.random.randint(keys[0], (tokens,), 0, vocabulary)
    target_T = (token_T + jax.random.randint(keys[1], (tokens,), 1, vocabulary)) % vocabulary
    tied_TxD, untied_TxD = (_normalise(word_rows(key, token_T, width)) for key in keys[2:])
    hidden_AxTxD = jnp.stack([_hidden(arm, tied_TxD if arm.tied else untied_TxD, drawn, vocabulary) for arm in arms])

    def add(log_sum_SxAxT: jax.Array, block: jax.Array) -> tuple[jax.Array, None]:
        word_W = block * WORDS_AT_ONCE + jnp.arange(min(WORDS_AT_ONCE, vocabulary))
        logits_AxTxW = jnp.einsum("atd,wd->atw", hidden_AxTxD, word_rows(keys[2], word_W, width))
        logits_AxTxW = jnp.where((word_W < vocabulary)[None, None], logits_AxTxW, -jnp.inf)
        of_block = jax.lax.map(lambda deviation: jax.nn.logsumexp(deviation * logits_AxTxW, axis=-1), deviation_S)
        return jnp.logaddexp(log_sum_SxAxT, of_block), None

    start = jnp.full((len(deviation_S), len(arms), tokens), -jnp.inf)
    log_sum_SxAxT, _ = jax.lax.scan(add, start, jnp.arange(-(-vocabulary // WORDS_AT_ONCE)))
    chosen_AxT = jnp.einsum("atd,td->at", hidden_AxTxD, word_rows(keys[2], target_T, width))
    return jnp.mean(log_sum_SxAxT - deviation_S[:, None, None] * chosen_AxT[None], axis=-1)


def _normalise(h_TxD: jax.Array) -> jax.Array:
    return h_TxD * jnp.sqrt(h_TxD.shape[-1] / jnp.sum(h_TxD**2, axis=-1, keepdims=True))


def _hidden(arm: Arm, h_TxD: jax.Array, drawn: Drawn, vocabulary: int) -> jax.Array:
    """What an arm's hidden states have become when they meet the output table; its logit scale is in them."""
    width = h_TxD.shape[-1]
    transform = transform_of(arm, width)
    if isinstance(transform, Projection):
        h_TxD = transform.apply(drawn[arm.head.transform], h_TxD)
    elif transform is not None:
        h_TxD = transform(h_TxD)
    scale = arm.head.logit_scale
    return h_TxD if scale is None else h_TxD * size(scale, vocabulary, width)
