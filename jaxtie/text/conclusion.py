"""Conclude a run on text: what tying costs, and how good the models are. Imports no jax."""

import numpy as np
import xarray as xr

from jaxtie.results.conclusion import Conclusion, arms_table, gap_sentences, model_in_words
from jaxtie.results.tables import Column, format_mean, format_number, last_step

FEW_SEEDS_OF_TEXT = 3


def text_conclusion(results: xr.Dataset) -> Conclusion:
    """Return the table, the sentences and the scope of a run."""
    seeds, step = results.sizes["seed"], last_step(results)
    at = f"step {step:,}, {seeds} seed{'s' * (seeds > 1)}"
    end = results.sel(eval_step=step, drop=True)
    loss = end["valid_loss"].assign_attrs(long_name="validation loss, nat")
    measure, values = "perplexity", xr.apply_ufunc(np.exp, end["valid_loss"])
    if "bits_per_byte" in results and bool(results["bits_per_byte"].notnull().any()):
        measure, values = "bits per byte", end["bits_per_byte"]
    arms = list(map(str, loss["arm"].values))
    accuracies = [end["valid_accuracy"].sel(arm=arm).values for arm in arms]
    columns = [
        Column(measure, values.mean("seed").values, format_number),
        Column("accuracy", accuracies, format_mean),
        Column("parameters", end["parameters"].values, "{:,.0f}".format),
    ]
    title = f"{results.attrs['experiment']}: {at}"
    table = arms_table(loss, title, columns, "Mean ± 95 %.")
    best = float(loss.mean("seed").min())
    unigram, bigram, four = (
        float(results.get(f"{name}_loss", np.nan)) for name in ("unigram", "bigram", "kneser_ney")
    )
    few = f"{seeds} seed{'s are' if seeds > 1 else ' is'} too few"
    too_short = few if seeds < FEW_SEEDS_OF_TEXT else ""
    if best > unigram:
        too_short = f"no arm is better than unigram counts ({unigram:.3f} nats)"
    sentences = gap_sentences(loss, "validation loss", at, too_short)
    names = {"unigram counts": unigram, "bigram counts": bigram, "counts of 4 tokens": four}
    known = {name: counts for name, counts in names.items() if np.isfinite(counts)}
    if known and np.isfinite(best):
        name = min(known, key=known.__getitem__)
        counts = known[name]
        verb = "is worse than" if best > counts else "is better than"
        sentences.append(f"The best arm ({best:.3f} nats) {verb} {name} ({counts:.3f}).")
    model = model_in_words(results.attrs["model"])
    sentences.append(
        f"Scope: {results.attrs['objective']}, {model}, this text, one recipe. Others may differ."
    )
    return Conclusion(loss, table, sentences, too_short)
