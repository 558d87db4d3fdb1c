"""The embedding that a declared head makes; BERT's head against PyTorch."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import once

from jaxtie.arms import HEAD_FLAGS, HEAD_NUMBERS
from jaxtie.config import Arm, Head, Interventions, Transformer
from jaxtie.models.language_model import MaskedLM, build_body
from jaxtie.tying.head import Projection, channel_shuffle, gelu, half_swap
from jaxtie.tying.linen import Embedding, make_embedding

V, D = 30, 12
BERT = Projection(bias=True, activation=gelu, norm=True)
CHANGES = {  # option -> attributes of the `Embedding`
    "bias": {"bias": True},
    "half-swap": {"transform": half_swap},
    "shuffle": {"transform": (channel_shuffle, {"groups": 2})},
    "shuffle=4": {"transform": (channel_shuffle, {"groups": 4})},
    "projection": {"transform": Projection()},
    "bert-head": {"transform": BERT},
    "init-std=0.02": {"init_std": 0.02},
    "init-std=log-n-by-D": {"init_std": "log(n)/D"},
    "input-scale=root-D": {"input_scale": "sqrt(D)"},
    "logit-scale=1-by-root-D": {"logit_scale": "1/sqrt(D)"},
    "logit-scale=3": {"logit_scale": 3.0},
    "input-gradient=0": {"input_gradient": 0.0},
    "output-gradient=0.5": {"output_gradient": 0.5},
    "logit-softcap=30": {"logit_softcap": 30.0},
    "output-start": {"start": "output"},
    "bias+bert-head+logit-softcap=7": {"bias": True, "transform": BERT, "logit_softcap": 7.0},
}


def head_of(options: str) -> Head:
    return Arm.parse(f"tied+{options}" if options else "tied").head


def plain_values(embedding: Embedding) -> dict:
    """Return the attributes; a partial function as a tuple, since no two of them are equal."""
    values = {field.name: getattr(embedding, field.name) for field in dataclasses.fields(embedding)}
    if isinstance(values["transform"], partial):
        values["transform"] = values["transform"].func, values["transform"].keywords
    return values


def test_every_option_is_tested():
    tested = {option.partition("=")[0] for option in CHANGES if "+" not in option}
    of_optimizer = {"undecayed-bias", "table-rate", "input-rate", "output-rate", "table-decay"}
    of_rows = {"frozen-direction", "residual-only", "qkv-only"}  # training/test_interventions.py
    of_rows |= {each.name.replace("_", "-") for each in dataclasses.fields(Interventions)}
    assert tested == {*HEAD_FLAGS, *HEAD_NUMBERS} - of_optimizer - of_rows - {"targets-only"}


@pytest.mark.parametrize("options", CHANGES)
def test_an_option_changes_its_attributes_only(options):
    common = {"tied": True, "init_std": 0.3, "padding": 2, "matmul_dtype": jnp.bfloat16}
    expected = plain_values(Embedding(V, D, **common)) | CHANGES[options]
    assert plain_values(make_embedding(head_of(options), V, D, **common)) == expected


@pytest.mark.parametrize("tied", [True, False])
def test_a_plain_head_is_the_plain_embedding(tied):
    for common in ({}, {"init_std": 0.3, "padding": 0, "matmul_dtype": jnp.bfloat16}):
        assert make_embedding(Head(), V, D, tied=tied, **common) == Embedding(V, D, tied, **common)


def test_models_share_what_they_have_in_common():
    """Bit for bit, with any head, tied or not: the body, either table, the projection."""
    options = ["", "bias", "projection", "bert-head", "bias+bert-head"]
    options.append("half-swap+logit-softcap=7+output-gradient=0")
    names = [f"{tied}+{each}".rstrip("+") for tied in ("tied", "untied") for each in options]
    arms = list(map(Arm.parse, names))

    def draw(key):
        body, zero = build_body(Transformer(1, 2, D, 5)), jnp.zeros(8, jnp.int32)
        embeddings = (make_embedding(arm.head, V, D, tied=arm.tied) for arm in arms)
        models = [MaskedLM(embedding, body, 3) for embedding in embeddings]
        return [model.init(key, zero, zero[:1])["params"] for model in models]

    first: dict[str, jax.Array] = {}
    for arm, params in zip(arms, once(draw)(jax.random.key(3)), strict=True):
        projected = arm.head.transform in ("projection", "bert-head")
        leaves = {"input", *["output"] * (not arm.tied), *["bias"] * arm.head.bias}
        leaves |= {"projection"} if projected else set()
        assert params.keys() == {"embedding", "body"} and params["embedding"].keys() == leaves, arm
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            same = first.setdefault(jax.tree_util.keystr(path), leaf)
            np.testing.assert_array_equal(leaf, same, f"{arm}: {path}")
    assert not np.array_equal(first["['embedding']['input']"], first["['embedding']['output']"])


@pytest.mark.parametrize("tied", [True, False])
def test_berts_head_matches_pytorch(tied, x64):
    """Linear, exact GELU, layer norm, then the output table and its bias: logits and gradients."""
    torch = pytest.importorskip("torch", reason="pip install 'jaxtie[parity]'")
    from torch import nn

    embedding = make_embedding(head_of("bert-head+bias"), V, D, tied=tied)
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(embedding.init, jax.random.key(0), 0)["params"]
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape), shapes)
    h_PxD, weight_PxV = rng.standard_normal((5, D)), rng.standard_normal((5, V))

    @once
    @partial(jax.value_and_grad, has_aux=True)
    def look(params):
        logits_PxV = embedding.apply({"params": params}, h_PxD, method="logits")
        return jnp.sum(weight_PxV * logits_PxV), logits_PxV

    (_, logits_PxV), gradient = jax.device_get(look(params))

    transform = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.LayerNorm(D, eps=1e-12)).double()
    decoder = nn.Linear(D, V).double()
    table, own = ("input" if tied else "output"), params["projection"]
    parts = {  # its parameter, ours, whether ours is transposed
        "weight": (transform[0].weight, own["weight"].T),
        "bias": (transform[0].bias, own["bias"]),
        "norm_weight": (transform[2].weight, own["norm_weight"]),
        "norm_bias": (transform[2].bias, own["norm_bias"]),
        table: (decoder.weight, params[table]),
        "output_bias": (decoder.bias, params["bias"]),
    }
    with torch.no_grad():
        for parameter, values in parts.values():
            parameter.copy_(torch.tensor(values))
    theirs = decoder(transform(torch.tensor(h_PxD)))
    (theirs * torch.tensor(weight_PxV)).sum().backward()
    np.testing.assert_allclose(logits_PxV, theirs.detach().numpy(), rtol=1e-10, atol=1e-12)
    ours = gradient["projection"] | {table: gradient[table], "output_bias": gradient["bias"]}
    for name, (parameter, _) in parts.items():
        found = ours[name].T if name == "weight" else ours[name]
        np.testing.assert_allclose(
            found, parameter.grad.numpy(), rtol=1e-9, atol=1e-11, err_msg=name
        )
