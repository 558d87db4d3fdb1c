"""Recommend tying or not from pilots and the model of the gap; sentences, figure, files. No jax."""

import dataclasses
import itertools
import json
import re
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxtie.results import plots
from jaxtie.results.page_section import SECTION, write_section
from jaxtie.results.tables import Table, json_numbers
from jaxtie.run.experiment_files import installed_data
from jaxtie.text import gap_model, gap_process, gap_tables
from jaxtie.text.gap_model import Size
from jaxtie.text.gap_process import MARGIN, NEAR, GapProcess

ERROR = 0.1  # intervals are right with 90 %
DECIDED = 0.2  # probability of being wrong at which we decide
FILES = ("answer.json", "summary.md", SECTION, "figures/answer.png")
YOURS = "yours"  # the source of the pilots
# A guess of the gap's deviation over seeds, nat, which counts as much as four degrees of freedom.
# Our cells have 0.02, most tested texts 0.01 to 0.04.
PRIOR_DEVIATION, PRIOR_DEGREES = 0.03, 4
CAPTION = (
    "Tying gap, loss(tied) − loss(untied), against the width: pilots, the prediction for models of"
    " their depth, vocabulary and tokens, beyond them with all sizes growing to yours, your model,"
    " the nearest published gaps, and the margin. We advise against tying where the gap is above"
    " the margin with a probability of 80 %, and your model is near the pilots."
)


@cache
def measured_targets() -> pd.DataFrame:
    """Return the targets of `experiments/scripts/advice_on_text.py` that are measured."""
    return pd.read_csv(installed_data("advice-on-text.csv")).dropna(subset=["gap"])


