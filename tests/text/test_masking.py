"""Swaps and masks by their frequencies, with fixed seeds; too little room; the next token."""

from functools import partial

import jax
import numpy as np
import pytest
from quickly import QUICK
from scipy.stats import binom, chi2, chisquare, ttest_1samp

from jaxtie.text import masking

PAD, CLS, SEP, MASK, BASE = 0, 2, 3, 4, 500
WORDS, DUPLICATES = np.array([17, 5, 90, 33]), np.array([500, 501, 502, 503])
BATCH, LENGTH = 64, 32


def sentences() -> np.ndarray:
    """Make rows of 8 to 32 tokens, [CLS] and [SEP] around them, padding behind."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, BASE, (BATCH, LENGTH))
    tokens = np.where(rng.random(tokens.shape) < 0.5, rng.choice(WORDS, tokens.shape), tokens)
    length = rng.integers(8, LENGTH + 1, BATCH)
    tokens[np.arange(LENGTH)[None] >= length[:, None]] = PAD
    tokens[:, 0], tokens[np.arange(BATCH), length - 1] = CLS, SEP
    return tokens.astype(np.int32)


TOKENS = sentences()
REAL = ~np.isin(TOKENS, (PAD, CLS, SEP))
ROOM = masking.capacity(TOKENS.size)
KEYS = jax.random.split(jax.random.key(0), 300)


def masks(tokens=TOKENS, room=ROOM, keys=KEYS) -> masking.Targets:
    mask = partial(masking.mask, mask=MASK, never=(PAD, CLS, SEP), base_vocabulary=BASE, room=room)
    return jax.device_get(jax.jit(jax.vmap(mask, (0, None)), compiler_options=QUICK)(keys, tokens))


@pytest.fixture(scope="module")
def drawn():
    return masks()


def check(name: str, counts, expected) -> None:
    p = chisquare(counts, expected).pvalue
    print(f"{name}: p = {p:.3f}")
    assert p > 0.01, (name, counts, expected)


def check_alike(name: str, times, draws: int, rate: float) -> None:
    """Check that each was drawn at one rate, independently: no more nor less spread than coins."""
    p = chi2.sf(np.sum((times - draws * rate) ** 2) / (draws * rate * (1 - rate)), times.size)
    print(f"{name} alike: p = {p:.3f}")
    assert 0.01 < p < 0.99, name


def test_swaps_are_fair_and_of_these_words_only():
    swap = partial(masking.swap, words_K=WORDS, duplicates_K=DUPLICATES)
    swapped = jax.device_get(jax.vmap(swap, (0, None))(KEYS, TOKENS))
    others = ~np.isin(TOKENS, WORDS)
    assert (swapped[:, others] == TOKENS[others]).all()
    for word, duplicate in zip(WORDS, DUPLICATES):
        there = swapped[:, np.equal(TOKENS, word)]
        assert set(np.unique(there)) == {word, duplicate}
        counts = [np.sum(there == word), np.sum(there == duplicate)]
        check(f"word {word} swapped", counts, [there.size / 2] * 2)
    check_alike("every occurrence", (swapped != TOKENS)[:, ~others].sum(axis=0), len(KEYS), 0.5)
    certain = swap(KEYS[0], TOKENS, probability=1.0)
    assert not np.isin(certain, WORDS).any()
    assert np.array_equal(swap(KEYS[0], certain), certain)  # duplicates have no duplicates


def test_fifteen_of_a_hundred_are_chosen(drawn):
    is_target = drawn.weight_P == 1
    assert set(np.unique(drawn.weight_P)) == {0, 1}
    assert np.all(np.diff(drawn.weight_P) <= 0)  # packed to the front
    number, trials = is_target.sum(), REAL.sum() * len(KEYS)
    check("chosen", [number, trials - number], [0.15 * trials, 0.85 * trials])
    times = np.bincount(drawn.at_P[is_target], minlength=TOKENS.size)
    assert not times[~REAL.ravel()].any()  # never [CLS], [SEP], [PAD]
    check_alike("every place", times[REAL.ravel()], len(KEYS), 0.15)
    together = is_target.sum(axis=1)  # independently: the numbers in a batch are binomial
    quantiles = binom.ppf([0.25, 0.5, 0.75], REAL.sum(), 0.15)
    cells = np.bincount(np.searchsorted(quantiles, together), minlength=4)
    share = np.diff([0, *binom.cdf(quantiles, REAL.sum(), 0.15), 1])
    check("numbers in a batch", cells, share * len(KEYS))


def test_of_these_eighty_ten_ten(drawn):
    is_target = drawn.weight_P == 1
    now = drawn.tokens_BxL.reshape(len(KEYS), -1).copy()
    seen = np.take_along_axis(now, drawn.at_P, axis=1)[is_target]
    target = drawn.target_P[is_target]
    assert np.array_equal(target, TOKENS.ravel()[drawn.at_P[is_target]])
    # and so is one random token in BASE; the mask, too, may be drawn at random
    kept = seen == target
    other = ~kept & (seen != MASK)
    counts = [np.sum(seen == MASK), kept.sum(), other.sum()]
    shares = np.array([0.8 + 0.1 / BASE, 0.1 + 0.1 / BASE, 0.1 - 0.2 / BASE])
    check("mask, same, another", counts, shares * len(target))
    assert seen.max() < BASE
    cells = np.bincount(seen[other] * 10 // BASE, minlength=10)
    assert chisquare(cells).pvalue > 0.01
    # All other tokens are as they were.
    was = np.broadcast_to(TOKENS.ravel(), now.shape).copy()
    batch, _ = np.nonzero(is_target)
    was[batch, drawn.at_P[is_target]] = now[batch, drawn.at_P[is_target]] = -1
    assert np.array_equal(was, now)


def test_without_room_all_places_suffer_alike():
    room = int(0.1 * REAL.sum())
    few = masks(room=room, keys=jax.random.split(jax.random.key(5), 600))
    assert np.all(few.weight_P == 1)
    times = np.bincount(few.at_P.ravel(), minlength=TOKENS.size)[REAL.ravel()]
    assert all(len(set(at)) == room for at in few.at_P)  # none twice
    check_alike("every place, no room", times, len(few.at_P), room / REAL.sum())
    # the dropped ones are a run, so a batch counts as one draw
    quarter = np.cumsum(REAL.ravel()) * 4 // (REAL.sum() + 1)
    for i in range(4):
        share = np.mean(quarter[REAL.ravel()] == i)
        p = ttest_1samp((quarter[few.at_P] == i).mean(axis=1), share).pvalue
        assert p > 0.01, f"quarter {i} of the batch, no room: p = {p:.3f}"
    changed = (few.tokens_BxL != TOKENS).reshape(len(few.at_P), -1).sum(axis=1)
    assert np.all(changed <= room)  # the dropped ones are not masked either


def test_capacity():
    for tokens in (128 * 14, 128 * 126, 40):
        room = masking.capacity(tokens)
        assert room <= tokens
        assert binom.sf(room, tokens, 0.15) < 1e-8
        assert tokens < 100 or room < 0.21 * tokens
    assert masking.capacity(10) == 10


def test_nothing_to_choose():
    empty = np.zeros((2, 8), np.int32)
    found = masks(empty, room=4, keys=KEYS[:3])
    assert not found.weight_P.any() and not found.tokens_BxL.any()


def test_next_tokens():
    tokens = np.array([[2, 7, 8, 3, 0, 0], [2, 9, 3, 0, 0, 0], [2, 5, 6, 7, 8, 3]], np.int32)
    found = jax.device_get(masking.next_tokens(tokens, padding=0))
    assert found.at_P.shape == (15,)
    real = found.weight_P == 1
    pairs = list(zip(tokens.ravel()[found.at_P[real]].tolist(), found.target_P[real].tolist()))
    assert pairs == [(2, 7), (7, 8), (8, 3), (2, 9), (9, 3), (2, 5), (5, 6), (6, 7), (7, 8), (8, 3)]
    assert np.array_equal(real, np.arange(15) < 10)
    assert np.array_equal(found.tokens_BxL, tokens)
