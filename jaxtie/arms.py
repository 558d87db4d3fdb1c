"""Read the names of arms, such as `tied+half-swap@26800`, and describe their heads. Imports no jax.

The name of an arm is `tied`, `untied` or `untied@STEP`, with options of the head before the @:
`+OPTION`, `+OPTION=NUMBER` or `+OPTION=ROWS`.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, NamedTuple, get_args

from jaxtie.checks import Size, UserError, check, natural, real, suggest

Transform = Literal["half-swap", "shuffle", "projection", "bert-head"]
# Of the fields that arms set to a number: what else than numbers above 0 is allowed.
ABOVE_0 = {"zero": False, "formula": False}
FROM_0 = {"zero": True, "formula": False}
SIZE = {"zero": False, "formula": True}


@dataclass(frozen=True)
class Interventions:
    """Changes to rows of the embeddings; `jaxtie.training.interventions` defines each.

    `gain`, `shared_gain` and `minus` name the rows that have it; `input_norm`, `norm_path`,
    `frozen_direction` and `input_decay` are about the mask's. A decay of None is the optimizer's.
    """

    learned_scale: bool = False
    gain: str | None = None
    shared_gain: str | None = None
    minus: str | None = None
    input_norm: float | None = field(default=None, metadata=ABOVE_0)
    norm_path: Literal["both", "residual", "qkv"] = "both"
    frozen_direction: bool = False
    input_decay: float | None = field(default=None, metadata=FROM_0)

    @property
    def row_sets(self) -> tuple[str, ...]:
        """Names of the sets of rows that the options refer to."""
        held = {self.input_norm, self.input_decay} != {None}
        named = [self.gain, self.shared_gain, self.minus]
        named += ["mask"] * held + ["all"] * self.learned_scale
        return tuple(name for name in named if name)

    def faults(self, *, tied: bool, head: "Head") -> dict[str, bool]:
        """Return error -> whether an arm that starts tied, or untied, has it."""
        decays = self.input_decay is not None
        untied = head.untied_rows in ("mask", "never-targets") if tied else not head.tied_rows
        needs_norm = self.frozen_direction or self.norm_path != "both"
        needs_tied = bool(self.shared_gain or self.minus)
        return {
            "+frozen-direction, +residual-only and +qkv-only need +input-norm=X": (
                needs_norm and self.input_norm is None
            ),
            "a frozen row has no decay; leave out +input-decay": self.frozen_direction and decays,
            "+input-decay needs an untied mask": decays and not untied,
            "+shared-gain and +minus are for rows that are tied": (
                needs_tied and (not tied or head.untied_rows is not None)
            ),
            "+targets-only takes these rows out of the output; leave out +gain or +minus": (
                head.targets_only and bool({self.gain, self.minus} & {*ROW_NAMES})
            ),
            "+shared-gain contradicts +gain and +input-norm; leave out one": (
                bool(self.shared_gain and (self.gain or self.input_norm))
            ),
        }


@dataclass(frozen=True)
class Head:
    """Options of the embeddings and the logits, and of how the embeddings are trained.

    `jaxtie.Embedding` describes the fields that it has, too; `make_embedding` passes them on.

    Attributes:
      decayed_bias: apply weight decay to the output bias.
      groups: of the channel shuffle.
      init_std: None: the experiment's.
      table_rate: factor of the learning rate of the embeddings.
      input_rate, output_rate: further factors of either embedding of an untied model.
      table_decay: factor of the weight decay of the embeddings.
      untied_rows: name of the rows that a tied model unties; the task knows their ids.
      tied_rows: name of the rows that an untied model ties.
      targets_only: exclude tokens that are never a target from the predictions.
      interventions: on rows.
    """

    bias: bool = False
    decayed_bias: bool = True
    transform: Transform | None = None
    groups: int = 2
    init_std: Size | None = field(default=None, metadata=SIZE)
    input_scale: Size | None = field(default=None, metadata=SIZE)
    logit_scale: Size | None = field(default=None, metadata=SIZE)
    input_gradient: float = field(default=1.0, metadata=FROM_0)
    output_gradient: float = field(default=1.0, metadata=FROM_0)
    logit_softcap: float | None = field(default=None, metadata=ABOVE_0)
    table_rate: float = field(default=1.0, metadata=ABOVE_0)
    input_rate: float = field(default=1.0, metadata=ABOVE_0)
    output_rate: float = field(default=1.0, metadata=ABOVE_0)
    table_decay: float = field(default=1.0, metadata=FROM_0)
    start: Literal["input", "output"] = "input"
    untied_rows: str | None = None
    tied_rows: str | None = None
    targets_only: bool = False
    interventions: Interventions = Interventions()

    @property
    def is_partly_tied(self) -> bool:
        """Whether only some rows are tied."""
        return self.untied_rows is not None or self.tied_rows is not None

    @property
    def row_sets(self) -> tuple[str, ...]:
        """Names of the sets of rows that the options refer to."""
        named = (self.untied_rows, self.tied_rows, "never-targets" if self.targets_only else None)
        return (*filter(None, named), *self.interventions.row_sets)

    @property
    def divisor(self) -> int:
        """Number that must divide the width."""
        return {"half-swap": 2, "shuffle": self.groups}.get(self.transform or "", 1)


# Options as arms write them: without a value, with a number, with the name of a set of rows.
HEAD_FLAGS: dict[str, dict[str, Any]] = {
    "bias": {"bias": True},
    "undecayed-bias": {"bias": True, "decayed_bias": False},
    "output-start": {"start": "output"},
    "targets-only": {"targets_only": True},
    "learned-scale": {"learned_scale": True},
    "frozen-direction": {"frozen_direction": True},
    "residual-only": {"norm_path": "residual"},
    "qkv-only": {"norm_path": "qkv"},
    **{name: {"transform": name} for name in get_args(Transform)},
}
HEAD_NUMBERS = {
    field.name.replace("_", "-"): field.metadata
    for field in (*dataclasses.fields(Head), *dataclasses.fields(Interventions))
    if field.metadata
}
ROW_NAMES = ("mask", "labels", "never-targets", "rarer-half")
HEAD_ROWS = {"untie-rows": "untied_rows", "tie-rows": "tied_rows"}
HEAD_ROWS |= {"gain": "gain", "shared-gain": "shared_gain", "minus": "minus"}
# Formulas as arms write them, since the name of an arm becomes part of file names.
ARM_FORMULAS = {"root-D": "sqrt(D)", "1-by-root-D": "1/sqrt(D)", "log-n-by-D": "log(n)/D"}
SHARE_ERROR = Fraction(1, 20)  # of the run, by which the record of untying may miss its share
EXPECTED_ARM = (
    "expected tied, untied, untied@STEP or untied@2/3 (of the run), comma-separated; a head's"
    " options stand before the @, as in untied+bias@STEP"
)


def _parse_head(options: Sequence[str], arm: str) -> Head:
    """Return the head of an arm's options."""
    fields: dict[str, Any] = {}
    for option in options:
        new = _parse_head_option(option, arm)
        check(
            not new.keys() & fields.keys(),
            f"arm {arm!r}: +{option} repeats or contradicts an earlier option; leave out one",
        )
        fields |= new
    names = {each.name for each in dataclasses.fields(Interventions)} & fields.keys()
    interventions = Interventions(**{name: fields.pop(name) for name in names})
    return Head(**fields, interventions=interventions)


