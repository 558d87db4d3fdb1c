"""Associative recall: k1 v1 ... kn vn, then a key; predict the value that came with it."""

from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import jaxtie

OPTIMIZER = jaxtie.Optimizer(learning_rate=3e-3, half_period=2_000)


class Model(nn.Module):
    embedding: nn.Module
    width: int

    @nn.compact
    def __call__(self, tokens_L):
        rows_LxD = self.embedding.table()[tokens_L]
        query_1xD = nn.Dense(self.width)(rows_LxD[-1:])
        keys_NxD = nn.Dense(self.width)(rows_LxD[:-1:2])
        attention_1xN = nn.softmax(query_1xD @ keys_NxD.T / self.width**0.5)
        return self.embedding.logits(nn.Dense(self.width)(attention_1xN @ rows_LxD[1::2]))[0]


@dataclass(frozen=True, kw_only=True)
class Recall(jaxtie.TaskConfig):
    task: ClassVar[str] = "recall"
    name: str = "recall"
    claim: str = "Keys are never predicted and values never looked up: tying costs nothing here."
    seeds: tuple = (0, 1, 2, 3)
    steps: int = 2_000
    eval_every: int = 500
    optimizer: jaxtie.Optimizer = OPTIMIZER
    symbols: int = 8  # keys, and as many values
    pairs: int = 4
    width: int = 8
    batch: int = 64

    def build(self, variant, platform):
        return RecallTask(self, variant)


class RecallTask(jaxtie.Task):
    def __init__(self, config, variant):
        super().__init__(config, variant)
        embedding = jaxtie.make_embedding(
            variant.head, 2 * config.symbols, config.width, tied=variant.tied, init_std=0.3
        )
        self.model = Model(embedding, config.width)

    def init(self, key, hparams):
        return self.model.init(key, jnp.zeros(2 * self.config.pairs + 1, jnp.int32))["params"]

    def batch(self, stream, hparams, step, rows=None):
        own = self.config
        order_key, value_key = jax.random.split(jaxtie.key_at(stream, step))
        order_BxS = jnp.argsort(jax.random.uniform(order_key, (own.batch, own.symbols)), axis=-1)
        keys_BxN = order_BxS[:, : own.pairs]
        values_BxN = own.symbols + jax.random.randint(value_key, keys_BxN.shape, 0, own.symbols)
        shown_BxL = jnp.stack([keys_BxN, values_BxN], axis=-1).reshape(own.batch, -1)
        return jnp.concatenate([shown_BxL, keys_BxN[:, :1]], axis=1), values_BxN[:, 0]

    def loss(self, params, batch):
        tokens_BxL, target_B = batch
        logits_BxV = jax.vmap(lambda row: self.model.apply({"params": params}, row))(tokens_BxL)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits_BxV, target_B).mean()
        return loss, {"loss": loss, "accuracy": jnp.mean(logits_BxV.argmax(-1) == target_B)}

    def evaluate(self, params, hparams):
        fixed = jax.random.key_data(jax.random.key(1, impl="threefry2x32"))
        _, metrics = self.loss(params, self.batch(fixed, hparams, 0))
        return {f"valid_{name}": value for name, value in metrics.items()}


experiment = Recall()
