"""Ground truth: exact predictions and divergences of a synthetic source, EXor and topics.

Shapes: N states, V tokens, C left contexts, B sentences, L tokens, K distances.
"""

from collections.abc import Sequence
from pathlib import Path

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from equivalence import estimators
from equivalence.judgement import Sums
from synthetic import Source, word_of

from jaxtie.exor import data
from jaxtie.text.data.vocabulary import SPECIAL_TOKENS, vocabulary_file

WORDS, LENGTH = 50, 5  # of a text of topics: vocabulary, words per sentence


def predictions(source: Source, tokens_BxL: np.ndarray) -> np.ndarray:
    """Return p(next token | the tokens up to this one), BxLxV.

    After a text of probability 0, a homograph has its average meaning. Each sentence begins with
    the beginning.
    """
    belief_BxN = np.zeros((len(tokens_BxL), len(source.token_N)))
    belief_BxN[:, 0] = 1
    to_tokens_NxV = _next_tokens(source)
    found = [belief_BxN @ to_tokens_NxV]
    for token_B in tokens_BxL[:, 1:].T:
        belief_BxN = _read(source, belief_BxN, token_B)
        found.append(belief_BxN @ to_tokens_NxV)
    return np.stack(found, axis=1)


def _next_tokens(source: Source) -> np.ndarray:
    """Return p(next token | state)."""
    return source.transition_NxN @ (source.token_N[:, None] == np.arange(source.token_N.max() + 1))


def _read(source: Source, belief_BxN: np.ndarray, token: np.ndarray | int) -> np.ndarray:
    """Update the distribution of the state by one more token."""
    is_state_xN = source.token_N == np.expand_dims(token, -1)
    after_BxN = belief_BxN @ source.transition_NxN * is_state_xN
    total_Bx1 = after_BxN.sum(axis=1, keepdims=True)
    after_BxN = np.where(total_Bx1 > 0, after_BxN, source.transition_NxN[0] * is_state_xN)
    return after_BxN / after_BxN.sum(axis=1, keepdims=True)


