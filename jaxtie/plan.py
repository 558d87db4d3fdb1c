"""`--dry-run`: what a run would take, by compiling a program of it and training that a little."""

import time
from collections.abc import Iterator

from jaxtie import kinds
from jaxtie.experiment import Declaration, names_of
from jaxtie.results.folder import RunFolder, Say


def plan(
    experiment: Declaration, folder: RunFolder, earlier: dict | None, say: Say
) -> Iterator[str]:
    """Members, time, memory and disk, a line each; what the experiment needs is prepared, as any
    run would.
    """
    from jaxtie.training.devices import start_jax

    start_jax()
    from jaxtie.training.engine import programs_of
    from jaxtie.training.processes import Processes

    kind, alone = kinds.of(experiment), Processes()
    material = kind.prepare(experiment, folder, earlier, alone, say)
    settings = "".join(f"{len(values)} x {name}, " for name, values in experiment.swept.items())
    count, arms = (
        len(experiment.members) * len(experiment.arms),
        ", ".join(names_of(experiment.arms)),
    )
    yield (
        f"members   {count:,}: {settings}{len(experiment.seeds):,} seeds x {arms},"
        f" {experiment.steps:,} steps"
    )
    engine, programs, began = (
        kind.engine(experiment, material, alone),
        programs_of(experiment),
        time.monotonic(),
    )
    program = engine.compile(programs[-1])
    compiling = time.monotonic() - began
    found = engine.estimate(program)
    minutes = (len(programs) * compiling + len(experiment.arms) * found.seconds) / 60
    speed = f", {found.speed}" if found.speed else ""
    yield (
        f"time      {minutes:,.1f} min on {engine.facts['workers']} x {engine.facts['device']}, as"
        f" measured just now{speed}; {len(programs)} programs are compiled"
    )
    yield f"memory    {found.device_bytes / 2**20:,.1f} MiB on the devices"
    disk = 2 * kind.schema(experiment).size_in_bytes(experiment)
    yield (
        f"disk      {disk / 2**20:,.1f} MiB of records at most, half of it until the end only, and"
        " three checkpoints"
    )
