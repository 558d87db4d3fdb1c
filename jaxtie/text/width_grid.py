"""The price of one table on text, over widths and vocabularies: what is declared, and which runs follow from it. No jax.

A *point* is a vocabulary and a width. At each point every arm has its own learning rate, see `jaxtie.text.tuned`. Beside the
declared arms stand two of one table that is wider, with as many parameters as two tables have: one for as many tokens, and
one for as many operations.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jaxtie.experiment import check, names_of
from jaxtie.models.sizes import Transformer, causal_parameters, causal_products
from jaxtie.text.declaration import Corpus, TextExperiment
from jaxtie.text.tuned import JUDGED_ON, TunedRun, at_rate, finals, trial

ONE, ONE_BIASED, TWO, TWO_LATER = "tied", "tied+bias", "untied", "untied@half"
WIDER, WIDER_AT_EQUAL_OPERATIONS = "wider tied", "wider tied at equal operations"
ALL_ARMS = (ONE, ONE_BIASED, TWO, TWO_LATER, WIDER, WIDER_AT_EQUAL_OPERATIONS)


class GridPoint(NamedTuple):
    """A vocabulary and a width."""

    vocabulary: int
    width: int

    @property
    def name(self) -> str:
        """That can be a folder's."""
        return f"V{self.vocabulary}-D{self.width}"

    def __str__(self) -> str:
        return f"{self.vocabulary:,} × {self.width}"


class PriceClaim(NamedTuple):
    """What is said of losses before they are measured: a difference of two arms lies between two bounds, in nats.

    Attributes:
      statement: in words.
      arm, other: of `ALL_ARMS`; the loss of the first less that of the second.
      low, high: bounds.
      at: "every point"; or the difference at the narrowest width less that at the widest, at every vocabulary; or that at the
        largest vocabulary less that at the smallest, at every width.
    """

    statement: str
    arm: str
    other: str = TWO
    low: float = -math.inf
    high: float = math.inf
    at: Literal["every point", "narrowest less widest", "largest less smallest vocabulary"] = "every point"


@dataclass(frozen=True)
class WidthGrid:
    """All points, and how each is carried out.

    Attributes:
      vocabularies, widths: ascending.
      rates: width -> learning rates, ascending, of which each arm has its best one; of the wider arms, lower by as many times
        as they are wider.
      trial_seed: that the rates are tried with.
      margin: nats; a lower price is none.
      claims: judged when all is measured.
    """

    vocabularies: tuple[int, ...]
    widths: tuple[int, ...]
    rates: Mapping[int, tuple[float, ...]]
    trial_seed: int
    margin: float
    claims: tuple[PriceClaim, ...]

    def __post_init__(self):
        check([*self.rates] == [*self.widths], f"rates = {dict(self.rates)}: expected some of each width, {self.widths}")
        for name, values in {"vocabularies": self.vocabularies, "widths": self.widths, **self.rates}.items():
            named = name if isinstance(name, str) else f"rates of width {name}"
            check(bool(values) and list(values) == sorted({*values}), f"{named} = {values}: expected them to ascend")

    def check_experiment(self, declared: TextExperiment) -> None:
        """UserError where an experiment cannot be carried out at all points, or its seeds are not all new."""
        midway = f"untied@{declared.steps // 2}"
        wanted = [ONE, ONE_BIASED, TWO, midway]
        check(names_of(declared.arms) == wanted, f"arms = {','.join(names_of(declared.arms))}: expected {','.join(wanted)}")
        check(declared.task == "causal", f"task = {declared.task!r}: expected causal, of which sizes are counted")
        check(self.trial_seed not in declared.seeds, f"trial_seed = {self.trial_seed}: expected none of the seeds judged by")

    @property
    def points(self) -> tuple[GridPoint, ...]:
        """In the order in which they are done."""
        return tuple(GridPoint(vocabulary, width) for vocabulary in self.vocabularies for width in self.widths)

    def trials(self, declared: TextExperiment, point: GridPoint, corpus: Corpus) -> Iterator[TunedRun]:
        """The runs that learning rates are chosen by.

        Args:
          declared: what is trained, but for its sizes, its rate and its text.
          corpus: the text in the point's vocabulary.
        """
        own = _at_point(declared, point, corpus)
        for rate in self.rates[point.width]:
            plain = trial(own, rate, self.trial_seed, _labels(own))
            yield plain
            wider = _widened(plain.experiment, plain.experiment.steps)
            lower = float(f"{rate * point.width / wider.model.width:.2g}")
            yield TunedRun(f"trials/{lower:g}-wider", at_rate(wider, lower), (WIDER,))

    def finals(
        self, declared: TextExperiment, point: GridPoint, corpus: Corpus, chosen: Mapping[str, float]
    ) -> Iterator[TunedRun]:
        """The runs that are judged, each arm at its own rate.

        Args:
          chosen: rate of each arm that was tried.
        """
        own = dataclasses.replace(_at_point(declared, point, corpus), valid_half=JUDGED_ON)
        yield from finals(own, chosen, _labels(own))
        rate, fewer = chosen[WIDER], steps_at_equal_operations(own)
        yield TunedRun(f"wider/{rate:g}", at_rate(_widened(own, own.steps), rate), (WIDER,))
        short = at_rate(_widened(own, fewer), rate)
        yield TunedRun(f"equal-operations/{rate:g}", short, (WIDER_AT_EQUAL_OPERATIONS,))


def _labels(experiment: TextExperiment) -> tuple[str, ...]:
    return tuple(arm.name if arm.untie_at is None else TWO_LATER for arm in experiment.arms)


def _at_point(declared: TextExperiment, point: GridPoint, corpus: Corpus) -> TextExperiment:
    times = declared.model.feedforward // declared.model.width
    model = dataclasses.replace(declared.model, width=point.width, feedforward=times * point.width)
    own = dataclasses.replace(corpus, vocab_size=point.vocabulary)
    return dataclasses.replace(declared, name=f"{declared.name}-{point.name}", model=model, corpus=own)


def _widened(experiment: TextExperiment, steps: int) -> TextExperiment:
    model = as_large(experiment.model, experiment.corpus.vocab_size)
    return dataclasses.replace(experiment, name=f"{experiment.name}-wider", model=model, arms=(ONE,), steps=steps)


def as_large(model: Transformer, vocabulary: int) -> Transformer:
    """A wider model that has as many parameters with one table as a model with two, to a unit of its feed-forward layers.

    Its width is the one that comes nearest with a feed-forward layer in proportion; this then takes up what is left.
    """
    wanted, times = causal_parameters(model, vocabulary, tied=False), model.feedforward / model.width
    even = 2 * model.heads  # width / heads is even, for rotary positions

    def wide(width: int) -> Transformer:
        return dataclasses.replace(model, width=width, feedforward=round(times * width))

    def too_many(model: Transformer) -> int:
        return causal_parameters(model, vocabulary, tied=True) - wanted

    nearest = min(map(wide, range(model.width, 2 * model.width + 1, even)), key=lambda each: abs(too_many(each)))
    of_unit = model.layers * (2 * nearest.width + 1)
    return dataclasses.replace(nearest, feedforward=nearest.feedforward - round(too_many(nearest) / of_unit))


def steps_at_equal_operations(experiment: TextExperiment) -> int:
    """Steps of the wider model that take as many operations as all of the narrow one's, to the nearest record."""
    vocabulary, every = experiment.corpus.vocab_size, experiment.record_every
    wider = as_large(experiment.model, vocabulary)
    share = causal_products(experiment.model, vocabulary) / causal_products(wider, vocabulary)
    return every * max(1, round(experiment.steps * share / every))
