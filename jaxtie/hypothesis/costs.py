"""What the benchmark of known truth measured -> do predicted prices go with measured costs, and which rule regrets least?

NumPy and pandas; imports no jax. Measured are, of each data set, the losses of its arms (`LOSSES`: a row for each arm and
seed) and the price G of one table (`PRICES`: with an output bias and without, at once and after some steps).

What a choice is worth: its validation loss, and for two tables `threshold` nats more, since they must save that to be worth
having. The *regret* of a choice is how much more that is than of the best choice there.

Shapes: N data sets, S seeds.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxtie.hypothesis.benchmark import CALIBRATION, HELD_OUT, Benchmark, DataSet, Prediction
from jaxtie.results.statistics import mean_interval, rank_correlation
from jaxtie.results.tables import Table, number
from jaxtie.results.verdicts import Comparison, Judgement, compare, judge, verdict_table

LOSSES = ("data_set", "arm", "seed", "parameters", "loss", "early_loss")
PRICES = ("data_set", "bias", "when", "low", "rise", "high", "untied_loss", "unigram_loss", "best_loss", "table_share")
WITHOUT, WITH = "without", "with bias"  # an output bias
TIED, BIASED, UNTIED = "tied", "tied+bias", "untied"
CHOICES = (TIED, BIASED, UNTIED)
EARLY, SHARE = "loss difference after 10 % of the steps", "share of table parameters"
NAIVE = ("always tie", "always tie, with a bias", "never tie")
RIVALS = (NAIVE[0], NAIVE[2], SHARE, EARLY)  # what a rule on G must do better than
LOOKED_AT = 2  # seeds whose early losses a rule may see: as many models as a price takes


class Outcomes(NamedTuple):
    """All that was measured, and what was declared.

    Attributes:
      data_sets: those that are measured, in the order of the declaration; N.
      losses: (data set, arm) -> a row for each seed, see `LOSSES`.
      prices: see `PRICES`.
    """

    benchmark: Benchmark
    data_sets: list[DataSet]
    losses: Mapping[tuple[str, str], pd.DataFrame]
    prices: pd.DataFrame

    def loss_S(self, data_set: DataSet, arm: str, column: str = "loss") -> np.ndarray:
        """Of an arm's seeds, in their order."""
        return self.losses[data_set.name, arm][column].to_numpy(np.float64)

    def cost_S(self, data_set: DataSet, arm: str) -> np.ndarray:
        """By how much an arm loses more than two tables do, each seed with itself, nats."""
        return self.loss_S(data_set, arm) - self.loss_S(data_set, UNTIED)

    def cost_N(self, arm: str) -> np.ndarray:
        """The same, means over seeds."""
        return np.array([self.cost_S(each, arm).mean() for each in self.data_sets])

    def price_N(self, bias: str, when: str, column: str = "rise") -> np.ndarray:
        """What was predicted."""
        own = self.prices[(self.prices["bias"] == bias) & (self.prices["when"] == when)]
        return own.set_index("data_set")[column].reindex([each.name for each in self.data_sets]).to_numpy(np.float64)

    @property
    def late(self) -> str:
        """When a price is asked for that is not meant at once."""
        return next(each for each in self.prices["when"] if each != "at once")

    def are(self, half: str) -> np.ndarray:
        """Which data sets are in a half; (N,) of truths."""
        return np.array([each.half == half for each in self.data_sets], bool)


def put_together(benchmark: Benchmark, losses: pd.DataFrame, prices: pd.DataFrame) -> Outcomes:
    """What was measured beside what was declared; what is not declared (any more) is left out."""
    there = set(losses["data_set"]) & set(prices["data_set"])
    of_arms = {key: own.sort_values("seed") for key, own in losses.groupby(["data_set", "arm"])}
    return Outcomes(benchmark, [each for each in benchmark.data_sets() if each.name in there], of_arms, prices)


