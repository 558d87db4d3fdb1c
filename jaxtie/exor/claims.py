"""Quantities of EXor that claims are about. Imports no jax."""

from typing import Any, ClassVar, Literal

import numpy as np
import xarray as xr

from jaxtie.exor.analysis import distance, fluctuations, is_stuck
from jaxtie.results import claims
from jaxtie.results.claims import PAPER, Quantity
from jaxtie.results.tables import at_end, last_step

REFERENCE = "X-A"  # symbols that nothing makes equivalent
FORCE = 1.25  # held apart: above this multiple of the decay factor; drawn together: below 1 / it


def _distance(results: xr.Dataset, pair: str, table: str, step: int) -> xr.DataArray:
    return distance(results, table, pair).sel(step=step, drop=True).astype(np.float64)


def _decay_ratio(results: xr.Dataset, pair: str, table: str) -> xr.DataArray:
    step = last_step(results)
    decayed = results["decay_factor"].sel(step=step, drop=True)
    start = _distance(results, pair, table, 0)
    return xr.apply_ufunc(np.log, _distance(results, pair, table, step) / (start * decayed))


def _reference_ratio(results: xr.Dataset, pair: str, table: str) -> xr.DataArray:
    step = last_step(results)
    reference = _distance(results, REFERENCE, table, step)
    return xr.apply_ufunc(np.log, _distance(results, pair, table, step) / reference)


def _fluctuation(results: xr.Dataset, pair: str, table: str) -> xr.DataArray:
    # committed results have it, since it needs all records
    known = results["fluctuation"] if "fluctuation" in results else fluctuations(results)
    return xr.apply_ufunc(np.log, known.sel(pair=pair, table=table, drop=True))


def _swap_divergence(results: xr.Dataset, pair: str, _: str) -> xr.DataArray:
    return at_end(results["swap_divergence"], results).sel(pair=pair, drop=True)


class ExorClaim(claims.Claim):
    """A claim about a run on EXor.

    Its quantities are those of all tasks, and at the last step: `loss`, exact on the training
    split, nats; `stuck share`, of the seeds that know nothing of the parity, see
    `jaxtie.exor.analysis.is_stuck`; `decay ratio`, the distance of a pair in a table divided by
    what weight decay alone leaves of its start (1: decay only, below: drawn together, above: held
    apart); `reference ratio`, the distance of a pair divided by that of X and A; `swap divergence`,
    total variation. Over the last quarter of training: `fluctuation` of a distance, see
    `jaxtie.exor.analysis.fluctuations`. `experiments/norm_conflict_half.py` adds one of its own.
    """

    quantities: ClassVar = {
        **claims.Claim.quantities,
        "loss": Quantity(lambda results, *_: at_end(results["train_loss"], results)),
        "stuck share": Quantity(lambda results, *_: is_stuck(results)),
        "decay ratio": Quantity(_decay_ratio, is_ratio=True, of_pair=True),
        "reference ratio": Quantity(_reference_ratio, is_ratio=True, of_pair=True),
        "fluctuation": Quantity(_fluctuation, is_ratio=True, of_pair=True),
        "swap divergence": Quantity(_swap_divergence, of_pair=True),
    }


def measured(results: xr.Dataset, quantity: str, pair: str, table: str) -> xr.DataArray:
    """Compute a quantity: (arm, swept names, seed); of ratios the logarithm."""
    return ExorClaim.quantities[quantity].measure(results, pair, table)


def drawn_together(
    arm: str, pair: str, table: Literal["input", "output"] = "input", source: str = ""
) -> ExorClaim:
    """Claim that a pair ends below 1 / FORCE of what decay alone leaves of its distance."""
    return _of_force("drawn together", arm, pair, table, source, high=1 / FORCE)


def held_apart(
    arm: str, pair: str, table: Literal["input", "output"] = "input", source: str = ""
) -> ExorClaim:
    """Claim that a pair ends above FORCE times what decay alone leaves of its distance."""
    return _of_force("held apart", arm, pair, table, source, low=FORCE)


def _of_force(seen: str, arm: str, pair: str, table: Any, source: str, **bound: Any) -> ExorClaim:
    where = "" if arm.partition("+")[0] == "tied" else f" in the {table} table"
    statement = f"{arm.capitalize()}, {pair.replace('-', ' and ')} are {seen}{where}."
    return ExorClaim(statement, "decay ratio", arm, pair=pair, table=table, source=source, **bound)


PAPER_CLAIMS = (  # of a process with unequally likely zeros and equally likely ones
    drawn_together("untied", "X-Y", source=PAPER),
    drawn_together("untied", "A-B", source=PAPER),
    held_apart("untied", "X-Y", "output", PAPER),
    drawn_together("untied", "A-B", "output", PAPER),
    held_apart("tied", "X-Y", source=PAPER),
    drawn_together("tied", "A-B", source=PAPER),
)
