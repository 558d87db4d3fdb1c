"""Predictions with one token in place of another: one window at a time, and exact for EXor."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equivalence import estimators, swaps
from equivalence.measure import sums_of_pair
from equivalence.swaps import places_of, windows_at
from exact import pair_divergences
from ground_truth import Logits, semantic_products

from jaxtie import Process
from jaxtie.models.language_model import TextModel
from jaxtie.models.transformer import CausalTransformerBody, TransformerBody
from jaxtie.text.data.batches import Rows, Special
from jaxtie.text.pairs import AFTER, BEFORE, Stream, stream_of
from jaxtie.tying.linen import Embedding

SPECIAL = Special(pad=0, unk=1, cls=2, sep=3, mask=4)
X, Y, A, B, EVEN, ODD = range(5, 11)
VOCABULARY = 11


def two_models(make, **sizes):
    """Two models of different widths, with large tables so that they distinguish tokens."""
    models, params = [], []
    for seed, width in enumerate((4, 8)):
        embedding = Embedding(VOCABULARY, width, init_std=1.0, padding=SPECIAL.pad)
        body = make(width, layers=1, heads=2, feedforward=8, **sizes)
        model = TextModel(embedding, body)
        example = np.zeros(4, np.int32), np.zeros(1, np.int32)
        models.append(model)
        params.append(jax.jit(model.init)(jax.random.key(seed), *example)["params"])
    return models, tuple(params)


def stream_with(lengths: np.ndarray, rng: np.random.Generator) -> Stream:
    tokens_N = rng.integers(5, VOCABULARY, lengths.sum()).astype(np.uint16)
    return stream_of(Rows(tokens_N, np.append(0, np.cumsum(lengths))), SPECIAL.sep)


def swap_all(swap, params, windows, others):
    return {
        (token, other): each for token, other, each in swaps.swap_all(swap, params, windows, others)
    }


@pytest.fixture(scope="module")
def causal():
    return two_models(CausalTransformerBody, branch_scale=1.0)


@pytest.fixture(scope="module")
def stream():
    rng = np.random.default_rng(0)
    return stream_with(rng.integers(2, 12, 60), rng)


@pytest.fixture(scope="module")
def masked_stream():
    """With a long row, and one of a single token, which has no context."""
    rng = np.random.default_rng(1)
    return stream_with(np.append(rng.integers(1, 12, 50), [60, 1]), rng)


def test_stream_has_rows_and_their_ends():
    found = stream_of(Rows(np.array([5, 6, 7], np.uint16), np.array([0, 2, 3])), SPECIAL.sep)
    assert found.tokens_N.tolist() == [5, 6, SPECIAL.sep, 7, SPECIAL.sep]
    assert found.row_N.tolist() == [0, 0, 0, 1, 1] and found.end_N.tolist() == [2, 2, 2, 4, 4]


def test_causal_windows_surround_the_token_and_end_with_its_sentence(stream):
    places = places_of(stream, VOCABULARY)
    windows = windows_at(stream, places[5])
    assert (windows.tokens_NxL[:, BEFORE] == 5).all()
    assert windows.tokens_NxL.shape[1] == BEFORE + AFTER
    for place, asked_K, tokens_L in zip(places[5], windows.asked_NxK, windows.tokens_NxL):
        rest = stream.tokens_N[place + 1 : place + 1 + AFTER].tolist()
        until_end = rest.index(SPECIAL.sep) + 1 if SPECIAL.sep in rest else AFTER
        assert asked_K.tolist() == [k < until_end for k in range(AFTER)]
        assert tokens_L.tolist() == stream.tokens_N[place - BEFORE : place + AFTER].tolist()


@pytest.mark.slow
def test_causal_swaps_match_single_windows(causal, stream):
    """Log-probabilities on the left, products of differences of square roots on the right."""
    models, params = causal
    places = places_of(stream, VOCABULARY)
    windows = {5: windows_at(stream, places[5][:3]), 7: windows_at(stream, places[7][:4])}
    found = swap_all(swaps.make_swap(models), params, windows, {5: [7, 9], 7: [5]})
    assert found.keys() == {(5, 7), (5, 9), (7, 5)}

    def predictions(m, tokens_L):
        at_L = np.arange(len(tokens_L))
        logits_LxV = jax.jit(models[m].apply)({"params": params[m]}, tokens_L, at_L)
        return np.asarray(jax.nn.softmax(logits_LxV), np.float64)

    for (token, other), each in found.items():
        own = windows[token]
        roots = np.full((2, 2, len(own.tokens_NxL), AFTER, VOCABULARY), np.nan)
        for m in range(2):
            for n, tokens_L in enumerate(own.tokens_NxL):
                q_LxV = predictions(m, tokens_L)
                left = [each.log_true_2xN[m, n], each.log_other_2xN[m, n]]
                expected = np.log(q_LxV[BEFORE - 1, [token, other]])
                np.testing.assert_allclose(left, expected, atol=1e-5)
                swapped_L = tokens_L.copy()
                swapped_L[BEFORE] = other
                asked = own.asked_NxK[n]
                roots[0, m, n, asked] = np.sqrt(q_LxV[BEFORE:])[asked]
                roots[1, m, n, asked] = np.sqrt(predictions(m, swapped_L)[BEFORE:])[asked]
        cross_NxK, own_2xNxK = semantic_products(*roots)
        np.testing.assert_allclose(each.cross_NxK, cross_NxK, atol=1e-5)
        np.testing.assert_allclose(each.own_2xNxK, own_2xNxK, atol=1e-5)
        assert np.nanmax(np.abs(cross_NxK)) > 1e-3


def test_more_tokens_than_fit_into_a_call_are_all_swapped(causal, stream, monkeypatch):
    models, params = causal
    monkeypatch.setattr(swaps, "AT_A_TIME", 2)
    windows = {5: windows_at(stream, places_of(stream, VOCABULARY)[5][:3])}
    swap = swaps.make_swap(models)
    found = swap_all(swap, params, windows, {5: [7, 9, 8]})
    assert sorted(found) == [(5, 7), (5, 8), (5, 9)]
    alone = swap_all(swap, params, windows, {5: [8]})[5, 8]
    np.testing.assert_allclose(found[5, 8].cross_NxK, alone.cross_NxK, atol=1e-6)


def masked_swaps(models, params, stream, tokens, number, rng):
    """Draw windows of some tokens and put each of the others in their place."""
    places = swaps.places_in_rows(stream, VOCABULARY)
    windows = {
        token: swaps.masked_windows(stream, rng.permutation(places[token])[:number], SPECIAL, rng)
        for token in tokens
    }
    others = {token: [other for other in tokens if other != token] for token in tokens}
    return windows, swap_all(swaps.make_swap(models, SPECIAL.mask), params, windows, others)


def test_masked_windows_are_rows_around_the_token_with_one_mask_each(masked_stream):
    stream, side = masked_stream, swaps.SIDE
    places = swaps.places_in_rows(stream, VOCABULARY)
    assert sum(map(len, places)) == np.sum(
        (stream.tokens_N != SPECIAL.sep) & (np.bincount(stream.row_N)[stream.row_N] > 2)
    )
    windows = swaps.masked_windows(stream, places[6], SPECIAL, np.random.default_rng(2))
    for place, row, asked_K, tokens_RxL in zip(
        places[6], windows.sentence_N, windows.asked_NxK, windows.tokens_NxL
    ):
        own = np.flatnonzero(stream.row_N == row)[:-1]
        whole = np.full(2 * side + 1, SPECIAL.pad)
        for at, token in (
            (own[0] - 1, SPECIAL.cls),
            (own[-1] + 1, SPECIAL.sep),
            *((at, stream.tokens_N[at]) for at in own),
        ):
            if abs(at - place) <= side:
                whole[side + at - place] = token
        assert asked_K.tolist() == [place > own[0], place < own[-1]]
        for masked_L, is_asked, low, high in zip(
            tokens_RxL, [True, *asked_K], (0, -4, 1), (0, -1, 4)
        ):
            (masks,) = np.nonzero(masked_L == SPECIAL.mask)
            assert len(masks) == is_asked and all(low <= mask - side <= high for mask in masks)
            assert np.array_equal(np.delete(masked_L, masks), np.delete(whole, masks))
            assert all(whole[mask] >= 5 for mask in masks)  # neither [CLS] nor [SEP] nor padding


@pytest.mark.slow
def test_masked_swaps_match_single_rows(masked_stream):
    """Give the whole row to the model, without padding, with one mask each time."""
    models, params = two_models(TransformerBody)
    rng = np.random.default_rng(3)
    windows, found = masked_swaps(models, params, masked_stream, [6, 8], 4, rng)

    def prediction(m, tokens_L):
        tokens_L = tokens_L[tokens_L != SPECIAL.pad]
        at = np.flatnonzero(tokens_L == SPECIAL.mask)
        logits = models[m].apply({"params": params[m]}, tokens_L, at)
        return np.asarray(jax.nn.softmax(logits[0]), np.float64)

    each, own = found[6, 8], windows[6]
    for n in range(2):
        g = []
        asked_K = own.asked_NxK[n]
        rows = own.tokens_NxL[n, 1:][asked_K]
        swapped = rows.copy()
        swapped[:, swaps.SIDE] = 8
        for m in range(2):
            expected = np.log(prediction(m, own.tokens_NxL[n, 0])[[6, 8]])
            left = [each.log_true_2xN[m, n], each.log_other_2xN[m, n]]
            np.testing.assert_allclose(left, expected, atol=1e-5)
            roots = [[np.sqrt(prediction(m, row)) for row in some] for some in (rows, swapped)]
            g.append(np.subtract(roots[1], roots[0]))
        cross = [a @ b / 2 for a, b in zip(*g)]
        np.testing.assert_allclose(each.cross_NxK[n][asked_K], cross, rtol=1e-2, atol=1e-6)
        assert np.isnan(each.cross_NxK[n][~asked_K]).all() and np.abs(cross).max() > 2e-5


class PerfectExor(nn.Module):
    """A model that predicts the masked symbol of an EXor string exactly."""

    embedding: nn.Module

    def hidden(self, tokens_BxL, at_P):
        def member_number(*symbols):
            return jnp.isin(tokens_BxL, jnp.array(symbols)).sum(axis=1)

        ones_B, odd_B, labels_B = member_number(A, B), member_number(ODD), member_number(EVEN, ODD)
        one_B = (ones_B + odd_B) % 2  # the bit that makes the parity right, if a bit is masked
        chance_BxV = jnp.zeros((len(tokens_BxL), VOCABULARY))
        for symbol, chance_B in (
            (X, 0.1 * (1 - one_B) * labels_B),
            (Y, 0.9 * (1 - one_B) * labels_B),
            (A, 0.5 * one_B * labels_B),
            (B, 0.5 * one_B * labels_B),
            (EVEN, (1 - labels_B) * (1 - ones_B % 2)),
            (ODD, (1 - labels_B) * (ones_B % 2)),
        ):
            chance_BxV = chance_BxV.at[:, symbol].set(chance_B)
        return jnp.log(chance_BxV)[at_P // tokens_BxL.shape[1]]


def stream_of_exor(strings: int, rng: np.random.Generator) -> Stream:
    """Strings of seven bits with their parity."""
    bits_RxL = rng.integers(0, 2, (strings, 7))
    bits_RxL = bits_RxL[bits_RxL.sum(axis=1) < 7]
    zeros = rng.choice([X, Y], bits_RxL.shape, p=[0.1, 0.9])
    ones = rng.choice([A, B], bits_RxL.shape)
    label_R = np.where(bits_RxL.sum(axis=1) % 2, ODD, EVEN)
    tokens_RxL = np.concatenate([np.where(bits_RxL, ones, zeros), label_R[:, None]], axis=1)
    offsets = np.arange(len(tokens_RxL) + 1) * 8
    return stream_of(Rows(tokens_RxL.ravel().astype(np.uint16), offsets), SPECIAL.sep)


def test_perfect_masked_models_find_the_exact_divergences_of_exor():
    """X-Y: S 0, C 0, m ln 9; A-B: all 0; X-A: S 1, no overlap."""
    rng, model = np.random.default_rng(0), PerfectExor(Logits())
    symbols = {"X": X, "Y": Y, "A": A, "B": B}
    windows, found = masked_swaps(
        (model, model), ({}, {}), stream_of_exor(400, rng), [X, Y, A, B], 24, rng
    )
    exact = pair_divergences(Process())
    for pair in exact["pair"].values:
        first, second = (symbols[name] for name in str(pair).split("-"))
        sums = sums_of_pair(found, windows, first, second, is_masked=True)
        conditional = estimators.conditional(sums.conditional)
        semantic = estimators.semantic(sums.semantic)
        got = (semantic.divergence, conditional.divergence, conditional.bias, conditional.overlap)
        own = exact.sel(pair=pair)
        wanted = [float(own[name]) for name in ("semantic", "conditional", "bias", "overlap")]
        assert list(map(float, got)) == pytest.approx(wanted, abs=1e-5, nan_ok=True), pair
