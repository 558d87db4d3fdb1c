"""Command line of `python -m jaxtie.run`. Imports no jax."""

import dataclasses
import functools
import io
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

import jaxtie
from jaxtie.config import Arm, TaskConfig, UserError, names_of
from jaxtie.exor.config import Experiment
from jaxtie.exor.options import ExorOptions
from jaxtie.options import (
    AS_DECLARED,
    Flag,
    option,
    parse_address,
    parse_arms,
    parse_command,
    parse_factor,
    parse_from_0,
    parse_path,
    parse_positive,
    parse_seconds,
    parse_seeds,
)
from jaxtie.results import analysis
from jaxtie.results.folder import RunFolder
from jaxtie.results.tables import show
from jaxtie.run import lifecycle
from jaxtie.run.all import run_all
from jaxtie.run.lifecycle import Outcome, Session, load_experiment, plan
from jaxtie.shutdown import INTERRUPTED
from jaxtie.text.options import TextOptions

EXPERIMENTS, RUNS = Path("experiments"), Path("runs")
MAIN = Experiment()


def _in_main(value: object) -> str:
    return f"{AS_DECLARED}, {value} in the main one"


@dataclass(frozen=True)
class CommonOptions:
    """What experiments of most kinds can be changed in, and how they are run."""

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
    scale: Annotated[float | None, option("F", parse_factor, "1")] = None
    """Multiply all steps by it, of untying too, to the nearest record; the schedule of the learning
    rate stays.
    """
    arms: Annotated[
        tuple[Arm, ...] | None,
        option("ARM,ARM", parse_arms, _in_main(",".join(names_of(MAIN.arms)))),
    ] = None
    """What is compared, on the same seeds and data: tied, untied, untied@STEP (tied up to there),
    each with options of its
    head: tied+bias, untied+bias@STEP, tied+half-swap, tied+input-gradient=0, ..."""
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
    all: Flag = False
    """Run every experiment of ./experiments, one after the other, and show them on one page,
    DIR/index.html. What is finished is not run again. Text experiments take no more --seeds than
    they declare, and are left out unless --text or
    --tfds names a text."""
    out: Annotated[Path | None, option("DIR", Path, "runs/NAME or, with --all, runs")] = None
    """Folder for configuration, results, figures and summary; with --all for the page and a folder
    NAME of each.
    """
    checkpoint_every: Annotated[float, option("SECONDS", parse_seconds)] = 60.0
    """Seconds of training between two checkpoints; a run that was killed goes on from the last
    one.
    """
    distributed: Flag = False
    """Be one of several processes, each started by the same command; only the first writes. SLURM,
    Kubernetes and TPU pods are found by JAX; elsewhere give the next three."""
    coordinator: Annotated[str | None, option("HOST:PORT", parse_address, "found by JAX")] = None
    """Where the first process is, and a free port there."""
    process_count: Annotated[int | None, option("N", parse_positive, "found by JAX")] = None
    """How many processes there are."""
    process_index: Annotated[int | None, option("I", parse_from_0, "found by JAX")] = None
    """Which one this is, from 0."""
    overwrite: Flag = False
    """Remove what a run left in DIR and start anew."""
    dry_run: Flag = False
    """Print members, estimated time, memory and disk; write nothing."""
    quiet: Flag = False
    """No progress."""
    list: Flag = False
    """List the experiments of ./experiments with their claims."""
    version: Flag = False
    """Print the version."""


# what a kind may accept or not
CHANGES = frozenset("seeds steps scale arms record_every eval_every data_seed".split())
# for every kind
HOW = frozenset(field.name for field in dataclasses.fields(CommonOptions)) - CHANGES


@functools.cache
def run_options() -> type:
    """The options of `python -m jaxtie.run`: common ones, and those of each kind."""
    text = (
        "Train an experiment's arms, many seeds at once, and show what came out.\n\nThe experiment"
        " file is Python and is executed. Without one, the paper's main experiment runs. The"
        " summary goes to standard output, progress and errors to standard error. Exit status: 0"
        " done, 2 a user's error, 130 interrupted."
    )
    # the help shows those of the last first
    bases = (
        TextOptions,
        ExorOptions,
        CommonOptions,
    )
    return dataclasses.make_dataclass(
        "RunOptions", [], bases=bases, namespace={"__doc__": text}, frozen=True
    )