class Prediction(NamedTuple):
    """The gap at a size, normal, in nats.

    `factor`: how far its most distant size is from the pilots, see `distances`.
    """

    mean: float
    std: float
    factor: float

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the 90 % interval."""
        from scipy.stats import norm  # heavy

        low, high = norm.interval(1 - ERROR, self.mean, self.std)
        return float(low), float(high)

    @property
    def risk(self) -> float:
        """Probability that tying costs more than the margin."""
        from scipy.stats import norm  # heavy

        return float(norm.sf(MARGIN, self.mean, self.std))

    @property
    def risk_of_untying(self) -> float:
        """Probability that untying costs more than the margin."""
        from scipy.stats import norm  # heavy

        return float(norm.cdf(-MARGIN, self.mean, self.std))


def recommend(risk: float, factor: float = 1.0) -> str:
    """Return "tie", "do not tie" or "not decided"; far from the pilots never "do not tie".

    `risk`: probability that tying costs more than the margin.
    """
    if risk <= DECIDED:
        return "tie"
    return "do not tie" if risk >= 1 - DECIDED and factor <= NEAR else "not decided"


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer of `jaxtie advise`.

    Attributes:
      target: size and budget that were asked for.
      prediction: of its gap.
      pilots: as `pilot_gaps` returns them.
      process: of the committed cells, the published comparisons and the pilots.
      published: what others measured, `experiments/data/published-comparisons.csv`.
      retry: the command with more minutes.
      out: folder of the pilots, `summary.md` and figures/answer.png.
    """

    target: Size
    prediction: Prediction
    pilots: pd.DataFrame
    process: GapProcess
    published: pd.DataFrame
    retry: str
    out: Path

    @property
    def recommendation(self) -> str:
        """The recommendation, see `recommend`."""
        return recommend(self.prediction.risk, self.prediction.factor)

    @cached_property
    def sentences(self) -> list[str]:
        """Recommendation, why, confidence, next."""
        return [self._recommendation(), self._why(), self._confidence(), self._next()]

    def _recommendation(self) -> str:
        target = self.target
        of_what = (
            f"width {target.width:,.0f}, {target.layers:.0f} layers, {target.vocabulary:,.0f}"
            f" entries of vocabulary, {target.tokens:,.0f} training tokens"
        )
        undecided = "undecided; tie unless you test it, since that saves parameters"
        if self.prediction.risk >= 1 - DECIDED:
            undecided = "undecided; untying looks better, but this is far from the pilots: test it"
        advice = {
            "tie": "tie the embeddings",
            "do not tie": "do not tie the embeddings",
            "not decided": undecided,
        }
        return f"Recommendation: {advice[self.recommendation]} ({of_what})."

    def _why(self) -> str:
        from jaxtie.tying.budget import budget  # imports jax

        gap, pilots = self.prediction, self.pilots
        width, layers, vocabulary = (int(own) for own in self.target[:3])
        untied, deeper, tied = (
            budget(vocabulary, width, layers + more, tied=is_tied).parameters
            for more, is_tied in ((0, False), (1, False), (0, True))
        )
        saved = untied - tied
        low, high = gap.interval
        memory = 16 * saved / 1e6  # float32, with gradients and Adam's moments
        return (
            f"Why: tying is predicted to change the loss by {gap.mean:+.3f} nat per token (tied −"
            f" untied, 90 % interval {low:+.3f} to {high:+.3f}). Tying costs more than {MARGIN:g}"
            f" with probability {100 * gap.risk:.0f} %, untying with"
            f" {100 * gap.risk_of_untying:.0f} % (we recommend tying if the first is at most"
            f" {100 * DECIDED:.0f} %; untying, near the pilots, if it is at least"
            f" {100 * (1 - DECIDED):.0f} %). Your pilots' gaps were {pilots['gap'].min():+.3f} to"
            f" {pilots['gap'].max():+.3f}. Tying leaves"
            f" {tied / 1e6:,.1f} of {untied / 1e6:,.1f} million parameters and saves the size of"
            f" {saved / (deeper - untied):.2g} layers (if feed-forward layers are 4 × width),"
            f" {memory:,.0f} MB in training (float32, Adam), and no FLOPs."
        )

    def _confidence(self) -> str:
        own, factor = self.pilots, self.prediction.factor
        beaten = int((own["untied"] < own["bigram"]).sum())
        largest = own[list(Size._fields)].max()
        where = "the target is no larger than the largest pilot"
        if factor >= 1.05:
            i = int(np.argmax(distances([self.target], own)))
            times = float(f"{self.target[i] / largest.iloc[i]:.2g}")
            where = f"the target has {times:,.9g} times the {Size._fields[i]} of the pilots"
        width, layers, vocabulary, _ = largest
        targets = measured_targets()
        is_last = targets["test"] == targets["test"].max()
        (within, tested), (before, of_them) = (
            gap_tables.advice_coverage(targets[own]) for own in (is_last, ~is_last)
        )
        coverage = (
            f"In the last test, on targets up to {NEAR:g} times the pilots, {within} of {tested}"
            f" measured gaps agreed with the 90 % interval (earlier versions: {before} of"
            f" {of_them}){'; farther away it was not tested' * (factor > NEAR)}. "
        )
        published = self._without_published() if factor > NEAR else ""
        return (
            f"Confidence: {where}. {coverage}{published}Pilots: width {own['width'].min():.0f} to"
            f" {width:.0f}, {layers:.0f} layers, {vocabulary:,.0f} entries of vocabulary,"
            f" {own['tokens'].max():,.0f} tokens, {own['seeds'].min()} seeds each; {beaten} of"
            f" {len(own)} untied ones beat bigram counts."
        )

    def _without_published(self) -> str:
        """Return a sentence with the prediction from all but the published gaps."""
        measured = self.process.measured
        is_published = measured["source"].isin(gap_process.code_of(self.published))
        (own,) = predict(GapProcess(measured[~is_published]), [self.target], self.pilots)
        return (
            f"Without the {is_published.sum()} published gaps, from your pilots and jaxtie's own"
            f" models alone, the interval would be {own.interval[0]:+.3f} to"
            f" {own.interval[1]:+.3f}. "
        )

    def _next(self) -> str:
        if self.prediction.factor > NEAR:
            how = "train two seeds both ways, each at a learning rate that suits it"
            if self.target.tokens >= 10 * self.pilots["tokens"].max():
                how += (
                    f", for a tenth of the tokens ({self.target.tokens / 10:,.0f}). These"
                    " four runs take two fifths of the tokens of the final one, tuning aside, and"
                    " the gap may still change after them"
                )
            return (
                f"Next: if {MARGIN:g} nat matters to you, {how}."
                " jaxtie advise --from-logs tied.csv,untied.csv then gives an interval."
            )
        if self.recommendation == "not decided":
            return f"Next: {self.retry}"
        arm = "tied" if self.recommendation == "tie" else "untied"
        return f"Next: train it {arm}."

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
        header = ("width", "tokens", "tied", "untied", "tied − untied")
        bigram = self.pilots["bigram"].iloc[0]
        note = (
            "Validation loss, nat; mean over seeds ± 90 %, each arm at its own learning rate."
            f" Bigram counts: {bigram:.3f}."
        )
        return Table("Pilots", header, rows, note)

    def _repr_markdown_(self) -> str:
        """Show the answer in a notebook."""
        return "\n\n".join([*self.sentences, *(table.markdown() for table in self.tables)])

    def plot(self) -> Figure:
        """Draw pilots, prediction and margin against the width."""
        figure, ((axes,),) = plots.subplots(1, 1, (8.6, 4.2))
        _draw(axes, self)
        return figure

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for `--json`."""
        return {
            "recommendation": self.recommendation,
            "answer": self.sentences,
            "target": self.target._asdict(),
            "gap": {
                **self.prediction._asdict(),
                **dict(zip(("low", "high"), self.prediction.interval)),
                "probability_above_margin": self.prediction.risk,
            },
            "margin": MARGIN,
            "pilots": self.pilots.to_dict("records"),
            "published": nearest_published(self.published, self.target).to_dict("records"),
        }


def process_after(pilots: pd.DataFrame, known: pd.DataFrame) -> GapProcess:
    """Return the process after pilots and the gaps that are known before, `measured_gaps`."""
    own = pilots.assign(source=YOURS)[gap_process.COLUMNS]
    return GapProcess(pd.concat([known, own]))


def predict(process: GapProcess, targets: Sequence[Size], pilots: pd.DataFrame) -> list[Prediction]:
    """Predict the gaps at some sizes."""
    wanted = pd.DataFrame(targets).assign(source=YOURS)
    factors = distances(targets, pilots).max(axis=1)
    return list(map(Prediction, *(own.tolist() for own in (*process.predict(wanted), factors))))


def distances(targets: Sequence[Size], pilots: pd.DataFrame) -> np.ndarray:
    """Return how many times the largest pilot's each size is, Mx4; a vocabulary, either way."""
    ratio_Mx4 = np.array(targets) / pilots[list(Size._fields)].to_numpy().max(axis=0)
    vocabulary = Size._fields.index("vocabulary")
    ratio_Mx4[:, vocabulary] = np.maximum(ratio_Mx4[:, vocabulary], 1 / ratio_Mx4[:, vocabulary])
    return ratio_Mx4


