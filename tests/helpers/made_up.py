"""Results of EXor that are made up: random numbers, with every variable that tables and figures
read.
"""

import math

import numpy as np
import xarray as xr

from jaxtie import Process

SYMBOLS, PAIRS = ["X", "Y", "A", "B", "E"], ["X-Y", "A-B"]
PROCESSES = {
    "main": Process(),
    "half": Process(zeros=(0.5, 0.5)),
    "ndh": Process(zeros=(1.0, 0.0), ones=(0.1, 0.9)),
    "ydh": Process(zeros=(1.0, 0.0)),
    "control": Process(zeros_by_label=True),
}
BEST = {"accuracy": 0.7, "loss": 0.75}  # of the training split
STEPS, EVAL_STEPS = np.arange(0, 101, 10), np.array([0, 50, 100])


def exor_results(*arms: str, seeds: int = 4, **swept: list[float]) -> xr.Dataset:
    """A run of these arms. E is never a target; the hypothesis holds for A and B."""
    rng = np.random.default_rng(0)
    labels = {
        "arm": list(arms),
        **swept,
        "seed": np.arange(seeds),
        "step": STEPS,
        "eval_step": EVAL_STEPS,
        "table_step": EVAL_STEPS,
        "symbol": SYMBOLS,
        "symbol2": SYMBOLS,
        "pair": PAIRS,
        "split": ["train", "valid"],
        "dim": np.arange(4),
    }
    member = ("arm", *swept, "seed")

    def drawn(*dimensions: str) -> tuple[tuple[str, ...], np.ndarray]:
        return dimensions, rng.uniform(0.8, 1.2, [len(labels[name]) for name in dimensions])

    def known(dimension: str, values: list[float]) -> tuple[tuple[str, ...], np.ndarray]:
        return (*swept, dimension), np.tile(values, (*map(len, swept.values()), 1))

    divergence = 1 - np.eye(5)
    divergence[4] = divergence[:, 4] = np.nan
    variables = {name: drawn(*member, "step") for name in ("loss", "accuracy")}
    for split in ("train", "valid"):
        variables |= {
            f"{split}_{name}": drawn(*member, "eval_step") for name in ("loss", "accuracy")
        }
    for table in ("input", "output"):
        variables[f"{table}_distance"] = drawn(*member, "step", "symbol", "symbol2")
        variables[f"{table}_table"] = drawn(*member, "table_step", "symbol", "dim")
    variables |= {
        name: drawn(*member, "eval_step", "pair")
        for name in ("log_odds", "log_odds_deviation", "swap_divergence", "bias_odds")
    }
    variables |= {
        f"best_{name}": known("split", [best, best + 0.01]) for name, best in BEST.items()
    }
    variables["theory_log_odds"] = known("pair", [np.log(9), 0.0])
    variables["theory_log_odds_deviation"] = known("pair", [0.0, 0.0])
    for name in ("semantic_divergence", "conditional_divergence", "conditional_log_ratio"):
        variables[name] = ("symbol", "symbol2"), divergence
    variables["decay_factor"] = (
        (*swept, "step"),
        np.broadcast_to(0.99 ** (STEPS / 10), (*map(len, swept.values()), len(STEPS))),
    )
    variables["diverged_at"] = member, np.full([len(labels[name]) for name in member], -1)
    return xr.Dataset(variables, labels, {"kind": "exor", "experiment": "made-up"})


def tying_costs(arms: tuple[str, ...]) -> xr.Dataset:
    """Forty seeds; the arm `tied` costs 0.2 nat, the others nothing, but for noise of 0.01."""
    made = exor_results(*arms, seeds=40)
    rng = np.random.default_rng(1)
    for arm in arms:
        at = {"arm": arm, "eval_step": 100}
        made["train_loss"].loc[at] = 0.9 + 0.2 * (arm == "tied") + 0.01 * rng.normal(size=40)
    return made.assign_attrs(experiment="made-up")


def stuck_results(name: str, stuck: dict[str, list[int]], seeds=range(200, 240)) -> xr.Dataset:
    """Make a run where these places of each arm are stuck at the end; the others have left."""
    made = exor_results(*stuck, seeds=len(seeds)).assign_coords(seed=list(seeds))
    best = float(made["best_loss"].sel(split="train"))
    made["train_loss"][:] = best + math.log(2)
    for arm, places in stuck.items():
        left = [seed for place, seed in enumerate(seeds) if place not in places]
        made["train_loss"].loc[{"arm": arm, "seed": left, "eval_step": 100}] = best + 0.1
    return made.assign_attrs(experiment=name)


def targets_only_runs() -> dict[str, xr.Dataset]:
    """Make two of the runs with softmax over targets only or over all symbols."""
    half = {
        arm: [*range(5 * i)]
        for i, arm in enumerate(("untied+targets-only", "untied", "tied+targets-only", "tied"))
    }
    own = stuck_results("never-targets-half", half)
    own["label_cosine"] = ("table", "arm", "seed", "eval_step"), np.full((2, 4, 40, 3), 0.5)
    own = own.assign_coords(table=["input", "output"])
    return {
        "never-targets-half": own,
        "output-bias": stuck_results("output-bias", {"tied": [0], "untied": []}),
    }
