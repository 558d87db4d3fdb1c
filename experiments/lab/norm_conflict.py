"""Write the figures and tables of why_seeds_get_stuck.md from the committed data.

python experiments/lab/norm_conflict.py
"""

import itertools
import textwrap
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr
from commit import Committed, rewritten, tables_by_name
from matplotlib.figure import Figure
from models import Runs, final_loss, gap_cells
from never_targets import draw_for_document, draw_share_of_each, share_interval, stuck_share
from plateaus import exit_times

from jaxtie.exor import analysis
from jaxtie.results.plots import COLOURS, finish_axes, subplots
from jaxtie.results.tables import Table, last_step

EXPERIMENTS = Path(__file__).parents[1]
PAGE = EXPERIMENTS / "why_seeds_get_stuck.md"
HALF, CONTROLS, MAIN = "norm-conflict-half", "norm-conflict-half-controls", "norm-conflict"
LONG, NO_DECAY, MIXER = "norm-conflict-long", "norm-conflict-no-decay", "norm-conflict-mixer"
WHERE = {
    HALF: "p(X) = 0.5",
    CONTROLS: "p(X) = 0.5",
    MAIN: "main, p(X) = 0.1",
    NO_DECAY: "p(X) = 0.5, no weight decay",
    LONG: "p(X) = 0.5, longer",
    MIXER: "p(X) = 0.5, mixer",
}
COLOUR = dict(zip(("tied", "untied"), COLOURS, strict=False))
LIGHT = "#4cc9f0"  # of untied input rows


SUMMARY = {
    "tied": "tied",
    "tied, length of the mask's input row held at 0.05": "tied+input-norm=0.05",
    "tied, a learned factor for the length of its output row": "tied+gain=mask",
    "tied, an output row of its own": "tied+untie-rows=mask",
    "tied, its output row times −1": "tied+minus=mask",
    "untied": "untied",
}


def summary_table(runs: Runs) -> Table:
    """Show stuck shares, and how many stuck seeds an arm frees relative to a row of its own."""
    stuck = {name: analysis.is_stuck(runs[name]).mean("seed") for name in (HALF, MAIN)}
    rows = []
    for label, arm in SUMMARY.items():
        cells = []
        for share in stuck.values():
            tied, here, own = (
                float(share.sel(arm=each)) for each in ("tied", arm, "tied+untie-rows=mask")
            )
            cells += [f"{here:.3f}", f"{100 * (tied - here) / (tied - own):.0f} %"]
        rows.append((label, *cells))
    header = ("arm", "p(X) = 0.5: stuck", "freed", "main: stuck", "freed")
    note = (
        f"Share of {runs[HALF].sizes['seed']:,} seeds that are stuck at step"
        f" {last_step(runs[HALF]):,}. Freed: (tied − arm) / (tied − an output row of its own), in"
        " stuck seeds."
    )
    return Table("Stuck seeds", header, rows, note)


def long_row_table(runs: Runs) -> Table:
    """Show stuck shares with a long input row of the mask, and of the same arms without."""
    held = "+input-norm=3"
    arms = {
        "untied": ("untied", f"untied{held}"),
        "untied, long on the residual path only": ("", f"untied{held}+residual-only"),
        "untied, long in queries, keys and values only": ("", f"untied{held}+qkv-only"),
        "untied, direction frozen": ("", f"untied{held}+frozen-direction"),
        "tied, an output row of its own": ("tied+untie-rows=mask", f"tied+untie-rows=mask{held}"),
        "tied, targets only in the softmax": ("tied+targets-only", f"tied+targets-only{held}"),
    }

    def share(arm: str) -> str:
        if not arm:
            return ""
        results = runs[HALF if arm in runs[HALF]["arm"].values else CONTROLS]
        return f"{stuck_share(results, arm)[1][1]:.3f}"

    rows = [(label, *map(share, both)) for label, both in arms.items()]
    header = ("arm", "stuck", "with the mask's input row held at length 3")
    few, many = runs[CONTROLS]["seed"], runs[HALF].sizes["seed"]
    note = (
        f"p(X) = 0.5, share of seeds that are stuck at step {last_step(runs[HALF]):,}: of"
        f" {len(few)} in arms with a long row or with targets only, of {many:,} in the others. The"
        " claims compare the seeds that both have."
    )
    return Table("A long input row", header, rows, note)


