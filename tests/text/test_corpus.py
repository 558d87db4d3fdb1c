"""Unigram and bigram losses against counting by hand, with dictionaries."""

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from corpora import SIZE, write_corpus

from jaxtie.text import corpus
from jaxtie.text.config import Corpus, TextExperiment
from jaxtie.text.corpus import Bigrams, Follows, prepare_corpus, validation_batches
from jaxtie.text.data.tokens import prepare_text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("baselines")
    paths = (str(write_corpus(folder / "corpus", paragraphs=60)),)
    return prepare_text(Corpus(paths=paths, vocab_size=SIZE), folder / "cache")


def by_hand(seen: list[tuple[int, int]], usable: list[int]):
    """Return q(t) and q(t | s) as functions, counted pair by pair."""
    couples, tokens = Counter(seen), Counter(token for _, token in seen)
    followers, total = defaultdict(set), Counter()
    for (left, token), count in couples.items():
        followers[left].add(token)
        total[left] += count
    once, twice = (sum(count == times for count in couples.values()) for times in (1, 2))
    discount = once / (once + 2 * twice) if once else 0.0

    def unigram(token: int) -> float:
        return (tokens[token] + 1) / (len(seen) + len(usable))

    def bigram(left: int, token: int) -> float:
        if not total[left]:
            return unigram(token)
        kept = max(couples[left, token] - discount, 0)
        return (kept + discount * len(followers[left]) * unigram(token)) / total[left]

    return unigram, bigram


def all_probabilities(model: Bigrams, vocabulary: int) -> np.ndarray:
    """Return q(t | s), (left, token)."""
    every = Follows(*(each.ravel() for each in np.mgrid[:vocabulary, :vocabulary]))
    return model.probability(every).reshape(vocabulary, vocabulary)


def test_bigrams_are_those_counted_by_hand_and_sum_to_one():
    rng, vocabulary = np.random.default_rng(0), 7
    # 6 is never seen
    seen = Follows(*rng.choice(vocabulary - 1, (2, 40), p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.05]))
    model, every = Bigrams(seen, vocabulary), range(vocabulary)
    _, bigram = by_hand(list(zip(*(each.tolist() for each in seen))), list(every))
    found = all_probabilities(model, vocabulary)
    np.testing.assert_allclose(found, [[bigram(s, t) for t in every] for s in every], rtol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    assert 0 < model.discount < 1 and (found > 0).all()


def test_a_repeated_text_leaves_no_token_impossible():
    left, token = np.random.default_rng(0).choice(6, (2, 20))  # no pair is seen once
    found = all_probabilities(Bigrams(Follows(np.tile(left, 2), np.tile(token, 2)), 7), 7)
    assert (found > 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_baselines_are_losses_on_what_is_predicted(text, objective):
    """Row by row; a word and its duplicate are one, and the draw between them costs its entropy."""
    probabilities, is_causal = (0.5, 0.1), objective == "causal"
    experiment = TextExperiment(
        objective=objective,
        batch=4,
        length=16,
        buckets=(16,),
        words=4,
        duplicates=probabilities,
        eval_batches=5,
    )
    prepared, special = prepare_corpus(experiment, text), text.special
    start = special.sep if is_causal else special.cls
    never = special[:1] if is_causal else special[:4]
    usable = [token for token in range(len(text.vocabulary)) if token not in never]
    seen = []
    for r in range(text.train.count):
        row = [start, *text.train.row(r).tolist(), special.sep]
        seen += [couple for couple in itertools.pairwise(row) if couple[1] in usable]
    unigram, bigram = by_hand(seen, usable)
    p_of = {int(word): probabilities[k % 2] for k, word in enumerate(prepared.words_K)}
    losses = []
    for batch in validation_batches(experiment, prepared):
        for row in batch.tokens_BxL.tolist():
            for left, token in itertools.pairwise(row):
                if token in usable:
                    p = p_of.get(token)
                    entropy = 0 if p is None else -(p * math.log(p) + (1 - p) * math.log(1 - p))
                    both = unigram(token), bigram(left, token)
                    losses.append([entropy - math.log(each) for each in both])
    found = corpus.baselines(experiment, prepared)
    np.testing.assert_allclose(found, np.mean(losses, axis=0), rtol=1e-10)
    assert found.bigram < found.unigram


def test_only_the_beginning_of_a_long_text_is_counted(text):
    rows = corpus.first_rows(text.train, 100)
    assert 80 < len(rows.tokens_N) == rows.offsets[-1] <= 100
    np.testing.assert_array_equal(rows.tokens_N, text.train.tokens_N[: len(rows.tokens_N)])
    assert corpus.first_rows(text.train, 10**9) is text.train
