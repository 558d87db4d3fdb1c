"""Interventions on single rows of the embeddings: derive the tables of each role from parameters.

`jaxtie.config.Interventions` declares them, as options in the name of an arm. They are changes of
the parameterisation: the optimizer is AdamW as always, on the parameters below.

- `gain`, `shared_gain`: the row is multiplied by exp(g), as an output or in both roles. g, one for
  each row, is the parameter `log_gain`: 0 at the start, trained and decayed like all others.
- `minus`: the output row is minus the tied row.
- `input_norm` c: with parameter m, the input row is c·m/|m|. Its length is always c, and its
  gradient is orthogonal to m. A tied m is still the output row, of any length, and gets the
  gradients of both roles. How far a step turns the row depends on |m|, not on c.
- `norm_path`: the row of length c is read on one path only, m itself on the other.
- `frozen_direction`: the input row is c·u/|u|, with the initial row u: it has no gradient and no
  decay. A tied m is then trained as an output alone.
- `direction_rate`: factor of the learning rate of m, its decay included; m is untied.
- `input_decay`, `output_decay`: weight decay of an untied row, instead of the optimizer's.

Rows with a rate, a decay or a frozen direction are parameters of their own, `own_input` and
`own_output`. They start as the rows of the table, whose own ones are then unused.

Shapes: D width, V vocabulary, K rows.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxtie.config import Interventions
from jaxtie.exor.data import ROW_SETS, VOCABULARY
from jaxtie.training.task import Params
from jaxtie.tying.head import get_tables, replace_rows


def add_parameters(own: Interventions, params: Params, untied_rows: Sequence[int]) -> Params:
    """Return fresh parameters with those that the interventions need, in the embedding."""
    if own == Interventions():
        return params
    embedding = params["embedding"]
    input_VxD, output_VxD = get_tables(embedding, untied_rows)
    rows = np.array(ROW_SETS[own.held_rows])
    added = {}
    if gained := own.gain or own.shared_gain:
        added["log_gain"] = jnp.zeros((len(ROW_SETS[gained]), 1), input_VxD.dtype)
    if own.frozen_direction or own.direction_rate != 1 or own.input_decay is not None:
        added["own_input"] = input_VxD[rows]
    if own.output_decay is not None:
        added["own_output"] = output_VxD[rows]
    return {**params, "embedding": {**embedding, **added}}


def effective(own: Interventions, params: Params, untied_rows: Sequence[int]) -> Params:
    """Return the parameters of the untied model whose tables are those of each role."""
    if own == Interventions():
        return params
    embedding, body = params["embedding"], params["body"]
    rest = {name: embedding[name] for name in ("bias", "projection") if name in embedding}
    input_VxD, output_VxD = get_tables(embedding, untied_rows)
    rows = ROW_SETS[own.held_rows]
    if "own_input" in embedding:
        own_KxD = embedding["own_input"]
        own_KxD = jax.lax.stop_gradient(own_KxD) if own.frozen_direction else own_KxD
        input_VxD = replace_rows(input_VxD, own_KxD, rows)
    if "own_output" in embedding:
        output_VxD = replace_rows(output_VxD, embedding["own_output"], rows)
    if own.minus:
        output_VxD = output_VxD * np.where(_among(own.minus), -1, 1).astype(output_VxD.dtype)
    if gained := own.gain or own.shared_gain:
        ones_Vx1 = jnp.ones((VOCABULARY, 1), output_VxD.dtype)
        factor_Vx1 = replace_rows(ones_Vx1, jnp.exp(embedding["log_gain"]), ROW_SETS[gained])
        output_VxD = output_VxD * factor_Vx1
        input_VxD = input_VxD * factor_Vx1 if own.shared_gain else input_VxD
    if own.input_norm is not None:
        norm_Vx1 = jnp.sqrt(jnp.sum(input_VxD**2, axis=-1, keepdims=True))
        factor_Vx1 = jnp.where(_among(own.held_rows), own.input_norm / norm_Vx1, 1)
        held_VxD = input_VxD * factor_Vx1
        if own.norm_path != "both":
            on_residual = own.norm_path == "residual"
            body = {**body, "residual": held_VxD if on_residual else input_VxD}
        input_VxD = input_VxD if own.norm_path == "residual" else held_VxD
    tables = {"input": input_VxD, "output": output_VxD}
    return {**params, "embedding": {**rest, **tables}, "body": body}


def _among(name: str) -> np.ndarray:
    """Return whether each row is in a set, Vx1."""
    return np.isin(np.arange(VOCABULARY), ROW_SETS[name])[:, None]
