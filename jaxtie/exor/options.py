"""Options of the command line that are EXor's. Imports no jax."""

import math
from dataclasses import dataclass
from typing import Annotated

import tyro

from jaxtie.exor.config import DATA_STREAMS, SWEPT, Experiment
from jaxtie.options import AS_DECLARED, option

DECLARED = Experiment()


def _probabilities(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != 2 or not all(0 <= p <= 1 for p in values) or not math.isclose(sum(values), 1):
        raise ValueError(f"{text!r}: expected two probabilities that sum to 1, such as 0.1,0.9")
    return values


def _swept(text: str) -> tuple[str, tuple[float, ...]]:
    name, _, values = text.partition("=")
    try:
        if name in SWEPT:
            return name, tuple(float(value) for value in values.split(","))
    except ValueError:
        pass
    raise ValueError(
        f"{text!r}: expected NAME=VALUE,VALUE with a name of {', '.join(SWEPT)}, such as"
        " weight_decay=0,0.1"
    )


def _data_stream(text: str) -> str:
    if text not in DATA_STREAMS:
        raise ValueError(f"{text!r}: expected one of {', '.join(DATA_STREAMS)}")
    return text


@dataclass(frozen=True)
class ExorOptions:
    """What can be changed of an experiment on EXor alone."""

    data: Annotated[
        str | None,
        option("per-seed|shared", _data_stream, f"{AS_DECLARED}, {DECLARED.data} in the main one"),
    ] = None
    """A stream of samples for each seed, shared by its arms, or one for all seeds."""
    zeros: Annotated[
        tuple[float, float] | None,
        option("P,P", _probabilities, f"{AS_DECLARED}, 0.1,0.9 in the main one"),
    ] = None
    """Probabilities of X and of Y for a zero."""
    ones: Annotated[
        tuple[float, float] | None,
        option("P,P", _probabilities, f"{AS_DECLARED}, 0.5,0.5 in the main one"),
    ] = None
    """Probabilities of A and of B for a one."""
    sweep: tyro.conf.UseAppendAction[
        tuple[Annotated[tuple[str, tuple[float, ...]], option("NAME=VALUE,VALUE", _swept)], ...]
    ] = ()
    """Train every seed at each of these values, all in one program; repeated, at every combination.
    NAME: learning_rate, eta_min, weight_decay, eps, p_X, p_A (the probability of X for a zero, of A
    for a one)."""
    all_strings: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Include the string of ones, which the published code leaves out."""
    independent_layers: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Draw every layer's initial values anew, instead of cloning the first as PyTorch does."""
