"""Masked models asked at the token and at masked positions on both sides: against the law of EXor,
and one row at a time.
"""

from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from known_topics import Logits

from jaxtie import Process
from jaxtie.advise import estimators, swaps
from jaxtie.advise.measure import sums_of_pair
from jaxtie.advise.models import unigram_loss
from jaxtie.exor.analysis import pair_divergences
from jaxtie.models.language_model import masked_model
from jaxtie.text.data.batches import Rows, Special
from jaxtie.text.pairs import Duplicates, Stream, stream_of
from jaxtie.tying.linen import Embedding

SPECIAL = Special(pad=0, unk=1, cls=2, sep=3, mask=4)
X, Y, A, B, EVEN, ODD = range(5, 11)
VOCABULARY = 11


class LawOfExor(nn.Module):
    """What is masked in a string of EXor, as a model without error says it."""

    embedding: nn.Module

    def hidden(self, tokens_BxL, at_P):
        def number_of(*symbols):
            return jnp.isin(tokens_BxL, jnp.array(symbols)).sum(axis=1)

        ones_B, odd_B, labels_B = number_of(A, B), number_of(ODD), number_of(EVEN, ODD)
        one_B = (
            ones_B + odd_B
        ) % 2  # the bit that makes the parity right, if it is a bit that is masked
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
    """Strings of seven bits, each spelled, with their parity."""
    bits_RxL = rng.integers(0, 2, (strings, 7))
    bits_RxL = bits_RxL[bits_RxL.sum(axis=1) < 7]
    zeros, ones = (
        rng.choice([X, Y], bits_RxL.shape, p=[0.1, 0.9]),
        rng.choice([A, B], bits_RxL.shape),
    )
    label_R = np.where(bits_RxL.sum(axis=1) % 2, ODD, EVEN)
    tokens_RxL = np.concatenate([np.where(bits_RxL, ones, zeros), label_R[:, None]], axis=1)
    return stream_of(
        Rows(tokens_RxL.ravel().astype(np.uint16), np.arange(len(tokens_RxL) + 1) * 8), SPECIAL.sep
    )


def asked(models, params, stream, tokens, number, rng):
    """Windows of some tokens, and what the models make of each of the others in its place."""
    places = swaps.places_in_rows(stream, VOCABULARY)
    windows = {
        token: swaps.masked_windows(stream, rng.permutation(places[token])[:number], SPECIAL, rng)
        for token in tokens
    }
    swap = swaps.make_masked_swap(models, SPECIAL.mask)
    others = {token: [other for other in tokens if other != token] for token in tokens}
    return windows, {
        (one, other): each for one, other, each in swaps.swap_all(swap, params, windows, others)
    }


def test_with_the_law_of_exor_it_finds_what_is_exact():
    """X-Y: S 0, C 0, m ln 9; A-B: all 0; X-A: S 1, no overlap."""
    rng, law, symbols = (
        np.random.default_rng(0),
        LawOfExor(Logits()),
        {"X": X, "Y": Y, "A": A, "B": B},
    )
    windows, found = asked((law, law), ({}, {}), stream_of_exor(400, rng), [X, Y, A, B], 24, rng)
    exact = pair_divergences(Process())
    for pair in exact["pair"].values:
        sums = sums_of_pair(
            found, windows, *(symbols[name] for name in str(pair).split("-")), is_masked=True
        )
        conditional, semantic, own = (
            estimators.conditional(sums.conditional),
            estimators.semantic(sums.semantic),
            exact.sel(pair=pair),
        )
        got = (semantic.divergence, conditional.divergence, conditional.bias, conditional.overlap)
        wanted = [float(own[name]) for name in ("semantic", "conditional", "bias", "overlap")]
        assert list(map(float, got)) == pytest.approx(wanted, abs=1e-5, nan_ok=True), pair


