"""Command line of `jaxtie advise`. Imports jax only to train or evaluate models."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from jaxtie.advise import models, report
from jaxtie.config import UserError, check
from jaxtie.exor.analysis import pair_divergences
from jaxtie.exor.config import Experiment
from jaxtie.options import Flag, option, parse_command, parse_from_0, parse_path, parse_positive
from jaxtie.results.folder import RunFolder
from jaxtie.results.tables import json_numbers, print_tables
from jaxtie.run import command as cli
from jaxtie.run import lifecycle
from jaxtie.run.command import TextOptions
from jaxtie.run.experiment_files import load_experiment
from jaxtie.run.lifecycle import Outcome, Session
from jaxtie.shutdown import INTERRUPTED

OUT = Path("runs/hypothesis")
COMMON = {"source", "json", "quiet"}  # options of every way to ask
OF_RUNS = COMMON | {"second", "tokens", "contexts", "out"}


@dataclass(frozen=True)
class AdviseOptions(TextOptions):
    """Does the distributional hypothesis hold?

    For a process (EXPERIMENT.py, on EXor) the answer is exact. For a text (--text FOLDER) two small
    models are trained on disjoint halves of it, with a vocabulary of 4,096 by default. Two finished
    runs (RUN_A --second RUN_B), causal or masked, are evaluated as they are. The answer goes to
    standard output, progress and errors to standard error.
    Exit status: 0 done, 2 a user's error, 130 interrupted.
    """

    source: Annotated[
        tyro.conf.Positional[Path | None], option("EXPERIMENT.py|RUN_A", parse_path, "none")
    ] = None
    """Experiment on EXor, or the folder of a finished run of a model of text."""
    vocab_size: Annotated[
        int | None,
        option(
            "N", parse_positive, f"{models.VOCAB_SIZE} of new models, else as in the experiment"
        ),
    ] = None
    """Maximum number of entries of the trained vocabulary."""
    second: Annotated[Path | None, option("RUN_B", parse_path, "none")] = None
    """Folder of the second model's run."""
    size: Literal["small", "medium", "large"] = "small"
    """Of the two models that are trained: 2 layers of width 64, 3 of 128, 4 of 256."""
    masked: Flag = False
    """Train masked models instead of causal ones."""
    steps: Annotated[
        int | None,
        option("STEPS", parse_positive, f"{models.EPOCHS} epochs, at most {models.STEPS}"),
    ] = None
    """Updates of each of the two models, to the nearest 100."""
    synthetic_duplicates: Annotated[int, option("N", parse_from_0)] = models.DUPLICATES
    """Number of words that get a duplicate in the text, as ground truth of equivalence."""
    tokens: Annotated[int, option("K", parse_positive)] = 200
    """Number of most frequent words to evaluate."""
    contexts: Annotated[int, option("N", parse_positive)] = 32
    """Contexts of each token of a pair."""
    out: Annotated[
        Path | None, option("DIR", parse_path, f"{OUT}-TEXT or, for two runs, {OUT}")
    ] = None
    """Folder for the two models, results, figure and summary."""
    json: Flag = False
    """Print the answer as JSON instead."""
    overwrite: Flag = False
    """Train the two models anew."""
    quiet: Flag = False
    """No progress."""


DEFAULTS = cli.defaults_of(AdviseOptions)


def main_advise(arguments: Sequence[str] | None = None) -> int:
    """Run `jaxtie advise` and return the exit status."""
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
    given, source = bool(options.text or options.tfds), options.source
    check(
        given or not options.masked,
        "--masked: expected with --text FOLDER; two runs keep their objective",
    )
    if source is None:
        check(
            given,
            "expected a text (--text FOLDER), an experiment on EXor, or two runs (RUN_A --second"
            " RUN_B)",
        )
        check(
            options.second is None,
            f"--second {options.second}: expected with the folder of a first run, RUN_A --second"
            " RUN_B",
        )
        return _train_and_evaluate(options, session)
    check(not given, f"{source}: expected without --text, which trains two models of its own")
    if source.suffix == ".py":
        exact = f"no option of {source}, whose answer is exact and is written nowhere"
        cli.refuse_other_than(COMMON, options, DEFAULTS, exact)
        return _exact(source, options.json)
    if options.second is None:
        raise UserError(
            f"{source}: is one model where two are needed; give another run by --second RUN_B"
        )
    reason = "no option of two runs, which are trained already"
    cli.refuse_other_than(OF_RUNS, options, DEFAULTS, reason)
    return _evaluate((source, options.second), options.out or OUT, options, session)


def _exact(source: Path, as_json: bool) -> int:
    experiment = load_experiment(source)
    if not isinstance(experiment, Experiment):
        raise UserError(
            f"{experiment.name}: the exact distribution of a text is unknown; give --text PATH, or"
            " the folders of two runs"
        )
    exact = pair_divergences(experiment.process)
    if as_json:
        columns: dict[str, Any] = {name: exact[name].values.tolist() for name in ("pair", *exact)}
        print(json.dumps(json_numbers({"answer": report.exact_sentence(exact), **columns})))
        return 0
    print(report.exact_sentence(exact))
    print_tables(report.exact_table(exact))
    return 0


def _train_and_evaluate(options: AdviseOptions, session: Session) -> int:
    """Train the two models unless they are trained, and evaluate them."""
    from jaxtie.text.data.tokens import prepare_text

    corpus = models.corpus_of(options)
    out = options.out or Path(f"{OUT}-{corpus.label}")
    objective = "masked" if options.masked else "causal"
    models.two_models(corpus)[0].check_inputs()
    if RunFolder(out).config():
        raise UserError(f"--out {out}: holds a run; choose another folder")
    text = prepare_text(corpus, say=session.say)
    if options.steps:
        steps = max(1, round(options.steps / models.RECORD)) * models.RECORD
    else:
        found = text.report
        steps = models.default_steps(found.rows["train"], found.tokens["train"], objective)
    duplicates = options.synthetic_duplicates
    models.check_tokens(options.tokens, len(text.vocabulary) + duplicates)
    experiments = models.two_models(corpus, options.size, steps, duplicates, objective)
    a, b = folders = [RunFolder(out / name) for name in models.NAMES]
    for experiment, folder in zip(experiments, folders):  # raises before anything is trained
        lifecycle.inspect_folder(experiment, folder, options.overwrite)
    for experiment, folder in zip(experiments, folders):
        if lifecycle.run_in_folder(experiment, folder, session) is Outcome.INTERRUPTED:
            print(f"jaxtie: {lifecycle.resume_hint(session)} with {folder.path}", file=sys.stderr)
            return INTERRUPTED
    return _evaluate((a.path, b.path), out, options, session)


def _evaluate(paths: tuple[Path, Path], out: Path, options: AdviseOptions, session: Session) -> int:
    """Evaluate two trained models; write all results at the end, or none."""
    from jaxtie.training.devices import check_devices, start_jax

    start_jax()
    check_devices()
    from jaxtie.advise.measure import evaluate

    answer = evaluate(paths, options.tokens, options.contexts, session.say)
    report.write(answer, out, session.command)
    if options.json:
        print(json.dumps(json_numbers(answer.as_dict())))
        return 0
    print(*answer.sentences, sep="\n")
    print_tables(*(table for table in answer.tables if not table.long))
    print(f"figure, results and summary: {out}")
    return 0
