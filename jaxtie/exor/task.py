"""EXor as a task: model, loss and exact evaluation.

Shapes: B samples, L tokens, P masked positions, V symbols, C contexts, K pairs of symbols, D width.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.config import Variant
from jaxtie.exor import data, theory
from jaxtie.exor.data import Batch, Contexts
from jaxtie.models.language_model import MaskedLM, build_body
from jaxtie.training import interventions, task
from jaxtie.training.optimizer import TABLES
from jaxtie.training.task import HParams, Metrics, Params, Roles
from jaxtie.tying.head import get_tables
from jaxtie.tying.linen import make_embedding

if TYPE_CHECKING:
    from jaxtie.exor.config import Experiment, Process

# Contexts that an ordered model is evaluated on at once, of 56,448: a CPU's cache holds 64 well;
# accelerators want more.
CONTEXTS_AT_ONCE, CONTEXTS_AT_ONCE_ACCELERATED = 64, 1024
# token ids of the two ways to write a bit
PAIR_IDS = {"X-Y": (data.X, data.X + 1), "A-B": (data.A, data.A + 1)}


class ExorTask(task.Task):
    """The EXor process, masked (paper, section 5)."""

    config: "Experiment"

    def __init__(self, config: "Experiment", variant: Variant, platform: str):
        super().__init__(config, variant)
        self.data_seed = config.process.data_seed
        self.at_once = CONTEXTS_AT_ONCE if platform == "cpu" else CONTEXTS_AT_ONCE_ACCELERATED
        self.model = build_model(config, variant)
        untied_rows = self.model.embedding.untied_rows
        self.intervened = variant.head.interventions, untied_rows, data.EXOR_ROW_SETS
        self.pairs = [PAIR_IDS[pair] for pair in config.process.pairs]
        self.roles = Roles(data.VOCABULARY, pairs=self.pairs)

    @property
    def contexts(self) -> tuple[Contexts, Contexts]:
        """The contexts of the training and the validation split."""
        return build_contexts(self.config.process, ordered=self.model.body.ordered)

    @property
    def best_loss(self) -> float:  # type: ignore[override]
        """The loss of the process itself, nats."""
        contexts, _ = build_contexts(self.config.process, ordered=False)
        return theory.best_loss(contexts.joint_CxV)

    def hparams(self) -> HParams:
        """Return the optimizer's and the process's probabilities and exact distributions, f32."""
        own, (train, valid) = self.config.process, self.contexts
        return super().hparams() | jax.tree.map(
            np.float32,
            {
                "zeros": np.array(own.zeros),
                "ones": np.array(own.ones),
                "train_CxV": train.joint_CxV,
                "valid_CxV": valid.joint_CxV,
            },
        )

    def init(self, key: jax.Array, hparams: HParams) -> Params:
        """Return fresh parameters."""
        tokens = jnp.zeros(self.config.process.length + 1, jnp.int32)
        params = self.model.init(key, tokens, jnp.zeros(1, jnp.int32))["params"]
        if self.variant.head.init_std is None:
            embedding = params["embedding"]
            for name in sorted(embedding.keys() & {*TABLES}):  # the same program in every process
                embedding[name] = embedding[name] * hparams["init_std"]
        return interventions.add_parameters(params, *self.intervened)

    def effective(self, params: Params) -> Params:
        """Return the model's parameters, which an arm's interventions derive from its own."""
        return interventions.effective(params, *self.intervened)

    def batch(self, stream: jax.Array, hparams: HParams, step: Any, rows: Any) -> Batch:
        """Write and mask every training string once."""
        own = self.config.process
        bits = data.split(own.length, own.all_strings, own.data_seed).train
        return data.sample(
            stream, step, bits, hparams["zeros"], hparams["ones"], own.zeros_by_label
        )

    def loss(self, params: Params, batch: Batch) -> tuple[jax.Array, Metrics]:
        """Return the mean cross-entropy, nats, and with it the accuracy."""
        loss, accuracy = loss_and_accuracy(self.model, self.effective(params), batch)
        return loss, {"loss": loss, "accuracy": accuracy}

    def tables(self, params: Params) -> tuple[jax.Array, jax.Array]:
        """Return the input and the output embedding, VxD each; of two paths the residual one."""
        model = self.effective(params)
        tables = get_tables(model["embedding"], self.model.embedding.untied_rows)
        return model["body"].get("residual", tables[0]), tables[1]

    def measure(self, params: Params) -> Metrics:
        """Return the distances between all rows of each table."""
        tables = zip(("input", "output"), self.tables(params), strict=True)
        return {f"{name}_distance": distances(table_VxD) for name, table_VxD in tables}

    def evaluate(self, params: Params, hparams: HParams) -> Metrics:
        """Return exact expectations on both splits, and the tables."""
        model = self.effective(params)
        logits = exact_logits(self.model, model, self.contexts, self.at_once)
        splits = hparams["train_CxV"], hparams["valid_CxV"]
        on_train, on_valid = (
            expectations(*split, self.pairs) for split in zip(logits, splits, strict=True)
        )
        bias_V = params["embedding"].get("bias", jnp.zeros(data.VOCABULARY))
        ordered = self.model.body.ordered
        swaps = [build_swaps(self.config.process, pair, ordered=ordered) for pair in self.pairs]
        return {
            "train_loss": on_train["loss"],
            "train_accuracy": on_train["accuracy"],
            "valid_loss": on_valid["loss"],
            "valid_accuracy": on_valid["accuracy"],
            "log_odds": on_train["log_odds"],
            "log_odds_deviation": on_train["log_odds_deviation"],
            "swap_divergence": jnp.stack(
                [swap_divergence(logits[0], splits[0], each) for each in swaps]
            ),
            "bias_odds": jnp.stack(
                [bias_V[second] - bias_V[first] for first, second in self.pairs]
            ),
            **dict(zip(("input_table", "output_table"), self.tables(params), strict=True)),
            **(expected_mask(logits[0], splits[0]) if self.config.mask_logit else {}),
        }


def build_model(config: "Experiment", variant: Variant) -> MaskedLM:
    """Return the model of a variant."""
    embedding = make_embedding(
        variant.head,
        data.VOCABULARY,
        config.model.width,
        tied=variant.tied,
        init_std=1.0,  # `init` multiplies by the experiment's
        row_sets=data.EXOR_ROW_SETS,
    )
    return MaskedLM(embedding, build_body(config.model), data.MASK)


@functools.lru_cache(8)  # a run asks for its own many times, and they take a while
def build_contexts(own: "Process", *, ordered: bool) -> tuple[Contexts, Contexts]:
    """Return the exact distributions of the training and the validation split."""
    strings = data.split(own.length, own.all_strings, own.data_seed)
    how = {"ordered": ordered, "zeros_by_label": own.zeros_by_label}
    train, valid = (
        data.enumerate_contexts(bits, own.zeros, own.ones, **how)
        for bits in (strings.train, strings.valid)
    )
    return train, valid


class Swaps(NamedTuple):
    """Couples of contexts that differ in how one bit is written; NumPy, E couples.

    Attributes:
      context_2xE: numbers of the context with the pair's first symbol, and with its second.
      places_2xE: number of places of each context that the couple represents; a bag of symbols has
        no order.
    """

    context_2xE: np.ndarray
    places_2xE: np.ndarray


@functools.lru_cache(8)
def build_swaps(own: "Process", pair: tuple[int, int], *, ordered: bool) -> Swaps:
    """Return the couples of two ways to write a bit (token ids), in the training split."""
    tokens_CxL = build_contexts(own, ordered=ordered)[0].tokens_CxL
    forward, backward = (
        np.unique(theory.swaps(tokens_CxL, *each, ordered=ordered), axis=1, return_counts=True)
        for each in (pair, pair[::-1])
    )
    there = np.lexsort(backward[0])  # by the context with the first symbol, as `forward` is
    return Swaps(forward[0], np.stack([forward[1], backward[1][there]]))


def loss_and_accuracy(model: nn.Module, params: dict, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Return cross-entropy (nats) and accuracy at the masked positions; batch means."""
    logits_BxPxV: Any = jax.vmap(lambda tokens, at: model.apply({"params": params}, tokens, at))(
        batch.tokens_BxL, batch.at_BxP
    )
    # One-hot, not an indexed load: on every backend the cheaper of the two for a small vocabulary.
    target_BxPxV = jax.nn.one_hot(
        batch.target_BxP, logits_BxPxV.shape[-1], dtype=logits_BxPxV.dtype
    )
    top_BxP = jnp.max(logits_BxPxV, axis=-1)
    shifted_BxPxV = logits_BxPxV - jax.lax.stop_gradient(top_BxP)[..., None]
    chosen_BxP = jnp.sum(shifted_BxPxV * target_BxPxV, axis=-1)
    loss_BxP = jnp.log(jnp.sum(jnp.exp(shifted_BxPxV), axis=-1)) - chosen_BxP
    return jnp.mean(loss_BxP), jnp.mean(chosen_BxP >= 0, dtype=loss_BxP.dtype)


