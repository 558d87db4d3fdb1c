"""Train on a half of a text in which frequent words have duplicates. Imports no jax.

Shapes: N tokens and R rows of a split.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from jaxtie.config import UserError, check, is_integer
from jaxtie.text.config import TextExperiment
from jaxtie.text.corpus import PreparedCorpus, prepare_corpus, training_batches, validation_batches
from jaxtie.text.data.batches import Rows
from jaxtie.text.data.tokens import Text, frequent_words
from jaxtie.text.pairs import Duplicates, duplicates_of

HALVES = ("first", "second")  # of the training rows
SENTENCES = 64  # consecutive sentences that stay in one half: contexts reach over sentence ends
# Every fifth frequent word gets a duplicate in the text, so they are as frequent as the others.
EVERY, OFFSET = 5, 3
EVENLY, RARELY = 0.5, 0.1  # probabilities of these duplicates, in turn


class PlantedCorpus(PreparedCorpus):
    """A prepared corpus whose text itself has duplicates."""

    planted: Duplicates


@dataclass(frozen=True, kw_only=True)
class HalfExperiment(TextExperiment):
    """A language model of one half of a text.

    Attributes:
      half: "first" or "second": train on that half of the training rows alone; None: on all.
      planted: number of frequent words that have a duplicate in the text itself, in every split.
    """

    duplicates: tuple[float, ...] = ()
    half: str | None = None
    planted: int = 0

    def __post_init__(self):
        """Check the values."""
        super().__post_init__()
        check(
            self.half in (None, *HALVES),
            f"half = {self.half!r}: expected None, {' or '.join(HALVES)}",
        )
        check(
            is_integer(self.planted) and self.planted >= 0,
            f"planted = {self.planted!r}: expected an integer of at least 0",
        )

    def program_key(self) -> Self:
        """Return the fields that compiled programs depend on."""
        return replace(super().program_key(), half=None, planted=0)

    def combine(self, text: Text) -> PlantedCorpus:
        """Choose words and pairs of a text; insert duplicates and take the half."""
        planted = choose_duplicates(text, self.planted)
        prepared = prepare_corpus(self, text)
        text = take_half(insert_duplicates(text, planted, self.data_seed), self.half)
        prepared = prepared._replace(text=text, vocabulary=text.vocabulary + planted.names)
        training_batches(self, prepared, self.seeds[0])  # raises if there is no batch
        validation = validation_batches(self, prepared)
        found = PlantedCorpus(*prepared._replace(validation=validation))
        found.planted = planted
        return found


def choose_duplicates(text: Text, number: int) -> Duplicates:
    """Choose words for duplicates in the text itself; UserError if it has too few words."""
    if not number:
        return duplicates_of(np.zeros(0, np.int32), (), 0, ())
    ids, words = frequent_words(text, EVERY * (number - 1) + OFFSET + 1)
    return duplicates_of(
        ids[OFFSET::EVERY], words[OFFSET::EVERY], len(text.vocabulary), (EVENLY, RARELY)
    )


def insert_duplicates(text: Text, duplicates: Duplicates, seed: int) -> Text:
    """Render words of every split as duplicates; the tokens are then in memory.

    The text's vocabulary does not grow.
    """
    if not len(duplicates.words_K):
        return text
    vocabulary = len(text.vocabulary) + len(duplicates.words_K)
    dtype = np.uint16 if vocabulary <= 2**16 else np.uint32

    def rendered(split: int, rows: Rows) -> Rows:
        tokens_N = np.asarray(rows.tokens_N)
        uniform_N = np.random.default_rng((seed, split)).random(len(tokens_N), np.float32)
        return Rows(duplicates.render(tokens_N, uniform_N, vocabulary).astype(dtype), rows.offsets)

    train, valid, test = (
        rendered(k, rows) for k, rows in enumerate((text.train, text.valid, text.test))
    )
    return text._replace(train=train, valid=valid, test=test)


def take_half(text: Text, half: str | None) -> Text:
    """Keep every other block of training rows alone; UserError if there is only one block."""
    if half is None:
        return text
    rows = text.train
    own_R = np.arange(rows.count) // SENTENCES % 2 == HALVES.index(half)
    if not own_R.any() or own_R.all():
        raise UserError(
            f"text: {rows.count:,} sentences are too few for two halves of blocks of {SENTENCES};"
            " give more text"
        )
    own_N = np.repeat(own_R, rows.lengths)
    offsets = np.append(0, np.cumsum(rows.lengths[own_R]))
    return text._replace(train=Rows(rows.tokens_N[own_N], offsets))
