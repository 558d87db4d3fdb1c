"""Recommend tying or not from pilots and the model of the gap; sentences, figure, files. No jax."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxtie.results import plots
from jaxtie.results.page_section import write_section
from jaxtie.results.tables import Table, json_numbers, with_interval
from jaxtie.text import gap_model
from jaxtie.text.gap_model import GapFit, Size

MARGIN = 0.01  # nat: a loss so much higher is a price that saved memory is usually worth
NEAR = 4.0  # times the largest pilot; beyond, untying is never recommended outright
ERROR = 0.1  # intervals are right with 90 %
CAPTION = (
    "Tying gap, loss(tied) − loss(untied), against the training tokens per row of a table: pilots"
    " with 90 % intervals, the prediction for the target with its 90 % band from the pilots' sizes,"
    " and the margin. Above the margin tying costs more than it is taken to be worth."
)


class Prediction(NamedTuple):
    """The gap at a size, nat, with the ends of its 90 % interval; how far beyond the pilots."""

    low: float
    mean: float
    high: float
    factor: float  # the larger of width and tokens, by those of the largest pilot


def recommend(gap: Prediction) -> str:
    """Return "tie", "do not tie" or "not decided"; far from the pilots never "do not tie"."""
    if gap.high <= MARGIN:
        return "tie"
    return "do not tie" if gap.low > MARGIN and gap.factor <= NEAR else "not decided"


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer of `jaxtie advise`.

    Attributes:
      target: size and budget that were asked for.
      prediction: of its gap.
      pilots: a row per size: columns of `Size`, gap, error, seeds, bigram, tied, untied.
      prior, fit: of the committed cells; of these and the pilots.
      published: what others measured, `experiments/data/published-comparisons.csv`.
      retry: the command with more minutes.
    """

    target: Size
    prediction: Prediction
    pilots: pd.DataFrame
    prior: GapFit
    fit: GapFit
    published: pd.DataFrame
    retry: str

    @property
    def word(self) -> str:
        """The recommendation, see `recommend`."""
        return recommend(self.prediction)

    @property
    def sentences(self) -> list[str]:
        """Recommendation, why, confidence, next."""
        return [self._recommendation(), self._why(), self._confidence(), self._next()]

    def _recommendation(self) -> str:
        target = self.target
        of_what = (
            f"at width {target.width:,.0f}, {target.layers:.0f} layers, {target.vocabulary:,.0f}"
            f" tokens of vocabulary, {target.tokens:,.0f} training tokens"
        )
        advice = {
            "tie": "tie the embeddings",
            "do not tie": "do not tie",
            "not decided": "not decided; until you know more, tie, which is the smaller model",
        }
        return f"Recommendation: {advice[self.word]} ({of_what})."

    def _why(self) -> str:
        from jaxtie.tying.budget import budget  # imports jax

        gap = self.prediction
        width, layers, vocabulary = (int(own) for own in self.target[:3])
        saved = vocabulary * width
        untied = budget(vocabulary, width, layers, tied=False)
        shown = with_interval(gap.low, gap.mean, gap.high, lambda value: f"{value:+.3f}")
        return (
            f"Why: loss(tied) − loss(untied) is predicted to be {shown} nat per token (90 %"
            f" interval; margin {MARGIN:g}). Tying saves {saved / 1e6:,.1f} of"
            f" {untied.parameters / 1e6:,.1f} million parameters (feed-forward layers 4 times as"
            f" wide), {16 * saved / 1e6:,.0f} MB with gradients and Adam's moments in float32, no"
            " FLOPs."
        )

    def _confidence(self) -> str:
        own = self.pilots
        beaten = int((own["untied"] < own["bigram"]).sum())
        factor = self.prediction.factor
        where = (
            f"the target is {factor:,.1f} times the largest pilot, so this is an extrapolation"
            if factor > 1
            else "the target lies within the pilots' sizes"
        )
        return (
            f"Confidence: {where}. Pilots: {len(own)} pairs of {own['seeds'].min()} seeds, width"
            f" {own['width'].min():.0f} to {own['width'].max():.0f}, {own['tokens'].min():,.0f} to"
            f" {own['tokens'].max():,.0f} tokens; {beaten} of them beat bigram counts."
        )

    def _next(self) -> str:
        if self.prediction.factor > NEAR:
            return (
                "Next: train a tenth of your run both ways, two seeds of each, each way at its own"
                " learning rate; then jaxtie advise --from-logs tied.csv untied.csv"
            )
        if self.word == "not decided":
            return f"Next: {self.retry}"
        return "Next: nothing; check the loss of your own run against this prediction."

    @property
    def tables(self) -> list[Table]:
        """The pilots, and what others measured."""
        return [self._pilot_table(), published_table(self.published, self.target)]

    def _pilot_table(self) -> Table:
        rows = [
            (
                f"{own.width:.0f}",
                f"{own.tokens:,.0f}",
                f"{own.tied:.3f}",
                f"{own.untied:.3f}",
                f"{own.gap:+.3f} ± {own.half:.3f}",
            )
            for own in self.pilots.itertuples()
        ]
        header = ("width", "tokens", "tied", "untied", "gap")
        bigram = self.pilots["bigram"].iloc[0]
        note = f"Validation loss, nat; mean over seeds, ± 90 %. Bigram counts: {bigram:.3f}."
        return Table("Pilots", header, rows, note)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for `--json`."""
        return {
            "recommendation": self.word,
            "answer": self.sentences,
            "target": self.target._asdict(),
            "gap": self.prediction._asdict(),
            "margin": MARGIN,
            "pilots": self.pilots.to_dict("records"),
            "published": nearest_published(self.published, self.target).to_dict("records"),
        }


def make_answer(
    members: pd.DataFrame,
    committed: pd.DataFrame,
    published: pd.DataFrame,
    target: Size,
    retry: str,
) -> Answer:
    """Combine pilots with committed cells and predict.

    Args:
      members: a row per pilot, see `jaxtie.advise.pilots.train_pilots`.
      committed: members of `experiments/tying_gap_on_text.py`.
      published: what others measured.
      target: what to predict.
      retry: the command with more minutes.
    """
    pilots = pilot_gaps(members)
    cells = gap_model.sizes_of(gap_model.usual_cells(committed))
    prior = gap_model.fit_cells(committed)
    measured = gap_model.sizes_of(pilots)
    fit = gap_model.update(
        prior,
        gap_model.features(measured),
        pilots["gap"].to_numpy(),
        pilots["error"].to_numpy(),
    )
    prediction = predict(fit, target, [*cells, *measured], measured)
    return Answer(target, prediction, pilots, prior, fit, published, retry)


def predict(fit: GapFit, target: Size, known: Sequence[Size], pilots: Sequence[Size]) -> Prediction:
    """Predict the gap at a size; beyond the `known` ones the formula may go on, or stop.

    The interval covers both: it joins the intervals at the target and at the nearest size within
    the range of what was measured, regressor by regressor.
    """
    inside = gap_model.features(known)
    wanted_K = gap_model.features([target])[0]
    nearest_K = np.clip(wanted_K, inside.min(axis=0), inside.max(axis=0))
    ends = [fit.interval(row_K, ERROR, fit.tau**2) for row_K in (wanted_K, nearest_K)]
    low, high = min(end[0] for end in ends), max(end[2] for end in ends)
    largest = np.max(np.array(pilots), axis=0)
    factor = max(target.width / largest[0], target.tokens / largest[3])
    return Prediction(low, float(np.mean([end[1] for end in ends])), high, factor)


def pilot_gaps(members: pd.DataFrame) -> pd.DataFrame:
    """Return a row per size with mean losses and gap, its standard error and half an interval.

    The deviation over seeds is pooled over the sizes, since each has few.
    """
    from scipy.stats import t  # heavy

    size = [*Size._fields, "bigram"]
    losses = members.pivot(index=[*size, "seed"], columns="arm", values="loss")
    losses["gap"] = losses["tied"] - losses["untied"]
    cells = losses.groupby(size)
    found = cells.mean().reset_index()
    counts = cells["gap"].count().to_numpy()
    degrees = int((counts - 1).sum())
    variance = float((cells["gap"].var().to_numpy() * (counts - 1)).sum()) / degrees
    error = np.sqrt(variance / counts)
    return found.assign(error=error, half=error * t.ppf(1 - ERROR / 2, degrees), seeds=counts)


def nearest_published(published: pd.DataFrame, target: Size, count: int = 3) -> pd.DataFrame:
    """Return the published causal comparisons of like size, the nearest first.

    The distance is that of ln width, ln vocabulary and ln tokens; rows that lack one, or a gap in
    nats, are left out.
    """
    columns = ["width", "vocabulary", "tokens"]
    known = published[published["objective"] == "causal"].dropna(subset=[*columns, "gap_nats"])
    wanted = np.log([target.width, target.vocabulary, target.tokens])
    distance = np.linalg.norm(np.log(known[columns].to_numpy(np.float64)) - wanted, axis=1)
    return known.iloc[np.argsort(distance, kind="stable")[:count]]


def published_table(published: pd.DataFrame, target: Size) -> Table:
    """Return what others measured at the sizes nearest to the target."""
    rows = [
        (
            own.source,
            f"{own.width:,.0f}",
            f"{own.vocabulary:,.0f}",
            f"{own.tokens:,.0f}",
            f"{own.gap_nats:+.4f}",
            f"{own.seeds:.0f}",
        )
        for own in nearest_published(published, target).itertuples()
    ]
    header = ("source", "width", "vocabulary", "tokens", "gap, nat", "seeds")
    note = "Not used for the prediction. Sources: experiments/data/published-comparisons.csv."
    return Table("What others measured, nearest first", header, rows, note)


def draw(answer: Answer) -> Figure:
    """Draw pilots, prediction and margin against tokens per row of a table."""
    figure, ((axes,),) = plots.subplots(1, 1, (7.2, 4.6))
    _draw(axes, answer)
    return figure


def _draw(axes: Axes, answer: Answer) -> None:
    pilots, target = answer.pilots, answer.target
    for (colour, width), own in zip(
        plots.coloured(pilots["width"].unique()), (own for _, own in pilots.groupby("width"))
    ):
        at = own["tokens"] / own["vocabulary"]
        axes.errorbar(
            at,
            own["gap"],
            own["half"],
            color=colour,
            marker="o",
            label=f"pilots, width {float(width):.0f}",
        )
    largest = gap_model.sizes_of(pilots.sort_values(["width", "tokens"]))[-1]
    path = [
        Size(*np.exp((1 - share) * np.log(largest) + share * np.log(target)))
        for share in np.linspace(0, 1, 50)
    ]
    known = gap_model.sizes_of(pilots)
    band = np.array([predict(answer.fit, size, known, known)[:3] for size in path])
    at = [size.tokens / size.vocabulary for size in path]
    axes.fill_between(at, band[:, 0], band[:, 2], color="#3d3d3d", alpha=0.15, linewidth=0)
    axes.plot(at, band[:, 1], color="#3d3d3d", linestyle="--", label="prediction on the way, 90 %")
    gap = answer.prediction
    bars = [[gap.mean - gap.low], [gap.high - gap.mean]]
    axes.errorbar(
        at[-1], gap.mean, bars, color="#3d3d3d", marker="*", markersize=14, label="target"
    )
    axes.axhline(0, color="#3d3d3d", linewidth=0.8)
    axes.axhline(MARGIN, color="#3d3d3d", linewidth=0.8, linestyle=":", label=f"margin, {MARGIN:g}")
    axes.set(
        xscale="log",
        xlabel="training tokens per entry of the vocabulary",
        ylabel="loss(tied) − loss(untied), nat",
        title=answer.sentences[0].split(" (")[0],
    )
    axes.legend()


def write(answer: Answer, out: Path, command: str) -> None:
    """Write the figure, `summary.md`, `answer.json`, and a section for the page of `--all`."""
    picture = plots.Picture(CAPTION, lambda: draw(answer))
    plots.draw_all({"answer": picture}, out / "figures")
    lines = ["# Should the embeddings be tied?", ""]
    for sentence in answer.sentences:
        lines += [sentence, ""]
    lines += [f"`{command}`", "", *(table.markdown() for table in answer.tables)]
    lines += ["![answer](figures/answer.png)", "", CAPTION]
    (out / "summary.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    found = json_numbers(answer.as_dict())
    (out / "answer.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    write_section(out, command, answer.sentences, answer.tables, answer=CAPTION)
