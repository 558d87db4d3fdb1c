"""Pairs of a source whose truth is known: where they occur, and what its law says around them."""

import numpy as np
from exact_source import predictions

from jaxtie.text.data import synthetic


def occurrences(tokens_BxL: np.ndarray, pair: tuple[int, int], each: int, rng: np.random.Generator):
    """As many random occurrences of each of the pair: their sentences and places, (N,) each; one of
    a token in a sentence.
    """
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
    """p(next token) on the left of each occurrence, NxV; and after the first or the second stands
    there, NxKxV each.
    """
    rows, text_NxL = np.arange(len(sentence_N)), tokens_BxL[sentence_N]
    laws = [predictions(source, text_NxL)[rows, place_N - 1]]
    for token in pair:
        swapped_NxL = text_NxL.copy()
        swapped_NxL[rows, place_N] = token
        predicted_NxLxV = predictions(source, swapped_NxL)
        laws.append(predicted_NxLxV[rows[:, None], place_N[:, None] + np.arange(distances)])
    return laws


def noisy(law: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    """What a model says that is off by independent noise in every logarithm."""
    odds = law * np.exp(deviation * rng.normal(size=law.shape))
    return odds / odds.sum(axis=-1, keepdims=True)
