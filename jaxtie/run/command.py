"""The command line of `jaxtie run`. Imports no jax."""

import argparse
import contextlib
import dataclasses
import math
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
import xarray as xr

import jaxtie
from jaxtie.config import Arm, TaskConfig, UserError, check, names_of, real
from jaxtie.exor.config import DATA_STREAMS, Experiment
from jaxtie.options import (
    Flag,
    option,
    parse_above_0,
    parse_address,
    parse_arms,
    parse_from_0,
    parse_groups,
    parse_path,
    parse_positive,
    parse_seeds,
    print_error,
    run_command,
)
from jaxtie.results import analysis
from jaxtie.results.claims import Claim, claims_table
from jaxtie.results.folder import RunFolder, atomic_write
from jaxtie.results.tables import print_tables
from jaxtie.run import lifecycle
from jaxtie.run.all import run_all
from jaxtie.run.experiment_files import (
    experiment_folder,
    find_experiment,
    list_experiments,
    load_experiment,
    load_experiment_and_claims,
)
from jaxtie.run.lifecycle import Outcome, Session, plan
from jaxtie.shutdown import INTERRUPTED
from jaxtie.text.data.config import DOCUMENTS, Corpus

RUNS = Path("runs")
ROWS, CLAIMS = 8, 6  # most rows of the table, and verdicts, at the end of a run
MAIN = Experiment()
# Fields that the command line may change in a run of an experiment.
MAY_DIFFER = {"seeds", "corpus.paths", "corpus.tfds"}


def _in_main(value: object) -> str:
    return f"{value} in the main experiment"


def _parse_data_stream(text: str) -> str:
    if text not in DATA_STREAMS:
        raise ValueError(f"{text!r}: expected one of {', '.join(DATA_STREAMS)}")
    return text


def _parse_document(text: str) -> str:
    """Read the unit of a document."""
    if text not in DOCUMENTS:
        raise ValueError(f"{text!r}: expected one of {', '.join(DOCUMENTS)}")
    return text


