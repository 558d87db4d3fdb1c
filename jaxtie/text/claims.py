"""Quantities of text that claims are about, and the claims about duplicates. Imports no jax.

A term of these claims names pairs: "duplicates at 0.1", "as frequent as at 0.1" (tokens as frequent
as the words and duplicates at that probability) or "random pairs".
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from jaxtie.config import UserError
from jaxtie.results import claims
from jaxtie.results.claims import PAPER, Quantity
from jaxtie.results.tables import at_end
from jaxtie.text.analysis import Group, at_last, groups_of, log_decay_ratio

FARTHER = 1.25  # a distance so many times another is farther; its inverse: nearer
KNOWN = 0.2  # nat; log-odds that are off by less are known
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


def claims_of_duplicates(even: float, rare: float, midway: str) -> tuple[TextClaim, ...]:
    """Claim how words compare with duplicates of probability `even`, ½, and `rare`.

    `midway` is the name of the arm that is untied midway.
    """
    odds = round((1 - rare) / rare)
    at_even, at_rare = f"duplicates at {even:g}", f"duplicates at {rare:g}"

    def nearer(arm: str, table: str, probability: float, source: str = "") -> TextClaim:
        where = f" in the {table} table" if table else ""
        statement = (
            f"{arm.capitalize()}, a word and its duplicate at {probability:g} end nearer{where}"
            " than tokens as frequent."
        )
        place = f"{arm} {table}".strip()
        terms = {
            f"{place}, duplicates at {probability:g}": 1.0,
            f"{place}, as frequent as at {probability:g}": -1.0,
        }
        return TextClaim(statement, "decay ratio", terms, high=1 / FARTHER, source=source)

    def apart(arm: str, table: str) -> TextClaim:
        where = f" in the {table} table" if table else ""
        statement = (
            f"{arm.capitalize()}, duplicates that are {odds} times rarer stay farther{where} than"
            " those as likely."
        )
        place = f"{arm} {table}".strip()
        terms = {f"{place}, {at_rare}": 1.0, f"{place}, {at_even}": -1.0}
        return TextClaim(statement, "decay ratio", terms, low=FARTHER)

    def of_both(more: str, less: str) -> Mapping[str, float]:
        """Rarer duplicates by those as likely, in one arm by another."""
        return {
            f"{more}, {at_rare}": 1.0,
            f"{less}, {at_even}": 1.0,
            f"{more}, {at_even}": -1.0,
            f"{less}, {at_rare}": -1.0,
        }

    return (
        nearer("tied", "", even, PAPER),
        nearer("untied", "input", even, PAPER),
        nearer("untied", "output", even, PAPER),
        apart("tied", ""),
        apart("untied", "output"),
        nearer("untied", "input", rare),
        TextClaim(
            "A bias takes over what holds rarer duplicates apart, tied.",
            "decay ratio",
            of_both("tied+bias", "tied"),
            high=1 / FARTHER,
        ),
        TextClaim(
            "Untied midway, rarer duplicates end nearer in the input table than in the tied one.",
            "decay ratio",
            {f"{midway} input, {at_rare}": 1.0, f"tied, {at_rare}": -1.0},
            high=1 / FARTHER,
        ),
        *(
            TextClaim(
                f"{arm.capitalize()}, the odds of a word and its rarer duplicate are known to"
                f" within {KNOWN:g} nat.",
                "error of log-odds",
                f"{arm}, {at_rare}",
                -KNOWN,
                KNOWN,
            )
            for arm in ("tied", "untied")
        ),
        TextClaim(
            "Tied, a rarer duplicate moves predictions less than half as much as a token as"
            " frequent.",
            "swap divergence",
            {f"tied, {at_rare}": 1.0, f"tied, as frequent as at {rare:g}": -1.0},
            high=0.5,
        ),
        TextClaim(
            "Tied, rarer duplicates are farther from one meaning than untied.",
            "swap divergence",
            of_both("tied", "untied"),
            low=1.0,
        ),
        TextClaim(
            "A bias lowers the tied loss.",
            "validation loss",
            {"tied+bias": 1.0, "tied": -1.0},
            high=0,
        ),
    )
