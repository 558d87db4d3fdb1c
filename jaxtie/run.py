"""`python -m jaxtie.run`: from a command line to a run folder with results, figures and summary."""

import contextlib
import dataclasses
import importlib.util
import os
import platform
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import jaxtie
from jaxtie import theory
from jaxtie.cli import RunOptions, parse_run
from jaxtie.config import Experiment, InitialLoss, Transformer, UserError, cache_folder
from jaxtie.results import RunFolder

INTERRUPTED = 130


def load_experiment(path: Path) -> Experiment | InitialLoss:
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
    if not isinstance(experiment, Experiment | InitialLoss):
        raise UserError(f"{path}: expected it to define experiment = jaxtie.Experiment(...)")
    return experiment


def resolve(options: RunOptions) -> Experiment | InitialLoss:
    """The experiment of the options, with what they change."""
    experiment = load_experiment(options.experiment) if options.experiment else Experiment()
    if isinstance(experiment, InitialLoss):
        useful = {"experiment", "seeds", "out", "overwrite", "quiet"}
        for field in dataclasses.fields(RunOptions):
            if field.name not in useful and getattr(options, field.name) != field.default:
                raise UserError(f"--{field.name.replace('_', '-')}: no option of {experiment.name}, which trains nothing")
        return dataclasses.replace(experiment, seeds=options.seeds or experiment.seeds)
    if options.independent_layers and not isinstance(experiment.model, Transformer):
        kind = type(experiment.model).__name__
        raise UserError(f"--independent-layers: expected a transformer; the layers of this {kind} are independent already")
    process = {"data_seed": options.data_seed, "zeros": options.zeros, "ones": options.ones}
    process["all_strings"] = options.all_strings or None
    own = ("seeds", "steps", "arms", "record_every", "eval_every", "data")
    given = lambda fields: {name: value for name, value in fields.items() if value is not None}
    return dataclasses.replace(
        experiment,
        process=dataclasses.replace(experiment.process, **given(process)),
        model=dataclasses.replace(experiment.model, **given({"independent_layers": options.independent_layers or None})),
        **given({name: getattr(options, name) for name in own}),
    )


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


def start_jax():
    """Import jax with a cache of compiled programs, and so that threads can use one CPU device at the same time.

    The cache is where JAX_COMPILATION_CACHE_DIR says, else below the user's cache folder.
    """
    import jax

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
    from jaxtie.progress import Progress

    block = sweep.block_size(jax.local_devices()[0].platform, experiment.model)
    own = processes.share(experiment.seeds, block)
    workers = sweep.assign_workers(len(own), experiment.model, jax.local_devices(), cores())
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
            if all(steps.get(seed, -1) >= phase.until for seed in experiment.seeds):
                continue
            before, began = sum(steps.values()), time.monotonic()
            best_loss = theory.best_loss(sweep.build_contexts(experiment.process, ordered=False)[0].joint_CxV)
            quiet = options.quiet or not processes.leads
            with Progress(phase.arm, experiment.steps, len(experiment.seeds), best_loss, quiet=quiet) as progress:
                if phase.tied not in programs:
                    programs[phase.tied] = sweep.compile_program(experiment, workers, tied=phase.tied)
                compiled, seed_steps, latest = time.monotonic(), before, {}
                todo = tuple(seed for seed in own if steps.get(seed, -1) < phase.until)
                pieces = sweep.run(
                    programs[phase.tied], workers, experiment, todo, standing.get(phase.name), until=phase.until
                )
                for piece in processes.together(pieces, stopped):
                    folder.append(phase.arm, piece.first_record, piece.members.seeds, piece.records)
                    latest[int(piece.members.seeds[0])] = piece.members
                    seed_steps += piece.records["loss"].size * experiment.record_every if piece.first_record else 0
                    progress.update(seed_steps, piece.records["loss"][-1])
                    if time.monotonic() - saved > options.checkpoint_every:
                        saved = time.monotonic()
                        now = sweep.merge(standing.get(phase.name), *latest.values())
                        checkpoints.save(standing | {phase.name: now}, config)
            if latest:
                standing[phase.name] = sweep.merge(standing.get(phase.name), *latest.values())
                _add_times(config["arms"].setdefault(phase.arm, {}), experiment, began, compiled, seed_steps - before)
        if processes.leads:
            checkpoints.save(standing, config)
    return not stopped


