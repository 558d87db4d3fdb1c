"""What an experiment is: frozen dataclasses, their derived values, their validation.

Every default is the paper's main experiment. A value that cannot be meant raises `UserError`, whose message is one
line: the value, what was expected.
"""

import dataclasses
import itertools
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

DATA_STREAMS = ("per-seed", "shared")
TASKS = ("masked", "causal")
ARMS = ("tied", "untied")
SWEPT = ("learning_rate", "eta_min", "weight_decay", "eps", "p_X", "p_A")  # what can be a member's own
SEEDS = 2**32


class UserError(ValueError):
    """What a user can get wrong: one line that names the value, what was expected and what to do."""


def cache_folder() -> Path:
    """Where this user's caches of jaxtie are."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxtie"


def untied_from(arm: str) -> int | None:
    """The step from which an arm is untied: 0 for `untied`, STEP for `untied@STEP`; None for `tied`, which never is.

    Raises:
      UserError: where it is none of them.
    """
    name, at, step = arm.partition("@")
    number = int(step) if step.isascii() and step.isdigit() and len(step) <= 10 else 0
    _check(
        arm in ARMS or bool(name == "untied" and at and number),
        f"arm {arm!r}: expected tied, untied or untied@STEP, comma-separated",
    )
    return number if at else {"tied": None, "untied": 0}[arm]


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise UserError(message)


def _check_distribution(name: str, values: tuple[float, ...]) -> None:
    _check(
        len(values) == 2 and all(math.isfinite(p) and 0 <= p <= 1 for p in values) and math.isclose(sum(values), 1.0),
        f"{name} = {values}: expected two probabilities in [0, 1] that sum to 1, for example 0.1,0.9",
    )


def _check_seeds(seeds: tuple[int, ...]) -> None:
    _check(bool(seeds), "seeds: expected at least one")
    for seed in seeds:
        _check(
            isinstance(seed, int) and 0 <= seed < SEEDS,
            f"seed {seed!r}: expected an integer in 0...4294967295",
        )
    _check(len(set(seeds)) == len(seeds), "seeds: each may be named once")


def _check_positive_integers(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        _check(
            isinstance(value, int) and not isinstance(value, bool) and value > 0,
            f"{name} = {value!r}: expected a positive integer",
        )


def _check_range(owner: object, name: str, low: float, high: float = math.inf, *, include_low: bool = True) -> None:
    value = getattr(owner, name)
    inside = isinstance(value, int | float) and math.isfinite(value) and low <= value < high
    expected = f"at least {low}" if include_low else f"above {low}"
    expected += "" if high == math.inf else f" and below {high}"
    _check(inside and (include_low or value > low), f"{name} = {value!r}: expected a number {expected}")


@dataclass(frozen=True)
class Process:
    """EXor: strings of bits with their parity, each bit spelled by one of two symbols (paper, section 5).

    Attributes:
      zeros: p(X), p(Y): how a zero is spelled.
      ones: p(A), p(B): how a one is spelled.
      length: bits in a string; a sequence is one token longer, the parity label.
      all_strings: include the string of ones, which the published code leaves out.
      data_seed: of the split, and of the random stream that samples are drawn from.
    """

    zeros: tuple[float, float] = (0.1, 0.9)
    ones: tuple[float, float] = (0.5, 0.5)
    length: int = 7
    all_strings: bool = False
    data_seed: int = 14

    def __post_init__(self):
        _check_distribution("zeros", self.zeros)
        _check_distribution("ones", self.ones)
        _check_positive_integers(self, "length")
        _check(4 <= self.length <= 16, f"length = {self.length}: expected 4 to 16 bits (all strings are enumerated)")
        _check(
            isinstance(self.data_seed, int) and 0 <= self.data_seed < 2**32,
            f"data_seed = {self.data_seed!r}: expected an integer in 0...4294967295",
        )

    @property
    def symbols(self) -> tuple[str, ...]:
        """The vocabulary in the order of the token ids."""
        return ("X", "Y", "A", "B", "E", "D", "mask")

    @property
    def pairs(self) -> dict[str, tuple[float, float]]:
        """The two pairs of exchangeable symbols with their probabilities."""
        return {"X-Y": self.zeros, "A-B": self.ones}


@dataclass(frozen=True)
class Corpus:
    """Where natural text comes from, and the vocabulary that it is written in.

    Attributes:
      paths: text files, and folders that are searched for `*.txt`; or else
      tfds: NAME[/CONFIG][:VERSION] of a TFDS data set, all of its splits together.
      field: the feature of that data set that holds the text.
      vocab: a BERT `vocab.txt` or a `tokenizer.json`; without it WordPiece is trained on the training split.
      vocab_size: entries of the trained vocabulary, at most.
      split_seed: of the split into training, validation and test.
    """

    paths: tuple[str, ...] = ()
    tfds: str | None = None
    field: str = "text"
    vocab: str | None = None
    vocab_size: int = 8192
    split_seed: int = 42

    def __post_init__(self):
        _check(bool(self.paths) != bool(self.tfds), "text: expected either files and folders or the name of a TFDS data set")
        _check(
            not self.tfds or bool(re.fullmatch(r"(\w+:)?\w+(/[^\s:]+)?(:[\w.*]+)?", self.tfds)),
            f"--tfds {self.tfds}: expected NAME[/CONFIG][:VERSION], such as lm1b or wiki40b/en",
        )
        _check(bool(self.field), f"field = {self.field!r}: expected the name of a feature, such as text")
        _check_positive_integers(self, "vocab_size")
        _check(100 <= self.vocab_size <= 2**20, f"vocab_size = {self.vocab_size}: expected 100 to {2**20} (published: 30522)")
        _check(
            isinstance(self.split_seed, int) and 0 <= self.split_seed < 2**32,
            f"split_seed = {self.split_seed!r}: expected an integer in 0...4294967295",
        )


@dataclass(frozen=True)
class Transformer:
    """PyTorch's `TransformerEncoder`, without positions: post-norm, exact GELU, no dropout.

    Attributes:
      layers, heads, width, feedforward: sizes; `heads` divides `width`.
      independent_layers: draw every layer's initial values anew, instead of cloning the first as PyTorch does.
    """

    layers: int = 1
    heads: int = 1
    width: int = 4
    feedforward: int = 4
    independent_layers: bool = False

    def __post_init__(self):
        _check_positive_integers(self, "layers", "heads", "width", "feedforward")
        _check(self.width % self.heads == 0, f"heads = {self.heads}: expected a divisor of width = {self.width}")


@dataclass(frozen=True)
class LSTM:
    """PyTorch's bidirectional `LSTM`, and a linear map from both directions to the width of the tables.

    Attributes:
      layers, width: sizes.
      hidden: width of each direction.
    """

    layers: int = 2
    width: int = 4
    hidden: int = 8

    def __post_init__(self):
        _check_positive_integers(self, "layers", "width", "hidden")


@dataclass(frozen=True)
class Mixer:
    """MLP-Mixer with ReLU: per layer an MLP over positions and one over channels, each behind a norm and beside a skip.

    Attributes:
      layers, width: sizes.
      tokenwise, channelwise: hidden widths of the MLP over positions and of the one over channels.
    """

    layers: int = 1
    width: int = 4
    tokenwise: int = 4
    channelwise: int = 8

    def __post_init__(self):
        _check_positive_integers(self, "layers", "width", "tokenwise", "channelwise")


Body = Transformer | LSTM | Mixer


@dataclass(frozen=True)
class Optimiser:
    """AdamW on every parameter, under a cosine between two learning rates that never stops.

    Attributes:
      learning_rate: at step 0 and every 2·`half_period` steps.
      eta_min: the least learning rate, at odd multiples of `half_period`.
      half_period: steps from the one to the other (PyTorch: T_max).
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

    def __post_init__(self):
        _check_range(self, "learning_rate", 0, include_low=False)
        _check_range(self, "eta_min", 0)
        _check_positive_integers(self, "half_period")
        _check_range(self, "weight_decay", 0)
        _check_range(self, "b1", 0, 1)
        _check_range(self, "b2", 0, 1)
        _check_range(self, "eps", 0)


