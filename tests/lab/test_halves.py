"""Duplicates inserted in a text, and its halves."""

import numpy as np
import pytest
from corpora import SIZE, write_corpus
from equivalence import halves

from jaxtie import UserError
from jaxtie.text.data.batches import Rows
from jaxtie.text.data.config import Corpus
from jaxtie.text.data.tokens import Text, prepare_text


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Text:
    folder = tmp_path_factory.mktemp("text")
    corpus = Corpus((str(write_corpus(folder / "corpus")),), vocab_size=SIZE)
    return prepare_text(corpus, folder / "cache")


def rows_of(rows: Rows) -> list[list[int]]:
    return [rows.row(r).tolist() for r in range(rows.count)]


def test_halves_share_no_row_and_leave_none_out(text):
    """Block by block in turn, each in the order of the text; validation rows are the same."""
    whole = rows_of(text.train)
    both = [halves.take_half(text, half) for half in ("first", "second")]
    first, second = (rows_of(half.train) for half in both)
    of_row = [r // halves.SENTENCES % 2 for r in range(len(whole))]
    assert len(whole) > 3 * halves.SENTENCES
    assert first == [row for row, half in zip(whole, of_row) if half == 0]
    assert second == [row for row, half in zip(whole, of_row) if half == 1]
    assert rows_of(both[0].valid) == rows_of(both[1].valid) == rows_of(text.valid)
    assert halves.take_half(text, None) is text
    short = text._replace(train=Rows(text.train.tokens_N, text.train.offsets[: halves.SENTENCES]))
    with pytest.raises(UserError, match="too few for two halves"):
        halves.take_half(short, "first")


def test_duplicates_are_inserted_at_their_rates_and_nothing_else_changes(text):
    chosen = halves.choose_duplicates(text, 3)
    assert chosen.probability_K.tolist() == [halves.EVENLY, halves.RARELY, halves.EVENLY]
    assert list(chosen.names) == [f"{text.vocabulary[word]}*" for word in chosen.words_K]
    found = halves.insert_duplicates(text, chosen, 5)
    before, after = np.asarray(text.train.tokens_N), found.train.tokens_N
    assert found.vocabulary == text.vocabulary
    for word, duplicate, chance in zip(*chosen[:3]):
        rendered = after[before == word]
        assert set(rendered.tolist()) == {word, duplicate}
        deviation = np.sqrt(chance * (1 - chance) / len(rendered))
        assert abs(np.mean(rendered == duplicate) - chance) < 4 * deviation
    others = ~np.isin(before, chosen.words_K)
    np.testing.assert_array_equal(after[others], before[others])
    again, other = (halves.insert_duplicates(text, chosen, seed) for seed in (5, 6))
    np.testing.assert_array_equal(after, again.train.tokens_N)
    assert (after != other.train.tokens_N).any()
    assert (again.valid.tokens_N != text.valid.tokens_N).any()


def test_the_vocabulary_names_inserted_duplicates_by_a_star(text):
    experiment = halves.HalfExperiment(
        objective="causal", half="second", planted=2, words=3, batch=4, length=16
    )
    prepared, size = experiment.combine(text), len(text.vocabulary)
    assert len(prepared.vocabulary) == size + 2 and prepared.vocabulary[-1].endswith("*")
    assert prepared.planted.duplicates_K.tolist() == [size, size + 1]
    assert prepared.text.train.count < text.train.count


@pytest.mark.parametrize(("name", "value"), [("half", "third"), ("planted", -1)])
def test_invalid_fields(name, value):
    with pytest.raises(UserError, match=f"{name} = {value!r}"):
        halves.HalfExperiment(**{name: value})