def _add_times(times: dict, experiment: Experiment, began: float, compiled: float, seed_steps: int) -> None:
    """What the training of an arm took, added to what earlier sittings took."""
    times["compile_seconds"] = round(times.get("compile_seconds", 0) + compiled - began, 2)
    times["train_seconds"] = seconds = round(times.get("train_seconds", 0) + time.monotonic() - compiled, 2)
    times["seed_steps"] = times.get("seed_steps", 0) + seed_steps
    times["seed_steps_per_second"] = round(times["seed_steps"] / seconds, 1)
    times["steps_per_second"] = round(times["seed_steps"] / len(experiment.seeds) / seconds, 1)


def assemble(experiment: Experiment, folder: RunFolder, config: dict) -> None:
    """Write `results.nc` from what was recorded."""
    import xarray as xr

    from jaxtie import optim, sweep
    from jaxtie.data import exor

    contexts = sweep.build_contexts(experiment.process, ordered=False)
    optimiser, pairs = experiment.optimiser, experiment.process.pairs
    schedule = optim.periodic_cosine(optimiser.learning_rate, optimiser.eta_min, optimiser.half_period)
    rates = np.asarray(schedule(np.array(experiment.record_steps)))
    best = {"best_accuracy": theory.best_accuracy, "best_loss": theory.best_loss}
    split = {"split": ["train", "valid"]}
    constants = {
        name: xr.DataArray([function(each.joint_CxV) for each in contexts], split, dims="split")
        for name, function in best.items()
    }
    constants["theory_log_odds"] = xr.DataArray([theory.log_odds(pair) for pair in pairs.values()], dims="pair")
    constants["scheduled_learning_rate"] = xr.DataArray(
        np.broadcast_to(rates, (len(experiment.arms), len(rates))), dims=("arm", "step")
    )
    whole = exor.enumerate_process(experiment.process.length, experiment.process.zeros, experiment.process.ones)
    for name, matrix_VxV in theory.equivalences(whole.tokens_CxL, whole.joint_CxV, ordered=False).items():
        constants[name] = xr.DataArray(matrix_VxV, dims=("symbol", "symbol2"))
    attributes = {
        "experiment": experiment.name,
        "claim": experiment.claim,
        "command": config["command"],
        "process": f"EXor, {experiment.process.length} bits; "
        + ", ".join(f"p({pair}) = {p[0]:g}, {p[1]:g}" for pair, p in pairs.items()),
        "model": repr(experiment.model),
        **{f"version_{name}": number for name, number in config["versions"].items()},
    }
    folder.assemble(experiment, attributes, constants)


def show(folder: RunFolder) -> None:
    """The summary on standard output."""
    from rich.console import Console
    from rich.table import Table

    from jaxtie import summary

    results = folder.load()
    for part in (summary.final_table(results), summary.course_table(results), summary.equivalence_table(results)):
        table = Table(title=part.title, title_justify="left")
        for i, name in enumerate(part.header):
            table.add_column(name, justify="left" if i == 0 else "right")
        for row in part.rows:
            table.add_row(*row)
        width = None if sys.stdout.isatty() else 160
        Console(width=width).print(table)