def _parse_head_option(option: str, arm: str) -> dict[str, Any]:
    """Return the fields that one option sets."""
    name, equals, value = option.partition("=")
    if option in HEAD_FLAGS:
        return HEAD_FLAGS[option]
    if name == "shuffle" and 0 < natural(value) < 2**16:
        return {"transform": name, "groups": natural(value)}
    if name in HEAD_ROWS and equals:
        known = ROW_NAMES if name.endswith("tie-rows") else (*ROW_NAMES, "all")
        expected = ", ".join(known)
        check(value in known, f"arm {arm!r}: {name} is {value!r}; expected {expected}")
        return {HEAD_ROWS[name]: value}
    if name in HEAD_NUMBERS and equals:
        return {name.replace("-", "_"): _parse_number(name, value, arm)}
    numbers, rows = (f"{name}=X" for name in HEAD_NUMBERS), (f"{name}=ROWS" for name in HEAD_ROWS)
    every = (*HEAD_FLAGS, "shuffle=GROUPS", *numbers, *rows)
    meant = suggest(option, [each.partition("=")[0] for each in every])
    raise UserError(
        f"arm {arm!r}: +{option} is no option of a head; expected {', '.join(every)}{meant}"
    )


def _parse_number(name: str, text: str, arm: str) -> Size:
    """Return the value of an option: a number, or a formula where one is allowed."""
    zero, formula = HEAD_NUMBERS[name]["zero"], HEAD_NUMBERS[name]["formula"]
    if formula and text in ARM_FORMULAS:
        return ARM_FORMULAS[text]
    try:
        value = real(text)
    except ValueError:
        value = math.nan
    expected = "a number of at least 0" if zero else "a number above 0"
    expected += f" or one of {', '.join(ARM_FORMULAS)}" if formula else ""
    valid = value > 0 or (zero and value == 0)
    check(valid, f"arm {arm!r}: {name} is {text!r}; expected {expected}")
    return value


