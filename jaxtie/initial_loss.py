"""The loss of a fresh model whose body does nothing yet, measured beside the estimates of `jaxtie.theory.initial_loss`.

A fresh deep network with small residual branches hands on what it is given: the hidden state is the token's embedding,
normalised. Tied, it then meets its own row of the output table, and the model all but names its input as the next word.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pandas as pd

from jaxtie import theory
from jaxtie.config import InitialLoss
from jaxtie.models.embedding import Projection, channel_shuffle, half_swap
from jaxtie.style import STYLE, coloured
from jaxtie.summary import initial_loss_tables
from jaxtie.theory import size

matplotlib.use("agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

# What is compared, and the share of coordinates in which a hidden state meets its own row of the output table.
VARIANTS: dict[str, Callable[[int], float]] = {
    "tied": lambda width: 1,
    "tied, logits / √D": lambda width: 1,
    "channel shuffle": lambda width: 2 / width,  # the first and the last coordinate stay where they are
    "half swap": lambda width: 0,
    "projection": lambda width: 0,
    "untied": lambda width: 0,
}
BLOCK = 1000  # words of the vocabulary whose logits are in memory at a time


def rows(key: jax.Array, words: jax.Array, width: int) -> jax.Array:
    """Rows N(0, 1) of a table: a function of the word, so that no table need ever be in memory; (..., D)."""
    keys = jax.vmap(partial(jax.random.fold_in, key))(words)
    return jax.vmap(lambda key: jax.random.normal(key, (width,)))(keys)


@partial(jax.jit, static_argnums=(1, 2))
def measure(
    key: jax.Array, vocabulary: int, tokens: int, deviation_S: jax.Array, projection: dict[str, jax.Array]
) -> jax.Array:
    """Initial loss of every variant and deviation, nats, mean over tokens; SxF, F as in `VARIANTS`.

    A deviation σ only multiplies logits, for the hidden state is normalised: so all share one table N(0, 1), and the same
    tokens. The target is any other word than the token. Logits are there for a block of words at a time.
    """
    keys, width = jax.random.split(key, 4), len(projection["weight"])
    token_T = jax.random.randint(keys[0], (tokens,), 0, vocabulary)
    target_T = (token_T + jax.random.randint(keys[1], (tokens,), 1, vocabulary)) % vocabulary
    normalise = lambda h_TxD: h_TxD * jnp.sqrt(width / jnp.sum(h_TxD**2, axis=-1, keepdims=True))
    h_TxD = normalise(rows(keys[2], token_T, width))
    hidden = {
        "tied": h_TxD,
        "tied, logits / √D": h_TxD * size("1/sqrt(D)", vocabulary, width),
        "channel shuffle": channel_shuffle(h_TxD, 2),
        "half swap": half_swap(h_TxD),
        "projection": Projection().apply(projection, h_TxD),
        "untied": normalise(rows(keys[3], token_T, width)),
    }
    hidden_FxTxD = jnp.stack([hidden[variant] for variant in VARIANTS])
    deviation_Sx1x1 = deviation_S[:, None, None]

    def add(log_sum_SxFxT, block):
        word_K = block * BLOCK + jnp.arange(min(BLOCK, vocabulary))
        logits_FxTxK = jnp.einsum("ftd,kd->ftk", hidden_FxTxD, rows(keys[2], word_K, width))
        logits_FxTxK = jnp.where((word_K < vocabulary)[None, None], logits_FxTxK, -jnp.inf)
        of_block = jax.lax.map(lambda deviation: jax.nn.logsumexp(deviation * logits_FxTxK, axis=-1), deviation_S)
        return jnp.logaddexp(log_sum_SxFxT, of_block), None

    start = jnp.full((len(deviation_S), len(VARIANTS), tokens), -jnp.inf)
    log_sum_SxFxT, _ = jax.lax.scan(add, start, jnp.arange(-(-vocabulary // BLOCK)))
    chosen_FxT = jnp.einsum("ftd,td->ft", hidden_FxTxD, rows(keys[2], target_T, width))
    return jnp.mean(log_sum_SxFxT - deviation_Sx1x1 * chosen_FxT[None], axis=-1)


def run(study: InitialLoss, report: Callable[[str], None] = lambda line: None) -> pd.DataFrame:
    """The whole grid: a row for every width, vocabulary, deviation and variant.

    Columns: `width`, `vocabulary`, `deviation` (as declared), `spread` (Dσ²), `variant`, and in nats `measured` (mean over
    seeds), `standard_error` (of that mean), `simple` and `corrected` (estimates).
    """
    found = []
    for width in study.widths:
        draw = jax.jit(lambda seed: Projection().init(jax.random.key(seed), width))  # noqa: B023
        projections = [draw(seed) for seed in study.seeds]  # cost more than all else where the vocabulary is small
        scales = {variant: width**-0.5 if "√D" in variant else 1 for variant in VARIANTS}
        for vocabulary in study.vocabularies:
            deviations = [size(deviation, vocabulary, width) for deviation in study.deviations]
            with jax.default_matmul_precision("highest"):
                losses = [
                    measure(
                        jax.random.fold_in(jax.random.key(seed), 1), vocabulary, study.tokens, jnp.array(deviations), drawn
                    )
                    for seed, drawn in zip(study.seeds, projections, strict=True)
                ]
            loss_NxSxF = np.array(losses, np.float64)
            alone = len(losses) == 1  # then nothing is known about the error
            error_SxF = np.std(loss_NxSxF, axis=0, ddof=0 if alone else 1) / (math.nan if alone else len(losses) ** 0.5)
            for s, (name, deviation) in enumerate(zip(study.deviations, deviations, strict=True)):
                for f, (variant, overlap) in enumerate(VARIANTS.items()):
                    options = {"overlap": overlap(width), "logit_scale": scales[variant]}
                    row = {
                        "width": width,
                        "vocabulary": vocabulary,
                        "deviation": str(name),
                        "spread": width * deviation**2,
                        "variant": variant,
                        "measured": loss_NxSxF[:, s, f].mean(),
                        "standard_error": error_SxF[s, f],
                        "simple": theory.initial_loss(vocabulary, width, deviation, **options, corrected=False),
                        "corrected": theory.initial_loss(vocabulary, width, deviation, **options),
                    }
                    found.append(row)
            report(f"width {width}, vocabulary {vocabulary:,}: measured")
    return pd.DataFrame(found)


def draw(table: pd.DataFrame) -> Figure:
    """Measured losses (dots) over the width beside both estimates; below, where either fails."""
    colours = {variant: colour for colour, variant in coloured(VARIANTS)}
    deviations, vocabulary = list(table["deviation"].unique()), sorted(table["vocabulary"].unique())[-2:][0]
    with plt.style.context(STYLE):
        half = len(deviations) * 2
        figure = plt.figure(figsize=(3.4 * len(deviations), 6.4), layout="constrained")
        grid = figure.add_gridspec(2, half)
        for i, deviation in enumerate(deviations):
            axes = figure.add_subplot(grid[0, 2 * i : 2 * i + 2])
            part = table[(table["vocabulary"] == vocabulary) & (table["deviation"] == deviation)]
            for variant, curve in part.groupby("variant", sort=False):
                axes.plot(curve["width"], curve["measured"], "o", color=colours[variant], markersize=4, label=variant)
                axes.plot(curve["width"], curve["corrected"], color=colours[variant], linewidth=1)
                axes.plot(curve["width"], curve["simple"], color=colours[variant], linewidth=1, linestyle=":")
            axes.axhline(math.log(vocabulary), color="black", linestyle="--", linewidth=0.8)
            axes.set(title=f"σ = {deviation}, n = {vocabulary:,}", xlabel="width D", xscale="log", yscale="log")
            axes.set_ylabel("initial loss, nat" if i == 0 else None)
            axes.set_xticks(part["width"].unique(), part["width"].unique().astype(str), rotation=45)
            axes.xaxis.set_minor_locator(NullLocator())
            if part["measured"].max() < 20 * part["measured"].min():  # powers of ten would be too few
                axes.yaxis.set_major_locator(MaxNLocator(6))
                axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter("{x:g}")
            if i == 0:
                axes.legend(fontsize=7)
        for i, estimate in enumerate(("simple", "corrected")):
            axes = figure.add_subplot(grid[1, i * half // 2 : (i + 1) * half // 2])
            for variant, part in table.groupby("variant", sort=False):
                axes.plot(part["spread"], part[estimate] / part["measured"], ".", color=colours[variant], markersize=4)
            axes.axhspan(0.97, 1.03, color="black", alpha=0.12, linewidth=0)
            axes.axvline(1, color="black", linewidth=0.8)
            axes.set(title=f"{estimate} estimate, whole grid", xlabel="spread of the logits, Dσ²", xscale="log")
            axes.set_ylabel("estimate / measured")
        figure.suptitle("initial loss: measured (dots), corrected estimate (lines), simple estimate (dotted), log n (dashed)")
    return figure


def main(study: InitialLoss, folder: Path, report: Callable[[str], None] = print) -> str:
    """Measure, and leave `initial_loss.csv`, `summary.md` and `figures/initial_loss.png`, `.pdf` in a folder.

    Returns:
      The summary.
    """
    table = run(study, report)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "initial_loss.csv", index=False, float_format="%.9g")
    (folder / "summary.md").write_text(
        summary := "\n".join(part.markdown() for part in initial_loss_tables(table)), encoding="utf-8"
    )
    figure = draw(table)
    for kind in ("png", "pdf"):
        figure.savefig(folder / "figures" / f"initial_loss.{kind}")
    plt.close(figure)
    return summary
