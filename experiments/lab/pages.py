"""Write a page per committed experiment, `experiments/results/NAME.md`."""

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import tying_gap
import xarray as xr
from copying import copying_table
from exor_tables import correlation_table, equivalence_table, mask_table
from models import Runs, bodies_table, count_stuck, gap_table, models_table, process_cells
from never_targets import same_seeds_table, stuck_table, targets_only_gap_table
from other_code import published_table, pytorch_table
from plateaus import plateau_exit_table
from roles import contribution_table, shares_table
from similarity import similarity_table
from tuned import rates_table, tuned_gap_table

from jaxtie.exor import tables as exor
from jaxtie.results import analysis
from jaxtie.results.claims import claims_table, estimate_of, judge
from jaxtie.results.conclusion import model_in_words
from jaxtie.results.tables import Table, format_mean, last_step, swept
from jaxtie.run.experiment_files import PACKAGE, load_experiment_and_claims
from jaxtie.text.tables import validation_table, word_pairs_table
from jaxtie.training.block_engine import state_shapes
from jaxtie.tying.tie import count_parameters

PROCESSES = ("output-bias", "output-bias-ndh", "output-bias-ydh", "output-bias-control")
BODIES = ("mixer-small", "lstm-small", "transformer-medium", "mixer-medium", "lstm-medium")
MODELS = ("width-2", "width-3", "transformer-small", "output-bias", "width-6", "width-8", *BODIES)
NEVER_TARGETS = tuple(
    f"never-targets{name}"
    for name in ("", "-half", "-ndh", "-ydh", "-control", "-rows", "-half-rows", "-eps")
)
PRICES = "price-of-tying-grid-losses.csv"
COMPARISONS = PACKAGE / "advise" / "published-comparisons.csv"
RATIO = "parameters, untied ÷ tied"
EQUAL = {
    "tied": "tied of equal width",
    "wider tied": "tied of equal parameters",
    "wider tied at equal operations": "tied of equal parameters and operations",
}
# Tables of several runs, on the page of the first one.
OF_SEVERAL: dict[str, tuple[Callable[[Runs], Table], ...]] = {
    "output-bias": (partial(gap_table, names=PROCESSES),),
    "mixer-small": (partial(models_table, names=MODELS), partial(bodies_table, names=BODIES)),
    "width-2": (partial(models_table, names=MODELS),),
    "never-targets": (
        targets_only_gap_table,
        same_seeds_table,
        partial(stuck_table, names=NEVER_TARGETS),
    ),
}


def result_pages(experiments: Path, runs: Runs) -> dict[str, str]:
    """Return the pages of all committed experiments by file name."""
    data = experiments / "data"
    declared = {}
    for path in sorted(experiments.glob("*.py")):
        experiment, claims = load_experiment_and_claims(path)
        declared[experiment.name] = path, experiment.claim, claims
    pages = {}
    for name in (*runs, *OF_LOSSES):
        if name in declared:
            path, claim, claims = declared[name]
            source = f"Declared in [{path.name}](../{path.name}), written by"
        elif name in runs and "valid_loss" in runs[name]:
            claim, claims, source = runs[name].attrs["claim"], (), "Written by"
        else:
            continue
        tables = [claims_table("Claims", runs, {name: claims})] if claims else []
        lines: Sequence[str] = ()
        if name in runs:
            conclusion = analysis.conclude(runs[name])
            lines = conclusion.lines()
            tables += [conclusion.table, *_tables_of(runs[name], data)]
            tables += [make(runs) for make in OF_SEVERAL.get(name, ())]
        else:
            tables += OF_LOSSES[name](data)
            described = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            parts = (" ".join(part.split()) for part in described.split("\n\n"))
            lines = [part for part in parts if part.startswith("Found")]
        head = [
            f"# {name}",
            f"Claim: {claim}",
            *lines,
            f"{source} `python experiments/lab/commit.py`.",
        ]
        if (figure := experiments / f"{name.replace('-', '_')}.png").exists():
            head.append(f"![{name}](../{figure.name})")
        text = "\n\n".join(head) + "\n\n" + "\n".join(table.markdown() for table in tables)
        pages[f"{name}.md"] = text.rstrip("\n") + "\n"
    return pages


