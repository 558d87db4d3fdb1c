"""Text models against PyTorch's modules; padding, causality, memory, training."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bodies import once
from flax.traverse_util import flatten_dict

from jaxtie.config import Decoder, Optimizer, Transformer
from jaxtie.models.language_model import TextModel, build_body
from jaxtie.text import masking, task
from jaxtie.text.corpus import random_pairs
from jaxtie.training.member import update
from jaxtie.training.optimizer import make_optimizer
from jaxtie.training.task import State
from jaxtie.tying.linen import Embedding
from jaxtie.tying.tie import is_tied

V, D, HEADS, F, PAD = 60, 16, 4, 24, 0
DECODERS = {
    kind: Decoder(layers=2, heads=HEADS, width=D, feedforward=F, gated=kind == "swiglu")
    for kind in ("swiglu", "gelu")
}
KEY, RNG = jax.random.key(3), np.random.default_rng(0)
LENGTHS = (9, 4, 12, 0)  # the last row is padding alone, as a last batch may have it
TOKENS = np.array([[*RNG.integers(1, V, n), *[PAD] * (12 - n)] for n in LENGTHS], np.int32)
TOKENS[0, 2] = TOKENS[2, 5]  # one that occurs twice
ASKED = masking.Targets(
    tokens_BxL=TOKENS,
    at_P=np.array([1, 8, 12, 24, 31, 35, 0, 0], np.int32),
    target_P=RNG.integers(0, V, 8),
    weight_P=np.float32([1] * 6 + [0] * 2),
)


def make(kind: str, tied: bool, dtype=None) -> TextModel:
    embedding = Embedding(V, D, tied, init_std=0.3, padding=PAD, matmul_dtype=dtype)
    sizes = DECODERS.get(kind, Transformer(2, HEADS, D, F))
    body = build_body(sizes, causal=kind == "causal", dtype=dtype)
    return TextModel(embedding, body)


next_tokens = once(partial(masking.next_tokens, padding=PAD))


def asked_of(kind: str) -> masking.Targets:
    return ASKED if kind == "masked" else jax.device_get(next_tokens(jnp.asarray(TOKENS)))


def start(model: TextModel) -> dict:
    return model.init(KEY, jnp.zeros(4, jnp.int32), jnp.zeros(1, jnp.int32))["params"]


def random_params(model: TextModel, dtype: str) -> dict:
    shapes, rng = jax.eval_shape(partial(start, model)), np.random.default_rng(1)
    return jax.tree.map(lambda leaf: (0.4 * rng.standard_normal(leaf.shape)).astype(dtype), shapes)


def path_of(name: str) -> tuple[str, ...]:
    """Return jaxtie's path of a PyTorch parameter."""
    if name.startswith(("input", "output")):
        return "embedding", name.split(".")[0]
    name = name.removeprefix("encoder.").replace("self_attn.", "")
    if name.startswith("layers."):
        _, layer, name = name.split(".", 2)
        return "body", f"layer_{layer}", name.replace(".", "_")
    return "body", name.replace(".", "_")


