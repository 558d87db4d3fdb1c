"""One small model written six ways, and by hand in NumPy: logits = tanh(E_in[x]·W + b)·E_outᵀ.

All have the same initial values.
"""

from functools import cache
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from bodies import once
from flax import nnx

import jaxtie
from jaxtie import is_tied, tie, untie

V, D, SAMPLES = 6, 4, 40
CLIP, RATE, DECAY, EPS = 0.4, 1e-2, 0.1, 1e-8
RNG = np.random.default_rng(0)
START = {
    "input": RNG.standard_normal((V, D)),
    "W": RNG.standard_normal((D, D)) / 2,
    "b": RNG.standard_normal(D),
}
X, Y = RNG.integers(V, size=(2, SAMPLES), dtype=np.int32)
OPTIMISER = optax.chain(
    optax.clip_by_global_norm(CLIP), optax.adamw(RATE, eps=EPS, weight_decay=DECAY)
)


def cross_entropy_of(logits: jax.Array) -> jax.Array:
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, Y))


class ByHand:
    """Forward, backward, clipping and AdamW in NumPy; `untie` and `tie` by their definitions."""

    def __init__(self):
        self.params = {name: value.copy() for name, value in START.items()}
        self.moments = {name: np.zeros((2, *value.shape)) for name, value in START.items()}
        self.steps = 0

    def loss_and_gradient(self) -> tuple[float, dict[str, np.ndarray]]:
        p = self.params
        output = p.get("output", p["input"])
        h = np.tanh(p["input"][X] @ p["W"] + p["b"])
        logits = h @ output.T
        mass = np.exp(logits - logits.max(1, keepdims=True))
        share = mass / mass.sum(1, keepdims=True)
        loss = -np.log(share[np.arange(SAMPLES), Y]).mean()
        d_logits = (share - np.eye(V)[Y]) / SAMPLES
        d_before = (d_logits @ output) * (1 - h**2)
        d_input = np.zeros((V, D))
        np.add.at(d_input, X, d_before @ p["W"].T)
        gradient = {"W": p["input"][X].T @ d_before, "b": d_before.sum(0), "input": d_input}
        if "output" in p:
            gradient["output"] = d_logits.T @ h
        else:
            gradient["input"] = d_input + d_logits.T @ h
        return loss, gradient

    def step(self) -> float:
        loss, gradient = self.loss_and_gradient()
        norm = np.sqrt(sum((value**2).sum() for value in gradient.values()))
        self.steps += 1
        for name, slope in gradient.items():
            slope = slope * min(1, CLIP / norm)
            first = 0.9 * self.moments[name][0] + 0.1 * slope
            second = 0.999 * self.moments[name][1] + 0.001 * slope**2
            self.moments[name] = np.stack([first, second])
            mean, square = first / (1 - 0.9**self.steps), second / (1 - 0.999**self.steps)
            moved = mean / (np.sqrt(square) + EPS)
            self.params[name] = self.params[name] - RATE * (moved + DECAY * self.params[name])
        return loss

    def untie(self) -> None:
        self.params["output"] = self.params["input"]
        self.moments["output"] = self.moments["input"]

    def tie(self) -> None:
        for of in (self.params, self.moments):
            of["input"] = np.mean([of["input"], of.pop("output")], axis=0)


UPDATES: dict[type, Any] = {}


class OfTrees:
    """Base of the ways that keep parameters and Optax's state in trees."""

    paths: dict[str, Any] = {}  # noqa: RUF012
    jit = staticmethod(once)
    value_and_grad = staticmethod(jax.value_and_grad)
    apply_updates = staticmethod(optax.apply_updates)

    def __init__(self):
        self.params = self.start()
        self.opt_state = OPTIMISER.init(self.arrays(self.params))
        # all models of a kind share their programs
        self.update = UPDATES.setdefault(type(self), self.jit(self._update))

    def arrays(self, params: Any) -> Any:
        return params

    def loss(self) -> jax.Array:
        return cross_entropy_of(self.logits(self.params))

    def _update(self, params, opt_state):
        loss_of = self.value_and_grad(lambda params: cross_entropy_of(self.logits(params)))
        loss, gradient = loss_of(params)
        updates, opt_state = OPTIMISER.update(gradient, opt_state, self.arrays(params))
        return loss, self.apply_updates(params, updates), opt_state

    def step(self) -> jax.Array:
        loss, self.params, self.opt_state = self.update(self.params, self.opt_state)
        return loss

    def untie(self, **options: bool) -> None:
        self.params, self.opt_state = untie(self.params, self.opt_state, **self.paths, **options)

    def tie(self) -> None:
        self.params, self.opt_state = tie(self.params, self.opt_state, **self.paths, how="mean")

    def is_tied(self) -> bool:
        return is_tied(self.params, **self.paths)

    def moments(self) -> list[Any]:
        return [optax.tree.get(self.opt_state, name) for name in ("mu", "nu")]


class Linen(OfTrees):
    """Flax linen with `jaxtie.Embedding`."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            embedding = jaxtie.Embedding(V, D, tied=True, name="embedding")
            return embedding.logits(jnp.tanh(nn.Dense(D, name="body")(embedding(tokens))))

    def start(self):
        table, kernel, bias = map(jnp.asarray, START.values())
        return {"embedding": {"input": table}, "body": {"kernel": kernel, "bias": bias}}

    def logits(self, params):
        return self.Model().apply({"params": params}, X)

    def tables(self, params):
        return params["embedding"]["input"], params["embedding"].get("output")


class MaxText(OfTrees):
    """A plain dictionary laid out as MaxText's, whose output table is D×V."""

    paths = {"input": "token_embedder/embedding", "output": "decoder/logits_dense/kernel"}  # noqa: RUF012

    def start(self):
        table, kernel, bias = map(jnp.asarray, START.values())
        body = {"mlp": {"W": kernel, "b": bias}}
        return {"token_embedder": {"embedding": table}, "decoder": body}

    def logits(self, params):
        table, body = params["token_embedder"]["embedding"], params["decoder"]["mlp"]
        h = jnp.tanh(table[X] @ body["W"] + body["b"][None])
        head = params["decoder"].get("logits_dense", {"kernel": table.T})
        return h @ head["kernel"]

    def tables(self, params):
        table, head = params["token_embedder"]["embedding"], params["decoder"].get("logits_dense")
        return table, None if head is None else head["kernel"].T

    def untie(self):
        super().untie(transposed=True)


