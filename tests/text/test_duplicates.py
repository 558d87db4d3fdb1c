"""Halves of a text, and words that are planted in it twice."""

import dataclasses

import numpy as np
import pytest
from corpora import SIZE, write_corpus

from jaxtie import UserError
from jaxtie.text import pairs
from jaxtie.text.config import Corpus, TextExperiment
from jaxtie.text.corpus import make_material
from jaxtie.text.data.batches import Rows
from jaxtie.text.data.tokens import prepare_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planting")
    paths = (str(write_corpus(folder / "corpus", paragraphs=120)),)
    return prepare_text(Corpus(paths=paths, vocab_size=SIZE), folder / "cache")


def rows_of(rows: Rows) -> list[list[int]]:
    return [rows.row(r).tolist() for r in range(rows.count)]


def test_halves_share_no_row_and_leave_none_out(text):
    """Block by block in turn, each in the order of the text; what is not trained on is the same."""
    whole = rows_of(text.train)
    halves = [pairs.take_half(text, half) for half in ("first", "second")]
    first, second = (rows_of(half.train) for half in halves)
    of_row = [r // pairs.SENTENCES % 2 for r in range(len(whole))]
    assert len(whole) > 3 * pairs.SENTENCES
    assert first == [row for row, half in zip(whole, of_row) if half == 0]
    assert second == [row for row, half in zip(whole, of_row) if half == 1]
    assert rows_of(halves[0].valid) == rows_of(halves[1].valid) == rows_of(text.valid)
    assert pairs.take_half(text, None) is text


def test_a_text_of_one_block_has_no_halves(text):
    short = text._replace(train=Rows(text.train.tokens_N, text.train.offsets[: pairs.SENTENCES]))
    with pytest.raises(UserError, match="too few for two halves"):
        pairs.take_half(short, "first")


def test_words_are_planted_at_their_rates_and_nothing_else_changes(text):
    planted = pairs.planted_words(text, 3)
    assert planted.probability_K.tolist() == [pairs.EVENLY, pairs.RARELY, pairs.EVENLY]
    assert all(
        name == f"{text.vocabulary[word]}*" for name, word in zip(planted.names, planted.words_K)
    )
    found = pairs.plant(text, planted, 5)
    before, after = np.asarray(text.train.tokens_N), found.train.tokens_N
    assert found.vocabulary == text.vocabulary
    for word, duplicate, chance in zip(
        planted.words_K, planted.duplicates_K, planted.probability_K
    ):
        spelled = after[before == word]
        assert set(spelled.tolist()) == {word, duplicate}
        deviation = np.sqrt(chance * (1 - chance) / len(spelled))
        assert abs(np.mean(spelled == duplicate) - chance) < 4 * deviation
    others = ~np.isin(before, planted.words_K)
    np.testing.assert_array_equal(after[others], before[others])


def test_both_halves_have_the_same_draws_and_splits_their_own(text):
    planted = pairs.planted_words(text, 3)
    again = pairs.plant(text, planted, 5)
    np.testing.assert_array_equal(
        again.train.tokens_N, pairs.plant(text, planted, 5).train.tokens_N
    )
    other = pairs.plant(text, planted, 6)
    assert (again.train.tokens_N != other.train.tokens_N).any()
    assert (again.valid.tokens_N != text.valid.tokens_N).any()


def test_material_names_duplicates_by_a_star(text):
    experiment = TextExperiment(
        objective="causal", half="second", planted=2, duplicates=False, words=3, batch=4, length=16
    )
    material = make_material(experiment, text)
    assert len(material.vocabulary) == len(text.vocabulary) + 2 and material.vocabulary[
        -1
    ].endswith("*")
    assert material.planted.duplicates_K.tolist() == [
        len(text.vocabulary),
        len(text.vocabulary) + 1,
    ]
    assert material.text.train.count < text.train.count


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"half": "third"}, "half"),
        ({"planted": -1}, "planted"),
        ({"planted": 2, "duplicates": True}, "planted"),
    ],
)
def test_what_cannot_be_meant_is_named(changes, word):
    with pytest.raises(UserError, match=word):
        dataclasses.replace(TextExperiment(duplicates=False), **changes)