@dataclass(frozen=True)
class FiguresOptions:
    """Draw the figures of a run again, from its results alone."""

    folder: Annotated[tyro.conf.Positional[Path], option("DIR", parse_path)]
    """Folder of a run."""
    csv: Flag = False
    """Write the results as tidy CSV too, below DIR/csv."""
    animate: Flag = False
    """Draw the tables over training as an animation too, portrait.gif."""


@dataclass(frozen=True)
class ReportOptions:
    """Write the tables of README.md, experiments/README.md and jaxtie/advise/README.md again,
    from the data in experiments/data and the claims in ./experiments.

    Start it where the repository is.
    """

    runs: tyro.conf.Positional[tuple[Annotated[Path, option("RUN", parse_path)], ...]] = ()
    """Folders of finished runs, each of which is condensed to experiments/data/NAME.nc first."""


def refuse_other_than(useful: Collection[str], options: Any, reason: str) -> None:
    """UserError with the option and the reason, where an option was given that is not `useful`."""
    for field in dataclasses.fields(options):
        if field.name not in useful and getattr(options, field.name) != field.default:
            name = (
                "EXPERIMENT.py"
                if field.name in ("experiment", "source")
                else f"--{field.name.replace('_', '-')}"
            )
            raise UserError(f"{name}: {reason}")


def parse_run(arguments: Sequence[str]) -> CommonOptions:
    """Options of `python -m jaxtie.run`.

    Raises:
      UserError: with one line that names the option, what was given and what was expected.
      SystemExit: after `--help`.
    """
    options = parse_command(run_options(), "jaxtie.run", arguments)
    place = {"--coordinator": options.coordinator, "--process-count": options.process_count}
    place["--process-index"] = options.process_index
    given = [name for name, value in place.items() if value is not None]
    if given and not options.distributed:
        raise UserError(f"{given[0]}: expected with --distributed only")
    if given and len(given) < len(place):
        raise UserError(f"{given[0]}: expected {', '.join(place)} together, or none of them")
    if given and options.process_index >= options.process_count:
        raise UserError(
            f"--process-index {options.process_index}: expected less than --process-count"
            f" {options.process_count}"
        )
    if options.steps and options.scale:
        raise UserError("--scale: expected without --steps, which says how many steps there are")
    if options.all:
        useful = {
            "all",
            "seeds",
            "scale",
            "out",
            "checkpoint_every",
            "overwrite",
            "dry_run",
            "quiet",
            "list",
            "version",
        }
        useful |= {"text", "tfds", "tfds_field", "vocab", "vocab_size"}
        refuse_other_than(
            useful,
            options,
            "no option of --all, which runs what the files of ./experiments declare",
        )
    return options


def changed(experiment: TaskConfig, options: CommonOptions) -> TaskConfig:
    """The experiment with what the options change.

    Raises:
      UserError: where an option makes no sense for it, or a value cannot be meant.
    """
    if not options.all:
        refuse_other_than(
            experiment.accepted | HOW,
            options,
            f"no option of {experiment.name}, which {experiment.refusal}",
        )
    common = ("seeds", "steps", "arms", "record_every", "eval_every")
    fields = {name: getattr(options, name) for name in common if name in experiment.accepted}
    fields = {name: value for name, value in fields.items() if value is not None}
    # many are meant for what is trained nearly for free
    if options.all and not experiment.many_seeds and "seeds" in fields:
        fields["seeds"] = fields["seeds"][: len(experiment.seeds)]
    experiment = dataclasses.replace(experiment, **fields, **experiment.changes(options))
    return experiment.scaled(options.scale) if options.scale else experiment


def list_experiments(folder: Path) -> Iterator[str]:
    """One line for each experiment file: path and claim, or what is wrong with it."""
    yield f"(default)  {MAIN.claim}"
    for path in sorted(folder.glob("*.py")):
        try:
            yield f"{path}  {load_experiment(path).claim}"
        except UserError as error:
            yield str(error)


def command_line(module: str, arguments: Sequence[str]) -> str:
    """What was typed, as a file can hold it: bytes that are no UTF-8 are written out."""
    return (
        shlex.join(["python", "-m", module, *arguments]).encode(errors="backslashreplace").decode()
    )