def pilot_gaps(members: pd.DataFrame) -> pd.DataFrame:
    """Return a row per size with mean losses and gap, its standard error and half an interval.

    Columns: those of `Size`, bigram, gap, seeds, error, degrees, half, tied, untied; nat. The
    deviation over seeds is pooled over sizes, and with `PRIOR_DEGREES` degrees of freedom of
    `PRIOR_DEVIATION`, since pilots have few seeds (Smyth 2004, section 3).
    """
    from scipy.stats import t  # heavy

    size = [*Size._fields, "bigram"]
    losses = members.pivot(index=[*size, "seed"], columns="arm", values="loss")
    found = gap_model.pooled((losses["tied"] - losses["untied"]).rename("gap"), size)
    degrees = found["degrees"] + PRIOR_DEGREES
    squares = found["degrees"] * found["error"] ** 2 * found["seeds"]
    variance = (squares + PRIOR_DEGREES * PRIOR_DEVIATION**2) / degrees
    found["error"] = np.sqrt(variance / found["seeds"])
    half = found["error"] * t.ppf(1 - ERROR / 2, degrees)
    mean = losses.groupby(size).mean().reset_index()
    return found.assign(half=half).merge(mean, on=size)


def nearest_published(published: pd.DataFrame, target: Size) -> pd.DataFrame:
    """Return the three published causal comparisons of like size, the nearest first.

    The distance is that of ln width, ln vocabulary and ln tokens; rows that lack one, or a gap in
    nats, are left out.
    """
    columns = ["width", "vocabulary", "tokens"]
    known = published[published["objective"] == "causal"].dropna(subset=[*columns, "gap_nats"])
    wanted = np.log([target.width, target.vocabulary, target.tokens])
    distance = np.linalg.norm(np.log(known[columns].to_numpy(np.float64)) - wanted, axis=1)
    return known.iloc[np.argsort(distance, kind="stable")[:3]]


