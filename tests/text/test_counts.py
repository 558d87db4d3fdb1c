"""Kneser-Ney counts against the formula, by dictionaries of tuples and fractions."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from jaxtie.text.counts import ORDER, KneserNey


class ByHand:
    def __init__(self, tokens: list[int], vocabulary: int):
        ends = range(ORDER, len(tokens) + 1)
        grams = Counter(tuple(tokens[end - ORDER : end]) for end in ends)
        self.counts, self.vocabulary = {ORDER: grams}, vocabulary
        for n in range(ORDER - 1, 0, -1):
            self.counts[n] = Counter(gram[1:] for gram in self.counts[n + 1])

    def probability(self, context: tuple[int, ...], token: int) -> Fraction:
        context = context[max(0, len(context) - ORDER + 1) :]
        lower = self.probability(context[1:], token) if context else Fraction(1, self.vocabulary)
        counts = self.counts[len(context) + 1]
        once, twice = (sum(count == times for count in counts.values()) for times in (1, 2))
        discount = Fraction(once, once + 2 * twice) if once else Fraction(1, 2)
        after = {gram: count for gram, count in counts.items() if gram[:-1] == context}
        if not (total := sum(after.values())):
            return lower
        kept = max(counts[(*context, token)] - discount, 0)
        return (kept + discount * len(after) * lower) / total


@pytest.mark.parametrize("vocabulary", [3, 12, 70_000])
def test_probabilities_are_those_of_the_formula(vocabulary):
    rng = np.random.default_rng(vocabulary)
    names = rng.choice(vocabulary, min(vocabulary, 9), replace=False)
    tokens = rng.choice(names, 60)
    tokens[20:30] = tokens[:10]  # something comes again
    by_hand = ByHand(tokens.tolist(), vocabulary)
    counts = KneserNey(tokens, np.ones(vocabulary, bool))
    rows = rng.choice(names, (4, 7))
    rows[0] = tokens[3:10]
    rows[1, 2] = vocabulary - 1  # never seen
    found = counts.probabilities(rows)
    for row, own in zip(rows.tolist(), found):
        for t in range(1, len(row)):
            expected = by_hand.probability(tuple(row[:t]), row[t])
            assert own[t - 1] == pytest.approx(float(expected), rel=1e-12)


def test_probabilities_of_all_tokens_sum_to_one():
    """After contexts that were seen and that were not; tokens of padding are no targets."""
    rng, vocabulary = np.random.default_rng(0), 8
    tokens = rng.integers(0, vocabulary, 300)  # the last one only as a context
    counts = KneserNey(tokens, np.arange(vocabulary) < vocabulary - 1)
    for context in ([], [1], [1, 2], tokens[40:43].tolist(), [5, 5, 5], [7, 7, 7], [7, 1, 7]):
        rows = [[0, *context, token] for token in range(vocabulary - 1)]
        assert counts.probabilities(np.array(rows))[:, -1].sum() == pytest.approx(1, rel=1e-12)


def test_a_text_that_repeats_itself_is_predicted():
    tokens = np.tile(np.arange(5), 50)
    found = KneserNey(tokens, np.ones(5, bool)).probabilities(tokens[None, :20])
    assert found[0, 3:].min() > 0.9