def distances(table_VxD: jax.Array) -> jax.Array:
    """Return the Euclidean distances between all rows, VxV."""
    return jnp.sqrt(jnp.sum((table_VxD[:, None] - table_VxD[None]) ** 2, axis=-1))


def exact_logits(
    model: nn.Module, params: dict, splits: Sequence[Contexts], at_once: int = CONTEXTS_AT_ONCE
) -> list[jax.Array]:
    """Return the logits of the masked position in every context of each split, CxV."""
    contexts = tuple(
        np.concatenate(arrays) for arrays in zip(*(split[:2] for split in splits), strict=True)
    )

    def logits_of(context: tuple[Any, ...]) -> jax.Array:
        return model.apply({"params": params}, *context)[0]

    ordered = model.body.ordered
    logits_CxV = (
        jax.lax.map(logits_of, contexts, batch_size=at_once)
        if ordered
        else jax.vmap(logits_of)(contexts)
    )
    return jnp.split(logits_CxV, np.cumsum([len(split.tokens_CxL) for split in splits])[:-1])


def expectations(
    logits_CxV: jax.Array, joint_CxV: jax.Array, pairs: Sequence[tuple[int, int]]
) -> dict[str, jax.Array]:
    """Return exact expectations over a split and every draw.

    Args:
      logits_CxV: of every context.
      joint_CxV: the split's distribution, p(context and target).
      pairs: token ids (first, second) of symbols that write the same bit.

    Returns:
      `loss` in nats and `accuracy`; of each pair, over the contexts where either can stand, the
      expectation (`log_odds`) and the standard deviation (`log_odds_deviation`) of ln p(second) -
      ln p(first). `jaxtie.exor.theory.log_odds` has those of the process.
    """
    first_K, second_K = np.array(pairs).T
    joint_CxV = jnp.asarray(joint_CxV, logits_CxV.dtype)
    likeliest_CxV = jax.nn.one_hot(
        jnp.argmax(logits_CxV, axis=-1), logits_CxV.shape[-1], dtype=logits_CxV.dtype
    )
    weight_CxK = joint_CxV[:, first_K] + joint_CxV[:, second_K]
    weight_CxK /= jnp.sum(weight_CxK, axis=0, keepdims=True)
    odds_CxK = logits_CxV[:, second_K] - logits_CxV[:, first_K]
    odds_K = jnp.sum(weight_CxK * odds_CxK, axis=0)
    return {
        "loss": -jnp.sum(joint_CxV * jax.nn.log_softmax(logits_CxV)),
        "accuracy": jnp.sum(joint_CxV * likeliest_CxV),
        "log_odds": odds_K,
        "log_odds_deviation": jnp.sqrt(
            jnp.sum(weight_CxK * (odds_CxK - odds_K[None]) ** 2, axis=0)
        ),
    }


