"""`python -m jaxtie.run`: from a command line to a run folder with results, figures and summary."""

import contextlib
import ctypes
import dataclasses
import enum
import importlib.util
import io
import os
import platform
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import jaxtie
from jaxtie import run_text, theory
from jaxtie.cli import TEXT_OPTIONS, RunOptions, parse_run, refuse_other_than
from jaxtie.config import (
    Corpus,
    Experiment,
    HeadConvergence,
    InitialLoss,
    Study,
    TextExperiment,
    Transformer,
    UserError,
    cache_folder,
)
from jaxtie.results import RunFolder

EXPERIMENTS, RUNS = Path("experiments"), Path("runs")
INTERRUPTED = 130


class Outcome(enum.StrEnum):
    """What became of one experiment."""

    DONE = "done"
    BEFORE = "finished before"
    PLANNED = "planned"
    INTERRUPTED = "interrupted"


AnyExperiment = Experiment | TextExperiment | Study


def load_experiment(path: Path) -> AnyExperiment:
    """Execute an experiment file and take its `experiment`.

    Raises:
      UserError: where it is missing, fails, or declares none.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such experiment file; --list shows those of ./experiments")
    spec = importlib.util.spec_from_file_location("experiment_file", path)
    if spec is None:
        raise UserError(f"{path}: expected a Python file, NAME.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f"{path}:{lines[-1]}" if lines else f"{path}"
        text = " ".join(str(error).split())
        raise UserError(f"{where}: {text if isinstance(error, UserError) else f'{type(error).__name__}: {text}'}") from None
    experiment = getattr(module, "experiment", None)
    if not isinstance(experiment, AnyExperiment):
        raise UserError(f"{path}: expected it to define experiment = jaxtie.Experiment(...)")
    return experiment


def resolve(options: RunOptions) -> AnyExperiment:
    """The experiment of the options, with what they change."""
    experiment = load_experiment(options.experiment) if options.experiment else Experiment()
    if isinstance(experiment, InitialLoss):
        seeds = options.seeds or experiment.seeds
        if options.all:  # many seeds are meant for what is trained, where they are nearly free
            seeds = seeds[: len(experiment.seeds)]
        else:
            useful = {"experiment", "seeds", "out", "overwrite", "quiet"}
            refuse_other_than(useful, options, f"no option of {experiment.name}, which trains nothing")
        return dataclasses.replace(experiment, seeds=seeds)
    if isinstance(experiment, TextExperiment):
        return resolve_text(experiment, options)
    if isinstance(experiment, HeadConvergence):
        return resolve_heads(experiment, options)
    if not options.all:
        useful = {field.name for field in dataclasses.fields(RunOptions)} - set(TEXT_OPTIONS)
        refuse_other_than(useful, options, f"no option of {experiment.name}, which reads no text")
    if options.independent_layers and not isinstance(experiment.model, Transformer):
        kind = type(experiment.model).__name__
        raise UserError(f"--independent-layers: expected a transformer; the layers of this {kind} are independent already")
    for name, given in (("p_X", options.zeros and "--zeros"), ("p_A", options.ones and "--ones")):
        if given and name in dict(options.sweep or experiment.sweep):
            raise UserError(f"{given}: {name} is swept; give one of the two")
    process = {"data_seed": options.data_seed, "zeros": options.zeros, "ones": options.ones}
    process["all_strings"] = options.all_strings or None
    own = ("seeds", "steps", "arms", "record_every", "eval_every", "data", "sweep")
    given = lambda fields: {name: value for name, value in fields.items() if value not in (None, ())}
    experiment = dataclasses.replace(
        experiment,
        process=dataclasses.replace(experiment.process, **given(process)),
        model=dataclasses.replace(experiment.model, **given({"independent_layers": options.independent_layers or None})),
        **given({name: getattr(options, name) for name in own}),
    )
    return experiment.scaled(options.scale) if options.scale else experiment


def resolve_text(experiment: TextExperiment, options: RunOptions) -> TextExperiment:
    """An experiment of text with what the options change: its corpus too, unless they name none."""
    own = ("steps", "arms", "record_every", "eval_every", "data_seed")
    if not options.all:
        useful = {*own, *TEXT_OPTIONS, *"experiment seeds scale out checkpoint_every overwrite dry_run quiet".split()}
        useful |= {"distributed", "coordinator", "process_count", "process_index"}
        refuse_other_than(useful, options, f"no option of {experiment.name}, which is of text")
    corpus = {"field": options.tfds_field, "vocab": options.vocab and str(options.vocab), "vocab_size": options.vocab_size}
    corpus |= {"split_seed": options.data_seed, "tfds": options.tfds, "paths": tuple(map(str, options.text))}
    corpus = {name: value for name, value in corpus.items() if value not in (None, ())}
    if options.tfds_field and not options.tfds:
        raise UserError("--tfds-field: expected with --tfds only")
    if corpus.keys() & {"tfds", "paths"}:
        corpus = Corpus(**corpus)
    elif experiment.corpus:
        corpus = dataclasses.replace(experiment.corpus, **corpus)
    else:
        raise NoText(f"{experiment.name}: needs a text; give files or folders by --text PATH, or a data set by --tfds NAME")
    given = {name: value for name in own if (value := getattr(options, name)) is not None}
    seeds = options.seeds or experiment.seeds
    given["seeds"] = seeds[: len(experiment.seeds)] if options.all else seeds
    experiment = dataclasses.replace(experiment, corpus=corpus, **given)
    return experiment.scaled(options.scale) if options.scale else experiment


def resolve_heads(study: HeadConvergence, options: RunOptions) -> HeadConvergence:
    """A comparison of heads with what the options change."""
    seeds, text = options.seeds or study.seeds, tuple(map(str, options.text)) or study.text
    if options.all:  # of which many are meant for models that are smaller by far
        seeds = seeds[: len(study.seeds)]
    else:
        useful = {"experiment", "text", "seeds", "steps", "scale", "out", "overwrite", "dry_run", "quiet"}
        refuse_other_than(useful, options, f"no option of {study.name}, which compares heads on real text")
    if not text:
        raise NoText(f"{study.name}: needs a text; give files or folders by --text PATH")
    study = dataclasses.replace(study, seeds=seeds, text=text, steps=options.steps or study.steps)
    return study.scaled(options.scale) if options.scale else study


class NoText(UserError):
    """An experiment of text was given none."""


def list_experiments(folder: Path) -> Iterator[str]:
    """One line for each experiment file: path and claim."""
    yield f"(default)  {Experiment().claim}"
    for path in sorted(folder.glob("*.py")):
        yield f"{path}  {load_experiment(path).claim}"


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM fill the list instead of raising, so that no device state is lost; a second one raises."""
    received = []

    def note(number: int, _) -> None:
        received.append(number)
        for each in previous:
            signal.signal(each, signal.default_int_handler)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_memory() -> None:
    """Have glibc keep the large blocks that are freed, for the next ones.

    A compiled program for a CPU asks for its working memory at every call. glibc would have it mapped and given back each
    time, so that the kernel clears it page by page: a quarter of the time of a step of text.
    """
    trim_threshold, mmap_threshold, no_limit = -1, -3, 2**31 - 1  # of mallopt, see its manual page
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other systems have no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(trim_threshold, no_limit)
        mallopt(mmap_threshold, no_limit)


