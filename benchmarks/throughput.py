"""Seed-steps per second of the EXor models, against PyTorch or another version of jaxtie.

    # the main experiment, with PyTorch where torch is installed; other models; JSON
    python benchmarks/throughput.py
    python benchmarks/throughput.py --models lstm_small,mixer_medium --seeds 1,64 --arms untied
    python benchmarks/throughput.py --json > throughput.json

    # this version and that one, in turns
    python benchmarks/throughput.py --against CHECKOUT
    python benchmarks/throughput.py --against CHECKOUT --models lstm_medium --steps 500 --seeds 64

Everything runs as shipped: a stream of samples per seed, a record every 100 steps, an exact
evaluation every 1,000. The
sides take turns, each with every core: jaxtie a thread a core, PyTorch a process a core, which
trains one seed in a loop or its share of 64 by `torch.func.vmap`, with `--compile` also in a
function by `torch.compile`. Versions are compared by what
all of them have: each turn is a process of `python -m jaxtie.run`, whose rate of training is in its
`config.json`.
"""

import argparse
import dataclasses
import itertools
import json
import math
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turns import CHECKOUT, Spread, has_torch, run_command, take_turns

from jaxtie import Experiment
from jaxtie.training.devices import cores, describe_device, start_jax

if TYPE_CHECKING:
    import jax
    from jaxtie.exor.blocks import Program

Report = dict[str, Any]
MANY = 64  # seeds that PyTorch trains at once


def train(
    program: "Program", workers: Sequence["jax.Device"], experiment: Experiment, seconds: float
) -> float:
    """Seed-steps per second over about `seconds` or more; records are fetched."""
    from jaxtie.exor.engine import BlockRun, seconds_per_record

    # With fewer records the exact evaluation at the end, one a run, would weigh more than in a real
    # run.
    records = max(30, round(seconds / seconds_per_record(program, workers, experiment)))
    experiment = dataclasses.replace(experiment, steps=records * experiment.record_every)
    seed_steps = 0
    for piece in BlockRun(program, workers, experiment, experiment.steps).pieces(
        experiment.members, None
    ):
        if piece.first_record:
            seed_steps += piece.updates
        else:  # what is there before the first step comes of all members before any is trained
            began = time.perf_counter()
    return seed_steps / (time.perf_counter() - began)


def declaration_of(model: str, checkout: Path = CHECKOUT) -> Path:
    """A file of `experiments/`."""
    return checkout / "experiments" / f"{model}.py"


def declared(model: str) -> Experiment:
    """What a file of `experiments/` declares."""
    from jaxtie.run.lifecycle import load_experiment

    return load_experiment(declaration_of(model))


def jaxtie_sides(
    models: Iterable[str], arms: Sequence[str], numbers: Sequence[int], seconds: float
) -> tuple[dict[str, Callable[[], float]], dict[str, float]]:
    """What trains so many seeds of each arm when it is called; and seconds that compiling took, by
    program.
    """
    from jaxtie.exor.blocks import assign_workers, block_of, compile_block

    from jaxtie.exor.task import Static

    devices, sides, compile_seconds = start_jax().devices(), {}, {}
    for model, arm, seeds in itertools.product(models, arms, numbers):
        experiment = dataclasses.replace(declared(model), seeds=tuple(range(seeds)))
        block = block_of(experiment, devices)
        workers = assign_workers(seeds, block, devices, cores())
        began = time.perf_counter()
        # again: kept, at no time
        program = compile_block(Static.of(experiment, tied=arm == "tied"), block, devices)
        compile_seconds.setdefault(f"{model}, {arm}, block of {block}", time.perf_counter() - began)
        sides[f"{model}, {arm}, jaxtie, {seeds} seeds"] = partial(
            train, program, workers, experiment, seconds
        )
    return sides, compile_seconds


