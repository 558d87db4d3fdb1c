"""Committed results: what of a run is committed, how it is written, how further seeds join it."""

import itertools
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from roles import tied_arms
from similarity import SIMILARITIES, compare_with_untied

from jaxtie.config import Arm, Head
from jaxtie.exor import analysis as exor
from jaxtie.exor.analysis import LOSS_DECIMALS
from jaxtie.results.analysis import scalars
from jaxtie.results.folder import RunFolder, atomic_write
from jaxtie.results.gradient_by_role import EARLY_PART, PUSH_VARIABLES, ROLE_VARIABLES
from jaxtie.results.tables import arms_of, last_step, swept
from jaxtie.text.analysis import BASELINES, MASK_NORMS
from jaxtie.text.pairs import PREDICTED

KEPT_BITS = 16  # of the mantissa of members' numbers: five digits; documents show no more
# Of variables that are committed of all evaluations; they are at least 0.
DECIMALS = {"train_loss": LOSS_DECIMALS, "mask_norm": 3}
COURSE = (0, EARLY_PART, 1 / 3, 2 / 3, 1)  # parts of the training
WORDING = ("claim", "command")  # attributes that may differ within an experiment


def mask_rows(results: xr.Dataset) -> xr.Dataset:
    """Return norm and turn of the mask's rows at all evaluations: (table, arm, seed, eval_step).

    The turn is the angle to the row at the evaluation before, in degrees. The norm of the output
    row is one factor of the mask's logit; the other, `mask_projection`, is the expected projection
    of the hidden state on the row's direction (with it, if there is one, the bias).
    """
    rows = exor.rows_at(results, results["table_step"].values.tolist()).sel(
        symbol="mask", drop=True
    )
    norm = exor.norm_of(rows)
    unit = rows / norm
    chord = exor.norm_of(unit - unit.shift(eval_step=1))
    turn = np.degrees(2 * np.arcsin(np.minimum(chord / 2, 1)))
    projection = results["mask_logit"] / norm.sel(table="output", drop=True)
    return xr.Dataset({"mask_norm": norm, "mask_turn": turn, "mask_projection": projection})


def course_steps(results: xr.Dataset) -> list[int]:
    """Return the recorded steps nearest to these parts of the training, up to `last_step`."""
    steps, last = results["step"].values, last_step(results)
    return sorted({int(steps[np.abs(steps - last * part).argmin()]) for part in COURSE})


def condense(results: xr.Dataset, run: Path) -> xr.Dataset:
    """Return the part of a run's results that is committed; of other tasks all scalars."""
    task = results.attrs["task"]
    if task == "exor":
        return condense_exor(results)
    if task == "text":
        return condense_text(results, run)
    return results[[name for name, _ in scalars(results)]]


def write_committed(condensed: xr.Dataset, path: Path) -> None:
    """Write results as NetCDF in few bits, packed; an existing file stays until all is written.

    The command is omitted, because it names folders.
    """
    condensed = condensed.assign_attrs()  # a copy
    condensed.attrs.pop("command", None)
    # Seeds last: values that are missing of all seeds lie together, and a file takes a fifth less.
    rounded = {
        name: _rounded(condensed[name]).transpose(..., "seed")
        for name in _of_members(condensed)
        if name not in DECIMALS
    }
    condensed = condensed.assign(rounded)
    packed: dict[Hashable, dict[str, Any]] = {
        # One chunk: the index of many small ones took a fifth of a file.
        name: {"zlib": True, "complevel": 9, "shuffle": True, "chunksizes": values.shape or None}
        for name, values in condensed.data_vars.items()
    }
    for name in DECIMALS.keys() & packed.keys():
        scale = 10.0 ** -DECIMALS[name]
        packed[name] |= {"dtype": "int32", "scale_factor": scale, "_FillValue": -1}
    atomic_write(path, bytes(condensed.to_netcdf(engine="h5netcdf", encoding=packed)))


def join_seeds(kept: xr.Dataset, further: xr.Dataset) -> xr.Dataset:
    """Join committed results with those of other seeds, as if they had been run together.

    Variables, recorded steps and evaluations that one of them lacks are omitted, because less is
    committed of many seeds.

    Raises:
      ValueError: where they differ in more than seeds, wording and the versions of libraries.
    """
    one, other = (
        {
            name: value
            for name, value in each.attrs.items()
            if name not in WORDING and not name.startswith("version_")
        }
        for each in (kept, further)
    )
    if differing := sorted(name for name in one | other if one.get(name) != other.get(name)):
        raise ValueError(f"they differ in {', '.join(differing)}")
    together = xr.concat(
        _in_common(further, kept),  # attributes are those of the first
        "seed",
        data_vars="minimal",
        coords="minimal",
        compat="equals",
        join="exact",
        combine_attrs="override",
    )
    return together.sortby("seed")


def _in_common(one: xr.Dataset, other: xr.Dataset) -> list[xr.Dataset]:
    steps = np.intersect1d(one["step"], other["step"])
    shared = [name for name in one.data_vars if name in other.data_vars]
    one, other = (each[shared].sel(step=steps) for each in (one, other))
    with xr.set_options(arithmetic_join="exact"):
        there = {
            name: one[name].notnull().any("seed") & other[name].notnull().any("seed")
            for name in _of_members(one)
        }
        return [
            each.assign({name: each[name].where(there[name]) for name in there})
            for each in (one, other)
        ]


