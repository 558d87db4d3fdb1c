"""Time a step of the main experiment on a GPU under other compiler options and layouts.

    python benchmarks/gpu_options.py --out options.json     # two minutes on an H200
    python benchmarks/gpu_options.py --toy                  # the same in small, on any machine

For each block size and variant: kernels of a step in the compiled program, microseconds a step,
seed-steps a second, whether a second call from the same state has the same bits, and the mean
loss, in which variants differ by rounding only. `both arms` trains a block of each in one program;
compare its time with the sum of the two.
"""

import argparse
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION"
LOOP = f"{GRAPHS},WHILE,CONDITIONAL"


class Variant(NamedTuple):
    """Options of the compiler in addition to jaxtie's; most terms of a sum in one expression."""

    options: dict[str, Any]
    short: int = 8


VARIANTS = {
    "as it is": Variant({}),
    "no graphs": Variant({"xla_gpu_enable_command_buffer": ""}),
    "graph of the loop": Variant({"xla_gpu_enable_command_buffer": LOOP}),
    "graph of the loop, concurrent": Variant(
        {
            "xla_gpu_enable_command_buffer": LOOP,
            "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
        }
    ),
    "graph of the loop, unrolled": Variant(
        {"xla_gpu_enable_command_buffer": LOOP, "xla_gpu_command_buffer_unroll_loops": True}
    ),
    "two steps an iteration": Variant(
        {"xla_gpu_enable_while_loop_unrolling": "WHILE_LOOP_UNROLLING_DOUBLE_BUFFER"}
    ),
    "sums in one expression": Variant({}, 128),
    "sums in one expression, graph of the loop": Variant(
        {"xla_gpu_enable_command_buffer": LOOP}, 128
    ),
}


def kernels_of(text: str) -> int:
    """Return the operations of the largest loop body of a compiled program that start a kernel."""
    free = "parameter constant get-tuple-element tuple bitcast while conditional call".split()
    counts, bodies = {}, set(re.findall(r"body=%([\w.\-]+)", text))
    name = ""
    for line in text.splitlines():
        if begins := re.match(r"%([\w.\-]+) \(.*\{$", line):
            name = begins[1]
        elif (operation := re.match(r"\s+(?:ROOT )?%[\w.\-]+ = .*? ([a-z\-]+)\(", line)) and name:
            counts[name] = counts.get(name, 0) + (operation[1] not in free)
    inner = {body: counts.get(body, 0) for body in bodies}
    return max((n for body, n in inner.items() if "while(" not in _text_of(text, body)), default=0)


def _text_of(text: str, name: str) -> str:
    return text.partition(f"\n%{name} (")[2].partition("\n}")[0]


def programs(config, block: int, arms: tuple[bool, ...], variant: Variant) -> tuple[Any, list]:
    """Compile the training of a block of each arm in one program; return it and its arguments."""
    import jax
    import jax.numpy as jnp

    from jaxtie.config import Variant as Arm
    from jaxtie.training import block_engine, devices, lanes

    platform, own = jax.default_backend(), lanes.SHORT
    layout = block_engine.layout_of(config, platform)
    lanes.SHORT = max(own, variant.short)
    seeds = np.arange(block, dtype=np.uint32)
    hparams = config.build(Arm(True), platform).hparams()
    hparams = jax.tree.map(lambda x: np.stack([x] * block), hparams)
    try:
        with jax.default_matmul_precision("highest"):
            batched = [
                block_engine.batch_members(config.program_key(), Arm(tied), layout, block, platform)
                for tied in arms
            ]
            started = [jax.device_get(each.start(seeds, hparams)[:2]) for each in batched]

            def advance(states, streams, hparams, step, count, last):
                rest = hparams, step, count, last
                return [each.advance(*own, *rest) for each, *own in zip(batched, states, streams)]

            lowered = jax.jit(advance, donate_argnums=0).lower(
                [states for states, _ in started],
                [streams for _, streams in started],
                hparams,
                *[jax.ShapeDtypeStruct((), jnp.int32)] * 3,
            )
        options = devices.FAST.get(platform, {}) | variant.options
        return lowered.compile(options), [started, hparams]
    finally:
        lanes.SHORT = own


def time_one(program: Any, arguments: list, every: int, records: int) -> dict[str, Any]:
    """Return the time of a step, whether bits are the same again, and the mean loss."""
    import jax

    (started, hparams), found = arguments, []
    streams, hparams = jax.device_put([each for _, each in started]), jax.device_put(hparams)
    for _ in range(2):
        states = jax.device_put([each for each, _ in started])
        numbers = (np.int32(x) for x in (0, records, 10**6))
        jax.block_until_ready(states)
        began = time.perf_counter()
        result = program(states, streams, hparams, *numbers)
        jax.block_until_ready(result)
        found.append((time.perf_counter() - began, jax.device_get(result)))
    (_, one), (seconds, other) = found
    same = all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )
    losses = [float(records_["loss"][records - 1].mean()) for _, records_ in other]
    return {
        "us a step": round(1e6 * seconds / (records * every), 2),
        "seed-steps/s": round(sum(len(s) for s in streams) * records * every / seconds),
        "same bits": same,
        "loss": [round(loss, 5) for loss in losses],
        "kernels": kernels_of(program.as_text()),
    }


def measure(blocks: list[int], records: int, chosen: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the name of each case and what was measured of it."""
    from jaxtie import Experiment
    from jaxtie.training.devices import start_jax

    jax = start_jax()
    config = Experiment()
    cases = {"untied": (False,), "tied": (True,), "both arms": (True, False)}
    for block in blocks:
        for name, variant in VARIANTS.items():
            for case, arms in cases.items():
                if name not in chosen or (case != "untied" and name not in (chosen[0], chosen[-1])):
                    continue
                if variant.options and jax.default_backend() == "cpu":
                    continue  # a CPU's compiler does not know them
                began = time.perf_counter()
                label = f"{block} members, {case}, {name}"
                try:
                    made = programs(config, block, arms, variant)
                    compiling = time.perf_counter() - began
                    found = time_one(*made, config.record_every, records)
                    yield label, found | {"s to compile": round(compiling, 1)}
                except Exception as error:  # the other variants are worth as much
                    yield label, f"failed: {' '.join(str(error).split())[:200]}"


def main() -> None:
    """Measure and print one case after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", default="128,2048", help="(%(default)s)")
    parser.add_argument("--records", type=int, default=40, help="of 100 steps (%(default)s)")
    parser.add_argument("--variants", default=";".join(VARIANTS), help="by name; all")
    parser.add_argument("--toy", action="store_true", help="one block, two records")
    parser.add_argument("--out", type=Path, help="file of JSON")
    own = parser.parse_args()
    blocks = [8] if own.toy else [int(block) for block in own.blocks.split(",")]
    found = {}
    for name, each in measure(blocks, 2 if own.toy else own.records, own.variants.split(";")):
        found[name] = each
        print(f"{name}: {each}", flush=True)
        if own.out:
            own.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
