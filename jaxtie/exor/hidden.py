"""In how many directions the hidden states of trained members bind output rows: see `jaxtie/exor/README.md`."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from jaxtie.exor.declaration import Experiment
from jaxtie.exor.engine import member_shapes
from jaxtie.exor.equivalence import hidden_spreads
from jaxtie.exor.member import SPELLINGS, Static, build_contexts, build_model
from jaxtie.experiment import Arm, setting_and_seed
from jaxtie.results.folder import RunFolder
from jaxtie.training.checkpoints import opened
from jaxtie.training.members import Members, unflatten


def trained_spreads(run: Path, experiment: Experiment) -> xr.DataArray:
    """`jaxtie.exor.equivalence.hidden_spreads`, with an output bias, of the members that the last checkpoint of a run holds.

    Of each pair that occurs: over the contexts of the training split where either symbol can stand, weighted as they occur.
    (arm, seed, pair, dim)

    Args:
      experiment: what the run's was; without a sweep.
    """
    with opened(RunFolder(run).checkpoints, to_read=True) as checkpoints:
        known = checkpoints.load(print)
    found = []
    for arm in experiment.arms:
        spreads = _spreads_of_arm(experiment, arm, known[arm.name])
        found.append(spreads.expand_dims(arm=[arm.name]))
    return xr.concat(found, "arm")


def _spreads_of_arm(experiment: Experiment, arm: Arm, members: Members) -> xr.DataArray:
    static = Static.of(experiment, tied=arm.untied_from is None, head=arm.head)
    model, own = build_model(static), experiment.process
    states = unflatten(member_shapes(experiment, static), members.states)
    train = build_contexts(own, ordered=model.body.ordered)[0]
    pairs = {pair: SPELLINGS[pair] for pair, p in own.pairs.items() if 0 not in p}

    @jax.jit
    def hidden_of(params: dict) -> jax.Array:
        def of_context(tokens_L: jax.Array, at_P: jax.Array) -> jax.Array:
            return model.apply({"params": params}, tokens_L, at_P, method="hidden")[0]

        return jax.vmap(of_context)(jnp.array(train.tokens_CxL), jnp.array(train.at_CxP))

    hidden_SxCxD = np.asarray(jax.lax.map(hidden_of, states.params), np.float64)
    spreads = []
    for pair in pairs.values():
        weight_C = train.joint_CxV[:, list(pair)].sum(axis=1)
        stands_C = weight_C > 0
        own_SxCxD = hidden_SxCxD[:, stands_C]
        spreads.append([hidden_spreads(each, bias=True, weight_N=weight_C[stands_C]) for each in own_SxCxD])
    _, seeds = setting_and_seed(members.numbers)
    labels = {"seed": seeds, "pair": list(pairs)}
    return xr.DataArray(np.stack(spreads, axis=1), labels, ("seed", "pair", "dim"), name="hidden_spread")
