"""Memory and time by model, seeds, devices and processes, on the CPU; and what follows for larger machines.

    python benchmarks/scaling.py

Prints Markdown. Time is that of whole runs of `python -m jaxtie.run`, read from their `config.json`; memory is what the
compiled programs ask for (`memory_analysis`).
"""

import argparse
import dataclasses
import socket
import time
from importlib.metadata import version
from typing import NamedTuple

from turns import CHECKOUT, run_command

from jaxtie import Experiment
from jaxtie.training.devices import cores, describe_device, start_jax

MODELS = ("transformer_small", "lstm_small", "mixer_small", "transformer_medium", "lstm_medium", "mixer_medium")
STEPS_OF_PAPER = 150_000


class Row(NamedTuple):
    """Of a model: KiB of state a seed, MiB of work a worker, seed-steps per second of all cores."""

    name: str
    state_kib: float
    work_mib: float
    rate: float


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def rate_of_runs(devices: int, processes: int, seeds: int, steps: int) -> float:
    """Seed-steps per second of the training of one run, in so many processes with so many devices each."""
    options = ["--seeds", str(seeds), "--steps", str(steps), "--arms", "untied"]
    each = [options]
    if processes > 1:
        options += ["--distributed", "--coordinator", f"127.0.0.1:{free_port()}", "--process-count", str(processes)]
        each = [[*options, "--process-index", str(i)] for i in range(processes)]
    config = run_command(*each, JAX_NUM_CPU_DEVICES=str(devices))
    return config["arms"]["untied"]["seed_steps_per_second"]


def measure(name: str) -> Row:
    """The compiled program of a model, and 64 seeds trained by it for a few records."""
    import jax

    from jaxtie.exor.blocks import assign_workers, block_of, compile_block
    from jaxtie.exor.engine import seconds_per_record
    from jaxtie.exor.member import Static
    from jaxtie.runs import load_experiment

    declared = load_experiment(CHECKOUT / "experiments" / f"{name}.py")
    experiment = dataclasses.replace(declared, seeds=tuple(range(64)))
    block = block_of(experiment, jax.devices())
    workers = assign_workers(len(experiment.members), block, jax.devices(), cores())
    program = compile_block(Static.of(experiment, tied=False), block, workers)
    size = program.advance[workers[0]].memory_analysis()
    state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.states)) / program.block
    work = size.output_size_in_bytes + size.temp_size_in_bytes
    seconds = seconds_per_record(program, workers, experiment)
    return Row(name, state / 2**10, work / 2**20, 64 * experiment.record_every / seconds)


def print_models(rows: list[Row]) -> None:
    """What each model takes."""
    print("## Models\n\nUntied; state is parameters and optimiser moments; a worker is a core, with a block of seeds.\n")
    print(
        f"| model | state, KiB a seed | work, MiB a worker | seed-steps/s | 64 seeds x {STEPS_OF_PAPER:,} steps, min an arm |"
    )
    print("| --- | --- | --- | --- | --- |")
    for name, state, work, rate in rows:
        print(f"| {name} | {state:,.1f} | {work:,.0f} | {rate:,.0f} | {64 * STEPS_OF_PAPER / rate / 60:,.1f} |")


def print_devices(seeds: int, steps: int) -> None:
    """What devices and processes do to the rate of whole runs."""
    print(f"\n## Devices and processes\n\nThe main experiment untied, {seeds} seeds, {steps:,} steps, {cores()} cores.\n")
    print("| CPU devices a process | processes | seed-steps/s |\n| --- | --- | --- |")
    for devices, processes in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2)):
        print(f"| {devices} | {processes} | {rate_of_runs(devices, processes, seeds, steps):,.0f} |", flush=True)
    print(f"| 1 | 1, {4 * seeds} seeds | {rate_of_runs(1, 1, 4 * seeds, steps):,.0f} |")
    print("\nEach process uses all cores, so two on one machine share these, and what they send each other waits for the")
    print("programs under way: several processes are for several machines.")


def print_predictions(row: Row) -> None:
    """What a million seeds of a model would take."""
    from jaxtie.exor.results import exor_schema

    million = Experiment(seeds=tuple(range(1_000_000)), arms=("untied",))
    sparse = dataclasses.replace(million, record_every=10_000, eval_every=50_000)
    dense_bytes, sparse_bytes = (exor_schema(each).size_in_bytes(each) for each in (million, sparse))
    seed_steps, per_core = 1e6 * STEPS_OF_PAPER, row.rate / cores()
    print("\n## Predictions\n\nSeeds never talk to each other, so time is seeds x steps / (workers x rate of a worker).\n")
    print("| what | prediction |\n| --- | --- |")
    print(f"| a million seeds of {row.name}, one arm, state on the devices | {1e6 * row.state_kib / 2**20:,.1f} GiB |")
    print(f"| ... records as by default, before compression | {dense_bytes / 2**40:,.1f} TiB |")
    print(f"| ... recorded every 10,000 steps, evaluated every 50,000 | {sparse_bytes / 2**30:,.1f} GiB |")
    for workers in (cores(), 64, 1024):
        hours = seed_steps / (workers * per_core) / 3600
        print(f"| ... {STEPS_OF_PAPER:,} steps on {workers:,} such cores | {hours:,.0f} h |")
    of_all = f"{seed_steps / 1e9:,.0f} billion seed-steps over the rate of all devices, not measured"
    print(f"| ... on 8 GPUs or a pod slice | {of_all} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="files of experiments/ (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=128, help="of the runs (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10_000, help="of the runs (default: %(default)s)")
    options = parser.parse_args()
    jax = start_jax()
    print(f"{time.strftime('%Y-%m-%d')}, {cores()} x {describe_device(jax.devices()[0])}, jax {version('jax')}.\n")
    rows = [measure(name) for name in options.models.split(",")]
    print_models(rows)
    print_devices(options.seeds, options.steps)
    print_predictions(rows[0])


if __name__ == "__main__":
    main()
