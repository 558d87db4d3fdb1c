"""Declare experiments: arms, heads, optimizer, model sizes. Imports no jax.

An invalid value raises `UserError`, one line that names the value and the expected ones.
"""

import copy
import dataclasses
import itertools
import math
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import c_float
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeVar, get_args

if TYPE_CHECKING:
    import numpy as np

SEEDS = 2**32  # number of valid seeds
MOST_SEEDS = 2**24  # of one run
Number = TypeVar("Number", int, "np.ndarray")
Sweep = Mapping[str, Sequence[float]] | tuple[tuple[str, tuple[float, ...]], ...]
Size = float | str  # a number, or one of FORMULAS
# of n words and width D
FORMULAS: dict[str, Callable[[int, int], float]] = {
    "sqrt(D)": lambda n, D: D**0.5,
    "1/sqrt(D)": lambda n, D: D**-0.5,
    "log(n)/D": lambda n, D: math.log(n) / D,
}


class UserError(ValueError):
    """An error of a user, in one line: the value, the expected ones and what to do."""


class MissingInputError(UserError):
    """An experiment lacks an input that was not given, such as a text."""


def check(holds: bool, message: str) -> None:
    """Raise UserError with the message unless the condition holds."""
    if not holds:
        raise UserError(message)


def check_path(path: Path) -> None:
    """Raise UserError unless it is a regular file or a folder: others may be read for ever."""
    check(path.exists(), f"{path}: no such file or folder")
    check(
        path.is_file() or path.is_dir(),
        f"{path}: is a pipe, a device or a socket; expected a file or a folder",
    )


def plain(value: Any) -> Any:
    """Return numbers and arrays of NumPy, also within tuples and lists, as Python's."""
    if getattr(value, "ndim", None) == 0:
        return value.item()
    if hasattr(value, "tolist"):
        return tuple(map(plain, value))
    return type(value)(map(plain, value)) if type(value) in (tuple, list) else value


def nested(config: Any) -> dict[str, Any]:
    """Return the configurations that are fields of another one, by name."""
    own = {each.name: getattr(config, each.name) for each in dataclasses.fields(config)}
    return {
        name: value for name, value in own.items() if hasattr(type(value), "__dataclass_fields__")
    }


def make_plain(config: Any) -> None:
    """Make the values of a configuration `plain`, also of those nested in it."""
    for each in dataclasses.fields(config):
        if each.compare:
            object.__setattr__(config, each.name, plain(getattr(config, each.name)))
    for value in nested(config).values():
        make_plain(value)


def is_number(value: object) -> typing.TypeGuard[float]:
    """Whether it is a finite number; a bool is none."""
    most = sys.float_info.max
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= most


def is_integer(value: object) -> typing.TypeGuard[int]:
    """Whether it is an integer; a bool is none."""
    return is_number(value) and isinstance(value, int)


def number_label(value: float) -> str:
    """Return the shortest text of a number that other numbers do not have."""
    short = f"{value:g}"
    return short if float(short) == value else str(value)


def _in_sweep(field: dataclasses.Field) -> tuple[str, Callable[[float], Any] | None]:
    """Return the name of a field in a sweep and the conversion to its type; None: no number.

    Metadata `sweep` give a field another name and another conversion.
    """
    hint = {"int": int, "float": float}.get(str(field.type), field.type)
    types = get_args(typing.Union[hint, None])  # noqa: UP007, it may be a text
    convert = float if float in types else int if int in types else None
    return field.metadata.get("sweep", (field.name, convert if field.init else None))


