"""The command lines of `jaxtie run` and `jaxtie report`. Imports no jax."""

import contextlib
import dataclasses
import json
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr

from jaxtie.arms import Arm
from jaxtie.checks import UserError, check, real
from jaxtie.config import TaskConfig
from jaxtie.exor.config import Experiment
from jaxtie.options import (
    argument,
    flag,
    option,
    parse_above_0,
    parse_address,
    parse_arms,
    parse_command,
    parse_from_0,
    parse_one_of,
    parse_path,
    parse_positive,
    parse_seeds,
    print_error,
    run_command,
)
from jaxtie.results import analysis
from jaxtie.results.claims import Claim, claims_table
from jaxtie.results.folder import RunFolder, atomic_write
from jaxtie.results.tables import Table, print_tables
from jaxtie.run import lifecycle
from jaxtie.run.experiment_files import (
    experiment_folder,
    find_experiment,
    list_experiments,
    load_experiment_and_claims,
)
from jaxtie.run.lifecycle import Session, plan_lines
from jaxtie.run.page import write_report
from jaxtie.shutdown import INTERRUPTED
from jaxtie.text.data.config import DOCUMENTS

RUNS = Path("runs")
ROWS, CLAIMS = 8, 6  # most rows of the table, and verdicts, at the end of a run
MAIN = Experiment()
# Fields that the command line may change in a run of an experiment.
NUMBERS = ("learning_rate", "weight_decay", "width")  # options that are numbers of nested fields
MAY_DIFFER = {"seeds", "corpus.paths", "corpus.tfds"}


def _parse_numbers(text: str) -> tuple[float, ...]:
    return tuple(map(real, text.split(",")))


def _parse_sweep(text: str) -> tuple[str, tuple[float, ...]]:
    name, _, values = text.partition("=")
    try:
        return name, _parse_numbers(values)
    except ValueError:
        raise ValueError(
            f"{text!r}: expected NAME=VALUE,VALUE, such as weight_decay=0,0.1"
        ) from None


@dataclass(frozen=True)
class TextOptions:
    """Options of experiments on text."""

    TEXT_HELP: ClassVar[str] = """
  --text PATH               a file (.txt, .md, .jsonl, these also with .gz, .parquet), or a folder
                            of them; may be repeated
  --tfds NAME[/CONFIG][:VERSION]
                            a TFDS data set of text instead of files, such as lm1b or wiki40b/en
  --text-field NAME         the field that has the text (text), in records: of .jsonl, .parquet or a
                            TFDS data set
  --document UNIT           what a document of a text file is: the file, each line, or what blank
                            lines separate: file, line or blank-line (file)
  --vocab FILE              a BERT vocab.txt or a tokenizer.json (trained on the text)
  --vocab-size N            largest size of the vocabulary that is trained
"""
    text: tuple[Path, ...] = option(parse_path, ())
    tfds: str | None = option()
    text_field: str | None = option()
    document: str | None = option(parse_one_of(*DOCUMENTS))
    vocab: Path | None = option(parse_path)
    vocab_size: int | None = option(parse_positive)