def lasting_table(runs: Runs) -> Table:
    """Show how many of the seeds that are stuck at step 150,000 still are at the end."""
    stuck, rows = analysis.stuck_over_steps(runs[LONG]) == 1, []
    for arm in map(str, runs[LONG]["arm"].values):
        before = stuck.sel(arm=arm, eval_step=150_000).values
        still = stuck.sel(arm=arm).isel(eval_step=-1).values[before]
        low, high = share_interval(still)
        rows.append((arm, str(before.sum()), str(still.sum()), f"[{low:.2f}, {high:.2f}]"))
    header = ("arm", "stuck at step 150,000", f"of these at {last_step(runs[LONG]):,}", "share")
    note = f"p(X) = 0.5, {runs[LONG].sizes['seed']:,} seeds; exact 95 % interval."
    return Table("Slow or trapped?", header, rows, note)


def interventions_table(runs: Runs) -> Table:
    """Show stuck seeds of every arm, and its gap to untied, of all seeds and off the plateau."""
    rows = []
    for name in (name for name in WHERE if name in runs):
        results, reference = runs[name], runs[HALF if name == CONTROLS else name]
        step = f"{last_step(results):,}"
        for arm in map(str, results["arm"].values):
            seeds, (low, share, high) = stuck_share(results, arm)
            untied = "untied" + arm.removeprefix("tied") * ("targets-only" in arm)
            cells = ("–", "–")
            if untied in reference["arm"].values and not arm.startswith("untied+targets-only"):
                cells = gaps((results, arm), (reference, untied)) if arm != untied else cells
            shown = f"{share:.3f} [{low:.3f}, {high:.3f}]"
            rows.append((WHERE[name], step, arm, f"{seeds:,}", shown, *cells))
    header = ("process", "step", "arm", "seeds", "share stuck [95 %]", "− untied, nat")
    note = (
        "Share: exact interval (Clopper and Pearson). Gaps: exact training loss, arm − untied (with"
        " targets only: − untied with the same targets and gain), each seed compared with itself,"
        " mean ± 95 % (Student's t), not corrected for the number of rows. The last column has the"
        " seeds that are stuck in neither of the two: they are selected by their outcome, and"
        " differ from row to row."
    )
    return Table("All arms", (*header, "− untied where neither is stuck"), rows, note)


def gaps(*both: tuple[xr.Dataset, str]) -> tuple[str, str]:
    """Return the gap of one arm to another over the seeds of both, and off the plateau."""
    seeds = np.intersect1d(*(results["seed"] for results, _ in both))
    each = [(results.sel(seed=seeds), arm) for results, arm in both]
    losses = [final_loss(results).sel(arm=arm).values for results, arm in each]
    stuck = [analysis.is_stuck(results).sel(arm=arm).values for results, arm in each]
    return gap_cells(*losses, np.stack(stuck))


def norms_table(runs: Runs) -> Table:
    """Show the length of the mask's row by role at the end, of stuck and of free seeds."""
    rows = []
    for name in (HALF, CONTROLS, MAIN, NO_DECAY):
        if name not in runs:
            continue
        end = runs[name]["mask_norm"].sel(eval_step=last_step(runs[name]))
        stuck = analysis.is_stuck(runs[name])
        for arm in map(str, runs[name]["arm"].values):
            own, held = end.sel(arm=arm), stuck.sel(arm=arm)
            cells = [
                f"{float(own.sel(table=table).where(held == kind).median()):.2f}"
                for table in ("input", "output")
                for kind in (1, 0)
            ]
            rows.append((WHERE[name], arm, str(int(held.sum())), *cells))
    header = ("process", "arm", "stuck seeds", "input, stuck", "input, free", "output, stuck")
    note = (
        "Medians over the seeds that are stuck at the last step, and over the others. Where a row"
        " is held on one path only, the input row is that of the residual path."
    )
    return Table("Length of the mask's row at the end", (*header, "output, free"), rows, note)