def expected_mask(logits_CxV: jax.Array, joint_CxV: jax.Array) -> dict[str, jax.Array]:
    """Return the expected logit and probability of the mask itself over a split and every draw.

    The logit is missing where the mask is no output.
    """
    weight_C = jnp.sum(joint_CxV, axis=1)
    p_CxV = jax.nn.softmax(logits_CxV)
    logit = jnp.sum(weight_C * logits_CxV[:, data.MASK])
    return {
        "mask_logit": jnp.where(logit > 0.25 * jnp.finfo(logit.dtype).min, logit, jnp.nan),
        "mask_probability": jnp.sum(weight_C * p_CxV[:, data.MASK]),
    }


def swap_divergence(logits_CxV: jax.Array, joint_CxV: jax.Array, swaps: Swaps) -> jax.Array:
    """Return how far a prediction moves when a bit of its context is written the other way.

    `jaxtie.exor.theory.semantic_divergence` of the model instead of the process: an expected total
    variation, in [0, 1], averaged over both directions. NaN where one of the two never occurs.
    """
    # else the bits of the loss change
    p_CxV = jax.nn.softmax(jax.lax.optimization_barrier(logits_CxV))
    first_E, second_E = swaps.context_2xE
    variation_E = jnp.sum(jnp.abs(p_CxV[first_E] - p_CxV[second_E]), axis=-1) / 2
    weight_2xE = jnp.sum(joint_CxV, axis=-1)[swaps.context_2xE] * swaps.places_2xE.astype(
        logits_CxV.dtype
    )
    return jnp.mean(jnp.sum(weight_2xE * variation_E[None], axis=-1) / jnp.sum(weight_2xE, axis=-1))