def _left_contexts(source: Source, places: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all left contexts with different continuations, in the first places of a sentence.

    Their probabilities, (C,), and p(state of the last token | context), CxN. The places, at least
    2, count equally.
    """
    several_N = np.bincount(source.token_N)[source.token_N] > 1
    clear = np.flatnonzero(~several_N)
    seen_N = source.transition_NxN[0] * (places - 1) / places
    seen_N[0] = 1 / places
    belief_NxN = np.eye(len(several_N))[clear]
    weights, beliefs = [seen_N[clear]], [belief_NxN]
    for token in np.unique(source.token_N[several_N]):
        # Before the token, which has another token after it.
        before_N = source.transition_NxN[0] * (places - 2) / places
        before_N[0] = 1 / places
        to_token_N = source.transition_NxN[clear][:, source.token_N == token].sum(axis=1)
        weights.append(before_N[clear] * to_token_N)
        beliefs.append(_read(source, belief_NxN, token))
    return np.concatenate(weights), np.concatenate(beliefs)


def exact(
    source: Source, pair_Px2: np.ndarray, places: int
) -> tuple[estimators.Conditional, estimators.Semantic]:
    """Return the limits of the estimators with perfect models and endless data, by pair.

    Occurrences are in the first places of a sentence, with the next tokens after them. Bias and C²
    are NaN where the source excludes one of a pair, as estimates are.
    """
    weight_C, belief_CxN = _left_contexts(source, places)
    to_tokens_NxV = _next_tokens(source)
    conditional, semantic = [], []
    for pair in pair_Px2:
        next_Cx2 = belief_CxN @ to_tokens_NxV[:, pair]
        joint_2xC = weight_C * next_Cx2.T
        joint_2xC = joint_2xC / joint_2xC.sum(axis=1, keepdims=True) / 2  # equally many of each
        conditional.append(_conditional(next_Cx2, joint_2xC.sum(axis=0)))
        semantic.append(_semantic(source, to_tokens_NxV, belief_CxN, pair, joint_2xC))
    return (
        estimators.Conditional(*np.array(conditional).T),
        estimators.Semantic(*np.array(semantic).T),
    )


def _conditional(next_Cx2: np.ndarray, weight_C: np.ndarray) -> estimators.Conditional:
    with np.errstate(divide="ignore", invalid="ignore"):
        log_first_C, log_second_C = np.log(next_Cx2).T
        ratio_C = np.where(weight_C > 0, log_second_C - log_first_C, 0)
    overlap = weight_C @ np.cosh(ratio_C / 2) ** -2.0
    ratio_C = np.where(np.isfinite(ratio_C), ratio_C, np.nan)
    bias = weight_C @ ratio_C
    return estimators.Conditional(bias, 0.0, weight_C @ (ratio_C - bias) ** 2, 0.0, overlap)


def _semantic(
    source: Source,
    to_tokens_NxV: np.ndarray,
    belief_CxN: np.ndarray,
    pair: np.ndarray,
    joint_2xC: np.ndarray,
) -> estimators.Semantic:
    """Sum distance 1, and distance 2 if a homograph follows the pair; nothing is left after that.

    After a token with one meaning, the context on its left does not matter, so one is enough.
    """
    tokens, times = np.unique(source.token_N, return_counts=True)
    homographs = tokens[times > 1]
    beliefs = [
        _read(source, belief_CxN[: None if token in homographs else 1], token) for token in pair
    ]
    follows = [belief_xN @ to_tokens_NxV for belief_xN in beliefs]
    weight_C, at_1_C = joint_2xC.sum(axis=0), _hellinger(*follows) * np.ones(len(belief_CxN))
    first, square, later = weight_C @ at_1_C, weight_C @ at_1_C**2, 0.0
    for token in homographs:
        after = (_read(source, belief_xN, token) @ to_tokens_NxV for belief_xN in beliefs)
        at_2_C = _hellinger(*after)
        follows_C = sum(joint_C * own_xV[:, token] for joint_C, own_xV in zip(joint_2xC, follows))
        later += np.sum(follows_C * at_2_C)
        square += np.sum(follows_C * (2 * at_1_C * at_2_C + at_2_C**2))
    return estimators.Semantic(first + later, first, later, square - (first + later) ** 2, 0.0)


def _hellinger(one_CxV: np.ndarray, other_CxV: np.ndarray) -> np.ndarray:
    """Return the squared Hellinger distance of two distributions, in [0, 1]; (C,)."""
    return np.sum((np.sqrt(one_CxV) - np.sqrt(other_CxV)) ** 2, axis=-1) / 2


def sums_of_both(logs: np.ndarray, roots: np.ndarray, sentence_N: np.ndarray) -> Sums:
    """Sum ln q of both tokens, 2x2xN, and square roots of predictions, 2x2xNxKxV, by sentence."""
    conditional = estimators.conditional_sums(*logs, sentence_N)
    return Sums(conditional, estimators.semantic_sums(*semantic_products(*roots), sentence_N))


def estimate_both(
    logs: np.ndarray, roots: np.ndarray, sentence_N: np.ndarray
) -> tuple[estimators.Conditional, estimators.Semantic]:
    """Estimate from the same."""
    sums = sums_of_both(logs, roots, sentence_N)
    return estimators.conditional(sums.conditional), estimators.semantic(sums.semantic)


def noisy_sums(
    source: Source,
    tokens_BxL: np.ndarray,
    pair: Sequence[int],
    places: int,
    distances: int,
    each: int,
    deviation: float,
    rng: np.random.Generator,
    rounds: int = 1,
) -> list[Sums]:
    """Sum the predictions of two models with independent errors at `each` occurrences, by round."""
    sentence_N, place_N = occurrences(tokens_BxL[:, :places], pair, each, rng)
    left, *after = predictions_around(source, tokens_BxL, pair, sentence_N, place_N, distances)
    found = []
    for _ in range(rounds):
        logs = np.log([noisy(left, deviation, rng)[:, pair] for _ in "AB"])
        roots = np.sqrt([[noisy(q, deviation, rng) for _ in "AB"] for q in after])
        found.append(sums_of_both(np.moveaxis(logs, -1, 0), roots, sentence_N))
    return found


def semantic_products(
    root_first_2xNxKxV: np.ndarray, root_second_2xNxKxV: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return ½⟨g_A, g_B⟩, NxK, and ½⟨g, g⟩ of each model, 2xNxK, from roots of predictions."""
    g_2xNxKxV = np.subtract(root_second_2xNxKxV, root_first_2xNxKxV)
    own_2xNxK = np.einsum("mnkv,mnkv->mnk", g_2xNxKxV, g_2xNxKxV, dtype=np.float64) / 2
    return np.einsum("nkv,nkv->nk", *g_2xNxKxV, dtype=np.float64) / 2, own_2xNxK


def exor_pair(first: int, second: int) -> tuple[estimators.Conditional, estimators.Semantic]:
    """Estimate from the exact distribution of EXor, at all contexts of either symbol."""
    process = data.enumerate_process(7, (0.1, 0.9), (0.5, 0.5))
    q_CxV = process.joint_CxV / process.joint_CxV.sum(axis=1, keepdims=True)
    is_target = q_CxV[:, [first, second]].any(axis=1)
    with np.errstate(divide="ignore"):
        logs = np.log([[q_CxV[is_target, token]] * 2 for token in (first, second)])
    contexts = process.tokens_CxL.tolist()
    number = {tuple(tokens): row for row, tokens in enumerate(contexts)}
    roots = []
    for tokens in contexts:
        for token, other in ((first, second), (second, first)):
            if token in tokens:
                swapped = tokens.copy()
                swapped[tokens.index(token)] = other
                rows = number[tuple(tokens)], number[tuple(sorted(swapped))]
                roots.append(np.sqrt(q_CxV[list(rows if token == first else rows[::-1])]))
    # One masked position.
    roots_2x2xNx1xV = np.repeat(np.stack(roots, axis=1)[:, None, :, None], 2, axis=1)
    conditional = estimators.conditional_sums(*logs, np.arange(is_target.sum()))
    semantic = estimators.semantic_sums(*semantic_products(*roots_2x2xNx1xV), np.arange(len(roots)))
    return estimators.conditional(conditional), estimators.semantic(semantic)


def occurrences(
    tokens_BxL: np.ndarray, pair: tuple[int, int], each: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw `each` occurrences of either token, one a sentence: sentences and places, (N,) each."""
    found = []
    for token in pair:
        sentences, places = np.nonzero(tokens_BxL == token)
        mixed = rng.permutation(len(sentences))
        _, first = np.unique(sentences[mixed], return_index=True)
        chosen = mixed[rng.permutation(first)[:each]]
        assert len(chosen) == each
        found.append((sentences[chosen], places[chosen]))
    return tuple(np.concatenate(part) for part in zip(*found))


def predictions_around(
    source: Source,
    tokens_BxL: np.ndarray,
    pair: tuple[int, int],
    sentence_N: np.ndarray,
    place_N: np.ndarray,
    distances: int,
) -> list[np.ndarray]:
    """Return p(next token) left of occurrences, NxV, and after either token there, NxKxV each."""
    rows, text_NxL = np.arange(len(sentence_N)), tokens_BxL[sentence_N]
    found = [predictions(source, text_NxL)[rows, place_N - 1]]
    for token in pair:
        swapped_NxL = text_NxL.copy()
        swapped_NxL[rows, place_N] = token
        predicted_NxLxV = predictions(source, swapped_NxL)
        found.append(predicted_NxLxV[rows[:, None], place_N[:, None] + np.arange(distances)])
    return found


def noisy(q: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    """Add independent noise to every log-probability, as a model's errors."""
    odds = q * np.exp(deviation * rng.normal(size=q.shape))
    return odds / odds.sum(axis=-1, keepdims=True)


def topic_probabilities() -> np.ndarray:
    """Draw p(word | topic), ZxW; topics are equally likely, and words have no order."""
    p_ZxW = np.random.default_rng(0).gamma(0.7, size=(4, WORDS))
    return p_ZxW / p_ZxW.sum(axis=1, keepdims=True)


def write_topics(folder: Path, p_ZxW: np.ndarray, number: int) -> tuple[Path, Path]:
    """Write sentences of one topic each, a paragraph each, and their vocabulary."""
    rng, names = np.random.default_rng(1), [word_of(word) for word in range(WORDS)]
    topics = rng.integers(0, len(p_ZxW), number)
    sentences = (rng.choice(WORDS, LENGTH, p=p_ZxW[topic]) for topic in topics)
    text, vocabulary = folder / "topics.txt", folder / "topics-vocab.txt"
    lines = (" ".join(names[word] for word in words) for words in sentences)
    text.write_text("\n\n".join(lines) + "\n")
    vocabulary.write_bytes(vocabulary_file([*SPECIAL_TOKENS, *names]))
    return text, vocabulary


class Logits(nn.Module):
    """An output embedding for models whose hidden states are logits."""

    untied_rows: tuple[int, ...] = ()

    def logits(self, h_PxV):
        return h_PxV


class PerfectTopics(nn.Module):
    """A perfect masked model: the topic by Bayes, then the word. `p_ZxV`: 0 of special tokens."""

    embedding: nn.Module
    p_ZxV: np.ndarray

    def hidden(self, tokens_BxL, at_P):
        p_ZxV = jnp.asarray(self.p_ZxV)
        is_word_BxL = p_ZxV.sum(axis=0)[tokens_BxL] > 0
        logs_BxLxZ = jnp.where(is_word_BxL[..., None], jnp.log(p_ZxV.T[tokens_BxL]), 0)
        topic_BxZ = jnp.exp(logs_BxLxZ.sum(axis=1))
        q_BxV = topic_BxZ @ p_ZxV / topic_BxZ.sum(axis=1, keepdims=True)
        return jnp.log(q_BxV)[at_P // tokens_BxL.shape[1]]