def pytorch_rate(model: str, arm: str, seconds: float, processes: int, *options: str) -> float:
    """Seed-steps per second of so many PyTorch processes together; NaN where they fail."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("pytorch_loop.py"))]
    command += [
        "--seconds",
        str(seconds),
        "--arm",
        arm,
        "--model",
        str(declaration_of(model)),
        *options,
    ]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([*command, "--seed", str(i)], **output) for i in range(processes)]
    answers = [process.communicate() for process in running]
    if any(process.returncode for process in running):
        print(
            f"\n{model}, {arm}, {' '.join(options)}: {answers[0][1].strip().splitlines()[-1]}",
            file=sys.stderr,
        )
        return math.nan
    return sum(float(answer) for answer, _ in answers)


def pytorch_sides(
    models: Iterable[str], arms: Sequence[str], seconds: float, compiled: bool
) -> dict[str, Callable[[], float]]:
    """PyTorch in one process and in one a core: the loop, and 64 seeds, of which each process has
    its share.
    """
    share = ("--seeds", str(-(-MANY // cores())))
    ways = {
        "loop, one core": (1, ()),
        "loop, all cores": (cores(), ()),
        f"vmap, {MANY} seeds": (cores(), share),
    }
    if compiled:
        ways[f"vmap and compile, {MANY} seeds"] = cores(), (*share, "--compile")
    return {
        f"{model}, {arm}, PyTorch {way}": partial(
            pytorch_rate, model, arm, seconds, processes, *options
        )
        for model, arm, (way, (processes, options)) in itertools.product(models, arms, ways.items())
    }


def about_now(device: str) -> Report:
    """What a report begins with."""
    packages = ("jax", "jaxlib", *["torch"] * has_torch())
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "device": device,
        "python": platform.python_version(),
    }
    return about | {name: version(name) for name in packages}


def compare_with_pytorch(
    options: argparse.Namespace, models: Sequence[str], arms: Sequence[str], numbers: Sequence[int]
) -> Report:
    """jaxtie in this process, and PyTorch where it is installed and the device is a CPU."""
    sides, compile_seconds = jaxtie_sides(models, arms, numbers, options.seconds)
    devices = start_jax().devices()
    if has_torch() and devices[0].platform == "cpu":
        sides |= pytorch_sides(models, arms, options.seconds, options.compile)
    rates = take_turns(sides, options.repeats)
    report = about_now(f"{len(devices)} x {describe_device(devices[0])}") | {
        "seed_steps_per_second": {
            name: Spread.of(values)._asdict() for name, values in rates.items()
        },
        "compile_seconds": compile_seconds,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    most = MANY if MANY in numbers else max(numbers)
    many, one = f"jaxtie, {most} seeds", "jaxtie, 1 seeds"  # one seed fills no more than one block
    pairs = [
        (many, f"PyTorch {way}")
        for way in ("loop, all cores", f"vmap, {MANY} seeds", f"vmap and compile, {MANY} seeds")
    ]
    for model, arm, (ours, theirs) in itertools.product(
        models, arms, [*pairs, (one, "PyTorch loop, one core")]
    ):
        names = [f"{model}, {arm}, {side}" for side in (ours, theirs)]
        if all(name in rates for name in names):
            report[f"{model}, {arm}, {ours} / {theirs}"] = Spread.of_ratios(
                *(rates[name] for name in names)
            )._asdict()
    return report


def compare_versions(
    other: Path,
    models: Sequence[str],
    arms: Sequence[str],
    numbers: Sequence[int],
    repeats: int,
    steps: int,
) -> Report:
    """The jaxtie beside this file and that of another checkout, each run of a model's arms in a
    process of its own.
    """
    if not (other / "jaxtie" / "run.py").is_file():
        raise SystemExit(
            f"--against {other}: expected a checkout of jaxtie, a folder with jaxtie/run.py"
        )
    versions, common = (
        {"this": CHECKOUT, "other": other.resolve()},
        ["--arms", ",".join(arms), "--steps", str(steps)],
    )
    sides = {
        f"{model}, {name}, {seeds} seeds": partial(
            run_command,
            [str(declaration_of(model, checkout)), "--seeds", str(seeds), *common],
            checkout=checkout,
        )
        for model, seeds in itertools.product(models, numbers)
        for name, checkout in versions.items()
    }
    configs = take_turns(sides, repeats)
    rates = {
        f"{side}, {arm}": [config["arms"][arm]["seed_steps_per_second"] for config in found]
        for arm in arms
        for side, found in configs.items()
    }
    config = configs[next(iter(sides))][0]
    report = about_now(f"{config['workers']} x {config['device']}") | {
        name: str(path) for name, path in versions.items()
    }
    report["seed_steps_per_second"] = {
        name: Spread.of(values)._asdict() for name, values in rates.items()
    }
    for model, arm, seeds in itertools.product(models, arms, numbers):
        ours, theirs = (rates[f"{model}, {name}, {seeds} seeds, {arm}"] for name in versions)
        report[f"ratio this / other, {model}, {seeds} seeds, {arm}"] = Spread.of_ratios(
            ours, theirs
        )._asdict()
    return report


def show(report: Report) -> None:
    """Print a report as a table."""
    for name, value in report.items():
        if name == "seed_steps_per_second":
            for side, spread in value.items():
                print(f"{side:60s} {Spread(**spread):,.0f} seed-steps/s")
        elif isinstance(value, dict) and "median" in value:
            print(f"{name:60s} {Spread(**value):,.3f}")
        else:
            print(f"{name:60s} {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="folder of another version of jaxtie's repository",
    )
    parser.add_argument(
        "--models", default="transformer_small", help="files of experiments/ (default: %(default)s)"
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="PyTorch also by torch.compile, which takes minutes before",
    )
    parser.add_argument(
        "--seeds", help="numbers of seeds (default: 1,8,64,512,4096; with --against 64,1)"
    )
    parser.add_argument("--arms", default="tied,untied", help="default: %(default)s")
    parser.add_argument(
        "--repeats", type=int, default=5, help="of each measurement (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of each repeat, about (default: %(default)s)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=20_000,
        help="of each run, with --against (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    models, arms = options.models.split(","), options.arms.split(",")
    numbers = [
        int(seeds)
        for seeds in (options.seeds or ("64,1" if options.against else "1,8,64,512,4096")).split(
            ","
        )
    ]
    if options.against:
        report = compare_versions(
            options.against, models, arms, numbers, options.repeats, options.steps
        )
    else:
        report = compare_with_pytorch(options, models, arms, numbers)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        show(report)


if __name__ == "__main__":
    main()
