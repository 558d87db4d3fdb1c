"""What results on text hold. Imports no jax but for what no member owns."""

from typing import Any

import numpy as np
import xarray as xr

from jaxtie.config import Variant
from jaxtie.results.gradient_by_role import ROLE_VARIABLES
from jaxtie.results.netcdf import Schema, Variable, steps_of
from jaxtie.text.config import TextExperiment
from jaxtie.text.corpus import FREQUENCIES, NEIGHBOURS, Material, probes
from jaxtie.text.pairs import PREDICTED

PAIRS = ("eval_step", "kind", "pair")
NEAREST = ("eval_step", "probe", "rank")
TEXT_VARIABLES = {
    "loss": Variable(
        ("step",),
        "nat",
        "training loss: mean over the batches of the updates since the record before",
    ),
    "accuracy": Variable(
        ("step",),
        "1",
        "training accuracy: mean over the batches of the updates since the record before",
    ),
    "valid_loss": Variable(
        ("eval_step",), "nat", "loss on the validation split, the same rows and masks each time"
    ),
    "valid_accuracy": Variable(("eval_step",), "1", "accuracy on the validation split"),
    "perplexity": Variable(("eval_step",), "1", "exp(valid_loss)"),
    "input_distance": Variable(
        PAIRS, "1", "Euclidean distance between the rows of a pair of words in the input embedding"
    ),
    "output_distance": Variable(
        PAIRS, "1", "Euclidean distance between the rows of a pair of words in the output embedding"
    ),
    "input_neighbour": Variable(
        NEAREST,
        "1",
        "number of the token whose row in the input embedding is nearest, then next, ...",
    ),
    "output_neighbour": Variable(
        NEAREST,
        "1",
        "number of the token whose row in the output embedding is nearest, then next, ...",
    ),
}
# What `jaxtie.text.task` looks at, of experiments with duplicates.
SEEN_OF_PAIRS = (
    Variable(
        PAIRS,
        "nat",
        "ln p(first) - ln p(second) of a pair where one of them stands, mean over contexts",
    ),
    Variable(PAIRS, "nat", "its standard deviation over contexts"),
    Variable(
        PAIRS,
        "1",
        "total variation of predictions when the second of a pair takes the first one's place, mean"
        " over contexts",
    ),
)


def text_schema(experiment: TextExperiment) -> Schema:
    """What the results of an experiment hold of members."""
    labels: dict[str, Any] = {
        "kind": list(experiment.kinds),
        "pair": np.arange(experiment.word_count),
        "probe": probes(experiment),
        "rank": np.arange(NEIGHBOURS),
    }
    predicted = (
        dict(zip(PREDICTED, SEEN_OF_PAIRS, strict=True)) if experiment.looks_at_predictions else {}
    )
    variables = TEXT_VARIABLES | predicted
    if not experiment.roles:
        return Schema(variables, steps_of(experiment) | labels)
    return Schema(
        variables | ROLE_VARIABLES, steps_of(experiment) | labels | {"group": list(FREQUENCIES)}
    )


def text_constants(experiment: TextExperiment, material: Material) -> dict[str, xr.DataArray]:
    """What no member owns: words, the vocabulary, the schedule, what the text's frequencies and
    decay alone come to.

    And of each arm its size and how it should start.
    """
    from jaxtie.text.corpus import baselines
    from jaxtie.training.optimizer import decay_table, schedule_table
    from jaxtie.training.row_engine import carry_shapes
    from jaxtie.tying.initial_loss import estimate
    from jaxtie.tying.tie import count_parameters

    vocabulary, arms = np.array(material.vocabulary), experiment.arms
    rates = schedule_table(experiment.optimizer, experiment.record_steps)
    sizes: dict[str, Any] = {
        "vocabulary": len(vocabulary),
        "width": experiment.model.width,
        "init_std": experiment.init_std,
    }
    estimates = [estimate(arm.head, tied=arm.tied, **sizes) for arm in arms]
    counts = [
        count_parameters(
            carry_shapes(experiment, Variant(arm.untied_from is None, arm.head)).state.params
        )
        for arm in arms
    ]
    words = {"first_word": material.first, "second_word": material.second}
    looked_at = material.words_K[probes(experiment)]
    losses = baselines(experiment, material)._asdict()
    with np.errstate(over="ignore", invalid="ignore"):  # of a rate at which everything diverges
        decayed = decay_table(experiment.optimizer, experiment.record_steps)
    found = {
        f"{name}_loss": xr.DataArray(
            loss, attrs={"units": "nat", "long_name": f"of a {name} model on validation batches"}
        )
        for name, loss in losses.items()
    }
    if experiment.duplicates:
        found["duplicate_probability"] = xr.DataArray(material.drawn.probability_K, dims="pair")
    found |= {
        name: xr.DataArray(vocabulary[ids].astype(object), dims=("kind", "pair"))
        for name, ids in words.items()
    }
    return found | {
        "decay_factor": xr.DataArray(decayed, dims="step"),
        "probe_word": xr.DataArray(vocabulary[looked_at].astype(object), dims="probe"),
        "token": xr.DataArray(vocabulary.astype(object), dims="token_number"),
        "scheduled_learning_rate": xr.DataArray(
            np.broadcast_to(rates, (len(arms), len(rates))), dims=("arm", "step")
        ),
        "parameters": xr.DataArray(
            counts, dims="arm", attrs={"units": "1", "long_name": "of a member at the end"}
        ),
        "estimated_initial_loss": xr.DataArray(
            estimates,
            dims="arm",
            attrs={
                "units": "nat",
                "long_name": "of a fresh model that hands on its token's embedding",
            },
        ),
    }


def text_attributes(experiment: TextExperiment, material: Material) -> dict[str, str | int]:
    """What a reader wants to know of the whole."""
    return {
        "objective": experiment.objective,
        "text": str(material.text.report),
        "text_key": material.text.key,
        "model": repr(experiment.model),
    }
