"""Variables of text results, groups of pairs.

Imports no jax, except inside the functions that describe models and read checkpoints. Shapes:
V vocabulary, K words or pairs of a kind, S seeds.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from jaxtie.config import Arm, Variant
from jaxtie.results.gradient_by_role import ROLE_VARIABLES
from jaxtie.results.netcdf import Schema, Variable, steps_of
from jaxtie.results.tables import last_step
from jaxtie.text.corpus import FREQUENCIES, baselines

if TYPE_CHECKING:
    from jaxtie.text.config import TextExperiment

EVALUATED, OF_PAIRS = ("eval_step",), ("eval_step", "kind", "pair")
TEXT_VARIABLES = {
    "loss": Variable(("step",), "nat", "training loss"),
    "accuracy": Variable(("step",), "1", "training accuracy"),
    "valid_loss": Variable(EVALUATED, "nat", "validation loss"),
    "valid_loss_even": Variable(EVALUATED, "nat", "validation loss, even batches"),
    "valid_loss_odd": Variable(EVALUATED, "nat", "validation loss, odd batches"),
    "valid_accuracy": Variable(EVALUATED, "1", "validation accuracy"),
    "perplexity": Variable(EVALUATED, "1", "validation perplexity"),
    "input_distance": Variable(OF_PAIRS, "1", "distance, input embedding"),
    "output_distance": Variable(OF_PAIRS, "1", "distance, output embedding"),
}
PREDICTED_VARIABLES = {  # means over contexts; log-odds where one of the pair occurs
    "log_odds": Variable(OF_PAIRS, "nat", "ln p(first) - ln p(second)"),
    "log_odds_deviation": Variable(OF_PAIRS, "nat", "log-odds, std over contexts"),
    "swap_divergence": Variable(OF_PAIRS, "1", "swap divergence"),
}
MASK_NORMS = {  # recorded with `TextExperiment.mask_norms`
    f"{table}_{name}": Variable(EVALUATED, "1", f"length of {what}, {table} embedding")
    for table in ("input", "output")
    for name, what in (("mask_norm", "the row of [MASK]"), ("norm", "a median row"))
}
BASELINES = {
    "unigram_loss": "frequencies alone (unigram)",
    "bigram_loss": "the token on the left alone (bigram)",
    "kneser_ney_loss": "counts of 4 tokens (Kneser-Ney)",
}


def text_schema(experiment: "TextExperiment") -> Schema:
    """Return the variables of members and their labels."""
    variables = dict(TEXT_VARIABLES)
    labels: dict[str, Any] = {"kind": list(experiment.kinds), "pair": np.arange(experiment.words)}
    if experiment.has_bytes:
        label = "validation loss, bits per byte"
        variables["bits_per_byte"] = Variable(EVALUATED, "bit", label)
    if experiment.mask_norms:
        variables |= MASK_NORMS
    if experiment.evaluates_predictions:
        variables |= PREDICTED_VARIABLES
    if experiment.roles:
        variables |= ROLE_VARIABLES
        labels["group"] = list(FREQUENCIES)
    return Schema(variables, steps_of(experiment) | labels)


def text_constants(experiment: "TextExperiment") -> dict[str, xr.DataArray]:
    """Return variables of no member: words, schedule, baselines, sizes."""
    import jax

    from jaxtie.training.optimizer import decay_factors, schedule_table
    from jaxtie.tying.tie import count_parameters

    prepared, arms, optimizer = experiment.prepared, experiment.arms, experiment.optimizer
    vocabulary, steps = np.array(prepared.vocabulary), experiment.record_steps

    def words(ids: np.ndarray, *dims: str) -> xr.DataArray:
        return xr.DataArray(vocabulary[ids].astype(object), dims=dims)

    def count(arm: Arm) -> int:
        task = experiment.build(Variant(arm.untied_from is None, arm.head), "cpu")
        return count_parameters(jax.eval_shape(task.init, jax.random.key(0), {}))

    found = {
        f"{name}_loss": xr.DataArray(
            loss, attrs={"units": "nat", "long_name": f"of {name} counts on validation batches"}
        )
        for name, loss in baselines(experiment, prepared).items()
    }
    if experiment.duplicates:
        found["duplicate_probability"] = xr.DataArray(prepared.drawn.probability_K, dims="pair")
    return found | {
        "first_word": words(prepared.first, "kind", "pair"),
        "second_word": words(prepared.second, "kind", "pair"),
        "decay_factor": xr.DataArray(decay_factors(optimizer, steps, arms), dims="step"),
        "token": words(np.arange(len(vocabulary)), "token_number"),
        "scheduled_learning_rate": xr.DataArray(
            [schedule_table(optimizer, steps)] * len(arms), dims=("arm", "step")
        ),
        "parameters": xr.DataArray(
            list(map(count, arms)),
            dims="arm",
            attrs={"units": "1", "long_name": "of a member at the end"},
        ),
    }


def text_attributes(experiment: "TextExperiment") -> dict[str, str | int]:
    """Return the attributes of the results."""
    text = experiment.prepared.text
    return {
        "objective": experiment.objective,
        "text": str(text.report),
        "text_key": text.key,
        "model": repr(experiment.model),
    }


# ----- Groups of pairs.

AS_LIKELY = 0.5  # duplicates of this probability are as likely as their words
KIND_LABELS = {
    "duplicate": "word–duplicate",
    "matched": "as frequent as word–duplicate",
    "random": "random pairs",
}


class Group(NamedTuple):
    """Pairs of one kind whose duplicates have one probability."""

    kind: str  # of `KIND_LABELS`
    probability: float  # of the duplicates, or of those that they match; NaN of random pairs
    label: str  # for a reader
    pairs: np.ndarray  # numbers of the pairs

    @property
    def true_odds(self) -> float:
        """Log-odds of word and duplicate in every context, nats; NaN of other pairs."""
        if self.kind != "duplicate":
            return math.nan
        return math.log((1 - self.probability) / self.probability)

    @property
    def hypothesis(self) -> str:
        """Whether the distributional hypothesis holds, for a label; empty for other pairs."""
        if self.kind != "duplicate":
            return ""
        return " (DH holds)" if self.probability == AS_LIKELY else " (DH fails)"

    def of(self, values: xr.DataArray) -> xr.DataArray:
        """Select the group's pairs of a variable."""
        return values.sel(kind=self.kind, drop=True).isel(pair=self.pairs)


