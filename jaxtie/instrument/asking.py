"""Asking two runs: load, check, measure, judge; and what is written of it."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from jaxtie.experiment import UserError
from jaxtie.hypothesis import judgement, report
from jaxtie.instrument import of_text
from jaxtie.results import plots
from jaxtie.results.page_section import leave_for_page
from jaxtie.results.tables import Table
from jaxtie.runs import Session
from jaxtie.text.trained import (
    Losses,
    Trained,
    batches_of,
    check_knows_more_than_frequencies,
    load_trained,
    losses,
)

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
        lines = [report.verdict_sentence(self.verdict)]
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
        found = [report.answer_table(self.pairs, self.verdict)]
        found += [report.planted_table(self.pairs)] if (self.pairs["planted"] > 0).any() else []
        return found + [
            report.offender_table(self.pairs, kind, numbers, self.examples)
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


def ask(paths: tuple[Path, Path], plan: of_text.Extent, session: Session) -> Answer:
    """All that two runs' models are asked.

    Raises:
      UserError: see `load_trained`, `of_text.check_two`, `check_knows_more_than_frequencies`.
    """
    if paths[0].resolve() == paths[1].resolve():
        raise UserError(f"--second {paths[1]}: is the first run; expected another model")
    models = tuple(load_trained(path, session.say) for path in paths)
    a, b = models
    of_text.check_two(a, b)
    of_text.check_tokens(plan.tokens, len(a.material.vocabulary))
    validation = batches_of(a, a.material.text.valid, VALIDATION, seed=2)
    before = tuple(losses(each, validation) for each in models)
    for each, found in zip(models, before):
        check_knows_more_than_frequencies(each, found.mean)
    measurement = of_text.measure_text(a, b, plan, session.say)
    offenders = judgement.offenders(measurement.pairs, LISTED)
    examples = {
        int(i): of_text.example(measurement, int(i), far=far)
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
    if a.experiment.task == "masked":
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
    of_text.write_pairs(pairs, out / "results.nc")
    named = [int(i) for numbers in answer.offenders.values() for i in numbers[:NAMED]]
    picture = plots.Picture(report.CAPTION, lambda: report.plane(answer.pairs, named))
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
            report.CAPTION,
            "",
        ]
    )
    (out / "summary.md").write_text(text, encoding="utf-8")
    leave_for_page(out, command, answer.sentences, answer.tables, plane=report.CAPTION)