@dataclass(frozen=True)
class RunOptions(TextOptions):
    """Options of `jaxtie run`."""

    HELP: ClassVar[str] = f"""
usage: jaxtie run [EXPERIMENT] [OPTIONS]

Train an experiment's arms, many seeds at once, and compare them.

  jaxtie run --seeds 64                             the paper's main experiment
  jaxtie run output_bias --seeds 128 --steps 15000  another one, a tenth as long
  jaxtie run text_clm --text books/                 a language model on your text

  EXPERIMENT                name of an experiment that --list shows, or a Python file that defines
                            `experiment`
  --list                    list the experiments, each a question, and the verdicts on its claims
  --out DIR                 folder for results, figures and report (runs/NAME[-TEXT])
  --overwrite               remove an earlier run from DIR and start anew
  --checkpoint-every S      seconds of training between two checkpoints (60); a killed run goes on
                            from the last one
  --dry-run                 print estimates of time, memory and disk; write nothing
  --json                    print the conclusion as JSON
  --quiet                   print no progress

changes of the experiment (in brackets: the main experiment's values)
  --seeds N|A-B|A-B,C       how many seeds (from 0), a range, or a list of seeds and ranges (64)
  --steps STEPS             updates of each member, one batch each (150,000); the schedule of the
                            learning rate stays
  --arms ARM,ARM            variants to compare on the same seeds and data: tied, untied,
                            untied@STEP (tied up to there), untied@2/3 (of the run), with options:
                            tied+bias, untied+bias@STEP, tied+targets-only, ... (tied,untied)
  --learning-rate R         at the start of the schedule (0.0005)
  --weight-decay D          of AdamW, times the learning rate (0.1)
  --width W                 of the model and its embeddings (4)
  --sweep NAME=VALUE,VALUE  train every seed at each value of a number of the experiment, such as
                            learning_rate, width or p_X; repeated, at every combination
  --record-every STEPS      steps between two records of loss, accuracy and distances (100)
  --eval-every STEPS        steps between two evaluations, a multiple of it (1,000)
  --data-seed SEED          of the split and of the samples (14)

experiments on EXor
  --zeros P,P               probabilities of X and of Y for a zero (0.1,0.9)
  --ones P,P                probabilities of A and of B for a one (0.5,0.5)
  --all-strings             include the string of ones, which the published code leaves out
  --independent-layers      draw the initial values of every layer, instead of cloning the first as
                            PyTorch does

experiments on text{TextOptions.TEXT_HELP}
several processes, each started by the same command
  --distributed             be one of them. JAX finds the others on SLURM, Kubernetes and TPU pods;
                            elsewhere give the next three options
  --coordinator HOST:PORT   host of the first process, and a free port there
  --process-count N         number of processes
  --process-index I         number of this process, from 0

Exit status: 0 done, 2 a user's error, 130 interrupted.
"""
    experiment: str | None = argument()
    list: bool = flag()
    out: Path | None = option(parse_path)
    overwrite: bool = flag()
    checkpoint_every: float = option(parse_above_0("a number of seconds above 0"), 60.0)
    dry_run: bool = flag()
    json: bool = flag()
    quiet: bool = flag()
    seeds: tuple[int, ...] | None = option(parse_seeds)
    steps: int | None = option(parse_positive)
    arms: tuple[Arm, ...] | None = option(parse_arms)
    learning_rate: float | None = option(parse_above_0("a number above 0, such as 1e-3"))
    weight_decay: float | None = option(real)
    width: int | None = option(parse_positive)
    sweep: tuple[tuple[str, tuple[float, ...]], ...] = option(_parse_sweep, ())
    record_every: int | None = option(parse_positive)
    eval_every: int | None = option(parse_positive)
    data_seed: int | None = option(parse_from_0)
    zeros: tuple[float, float] | None = option(_parse_numbers)
    ones: tuple[float, float] | None = option(_parse_numbers)
    all_strings: bool = flag()
    independent_layers: bool = flag()
    distributed: bool = flag()
    coordinator: str | None = option(parse_address)
    process_count: int | None = option(parse_positive)
    process_index: int | None = option(parse_from_0)


# Options that change no experiment; a task says which of the others it accepts.
COMMON = frozenset(
    "experiment list out overwrite checkpoint_every dry_run json quiet distributed coordinator"
    " process_count process_index".split()
)


def refuse_other_than(useful: Collection[str], options: Any, reason: str) -> None:
    """Raise UserError with the reason if an option was given that is not `useful`."""
    for each in dataclasses.fields(options):
        if each.name not in useful and getattr(options, each.name) != each.default:
            named = "named" in each.metadata
            shown = f"--{each.name.replace('_', '-')}" if named else "EXPERIMENT"
            raise UserError(f"{shown}: {reason}")


def parse_run(words: Sequence[str]) -> RunOptions:
    """Read the options of `jaxtie run`; see `parse_command`."""
    options = parse_command(RunOptions, "jaxtie run", words)
    if options.list:
        refuse_other_than({"list"}, options, "expected without --list")
    address = {
        "--coordinator": options.coordinator,
        "--process-count": options.process_count,
        "--process-index": options.process_index,
    }
    given = [name for name, value in address.items() if value is not None]
    if given:
        check(options.distributed, f"{given[0]}: expected with --distributed only")
        together = f"{given[0]}: expected {', '.join(address)} together, or none of them"
        check(len(given) == len(address), together)
        index, count = options.process_index or 0, options.process_count or 0
        check(index < count, f"--process-index {index}: expected less than --process-count {count}")
    check(not (options.json and options.dry_run), "--json: expected without --dry-run")
    return options