def combinations(sweep: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Return every combination of swept values, the last name's fastest."""
    return [dict(zip(sweep, values)) for values in itertools.product(*sweep.values())]


def check_positive_integers(owner: object, *names: str) -> None:
    """Raise UserError unless these attributes are integers above 0."""
    for name in names:
        value = getattr(owner, name)
        check(is_integer(value) and value > 0, f"{name} = {value!r}: expected a positive integer")


def check_range(
    owner: object, name: str, low: float, high: float = math.inf, *, include_low: bool = True
) -> None:
    """Raise UserError unless an attribute is a number from `low` to below `high`."""
    value = getattr(owner, name)
    inside = is_number(value) and low <= value < high
    expected = f"at least {low}" if include_low else f"above {low}"
    expected += "" if high == math.inf else f" and below {high}"
    check(
        inside and (include_low or value > low), f"{name} = {value!r}: expected a number {expected}"
    )


def check_seed(seed: int, name: str | None = None) -> None:
    """Raise UserError unless it can seed a random stream; `name`: of the field, for the message."""
    shown = f"seed {seed!r}" if name is None else f"{name} = {seed!r}"
    check(
        is_integer(seed) and 0 <= seed < SEEDS, f"{shown}: expected an integer in 0...{SEEDS - 1}"
    )


def check_size(name: str, value: Size) -> None:
    """Raise UserError unless it is a number above 0 or a formula."""
    check(
        value > 0 if is_number(value) else value in FORMULAS,
        f"{name} = {value!r}: expected a number above 0 or one of {', '.join(FORMULAS)}",
    )


def size(value: Size, vocabulary: int, width: int) -> float:
    """Return a number as it is, and the value of a formula for a vocabulary and a width.

    Raises:
      ValueError: if there is no such formula.
    """
    if not isinstance(value, str):
        return value
    if value not in FORMULAS:
        raise ValueError(f"a size is {value!r}; expected a number or one of {', '.join(FORMULAS)}")
    return FORMULAS[value](vocabulary, width)


def natural(text: str) -> int:
    """Return the integer that a text of at most ten ASCII digits is, -1 for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1


def real(text: str) -> float:
    """Return the finite number that a text of ASCII digits is; ValueError for any other text."""
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE):
        raise ValueError(f"{text!r}: expected a number")
    if math.isinf(number := float(text)):
        raise ValueError(f"{text!r}: expected a smaller number")
    return number


@dataclass(frozen=True)
class Transformer:
    """PyTorch's `TransformerEncoder`, without positions: post-norm, exact GELU, no dropout.

    Attributes:
      layers, heads, width: sizes; `heads` divides `width`.
      feedforward: width of the hidden layer, or a multiple of `width` such as "4x", which keeps the
        shape of the model in a sweep over `width`.
      independent_layers: draw every layer's initial values anew, instead of cloning the first as
        PyTorch does.
    """

    layers: int = 1
    heads: int = 1
    width: int = 4
    feedforward: int | str = 4
    independent_layers: bool = False

    def __post_init__(self):
        """Check the values."""
        make_plain(self)
        numbers = () if isinstance(self.feedforward, str) else ("feedforward",)
        check_positive_integers(self, "layers", "heads", "width", *numbers)
        self.hidden  # noqa: B018, it checks
        check(
            self.width % self.heads == 0,
            f"heads = {self.heads}: expected a divisor of width = {self.width}",
        )

    @property
    def hidden(self) -> int:
        """Width of the hidden layer."""
        if not isinstance(self.feedforward, str):
            return self.feedforward
        factor = natural(self.feedforward.removesuffix("x"))
        check(
            factor > 0 and self.feedforward.endswith("x"),
            f"feedforward = {self.feedforward!r}: expected a number, or a multiple such as '4x'",
        )
        return factor * self.width


@dataclass(frozen=True)
class Decoder(Transformer):
    """A decoder as language models have it now, LLaMA's (Touvron et al. 2023), for causal text.

    RMSNorm before each branch and at the end, rotary positions, SwiGLU, no biases, no dropout.

    Attributes:
      layers, heads, width: sizes; `heads` divides `width`.
      feedforward: as of a `Transformer`; "3x" with a gate has about the parameters of "4x" without.
      gated: SwiGLU; False: exact GELU, without a gate.
      weight_std: initial standard deviation of the weights.
      branch_scale: factor of it for the last weights of each branch; None: 1/√(2·layers), as GPT-2.
    """

    feedforward: int | str = "3x"
    independent_layers: bool = True
    gated: bool = True
    weight_std: float = 0.02
    branch_scale: float | None = None

    def __post_init__(self):
        """Check the values."""
        super().__post_init__()
        check(self.independent_layers, "independent_layers = False: layers of a Decoder differ")
        check_range(self, "weight_std", 0, include_low=False)
        if self.branch_scale is not None:
            check_range(self, "branch_scale", 0)

    @property
    def end_std(self) -> float:
        """Initial standard deviation of the last weights of each branch."""
        scale = (2 * self.layers) ** -0.5 if self.branch_scale is None else self.branch_scale
        return scale * self.weight_std


@dataclass(frozen=True)
class LSTM:
    """PyTorch's bidirectional `LSTM`, and a linear map from both directions to the width.

    Attributes:
      layers, width: sizes.
      hidden: width of each direction.
    """

    layers: int = 2
    width: int = 4
    hidden: int = 8

    def __post_init__(self):
        """Check the values."""
        make_plain(self)
        check_positive_integers(self, "layers", "width", "hidden")


@dataclass(frozen=True)
class Mixer:
    """MLP-Mixer with ReLU: per layer an MLP over positions and one over channels.

    Each MLP has a norm before it and a skip connection around it.

    Attributes:
      layers, width: sizes.
      tokenwise, channelwise: hidden widths of the two MLPs.
    """

    layers: int = 1
    width: int = 4
    tokenwise: int = 4
    channelwise: int = 8

    def __post_init__(self):
        """Check the values."""
        make_plain(self)
        check_positive_integers(self, "layers", "width", "tokenwise", "channelwise")


Body = Transformer | LSTM | Mixer


Transform = Literal["half-swap", "shuffle", "projection", "bert-head"]


# Of the fields that arms set to a number: what else than numbers above 0 is allowed.
ABOVE_0 = {"zero": False, "formula": False}
FROM_0 = {"zero": True, "formula": False}
SIZE = {"zero": False, "formula": True}


@dataclass(frozen=True)
class Interventions:
    """Changes to rows of the embeddings; `jaxtie.training.interventions` defines them.

    Attributes:
      learned_scale: multiply all output rows by a learned number.
      gain, shared_gain, minus: names of the rows that have it.
      held_rows: name of the rows that all options below are about.
      input_norm: norm at which they are held as inputs.
      norm_path: where they are held; of two paths the other one reads them as they are.
      frozen_direction: keep their initial direction as inputs.
      direction_rate: factor of their learning rate as inputs.
      input_decay, output_decay: their weight decay in that role; None: the optimizer's.
    """

    learned_scale: bool = False
    gain: str | None = None
    shared_gain: str | None = None
    minus: str | None = None
    held_rows: str = "mask"
    input_norm: float | None = field(default=None, metadata=ABOVE_0)
    norm_path: Literal["both", "residual", "qkv"] = "both"
    frozen_direction: bool = False
    direction_rate: float = field(default=1.0, metadata=ABOVE_0)
    input_decay: float | None = field(default=None, metadata=FROM_0)
    output_decay: float | None = field(default=None, metadata=FROM_0)

    @property
    def row_sets(self) -> tuple[str, ...]:
        """Names of the sets of rows that the options refer to."""
        held = {self.input_norm, self.input_decay, self.output_decay} != {None}
        named = [self.gain, self.shared_gain, self.minus, self.held_rows if held else None]
        named += ["all"] * self.learned_scale
        return tuple(name for name in named if name)

    def faults(self, *, tied: bool, head: "Head") -> dict[str, bool]:
        """Return error -> whether an arm that starts tied, or untied, has it."""
        rows, rate, sometimes = self.held_rows, self.direction_rate != 1, self.norm_path != "both"
        decays = {self.input_decay, self.output_decay} != {None}
        covering = (rows,) if rows == "all" else (rows, "never-targets")
        untied = head.untied_rows in covering if tied else not head.tied_rows
        needs_norm = self.frozen_direction or rate or sometimes
        needs_tied = bool(self.shared_gain or self.minus)
        return {
            "+frozen-direction, +direction-rate, +residual-only and +qkv-only need +input-norm=X": (
                needs_norm and self.input_norm is None
            ),
            "+held-rows needs +input-norm=X, +input-decay=X or +output-decay=X": (
                rows != "mask" and self.input_norm is None and not decays
            ),
            "a frozen row has no rate and no decay; leave out +direction-rate and +input-decay": (
                self.frozen_direction and (rate or self.input_decay is not None)
            ),
            f"+direction-rate, +input-decay and +output-decay need an untied {rows}": (
                (rate or decays) and not untied
            ),
            "+shared-gain and +minus are for rows that are tied": (
                needs_tied and (not tied or head.untied_rows is not None)
            ),
            "+targets-only takes these rows out of the output; leave out +gain or +minus": (
                head.targets_only and bool({self.gain, self.minus} & {*ROW_SETS})
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
ROW_SETS = ("mask", "labels", "never-targets", "rarer-half")
HEAD_ROWS = {"untie-rows": "untied_rows", "tie-rows": "tied_rows"}
HEAD_ROWS |= {
    name.replace("_", "-"): name for name in ("gain", "shared_gain", "minus", "held_rows")
}
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
        known = ROW_SETS if name.endswith("tie-rows") else (*ROW_SETS, "all")
        expected = ", ".join(known)
        check(value in known, f"arm {arm!r}: {name} is {value!r}; expected {expected}")
        return {HEAD_ROWS[name]: value}
    if name in HEAD_NUMBERS and equals:
        return {name.replace("-", "_"): _parse_number(name, value, arm)}
    numbers, rows = (f"{name}=X" for name in HEAD_NUMBERS), (f"{name}=ROWS" for name in HEAD_ROWS)
    expected = ", ".join((*HEAD_FLAGS, "shuffle=GROUPS", *numbers, *rows))
    raise UserError(f"arm {arm!r}: +{option} is no option of a head; expected {expected}")


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

    @property
    def is_plain(self) -> bool:
        """Whether the head has no options."""
        return self.head == Head()

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
        arm = self.at(step)
        object.__setattr__(arm, "share", self.share)
        return arm

    def at(self, step: int | Fraction) -> "Arm":
        """Return the arm that unties at another step or share of the run."""
        return Arm(f"{self.name.partition('@')[0]}@{step}")

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def __repr__(self) -> str:
        """Return a short form that names the arm."""
        return f"Arm({self.name!r})"


def names_of(arms: Iterable[Arm]) -> list[str]:
    """Return the names of arms."""
    return [arm.name for arm in arms]


def member_number(setting: int, seed: Number) -> Number:
    """Return the number of a member, or of several: from its sweep point and its seed."""
    return setting * SEEDS + seed


def point_and_seed(number: Number) -> tuple[Number, Number]:
    """Return the sweep point and the seed of a member's number."""
    return number // SEEDS, number % SEEDS


@dataclass(frozen=True)
class Optimizer:
    """AdamW on every parameter, with a learning rate that follows a cosine for ever.

    Attributes:
      learning_rate: at step 0 and every 2·`half_period` steps.
      eta_min: least learning rate, at odd multiples of `half_period`.
      half_period: steps from the one to the other (PyTorch: T_max).
      warmup: over so many first steps, a factor rises to 1: update t has the cosine's rate times
        (t + 1) / `warmup`.
      weight_decay: decoupled, times the current learning rate.
      b1, b2, eps: Adam's.
    """

    learning_rate: float = 5e-4
    eta_min: float = 1e-5
    half_period: int = 10_000
    weight_decay: float = 0.1
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-12
    warmup: int = 0

    def __post_init__(self):
        """Check the values."""
        make_plain(self)
        check_range(self, "learning_rate", 0, include_low=False)
        check(
            is_integer(self.warmup) and 0 <= self.warmup < 2**30,
            f"warmup = {self.warmup!r}: expected a number of steps, or 0",
        )
        check_range(self, "eta_min", 0)
        check_positive_integers(self, "half_period")
        check(
            self.half_period < 2**30,
            f"half_period = {self.half_period}: expected fewer than 1073741824",
        )
        check_range(self, "weight_decay", 0)
        check_range(self, "b1", 0, 1)
        check_range(self, "b2", 0, 1)
        check_range(self, "eps", 0)


class Variant(NamedTuple):
    """The part of an arm that determines its compiled program: tied or not, and the head."""

    tied: bool
    head: Head = Head()


class Layout(NamedTuple):
    """How members are laid out on a platform.

    Attributes:
      blocks: members in a block, for few members and then, ascending, for more; the last for the
        most.
      few: the most members that are few.
      lanes: whether the steps of more than one are laid out with the member axis last, see
        `jaxtie.training.lanes`, not by `jax.vmap`.
      fast_start: whether the record at step 0 takes long enough to be compiled for speed.
    """

    blocks: tuple[int, ...]
    few: int = 0
    lanes: bool = False
    fast_start: bool = False


# Sweeps over these would join curves of different lengths; a longer run contains the shorter one.
NEVER_SWEPT = {("", name) for name in ("steps", "record_every", "eval_every")}
TASKS: dict[str, type["TaskConfig"]] = {}  # by `task`; subclasses enter themselves


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The configuration of an experiment.

    Subclass it as a frozen dataclass and implement `build`; `jaxtie.run` trains the arms. All other
    methods have defaults.

    Attributes:
      task: name of the task; results have it as an attribute.
      traced: fields that are arguments of the compiled program, so that a sweep over them needs no
        further program.
      accepted: options of the command line that change such an experiment.
      refusal: why others do not: "not an option of NAME, which ...".
      interventions: whether it applies those of a head, see `Interventions`.
      many_seeds: whether seeds are cheap enough that `--all --seeds` may add to the declared ones.
      reports: functions that need no jax. Of the configuration: `schema`
        (a `Schema`), `constants` (variables that no member owns), `attributes`. Of the results:
        `conclusion`, `tables`, `plots` and `frames` (by file name), `animate` (also of a folder).
        `jaxtie.results.analysis` has a generic one for each that is missing.
      name: name of the run folder.
      claim: what the experiment shows, in one sentence.
      arms: variants that are compared on the same seeds and data, by name; see `Arm`.
      seeds: one member each.
      steps: updates, one batch each.
      record_every: steps between two records.
      eval_every: steps between two evaluations; a multiple of `record_every`.
      optimizer: AdamW and its schedule.
      roles: record the gradient by role of a tied table (`jaxtie.training.gradient_by_role`); it
        costs time.
      sweep: name -> values, of any field that is declared as a number: its name, or OWNER.NAME.
        Fields that are `traced` share a program; the others make a run of their own at each value.
    """

    task: ClassVar[str]
    traced: ClassVar[tuple[str, ...]] = ("learning_rate", "eta_min", "weight_decay", "eps")
    accepted: ClassVar[frozenset[str]] = frozenset(
        "seeds steps scale arms record_every eval_every sweep".split()
    )
    refusal: ClassVar[str] = "does not have it"
    interventions: ClassVar[bool] = False
    many_seeds: ClassVar[bool] = False
    reports: ClassVar[Mapping[str, Callable]] = {}
    name: str
    claim: str = ""
    arms: tuple[Arm | Any, ...] = ("tied", "untied")  # Any: names, which become arms
    seeds: tuple[int, ...] = tuple(range(64))
    steps: int = 10_000
    record_every: int = 100
    eval_every: int = 1_000
    optimizer: Optimizer = Optimizer()
    roles: bool = False
    sweep: Sweep = ()

    def __init_subclass__(cls, **options: Any):
        """Enter the task into `TASKS`."""
        super().__init_subclass__(**options)
        if "task" in cls.__dict__:
            TASKS[cls.task] = cls

    def __post_init__(self):
        """Check the values."""
        make_plain(self)
        check(
            isinstance(self.optimizer, Optimizer),
            f"optimizer = {self.optimizer!r}: expected an Optimizer",
        )
        shared = vars(self).keys() & vars(self.optimizer).keys() & {*self.traced}
        check(
            not shared,
            f"task {self.task!r}: {', '.join(shared)}: the optimizer has it; rename the task's",
        )
        self.check_names_and_members()
        self.check_steps()
        self.check_sweep()

    def build(self, variant: Variant, platform: str) -> Any:
        """Return the `jaxtie.Task` of a variant: the one method that a configuration must have."""
        raise NotImplementedError

    def layout(self, platform: str) -> Layout | None:
        """Return how members are laid out on "cpu", "gpu" or "tpu"; None: by the model's size."""
        return None

    def changes(self, options: Any) -> dict[str, Any]:
        """Return the fields that options of the command line change, beyond the common ones."""
        return {}

    def prepare(self, folder: Any, earlier: dict | None, processes: Any, say: Any) -> Self:
        """Return the configuration with what training needs besides, such as a corpus.

        Args:
          folder: the run folder; nothing is written there.
          earlier: `config.json` of the folder's run, if there is one.
          processes: of a distributed run.
          say: receives lines for the user.
        """
        return self

    def check_unchanged(self, folder: Any, earlier: dict) -> None:
        """Raise UserError where a finished run was made from inputs that have changed since."""

    def save_inputs(self, folder: Any) -> dict[str, Any]:
        """Write inputs that could not be made again into a new folder; return facts to record."""
        return {}

    @classmethod
    def report(cls, name: str) -> Callable | None:
        """Return one of the functions in `reports`; None if it is missing."""
        return cls.reports.get(name)

    def program_key(self) -> Any:
        """Return the configuration reduced to the fields that compiled programs depend on.

        A program is compiled from it. The other fields are None, so a task that reads one fails.
        """
        key, optimizer = copy.copy(self), copy.copy(self.optimizer)
        object.__setattr__(key, "optimizer", optimizer)
        left_out = ("name", "claim", "arms", "seeds", "steps", "sweep")
        for config, names in ((key, (*left_out, *self.traced)), (optimizer, self.traced)):
            for name in names:
                if hasattr(config, name):
                    object.__setattr__(config, name, None)
        return key

    @property
    def points(self) -> list[Self]:
        """The configuration at every combination of the swept values that are traced."""
        return [self.at(each) for each in combinations(self.swept)]

    @property
    def static_points(self) -> "list[tuple[dict[str, float], Self]]":
        """The values at every combination of those that are not traced, and the configuration."""
        static = {
            name: values for name, values in dict(self.sweep).items() if name not in self.traced
        }
        return [
            (each, dataclasses.replace(self.at(each), sweep=self.swept))
            for each in combinations(static)
        ]

    def at(self, values: Mapping[str, float]) -> Self:
        """Return the configuration at one sweep point."""
        changes: dict[str, dict[str, Any]] = {"": {"sweep": ()}}
        for name, value in values.items():
            _, owner, field, convert = self._find_field(name)
            changes.setdefault(owner, {})[field] = convert(value)
        own = changes.pop("")
        for owner, fields in changes.items():
            own[owner] = dataclasses.replace(getattr(self, owner), **fields)
        return dataclasses.replace(self, **own)

    def _find_field(self, name: str) -> tuple[str, str, str, Callable[[float], Any]]:
        """Resolve a name of a sweep: return its shortest form, owner, field and conversion."""
        known = {
            f"{owner}.{short}".lstrip("."): (owner, field.name, convert)
            for owner, config in {"": self, **nested(self)}.items()
            for field in dataclasses.fields(config)
            for short, convert in (_in_sweep(field),)
            if convert and (owner, field.name) not in NEVER_SWEPT
        }
        found = [name] if name in known else [full for full in known if full.endswith(f".{name}")]
        names = [full.rpartition(".")[2] for full in known]
        expected = ", ".join(found or dict.fromkeys((*self.traced, *names)))
        check(len(found) == 1, f"sweep of {name!r}: expected one of {expected}")
        last = found[0].rpartition(".")[2]
        return (last if names.count(last) == 1 else found[0], *known[found[0]])

    @property
    def folder_name(self) -> str:
        """Name of the folder of its runs, unless a user names another one."""
        return self.name

    def check_inputs(self) -> None:
        """Raise UserError if a file that it reads is missing."""

    def check_names_and_members(self) -> None:
        """Check `name`, `arms` and `seeds`; make the last two tuples, of `Arm`s and of numbers."""
        check(
            bool(self.name) and not set(self.name) & set("/\\\0"),
            f"name = {self.name!r}: expected a name that can be a folder's",
        )
        check(
            bool(self.arms) and not isinstance(self.arms, str),
            "arms: expected at least one of tied, untied, untied@STEP",
        )
        check_positive_integers(self, "steps", "record_every", "eval_every")
        arms = (Arm.parse(arm).resolved(self.steps, self.record_every) for arm in self.arms)
        object.__setattr__(self, "arms", tuple(arms))
        for arm in self.arms:
            check(
                self.interventions or arm.head.interventions == Interventions(),
                f"arm {arm}: interventions on rows are not for {self.task}; expected exor or text",
            )
        different = {(arm.tied, arm.untie_at, arm.head) for arm in self.arms}
        check(
            len(different) == len(self.arms),
            f"arms = {','.join(names_of(self.arms))}: each may be named once",
        )
        check(
            isinstance(self.seeds, Iterable) and not isinstance(self.seeds, str),
            f"seeds = {self.seeds!r}: expected a sequence, such as (1, 5, 9) or range(4)",
        )
        seeds = plain(tuple(itertools.islice(self.seeds, MOST_SEEDS + 1)))
        check(len(seeds) <= MOST_SEEDS, f"seeds: expected at most {MOST_SEEDS}")
        object.__setattr__(self, "seeds", seeds)
        check(bool(self.seeds), "seeds: expected at least one")
        for seed in self.seeds:
            check_seed(seed)
        check(len(set(self.seeds)) == len(self.seeds), "seeds: each may be named once")

    def check_heads(self, width: int) -> None:
        """Check that models of this width can have the heads of all arms."""
        for arm in self.arms:
            check(
                width % arm.head.divisor == 0,
                f"arm {arm}: width = {width}: expected a multiple of {arm.head.divisor}",
            )

    def check_row_sets(self, known: Iterable[str]) -> None:
        """Check that the task has the sets of rows that the heads name."""
        for arm in self.arms:
            for name in arm.head.row_sets:
                check(
                    name in known,
                    f"arm {arm}: no rows {name!r} on {self.task}; expected {' or '.join(known)}",
                )

    def check_sweep(self) -> None:
        """Check `sweep` and each of its points; it becomes a tuple of fields and their values."""
        pairs = self.sweep.items() if isinstance(self.sweep, Mapping) else self.sweep
        try:
            given = [(str(name), plain(tuple(values))) for name, values in pairs]
        except (TypeError, ValueError):
            raise UserError(
                f'sweep = {self.sweep!r}: expected names and values, such as {{"p_X": (0.1, 0.5)}}'
            ) from None
        points = math.prod(len(values) for _, values in given)
        check(
            points * len(self.seeds) * len(self.arms) < MOST_SEEDS,
            f"sweep: {points:,} sweep points times seeds are too many",
        )
        sweep: dict[str, tuple[float, ...]] = {}
        for name, values in given:
            check(bool(values), f"sweep of {name}: expected at least one value")
            check(all(map(is_number, values)), f"sweep of {name} = {values!r}: expected numbers")
            field, _, _, convert = self._find_field(name)
            names = ", ".join(name for name, _ in given)
            check(field not in sweep, f"sweep of {names}: each field may be named once")
            kind = int if convert is int else float
            for value in values:
                check(kind(value) == value, f"sweep of {name}: {value:g}: expected integers")
            sweep[field] = tuple(map(kind, values))
            different = {value if kind is int else c_float(value).value for value in values}
            once = len(different) == len(values)
            check(once, f"sweep of {name}: each value may be named once, as a 32-bit number")
        object.__setattr__(self, "sweep", tuple(sweep.items()))
        for point in combinations(sweep) if sweep else ():
            self.at(point)  # it checks the values

    def check_steps(self) -> None:
        """Check the numbers of steps, those of untying included, against each other."""
        multiple = f"expected a multiple of record_every = {self.record_every}"
        for arm in self.arms:
            at = arm.untie_at
            check(
                at is None or (at < self.steps and at % self.record_every == 0),
                f"arm {arm}: {multiple} below steps = {self.steps}",
            )
        for name in ("steps", "eval_every"):
            value = getattr(self, name)
            check(value % self.record_every == 0, f"{name} = {value}: {multiple}")
            check(value < 2**31, f"{name} = {value}: expected fewer than 2147483648")

    @property
    def members(self) -> tuple[int, ...]:
        """Numbers of an arm's members, see `member_number`."""
        points = math.prod(len(values) for values in self.swept.values())
        return tuple(member_number(point, seed) for point in range(points) for seed in self.seeds)

    @property
    def swept(self) -> dict[str, Sequence[float]]:
        """Name of a swept hyperparameter that is traced -> its values."""
        return {name: values for name, values in dict(self.sweep).items() if name in self.traced}

    @property
    def is_static_sweep(self) -> bool:
        """Whether some swept field needs a run of its own at each value."""
        return self.swept.keys() != dict(self.sweep).keys()

    @property
    def record_steps(self) -> range:
        """Numbers of updates at the records: 0, R, 2R, ..., T."""
        return range(0, self.steps + 1, self.record_every)

    @property
    def eval_steps(self) -> tuple[int, ...]:
        """Numbers of updates at the evaluations: 0, E, 2E, ... and T."""
        return (*range(0, self.steps, self.eval_every), self.steps)

    def scaled(self, factor: float) -> Self:
        """Multiply the steps, to the nearest record and at least one; arms untie at their share.

        The schedule of the learning rate stays, so that a shorter run is the beginning of the
        longer one, up to where its arms untie.

        Raises:
          UserError: if no record is near such a share, or two arms become one.
        """
        records = max(1, round(min(self.steps * factor / self.record_every, 2**31)))
        arms = tuple(
            arm.at(Fraction(arm.untie_at, self.steps)) if arm.untie_at else arm for arm in self.arms
        )
        try:
            return dataclasses.replace(self, steps=self.record_every * records, arms=arms)
        except UserError as error:
            raise UserError(
                f"{self.name} at scale {factor:g}: {error}; choose another --scale"
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """Return nested plain values, as `config.json` holds them."""
        fields = dataclasses.asdict(self)
        if not self.optimizer.warmup:
            del fields["optimizer"]["warmup"]  # as in older folders
        return {"task": self.task, **fields, "arms": names_of(self.arms)}


def differing_fields(new: dict, old: dict, prefix: str = "") -> list[str]:
    """Return the dotted names of the fields in which two nested configurations differ."""
    names = []
    for name in sorted(new.keys() | old.keys()):
        a, b = new.get(name), old.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            names += differing_fields(a, b, f"{prefix}{name}.")
        elif a != b:
            names.append(prefix + name)
    return names
