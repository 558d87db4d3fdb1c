"""Command lines of `python -m jaxtie.run`, `.figures` and `.report`. Imports no jax."""

import dataclasses
import io
import math
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

import jaxtie
from jaxtie.config import Arm, TaskConfig, UserError, names_of
from jaxtie.exor.config import DATA_STREAMS, Experiment
from jaxtie.options import (
    AS_DECLARED,
    Flag,
    option,
    parse_above_0,
    parse_address,
    parse_arms,
    parse_command,
    parse_from_0,
    parse_path,
    parse_positive,
    parse_seeds,
)
from jaxtie.results import analysis
from jaxtie.results.folder import RunFolder
from jaxtie.results.tables import print_tables
from jaxtie.run import lifecycle
from jaxtie.run.all import run_all
from jaxtie.run.lifecycle import Outcome, Session, load_experiment, one_line, plan
from jaxtie.shutdown import INTERRUPTED
from jaxtie.text.config import Corpus

EXPERIMENTS, RUNS = Path("experiments"), Path("runs")
MAIN = Experiment()


def _in_main(value: object) -> str:
    return f"{AS_DECLARED}, {value} in the main one"


def _parse_data_stream(text: str) -> str:
    if text not in DATA_STREAMS:
        raise ValueError(f"{text!r}: expected one of {', '.join(DATA_STREAMS)}")
    return text