def apply_options(experiment: TaskConfig, options: RunOptions) -> TaskConfig:
    """Return the experiment with the changes that the options ask for.

    Raises:
      UserError: if an option does not apply to it, or a value is invalid.
    """
    reason = f"not an option of {experiment.name}, which {experiment.refusal}"
    refuse_other_than(experiment.accepted | COMMON, options, reason)
    own = {field.name for field in dataclasses.fields(experiment)} | {*NUMBERS}
    given = {name: getattr(options, name) for name in experiment.accepted & own}
    fields = {name: value for name, value in given.items() if value not in (None, ())}
    experiment = dataclasses.replace(experiment, **experiment.fields_from_options(options))
    experiment = experiment.changed(**fields)
    for name, values in dict(experiment.sweep).items():
        for point in (experiment.at({name: value}) for value in values):
            again = dataclasses.replace(point, **point.fields_from_options(options))
            again = again.changed(**fields | {"sweep": ()})
            check(again == point, f"sweep of {name}: another option sets it; give one of the two")
    return experiment


def command_line(module: str, arguments: Sequence[str]) -> str:
    """Return the command as typed, with bytes that are not UTF-8 escaped, so it can be written."""
    line = shlex.join([*module.split("."), *arguments])
    return line.encode(errors="backslashreplace").decode()


def main(words: Sequence[str]) -> int:
    """Run `jaxtie run`; return the exit status."""
    return run_command(lambda: _run(parse_run(words), command_line("jaxtie.run", words)))


def _run(options: RunOptions, command: str) -> int:
    if options.list:
        print(*list_experiments(), sep="\n")
        return 0
    session = Session(command, options.quiet, options.overwrite, options.checkpoint_every)
    declared = _declared(options.experiment)
    experiment = apply_options(declared[0], options)
    folder = RunFolder(options.out or RUNS / experiment.folder_name)
    _check_inputs(experiment, folder, session.overwrite)
    if not options.distributed:
        return _lead(experiment, folder, options, session, declared)
    from jaxtie.training.devices import start_jax

    start_jax()
    from jaxtie.training.distributed import join

    processes = join(options.coordinator, options.process_count, options.process_index)
    session = dataclasses.replace(session, processes=processes)
    if processes.leads:
        status = _lead(experiment, folder, options, session, declared)
    else:
        status = 0 if lifecycle.follow(experiment, folder, session) else INTERRUPTED
    processes.leave()
    return status


def _declared(name: str | None) -> tuple[TaskConfig, tuple[Claim, ...]]:
    """Return an experiment and its claims; None: the main one, with the claims of its file."""
    if name:
        return load_experiment_and_claims(find_experiment(name))
    path = experiment_folder() / "transformer_small.py"
    if path.is_file() and (declared := load_experiment_and_claims(path))[0] == MAIN:
        return declared
    return MAIN, ()


def _check_inputs(experiment: TaskConfig, folder: RunFolder, overwrite: bool) -> None:
    """Raise UserError if an input is missing; finished results hold without it."""
    config = (None if overwrite else folder.config()) or {}
    if not config.get("finished") or folder.differences(experiment, config):
        experiment.check_inputs()


def _lead(
    experiment: TaskConfig,
    folder: RunFolder,
    options: RunOptions,
    session: Session,
    declared: tuple[TaskConfig, Sequence[Claim]],
) -> int:
    """Train or plan, as the only process or the first of several; return the exit status."""
    if options.dry_run:
        _plan(experiment, folder, session)
        return 0
    results = lifecycle.run_in_folder(experiment, folder, session)
    if results is None:
        so_far = f"; so far: {folder.results}" if folder.results.exists() else ""
        print_error(f"{lifecycle.resume_hint(session)}{so_far}")
        return INTERRUPTED
    _conclude(folder, results, options, *declared)
    return 0


def _conclude(
    folder: RunFolder,
    results: xr.Dataset,
    options: RunOptions,
    declared: TaskConfig,
    claims: Sequence[Claim],
) -> None:
    """Print the conclusion of a run, and the verdicts on claims."""
    conclusion, judged = analysis.conclude(results), _judge(folder, results, declared, claims)
    if options.json:
        table = {name: getattr(conclusion.table, name) for name in ("title", "header", "rows")}
        verdicts = [
            {"verdict": verdict, "claim": claim, "holds_if": bounds, "found": found}
            for _, _, claim, _, bounds, found, verdict in (judged.rows if judged else ())
        ]
        shown = {"experiment": results.attrs["experiment"], "folder": str(folder.path)}
        shown |= {"conclusion": conclusion.lines(), "table": table, "claims": verdicts}
        print(json.dumps(shown, indent=1))
        return
    print_tables(conclusion.table.shortened(ROWS))
    print(*conclusion.lines(), *(_verdict_lines(folder, judged) if judged else ()), sep="\n")
    print(f"Report: {folder.page}; all tables: {folder.summary}")


