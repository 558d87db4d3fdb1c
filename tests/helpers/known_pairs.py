"""Occurrences of pairs in text of a known source, and the exact predictions around them."""

import numpy as np
from exact_source import predictions

from jaxtie.text.data import synthetic


def occurrences(tokens_BxL: np.ndarray, pair: tuple[int, int], each: int, rng: np.random.Generator):
    """Draw occurrences of both tokens, one a sentence: sentences and places, (N,) each."""
    found = []
    for token in pair:
        sentences, places = np.nonzero(tokens_BxL == token)
        mixed = rng.permutation(len(sentences))
        _, first = np.unique(sentences[mixed], return_index=True)
        chosen = mixed[rng.permutation(first)[:each]]
        assert len(chosen) == each
        found.append((sentences[chosen], places[chosen]))
    return tuple(np.concatenate(part) for part in zip(*found))


def laws_around(
    source: synthetic.KnownSource, tokens_BxL: np.ndarray, pair, sentence_N, place_N, distances: int
):
    """Compute p(next token) before each occurrence, NxV, and after either token, NxKxV each."""
    rows, text_NxL = np.arange(len(sentence_N)), tokens_BxL[sentence_N]
    laws = [predictions(source, text_NxL)[rows, place_N - 1]]
    for token in pair:
        swapped_NxL = text_NxL.copy()
        swapped_NxL[rows, place_N] = token
        predicted_NxLxV = predictions(source, swapped_NxL)
        laws.append(predicted_NxLxV[rows[:, None], place_N[:, None] + np.arange(distances)])
    return laws


def noisy(law: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    """Add independent noise to the logarithms of a distribution."""
    odds = law * np.exp(deviation * rng.normal(size=law.shape))
    return odds / odds.sum(axis=-1, keepdims=True)
