"""Losses of unigram and bigram models against counting by hand, dictionaries and fractions."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from corpora import SIZE, write_corpus

from jaxtie.text import corpus
from jaxtie.text.config import Corpus, TextExperiment
from jaxtie.text.corpus import Bigrams, Follows, make_material, validation_batches
from jaxtie.text.data.tokens import prepare_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("baselines")
    paths = (str(write_corpus(folder / "corpus", paragraphs=60)),)
    return prepare_text(Corpus(paths=paths, vocab_size=SIZE), folder / "cache")


def by_hand(seen: list[tuple[int, int]], usable: list[int]):
    """q(t | s), couple by couple."""
    couples, tokens = Counter(seen), Counter(token for _, token in seen)
    followers, total = defaultdict(set), Counter()
    for (left, token), count in couples.items():
        followers[left].add(token)
        total[left] += count
    once, twice = (sum(count == times for count in couples.values()) for times in (1, 2))
    discount = once / (once + 2 * twice) if once else 0.0

    def plain(token: int) -> float:
        return (tokens[token] + 1) / (len(seen) + len(usable))

    def law(left: int, token: int) -> float:
        if not total[left]:
            return plain(token)
        kept = max(couples[left, token] - discount, 0)
        return (kept + discount * len(followers[left]) * plain(token)) / total[left]

    return plain, law


def test_bigrams_are_those_counted_by_hand_and_sum_to_one():
    rng, vocabulary = np.random.default_rng(0), 7
    # 6 is never seen
    seen = Follows(*rng.choice(vocabulary - 1, (2, 40), p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.05]))
    model = Bigrams(seen, vocabulary)
    _, law = by_hand(list(zip(*(each.tolist() for each in seen))), list(range(vocabulary)))
    left, token = (each.ravel() for each in np.mgrid[:vocabulary, :vocabulary])
    found = model.probability(Follows(left, token)).reshape(vocabulary, vocabulary)
    np.testing.assert_allclose(
        found, [[law(s, t) for t in range(vocabulary)] for s in range(vocabulary)], rtol=1e-12
    )
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    assert 0 < model.discount < 1 and (found > 0).all()


def test_a_text_that_is_there_twice_leaves_no_token_impossible():
    """No couple is seen once."""
    left, token = np.random.default_rng(0).choice(6, (2, 20))
    model = Bigrams(Follows(np.tile(left, 2), np.tile(token, 2)), 7)
    every = Follows(*(each.ravel() for each in np.mgrid[:7, :7]))
    found = model.probability(every).reshape(7, 7)
    assert (found > 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize("task", ["masked", "causal"])
def test_baselines_are_losses_on_what_is_asked(text, task):
    """Row by row; a word and its duplicate are one, and the draw between them costs its entropy."""
    probabilities = (0.5, 0.1)
    experiment = TextExperiment(
        objective=task,
        batch=4,
        length=16,
        buckets=(16,),
        words=4,
        duplicates=probabilities,
        eval_batches=5,
    )
    material, special = make_material(experiment, text), text.special
    start = special.sep if task == "causal" else special.cls
    never = (
        (special.pad,) if task == "causal" else (special.pad, special.cls, special.sep, special.unk)
    )
    usable = [token for token in range(len(text.vocabulary)) if token not in never]
    seen = []
    for r in range(text.train.count):
        row = [start, *text.train.row(r).tolist(), special.sep]
        seen += [couple for couple in itertools.pairwise(row) if couple[1] in usable]
    plain, law = by_hand(seen, usable)
    p_of = {int(word): probabilities[k % 2] for k, word in enumerate(material.words_K)}
    losses = []
    for batch in validation_batches(experiment, material):
        for row in batch.tokens_BxL.tolist():
            for left, token in itertools.pairwise(row):
                if token in usable:
                    p = p_of.get(token)
                    drawing = 0 if p is None else -(p * math.log(p) + (1 - p) * math.log(1 - p))
                    losses.append(
                        (-math.log(plain(token)) + drawing, -math.log(law(left, token)) + drawing)
                    )
    found = corpus.baselines(experiment, material)
    np.testing.assert_allclose(found, np.mean(losses, axis=0), rtol=1e-10)
    assert found.bigram < found.unigram


def test_only_the_beginning_of_a_long_text_is_counted(text):
    rows = corpus.first_rows(text.train, 100)
    assert 80 < len(rows.tokens_N) == rows.offsets[-1] <= 100
    np.testing.assert_array_equal(rows.tokens_N, text.train.tokens_N[: len(rows.tokens_N)])
    assert corpus.first_rows(text.train, 10**9) is text.train