def _plan(experiment: TaskConfig, folder: RunFolder, session: Session) -> None:
    """Print estimates; write nothing."""
    try:
        earlier, _ = lifecycle.inspect_folder(experiment, folder, session.overwrite)
    except UserError as error:  # nothing is written, so it does not matter yet
        print_error(f"without --dry-run this is refused: {error}")
        earlier = None
    if session.processes:
        session.processes.broadcast({"trains": False})
    print(*plan_lines(experiment, folder, earlier, session.say), sep="\n")


def _judge(
    folder: RunFolder, results: xr.Dataset, declared: TaskConfig, claims: Sequence[Claim]
) -> Table | None:
    """Judge claims by a run and finished ones next to it; write and return the verdicts."""
    if not claims:
        return None
    runs, config = {declared.name: results}, folder.config() or {}
    different = {*folder.differences(declared, config)} - MAY_DIFFER
    for other in set().union(*(claim.others for claim in claims)) - {declared.name}:
        beside = RunFolder(folder.path.parent / other)
        with contextlib.suppress(UserError):
            if (own := beside.config() or {}).get("finished"):
                runs[other] = beside.load()
                known, _ = load_experiment_and_claims(find_experiment(other))
                fields = {*beside.differences(known, own)}
                different |= {f"{other}: {field}" for field in fields - MAY_DIFFER}
    if len(config["experiment"]["seeds"]) < len(declared.seeds):
        different.add("seeds")
    on = f" on a run that differs from it in {', '.join(sorted(different))}" if different else ""
    title = f"Claims of {declared.name}, with verdicts{on}"
    table = claims_table(title, runs, {declared.name: claims}, lenient=True)
    content = table.markdown().encode()
    if not folder.claims.exists() or folder.claims.read_bytes() != content:
        atomic_write(folder.claims, content)
        write_report(folder, results)
    return table


def _verdict_lines(folder: RunFolder, judged: Table) -> Iterator[str]:
    """Yield the counts of verdicts, the first verdicts, and how many claims have no data yet."""
    verdicts = [row[-1] for row in judged.rows]
    counts = Counter(verdicts)
    shown = ", ".join(f"{verdict}: {count}" for verdict, count in counts.items())
    yield f"{judged.title} ({shown}), all in {folder.claims}:"
    missing = counts.pop("no data yet", 0)
    decided = [row for row, verdict in zip(judged.rows, verdicts) if verdict in counts]
    for _, _, claim, _, bounds, found, verdict in decided[:CLAIMS]:
        yield f"- {verdict}: {claim} {found}, holds if {bounds}"
    if len(decided) > CLAIMS:
        yield f"- and {len(decided) - CLAIMS} more"
    if missing:
        yield (
            f"- no data yet: {missing} claim{'s' * (missing > 1)} about arms, records or other runs"
            f" that are not in {folder.path} or next to it"
        )


@dataclass(frozen=True)
class ReportOptions:
    """Options of `jaxtie report`."""

    HELP: ClassVar[str] = """
usage: jaxtie report DIR ... [OPTIONS]

Draw the figures and the report of runs again, from their results alone.

  DIR ...            folders of finished runs
  --pdf              also draw every figure as PDF
"""
    runs: tuple[Path, ...] = argument(parse_path, ())
    pdf: bool = flag()


def main_report(words: Sequence[str]) -> int:
    """Run `jaxtie report`; return the exit status."""
    return run_command(lambda: _report(parse_command(ReportOptions, "jaxtie report", words)))


def _report(options: ReportOptions) -> int:
    check(bool(options.runs), "expected the folder of a run")
    for path in options.runs:
        folder, results = RunFolder(path), lifecycle.load(path)
        written = lifecycle.draw(folder, results, pdf=options.pdf)
        written.append(write_report(folder, results))
        print(*written, sep="\n")
    return 0
