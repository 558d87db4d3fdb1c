"""What results on EXor hold. Imports no jax but for what no member owns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from jaxtie.exor.config import Experiment
from jaxtie.results.gradient_by_role import PUSH_VARIABLES, ROLE_VARIABLES
from jaxtie.results.netcdf import Schema, Variable, steps_of

MATRIX = ("step", "symbol", "symbol2")
VARIABLES = {
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
    "train_loss": Variable(("eval_step",), "nat", "exact expected loss on the training split"),
    "train_accuracy": Variable(
        ("eval_step",), "1", "exact expected accuracy on the training split"
    ),
    "valid_loss": Variable(("eval_step",), "nat", "exact expected loss on the validation split"),
    "valid_accuracy": Variable(
        ("eval_step",), "1", "exact expected accuracy on the validation split"
    ),
    "log_odds": Variable(
        ("eval_step", "pair"),
        "nat",
        "expected ln p(second) - ln p(first) where the pair can stand, training",
    ),
    "log_odds_deviation": Variable(
        ("eval_step", "pair"), "nat", "its standard deviation over these contexts"
    ),
    "swap_divergence": Variable(
        ("eval_step", "pair"),
        "1",
        "expected total variation of predictions as one of the pair takes the other's place",
    ),
    "bias_odds": Variable(
        ("eval_step", "pair"), "nat", "output bias of the second less the first's; 0 without a bias"
    ),
    "input_distance": Variable(
        MATRIX, "1", "Euclidean distance between rows of the input embedding"
    ),
    "output_distance": Variable(
        MATRIX, "1", "Euclidean distance between rows of the output embedding"
    ),
    "input_table": Variable(("table_step", "symbol", "dim"), "1", "input embedding"),
    "output_table": Variable(
        ("table_step", "symbol", "dim"), "1", "output embedding (tied: the input embedding)"
    ),
}
MASK_VARIABLES = {  # where they are asked for
    "mask_logit": Variable(
        ("eval_step",), "1", "expected logit of the mask where it stands, training"
    ),
    "mask_probability": Variable(
        ("eval_step",), "1", "expected probability that the mask itself is predicted, training"
    ),
}
# What no member owns: computed from the process and the configuration.
CONSTANTS = (
    "best_accuracy",
    "best_loss",
    "theory_log_odds",
    "theory_log_odds_deviation",
    "scheduled_learning_rate",
    "decay_factor",
    "semantic_divergence",
    "conditional_divergence",
    "conditional_log_ratio",
)


def exor_schema(experiment: Experiment) -> Schema:
    """What the results of an experiment hold of members."""
    symbols = list(experiment.process.symbols)
    labels: dict[str, Sequence[Any]] = {
        "table_step": experiment.eval_steps,
        "symbol": symbols,
        "symbol2": symbols,
        "pair": list(experiment.process.pairs),
        "dim": list(range(experiment.model.width)),
    }
    variables = VARIABLES | (MASK_VARIABLES if experiment.mask_logit else {})
    if not experiment.roles:
        return Schema(variables, steps_of(experiment) | labels)
    return Schema(
        variables | ROLE_VARIABLES | PUSH_VARIABLES,
        steps_of(experiment) | labels | {"group": symbols},
    )


def exor_constants(experiment: Experiment) -> dict[str, xr.DataArray]:
    """What no member owns: the schedule, and what theory says; with a dimension for each swept
    setting.
    """
    settings = [_constants_of_setting(setting) for setting in experiment.points]
    for name, values in reversed(experiment.swept.items()):  # the last name's values run fastest
        index = xr.DataArray(list(values), dims=name, name=name)
        settings = [
            xr.concat(settings[i : i + len(values)], index)
            for i in range(0, len(settings), len(values))
        ]
    return {str(name): values for name, values in settings[0].data_vars.items()}


def _constants_of_setting(setting: Experiment) -> xr.Dataset:
    from jaxtie.exor import data, theory
    from jaxtie.exor.task import build_contexts
    from jaxtie.training.optimizer import decay_table, schedule_table

    own = setting.process
    laws = [contexts.joint_CxV for contexts in build_contexts(own, ordered=False)]
    rates = schedule_table(setting.optimizer, setting.record_steps)
    whole = data.enumerate_process(
        own.length, own.zeros, own.ones, zeros_by_label=own.zeros_by_label
    )
    bits = data.split(own.length, own.all_strings, own.data_seed).train
    exchanged = data.share_of_odd_zeros(bits) if own.zeros_by_label else 0.0
    odds = [theory.log_odds(own.zeros, exchanged), theory.log_odds(own.ones)]
    divergences = theory.equivalences(whole.tokens_CxL, whole.joint_CxV, ordered=False)
    return xr.Dataset(
        {
            "best_accuracy": ("split", list(map(theory.best_accuracy, laws))),
            "best_loss": ("split", list(map(theory.best_loss, laws))),
            "theory_log_odds": ("pair", [each.mean for each in odds]),
            "theory_log_odds_deviation": ("pair", [each.deviation for each in odds]),
            "scheduled_learning_rate": (
                ("arm", "step"),
                np.broadcast_to(rates, (len(setting.arms), len(rates))),
            ),
            "decay_factor": ("step", decay_table(setting.optimizer, setting.record_steps)),
            **{
                name: (("symbol", "symbol2"), matrix_VxV)
                for name, matrix_VxV in divergences.items()
            },
        },
        {"split": ["train", "valid"]},
    )


def exor_attributes(experiment: Experiment) -> dict[str, str | int]:
    """What a reader wants to know of the whole."""
    own = experiment.process
    pairs = ", ".join(f"p({pair}) = {p[0]:g}, {p[1]:g}" for pair, p in own.pairs.items())
    return {"process": f"EXor, {own.length} bits; {pairs}", "model": repr(experiment.model)}
