"""Quantities of text that claims are about. Imports no jax.

A term of these claims names pairs: "duplicates at 0.1", "as frequent as at 0.1" (tokens as frequent
as the words and duplicates at that probability) or "random pairs".
"""

from typing import Any, ClassVar

import numpy as np
import xarray as xr

from jaxtie.config import UserError
from jaxtie.results import claims
from jaxtie.results.claims import Quantity
from jaxtie.results.tables import at_end
from jaxtie.text.analysis import Group, at_last, groups_of, log_decay_ratio

ALL_ARMS: Any = slice(None)


def _group(results: xr.Dataset, pairs: str) -> Group:
    called = {"duplicate": "duplicates at {:g}", "matched": "as frequent as at {:g}"}
    for group in groups_of(results):
        if called.get(group.kind, "random pairs").format(group.probability) == pairs:
            return group
    whose = results.attrs.get("experiment")
    raise UserError(f"{whose}: no pairs {pairs!r}, which a claim is about")


def _validation_loss(results: xr.Dataset, *_: str) -> xr.DataArray:
    return at_end(results["valid_loss"], results).astype(np.float64)


def _decay_ratio(results: xr.Dataset, pairs: str, table: str) -> xr.DataArray:
    return log_decay_ratio(results, _group(results, pairs), ALL_ARMS, table)


def _error_of_log_odds(results: xr.Dataset, pairs: str, _: str) -> xr.DataArray:
    group = _group(results, pairs)
    return at_last(results, "log_odds", group, ALL_ARMS) - group.true_odds


def _swap_divergence(results: xr.Dataset, pairs: str, _: str) -> xr.DataArray:
    group = _group(results, pairs)
    return xr.apply_ufunc(np.log, at_last(results, "swap_divergence", group, ALL_ARMS))


class TextClaim(claims.Claim):
    """A claim about a run on text.

    Its quantities are those of all tasks, and at the last step: `validation loss`, nats; `decay
    ratio`, the distance of a group's pairs divided by what weight decay alone leaves of its start,
    geometric mean over pairs; `error of log-odds`, by how much ln p(word) / p(duplicate) exceeds
    the true one, mean over duplicates, nats; `swap divergence`, total variation of predictions when
    one token replaces the other in a context, mean over pairs.
    """

    quantities: ClassVar = {
        **claims.Claim.quantities,
        "validation loss": Quantity(_validation_loss),
        "decay ratio": Quantity(_decay_ratio, is_ratio=True),
        "error of log-odds": Quantity(_error_of_log_odds),
        "swap divergence": Quantity(_swap_divergence, is_ratio=True),
    }