def _of_members(results: xr.Dataset) -> list[Hashable]:
    """Return the names of the variables that hold a number of each seed."""
    return [
        name
        for name, values in results.data_vars.items()
        if "seed" in values.dims and values.dtype.kind == "f"
    ]


def _rounded(values: xr.DataArray) -> xr.DataArray:
    """Round to the nearest single-precision number with few bits; the zeros compress well."""
    bits = np.ascontiguousarray(values.values, np.float32).view(np.uint32)
    spare = np.uint32(np.finfo(np.float32).nmant - KEPT_BITS)
    nearest = (bits + (np.uint32(1) << (spare - np.uint32(1)))) >> spare << spare
    return values.copy(
        data=np.where(np.isfinite(values), nearest.view(np.float32), values).astype(np.float32)
    )


def between_steps(results: xr.Dataset, ends: list[int]) -> xr.Dataset:
    """Aggregate the variables over the updates between a few steps: means, and sums of pushes.

    The steps ascend from 0, which has no update before it.
    """
    own = results[[name for name in (*ROLE_VARIABLES, *PUSH_VARIABLES) if name in results]]
    pushes = [name for name in PUSH_VARIABLES if name in own]
    parts = [own.sel(step=0, drop=True)]
    for low, high in itertools.pairwise(ends):
        # records are evenly spaced, so each has the same weight
        here = own.sel(step=slice(low + 1, high))
        sums = {name: here[name].sum("step", skipna=False) for name in pushes}
        parts.append(here.mean("step", skipna=False).assign(sums))
    return xr.concat(parts, xr.DataArray(ends, dims="step", name="step"))


# ----- EXor.


def label_geometry(results: xr.Dataset, steps: Sequence[int]) -> xr.Dataset:
    """Return distance and cosine of the rows of the labels E and D: (table, arm, seed, eval_step).

    An arm that is tied throughout has them at "input" only.
    """
    rows = exor.rows_at(results, steps)
    even, odd = (rows.sel(symbol=label, drop=True) for label in ("E", "D"))
    own = ~(results["arm"].isin(tied_arms(results)) & (rows["table"] == "output"))
    found = {"label_distance": exor.norm_of(even - odd), "label_cosine": exor.cosine_of(even, odd)}
    return xr.Dataset(found).where(own)


KEPT_SYMBOLS = ["X", "Y", "A", "B"]
DISTANCES = ("input_distance", "output_distance")
RECORDED = ("loss", "accuracy", *DISTANCES)
EVALUATED = (
    "valid_loss train_accuracy valid_accuracy log_odds log_odds_deviation swap_divergence bias_odds"
).split()
# Of more seeds, only the first and the last step are committed, to keep files below a few MB.
COURSE_OF_SEEDS = 128


def condense_exor(results: xr.Dataset) -> xr.Dataset:
    """Return the committed form of a run.

    It has the training loss of every seed at all evaluations, with `mask_logit` also the norm of
    the mask's rows and its probability; everything else at a few steps and for four symbols.
    Fluctuations, which need all records, are added. The dimensions stay the same, so every function
    of results accepts it. Evaluations that are left out are NaN, and so is the second copy of each
    distance.
    """
    last, steps = last_step(results), course_steps(results)
    if results.sizes["seed"] > COURSE_OF_SEEDS:
        steps = [steps[0], last]
    upper = np.triu(np.ones((len(KEPT_SYMBOLS),) * 2, bool), 1)
    once = xr.DataArray(upper, dims=("symbol", "symbol2"))
    constant = [name for name in results.data_vars if not {"seed", "arm"} & {*results[name].dims}]
    kept = results[[*constant, "diverged_at", *RECORDED]].sel(
        step=steps, symbol=KEPT_SYMBOLS, symbol2=KEPT_SYMBOLS
    )
    kept = kept.assign(
        {name: kept[name].where(once).transpose(*kept[name].dims) for name in DISTANCES}
    )
    evaluated = results[EVALUATED].where(results["eval_step"].isin(steps))
    parts = [part.sel(eval_step=slice(0, last)) for part in (evaluated, results["train_loss"])]
    if not swept(results):
        parts.append(exor.fluctuations(results).to_dataset())
        if {"E", "D"} <= {*results["symbol"].values}:
            parts.append(label_geometry(results, steps))
        parts.append(exor.pair_cosines(results, steps).to_dataset(name="pair_cosine"))
    if "mask_logit" in results:
        of_mask = (
            results[[*exor.MASK_LOGITS]].merge(mask_rows(results)).sel(eval_step=slice(0, last))
        )
        few = ["mask_logit", "mask_turn", "mask_projection"]
        if results.sizes["seed"] > COURSE_OF_SEEDS:
            of_mask = of_mask.assign(of_mask[few].where(of_mask["eval_step"].isin(steps)))
        parts.append(of_mask)
    if "step_square" in results:
        parts += [between_steps(results, steps), *_similarities(results, steps)]
    return xr.merge([kept, *parts], join="outer").assign_attrs(
        results.attrs, width=results.sizes["dim"]
    )


