"""Exact predictions and divergences of a source of known equivalences, by enumeration.

Shapes: N states, V tokens, C contexts (what of the past tells the law of the next token), B
sentences, L tokens.
"""

from typing import NamedTuple

import numpy as np

from jaxtie.advise import estimators
from jaxtie.exor import data
from jaxtie.text.data.synthetic import KnownSource


class LeftContexts(NamedTuple):
    """All that can stand on the left, as far as it matters: the exact law of what follows.

    Attributes:
      weight_C: how often, summing to 1.
      belief_CxN: p(state | context) of the last token.
      next_CxV: p(next token | context).
    """

    weight_C: np.ndarray
    belief_CxN: np.ndarray
    next_CxV: np.ndarray


def predictions(source: KnownSource, tokens_BxL: np.ndarray) -> np.ndarray:
    """`law_BxLxV`: p(next token | the tokens up to this one), what a model without error would say.

    After a text that never occurs, a homograph means what it means on the whole.

    Args:
      tokens_BxL: each sentence begins with the beginning.
    """
    belief_BxN = np.zeros((len(tokens_BxL), len(source.token_N)))
    belief_BxN[:, 0] = 1
    to_tokens_NxV = _next_tokens(source)
    laws = [belief_BxN @ to_tokens_NxV]
    for token_B in tokens_BxL[:, 1:].T:
        belief_BxN = _read(source, belief_BxN, token_B)
        laws.append(belief_BxN @ to_tokens_NxV)
    return np.stack(laws, axis=1)


def _next_tokens(source: KnownSource) -> np.ndarray:
    """p(next token | state)."""
    return source.transition_NxN @ (source.token_N[:, None] == np.arange(source.token_N.max() + 1))


def _read(source: KnownSource, belief_BxN: np.ndarray, token: np.ndarray | int) -> np.ndarray:
    """What the last state is believed to be after one more token."""
    stands_xN = source.token_N == np.expand_dims(token, -1)
    after_BxN = belief_BxN @ source.transition_NxN * stands_xN
    total_Bx1 = after_BxN.sum(axis=1, keepdims=True)
    on_the_whole_xN = source.share_N * stands_xN
    after_BxN = np.where(total_Bx1 > 0, after_BxN, on_the_whole_xN)
    return after_BxN / after_BxN.sum(axis=1, keepdims=True)


def left_contexts(source: KnownSource, places: int) -> LeftContexts:
    """The left contexts of the first so many places of a sentence, each place alike; at least 2."""
    states = len(source.token_N)
    several_N = np.bincount(source.token_N)[source.token_N] > 1
    clear = np.flatnonzero(~several_N)
    seen_N = source.share_N * (places - 1) / places
    seen_N[0] = 1 / places
    belief_NxN = np.eye(states)[clear]
    weights, beliefs = [seen_N[clear]], [belief_NxN]
    for token in np.unique(source.token_N[several_N]):
        # so often something stands there, and a token after it
        before_N = source.share_N * (places - 2) / places
        before_N[0] = 1 / places
        weights.append(
            before_N[clear] * source.transition_NxN[clear][:, source.token_N == token].sum(axis=1)
        )
        beliefs.append(_read(source, belief_NxN, token))
    belief_CxN = np.concatenate(beliefs)
    return LeftContexts(np.concatenate(weights), belief_CxN, belief_CxN @ _next_tokens(source))


def exact(
    source: KnownSource, pair_Px2: np.ndarray, places: int
) -> tuple[estimators.Conditional, estimators.Semantic]:
    """What the estimators find with models without error and endless data, by enumeration; one
    value for each pair.

    Where the source excludes one of a pair, its bias and its C² are NaN, as estimates are.

    Args:
      pair_Px2: tokens, none of them the beginning.
      places: occurrences are looked at in the first so many places of a sentence, each with the
        next tokens after it.
    """
    contexts, to_tokens_NxV = left_contexts(source, places), _next_tokens(source)
    conditional, semantic = [], []
    for pair in pair_Px2:
        law_2xC = contexts.weight_C * contexts.next_CxV[:, pair].T
        law_2xC = law_2xC / law_2xC.sum(axis=1, keepdims=True) / 2  # as many occurrences of each
        conditional.append(_exactly_conditional(contexts.next_CxV[:, pair], law_2xC.sum(axis=0)))
        semantic.append(
            _exactly_semantic(source, to_tokens_NxV, contexts.belief_CxN, pair, law_2xC)
        )
    return estimators.Conditional(*np.array(conditional).T), estimators.Semantic(
        *np.array(semantic).T
    )


