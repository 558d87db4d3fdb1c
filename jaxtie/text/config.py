"""Declare experiments on natural text: corpus, model, arms. Imports no jax."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from jaxtie.config import (
    Decoder,
    Interventions,
    Optimizer,
    Reports,
    Size,
    TaskConfig,
    Transformer,
    UserError,
    Variant,
    check,
    check_path,
    check_positive_integers,
    check_range,
    check_seed,
    check_size,
    is_integer,
)
from jaxtie.results.folder import RunFolder, Say
from jaxtie.text.analysis import text_attributes, text_constants, text_schema
from jaxtie.text.conclusion import text_conclusion
from jaxtie.text.corpus import PreparedCorpus, prepare_corpus, training_batches
from jaxtie.text.data import files
from jaxtie.text.data.config import Corpus
from jaxtie.text.data.tokens import Text, prepare_text
from jaxtie.text.plots import text_pictures
from jaxtie.text.tables import text_tables

if TYPE_CHECKING:
    from jaxtie.text.task import TextTask
    from jaxtie.training.distributed import Processes

TEXT_OBJECTIVES = ("masked", "causal")
PUBLISHED_MODEL = Transformer(layers=3, heads=4, width=128, feedforward=512)
PUBLISHED_OPTIMISER = Optimizer(learning_rate=1e-4, weight_decay=0.01)
PUBLISHED_DUPLICATES = (0.5,)


@dataclass(frozen=True, kw_only=True)
class TextExperiment(TaskConfig):
    """A language model on text, masked (the paper's second experiment) or causal.

    A seed has its own order of rows, duplicates and masks, shared by its arms. An evaluation
    measures the validation loss and distances.

    Attributes:
      objective: "masked": BERT's masks; "causal": predict each token from those before it.
      corpus: the text.
      model: sizes. Masked: PyTorch's encoder, without positions. Causal: a `Decoder`, or the same
        layers as `Transformer`, pre-norm, with rotary positions and branches that start near 0.
      init_std: initial standard deviation of the embeddings: a number, or a formula of
        `jaxtie.config.FORMULAS`.
      eval_batches: at most this many batches of the validation split are evaluated: a fixed
        random choice.
      batch: rows of a batch.
      length: largest number of tokens of a row, [CLS] and [SEP] included; all rows of a causal
        model have it.
      buckets: lengths that shorter rows of a masked model are padded to.
      words: number of the most frequent words, which are measured.
      duplicates: probabilities, dealt out to these words in turn: an occurrence of the word becomes
        its duplicate, a second id, drawn anew at each step. True: 0.5, as published; False: no
        duplicates.
      contexts: places in the validation text at which predictions of each pair are evaluated
        (log-odds, swap divergence) if there are duplicates; then pairs of matching frequency are
        measured too. 0: none.
      data_seed: seed of the order of rows, of duplicates, masks and random pairs of words.
      blanks: share of the tokens that a causal model reads as [MASK], drawn anew at each step, also
        in validation: an input that is often there and never a target.
      mask_norms: record the lengths of the rows of [MASK], and of a median row, in each role.
    """

    task: ClassVar[str] = "text"
    traced: ClassVar[tuple[str, ...]] = ()  # traced, they would round differently
    accepted: ClassVar[frozenset[str]] = TaskConfig.accepted | frozenset(
        "data_seed text tfds text_field document vocab vocab_size".split()
    )
    refusal: ClassVar[str] = "is a text experiment"
    interventions: ClassVar[bool] = True
    reports: ClassVar[Reports] = Reports(
        schema=text_schema,
        constants=text_constants,
        attributes=text_attributes,
        conclusion=text_conclusion,
        tables=text_tables,
        plots=text_pictures,
    )
    name: str = "text-mlm"
    claim: str = (
        "A word and its duplicate draw together in every table; other pairs of words do not."
    )
    objective: str = "masked"
    corpus: Corpus = Corpus()  # noqa: RUF009, it is frozen
    model: Transformer = PUBLISHED_MODEL
    init_std: Size = 0.3
    optimizer: Optimizer = PUBLISHED_OPTIMISER
    seeds: tuple[int, ...] = (42,)
    eval_every: int = 500
    eval_batches: int = 100
    batch: int = 128
    length: int = 128
    buckets: tuple[int, ...] = (16, 32, 64, 128)
    words: int = 100
    duplicates: tuple[float, ...] | Any = PUBLISHED_DUPLICATES  # Any: a bool
    contexts: int = 16
    data_seed: int = 42
    blanks: float = 0.0
    mask_norms: bool = False
    # None before `prepare`
    prepared: PreparedCorpus = dataclasses.field(default=None, repr=False, compare=False)  # type: ignore

    def __post_init__(self):
        """Check the values; duplicates become probabilities."""
        super().__post_init__()
        check(
            self.objective in TEXT_OBJECTIVES,
            f"objective = {self.objective!r}: expected one of {', '.join(TEXT_OBJECTIVES)}",
        )
        check(isinstance(self.corpus, Corpus), f"corpus = {self.corpus!r}: expected a Corpus")
        check(
            self.objective == "causal" or self.corpus.form != "documents",
            "form = 'documents': expected objective = 'causal'",
        )
        if self.corpus.form is None:
            form = "documents" if self.objective == "causal" else "sentences"
            object.__setattr__(self, "corpus", dataclasses.replace(self.corpus, form=form))
        check(
            isinstance(self.model, Transformer)
            and self.model.independent_layers == isinstance(self.model, Decoder),
            f"model = {self.model!r}: expected a Transformer or a Decoder; independent_layers is no"
            " choice of text",
        )
        check(
            self.objective == "causal" or not isinstance(self.model, Decoder),
            "model: a Decoder predicts the next token; expected objective = 'causal'",
        )
        self.check_heads(self.model.width)
        self.check_row_sets(("mask", "never-targets", "rarer-half", "all"))
        for arm in self.arms:
            own = arm.head.interventions
            check(
                own == Interventions() or not self.roles,
                f"arm {arm}: gradients by role are of rows without interventions; set roles=False",
            )
            check(
                own.norm_path == "both",
                f"arm {arm}: +residual-only and +qkv-only are for EXor; leave them out",
            )
        check(
            self.objective == "masked" or self.model.width // self.model.heads % 2 == 0,
            f"heads = {self.model.heads}: expected width / heads to be even, for rotary positions",
        )
        check_size("init_std", self.init_std)
        check_positive_integers(self, "eval_batches", "batch", "length")
        self._check_words()
        check(self.length >= 4, f"length = {self.length}: expected at least 4")
        check(
            all(is_integer(bucket) and bucket >= 4 for bucket in self.buckets),
            f"buckets = {self.buckets}: expected lengths of at least 4",
        )
        check_seed(self.data_seed, "data_seed")
        check_range(self, "blanks", 0, 1)
        check(
            not self.blanks or self.objective == "causal",
            f"blanks = {self.blanks}: expected objective = 'causal'",
        )

    def _check_words(self) -> None:
        check(
            is_integer(self.words) and self.words >= 3,
            f"words = {self.words!r}: expected at least 3, for as many pairs of different ones",
        )
        if isinstance(self.duplicates, bool):
            object.__setattr__(self, "duplicates", PUBLISHED_DUPLICATES if self.duplicates else ())
        object.__setattr__(self, "duplicates", tuple(self.duplicates))
        for probability in self.duplicates:
            check(
                isinstance(probability, float) and 0 < probability < 1,
                f"duplicates = {self.duplicates}: expected probabilities above 0 and below 1, such"
                " as 0.5",
            )
        check(
            is_integer(self.contexts) and self.contexts >= 0,
            f"contexts = {self.contexts!r}: expected an integer of at least 0",
        )

    @property
    def evaluates_predictions(self) -> bool:
        """Whether predictions of words and duplicates are evaluated."""
        return bool(self.duplicates and self.contexts)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of evaluated pairs, `words` of each."""
        matched = ("matched",) if self.evaluates_predictions else ()
        return ("duplicate", *matched, "random") if self.duplicates else ("random",)

    @property
    def has_bytes(self) -> bool:
        """Whether the tokens are a text as it is, so that its bytes can be counted."""
        return self.corpus.form == "documents" and not (self.duplicates or self.blanks)

    def build(self, variant: Variant, platform: str) -> "TextTask":
        """Return the language model as a task."""
        from jaxtie.text.task import TextTask

        return TextTask(self, variant, platform)

    def program_key(self) -> Self:
        """Return the configuration reduced to the fields that compiled programs depend on."""
        own: dict[str, Any] = {"corpus": Corpus(), "record_every": 1, "eval_every": 1, "steps": 1}
        return dataclasses.replace(
            self, name="program", claim="", arms=("tied",), seeds=(0,), **own
        )

    def as_dict(self) -> dict[str, Any]:
        """Return nested plain values, as `config.json` holds them."""
        if self.prepared is not None:
            return dataclasses.replace(self, prepared=None).as_dict()  # type: ignore[arg-type]
        fields = super().as_dict()
        del fields["prepared"]
        return fields

    @property
    def folder_name(self) -> str:
        """Name of the folder of its runs: the experiment's and the text's."""
        return f"{self.name}-{self.corpus.label}" if self.corpus.is_given else self.name

    def check_inputs(self) -> None:
        """Raise UserError if a path does not exist, or is no regular file or folder."""
        for path in self.corpus.paths:
            check_path(Path(path))

    def fields_from_options(self, options: Any) -> dict[str, Any]:
        """Return the fields that its own options change; UserError without a text."""
        given: dict[str, Any] = {
            "field": options.text_field,
            "document": options.document,
            "vocab": options.vocab and str(options.vocab),
            "vocab_size": options.vocab_size,
        }
        given = {field: value for field, value in given.items() if value is not None}
        if options.tfds or options.text:
            given |= {"tfds": options.tfds, "paths": tuple(map(str, options.text))}
        if options.data_seed is not None:
            given["split_seed"] = options.data_seed
        corpus = dataclasses.replace(self.corpus, **given)
        if not corpus.is_given:
            raise UserError(
                f"{self.name}: needs a text; give files or folders by --text PATH, or a data set"
                " by --tfds NAME"
            )
        return {"corpus": corpus}

    def prepare(
        self, folder: RunFolder, earlier: dict | None, processes: "Processes", say: Say
    ) -> Self:
        """Return the configuration with its prepared corpus.

        The first process prepares the text as the folder's run had it, then the others do.

        Raises:
          UserError: where the text cannot be prepared, has changed since that run, or is not that
            of the first process.
        """
        if processes.leads:
            known = (
                folder.vocabulary.read_bytes() if earlier and folder.vocabulary.exists() else None
            )
            text = prepare_text(self.corpus, say=say, vocabulary=known)
            _compare(folder, earlier, "key", text.key)
            say("\n".join((*text.notes, str(text.report))))
            # Now the others prepare the same, or find it prepared if they share the cache.
            processes.broadcast({"key": text.key, "vocabulary": text.content})
        else:
            first = processes.broadcast({})
            text = prepare_text(self.corpus, say=say, vocabulary=first["vocabulary"])
            check(
                text.key == first["key"],
                "--distributed: the text is not that of the first process; give each process the"
                " same text",
            )
        prepared = self.combine(text)
        epochs = self.steps / training_batches(self, prepared, self.seeds[0]).count
        if processes.leads:
            many = "; more than 5 may overfit: take fewer --steps or more text" * (epochs > 5)
            say(f"{self.steps:,} steps are {epochs:.2g} epochs of the training text{many}")
        return dataclasses.replace(self, prepared=prepared)

    def combine(self, text: Text) -> PreparedCorpus:
        """Choose words, duplicates, pairs and contexts of a text."""
        return prepare_corpus(self, text)

    def check_unchanged(self, folder: RunFolder, earlier: dict) -> None:
        """Raise UserError where the files of a finished run have changed; they may be gone."""
        if self.corpus.paths:
            try:
                found = files.look_at(self.corpus)
            except UserError:
                return
            _compare(folder, earlier, "source", found.key)

    def save_inputs(self, folder: RunFolder) -> dict[str, Any]:
        """Write a trained vocabulary, since another version might train another one."""
        text = self.prepared.text
        if not self.corpus.vocab:
            folder.write_vocabulary(text.content)
        report = dataclasses.asdict(text.report)
        return {"text": {"key": text.key, "source": text.source, "report": report}}


def _compare(folder: RunFolder, earlier: dict | None, what: str, found: str) -> None:
    if (earlier or {}).get("text", {}).get(what, found) != found:
        raise UserError(
            f"--out {folder.path}: holds a run on a text that has changed since, or that another"
            " version prepared; choose another --out"
        )
