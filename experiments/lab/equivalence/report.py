"""Sentences, tables, figure and files of the answer. Imports no jax.

Shapes: P pairs of tokens.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equivalence import estimators, judgement
from jaxtie.results import plots
from jaxtie.results.folder import write_sealed
from jaxtie.results.tables import Table, format_number

EXACTLY = 1e-9  # rounding of exact distributions
NAMED = 12  # offenders of each kind that the figure names
CAPTION = (
    "Every pair of tokens by its semantic divergence S² and its conditional divergence C², each"
    " relative to unrelated pairs of like frequency: 0 is equivalent, 1 unrelated. Where the"
    " hypothesis holds, pairs lie on the diagonal; below the lines at 0.1 they are near in a sense."
)


def exact_table(exact: xr.Dataset) -> Table:
    """Return both divergences of each pair of symbols of a process."""
    rows = []
    for pair in exact["pair"].values:
        own = exact.sel(pair=pair)
        values = [float(own[name]) for name in ("semantic", "conditional", "bias")]
        shown = [format_number(0.0 if abs(value) < EXACTLY else value) for value in values]
        overlap = float(own["overlap"])
        rows.append((str(pair), *shown, "no overlap" if overlap == 0 else format_number(overlap)))
    note = (
        "S² in [0, 1] and C² (nat²) are 0 where two symbols are equivalent; an output bias"
        " can carry m (nat)."
    )
    return Table("Exact, by enumeration", ("pair", "S²", "C²", "m", "overlap"), rows, note)


def exact_sentence(exact: xr.Dataset) -> str:
    """State whether the semantically equivalent pairs of a process are the equally likely ones."""
    semantic_P = exact["semantic"].values < EXACTLY
    constant_P = exact["conditional"].values < EXACTLY
    likely_P = constant_P & (np.abs(exact["bias"].values) < EXACTLY)
    pairs = exact["pair"].values
    if (semantic_P == likely_P).all():
        listed = ", ".join(map(str, pairs[semantic_P])) or "no two symbols"
        return f"The distributional hypothesis holds: {listed} are equivalent in both senses."
    parts = [
        f"{pair} are semantically equivalent, but not equally likely: by {bias:+.3f} nat in every"
        " context, which an output bias can encode"
        for pair, bias in zip(pairs, exact["bias"].values.tolist())
        if pair in pairs[semantic_P & constant_P & ~likely_P]
    ]
    parts += [
        f"{pair} are semantically equivalent, but not equally likely; no output bias can encode it"
        for pair in pairs[semantic_P & ~constant_P]
    ]
    parts += [
        f"{pair} are equally likely, but not semantically equivalent"
        for pair in pairs[likely_P & ~semantic_P]
    ]
    return f"The distributional hypothesis fails: {'; '.join(parts)}."


def verdict_sentence(verdict: judgement.Verdict) -> str:
    """State the answer in a sentence."""
    word = "is inconclusive" if verdict.word == "inconclusive" else verdict.word
    return (
        f"The distributional hypothesis {word} for these tokens: of pairs with nearly the same"
        f" consequences {verdict.conditional_of_semantic} are nearly as likely up to a constant, of"
        f" pairs nearly as likely up to a constant {verdict.semantic_of_conditional} have nearly"
        " the same consequences."
    )


def answer_table(pairs: xr.Dataset, verdict: judgement.Verdict) -> Table:
    """Return the shares of both directions, and how well pairs were measured."""
    auc, others = judgement.duplicates_auc(pairs), int((pairs["planted"] == 0).sum())
    found = [f"{int(pairs[f'{sense}_found'].sum())} of {others}" for sense in judgement.SENSES]
    shared = [f"{pairs.attrs[f'{sense}_shared_deviation']:.4f}" for sense in judgement.SENSES]
    below = f"share below {judgement.NOT_FAR:g} in"
    rows = [
        (f"near in S, {below} C", str(verdict.conditional_of_semantic)),
        (f"near in C, {below} S", str(verdict.semantic_of_conditional)),
        ("AUC of synthetic duplicates against unrelated words", format_number(auc)),
        ("pairs distinguished from 0 in S, in C", ", ".join(found)),
        ("errors that all sentences share, of a typical pair, in S, in C", ", ".join(shared)),
    ]
    note = (
        f"Near: below {judgement.NEAR} of unrelated pairs of like frequency. Shares are weighted by"
        " the tokens' mass, with 95 % intervals over tokens. C² is bounded, to be on the scale of"
        " S²: 1 − exp(−C²/8). The hypothesis holds where both shares are above"
        f" {judgement.HELD:.0%}: a convention; README.md reports its results on sources with ground"
        " truth."
    )
    return Table("Does the hypothesis hold?", ("", "of pairs"), rows, note)


def offender_table(
    pairs: xr.Dataset, kind: str, numbers: Iterable[int], examples: Mapping[int, tuple[str, str]]
) -> Table:
    """Return the pairs that violate the hypothesis in one way."""
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
        "S, C: relative to unrelated pairs. *: overlap below"
        f" {estimators.EXTRAPOLATED}: one of the two hardly ever stands where the other does, so"
        " the models were never put to the test there. ¦: end of a sentence."
    )
    return Table(f"Offenders: {kind}", header, rows, note)


def plane(pairs: xr.Dataset, named: Sequence[int]) -> Figure:
    """Draw S against C, with the names of some pairs."""
    figure, ((axes,),) = plots.subplots(1, 1, (7.5, 6))
    _scatter(axes, pairs)
    for i in named:
        own = pairs.isel(pair=i)
        relative = np.array([float(own[f"{sense}_relative"]) for sense in judgement.SENSES])
        name, at = f"{own['first'].item()}/{own['second'].item()}", tuple(_signed_root(relative))
        axes.annotate(name, at, fontsize=7, xytext=(3, 3), textcoords="offset points")
    axes.set(
        xlabel="S: semantic divergence, 1 = unrelated",
        ylabel="C: conditional divergence, 1 = unrelated",
    )
    axes.legend(loc="lower right")
    return figure


def _signed_root(x: np.ndarray) -> np.ndarray:
    """Spread values near 0."""
    return np.sign(x) * np.sqrt(np.abs(x))


def _scatter(axes: Axes, pairs: xr.Dataset) -> None:
    planted = pairs["planted"].values > 0
    near = pairs["near"].values & ~planted
    groups = {
        "random": ~near & ~planted,
        "neighbours in a table": near,
        "synthetic duplicates": planted,
    }
    relative_2xP = [_signed_root(pairs[f"{sense}_relative"].values) for sense in judgement.SENSES]
    for (colour, label), chosen in zip(plots.coloured(groups), groups.values()):
        x, y = (relative_P[chosen] for relative_P in relative_2xP)
        axes.scatter(x, y, s=9, color=colour, alpha=0.6, linewidths=0, label=label)
    for line in (axes.axvline, axes.axhline):
        line(math.sqrt(judgement.NEAR), color="#3d3d3d", linewidth=0.8, linestyle=":")
    ticks = np.array([-0.1, 0, 0.1, 0.5, 1, 2, 4])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(_signed_root(ticks), [f"{tick:g}" for tick in ticks])


class Answer(NamedTuple):
    """Result of evaluating two models."""

    pairs: xr.Dataset  # see `judgement.measured_pairs`
    verdict: judgement.Verdict
    offenders: dict[str, np.ndarray]  # kind -> numbers of pairs
    examples: dict[int, tuple[str, str]]  # number of a pair -> a context of each of its tokens
    skipped: list[str]  # tokens that are too rare to be evaluated
    notes: list[str]  # caveats

    @property
    def sentences(self) -> list[str]:
        """The answer in plain words."""
        lines = [verdict_sentence(self.verdict)]
        if (auc := judgement.duplicates_auc(self.pairs)) < judgement.MIN_AUC:
            lines.append(
                "The models know too little: synthetic duplicates are distinguished from unrelated"
                f" words with an AUC of {auc:.2f}, less than {judgement.MIN_AUC}; train them longer"
                " (--steps), or larger ones (--size)."
            )
        return [*lines, *self.notes]

    @property
    def tables(self) -> list[Table]:
        """All tables, the answer first."""
        offenders = (
            offender_table(self.pairs, kind, numbers, self.examples)
            for kind, numbers in self.offenders.items()
        )
        return [answer_table(self.pairs, self.verdict), *offenders]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for `--json`."""
        names = ("first", "second", "semantic_relative", "conditional_relative", "bias", "overlap")
        offenders = {
            kind: [{name: self.pairs[name][i].item() for name in names} for i in numbers.tolist()]
            for kind, numbers in self.offenders.items()
        }
        return {
            "answer": self.sentences,
            "verdict": self.verdict.word,
            "near_in_S_share_near_in_C": self.verdict.conditional_of_semantic._asdict(),
            "near_in_C_share_near_in_S": self.verdict.semantic_of_conditional._asdict(),
            "skipped": self.skipped,
            "offenders": offenders,
        }