def _tables_of(results: xr.Dataset, data: Path) -> Iterator[Table]:
    """Yield the tables that committed results give."""
    name = results.attrs["experiment"]
    if results.attrs["task"] == "exor":
        if swept(results):
            yield from analysis.tables(results)
            yield correlation_table(results)
        else:
            yield exor.losses_table(results)
            yield exor.distances_table(results)
            yield plateau_exit_table(results)
            if "mask_logit" in results:
                yield mask_table(results)
    elif not swept(results):
        yield from _text_tables(results)
    if "step_square" in results:
        yield shares_table(results)
        if results.attrs["task"] == "exor":
            yield contribution_table(results)
    if "similarity" in results:
        yield similarity_table(results)
    if name == "tying-at-scale-one-rate":
        members = pd.read_csv(data / "copying.csv")
        yield copying_table(members[members["experiment"] == name], *results["arm"].values)
    if name == "transformer-small":
        yield equivalence_table(results)
        yield published_table(results, pd.read_csv(data / "published.csv"))
        yield pytorch_table(results, pd.read_csv(data / "pytorch.csv"))


def _text_tables(results: xr.Dataset) -> Iterator[Table]:
    yield validation_table(results)
    if {"tied+targets-only", "untied+targets-only"} <= {*results["arm"].values}:
        yield targets_only_table(results)
    if "swap_divergence" in results:
        yield word_pairs_table(results)


def targets_only_table(results: xr.Dataset) -> Table:
    """Show what tying costs, with all tokens and with targets only in the softmax.

    The evaluations are those of the first 10 % of the steps and the last one.
    """
    last, rows = last_step(results), []
    for step in [each for each in results["eval_step"].values if each <= last / 10] + [last]:
        loss = results["valid_loss"].sel(eval_step=step).astype(float)
        published, targets_only = (
            (loss.sel(arm=f"tied{form}") - loss.sel(arm=f"untied{form}")).values
            for form in ("", "+targets-only")
        )
        gaps = published, targets_only, targets_only - published
        rows.append((f"{step:,}", *map(format_mean, gaps)))
    return Table(
        "Tying gap over the first 10 % of the steps and at the end",
        ("step", "published", "targets only", "targets only − published"),
        rows,
        "tied − untied, nats of validation loss, each seed compared with itself: mean ± 95 %.",
    )


def gap_table_of(losses: pd.DataFrame, places: Sequence[str]) -> Table:
    """Return the mean loss of every arm, and its paired difference to untied, at every place.

    Args:
      losses: a row per place, arm and seed, with a column "loss", nats.
      places: columns that name a place.
    """
    wide = losses.pivot(index=[*places, "seed"], columns="arm", values="loss")
    others = [arm for arm in losses["arm"].unique() if arm != "untied"]
    rows = [
        (
            *(map(str, place if isinstance(place, tuple) else (place,))),
            format_mean(own["untied"].to_numpy()),
            *(format_mean((own[arm] - own["untied"]).to_numpy()) for arm in others),
        )
        for place, own in wide.groupby(level=places if len(places) > 1 else places[0])
    ]
    header = (*places, "untied", *(f"{arm} − untied" for arm in others))
    return Table(
        "Validation loss, nat", header, rows, "Mean over seeds ± 95 % (Student's t), paired."
    )


def equal_sizes_table(losses: pd.DataFrame) -> Table:
    """Return the gap of `experiments/price_of_tying.py` at equal width, and otherwise."""
    places = ["vocabulary", "width"]
    sizes = losses.pivot_table("parameters", places, "arm")
    ratio = (sizes["untied"] / sizes["tied"]).map("{:.2f}".format).rename(RATIO)
    own = losses[losses["arm"].isin(["untied", *EQUAL])].replace({"arm": EQUAL})
    table = gap_table_of(own.join(ratio, on=places), [*places, RATIO])
    note = (
        f"{losses['seed'].nunique()} seeds, {losses['steps'].max():,} steps, each arm at its own"
        f" learning rate. {table.note} Each cell has its own interval; none is corrected for the"
        " number of cells. Equal width: as many tokens and operations, fewer parameters. Equal"
        " parameters: a wider tied model, as many tokens, more operations. Equal parameters and"
        f" operations: that model at its learning rate, but for {losses['steps'].min():,} or more"
        " steps, so on fewer tokens."
    )
    return replace(table, title="Tying gap on text, validation loss, nat", note=note)


