"""What models say of real contexts of a token, and what becomes of it with another token in its
place.

A context is a window of the validation text: so many tokens on the left, the token, the true text
after it up to the end of its sentence. All that is asked of a token is asked in one call: its own
windows once, then each other token in its place.

Shapes: N windows of a token, L tokens a window, K distances, M tokens to put in its place, V
vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.models.text_model import TextModel
from jaxtie.text.windows import AFTER, BEFORE, Windows
from jaxtie.training.devices import cores

AT_A_TIME = 16  # tokens that are put in a token's place in one call


class Swapped(NamedTuple):
    """What two models make of another token in the place of the true one.

    Attributes:
      own_2xN, other_2xN: ln q(true token | left), ln q(other token | left), nats.
      cross_NxK, own_2xNxK: ½⟨g_A, g_B⟩ and each model's ½⟨g, g⟩, see
        `jaxtie.hypothesis.estimators.Products`.
    """

    own_2xN: np.ndarray
    other_2xN: np.ndarray
    cross_NxK: np.ndarray
    own_2xNxK: np.ndarray


def make_swap(models: Sequence[TextModel]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """A jitted function of the two models' parameters, tokens_NxL, other_M int32 and how many of
    these count.

    It returns ln q(token | left) of the true token and of the others, (2, N, 1 + M), and for each
    other one ½⟨g_A, g_B⟩, ½⟨g_A, g_A⟩ and ½⟨g_B, g_B⟩, (M, 3, N, K). What does not count is 0.
    """

    def log_law(model: TextModel, params: dict, tokens_NxL: jax.Array, first: int) -> jax.Array:
        """ln q of every token from place `first` on, (N, K, V)."""
        rows, length = tokens_NxL.shape
        at_P = (jnp.arange(rows)[:, None] * length + jnp.arange(first, length)[None]).ravel()
        h_PxD = model.apply({"params": params}, tokens_NxL, at_P, method="hidden")
        logits_PxV: Any = model.apply(
            {"params": params}, h_PxD, method=lambda self, h: self.embedding.logits(h)
        )
        return jax.nn.log_softmax(logits_PxV.astype(jnp.float32)).reshape(rows, length - first, -1)

    @jax.jit
    def swap(
        params_2: tuple[dict, dict], tokens_NxL: jax.Array, other_M: jax.Array, count: jax.Array
    ):
        ids_M1 = jnp.concatenate([tokens_NxL[0, BEFORE, None], other_M])
        left, root = [], []
        for model, params in zip(models, params_2):
            law_NxKxV = log_law(model, params, tokens_NxL, BEFORE - 1)
            left.append(law_NxKxV[:, 0][:, ids_M1])
            root.append(jnp.exp(law_NxKxV[:, 1:] / 2))

        def one(m: jax.Array, found: jax.Array) -> jax.Array:
            there_NxL = tokens_NxL.at[:, BEFORE].set(other_M[m])
            g_A, g_B = (
                jnp.exp(log_law(model, params, there_NxL, BEFORE) / 2) - root_NxKxV
                for model, params, root_NxKxV in zip(models, params_2, root)
            )
            products = [
                jnp.sum(x * y, axis=-1) / 2 for x, y in ((g_A, g_B), (g_A, g_A), (g_B, g_B))
            ]
            return found.at[m].set(jnp.stack(products))

        nothing = jnp.zeros((len(other_M), 3, len(tokens_NxL), AFTER), jnp.float32)
        return jnp.stack(left), jax.lax.fori_loop(0, count, one, nothing)

    return swap


def swap_all(
    swap: Callable[..., tuple[jax.Array, jax.Array]],
    params_2: tuple[dict, dict],
    windows: Mapping[int, Windows],
    others: Mapping[int, Sequence[int]],
) -> Iterator[tuple[int, int, Swapped]]:
    """Of each token and each one that is put in its place: what the models make of it; a thread a
    core.

    Args:
      windows: of each token; of any numbers, the largest of which all are filled up to.
      others: what is put in its place.
    """
    most = max(len(each.sentence_N) for each in windows.values())

    def one(task: tuple[int, Sequence[int]]) -> list[tuple[int, int, Swapped]]:
        token, some = task
        own, number = windows[token], len(windows[token].sentence_N)
        # again from the first where there are fewer
        tokens_NxL = np.resize(own.tokens_NxL, (most, *own.tokens_NxL.shape[1:]))
        other_M = np.zeros(AT_A_TIME, np.int32)
        other_M[: len(some)] = some
        left, products = (
            np.asarray(x) for x in swap(params_2, tokens_NxL, other_M, np.int32(len(some)))
        )
        products = np.where(own.asked_NxK, products[:, :, :number], np.nan)
        left = left[:, :number]
        return [
            (token, other, Swapped(left[..., 0], left[..., m + 1], products[m, 0], products[m, 1:]))
            for m, other in enumerate(some)
        ]

    with ThreadPoolExecutor(cores()) as pool:
        for found in pool.map(one, list(_tasks(others))):
            yield from found


def _tasks(others: Mapping[int, Sequence[int]]) -> Iterable[tuple[int, Sequence[int]]]:
    """Each token with some of those to be put in its place."""
    for token, some in others.items():
        for start in range(0, len(some), AT_A_TIME):
            yield token, some[start : start + AT_A_TIME]
