"""Memory and time by model, seeds, devices and processes, on the CPU; and what follows for larger machines.

    python benchmarks/scaling.py > benchmarks/scaling.md

Time is that of whole runs of `python -m jaxtie.run`, read from their `config.json`; memory is what the compiled programs ask
for (`memory_analysis`).
"""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from jaxtie.config import Experiment
from jaxtie.run import cores, describe, load_experiment, start_jax

SEEDS, STEPS = 128, 10_000
MODELS = ("transformer_small", "lstm_small", "mixer_small", "transformer_medium", "lstm_medium", "mixer_medium")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def run(devices: int, processes: int, seeds: int) -> float:
    """Seed-steps per second of the training."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        options = ["--seeds", str(seeds), "--steps", str(STEPS), "--arms", "untied", "--out", str(out), "--quiet"]
        if processes > 1:
            options += ["--distributed", "--coordinator", f"127.0.0.1:{free_port()}", "--process-count", str(processes)]
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "jaxtie.run", *options, *(["--process-index", str(i)] * (processes > 1))],
                env=os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)},
                stdout=subprocess.DEVNULL,
            )
            for i in range(processes)
        ]
        if any([process.wait() for process in started]):
            raise SystemExit("a run failed")
        return json.loads((out / "config.json").read_text())["arms"]["untied"]["seed_steps_per_second"]


def programs() -> list[tuple[str, float, float, float]]:
    """Of each model: KiB of state a seed, MiB of work a worker, seed-steps per second of all cores."""
    jax = start_jax()
    from jaxtie import sweep

    rows = []
    for name in MODELS:
        experiment = dataclasses.replace(load_experiment(Path("experiments") / f"{name}.py"), seeds=tuple(range(64)))
        block = sweep.block_size(jax.devices()[0].platform, experiment.model, len(experiment.members))
        workers = sweep.assign_workers(len(experiment.members), block, jax.devices(), cores())
        program = sweep.compile_program(experiment, workers, tied=False)
        size = program.advance[workers[0]].memory_analysis()
        state = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.states)) / program.block
        seconds = sweep.seconds_per_record(program, workers, experiment, records=3)
        work = size.output_size_in_bytes + size.temp_size_in_bytes
        rows.append((name, state / 2**10, work / 2**20, 64 * experiment.record_every / seconds))
    return rows


def main() -> None:
    import jax

    print("# Planning past the machine\n")
    print(f"{time.strftime('%Y-%m-%d')}, {cores()} x {describe(jax.devices()[0])}, jax {version('jax')}.")
    print("Made by `python benchmarks/scaling.py`; where a figure was not measured it says so.\n")
    print("## Models\n\nUntied; state is parameters and optimiser moments; a worker is a core, with a block of seeds.\n")
    print("| model | state, KiB a seed | work, MiB a worker | seed-steps/s | 64 seeds x 150,000 steps, min an arm |")
    print("| --- | --- | --- | --- | --- |")
    rows = programs()
    for name, state, work, rate in rows:
        print(f"| {name} | {state:,.1f} | {work:,.0f} | {rate:,.0f} | {64 * 150_000 / rate / 60:,.1f} |")
    print(f"\n## Devices and processes\n\nThe main experiment untied, {SEEDS} seeds, {STEPS:,} steps, {cores()} cores.\n")
    print("| CPU devices a process | processes | seed-steps/s |\n| --- | --- | --- |")
    for devices, processes in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2)):
        print(f"| {devices} | {processes} | {run(devices, processes, SEEDS):,.0f} |", flush=True)
    print(f"| 1 | 1, {4 * SEEDS} seeds | {run(1, 1, 4 * SEEDS):,.0f} |")
    print("\nEvery process uses all cores, so two of them on one machine share these, and what is sent between them waits")
    print("for the programs under way: several processes are for several machines.")
    name, state, _, rate = rows[0]
    from jaxtie.results import size_in_bytes

    million = dataclasses.replace(Experiment(), seeds=tuple(range(1_000_000)), arms=("untied",))
    sparse = dataclasses.replace(million, record_every=10_000, eval_every=50_000)
    per_core = rate / cores()
    print("\n## Predictions\n\nSeeds never talk to each other, so time is seeds x steps / (workers x rate of a worker).\n")
    print("| what | prediction |\n| --- | --- |")
    print(f"| a million seeds of {name}, one arm, state on the devices | {1e6 * state / 2**20:,.1f} GiB |")
    print(f"| ... records as by default, before compression | {size_in_bytes(million) / 2**40:,.1f} TiB |")
    print(f"| ... recorded every 10,000 steps, evaluated every 50,000 | {size_in_bytes(sparse) / 2**30:,.1f} GiB |")
    for workers in (cores(), 64, 1024):
        print(f"| ... 150,000 steps on {workers:,} such cores | {1.5e11 / (workers * per_core) / 3600:,.0f} h |")
    print("| ... on 8 GPUs or a pod slice | 1.5e11 seed-steps over the rate of all devices, not measured |")


if __name__ == "__main__":
    main()
