"""Seed-steps per second of the EXor models, against PyTorch or another version of jaxtie.

    # the main experiment, with PyTorch where torch is installed; other models; JSON
    python benchmarks/throughput.py
    python benchmarks/throughput.py --models lstm_small,mixer_medium --seeds 1,64 --arms untied
    python benchmarks/throughput.py --json > throughput.json

    # this version and that one, in turns
    python benchmarks/throughput.py --against CHECKOUT
    python benchmarks/throughput.py --against CHECKOUT --models lstm_medium --steps 500 --seeds 64

Everything runs as shipped: a stream of samples per seed, a record every 100 steps, an exact
evaluation every 1,000. The sides take turns, each with every core: jaxtie a thread a core, PyTorch
a process a core, which trains one seed in a loop or its share of 64 by `torch.func.vmap`, with
`--compile` also by `torch.compile`; on a GPU one process, and `vmap` also over the most seeds that
jaxtie trains. Versions are compared by `python -m jaxtie.run`, whose rate of
training is in its `config.json`.
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
from jaxtie.config import Variant
from jaxtie.training.devices import cores, describe_device, start_jax

if TYPE_CHECKING:
    import jax

    from jaxtie.training.block_engine import BlockProgram

Report = dict[str, Any]
MANY = 64  # seeds that PyTorch trains at once


def train(
    program: "BlockProgram", workers: Sequence["jax.Device"], config: Experiment, seconds: float
) -> float:
    """Return seed-steps per second over about `seconds` or more; records are fetched."""
    from jaxtie.training.block_engine import BlockRun

    # with fewer records the exact evaluation at the end would weigh more than in a real run
    run = BlockRun(program, workers, config, 3 * config.record_every)
    for chunk in run.chunks(config.members, None):
        if chunk.first_record <= 1:  # the first may be slow
            began = time.perf_counter()
    records = max(30, round(2 * seconds / (time.perf_counter() - began)))
    config = dataclasses.replace(config, steps=records * config.record_every)
    seed_steps = 0
    for chunk in BlockRun(program, workers, config, config.steps).chunks(config.members, None):
        if chunk.first_record:
            seed_steps += chunk.updates
        else:  # step 0 comes of all members before any is trained
            began = time.perf_counter()
    return seed_steps / (time.perf_counter() - began)


def product_rate() -> float:
    """Return FLOP/s of a large matrix product, float32, on all cores."""
    import jax
    import jax.numpy as jnp

    x = jnp.ones((2048, 2048))
    product = jax.jit(lambda x: x @ x).lower(x).compile()
    product(x).block_until_ready()
    best = math.inf
    for _ in range(10):
        began = time.perf_counter()
        product(x).block_until_ready()
        best = min(best, time.perf_counter() - began)
    return 2 * 2048**3 / best


def product_flops(config: Experiment, arm: str) -> int:
    """Return FLOP of the matrix products of one member's update."""
    import jax
    import numpy as np

    from jaxtie.training.member import make_member

    task = config.build(Variant(arm == "tied"), "cpu")
    member = make_member(task)
    state = jax.eval_shape(member.init, np.uint32(0), task.hparams())
    update = jax.make_jaxpr(member.step)(
        state, task.hparams(), task.stream(np.uint32(0)), np.int32(0)
    )
    return flops_of(update.jaxpr)


