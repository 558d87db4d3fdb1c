"""Declare experiments on EXor; the defaults are the paper's main experiment. Imports no jax."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from jaxtie.config import (
    LSTM,
    Body,
    Decoder,
    Interventions,
    Layout,
    Reports,
    TaskConfig,
    Transformer,
    Variant,
    check,
    check_positive_integers,
    check_range,
    check_seed,
    is_number,
    make_plain,
)
from jaxtie.exor.analysis import exor_attributes, exor_constants, exor_schema
from jaxtie.exor.conclusion import exor_conclusion
from jaxtie.exor.plots import exor_pictures
from jaxtie.exor.tables import exor_tables

if TYPE_CHECKING:
    from jaxtie.exor.task import ExorTask

WIDE = 32  # width from which one member fills a CPU's vector units
# The exact distributions of 10 bits take 44 s and 3 GB; of 9 bits in order, more than 10 GB.
MAX_BITS, MAX_BITS_IN_ORDER = 10, 8


def _pair(p: float) -> tuple[float, float]:
    return p, 1 - p


@dataclass(frozen=True)
class Process:
    """EXor: strings of bits and their parity; a bit is written as one of two symbols (section 5).

    Attributes:
      zeros: p(X), p(Y): the symbols of a zero.
      ones: p(A), p(B): the symbols of a one.
      length: bits in a string, 4 to 10, or to 8 where the model sees their order. A sequence is one
        token longer, the parity label.
      all_strings: include the string of ones, which the published code leaves out.
      data_seed: seed of the split and of the samples.
      zeros_by_label: swap p(X) and p(Y) in strings of odd parity. X and Y stay semantically
        equivalent, since the label determines the bit; but the sign of their log-odds depends on
        the label, so no output bias can encode it (`jaxtie/exor/README.md`). Best loss and accuracy
        do not change.
    """

    zeros: tuple[float, float] = field(default=(0.1, 0.9), metadata={"sweep": ("p_X", _pair)})
    ones: tuple[float, float] = field(default=(0.5, 0.5), metadata={"sweep": ("p_A", _pair)})
    length: int = 7
    all_strings: bool = False
    data_seed: int = 14
    zeros_by_label: bool = False

    def __post_init__(self):
        make_plain(self)
        for name in ("zeros", "ones"):
            values = getattr(self, name)
            check(
                len(values) == 2
                and all(is_number(p) and 0 <= p <= 1 for p in values)
                and math.isclose(sum(values), 1.0),
                f"{name} = {values}: expected two probabilities in [0, 1] that sum to 1, for"
                " example 0.1,0.9",
            )
            object.__setattr__(self, name, tuple(values))
        check_positive_integers(self, "length")
        check(
            4 <= self.length <= MAX_BITS,
            f"length = {self.length}: expected 4 to {MAX_BITS} bits (every spelling of every"
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


@dataclass(frozen=True, kw_only=True)
class Experiment(TaskConfig):
    """An experiment on EXor.

    A sweep may also name p_X and p_A, the probabilities of X for a zero and of A for a one.

    Attributes:
      process: distribution of the samples.
      model: body between the embeddings, and the width.
      init_std: the tables start as N(0, init_std²), unless the head sets its own.
      table_decay: factor of the weight decay of the tables, times the head's.
      mask_logit: record the mask's own logit and probability at the masked position.
    """

    task: ClassVar[str] = "exor"
    traced: ClassVar[tuple[str, ...]] = (
        *TaskConfig.traced,
        "p_X",
        "p_A",
        "init_std",
        "table_decay",
    )
    accepted: ClassVar[frozenset[str]] = TaskConfig.accepted | frozenset(
        "data_seed zeros ones all_strings independent_layers".split()
    )
    refusal: ClassVar[str] = "reads no text"
    interventions: ClassVar[bool] = True
    reports: ClassVar[Reports] = Reports(
        schema=exor_schema,
        constants=exor_constants,
        attributes=exor_attributes,
        conclusion=exor_conclusion,
        tables=exor_tables,
        plots=exor_pictures,
    )
    name: str = "transformer-small"
    claim: str = (
        "Tied, X and Y cannot be both alike (as inputs) and apart (as outputs); untied, they are."
    )
    process: Process = Process()
    model: Body = Transformer()  # noqa: RUF009, it is frozen
    steps: int = 150_000
    init_std: float = 1.0
    table_decay: float = 1.0
    mask_logit: bool = False

    def __post_init__(self):
        check(isinstance(self.process, Process), f"process = {self.process!r}: expected a Process")
        check(
            isinstance(self.model, Body) and not isinstance(self.model, Decoder),
            f"model = {self.model!r}: expected one of"
            f" {', '.join(each.__name__ for each in Body.__args__)}",
        )
        check(
            isinstance(self.model, Transformer) or self.process.length <= MAX_BITS_IN_ORDER,
            f"length = {self.process.length}: expected at most {MAX_BITS_IN_ORDER} bits with"
            f" {type(self.model).__name__}, which is evaluated on every order of the symbols",
        )
        super().__post_init__()
        self.check_heads(self.model.width)
        for arm in self.arms:
            own = arm.head.interventions
            check(
                own.norm_path == "both" or isinstance(self.model, Transformer),
                f"arm {arm}: a {type(self.model).__name__} has no queries, keys and values",
            )
            check(
                not self.roles or own == Interventions(),
                f"arm {arm}: gradients by role are of rows without interventions; set roles=False",
            )
        check_range(self, "init_std", 0)
        check_range(self, "table_decay", 0)

    def build(self, variant: Variant, platform: str) -> "ExorTask":
        """Return EXor as a task."""
        from jaxtie.exor.task import ExorTask

        return ExorTask(self, variant, platform)

    def layout(self, platform: str) -> Layout:
        """Return the fastest measured layout, by body and width.

        32 members are the fewest that a CPU's compiler makes vectors of in all loops; an LSTM is as
        fast a seed in half a block, and seven times as fast in a block of one as alone in that. A
        wide member fills a CPU's vector units and cache alone. On a GPU lanes need fewer kernels,
        and no matrix product whose algorithm autotuning could choose; an LSTM or a wide model would
        take minutes to compile. On a TPU, whose vectors have 128 places, more than 64 members of a
        large model gain next to nothing.
        """
        wide, lstm = self.model.width >= WIDE, isinstance(self.model, LSTM)
        # evaluating every order of the symbols takes longer than compiling
        slow = not isinstance(self.model, Transformer)
        if platform == "cpu":
            blocks = (1,) if wide else (1, 16) if lstm else (32,)
            return Layout(blocks, few=8, lanes=not wide, fast_start=slow)
        if wide or lstm:
            blocks = (128, 512) if platform == "gpu" else (64,)
            return Layout(blocks, few=256, fast_start=slow)
        many = (512, 1024, 2048) if platform == "gpu" else (512,)
        return Layout((128, *many), few=256, lanes=platform == "gpu", fast_start=slow)

    def program_key(self) -> Self:
        """Return the configuration reduced to the fields that compiled programs depend on."""
        key = super().program_key()
        process = dataclasses.replace(self.process, zeros=Process.zeros, ones=Process.ones)
        object.__setattr__(key, "process", process)
        return key

    def fields_from_options(self, options: Any) -> dict[str, Any]:
        """Return the fields that its own options of the command line change."""
        check(
            not options.independent_layers or isinstance(self.model, Transformer),
            "--independent-layers: expected a transformer; the layers of this"
            f" {type(self.model).__name__} are independent already",
        )
        process = {"data_seed": options.data_seed, "zeros": options.zeros, "ones": options.ones}
        process["all_strings"] = options.all_strings or None
        model = {"independent_layers": options.independent_layers or None}
        return {
            "process": dataclasses.replace(self.process, **_given(process)),
            "model": dataclasses.replace(self.model, **_given(model)),
        }


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in fields.items() if value is not None}