class OfModules:
    """Base of the ways in Flax NNX."""

    paths: dict[str, Any] = {}  # noqa: RUF012
    where = "embed", "embedding"  # attributes of the model and its embedding

    def __init__(self):
        self.model = self.start(nnx.Rngs(0))
        self.optimizer = nnx.Optimizer(self.model, OPTIMISER, wrt=nnx.Param)

    def tables(self, params):
        embedding, table = self.where
        own = params[embedding]
        return own[table][...], own["output"][...] if "output" in own else None

    def loss(self):
        return cross_entropy_of(self.model(X))

    def step(self):
        return module_step(self.model, self.optimizer)

    def untie(self):
        untie(self.model, self.optimizer, **self.paths)

    def tie(self):
        tie(self.model, self.optimizer, how="mean", **self.paths)

    def is_tied(self):
        return is_tied(self.model, **self.paths)

    @property
    def params(self):
        return nnx.state(self.model, nnx.Param)

    def moments(self):
        return [getattr(self.optimizer.opt_state[1][0], name) for name in ("mu", "nu")]


@nnx.jit
def module_step(model, optimizer):
    loss, gradient = nnx.value_and_grad(lambda model: cross_entropy_of(model(X)))(model)
    optimizer.update(model, gradient)
    return loss


def start_body(rngs: nnx.Rngs) -> nnx.Linear:
    body = nnx.Linear(D, D, rngs=rngs)
    body.kernel.set_value(jnp.asarray(START["W"]))
    body.bias.set_value(jnp.asarray(START["b"]))
    return body


class WithEmbedding(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embedding = jaxtie.nnx.Embedding(V, D, tied=True, rngs=rngs)
        self.embedding.input.set_value(jnp.asarray(START["input"]))
        self.body = start_body(rngs)

    def __call__(self, tokens):
        return self.embedding.logits(jnp.tanh(self.body(self.embedding(tokens))))


class WithEmbed(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(V, D, param_dtype=jnp.asarray(START["input"]).dtype, rngs=rngs)
        self.embed.embedding.set_value(jnp.asarray(START["input"]))
        self.body = start_body(rngs)

    def __call__(self, tokens):
        return self.embed.attend(jnp.tanh(self.body(self.embed(tokens))))


class WithLinear(WithEmbed):
    """Made untied, as people write it, and tied before it is trained."""

    def __init__(self, rngs: nnx.Rngs):
        super().__init__(rngs)
        self.head = nnx.Linear(D, V, use_bias=False, rngs=rngs)

    def __call__(self, tokens):
        return self.head(jnp.tanh(self.body(self.embed(tokens))))


class NNX(OfModules):
    """Flax NNX with `jaxtie.nnx.Embedding`."""

    start, where = WithEmbedding, ("embedding", "input")


class NNXShared(OfModules):
    """Flax NNX, tied as Flax recommends: one `nnx.Embed` with `attend` for the logits."""

    start = WithEmbed


class NNXLinear(OfModules):
    """Flax NNX with an `nnx.Embed` and an `nnx.Linear`, whose kernel is D×V."""

    paths = {"input": "embed/embedding", "output": "head/kernel"}  # noqa: RUF012

    def start(self, rngs):
        return tie(WithLinear(rngs), how="input", **self.paths)[0]

    def tables(self, params):
        own, head = params["embed"], params.get("head")
        return own["embedding"][...], None if head is None else head["kernel"][...].T


@cache
def equinox_class():
    """Equinox, whose tied model has no head. ImportError where it is not installed."""
    import equinox as eqx

    class Model(eqx.Module):
        embed: eqx.nn.Embedding
        body: eqx.nn.Linear
        head: jax.Array | None
        activation: Any = jnp.tanh  # a leaf that is no array

        def __call__(self, token):
            output = self.embed.weight if self.head is None else self.head
            return output @ self.activation(self.body(self.embed(token)))

    class Equinox(OfTrees):
        paths = {"input": "embed/weight", "output": "head"}  # noqa: RUF012
        jit = staticmethod(eqx.filter_jit)
        value_and_grad = staticmethod(eqx.filter_value_and_grad)
        apply_updates = staticmethod(eqx.apply_updates)

        def arrays(self, params):
            return eqx.filter(params, eqx.is_array)

        def start(self):
            table, kernel, bias = map(jnp.asarray, START.values())
            body = eqx.nn.Linear(D, D, key=jax.random.key(0))
            body = eqx.tree_at(lambda body: (body.weight, body.bias), body, (kernel.T, bias))
            return Model(eqx.nn.Embedding(weight=table), body, None)

        def logits(self, params):
            return jax.vmap(params)(jnp.asarray(X))

        def tables(self, params):
            return params.embed.weight, params.head

    return Equinox


def make_equinox():
    return equinox_class()()


WAYS = {
    "linen": Linen,
    "nnx": NNX,
    "nnx-shared": NNXShared,
    "nnx-linear": NNXLinear,
    "equinox": make_equinox,
    "maxtext": MaxText,
}
