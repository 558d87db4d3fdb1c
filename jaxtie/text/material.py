"""A corpus as an experiment sees it: its vocabulary with duplicates, the words that are looked at,
batches of its rows.

Imports no jax.
"""

from typing import NamedTuple

import numpy as np

from jaxtie.experiment import number_of
from jaxtie.text.contexts import PairContexts, choose_contexts
from jaxtie.text.corpus.batches import (
    CausalBatches,
    MaskedBatches,
    RowBatch,
    Rows,
    Special,
    lengths_of,
)
from jaxtie.text.corpus.tokens import Text
from jaxtie.text.corpus.words import chosen_words
from jaxtie.text.declaration import TextExperiment
from jaxtie.text.pairs import matched_pairs, random_pairs
from jaxtie.text.planting import Duplicates, duplicates_of, plant, planted_words, take_half

RANKS = (10, 100, 1_000, 10_000)  # where groups of tokens end, the most frequent ones first
FREQUENCIES = ("1-10", "11-100", "101-1,000", "1,001-10,000", "10,001 on")  # these groups, by rank
PROBES, NEIGHBOURS = 8, 5  # words whose nearest neighbours are looked up, and how many of these


class Material(NamedTuple):
    """A corpus as an experiment sees it.

    Attributes:
      text: the corpus; with what is planted, and of its training rows what the experiment trains
        on.
      vocabulary: its tokens, then a duplicate of each of the frequent words, marked by a star; V.
      words_K: ids of the words that are looked at, the most frequent first unless the experiment
        names them.
      drawn: the duplicates of these words that are drawn afresh at each step, if there are any.
      planted: words whose duplicates stand in the text itself.
      first, second: ids of the pairs that are looked at, (kinds, K).
      contexts: where predictions of these pairs are looked at; None: nowhere.
    """

    text: Text
    vocabulary: tuple[str, ...]
    words_K: np.ndarray
    drawn: Duplicates
    planted: Duplicates
    first: np.ndarray
    second: np.ndarray
    contexts: PairContexts | None = None


def make_material(experiment: TextExperiment, text: Text) -> Material:
    """The corpus, prepared, as the experiment sees it.

    Raises:
      UserError: where the text is too short for one batch or has too few words.
    """
    words_K, words = chosen_words(text, experiment.words)
    planted = planted_words(text, experiment.planted)
    text = take_half(plant(text, planted, experiment.data_seed), experiment.half)
    drawn = duplicates_of(words_K, words, len(text.vocabulary), experiment.duplicates)
    nothing = np.zeros((0, experiment.word_count), np.int32)
    material = Material(
        text,
        text.vocabulary + planted.names + drawn.names,
        words_K,
        drawn,
        planted,
        nothing,
        nothing,
    )
    pairs = {
        "duplicate": lambda: (words_K, drawn.duplicates_K),
        "matched": lambda: matched_pairs(
            experiment.data_seed, token_counts(material), drawn, text.special
        ),
        "random": lambda: random_pairs(experiment.data_seed, words_K, experiment.word_count),
    }
    first, second = np.array([pairs[kind]() for kind in experiment.kinds], np.int32).swapaxes(0, 1)
    material = material._replace(first=first, second=second)
    training_batches(experiment, material, experiment.seeds[0])  # they raise
    validation_batches(experiment, material)
    if experiment.looks_at_predictions:
        material = material._replace(
            contexts=choose_contexts(experiment, text, drawn, first, second)
        )
    return material


def probes(experiment: TextExperiment) -> np.ndarray:
    """Places among the frequent words of those whose neighbours are looked up."""
    found = np.arange(min(PROBES, experiment.word_count))
    return found * (experiment.word_count // len(found))


def never_asked(experiment: TextExperiment, special: Special) -> tuple[int, ...]:
    """Ids of tokens that a masked model is not asked for."""
    return (special.pad, special.cls, special.sep) + (
        () if experiment.masks_unknown else (special.unk,)
    )


def token_counts(material: Material) -> np.ndarray:
    """How often each token stands in the training rows; of a word and its duplicate that is drawn,
    by its probability; V.
    """
    rows, count_V = material.text.train, np.zeros(len(material.vocabulary))
    found_V = np.bincount(np.asarray(rows.tokens_N), minlength=len(count_V))
    count_V[: len(found_V)] = found_V
    count_V[material.text.special.sep] += rows.count
    drawn = material.drawn
    count_V[drawn.duplicates_K] = count_V[drawn.words_K] * drawn.probability_K
    count_V[drawn.words_K] *= 1 - drawn.probability_K
    return count_V


def frequency_groups(material: Material) -> np.ndarray:
    """Of each token, the number of its group in `FREQUENCIES`; int32[V]."""
    rank_V = np.empty(len(material.vocabulary), np.int64)
    rank_V[np.argsort(-token_counts(material), kind="stable")] = np.arange(1, len(rank_V) + 1)
    return np.searchsorted(RANKS, rank_V).astype(np.int32)


def _batches(
    experiment: TextExperiment, material: Material, rows: Rows, seed: int | None, **options: bool
):
    special = material.text.special
    if experiment.task == "causal":
        return CausalBatches(rows, special, experiment.batch, experiment.length, seed, **options)
    return MaskedBatches(
        rows, special, experiment.batch, experiment.length, seed, experiment.buckets, **options
    )


def training_batches(
    experiment: TextExperiment, material: Material, seed: int
) -> MaskedBatches | CausalBatches:
    """A seed's own order of the rows."""
    return _batches(
        experiment, material, material.text.train, number_of(experiment.data_seed, seed)
    )


def validation_batches(experiment: TextExperiment, material: Material) -> list[RowBatch]:
    """Batches of all rows, or a choice of them; the same for all seeds and arms."""
    batches = _batches(experiment, material, material.text.valid, None, keep_last=True)
    if batches.count > experiment.eval_batches:
        batches = _batches(experiment, material, material.text.valid, experiment.data_seed)
    return [batches[k] for k in range(min(batches.count, experiment.eval_batches))]


def row_lengths(experiment: TextExperiment) -> tuple[int, ...]:
    """How many tokens the rows of batches may have, ascending."""
    if experiment.task == "causal":
        return (experiment.length + 1,)
    return lengths_of(experiment.buckets, experiment.length)