def start_jax():
    """Import jax with a cache of compiled programs, and so that threads can use one CPU device at the same time.

    The cache is where JAX_COMPILATION_CACHE_DIR says, else below the user's cache folder.
    """
    import jax

    keep_memory()
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if jax.config.jax_compilation_cache_dir is None:
        cache = cache_folder()
        with contextlib.suppress(OSError):  # it only saves time
            cache.mkdir(parents=True, exist_ok=True)
            jax.config.update("jax_compilation_cache_dir", str(cache))
    return jax


def describe(device) -> str:
    """What a jax device is, in words: of a CPU device, one core of which processor."""
    if device.platform != "cpu":
        return device.device_kind
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"core of {models[0] if models else platform.machine()}"


def train(experiment: Experiment, folder: RunFolder, config: dict, options: RunOptions, processes: Any) -> bool:
    """Train every arm into the folder, from its checkpoint on; returns whether it came to the end.

    Of several processes each trains its share, and the first writes. `config` is brought up to date.
    """
    import jax

    from jaxtie import checkpoint, sweep
    from jaxtie.progress import Progress, add_times

    block = sweep.block_size(jax.local_devices()[0].platform, experiment.model, len(experiment.members))
    own = processes.share(experiment.members, block)
    workers = sweep.assign_workers(len(own), block, jax.local_devices(), cores())
    processes_of_settings = {setting.process for setting in experiment.settings}
    best_losses = [theory.best_loss(sweep.build_contexts(each, ordered=False)[0].joint_CxV) for each in processes_of_settings]
    config |= {"device": describe(workers[0]), "workers": len(workers), "processes": processes.count, "block": block}
    report = lambda text: print(f"jaxtie: {text}; going on without it", file=sys.stderr)
    with stop_signals() as stopped, checkpoint.opened(folder.checkpoints) as checkpoints:
        standing = checkpoint.exchange(processes, checkpoints.load(report) if processes.leads else {})
        reached = lambda arm: sweep.steps_reached(standing, arm, experiment.steps)
        if processes.leads:
            folder.start_records({arm: reached(arm) for arm in experiment.arms}, experiment.record_every)
        programs, saved = {}, time.monotonic()
        for phase in [phase for arm in experiment.arms for phase in sweep.phases(arm, experiment.steps)]:
            if processes.agree(stopped):
                break
            if phase.follows:
                standing = checkpoint.exchange(processes, standing)
                if phase.follows in standing:
                    untied = sweep.untie(experiment, standing.pop(phase.follows))
                    standing[phase.name] = sweep.merge(standing.get(phase.name), untied)
            steps = reached(phase.arm)
            if all(steps.get(member, -1) >= phase.until for member in experiment.members):
                continue
            before, began = sum(steps.values()), time.monotonic()
            quiet = options.quiet or not processes.leads
            with Progress(phase.arm, experiment.steps, len(experiment.members), best_losses, quiet=quiet) as progress:
                if phase.tied not in programs:
                    progress.say("compiling")
                    programs[phase.tied] = sweep.compile_program(experiment, workers, tied=phase.tied)
                compiled, seed_steps, latest = time.monotonic(), before, {}
                todo = tuple(member for member in own if steps.get(member, -1) < phase.until)
                pieces = sweep.run(
                    programs[phase.tied], workers, experiment, todo, standing.get(phase.name), until=phase.until
                )
                for piece in processes.together(pieces, stopped):
                    folder.append(phase.arm, piece.first_record, piece.members.numbers, piece.records)
                    latest[int(piece.members.numbers[0])] = piece.members
                    seed_steps += piece.records["loss"].size * experiment.record_every if piece.first_record else 0
                    progress.update(seed_steps, piece.records["loss"][-1])
                    if time.monotonic() - saved > options.checkpoint_every:
                        saved = time.monotonic()
                        now = sweep.merge(standing.get(phase.name), *latest.values())
                        checkpoints.save(standing | {phase.name: now}, config)
            if latest:
                standing[phase.name] = sweep.merge(standing.get(phase.name), *latest.values())
                times = config["arms"].setdefault(phase.arm, {})
                add_times(times, len(experiment.members), began, compiled, seed_steps - before)
        if processes.leads:
            checkpoints.save(standing, config)
    return not stopped


