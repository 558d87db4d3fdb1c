"""Small models of one recipe, tied and untied: declare, plan and train them. Imports no jax.

The recipe is that of language models now: `jaxtie.Decoder`, embeddings N(0, 0.02²), AdamW with
β₂ = 0.99 and decay 0.1, a tenth of the steps to warm up, then a cosine to 0 at the last step. A
batch has only 4 x 64 tokens, since in few large ones a small model learns little.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxtie.config import Decoder, Optimizer, UserError, check
from jaxtie.results.folder import RunFolder
from jaxtie.run import lifecycle
from jaxtie.run.lifecycle import Outcome, Session
from jaxtie.text.config import Corpus, TextExperiment
from jaxtie.text.gap_model import SIZE, USUAL, chosen_rates

BATCH, LENGTH = 4, 64
HEAD_WIDTH = 32
PARAGRAPHS = 10**9  # `documents_to_split`: no text has so many, so it is split by paragraph
RECORDS = 10  # of a run, which evaluates as often; its steps are a multiple
ARMS = ("tied", "untied")
WIDTHS, LAYERS = (32, 64, 128), 2
EVALUATED = 250  # batches of the validation split
MOST_EPOCHS = 4
FEWEST = 800  # steps
TRIALS = 1_600, 12_800  # steps of two runs whose time is estimated, at `SEEDS[1]` seeds
SEEDS = (2, 4, 8)
FACTORS = (0.5, 1.0, 2.0)  # of the fitted learning rate
MOST_FACTOR = 8.0
TRIED = 4  # factors, about
COMPILING = 3.0  # seconds to compile a run, about


@dataclass(frozen=True)
class Pilot:
    """Size and budget of a model.

    Attributes:
      width, layers: of the decoder.
      steps: updates, each of `BATCH` times `LENGTH` tokens.
      branch_scale: see `jaxtie.Decoder`.
      heads: of attention; None: one for `HEAD_WIDTH` of the width.
    """

    width: int
    layers: int
    steps: int
    branch_scale: float | None = None
    heads: int | None = None

    @property
    def tokens(self) -> int:
        """Training tokens of the run, repetitions included."""
        return self.steps * BATCH * LENGTH

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"width-{self.width}_steps-{self.steps}"

    def experiment(
        self,
        corpus: Corpus,
        arms: Sequence[str],
        learning_rate: float,
        seeds: Sequence[int],
        *,
        evaluations: int = 1,
        batches: int = 1_000,
    ) -> TextExperiment:
        """Return the experiment that trains these arms and seeds.

        Args:
          corpus: the text and its vocabulary.
          arms: their names.
          learning_rate: the highest one.
          seeds: one member each.
          evaluations: number of evaluations during training.
          batches: of the validation split, at most.
        """
        model = Decoder(
            layers=self.layers,
            heads=self.heads or max(1, self.width // HEAD_WIDTH),
            width=self.width,
            branch_scale=self.branch_scale,
        )
        optimizer = Optimizer(
            learning_rate=learning_rate,
            eta_min=0.0,
            half_period=self.steps,
            warmup=max(1, self.steps // 10),
            weight_decay=0.1,
            b2=0.99,
            eps=1e-8,
        )
        return TextExperiment(
            name="pilot",
            objective="causal",
            corpus=corpus,
            model=model,
            init_std=0.02,
            optimizer=optimizer,
            arms=tuple(arms),
            seeds=tuple(seeds),
            steps=self.steps,
            record_every=self.steps // RECORDS,
            eval_every=self.steps // evaluations,
            eval_batches=batches,
            batch=BATCH,
            length=LENGTH,
            words=8,
            duplicates=False,
        )


class Cost(NamedTuple):
    """Seconds of one member at a width: of a step, and of an evaluation."""

    step: float
    evaluation: float


class Plan(NamedTuple):
    """Steps of all pilots, and the number of seeds."""

    steps: int
    seeds: int

    @property
    def pilots(self) -> list[Pilot]:
        """All sizes, the widest first, which shows overfitting."""
        return [Pilot(width, LAYERS, self.steps) for width in reversed(WIDTHS)]

    def seconds(self, costs: Mapping[int, Cost]) -> float:
        """Return the time of all pilots, from the costs at each width."""
        own = [costs[pilot.width] for pilot in self.pilots]
        members = len(ARMS) * sum(self.steps * cost.step + 2 * cost.evaluation for cost in own)
        first = (RECORDS - 1) * own[0].evaluation  # which has more of them
        return TRIED * (self.seeds * (members + first) + COMPILING * len(ARMS) * len(own))


def make_plan(costs: Mapping[int, Cost], epoch_steps: float, minutes: float) -> Plan:
    """Return the longest pilots for four seeds, or two, or more where the text is short.

    Args:
      costs: of each width.
      epoch_steps: steps of an epoch of the text.
      minutes: for all pilots.

    Raises:
      UserError: if the text is too small for a pilot, or the minutes are too few for two seeds.
    """
    most = int(MOST_EPOCHS * epoch_steps) // RECORDS * RECORDS
    tokens = FEWEST * BATCH * LENGTH // MOST_EPOCHS
    check(most >= FEWEST, f"text: is too small for a pilot, which needs {tokens:,} training tokens")
    for seeds in reversed(SEEDS):
        base = Plan(FEWEST, seeds).seconds(costs) - Plan(0, seeds).seconds(costs)
        left = 60 * minutes - Plan(0, seeds).seconds(costs)
        steps = int(FEWEST * left / base) // RECORDS * RECORDS
        enough = most if seeds > SEEDS[1] else 2 * FEWEST if seeds > SEEDS[0] else FEWEST
        if steps >= min(enough, most):
            return Plan(min(steps, most), seeds)
    needed = math.ceil(Plan(FEWEST, SEEDS[0]).seconds(costs) / 60)
    raise UserError(f"--minutes {minutes:g}: pilots need at least {needed} on this machine")


def measure_costs(
    corpus: Corpus, rates: "Rates", folder: Path, session: Session
) -> dict[int, Cost]:
    """Compile and train a little at each width; return the costs."""
    from jaxtie.training.devices import check_devices, start_jax

    start_jax()
    check_devices()
    from jaxtie.training.distributed import Processes
    from jaxtie.training.task import programs_of
    from jaxtie.training.trainer import make_engine

    def seconds_of(width: int, steps: int) -> float:
        pilot, alone = Pilot(width, LAYERS, steps), Processes()
        rate = rates.of("untied", pilot)
        experiment = _declare(pilot, "untied", corpus, rate, SEEDS[1])
        experiment = experiment.prepare(RunFolder(folder), None, alone, lambda line: None)
        engine = make_engine(experiment, alone)
        estimate = engine.estimate(engine.compile(programs_of(experiment)[0]))
        return estimate.seconds / SEEDS[1]

    found = {}
    for width in WIDTHS:
        session.say(f"measuring the speed of models of width {width}")
        short, long = (seconds_of(width, steps) for steps in TRIALS)
        step = max(1e-3, long - short) / (TRIALS[1] - TRIALS[0])
        found[width] = Cost(step, max(0.0, short - step * TRIALS[0]) / (RECORDS + 1))
    return found


def train_pilots(
    plan: Plan, corpus: Corpus, rates: "Rates", out: Path, session: Session
) -> pd.DataFrame:
    """Train all pilots in folders below `out`; return a row for each member.

    Each width and arm has its best learning rate. The widest untied model goes first: if its
    validation loss has a minimum before the last tenth, all become so short, and it is trained
    again.

    Raises:
      UserError: if the text is so small that it overfits anyway, or a model always diverges.
      KeyboardInterrupt: after an interrupt; the same call goes on.
    """

    def tune(pilot: Pilot, arm: str) -> tuple[pd.DataFrame, int]:
        is_first = (pilot.width, arm) == (WIDTHS[-1], "untied")

        def train(factor: float) -> tuple[pd.DataFrame, int]:
            rate = float(f"{factor * rates.of(arm, pilot):.3g}")
            evaluations = RECORDS if is_first else 1
            experiment = _declare(pilot, arm, corpus, rate, plan.seeds, evaluations)
            return _train(experiment, out / pilot.name / f"{arm}-{rate:g}", session)

        return tuned(train, f"{pilot.name} {arm}")

    done, total = 0, len(ARMS) * sum(WIDTHS)
    while True:
        widest = plan.pilots[0]
        session.say(f"pilots: {done:.0%} done; width {widest.width} untied")
        found, best = tune(widest, "untied")
        if best >= RECORDS - 1:
            break
        steps = plan.steps * best // RECORDS // RECORDS * RECORDS
        check(
            steps >= FEWEST,
            f"text: is so small that a model of width {widest.width} overfits within"
            f" {FEWEST:,} steps",
        )
        session.say(f"the widest model overfits: all are trained {steps:,} steps at most")
        plan = plan._replace(steps=steps)
    rows = [found]
    for pilot, arm in [*itertools.product(plan.pilots, ("untied", "tied"))][1:]:
        done += rows[-1]["width"].iloc[0]
        session.say(f"pilots: {done / total:.0%} done; width {pilot.width} {arm}")
        rows.append(tune(pilot, arm)[0])
    return pd.concat(rows)


def tuned(
    train: Callable[[float], tuple[pd.DataFrame, int]], name: str
) -> tuple[pd.DataFrame, int]:
    """Return what `train` returned at the best factor of a learning rate.

    `FACTORS` are tried, and more, up to `MOST_FACTOR` either way, while the best one is the first
    or the last. The even validation batches choose.

    Args:
      train: returns a row for each seed, and the best evaluation; one that diverged is not finite.
      name: of what is trained.

    Raises:
      UserError: if all diverge.
    """
    found: dict[float, tuple[pd.DataFrame, int]] = {}
    losses: dict[float, float] = {}
    tried: tuple[float, ...] = FACTORS
    while True:
        for factor in tried:
            if factor not in found:
                found[factor] = train(factor)
                loss = found[factor][0]["loss_even"].mean(skipna=False)
                losses[factor] = float(loss) if np.isfinite(loss) else math.inf
        best = min(sorted(losses), key=losses.__getitem__)
        is_inside = min(losses) < best < max(losses)
        if is_inside or best in (1 / MOST_FACTOR, MOST_FACTOR):
            check(math.isfinite(losses[best]), f"{name}: diverges at all learning rates")
            return found[best]
        tried = (best / 2, best * 2)


def _train(experiment: TextExperiment, folder: Path, session: Session) -> tuple[pd.DataFrame, int]:
    """Return a row for each seed, and the evaluation with the lowest mean loss, from 0 on.

    The latter is of no use where a seed diverged.
    """
    own = replace(session, draws=False, overwrite=False)  # `folder` is new, or is to be resumed
    if lifecycle.run_in_folder(experiment, RunFolder(folder), own) is Outcome.INTERRUPTED:
        raise KeyboardInterrupt(lifecycle.resume_hint(session))
    results = RunFolder(folder).load().isel(arm=0)
    last = results.isel(eval_step=-1)
    found = pd.DataFrame(
        {
            "width": experiment.model.width,
            "layers": experiment.model.layers,
            "vocabulary": results.sizes["token_number"],
            "tokens": experiment.steps * BATCH * LENGTH,
            "arm": results["arm"].item(),
            "bigram": float(results["bigram_loss"]),
            "seed": range(len(experiment.seeds)),
            "loss_even": last["valid_loss_even"].values,
            "loss": last["valid_loss_odd"].values,
        }
    )
    return found, int(results["valid_loss"].mean("seed", skipna=False).values.argmin())


class Rates(NamedTuple):
    """Where each arm's search begins: ln rate = constant + slopes · (ln width, ln steps)."""

    coefficients: Mapping[str, list[float]]  # 3 of each arm

    @classmethod
    def fit(cls, members: pd.DataFrame) -> "Rates":
        """Fit the best rates of the committed cells of the usual branch scale, least squares."""
        best = chosen_rates(members).drop_duplicates([*SIZE, "arm"])
        best = best[best["branch_scale"] == USUAL]
        found = {}
        for arm in ARMS:
            own = best[best["arm"] == arm]
            columns = [np.ones(len(own)), np.log(own["width"]), np.log(own["steps"])]
            rates = np.log(own["learning_rate"])
            found[arm] = np.linalg.lstsq(np.stack(columns, axis=1), rates)[0].tolist()
        return cls(found)

    def of(self, arm: str, pilot: Pilot) -> float:
        """Return the rate of an arm at a size and budget."""
        own = [1, math.log(pilot.width), math.log(pilot.steps)]
        log = float(np.dot(self.coefficients[arm], own))
        return float(f"{math.exp(log):.3g}")


def _declare(
    pilot: Pilot, arm: str, corpus: Corpus, rate: float, seeds: int, evaluations: int = RECORDS
) -> TextExperiment:
    return pilot.experiment(
        corpus,
        (arm,),
        rate,
        range(seeds),
        evaluations=evaluations,
        batches=EVALUATED,
    )
