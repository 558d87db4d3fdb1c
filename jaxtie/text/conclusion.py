"""Conclude a run on text: what tying costs, and how good the models are. Imports no jax."""

import numpy as np
import xarray as xr

from jaxtie.results.conclusion import (
    Conclusion,
    gap_of,
    gap_sentences,
    model_in_words,
)
from jaxtie.results.tables import Table, arms_of, interval, last_step, number, reference_arm

FEW_SEEDS = 3


def text_conclusion(results: xr.Dataset) -> Conclusion:
    """Return the table, the sentences and the scope of a run."""
    seeds, step, reference = results.sizes["seed"], last_step(results), reference_arm(results)
    at = f"step {step:,}, {seeds} seed{'s' * (seeds > 1)}"
    loss, rows = results["valid_loss"].sel(eval_step=step, drop=True), []
    loss.attrs["long_name"] = "validation loss, nat"
    in_bits = "bits_per_byte" in results and bool(results["bits_per_byte"].notnull().any())
    for arm in arms_of(results):
        own = results.sel(arm=arm.name, eval_step=step)
        rows.append(
            (
                arm.name,
                interval(own["valid_loss"].values),
                "" if arm.name == reference else interval(gap_of(loss, arm.name, reference)),
                number(
                    float((own["bits_per_byte"] if in_bits else np.exp(own["valid_loss"])).mean())
                ),
                interval(own["valid_accuracy"].values),
                f"{int(own['parameters']):,}",
            )
        )
    header = (
        "arm",
        "validation loss, nat",
        f"− {reference}",
        "bits per byte" if in_bits else "perplexity",
        "accuracy",
        "parameters",
    )
    table = Table(f"{results.attrs['experiment']}: {at}", header, rows, "Mean ± 95 %.")
    best = float(loss.mean("seed").min())
    unigram, bigram, four = (
        float(results.get(f"{name}_loss", np.nan)) for name in ("unigram", "bigram", "kneser_ney")
    )
    too_short = (
        f"{seeds} seed{'s are' if seeds > 1 else ' is'} too few" if seeds < FEW_SEEDS else ""
    )
    if best > unigram:
        too_short = f"no arm is better than unigram counts ({unigram:.3f} nats)"
    sentences = gap_sentences(loss, "validation loss", at, too_short)
    names = {"unigram counts": unigram, "bigram counts": bigram, "counts of 4 tokens": four}
    known = {name: counts for name, counts in names.items() if np.isfinite(counts)}
    if known:
        name = min(known, key=known.__getitem__)
        counts = known[name]
        verb = "is worse than" if best > counts else "is better than"
        sentences.append(f"The best arm ({best:.3f} nats) {verb} {name} ({counts:.3f}).")
    model = model_in_words(results.attrs["model"])
    sentences.append(
        f"Scope: {results.attrs['objective']}, {model}, this text, one recipe. Others may differ."
    )
    return Conclusion(loss, table, sentences, too_short)
