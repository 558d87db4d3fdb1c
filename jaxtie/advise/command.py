"""The command line of `python -m jaxtie.advise`: exact for a process, by two trained models for
a text.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jaxtie.advise import report
from jaxtie.advise.models import ENTRIES, PLANTED, RECORD, STEPS, corpus_of
from jaxtie.config import UserError
from jaxtie.exor.config import Experiment
from jaxtie.exor.divergences import pair_divergences
from jaxtie.options import Flag, option, parse_command, parse_from_0, parse_path, parse_positive
from jaxtie.results.folder import RunFolder
from jaxtie.results.tables import finite, show
from jaxtie.run import command as cli
from jaxtie.run import lifecycle
from jaxtie.run.lifecycle import Outcome, Session
from jaxtie.shutdown import INTERRUPTED
from jaxtie.text.options import TextOptions

OUT = Path("runs/hypothesis")
ANY = {"source", "json", "quiet"}  # options that every way to ask has
QUESTIONS = {"tokens", "contexts"}


@dataclass(frozen=True)
class AdviseOptions(TextOptions):
    """Does the distributional hypothesis hold?

    For a process (EXPERIMENT.py, on EXor) exactly. For a text (--text FOLDER) by two small models,
    which are trained on disjoint halves of it, with a vocabulary of 4,096 where nothing is said of
    one; or by two runs that exist (RUN_A --second RUN_B), causal or masked. The answer goes to
    standard output, progress and errors to standard error.
    Exit status: 0 done, 2 a user's error, 130 interrupted.
    """

    source: Annotated[
        tyro.conf.Positional[Path | None], option("EXPERIMENT.py|RUN_A", parse_path, "none")
    ] = None
    """Experiment on EXor, or the folder of a finished run of a model of text."""
    vocab_size: Annotated[
        int | None,
        option("N", parse_positive, f"{ENTRIES} of new models, else as in the experiment"),
    ] = None
    """Entries of the vocabulary that is trained, at most."""
    second: Annotated[Path | None, option("RUN_B", parse_path, "none")] = None
    """Folder of the second model's run."""
    size: Literal["small", "medium", "large"] = "small"
    """Of the two models that are trained: 2 layers of width 64, 3 of 128, 4 of 256."""
    masked: Flag = False
    """Train masked models instead of causal ones."""
    steps: Annotated[int, option("STEPS", parse_positive)] = STEPS
    """Updates of each of the two models, to the nearest 100."""
    planted: Annotated[int, option("N", parse_from_0)] = PLANTED
    """Words that get a duplicate in the text: what is known to be equivalent."""
    tokens: Annotated[int, option("K", parse_positive)] = 200
    """How many of the most frequent words are asked about."""
    contexts: Annotated[int, option("N", parse_positive)] = 32
    """Contexts of each token of a pair."""
    out: Annotated[Path, option("DIR", parse_path)] = OUT
    """Folder for the two models, results, figure and summary."""
    json: Flag = False
    """Print the answer as JSON instead."""
    overwrite: Flag = False
    """Train the two models anew."""
    quiet: Flag = False
    """No progress."""


def main_advise(arguments: Sequence[str] | None = None) -> int:
    """The command line of `python -m jaxtie.advise`; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = parse_command(AdviseOptions, "jaxtie.advise", arguments)
        command = cli.command_line("jaxtie.advise", arguments)
        return _answer(options, Session(command, options.quiet, options.overwrite))
    except (UserError, OSError) as error:
        print(f"jaxtie.advise: {cli.one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _answer(options: AdviseOptions, session: Session) -> int:
    given = bool(options.text or options.tfds)
    if options.masked and not given:
        raise UserError("--masked: expected with --text FOLDER; runs are what they are")
    if options.source is None:
        if not given:
            raise UserError(
                "expected a text (--text FOLDER), an experiment on EXor, or two runs (RUN_A"
                " --second RUN_B)"
            )
        if options.second is not None:
            raise UserError(
                f"--second {options.second}: expected with the folder of a first run, RUN_A"
                " --second RUN_B"
            )
        return _of_new_models(options, session)
    if given:
        raise UserError(
            f"{options.source}: expected without --text, which trains two models of its own"
        )
    if options.source.suffix == ".py":
        cli.refuse_other_than(
            ANY,
            options,
            f"no option of {options.source}, whose answer is exact and is written nowhere",
        )
        return _exact(options.source, options.json)
    if options.second is None:
        raise UserError(
            f"{options.source}: is one model where two are needed; give another run by --second"
            " RUN_B"
        )
    cli.refuse_other_than(
        ANY | QUESTIONS | {"second", "out"},
        options,
        "no option of two runs, which are what they are",
    )
    return _of_runs((options.source, options.second), options, session)


def _exact(source: Path, as_json: bool) -> int:
    experiment = lifecycle.load_experiment(source)
    if not isinstance(experiment, Experiment):
        raise UserError(
            f"{experiment.name}: no exact distribution of a text is at hand; give --text PATH, or"
            " the folders of two runs"
        )
    exact = pair_divergences(experiment.process)
    if as_json:
        columns: dict[str, Any] = {name: exact[name].values.tolist() for name in ("pair", *exact)}
        print(json.dumps(finite({"answer": report.exact_sentence(exact), **columns})))
        return 0
    print(report.exact_sentence(exact))
    show(report.exact_table(exact))
    return 0


def _check_holds_no_run(out: Path) -> None:
    if RunFolder(out).config():
        raise UserError(f"--out {out}: holds a run; choose another folder")


def _of_new_models(options: AdviseOptions, session: Session) -> int:
    """Train the two models, or find them trained, and ask them."""
    from jaxtie.advise.measure import check_tokens
    from jaxtie.advise.models import NAMES, two_models
    from jaxtie.text.data.tokens import prepare_text

    _check_holds_no_run(options.out)
    corpus = corpus_of(options, ENTRIES)
    steps = max(1, round(options.steps / RECORD)) * RECORD
    task = "masked" if options.masked else "causal"
    declared = two_models(corpus, options.size, steps, options.planted, task)
    folders = [RunFolder(options.out / name) for name in NAMES]
    for experiment, folder in zip(declared, folders):
        lifecycle.found_in(
            experiment, folder, options.overwrite
        )  # raises before anything is prepared
    vocabulary = len(prepare_text(corpus, say=session.say).vocabulary) + options.planted
    check_tokens(options.tokens, vocabulary)
    for experiment, folder in zip(declared, folders):
        if lifecycle.carry_out(experiment, folder, session) is Outcome.INTERRUPTED:
            print(f"jaxtie: {lifecycle.goes_on(session)} with {folder.path}", file=sys.stderr)
            return INTERRUPTED
    a, b = (folder.path for folder in folders)
    return _of_runs((a, b), options, session)


def _of_runs(paths: tuple[Path, Path], options: AdviseOptions, session: Session) -> int:
    """Ask two trained models; what is found is written at the end, all or nothing."""
    from jaxtie.training.devices import start_jax

    start_jax()
    from jaxtie.advise.measure import Extent
    from jaxtie.advise.report import ask, write

    answer = ask(paths, Extent(options.tokens, options.contexts), session)
    write(answer, options.out, session.command)
    if options.json:
        print(json.dumps(finite(answer.as_dict())))
        return 0
    print(*answer.sentences, sep="\n")
    show(*(table for table in answer.tables if not table.long))
    print(f"figure, results and summary: {options.out}")
    return 0
