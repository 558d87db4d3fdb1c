"""What models say with one token in the place of another, against the models asked one window at a
time.
"""

import jax
import numpy as np
import pytest

from jaxtie.advise import estimators, swaps
from jaxtie.models.language_model import causal_model
from jaxtie.text.data.batches import Rows
from jaxtie.text.pairs import AFTER, BEFORE, places_of, stream_of, windows_at
from jaxtie.tying.linen import Embedding

VOCABULARY, SEP = 11, 3
LENGTH = BEFORE + AFTER


@pytest.fixture(scope="module")
def models():
    """Two models of other sizes, with large tables so that they tell tokens from each other."""
    found = []
    for seed, width in enumerate((4, 8)):
        model = causal_model(
            Embedding(VOCABULARY, width, init_std=1.0),
            layers=1,
            heads=2,
            feedforward=8,
            branch_scale=1.0,
        )
        tokens = np.zeros(4, np.int32)
        found.append(
            (
                model,
                jax.jit(model.init)(jax.random.key(seed), tokens, np.zeros(1, np.int32))["params"],
            )
        )
    return found


@pytest.fixture(scope="module")
def stream():
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 12, 60)
    tokens_N = rng.integers(4, VOCABULARY, lengths.sum()).astype(np.uint16)
    return stream_of(Rows(tokens_N, np.append(0, np.cumsum(lengths))), SEP)


def law_of(model, params, tokens_L):
    logits_LxV = jax.jit(model.apply)({"params": params}, tokens_L, np.arange(len(tokens_L)))
    return np.asarray(jax.nn.softmax(logits_LxV), np.float64)


def test_the_stream_is_the_rows_each_with_its_end():
    found = stream_of(Rows(np.array([5, 6, 7], np.uint16), np.array([0, 2, 3])), SEP)
    assert found.tokens_N.tolist() == [5, 6, SEP, 7, SEP]
    assert found.row_N.tolist() == [0, 0, 0, 1, 1] and found.end_N.tolist() == [2, 2, 2, 4, 4]


def test_windows_are_around_the_token_and_end_with_its_sentence(stream):
    places = places_of(stream, VOCABULARY)
    windows = windows_at(stream, places[5])
    assert (windows.tokens_NxL[:, BEFORE] == 5).all() and windows.tokens_NxL.shape[1] == LENGTH
    for place, asked_K, tokens_L in zip(places[5], windows.asked_NxK, windows.tokens_NxL):
        rest = stream.tokens_N[place + 1 : place + 1 + AFTER].tolist()
        until_end = rest.index(SEP) + 1 if SEP in rest else AFTER
        assert asked_K.tolist() == [k < until_end for k in range(AFTER)]
        assert tokens_L.tolist() == stream.tokens_N[place - BEFORE : place + AFTER].tolist()


@pytest.mark.slow
def test_swaps_are_what_the_models_say_one_by_one(models, stream):
    """Log-probabilities on the left, products of the differences of square roots on the right."""
    places = places_of(stream, VOCABULARY)
    windows = {5: windows_at(stream, places[5][:3]), 7: windows_at(stream, places[7][:4])}
    swap, params = (
        swaps.make_swap([model for model, _ in models]),
        tuple(params for _, params in models),
    )
    found = {
        (token, other): each
        for token, other, each in swaps.swap_all(swap, params, windows, {5: [7, 9], 7: [5]})
    }
    assert found.keys() == {(5, 7), (5, 9), (7, 5)}
    for (token, other), each in found.items():
        own = windows[token]
        roots = np.full((2, 2, len(own.tokens_NxL), AFTER, VOCABULARY), np.nan)
        for m, (model, weights) in enumerate(models):
            for n, tokens_L in enumerate(own.tokens_NxL):
                law_LxV = law_of(model, weights, tokens_L)
                left_V = law_LxV[BEFORE - 1]
                np.testing.assert_allclose(each.own_2xN[m, n], np.log(left_V[token]), atol=1e-5)
                np.testing.assert_allclose(each.other_2xN[m, n], np.log(left_V[other]), atol=1e-5)
                put_L = tokens_L.copy()
                put_L[BEFORE] = other
                asked = own.asked_NxK[n]
                roots[0, m, n, asked] = np.sqrt(law_LxV[BEFORE:])[asked]
                roots[1, m, n, asked] = np.sqrt(law_of(model, weights, put_L)[BEFORE:])[asked]
        expected = estimators.semantic_products(*roots)
        np.testing.assert_allclose(each.cross_NxK, expected.cross_NxK, atol=1e-5)
        np.testing.assert_allclose(each.own_2xNxK, expected.own_2xNxK, atol=1e-5)
        assert np.nanmax(np.abs(expected.cross_NxK)) > 1e-3


def test_more_tokens_than_fit_into_a_call_are_all_asked(models, stream, monkeypatch):
    monkeypatch.setattr(swaps, "AT_A_TIME", 2)
    places = places_of(stream, VOCABULARY)
    windows = {5: windows_at(stream, places[5][:3])}
    swap, params = (
        swaps.make_swap([model for model, _ in models]),
        tuple(params for _, params in models),
    )
    one = {other: each for _, other, each in swaps.swap_all(swap, params, windows, {5: [7, 9, 8]})}
    assert sorted(one) == [7, 8, 9]
    (alone,) = (each for _, _, each in swaps.swap_all(swap, params, windows, {5: [8]}))
    np.testing.assert_allclose(one[8].cross_NxK, alone.cross_NxK, atol=1e-6)