def load_text(experiment: TextExperiment, quiet: bool, prepare: Callable) -> Any:
    """The text as an experiment sees it, `jaxtie.text_training.Material`; `prepare(say=...)` prepares it."""
    import jax

    from jaxtie import text_training

    text_training.make_mesh(experiment.batch, jax.devices())  # it raises
    say = lambda line: None if quiet else print(f"jaxtie: {line}", file=sys.stderr, flush=True)
    text = prepare(say=say)
    say(str(text.report).replace("\n", "\njaxtie: "))
    return text_training.load(experiment, text)


def train_text(
    experiment: TextExperiment, material: Any, folder: RunFolder, config: dict, options: RunOptions, processes: Any
) -> bool:
    """Train every arm into the folder, from its checkpoint on; returns whether it came to the end.

    Several processes make every step together, and the first writes.
    """
    import jax

    from jaxtie import checkpoint, text_training

    device, count = jax.local_devices()[0], text_training.make_mesh(experiment.batch, jax.devices()).size
    workers = cores() if device.platform == "cpu" and count == 1 else count
    config |= {"device": describe(device), "workers": workers, "devices": count, "processes": processes.count}
    config["text"] = run_text.describe(material.text)
    report = lambda line: print(f"jaxtie: {line}; going on without it", file=sys.stderr)
    with stop_signals() as stopped, checkpoint.opened(folder.checkpoints) as checkpoints, processes.watched():
        return text_training.train_into(
            folder, experiment, material, config, checkpoints, processes, stopped,
            checkpoint_every=options.checkpoint_every, quiet=options.quiet, report=report,
        )  # fmt: skip


