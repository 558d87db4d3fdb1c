"""Duplicates, matched pairs, and predictions of pairs in contexts."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quickly import QUICK

from jaxtie import Transformer
from jaxtie.config import Head, Variant
from jaxtie.text.config import TextExperiment
from jaxtie.text.corpus import prepare_corpus
from jaxtie.text.data.batches import Special
from jaxtie.text.pairs import (
    NEAREST_FREQUENCIES,
    PairContexts,
    choose_contexts,
    duplicates_of,
    matched_pairs,
)
from jaxtie.text.task import build_text_model, make_predictions, make_targets

SIZES = {"batch": 8, "length": 16, "buckets": (16,), "words": 6}
MODEL = Transformer(layers=1, heads=2, width=8, feedforward=8)


def with_duplicates(text, **options) -> TextExperiment:
    """Return a prepared experiment whose words have duplicates."""
    experiment = TextExperiment(
        model=MODEL, arms=("untied",), duplicates=(0.5, 0.1), contexts=4, **SIZES, **options
    )
    return dataclasses.replace(experiment, prepared=prepare_corpus(experiment, text))


@pytest.fixture(scope="module", params=("masked", "causal"))
def experiment(request, text) -> TextExperiment:
    return with_duplicates(text, objective=request.param)


def test_words_get_the_probabilities_in_turn(experiment):
    prepared = experiment.prepared
    assert prepared.drawn.probability_K.tolist() == [0.5, 0.1] * 3
    names = [f"{prepared.vocabulary[word]}*" for word in prepared.words_K]
    assert list(prepared.vocabulary[-6:]) == names
    assert experiment.kinds == ("duplicate", "matched", "random")


def test_training_draws_each_word_at_its_own_probability(experiment):
    prepared = experiment.prepared
    tokens = np.resize(prepared.drawn.words_K, (40, 15))
    tokens = np.pad(tokens, ((0, 0), (0, 1)), constant_values=prepared.text.special.sep)
    draw = jax.vmap(lambda key: make_targets(experiment, key, jnp.asarray(tokens)).tokens_BxL)
    keys = jax.random.split(jax.random.key(0), 50)
    found = jax.device_get(jax.jit(draw, compiler_options=QUICK)(keys))
    for word, twin, p in zip(*prepared.drawn[:3]):
        words, twins = (int(np.sum(found == each)) for each in (word, twin))
        error = 4 * math.sqrt(p * (1 - p) / (words + twins)) + 0.01  # BERT's random tokens
        assert abs(twins / (words + twins) - p) < error


@pytest.mark.slow
def test_unknown_tokens_are_no_targets(text):
    unk = text.special.unk
    experiment = with_duplicates(text, objective="masked")
    found = make_targets(experiment, jax.random.key(0), jnp.full((8, 16), unk))
    assert int(found.weight_P.sum()) == 0 and bool((found.tokens_BxL == unk).all())


def test_pairs_match_words_and_duplicates_in_frequency_and_are_neither():
    count_V = np.array([0, 0, 0, 0, 0, 800, 100, 64, *range(1000, 5, -5)], float)
    words_K = np.array([5, 6, 7])
    drawn = duplicates_of(words_K, ("a", "b", "c"), len(count_V), (0.5, 0.1))
    count_V = np.append(count_V, np.zeros(3))
    count_V[drawn.duplicates_K] = count_V[words_K] * drawn.probability_K
    count_V[words_K] *= 1 - drawn.probability_K
    first_K, second_K = matched_pairs(3, count_V, drawn, Special(0, 1, 2, 3, 4))
    for k in range(3):
        own = (drawn.words_K[k], drawn.duplicates_K[k])
        assert not {first_K[k], second_K[k]} & {*own, 0, 1, 2, 3, 4} and first_K[k] != second_K[k]
        for token, like in ((first_K[k], own[0]), (second_K[k], own[1])):
            closer = np.abs(np.log(count_V[5:]) - np.log(count_V[like])) < abs(
                math.log(count_V[token] / count_V[like])
            )
            # itself, its twin, and the others that could have been drawn
            assert closer.sum() <= NEAREST_FREQUENCIES + 2
    again = matched_pairs(3, count_V, drawn, Special(0, 1, 2, 3, 4))
    assert np.array_equal(again, (first_K, second_K))


def test_contexts_are_of_the_text(experiment):
    """They are validation sentences, but for the pair's token and drawn duplicates."""
    prepared = experiment.prepared
    contexts, drawn, rows = prepared.contexts, prepared.drawn, prepared.text.valid
    assert contexts.shape == (3, 6, 4) and len(contexts.at_Q) == 3 * 6 * 4
    base = np.arange(len(prepared.vocabulary))
    base[drawn.duplicates_K] = drawn.words_K
    special = prepared.text.special
    stream = "".join(
        f" {token}" for r in range(rows.count) for token in [*rows.row(r), special.sep]
    )
    for q in range(0, len(contexts.at_Q), 5):
        tokens, at = contexts.tokens_QxL[q], contexts.at_Q[q]
        assert tokens[at] == contexts.first_Q[q]
        pair = {int(base[contexts.first_Q[q]]), int(base[contexts.second_Q[q]])}
        there = [int(base[token]) for token in tokens if token not in (special.pad, special.cls)]
        place = at - (experiment.objective == "masked")
        assert any(
            "".join(f" {t}" for t in [*there[:place], token, *there[place + 1 :]]) in stream
            for token in pair
        )
        assert not np.isin(
            tokens[contexts.predicted_QxM[q]][contexts.counts_QxM[q]], special[:3]
        ).any()
    assert contexts.counts_QxM.any(axis=1).mean() > 0.9
    again = choose_contexts(experiment, prepared.text, drawn, prepared.first, prepared.second)
    assert all(np.array_equal(x, y) for x, y in zip(again[:6], contexts[:6]))


