"""Two trained untied models of text -> the price of one table, and what to do.

Shapes: V vocabulary, N batches.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxtie.hypothesis import price
from jaxtie.models.vocabulary_end import tables_of_params
from jaxtie.results.folder import Say
from jaxtie.text import one_table
from jaxtie.text.masking import Asked
from jaxtie.text.trained import Losses, Trained, batches_of

TRAINING, VALIDATION = 40, 100  # batches that moments and biases come from; that losses are measured on
BALANCING, BALANCES = 10, (0.1, 0.3, 1.0, 3.0)  # batches that tell how much the input table is to count; what is tried


class Priced(NamedTuple):
    """Prices by what was done, and the advice.

    Attributes:
      rises: ("with bias" or "without", "at once" or "after 300 steps") -> price.
      loss: of the untied models on the validation text, nats, mean of both.
      rare_mass: share of the training text that is rare tokens.
    """

    rises: dict[tuple[str, str], price.Price]
    loss: float
    rare_mass: float
    advice: price.Advice


def price_models(models: tuple[Trained, Trained], validation: list[Asked], before: tuple[Losses, Losses], say: Say) -> Priced:
    """The price of one table for two, in both models, with an output bias and without.

    Args:
      validation: batches of text that neither model saw.
      before: losses on them with two tables.
    """
    after: dict[tuple[str, str], list[np.ndarray]] = {}
    for trained in models:
        for key, found in _after(trained, validation, say).items():
            after.setdefault(key, []).append(found.loss_N)
    before_N = np.mean([each.loss_N for each in before], axis=0)
    asked_N = np.mean([each.asked_N for each in before], axis=0)
    rises = {key: price.price_of(before_N, np.mean(losses, axis=0), asked_N) for key, losses in after.items()}
    rare = float(np.mean([price.share_of_rare(_counts(trained)) for trained in models]))
    late = f"after {one_table.ADAPTING} steps"
    advice = price.advise(rises["with bias", late], rises["without", late], rare)
    return Priced(rises, float(np.average(before_N, weights=asked_N)), rare, advice)


def _counts(trained: Trained) -> np.ndarray:
    return np.bincount(trained.material.text.train.tokens_N, minlength=len(trained.material.vocabulary))


def _after(trained: Trained, validation: list[Asked], say: Say) -> dict[tuple[str, str], Losses]:
    training = batches_of(trained, trained.material.text.train, TRAINING, seed=1)
    steps = batches_of(trained, trained.material.text.train, one_table.ADAPTING, seed=3)
    say(f"one table for two in {trained.folder}")
    moments = one_table.hidden_moments(trained, training)
    found = {}
    for bias in (True, False):
        label = "with bias" if bias else "without"
        # A bias may carry what the mean of the hidden states does, or leave it to the table: so none is worse than without.
        ways = [(balance, bias, carries) for balance in BALANCES for carries in ((True, False) if bias else (False,))]
        tables = [_shared(trained, moments, *way) for way in ways]
        one = one_table.best_of(tables, trained, training[:BALANCING])
        if bias:
            one = one_table.with_fitted_bias(trained, one, training)
        found[label, "at once"] = one_table.losses_with(trained, one, validation)
        late = one_table.adapted(trained, one, steps, training)
        found[label, f"after {one_table.ADAPTING} steps"] = one_table.losses_with(trained, late, validation)
    return found


def _shared(trained: Trained, moments: one_table.Moments, balance: float, bias: bool, carries: bool) -> one_table.OneTable:
    """The best shared table; a bias, to begin with, carries what the mean of the hidden states does, or is what it was."""
    input_VxD, output_VxD = (np.asarray(each, np.float64) for each in tables_of_params(trained.params["embedding"]))
    weight_V = _counts(trained) + 1.0
    moment_DxD = moments.covariance_DxD if carries else moments.second_DxD
    shared = price.best_shared_table(input_VxD, output_VxD, weight_V, moment_DxD, balance)
    rest = {"to_input_DxD": shared.to_input_DxD, "to_output_DxD": shared.to_output_DxD}
    if bias:
        bias_V = (output_VxD - shared.table_VxD @ shared.to_output_DxD) @ moments.mean_D * carries
        rest["bias_V"] = bias_V - bias_V.mean() + np.asarray(trained.params["embedding"].get("bias", 0.0))
    rest = {name: jnp.asarray(value, jnp.float32) for name, value in rest.items()}
    return one_table.OneTable(jnp.asarray(shared.table_VxD, jnp.float32), rest)