def assemble(experiment: Experiment | TextExperiment, folder: RunFolder, config: dict, material: Any = None) -> None:
    """Write `results.nc` from what was recorded; `material` is what `load_text` gave."""
    common = {"experiment": experiment.name, "claim": experiment.claim, "command": config["command"]}
    common |= {f"version_{name}": number for name, number in config["versions"].items()}
    if isinstance(experiment, TextExperiment):
        from jaxtie import text_training

        attributes = common | text_training.attributes(experiment, material)
        return folder.assemble(experiment, attributes, text_training.constants(experiment, material))
    import xarray as xr

    settings = [constants(setting) for setting in experiment.settings]
    for name, values in reversed(experiment.sweep):  # the last name's values run fastest
        index = xr.DataArray(list(values), dims=name, name=name)
        settings = [xr.concat(settings[i : i + len(values)], index) for i in range(0, len(settings), len(values))]
    attributes = common | {
        "process": f"EXor, {experiment.process.length} bits; "
        + ", ".join(f"p({pair}) = {p[0]:g}, {p[1]:g}" for pair, p in experiment.process.pairs.items()),
        "model": repr(experiment.model),
    }
    folder.assemble(experiment, attributes, settings[0].data_vars)


def constants(setting: Experiment) -> Any:
    """What no member owns, of an experiment without a sweep: the schedule, and what theory says; a dataset."""
    import xarray as xr

    from jaxtie import optim, sweep
    from jaxtie.data import exor

    process, optimiser = setting.process, setting.optimiser
    laws = [contexts.joint_CxV for contexts in sweep.build_contexts(process, ordered=False)]
    schedule = optim.periodic_cosine(optimiser.learning_rate, optimiser.eta_min, optimiser.half_period)
    rates = np.asarray(schedule(np.array(setting.record_steps)))
    whole = exor.enumerate_process(process.length, process.zeros, process.ones)
    divergences = theory.equivalences(whole.tokens_CxL, whole.joint_CxV, ordered=False)
    return xr.Dataset(
        {
            "best_accuracy": ("split", list(map(theory.best_accuracy, laws))),
            "best_loss": ("split", list(map(theory.best_loss, laws))),
            "theory_log_odds": ("pair", list(map(theory.log_odds, process.pairs.values()))),
            "scheduled_learning_rate": (("arm", "step"), np.broadcast_to(rates, (len(setting.arms), len(rates)))),
            **{name: (("symbol", "symbol2"), matrix_VxV) for name, matrix_VxV in divergences.items()},
        },
        {"split": ["train", "valid"]},
    )


