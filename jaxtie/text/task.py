"""Text as a task: model, loss, predictions of pairs of tokens, distances.

Predictions are exact distributions over the whole vocabulary, at places that `jaxtie.text.pairs`
chose once.

Shapes: B rows, L tokens a row, P predicted positions, V vocabulary, D width, K pairs of words; of
predictions: C contexts at a time, M places predicted around a token.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.config import Head, Variant
from jaxtie.models.language_model import TextModel, build_body
from jaxtie.text import masking
from jaxtie.text.corpus import (
    FREQUENCIES,
    frequency_groups,
    row_lengths,
    token_counts,
    training_batches,
)
from jaxtie.text.masking import Targets
from jaxtie.text.pairs import PREDICTED, PairContexts
from jaxtie.training import interventions
from jaxtie.training.task import HostRows, HParams, Metrics, Params, Roles, Task, key_at
from jaxtie.tying.cross_entropy import BLOCK_SIZE, block_size, reduce_losses
from jaxtie.tying.head import get_tables, output_params
from jaxtie.tying.linen import make_embedding

if TYPE_CHECKING:
    from jaxtie.text.config import TextExperiment


class TextTask(Task):
    """A language model of text, masked or causal. Its hyperparameters are constants."""

    config: "TextExperiment"

    def __init__(self, config: "TextExperiment", variant: Variant, platform: str):
        super().__init__(config, variant)
        prepared = config.prepared
        self.rows = HostRows(
            key=(prepared.text.key, prepared.vocabulary),
            size=config.batch,
            lengths=row_lengths(config),
            validation=prepared.validation,
            training=partial(training_batches, config, prepared),
        )
        self.model = build_text_model(config, variant, platform)
        self.block = block_size(platform, len(prepared.vocabulary))
        untied_rows, sets = self.model.embedding.untied_rows, row_sets(config, variant.head)
        self.intervened = variant.head.interventions, untied_rows, sets
        if config.roles:
            self.roles = Roles(len(FREQUENCIES), frequency_groups(prepared))
        contexts = prepared.contexts
        self.predict = make_predictions(self.model, contexts) if contexts else lambda params: {}

    def hparams(self) -> HParams:
        """Return nothing: traced, they would round differently."""
        return {}

    def init(self, key: jax.Array, hparams: HParams) -> Params:
        """Return fresh parameters."""
        tokens = jnp.zeros(min(self.config.length, 16), jnp.int32)
        params = self.model.init(key, tokens, jnp.zeros(1, jnp.int32))["params"]
        return interventions.add_parameters(params, *self.intervened)

    def effective(self, params: Params) -> Params:
        """Return the model's parameters, which an arm's interventions derive from its own."""
        return interventions.effective(params, *self.intervened)

    def batch(self, stream: jax.Array, hparams: HParams, step: Any, rows: Any) -> Targets:
        """Swap duplicates in, then mask tokens or take the next ones."""
        return make_targets(self.config, key_at(stream, step), rows)

    def loss(self, params: Params, batch: Targets) -> tuple[jax.Array, Metrics]:
        """Return the mean cross-entropy over the predicted positions, nats, and the metrics."""
        metrics = loss_metrics(self.model, self.effective(params), batch, self.block)
        return metrics["loss"], metrics

    def evaluate(self, params: Params, hparams: HParams) -> Metrics:
        """Return predictions of pairs, and from both tables distances and lengths."""
        params = self.effective(params)
        prepared, found = self.config.prepared, self.predict(params)
        tables = get_tables(params["embedding"], self.model.embedding.untied_rows)
        for name, table_VxD in zip(("input", "output"), tables, strict=True):
            distances = pair_distances(table_VxD, prepared.first.ravel(), prepared.second.ravel())
            found[f"{name}_distance"] = distances.reshape(prepared.first.shape)
            if self.config.mask_norms:
                norm_V = jnp.linalg.norm(table_VxD, axis=-1)
                found[f"{name}_norm"] = jnp.median(norm_V)
                found[f"{name}_mask_norm"] = norm_V[prepared.text.special.mask]
        return found

    def validate(self, means: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return validation loss, accuracy and perplexity, and of documents the bits per byte."""
        found = super().validate(means) | {"perplexity": np.exp(means["loss"])}
        if self.config.has_bytes:
            per_byte = self.config.prepared.text.report.tokens_per_byte
            found["bits_per_byte"] = means["loss"] * np.float32(per_byte / math.log(2))
        return found