def groups_of(results: xr.Dataset) -> list[Group]:
    """List the groups of a run's pairs."""
    pairs, found = np.arange(results.sizes["pair"]), []
    known = np.full(len(pairs), AS_LIKELY)
    if "duplicate_probability" in results:
        known = results["duplicate_probability"].values
    probabilities = np.unique(known)[::-1].tolist()
    for kind in map(str, results["kind"].values):
        if kind == "random":
            found.append(Group(kind, math.nan, KIND_LABELS[kind], pairs))
            continue
        for probability in probabilities:
            at = f" at {probability:g}" if len(probabilities) > 1 else ""
            own = pairs[known == probability]
            found.append(Group(kind, probability, KIND_LABELS[kind] + at, own))
    return found


def log_decay_ratio(results: xr.Dataset, group: Group, arm: str, table: str) -> xr.DataArray:
    """Compute ln of the decay-adjusted distance at the end, mean over pairs; (seed,).

    The decay-adjusted distance is the distance divided by its start and by the decay factor.
    """
    step = last_step(results)
    distance = group.of(results[f"{table}_distance"].sel(arm=arm)).astype(np.float64)
    left: Any = distance.sel(eval_step=step, drop=True) / distance.sel(eval_step=0, drop=True)
    with np.errstate(divide="ignore", invalid="ignore"):  # of members that diverged
        decay = float(np.log(results["decay_factor"].sel(step=step)))
        return np.log(left).mean("pair", skipna=False) - decay


def at_last(results: xr.Dataset, name: str, group: Group, arm: str) -> xr.DataArray:
    """Average a variable of `PREDICTED` at the end over the pairs with any context; (seed,)."""
    values = results[name].sel(arm=arm, eval_step=last_step(results), drop=True)
    return group.of(values).astype(np.float64).mean("pair")