def model_of(experiment: TextExperiment, **options):
    """Return a model and its initial parameters."""
    model = build_text_model(experiment, Variant(**options), "cpu")
    return model, model.init(jax.random.key(1), jnp.arange(4), jnp.arange(4))["params"]


def brute_force(of_sequence, contexts: PairContexts, q: int) -> tuple[float, float]:
    """Compute log-odds and swap divergence in one context, one sequence at a time."""
    tokens, at = contexts.tokens_QxL[q], int(contexts.at_Q[q])
    first, second = contexts.first_Q[q], contexts.second_Q[q]

    def distribution(tokens, where):
        return np.asarray(of_sequence(tokens.astype(np.int32), np.array([where])), np.float64)

    hidden, seen = tokens.copy(), tokens.copy()
    if contexts.mask is not None:
        hidden[at] = contexts.mask
        seen[contexts.predicted_QxM[q]] = contexts.mask
    itself = distribution(hidden, at if contexts.mask is not None else at - 1)
    swapped, moved = seen.copy(), []
    swapped[at] = second
    for where, counts in zip(contexts.predicted_QxM[q], contexts.counts_QxM[q]):
        if counts:
            moved.append(
                0.5 * np.abs(distribution(seen, where) - distribution(swapped, where)).sum()
            )
    return math.log(itself[first] / itself[second]), float(np.mean(moved)) if moved else math.nan


def test_predictions_are_those_of_one_sequence_at_a_time(experiment):
    contexts = experiment.prepared.contexts
    model, params = model_of(experiment, tied=False)
    look = jax.jit(make_predictions(model, contexts), compiler_options=QUICK)
    found = jax.device_get(look(params))

    @partial(jax.jit, compiler_options=QUICK)
    def of_sequence(tokens, at):
        return jax.nn.softmax(model.apply({"params": params}, tokens, at)[0])

    _, count, number = contexts.shape
    for kind, pair in ((0, 1), (1, 0), (2, 5)):
        start = (kind * count + pair) * number
        places = range(start, start + number)
        each = np.array([brute_force(of_sequence, contexts, q) for q in places])
        each = each[np.isfinite(each[:, 1])]
        assert found["log_odds"][kind, pair] == pytest.approx(each[:, 0].mean(), abs=1e-5)
        assert found["log_odds_deviation"][kind, pair] == pytest.approx(each[:, 0].std(), abs=1e-5)
        assert found["swap_divergence"][kind, pair] == pytest.approx(each[:, 1].mean(), abs=1e-6)


@pytest.mark.slow
def test_equal_rows_are_equally_likely_and_move_nothing(experiment):
    """A bias carries the odds of duplicates whose rows are equal: ln 9, in every context."""
    model, params = model_of(experiment, tied=True, head=Head(bias=True))
    prepared, ends = experiment.prepared, params["embedding"]
    drawn = prepared.drawn
    odds_K = np.log(1 / drawn.probability_K - 1)
    ends = ends | {"input": ends["input"].at[drawn.duplicates_K].set(ends["input"][drawn.words_K])}
    ends |= {"bias": ends["bias"].at[drawn.words_K].set(ends["bias"][drawn.duplicates_K] + odds_K)}
    found = jax.device_get(make_predictions(model, prepared.contexts)(params | {"embedding": ends}))
    np.testing.assert_allclose(found["log_odds"][0], odds_K, atol=1e-4)
    np.testing.assert_allclose(found["log_odds_deviation"][0], 0, atol=1e-4)
    np.testing.assert_allclose(found["swap_divergence"][0], 0, atol=1e-5)
    assert found["swap_divergence"][2].min() > 1e-4


@pytest.mark.slow
def test_pairs_without_a_place_are_missing(experiment):
    contexts = experiment.prepared.contexts
    is_other_Qx1 = (np.arange(len(contexts.at_Q)) >= contexts.shape[2])[:, None]
    none = contexts._replace(counts_QxM=contexts.counts_QxM & is_other_Qx1)
    model, params = model_of(experiment, tied=True)
    for found in jax.device_get(make_predictions(model, none)(params)).values():
        assert np.isnan(found[0, 0]) and np.isfinite(found[0, 1:]).all()
