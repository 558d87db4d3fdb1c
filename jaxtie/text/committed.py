"""What documents keep of a run on text: a few numbers of each member, and of its tables at the end
how alike they are.

Imports no jax but for reading checkpoints.
"""

from pathlib import Path

import numpy as np
import xarray as xr

from jaxtie.config import Arm
from jaxtie.results.folder import RunFolder
from jaxtie.results.gradient_by_role import at_stretches, has_roles, tied_arms
from jaxtie.results.similarity import SIMILARITIES, compare_with_untied
from jaxtie.results.tables import arms_of, course_steps, last_step, plain_arm
from jaxtie.text.pairs import PREDICTED
from jaxtie.text.tables import BASELINES

MOST_ROWS_COMPARED = (
    4_096  # of a table; of more, so many at even spaces: all their distances are looked at
)
EVALUATED_ON_TEXT = ["valid_loss", "valid_accuracy", "perplexity"]


def condense_text(results: xr.Dataset, run: Path) -> xr.Dataset:
    """What is committed of a run: losses and roles at a few steps, evaluations, and similarities at
    the last step.
    """
    here, last = course_steps(results), last_step(results)
    evaluated = results[EVALUATED_ON_TEXT].sel(eval_step=slice(0, last))
    parts = [
        results[["loss", "accuracy"]].sel(step=here),
        evaluated,
        results[["diverged_at", "parameters"]],
    ]
    if PREDICTED[0] in results:
        parts.append(_pairs_at_ends(results, last))
    if has_roles(results):
        parts += [at_stretches(results, here), *_similarities_at_end(results, run, last)]
    return xr.merge(parts, join="outer").assign_attrs(results.attrs)


def _pairs_at_ends(results: xr.Dataset, last: int) -> xr.Dataset:
    """Distances of all pairs at the start and at the end, and what predictions said of them at the
    end; and what is known.
    """
    names = ["duplicate_probability", "decay_factor", *BASELINES]
    distances = (
        results[["input_distance", "output_distance"]]
        .sel(eval_step=sorted({0, last}))
        .copy(deep=True)
    )
    seen = results[[*PREDICTED]].sel(eval_step=[last])
    for arm in arms_of(results):
        if arm.untied_from is None:  # one table: the other one's distances are its own
            distances["output_distance"].loc[{"arm": arm.name}] = np.nan
    return xr.merge([results[names].sel(step=course_steps(results)), distances, seen], join="outer")


def _similarities_at_end(results: xr.Dataset, run: Path, last: int) -> list[xr.Dataset]:
    """Of each seed's tied tables and the untied ones, where there are both."""
    tied, untied = tied_arms(results), plain_arm(results, tied=False)
    if untied is None or not tied:
        return []
    tables = trained_tables(results, run)
    input_tables = xr.concat(
        [tables[arm.name][0] for arm in arms_of(results) if arm.name in tied], "arm"
    )
    compared = compare_with_untied(
        input_tables.assign_coords(arm=tied),
        xr.Dataset(dict(zip(("input", "output"), tables[untied.name], strict=True))),
        list(SIMILARITIES),
    )
    return [compared.expand_dims(eval_step=[last])]


def trained_tables(results: xr.Dataset, run: Path) -> dict[str, tuple[xr.DataArray, xr.DataArray]]:
    """Of each arm the input and the output table of all seeds, (seed, row, dim), by the run's last
    checkpoint.

    Without the rows of special tokens, which no text has but [SEP] and [UNK].
    """
    from jaxtie.training.checkpoints import opened

    token_V = results["token"].values.astype(str)
    rows = np.flatnonzero(
        [
            not (token.startswith("[") and token.endswith("]") and len(token) > 2)
            for token in token_V
        ]
    )
    if len(rows) > MOST_ROWS_COMPARED:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_ROWS_COMPARED).astype(int)]
    with opened(RunFolder(run).checkpoints, to_read=True) as kept:
        standing = kept.load(print)

    def table_of(arm: Arm, table: str) -> xr.DataArray:
        members = standing[arm.name]
        (leaf,) = (
            leaf
            for name, leaf in members.states.items()
            if name.endswith(f".params['embedding']['{table}']")
        )
        return xr.DataArray(
            leaf[:, rows], {"seed": members.numbers, "row": rows}, ("seed", "row", "dim")
        )

    seeds = results["seed"].values
    found = {}
    for arm in arms_of(results):
        first = table_of(arm, "input").sel(seed=seeds)
        tied = arm.untied_from is None
        found[arm.name] = first, first if tied else table_of(arm, "output").sel(seed=seeds)
    return found