def in_torch(params: dict, kind: str):
    """Return the model in PyTorch's modules and its parameters by jaxtie's paths."""
    torch = pytest.importorskip("torch", reason="pip install 'jaxtie[parity]'")
    from torch import nn
    from torch_reference import CausalLayer, DecoderLayer

    class Reference(nn.Module):
        def __init__(self):
            super().__init__()
            self.input = nn.Embedding(V, D, padding_idx=PAD)
            self.output = self.input if is_tied(params) else nn.Embedding(V, D)
            if kind == "causal":
                self.layers = nn.Sequential(*(CausalLayer(D, HEADS, F) for _ in range(2)))
                self.norm = nn.LayerNorm(D)
            elif kind in DECODERS:
                gated = DECODERS[kind].gated
                self.layers = nn.Sequential(*(DecoderLayer(D, HEADS, F, gated) for _ in range(2)))
                self.norm = nn.RMSNorm(D, eps=1e-5)
            else:
                layer = nn.TransformerEncoderLayer(
                    D, HEADS, F, dropout=0.0, activation="gelu", batch_first=True
                )
                self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, tokens):
            tokens = tokens[:3]  # for a row of padding PyTorch has NaN
            if kind != "masked":
                h = self.norm(self.layers(self.input(tokens)))
            else:
                h = self.encoder(self.input(tokens), src_key_padding_mask=tokens == PAD)
            return nn.functional.linear(h, self.output.weight).flatten(0, 1)

    twin, leaves = Reference().double(), flatten_dict(params)
    named = {path_of(name): parameter for name, parameter in twin.named_parameters()}
    assert named.keys() == leaves.keys()
    with torch.no_grad():
        for path, parameter in named.items():
            parameter.copy_(torch.tensor(leaves[path]))
    return twin, named


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ["masked", "causal", *DECODERS])
def test_parity(kind, tied, x64):
    """Logits, loss, gradients in float64."""
    twin, named = in_torch(params := random_params(model := make(kind, tied), "float64"), kind)
    import torch

    asked = asked_of(kind)
    assert np.any(params["embedding"]["input"][PAD])  # as after training
    real = asked.weight_P == 1

    @once
    def look(params):
        loss_and_gradient = jax.value_and_grad(
            lambda p: task.loss_metrics(model, p, asked, block=5)["loss"]
        )(params)
        return *loss_and_gradient, model.apply(
            {"params": params}, TOKENS, asked.at_P[real], method="hidden"
        )

    loss, gradient, h_PxD = jax.device_get(look(params))
    logits = h_PxD @ params["embedding"]["input" if tied else "output"].T

    theirs = twin(torch.tensor(TOKENS, dtype=torch.int64))[
        torch.tensor(asked.at_P[real], dtype=torch.int64)
    ]
    expected = torch.nn.functional.cross_entropy(
        theirs, torch.tensor(asked.target_P[real], dtype=torch.int64)
    )
    expected.backward()
    np.testing.assert_allclose(logits, theirs.detach().numpy(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-9)
    for path, leaf in flatten_dict(gradient).items():
        of_torch = named[path].grad.numpy()
        if path[-1] == "in_proj_bias":  # the key bias has no effect
            leaf, of_torch = (np.delete(b.reshape(3, -1), 1, axis=0) for b in (leaf, of_torch))
        largest = np.abs(of_torch).max()
        np.testing.assert_allclose(leaf, of_torch, rtol=0, atol=1e-9 * largest, err_msg=str(path))
        assert largest > 1e-4, path
    row = gradient["embedding"]["input"][PAD]
    assert np.any(row) == tied  # the padding has no gradient as an input


@pytest.mark.parametrize("kind", ["masked", "causal", "swiglu"])
def test_padding_does_not_matter(kind, x64):
    """A row alone, without padding, gives the same as in the batch."""
    model = make(kind, True)
    params = {"params": jax.tree.map(jnp.asarray, random_params(model, "float64"))}
    apply = once(lambda tokens, at: model.apply(params, tokens, at, method="hidden"))
    together = apply(TOKENS, np.arange(TOKENS.size)).reshape(*TOKENS.shape, D)
    assert np.isfinite(together).all()
    for row, length in enumerate(LENGTHS[:3]):
        alone = apply(TOKENS[row : row + 1, :length], np.arange(length))
        np.testing.assert_allclose(together[row, :length], alone, atol=1e-12)


@pytest.mark.parametrize("kind", ["causal", "swiglu"])
def test_causal_sees_the_past_in_order(kind, x64):
    model = make(kind, True)
    params = {"params": jax.tree.map(jnp.asarray, random_params(model, "float64"))}
    apply = once(lambda tokens: model.apply(params, tokens[None], np.arange(12), method="hidden"))
    row = TOKENS[2]
    later, swapped = row.copy(), row.copy()
    later[7:] = 1 + later[7:] % (V - 1)
    swapped[[1, 2]] = row[[2, 1]]
    base = apply(row)
    np.testing.assert_allclose(apply(later)[:7], base[:7], atol=1e-13)
    assert np.abs(apply(later)[7:] - base[7:]).min(axis=1).max() > 1e-3
    assert np.abs(apply(swapped)[5] - base[5]).max() > 1e-3


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_initial_values(kind):
    tied, untied = once(lambda: (start(make(kind, True)), start(make(kind, False))))()
    output = untied["embedding"].pop("output")
    jax.tree.map(np.testing.assert_array_equal, tied, untied)
    for table in (output, untied["embedding"]["input"]):
        assert not np.any(table[PAD]) and np.std(table[1:]) == pytest.approx(0.3, rel=0.1)
    first, second = (tied["body"][f"layer_{i}"]["linear1_weight"] for i in (0, 1))
    assert np.array_equal(first, second) == (kind == "masked")
    if kind == "causal":  # a fresh model passes on the normalised embedding
        at = TOKENS[2:3], np.arange(12)
        h = once(partial(make(kind, True).apply, method="hidden"))({"params": tied}, *at)
        rows = np.asarray(tied["embedding"]["input"])[TOKENS[2]]
        normalised = (rows - rows.mean(1, keepdims=True)) / rows.std(1, keepdims=True)
        np.testing.assert_allclose(h, normalised, atol=0.1)


# Fusion determines the memory, the optimisation of the code does not.
UNOPTIMISED = {"xla_backend_optimization_level": 0}


@pytest.mark.slow
def test_memory():
    """Vocabulary 30,622, batch 128 x 128: under 2 GiB beyond the donated state."""
    optimizer = make_optimizer(Optimizer(learning_rate=1e-4, weight_decay=0.01))
    options = {"mask": 4, "never": (0, 2, 3), "base_vocabulary": 30_522}
    mask = partial(masking.mask, **options, room=masking.capacity(128 * 128))
    embedding, sizes = Embedding(30_622, 128, padding=0), Transformer(3, 4, 128, 512)
    for causal, ask in (
        (False, mask),
        (True, lambda _, tokens: masking.next_tokens(tokens, padding=0)),
    ):
        model = TextModel(embedding, build_body(sizes, causal=causal))

        def draw(model=model):
            params = start(model)
            return State(params, optimizer.init(params), jnp.int32(-1))

        def step(state, tokens, key, model=model, ask=ask):
            asked = ask(key, tokens)

            def loss_of(params):
                found = task.loss_metrics(model, params, asked)
                return found["loss"], found

            return update(loss_of, optimizer, state)

        tokens = jax.ShapeDtypeStruct((128, 128), jnp.int32)
        program = jax.jit(step, donate_argnums=0).lower(jax.eval_shape(draw), tokens, KEY)
        size = program.compile(UNOPTIMISED).memory_analysis()
        above = size.temp_size_in_bytes + size.output_size_in_bytes - size.alias_size_in_bytes
        assert above < 2 * 2**30


@pytest.mark.parametrize("kind", ["masked", pytest.param("causal", marks=pytest.mark.slow)])
def test_bfloat16_is_near_and_tables_stay_float32(kind):
    exact, rounded = (make(kind, False, dtype) for dtype in (None, jnp.bfloat16))
    params, asked = random_params(exact, "float32"), asked_of(kind)

    def look(model):
        return once(jax.value_and_grad(lambda p: task.loss_metrics(model, p, asked)["loss"]))(
            params
        )

    def cosine(a, b):
        return jnp.sum(a * b) / jnp.sqrt(jnp.sum(a**2) * jnp.sum(b**2))

    (loss, gradient), (near, near_gradient) = map(look, (exact, rounded))
    assert near.dtype == jnp.float32 and 0 < abs(near - loss) < 0.05 * loss
    for table in ("input", "output"):
        ours = near_gradient["embedding"][table]
        assert ours.dtype == jnp.float32 and cosine(ours, gradient["embedding"][table]) > 0.99


def test_distances_and_pairs():
    table = np.zeros((6, 2), np.float32)
    table[1], table[4] = (3, 0), (0, 4)
    np.testing.assert_allclose(
        task.pair_distances(table, np.array([1, 0]), np.array([4, 4])), [5, 4]
    )
    words = np.array([7, 3, 11, 20])
    first, second = random_pairs(1, words, 6)
    assert {frozenset(pair) for pair in zip(first.tolist(), second.tolist())} == {
        frozenset(p) for p in [(7, 3), (7, 11), (7, 20), (3, 11), (3, 20), (11, 20)]
    }
    assert all(np.array_equal(a, b) for a, b in zip((first, second), random_pairs(1, words, 6)))
    with pytest.raises(ValueError, match="larger sample than population"):
        random_pairs(1, words, 7)