def _exactly_conditional(next_Cx2: np.ndarray, weight_C: np.ndarray) -> estimators.Conditional:
    with np.errstate(divide="ignore", invalid="ignore"):
        log_first_C, log_second_C = np.log(next_Cx2).T
        ratio_C = np.where(weight_C > 0, log_second_C - log_first_C, 0)
    overlap = weight_C @ np.cosh(ratio_C / 2) ** -2.0
    ratio_C = np.where(np.isfinite(ratio_C), ratio_C, np.nan)
    bias = weight_C @ ratio_C
    return estimators.Conditional(bias, 0.0, weight_C @ (ratio_C - bias) ** 2, 0.0, overlap)


def _exactly_semantic(
    source: KnownSource,
    to_tokens_NxV: np.ndarray,
    belief_CxN: np.ndarray,
    pair: np.ndarray,
    law_2xC: np.ndarray,
) -> estimators.Semantic:
    """At distance 1; and at distance 2, if the pair is followed by a homograph. From there on
    nothing is left of the past.

    After a token that has one meaning, it does not matter which context was on its left: one stands
    for all.
    """
    tokens, times = np.unique(source.token_N, return_counts=True)
    homographs = tokens[times > 1]
    beliefs = [
        _read(source, belief_CxN[: None if token in homographs else 1], token) for token in pair
    ]
    follows = [belief_xN @ to_tokens_NxV for belief_xN in beliefs]
    weight_C, at_1_C = law_2xC.sum(axis=0), _hellinger(*follows) * np.ones(len(belief_CxN))
    first, square, later = weight_C @ at_1_C, weight_C @ at_1_C**2, 0.0
    for token in homographs:
        at_2_C = _hellinger(
            *(_read(source, belief_xN, token) @ to_tokens_NxV for belief_xN in beliefs)
        )
        follows_C = sum(law_C * law_xV[:, token] for law_C, law_xV in zip(law_2xC, follows))
        later += np.sum(follows_C * at_2_C)
        square += np.sum(follows_C * (2 * at_1_C * at_2_C + at_2_C**2))
    return estimators.Semantic(first + later, first, later, square - (first + later) ** 2, 0.0)


def _hellinger(law_CxV: np.ndarray, other_CxV: np.ndarray) -> np.ndarray:
    """Squared Hellinger distance between two laws, in [0, 1]; (C,)."""
    return np.sum((np.sqrt(law_CxV) - np.sqrt(other_CxV)) ** 2, axis=-1) / 2


def exor_pair(first: int, second: int, models: int = 2):
    """Of the exact law of EXor: contexts where either is the target; and contexts with either, and
    what they become.
    """
    law = data.enumerate_process(7, (0.1, 0.9), (0.5, 0.5))
    law_CxV = law.joint_CxV / law.joint_CxV.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        log_CxV = np.log(law_CxV)
    asked = law_CxV[:, [first, second]].any(axis=1)
    logs = np.stack([[log_CxV[asked, token]] * models for token in (first, second)])
    number = {tuple(tokens): row for row, tokens in enumerate(law.tokens_CxL.tolist())}
    laws = []
    for tokens in law.tokens_CxL.tolist():
        for token, other in ((first, second), (second, first)):
            if token in tokens:
                there = tokens.copy()
                there[tokens.index(token)] = other
                rows = number[tuple(tokens)], number[tuple(sorted(there))]
                laws.append(np.sqrt(law_CxV[list(rows if token == first else rows[::-1])]))
    # one masked position
    roots = np.repeat(np.stack(laws, axis=1)[:, None, :, None], models, axis=1)
    conditional = estimators.conditional(estimators.conditional_sums(*logs, np.arange(asked.sum())))
    sums = estimators.semantic_sums(estimators.semantic_products(*roots), np.arange(len(laws)))
    return conditional, estimators.semantic(sums)