class _Run:
    """What experiments that train have in common. No fields of its own."""

    sweep: ClassVar[tuple] = ()  # of an experiment that cannot be swept

    def _check_run(self) -> None:
        _check(
            bool(self.name) and not set(self.name) & set("/\\\0"),
            f"name = {self.name!r}: expected a name that can be a folder's",
        )
        _check_positive_integers(self, "steps", "record_every", "eval_every")
        _check(bool(self.arms), "arms: expected at least one of tied, untied, untied@STEP")
        for arm in self.arms:
            at = untied_from(arm)
            _check(
                not at or (at < self.steps and at % self.record_every == 0),
                f"arm {arm}: expected a multiple of record_every = {self.record_every} below steps = {self.steps}",
            )
        _check(len(set(self.arms)) == len(self.arms), f"arms = {','.join(self.arms)}: each may be named once")
        _check(bool(self.seeds), "seeds: expected at least one")
        for seed in self.seeds:
            _check(
                isinstance(seed, int) and 0 <= seed < SEEDS,
                f"seed {seed!r}: expected an integer in 0...4294967295",
            )
        _check(len(set(self.seeds)) == len(self.seeds), "seeds: each may be named once")
        _check(
            self.steps % self.record_every == 0,
            f"steps = {self.steps}: expected a multiple of record_every = {self.record_every}",
        )
        _check(
            self.eval_every % self.record_every == 0,
            f"eval_every = {self.eval_every}: expected a multiple of record_every = {self.record_every}",
        )
        _check(self.steps < 2**31, f"steps = {self.steps}: expected fewer than 2147483648")

    @property
    def record_steps(self) -> range:
        """Numbers of updates made at the records: 0, R, 2R, ..., T."""
        return range(0, self.steps + 1, self.record_every)

    @property
    def eval_steps(self) -> tuple[int, ...]:
        """Numbers of updates made at the evaluations: 0, E, 2E, ... and T."""
        return (*range(0, self.steps, self.eval_every), self.steps)

    def scaled(self, factor: float) -> Self:
        """The same over `factor` times as many steps, of untying too, to the nearest record and at least one.

        The schedule of the learning rate stays what it is: a shorter run is the beginning of the longer one, up to where
        its arms untie.

        Raises:
          UserError: where so few steps are left that two arms become one, or one unties at the end.
        """

        def scale(steps: int) -> int:
            return self.record_every * max(1, round(min(steps * factor / self.record_every, 2**31)))

        times = {arm: untied_from(arm) for arm in self.arms}
        arms = tuple(f"untied@{scale(at)}" if at else arm for arm, at in times.items())
        try:
            return dataclasses.replace(self, steps=scale(self.steps), arms=arms)
        except UserError as error:
            raise UserError(f"{self.name} at scale {factor:g}: {error}; choose another --scale") from None

    def as_dict(self) -> dict:
        """Nested plain values, as `config.json` holds them."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Experiment(_Run):
    """A base configuration and the arms that are compared on it, all on the same seeds and the same data.

    Attributes:
      name: of the run folder.
      claim: one sentence: what the experiment shows.
      model: what is between the two tables, and how wide they are.
      arms: what is compared: "tied", "untied", "untied@STEP": tied up to that step, then untied.
      steps: updates, one full batch each.
      seeds: one member each: its initial values and, with `data` "per-seed", its stream of samples.
      record_every: steps between two records of loss, accuracy and distances.
      eval_every: steps between two exact evaluations; a multiple of `record_every`.
      data: "per-seed": a stream of samples per seed, shared by its arms; "shared": one stream for all.
      sweep: values that take the place of a scalar setting, by its name (see `SWEPT`); every combination of them is trained
        with every seed, in one program. p_X and p_A are the probabilities of X for a zero and of A for a one.
    """

    name: str = "transformer-small"
    claim: str = "Tied, X and Y cannot be both alike (as inputs) and apart (as outputs); untied, they are."
    process: Process = field(default_factory=Process)
    model: Body = field(default_factory=Transformer)
    optimiser: Optimiser = field(default_factory=Optimiser)
    arms: tuple[str, ...] = ARMS
    steps: int = 150_000
    seeds: tuple[int, ...] = tuple(range(64))
    record_every: int = 100
    eval_every: int = 1_000
    data: str = "per-seed"
    sweep: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def __post_init__(self):
        _check(
            isinstance(self.model, Body),
            f"model = {self.model!r}: expected one of {', '.join(each.__name__ for each in Body.__args__)}",
        )
        self._check_run()
        self._check_sweep()
        _check(self.data in DATA_STREAMS, f"data = {self.data!r}: expected one of {', '.join(DATA_STREAMS)}")

    def _check_sweep(self) -> None:
        for name, values in self.sweep:
            _check(name in SWEPT, f"sweep of {name!r}: expected one of {', '.join(SWEPT)}")
            _check(bool(values), f"sweep of {name}: expected at least one value")
            _check(
                all(isinstance(value, int | float) and math.isfinite(value) for value in values),
                f"sweep of {name} = {values!r}: expected numbers",
            )
            _check(len(set(values)) == len(values), f"sweep of {name}: each value may be named once")
            if name.startswith("p_"):
                _check(all(0 <= p <= 1 for p in values), f"sweep of {name} = {values!r}: expected probabilities in [0, 1]")
            else:
                for value in values:
                    dataclasses.replace(self.optimiser, **{name: value})  # it checks
        names = [name for name, _ in self.sweep]
        _check(len(set(names)) == len(names), f"sweep of {', '.join(names)}: each may be named once")
        sizes = math.prod(len(values) for _, values in self.sweep)
        _check(sizes * len(self.seeds) * len(self.arms) < 2**24, f"sweep: {sizes:,} settings times seeds are too many")

    @property
    def settings(self) -> list["Experiment"]:
        """The experiment at every combination of the swept values, the last name's running fastest."""
        names = [name for name, _ in self.sweep]
        return [self._at(dict(zip(names, values))) for values in itertools.product(*(values for _, values in self.sweep))]

    def _at(self, values: dict[str, float]) -> "Experiment":
        zeros, ones = (
            (values[name], 1 - values[name]) if name in values else pair
            for name, pair in (("p_X", self.process.zeros), ("p_A", self.process.ones))
        )
        own = {name: value for name, value in values.items() if not name.startswith("p_")}
        return dataclasses.replace(
            self,
            sweep=(),
            process=dataclasses.replace(self.process, zeros=zeros, ones=ones),
            optimiser=dataclasses.replace(self.optimiser, **own),
        )

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of an arm's members: a setting's place times 2^32, and a seed."""
        return tuple(setting * SEEDS + seed for setting in range(len(self.settings)) for seed in self.seeds)


@dataclass(frozen=True)
class TextExperiment(_Run):
    """A language model of text, tied and untied: the paper's second experiment, or the next token.

    Attributes:
      name, claim, arms, seeds, record_every: as `Experiment` has them; each seed has its own order of the rows and its own
        swaps and masks, shared by its arms.
      task: "masked": BERT's masks; "causal": each token from those before it.
      corpus: the text; None: the command line names it.
      model: sizes. Masked: PyTorch's encoder, without positions. Causal: pre-norm, with rotary positions.
      deviation: of the tables at the start.
      steps: updates, a batch each.
      eval_every: steps between two evaluations on the validation split, of distances and nearest neighbours too.
      eval_batches: of the validation split, at most; a fixed random choice of them where there are more.
      batch: rows of a batch.
      length: tokens of a row at most, [CLS] and [SEP] included; of a causal model all rows are as long.
      buckets: lengths that shorter rows of a masked model are padded to.
      words: how many of the most frequent words are looked at.
      duplicates: whether each of these words has a second id that half of its occurrences get, drawn afresh at each step.
      data_seed: of the order of the rows, of swaps and masks, and of the random pairs of words.
    """

    name: str = "text-mlm"
    claim: str = "A word and its duplicate draw together in every table; other pairs of words do not."
    task: str = "masked"
    corpus: Corpus | None = None
    model: Transformer = Transformer(layers=3, heads=4, width=128, feedforward=512)
    deviation: float = 0.3
    optimiser: Optimiser = Optimiser(learning_rate=1e-4, weight_decay=0.01)
    arms: tuple[str, ...] = ARMS
    steps: int = 10_000
    seeds: tuple[int, ...] = (42,)
    record_every: int = 100
    eval_every: int = 500
    eval_batches: int = 100
    batch: int = 128
    length: int = 128
    buckets: tuple[int, ...] = (16, 32, 64, 128)
    words: int = 100
    duplicates: bool = True
    data_seed: int = 42

    def __post_init__(self):
        self._check_run()
        _check(self.task in TASKS, f"task = {self.task!r}: expected one of {', '.join(TASKS)}")
        _check(self.corpus is None or isinstance(self.corpus, Corpus), f"corpus = {self.corpus!r}: expected a Corpus or None")
        _check(
            isinstance(self.model, Transformer) and not self.model.independent_layers,
            f"model = {self.model!r}: expected a Transformer; independent_layers is no choice of text",
        )
        _check(
            self.task == "masked" or self.model.width // self.model.heads % 2 == 0,
            f"heads = {self.model.heads}: expected width / heads to be even, for rotary positions",
        )
        _check_range(self, "deviation", 0, include_low=False)
        _check_positive_integers(self, "eval_batches", "batch", "length", "words")
        _check(self.length >= 4, f"length = {self.length}: expected at least 4")
        _check(
            all(isinstance(bucket, int) and bucket >= 4 for bucket in self.buckets),
            f"buckets = {self.buckets}: expected lengths of at least 4",
        )
        _check(self.words >= 3, f"words = {self.words}: expected at least 3, for as many pairs of different ones")
        _check(
            isinstance(self.data_seed, int) and 0 <= self.data_seed < SEEDS,
            f"data_seed = {self.data_seed!r}: expected an integer in 0...4294967295",
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of pairs of words that are looked at, `words` of each."""
        return ("duplicate", "random") if self.duplicates else ("random",)

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of an arm's members: seeds."""
        return self.seeds


