"""Made-up results of runs on text."""

from typing import Any

import numpy as np
import xarray as xr

from jaxtie.config import Arm

BY_PAIR = ("arm", "seed", "eval_step", "kind", "pair")


def text_results(
    arms: list[str],
    loss_AxSxT: np.ndarray,
    steps: list[int],
    kinds: list[str],
    input_distance: np.ndarray,
    output_distance: np.ndarray | None = None,
    **more: Any,
) -> xr.Dataset:
    """Return results of a causal model with these losses and distances of pairs, by `BY_PAIR`."""
    members, seeds, pairs = BY_PAIR[:2], loss_AxSxT.shape[1], input_distance.shape[-1]
    found = {
        "diverged_at": (members, np.full((len(arms), seeds), -1)),
        "parameters": ("arm", [60 if Arm.parse(arm).untied_from is None else 100 for arm in arms]),
        "token": ("token_number", ["the", "an", "an*"]),
        "decay_factor": ("step", np.ones(len(steps))),
    }
    for name in ("valid_loss", "valid_accuracy", "perplexity"):
        found[name] = (*members, "eval_step"), loss_AxSxT
    for name in ("loss", "accuracy"):
        found[name] = (*members, "step"), loss_AxSxT
    for name in ("first_word", "second_word"):
        found[name] = ("kind", "pair"), np.full((len(kinds), pairs), name)
    if output_distance is None:
        output_distance = input_distance
    for table, values in (("input", input_distance), ("output", output_distance)):
        found[f"{table}_distance"] = BY_PAIR, values
    labels = {"arm": list(arms), "seed": np.arange(seeds), "step": steps, "eval_step": steps}
    labels |= {"kind": kinds, "pair": np.arange(pairs)}
    attributes = {"task": "text", "objective": "causal", "experiment": "made-up"}
    return xr.Dataset(found | more, labels, attributes)
