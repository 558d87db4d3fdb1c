"""What results on the initial loss hold. Imports no jax."""

from collections.abc import Callable
from functools import partial

import numpy as np
import xarray as xr

from jaxtie.formulas import Size, size
from jaxtie.initial_loss.declaration import InitialLoss
from jaxtie.models.initial_loss import estimate
from jaxtie.results.schema import Schema, Variable, steps_of

INITIAL = {"initial_loss": Variable(("step", "deviation"), "nat", "loss of a fresh model, mean over tokens")}
ESTIMATES = {"simple": False, "corrected": True}  # name -> whether it keeps the spread of the other words' logits


def initial_loss_schema(experiment: InitialLoss) -> Schema:
    """What the results of an experiment hold of members."""
    return Schema(INITIAL, steps_of(experiment) | {"deviation": list(map(str, experiment.deviations))})


def initial_loss_constants(experiment: InitialLoss) -> dict[str, xr.DataArray]:
    """Both estimates, for each arm and setting, and the variance of the logits that they go by."""
    grid, nats = ("width", "vocabulary", "deviation"), {"units": "nat", "long_name": "estimate of the initial loss"}
    constants = {}
    for name, corrected in ESTIMATES.items():
        of_arms = [partial(estimate, arm.head, tied=arm.tied, corrected=corrected) for arm in experiment.arms]
        values = np.stack([_over_grid(experiment, of_arm) for of_arm in of_arms])
        constants[name] = xr.DataArray(values, dims=("arm", *grid), attrs=nats)
    variance = {"units": "nat²", "long_name": "variance of the logits of other words, if nothing scales them: Dσ²"}
    return constants | {"spread": xr.DataArray(_over_grid(experiment, _variance), dims=grid, attrs=variance)}


def _over_grid(experiment: InitialLoss, value: Callable[..., float]) -> np.ndarray:
    """A function of `vocabulary`, `width` and `deviation` everywhere; (widths, vocabularies, deviations)."""
    deviations, vocabularies = experiment.deviations, experiment.vocabularies
    return np.array(
        [
            [[value(vocabulary=n, width=width, deviation=each) for each in deviations] for n in vocabularies]
            for width in experiment.widths
        ]
    )


def _variance(vocabulary: int, width: int, deviation: Size) -> float:
    return width * size(deviation, vocabulary, width) ** 2
