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
from typing import ClassVar

from equivalence import models, pairs

from jaxtie.config import UserError, check
from jaxtie.options import (
    argument,
    flag,
    option,
    parse_command,
    parse_from_0,
    parse_one_of,
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
class PairsOptions(TextOptions):
    """Options of the two models, the pairs, the text and the answer."""

    HELP: ClassVar[str] = f"""{__doc__}
  EXPERIMENT.py|RUN_A       an experiment on EXor, which is answered exactly, or the folder of a
                            finished run on text
  --second RUN_B            folder of the second model's run
  --size SIZE               small, medium or large: 2 layers of width 64, 3 of 128, 4 of 256 (small)
  --masked                  train masked models instead of causal ones
  --steps STEPS             updates of each of the two models, to the nearest 100
                            ({models.EPOCHS} epochs, at most {models.STEPS})
  --synthetic-duplicates N  number of words that get a duplicate in the text, as ground truth of
                            equivalence ({models.DUPLICATES})
  --words K                 number of most frequent words to evaluate (200)
  --contexts N              contexts of each token of a pair (32)
  --out DIR                 folder for the models, figure and summary (runs/hypothesis-TEXT)
  --json                    print the answer as JSON instead
  --overwrite               train all models anew
  --quiet                   print no progress

text{TextOptions.TEXT_HELP}"""
    source: Path | None = argument(parse_path)
    second: Path | None = option(parse_path)
    size: str = option(parse_one_of("small", "medium", "large"), "small")
    masked: bool = flag()
    steps: int | None = option(parse_positive)
    synthetic_duplicates: int = option(parse_from_0, models.DUPLICATES)
    words: int = option(parse_positive, 200)
    contexts: int = option(parse_positive, 32)
    out: Path | None = option(parse_path)
    json: bool = flag()
    overwrite: bool = flag()
    quiet: bool = flag()


PROGRAM = "token_pairs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status: 0 done, 2 a user's error, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else arguments

    def answer() -> int:
        options = parse_command(PairsOptions, PROGRAM, words)
        command = cli.command_line(PROGRAM, words)
        return _answer(options, Session(command, options.quiet, options.overwrite))

    return run_command(answer)


def _answer(options, session: Session) -> int:
    source = options.source

    def refuse(useful: frozenset[str], reason: str) -> None:
        cli.refuse_other_than(useful, options, reason)

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
