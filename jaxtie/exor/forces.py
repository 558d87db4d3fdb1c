"""Distances at the end beside what weight decay alone leaves of them: which force is seen. Imports
no jax.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import xarray as xr

from jaxtie.exor.claims import measured
from jaxtie.exor.pairs import live_pairs
from jaxtie.results.gradient_by_role import tied_arms
from jaxtie.results.statistics import median_interval
from jaxtie.results.tables import (
    Table,
    arms_of,
    at_end,
    between,
    last_step,
    median,
    settings,
    swept,
    tables_of,
)

PUSHED: tuple[str, ...] = ("output push", "input push", "decay ratio")


def forces_table(results: xr.Dataset) -> Table:
    """Every distance at the end beside what decay alone leaves of it; and what a swap does to
    predictions.
    """
    rows, names = [], swept(results)
    biased = any(arm.head.bias for arm in arms_of(results))
    for at, here in settings(results, names):
        for arm in arms_of(results):
            for label, table in tables_of(arm).items():
                for pair in live_pairs(results):
                    first, second = pair.split("-")
                    distance = at_end(here[f"{table}_distance"], here).sel(
                        arm=arm.name, symbol=first, symbol2=second
                    )
                    ratios = [
                        factor(measured(here, quantity, pair, table).sel(arm=arm.name).values)
                        for quantity in ("decay ratio", "reference ratio")
                    ]
                    swap = _small(
                        at_end(here["swap_divergence"], here).sel(arm=arm.name, pair=pair).values
                    )
                    bias = at_end(here["bias_odds"], here).sel(arm=arm.name, pair=pair)
                    values = [f"{value:g}" for value in at.values()]
                    told = [median(bias.values) if arm.head.bias else ""] if biased else []
                    rows.append(
                        (*values, label, pair, median(distance.values), *ratios, swap, *told)
                    )
    header = (
        *names,
        "table",
        "pair",
        "distance",
        "ratio to decay alone",
        "ratio to X–A",
        "swap divergence",
    )
    header = (*header, "bias, nat") if biased else header
    decayed = results["decay_factor"].sel(step=last_step(results))
    left = "" if names else f"; decay alone leaves {float(decayed):.3g} of every distance"
    seeds, step = results.sizes["seed"], last_step(results)
    title = (
        f"{results.attrs['experiment']}: step {step:,}, median over {seeds:,} seeds [95 %, ranks]"
    )
    return Table(title + left, header, rows)


def since_table(results: xr.Dataset, since: Sequence[str]) -> Table:
    """Ratios to decay alone counted from later steps, so that no force counts that acted before
    them.
    """
    rows = []
    for arm in arms_of(results):
        for (label, table), pair in itertools.product(tables_of(arm).items(), live_pairs(results)):
            first, second = pair.split("-")
            distance = (
                results[f"{table}_distance"]
                .sel(arm=arm.name, symbol=first, symbol2=second)
                .astype(np.float64)
            )
            ratio = xr.apply_ufunc(np.log, distance / results["decay_factor"])
            rows.append(
                (
                    label,
                    pair,
                    *(
                        factor((at_end(ratio, results) - ratio.sel(step=int(at))).values)
                        for at in since
                    ),
                )
            )
    header = ("table", "pair", *(f"counted from step {int(at):,}" for at in since))
    title = f"{results.attrs['experiment']}: step {last_step(results):,}, ratio to decay alone"
    return Table(
        title, header, rows, f"Median over {results.sizes['seed']:,} seeds [95 %, by ranks]."
    )


def pushes_table(results: xr.Dataset) -> Table:
    """What either role adds to the logarithm of a pair's distance over the training, and what
    became of the distance.
    """
    rows = []
    for arm in tied_arms(results):
        for pair in live_pairs(results):
            here = {
                quantity: measured(results, quantity, pair, "input").sel(arm=arm)
                for quantity in PUSHED
            }
            both = here["output push"] + here["input push"]
            cells = [median(here[quantity].values) for quantity in PUSHED[:2]]
            rows.append(
                (arm, pair, *cells, median(both.values), median(here["decay ratio"].values))
            )
    header = ("arm", "pair", *PUSHED[:2], "both", "ln of the ratio to decay alone")
    title = (
        f"{results.attrs['experiment']}: what each role adds to ln of a pair's distance over"
        f" {last_step(results):,} steps"
    )
    note = (
        f"Median over {results.sizes['seed']:,} seeds [95 %, by ranks]. Both pushes together are"
        " the last column but for terms of second order: what noise adds to a distance whatever"
        " its direction."
    )
    return Table(title, header, rows, note)


def _small(values: np.ndarray) -> str:
    """Median of what may be next to nothing, with its rank interval."""
    return between(*median_interval(values), shown="{:.1e}".format)


def factor(logarithms: np.ndarray) -> str:
    """Median of ratios with its rank interval, from their logarithms."""
    return between(*np.exp(median_interval(logarithms)))
