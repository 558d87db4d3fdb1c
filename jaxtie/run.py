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

import jaxtie
from jaxtie import theory
from jaxtie.cli import RunOptions, parse_run
from jaxtie.config import Experiment, Transformer, UserError
from jaxtie.results import RunFolder

INTERRUPTED = 130


def load_experiment(path: Path) -> Experiment:
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
    if not isinstance(experiment, Experiment):
        raise UserError(f"{path}: expected it to define experiment = jaxtie.Experiment(...)")
    return experiment


def resolve(options: RunOptions) -> Experiment:
    """The experiment of the options, with what they change."""
    experiment = load_experiment(options.experiment) if options.experiment else Experiment()
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
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxtie"
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


def train(experiment: Experiment, folder: RunFolder, config: dict, *, quiet: bool) -> bool:
    """Train every arm into the folder; returns whether it came to the end. `config` is brought up to date."""
    jax = start_jax()
    from jaxtie import sweep
    from jaxtie.progress import Progress

    workers = sweep.assign_workers(len(experiment.seeds), experiment.model, jax.devices(), cores())
    config |= {"device": describe(workers[0]), "workers": len(workers), "arms": {}}
    with stop_signals() as stopped:
        for arm in experiment.arms:
            began = time.monotonic()
            best_loss = theory.best_loss(sweep.build_contexts(experiment.process, ordered=False)[0].joint_CxV)
            with Progress(arm, experiment.steps, len(experiment.seeds), best_loss, quiet=quiet) as progress:
                program = sweep.compile_arm(experiment, arm, workers)
                compiled, seed_steps = time.monotonic(), 0
                for piece in sweep.run(program, workers, experiment):
                    folder.append(arm, piece.first_record, piece.first_seed, piece.records)
                    records, seeds = piece.records["loss"].shape
                    seed_steps += records * seeds * experiment.record_every if piece.first_record else 0
                    progress.update(seed_steps, piece.records["loss"][-1])
                    if stopped:
                        break
            seconds = time.monotonic() - compiled
            config["block"] = program.block
            config["arms"][arm] = {
                "compile_seconds": round(compiled - began, 2),
                "train_seconds": round(seconds, 2),
                "seed_steps": seed_steps,
                "seed_steps_per_second": round(seed_steps / seconds, 1),
                "steps_per_second": round(seed_steps / len(experiment.seeds) / seconds, 1),
            }
            if stopped:
                return False
    return True


def assemble(experiment: Experiment, folder: RunFolder, config: dict) -> None:
    """Write `results.nc` from what was recorded."""
    import numpy as np
    import xarray as xr

    from jaxtie import optim, sweep

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
    for part in (summary.final_table(results), summary.course_table(results)):
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
    program = sweep.compile_arm(experiment, experiment.arms[0], workers)
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
    earlier = folder.config()
    if earlier and not options.overwrite:
        if differences := folder.differences(experiment, earlier):
            raise UserError(
                f"--out {folder.path}: holds a run that differs in {', '.join(differences)}; "
                "choose another --out, or --overwrite it"
            )
        if earlier.get("finished") and not options.dry_run:
            show(folder)
            return 0
    if options.dry_run:
        plan(experiment)
        return 0
    config = {
        "experiment": experiment.as_dict(),
        "command": shlex.join(["python", "-m", "jaxtie.run", *arguments]),
        "versions": {"python": platform.python_version(), "jaxtie": jaxtie.__version__}
        | {name: version(name) for name in ("jax", "jaxlib", "flax", "optax", "numpy", "xarray")},
        "finished": False,
    }
    began = time.monotonic()
    folder.create(config)
    finished = train(experiment, folder, config, quiet=options.quiet)
    assemble(experiment, folder, config)
    config["wall_seconds"] = round(time.monotonic() - began, 2)
    folder.write_config(config)
    if not finished:
        print(f"jaxtie: interrupted; what was recorded is in {folder.results}", file=sys.stderr)
        return INTERRUPTED
    from jaxtie import figures, summary

    results = folder.load()
    figures.draw(results, folder.figures)
    folder.summary.write_text(summary.markdown(results))
    folder.discard_records()
    config["wall_seconds"] = round(time.monotonic() - began, 2)
    folder.write_config(config | {"finished": True})
    show(folder)
    print(f"figures, results and summary: {folder.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