def _parse_probabilities(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != 2 or not all(0 <= p <= 1 for p in values) or not math.isclose(sum(values), 1):
        raise ValueError(f"{text!r}: expected two probabilities that sum to 1, such as 0.1,0.9")
    return values


def _parse_sweep(text: str) -> tuple[str, tuple[float, ...]]:
    name, _, values = text.partition("=")
    try:
        return name, tuple(float(value) for value in values.split(","))
    except ValueError:
        raise ValueError(
            f"{text!r}: expected NAME=VALUE,VALUE, such as weight_decay=0,0.1"
        ) from None


@dataclass(frozen=True)
class CommonOptions:
    """Options of all experiments."""

    experiment: Annotated[
        tyro.conf.Positional[Path | None],
        option("EXPERIMENT.py", Path, "the main experiment of the paper"),
    ] = None
    """File that defines `experiment`."""
    seeds: Annotated[
        tuple[int, ...] | None, option("N|A-B|A-B,C", parse_seeds, _in_main(len(MAIN.seeds)))
    ] = None
    """Model seeds: how many (from 0), a range, or a list of seeds and ranges."""
    steps: Annotated[int | None, option("STEPS", parse_positive, _in_main(MAIN.steps))] = None
    """Updates of each member, one batch each."""
    scale: Annotated[
        float | None, option("F", parse_above_0("a number above 0, such as 0.1"), "1")
    ] = None
    """Multiply all numbers of steps, to the nearest record; the learning rate's schedule stays."""
    arms: Annotated[
        tuple[Arm, ...] | None,
        option("ARM,ARM", parse_arms, _in_main(",".join(names_of(MAIN.arms)))),
    ] = None
    """Variants to compare on the same seeds and data: tied, untied, untied@STEP (tied up to there),
    each with options of its head: tied+bias, untied+bias@STEP, tied+half-swap, ..."""
    record_every: Annotated[
        int | None, option("STEPS", parse_positive, _in_main(MAIN.record_every))
    ] = None
    """Steps between two records of loss, accuracy and distances."""
    eval_every: Annotated[
        int | None, option("STEPS", parse_positive, _in_main(MAIN.eval_every))
    ] = None
    """Steps between two evaluations; a multiple of --record-every."""
    data_seed: Annotated[
        int | None, option("SEED", parse_from_0, _in_main(MAIN.process.data_seed))
    ] = None
    """Seed of the split and of the streams of samples."""
    sweep: tyro.conf.UseAppendAction[
        tuple[
            Annotated[tuple[str, tuple[float, ...]], option("NAME=VALUE,VALUE", _parse_sweep)], ...
        ]
    ] = ()
    """Train every seed at each of these values; repeated, at every combination. NAME: any number of
    the experiment, such as learning_rate, width or vocab_size; on EXor also p_X and p_A (the
    probability of X for a zero, of A for a one). Learning rates, decays, eps and probabilities of
    EXor share one program; other fields make a run each."""
    all: Flag = False
    """Run every experiment of ./experiments and show them on one page, DIR/index.html. Finished
    ones are not run again. Text experiments take no more --seeds than they declare, and are skipped
    unless --text or --tfds names a text."""
    out: Annotated[Path | None, option("DIR", Path, "runs/NAME or, with --all, runs")] = None
    """Folder for configuration, results, figures and summary; with --all for the page and a folder
    NAME of each."""
    checkpoint_every: Annotated[
        float, option("SECONDS", parse_above_0("a number of seconds above 0"))
    ] = 60.0
    """Seconds of training between two checkpoints; a killed run goes on from the last one."""
    distributed: Flag = False
    """Be one of several processes, each started by the same command; only the first writes. SLURM,
    Kubernetes and TPU pods are found by JAX; elsewhere give the next three."""
    coordinator: Annotated[str | None, option("HOST:PORT", parse_address, "found by JAX")] = None
    """Host of the first process, and a free port there."""
    process_count: Annotated[int | None, option("N", parse_positive, "found by JAX")] = None
    """Number of processes."""
    process_index: Annotated[int | None, option("I", parse_from_0, "found by JAX")] = None
    """Number of this process, from 0."""
    overwrite: Flag = False
    """Remove an earlier run from DIR and start anew."""
    dry_run: Flag = False
    """Print numbers of members and estimates of time, memory and disk; write nothing."""
    quiet: Flag = False
    """Print no progress."""
    list: Flag = False
    """List the experiments of ./experiments with their claims."""
    version: Flag = False
    """Print the version."""


@dataclass(frozen=True)
class ExorOptions:
    """Options of EXor experiments."""

    data: Annotated[
        str | None, option("per-seed|shared", _parse_data_stream, _in_main(MAIN.data))
    ] = None
    """One stream of samples for each seed, shared by its arms, or one for all seeds."""
    zeros: Annotated[
        tuple[float, float] | None, option("P,P", _parse_probabilities, _in_main("0.1,0.9"))
    ] = None
    """Probabilities of X and of Y for a zero."""
    ones: Annotated[
        tuple[float, float] | None, option("P,P", _parse_probabilities, _in_main("0.5,0.5"))
    ] = None
    """Probabilities of A and of B for a one."""
    all_strings: Flag = False
    """Include the string of ones, which the published code leaves out."""
    independent_layers: Flag = False
    """Draw every layer's initial values anew, instead of cloning the first as PyTorch does."""


@dataclass(frozen=True)
class TextOptions:
    """Options that name a text."""

    text: tyro.conf.UseAppendAction[tuple[Annotated[Path, option("PATH", parse_path)], ...]] = ()
    """A text file, or a folder that is searched for *.txt; may be repeated. For text
    experiments."""
    tfds: Annotated[str | None, option("NAME[/CONFIG][:VERSION]", str, "none")] = None
    """A TFDS data set of text, such as lm1b or wiki40b/en, instead of files; TFDS fetches it."""
    tfds_field: Annotated[str | None, option("NAME", str, Corpus.field)] = None
    """The field of that data set that has the text."""
    vocab: Annotated[Path | None, option("FILE", Path, "trained on the text")] = None
    """A BERT vocab.txt or a tokenizer.json."""
    vocab_size: Annotated[
        int | None,
        option("N", parse_positive, f"{AS_DECLARED}, {Corpus.vocab_size} unless it says"),
    ] = None
    """Entries of the vocabulary that is trained, at most."""


# The help shows the options of the last base first.
@dataclass(frozen=True)
class RunOptions(TextOptions, ExorOptions, CommonOptions):
    """Train an experiment's arms, many seeds at once, and show the results.

    The experiment file is Python and is executed. Without one, the paper's main experiment runs.
    The summary goes to standard output, progress and errors to standard error. Exit status: 0 done,
    2 a user's error, 130 interrupted.
    """


@dataclass(frozen=True)
class FiguresOptions:
    """Draw the figures of a run again, from its results alone."""

    folder: Annotated[tyro.conf.Positional[Path], option("DIR", parse_path)]
    """Folder of a run."""
    csv: Flag = False
    """Also write the results as tidy CSV, below DIR/csv."""
    animate: Flag = False
    """Also draw the embeddings over training as an animation, portrait.gif."""


@dataclass(frozen=True)
class ReportOptions:
    """Write the tables of README.md, experiments/README.md and jaxtie/advise/README.md again.

    They are made of the data in experiments/data and the claims in ./experiments. Start it in the
    root of the repository.
    """

    runs: tyro.conf.Positional[tuple[Annotated[Path, option("RUN", parse_path)], ...]] = ()
    """Folders of finished runs, each condensed to experiments/data/NAME.nc first."""


# Options that change the experiment; a task says which of them it accepts.
CHANGES = frozenset("seeds steps scale arms record_every eval_every data_seed sweep".split())
# Options that every task accepts.
COMMON = frozenset(field.name for field in dataclasses.fields(CommonOptions)) - CHANGES
WITH_ALL = frozenset(
    "all seeds scale out checkpoint_every overwrite dry_run quiet list version text tfds tfds_field"
    " vocab vocab_size".split()
)


def refuse_other_than(useful: Collection[str], options: Any, reason: str) -> None:
    """Raise UserError with the reason if an option was given that is not `useful`."""
    for field in dataclasses.fields(options):
        if field.name not in useful and getattr(options, field.name) != field.default:
            positional = field.name in ("experiment", "source")
            name = "EXPERIMENT.py" if positional else f"--{field.name.replace('_', '-')}"
            raise UserError(f"{name}: {reason}")


def parse_run(arguments: Sequence[str]) -> RunOptions:
    """Read the options of `python -m jaxtie.run`.

    Raises:
      UserError: in one line that names the option, its value and the expected ones.
      SystemExit: after `--help`.
    """
    options = parse_command(RunOptions, "jaxtie.run", arguments)
    address = {
        "--coordinator": options.coordinator,
        "--process-count": options.process_count,
        "--process-index": options.process_index,
    }
    given = [name for name, value in address.items() if value is not None]
    if given and not options.distributed:
        raise UserError(f"{given[0]}: expected with --distributed only")
    if given and len(given) < len(address):
        raise UserError(f"{given[0]}: expected {', '.join(address)} together, or none of them")
    if given and options.process_index >= options.process_count:
        raise UserError(
            f"--process-index {options.process_index}: expected less than --process-count"
            f" {options.process_count}"
        )
    if options.steps and options.scale:
        raise UserError("--scale: expected without --steps, which says how many steps there are")
    if options.all:
        refuse_other_than(
            WITH_ALL,
            options,
            "no option of --all, which runs the experiments as ./experiments declares them",
        )
    return options


def changed(experiment: TaskConfig, options: RunOptions) -> TaskConfig:
    """Return the experiment with the changes that the options ask for.

    Raises:
      UserError: if an option does not apply to it, or a value is invalid.
    """
    if not options.all:
        refuse_other_than(
            experiment.accepted | COMMON,
            options,
            f"no option of {experiment.name}, which {experiment.refusal}",
        )
    own = {field.name for field in dataclasses.fields(experiment)}
    given = {name: getattr(options, name) for name in experiment.accepted & own}
    fields = {name: value for name, value in given.items() if value not in (None, ())}
    if options.all and not experiment.many_seeds and "seeds" in fields:
        fields["seeds"] = fields["seeds"][: len(experiment.seeds)]  # each costs a full training
    experiment = dataclasses.replace(experiment, **fields, **experiment.changes(options))
    return experiment.scaled(options.scale) if options.scale else experiment


def list_experiments(folder: Path) -> Iterator[str]:
    """Yield a line for each experiment file: its path and claim, or its error."""
    yield f"(default)  {MAIN.claim}"
    for path in sorted(folder.glob("*.py")):
        try:
            yield f"{path}  {load_experiment(path).claim}"
        except UserError as error:
            yield str(error)


def command_line(module: str, arguments: Sequence[str]) -> str:
    """Return the command as typed, with bytes that are not UTF-8 escaped, so it can be written."""
    line = shlex.join(["python", "-m", module, *arguments])
    return line.encode(errors="backslashreplace").decode()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m jaxtie.run`; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not have every character
    try:
        return _run(parse_run(arguments), command_line("jaxtie.run", arguments))
    except (UserError, OSError) as error:
        print(f"jaxtie: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(options: RunOptions, command: str) -> int:
    session = Session(command, options.quiet, options.overwrite, options.checkpoint_every)
    if options.version:
        print(f"jaxtie {jaxtie.__version__}")
        return 0
    if options.list:
        print(*list_experiments(EXPERIMENTS), sep="\n")
        return 0
    if options.all:
        return _run_every_one(options, session)
    experiment = load_experiment(options.experiment) if options.experiment else MAIN
    experiment = changed(experiment, options)
    folder = RunFolder(options.out or RUNS / experiment.name)
    if options.distributed:
        return _run_with_others(experiment, folder, options, session)
    return _show(folder, _run_one(experiment, folder, options, session))


def _run_one(
    experiment: TaskConfig, folder: RunFolder, options: RunOptions, session: Session
) -> Outcome:
    if not options.dry_run:
        outcome = lifecycle.run_in_folder(experiment, folder, session)
        if outcome is Outcome.INTERRUPTED:
            print(
                f"jaxtie: {lifecycle.resume_hint(session)}; so far: {folder.results}",
                file=sys.stderr,
            )
        return outcome
    earlier, _ = lifecycle.inspect_folder(experiment, folder, session.overwrite)
    if session.processes:
        session.processes.broadcast({"trains": False})
    print(*plan(experiment, folder, earlier, session.say), sep="\n")
    return Outcome.PLANNED


def _show(folder: RunFolder, outcome: Outcome) -> int:
    """Print the results of a finished run; return the exit status."""
    if outcome in (Outcome.DONE, Outcome.BEFORE):
        results = lifecycle.load(folder.path)
        print_tables(*(table for table in analysis.tables(results) if not table.long))
    if outcome is Outcome.DONE:
        print(f"figures, results and summary: {folder.path}")
    return INTERRUPTED if outcome is Outcome.INTERRUPTED else 0


def _run_with_others(
    experiment: TaskConfig, folder: RunFolder, options: RunOptions, session: Session
) -> int:
    """Run as one of several processes; return the exit status."""
    from jaxtie.training.devices import start_jax

    start_jax()
    from jaxtie.training.distributed import join

    processes = join(options.coordinator, options.process_count, options.process_index)
    session = dataclasses.replace(session, processes=processes)
    if processes.leads:
        status = _show(folder, _run_one(experiment, folder, options, session))
    else:
        status = 0 if lifecycle.follow(experiment, folder, session) else INTERRUPTED
    processes.leave()
    return status


def _run_every_one(options: RunOptions, session: Session) -> int:
    """Run every experiment of ./experiments; return the exit status."""
    paths = sorted(EXPERIMENTS.glob("*.py"))
    if not paths:
        raise UserError(
            f"--all: no experiment file, NAME.py, in ./{EXPERIMENTS}; start it where that folder is"
        )
    return run_all(
        paths,
        lambda path: changed(load_experiment(path), options),
        lambda experiment, folder: _run_one(experiment, folder, options, session),
        options.out or RUNS,
        session,
        dry_run=options.dry_run,
    )


def main_figures(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m jaxtie.figures`; return the exit status."""
    try:
        options = parse_command(
            FiguresOptions, "jaxtie.figures", sys.argv[1:] if arguments is None else arguments
        )
        folder = RunFolder(options.folder)
        results = lifecycle.load(options.folder)
        animated = [analysis.animate(results, folder.figures)] if options.animate else []
        written = lifecycle.draw(folder, results) + animated
        if options.csv:
            from jaxtie.results.plots import write_frames

            written += write_frames(analysis.frames(results), folder.path / "csv")
    except UserError as error:
        print(f"jaxtie.figures: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"jaxtie.figures: {options.folder}: cannot be written ({error.strerror})",
            file=sys.stderr,
        )
        return 2
    print(*written, sep="\n")
    return 0


def main_report(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m jaxtie.report`; return the exit status."""
    from jaxtie.run.report import DOCUMENTS, draw_figures, keep_run, rewrite

    documents = [Path(name) for name in DOCUMENTS]
    try:
        options = parse_command(
            ReportOptions, "jaxtie.report", sys.argv[1:] if arguments is None else arguments
        )
        for document in documents:
            if not document.is_file():
                raise UserError(f"{document}: not found; start it where the repository is")
        for run in options.runs:
            print(keep_run(run, EXPERIMENTS))
        rewrite(documents, EXPERIMENTS)
        print(*documents, *draw_figures(EXPERIMENTS), sep="\n")
    except (UserError, OSError) as error:
        print(f"jaxtie.report: {one_line(error)}", file=sys.stderr)
        return 2
    return 0