def write(answer: Answer, out: Path, command: str) -> None:
    """Write `results.nc`, `summary.md` and the figure."""
    out.mkdir(parents=True, exist_ok=True)
    pairs = answer.pairs.assign_attrs(command=command, answer=" ".join(answer.sentences))
    _write_pairs(pairs, out / "results.nc")
    named = [int(i) for numbers in answer.offenders.values() for i in numbers[:NAMED]]
    picture = plots.Picture(CAPTION, lambda: plane(answer.pairs, named))
    plots.draw_all({"plane": picture}, out / "figures")
    title, image = "# Does the distributional hypothesis hold?", "![plane](figures/plane.png)"
    lines = [title, "", *answer.sentences, "", f"`{command}`", ""]
    lines += [*(table.markdown() for table in answer.tables), image, "", CAPTION, ""]
    (out / "summary.md").write_text("\n".join(lines), encoding="utf-8")


def _write_pairs(pairs: xr.Dataset, path: Path) -> None:
    """Write the pairs as NetCDF, which has no booleans, and replace the file only when complete."""
    flags = {name: pairs[name].astype(np.int8) for name in pairs if pairs[name].dtype == bool}
    numeric = pairs.assign(flags)
    write_sealed(path, bytes(numeric.to_netcdf(engine="h5netcdf")))