@dataclass(frozen=True)
class InitialLoss:
    """An experiment: initial losses over a grid. Each value is a mean over `tokens` tokens of each seed."""

    name: str = "initial-loss"
    claim: str = ""
    vocabularies: tuple[int, ...] = (100, 1000, 10_000, 100_000)
    widths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048)
    deviations: tuple[float | str, ...] = (0.02, 1.0, "1/sqrt(D)", "log(n)/D")
    tokens: int = 256
    seeds: tuple[int, ...] = tuple(range(8))

    def as_dict(self) -> dict:
        """Nested plain values, as `config.json` holds them."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class HeadConvergence:
    """An experiment: models of text that differ in how they tie alone, trained from the same start on the same batches.

    Attributes:
      text: files and folders, see `Corpus.paths`; given on the command line.
      vocab_size: entries of the WordPiece vocabulary that is trained on it, at most.
      width, layers, attention_heads, feedforward: sizes; √width well above log(vocab_size), or nothing is seen.
      batch_size, length: rows of a batch and tokens predicted in each.
      steps: updates; the learning rate goes from `learning_rate` to `eta_min` along half a cosine over all of them.
      eval_every: steps between two records; `steps` is a multiple.
      valid_rows: rows that a seed's validation loss is the mean over.
      shares: of the way from log n to where the untied model ends; the losses there are those to be reached.
    """

    name: str = "head-convergence"
    claim: str = ""
    text: tuple[str, ...] = ()
    vocab_size: int = 2000
    width: int = 256
    layers: int = 1
    attention_heads: int = 4
    feedforward: int = 256
    batch_size: int = 4
    length: int = 32
    steps: int = 3000
    seeds: tuple[int, ...] = tuple(range(8))
    eval_every: int = 25
    valid_rows: int = 64
    learning_rate: float = 1e-3
    eta_min: float = 1e-5
    weight_decay: float = 0.1
    shares: tuple[float, ...] = (0.5, 0.75, 0.9, 0.95)

    def __post_init__(self):
        sizes = ("width", "layers", "attention_heads", "feedforward", "batch_size", "length")
        _check_positive_integers(self, *sizes, "steps", "eval_every", "valid_rows")
        _check_seeds(self.seeds)
        pairs = 2 * self.attention_heads
        _check(self.width % pairs == 0, f"width = {self.width}: expected a multiple of 2·attention_heads = {pairs}")
        _check(
            self.steps % self.eval_every == 0, f"steps = {self.steps}: expected a multiple of eval_every = {self.eval_every}"
        )
        _check(all(0 < share <= 1 for share in self.shares), f"shares = {self.shares}: expected numbers above 0, at most 1")
        rate = self.optimiser.learning_rate
        _check(self.eta_min <= rate, f"eta_min = {self.eta_min}: expected at most learning_rate = {rate}")

    @property
    def corpus(self) -> Corpus:
        """What there is to read; UserError without `text`."""
        return Corpus(paths=self.text, vocab_size=self.vocab_size)

    @property
    def optimiser(self) -> Optimiser:
        """AdamW, its second moment shorter than the default: there are few steps."""
        rates = {"learning_rate": self.learning_rate, "eta_min": self.eta_min, "half_period": self.steps}
        return Optimiser(**rates, weight_decay=self.weight_decay, b2=0.99, eps=1e-8)

    @property
    def record_steps(self) -> range:
        """Numbers of updates made at the records: 0, E, 2E, ..., T."""
        return range(0, self.steps + 1, self.eval_every)

    def scaled(self, factor: float) -> "HeadConvergence":
        """The same over `factor` times as many steps, to the nearest record and at least one; the cosine too."""
        records = max(1, round(min(self.steps * factor / self.eval_every, 2**31)))
        return dataclasses.replace(self, steps=records * self.eval_every)

    def as_dict(self) -> dict:
        """Nested plain values, as `config.json` holds them."""
        return dataclasses.asdict(self)


Study = InitialLoss | HeadConvergence  # an experiment of its own kind