def flops_of(jaxpr: Any) -> int:
    """Return FLOP of the matrix products of a program, those in a loop for each of its turns."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            depth = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * depth * math.prod(equation.outvars[0].aval.shape)
        turns = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += turns * flops_of(inner)
    return total


def declaration_of(model: str, checkout: Path = CHECKOUT) -> Path:
    """Return the path of an experiment file."""
    return checkout / "experiments" / f"{model}.py"


def jaxtie_sides(
    models: Iterable[str], arms: Sequence[str], numbers: Sequence[int], seconds: float
) -> tuple[dict[str, Callable[[], float]], dict[str, float]]:
    """Return functions that train so many seeds of each arm, and seconds of compiling."""
    from jaxtie.run.experiment_files import load_experiment
    from jaxtie.training.block_engine import (
        assign_workers,
        compile_block,
        layout_of,
        members_per_block,
    )

    devices, sides, compile_seconds = start_jax().devices(), {}, {}
    for model, arm, seeds in itertools.product(models, arms, numbers):
        declared = load_experiment(declaration_of(model))
        config = dataclasses.replace(declared, seeds=tuple(range(seeds)))
        layout = layout_of(config, devices[0].platform)
        block = members_per_block(layout, seeds)
        workers = assign_workers(seeds, block, devices, cores())
        began = time.perf_counter()
        # again: kept, at no time
        key, variant = config.program_key(), Variant(arm == "tied")
        program = compile_block(key, variant, layout, block, tuple(devices))
        compile_seconds.setdefault(f"{model}, {arm}, block of {block}", time.perf_counter() - began)
        name = f"{model}, {arm}, jaxtie, {seeds} seeds"
        sides[name] = partial(train, program, workers, config, seconds)
    return sides, compile_seconds


def pytorch_rate(
    model: str, arm: str, seconds: float, processes: int, options: Sequence[str]
) -> float:
    """Return seed-steps per second of so many PyTorch processes together; NaN where they fail."""
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("pytorch_loop.py"))]
    command += ["--seconds", str(seconds), "--arm", arm]
    command += ["--model", str(declaration_of(model)), *options]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([*command, "--seed", str(i)], **output) for i in range(processes)]
    answers = [process.communicate() for process in running]
    if any(process.returncode for process in running):
        error = answers[0][1].strip().splitlines()[-1]
        print(f"\n{model}, {arm}, {' '.join(options)}: {error}", file=sys.stderr)
        return math.nan
    return sum(float(answer) for answer, _ in answers)


def pytorch_ways(
    platform: str, numbers: Iterable[int], compiled: bool
) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return way -> processes and their options: a loop, and seeds at once, shared by processes."""
    if platform == "cpu":
        ways: dict = {"loop, one core": (1, ()), "loop, all cores": (cores(), ())}
    else:
        ways = {"loop": (1, ())}
    processes = cores() if platform == "cpu" else 1
    for seeds in [MANY] if platform == "cpu" else sorted({MANY, max(numbers)}):
        share = ("--seeds", str(-(-seeds // processes)))
        ways[f"vmap, {seeds} seeds"] = processes, share
        if compiled:
            ways[f"vmap and compile, {seeds} seeds"] = processes, (*share, "--compile")
    return ways


def about_now(device: str) -> Report:
    """Return the head of a report."""
    packages = ("jax", "jaxlib", *["torch"] * has_torch())
    about = {"date": time.strftime("%Y-%m-%d"), "device": device}
    about["python"] = platform.python_version()
    return about | {name: version(name) for name in packages}


def spreads(rates: dict[str, list[float]]) -> Report:
    """Return the spread of every side."""
    return {name: Spread.of(values)._asdict() for name, values in rates.items()}


def compare_with_pytorch(
    options: argparse.Namespace, models: Sequence[str], arms: Sequence[str], numbers: Sequence[int]
) -> Report:
    """Measure jaxtie in this process, and PyTorch where it is installed."""
    from jaxtie.run.experiment_files import load_experiment

    sides, compile_seconds = jaxtie_sides(models, arms, numbers, options.seconds)
    devices = start_jax().devices()
    ways = pytorch_ways(devices[0].platform, numbers, options.compile) if has_torch() else {}
    sides |= {
        f"{model}, {arm}, PyTorch {way}": partial(pytorch_rate, model, arm, options.seconds, *how)
        for model, arm, (way, how) in itertools.product(models, arms, ways.items())
    }
    rates = take_turns(sides, options.repeats)
    report = about_now(f"{len(devices)} x {describe_device(devices[0])}") | {
        "seed_steps_per_second": spreads(rates),
        "compile_seconds": compile_seconds,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if devices[0].platform == "cpu":
        most = max(numbers)
        for model, arm in itertools.product(models, arms):
            config = load_experiment(declaration_of(model))
            flops = (
                product_flops(config, arm)
                * Spread.of(rates[f"{model}, {arm}, jaxtie, {most} seeds"]).median
            )
            share = flops / product_rate()
            report[f"{model}, {arm}, {most} seeds, share of the rate of a product"] = share
    pairs = []
    for way in ways:
        alike = [seeds for seeds in numbers if way.endswith(f", {seeds} seeds")]
        most = MANY if MANY in numbers else max(numbers)
        own = 1 if way == "loop, one core" else alike[0] if alike else most
        pairs.append((f"jaxtie, {own} seeds", f"PyTorch {way}"))
    for model, arm, (ours, theirs) in itertools.product(models, arms, pairs):
        found = [rates.get(f"{model}, {arm}, {side}") for side in (ours, theirs)]
        if all(found):
            ratio = Spread.of_ratios(*found)
            report[f"{model}, {arm}, {ours} / {theirs}"] = ratio._asdict()
    return report


def compare_versions(
    options: argparse.Namespace, models: Sequence[str], arms: Sequence[str], numbers: Sequence[int]
) -> Report:
    """Measure this jaxtie and that of another checkout, each run in a process of its own."""
    other = options.against.resolve()
    if not (other / "jaxtie" / "__init__.py").is_file():
        raise SystemExit(f"--against {other}: expected a checkout of jaxtie")
    versions = {"this": CHECKOUT, "other": other}
    common = ["--arms", ",".join(arms), "--steps", str(options.steps)]
    sides = {
        f"{model}, {name}, {seeds} seeds": partial(
            run_command,
            [str(declaration_of(model, checkout)), "--seeds", str(seeds), *common],
            checkout=checkout,
        )
        for model, seeds in itertools.product(models, numbers)
        for name, checkout in versions.items()
    }
    configs = take_turns(sides, options.repeats)
    rates = {
        f"{side}, {arm}": [config["arms"][arm]["seed_steps_per_second"] for config in found]
        for arm in arms
        for side, found in configs.items()
    }
    config = configs[next(iter(sides))][0]
    report = about_now(f"{config['workers']} x {config['device']}")
    report |= {name: str(path) for name, path in versions.items()}
    report["seed_steps_per_second"] = spreads(rates)
    for model, arm, seeds in itertools.product(models, arms, numbers):
        found = (rates[f"{model}, {name}, {seeds} seeds, {arm}"] for name in versions)
        ratio = Spread.of_ratios(*found)
        report[f"ratio this / other, {model}, {seeds} seeds, {arm}"] = ratio._asdict()
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
    """Compare versions with `--against`, else with PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--against", type=Path, metavar="CHECKOUT", help="another version of the repository")
    add("--models", default="transformer_small", help="files of experiments/ (%(default)s)")
    add("--compile", action="store_true", help="PyTorch also by torch.compile; takes minutes")
    add("--seeds", help="numbers of seeds (1,8,64,512,4096; with --against 64,1)")
    add("--arms", default="tied,untied", help="plain arms (%(default)s)")
    add("--repeats", type=int, default=5, help="of each measurement (%(default)s)")
    add("--seconds", type=float, default=4.0, help="of each repeat, about (%(default)s)")
    add("--steps", type=int, default=20_000, help="of each run, with --against (%(default)s)")
    add("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    default = "64,1" if options.against else "1,8,64,512,4096"
    numbers = [int(seeds) for seeds in (options.seeds or default).split(",")]
    compare = compare_versions if options.against else compare_with_pytorch
    report = compare(options, options.models.split(","), options.arms.split(","), numbers)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        show(report)


if __name__ == "__main__":
    main()
