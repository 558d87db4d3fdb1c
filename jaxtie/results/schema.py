"""What the results of an experiment hold, as its kind declares it. Imports no jax."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxtie.experiment import Declaration


class Variable(NamedTuple):
    """One variable of members.

    Attributes:
      dimensions: after arm, swept settings and seed; the first is "step", or another that ends in
        "step" for what is there at evaluations only.
      units, meaning: for a reader.
    """

    dimensions: tuple[str, ...]
    units: str
    meaning: str


class Schema(NamedTuple):
    """Every variable that members have, beside `diverged_at`, and the labels along their
    dimensions.
    """

    variables: Mapping[str, Variable]
    labels: Mapping[str, Sequence[Any]]

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one record of a member."""
        return tuple(
            len(self.labels[dimension]) for dimension in self.variables[name].dimensions[1:]
        )

    def size_in_bytes(self, experiment: Declaration) -> int:
        """Bytes of all records of an experiment, before compression."""
        lengths = {name: len(labels) for name, labels in self.labels.items()}
        values = sum(
            math.prod(lengths[each] for each in variable.dimensions)
            for variable in self.variables.values()
        )
        return 4 * values * len(experiment.members) * len(experiment.arms)


def steps_of(experiment: Declaration) -> dict[str, Sequence[int]]:
    """Labels of the dimensions along which experiments of every kind are recorded."""
    return {"step": experiment.record_steps, "eval_step": experiment.eval_steps}