def _parse_probabilities(text: str) -> tuple[float, ...]:
    try:
        values = tuple(real(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != 2 or not all(0 <= p <= 1 for p in values) or not math.isclose(sum(values), 1):
        raise ValueError(f"{text!r}: expected two probabilities that sum to 1, such as 0.1,0.9")
    return values


def _parse_sweep(text: str) -> tuple[str, tuple[float, ...]]:
    name, _, values = text.partition("=")
    try:
        return name, tuple(real(value) for value in values.split(","))
    except ValueError:
        raise ValueError(
            f"{text!r}: expected NAME=VALUE,VALUE, such as weight_decay=0,0.1"
        ) from None


@dataclass(frozen=True)
class BasicOptions:
    """Options of every experiment."""

    experiment: Annotated[
        tyro.conf.Positional[str | None],
        option("EXPERIMENT", str, "the main experiment of the paper"),
    ] = None
    """Name of an experiment that --list shows, or a Python file that defines `experiment`."""
    seeds: Annotated[
        tuple[int, ...] | None, option("N|A-B|A-B,C", parse_seeds, _in_main(len(MAIN.seeds)))
    ] = None
    """How many seeds (from 0), a range, or a list of seeds and ranges."""
    steps: Annotated[int | None, option("STEPS", parse_positive, _in_main(MAIN.steps))] = None
    """Updates of each member, one batch each."""
    scale: Annotated[
        float | None, option("F", parse_above_0("a number above 0, such as 0.1"), "1")
    ] = None
    """Multiply the steps; arms untie at the same share, the schedule of the learning rate stays."""
    arms: Annotated[
        tuple[Arm, ...] | None,
        option("ARM,ARM", parse_arms, _in_main(",".join(names_of(MAIN.arms)))),
    ] = None
    """Variants to compare on the same seeds and data: tied, untied, untied@STEP (tied up to there),
    untied@2/3 (of the run), with options: tied+bias, untied+bias@STEP, tied+targets-only, ..."""
    sweep: tyro.conf.UseAppendAction[
        tuple[
            Annotated[tuple[str, tuple[float, ...]], option("NAME=VALUE,VALUE", _parse_sweep)], ...
        ]
    ] = ()
    """Train every seed at each value of a number of the experiment, such as learning_rate, width or
    p_X; repeated, at every combination."""
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
    """Seed of the split and of the samples."""
    all: Flag = False
    """Run every experiment that --list shows and write one page about them, DIR/index.html. Text
    experiments need --text or --tfds."""
    out: Annotated[Path | None, option("DIR", Path, "runs/NAME[-TEXT] or, with --all, runs")] = None
    """Folder for results, figures and report; with --all, of the folders of all runs."""
    checkpoint_every: Annotated[
        float, option("SECONDS", parse_above_0("a number of seconds above 0"))
    ] = 60.0
    """Seconds of training between two checkpoints; a killed run goes on from the last one."""
    overwrite: Flag = False
    """Remove an earlier run from DIR and start anew."""
    dry_run: Flag = False
    """Print estimates of time, memory and disk; write nothing."""
    quiet: Flag = False
    """Print no progress."""
    list: Flag = False
    """List the experiments with their claims."""
    version: Flag = False
    """Print the version."""


@dataclass(frozen=True)
class ExorOptions:
    """Options of experiments on EXor."""

    data: Annotated[
        str | None, option("per-seed|shared", _parse_data_stream, _in_main(MAIN.data))
    ] = None
    """A stream of samples for each seed, shared by its arms, or one for all seeds."""
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
    """Draw the initial values of every layer, instead of cloning the first as PyTorch does."""


@dataclass(frozen=True)
class TextOptions:
    """Options of experiments on text."""

    text: tyro.conf.UseAppendAction[tuple[Annotated[Path, option("PATH", parse_path)], ...]] = ()
    """A file (.txt, .md, .jsonl, these also with .gz, .parquet, .arrow), or a folder of them."""
    tfds: Annotated[str | None, option("NAME[/CONFIG][:VERSION]", str, "none")] = None
    """A TFDS data set of text instead of files, such as lm1b or wiki40b/en."""
    text_field: Annotated[
        str | None, option("NAME", str, Corpus.field), tyro.conf.arg(aliases=("--tfds-field",))
    ] = None
    """The field that has the text, in records: of .jsonl, .parquet, .arrow or a TFDS data set."""
    document: Annotated[str | None, option("file|line|blank-line", _parse_document, "file")] = None
    """What a document of a text file is: the file, each line, or what blank lines separate."""
    skip_bad: Flag = False
    """Leave out files that cannot be read as text, and name them, instead of stopping."""
    vocab: Annotated[Path | None, option("FILE", parse_path, "trained on the text")] = None
    """A BERT vocab.txt or a tokenizer.json."""
    vocab_size: Annotated[int | None, option("N", parse_positive, str(Corpus.vocab_size))] = None
    """Largest size of the vocabulary that is trained."""


@dataclass(frozen=True)
class ClusterOptions:
    """Options of one run in several processes, each started by the same command."""

    distributed: Flag = False
    """Be one of several processes. JAX finds the others on SLURM, Kubernetes and TPU pods;
    elsewhere give the next three options."""
    coordinator: Annotated[str | None, option("HOST:PORT", parse_address, "found by JAX")] = None
    """Host of the first process, and a free port there."""
    process_count: Annotated[int | None, option("N", parse_positive, "found by JAX")] = None
    """Number of processes."""
    process_index: Annotated[int | None, option("I", parse_from_0, "found by JAX")] = None
    """Number of this process, from 0."""


@dataclass(frozen=True)
class RunOptions:
    """The groups of options of `jaxtie run`."""

    basic: tyro.conf.OmitArgPrefixes[BasicOptions] = BasicOptions()
    exor: tyro.conf.OmitArgPrefixes[ExorOptions] = ExorOptions()
    text: tyro.conf.OmitArgPrefixes[TextOptions] = TextOptions()
    cluster: tyro.conf.OmitArgPrefixes[ClusterOptions] = ClusterOptions()


DESCRIPTION = """Train an experiment's arms, many seeds at once, and compare them.

examples:
  jaxtie run --seeds 64                                    the paper's main experiment
  jaxtie run output_bias --seeds 128 --scale 0.1           another one, a tenth as long
  jaxtie run text_clm --text books/                        a language model on your text

Exit status: 0 done, 2 a user's error, 130 interrupted."""


def defaults_of(*groups: Any) -> dict[str, Any]:
    """Return the default of every option."""
    return {each.name: each.default for group in groups for each in dataclasses.fields(group)}


DEFAULTS = defaults_of(BasicOptions, ExorOptions, TextOptions, ClusterOptions)
# Options that change the experiment; a task says which of them it accepts.
CHANGES = frozenset("seeds steps scale arms record_every eval_every data_seed sweep".split())
# Options that every task accepts.
COMMON = defaults_of(BasicOptions, ClusterOptions).keys() - CHANGES
WITH_ALL = frozenset(
    "all seeds scale out checkpoint_every overwrite dry_run quiet text tfds text_field document"
    " skip_bad vocab vocab_size".split()
)


def refuse_other_than(
    useful: Collection[str], options: Any, defaults: Mapping[str, Any], reason: str
) -> None:
    """Raise UserError with the reason if an option was given that is not `useful`."""
    for name, default in defaults.items():
        if name not in useful and getattr(options, name) != default:
            shown = (
                "EXPERIMENT" if name in ("experiment", "source") else f"--{name.replace('_', '-')}"
            )
            raise UserError(f"{shown}: {reason}")


def parse_run(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options of `jaxtie run`, those of all groups together.

    Raises:
      UserError: in one line that names the option, its value and the expected ones.
      SystemExit: after `--help`.
    """
    options = parse_groups(RunOptions, "jaxtie.run", arguments, DESCRIPTION)
    for name in ("version", "list"):
        if getattr(options, name):
            refuse_other_than({name}, options, DEFAULTS, f"expected without --{name}")
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
            DEFAULTS,
            "no option of --all, which runs the experiments as they are declared",
        )
    return options


def changed(experiment: TaskConfig, options: argparse.Namespace) -> TaskConfig:
    """Return the experiment with the changes that the options ask for.

    Raises:
      UserError: if an option does not apply to it, or a value is invalid.
    """
    if not options.all:
        refuse_other_than(
            experiment.accepted | COMMON,
            options,
            DEFAULTS,
            f"not an option of {experiment.name}, which {experiment.refusal}",
        )
    own = {field.name for field in dataclasses.fields(experiment)}
    given = {name: getattr(options, name) for name in experiment.accepted & own}
    fields = {name: value for name, value in given.items() if value not in (None, ())}
    if options.all and not experiment.many_seeds and "seeds" in fields:
        fields["seeds"] = fields["seeds"][: len(experiment.seeds)]  # each costs a full training
    experiment = dataclasses.replace(experiment, **fields, **experiment.changes(options))
    for name, values in dict(experiment.sweep).items():
        for point in (experiment.at({name: value}) for value in values):
            again = dataclasses.replace(point, **fields | {"sweep": ()}, **point.changes(options))
            check(again == point, f"sweep of {name}: another option sets it; give one of the two")
    return experiment.scaled(options.scale) if options.scale else experiment


def command_line(module: str, arguments: Sequence[str]) -> str:
    """Return the command as typed, with bytes that are not UTF-8 escaped, so it can be written."""
    line = shlex.join([*module.split("."), *arguments])
    return line.encode(errors="backslashreplace").decode()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `jaxtie run`; return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: _run(parse_run(words), command_line("jaxtie.run", words)))


def _run(options: argparse.Namespace, command: str) -> int:
    session = Session(command, options.quiet, options.overwrite, options.checkpoint_every)
    if options.version:
        print(f"jaxtie {jaxtie.__version__}")
        return 0
    if options.list:
        print(*list_experiments(), sep="\n")
        return 0
    if options.all:
        return _run_every_one(options, session)
    named = options.experiment
    declared = load_experiment_and_claims(find_experiment(named)) if named else (MAIN, ())
    experiment = changed(declared[0], options)
    folder = RunFolder(options.out or RUNS / experiment.folder_name)
    _check_inputs(experiment, folder, session.overwrite)
    if options.distributed:
        return _run_with_others(experiment, folder, options, session, declared)
    return _show(folder, _run_one(experiment, folder, options, session), *declared)


def _check_inputs(experiment: TaskConfig, folder: RunFolder, overwrite: bool) -> None:
    """Raise UserError if an input is missing; finished results hold without it."""
    config = (None if overwrite else folder.config()) or {}
    if not config.get("finished") or folder.differences(experiment, config):
        experiment.check_inputs()


def _run_one(
    experiment: TaskConfig, folder: RunFolder, options: argparse.Namespace, session: Session
) -> Outcome:
    if not options.dry_run:
        outcome = lifecycle.run_in_folder(experiment, folder, session)
        if outcome is Outcome.INTERRUPTED:
            so_far = f"; so far: {folder.results}" if folder.results.exists() else ""
            print_error(f"{lifecycle.resume_hint(session)}{so_far}")
        return outcome
    earlier, _ = lifecycle.inspect_folder(experiment, folder, session.overwrite)
    if session.processes:
        session.processes.broadcast({"trains": False})
    print(*plan(experiment, folder, earlier, session.say), sep="\n")
    return Outcome.PLANNED


def _show(
    folder: RunFolder, outcome: Outcome, declared: TaskConfig, claims: Sequence[Claim]
) -> int:
    """Print the conclusion of a finished run, and verdicts; return the exit status."""
    if outcome in (Outcome.DONE, Outcome.BEFORE):
        results = lifecycle.load(folder.path)
        conclusion = analysis.conclude(results)
        print_tables(conclusion.table.shortened(ROWS))
        print(*conclusion.lines(), *_judge(folder, results, declared, claims), sep="\n")
        print(f"Report: {folder.page}; all tables: {folder.summary}")
    return INTERRUPTED if outcome is Outcome.INTERRUPTED else 0


def _judge(
    folder: RunFolder, results: xr.Dataset, declared: TaskConfig, claims: Sequence[Claim]
) -> list[str]:
    """Judge claims by a run and finished ones next to it; write all, return the first lines."""
    if not claims:
        return []
    runs = {declared.name: results}
    for other in set().union(*(claim.others for claim in claims)) - {declared.name}:
        beside = RunFolder(folder.path.parent / other)
        with contextlib.suppress(UserError):
            if (beside.config() or {}).get("finished"):
                runs[other] = beside.load()
    title = f"Claims of {declared.name}, with verdicts"
    if different := {*folder.differences(declared, folder.config() or {})} - MAY_DIFFER:
        title += f" on a run that differs from it in {', '.join(sorted(different))}"
    table = claims_table(title, runs, {declared.name: claims}, lenient=True)
    atomic_write(folder.claims, table.markdown().encode())
    rows = [(row[-1].strip("*"), *row[2:]) for row in table.rows]
    verdicts = Counter(verdict for verdict, *_ in rows)
    counts = ", ".join(f"{verdict}: {count}" for verdict, count in verdicts.items())
    shown = [
        f"- {verdict}: {claim} {found}, holds if {bounds}"
        for verdict, claim, _, bounds, found, _ in rows
        if verdict != "no data yet"
    ][:CLAIMS]
    return [f"{table.title} ({counts}), all in {folder.claims}:", *shown]


def _run_with_others(
    experiment: TaskConfig,
    folder: RunFolder,
    options: argparse.Namespace,
    session: Session,
    declared: tuple[TaskConfig, Sequence[Claim]],
) -> int:
    """Run as one of several processes; return the exit status."""
    from jaxtie.training.devices import start_jax

    start_jax()
    from jaxtie.training.distributed import join

    processes = join(options.coordinator, options.process_count, options.process_index)
    session = dataclasses.replace(session, processes=processes)
    if processes.leads:
        status = _show(folder, _run_one(experiment, folder, options, session), *declared)
    else:
        status = 0 if lifecycle.follow(experiment, folder, session) else INTERRUPTED
    processes.leave()
    return status


def _run_every_one(options: argparse.Namespace, session: Session) -> int:
    """Run every experiment that --list shows; return the exit status."""
    out = options.out or RUNS

    def declare(path: Path) -> TaskConfig:
        experiment = changed(load_experiment(path), options)
        _check_inputs(experiment, RunFolder(out / experiment.folder_name), session.overwrite)
        return experiment

    return run_all(
        sorted(experiment_folder().glob("*.py")),
        declare,
        lambda experiment, folder: _run_one(experiment, folder, options, session),
        out,
        session,
        dry_run=options.dry_run,
    )