def build_text_model(config: "TextExperiment", variant: Variant, platform: str) -> TextModel:
    """Return the model of a variant; accelerators multiply matrices of bfloat16."""
    dtype = None if platform == "cpu" else jnp.bfloat16
    special = config.prepared.text.special
    embedding = make_embedding(
        variant.head,
        len(config.prepared.vocabulary),
        config.model.width,
        tied=variant.tied,
        init_std=config.init_std,
        padding=special.pad if special.pad >= 0 else None,
        matmul_dtype=dtype,
        row_sets=row_sets(config, variant.head),
    )
    causal = config.objective == "causal"
    body = build_body(config.model, causal=causal, dtype=dtype)
    return TextModel(embedding, body)


def row_sets(config: "TextExperiment", head: Head) -> dict[str, tuple[int, ...]]:
    """Return the ids of sets of tokens by the names that a head uses.

    Never-targets are those that structure excludes, whatever the training text, since other tokens
    may occur elsewhere. The rarer half is that of the training split.
    """
    special, size = config.prepared.text.special, len(config.prepared.vocabulary)
    start = {special.cls} if config.objective == "causal" else set()
    never = {special.pad, special.mask} | start
    sets = {"mask": {special.mask}, "never-targets": never, "all": {*range(size)}}
    if "rarer-half" in head.row_sets:
        count_V = token_counts(config.prepared, config.prepared.text.train)
        sets["rarer-half"] = {*np.argsort(count_V, kind="stable")[: size // 2].tolist()}
    present = {name: tuple(sorted(own - {-1})) for name, own in sets.items()}
    return {name: own for name, own in present.items() if own}


def make_targets(config: "TextExperiment", key: jax.Array, tokens_BxL: jax.Array) -> Targets:
    """Return the targets of a batch: swap duplicates in, then mask tokens or take the next ones."""
    prepared = config.prepared
    special, drawn = prepared.text.special, prepared.drawn
    swap_key, mask_key = jax.random.split(key)
    if config.duplicates:
        tokens_BxL = masking.swap(
            swap_key, tokens_BxL, drawn.words_K, drawn.duplicates_K, drawn.probability_K
        )
    if config.objective == "causal":
        targets = masking.next_tokens(tokens_BxL, padding=special.pad)
        if config.blanks:
            blank_BxL = jax.random.bernoulli(mask_key, config.blanks, tokens_BxL.shape)
            blank_BxL &= tokens_BxL != special.pad
            seen_BxL = jnp.where(blank_BxL, special.mask, tokens_BxL)
            targets = targets._replace(tokens_BxL=seen_BxL)
        return targets
    return masking.mask(
        mask_key,
        tokens_BxL,
        mask=special.mask,
        never=special[:4],  # [UNK], too, as published
        base_vocabulary=len(prepared.text.vocabulary),
        room=masking.capacity(tokens_BxL.size),
    )


def loss_metrics(
    model: TextModel, params: Params, targets: Targets, block: int = BLOCK_SIZE
) -> Metrics:
    """Return `loss` (nats), `accuracy` and the number of predicted positions, `weight`."""
    h_PxD: Any = model.apply({"params": params}, targets.tokens_BxL, targets.at_P, method="hidden")

    def logits_of(embedding: dict, h_KxD: jax.Array) -> Any:
        return model.embedding.apply({"params": embedding}, h_KxD, method="logits")

    end = output_params(params["embedding"], model.embedding.untied_rows)
    loss, accuracy = reduce_losses(
        logits_of, end, h_PxD, targets.target_P, targets.weight_P, block=block
    )
    return {"loss": loss, "accuracy": accuracy, "weight": jnp.sum(targets.weight_P)}


def make_predictions(
    model: TextModel, contexts: PairContexts
) -> Callable[[dict], dict[str, jax.Array]]:
    """Return params -> `PREDICTED` of each pair, (kinds, K); NaN for a pair without a place."""
    chunk = max(1, BLOCK_SIZE // contexts.predicted_QxM.shape[1])
    count = len(contexts.at_Q)

    def in_chunks(x_Q: np.ndarray) -> np.ndarray:
        padded = np.pad(x_Q, [(0, -count % chunk)] + [(0, 0)] * (x_Q.ndim - 1), mode="edge")
        return padded.reshape(-1, chunk, *x_Q.shape[1:])

    chunks = tuple(map(in_chunks, contexts[:6]))

    def predict(params: dict) -> dict[str, jax.Array]:
        each = jax.lax.map(lambda some: _of_chunk(model, params, some, contexts.mask), chunks)
        odds, divergence, counts = (x.ravel()[:count].reshape(contexts.shape) for x in each)
        there = jnp.where(counts > 0, 1.0, 0.0)
        total = jnp.sum(there, axis=-1)
        mean_odds = jnp.sum(odds * there, axis=-1) / total
        variance = jnp.sum((odds - mean_odds[..., None]) ** 2 * there, axis=-1) / total
        swapped = jnp.sum(divergence * there, axis=-1) / total
        return dict(zip(PREDICTED, (mean_odds, jnp.sqrt(variance), swapped), strict=True))

    return predict


def _of_chunk(
    model: TextModel, params: dict, some: tuple[jax.Array, ...], mask: int | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return log-odds, swap divergence and number of its places that count, of each context."""
    tokens_CxL, at_C, predicted_CxM, counts_CxM, first_C, second_C = some
    row_C = jnp.arange(len(at_C))

    def log_p(tokens_CxL: jax.Array, at_CxM: jax.Array) -> jax.Array:
        """Return ln p of every token at some places, CxMxV."""
        places_P = (row_C[:, None] * tokens_CxL.shape[1] + at_CxM).ravel()
        h_PxD = model.apply({"params": params}, tokens_CxL, places_P, method="hidden")
        logits_PxV: Any = model.apply(
            {"params": params}, h_PxD, method=lambda self, h: self.embedding.logits(h)
        )
        return jax.nn.log_softmax(logits_PxV.astype(jnp.float32)).reshape(*at_CxM.shape, -1)

    if mask is None:
        itself, others = log_p(tokens_CxL, at_C[:, None] - 1), tokens_CxL
    else:
        itself = log_p(tokens_CxL.at[row_C, at_C].set(mask), at_C[:, None])
        others = tokens_CxL.at[row_C[:, None], predicted_CxM].set(mask)
    odds_C = itself[row_C, 0, first_C] - itself[row_C, 0, second_C]
    before, after = (
        jnp.exp(log_p(others.at[row_C, at_C].set(token_C), predicted_CxM))
        for token_C in (first_C, second_C)
    )
    moved_CxM = jnp.sum(jnp.abs(after - before), axis=-1) / 2
    counts_C = jnp.sum(counts_CxM, axis=1)
    return odds_C, jnp.sum(moved_CxM * counts_CxM, axis=1) / jnp.maximum(counts_C, 1), counts_C


def pair_distances(table_VxD: jax.Array, first_K: np.ndarray, second_K: np.ndarray) -> jax.Array:
    """Return the Euclidean distances between rows first_K and second_K of a table; K."""
    return jnp.sqrt(jnp.sum((table_VxD[first_K] - table_VxD[second_K]) ** 2, axis=-1))