def _parse_step(text: str) -> int | Fraction:
    """Read a step, or a share of the run such as 2/3; -1 for any other text."""
    part, slash, whole = text.partition("/")
    if not slash:
        return natural(text)
    share = Fraction(max(natural(part), 0), max(natural(whole), 1))
    return share if 0 < share < 1 else -1


@dataclass(frozen=True, repr=False)
class Arm:
    """One of the configurations that an experiment compares, all else equal; its name says all.

    Raises UserError if the name is invalid.

    Attributes:
      name: as declared and shown: `tied`, `untied` or `untied@STEP`, with `+OPTION`s of the head
        before the @. An experiment turns a share of the run, as in `untied@2/3`, into a step.
      tied: whether all rows are tied at the start.
      untie_at: step from which on the embeddings are untied, or a share of the run below 1; None:
        never, or from the start.
      share: of the run, if the arm was declared by it: kept when the number of steps changes.
      head: further options of the embeddings and the logits.
    """

    name: str
    tied: bool = field(init=False)
    untie_at: int | Any = field(init=False)  # Any: None, or a Fraction until `resolved`
    share: Fraction | None = field(init=False, compare=False)
    head: Head = field(init=False)

    @classmethod
    def parse(cls, name: "str | Arm") -> "Arm":
        """Return the arm of a name, and an arm as it is; UserError if the name is invalid."""
        return name if isinstance(name, Arm) else cls(name)

    def __post_init__(self):
        """Parse the name."""
        name = self.name
        check(isinstance(name, str), f"arm {name!r}: {EXPECTED_ARM}")
        whole, at, step = name.partition("@")
        start, *options = whole.split("+")
        untie_at = _parse_step(step)
        valid = start in ("tied", "untied") and (not at or (start == "untied" and untie_at > 0))
        check(valid, f"arm {name!r}: {EXPECTED_ARM}")
        head, always_tied = _parse_head(options, name), start == "tied"
        partly, own_start = head.is_partly_tied, head.start != "input"
        faults = {
            "rows are tied from start to end; leave out @STEP": partly and at,
            "all rows are untied; +untie-rows is for a tied table": head.untied_rows
            and not always_tied,
            "all rows are tied; +tie-rows is for an untied table": head.tied_rows and always_tied,
            "own rows start as the output table's; leave out +output-start": partly and own_start,
            "a tied table has one learning rate; give +table-rate": (always_tied or at or partly)
            and not head.input_rate == head.output_rate == 1,
            "an untied model starts with both tables; +output-start is for a tied one": own_start
            and not (always_tied or at),
            "interventions on rows last from start to end; leave out @STEP": at
            and dataclasses.replace(head.interventions, learned_scale=False) != Interventions(),
            **head.interventions.faults(tied=always_tied, head=head),
        }
        for fault, is_there in faults.items():
            check(not is_there, f"arm {name!r}: {fault}")
        object.__setattr__(self, "tied", (always_tied or bool(at)) and not partly)
        object.__setattr__(self, "untie_at", untie_at if at else None)
        object.__setattr__(self, "share", untie_at if isinstance(untie_at, Fraction) else None)
        object.__setattr__(self, "head", head)

    @property
    def variant(self) -> "Variant":
        """What its program depends on, at the start."""
        return Variant(self.tied, self.head)

    @property
    def untied_from(self) -> int | None:
        """Step from which on the embeddings are untied; None if never."""
        return self.untie_at if self.tied else 0

    def resolved(self, steps: int, record_every: int) -> "Arm":
        """Return the arm that unties at its share of the steps, or UserError without a record."""
        if self.share is None:
            return self
        step = record_every * max(1, round(self.share * steps / record_every))
        check(
            abs(Fraction(step, steps) - self.share) <= SHARE_ERROR,
            f"arm {self}: {self.share} of {steps} steps: the nearest record, {step}, is"
            f" {step / steps:.2f} of them; expected a smaller record_every",
        )
        arm = Arm(f"{self.name.partition('@')[0]}@{step}")
        object.__setattr__(arm, "share", self.share)
        return arm

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def __repr__(self) -> str:
        """Return a short form that names the arm."""
        return f"Arm({self.name!r})"


def names_of(arms: Iterable[Arm]) -> list[str]:
    """Return the names of arms."""
    return [arm.name for arm in arms]


class Variant(NamedTuple):
    """The part of an arm that determines its compiled program: tied or not, and the head."""

    tied: bool
    head: Head = Head()