def answer_table(runs: Runs, losses: pd.DataFrame, names: Sequence[str]) -> Table:
    """Show what tying costs in runs, and in `losses` at the smallest and the largest width."""
    rows = []
    for name in names:
        results, stuck = runs[name], "–"
        _, *words = model_in_words(results.attrs["model"]).split()
        model = " ".join(words).replace(" of", ",").replace(" and", ",")
        if results.attrs["task"] == "exor":
            cells = process_cells(results, ("tied", "untied"), count_stuck)
            _, seeds, tied, untied, gap, _ = cells
            task, stuck, ratio = "EXor", f"{tied} / {untied}", _ratio(name)
        else:
            tied_S, untied_S = results["valid_loss"].isel(eval_step=-1).transpose("arm", "seed")
            gap, seeds = format_mean((tied_S - untied_S).values), f"{results.sizes['seed']}"
            sizes = results["parameters"].values
            task, ratio = "packages", f"{sizes[1] / sizes[0]:.2f}"
        rows.append((f"{task}: {model}", gap, "–", "–", stuck, ratio, seeds))
    for vocabulary, width, ratio, _, *gaps in equal_sizes_table(losses).rows:
        if int(width) in (losses["width"].min(), losses["width"].max()):
            model, seeds = f"books: vocabulary {int(vocabulary):,}", losses["seed"].nunique()
            rows.append((f"{model}, width {width}", *gaps, "–", ratio, f"{seeds}"))
    untied = losses[losses["arm"] == "untied"].groupby(["vocabulary", "width"])["loss"].mean()
    note = (
        "Mean ± half of its 95 % interval, paired by seed; above 0: tying costs. EXor: exact"
        " training loss; *stuck* seeds still guess the bit at the last step. Books: validation loss"
        f" of decoders of one layer after {losses['steps'].max():,} steps, far from trained (untied"
        f" {untied.min():.3f} to {untied.max():.3f}); fewer steps have the rate of all of them."
        " Packages: 40,000 steps, ten million tokens of source code."
    )
    header = ("task: model", "at equal width", "at equal parameters", "and operations: fewer steps")
    others = ("stuck, tied / untied", RATIO, "seeds")
    title = "Loss of tied − untied, nat"
    return Table(title, (*header, *others), rows, note)


def _ratio(name: str) -> str:
    """Return the parameters of the untied model of an experiment, divided by those of the tied."""
    path = Path(__file__).parents[1] / f"{name.replace('-', '_')}.py"
    experiment = load_experiment_and_claims(path)[0]
    tied, untied = (
        count_parameters(state_shapes(experiment.build(arm.variant, "cpu")).params)
        for arm in experiment.arms[:2]
    )
    return f"{untied / tied:.2f}"


def _price_of_tying(data: Path) -> list[Table]:
    losses = pd.read_csv(data / PRICES)
    return [equal_sizes_table(losses), gap_table_of(losses, ["vocabulary", "width"])]


def _hypothesis_known(data: Path) -> list[Table]:
    losses = pd.read_csv(data / "hypothesis-known-losses.csv")
    return [gap_table_of(losses, ["data_set"]), strength_table(losses)]


def _plateau_or_gap(data: Path) -> list[Table]:
    grid, fresh = (pd.read_csv(data / f"plateau-or-gap-{part}.csv") for part in ("grid", "fresh"))
    return [tuned_gap_table(grid, fresh), rates_table(grid)]


def _tying_gap_on_text(data: Path) -> list[Table]:
    members = pd.read_csv(data / "tying-gap-on-text.csv")
    fit = tying_gap.fit_table(members, pd.read_csv(COMPARISONS))
    makers = (tying_gap.claims_table, tying_gap.cells_table, tying_gap.arms_table)
    claims, cells, arms = (make(members) for make in makers)
    return [claims, fit, cells, arms]


# Tables of losses that are committed as CSV.
OF_LOSSES: dict[str, Callable[[Path], list[Table]]] = {
    "price-of-tying": _price_of_tying,
    "hypothesis-known": _hypothesis_known,
    "plateau-or-gap": _plateau_or_gap,
    "tying-gap-on-text": _tying_gap_on_text,
}


def strength_table(losses: pd.DataFrame) -> Table:
    """Return the registered comparison of `hypothesis_known`: does the gap grow with strength?"""
    wide = losses.pivot(index=["data_set", "seed"], columns="arm", values="loss")
    gap, rows = wide["tied+bias"] - wide["untied"], []
    for kind in ("allomorph", "antonym"):
        for width in (12, 24):
            strong, weak = (
                gap.loc[f"{kind}-{strength}-{width}"] for strength in ("strong", "weak")
            )
            found = estimate_of("", (strong - weak).to_numpy(), count=2)
            rows.append((kind, str(width), found.found, judge(found, 0.0, math.inf)))
    return Table(
        "Registered: the tying gap with a bias is larger for strong than for weak pairs",
        ("pairs", "width", "strong − weak, nat", "verdict"),
        rows,
        "The intervals of both widths hold together at 95 % (Student's t, Bonferroni).",
    )
