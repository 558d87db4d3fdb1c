"""Counts, unigram and bigram losses against counting by hand, with dictionaries."""

import dataclasses
import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from jaxtie.text import corpus
from jaxtie.text.config import TextExperiment
from jaxtie.text.corpus import bigram_probabilities, prepare_corpus
from jaxtie.text.counts import ORDER, KneserNey
from jaxtie.text.data.batches import Rows


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


def all_probabilities(left: np.ndarray, token: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return q(t | s) by counts of pairs, (left, token)."""
    every_2xN = np.indices((vocabulary, vocabulary)).reshape(2, -1)
    usable_V = np.ones(vocabulary, bool)
    _, found_N = bigram_probabilities(np.stack([left, token]), every_2xN, usable_V)
    return found_N.reshape(vocabulary, vocabulary)


def test_bigrams_are_those_counted_by_hand_and_sum_to_one():
    rng, vocabulary = np.random.default_rng(0), 7
    # 6 is never seen
    left, token = rng.choice(vocabulary - 1, (2, 40), p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.05])
    every = range(vocabulary)
    _, bigram = by_hand(list(zip(left.tolist(), token.tolist())), list(every))
    found = all_probabilities(left, token, vocabulary)
    np.testing.assert_allclose(found, [[bigram(s, t) for t in every] for s in every], rtol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    assert (found > 0).all()


def test_a_repeated_text_leaves_no_token_impossible():
    left, token = np.tile(np.random.default_rng(0).choice(6, (2, 20)), 2)  # no pair is seen once
    found = all_probabilities(left, token, 7)
    assert (found > 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)


@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_baselines_are_losses_on_the_targets(text, objective):
    """Row by row; a word and its duplicate are one, and the draw between them costs its entropy."""
    probabilities, is_causal = (0.5, 0.1), objective == "causal"
    sizes = {"batch": 4, "length": 16, "buckets": (16,), "words": 4, "eval_batches": 5}
    experiment = TextExperiment(objective=objective, duplicates=probabilities, **sizes)
    prepared, special = prepare_corpus(experiment, text), text.special
    start = special.sep if is_causal else special.cls
    never = special[:1] if is_causal else special[:4]
    usable = [token for token in range(len(text.vocabulary)) if token not in never]
    seen, stream = [], ORDER * [special.sep]
    for r in range(text.train.count):
        row = [start, *text.train.row(r).tolist(), special.sep]
        stream += row[1:]
        seen += [couple for couple in itertools.pairwise(row) if couple[1] in usable]
    unigram, bigram = by_hand(seen, usable)
    usable_V = np.isin(np.arange(len(prepared.vocabulary)), usable)
    four = KneserNey(np.array(stream), usable_V[: len(text.vocabulary)])
    p_of = {int(word): probabilities[k % 2] for k, word in enumerate(prepared.words_K)}
    losses = []
    for batch in prepared.validation:
        for row in batch.tokens_BxL.tolist():
            after_three = [special.sep if token == start else token for token in row]
            p_four = four.probabilities(np.array([after_three]))[0]
            for (left, token), p_of_four in zip(itertools.pairwise(row), p_four, strict=True):
                if token in usable:
                    p = p_of.get(token)
                    entropy = 0 if p is None else -(p * math.log(p) + (1 - p) * math.log(1 - p))
                    all_three = unigram(token), bigram(left, token), p_of_four
                    losses.append([entropy - math.log(each) for each in all_three])
    found = corpus.baselines(experiment, prepared)
    found_three = [found[name] for name in ("unigram", "bigram", "kneser_ney")]
    np.testing.assert_allclose(found_three, np.mean(losses, axis=0), rtol=1e-10)


def test_rows_that_fill_a_batch_are_no_targets(text):
    """A vocabulary may have no padding: they have the id -1, which is no token."""
    sizes = {"length": 16, "words": 4, "duplicates": False, "objective": "causal"}
    losses = []
    for special in (text.special, text.special._replace(pad=-1)):
        for batch in (1, 100):
            experiment = TextExperiment(batch=batch, eval_batches=1000, **sizes)
            few = text._replace(special=special, valid=corpus.first_rows(text.valid, 200))
            prepared = prepare_corpus(dataclasses.replace(experiment, batch=1), few)
            validation = corpus.validation_batches(experiment, prepared) if batch > 1 else None
            prepared = prepared._replace(validation=validation or prepared.validation)
            losses.append([*corpus.baselines(experiment, prepared).values()])
    np.testing.assert_allclose(losses[2:], [losses[2]] * 2, rtol=1e-9)
    np.testing.assert_allclose(losses[0], losses[2], rtol=0.01)  # an id more is possible


def test_only_the_beginning_of_a_long_text_is_counted(text):
    rows = corpus.first_rows(text.train, 100)
    assert len(rows.tokens_N) == rows.offsets[-1] == 100 and rows.count > 5
    one = corpus.first_rows(Rows(text.train.tokens_N, text.train.offsets[[0, -1]]), 100)
    assert one.offsets.tolist() == [0, 100]
    np.testing.assert_array_equal(rows.tokens_N, text.train.tokens_N[: len(rows.tokens_N)])
    whole = corpus.first_rows(text.train, 10**9)
    assert all(np.array_equal(*both) for both in zip(whole, text.train, strict=True))


def test_tokens_are_grouped_by_their_rank_in_the_training_rows(text):
    sizes = {"batch": 8, "length": 16, "buckets": (16,), "words": 6}
    prepared = prepare_corpus(TextExperiment(duplicates=(0.5, 0.1), **sizes), text)
    rows, sep = text.train, text.special.sep
    counted = Counter(int(token) for r in range(rows.count) for token in [*rows.row(r), sep])
    found, group_V = corpus.token_counts(prepared, rows), corpus.frequency_groups(prepared)
    for word, twin, p in zip(*prepared.drawn[:3], strict=True):  # drawn at each step
        count = counted.pop(int(word))
        assert found[[word, twin]] == pytest.approx([(1 - p) * count, p * count])
    assert {token: found[token] for token in counted} == counted
    expected = [10, min(90, len(found) - 10), max(0, len(found) - 100)]
    counts = np.bincount(group_V, minlength=len(corpus.FREQUENCIES))
    np.testing.assert_array_equal(counts[:3], expected)
    assert found[group_V == 0].min() >= found[group_V == 1].max()