def show(*tables: Any) -> None:
    """Tables, `jaxtie.tables.Table`, on standard output."""
    from rich.console import Console
    from rich.table import Table

    for part in tables:
        table = Table(title=part.title, title_justify="left", caption=part.note or None, caption_justify="left")
        for i, name in enumerate(part.header):
            table.add_column(name, justify="left" if i == 0 else "right")
        for row in part.rows:
            table.add_row(*row)
        width = None if sys.stdout.isatty() else 160
        Console(width=width, markup=False, emoji=False).print(table)  # a name is what it is


def present(experiment: AnyExperiment, folder: RunFolder, outcome: Outcome) -> int:
    """The summary of what came out, on standard output; returns the exit status."""
    from jaxtie import summary

    if outcome in (Outcome.DONE, Outcome.BEFORE):
        if isinstance(experiment, Study):
            print(folder.summary.read_text(encoding="utf-8"))
            return 0
        show(*summary.shown_tables(folder.load()))
    if outcome is Outcome.DONE:
        print(f"figures, results and summary: {folder.path}")
    return INTERRUPTED if outcome is Outcome.INTERRUPTED else 0


def plan(experiment: Experiment) -> None:
    """What a run would take: the compiled program is measured on a few hundred steps."""
    jax = start_jax()
    from jaxtie import results, sweep

    settings = "".join(f"{len(values)} x {name}, " for name, values in experiment.sweep)
    print(
        f"members   {len(experiment.members) * len(experiment.arms):,}: {settings}{len(experiment.seeds):,} seeds x "
        f"{', '.join(experiment.arms)}, {experiment.steps:,} steps"
    )
    members, devices = len(experiment.members), jax.devices()
    block = sweep.block_size(devices[0].platform, experiment.model, members)
    workers = sweep.assign_workers(members, block, devices, cores())
    began = time.monotonic()
    program = sweep.compile_program(experiment, workers, tied=experiment.arms[0] == "tied")
    compile_seconds = time.monotonic() - began
    train_seconds = sweep.seconds_per_record(program, workers, experiment) * experiment.steps / experiment.record_every
    minutes = len(experiment.arms) * (compile_seconds + train_seconds) / 60
    memory, disk = sweep.device_bytes(program, workers, experiment), 2 * results.size_in_bytes(experiment)
    print(f"time      {minutes:,.1f} min on {len(workers)} x {describe(workers[0])}, as measured just now")
    print(f"memory    {memory / 2**20:,.1f} MiB on the devices")
    print(f"disk      {disk / 2**20:,.1f} MiB at most, half of it until the end only")


def plan_text(experiment: TextExperiment, quiet: bool, prepare: Callable) -> None:
    """What a run of text would take; its corpus is prepared, as any run would: `prepare` as `load_text`."""
    jax = start_jax()
    from jaxtie import results, text_training

    material = load_text(experiment, quiet, prepare)
    found, arms = text_training.plan(experiment, material), ", ".join(experiment.arms)
    count = len(experiment.seeds) * len(experiment.arms)
    print(f"members   {count:,}: {len(experiment.seeds):,} seeds x {arms}, {experiment.steps:,} steps")
    device = describe(jax.local_devices()[0])
    print(
        f"time      {found.seconds / 60:,.1f} min at {found.tokens_per_second:,.0f} tokens/s on {found.devices} x {device}, "
        "as measured just now"
    )
    print(f"memory    {found.bytes / 2**20:,.1f} MiB on each device")
    print(f"disk      {2 * results.size_in_bytes(experiment) / 2**20:,.1f} MiB of records at most, and three checkpoints")


