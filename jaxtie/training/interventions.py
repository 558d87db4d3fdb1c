"""Interventions on single rows of the embeddings: derive the tables of each role from parameters.

`jaxtie.arms.Interventions` declares them, as options in the name of an arm. They are changes of
the parameterisation: the optimizer is AdamW as always, on the parameters below.

- `learned_scale`: all output rows are multiplied by exp(s). s is the parameter `log_scale`.
- `gain`, `shared_gain`: the row is multiplied by exp(g), as an output or in both roles. g, one for
  each row, is the parameter `log_gain`: 0 at the start, trained and decayed like all others.
- `minus`: the output row is minus the tied row.
- `input_norm` c: with parameter m, the input row is c·m/|m|. Its length is always c, and its
  gradient is orthogonal to m. A tied m is still the output row, of any length, and gets the
  gradients of both roles. How far a step turns the row depends on |m|, not on c.
- `norm_path`: the row of length c is read on one path only, m itself on the other.
- `frozen_direction`: the input row is c·u/|u|, with the initial row u: it has no gradient and no
  decay. A tied m is then trained as an output alone.
- `input_decay`: weight decay of an untied input row, instead of the optimizer's.

Rows with a decay or a frozen direction are a parameter of their own, `own_input`. It starts as the
rows of the table, whose own ones are then unused.

Shapes: D width, V vocabulary, K rows.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.config import Interventions
from jaxtie.training.task import Params
from jaxtie.tying.head import get_tables, replace_rows

RowSets = Mapping[str, Sequence[int]]  # ids of rows by the names that arms use


def add_parameters(
    params: Params, own: Interventions, untied_rows: Sequence[int], row_sets: RowSets
) -> Params:
    """Return fresh parameters with those that the interventions need, in the embedding."""
    if own == Interventions():
        return params
    embedding = params["embedding"]
    input_VxD, _ = get_tables(embedding, untied_rows)
    added = {}
    if own.learned_scale:
        added["log_scale"] = jnp.zeros((1, 1), input_VxD.dtype)
    if gained := own.gain or own.shared_gain:
        added["log_gain"] = jnp.zeros((len(row_sets[gained]), 1), input_VxD.dtype)
    if own.frozen_direction or own.input_decay is not None:
        added["own_input"] = input_VxD[np.array(row_sets["mask"])]
    return {**params, "embedding": {**embedding, **added}}


def effective(
    params: Params, own: Interventions, untied_rows: Sequence[int], row_sets: RowSets
) -> Params:
    """Return the parameters of the untied model whose tables are those of each role."""
    if own == Interventions():
        return params
    embedding, body = params["embedding"], params["body"]
    rest = {name: embedding[name] for name in ("bias", "projection") if name in embedding}
    input_VxD, output_VxD = get_tables(embedding, untied_rows)
    vocabulary = len(output_VxD)

    def among(name: str) -> np.ndarray:
        """Return whether each row is in a set, Vx1."""
        return np.isin(np.arange(vocabulary), row_sets[name])[:, None]

    if "own_input" in embedding:
        own_KxD = embedding["own_input"]
        own_KxD = jax.lax.stop_gradient(own_KxD) if own.frozen_direction else own_KxD
        input_VxD = replace_rows(input_VxD, own_KxD, row_sets["mask"])
    if own.minus:
        output_VxD = output_VxD * np.where(among(own.minus), -1, 1).astype(output_VxD.dtype)
    if gained := own.gain or own.shared_gain:
        ones_Vx1 = jnp.ones((vocabulary, 1), output_VxD.dtype)
        factor_Vx1 = replace_rows(ones_Vx1, jnp.exp(embedding["log_gain"]), row_sets[gained])
        output_VxD = output_VxD * factor_Vx1
        input_VxD = input_VxD * factor_Vx1 if own.shared_gain else input_VxD
    if own.learned_scale:
        output_VxD = output_VxD * jnp.exp(embedding["log_scale"])
    if own.input_norm is not None:
        square_Vx1 = jnp.sum(input_VxD**2, axis=-1, keepdims=True)
        is_held_Vx1 = among("mask") & (square_Vx1 > 0)  # a row of length 0 stays 0
        norm_Vx1 = jnp.sqrt(jnp.where(is_held_Vx1, square_Vx1, 1))
        factor_Vx1 = jnp.where(is_held_Vx1, own.input_norm / norm_Vx1, 1)
        held_VxD = input_VxD * factor_Vx1
        if own.norm_path != "both":
            on_residual = own.norm_path == "residual"
            body = {**body, "residual": held_VxD if on_residual else input_VxD}
        input_VxD = input_VxD if own.norm_path == "residual" else held_VxD
    tables = {"input": input_VxD, "output": output_VxD}
    return {**params, "embedding": {**rest, **tables}, "body": body}