def published_table(published: pd.DataFrame, target: Size) -> Table:
    """Return what others measured at the sizes nearest to the target."""
    rows = [
        (
            f"{own.source}{' *' * (own.differed == own.differed)}",
            f"{own.width:.0f}",
            f"{own.vocabulary:,.0f}",
            f"{own.tokens:,.0f}",
            f"{own.gap_nats:+.4f}",
            f"{own.seeds:.0f}",
        )
        for own in nearest_published(published, target).itertuples()
    ]
    header = ("source", "width", "vocabulary", "tokens", "tied − untied", "seeds")
    note = (
        "Nat; nearest by width, vocabulary and tokens. *: something else differed, too. Details and"
        f" links: {installed_data('published-comparisons.csv')}."
    )
    return Table("What others measured, nearest first", header, rows, note)


def _draw(axes: Axes, answer: Answer) -> None:
    pilots, target = answer.pilots.sort_values("width"), answer.target
    corners = [Size(*pilots[list(Size._fields)].iloc[i]) for i in (0, -1)]
    corners += [target] * (target.width > corners[-1].width)
    path = [
        Size(*np.exp((1 - share) * np.log(first) + share * np.log(second)))
        for first, second in itertools.pairwise(corners)
        for share in np.linspace(0, 1, 25)
    ]
    grey: dict[str, Any] = {"color": "#3d3d3d"}
    predicted = predict(answer.process, path, answer.pilots)
    width = [size.width for size in path]
    low, high = zip(*(each.interval for each in predicted))
    axes.fill_between(width, low, high, **grey, alpha=0.15, linewidth=0, label="predicted, 90 %")
    middle = [each.mean for each in predicted]
    axes.plot(width, middle, **grey, linewidth=1, linestyle="--", label="predicted, mean")
    ends = answer.prediction.interval
    bar: dict[str, Any] = {"marker": "_", "markersize": 14, "linewidth": 3}
    axes.plot([target.width] * 2, ends, **grey, **bar, label="your model, 90 %")
    for end in (*ends, answer.prediction.mean):
        note: dict[str, Any] = {"va": "center", "annotation_clip": False}
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.annotate(f"{end:+.3f}", (1.08 * target.width, end), **note, bbox=box)
    ((colour, _),) = plots.coloured(["pilots"])
    dots: dict[str, Any] = {"color": colour, "marker": "o", "linestyle": ""}
    axes.errorbar(pilots["width"], pilots["gap"], pilots["half"], **dots, label="pilots, 90 %")
    near = nearest_published(answer.published, target)
    cross = {**grey, "marker": "x", "linestyle": "", "label": "published, nearest"}
    axes.plot(near["width"], near["gap_nats"], **cross)
    axes.axhline(0, **grey, linewidth=0.8)
    axes.axhline(MARGIN, **grey, linewidth=0.8, linestyle=":", label=f"margin, {MARGIN:g}")
    largest = pilots["width"].max()
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set(
        xlabel=f"width{f'; beyond {largest:.0f} all sizes grow to yours' * (len(corners) > 2)}",
        ylabel="loss(tied) − loss(untied), nat\n← tied better    untied better →",
        title=re.split(r"[,(]", answer.sentences[0])[0],
    )
    axes.set_xlim(right=1.5 * max(target.width, largest, near["width"].max()))  # for the numbers
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def write(answer: Answer, command: str) -> None:
    """Write the figure, `summary.md`, `answer.json`, and a section for the page of `--all`."""
    out, picture = answer.out, plots.Picture(CAPTION, answer.plot)
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