def one_line(error: UserError | OSError) -> str:
    if isinstance(error, UserError):
        return str(error)
    return f"{error.filename or 'output'}: {error.strerror}; what was recorded before is kept"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may not know every sign
    try:
        return _main(parse_run(arguments), arguments)
    except (UserError, OSError) as error:
        print(f"jaxtie: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _main(options: RunOptions, arguments: Sequence[str]) -> int:
    if options.version:
        print(f"jaxtie {jaxtie.__version__}")
        return 0
    if options.list:
        print(*list_experiments(EXPERIMENTS), sep="\n")
        return 0
    if options.all:
        return run_all(options, arguments)
    experiment = resolve(options)
    folder = RunFolder(options.out or RUNS / experiment.name)
    if not options.distributed:
        return present(experiment, folder, run_one(experiment, folder, options, arguments))
    start_jax()
    from jaxtie.processes import join

    processes = join(options.coordinator, options.process_count, options.process_index)
    if processes.leads:
        status = present(experiment, folder, lead(experiment, folder, options, arguments, processes))
    else:
        status = follow(experiment, folder, options, processes)
    processes.leave()
    return status


def run_one(experiment: AnyExperiment, folder: RunFolder, options: RunOptions, arguments: Sequence[str]) -> Outcome:
    """Train or measure into the folder, whichever the experiment is."""
    run = {InitialLoss: measure_initial_loss, HeadConvergence: compare_heads}.get(type(experiment), lead)
    return run(experiment, folder, options, arguments)


def run_all(options: RunOptions, arguments: Sequence[str]) -> int:
    """Run every experiment of ./experiments, and write the page of all after each; one that fails stops no other.

    Returns:
      The exit status: 130 where it was interrupted, else 1 where there was a bug, 2 where an experiment failed.
    """
    from jaxtie import report
    from jaxtie.progress import duration

    paths = sorted(EXPERIMENTS.glob("*.py"))
    if not paths:
        raise UserError(f"--all: no experiment file, NAME.py, in ./{EXPERIMENTS}; start it where that folder is")
    page = (options.out or RUNS) / "index.html"
    report.check(page)
    began, status, owners = time.monotonic(), 0, {}
    sections = [report.Section(str(path), path.stem) for path in paths]
    todo: list[tuple[report.Section, AnyExperiment]] = []

    @contextlib.contextmanager
    def noted(section: report.Section) -> Iterator[None]:
        """What fails within is told at once, and stays on the page."""
        nonlocal status
        try:
            yield
        except NoText as error:
            section.status = report.SKIPPED
            print(f"jaxtie: skipped, {error}", file=sys.stderr)
        except (UserError, OSError) as error:
            section.status, section.error, status = report.FAILED, one_line(error), status or 2
            print(f"jaxtie: {section.error}", file=sys.stderr)
        except Exception as error:  # a bug, or a device's memory is full: the experiments to come shall not pay for it
            section.status, section.error, status = report.FAILED, f"{type(error).__name__}: {error}", 1
            traceback.print_exc()

    for path, section in zip(paths, sections, strict=True):  # what is wrong in a file is told before hours have gone by
        with noted(section):
            experiment = resolve(dataclasses.replace(options, experiment=path))
            section.name, section.claim = experiment.name, experiment.claim
            if owners.setdefault(experiment.name, path) is not path:
                raise UserError(f"{path}: is named {experiment.name!r} as {owners[experiment.name]} is; rename one of them")
            todo.append((section, experiment))
    save = lambda: None if options.dry_run else report.write(page, command(arguments), sections)
    save()  # now rather than after an hour, should it not be possible
    for i, (section, experiment) in enumerate(todo, 1):
        if not options.quiet:
            line = f"{i} of {len(todo)}: {section.name}, {duration(time.monotonic() - began)} since the start"
            print(f"jaxtie: {line}", file=sys.stderr, flush=True)
        with noted(section):
            folder = RunFolder(page.parent / experiment.name)
            try:
                section.status = run_one(experiment, folder, options, arguments)
            except KeyboardInterrupt:
                section.status = Outcome.INTERRUPTED
            if not options.dry_run:
                section.read(folder)
        save()
        if section.status == Outcome.INTERRUPTED:
            status = INTERRUPTED
            break
    if not options.dry_run:
        show(report.status_table(sections))
        print(f"figures and tables of all: {page}")
    return status


def command(arguments: Sequence[str]) -> str:
    """What was typed, to be typed again."""
    return shlex.join(["python", "-m", "jaxtie.run", *arguments])


def versions() -> dict[str, str]:
    """Of what the numbers may depend on."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "xarray")
    return {"python": platform.python_version(), "jaxtie": jaxtie.__version__} | {name: version(name) for name in names}


def earlier_study(study: Study, folder: RunFolder, options: RunOptions) -> dict | None:
    """The configuration of what the folder holds of this study; None if nothing.

    Raises:
      UserError: where it holds something else.
    """
    earlier = None if options.overwrite else folder.config()
    if earlier and (differences := folder.differences(study, earlier)):
        raise UserError(f"--out {folder.path}: holds a run that differs in {', '.join(differences)}; choose another --out")
    return earlier


def measure_initial_loss(study: InitialLoss, folder: RunFolder, options: RunOptions, arguments: Sequence[str]) -> Outcome:
    """Measure into the folder, unless that was done."""
    earlier = earlier_study(study, folder, options)
    if options.dry_run:
        print(f"losses    {len(study.widths) * len(study.vocabularies) * len(study.seeds):,} tables; nothing is trained")
        return Outcome.PLANNED
    if earlier and earlier.get("finished"):
        return Outcome.BEFORE
    start_jax()
    from jaxtie import initial_loss

    config = {"experiment": study.as_dict(), "command": command(arguments), "versions": versions()}
    began = time.monotonic()
    with folder.locked():
        folder.create(config | {"finished": False})
        report = lambda line: None if options.quiet else print(line, file=sys.stderr, flush=True)
        initial_loss.main(study, folder.path, report)
        folder.write_config(config | {"wall_seconds": round(time.monotonic() - began, 2), "finished": True})
    return Outcome.DONE


def compare_heads(study: HeadConvergence, folder: RunFolder, options: RunOptions, arguments: Sequence[str]) -> Outcome:
    """Train every head into the folder that was not trained before."""
    earlier = earlier_study(study, folder, options)
    if options.dry_run:
        print(f"members   {len(study.seeds):,} seeds of each head, {study.steps:,} steps; how long is not known beforehand")
        return Outcome.PLANNED
    if earlier and earlier.get("finished"):
        run_text.check_files(study.corpus, folder, earlier)
        return Outcome.BEFORE
    jax = start_jax()
    from jaxtie import head_convergence

    report = lambda line: None if options.quiet else print(line, file=sys.stderr, flush=True)
    text = run_text.prepare(study.corpus, folder, earlier, report)
    config = {"experiment": study.as_dict(), "command": command(arguments), "versions": versions()}
    config["text"] = run_text.describe(text)
    config |= {"device": describe(jax.devices()[0]), "workers": cores() if jax.default_backend() == "cpu" else 1}
    with folder.locked():
        if not earlier:
            folder.create(config | {"finished": False})
        run_text.keep(text, study.corpus, folder)
        try:
            seconds = head_convergence.main(study, text, folder, config["command"], report)
        except KeyboardInterrupt:
            print("jaxtie: interrupted; the same command goes on after the last head that was finished", file=sys.stderr)
            return Outcome.INTERRUPTED
        folder.write_config(config | {"wall_seconds": round(seconds, 2), "finished": True})
    return Outcome.DONE


def extends(experiment: Experiment, earlier: dict, differences: Sequence[str]) -> bool:
    """Whether an experiment asks for no less than a finished one, and differs in steps and seeds alone."""
    return (
        set(differences) <= {"steps", "seeds"}
        and experiment.steps >= earlier["steps"]
        and set(experiment.seeds) >= set(earlier["seeds"])
    )


def lead(
    experiment: Experiment | TextExperiment,
    folder: RunFolder,
    options: RunOptions,
    arguments: Sequence[str],
    processes: Any = None,
) -> Outcome:
    """Do what the folder's state asks for; `processes` is None where there is only this one."""
    earlier = None if options.overwrite else folder.config()
    differences = folder.differences(experiment, earlier) if earlier else []
    finished = bool(earlier and earlier.get("finished"))
    if differences and not (finished and extends(experiment, earlier["experiment"], differences)):
        raise UserError(
            f"--out {folder.path}: holds a run that differs in {', '.join(differences)}; "
            "choose another --out, or --overwrite it"
        )
    trains = not options.dry_run and (differences or not finished)
    if processes:
        processes.broadcast({"trains": np.bool(trains)})
    if options.dry_run:
        if isinstance(experiment, TextExperiment):
            plan_text(experiment, options.quiet, partial(run_text.prepare, experiment.corpus, folder, earlier))
        else:
            plan(experiment)
        return Outcome.PLANNED
    if not trains:
        if isinstance(experiment, TextExperiment):
            run_text.check_files(experiment.corpus, folder, earlier)
        return Outcome.BEFORE
    config = {
        "experiment": experiment.as_dict(),
        "command": command(arguments),
        "versions": versions(),
        "arms": earlier.get("arms", {}) if earlier else {},
        "wall_seconds": earlier.get("wall_seconds", 0.0) if earlier else 0.0,
        "finished": False,
    }
    start_jax()
    from jaxtie import figures, results, summary
    from jaxtie.processes import Processes

    processes, material = processes or Processes(), None
    if isinstance(experiment, TextExperiment):
        material = load_text(experiment, options.quiet, partial(run_text.prepare, experiment.corpus, folder, earlier))
        # Now the others prepare the same, or find it prepared if they share the cache.
        processes.broadcast({"key": np.str_(material.text.key), "vocabulary": np.array(material.text.vocabulary)})
    began = time.monotonic() - config["wall_seconds"]
    with folder.locked():
        folder.check_space(2 * results.size_in_bytes(experiment))
        if not earlier:
            folder.create(config)
        elif finished:
            folder.unpack()  # before the folder says that it is not finished: killed here, it is extended again
        folder.write_config(config)
        if material:
            run_text.keep(material.text, experiment.corpus, folder)
            finished = train_text(experiment, material, folder, config, options, processes)
        else:
            finished = train(experiment, folder, config, options, processes)
        assemble(experiment, folder, config, material)
        config["wall_seconds"] = round(time.monotonic() - began, 2)
        folder.write_config(config)
        if not finished:
            print(f"jaxtie: interrupted; the same command goes on; so far: {folder.results}", file=sys.stderr)
            return Outcome.INTERRUPTED
        dataset = folder.load()
        figures.draw(dataset, folder.figures)
        folder.summary.write_text(summary.markdown(dataset), encoding="utf-8")
        config["wall_seconds"] = round(time.monotonic() - began, 2)
        folder.write_config(config | {"finished": True})
        folder.discard_records()
    return Outcome.DONE


def follow(experiment: Experiment | TextExperiment, folder: RunFolder, options: RunOptions, processes: Any) -> int:
    """Do as a process that is not the first what the first asks for, which sees the folder; returns the exit status."""
    if not processes.broadcast({})["trains"]:
        return 0
    config = {"arms": {}}
    if isinstance(experiment, TextExperiment):
        from jaxtie.data.text import prepare, vocabulary_file

        first = processes.broadcast({})
        vocabulary = vocabulary_file(map(str, first["vocabulary"]))
        material = load_text(experiment, True, partial(prepare, experiment.corpus, vocabulary=vocabulary))
        if material.text.key != str(first["key"]):
            raise UserError("--distributed: the text is not that of the first process; give each process the same text")
        finished = train_text(experiment, material, folder, config, options, processes)
    else:
        finished = train(experiment, folder, config, options, processes)
    return 0 if finished else INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
