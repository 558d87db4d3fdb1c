"""Are tokens that are equivalent in one sense so in the other? Exact for EXor, else by two models.

    python experiments/lab/token_pairs.py --text books/           # train two models, compare them
    python experiments/lab/token_pairs.py RUN_A --second RUN_B    # two finished runs
    python experiments/lab/token_pairs.py experiments/transformer_small.py    # exact

equivalence/README.md has the definitions and what was found. Imports jax only to train or evaluate.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from equivalence import models, pairs

from jaxtie.config import UserError, check
from jaxtie.options import (
    Flag,
    option,
    parse_from_0,
    parse_groups,
    parse_path,
    parse_positive,
    run_command,
)
from jaxtie.run import command as cli
from jaxtie.run.command import TextOptions
from jaxtie.run.lifecycle import Session

# Names of options, by mode.
COMMON = frozenset({"source", "json", "quiet"})
OF_RUNS = COMMON | {"second", "words", "contexts", "out"}


@dataclass(frozen=True)
class PairsOptions:
    """The two models, or an experiment on EXor, and the pairs."""

    source: Annotated[
        tyro.conf.Positional[Path | None], option("EXPERIMENT.py|RUN_A", parse_path, "none")
    ] = None
    """An experiment on EXor, which is answered exactly, or the folder of a finished run on text."""
    second: Annotated[Path | None, option("RUN_B", parse_path, "none")] = None
    """Folder of the second model's run."""
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
class PairsTextOptions(TextOptions):
    """Your text."""

    vocab_size: Annotated[
        int | None,
        option("N", parse_positive, str(models.VOCAB_SIZE)),
    ] = None
    """Entries of the models' vocabulary, at most."""


@dataclass(frozen=True)
class OutputOptions:
    """Where the answer goes."""

    out: Annotated[
        Path | None,
        option("DIR", parse_path, "runs/hypothesis-TEXT"),
    ] = None
    """Folder for the models, the figure and the summary."""
    json: Flag = False
    """Print the answer as JSON instead."""
    overwrite: Flag = False
    """Train all models anew."""
    quiet: Flag = False
    """No progress."""


@dataclass(frozen=True)
class AllOptions:
    """All groups of options."""

    pairs: tyro.conf.OmitArgPrefixes[PairsOptions] = PairsOptions()
    text: tyro.conf.OmitArgPrefixes[PairsTextOptions] = PairsTextOptions()
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = OutputOptions()


PROGRAM = "token_pairs"
DEFAULTS = cli.defaults_of(PairsOptions, PairsTextOptions, OutputOptions)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status: 0 done, 2 a user's error, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else arguments

    def answer() -> int:
        options = parse_groups(AllOptions, PROGRAM, words, __doc__ or "")
        command = cli.command_line(PROGRAM, words)
        return _answer(options, Session(command, options.quiet, options.overwrite))

    return run_command(answer)


def _answer(options, session: Session) -> int:
    source = options.source

    def refuse(useful: frozenset[str], reason: str) -> None:
        cli.refuse_other_than(useful, options, DEFAULTS, reason)

    if source is None:
        check(
            bool(options.text or options.tfds),
            "expected a text (--text FOLDER), an experiment on EXor, or two runs"
            " (RUN_A --second RUN_B)",
        )
        check(
            options.second is None,
            f"--second {options.second}: expected with the folder of a first run, RUN_A --second"
            " RUN_B",
        )
        return pairs.train_and_evaluate(options, session)
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


if __name__ == "__main__":
    sys.exit(main())