class Rule(NamedTuple):
    """Something that chooses. Below its threshold one table is taken: plain, or else with a bias; above, two.

    Attributes:
      label: what it is.
      scores_2xN: what it looks at: of one plain table, of one with a bias.
      threshold: fixed beforehand; None: it is chosen on the calibration half.
    """

    label: str
    scores_2xN: np.ndarray
    threshold: float | None = None


def chosen_by(rule: Rule, threshold: float) -> np.ndarray:
    """What a rule chooses: numbers of `CHOICES`, (N,)."""
    plain_N, biased_N = rule.scores_2xN
    return np.select([plain_N < threshold, biased_N < threshold], [0, 1], 2)


def regrets(measured: Outcomes) -> np.ndarray:
    """Of each choice at each data set, nats; (3, N)."""
    value_3xN = np.array([measured.cost_N(arm) for arm in CHOICES])
    value_3xN[CHOICES.index(UNTIED)] += measured.benchmark.threshold
    return value_3xN - value_3xN.min(axis=0)


def rules_of(measured: Outcomes) -> list[Rule]:
    """All rules that are compared, the one that is asked about first."""
    number_of = len(measured.data_sets)
    early_2xN = np.array([_early_difference_N(measured, arm) for arm in (TIED, BIASED)])
    share_N = measured.price_N(WITHOUT, "at once", "table_share")
    late, at_once = (
        np.array([measured.price_N(bias, when) for bias in (WITHOUT, WITH)]) for when in (measured.late, "at once")
    )
    nothing = np.zeros((2, number_of))
    return [
        Rule(f"G {measured.late}", late),
        Rule(f"G {measured.late}, threshold not calibrated", late, measured.benchmark.threshold),
        Rule("G at once", at_once),
        Rule(EARLY, early_2xN),
        Rule(SHARE, np.array([-share_N, -share_N])),
        Rule(NAIVE[0], nothing, np.inf),
        Rule(NAIVE[1], np.array([np.ones(number_of), np.zeros(number_of)]), 0.5),
        Rule(NAIVE[2], nothing, -np.inf),
        Rule(f"{SHARE}: tie where it is small (added after the run)", np.array([share_N, share_N])),
    ]


def _early_difference_N(measured: Outcomes, arm: str) -> np.ndarray:
    """By how much an arm's early loss is above that of two tables, as far as a rule may look."""
    both = [[measured.loss_S(each, name, "early_loss")[:LOOKED_AT] for each in measured.data_sets] for name in (arm, UNTIED)]
    return np.mean(np.subtract(*both), axis=1)


