"""The encoder without positions: cloned layers, rows of the table or tokens, extreme scores."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import assert_close, build_model, initial, once, random_params, sample

from jaxtie.config import Transformer
from jaxtie.exor.data import MASK


@pytest.fixture(scope="module")
def batch():
    return sample()


@pytest.mark.parametrize("independent", [False, True])
def test_layers_start_as_clones_unless_independent(independent):
    ours = initial(Transformer(2, 1, 4, 4, independent), tied=True, seeds=2)
    for name, leaf in ours.items():
        if name.startswith("body/layer_") and not name.startswith("body/layer_0"):
            first = ours["body/layer_0/" + name.split("/")[-1]]
            constant = np.ptp(first) == 0  # biases at 0, norms at 1
            assert np.array_equal(leaf, first) == (constant or not independent), name


@cache
def forms(config: Transformer) -> dict:
    """Return logits and gradient of a weighted sum as functions, for both forms of the model.

    Two tokens that never occur make the vocabulary longer than the sequence, which selects the
    token form.
    """

    def pad(params):
        padded = jax.tree.map(
            lambda table: jnp.pad(table, ((0, 2), (0, 0)), constant_values=3.0), params["embedding"]
        )
        return {**params, "embedding": padded}

    def differentiated(model, prepare):
        def weighted(params, tokens_BxL, at_BxP):
            prepared = {"params": prepare(params)}
            logits_BxPxV = jax.vmap(lambda tokens, at: model.apply(prepared, tokens, at)[..., :7])(
                tokens_BxL, at_BxP
            )
            weights = np.random.default_rng(1).standard_normal(logits_BxPxV.shape)
            return jnp.sum(weights.astype(logits_BxPxV.dtype) * logits_BxPxV), logits_BxPxV

        def function(params, tokens_BxL, at_BxP):
            gradient, logits_BxPxV = jax.grad(weighted, has_aux=True)(params, tokens_BxL, at_BxP)
            return logits_BxPxV, gradient

        return once(function)

    row, token = (build_model(config, tied=False, vocabulary=size) for size in (7, 9))
    return {"row": differentiated(row, lambda params: params), "token": differentiated(token, pad)}


@pytest.mark.parametrize(
    "config", [Transformer(1, 1, 8, 8), Transformer(2, 2, 8, 8)], ids=["1x1", "2x2"]
)
def test_row_and_token_form_agree(config, batch, x64):
    params = random_params(config)
    by_row, by_token = (
        form(params, batch.tokens_BxL, batch.at_BxP) for form in forms(config).values()
    )
    assert by_row[0].dtype == jnp.float64
    assert_close(by_row, by_token, 1e-12)


@pytest.mark.parametrize(("form", "tolerance"), [("row", 0), ("token", 1e-12)])
def test_order_of_tokens_does_not_matter(form, tolerance, batch, x64):
    config = Transformer(2, 2, 8, 8)
    params, function = random_params(config), forms(config)[form]
    order = np.random.default_rng(2).permuted(np.tile(np.arange(8), (len(batch.at_BxP), 1)), axis=1)
    shuffled = np.take_along_axis(batch.tokens_BxL, order, axis=1)
    at = np.argmax(shuffled == MASK, axis=1)[:, None].astype(np.int32)
    expected = function(params, batch.tokens_BxL, batch.at_BxP)
    assert_close(function(params, shuffled, at), expected, tolerance)
    assert np.ptp(expected[0], axis=0).max() > 0.1  # but the tokens matter


@pytest.mark.parametrize("form", ["row", "token"])
def test_extreme_attention_scores_stay_finite(form, batch):
    config = Transformer(1, 1, 4, 4)
    params = random_params(config)
    params["body"]["layer_0"]["in_proj_weight"] *= 1e3
    logits_BxPxV, gradient = forms(config)[form](params, batch.tokens_BxL, batch.at_BxP)
    assert logits_BxPxV.dtype == jnp.float32 and np.isfinite(logits_BxPxV).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