def draw_norms(results: xr.Dataset) -> Figure:
    """Draw the length of the mask's row over steps: tied one row, untied a row for each role."""
    figure, (row,) = subplots(1, 2, (5.8, 4.4), sharey=True)
    stuck, steps = analysis.is_stuck(results), results["eval_step"].values
    panels = {
        "tied": ("Tied: one row in both roles", {"input": (COLOUR["tied"], "")}),
        "untied": (
            "Untied: a row for each role",
            {"input": (LIGHT, "as an input, "), "output": (COLOUR["untied"], "as an output, ")},
        ),
    }
    for axes, (arm, (title, tables)) in zip(row, panels.items()):
        for (table, (colour, role)), is_stuck in itertools.product(tables.items(), (True, False)):
            chosen = stuck.sel(arm=arm, drop=True) == is_stuck
            norm = results["mask_norm"].sel(arm=arm, table=table).where(chosen, drop=True)
            low, middle, high = norm.quantile([0.25, 0.5, 0.75], "seed").values
            label = (
                f"{role}{int(chosen.sum()):,} seeds {'stuck' if is_stuck else 'free'} at the end"
            )
            axes.plot(steps, middle, "-" if is_stuck else "--", color=colour, label=label)
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        finish_axes(axes, title, "length of the mask's row", steps)
        axes.set_yscale("log")
    figure.suptitle(
        f"p(X) = 0.5, {results.sizes['seed']:,} seeds by their outcome: median and quartiles"
    )
    return figure


def draw_shares(runs: Runs) -> Figure:
    """Draw the share of stuck seeds with p(X) = 0.1 that the claims of both roles compare."""
    figure, ((axes,),) = subplots(1, 1, (5.8, 3.6))
    rows = [(textwrap.fill(label, 30), arm, runs[MAIN]) for label, arm in SUMMARY.items()]
    draw_share_of_each(axes, rows)
    axes.set(xlabel=f"share stuck at step {last_step(runs[MAIN]):,}, 95 %", xlim=(0, 0.6))
    axes.set_title("EXor, p(X) = 0.1, Transformer of 1 layer and width 4", size=9)
    figure.suptitle("Tied seeds learn if the mask's input row is held short")
    return figure


def draw_leaving(runs: Runs) -> Figure:
    """Draw the share of seeds that have not left the first plateau for good, over steps."""
    wanted = {
        HALF: "p(X) = 0.5",
        LONG: "p(X) = 0.5, longer",
        NO_DECAY: "p(X) = 0.5, without weight decay",
    }
    figure, grid = subplots(2, 2, (5.8, 6.2), sharey=True)
    *panels, legend = grid.flat
    arms = dict.fromkeys(str(arm) for name in wanted for arm in runs[name]["arm"].values)
    colours = dict(zip(arms, COLOURS))
    for axes, (name, title) in zip(panels, wanted.items()):
        times = exit_times(runs[name], analysis.LEFT, for_good=True)
        steps = runs[name]["eval_step"].values
        for arm in times:
            left_TxS = (times[arm].step_S <= steps[:, None]) & ~times[arm].censored_S
            axes.step(steps, 1 - left_TxS.mean(axis=1), where="post", color=colours[arm], label=arm)
        title += f",\n{runs[name].sizes['seed']:,} seeds"
        finish_axes(axes, title, "share not yet left for good", steps)
        axes.get_legend().remove()
        axes.set_ylim(-0.02, 1.02)
    for arm, colour in colours.items():
        legend.plot([], [], color=colour, label=arm)
    legend.set_axis_off()
    legend.legend(loc="center")
    figure.suptitle("Tied seeds start to leave as early as untied ones, but leave more slowly")
    return figure


FIGURES = {
    "norm_conflict_norms.png": lambda runs: draw_norms(runs[HALF]),
    "stuck_seeds.png": draw_shares,
    "norm_conflict_leaving.png": draw_leaving,
}


def page(runs: Runs) -> str:
    """Return the page with its tables written again."""
    own = {
        "interventions": partial(interventions_table, runs),
        "norms": partial(norms_table, runs),
        "summary": partial(summary_table, runs),
        "lasting": partial(lasting_table, runs),
        "long-row": partial(long_row_table, runs),
    }
    return rewritten(PAGE.read_text(), tables_by_name(EXPERIMENTS) | own)


def main() -> None:
    runs = Committed(EXPERIMENTS / "data")
    for name, draw in FIGURES.items():
        print(draw_for_document(partial(draw, runs), EXPERIMENTS / name))
    PAGE.write_text(page(runs))
    print(PAGE)


if __name__ == "__main__":
    main()