def calibrated(rule: Rule, regret_3xN: np.ndarray, there_N: np.ndarray) -> float:
    """The threshold under which a rule regrets least where it may look; of several as good, the middle one."""
    if rule.threshold is not None or not there_N.any():
        return np.nan if rule.threshold is None else rule.threshold
    scores = np.unique(rule.scores_2xN[:, there_N])
    middle = (scores[1:] + scores[:-1]) / 2
    tried = np.concatenate([[-np.inf], middle, [np.inf]])
    found = np.array([_regret_of(rule, threshold, regret_3xN)[there_N].mean() for threshold in tried])
    best = np.flatnonzero(found <= found.min() + 1e-12)
    return float(tried[best[len(best) // 2]])


def _regret_of(rule: Rule, threshold: float, regret_3xN: np.ndarray) -> np.ndarray:
    choice_N = chosen_by(rule, threshold)
    return regret_3xN[choice_N, np.arange(len(choice_N))]


def regret_table(measured: Outcomes) -> Table:
    """Each rule: its threshold, its regret on both halves, and how much more than the first rule's that is."""
    regret_3xN, halves, rows = regrets(measured), [measured.are(half) for half in (CALIBRATION, HELD_OUT)], []
    more = _more_than_the_first(measured)
    for rule in rules_of(measured):
        threshold = calibrated(rule, regret_3xN, halves[0])
        own_N = _regret_of(rule, threshold, regret_3xN)
        best = int(np.sum(own_N[halves[1]] < 1e-12))
        told = "" if not np.isfinite(threshold) or rule.label in NAIVE else f"{threshold:+.4f}"
        means = [f"{own_N[half].mean():.4f}" if half.any() else "–" for half in halves]
        low, middle, high = compare("", more[rule.label])[1:4] if rule.label in more else (np.nan,) * 3
        shown = f"{middle:+.4f} [{low:+.4f}, {high:+.4f}]" if np.isfinite(low) else ""
        rows.append((rule.label, told, *means, f"{best} of {int(halves[1].sum())}", shown))
    header = ("rule", "threshold", CALIBRATION, HELD_OUT, "best choice, held out", "more than the first, held out")
    note = (
        f"Mean regret, nats; two tables must save {measured.benchmark.threshold:g} nat. A score below the threshold: one "
        f"table. Thresholds come from the calibration half. Early losses are of {LOOKED_AT} seeds, as a price is of two "
        "models. Intervals: 95 %, Student's t over data sets."
    )
    return Table("What is regretted", header, rows, note)


def _more_than_the_first(measured: Outcomes) -> dict[str, np.ndarray]:
    """Rule -> by how much more it regrets than the first one on the held-out half, one value for each data set there."""
    regret_3xN, held_N, looked_at = regrets(measured), measured.are(HELD_OUT), measured.are(CALIBRATION)
    first, *others = (
        (rule.label, _regret_of(rule, calibrated(rule, regret_3xN, looked_at), regret_3xN)[held_N])
        for rule in rules_of(measured)
    )
    return {label: own_N - first[1] for label, own_N in others}


def judge_prices(measured: Outcomes) -> dict[str, dict[str, Judgement]]:
    """What is said of G, on the held-out half: that it goes with costs, and that a rule on it regrets less than others."""
    held_N, ranks, less = measured.are(HELD_OUT), {}, {}
    for arm, bias in ((TIED, WITHOUT), (BIASED, WITH)):
        found = rank_correlation(measured.price_N(bias, measured.late)[held_N], measured.cost_N(arm)[held_N], error=0.05 / 2)
        compared = Comparison("Spearman's ρ", found[1], found[0], found[2])
        ranks[f"{arm} − {UNTIED}"] = judge([compared], 0, np.inf)
    more = _more_than_the_first(measured)
    for label in RIVALS:
        less[label] = judge([compare("nats more", more[label], len(RIVALS))], 0, np.inf)
    return {"G goes with the cost": ranks, "other rules regret more than the one on G": less}


def agreement_table(measured: Outcomes) -> Table:
    """Rank correlation over data sets of what is predicted with what it costs: the held-out half, all, and at each width."""
    rows, width_N = [], np.array([each.width for each in measured.data_sets])
    parts = {HELD_OUT: measured.are(HELD_OUT), "all": width_N > 0}
    parts |= {f"width {width}": width_N == width for width in measured.benchmark.widths}
    by_arm = {TIED: WITHOUT, BIASED: WITH}
    for arm, bias in by_arm.items():
        cost_N = measured.cost_N(arm)
        early_N = _early_difference_N(measured, arm)
        looked_at = {f"G {when}": measured.price_N(bias, when) for when in (measured.late, "at once")}
        looked_at |= {EARLY: early_N, SHARE: measured.price_N(bias, "at once", "table_share")}
        for label, score_N in looked_at.items():
            cells = []
            for there_N in parts.values():
                rank, low, high = rank_correlation(score_N[there_N], cost_N[there_N])
                cells.append(f"{rank:+.2f} [{low:+.2f}, {high:+.2f}]" if np.isfinite(rank) else "–")
            rows.append((f"{arm} − {UNTIED}", label, *cells))
    header = ("measured cost", "predicted by", *(f"{name} ({int(there_N.sum())})" for name, there_N in parts.items()))
    note = (
        "Spearman's rank correlation with its 95 % interval (Bonett and Wright, 2000), data sets taken to be independent. "
        "Only the held-out half is judged."
    )
    return Table("Do predictions go with costs?", header, rows, note)


def data_set_table(measured: Outcomes) -> Table:
    """Every data set: what was predicted, what it cost."""
    rows = []
    midway = next((arm for _, arm in measured.losses if "@" in arm), None)
    prices = [measured.price_N(bias, measured.late) for bias in (WITHOUT, WITH)]
    best_N, unigram_N = (measured.price_N(WITH, measured.late, name) for name in ("best_loss", "unigram_loss"))
    for i, each in enumerate(measured.data_sets):
        costs = [_with_interval(measured.cost_S(each, arm)) for arm in (TIED, BIASED, midway) if arm]
        untied = measured.loss_S(each, UNTIED).mean()
        distances = (number(untied - best_N[i]), number(unigram_N[i] - untied))
        what = (each.planted, each.strength, str(each.width), each.half)
        rows.append((*what, *(f"{price_N[i]:+.4f}" for price_N in prices), *costs, *distances))
    arms = [f"{arm} − {UNTIED}" for arm in (TIED, BIASED, midway) if arm]
    header = ("planted", "strength", "width", "half", "G", "G with bias", *arms, "untied above the best", "below unigram")
    seeds = max(map(len, measured.losses.values()))
    note = (
        f"Nats. G {measured.late}, of two models; costs are means over {seeds} seeds, each with itself, ± 95 % (Student's "
        "t); the best is a model without error of a text without ends of sentences."
    )
    return Table(f"{len(rows)} of {len(list(measured.benchmark.data_sets()))} data sets", header, rows, note)


def _with_interval(cost_S: np.ndarray) -> str:
    mean, half = mean_interval(cost_S)
    return f"{mean:+.4f} ± {half:.4f}"


def judge_predictions(measured: Outcomes) -> dict[str, dict[str, Judgement]]:
    """Sentence -> class -> what became of it; classes of which nothing is measured that it is about are left out."""
    found: dict[str, dict[str, Judgement]] = {}
    for prediction in measured.benchmark.predictions:
        for planted in prediction.planted:
            values = _quantities(measured, prediction, planted)
            compared = [compare(label, values_S, len(values)) for label, values_S in values.items()]
            if compared:
                judgement = judge(compared, prediction.low, prediction.high)
                found.setdefault(prediction.sentence, {})[planted if len(prediction.planted) > 1 else ""] = judgement
    return found


def _quantities(measured: Outcomes, prediction: Prediction, planted: str) -> dict[str, np.ndarray]:
    """Label -> values over seeds of what a prediction is about."""
    at = {
        (each.strength, each.width): measured.cost_S(each, prediction.arm)
        for each in measured.data_sets
        if each.planted == planted
    }
    narrow, wide = measured.benchmark.widths
    if prediction.quantity == "by strength":
        pairs = {f"width {w}: strong − weak": (("strong", w), ("weak", w)) for w in (narrow, wide)}
    elif prediction.quantity == "by width":
        pairs = {f"strong: width {narrow} − width {wide}": (("strong", narrow), ("strong", wide))}
    else:
        chosen = [key for key in at if prediction.quantity == "cost" or key[0] == "strong"]
        return {f"{strength}, width {width}": at[strength, width] for strength, width in chosen}
    return {label: at[one] - at[other] for label, (one, other) in pairs.items() if one in at and other in at}


def predictions_table(measured: Outcomes) -> Table:
    """What was said of G and of costs, and what became of it."""
    return verdict_table(judge_prices(measured) | judge_predictions(measured), "seeds; of G over data sets")


COST_TABLES: dict[str, Callable[[Outcomes], Table]] = {
    "data-sets": data_set_table,
    "agreement": agreement_table,
    "regret": regret_table,
    "verdicts": predictions_table,
}
