"""What an experiment on EXor is: process, model, arms, sweep. Every default is the paper's main
one. Imports no jax.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from jaxtie.config import (
    LSTM,
    Arm,
    Body,
    Layout,
    Optimizer,
    Sweep,
    TaskConfig,
    Transformer,
    UserError,
    Variant,
    check,
    check_positive_integers,
    check_seed,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import xarray as xr

    from jaxtie.exor.task import ExorTask
    from jaxtie.results.netcdf import Schema
    from jaxtie.results.plots import Picture
    from jaxtie.results.tables import Table

WIDE = 32  # width from which one member fills a CPU's vector units
# by what the exact laws take: 44 s and 3 GB of 10 bits; of 9 in order more than 10 GB
MOST_BITS, MOST_BITS_IN_ORDER = (
    10,
    8,
)
DATA_STREAMS = ("per-seed", "shared")
# fields that are arguments of the compiled program
SWEPT = (
    "learning_rate",
    "eta_min",
    "weight_decay",
    "eps",
    "p_X",
    "p_A",
)


def _check_distribution(name: str, values: tuple[float, ...]) -> None:
    check(
        len(values) == 2
        and all(math.isfinite(p) and 0 <= p <= 1 for p in values)
        and math.isclose(sum(values), 1.0),
        f"{name} = {values}: expected two probabilities in [0, 1] that sum to 1, for example"
        " 0.1,0.9",
    )


@dataclass(frozen=True)
class Process:
    """EXor: strings of bits with their parity, each bit spelled by one of two symbols (paper,
    section 5).

    Attributes:
      zeros: p(X), p(Y): how a zero is spelled.
      ones: p(A), p(B): how a one is spelled.
      length: bits in a string, 4 to 10 (to 8 where the model sees their order); a sequence is one
        token longer, the parity label.
      all_strings: include the string of ones, which the published code leaves out.
      data_seed: of the split, and of the random stream that samples are drawn from.
      zeros_by_label: in strings of odd parity `zeros` are p(Y), p(X). X and Y are semantically
        equivalent then as ever, for the label tells which it is; but their log-odds have either
        sign, and no output bias can carry both (`jaxtie/exor/README.md`). All else, best loss and
        accuracy too, stays what it is.
    """

    zeros: tuple[float, float] = (0.1, 0.9)
    ones: tuple[float, float] = (0.5, 0.5)
    length: int = 7
    all_strings: bool = False
    data_seed: int = 14
    zeros_by_label: bool = False

    def __post_init__(self):
        for name in ("zeros", "ones"):
            _check_distribution(name, values := getattr(self, name))
            object.__setattr__(self, name, tuple(values))
        check_positive_integers(self, "length")
        check(
            4 <= self.length <= MOST_BITS,
            f"length = {self.length}: expected 4 to {MOST_BITS} bits (every spelling of every"
            " string is enumerated)",
        )
        check_seed(self.data_seed, "data_seed")

    @property
    def symbols(self) -> tuple[str, ...]:
        """The vocabulary in the order of the token ids."""
        return ("X", "Y", "A", "B", "E", "D", "mask")

    @property
    def pairs(self) -> dict[str, tuple[float, float]]:
        """The two pairs of exchangeable symbols with their probabilities."""
        return {"X-Y": self.zeros, "A-B": self.ones}


@dataclass(frozen=True)
class Experiment(TaskConfig):
    """A base configuration and the arms that are compared on it, all on the same seeds and the same
    data.

    Attributes:
      name: of the run folder.
      claim: one sentence: what the experiment shows.
      process: what is learned, see `Process`.
      model: what is between the two tables, and how wide they are.
      optimizer: AdamW and its schedule, see `Optimizer`.
      arms: what is compared: by name: "tied", "untied", "untied@STEP": tied up to that step, then
        untied; see `Arm`.
      steps: updates, one full batch each.
      seeds: one member each: its initial values and, with `data` "per-seed", its stream of samples.
      record_every: steps between two records of loss, accuracy and distances.
      eval_every: steps between two exact evaluations; a multiple of `record_every`.
      data: "per-seed": a stream of samples per seed, shared by its arms; "shared": one stream for
        all.
      sweep: values that take the place of a scalar setting, by its name (see `SWEPT`), pairs or a
        dictionary; every combination of them is trained with every seed, in one program. p_X and
        p_A are the probabilities of X for a zero and of A for a one.
      roles: record which role of a tied table writes it, see `jaxtie.training.gradient_by_role`; it
        costs
        time.
      mask_logit: record the mask's own logit and probability at the masked position.
    """

    task: ClassVar[str] = "exor"
    traced: ClassVar[tuple[str, ...]] = SWEPT
    accepted: ClassVar[frozenset[str]] = TaskConfig.accepted | frozenset(
        "data zeros ones all_strings independent_layers".split()
    )
    refusal: ClassVar[str] = "reads no text"
    many_seeds: ClassVar[bool] = True
    name: str = "transformer-small"
    claim: str = (
        "Tied, X and Y cannot be both alike (as inputs) and apart (as outputs); untied, they are."
    )
    process: Process = field(default_factory=Process)
    model: Body = field(default_factory=Transformer)
    optimizer: Optimizer = field(default_factory=Optimizer)
    # a name becomes an Arm in __post_init__
    arms: tuple[Arm | str, ...] = ("tied", "untied")  # type: ignore[assignment]
    steps: int = 150_000
    seeds: tuple[int, ...] = tuple(range(64))
    record_every: int = 100
    eval_every: int = 1_000
    data: str = "per-seed"
    sweep: Sweep = ()
    roles: bool = False
    mask_logit: bool = False

    def __post_init__(self):
        check(
            isinstance(self.model, Body),
            f"model = {self.model!r}: expected one of"
            f" {', '.join(each.__name__ for each in Body.__args__)}",
        )
        check(
            isinstance(self.model, Transformer) or self.process.length <= MOST_BITS_IN_ORDER,
            f"length = {self.process.length}: expected at most {MOST_BITS_IN_ORDER} bits with"
            f" {type(self.model).__name__}, which is evaluated on every order of the symbols",
        )
        self.check_names_and_members()
        self.check_heads(self.model.width)
        self.check_steps()
        self.check_sweep()
        check(
            self.data in DATA_STREAMS,
            f"data = {self.data!r}: expected one of {', '.join(DATA_STREAMS)}",
        )

    def build(self, variant: Variant, platform: str) -> "ExorTask":
        """Return EXor as a task."""
        from jaxtie.exor.task import ExorTask

        return ExorTask(self, variant, platform)

    def layout(self, platform: str) -> Layout:
        """Return the fastest measured layout, by body and width.

        32 members are the fewest that a CPU's compiler makes vectors of in all loops; an LSTM is as
        fast a seed in half a block. A wide member fills a CPU's vector units and cache alone. On a
        GPU lanes need fewer kernels, and no matrix product whose algorithm autotuning could choose;
        an LSTM or a wide model would take minutes to compile. On a TPU, whose vectors have 128
        places, more than 64 members of a large model gain next to nothing.
        """
        wide, lstm = self.model.width >= WIDE, isinstance(self.model, LSTM)
        # evaluating every order of the symbols takes longer than compiling
        slow = not isinstance(self.model, Transformer)
        if platform == "cpu":
            return Layout((1,) if wide else (16,) if lstm else (32,), not wide, slow)
        if wide or lstm:
            return Layout((128, 512) if platform == "gpu" else (64,), False, slow)
        return Layout((128, 2048) if platform == "gpu" else (128, 512), platform == "gpu", slow)

    def program_key(self) -> Self:
        """Return the configuration without what no compiled program depends on."""
        key = super().program_key()
        process = dataclasses.replace(self.process, zeros=Process.zeros, ones=Process.ones)
        object.__setattr__(key, "process", process)
        return key

    def at(self, values: Mapping[str, float]) -> Self:
        """Return the configuration at one sweep point."""
        zeros, ones = (
            (values[name], 1 - values[name]) if name in values else pair
            for name, pair in (("p_X", self.process.zeros), ("p_A", self.process.ones))
        )
        own = {name: value for name, value in values.items() if not name.startswith("p_")}
        process = dataclasses.replace(self.process, zeros=zeros, ones=ones)
        return dataclasses.replace(super().at(own), process=process)

    def changes(self, options: Any) -> dict[str, Any]:
        """Return the fields that its own options of the command line change."""
        if options.independent_layers and not isinstance(self.model, Transformer):
            raise UserError(
                "--independent-layers: expected a transformer; the layers of this"
                f" {type(self.model).__name__} are independent already"
            )
        for swept, given in (
            ("p_X", options.zeros and "--zeros"),
            ("p_A", options.ones and "--ones"),
        ):
            if given and swept in dict(options.sweep or self.sweep):
                raise UserError(f"{given}: {swept} is swept; give one of the two")
        process = {"data_seed": options.data_seed, "zeros": options.zeros, "ones": options.ones}
        process["all_strings"] = options.all_strings or None
        model = {"independent_layers": options.independent_layers or None}
        own = {"data": options.data, "sweep": options.sweep or None}
        return _given(own) | {
            "process": dataclasses.replace(self.process, **_given(process)),
            "model": dataclasses.replace(self.model, **_given(model)),
        }

    def schema(self) -> "Schema":
        """Return the variables of the results."""
        from jaxtie.exor.analysis import exor_schema

        return exor_schema(self)

    def constants(self) -> "dict[str, xr.DataArray]":
        """Return the schedule, the decay factor and what theory says."""
        from jaxtie.exor.analysis import exor_constants

        return exor_constants(self)

    def attributes(self) -> dict[str, str | int]:
        """Return the process and the model in words."""
        from jaxtie.exor.analysis import exor_attributes

        return exor_attributes(self)

    @staticmethod
    def tables(results: "xr.Dataset") -> "list[Table]":
        """Return the tables of the summary."""
        from jaxtie.exor.tables import exor_tables

        return exor_tables(results)

    @staticmethod
    def plots(results: "xr.Dataset") -> "dict[str, Picture]":
        """Return the figures, by file name."""
        from jaxtie.exor.plots import exor_pictures

        return exor_pictures(results)

    @staticmethod
    def frames(results: "xr.Dataset") -> "dict[str, pd.DataFrame]":
        """Return tidy tables, by file name."""
        from jaxtie.exor.plots import exor_frames

        return exor_frames(results)

    @staticmethod
    def animate(results: "xr.Dataset", folder: "Path") -> "Path":
        """Write the embeddings over training, `portrait.gif`."""
        from jaxtie.exor.plots import animate_portrait

        return animate_portrait(results, folder)

    @staticmethod
    def commit(results: "xr.Dataset", run: "Path") -> "xr.Dataset":
        """Return the part of a run's results that is committed."""
        from jaxtie.exor.analysis import condense

        return condense(results)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in fields.items() if value is not None}
