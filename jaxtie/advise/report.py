"""Sentences, tables, figure and files of the answer.

What is shown of a measurement: a sentence, tables, the plane S x C. Imports no jax.

Asking two runs: load, check, measure, judge; and what is written of it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxtie.advise import estimators, judgement, measure
from jaxtie.advise.models import (
    Losses,
    Trained,
    batches_of,
    check_knows_more_than_frequencies,
    load_trained,
    losses,
)
from jaxtie.config import UserError
from jaxtie.results import plots
from jaxtie.results.page_section import leave_for_page
from jaxtie.results.tables import Table, number
from jaxtie.run.lifecycle import Session

EXACTLY = 1e-9  # of exact laws
CAPTION = (
    "Every pair of tokens by its semantic divergence S² and its conditional divergence C², each"
    " beside unrelated pairs of like frequency: 0 is equivalent, 1 unrelated. Where the hypothesis"
    " holds, pairs lie on the diagonal; below the lines at 0.1 they are near in a sense."
)


def exact_table(exact: xr.Dataset) -> Table:
    """Both divergences of each pair of symbols of a process."""
    rows = []
    for pair in exact["pair"].values:
        own = exact.sel(pair=pair)
        semantic, conditional, bias, overlap = (
            float(own[name]) for name in ("semantic", "conditional", "bias", "overlap")
        )
        shown = [
            number(0.0 if abs(value) < EXACTLY else value)
            for value in (semantic, conditional, bias)
        ]
        rows.append((str(pair), *shown, "no overlap" if overlap == 0 else number(overlap)))
    note = (
        "S² in [0, 1] and C² (nat²) are 0 where two symbols are equivalent; m (nat) is what an"
        " output bias can carry."
    )
    return Table("Exact, by enumeration", ("pair", "S²", "C²", "m", "overlap"), rows, note)


def exact_sentence(exact: xr.Dataset) -> str:
    """Whether the hypothesis holds for the process: are the semantically equivalent pairs the
    equally likely ones?
    """
    semantic_P = exact["semantic"].values < EXACTLY
    likely_P = (exact["conditional"].values < EXACTLY) & (np.abs(exact["bias"].values) < EXACTLY)
    biased_P = semantic_P & ~likely_P & (exact["conditional"].values < EXACTLY)
    pairs = exact["pair"].values
    if (semantic_P == likely_P).all():
        return (
            f"The distributional hypothesis holds: {_listed(pairs[semantic_P])} are equivalent in"
            " both senses."
        )
    parts = []
    for pair in pairs[biased_P]:
        bias = float(exact["bias"].sel(pair=pair))
        parts.append(
            f"{pair} are semantically equivalent, but not equally likely: by {bias:+.3f} nat in"
            " every context, which an output bias carries"
        )
    rows = semantic_P & ~likely_P & ~biased_P
    parts += [
        f"{pair} are semantically equivalent, but not equally likely; no output bias carries it"
        for pair in pairs[rows]
    ]
    parts += [
        f"{pair} are equally likely, but not semantically equivalent"
        for pair in pairs[likely_P & ~semantic_P]
    ]
    return f"The distributional hypothesis fails: {'; '.join(parts)}."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(str, names)) or "no two symbols"


def verdict_sentence(verdict: judgement.Verdict) -> str:
    """The answer in a sentence."""
    one, other = verdict.conditional_of_semantic, verdict.semantic_of_conditional
    shares = (
        f"of pairs with nearly the same consequences {one} are nearly as likely up to a constant, "
        f"of pairs nearly as likely up to a constant {other} have nearly the same consequences"
    )
    words = {"holds": "holds", "fails": "fails", "inconclusive": "is inconclusive"}
    return f"The distributional hypothesis {words[verdict.word]} for these tokens: {shares}."


def answer_table(pairs: xr.Dataset, verdict: judgement.Verdict) -> Table:
    """The shares both ways, and the rank correlation."""
    rank, p = judgement.mantel(pairs)
    strict = judgement.near_in_both(pairs)
    shared = [pairs.attrs[f"{sense}_shared_deviation"] for sense in judgement.SENSES]
    rows: list[tuple[str, ...]] = [
        (f"near in S, share below {judgement.BESIDE:g} in C", str(verdict.conditional_of_semantic)),
        (f"near in C, share below {judgement.BESIDE:g} in S", str(verdict.semantic_of_conditional)),
        ("near in S, share near in C, which is not bounded", str(strict.conditional_of_semantic)),
        ("near in C, which is not bounded, share near in S", str(strict.semantic_of_conditional)),
        ("rank correlation of S² and C² (Mantel)", f"{number(rank)} (p {p:.4f})"),
        (
            "pairs told from 0 in S, in C",
            _counted(pairs, "semantic_found") + ", " + _counted(pairs, "conditional_found"),
        ),
        (
            "errors that all sentences share, of a typical pair, in S, in C",
            ", ".join(f"{each:.4f}" for each in shared),
        ),
    ]
    note = (
        f"Near: below {judgement.NEAR} of unrelated pairs of like frequency. Shares are weighted by"
        " the tokens' mass, with 95 % intervals over tokens. C² is bounded, to be on the scale of"
        " S²: 1 − exp(−C²/8). Said to hold where both of the first two are above"
        f" {judgement.HELD:.0%}: a convention; README.md has what it says of sources of known"
        " truth. The correlation is over all pairs of some tokens, most of them unrelated."
    )
    return Table("Does the hypothesis hold?", ("", "of pairs"), rows, note)


def _counted(pairs: xr.Dataset, name: str) -> str:
    return f"{int(pairs[name].sum())} of {int((pairs['planted'] == 0).sum())}"


def planted_table(pairs: xr.Dataset) -> Table:
    """What the instrument makes of words that were planted twice."""
    rows = []
    for chance in np.unique(pairs["planted"].values[pairs["planted"].values > 0])[::-1]:
        check = judgement.check_planted(pairs, chance)
        shown = [f"{check.covered[sense]:.0%}" for sense in judgement.SENSES]
        shown += [f"{check.auc[sense]:.2f}" for sense in judgement.SENSES]
        odds = abs(math.log((1 - chance) / chance))
        rows.append(
            (f"duplicate at {chance:g}", str(check.pairs), *shown, f"{check.bias:.2f} ({odds:.2f})")
        )
    header = (
        "planted",
        "pairs",
        "S² covers 0",
        "C² covers 0",
        "AUC of S²",
        "AUC of C²",
        "median |m| (true)",
    )
    note = (
        "Words planted twice are equivalent in both senses: 95 % of the intervals should cover 0"
        " (errors that all sentences share were measured on these very pairs). AUC: against"
        " neighbours in the tables."
    )
    return Table("Known truth in the text", header, rows, note)


def offender_table(
    pairs: xr.Dataset, kind: str, numbers: Iterable[int], examples: Mapping[int, tuple[str, str]]
) -> Table:
    """Named pairs that break the hypothesis in one way."""
    rows = []
    for i in numbers:
        own = pairs.isel(pair=int(i))
        mark = " *" if bool(own["extrapolated"]) else ""
        values = [
            f"{float(own[name]):.2f}"
            for name in ("semantic_relative", "conditional_relative", "bias", "overlap")
        ]
        shown = " / ".join(text.replace("|", "¦") for text in examples.get(int(i), ()))
        rows.append((f"{own['first'].item()} – {own['second'].item()}{mark}", *values, shown))
    rows = rows or [("none", *[""] * 5)]
    header = ("pair", "S", "C", "m", "overlap", "for example")
    note = (
        f"S, C: beside unrelated pairs. *: overlap below {estimators.EXTRAPOLATED}: one of the two"
        " hardly ever stands where the other does, so the models were never put to the test there."
        " ¦: end of a sentence."
    )
    return Table(f"Offenders: {kind}", header, rows, note)


def plane(pairs: xr.Dataset, named: Sequence[int]) -> Figure:
    """S x C, with named pairs."""
    figure, ((axes,),) = plots.subplots(1, 1, (7.5, 6))
    _scatter(axes, pairs)
    for i in named:
        own = pairs.isel(pair=int(i))
        at = tuple(
            _squeezed(np.array([own["semantic_relative"], own["conditional_relative"]], np.float64))
        )
        axes.annotate(
            f"{own['first'].item()}/{own['second'].item()}",
            at,
            fontsize=7,
            xytext=(3, 3),
            textcoords="offset points",
        )
    axes.set(
        xlabel="S: semantic divergence, 1 = unrelated",
        ylabel="C: conditional divergence, 1 = unrelated",
    )
    axes.legend(loc="lower right")
    return figure


def _squeezed(x: np.ndarray) -> np.ndarray:
    """Signed square roots: near 0 pairs would lie on each other."""
    return np.sign(x) * np.sqrt(np.abs(x))


def _scatter(axes: Axes, pairs: xr.Dataset) -> None:
    planted = pairs["planted"].values > 0
    near = pairs["near"].values & ~planted
    groups = {
        "random": ~near & ~planted,
        "neighbours in a table": near,
        "planted duplicates": planted,
    }
    for (colour, label), chosen in zip(plots.coloured(groups), groups.values()):
        x, y = (_squeezed(pairs[f"{sense}_relative"].values[chosen]) for sense in judgement.SENSES)
        axes.scatter(x, y, s=9, color=colour, alpha=0.6, linewidths=0, label=label)
    for line in (axes.axvline, axes.axhline):
        line(math.sqrt(judgement.NEAR), color="#3d3d3d", linewidth=0.8, linestyle=":")
    ticks = np.array([-0.1, 0, 0.1, 0.5, 1, 2, 4])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(_squeezed(ticks), [f"{tick:g}" for tick in ticks])


NAMED, LISTED = 12, 20  # offenders of a kind that the figure names, that tables list
VALIDATION = 100  # batches that losses are measured on


OF_MASKED = (
    "Masked models, contexts on both sides: there tokens that are equally likely up to a constant"
    " have the same consequences. So the hypothesis can fail by constants alone, which an output"
    " bias carries, as long as single changes of tokens connect all contexts; what is near in C and"
    " far in S is an error of the models, or lies outside of the context."
)


class Answer(NamedTuple):
    """What came out of two models.

    Attributes:
      pairs: see `judgement.measured_pairs`.
      offenders: kind -> numbers of pairs.
      examples: number of a pair -> a context of each of its tokens.
    """

    pairs: xr.Dataset
    verdict: judgement.Verdict
    offenders: dict[str, np.ndarray]
    examples: dict[int, tuple[str, str]]
    skipped: list[str]
    notes: list[str]

    @property
    def sentences(self) -> list[str]:
        """The answer in plain words."""
        lines = [verdict_sentence(self.verdict)]
        if (told := judgement.told_of_planted(self.pairs)) < judgement.TELLING:
            lines.append(
                "The models know too little: words planted twice are told from unrelated ones with"
                f" an AUC of {told:.2f}, less than {judgement.TELLING}; train them longer"
                " (--steps), or larger ones (--size)."
            )
        return [*lines, *self.notes]

    @property
    def tables(self) -> list[Table]:
        """All of them, the answer first."""
        found = [answer_table(self.pairs, self.verdict)]
        found += [planted_table(self.pairs)] if (self.pairs["planted"] > 0).any() else []
        return found + [
            offender_table(self.pairs, kind, numbers, self.examples)
            for kind, numbers in self.offenders.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return {
            "answer": self.sentences,
            "verdict": self.verdict.word,
            "near_in_S_share_near_in_C": self.verdict.conditional_of_semantic._asdict(),
            "near_in_C_share_near_in_S": self.verdict.semantic_of_conditional._asdict(),
            "skipped": self.skipped,
            "offenders": {
                kind: [self._pair(i) for i in numbers.tolist()]
                for kind, numbers in self.offenders.items()
            },
        }

    def _pair(self, number: int) -> dict[str, Any]:
        own = self.pairs.isel(pair=number)
        names = ("first", "second", "semantic_relative", "conditional_relative", "bias", "overlap")
        return {name: own[name].item() for name in names}


def ask(paths: tuple[Path, Path], plan: measure.Extent, session: Session) -> Answer:
    """All that two runs' models are asked.

    Raises:
      UserError: see `load_trained`, `of_text.check_two`, `check_knows_more_than_frequencies`.
    """
    if paths[0].resolve() == paths[1].resolve():
        raise UserError(f"--second {paths[1]}: is the first run; expected another model")
    models = tuple(load_trained(path, session.say) for path in paths)
    a, b = models
    measure.check_two(a, b)
    measure.check_tokens(plan.tokens, len(a.material.vocabulary))
    validation = batches_of(a, a.material.text.valid, VALIDATION, seed=2)
    before = tuple(losses(each, validation) for each in models)
    for each, found in zip(models, before):
        check_knows_more_than_frequencies(each, found.mean)
    measurement = measure.measure_text(a, b, plan, session.say)
    offenders = judgement.offenders(measurement.pairs, LISTED)
    examples = {
        int(i): measure.example(measurement, int(i), far=far)
        for (numbers, far) in zip(offenders.values(), judgement.SENSES[::-1])
        for i in numbers
    }
    verdict, notes = (
        judgement.verdict(measurement.pairs),
        _notes(models, before, measurement.skipped),
    )
    return Answer(measurement.pairs, verdict, offenders, examples, measurement.skipped, notes)


def _notes(
    models: tuple[Trained, ...], before: tuple[Losses, ...], skipped: list[str]
) -> list[str]:
    """What a reader has to know besides."""
    a, b = models
    found = [
        f"Validation loss of the two models: {before[0].mean:.3f} and {before[1].mean:.3f} nat."
    ]
    if a.experiment.objective == "masked":
        found.append(OF_MASKED)
    if skipped:
        found.append(f"Skipped, seen fewer than 30 times: {', '.join(skipped)}.")
    if a.material.text.key != b.material.text.key:
        found.append(
            "The two runs had different texts: the second may have seen some of what is"
            " measured on."
        )
    elif None in (a.experiment.half, b.experiment.half) or a.experiment.half == b.experiment.half:
        found.append(
            "Both models saw the same sentences: what these have by chance in common is not told"
            " from the truth."
        )
    if not len(a.material.planted.words_K):
        found.append(
            "No duplicates are planted: nulls and intervals know nothing of errors that all"
            " sentences share."
        )
    return found


def write(answer: Answer, out: Path, command: str) -> None:
    """Write `results.nc`, `summary.md`, the figure, and a section of the page of `--all` into a
    folder.
    """
    out.mkdir(parents=True, exist_ok=True)
    pairs = answer.pairs.assign_attrs(command=command, answer=" ".join(answer.sentences))
    measure.write_pairs(pairs, out / "results.nc")
    named = [int(i) for numbers in answer.offenders.values() for i in numbers[:NAMED]]
    picture = plots.Picture(CAPTION, lambda: plane(answer.pairs, named))
    plots.draw_all({"plane": picture}, out / "figures")
    head = [
        "# Does the distributional hypothesis hold?",
        "",
        *answer.sentences,
        "",
        f"`{command}`",
        "",
    ]
    text = "\n".join(
        [
            *head,
            *(table.markdown() for table in answer.tables),
            "![plane](figures/plane.png)",
            "",
            CAPTION,
            "",
        ]
    )
    (out / "summary.md").write_text(text, encoding="utf-8")
    leave_for_page(out, command, answer.sentences, answer.tables, plane=CAPTION)
