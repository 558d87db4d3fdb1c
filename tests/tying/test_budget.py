"""Parameters, bytes and FLOPs of published models."""

import jax
import jax.numpy as jnp
import pytest

from jaxtie import budget

LLAMA = {"gated": True, "layers": 32, "width": 4096, "heads": 32, "tied": False}
PUBLISHED = {  # as Hugging Face counts the parameters of the model with its head
    "gpt2": (124_439_808, (50_257, 768, 12), {"tied": True, "positions": 1024, "bias": True}),
    "opt-125m": (125_239_296, (50_272, 768, 12), {"tied": True, "positions": 2050, "bias": True}),
    "pythia-70m": (70_426_624, (50_304, 512, 6), {"tied": False, "bias": True}),
    "llama-2-7b": (6_738_415_616, (32_000,), {**LLAMA, "feedforward": 11_008}),
    "llama-3-8b": (8_030_261_248, (128_256,), {**LLAMA, "feedforward": 14_336, "kv_heads": 8}),
    "mistral-7b": (7_241_732_096, (32_000,), {**LLAMA, "feedforward": 14_336, "kv_heads": 8}),
    "llama-3.2-1b": (
        1_235_814_400,
        (128_256, 2048, 16),
        {"tied": True, "gated": True, "feedforward": 8192, "heads": 32, "kv_heads": 8},
    ),
    "qwen2.5-0.5b": (
        494_032_768,
        (151_936, 896, 24),
        {"tied": True, "gated": True, "feedforward": 4864, "heads": 14, "kv_heads": 2}
        | {"bias": "qkv"},
    ),
    "gemma-2b": (
        2_506_172_416,
        (256_000, 2048, 18),
        {"tied": True, "gated": True, "feedforward": 16_384, "heads": 8, "kv_heads": 1}
        | {"head_width": 256},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name):
    expected, sizes, options = PUBLISHED[name]
    found = budget(*sizes, **options)
    assert found.parameters == expected
    other = budget(*sizes, **options | {"tied": not options["tied"]})
    table = found.head_flops // 2
    assert abs(other.parameters - found.parameters) == table
    assert other[5:] == found[5:]  # a tied head computes as much


def test_flops_of_llama_with_its_attention():
    """Chowdhery et al.'s formula: 6 (N - input table - norms) + 12 L H Q T a token."""
    sizes, options = PUBLISHED["llama-2-7b"][1:]
    found = budget(*sizes, **options, context=2048)
    products = found.parameters - 32_000 * 4096 - (2 * 32 + 1) * 4096
    assert found.training_flops == 6 * products + 12 * 32 * 4096 * 2048
    assert found.training_flops == 3 * found.forward_flops and found.head_flops == 2 * 32_000 * 4096


def test_flops_are_those_that_xla_counts():
    """Of the products of one block and the head, for one token."""
    V, D, F = 1000, 64, 256
    weights = [jnp.zeros(shape) for shape in ((D, D),) * 4 + ((D, F), (F, D), (D, V))]

    def products(h, weights):
        for weight in weights[:4]:
            h = h @ weight
        return (h @ weights[4]) @ weights[5] @ weights[6]

    counted = jax.jit(products).lower(jnp.zeros((1, D)), weights).compile().cost_analysis()["flops"]
    assert budget(V, D, 1, tied=True).forward_flops == pytest.approx(counted, rel=1e-3)


def test_bytes():
    found = budget(1000, 64, 2, tied=True, weight_dtype="bfloat16")
    assert found.weight_bytes == found.gradient_bytes == 2 * found.parameters
    assert found.moment_bytes == 8 * found.parameters
    assert found.embedding_parameters == 64_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers = 0; expected 1 or more"),
        ({"heads": 3}, "heads = 3 do not divide width = 64; expected head_width="),
        ({"heads": 4, "kv_heads": 3}, "kv_heads = 3; expected a divisor of heads = 4"),
        ({"kv_heads": 2}, "need heads; say how many"),
        ({"heads": 0}, "heads = 0; expected 1 or more"),
        ({"heads": 4, "kv_heads": 0}, "kv_heads = 0; expected 1 or more"),
        ({"heads": 4, "head_width": -1}, "head_width = -1; expected 1 or more"),
        ({"width": 64.5}, "width = 64.5; expected 1 or more, a whole number"),
        ({"positions": -1}, "positions = -1; expected 0 or more"),
        ({"context": -1}, "context = -1; expected 0 or more"),
        ({"bias": "all"}, "bias = 'all'; expected True, False or 'qkv'"),
    ],
)
def test_impossible_sizes(options, message):
    with pytest.raises(ValueError, match=message):
        budget(**{"vocabulary": 100, "width": 64, "layers": 2, "tied": True, **options})