@pytest.fixture(scope="module")
def stream():
    rng = np.random.default_rng(1)
    lengths = np.append(rng.integers(1, 12, 50), [60, 1])  # of one token: nothing to ask there
    return stream_of(
        Rows(
            rng.integers(5, VOCABULARY, lengths.sum()).astype(np.uint16),
            np.append(0, np.cumsum(lengths)),
        ),
        3,
    )


def test_a_window_is_the_row_around_the_token_and_each_way_to_ask_has_one_mask(stream):
    places = swaps.places_in_rows(stream, VOCABULARY)
    rng, side = np.random.default_rng(2), swaps.SIDE
    assert sum(map(len, places)) == np.sum(
        (stream.tokens_N != 3) & (np.bincount(stream.row_N)[stream.row_N] > 2)
    )
    windows = swaps.masked_windows(stream, places[6], SPECIAL, rng)
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
def test_swaps_are_what_the_models_say_row_by_row(stream):
    """The whole row to the model, each time with one mask; padding left out."""
    rng, models = np.random.default_rng(3), []
    for seed, width in enumerate((4, 8)):
        ends = Embedding(VOCABULARY, width, init_std=1.0, padding=SPECIAL.pad)
        model = masked_model(ends, layers=1, heads=2, feedforward=8)
        models.append(
            (
                model,
                jax.jit(model.init)(
                    jax.random.key(seed), np.zeros(4, np.int32), np.zeros(1, np.int32)
                )["params"],
            )
        )
    windows, found = asked(
        [m for m, _ in models], tuple(p for _, p in models), stream, [6, 8], 4, rng
    )

    def law(model, params, tokens_L):
        tokens_L = tokens_L[tokens_L != SPECIAL.pad]
        logits = model.apply({"params": params}, tokens_L, np.flatnonzero(tokens_L == SPECIAL.mask))
        return np.asarray(jax.nn.softmax(logits[0]), np.float64)

    each, own = found[6, 8], windows[6]
    for n in range(2):
        g = []
        for m, (model, params) in enumerate(models):
            here_V = law(model, params, own.tokens_NxL[n, 0])
            np.testing.assert_allclose(
                [each.own_2xN[m, n], each.other_2xN[m, n]], np.log(here_V[[6, 8]]), atol=1e-5
            )
            rows = own.tokens_NxL[n, 1:][own.asked_NxK[n]]
            put = rows.copy()
            put[:, swaps.SIDE] = 8
            g.append(
                [
                    np.sqrt(law(model, params, b)) - np.sqrt(law(model, params, a))
                    for a, b in zip(rows, put)
                ]
            )
        cross = [a @ b / 2 for a, b in zip(*g)]
        np.testing.assert_allclose(each.cross_NxK[n][own.asked_NxK[n]], cross, rtol=1e-2, atol=1e-6)
        assert np.isnan(each.cross_NxK[n][~own.asked_NxK[n]]).all() and np.abs(cross).max() > 2e-5


@pytest.mark.parametrize(
    ("task", "asked"), [("masked", [5, 6, 6, 8]), ("causal", [5, 6, 6, 8, 3, 3])]
)
def test_frequencies_are_those_of_what_is_asked(task, asked):
    """5 is spelled as 8 half of the time; only a causal model is asked of the ends of the two
    rows.
    """
    rows = Rows(np.array([5, 6, 5, 6], np.uint16), np.array([0, 3, 4]))
    text = SimpleNamespace(special=SPECIAL, train=rows)
    drawn = Duplicates(np.array([5]), np.array([8]), np.array([0.5]), ("word*",))
    material = SimpleNamespace(vocabulary=range(9), text=text, drawn=drawn)
    trained = SimpleNamespace(material=material, experiment=SimpleNamespace(objective=task))
    known_V = np.bincount(asked, minlength=9) + 1.0
    assert unigram_loss(trained, rows) == pytest.approx(
        -np.mean(np.log(known_V / known_V.sum())[asked])
    )
