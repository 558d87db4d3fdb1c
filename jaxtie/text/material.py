"""A corpus as an experiment sees it: its vocabulary with duplicates, the words that are looked at, batches of its rows.

Imports no jax.
"""

from typing import NamedTuple

import numpy as np

from jaxtie.experiment import number_of
from jaxtie.text.corpus.batches import CausalBatches, MaskedBatches, RowBatch, Rows
from jaxtie.text.corpus.tokens import Text
from jaxtie.text.corpus.words import frequent_words
from jaxtie.text.declaration import TextExperiment
from jaxtie.text.planting import Planted, plant, planted_words, take_half

RANKS = (10, 100, 1_000, 10_000)  # where groups of tokens end, the most frequent ones first
FREQUENCIES = ("1-10", "11-100", "101-1,000", "1,001-10,000", "10,001 on")  # these groups, by rank
PROBES, NEIGHBOURS = 8, 5  # words whose nearest neighbours are looked up, and how many of these


class Material(NamedTuple):
    """A corpus as an experiment sees it.

    Attributes:
      text: the corpus; with what is planted, and of its training rows what the experiment trains on.
      vocabulary: its tokens, then a duplicate of each of the frequent words, marked by a star; V.
      words_K, duplicates_K: ids of the frequent words and of their duplicates, if there are any.
      first, second: ids of the pairs that are looked at, (kinds, K).
      planted: words whose duplicates stand in the text itself.
    """

    text: Text
    vocabulary: tuple[str, ...]
    words_K: np.ndarray
    duplicates_K: np.ndarray
    first: np.ndarray
    second: np.ndarray
    planted: Planted


def make_material(experiment: TextExperiment, text: Text) -> Material:
    """The corpus, prepared, as the experiment sees it.

    Raises:
      UserError: where the text is too short for one batch or has too few words.
    """
    words_K, words = frequent_words(text, experiment.words)
    planted = planted_words(text, experiment.planted)
    text = take_half(plant(text, planted, experiment.data_seed), experiment.half)
    duplicates_K = len(text.vocabulary) + np.arange(len(words_K) if experiment.duplicates else 0, dtype=np.int32)
    random = random_pairs(experiment.data_seed, words_K, experiment.words)
    pairs = {"duplicate": (words_K, duplicates_K), "random": random}
    first, second = (np.stack([pairs[kind][i] for kind in experiment.kinds]) for i in (0, 1))
    stars = tuple(f"{word}*" for word in words) if experiment.duplicates else planted.names
    material = Material(text, text.vocabulary + stars, words_K, duplicates_K, first, second, planted)
    training_batches(experiment, material, experiment.seeds[0])  # they raise
    validation_batches(experiment, material)
    return material


def random_pairs(seed: int, words_K: np.ndarray, pairs: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of different words, no pair twice, whichever way round; the same for the same seed.

    Raises:
      ValueError: if there are not so many.
    """
    first, second = np.triu_indices(len(words_K), 1)
    if pairs > len(first):
        raise ValueError(f"pairs = {pairs}: {len(words_K)} words make {len(first)}")
    chosen = np.random.default_rng(seed).choice(len(first), pairs, replace=False)
    return np.asarray(words_K)[first[chosen]], np.asarray(words_K)[second[chosen]]


def probes(experiment: TextExperiment) -> np.ndarray:
    """Places among the frequent words of those whose neighbours are looked up."""
    found = np.arange(min(PROBES, experiment.words))
    return found * (experiment.words // len(found))


def token_counts(material: Material) -> np.ndarray:
    """How often each token stands in the training rows; a word and its duplicate, half of that each; V."""
    rows, count_V = material.text.train, np.zeros(len(material.vocabulary))
    found_V = np.bincount(np.asarray(rows.tokens_N), minlength=len(count_V))
    count_V[: len(found_V)] = found_V
    count_V[material.text.special.sep] += rows.count
    if len(material.duplicates_K):
        count_V[material.duplicates_K] = count_V[material.words_K] / 2
        count_V[material.words_K] /= 2
    return count_V


def frequency_groups(material: Material) -> np.ndarray:
    """Of each token, the number of its group in `FREQUENCIES`; int32[V]."""
    rank_V = np.empty(len(material.vocabulary), np.int64)
    rank_V[np.argsort(-token_counts(material), kind="stable")] = np.arange(1, len(rank_V) + 1)
    return np.searchsorted(RANKS, rank_V).astype(np.int32)


def _batches(experiment: TextExperiment, material: Material, rows: Rows, seed: int | None, **options: bool):
    special = material.text.special
    if experiment.task == "causal":
        return CausalBatches(rows, special, experiment.batch, experiment.length, seed, **options)
    return MaskedBatches(rows, special, experiment.batch, experiment.length, seed, experiment.buckets, **options)


def training_batches(experiment: TextExperiment, material: Material, seed: int) -> MaskedBatches | CausalBatches:
    """A seed's own order of the rows."""
    return _batches(experiment, material, material.text.train, number_of(experiment.data_seed, seed))


def validation_batches(experiment: TextExperiment, material: Material) -> list[RowBatch]:
    """Batches of all rows, or a choice of them; the same for all seeds and arms."""
    batches = _batches(experiment, material, material.text.valid, None, keep_last=True)
    if batches.count > experiment.eval_batches:
        batches = _batches(experiment, material, material.text.valid, experiment.data_seed)
    return [batches[k] for k in range(min(batches.count, experiment.eval_batches))]


def row_lengths(experiment: TextExperiment, material: Material) -> tuple[int, ...]:
    """How many tokens the rows of batches may have, ascending."""
    if experiment.task == "causal":
        return (experiment.length + 1,)
    return training_batches(experiment, material, experiment.seeds[0]).buckets
