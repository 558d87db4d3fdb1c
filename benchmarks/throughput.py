"""Seed-steps per second of the main experiment, against a careful PyTorch loop or against another version of jaxtie.

    python benchmarks/throughput.py                              # table; with PyTorch where torch is installed
    python benchmarks/throughput.py --json > throughput.json
    python benchmarks/throughput.py --against CHECKOUT           # this version and that one, in turns

Everything runs as shipped: a stream of samples per seed, a record every 100 steps, an exact evaluation every 1,000. The
sides take turns, each with every core: jaxtie one device a core, PyTorch one process a core. Versions are compared by what
all of them have: each turn is a process of `python -m jaxtie.run`, whose rate of training is in its `config.json`.
"""

import argparse
import dataclasses
import json
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


def train(program: "Program", workers: Sequence["jax.Device"], experiment: Experiment, seconds: float) -> float:
    """Seed-steps per second over about `seconds` or more; records are fetched."""
    from jaxtie.exor.engine import BlockRun, seconds_per_record

    # With fewer records the exact evaluation at the end, one a run, would weigh more than in a real run.
    records = max(30, round(seconds / seconds_per_record(program, workers, experiment)))
    experiment = dataclasses.replace(experiment, steps=records * experiment.record_every)
    seed_steps = 0
    for piece in BlockRun(program, workers, experiment, experiment.steps).pieces(experiment.members, None):
        if piece.first_record:
            seed_steps += piece.updates
        else:  # what is there before the first step comes of all members before any is trained
            began = time.perf_counter()
    return seed_steps / (time.perf_counter() - began)


def jaxtie_sides(
    arms: Iterable[str], numbers: Iterable[int], seconds: float
) -> tuple[dict[str, Callable[[], float]], dict[str, float]]:
    """What trains so many seeds of each arm when it is called; and seconds that compiling took, by program."""
    from jaxtie.exor.blocks import assign_workers, block_of, compile_block
    from jaxtie.exor.member import Static

    devices, sides, compile_seconds = start_jax().devices(), {}, {}
    for arm in arms:
        for seeds in numbers:
            experiment = Experiment(seeds=tuple(range(seeds)))
            block = block_of(experiment, devices)
            workers = assign_workers(seeds, block, devices, cores())
            began = time.perf_counter()
            program = compile_block(Static.of(experiment, tied=arm == "tied"), block, devices)  # again: kept, at no time
            compile_seconds.setdefault(f"{arm}, block of {block}", time.perf_counter() - began)
            sides[f"jaxtie, {arm}, {seeds} seeds"] = partial(train, program, workers, experiment, seconds)
    return sides, compile_seconds


def pytorch_rate(arm: str, processes: int, steps: int) -> float:
    """Seed-steps per second of so many PyTorch processes together."""
    command = [sys.executable, str(Path(__file__).with_name("pytorch_loop.py")), "--steps", str(steps), "--arm", arm]
    running = [subprocess.Popen([*command, "--seed", str(i)], stdout=subprocess.PIPE, text=True) for i in range(processes)]
    return sum(float(process.communicate()[0]) for process in running)


def pytorch_sides(arms: Iterable[str], seconds: float) -> dict[str, Callable[[], float]]:
    """The PyTorch loop of each arm, in one process and in one a core."""
    steps = int(200 * seconds)
    return {
        f"PyTorch, {arm}, {where}": partial(pytorch_rate, arm, processes, steps)
        for arm in arms
        for where, processes in (("one core", 1), ("all cores", cores()))
    }


def about_now(device: str) -> Report:
    """What a report begins with."""
    packages = ("jax", "jaxlib", *["torch"] * has_torch())
    about = {"date": time.strftime("%Y-%m-%d"), "device": device, "python": platform.python_version()}
    return about | {name: version(name) for name in packages}


def compare_with_pytorch(arms: Sequence[str], numbers: Sequence[int], repeats: int, seconds: float) -> Report:
    """jaxtie in this process, and PyTorch where it is installed and the device is a CPU."""
    sides, compile_seconds = jaxtie_sides(arms, numbers, seconds)
    devices = start_jax().devices()
    if has_torch() and devices[0].platform == "cpu":
        sides |= pytorch_sides(arms, seconds)
    rates = take_turns(sides, repeats)
    report = about_now(f"{len(devices)} x {describe_device(devices[0])}") | {
        "seed_steps_per_second": {name: Spread.of(values)._asdict() for name, values in rates.items()},
        "compile_seconds": compile_seconds,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    for arm in arms:
        for seeds, where in ((64, "all cores"), (1, "one core")):  # one seed fills no more than one block
            ours, theirs = f"jaxtie, {arm}, {seeds} seeds", f"PyTorch, {arm}, {where}"
            if ours in rates and theirs in rates:
                report[f"ratio, {arm}, {seeds} seeds, {where}"] = Spread.of_ratios(rates[ours], rates[theirs])._asdict()
    return report


def compare_versions(other: Path, arms: Sequence[str], numbers: Sequence[int], repeats: int, steps: int) -> Report:
    """The jaxtie beside this file and that of another checkout, each run of both arms in a process of its own."""
    if not (other / "jaxtie" / "run.py").is_file():
        raise SystemExit(f"--against {other}: expected a checkout of jaxtie, a folder with jaxtie/run.py")
    versions, common = {"this": CHECKOUT, "other": other.resolve()}, ["--arms", ",".join(arms), "--steps", str(steps)]
    sides = {
        f"{name}, {seeds} seeds": partial(run_command, ["--seeds", str(seeds), *common], checkout=checkout)
        for seeds in numbers
        for name, checkout in versions.items()
    }
    configs = take_turns(sides, repeats)
    rates = {
        f"{arm}, {side}": [config["arms"][arm]["seed_steps_per_second"] for config in found]
        for arm in arms
        for side, found in configs.items()
    }
    config = configs[next(iter(sides))][0]
    report = about_now(f"{config['workers']} x {config['device']}") | {name: str(path) for name, path in versions.items()}
    report["seed_steps_per_second"] = {name: Spread.of(values)._asdict() for name, values in rates.items()}
    for arm in arms:
        for seeds in numbers:
            ours, theirs = (rates[f"{arm}, {name}, {seeds} seeds"] for name in versions)
            report[f"ratio this / other, {arm}, {seeds} seeds"] = Spread.of_ratios(ours, theirs)._asdict()
    return report


def show(report: Report) -> None:
    """Print a report as a table."""
    for name, value in report.items():
        if name == "seed_steps_per_second":
            for side, spread in value.items():
                print(f"{side:40s} {Spread(**spread):,.0f} seed-steps/s")
        elif isinstance(value, dict) and "median" in value:
            print(f"{name:40s} {Spread(**value):,.3f}")
        else:
            print(f"{name:40s} {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="folder of another version of jaxtie's repository")
    parser.add_argument("--seeds", help="numbers of seeds (default: 1,8,64,512,4096; with --against 64,1)")
    parser.add_argument("--arms", default="tied,untied", help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each repeat, about (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20_000, help="of each run, with --against (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    arms = options.arms.split(",")
    numbers = [int(seeds) for seeds in (options.seeds or ("64,1" if options.against else "1,8,64,512,4096")).split(",")]
    if options.against:
        report = compare_versions(options.against, arms, numbers, options.repeats, options.steps)
    else:
        report = compare_with_pytorch(arms, numbers, options.repeats, options.seconds)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        show(report)


if __name__ == "__main__":
    main()
