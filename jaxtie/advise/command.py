"""Command line of `jaxtie advise`. Imports jax only to train or evaluate models."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jaxtie.advise import models, pairs, scaling
from jaxtie.advise.answer import Answer
from jaxtie.config import UserError, check, real
from jaxtie.options import (
    Flag,
    option,
    parse_above_0,
    parse_from_0,
    parse_groups,
    parse_path,
    parse_positive,
    run_command,
)
from jaxtie.results.tables import json_numbers, print_tables
from jaxtie.run import command as cli
from jaxtie.run.command import TextOptions
from jaxtie.run.lifecycle import Session

# Names of options, by mode.
TEXT = frozenset(cli.defaults_of(TextOptions))
COMMON = frozenset({"source", "json", "quiet"})
SIZE = frozenset("width layers vocabulary tokens config minutes dry_run".split())
OF_PAIRS = frozenset("pairs size masked steps synthetic_duplicates words contexts".split())
KEPT = frozenset({"out", "overwrite"})
OF_RUNS = COMMON | {"second", "words", "contexts", "out", "pairs"}


def _parse_tokens(text: str) -> float:
    """Read a number of tokens, such as 2e9."""
    try:
        number = real(text)
    except ValueError:
        number = 0.0
    if not 1 <= number <= 1e18:
        raise ValueError(f"{text!r}: expected a number of tokens, such as 2e9")
    return number


def _parse_logs(text: str) -> tuple[Path, ...]:
    """Read two files."""
    paths = tuple(map(parse_path, text.split(",")))
    if len(paths) != 2:
        raise ValueError(f"{text!r}: expected two files, TIED.csv,UNTIED.csv")
    return paths


@dataclass(frozen=True)
class TargetOptions:
    """The model that you want to train; without it, the answer is for the largest pilot."""

    width: Annotated[int | None, option("D", parse_positive, "of the largest pilot")] = None
    """Width of your model."""
    layers: Annotated[int | None, option("N", parse_positive, "of the pilots")] = None
    """Layers of your model."""
    vocabulary: Annotated[int | None, option("V", parse_positive, "of the pilots")] = None
    """Entries of its vocabulary."""
    tokens: Annotated[float | None, option("N", _parse_tokens, "of the pilots")] = None
    """Training tokens of your run, such as 2e9."""
    config: Annotated[Path | None, option("FILE", parse_path, "none")] = None
    """A config.json that has width, layers and vocabulary."""
    minutes: Annotated[
        float | None, option("M", parse_above_0("a number of minutes above 0"), "15")
    ] = None
    """Time for the pilots, compiling included."""
    from_logs: Annotated[
        tuple[Path, ...] | None, option("TIED.csv,UNTIED.csv", _parse_logs, "none")
    ] = None
    """Answer from losses that you have, in nats; train nothing. The files have the columns seed and
    loss, or a column 0, 1, ... for each seed; the last row of a seed counts."""
    dry_run: Flag = False
    """Measure the speed, print the plan and the time; train nothing."""


@dataclass(frozen=True)
class PairsOptions:
    """Whether tokens that are equivalent in one sense are so in the other; no advice."""

    source: Annotated[
        tyro.conf.Positional[Path | None], option("EXPERIMENT.py|RUN_A", parse_path, "none")
    ] = None
    """An experiment on EXor, which is answered exactly, or the folder of a finished run on text."""
    second: Annotated[Path | None, option("RUN_B", parse_path, "none")] = None
    """Folder of the second model's run."""
    pairs: Flag = False
    """With --text: train two models on halves of the text and compare pairs of tokens."""
    size: Literal["small", "medium", "large"] = "small"
    """Of the two models: 2 layers of width 64, 3 of 128, 4 of 256."""
    masked: Flag = False
    """Train masked models instead of causal ones."""
    steps: Annotated[
        int | None,
        option("STEPS", parse_positive, f"{models.EPOCHS} epochs, at most {models.STEPS}"),
    ] = None
    """Updates of each of the two models, to the nearest 100."""
    synthetic_duplicates: Annotated[int, option("N", parse_from_0)] = models.DUPLICATES
    """Number of words that get a duplicate in the text, as ground truth of equivalence."""
    words: Annotated[int, option("K", parse_positive)] = 200
    """Number of most frequent words to evaluate."""
    contexts: Annotated[int, option("N", parse_positive)] = 32
    """Contexts of each token of a pair."""


@dataclass(frozen=True)
class AdviseTextOptions(TextOptions):
    """Your text."""

    vocab_size: Annotated[
        int | None,
        option("N", parse_positive, f"{scaling.VOCAB_SIZE}, with --pairs {models.VOCAB_SIZE}"),
    ] = None
    """Entries of the small models' vocabulary, at most."""


@dataclass(frozen=True)
class OutputOptions:
    """Where the answer goes."""

    out: Annotated[
        Path | None,
        option("DIR", parse_path, "runs/advise-TEXT, with --pairs runs/hypothesis-TEXT"),
    ] = None
    """Folder for the models, the figure and the summary."""
    json: Flag = False
    """Print the answer as JSON instead."""
    overwrite: Flag = False
    """Train all models anew."""
    quiet: Flag = False
    """No progress."""


