"""Seed-steps per second of the main experiment, against a careful PyTorch loop where torch is installed.

    python benchmarks/throughput.py                              # table
    python benchmarks/throughput.py --json > throughput.json

Everything runs as shipped: a stream of samples per seed, a record every 100 steps, an exact evaluation every 1,000. The
two sides take turns, each with every core: jaxtie one device a core, PyTorch one process a core.
"""

import argparse
import dataclasses
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from jaxtie.config import Experiment
from jaxtie.run import cores, describe, start_jax


def rate(program, workers, experiment: Experiment, seconds: float) -> float:
    """Seed-steps per second over about `seconds` or more; records are fetched."""
    from jaxtie import sweep

    # With fewer records the exact evaluation at the end, one a run, would weigh more than in a real run.
    records = max(30, round(seconds / sweep.seconds_per_record(program, workers, experiment)))
    experiment = dataclasses.replace(experiment, steps=records * experiment.record_every)
    seed_steps = 0
    for piece in sweep.run(program, workers, experiment):
        if piece.first_record:
            seed_steps += piece.records["loss"].size * experiment.record_every
        else:  # what is there before the first step comes of all members before any is trained
            began = time.perf_counter()
    return seed_steps / (time.perf_counter() - began)


def pytorch_rate(arm: str, processes: int, steps: int) -> float:
    """Seed-steps per second of so many PyTorch processes together."""
    command = [sys.executable, str(Path(__file__).with_name("pytorch_loop.py")), "--steps", str(steps), "--arm", arm]
    running = [subprocess.Popen([*command, "--seed", str(i)], stdout=subprocess.PIPE, text=True) for i in range(processes)]
    return sum(float(process.communicate()[0]) for process in running)


def has_torch() -> bool:
    try:
        return bool(version("torch"))
    except PackageNotFoundError:
        return False


def summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "repeats": len(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="1,8,64,512,4096", help="numbers of seeds (default: %(default)s)")
    parser.add_argument("--arms", default="tied,untied", help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each repeat, about (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()

    jax = start_jax()
    from jaxtie import sweep

    devices, sides, compile_seconds = jax.devices(), {}, {}

    def side(seeds: int, arm: str) -> Callable[[], float]:
        experiment = Experiment(seeds=tuple(range(seeds)))
        block = sweep.block_size(devices[0].platform, experiment.model, seeds)
        workers = sweep.assign_workers(seeds, block, devices, cores())
        if (arm, block) not in programs:
            began = time.perf_counter()
            programs[arm, block] = sweep.compile_program(experiment, devices, tied=arm == "tied")
            compile_seconds[f"{arm}, block of {block}"] = time.perf_counter() - began
        return lambda: rate(programs[arm, block], workers, experiment, options.seconds)

    programs = {}
    for arm in options.arms.split(","):
        for seeds in map(int, options.seeds.split(",")):
            sides[f"jaxtie, {arm}, {seeds} seeds"] = side(seeds, arm)
        if has_torch() and devices[0].platform == "cpu":
            steps = int(200 * options.seconds)
            sides[f"PyTorch, {arm}, 1 process"] = lambda arm=arm, steps=steps: pytorch_rate(arm, 1, steps)
            sides[f"PyTorch, {arm}, {cores()} processes"] = lambda arm=arm, steps=steps: pytorch_rate(arm, cores(), steps)
    rates = {name: [] for name in sides}
    for i in range(options.repeats):
        for name, measure in sides.items():
            print(f"\rrepeat {i + 1} of {options.repeats}: {name:40s}", end="", file=sys.stderr, flush=True)
            rates[name].append(measure())
    print(file=sys.stderr)
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "device": f"{len(devices)} x {describe(devices[0])}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", *["torch"] * has_torch())},
        "seed_steps_per_second": {name: summary(values) for name, values in rates.items()},
        "compile_seconds": compile_seconds,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    for arm in options.arms.split(","):
        baseline, ours = rates.get(f"PyTorch, {arm}, {cores()} processes"), rates.get(f"jaxtie, {arm}, 64 seeds")
        if baseline and ours:
            ratios = [a / b for a, b in zip(ours, baseline, strict=True)]
            report[f"ratio, {arm}, 64 seeds, all cores"] = summary(ratios)
        baseline, ours = rates.get(f"PyTorch, {arm}, 1 process"), rates.get(f"jaxtie, {arm}, 1 seeds")
        if baseline and ours:
            ratios = [a / b for a, b in zip(ours, baseline, strict=True)]
            report[f"ratio, {arm}, 1 seed, one core"] = summary(ratios)
    if options.json:
        print(json.dumps(report, indent=1))
        return
    for name, value in report.items():
        if name == "seed_steps_per_second":
            for side_name, s in value.items():
                print(f"{side_name:36s} {s['median']:12,.0f} seed-steps/s  [{s['min']:,.0f}, {s['max']:,.0f}]")
        elif isinstance(value, dict) and "median" in value:
            print(f"{name:36s} {value['median']:12,.1f}  [{value['min']:,.1f}, {value['max']:,.1f}]")
        else:
            print(f"{name:36s} {value}")


if __name__ == "__main__":
    main()