def plain_untied_arm(results: xr.Dataset) -> Arm | None:
    """Return the arm that is untied throughout and has no head options, if any."""
    plain = (arm for arm in arms_of(results) if arm.head == Head() and arm.untie_at is None)
    return next((arm for arm in plain if not arm.tied), None)


def _similarities(results: xr.Dataset, steps: Sequence[int]) -> list[xr.Dataset]:
    """Compare tied embeddings with those of the plain untied arm, if there is one."""
    tied, untied = tied_arms(results), plain_untied_arm(results)
    if untied is None or not tied:
        return []
    renamed = results[["input_table", "output_table"]].rename(
        symbol="row", input_table="input", output_table="output"
    )
    measures = [name for name in SIMILARITIES if name != "neighbours"]  # there are only seven rows
    found = []
    for step in np.intersect1d(steps, results["table_step"]):
        here = renamed.sel(table_step=step, drop=True)
        compared = compare_with_untied(
            here["input"].sel(arm=tied), here.sel(arm=untied.name), measures
        )
        found.append(compared.expand_dims(eval_step=[step]))
    return [xr.concat(found, "eval_step")]


# ----- Text.

MOST_ROWS_COMPARED = 4_096  # embedding rows whose distances are compared; larger tables are sampled


def condense_text(results: xr.Dataset, run: Path) -> xr.Dataset:
    """Return the committed form of a run.

    It has losses and gradients by role at a few steps, evaluations, pairs at the start and the end,
    and similarities of the tables at the end.
    """
    here, last = course_steps(results), last_step(results)
    measured = ("valid_loss", "valid_accuracy", "perplexity", "bits_per_byte", *MASK_NORMS)
    evaluated = results[[name for name in measured if name in results]]
    parts = [
        results[["loss", "accuracy"]].sel(step=here),
        evaluated.sel(eval_step=slice(0, last)),
        results[["diverged_at", "parameters", *(name for name in BASELINES if name in results)]],
    ]
    if PREDICTED[0] in results:
        parts.append(_pairs_at_ends(results, last))
    if "step_square" in results:
        parts += [between_steps(results, here), *_similarities_at_end(results, run, last)]
    return xr.merge(parts, join="outer").assign_attrs(results.attrs)


def _pairs_at_ends(results: xr.Dataset, last: int) -> xr.Dataset:
    """Select distances at the start and the end, predictions at the end, and constants."""
    names = ["duplicate_probability", "decay_factor", *BASELINES]
    distances = results[["input_distance", "output_distance"]].sel(eval_step=sorted({0, last}))
    distances = distances.copy(deep=True)
    predicted = results[[*PREDICTED]].sel(eval_step=[last])
    for arm in tied_arms(results):  # their output distances are their input distances
        distances["output_distance"].loc[{"arm": arm}] = np.nan
    known = results[names].sel(step=course_steps(results))
    return xr.merge([known, distances, predicted], join="outer")


def _similarities_at_end(results: xr.Dataset, run: Path, last: int) -> list[xr.Dataset]:
    """Compare each seed's tied table with its untied ones, if a run has both."""
    tied, untied = tied_arms(results), plain_untied_arm(results)
    if untied is None or not tied:
        return []
    tables = trained_tables(results, run)
    compared = compare_with_untied(
        xr.concat([tables[arm][0] for arm in tied], "arm").assign_coords(arm=tied),
        xr.Dataset(dict(zip(("input", "output"), tables[untied.name], strict=True))),
        list(SIMILARITIES),
    )
    return [compared.expand_dims(eval_step=[last])]


def trained_tables(results: xr.Dataset, run: Path) -> dict[str, tuple[xr.DataArray, xr.DataArray]]:
    """Read input and output tables of each arm, (seed, row, dim), from the last checkpoint.

    Rows of special tokens are left out, as no text has any but [SEP] and [UNK].
    """
    from jaxtie.training.checkpoints import opened

    tokens = results["token"].values.astype(str)
    special = [t.startswith("[") and t.endswith("]") and len(t) > 2 for t in tokens]
    rows = np.flatnonzero(~np.array(special))
    if len(rows) > MOST_ROWS_COMPARED:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_ROWS_COMPARED).astype(int)]
    with opened(RunFolder(run).checkpoints, to_read=True) as checkpoints:
        states = checkpoints.load(print)

    def read(arm: Arm, table: str) -> xr.DataArray:
        members, end = states[arm.name], f".params['embedding']['{table}']"
        (leaf,) = (leaf for name, leaf in members.states.items() if name.endswith(end))
        labels = {"seed": members.numbers, "row": rows}
        found = xr.DataArray(leaf[:, rows], labels, ("seed", "row", "dim"))
        return found.sel(seed=results["seed"].values)

    found = {}
    for arm in arms_of(results):
        first = read(arm, "input")
        found[arm.name] = first, first if arm.untied_from is None else read(arm, "output")
    return found
