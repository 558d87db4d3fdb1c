"""Batches of rows: every row once an epoch, a function of seed and step, all of one size."""

from functools import partial

import numpy as np
import pytest

from jaxtie.config import UserError
from jaxtie.text.data.batches import Rows, Special, causal_batches, masked_batches

SPECIAL = Special(0, 1, 2, 3, 4)
BUCKETS = (16, 32, 64, 128)


def rows_of(lengths) -> Rows:
    """Make rows whose tokens tell the row: 10, 10, 10, 11, 11, ..."""
    tokens_N = np.repeat(np.arange(len(lengths)) + 10, lengths).astype(np.uint32)
    return Rows(tokens_N, np.append(0, np.cumsum(lengths)))


@pytest.fixture(scope="module")
def rows() -> Rows:
    return rows_of(np.random.default_rng(3).integers(1, 60, 1000))


def test_an_epoch_of_masked_batches_has_every_row_once(rows):
    batches = masked_batches(rows, SPECIAL, 32, max_length=40, seed=5, buckets=(8, 16, 128))
    assert batches.count == 1000 // 32
    for epoch in range(2):
        seen = []
        for step in range(epoch * batches.count, (epoch + 1) * batches.count):
            tokens_BxL, lengths_B = batches[step]
            assert tokens_BxL.shape in [(32, 8), (32, 16), (32, 40)]
            assert tokens_BxL.dtype == lengths_B.dtype == np.int32
            for row, length in zip(tokens_BxL, lengths_B, strict=True):
                r = row[1] - 10
                expected = [2, *rows.row(r)[:38], 3]
                assert list(row[:length]) == expected and not row[length:].any()
                seen.append(r)
        assert len(seen) == len(set(seen)) == batches.count * 32


@pytest.mark.parametrize(
    "make",
    [
        partial(masked_batches, batch_size=32, max_length=128, buckets=BUCKETS),
        partial(causal_batches, batch_size=8, length=32),
    ],
    ids=["masked", "causal"],
)
def test_batches_are_a_function_of_seed_and_step(rows, make):
    one, again, other = (make(rows, SPECIAL, seed=seed) for seed in (1, 1, 2))
    steps = range(0, 3 * one.count, 7)
    ahead = {step: one[step] for step in steps}
    for step in reversed(steps):
        np.testing.assert_array_equal(again[step].tokens_BxL, ahead[step].tokens_BxL)
    assert not np.array_equal(one[0].tokens_BxL, other[0].tokens_BxL)
    assert not np.array_equal(one[0].tokens_BxL, one[one.count].tokens_BxL)


def test_causal_blocks_are_the_stream(rows):
    stream = np.concatenate([np.append(rows.row(r), 3) for r in range(rows.count)])
    batches = causal_batches(rows, SPECIAL, 8, 32, seed=None, keep_last=True)
    every = [batches[k] for k in range(batches.count)]
    found = np.concatenate([each.tokens_BxL[each.lengths_B > 0] for each in every])
    blocks = (len(stream) - 1) // 32
    assert found.shape == (blocks, 33)
    np.testing.assert_array_equal(found[:, :-1].ravel(), stream[: blocks * 32])
    np.testing.assert_array_equal(found[:, 1:].ravel(), stream[1 : blocks * 32 + 1])
    shuffled = causal_batches(rows, SPECIAL, 8, 32, seed=1)
    first = {tuple(row) for k in range(shuffled.count) for row in shuffled[k].tokens_BxL}
    assert first <= {tuple(row) for row in found} and len(first) == shuffled.count * 8


def test_evaluation_has_every_row_in_batches_of_one_size(rows):
    batches = masked_batches(rows, SPECIAL, 64, 128, None, BUCKETS, keep_last=True)
    kept = [batches[k] for k in range(batches.count)]
    assert {len(each.lengths_B) for each in kept} == {64}
    assert sum((each.lengths_B > 0).sum() for each in kept) == 1000
    empty = kept[-1].tokens_BxL[kept[-1].lengths_B == 0]
    assert len(empty) == -1000 % 64 and (empty == SPECIAL.pad).all()


def test_too_few_rows_for_a_batch():
    few = rows_of([3, 4])
    with pytest.raises(UserError, match="2 sentences do not fill one batch of 3"):
        masked_batches(few, SPECIAL, 3, 8, 0, BUCKETS)
    with pytest.raises(UserError, match="1 blocks of 8 tokens do not fill one batch of 3"):
        causal_batches(few, SPECIAL, 3, 8, 0)