def one_line(error: UserError | OSError) -> str:
    """What went wrong."""
    if isinstance(error, UserError):
        return str(error)
    return f"{error.filename or 'output'}: {error.strerror}; what was recorded before is kept"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of `python -m jaxtie.run`; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not know every sign
    try:
        return _run(parse_run(arguments), command_line("jaxtie.run", arguments))
    except (UserError, OSError) as error:
        print(f"jaxtie: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(options: CommonOptions, command: str) -> int:
    session = Session(command, options.quiet, options.overwrite, options.checkpoint_every)
    if options.version:
        print(f"jaxtie {jaxtie.__version__}")
        return 0
    if options.list:
        print(*list_experiments(EXPERIMENTS), sep="\n")
        return 0
    if options.all:
        return _run_every_one(options, session)
    experiment = changed(
        load_experiment(options.experiment) if options.experiment else MAIN, options
    )
    folder = RunFolder(options.out or RUNS / experiment.name)
    if options.distributed:
        return _run_with_others(experiment, folder, options, session)
    return _present(folder, _run_one(experiment, folder, options, session))


def _run_one(
    experiment: TaskConfig, folder: RunFolder, options: CommonOptions, session: Session
) -> Outcome:
    if not options.dry_run:
        outcome = lifecycle.carry_out(experiment, folder, session)
        if outcome is Outcome.INTERRUPTED:
            print(
                f"jaxtie: {lifecycle.goes_on(session)}; so far: {folder.results}", file=sys.stderr
            )
        return outcome
    earlier, _ = lifecycle.found_in(experiment, folder, session.overwrite)
    if session.processes:
        session.processes.broadcast({"trains": False})
    print(*plan(experiment, folder, earlier, session.say), sep="\n")
    return Outcome.PLANNED


def _present(folder: RunFolder, outcome: Outcome) -> int:
    """What came out, on standard output; returns the exit status."""
    if outcome in (Outcome.DONE, Outcome.BEFORE):
        results = lifecycle.load(folder.path)
        show(*(table for table in analysis.tables(results) if not table.long))
    if outcome is Outcome.DONE:
        print(f"figures, results and summary: {folder.path}")
    return INTERRUPTED if outcome is Outcome.INTERRUPTED else 0


def _run_with_others(
    experiment: TaskConfig, folder: RunFolder, options: CommonOptions, session: Session
) -> int:
    """Be one of several processes."""
    from jaxtie.training.devices import start_jax

    start_jax()
    from jaxtie.training.distributed import join

    processes = join(options.coordinator, options.process_count, options.process_index)
    session = dataclasses.replace(session, processes=processes)
    if processes.leads:
        status = _present(folder, _run_one(experiment, folder, options, session))
    else:
        status = 0 if lifecycle.follow(experiment, folder, session) else INTERRUPTED
    processes.leave()
    return status


def _run_every_one(options: CommonOptions, session: Session) -> int:
    """`--all`."""

    def declared(path: Path) -> TaskConfig:
        return changed(load_experiment(path), options)

    def carry_out(experiment: TaskConfig, folder: RunFolder) -> Outcome:
        return _run_one(experiment, folder, options, session)

    page = None if options.dry_run else (options.out or RUNS) / "index.html"
    paths = sorted(EXPERIMENTS.glob("*.py"))
    if not paths:
        raise UserError(
            f"--all: no experiment file, NAME.py, in ./{EXPERIMENTS}; start it where that folder is"
        )
    return run_all(paths, declared, carry_out, options.out or RUNS, page, session, one_line)


def main_figures(arguments: Sequence[str] | None = None) -> int:
    """The command line of `python -m jaxtie.figures`; returns the exit status."""
    try:
        options = parse_command(
            FiguresOptions, "jaxtie.figures", sys.argv[1:] if arguments is None else arguments
        )
        folder = RunFolder(options.folder)
        results = lifecycle.load(options.folder)
        written = [analysis.animate(results, folder.figures)] if options.animate else []
        written = lifecycle.draw(folder, results) + written
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
    """The command line of `python -m jaxtie.report`; returns the exit status."""
    from jaxtie.run.report import DOCUMENTS, draw_figures, keep_run, rewrite

    documents = [Path(name) for name in DOCUMENTS]
    try:
        options = parse_command(
            ReportOptions, "jaxtie.report", sys.argv[1:] if arguments is None else arguments
        )
        for document in documents:
            if not document.is_file():
                raise UserError(f"{document}: not found; start it where the repository is")
        print(
            *(keep_run(run, EXPERIMENTS) for run in options.runs),
            sep="\n",
            end="\n" * bool(options.runs),
        )
        rewrite(documents, EXPERIMENTS)
        figures = draw_figures(EXPERIMENTS)
    except (UserError, OSError) as error:
        print(f"jaxtie.report: {one_line(error)}", file=sys.stderr)
        return 2
    print(*documents, *figures, sep="\n")
    return 0