@dataclass(frozen=True)
class AdviseOptions:
    """The groups of options of `jaxtie advise`."""

    target: tyro.conf.OmitArgPrefixes[TargetOptions] = TargetOptions()
    text: tyro.conf.OmitArgPrefixes[AdviseTextOptions] = AdviseTextOptions()
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = OutputOptions()
    pairs: tyro.conf.OmitArgPrefixes[PairsOptions] = PairsOptions()


DESCRIPTION = """Should I tie the embeddings, at my size, on my text?

Small tied and untied models are trained on your text; a Gaussian process,
given them, our experiments and published ones, predicts loss(tied) - loss(untied) at your size.

examples:
  jaxtie advise --text books/ --width 768 --layers 12 --vocabulary 32000 --tokens 2e9
  jaxtie advise --text books/ --config config.json --tokens 2e9 --minutes 60
  jaxtie advise --from-logs tied.csv,untied.csv            from losses that you have
  jaxtie advise --text books/ --pairs                      which tokens are equivalent

Exit status: 0 done, 2 a user's error, 130 interrupted."""

DEFAULTS = cli.defaults_of(TargetOptions, AdviseTextOptions, OutputOptions, PairsOptions)


def main_advise(arguments: Sequence[str] | None = None) -> int:
    """Run `jaxtie advise` and return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments

    def answer() -> int:
        options = parse_groups(AdviseOptions, "jaxtie.advise", words, DESCRIPTION)
        command = cli.command_line("jaxtie.advise", words)
        return _answer(options, Session(command, options.quiet, options.overwrite))

    return run_command(answer)


def advise(*text: str | Path, **options: Any) -> Answer:
    """Train pilots on a text and answer, as `jaxtie advise --text PATH` does.

    Args:
      text: files, or folders of files.
      options: those of the command: width, layers, vocabulary, tokens, config, minutes, out, and so
        on; quiet=True and overwrite=True.

    Returns:
      The answer: `sentences`, `prediction`, `pilots`, `plot()`; a notebook shows it.

    Raises:
      UserError: in one line, if a value is invalid.
      KeyboardInterrupt: after an interrupt; the same call goes on.
    """
    words = []
    for name, value in [*(("text", path) for path in text), *options.items()]:
        if value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(f"{value:.17g}" if isinstance(value, float) else str(value))
    read = parse_groups(AdviseOptions, "jaxtie.advise", words, DESCRIPTION)
    useful = COMMON | KEPT | TEXT | SIZE - {"dry_run"}
    cli.refuse_other_than(useful, read, DEFAULTS, "no option of pilots")
    check(bool(read.text or read.tfds), "expected a text, such as jaxtie.advise('books/')")
    command = cli.command_line("jaxtie.advise", words)
    found = scaling.answer_by_pilots(read, Session(command, read.quiet, read.overwrite))
    assert found is not None  # this is no dry run
    return found


def _answer(options, session: Session) -> int:
    given, source = bool(options.text or options.tfds), options.source

    def refuse(useful: frozenset[str], reason: str) -> None:
        cli.refuse_other_than(useful, options, DEFAULTS, reason)

    if options.from_logs is not None:
        refuse(
            COMMON - {"source"} | {"from_logs"}, "no option of --from-logs, which trains nothing"
        )
        return scaling.answer_from_logs(*options.from_logs, as_json=options.json)
    if source is not None:
        return _answer_source(source, options, session, refuse)
    check(
        given,
        "expected a text (--text FOLDER), losses (--from-logs TIED.csv,UNTIED.csv), an experiment"
        " on EXor, or two runs (RUN_A --second RUN_B)",
    )
    check(
        options.second is None,
        f"--second {options.second}: expected with the folder of a first run, RUN_A --second RUN_B",
    )
    if options.pairs:
        refuse(COMMON | KEPT | TEXT | OF_PAIRS, "no option of --pairs, which gives no advice")
        return pairs.train_and_evaluate(options, session)
    refuse(COMMON | KEPT | TEXT | SIZE, "expected with --pairs")
    check(not (options.dry_run and options.json), "--json: a dry run has no answer to print")
    found = scaling.answer_by_pilots(options, session)
    if found is not None and options.json:
        print(json.dumps(json_numbers(found.as_dict())))
    elif found is not None:
        print(*found.sentences, sep="\n")
        print_tables(*found.tables)
        out = found.out
        print(f"Figure: {out / 'figures' / 'answer.png'}; summary: {out / 'summary.md'}")
    return 0


def _answer_source(source: Path, options, session: Session, refuse) -> int:
    """Answer for an experiment on EXor, or for two runs."""
    check(
        not (options.text or options.tfds),
        f"{source}: expected without --text, which trains models of its own",
    )
    if source.suffix == ".py":
        refuse(COMMON, f"no option of {source}, whose answer is exact and is written nowhere")
        return pairs.answer_exactly(source, options.json)
    if options.second is None:
        raise UserError(
            f"{source}: is one model where two are needed; give another run by --second RUN_B"
        )
    refuse(OF_RUNS, "no option of two runs, which are trained already")
    runs = (source, options.second)
    return pairs.evaluate_runs(runs, options.out or pairs.OUT, options, session)
