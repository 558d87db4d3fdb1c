"""Declare experiments: model sizes, optimizer, arms, sweeps. Imports no jax.

An invalid value raises `UserError`, one line that names the value and the expected ones.
"""

import copy
import dataclasses
import itertools
import math
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar, get_args

from jaxtie.arms import Arm, Interventions, Variant, names_of
from jaxtie.arms import Head as Head
from jaxtie.checks import (
    SEEDS,
    UserError,
    check,
    check_positive_integers,
    check_range,
    check_seed,
    is_integer,
    is_number,
    make_plain,
    natural,
    nested,
    plain,
    suggest,
)
from jaxtie.checks import Size as Size
from jaxtie.checks import check_path as check_path
from jaxtie.checks import check_size as check_size
from jaxtie.checks import number_label as number_label
from jaxtie.checks import size as size

if TYPE_CHECKING:
    import numpy as np

MOST_SEEDS = 2**24  # of one run
Number = TypeVar("Number", int, "np.ndarray")
Sweep = Mapping[str, Sequence[float]] | tuple[tuple[str, tuple[float, ...]], ...]


def combinations(sweep: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Return every combination of swept values, the last name's fastest."""
    return [dict(zip(sweep, values)) for values in itertools.product(*sweep.values())]


class Sizes:
    """A body of a model: its fields that are integers are sizes above 0."""

    def __post_init__(self):
        make_plain(self)
        fields = dataclasses.fields(self)
        check_positive_integers(self, *(each.name for each in fields if each.type is int))


@dataclass(frozen=True)
class Transformer(Sizes):
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
        super().__post_init__()
        self.hidden  # noqa: B018, it checks
        check(
            self.width % self.heads == 0,
            f"heads = {self.heads}: expected a divisor of width = {self.width}",
        )

    @property
    def hidden(self) -> int:
        """Width of the hidden layer."""
        if not isinstance(self.feedforward, str):
            check_positive_integers(self, "feedforward")
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
class LSTM(Sizes):
    """PyTorch's bidirectional `LSTM`, and a linear map from both directions to the width.

    Attributes:
      layers, width: sizes.
      hidden: width of each direction.
    """

    layers: int = 2
    width: int = 4
    hidden: int = 8


@dataclass(frozen=True)
class Mixer(Sizes):
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


Body = Transformer | LSTM | Mixer


def member_number(point: int, seed: Number) -> Number:
    """Return the number of a member, or of several: from its sweep point and its seed."""
    return point * SEEDS + seed


def point_and_seed(number: Number) -> tuple[Number, Number]:
    """Return the sweep point and the seed of a member's number."""
    return number // SEEDS, number % SEEDS


@dataclass(frozen=True)
class Optimizer:
    """AdamW on every parameter; its learning rate follows a cosine that goes down and up again.

    Attributes:
      learning_rate: at step 0 and every 2·`half_period` steps.
      eta_min: least learning rate, at odd multiples of `half_period`.
      half_period: steps from the one to the other (PyTorch: T_max).
      warmup: number of first steps over which a factor rises to 1: update t has the cosine's rate
        times (t + 1) / `warmup`.
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


class Layout(NamedTuple):
    """How members are laid out on a platform.

    Attributes:
      blocks: members in a block, for few members and then, ascending, for more; the last for the
        most.
      few: the most members that are few.
      lanes: whether the steps of more than one are laid out with the member axis last, see
        `jaxtie.training.lanes`, not by `jax.vmap`.
      fast_start: compile also the program of step 0 for speed; it takes long to run.
    """

    blocks: tuple[int, ...]
    few: int = 0
    lanes: bool = False
    fast_start: bool = False


class NotInProgram:
    """In place of a field that a compiled program does not depend on: nothing can compute with it.

    `Task.hparams` of such a configuration has the right shapes, and no values.
    """

    def __float__(self) -> float:
        return math.nan


class Reports(NamedTuple):
    """Functions of a task that need no jax; generic ones take the place of those that are None.

    Attributes:
      schema: configuration -> `Schema`; the generic one has all that is recorded.
      constants: configuration -> variables that no member owns.
      attributes: configuration -> attributes of the results.
      conclusion, tables, plots: results -> `Conclusion`, tables, figures by file name; see
        `jaxtie.results.analysis`.
    """

    schema: Callable | None = None
    constants: Callable | None = None
    attributes: Callable | None = None
    conclusion: Callable | None = None
    tables: Callable | None = None
    plots: Callable | None = None


NOT_IN_PROGRAM = NotInProgram()
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
      reports: its functions of configuration and results.
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
        "seeds steps arms record_every eval_every sweep learning_rate weight_decay width".split()
    )
    refusal: ClassVar[str] = "does not have it"
    interventions: ClassVar[bool] = False
    reports: ClassVar[Reports] = Reports()
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

    def fields_from_options(self, options: Any) -> dict[str, Any]:
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

    def program_key(self) -> Any:
        """Return the configuration reduced to the fields that compiled programs depend on.

        A program is compiled from it. The other fields are `NOT_IN_PROGRAM`, so a task that reads
        one there, instead of its `hparams`, fails.
        """
        key, optimizer = copy.copy(self), copy.copy(self.optimizer)
        object.__setattr__(key, "optimizer", optimizer)
        for config in (key, optimizer):
            for name in {"name", "claim", "arms", "seeds", "steps", "sweep", *self.traced}:
                if hasattr(config, name):
                    object.__setattr__(config, name, NOT_IN_PROGRAM)
        return key

    @property
    def traced_points(self) -> list[Self]:
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

    def changed(self, **values: Any) -> Self:
        """Return the configuration with other values of its fields, or of numbers in nested ones.

        Raises:
          UserError: if there is no such field or number, or a value is invalid.
        """
        names = {each.name for each in dataclasses.fields(self)}
        own = {name: values.pop(name) for name in names & values.keys()}
        changed = dataclasses.replace(self, **own)
        return dataclasses.replace(changed.at(values), sweep=changed.sweep) if values else changed

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
        """Resolve a name of a sweep: return its shortest form, owner, field and conversion.

        Metadata `sweep` give a field another name and another conversion.
        """
        known: dict[str, tuple[str, str, Callable[[float], Any]]] = {}
        for owner, config in {"": self, **nested(self)}.items():
            for field in dataclasses.fields(config):
                hint = {"int": int, "float": float}.get(str(field.type), field.type)
                types = get_args(typing.Union[hint, None])  # noqa: UP007, it may be a text
                convert = float if float in types else int if int in types else None
                short, convert = field.metadata.get("sweep", (field.name, convert))
                if convert and field.init and (owner, field.name) not in NEVER_SWEPT:
                    known[f"{owner}.{short}".lstrip(".")] = owner, field.name, convert
        found = [name] if name in known else [full for full in known if full.endswith(f".{name}")]
        names = [full.rpartition(".")[2] for full in known]
        expected = ", ".join(found or dict.fromkeys((*self.traced, *names)))
        which = "more than one number" if found else "no number"
        meant = "" if found else suggest(name, {*names, *vars(self)} - {name})
        message = f"{name}: {which} of the experiment; expected one of {expected}{meant}"
        check(len(found) == 1, message)
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
            isinstance(self.seeds, Collection) and not isinstance(self.seeds, str),
            f"seeds = {self.seeds!r}: expected a sequence, such as (1, 5, 9) or range(4)",
        )
        check(0 < len(self.seeds) <= MOST_SEEDS, f"seeds: expected 1 to {MOST_SEEDS}")
        object.__setattr__(self, "seeds", plain(tuple(self.seeds)))
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
            once = len({*sweep[field]}) == len(values)
            check(once, f"sweep of {name}: each value may be named once")
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
            shown = f"{name} = {value}: {multiple}, or another --record-every"
            check(value % self.record_every == 0, shown)
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
