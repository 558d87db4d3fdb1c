"""Interpolated Kneser-Ney counts of 4-grams, a baseline for language models.

Kneser and Ney 1995, interpolated as by Chen and Goodman 1999, with one discount for each order. An
n-gram is known by a 64-bit hash of its tokens; in 2^25 of them, two share one by a chance of 3e-5.

Shapes: N tokens of a text, B rows of L tokens, G different n-grams.
"""

from typing import NamedTuple

import numpy as np

ORDER = 4
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so multiplication loses nothing


class _Order(NamedTuple):
    """Counts of n-grams, and of the contexts that they begin with; hashes ascend."""

    gram_G: np.ndarray
    count_G: np.ndarray
    context_C: np.ndarray
    total_C: np.ndarray  # of the n-grams that begin with the context
    kinds_C: np.ndarray  # number of these that are different
    discount: float


def _hashes(token_xL: np.ndarray) -> list[np.ndarray]:
    """Return for n = 0, ..., `ORDER` the hashes of the n tokens that end at each place."""
    found = [np.zeros(token_xL.shape, np.uint64)]
    for _ in range(ORDER):
        before = np.zeros_like(found[-1])
        before[..., 1:] = found[-1][..., :-1]
        mixed = (before ^ (before >> np.uint64(31))) * _FACTOR
        found.append(mixed + token_xL.astype(np.uint64) + np.uint64(1))
    return found


def _count(gram_N: np.ndarray, context_N: np.ndarray) -> tuple[_Order, np.ndarray]:
    """Count n-grams; return also where each different one is first."""
    gram_G, first_G, count_G = np.unique(gram_N, return_index=True, return_counts=True)
    context_C, which_G = np.unique(context_N[first_G], return_inverse=True)
    once, twice = (int(np.sum(count_G == times)) for times in (1, 2))
    discount = once / (once + 2 * twice) if once else 0.5  # 1/2: in a repeated text
    total_C = np.bincount(which_G, count_G, len(context_C))
    kinds_C = np.bincount(which_G, minlength=len(context_C))
    return _Order(gram_G, count_G, context_C, total_C, kinds_C, discount), first_G


def _at(known_G: np.ndarray, value_G: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the values of wanted hashes, 0 of unknown ones."""
    place = np.minimum(np.searchsorted(known_G, wanted), len(known_G) - 1)
    return np.where(known_G[place] == wanted, value_G[place], 0)


class KneserNey:
    """The probability of a token after up to three others, by the counts of a text.

    p_n(w | h) = (max(c(h w) - d, 0) + d·k(h)·p_{n-1}(w | h')) / c(h)

    h' lacks the first token of h, k(h) is the number of different tokens after h, c(h) the sum of
    c(h w) over w, and d = n₁ / (n₁ + 2 n₂), with n₁ and n₂ the numbers of n-grams seen once and
    twice. c counts occurrences for n = 4; for less, different tokens on the left. p_0 is uniform.
    """

    def __init__(self, token_N: np.ndarray, usable_V: np.ndarray):
        """Count a text of at least `ORDER` tokens; `usable_V`: bool, which tokens are predicted."""
        self.uniform = 1 / int(usable_V.sum())
        hashes = _hashes(token_N)  # popped, since each is as large as the text
        place_N = np.arange(ORDER - 1, len(token_N))
        place_N = place_N[usable_V[token_N[place_N]]]
        self.orders: list[_Order] = []  # n = 4, 3, 2, 1
        for n in range(ORDER, 0, -1):
            context_N = hashes[n - 1][place_N - 1] if n > 1 else np.zeros(len(place_N), np.uint64)
            order, first_G = _count(hashes.pop()[place_N], context_N)
            self.orders.append(order)
            place_N = place_N[first_G]  # each different n-gram is one on the left of its end

    def probabilities(self, token_BxL: np.ndarray) -> np.ndarray:
        """Return the probability of each token but the first after those before it; Bx(L - 1)."""
        hashes = _hashes(token_BxL)
        found = np.full((len(token_BxL), token_BxL.shape[1] - 1), self.uniform)
        for n, order in zip(range(1, ORDER + 1), reversed(self.orders)):
            # a token with fewer than n - 1 before it has no such context
            here = np.s_[:, max(n - 2, 0) :]
            gram, context = hashes[n][:, 1:][here], hashes[n - 1][:, :-1][here]
            if n == 1:
                context = np.zeros_like(context)
            total = _at(order.context_C, order.total_C, context)
            kinds = _at(order.context_C, order.kinds_C, context)
            count = _at(order.gram_G, order.count_G, gram)
            kept = np.maximum(count - order.discount, 0) + order.discount * kinds * found[here]
            found[here] = np.where(total > 0, kept / np.maximum(total, 1), found[here])
        return found
