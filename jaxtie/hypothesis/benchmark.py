"""The benchmark of known truth, as it is declared: which sources, at which widths, and what is predicted. Imports no jax.

A data set is a text that is sampled from a source, and a width of the models that are trained on it. In each source one class
of pairs is planted (see `jaxtie.hypothesis.sources`), at one of three strengths. Half of the sources are there to choose
thresholds by, the other half to judge them. What the models cost is the business of `jaxtie.hypothesis.costs`.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from jaxtie.experiment import Declaration, UserError, check
from jaxtie.hypothesis.sources import CLASSES, Plan

MEASURED = ("losses.csv", "prices.csv")  # what a benchmark measures, see `jaxtie.hypothesis.costs`
NOTE = "plan.json"  # of what a source's text was sampled from, beside it
STRENGTHS = ("weak", "medium", "strong")
CALIBRATION, HELD_OUT = "calibration", "held out"
Declared = TypeVar("Declared", bound=Declaration)  # an experiment on text


class DataSet(NamedTuple):
    """A source and a width.

    Attributes:
      planted: of `CLASSES`, what alone is planted.
      strength: of `STRENGTHS`.
      width: of the models.
      half: `CALIBRATION` or `HELD_OUT`.
      plan: of the source.
    """

    planted: str
    strength: str
    width: int
    half: str
    plan: Plan

    @property
    def source(self) -> str:
        """A name that can be a folder's, of the source alone."""
        return f"{self.planted}-{self.strength}".replace(" ", "-")

    @property
    def name(self) -> str:
        """The same, of the data set."""
        return f"{self.source}-{self.width}"

    def experiment(self, declared: Declared) -> Declared:
        """What is trained on it, but for the text: as declared, at its width."""
        times = declared.model.feedforward // declared.model.width
        model = dataclasses.replace(declared.model, width=self.width, feedforward=times * self.width)
        return dataclasses.replace(declared, name=f"{declared.name}-{self.name}", model=model)


class Prediction(NamedTuple):
    """What is said of measured costs, before they are: they lie between two bounds, in nats.

    Attributes:
      sentence: in words.
      arm: whose loss less that of two tables is meant.
      planted: classes; each is looked at by itself.
      low, high: bounds of the quantity, nats.
      quantity: "cost" at every strength and width; "strongest": cost at the strongest, at every width; "by strength": cost
        at the strongest less that at the weakest, at every width; "by width": cost at the narrow width less that at the wide
        one, at the strongest.
    """

    sentence: str
    arm: str
    planted: tuple[str, ...]
    low: float
    high: float
    quantity: Literal["cost", "strongest", "by strength", "by width"] = "cost"


@dataclass(frozen=True)
class Benchmark:
    """All data sets, and what is predicted of them.

    Attributes:
      plans: class -> plans from the weakest to the strongest, three.
      widths: of the models, the narrow one first.
      sentences, length: sampled of each source, and words of each.
      threshold: nats that two tables must save to be worth having.
      predictions: judged when all is measured.
    """

    plans: tuple[tuple[str, tuple[Plan, ...]], ...]
    widths: tuple[int, int]
    sentences: int
    length: int
    threshold: float
    predictions: tuple[Prediction, ...]

    def __post_init__(self):
        check([name for name, _ in self.plans] == list(CLASSES), f"plans: expected of {', '.join(CLASSES)}")
        for name, plans in self.plans:
            check(len(plans) == len(STRENGTHS), f"plans of {name}: expected {len(STRENGTHS)}, from weak to strong")

    def told(self, data_set: DataSet) -> str:
        """All that a data set's text follows from, as JSON."""
        return json.dumps(data_set.plan._asdict() | {"sentences": self.sentences, "length": self.length})

    def check_source(self, data_set: DataSet, folder: Path) -> bool:
        """Whether the text of a data set's source is in a folder, by what was noted there when it was written.

        Raises:
          UserError: where another source's is there.
        """
        if not (note := folder / NOTE).exists():
            return False
        if note.read_text() != self.told(data_set):
            raise UserError(f"{folder}: holds the text of another source than {data_set.source} is now; choose another --out")
        return True

    def data_sets(self) -> Iterator[DataSet]:
        """All of them, in the order in which they are done: both halves and all classes fill up evenly.

        A source is in one half with all of its widths: of two neighbouring strengths, and of two neighbouring classes, one is
        held out.
        """
        for level, width in ((2, 0), (1, 0), (2, 1), (1, 1), (0, 0), (0, 1)):
            for number, (planted, plans) in enumerate(self.plans):
                half = (CALIBRATION, HELD_OUT)[(number + level) % 2]
                yield DataSet(planted, STRENGTHS[level], self.widths[width], half, plans[level])
