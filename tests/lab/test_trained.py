"""Losses of trained models."""

from types import SimpleNamespace

import numpy as np
import pytest
from equivalence.trained import unigram_loss

from jaxtie.text.data.batches import Rows, Special
from jaxtie.text.pairs import Duplicates


@pytest.mark.parametrize(
    ("objective", "targets"), [("masked", [5, 6, 6, 8]), ("causal", [5, 6, 6, 8, 3, 3])]
)
def test_unigram_loss_counts_targets(objective, targets):
    """5 is written as 8 half of the time; only causal models predict the ends of the two rows."""
    rows = Rows(np.array([5, 6, 5, 6], np.uint16), np.array([0, 3, 4]))
    text = SimpleNamespace(special=Special(pad=0, unk=1, cls=2, sep=3, mask=4), train=rows)
    drawn = Duplicates(np.array([5]), np.array([8]), np.array([0.5]), ("word*",))
    corpus = SimpleNamespace(vocabulary=range(9), text=text, drawn=drawn)
    trained = SimpleNamespace(corpus=corpus, experiment=SimpleNamespace(objective=objective))
    count_V = np.bincount(targets, minlength=9) + 1.0
    expected = -np.mean(np.log(count_V / count_V.sum())[targets])
    assert unigram_loss(trained, rows) == pytest.approx(expected)