def plan(experiment: Experiment) -> None:
    """What a run would take: the compiled program is measured on a few hundred steps."""
    jax = start_jax()
    from jaxtie import results, sweep

    members = len(experiment.seeds) * len(experiment.arms)
    print(
        f"members   {members:,}: {len(experiment.seeds):,} seeds x {', '.join(experiment.arms)}, {experiment.steps:,} steps"
    )
    workers = sweep.assign_workers(len(experiment.seeds), experiment.model, jax.devices(), cores())
    began = time.monotonic()
    program = sweep.compile_program(experiment, workers, tied=experiment.arms[0] == "tied")
    compile_seconds = time.monotonic() - began
    train_seconds = sweep.seconds_per_record(program, workers, experiment) * experiment.steps / experiment.record_every
    minutes = len(experiment.arms) * (compile_seconds + train_seconds) / 60
    memory, disk = sweep.device_bytes(program, workers, experiment), 2 * results.size_in_bytes(experiment)
    print(f"time      {minutes:,.1f} min on {len(workers)} x {describe(workers[0])}, as measured just now")
    print(f"memory    {memory / 2**20:,.1f} MiB on the devices")
    print(f"disk      {disk / 2**20:,.1f} MiB at most, half of it until the end only")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _main(parse_run(arguments), arguments)
    except UserError as error:
        print(f"jaxtie: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"jaxtie: {error.filename or 'output'}: {error.strerror}; what was recorded before is kept", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _main(options: RunOptions, arguments: Sequence[str]) -> int:
    if options.version:
        print(f"jaxtie {jaxtie.__version__}")
        return 0
    if options.list:
        print(*list_experiments(Path("experiments")), sep="\n")
        return 0
    experiment = resolve(options)
    folder = RunFolder(options.out or Path("runs") / experiment.name)
    if isinstance(experiment, InitialLoss):
        return measure_initial_loss(experiment, folder, options, arguments)
    if not options.distributed:
        return lead(experiment, folder, options, arguments)
    start_jax()
    from jaxtie.processes import join

    processes = join(options.coordinator, options.process_count, options.process_index)
    if processes.leads:
        status = lead(experiment, folder, options, arguments, processes)
    # What is in the folder is for the first process to see, which tells.
    elif processes.broadcast({})["trains"] and not train(experiment, folder, {"arms": {}}, options, processes):
        status = INTERRUPTED
    else:
        status = 0
    processes.leave()
    return status


def measure_initial_loss(study: InitialLoss, folder: RunFolder, options: RunOptions, arguments: Sequence[str]) -> int:
    """Measure into the folder, or show what is there."""
    earlier = None if options.overwrite else folder.config()
    if earlier and (differences := folder.differences(study, earlier)):
        raise UserError(f"--out {folder.path}: holds a run that differs in {', '.join(differences)}; choose another --out")
    if not (earlier and earlier.get("finished")):
        start_jax()
        from jaxtie import initial_loss

        config = {"experiment": study.as_dict(), "command": shlex.join(["python", "-m", "jaxtie.run", *arguments])}
        with folder.locked():
            folder.create(config | {"finished": False})
            report = lambda line: None if options.quiet else print(line, file=sys.stderr, flush=True)
            initial_loss.main(study, folder.path, report)
            folder.write_config(config | {"finished": True})
    print(folder.summary.read_text())
    return 0


def extends(experiment: Experiment, earlier: dict, differences: Sequence[str]) -> bool:
    """Whether an experiment asks for no less than a finished one, and differs in steps and seeds alone."""
    return (
        set(differences) <= {"steps", "seeds"}
        and experiment.steps >= earlier["steps"]
        and set(experiment.seeds) >= set(earlier["seeds"])
    )


def lead(
    experiment: Experiment, folder: RunFolder, options: RunOptions, arguments: Sequence[str], processes: Any = None
) -> int:
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
        plan(experiment)
        return 0
    if not trains:
        show(folder)
        return 0
    config = {
        "experiment": experiment.as_dict(),
        "command": shlex.join(["python", "-m", "jaxtie.run", *arguments]),
        "versions": {"python": platform.python_version(), "jaxtie": jaxtie.__version__}
        | {name: version(name) for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "xarray")},
        "arms": earlier.get("arms", {}) if earlier else {},
        "wall_seconds": earlier.get("wall_seconds", 0.0) if earlier else 0.0,
        "finished": False,
    }
    start_jax()
    from jaxtie import figures, results, summary
    from jaxtie.processes import Processes

    began = time.monotonic() - config["wall_seconds"]
    with folder.locked():
        folder.check_space(2 * results.size_in_bytes(experiment))
        if not earlier:
            folder.create(config)
        elif finished:
            folder.unpack()  # before the folder says that it is not finished: killed here, it is extended again
        folder.write_config(config)
        finished = train(experiment, folder, config, options, processes or Processes())
        assemble(experiment, folder, config)
        config["wall_seconds"] = round(time.monotonic() - began, 2)
        folder.write_config(config)
        if not finished:
            print(f"jaxtie: interrupted; the same command goes on; so far: {folder.results}", file=sys.stderr)
            return INTERRUPTED
        dataset = folder.load()
        figures.draw(dataset, folder.figures)
        folder.summary.write_text(summary.markdown(dataset))
        config["wall_seconds"] = round(time.monotonic() - began, 2)
        folder.write_config(config | {"finished": True})
        folder.discard_records()
    show(folder)
    print(f"figures, results and summary: {folder.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
